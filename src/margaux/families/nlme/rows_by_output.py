"""Which output each row of a table is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .dynamics import Dynamics
from .kinds import OUTPUT, label
from .outcomes import AbstractOutcome, Continuous
from .several import Selecting
from .structural import Curve

if TYPE_CHECKING:
    from .data import LongData
    from .estimator import NLME

#: the usual column of the output
DVID = "DVID"
#: what is done about observations of several kinds
HOW = (
    'keep those of one of them, or give a model with several outputs, as ode(..., output={"cp": ..., "effect": ...}) or '
    'margaux.nlme.outputs({"cp": ..., "effect": ...})'
)


def named_column(output: str | None, columns: Mapping[str, str] | None) -> tuple[str | None, dict[str, str] | None]:
    """The column of outputs, by `output=` or among `columns=`, and what else the latter names.

    Raises:
        ValueError: both say it, and not the same.
    """
    rest = dict(columns or {})
    given = [rest.pop(key) for key in list(rest) if key.upper() in (DVID, "OUTPUT")]
    if output is not None:
        given.append(output)
    if len(set(given)) > 1:
        raise ValueError(f"{' and '.join(map(repr, given))} are both named as the column of the output; name one")
    return (given[0] if given else None), (rest or None)


def check_named(outcome: AbstractOutcome, output: str | None) -> None:
    """Raises: ValueError: several outputs and no column of them, or a column and one output."""
    if outcome.outputs and output is None:
        raise ValueError(
            f"the structural model has the outputs {', '.join(outcome.outputs)}, and no column says which a row is of; name it: "
            'fit(..., output="DVID")'
        )
    if output is not None and not outcome.outputs:
        raise ValueError(
            f"output={output!r} says which output a row is of, and the model has one; give it several, as ode(..., output="
            '{"cp": ..., "effect": ...}) or margaux.nlme.outputs({"cp": ..., "effect": ...})'
        )


def places_of_outputs(data: LongData, outputs: tuple[str, ...], observed: bool) -> np.ndarray:
    """The place of each row's output (N,).

    Raises:
        ValueError: a row without an output, or of one that the model has not, with subject and row; an output without rows.
    """
    column = data.roles["output"]
    values = data.frame[column]
    missing = values.isna().to_numpy()
    if missing.any():
        raise ValueError(
            f"{column} is missing ({data.where(int(np.flatnonzero(missing)[0]))}); every observation needs its output, one of "
            f"{', '.join(outputs)}"
        )
    known = {name: place for place, name in enumerate(outputs)}
    codes, levels = pd.factorize(values)
    of_levels = np.asarray([known.get(label(level), -1) for level in levels])
    out = of_levels[codes]
    if np.any(out < 0):
        at = int(np.flatnonzero(out < 0)[0])
        raise ValueError(
            f"{column} = {values.iloc[at]} ({data.where(at)}) is none of the model's outputs, {', '.join(outputs)}; drop these "
            f"rows, or name the outputs as the column does (data[{column!r}].map({{...}}))"
        )
    if observed and (lost := [name for place, name in enumerate(outputs) if not np.any(out == place)]):
        there = ", ".join(map(label, levels))
        raise ValueError(f"no observation is of the output {lost[0]}: {column} holds {there}; leave it out of the model")
    return out


def limits(lloq: Mapping[Any, float], outputs: tuple[str, ...], place: np.ndarray | None) -> np.ndarray:
    """Limits of quantification (N,) by output, NaN where there is none.

    Raises:
        ValueError: no such output, or no number.
    """
    given = {label(key): value for key, value in lloq.items()}
    if place is None:
        raise ValueError("lloq= has a limit for each output, and the model has one output; give one number")
    if unknown := [name for name in given if name not in outputs]:
        raise ValueError(f"lloq names {unknown[0]!r}, which is no output; they are {', '.join(outputs)}")
    for name, value in given.items():
        if not np.isfinite(value):
            raise ValueError(f"lloq of {name} must be a number, got {value}")
    return np.asarray([given.get(name, np.nan) for name in outputs], float)[place]


def refuse_kinds(data: LongData, outcome: AbstractOutcome) -> None:
    """Raises: ValueError: observations of several kinds by a column DVID that the model of one output does not read."""
    if outcome.outputs or not isinstance(outcome, Continuous):
        return
    for column in map(str, data.frame.columns):
        if column.upper() != DVID or column in data.roles.values():
            continue
        values = data.frame[column].to_numpy()
        others = np.flatnonzero((values != values[0]) & ~pd.isna(values))
        if len(others) and not _reads(outcome.structural, column):
            raise ValueError(
                f"{column} = {values[others[0]]} ({data.where(int(others[0]))}) and {values[0]} are two kinds of observations, "
                f"and the model has one output; {HOW}"
            )


class _Noting(dict):
    """Numbers by any name, which notes what is read."""

    def __init__(self, values: Mapping[str, Any], seen: set[str]) -> None:
        super().__init__(values)
        self.seen = seen

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().get(name, 1.0)

    def __or__(self, other: Any) -> Any:
        return _Noting(dict(self) | other, self.seen)


def _reads(structural: Callable[..., Any], column: str) -> bool:
    """Whether a structural model reads a column of its rows."""
    seen: set[str] = set()
    row, psi = _Noting({}, seen), _Noting({}, set())
    function = getattr(structural, "function", None)
    if isinstance(function, Dynamics):
        function.output(dict.fromkeys(function.states, np.float64(1.0)), psi, row)
        return column in seen
    if isinstance(structural, Curve):
        return column in structural.columns
    structural(psi, row)
    return column in seen


def parts(fitted: NLME, sorted_rows: bool = False) -> list[tuple[str, np.ndarray]]:
    """What is observed, and which rows (N,) are of it: the outcome, or each output by its label.

    Args:
        sorted_rows: whether in the order of the user's rows, instead of the grouped ones.
    """
    data = fitted.data_
    if data.output is None:
        return [(data.roles["y"], np.ones(len(data.codes), bool))]
    place = in_order(data, data.output) if sorted_rows else data.output
    return [(name, place == number) for number, name in enumerate(fitted.model_.outcome.outputs)]


def in_order(data: LongData, values: np.ndarray) -> np.ndarray:
    """Values of the grouped rows (N,) in the order of the user's."""
    return values[np.argsort(data.frame.index.to_numpy(), kind="stable")]


def chosen(outcome: AbstractOutcome, output: object) -> tuple[str, int] | None:
    """The output that was asked for and its place; None where a model has one and none was asked for.

    Raises:
        ValueError: no such output, or none named where there are several.
    """
    names = outcome.outputs
    if not names:
        if output is not None:
            raise ValueError(f"output={output!r}: the model has one output, without a name; leave output= out")
        return None
    if output is None or label(output) not in names:
        raise ValueError(f"output= names one of the model's outputs, {', '.join(names)}; got {output!r}")
    return label(output), names.index(label(output))


def rows_of(data: LongData) -> dict[str, Any]:
    """What a residual error reads of the grouped rows: the outcome, and the place of its output."""
    own = {} if data.output is None else {OUTPUT: data.output}
    return {"y": data.frame[data.roles["y"]].to_numpy(float)} | own


def curves_of_rows(data: LongData, structural: Any) -> list[tuple[Any, np.ndarray]]:
    """The structural model of each output where it is one of its own, and which of the grouped rows (N,) are of it."""
    function = getattr(structural, "function", None)
    if data.output is None or not isinstance(function, Selecting):
        return [(structural, np.ones(len(data.codes), bool))]
    return [(one, data.output == place) for place, one in enumerate(function.functions)]
