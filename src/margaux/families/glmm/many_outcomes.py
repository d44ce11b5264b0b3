"""Many responses of one table: read, and each held to what its family asks for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from formulae.expr import Binary, Call

from ...tables.checks import listed
from .columns import tidy
from .formula import Design, design
from .ordinal import Ordinal
from .outcome import PROPORTIONS, Outcome
from .syntax import parsed, text

if TYPE_CHECKING:
    from .base import AbstractResponse


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """R responses of N rows, and the design that they share.

    Attributes:
        names: of the responses. design: with the first response that can be fitted. columns: what the rows have response by
            response (R, N): y, and perhaps trials, offset and weight. refused: why a response cannot be fitted, by its place.
    """

    names: pd.Index
    design: Design
    columns: dict[str, np.ndarray]
    refused: dict[int, str]

    @property
    def fitted(self) -> np.ndarray:
        """Places of the responses that can be fitted."""
        return np.setdiff1d(np.arange(len(self.names)), list(self.refused))

    def trials(self, r: int) -> np.ndarray | None:
        """Of one of the responses."""
        return self.columns["trials"][r] if "trials" in self.columns else self.design.trials


def outcomes(formula: str, Y: Any, data: pd.DataFrame, response: AbstractResponse, given: dict[str, Any]) -> Outcomes:
    """The responses, checked one by one.

    Args:
        given: offset, weights and trials: a column's name, (N,), or one for each response (N, R).

    Raises:
        TypeError, ValueError: the table, the formula or an argument is wrong for all responses, or none of them can be fitted.
    """
    if not isinstance(data, pd.DataFrame):
        raise TypeError(f"data must be a pandas data frame, got {type(data).__name__}")
    y, names = _responses(Y, data)
    _check_trials_given(formula, given["trials"])
    shared, own = {}, {}
    for name, values in given.items():
        if np.ndim(values) == 2:
            own[name] = _several(values, name, y.shape)
        else:
            shared[name] = values
    trials = own["trials"] if "trials" in own else _trials(shared["trials"], data)
    refused = {r: why for r in range(len(y)) if (why := _trouble(y[r], _of(trials, r), response))}
    levels: tuple[int, ...] = ()
    if isinstance(response, Ordinal):
        y, levels = _coded(y, refused)
    fitted = np.setdiff1d(np.arange(len(y)), list(refused))
    if not len(fitted):
        raise ValueError(f'none of the {len(y)} responses can be fitted; the first, "{names[0]}": {refused[0]}')
    first = int(fitted[0])
    outcome = Outcome(str(names[first]), y[first], _of(trials, first), levels)
    found = design(formula, data, offset=shared.get("offset"), weights=shared.get("weights"), given=outcome)
    found = found.ordered() if isinstance(response, Ordinal) else found
    found.check(response)
    columns = {"y": y}
    if "trials" in own:
        columns["trials"] = own["trials"]
    if "offset" in own:
        columns["offset"] = own["offset"] + found.offset
    if "weights" in own:
        columns["weight"] = own["weights"]
    return Outcomes(names, found, columns, refused)


def _of(trials: np.ndarray | None, r: int) -> np.ndarray | None:
    return trials[r] if trials is not None and trials.ndim == 2 else trials


def _responses(Y: Any, data: pd.DataFrame) -> tuple[np.ndarray, pd.Index]:
    """(R, N) and the names."""
    if isinstance(Y, pd.Series):
        Y = Y.to_frame()
    names = Y.columns if isinstance(Y, pd.DataFrame) else None
    if isinstance(Y, pd.DataFrame):
        _check_index(Y, data)
    Y = Y.toarray() if hasattr(Y, "toarray") else Y
    try:
        y = np.asarray(Y, float)
    except (TypeError, ValueError):
        told = "" if names is None else f': "{next(name for name in names if not _numeric(Y[name]))}" is none'
        raise TypeError(f"Y must hold numbers, a column a response{told}; code it as numbers") from None
    if y.ndim != 2 or y.shape[0] != len(data) or not y.shape[1]:
        raise ValueError(
            f"Y must have a row for each of the {len(data)} rows of data and a column a response, got shape {y.shape}"
        )
    names = pd.RangeIndex(y.shape[1]) if names is None else names
    if not names.is_unique:
        raise ValueError(f'two responses are called "{names[names.duplicated()][0]}"; name each in its own way')
    return np.ascontiguousarray(y.T), names


def _numeric(values: pd.Series) -> bool:
    try:
        np.asarray(values, float)
    except (TypeError, ValueError):
        return False
    return True


def _check_index(Y: pd.DataFrame, data: pd.DataFrame) -> None:
    """Rows go by their place; labels that say something else are a mistake."""
    labelled = not isinstance(Y.index, pd.RangeIndex) and not isinstance(data.index, pd.RangeIndex)
    if labelled and len(Y) == len(data) and not Y.index.equals(data.index):
        row = int(np.flatnonzero(np.asarray(Y.index) != np.asarray(data.index))[0])
        raise ValueError(
            f"row {row} of Y is {Y.index[row]!r}, and that of data is {data.index[row]!r}; bring them into one order, as by "
            "Y.loc[data.index]"
        )


def _check_trials_given(formula: str, trials: Any) -> None:
    left = parsed(formula, response=False).response
    counts = (isinstance(left, Binary) and left.operator.kind == "SLASH") or (
        isinstance(left, Call) and text(left.callee) in ("cbind", *PROPORTIONS)
    )
    if counts and trials is None:
        raise ValueError(
            f'the left side of the formula, "{text(left)}", counts successes of trials, and responses come from Y; pass '
            'trials=, a column\'s name or one number a row, and write "~ ..."'
        )


def _trials(values: Any, data: pd.DataFrame) -> np.ndarray | None:
    if values is None:
        return None
    if isinstance(values, str):
        if values not in data.columns:
            raise ValueError(f'data has no column "{values}", which trials names; its columns are {listed(data.columns)}')
        values = tidy(data, [values])[values]
    try:
        found = np.asarray(values, float)
    except (TypeError, ValueError):
        raise TypeError("trials must be numbers: a column's name, one a row, or one a row and response") from None
    if found.shape != (len(data),):
        raise ValueError(f"trials has shape {found.shape} for {len(data)} rows; give one number a row, or one a row and response")
    _check_positive(found[None], "trials")
    return found


def _several(values: Any, name: str, shape: tuple[int, int]) -> np.ndarray:
    """One number a row and response, as (R, N)."""
    try:
        found = np.asarray(values, float)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be numbers") from None
    if found.shape != shape[::-1]:
        raise ValueError(f"{name} has shape {found.shape}, and Y {shape[::-1]}; give one number a row, or one a row and response")
    found = np.ascontiguousarray(found.T)
    if name == "offset":
        _check_all(~np.isfinite(found), found, name, "finite")
    else:
        _check_positive(found, name)
    return found


def _check_positive(values: np.ndarray, name: str) -> None:
    _check_all(~(np.isfinite(values) & (values > 0)), values, name, "positive and finite")


def _check_all(bad: np.ndarray, values: np.ndarray, name: str, what: str) -> None:
    if bad.any():
        r, row = np.argwhere(bad)[0]
        of = "" if len(values) == 1 else f" of response {r}"
        raise ValueError(f"{name} is {values[r, row]:g} at row {row}{of} ({int(bad.sum())} such in all); it must be {what}")


def _trouble(y: np.ndarray, trials: np.ndarray | None, response: AbstractResponse) -> str:
    """Why one response cannot be fitted; "" where it can."""
    holes = ~np.isfinite(y)
    if holes.any():
        row = int(np.argmax(holes))
        return f"the response is {y[row]:g} at row {row} ({int(holes.sum())} such in all)"
    if np.ptp(y) == 0 and trials is None:
        return f"the response is {y[0]:g} in every row; there is nothing to model"
    if trials is not None and ((y == 0).all() or (y == trials).all()):
        return f"{'none' if (y == 0).all() else 'all'} of the trials succeed; there is nothing to model"
    if isinstance(response, Ordinal):
        return "" if (y % 1 == 0).all() else f"the response is {y[y % 1 != 0][0]:g} at a row, and categories are whole numbers"
    try:
        response.check(y, trials)
    except ValueError as error:
        return f"the response {error}"
    return ""


def _coded(y: np.ndarray, refused: dict[int, str]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Categories as 0, 1, ..., K - 1, the same ones for all responses; and what these stand for."""
    sound = np.setdiff1d(np.arange(len(y)), list(refused))
    levels = np.unique(y[sound])
    for r in sound.tolist():
        absent = np.setdiff1d(levels, y[r])
        if len(absent):
            refused[r] = f"no row of the response is {absent[0]:g}, which is a category of others; fit it by itself"
    codes = np.searchsorted(levels, y).astype(float)
    return np.minimum(codes, max(len(levels) - 1, 0)), tuple(int(level) for level in levels)
