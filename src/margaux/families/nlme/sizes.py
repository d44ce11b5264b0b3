"""Subjects of very different numbers of rows, in groups by size."""

from __future__ import annotations

import numpy as np

from ...numerics.ladder import rung, rung_below
from .data import LANES

#: groups at most, each of which is compiled by itself, and padded cells that one more must save: those of all chains
GROUPS, WORTH = 4, 40_000
#: where rows take long, as those of differential equations, for which all wait until the longest is solved
COSTLY_WORTH = 500


def by_size(
    mask: np.ndarray, n_chains: int, worth: int = WORTH, lengths: np.ndarray | None = None
) -> tuple[np.ndarray, tuple[tuple[int, int], ...]]:
    """The order of subjects by number of rows, and (subjects, rows) of the groups that leave least padding.

    No groups where padding to one width costs little more.

    Args:
        mask: (n, T), one where there is a row. worth: padded cells that a group must save. lengths: how long each subject takes,
            by which they are grouped instead (n,).

    >>> order, groups = by_size(np.arange(8) < np.array([[8], [2]] * 5000).reshape(-1, 1), 4)
    >>> groups
    ((5000, 2), (5000, 8))
    """
    n = len(mask)
    sizes = np.sum(np.asarray(mask) > 0, axis=1)
    # Widths as `group` pads them: multiples of LANES, or the few rows there are.
    rows = np.minimum(np.where(sizes > LANES // 2, -(-sizes // LANES) * LANES, sizes), mask.shape[1])
    order = np.argsort(sizes if lengths is None else lengths, kind="stable")
    widths = (rows if lengths is None else np.asarray([rung(int(np.ceil(length))) for length in lengths]))[order]
    ends = np.flatnonzero(np.append(np.diff(widths) > 0, True)) + 1  # a group ends where the width grows
    # best[g][e]: least cells of the subjects before ends[e] in g + 1 groups, and where the last of them starts.
    starts = np.concatenate([[0], ends])
    cells = starts[1:] * widths[ends - 1].astype(float)
    best, cuts = [cells], []
    for _ in range(1, min(GROUPS, len(ends))):
        last = (starts[1:, None] - starts[None, 1:]) * widths[ends - 1][:, None]
        table = np.where(last > 0, best[-1][None] + last, np.inf)
        cuts.append(table.argmin(axis=1))
        best.append(table.min(axis=1))
    saved = np.asarray([(best[0][-1] - found[-1]) * n_chains - worth * g for g, found in enumerate(best)])
    count = int(saved.argmax())
    if count == 0:
        return np.arange(n), ()
    edges, e = [len(ends) - 1], len(ends) - 1
    for g in range(count - 1, -1, -1):
        e = int(cuts[g][e])
        edges.append(e)
    stops = ends[edges[::-1]]
    # A subject may move up to the next group, which has its rows then.
    most = np.maximum.accumulate(rows[order])[stops - 1]
    return order, tuple(zip(np.diff(stops, prepend=0).tolist(), most.tolist(), strict=True))


def on_the_ladder(groups: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Groups of sizes that similar data have too: a few subjects move up to the next, and the last has those that pad a batch.

    >>> on_the_ladder(((510, 16), (495, 32)))
    ((448, 16), (576, 32))
    """
    counts, widths = zip(*groups, strict=True)
    ends = [*map(rung_below, np.cumsum(counts[:-1]).tolist()), rung(sum(counts))]
    sizes = np.diff(ends, prepend=0).tolist()
    return tuple((size, width) for size, width in zip(sizes, widths, strict=True) if size)
