"""From arrays, a frame or a formula with missing covariates to checked arrays."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...tables.checks import (
    check_category,
    check_covariates,
    check_finite,
    check_separation,
    is_number,
    level_codes,
    listed,
    numbers_of,
    refuse_rows,
)
from .discrete import Discrete, asked, find
from .formula import Columns, by_formula, of_formula
from .suspicion import Suspicion, suspicions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...tables.kinds import Column, Tabular


OUTCOMES = ("binary", "categorical", "continuous", "count")


@dataclasses.dataclass(frozen=True)
class Table:
    """A regression with missing covariates, checked.

    Attributes:
        x: (n, p), NaN where missing. names: of its columns. gaussian: (p,), the columns that are not dummies.
        y: (n,), codes 0, ..., K - 1 of `classes` for "binary" and "categorical". weights, offset: (n,).
        classes: labels in order (of the categories, of a pandas categorical); None for "continuous" and "count".
        spec: what codes new frames: formulaic's specification, `Coding`, or None for arrays.
        discrete: covariates of few values, with holes or without; their columns are neither Gaussian nor fixed.
        suspicions: sentences about columns that may not be what they are taken for.
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    offset: np.ndarray
    names: list[str]
    classes: np.ndarray | None
    spec: Any
    gaussian: np.ndarray
    discrete: tuple[Discrete, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()

    @property
    def order(self) -> np.ndarray:
        """Where the coefficients of the intercept and the columns stand, (1 + p,): fixed ones, discrete ones, Gaussian ones."""
        kind = np.where(self.gaussian, 2, 0)
        kind[self.scored] = 1
        return np.concatenate([[0], 1 + np.argsort(np.argsort(kind, kind="stable"))])

    @property
    def scored(self) -> np.ndarray:
        """Places of the columns of discrete covariates."""
        return np.array([j for one in self.discrete for j in one.columns], int)

    @property
    def fixed(self) -> np.ndarray:
        """(p,), the columns that are always observed and have no distribution."""
        out = ~self.gaussian
        out[self.scored] = False
        return out

    def codes(self, x: np.ndarray) -> np.ndarray:
        """Levels of the discrete covariates of rows (m, p), -1 where missing: (m, q)."""
        return np.stack([one.codes(x) for one in self.discrete], axis=1) if self.discrete else np.zeros((len(x), 0), int)


@dataclasses.dataclass(frozen=True)
class Coding:
    """Columns of a frame without formula, the levels of the categorical ones, and those that may have holes all the same."""

    columns: list[str]
    levels: dict[str, pd.Index]
    open: tuple[str, ...] = ()


def table(
    X: Tabular,
    y: Column | None,
    outcome: str,
    weights: Column | None = None,
    offset: Column | None = None,
    discrete: str | int | Sequence[str | int] | None = None,
) -> Table:
    """Checked arrays from arrays or a frame, and from a formula and a frame: `table("y ~ a + b", frame, "binary")`.

    Missing (NaN, None, NA) may be any numeric covariate, and any discrete one. Text, categories and truth values of a frame
    become dummies.

    Args:
        outcome: "binary", "categorical", "continuous" or "count".
        weights, offset: (n,), ones and zeros unless given.
        discrete: names or positions of covariates of few values, which may have holes whatever they hold.

    Warns:
        UserWarning: a column with holes looks discrete and is not called so, or holds what looks like a code for missing.

    Raises:
        TypeError, ValueError: what is wrong, with row (by position) and column.
    """
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome must be one of {', '.join(OUTCOMES)}, got {outcome!r}")
    label = "y"
    columns, y, label = of_formula(X, y, discrete) if isinstance(X, str) else (_plain(X, discrete), y, label)
    rows, p = columns.x.shape
    if p == 0:
        raise ValueError("X has no columns; give at least one covariate")
    codes, classes = _outcome(_vector(y, rows, label), outcome, label)
    w, shift = np.ones(rows), np.zeros(rows)
    if weights is not None:
        w = numbers_of(_vector(weights, rows, "weights"), "weights")
        refuse_rows(~(np.isfinite(w) & (w >= 0)), w, "weights", "weights must be finite and at least zero")
        if not w.any():
            raise ValueError("the weights are zero in every row; some must be positive")
    if offset is not None:
        shift = numbers_of(_vector(offset, rows, "offset"), "offset")
        refuse_rows(~np.isfinite(shift), shift, "offset", "give every row a finite offset, or drop it")
    check_covariates(columns.x, columns.names)
    if outcome == "binary":
        check_separation(columns.x, codes, columns.names)
    found = find(discrete, columns.made, columns.x)
    gaussian = columns.gaussian.copy()
    gaussian[[j for one in found for j in one.columns]] = False
    told = tuple(suspicions(columns.x[:, gaussian], [name for name, own in zip(columns.names, gaussian, strict=True) if own]))
    for one in told:
        warnings.warn(one.sentence, stacklevel=4)
    return Table(columns.x, codes, w, shift, columns.names, classes, columns.spec, gaussian, found, told)


def covariates(X: Any, like: Table) -> np.ndarray:
    """Covariates (m, p) of new rows, NaN where missing; columns by name where the fit had a frame.

    Raises:
        TypeError, ValueError: other columns than those of the fit, unseen categories, infinite values.
    """
    spec, framed = like.spec, isinstance(X, pd.DataFrame)
    if spec is None:
        columns = _plain(X)
        if len(columns.names) == len(like.names):
            columns = dataclasses.replace(columns, names=like.names)
    elif isinstance(spec, Coding):
        if framed:
            columns = _frame(X, spec)
        elif spec.levels:
            raise TypeError(f"new rows must be a data frame with columns {', '.join(spec.columns)}, got {type(X).__name__}")
        else:
            columns = _plain(X)
    elif framed:
        columns = by_formula(spec, X, [one.name for one in like.discrete])[0]
    else:
        raise TypeError(f"the fit had a formula, so new rows must be a data frame, got {type(X).__name__}")
    if columns.x.shape[1] != len(like.names):
        raise ValueError(
            f"new rows have {columns.x.shape[1]} columns, but the fit had {len(like.names)} ({listed(like.names)}); "
            "give the same columns in the same order"
        )
    check_finite(columns.x, like.names)
    return columns.x


def _vector(values: Column | None, rows: int, what: str) -> pd.Series:
    """One entry a row."""
    if isinstance(values, pd.DataFrame) and values.shape[1] == 1:
        values = values.iloc[:, 0]
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(float), np.nan)
    if not isinstance(values, (pd.Series, pd.Categorical, pd.Index)):
        values = np.asarray(values)
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        raise ValueError(f"{what} must hold one entry a row, got shape {values.shape}")
    if len(values) != rows:
        raise ValueError(f"{what} has {len(values)} entries and X {rows} rows; they must agree")
    return pd.Series(values).reset_index(drop=True)


