"""Checks of columns with holes, each with a sentence that says where to look."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterable


#: what pandas calls columns of objects that are all numbers, or all missing
NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "empty")
#: how close to zero a relative residual of exactly dependent columns is
EXACT = 1e-9
#: rows of a class that a column must have to be said to separate them
SIDE = 5
#: entries up to which joint separation is looked for
ENTRIES = 2_000_000


def listed(names: Iterable[str]) -> str:
    names = list(map(str, names))
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def refuse_rows(bad: np.ndarray, values: np.ndarray, what: str, mend: str) -> None:
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{what} holds {values[i]:g} at row {i} ({int(bad.sum())} such in all); {mend}")


def is_number(values: pd.Series) -> bool:
    """Whether a column is modelled as a number: not for text, categories and truth values."""
    if values.dtype == object:
        return pd.api.types.infer_dtype(values, skipna=True) in NUMBERS
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def numbers_of(values: pd.Series, what: str) -> np.ndarray:
    """Floats, NaN where missing."""
    if values.dtype.kind == "c":
        raise TypeError(f"{what} is complex; give real numbers")
    if values.dtype != object and pd.api.types.is_numeric_dtype(values):
        return values.to_numpy(float, na_value=np.nan)
    seen = values.notna().to_numpy()
    if is_number(values):
        out = np.full(len(values), np.nan)
        out[seen] = values[seen].astype(float)
        return out
    stray = [i for i in np.flatnonzero(seen) if isinstance(values.iloc[i], (str, bytes)) or not np.isreal(values.iloc[i])]
    row = stray[0] if stray else int(np.argmax(seen))
    raise TypeError(f"{what} must be numeric, but holds {values.iloc[row]!r} at row {row}; code it as numbers")


def check_category(values: pd.Series, name: str) -> None:
    """No text with other things among it, and no holes."""
    seen: Any = values[values.notna()]
    inside = [isinstance(value, (list, dict, set, np.ndarray)) for value in seen] if values.dtype == object else [False]
    if any(inside):
        row = inside.index(True)
        raise TypeError(
            f'column "{name}" holds {type(seen.iloc[row]).__name__}s (row {seen.index[row]} holds {seen.iloc[row]!r}); give one '
            "value a row"
        )
    if values.dtype == object and pd.api.types.infer_dtype(seen).startswith("mixed"):
        text = [isinstance(value, str) for value in seen]
        if any(text):
            odd = text.index(sum(text) <= len(text) / 2)
            raise TypeError(
                f'column "{name}" mixes numbers and text (row {seen.index[odd]} holds {seen.iloc[odd]!r}); code it as one of them'
            )
    missing = np.flatnonzero(values.isna())
    if missing.size:
        raise ValueError(
            f'the categorical column "{name}" is missing at row {missing[0]} ({missing.size} in all); drop those rows, '
            f'recode missing as a category of its own, or pass discrete=["{name}"] to have it modelled'
        )


def level_codes(values: pd.Series, levels: pd.Index, name: str) -> np.ndarray:
    """Place of each value among the categories; a value that is none of them is refused."""
    levels = pd.Index(levels)
    codes = levels.get_indexer(pd.Index(values.to_numpy(object)))
    if (codes < 0).any():
        row = int(np.flatnonzero(codes < 0)[0])
        raise ValueError(
            f'column "{name}" holds {values.iloc[row]} at row {row}, which is not among its categories ({listed(levels)}); '
            "recode it or drop the row"
        )
    return codes


def _quoted(names: list[str], places) -> str:
    shown = [f'"{names[j]}"' for j in places[:3]] + (["..."] if len(places) > 3 else [])
    return ", ".join(shown)


def check_finite(x: np.ndarray, names: list[str]) -> None:
    """No infinite entry; NaN is missing."""
    infinite = np.isinf(x)
    if infinite.any():
        i, j = np.argwhere(infinite)[0]
        raise ValueError(
            f'X holds {x[i, j]} at row {i}, column "{names[j]}" ({int(infinite.sum())} such in all); '
            "mend it, or make it NaN if it is missing"
        )


def check_covariates(x: np.ndarray, names: list[str]) -> None:
    """Finite columns (n, p) that vary, in pairs seen together, none of them given by the others; NaN where missing.

    Warns:
        UserWarning: fewer complete rows than p + 2.

    Raises:
        ValueError: the first offence, with row and columns.
    """
    n, p = x.shape
    check_finite(x, names)
    if n < p + 2:
        raise ValueError(f"X has {n} rows for {p} columns; give at least {p + 2} rows, or drop columns")
    seen = ~np.isnan(x)
    empty = np.flatnonzero(~seen.any(axis=0))
    if empty.size:
        raise ValueError(f"X has columns missing in every row: {_quoted(names, empty)}; drop them")
    low, high = np.fmin.reduce(x, axis=0), np.fmax.reduce(x, axis=0)
    constant = np.flatnonzero(low == high)
    if constant.size:
        raise ValueError(
            f"X has columns of one value only where they are observed: {_quoted(names, constant)} "
            f"({low[constant[0]]:g} in all {int(seen[:, constant[0]].sum())} rows); drop them"
        )
    complete = np.all(seen, axis=1)
    count = int(np.sum(complete))
    if count == 0:
        _check_pairs(seen, names)
    _check_twins(x, seen, names)
    if count > p:
        _check_dependence(x, seen, complete, names)
    if count < p + 2:
        warnings.warn(
            f"only {count} of {n} rows are complete, fewer than {p} columns + 2, so the covariance of the covariates rests on "
            "pairs seen together; look at its standard errors",
            stacklevel=3,
        )


def _check_pairs(seen: np.ndarray, names: list[str]) -> None:
    together = seen.astype(np.float32)
    together = together.T @ together
    if not together.all():
        j, k = np.argwhere(together == 0)[0]
        raise ValueError(
            f'"{names[j]}" and "{names[k]}" are never observed in the same row, so their covariance cannot be estimated; '
            "drop one, or collect rows with both"
        )


def _check_twins(x: np.ndarray, seen: np.ndarray, names: list[str]) -> None:
    """No two columns equal wherever both are observed. Random sums over rows both have say which pairs to compare."""
    some = slice(None, None, max(1, len(x) // 20_000))
    mask = seen[some].astype(float)
    values = np.where(seen[some], x[some], 0.0)
    values /= np.maximum(np.abs(values).max(axis=0), 1e-300).max()
    sums = (values * np.random.default_rng(0).random((len(values), 1))).T @ mask
    scale = np.abs(values).sum(axis=0)
    close = np.abs(sums - sums.T) <= 1e-12 * np.minimum(scale[:, None], scale) + 1e-300
    for j, k in np.argwhere(np.triu(close, 1)):
        both = seen[:, j] & seen[:, k]
        a, b = x[both, j], x[both, k]
        # Equal constants on the rows that happen to have both say nothing.
        if a.size > 1 and np.array_equal(a, b) and np.ptp(a) > 0:
            raise ValueError(f'"{names[j]}" and "{names[k]}" are the same in all {a.size} rows that have both; drop one')


def _check_dependence(x: np.ndarray, seen: np.ndarray, complete: np.ndarray, names: list[str]) -> None:
    """No column is a combination of others and a constant, on the complete rows and on all that have the columns in it."""
    whole = complete.all()
    z = x.copy() if whole else x[complete]
    centre = z.mean(axis=0)
    z -= centre
    spread = np.sqrt(np.einsum("ij,ij->j", z, z) / len(z))
    # A column may be constant on complete rows and vary elsewhere.
    varied = np.flatnonzero(spread > 1e-12 * np.maximum(np.abs(centre), 1e-300))
    z = z[:, varied] / spread[varied] if varied.size < x.shape[1] else np.divide(z, spread, out=z)
    if not varied.size or np.linalg.eigvalsh(z.T @ z / len(z))[0] > 1e-9:
        return
    r: Any = np.linalg.qr(z, mode="r")
    free: list[int] = []
    for j, column in enumerate(varied):
        weights = np.linalg.lstsq(r[:, free], r[:, j], rcond=EXACT)[0] if free else np.zeros(0)
        if np.linalg.norm(r[:, j] - r[:, free] @ weights) > EXACT * np.linalg.norm(r[:, j]):
            free.append(j)
            continue
        used = [int(varied[k]) for k, w in zip(free, weights, strict=True) if abs(w) > 1e-7]
        part = [*used, int(column)]
        rows = seen[:, part].all(axis=1)
        sums = ((x[rows][:, part] - centre[part]) / spread[part]) @ [*(w for w in weights if abs(w) > 1e-7), -1.0]
        if np.ptp(sums) <= 1e-6:
            raise ValueError(
                f'"{names[column]}" is a linear combination of {_quoted(names, used)} and a constant in all '
                f"{int(rows.sum())} rows that have them; drop one of them"
            )


def check_separation(x: np.ndarray, y: np.ndarray, names: list[str]) -> None:
    """No covariate, nor all together, tell the classes y = 0 and y = 1 apart: the estimate would be infinite.

    Warns:
        UserWarning: all together do on the complete rows, of which there are at least 5 (p + 1), but not all rows are complete.

    Raises:
        ValueError: one does on its observed rows, or all together do and no entry is missing.
    """
    n, p = x.shape
    one = y == 1
    seen = ~np.isnan(x)
    lows, highs, sizes = [], [], []
    for side in (~one, one):
        part = x[side]
        lows.append(np.fmin.reduce(part, axis=0))
        highs.append(np.fmax.reduce(part, axis=0))
        sizes.append(seen[side].sum(axis=0))
    apart = ((highs[0] < lows[1]) | (highs[1] < lows[0])) & (np.minimum(sizes[0], sizes[1]) >= SIDE)
    if apart.any():
        j = int(np.flatnonzero(apart)[0])
        below, above = (0, 1) if highs[0][j] < lows[1][j] else (1, 0)
        raise ValueError(
            f'"{names[j]}" alone separates the classes of y (class {below} up to {highs[below][j]:g}, class {above} from '
            f"{lows[above][j]:g}), so its coefficient is infinite; drop it, above all if it is measured after the outcome"
        )
    complete = seen.all(axis=1)
    count = int(complete.sum())
    # Up to 2 (p + 1) rows are separable more often than not, whatever y is (Cover 1965): that says nothing of the others.
    few = count < p + 2 or (count < n and count < 5 * (p + 1))
    if few or count * p > ENTRIES or not separable(x[complete], one[complete]):
        return
    if count == n:
        raise ValueError(
            f"the covariates {_quoted(names, range(p))} together separate the classes of y in all {n} rows, so the estimate is "
            "infinite; drop some of them"
        )
    warnings.warn(
        f"the covariates together separate the classes of y in all {count} complete rows, so the estimate may be infinite; "
        "if it grows without end, drop some of them",
        stacklevel=3,
    )


def separable(x: np.ndarray, one: np.ndarray) -> bool:
    """Whether a hyperplane has all rows of one class strictly on one side, by linear programmes on growing samples."""
    from scipy.optimize import linprog

    n, p = x.shape
    scale = x.std(axis=0)
    design = np.column_stack([np.ones(n), (x - x.mean(axis=0)) / np.where(scale > 0, scale, 1.0)])
    design *= np.where(one, -1.0, 1.0)[:, None]
    order = np.random.default_rng(0).permutation(n)
    size = 20 * (p + 1)
    while True:
        # Classes that overlap in a sample overlap in all rows.
        rows = order[:size]
        answer = linprog(
            np.zeros(p + 1),
            A_ub=design[rows],
            b_ub=-np.ones(len(rows)),
            bounds=(None, None),
            method="highs",
            options={"time_limit": 20.0},
        )
        if answer.status != 0 or size >= n:
            return answer.status == 0
        size *= 4
