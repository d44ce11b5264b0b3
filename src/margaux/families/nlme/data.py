"""From a long data frame to units: checked, grouped by subject, padded, with the design of the covariates."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...numerics.ladder import rung
from . import events
from .censoring import censored
from .dosing import FIRST, LAST, Regimen, administered
from .dynamics import PART
from .kinds import OUTPUT
from .limits import of_quantification
from .outcomes import DOSES, AbstractOutcome, Continuous
from .records import refuse_names_twice
from .refusals import refuse_events, refuse_rows
from .rows_by_output import places_of_outputs, refuse_kinds, rows_of
from .timetable import Timetable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike


#: roles a column can have, besides the subject's identifier
ROLES = ("time", "y", "dose")
#: rows a subject is padded to multiples of
LANES = 8


@dataclasses.dataclass(frozen=True)
class LongData:
    """A data frame grouped by subject.

    Attributes:
        frame: the rows kept, in order of subject. labels: the n subjects. codes, column: subject and place of each row.
        units: `rows` (column -> (n, T)), `mask` (n, T); `design` is added by `Design`.
        columns: those of an event table (see `margaux.families.nlme.events.recognised`), None of any other. records: its rows
            that are no observations. regimen: what doses it has. censored: whether some outcomes are limits. carried: rows of an
            event table that a dose of another occasion acts on, in the order of the frame (N,). timetable: of an event table with
            occasions, whose model knows of resets. lloq: limit of quantification of
            each row (N,), NaN where there is none; None where none was named. output: place of each row's output among the
            model's (N,); None where it has one.
    """

    frame: pd.DataFrame
    labels: np.ndarray
    codes: np.ndarray
    column: np.ndarray
    units: dict[str, Any]
    roles: dict[str, str]
    columns: dict[str, str] | None = None
    records: pd.DataFrame | None = None
    regimen: Regimen | None = None
    censored: bool = False
    carried: np.ndarray | None = None
    timetable: Timetable | None = None
    lloq: np.ndarray | None = None
    output: np.ndarray | None = None

    @property
    def subjects(self) -> pd.DataFrame:
        """The first row of each subject."""
        return self.frame.iloc[np.flatnonzero(self.column == 0)]

    @property
    def occasions(self) -> pd.DataFrame:
        """A row an occasion, in the order of the subjects: `subject`, its number; `occasion`, its label; `place` among those of
        the subject, as they follow each other. Under the number of a row that is of it, its first observation if it has one."""
        if self.timetable is not None:
            return self.timetable.occasions
        pairs = pd.DataFrame({"subject": self.codes, "occasion": self.frame[self.roles["occ"]].to_numpy()}, self.frame.index)
        first = pairs[~pairs.duplicated()]
        return first.assign(place=first.groupby("subject").cumcount())

    def rows(self, numbers: pd.Index) -> pd.DataFrame:
        """Rows by their numbers, of the table with its doses."""
        return self.frame.loc[numbers] if self.records is None else pd.concat([self.frame, self.records]).loc[numbers]

    def flat(self, padded: ArrayLike) -> np.ndarray:
        """Values (..., n, T) of the rows, (..., N)."""
        return np.asarray(padded)[..., self.codes, self.column]

    def where(self, position: int) -> str:
        """How an error names a row."""
        return f"subject {self.labels[self.codes[position]]}, row {self.frame.index[position]}"


def group(
    frame: Any,
    roles: dict[str, str | None],
    outcome: AbstractOutcome,
    observed: bool = True,
    columns: dict[str, str] | None = None,
    lloq: float | str | Mapping[Any, float] | None = None,
) -> LongData:
    """Check a long frame and group it by subject.

    Args:
        roles: column of "id" and of each of `ROLES` (None where absent). columns: of an event table.
        lloq: limit of quantification, that of each output, or the column of one a row.
        observed: whether the outcome must be there (not for predictions at new designs).

    Raises:
        TypeError, ValueError: what is wrong, with subject and row.
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"data must be a pandas data frame with a row an observation, got {type(frame).__name__}")
    refuse_names_twice(frame)
    named = {role: column for role, column in roles.items() if column is not None}
    if not observed and named.get("y") not in frame.columns:
        named.pop("y", None)
    for role, column in named.items():
        if column not in frame.columns:
            raise ValueError(f"{role}={column!r} is no column of the data; they are {', '.join(map(str, frame.columns))}")
    if len(frame) == 0:
        raise ValueError("the data have no rows")
    frame = frame.reset_index(drop=True)
    missing_id = frame[named["id"]].isna().to_numpy()
    if missing_id.any():
        raise ValueError(f"row {int(np.flatnonzero(missing_id)[0])} has no {named['id']}; every row needs its subject")
    frame = _read_times(frame, named, columns)
    for role in ("time", "dose", "y"):
        if role in named and not pd.api.types.is_numeric_dtype(frame[named[role]]):
            values = frame[named[role]]
            bad = np.asarray(pd.isna(pd.to_numeric(values, errors="coerce"))) & values.notna().to_numpy()
            row = int(np.flatnonzero(bad)[0]) if bad.any() else 0
            column = named[role]
            raise ValueError(
                f"{column} must be numeric, but holds {frame[column].iloc[row]!r} "
                f"(subject {frame[named['id']].iloc[row]}, row {row}); code it as numbers"
            )
    history, records, administration = None, None, administered(outcome)
    if columns is not None:
        assert administration is not None  # there are columns of an event table for no other
        history, whole = events.read(frame, columns, named, administration), frame
        frame, records = frame[history.observed], frame[~history.observed]
        if len(frame) == 0:
            amounts = columns.get("amount", "AMT")
            raise ValueError(
                "the event table has no observations: every record is a dose or another event; where "
                f"{amounts} is the dose of the observation in its row, pass dose={amounts!r}"
            )
        if observed and history.told:
            warnings.warn(history.told, stacklevel=3)
    elif observed:
        refuse_events(frame, named, outcome)
    if observed:
        lost = frame[named["y"]].isna().to_numpy()
        if lost.all():
            raise ValueError(f"every {named['y']} is missing; there is nothing to fit")
        if lost.any():
            warnings.warn(f"{int(lost.sum())} rows without {named['y']} are left out", stacklevel=3)
            frame = frame[~lost]
    codes, labels = pd.factorize(frame[named["id"]])
    order = np.argsort(codes, kind="stable")
    frame, codes = frame.iloc[order], codes[order]
    sizes = np.bincount(codes)
    column = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    data = LongData(frame, np.asarray(labels), codes, column, {}, named, columns, records)
    if outcome.outputs:
        data = dataclasses.replace(data, output=places_of_outputs(data, outcome.outputs, observed))
    if lloq is not None:
        data = dataclasses.replace(data, lloq=of_quantification(data, lloq, outcome.outputs))
    limits = censored(frame, named, data.lloq, outcome, data.where) if observed else None
    if limits is not None:  # what is known of these observations
        data = dataclasses.replace(data, frame=frame.assign(**{named["y"]: limits.pop("y")}))
    _check_rows(data, outcome, observed)
    data = dataclasses.replace(data, units=_padded(data, sizes, observed))
    if limits is not None:
        cells = _places(sizes, data.units["mask"].shape[1])
        rows = data.units["rows"] | {name: values[cells] for name, values in limits.items()}
        data = dataclasses.replace(data, units=data.units | {"rows": rows}, censored=True)
    if history is None:
        return data
    assert administration is not None
    data = _with_doses(data, history, whole, sizes, administration.by_parts)
    before = data.flat(data.units["rows"][LAST] <= data.units["rows"][FIRST])
    if observed and before.any() and (administration.needs_doses or len(history.doses)):
        first = data.where(int(np.flatnonzero(before)[0]))
        warnings.warn(
            f"{int(before.sum())} observations come before any dose (the first: {first}); the model has no drug there",
            stacklevel=3,
        )
    return data


