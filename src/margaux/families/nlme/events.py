"""Event tables, as NONMEM and Monolix have them: doses on rows of their own, given to the observations that follow them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ...numerics.ladder import rung
from .carried import with_places
from .dosing import FIRST, LAST, AbstractAdministration, administered
from .dynamics import BEGINS, PART, STEADY, Dynamics
from .outcomes import DOSES
from .records import DOSE, OBSERVATION, RESET, RESET_AND_DOSE, Records, decoded, empty, numbers, refuse_names_twice
from .refused_events import refuse, refuse_observations, repeated
from .responses import AT_INTERVALS, NEVER, UNTIL_NOW
from .rows_by_output import DVID
from .several import takes_doses, with_doses

#: columns that event tables have, by the names that NONMEM and Monolix give them, in any case
NAMES: dict[str, tuple[str, ...]] = {
    "event": ("EVID",),
    "unobserved": ("MDV",),
    "amount": ("AMT",),
    "rate": ("RATE",),
    "duration": ("DUR", "TINF"),
    "interval": ("II",),
    "additional": ("ADDL",),
    "steady": ("SS",),
    "compartment": ("CMT", "ADM"),
}


#: of doses, the number of the occasion that their record is of, and what their times and amounts do not depend on
OF_OCCASION = "number of occasion"
UNREAD = ("subject", "part", "place", OF_OCCASION)


@dataclasses.dataclass(frozen=True)
class Events:
    """What an event table says besides its observations.

    Attributes:
        observed: which of its rows are observations (N,). part: of each row, between a reset of its subject's compartments and
            the next (N,).
        doses: a row a dose, those of ADDL written out, in order of time within `subject` and `part`: time, amount, rate,
            duration, interval, steady, compartment, what else is read of its record, `place`, the row of that, or -1 of an
            additional one, and `number of occasion`.
        occasion: of each row, as a number (N,), -1 where there is none. begins: of each row, the time of the first record of its
            part (N,). told: what is said of the records.
    """

    observed: np.ndarray
    part: np.ndarray
    doses: pd.DataFrame
    occasion: np.ndarray
    begins: np.ndarray
    told: str = ""


def recognised(frame: pd.DataFrame, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The columns of an event table that a frame has, role -> column: those given, by role or by NONMEM's name, then by name.

    >>> recognised(pd.DataFrame(columns=["id", "amt", "Evid", "tau"]), {"II": "tau"})
    {'interval': 'tau', 'event': 'Evid', 'amount': 'amt'}

    Raises:
        ValueError: a column or a role that there is not, or several columns for one role.
    """
    refuse_names_twice(frame)
    out: dict[str, str] = {}
    for asked, column in (given or {}).items():
        roles = [role for role, names in NAMES.items() if asked == role or asked.upper() in names]
        if not roles:
            known = ", ".join(names[0] for names in NAMES.values())
            raise ValueError(f"columns names {asked!r}, which is no column of event tables; they are {known}")
        if column not in frame.columns:
            listed = ", ".join(map(str, frame.columns))
            raise ValueError(f"columns: {asked} = {column!r} is no column of the data; they are {listed}")
        out[roles[0]] = column
    for role, names in NAMES.items():
        found = [column for column in frame.columns if str(column).upper() in names and column not in out.values()]
        if role not in out and len(found) > 1:
            raise ValueError(
                f"{' and '.join(map(str, found))} could all be {names[0]}; name the one to read: columns={{{names[0]!r}: ...}}, "
                "and drop or rename the others"
            )
        if role not in out and found:
            out[role] = str(found[0])
    return out


