"""Columns of a user's table, and what a formula makes of them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import types
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from formulae.categorical import ENCODINGS
from formulae.environment import Environment
from formulae.resolver import Resolver
from formulae.terms import Intercept, NegatedIntercept
from formulae.terms.call_resolver import CallResolver
from formulae.terms.terms import Model
from formulae.transforms import TRANSFORMS

from ...tables.checks import check_category, is_number, level_codes, listed, numbers_of
from .syntax import column_name, named, near, text

#: functions that formulas know beside those of formulae, by the names R has for them
FUNCTIONS: dict[str, Any] = {
    **{name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "abs", "sign")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "tanh", "floor", "round")},
    "ceiling": np.ceil,
    "factor": TRANSFORMS["C"],
    "as": types.SimpleNamespace(factor=TRANSFORMS["C"], numeric=lambda values: pd.Series(values).astype(float)),
    "np": np,
}
#: words of a formula that are no functions of their own: of the response, and of coordinates
WORDS = ("cbind", "numFactor")
#: numbers whose squares can be summed
LARGEST = 1e100
KNOWN = {**FUNCTIONS, **TRANSFORMS, **ENCODINGS}
#: formulae looks its own functions up by itself, before these
_ENVIRONMENT = Environment([FUNCTIONS])
#: with all of them, for expressions that are evaluated without formulae's terms
_FUNCTIONS = Environment([KNOWN])


def rows_told(bad: np.ndarray) -> str:
    """Where something is wrong: "row 3", or "rows 3, 5, ... (9 in all)"."""
    rows = np.flatnonzero(bad)
    if rows.size == 1:
        return f"row {rows[0]}"
    return f"rows {', '.join(map(str, rows[:5]))}{', ...' if rows.size > 5 else ''} ({rows.size} in all)"


def check_names(nodes: Iterable[Any], data: pd.DataFrame, table: str = "the data") -> list[str]:
    """The columns that nodes name, each once.

    Raises:
        ValueError: a column or a function is unknown, or two columns share a name.
    """
    known, used = list(map(str, data.columns)), {}
    for node in nodes:
        variables, functions = named(node)
        for name in functions:
            if name.partition(".")[0] not in KNOWN and name not in WORDS:
                raise ValueError(f'formulas know no function "{name}"{near(name, KNOWN) or f"; compute the column in {table}"}')
        for name in variables:
            if name in data.columns:
                used[name] = None
            elif name not in KNOWN:
                shown = near(name, known) or f"; the columns are {listed(known)}"
                raise ValueError(f'{table} has no column "{name}"{shown}')
    for name in used:
        if known.count(name) > 1:
            raise ValueError(f'{table} has {known.count(name)} columns called "{name}"; rename them')
    return list(used)


def check_missing(data: pd.DataFrame, names: Iterable[str], table: str = "the data") -> None:
    """No holes in these columns.

    Raises:
        ValueError: with the columns, the rows, and how to drop them.
    """
    holes = {name: data[name].isna().to_numpy() for name in names}
    faulty = [name for name, hole in holes.items() if hole.any()]
    if faulty:
        told = "; ".join(f'"{name}" at {rows_told(holes[name])}' for name in faulty)
        subset = ", ".join(f'"{name}"' for name in faulty)
        raise ValueError(f"{table} has missing values: {told}; drop them by data.dropna(subset=[{subset}]), or impute them")


def tidy(data: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """These columns: numbers, truth values, and text as categories, in sorted or their own order and none of them empty."""
    made = {}
    for name in names:
        values = pd.Series(data[name]).reset_index(drop=True)
        kind = pd.api.types.infer_dtype(values, skipna=True)
        if kind.startswith(("datetime", "timedelta", "date", "period", "time")):
            raise TypeError(
                f'column "{name}" holds dates or times ({values.iloc[0]}); make it a number, '
                f'as data["{name}"] = (data["{name}"] - data["{name}"].min()).dt.days'
            )
        if isinstance(values.dtype, pd.CategoricalDtype):
            made[name] = values.cat.remove_unused_categories().cat.as_ordered()
        elif pd.api.types.is_bool_dtype(values.dtype) or kind == "boolean":
            made[name] = values.astype(bool)
        elif is_number(values) or values.dtype.kind == "c":
            numbers = numbers_of(values, f'column "{name}"')
            made[name] = values.to_numpy() if values.dtype.kind in "iu" and values.dtype != object else numbers
        else:
            check_category(values, name)
            levels = sorted(values.unique())
            made[name] = pd.Categorical(values.to_numpy(object), categories=levels, ordered=True)
    return pd.DataFrame(made, index=pd.RangeIndex(len(data)))


def evaluated(node: Any, frame: pd.DataFrame) -> Any:
    """The value of an expression: the column it names, or what its functions make of columns.

    Raises:
        ValueError: it cannot be computed.
    """
    name = column_name(node)
    if name is not None and name in frame.columns:
        return frame[name]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = CallResolver(node).resolve().eval(frame, _FUNCTIONS)
    except Exception as error:
        raise ValueError(f'cannot compute "{text(node)}": {error}') from error
    return found


def numbers(node: Any, frame: pd.DataFrame, what: str) -> np.ndarray:
    """An expression as finite numbers (N,).

    Raises:
        TypeError, ValueError: it is not numeric, or not finite; with the row.
    """
    found = evaluated(node, frame)
    if isinstance(found, pd.Series) and isinstance(found.dtype, pd.CategoricalDtype) or hasattr(found, "contrast"):
        raise TypeError(f'{what} "{text(node)}" must be numeric, but holds categories; code it as numbers')
    values = np.asarray(found, float)
    if values.ndim > 1:
        raise ValueError(f'{what} "{text(node)}" makes {values.shape[1]} columns; it must be one')
    values = np.broadcast_to(values, len(frame)).copy()
    check_finite(values[:, None], [text(node)], frame, what)
    return values


def check_finite(values: np.ndarray, names: list[str], frame: pd.DataFrame, what: str) -> None:
    """No NaN, and no entry that is infinite or whose square is, in columns (N, k).

    Raises:
        ValueError: with the column, the row and what the columns it is made of hold there.
    """
    bad = ~np.isfinite(values)
    if bad.any():
        j = int(np.flatnonzero(bad.any(axis=0))[0])
        row = int(np.flatnonzero(bad[:, j])[0])
        inside = [name for name in frame.columns if re.search(rf"(?<![\w.]){re.escape(str(name))}(?![\w.])", names[j])]
        told = f" (where {', '.join(f'{name} is {frame[name].iloc[row]}' for name in inside)})" if inside else ""
        is_ = "not a number" if np.isnan(values[row, j]) else "infinite"
        raise ValueError(f'{what} "{names[j]}" is {is_} at {rows_told(bad[:, j])}{told}; mend or drop these rows')
    large = np.abs(values) > LARGEST
    if large.any():
        j = int(np.flatnonzero(large.any(axis=0))[0])
        shown = values[large[:, j], j][0]
        raise ValueError(
            f'{what} "{names[j]}" is {shown:g} at {rows_told(large[:, j])}, too large to compute with; mend these rows, or '
            "measure it in other units"
        )


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns that a sum of terms makes, and how to make them of new rows.

    names: of the columns. levels: of the categorical columns of the table, by name. parts: formulae's terms.
    """

    names: list[str]
    levels: dict[str, list[Any]]
    used: list[str]
    parts: list[Any]

    def of_new(self, frame: pd.DataFrame) -> np.ndarray:
        """The columns of new rows (M, k).

        Raises:
            TypeError, ValueError: a column holds another kind of values than in the fit, or categories that it did not have.
        """
        plain = frame.copy()
        for name in self.used:
            category = isinstance(frame[name].dtype, pd.CategoricalDtype)
            if category != (name in self.levels):
                was = "categories" if name in self.levels else "numbers"
                raise TypeError(
                    f'column "{name}" held {was} in the fit, and other values in the new data; code it in the same way'
                )
            if category:
                level_codes(pd.Series(frame[name]), pd.Index(self.levels[name]), name)
                # C() would ask an ordered category for every level, and new data need not hold them all.
                plain[name] = frame[name].astype(object)
        if not self.parts:
            return np.zeros((len(frame), 0))
        try:
            with np.errstate(all="ignore"), contextlib.redirect_stdout(io.StringIO()):
                columns = [np.asarray(part.eval_new_data(plain), float) for part in self.parts]
        except Exception as error:
            raise ValueError(f"cannot compute the columns of the new data: {error}") from error
        found = np.column_stack(columns)
        check_finite(found, self.names, frame, "the column")
        return found


