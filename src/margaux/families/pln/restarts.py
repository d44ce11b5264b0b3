"""The best of several starts: the bound of PLN-PCA has many local maxima, hundreds of nats apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from .fitting import Design, Run, Solution, Sweeps
from .start import at_random, by_log_counts

#: starts, the sweeps of their first round, and entries of a table from which fewer are made
STARTS, FIRST, ENTRIES = 16, 12, 20_000_000


def default_starts(n: int, p: int) -> int:
    """Sixteen, fewer from about a million entries on, one from twenty million.

    >>> default_starts(300, 150), default_starts(5000, 2000), default_starts(20_000, 14_000)
    (16, 2, 1)
    """
    return int(np.clip(round(ENTRIES / (n * p)), 1, STARTS))


class Search(NamedTuple):
    """So many starts (None: by the size of the table) from a seed, and the sweeps of each, at most `max_sweeps`: see `Sweeps`."""

    n_starts: int | None = None
    seed: int = 0
    dtype: Any = np.float64
    tol: float = 1e-3
    relative: float = 1e-9
    max_sweeps: int = 1000
    covariance: Literal["full", "diagonal"] = "full"


def best_of(
    design: Design,
    rank: int,
    search: Search = Search(),  # noqa: B008
    watch: Callable[[int, float], None] | None = None,
) -> tuple[Solution, pd.DataFrame]:
    """Successive halving (Jamieson and Talwalkar 2016): the better half of the starts goes on for twice as many sweeps, until
    one is left, which goes on to the end.

    The first start is by principal components of log counts, the others are at random.

    Returns:
        The best solution, and a row a start: its kind, its bound when it was left, its sweeps, and whether it had converged.
    """
    n_starts, seed, dtype, tol, relative, max_sweeps, covariance = search
    count = default_starts(design.share.n, design.counts.p) if n_starts is None else n_starts
    sweeping = Sweeps(design, np.dtype(dtype), covariance, tol, relative)
    sweeps = min(FIRST, max_sweeps) if count > 1 else max_sweeps
    runs: list[Run] = []
    for r in range(count):
        start = by_log_counts(design, rank, seed, dtype) if r == 0 else at_random(design, rank, seed + 7919 * r, dtype=dtype)
        runs.append(sweeping.on(sweeping.begin(*start), sweeps, watch))
    ranked = _ranked(runs)
    while len(ranked) > 1:
        ranked = ranked[: (len(ranked) + 1) // 2]
        sweeps = max_sweeps if len(ranked) == 1 else 2 * sweeps
        for r in ranked:
            runs[r] = sweeping.on(runs[r], min(sweeps, max_sweeps - runs[r].sweeps), watch)
        ranked = _ranked(runs, ranked)
    best = _ranked(runs)[0]
    rows = [("random" if r else "log counts", run.bounds[-1], len(run.bounds), run.converged) for r, run in enumerate(runs)]
    table = pd.DataFrame(rows, columns=pd.Index(["start", "bound", "sweeps", "converged"]))
    return runs[best].solution(), table


def _ranked(runs: list[Run], among: list[int] | None = None) -> list[int]:
    """Places of runs, the highest bound first."""
    return sorted(range(len(runs)) if among is None else among, key=lambda r: -runs[r].bounds[-1])