def reading_events(
    frame: Any, outcome: Any, roles: Mapping[str, str | None], given: Mapping[str, str] | None
) -> tuple[Any, dict[str, str] | None]:
    """The outcome, and the columns of the event table that its doses are read from: a compartment model's, where the data have
    amounts and no column of doses is named. None for columns where there is none.

    Raises:
        ValueError, TypeError: columns that are not there, or that nothing reads.
    """
    curve = getattr(outcome, "structural", None)
    ready = administered(outcome) is not None
    dynamic = isinstance(getattr(curve, "function", None), Dynamics)
    ready = ready and not (dynamic and roles.get("dose") is not None)
    if not ready and (roles.get("dose") is not None or not takes_doses(curve)):
        if given:
            raise ValueError("columns= names those of an event table, which only compartment models without dose= read")
        return outcome, None
    if not isinstance(frame, pd.DataFrame):
        return outcome, None
    found = recognised(frame, given)
    if "amount" not in found:
        if given or (ready and not dynamic):
            raise ValueError(f"an event table has a column of amounts, AMT; the data have {', '.join(map(str, frame.columns))}")
        return outcome, None
    if not ready:
        outcome = dataclasses.replace(outcome, structural=with_doses(curve))
    return outcome, found


def named_by_default(
    frame: Any, roles: Mapping[str, str | None], outcome: Any, table: bool, occasions: bool = False
) -> dict[str, str | None]:
    """Roles with the columns that are named as usual, in any case, where no others are given: CENS and LIMIT of a continuous
    outcome, OCC where parameters vary between occasions, DVID of several outputs, and ID, TIME and DV of an event table."""
    found = {str(column).upper(): str(column) for column in reversed(getattr(frame, "columns", ()))}
    usual = ({"id": "ID", "time": "TIME", "y": "DV"} if table else {}) | ({"cens": "CENS"} if outcome.continuous else {})
    usual |= ({"occ": "OCC"} if occasions else {}) | ({"output": DVID} if outcome.outputs else {})
    out = {role: column or found.get(usual.get(role, "")) for role, column in roles.items()}
    if table and out["time"] is None:
        raise ValueError(f"an event table has a column of times, TIME; the data have {', '.join(map(str, frame.columns))}")
    if out["cens"] is not None and out["limit"] is None:
        out["limit"] = found.get("LIMIT")
    return out | {"id": out["id"] or "id"}


def read(
    frame: pd.DataFrame,
    columns: Mapping[str, str],
    roles: Mapping[str, str],
    administration: AbstractAdministration,
) -> Events:
    """The events of a table.

    Args:
        columns: as `recognised` has them. roles: columns of "id", "time", of "y", "occ" and "output" where there are any;
            where the clock starts anew with an occasion, the compartments do too.
        administration: how the structural model reads doses; of a column that it names, those of the doses' records are kept.

    Raises:
        ValueError: a malformed record, with subject and row, and how to mend it.
    """
    records = _records(frame, columns, roles)
    event, steady = records.event, records.steady
    subject = pd.factorize(frame[roles["id"]])[0]
    follows = np.append(False, subject[1:] == subject[:-1])
    earlier = np.append(False, np.diff(records.time) < 0) & follows
    occasion = pd.factorize(frame[roles["occ"]])[0] if "occ" in roles else np.full(len(frame), -1)
    anew = earlier & np.append(False, np.diff(occasion) != 0)
    reset = np.isin(event, (RESET, RESET_AND_DOSE)) | anew
    modelled = administration.rate is not None, administration.duration is not None
    refuse(records, subject, earlier & ~reset, administration.compartments, modelled, administration.needs_doses)
    refuse_observations(records, frame, columns, roles.get("y"), "output" in roles)
    part = np.cumsum(reset | (records.dosed & (steady == 1)))
    read = {name: numbers(frame, name, roles["id"]) for name in administration.names if name in frame.columns}
    for name in read:
        lost = np.flatnonzero(records.dosed & empty(frame[name]))
        if len(lost):
            raise ValueError(
                f"{name} is read on the records of doses, and is missing ({records.where(int(lost[0]))}); fill it in"
            )
    doses = _written_out(records, subject, part, read | {OF_OCCASION: occasion})
    begins = pd.Series(records.time).groupby([subject, part]).transform("first").to_numpy()
    return Events(records.observed, part, doses, occasion, begins, repeated(records, subject))


def observations(frame: pd.DataFrame, columns: Mapping[str, str], roles: Mapping[str, str]) -> np.ndarray:
    """Which rows of a table are observations."""
    return _records(frame, columns, roles).observed