def _with_doses(data: LongData, history: events.Events, whole: pd.DataFrame, sizes: np.ndarray, parts: bool) -> LongData:
    """With what acts on each row among the rows."""
    codes, labels = pd.factorize(whole[data.roles["id"]])
    numbers = pd.Series(np.arange(len(labels)), index=labels).loc[data.labels].to_numpy()
    rows, time = data.frame.index.to_numpy(), data.frame[data.roles["time"]].to_numpy(float)
    given = events.given_to(history, rows, time, numbers, data.codes, parts)
    width = data.units["mask"].shape[1]
    places = _places(sizes, width)
    acting = {name: given[name][places] for name in (FIRST, LAST, *((PART,) if parts else ()))}
    units = data.units | {"rows": data.units["rows"] | acting | {DOSES: given[DOSES]}}
    data = dataclasses.replace(data, units=units, regimen=Regimen.of(given[DOSES]), carried=given["of_another_occasion"])
    if not (parts and "occ" in data.roles):
        return data
    owner = pd.Series(np.arange(len(numbers)), index=numbers).reindex(codes).to_numpy(float)
    observed = pd.Series(given[PART], index=rows)
    timetable = Timetable.of(whole, data.roles, owner, history.part, observed, given["records"])
    return dataclasses.replace(data, timetable=timetable)