def _outcome(y: pd.Series, outcome: str, label: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Codes or numbers, and the classes."""
    missing = np.flatnonzero(y.isna())
    if missing.size:
        raise ValueError(f"{label} is missing at row {missing[0]} ({missing.size} in all); drop those rows")
    if outcome in ("continuous", "count") or y.dtype.kind == "f":
        numbers = numbers_of(y, label)
        refuse_rows(np.isinf(numbers), numbers, label, "drop those rows")
        if outcome == "count":
            refuse_rows((numbers < 0) | (numbers % 1 != 0), numbers, label, "counts must be whole numbers from zero on")
            if not numbers.any():
                raise ValueError(f"every {label} is zero; there is nothing to fit")
        elif outcome == "continuous" and len(numbers) and np.ptp(numbers) == 0:
            raise ValueError(f"{label} is the same in every row ({numbers[0]:g}); there is nothing to fit")
        if outcome in ("continuous", "count"):
            return numbers, None
    coded = pd.Categorical(y).remove_unused_categories()
    classes = np.asarray(coded.categories)
    codes, sizes = np.asarray(coded.codes, float), np.bincount(coded.codes, minlength=len(classes))
    if len(classes) < 2 or (outcome == "binary" and len(classes) > 2):
        wanted = "two classes" if outcome == "binary" else "at least two classes"
        mend = 'use MissingGLM(family="multinomial") for more than two' if len(classes) > 2 else "there is nothing to tell apart"
        raise ValueError(f"{label} must hold {wanted}, but holds {len(classes)} ({listed(classes)}); {mend}")
    if outcome == "categorical" and sizes.min() < 2:
        k = int(sizes.argmin())
        raise ValueError(
            f"class {classes[k]!s} of {label} has one row (row {int(np.flatnonzero(codes == k)[0])}); "
            "merge it with another class or drop the row"
        )
    return codes, classes


def _plain(X: Tabular, discrete: str | int | Sequence[str | int] | None = None) -> Columns:
    """Covariates of an array or a frame."""
    if isinstance(X, pd.DataFrame):
        return _frame(X, discrete=discrete)
    try:
        if isinstance(X, np.ma.MaskedArray):
            X = np.ma.filled(X.astype(float), np.nan)
        values = np.asarray(X)
    except ValueError:
        raise ValueError("X must be 2-D with as many entries in each row, got a ragged list") from None
    if values.ndim != 2:
        raise ValueError(f"X must be 2-D, a row an observation and a column a covariate, got shape {values.shape}")
    names = [f"x{j}" for j in range(values.shape[1])]
    if values.dtype.kind in "US":
        raise TypeError('X holds text (first at row 0, column "x0"); code it as numbers, or pass a data frame to get dummies')
    if values.dtype.kind in "biuf":
        x = values.astype(float, copy=False)
    else:
        columns = [numbers_of(pd.Series(values[:, j]), f'column "{name}"') for j, name in enumerate(names)]
        x = np.stack(columns, axis=1) if columns else np.empty(values.shape)
    return Columns(x, names, np.ones(len(names), bool), {name: [j] for j, name in enumerate(names)})


def _frame(X: pd.DataFrame, coding: Coding | None = None, discrete: str | int | Sequence[str | int] | None = None) -> Columns:
    """Covariates of a frame without formula, coded as before where there is a coding."""
    columns = list(map(str, X.columns))
    may_lack = tuple(asked(discrete, columns)) if coding is None else coding.open
    made: dict[str, list[int]] = {}
    twice = sorted({name for name in columns if columns.count(name) > 1}) if len(set(columns)) < len(columns) else []
    if twice:
        raise ValueError(f'X has two columns called "{twice[0]}"; rename one')
    if coding is not None:
        lost = [name for name in coding.columns if name not in columns]
        extra = [name for name in columns if name not in coding.columns]
        if lost or extra:
            what = f'no column "{lost[0]}"' if lost else f'a column "{extra[0]}" that the fit had not'
            raise ValueError(f"the new rows have {what}; give the columns of the fit: {listed(coding.columns)}")
    place = {name: j for j, name in enumerate(columns)}
    parts, names, gaussian, levels = [], [], [], {}
    for name in columns if coding is None else coding.columns:
        values = X.iloc[:, place[name]].reset_index(drop=True)
        known = None if coding is None else coding.levels.get(name)
        if known is None and (coding is not None or is_number(values) or values.dtype.kind in "mMc"):
            made[name] = [len(parts)]
            parts.append(numbers_of(values, f'column "{name}"'))
            names.append(name)
            gaussian.append(True)
            continue
        missing = values.isna().to_numpy() if name in may_lack else np.zeros(len(values), bool)
        check_category(values[~missing], name)
        levels[name] = known = pd.Categorical(values).remove_unused_categories().categories if known is None else known
        codes = np.zeros(len(values))
        codes[~missing] = level_codes(values[~missing], known, name)
        if len(known) < 2:
            raise ValueError(f'column "{name}" is the same in every row ({known[0]}); drop it')
        made[name] = list(range(len(parts), len(parts) + len(known) - 1))
        for k, level in enumerate(known[1:], start=1):
            parts.append(np.where(missing, np.nan, codes == k))
            names.append(f"{name}[T.{level}]")
            gaussian.append(False)
    x = np.stack(parts, axis=1) if parts else np.empty((len(X), 0))
    return Columns(x, names, np.array(gaussian, bool), made, coding or Coding(columns, levels, may_lack))