def _records(frame: pd.DataFrame, columns: Mapping[str, str], roles: Mapping[str, str]) -> Records:
    value = {role: numbers(frame, column, roles["id"]) for role, column in columns.items()}
    nothing = np.zeros(len(frame))
    names = {role: columns.get(role, NAMES[role][0]) for role in NAMES} | {"time": roles["time"]}
    fields = {role: value.get(role, nothing) for role in NAMES if role not in ("event", "compartment")}
    given = (fields["amount"] > 0) | ((fields["steady"] == 1) & (fields["rate"] > 0))
    records = Records(
        event=value.get("event", np.where(given, DOSE, OBSERVATION)),
        compartment=value.get("compartment", np.ones(len(frame))),
        time=frame[roles["time"]].to_numpy(float),
        subject=frame[roles["id"]].to_numpy(),
        row=frame.index.to_numpy(),
        names=names,
        **fields,
    )
    return decoded(records)


def _written_out(records: Records, subject: np.ndarray, part: np.ndarray, read: dict[str, np.ndarray]) -> pd.DataFrame:
    """A row a dose, with what else is read of each record. A reset ends what additional doses there were still to come."""
    at = np.flatnonzero(records.dosed)
    times = records.additional[at].astype(int) + 1
    record = np.repeat(at, times)
    turn = np.arange(len(record)) - np.repeat(np.cumsum(times) - times, times)
    forever = records.forever
    steady = np.where(forever, UNTIL_NOW, np.where(records.steady > 0, AT_INTERVALS, NEVER))
    own = {
        "time": records.time[record] + turn * records.interval[record],
        "amount": np.where(forever, records.rate, records.amount)[record],
        "rate": np.where(forever, 0.0, records.rate)[record],
        "duration": records.duration[record],
        "interval": records.interval[record],
        "steady": np.where(turn == 0, steady[record], NEVER),
        "compartment": records.compartment[record],
        "subject": subject[record],
        "part": part[record],
        "place": np.where(turn == 0, record, -1),
    }
    out = pd.DataFrame({name: values[record] for name, values in read.items()} | own)
    ends = pd.Series(records.time).groupby(part).first().reindex(np.arange(part.max() + 2))
    owners = pd.Series(subject).groupby(part).first().reindex(ends.index)
    following = part[record] + 1
    cancelled = (owners.to_numpy()[following] == subject[record]) & (turn > 0) & (own["time"] >= ends.to_numpy()[following])
    return out.loc[~cancelled].sort_values(["subject", "part", "time", "place"], kind="stable").reset_index(drop=True)


def given_to(
    events: Events, rows: np.ndarray, time: np.ndarray, labels: np.ndarray, subject: np.ndarray, parts: bool = False
) -> dict[str, Any]:
    """The doses of subjects, padded, and which of them act on each of some rows.

    A dose acts on the rows after its record, and an additional one from its time on, until the compartments are reset.

    Args:
        rows: places of the rows in the table (K,). time: of each. labels: the n subjects as numbers of `Events.doses`.
        subject: of each row, its place among them. parts: whether the model needs to know of resets.

    Returns:
        `doses`, each (n, E); `first_dose`, `last_dose` (K,): the first that acts and the one after the last;
        `of_another_occasion` (K,), whether one that acts was given on another occasion than that of the row; and `records`
        (n, E), the row of the record of each dose, or -1 of an additional one.
    """
    doses = events.doses
    placed = pd.Series(np.arange(len(labels)), index=labels).reindex(np.asarray(doses["subject"])).to_numpy(float)
    here = np.isfinite(placed)
    doses, owner = doses.loc[here], placed[here].astype(int)
    sizes = np.bincount(owner, minlength=len(labels))
    starts = np.cumsum(sizes) - sizes
    first, last = _acting(events, doses, owner, starts, rows, time, subject)
    others = _of_another_occasion(events.occasion[rows], doses[OF_OCCASION].to_numpy(), starts[subject], first, last)
    if not len(doses):  # one that nothing reads
        doses = pd.DataFrame({name: [1.0 if name == "compartment" else 0.0] for name in doses.columns})
    width = rung(max(int(sizes.max(initial=1)), 1))
    places = np.minimum(starts[:, None] + np.arange(width), np.maximum(starts + sizes - 1, 0)[:, None])
    padding = np.arange(width) >= sizes[:, None]
    columns = {name: doses[name].to_numpy(float) for name in doses.columns if name not in UNREAD}
    filling = {"interval": 1.0, "compartment": columns["compartment"][places]}  # of no other kind than the doses
    padded = {name: np.where(padding, filling.get(name, 0.0), values[places]) for name, values in columns.items()}
    of_doses = doses["part"].to_numpy()[places]
    of_records = np.where(padding, -1, doses["place"].to_numpy(int)[places])
    given = {DOSES: padded, FIRST: first, LAST: last, "of_another_occasion": others, "records": of_records}
    if parts:
        return _with_parts(given, events, of_doses, rows, subject)
    return given | {DOSES: with_places(padded, of_doses, padding)}


