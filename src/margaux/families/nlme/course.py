"""The doses of a regimen on their clock, as a simulation needs them."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from . import events
from .dosing import Regimen
from .dynamics import BEGINS
from .regimen_text import written

if TYPE_CHECKING:
    from .estimator import NLME
    from .receiving import Receiving

#: the name of the one subject of a table of doses, in messages
SUBJECT = "regimen"
#: doses this many times smaller or larger than those of the data are taken for a slip of units
FAR = 100.0


@dataclasses.dataclass(frozen=True)
class Course:
    """Doses in time.

    Attributes:
        records: as a table of events. unit: of the amounts, "" where none was given. per_kg: whether they are per kilogram.
        doses: columns (E,) of `Administered`, padded. clock: their times, infinite in the padding. first: the first dose that
            still acts when each is given. regimen: what doses there are. count: how many.
        begin, last, end: times of the first dose, of the last, and an interval later.
    """

    records: pd.DataFrame
    unit: str
    per_kg: bool
    doses: dict[str, np.ndarray]
    clock: np.ndarray
    first: np.ndarray
    regimen: Regimen
    count: int
    begin: float
    last: float
    end: float

    @property
    def interval(self) -> float:
        return self.end - self.last


def course(
    fitted: NLME,
    receiving: Receiving,
    regimen: str | pd.DataFrame,
    infusion: float | None,
    times: np.ndarray | None,
    dose_unit: str | None,
    time_unit: str,
) -> Course:
    """A regimen, read.

    Args:
        regimen: in words (see `margaux.families.nlme.regimen_text.written`), or a frame of dose records.
        infusion: how long a dose lasts that does not say so.

    Raises:
        ValueError, TypeError: words or records that cannot be read, with the record; a dose of unknown duration.
    """
    if infusion is not None and not (np.isfinite(infusion) and infusion > 0):
        raise ValueError(f"infusion is how long a dose lasts, a positive number, got {infusion}")
    if isinstance(regimen, pd.DataFrame):
        records, unit, per_kg = _records(fitted, regimen), "", False
        if dose_unit is not None:
            raise ValueError("dose_unit= is for regimens in words; amounts of a frame are in the unit of the data")
        if infusion is not None:
            raise ValueError("infusion= is for regimens in words; in a frame a column DUR or RATE says how long doses last")
    else:
        text = written(regimen, dose_unit, time_unit)
        records, unit, per_kg = text.records, text.unit, text.per_kg
        lasting = receiving.duration if infusion is None else infusion
        if lasting is None and bool(np.any(np.isnan(records["DUR"].to_numpy(float)))):
            raise ValueError(
                f'{regimen!r} does not say how long a dose lasts, and {fitted.structural!r} is of infusions; write "over 2 h", '
                "or pass infusion=2.0"
            )
        records = records.assign(DUR=records["DUR"].fillna(lasting or 0.0))
    if lost := [name for name in receiving.administration.names if name not in (*fitted.model_.names, *records.columns)]:
        raise ValueError(
            f"the model reads {', '.join(lost)} on the records of doses; give the regimen as a frame with the columns TIME, AMT "
            f"and {', '.join(lost)}"
        )
    return _on_clock(fitted, receiving, records, unit, per_kg, times)


def _records(fitted: NLME, frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of dose records, checked, its time under TIME."""
    roles = fitted.data_.roles
    upper = {str(column).upper(): column for column in reversed(frame.columns)}
    time = roles["time"] if roles["time"] in frame.columns else upper.get("TIME")
    if time is None:
        raise ValueError(f"a frame of dose records has a column of times, TIME; it has {', '.join(map(str, frame.columns))}")
    if len(frame) == 0:
        raise ValueError("the frame of dose records has no rows")
    owner = roles["id"] if roles["id"] in frame.columns else upper.get("ID")
    if owner is not None and len(set(frame[owner].tolist())) > 1:
        raise ValueError(
            f"the frame of dose records has several {owner}; a regimen is given to every subject alike: simulate one at a time"
        )
    if time != "TIME" and "TIME" in frame.columns:
        raise ValueError(f"the frame of dose records has both {time} and TIME; drop one")
    read = _numbers(frame, time)
    unread = np.isnan(read) & frame[time].notna().to_numpy()
    if unread.any():
        at = int(np.argmax(unread))
        raise ValueError(
            f"{time} = {frame[time].iloc[at]!r} is no number (row {at} of the dose records); count time as the data do"
        )
    dropped = [owner] if owner is not None else []
    return frame.assign(**{time: read}).drop(columns=dropped).rename(columns={time: "TIME"}).reset_index(drop=True)


