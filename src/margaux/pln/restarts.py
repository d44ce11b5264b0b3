"""The best of several starts: the bound of PLN-PCA has many local maxima, hundreds of nats apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from .fitting import Design, Solution, maximise
from .start import at_random, by_log_counts

#: starts, the sweeps of their first round, and entries of a table from which fewer are made
STARTS, FIRST, ENTRIES = 16, 12, 20_000_000


def default_starts(n: int, p: int) -> int:
    """Sixteen, fewer from about a million entries on, one from twenty million.

    >>> default_starts(300, 150), default_starts(5000, 2000), default_starts(20_000, 14_000)
    (16, 2, 1)
    """
    return int(np.clip(round(ENTRIES / (n * p)), 1, STARTS))


def best_of(
    design: Design, rank: int, n_starts: int | None = None, seed: int = 0, dtype: Any = np.float64, tol: float = 1e-3,
    relative: float = 1e-9, max_sweeps: int = 1000, watch: Callable[[int, float], None] | None = None,
) -> tuple[Solution, pd.DataFrame]:  # fmt: skip
    """Successive halving (Jamieson and Talwalkar 2016): the better half of the starts goes on for twice as many sweeps, until
    one is left, which goes on to the end.

    The first start is by principal components of log counts, the others are at random.

    Returns:
        The best solution, and a row a start: its kind, its bound when it was left, its sweeps, and whether it had converged.
    """
    count = default_starts(design.counts.n, design.counts.p) if n_starts is None else n_starts
    settings: dict[str, Any] = {"tol": tol, "relative": relative}
    running: dict[int, Solution] = {}
    sweeps = FIRST if count > 1 else max_sweeps
    for r in range(count):
        start = by_log_counts(design, rank, seed, dtype) if r == 0 else at_random(design, rank, seed + 7919 * r, dtype=dtype)
        running[r] = maximise(design, *start, max_sweeps=sweeps, watch=watch, **settings)
    done: dict[int, Solution] = {}
    while running:
        ranked = sorted(running, key=lambda r: -running[r].bounds[-1])
        kept = ranked[: (len(ranked) + 1) // 2] if len(ranked) > 1 else []
        done |= {r: running[r] for r in ranked if r not in kept}
        sweeps = max_sweeps if len(kept) == 1 else 2 * sweeps
        running = {r: _further(design, running[r], sweeps, watch, settings) for r in kept}
    best = max(done, key=lambda r: done[r].bounds[-1])
    rows = [("log counts" if r == 0 else "random", s.bounds[-1], len(s.bounds), s.converged) for r, s in sorted(done.items())]
    table = pd.DataFrame(rows, columns=pd.Index(["start", "bound", "sweeps", "converged"]))
    return done[best], table


def _further(design: Design, solution: Solution, sweeps: int, watch: Any, settings: dict[str, Any]) -> Solution:
    if solution.converged:
        return solution
    more = maximise(design, solution.loadings, solution.posterior, max_sweeps=sweeps, watch=watch, **settings)
    # Its first sweep is that of the last bound again.
    return more._replace(bounds=solution.bounds + more.bounds[1:])