def _with_parts(
    given: dict[str, Any], events: Events, of_doses: np.ndarray, rows: np.ndarray, subject: np.ndarray
) -> dict[str, Any]:
    """With the parts that rows and doses belong to, when each begins, and which doses are at steady state."""
    n, doses = len(of_doses), given[DOSES]
    known = pd.DataFrame({"subject": subject, "part": events.part[rows], "begins": events.begins[rows]})
    parts = known.drop_duplicates(["subject", "part"]).sort_values(["subject", "part"], ignore_index=True)
    parts["number"] = parts.groupby("subject").cumcount()
    begins = np.zeros((n, int(np.max(parts["number"].to_numpy())) + 1))
    begins[parts["subject"], parts["number"]] = parts["begins"]
    number = parts.set_index(["subject", "part"])["number"]
    pairs = pd.MultiIndex.from_arrays([np.repeat(np.arange(n), of_doses.shape[1]), of_doses.ravel()])
    # Of a part without observations: nobody asks.
    doses[PART] = number.reindex(pairs).fillna(-1.0).to_numpy(float).reshape(of_doses.shape)
    doses[BEGINS] = begins
    steady = doses["steady"] != NEVER
    doses[STEADY] = np.argsort(~steady, axis=1, kind="stable")[:, : max(int(steady.sum(axis=1).max()), 1)].astype(float)
    row_part = number.loc[pd.MultiIndex.from_arrays([subject, events.part[rows]])].to_numpy(float)
    return given | {PART: row_part}


def _of_another_occasion(
    occasion: np.ndarray, of_doses: np.ndarray, starts: np.ndarray, first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Whether not all the doses from the first to the last are of a row's occasion."""
    if not len(of_doses):
        return np.zeros(len(occasion), bool)
    run = np.cumsum(np.append(False, np.diff(of_doses) != 0))
    low, high = ((starts + place).astype(int) for place in (first, last - 1))
    low, high = (np.clip(place, 0, len(of_doses) - 1) for place in (low, high))
    return (last > first) & ((run[low] != run[high]) | (of_doses[low] != occasion))


def _acting(
    events: Events,
    doses: pd.DataFrame,
    owner: np.ndarray,
    starts: np.ndarray,
    rows: np.ndarray,
    time: np.ndarray,
    subject: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """See `given_to`: rows are sorted in among the doses."""
    part = events.part[rows]

    def before(at: np.ndarray, place: np.ndarray) -> np.ndarray:
        keys = (
            np.concatenate([place, doses["place"]]),
            np.concatenate([at, doses["time"]]),
            np.concatenate([part, doses["part"]]),
            np.concatenate([subject, owner]),
        )
        order = np.lexsort(keys)
        is_dose = order >= len(rows)
        count = np.empty(len(order), int)
        count[order] = np.cumsum(is_dose)
        return count[: len(rows)] - starts[subject]

    return before(np.full(len(rows), -np.inf), np.full(len(rows), -2)).astype(float), before(time, rows).astype(float)
