"""Tables that a mixed-effects model would fit to garbage without a word: event rows, lost doses, rows of no scale."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd

from ...numerics.compiling import compiled
from .outcomes import AbstractOutcome, Continuous, whole
from .pharmacokinetics import within
from .rows_by_output import curves_of_rows, rows_of
from .start import spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Array

    from .data import LongData
    from .error import ResidualError


#: columns of event tables that mark a row as no observation
MARKS = ("evid", "mdv")
#: places that predictions are looked at in
PLACES = 32


def refuse_events(frame: pd.DataFrame, roles: dict[str, str], outcome: AbstractOutcome) -> None:
    """Refuse doses on rows of their own, as NONMEM's event tables have them.

    Args:
        frame: as the user gave it, rows without an outcome included.

    Raises:
        ValueError: the first such row, and how to mend the table.
    """
    seen = frame[roles["y"]].notna().to_numpy()

    def where(at):
        return f"subject {frame[roles['id']].iloc[at]}, row {frame.index[at]}"

    for column in frame.columns:
        if str(column).lower() in MARKS and column not in roles.values() and pd.api.types.is_numeric_dtype(frame[column]):
            marked = seen & (frame[column].fillna(0).to_numpy(float) != 0)
            if marked.any():
                at = int(np.flatnonzero(marked)[0])
                raise ValueError(
                    f"{column} = {frame[column].iloc[at]:g} marks a row that is no observation ({where(at)}), and doses on "
                    "rows of their own are read by compartment models without dose= alone: give each observation its dose, and "
                    f"keep data[data[{column!r}] == 0]"
                )
    if not isinstance(outcome, Continuous):
        return
    y = frame[roles["y"]].fillna(0).to_numpy(float)
    amounts = [c for c in frame.columns if c == roles.get("dose") or (str(c).lower() == "amt" and c not in roles.values())]
    for column in amounts:
        if not pd.api.types.is_numeric_dtype(frame[column]):
            continue
        given = frame[column].fillna(0).to_numpy(float) != 0
        # Rows without an outcome are left out with a word; those of a column that is not read then do no harm.
        alone = given & (y == 0) & (seen | (column == roles.get("dose")))
        if alone.any() and not np.any(given & (y != 0)) and np.any(~given & (y != 0)):
            at = int(np.flatnonzero(alone)[0])
            key = roles["id"]
            raise ValueError(
                f"{column} stands on rows of its own ({where(at)}: {column} = {frame[column].iloc[at]:g}, no {roles['y']}) and "
                f"is 0 where {roles['y']} was observed; a ready compartment model without dose= reads event tables (name the "
                f"column as by columns={{'AMT': {column!r}}}); for any other give each observation its dose (of one a subject, "
                f"data['dose'] = data.groupby({key!r})[{column!r}].transform('max')) and drop the rows of the doses"
            )


def refuse_rows(data: LongData, outcome: AbstractOutcome) -> None:
    """Refuse times before the dose and concentrations without one; warn of rows that count twice, and of zeros that a
    relative error cannot explain.

    Raises:
        ValueError: subject and row, and how to mend it.
    """
    frame, roles = data.frame, data.roles
    curve = getattr(outcome, "structural", None)
    y = frame[roles["y"]].to_numpy(float)
    time = frame[roles["time"]].to_numpy(float) if "time" in roles else np.zeros(len(frame))
    for one, own in curves_of_rows(data, curve):
        early = own & (time < 0)
        if early.any() and (outcome.survival or (within(one) is not None and not _repeated(one))):
            at = int(np.flatnonzero(early)[0])
            what = "is no time to an event" if outcome.survival else "lies before the dose, which is given at time 0"
            raise ValueError(
                f"{roles['time']} = {time[at]:g} {what} ({data.where(at)}); count the time from its origin, or drop the row"
            )
    dose = roles.get("dose", "dose")
    if whole(curve) is not None and data.columns is None and pd.api.types.is_numeric_dtype(frame.get(dose)):
        first = frame[dose].to_numpy(float)[np.flatnonzero(data.column == 0)][data.codes]
        other = frame[dose].to_numpy(float) != first
        if other.any():
            at = int(np.flatnonzero(other)[0])
            raise ValueError(
                f"{dose} = {frame[dose].iloc[at]:g} changes within a subject ({data.where(at)}), and differential equations take "
                f"one dose of {dose}, at time 0; give doses rows of their own (AMT, EVID), and leave dose= out"
            )
    for one, own in curves_of_rows(data, curve) if pd.api.types.is_numeric_dtype(frame.get(dose)) else ():
        if within(one) is None or "dose" not in getattr(one, "columns", ()):
            continue
        lost = own & (frame[dose].to_numpy(float) == 0) & (y != 0)
        if lost.any():
            at = int(np.flatnonzero(lost)[0])
            raise ValueError(
                f"{roles['y']} = {y[at]:g} was observed with {dose} = 0 ({data.where(at)}), where {one!r} is zero whatever its "
                f"parameters; every row needs the dose that it follows, and rows without any are to be dropped"
            )
    if not isinstance(outcome, Continuous):
        return
    twice = frame.duplicated().to_numpy()
    if twice.any():
        at = int(np.flatnonzero(twice)[0])
        warnings.warn(
            f"{int(twice.sum())} rows repeat another in every column and count twice (the first: {data.where(at)}); "
            "data.drop_duplicates() leaves them out",
            stacklevel=5,
        )
    for error, own in outcome.error.parts(rows_of(data)):
        none = own & (y == 0)
        if not (error.relative and np.any(none)):
            continue
        at = int(np.flatnonzero(none)[0])
        warnings.warn(
            f"{int(np.sum(none))} {roles['y']} are 0 (the first: {data.where(at)}), which a {_name(error)} error takes for "
            "residuals of -100%; below a limit of quantification they are better left out, or fitted with a combined error",
            stacklevel=5,
        )


def refuse_zero_predictions(outcome: AbstractOutcome, individual: dict[str, Any], rows: dict, data: LongData) -> None:
    """Refuse rows that are predicted as zero whatever the parameters, under an error in proportion to the prediction.

    Raises:
        ValueError: subject and row, and how to mend it.
    """
    if not isinstance(outcome, Continuous):
        return
    scaled = [(error, own) for error, own in outcome.error.parts(rows_of(data)) if error.relative or error.positive]
    if not scaled:
        return
    values = np.asarray(_predictions(outcome, tuple(individual.items()), spread(individual, PLACES, 0), rows))
    zero = data.flat(np.all(values == 0, axis=0))
    for error, own in scaled:
        never = zero & own
        if not never.any():
            continue
        at = int(np.flatnonzero(never)[0])
        raise ValueError(
            f"the prediction is 0 whatever the parameters in {int(never.sum())} rows (the first: {data.where(at)}), where a "
            f"{_name(error)} error has no scale; drop these rows, or use a constant or a combined error"
        )


def _repeated(curve: Callable[..., Any] | None) -> bool:
    """Whether doses have times of their own, which may lie before zero."""
    while curve is not None and not hasattr(curve, "times"):
        curve = getattr(curve, "function", None) or getattr(curve, "curve", None)
    return curve is not None


@compiled
def _predictions(outcome: AbstractOutcome, individual: tuple, phi: Array, rows: dict) -> Any:
    """Predictions (places, n, T)."""

    def at(phi):
        psi = {name: one.natural(phi[j]) for j, (name, one) in enumerate(individual)}
        return jax.vmap(lambda row: outcome.prediction(psi, row))(rows)

    return jax.lax.map(at, phi)


def _name(error: ResidualError) -> str:
    return type(getattr(error, "of", error)).__name__.lower()
