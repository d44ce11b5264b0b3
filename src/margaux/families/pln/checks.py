"""Checks of counts and covariates, each with a sentence that says what is wrong, where, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import scipy

from ...tables.checks import listed

#: counts from which on a table is taken to hold something else
LARGEST = 1e9
#: entries looked at together
BLOCK = 1 << 22
#: how close to zero a relative residual of exactly dependent columns is
EXACT = 1e-9


def check_counts(values: Any, features: pd.Index, units: pd.Index) -> None:
    """Counts (n, p), an array or a SciPy CSR array, are finite whole numbers from zero to `LARGEST`.

    Raises:
        ValueError: the table is empty or holds something else, with the first such entry and how many there are.
    """
    n, p = values.shape
    if n == 0 or p == 0:
        raise ValueError(f"the table of counts is empty (shape {n, p}); rows are units and columns are features")
    faults = (
        (np.isnan, "drop the unit or the feature, or write 0 where nothing was seen"),
        (np.isinf, "counts must be finite; look at how the table was read"),
        (lambda part: part < 0, "counts start at zero; if the table is centred or on a log scale, pass the raw counts"),
        (
            lambda part: part != np.trunc(part),
            "counts are whole numbers; if the table is normalised or on a log scale, pass the raw counts "
            '(of an AnnData often .layers["counts"]) and what they were divided by as offsets',
        ),
        (
            lambda part: part >= LARGEST,
            f"from {LARGEST:g} on they are rarely counts; drop a column of identifiers, divide intensities and round them",
        ),
    )
    if all(map(_is_fine, _parts(values))):
        return
    for fault, mend in faults:
        hits = [first + np.flatnonzero(fault(part)) for first, part in _numbered(values)]
        total = sum(map(len, hits))
        if total:
            at = int(next(found for found in hits if len(found))[0])
            row, column, value = _entry(values, at)
            such = f"{total} such in all" if total > 1 else "the only one"
            raise ValueError(f'counts hold {value:g} at unit "{units[row]}", feature "{features[column]}" ({such}); {mend}')


def _is_fine(part: np.ndarray) -> bool:
    if part.size == 0:
        return True
    low, high = part.min(), part.max()
    # NaN fails both comparisons.
    return bool(low >= 0 and high < LARGEST and (part.dtype.kind != "f" or np.array_equal(part, np.trunc(part))))


def _parts(values: Any) -> Iterator[np.ndarray]:
    """What is stored, flat, in order of rows, a block at a time."""
    if scipy.sparse.issparse(values):
        yield from (values.data[first : first + BLOCK] for first in range(0, len(values.data), BLOCK))
    else:
        size = max(BLOCK // values.shape[1], 1)
        yield from (values[first : first + size].ravel() for first in range(0, len(values), size))


def _numbered(values: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Blocks with the place of their first entry."""
    first = 0
    for part in _parts(values):
        yield first, part
        first += part.size


def _entry(values: Any, at: int) -> tuple[int, int, float]:
    """Row, column and value of a stored entry."""
    if scipy.sparse.issparse(values):
        return int(np.searchsorted(values.indptr, at, "right")) - 1, int(values.indices[at]), float(values.data[at])
    row, column = divmod(at, values.shape[1])
    return row, column, float(values[row, column])


def check_names(features: pd.Index) -> None:
    """No two features of one name."""
    twice = features[features.duplicated()].unique()
    if len(twice):
        raise ValueError(
            f'{len(twice)} names of features occur more than once ("{listed(twice)}"); '
            "make them unique (of an AnnData: .var_names_make_unique()) or add the columns up"
        )


def check_rank(rank: object, n: int, p: int) -> None:
    """The number of latent dimensions is between 1 and min(n, p).

    Examples:
        >>> check_rank(2, n=10, p=5)
        >>> check_rank(6, n=10, p=5)
        Traceback (most recent call last):
        ValueError: rank must be between 1 and min(n, p) = 5 (10 units, 5 features with counts), got 6
    """
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
        raise TypeError(f"rank must be a whole number, got {rank!r}")
    if not 1 <= rank <= min(n, p):
        raise ValueError(f"rank must be between 1 and min(n, p) = {min(n, p)} ({n} units, {p} features with counts), got {rank}")


def check_design(x: np.ndarray, names: list[str], units: pd.Index) -> None:
    """The design (n, k) is finite, with n >= k + 2, and none of its columns is given by the others.

    Raises:
        ValueError: the first offence, with unit or columns.
    """
    n, k = x.shape
    if k == 0:
        raise ValueError('the formula leaves no column; write "~ 1" for an intercept alone')
    check_finite(x, names, units)
    if n < k + 2:
        raise ValueError(f"{n} units are too few for {k} columns ({listed(names)}); give at least {k + 2}, or drop some")
    if "Intercept" in names:
        constant = [j for j in np.flatnonzero(np.ptp(x, axis=0) == 0) if names[j] != "Intercept"]
        if constant:
            raise ValueError(
                f'the covariate "{names[constant[0]]}" is {x[0, constant[0]]:g} in every unit, as the intercept is 1; drop it'
            )
    _check_dependence(x, names)


def check_finite(x: np.ndarray, names: list[str], units: pd.Index) -> None:
    """No entry that is missing or infinite."""
    bad = ~np.isfinite(x)
    if bad.any():
        i, j = np.argwhere(bad)[0]
        raise ValueError(
            f'the covariate "{names[j]}" is {x[i, j]} at unit "{units[i]}" ({int(bad[:, j].sum())} such in all); '
            "mend it or drop the unit"
        )


def _check_dependence(x: np.ndarray, names: list[str]) -> None:
    scaled = x / np.maximum(np.linalg.norm(x, axis=0), np.finfo(float).tiny)
    r: Any = np.linalg.qr(scaled, mode="r")
    free: list[int] = []
    for j in range(x.shape[1]):
        weights = np.linalg.lstsq(r[:, free], r[:, j], rcond=EXACT)[0] if free else np.zeros(0)
        if np.linalg.norm(r[:, j] - r[:, free] @ weights) > EXACT:
            free.append(j)
            continue
        used = [f'"{names[i]}"' for i, weight in zip(free, weights, strict=True) if abs(weight) > 1e-7]
        of = f"is a linear combination of {listed(used)}" if used else "is zero"
        raise ValueError(f'the covariate "{names[j]}" {of} in the {len(x)} units; drop one of them')


def check_settings(
    n_starts: int | None, covariance: str, tol: float, max_sweeps: int, loglik_tol: float, random_state: int
) -> None:
    """Raises: TypeError, ValueError: a setting of the fit is out of range."""
    for name, value, least in (("n_starts", n_starts, 1), ("max_sweeps", max_sweeps, 1), ("random_state", random_state, 0)):
        if value is None and name == "n_starts":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if covariance not in ("full", "diagonal"):
        raise ValueError(f'posterior_covariance must be "full" or "diagonal", not {covariance!r}')
    if not 0 < tol < np.inf:
        raise ValueError(f"tol must be positive, the rise of the bound in nats at which a fit ends, got {tol}")
    if not 0 < loglik_tol < np.inf:
        raise ValueError(f"loglik_tol must be positive, the error of the log-likelihood in nats that is wanted, got {loglik_tol}")