def columns_of(node: Any, frame: pd.DataFrame) -> tuple[np.ndarray, Columns]:
    """The columns (N, k) that a sum of terms makes, and the recipe of them.

    Raises:
        ValueError: a term cannot be computed, is not finite, or is categorical with one level only.
    """
    try:
        model = Resolver(node).resolve()
    except Exception as error:
        raise ValueError(f'cannot read "{text(node)}": {error}') from error
    model = model if isinstance(model, Model) else Model(*([] if isinstance(model, NegatedIntercept) else [model]))
    used = [name for name in named(node)[0] if name in frame.columns]
    levels = {name: frame[name].cat.categories.tolist() for name in used if hasattr(frame[name], "cat")}
    for name, of in levels.items():
        if len(of) < 2:
            raise ValueError(f'column "{name}" is the same in every row ({of[0]}); leave it out of the formula')
    parts: list[Any] = model.common_terms
    # formulae puts the intercept where the formula has it, and names of coefficients begin with it.
    parts.sort(key=lambda part: not isinstance(part, Intercept))
    if not parts:
        return np.zeros((len(frame), 0)), Columns([], levels, used, [])
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            model.eval(frame, _ENVIRONMENT)
            parts = list(model.common_terms)
            made = [np.asarray(part.data, float).reshape(len(frame), -1) for part in parts]
    except Exception as error:
        raise ValueError(f"cannot compute {_failing(model.common_terms, frame)}: {error or type(error).__name__}") from error
    names = [str(label) for part in parts for label in part.labels]
    found = np.concatenate(made, axis=1)
    check_finite(found, names, frame, "the column")
    for part in parts:
        _check_levels(part)
        _forget(part)
    return found, Columns(names, levels, used, parts)


def _failing(parts: list[Any], frame: pd.DataFrame) -> str:
    for part in parts:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                part.set_type(frame, _ENVIRONMENT)
                part.set_data(False)
        except Exception:
            return f'"{part.name}"'
    return "the columns of the formula"


def _check_levels(part: Any) -> None:
    for component in getattr(part, "components", []):
        if component.kind == "categoric" and len(component.levels) < 2:
            raise ValueError(f'"{component.name}" is the same in every row ({component.levels[0]}); leave it out of the formula')


def _forget(part: Any) -> None:
    """What a term keeps of the rows it was computed from."""
    part.data = None
    for component in getattr(part, "components", []):
        component.value = None
        if component.kind in ("numeric", "categoric"):
            component._intermediate_data = None
