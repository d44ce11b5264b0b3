"""Predictions on a fine grid of times, for figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd

from ...numerics.precision import precision
from . import events
from .kinds import OUTPUT

if TYPE_CHECKING:
    from .estimator import NLME


#: points of a curve
FINE = 120


def predicted_rows(fitted: NLME, level: str, frame: pd.DataFrame | None = None) -> np.ndarray:
    """`fitted.predict`, as float64."""
    with precision(fitted.result_.dtype):
        return np.asarray(fitted.predict(frame, level=level), float)


def fine_curves(fitted: Any, subjects: list, rows: np.ndarray | None = None) -> pd.DataFrame:
    """Curves of some subjects: a frame of subject, time, and predictions `population` and `individual`.

    Args:
        rows: of the grouped rows (N,), those of the one output that the curves are of.
    """
    data = fitted.data_
    key, time, y = (data.roles[role] for role in ("id", "time", "y"))
    frame = data.frame if rows is None else data.frame[rows]
    frame = frame[frame[key].isin(subjects)]
    if len(frame) == 0:
        return pd.DataFrame(columns=[key, time, "population", "individual"])
    if data.columns is not None:
        return _after_doses(fitted, frame, data.records[data.records[key].isin(subjects)])
    columns = {data.roles.get(name, name) for name in _columns_read(fitted)} - {time}
    steady = not fitted.model_.changing and all(frame.groupby(key)[name].nunique(dropna=False).max() <= 1 for name in columns)
    if steady:
        ends = frame.groupby(key)[time].agg(["min", "max"])
        first = frame.drop_duplicates(key).drop(columns=[y])
        grid = first.loc[first.index.repeat(FINE)].reset_index(drop=True)
        share = np.tile(np.linspace(0, 1, FINE), len(first))
        low, high = (ends[end].loc[grid[key]].to_numpy(float) for end in ("min", "max"))
        whole = data.frame[time]
        low, high = np.where(low < high, low, whole.min()), np.where(low < high, high, whole.max())
        grid[time] = low + share * (high - low)
    else:
        grid = frame.sort_values([key, time], kind="stable").reset_index(drop=True)
    levels = {level: predicted_rows(fitted, level, grid) for level in ("population", "individual")}
    return grid[[key, time]].assign(**levels)


def _after_doses(fitted: Any, frame: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Curves of event tables from the first dose to the last observation; at the observations where a clock, or an occasion with
    parameters of its own, starts anew."""
    data = fitted.data_
    key, time, y = (data.roles[role] for role in ("id", "time", "y"))
    rows = frame
    whole = pd.concat([frame, records]).sort_index()
    anew = bool(fitted.model_.changing) or bool(np.any(np.asarray(whole.groupby(key)[time].diff()) < 0))
    if not anew:
        first = frame.drop_duplicates(key)
        begin: pd.Series = records.groupby(key)[time].agg("min")  # type: ignore[assignment]
        end: pd.Series = frame.groupby(key)[time].agg("max")  # type: ignore[assignment]
        rows = first.loc[first.index.repeat(FINE)]
        low, high = (np.asarray(place.reindex(rows[key]), float) for place in (begin, end))
        rows = rows.assign(**{time: low + np.tile(np.linspace(0, 1, FINE), len(first)) * (high - low)})
    table = pd.concat([records, rows])
    table = table.sort_index() if anew else table.sort_values([key, time], kind="stable")
    table = table.reset_index(drop=True)
    levels = {level: predicted_rows(fitted, level, table) for level in ("population", "individual")}
    kept = table.drop(columns=y).iloc[events.observations(table, data.columns, data.roles)]
    return kept[[key, time]].reset_index(drop=True).assign(**levels)


def _columns_read(fitted: NLME) -> set[str]:
    """Columns and roles that the prediction depends on, seen in the program it compiles to."""
    outcome, rows = fitted.model_.outcome, fitted.data_.units["rows"]
    with precision(fitted.result_.dtype):
        psi = {name: jax.numpy.ones(()) for name in fitted.model_.names}
        shapes = {name: jax.ShapeDtypeStruct(values.shape[1:], fitted.result_.dtype) for name, values in rows.items()}
        program = jax.make_jaxpr(lambda rows: outcome.prediction(psi, rows))(shapes).jaxpr
    used = {id(variable) for equation in program.eqns for variable in equation.invars} | {id(v) for v in program.outvars}
    read = {name for name, variable in zip(sorted(rows), program.invars, strict=True) if id(variable) in used}
    return read - {OUTPUT}