def _on_clock(
    fitted: NLME, receiving: Receiving, records: pd.DataFrame, unit: str, per_kg: bool, times: np.ndarray | None
) -> Course:
    known = fitted.data_.columns or {}
    columns = events.recognised(records, {role: name for role, name in known.items() if name in records.columns})
    if "amount" not in columns:
        raise ValueError(f"a frame of dose records has a column of amounts, AMT; it has {', '.join(map(str, records.columns))}")
    if "event" in columns and np.any(_numbers(records, columns["event"]) != 1):
        raise ValueError(f"a regimen holds doses alone, {columns['event']} = 1; drop the other rows")
    observation = {"TIME": float(np.max(_numbers(records, "TIME"))), columns["amount"]: 0.0}
    observation |= {columns["event"]: 0} if "event" in columns else {}
    table = pd.concat([records, pd.DataFrame([observation])], ignore_index=True).assign(**{"no. of subject": SUBJECT})
    roles = {"id": "no. of subject", "time": "TIME"}
    found = events.read(table, columns, roles, receiving.administration)
    doses = found.doses
    if len(doses) == 0:
        raise ValueError("the regimen has no doses")
    here, by_parts = np.zeros(1, int), receiving.administration.by_parts
    given = events.given_to(found, here + len(table) - 1, np.asarray([np.inf]), here, here, by_parts)
    padded = {name: values[0] for name, values in given["doses"].items()}
    time, part = doses["time"].to_numpy(float), doses["part"].to_numpy()
    if by_parts:
        padded[BEGINS] = _beginning(time, part, doses["steady"].to_numpy(), times)
    count, width = len(time), len(padded["time"])
    clock, first = np.full(width, np.inf), np.zeros(width)
    clock[:count], first[:count] = time, np.searchsorted(part, part)
    last = float(time.max())
    interval = _interval(doses, last) or _follow_up(fitted, last, float(time.min()), times)
    _warn_of_units(fitted, doses["amount"].to_numpy(float)[doses["steady"].to_numpy() < 2], per_kg)
    kinds = Regimen.of({name: values[:count] for name, values in padded.items() if name != BEGINS})
    kinds = dataclasses.replace(kinds, reach=None)  # amounts per kilogram make infusions longer
    return Course(
        records, unit, per_kg, padded, clock, first, kinds, count, float(time.min()), last, last + interval
    )  # fmt: skip


def _beginning(time: np.ndarray, part: np.ndarray, steady: np.ndarray, times: np.ndarray | None) -> np.ndarray:
    """When differential equations leave their initial state, (1,): at time 0, with the first dose where that is earlier, or
    with one at steady state.

    Raises:
        ValueError: they begin anew on the way, or after the first time that is asked for.
    """
    if len(np.unique(part)) > 1:
        raise ValueError(
            "a dose that begins a steady state (SS = 1) after other doses empties the compartments, and differential equations "
            "are simulated from one beginning; let the regimen begin with it, or give the doses that lead there"
        )
    first = float(time.min())
    begin = first if np.any(steady > 0) else min(first, 0.0)
    if times is not None and times[0] < begin:
        raise ValueError(
            f"the differential equations are at steady state from the dose at {begin:g} on, and times begin at {times[0]:g}; "
            "let times begin with that dose"
        )
    return np.asarray([begin])


def _numbers(frame: pd.DataFrame, column: str) -> np.ndarray:
    """A column, NaN where it holds no number."""
    return np.asarray(pd.to_numeric(frame[column], errors="coerce"), float)


def _interval(doses: pd.DataFrame, last: float) -> float | None:
    """Of the last dose: its own, else what has passed since the dose before."""
    own = float(np.max(doses["interval"].to_numpy(float)[doses["time"].to_numpy(float) == last]))
    if own > 0:
        return own
    before = doses["time"].to_numpy(float)
    before = before[before < last]
    return last - float(before.max()) if len(before) else None


def _follow_up(fitted: Any, last: float, begin: float, times: np.ndarray | None) -> float:
    """How long one dose is followed: as asked, else as long as the data go on."""
    if times is not None and np.max(times) > last:
        return float(np.max(times)) - last
    data = fitted.data_
    longest = float(data.frame[data.roles["time"]].max()) - begin
    if not longest > 0:
        raise ValueError("one dose has no interval; say until when it is followed: times=")
    return longest


def _warn_of_units(fitted: NLME, amounts: np.ndarray, per_kg: bool) -> None:
    """Warn of doses far from those of the data."""
    data = fitted.data_
    if per_kg or not len(amounts):
        return
    if data.columns is not None and data.records is not None:
        known = _numbers(data.records, data.columns["amount"])
    elif "dose" in data.roles:
        known = data.frame[data.roles["dose"]].to_numpy(float)
    else:
        return
    known = known[np.isfinite(known) & (known > 0)]
    if len(known) and (amounts.max() > FAR * known.max() or amounts.min() < known.min() / FAR):
        warnings.warn(
            f"doses of {amounts.min():g} to {amounts.max():g} are far from those of the data, {known.min():g} to {known.max():g}"
            "; are they in one unit?",
            stacklevel=6,
        )