def _read_times(frame: pd.DataFrame, named: dict[str, str], columns: dict[str, str] | None) -> pd.DataFrame:
    """An event table with its times in numbers: hours, where they are clock times such as 8:30. "." is no number there."""
    if columns is None:
        return frame
    out = frame.copy()
    for role in ("time", "y"):
        column = named.get(role)
        if column is None or pd.api.types.is_numeric_dtype(frame[column]):
            continue
        text = frame[column].astype(str).str.strip()
        if role == "time":
            clock = text.str.extract(r"^(\d+):([0-5]\d)(?::([0-5]\d))?$")
            if clock[[0, 1]].notna().all(axis=None):
                parts = clock.fillna("0").astype(float)
                out[column] = parts[0] + parts[1] / 60 + parts[2] / 3600
        numbers = pd.Series(pd.to_numeric(text.where(text != "."), errors="coerce"), index=text.index)
        if np.array_equal(np.asarray(numbers.isna()), np.asarray(text.isin([".", "nan"]))):
            out[column] = numbers
    return out


def _check_rows(data: LongData, outcome: AbstractOutcome, observed: bool) -> None:
    frame, roles = data.frame, data.roles
    for role in ("time", "dose"):
        if role in roles:
            bad = ~np.isfinite(frame[roles[role]].to_numpy(float))
            if bad.any():
                raise ValueError(f"{roles[role]} is missing or infinite ({data.where(int(np.flatnonzero(bad)[0]))})")
    if {"time", "dose"} <= roles.keys():
        pairs = pd.DataFrame(frame[[roles["id"], roles["time"], roles["dose"]]])
        clash = (pairs.duplicated([roles["id"], roles["time"]], keep=False) & ~pairs.duplicated(keep=False)).to_numpy()
        if clash.any():
            at = int(np.flatnonzero(clash)[0])
            raise ValueError(
                f"the same {roles['time']} = {pairs[roles['time']].iloc[at]:g} has different {roles['dose']} "
                f"({data.where(at)}); a subject's rows at one time must agree on the dose"
            )
    if not observed:
        return
    y = frame[roles["y"]].to_numpy(float)
    if not np.all(np.isfinite(y)):
        raise ValueError(f"{roles['y']} is infinite ({data.where(int(np.flatnonzero(~np.isfinite(y))[0]))})")
    refuse_kinds(data, outcome)
    refuse_rows(data, outcome)
    if isinstance(outcome, Continuous):
        for place, (error, own) in enumerate(outcome.error.parts(rows_of(data))):
            what = roles["y"] + (f" of {outcome.outputs[place]}" if outcome.outputs else "")
            if np.ptp(y[own]) == 0:
                raise ValueError(f"{what} is the same in every row ({y[own][0]:g}); there is nothing to fit")
            if not (error.positive and np.any(y[own] <= 0)):
                continue
            at = int(np.flatnonzero(own & (y <= 0))[0])
            raise ValueError(
                f"{what} = {y[at]:g} is not positive ({data.where(at)}); an exponential error needs positive "
                "outcomes: drop the row or use another error"
            )
        if np.bincount(data.codes).max() < 2:
            raise ValueError(
                f"every subject has one observation (the first: {data.where(0)}); random effects and residual error "
                "cannot be told apart"
            )


def _padded(data: LongData, sizes: np.ndarray, observed: bool) -> dict[str, Any]:
    """Columns (n, T); a subject's padding repeats its last row, so that any function of a row stays defined.

    T is a multiple of eight, the width that processors work on at a time: ten rows cost more than sixteen. Of many, it is one
    that similar data have too.
    """
    width = rung(-(-sizes.max() // LANES)) * LANES if sizes.max() > LANES // 2 else sizes.max()
    places = _places(sizes, width)
    rows = {}
    for name in data.frame.columns:
        # A column with holes cannot be evaluated; asking for one is an error that `check_structural` explains.
        if name != data.roles["id"] and pd.api.types.is_numeric_dtype(data.frame[name]):
            values = data.frame[name].to_numpy(float)
            if np.all(np.isfinite(values)):
                rows[str(name)] = values[places]
    rows |= {role: data.frame[data.roles[role]].to_numpy(float)[places] for role in ROLES if role in data.roles}
    rows |= {} if data.output is None else {OUTPUT: data.output[places].astype(float)}
    if not observed:
        rows["y"] = np.zeros(places.shape)
    mask = (np.arange(width) < sizes[:, None]).astype(float)
    return {"rows": rows, "mask": mask}


def _places(sizes: np.ndarray, width: int) -> np.ndarray:
    """Of each subject's cells (n, width), the place among all rows, its last row's in the padding."""
    return np.minimum(np.arange(width), sizes[:, None] - 1) + (np.cumsum(sizes) - sizes)[:, None]
