"""Malformed event tables, refused with subject and row, and how to mend them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from .records import OBSERVATION, OTHER, RESET, UNOBSERVED, Records
from .rows_by_output import DVID, HOW

#: additional doses of a record at most
MOST = 10_000


def refuse(
    records: Records, subject: np.ndarray, late: np.ndarray, compartments: int, modelled: tuple[bool, bool], needed: bool
) -> None:
    """Refuse the first malformed record.

    Args:
        subject: number of each record's. late: whether it is before the record above it.
        compartments: that doses may enter. modelled: whether the model has a rate and a duration. needed: whether every subject
            needs a dose.

    Raises:
        ValueError: the record, and what to do.
    """
    r, names = records, records.names
    dosed, forever = r.dosed, r.forever
    event, amount, rate, interval = (names[role] for role in ("event", "amount", "rate", "interval"))
    steady, additional, duration = (names[role] for role in ("steady", "additional", "duration"))
    split = np.zeros(len(subject), bool)
    split[1:] = (subject[1:] != subject[:-1]) & (subject[1:] <= np.maximum.accumulate(subject)[:-1])
    places = "compartment 1" if compartments == 1 else f"compartments 1 to {compartments}"
    faults = [
        (~np.isfinite(r.time), lambda i: f"{names['time']} is missing or infinite; every record needs its time"),
        (r.time < 0, lambda i: f"{names['time']} = {r.time[i]:g} is negative; count the time of event tables from their start"),
        (split, lambda i: "the records of this subject are in two places; sort the table by subject and time, or rename one"),
        (
            ~np.isin(r.event, range(5)),
            lambda i: (
                f"{event} = {r.event[i]:g} is no kind of event: 0 is an observation, 1 a dose, 2 another event, 3 a reset, 4 a "
                "reset and a dose"
            ),
        ),
        (
            late,
            lambda i: (
                f"{names['time']} = {r.time[i]:g} lies before the record above it; sort the rows of a subject by time, or "
                f"where the clock starts anew mark a reset ({event} = 3 or 4) or an occasion"
            ),
        ),
        *(
            (getattr(r, role) < 0, lambda i, role=role: f"{names[role]} = {getattr(r, role)[i]:g} must not be negative")
            for role in ("amount", "interval", "additional", "duration")
        ),
        (
            (r.amount != 0) & (r.event == OBSERVATION),
            lambda i: (
                f"{amount} = {r.amount[i]:g} on an observation; give the dose a row of its own, with {event} = 1, before it"
            ),
        ),
        (
            (r.amount != 0) & np.isin(r.event, (OTHER, RESET)),
            lambda i: (
                f"{amount} = {r.amount[i]:g} on a record that gives no dose ({event} = {r.event[i]:g}); a dose is {event} = 1, a "
                "reset and a dose 4"
            ),
        ),
        (
            ~np.isin(r.unobserved, UNOBSERVED),
            lambda i: (
                f"{names['unobserved']} = {r.unobserved[i]:g} must be 1 where there is no observation, and 0 where there is one"
            ),
        ),
        (
            dosed & ~np.isin(r.steady, (0, 1, 2)),
            lambda i: (
                f"{steady} = {r.steady[i]:g} is no kind of steady state: 1 sets the compartments to it, 2 adds it to what they "
                f"hold, 0 is none; recode it, as by data[{steady!r}].replace({r.steady[i]:g}, 0)"
            ),
        ),
        (
            dosed & (r.amount == 0) & ~forever,
            lambda i: f"a dose without an amount: {amount} is 0, missing or no column; fill it in, or drop the row",
        ),
        (
            dosed & (r.rate < 0) & ~np.isin(r.rate, (-1, -2)),
            lambda i: (
                f"{rate} = {r.rate[i]:g}: a rate is positive, 0 of a dose at once, or -1 (-2) where the rate (the duration) is a "
                "parameter"
            ),
        ),
        *(
            (
                dosed & (r.rate == code) & (not has),
                lambda i, code=code, what=what: (
                    f"{rate} = {code}: the {what} is a parameter, and the structural model has none; name it, as by "
                    f'dosed({what}="...")'
                ),
            )
            for code, what, has in ((-1, "rate", modelled[0]), (-2, "duration", modelled[1]))
        ),
        (
            dosed & (r.duration > 0) & (r.rate != 0),
            lambda i: (
                f"{rate} = {r.rate[i]:g} and {duration} = {r.duration[i]:g} both say how long the dose lasts; keep one of them"
            ),
        ),
        (
            dosed & (r.steady > 0) & (r.interval == 0) & ~forever,
            lambda i: f"steady state ({steady} = {r.steady[i]:g}) needs the interval between doses, and {interval} is 0",
        ),
        (
            forever & ((r.interval > 0) | (r.additional > 0)),
            lambda i: (
                f"a constant infusion at steady state ({amount} = 0, {rate} = {r.rate[i]:g}) has no interval and no "
                "additional doses"
            ),
        ),
        (
            dosed & (r.additional > 0) & (r.interval == 0),
            lambda i: (
                f"additional doses ({additional} = {r.additional[i]:g}) need the interval between them, and {interval} is 0"
            ),
        ),
        (
            dosed & ((r.additional != np.floor(r.additional)) | (r.additional > MOST)),
            lambda i: f"{additional} = {r.additional[i]:g} must be a whole number of doses of at most {MOST}",
        ),
        (
            dosed & ~np.isin(r.compartment, range(1, compartments + 1)),
            lambda i: f"{names['compartment']} = {r.compartment[i]:g} takes no dose; the model has {places}",
        ),
    ]
    for bad, told in faults:
        if np.any(bad):
            at = int(np.flatnonzero(bad)[0])
            raise ValueError(f"{told(at)} ({records.where(at)})")
    lost = np.setdiff1d(subject[r.event == OBSERVATION], subject[dosed])
    if needed and len(lost):
        at = int(np.flatnonzero(subject == lost[0])[0])
        raise ValueError(
            f"subject {r.subject[at]} has observations and no dose (row {r.row[at]}); add its doses, or drop the subject"
        )


def repeated(records: Records, subject: np.ndarray) -> str:
    """What is said of doses whose records say the same twice, and of subjects without observations; "" where there are none."""
    told = []
    columns = [records.time, records.amount, records.rate, records.compartment, subject]
    same = np.all([np.diff(column) == 0 for column in columns], axis=0)
    twice = np.flatnonzero(same & records.dosed[1:] & records.dosed[:-1]) + 1
    if len(twice):
        told.append(f"{len(twice)} records repeat the dose above them (the first: {records.where(int(twice[0]))}); both count")
    unseen = np.setdiff1d(subject, subject[records.observed])
    if len(unseen):
        first = records.subject[int(np.flatnonzero(subject == unseen[0])[0])]
        told.append(f"{len(unseen)} subjects have no observations (the first: {first}) and are left out")
    return "; ".join(told)


def refuse_observations(records: Records, frame: pd.DataFrame, columns: Mapping[str, str], y: str | None, told: bool) -> None:
    """Refuse observations of more than one kind where the model has one, and those that share a row with a dose where no column
    tells which it is.

    Args:
        columns: as `margaux.families.nlme.events.recognised` has them. y: the column of the outcome, if there is one.
        told: whether a column says which of several outputs an observation is of.

    Raises:
        ValueError: subject and row, and what to do.
    """
    seen = records.observed
    if y is not None and y in frame.columns and "event" not in columns:
        value = pd.Series(pd.to_numeric(frame[y], errors="coerce"), index=frame.index).fillna(0).to_numpy(float)
        both = records.dosed & (value != 0)
        if both.any():
            at = int(np.flatnonzero(both)[0])
            raise ValueError(
                f"{records.names['amount']} = {records.amount[at]:g} and {y} = {value[at]:g} in one row ({records.where(at)}), "
                "and no EVID tells which it is; give the dose a row of its own, or, where it is the dose that each observation "
                f"follows, pass dose={columns['amount']!r}"
            )
    if told:
        return
    kinds = [column for column in frame.columns if str(column).upper() == DVID]
    kinds += [columns["compartment"]] if "compartment" in columns else []
    for column in kinds:
        own = frame[column].to_numpy()
        # 0 stands for the compartment that is observed by default.
        some = seen & ~pd.isna(frame[column]).to_numpy() & (own != 0 if column == columns.get("compartment") else True)
        if len(pd.unique(own[some])) > 1:
            at = int(np.flatnonzero(some & (own != own[some][0]))[0])
            raise ValueError(
                f"{column} = {own[at]} ({records.where(at)}) and {own[some][0]} are two kinds of observations, and the model "
                f"has one output; {HOW}"
            )
