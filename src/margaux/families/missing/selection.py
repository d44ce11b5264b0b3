"""Which coefficients a regression with missing covariates needs, by an information criterion on the exact likelihood."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pandas as pd

#: left-out columns -> (log-likelihood, free parameters)
Fitted = Callable[[tuple[int, ...]], tuple[float, int]]

#: columns up to which every subset is tried
MOST = 12


def search(fitted: Fitted, p: int, names: list[str], direction: str, penalty: float) -> tuple[tuple[int, ...], pd.DataFrame]:
    """The columns to leave out, and every model tried: columns kept, log-likelihood, criterion.

    Backward starts from all columns and leaves one out at a time, forward from none and takes one in, as long as the
    criterion $-2\\ell + c k$ falls. A column that is left out keeps its place in the distribution of the covariates.

    Args:
        direction: "backward", "forward" or "exhaustive" (at most 12 columns). penalty: c, as 2 (AIC) or log n (BIC).

    Raises:
        ValueError: another direction, or too many columns for all subsets.
    """
    tried: dict[tuple[int, ...], tuple[float, float]] = {}

    def criterion(out: tuple[int, ...]) -> float:
        if out not in tried:
            loglik, k = fitted(out)
            tried[out] = (loglik, -2 * loglik + penalty * k)
        return tried[out][1]

    everything = tuple(range(p))
    if direction == "exhaustive":
        if p > MOST:
            raise ValueError(f'all subsets of {p} columns are too many (at most {MOST}); use direction="backward"')
        best = min((out for r in range(p + 1) for out in itertools.combinations(everything, r)), key=criterion)
    elif direction in ("backward", "forward"):
        best = () if direction == "backward" else everything
        while True:
            if direction == "backward":
                near = [tuple(sorted({*best, j})) for j in everything if j not in best]
            else:
                near = [tuple(i for i in best if i != j) for j in best]
            if not near or criterion(new := min(near, key=criterion)) >= criterion(best):
                break
            best = new
    else:
        raise ValueError(f'direction must be "backward", "forward" or "exhaustive", got {direction!r}')
    rows = [
        {
            "columns": ", ".join(names[j] for j in everything if j not in out) or "(none)",
            "n_columns": p - len(out),
            "loglik": loglik,
            "criterion": value,
            "chosen": out == best,
        }
        for out, (loglik, value) in tried.items()
    ]
    return best, pd.DataFrame(rows).sort_values("criterion", ignore_index=True)
