"""Regimens in words, such as "load 200 mg then 100 mg q12h x 10", as records of an event table."""

from __future__ import annotations

import dataclasses
import difflib
import re

import numpy as np
import pandas as pd

#: units of time, in hours
HOURS = {"min": 1 / 60, "h": 1.0, "d": 24.0, "wk": 168.0}
#: kinds of doses' units, each with its units in the first of them
DOSES: dict[str, dict[str, float]] = {
    "mass": {"mg": 1.0, "g": 1e3, "kg": 1e6, "ug": 1e-3, "ng": 1e-6},
    "amount": {"mmol": 1.0, "mol": 1e3, "umol": 1e-3, "nmol": 1e-6},
    "activity": {"U": 1.0, "kU": 1e3, "MU": 1e6},
}
#: other spellings of units
SPELT = {
    "mcg": "ug", "µg": "ug", "μg": "ug", "µmol": "umol", "μmol": "umol", "IU": "U", "kIU": "kU", "MIU": "MU",
    "mins": "min", "hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d", "week": "wk",
    "weeks": "wk",
}  # fmt: skip
#: how often, in hours, as prescriptions have it
OFTEN = {"qd": 24.0, "bid": 12.0, "tid": 8.0, "qid": 6.0}
#: doses of a part at most
MOST = 10_000

_NUMBER = r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
_HEAD = re.compile(rf"(?:(loading dose|load|steady state|ss)\s+)?{_NUMBER}\s*", re.IGNORECASE)
_UNIT = re.compile(r"([A-Za-zµμ]+)(?:/(kg))?(?=\s|$)")
_CLAUSES = {
    "q": re.compile(rf"q\s*{_NUMBER}\s*([A-Za-z]*)(?=\s|$)", re.IGNORECASE),
    "often": re.compile(r"(qd|bid|tid|qid)(?=\s|$)()", re.IGNORECASE),
    "x": re.compile(r"[x×]\s*(\d+(?:\.\d+)?)(?=\s|$)()", re.IGNORECASE),
    "over": re.compile(rf"over\s+{_NUMBER}\s*([A-Za-z]*)(?=\s|$)", re.IGNORECASE),
    "at": re.compile(rf"at\s+{_NUMBER}\s*([A-Za-z]*)(?=\s|$)", re.IGNORECASE),
}
_WORDS = re.compile(r"(?:q\d.*|qd|bid|tid|qid|x\d*|over|at)$", re.IGNORECASE)
GRAMMAR = (
    'a part reads "[load | steady state] AMOUNT [UNIT] [q INTERVAL] [x COUNT] [over DURATION] [at TIME]", as "100 mg q12h x 10"; '
    'parts are joined by "+" (from the same time on) or "then" (one after the other)'
)


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of a regimen. Times are in hours; `unit` is "" where none is written, `per_kg` whether it is per kilogram."""

    text: str
    amount: float
    unit: str = ""
    per_kg: bool = False
    steady: bool = False
    interval: float | None = None
    count: int = 1
    duration: float | None = None
    at: float | None = None


@dataclasses.dataclass(frozen=True)
class Written:
    """A regimen as it was written.

    Attributes:
        records: a row a record: TIME, AMT, II, ADDL, SS and, where a part says how long it lasts, DUR (NaN elsewhere).
        unit: that of the amounts, "" where none is written. per_kg: whether they are per kilogram.
    """

    records: pd.DataFrame
    unit: str
    per_kg: bool


def written(text: str, dose_unit: str | None = None, time_unit: str = "h") -> Written:
    """The records of a regimen in words.

    "+" joins parts that begin at the same time, "then" those that follow: one interval after the last dose before, or, where that
    has no interval as a loading dose has none, one of the part that follows. "at" gives a part a time of its own, from the
    beginning of the regimen. "steady state" takes the part to have been given for ever, and comes first. "qd bid tid qid" are
    q24h, q12h, q8h and q6h.

    Args:
        dose_unit: the unit to turn amounts into; without, all parts must have the same. time_unit: that of the records.

    >>> written("load 200 mg then 100 mg q12h x 10").records
       TIME    AMT    II  ADDL  SS  DUR
    0   0.0  200.0   0.0     0   0  NaN
    1  12.0  100.0  12.0     9   0  NaN

    Raises:
        ValueError: what cannot be read, and how a regimen is written; units that disagree; no word of how many doses or when.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"a regimen is written in words or is a frame of dose records, got {text!r}; {GRAMMAR}")
    if time_unit not in HOURS:
        raise ValueError(f"time_unit must be one of {', '.join(HOURS)}, got {time_unit!r}")
    stages = [
        [part(piece) for piece in re.split(r"(?<!\d[eE])\+", stage)] for stage in re.split(r"\bthen\b", text, flags=re.IGNORECASE)
    ]
    parts = [one for stage in stages for one in stage]
    for number, one in enumerate(parts):
        if one.steady and (one.at is not None or number >= len(stages[0])):
            raise ValueError(f'"{one.text}": steady state is where a regimen begins; write it first, without "at"')
    unit, factors = _in_one_unit(parts, dose_unit)
    scale = HOURS[time_unit]
    rows, begin, given = [], 0.0, 0.0
    for number, stage in enumerate(stages):
        starts = [begin if one.at is None else one.at for one in stage]
        steady = 0
        for one, start in zip(stage, starts, strict=True):
            steady += one.steady
            rows.append(
                {
                    "TIME": start / scale,
                    "AMT": one.amount * factors[one.unit],
                    "II": (one.interval or 0.0) / scale,
                    "ADDL": one.count - 1,
                    "SS": min(steady, 2) if one.steady else 0,
                    "DUR": float("nan") if one.duration is None else one.duration / scale,
                }
            )
        early = next((one for one, start in zip(stage, starts, strict=True) if start < given), None)
        if early is not None:
            raise ValueError(f'"{early.text}" follows doses that are given later than that; join it by "+", or move it')
        given = max(start + (one.count - 1) * (one.interval or 0.0) for one, start in zip(stage, starts, strict=True))
        if number + 1 < len(stages):
            begin = _end(stage, starts, stages[number + 1])
    # Of equal times steady state comes first: it sets the compartments, and would undo what was given into them.
    table = pd.DataFrame(rows).sort_values("TIME", kind="stable", ignore_index=True)
    first = (table["TIME"] == table["TIME"].min()) & (table["SS"] > 0)
    table = table.iloc[np.argsort(~first.to_numpy(), kind="stable")].reset_index(drop=True)
    return Written(table, unit, any(one.per_kg for one in parts))


def part(text: str) -> Part:
    """One part of a regimen: see `written`.

    >>> part("60 mg q24h x 7 over 2 h").duration
    2.0
    """
    text = " ".join(text.split())
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f'cannot read "{text}": no amount; {GRAMMAR}')
    kind, amount, rest = (head.group(1) or "").lower(), float(head.group(2)), text[head.end() :]
    if not 0 < amount < float("inf"):
        raise ValueError(f'"{text}": the amount must be a positive number')
    unit, per_kg = "", False
    found = _UNIT.match(rest)
    if found and not _WORDS.match(found.group(1)):
        unit, per_kg, rest = _dose_unit(found.group(1), text), found.group(2) is not None, rest[found.end() :]
    given: dict[str, float] = {}
    while rest := rest.strip():
        name, match = next(((name, m) for name, clause in _CLAUSES.items() if (m := clause.match(rest))), ("", None))
        if match is None:
            raise ValueError(f'cannot read "{rest}" in "{text}"; {GRAMMAR}')
        value, units = match.group(1), match.group(2)
        hours = OFTEN[value.lower()] if name == "often" else float(value) * (1 if name == "x" else _hours(units, text))
        name = "q" if name == "often" else name
        if name in given:
            raise ValueError(f'"{text}" says "{name}" twice')
        given[name], rest = hours, rest[match.end() :]
    return _checked(text, kind, Part(text, amount, unit, per_kg), given)


def _checked(text: str, kind: str, one: Part, given: dict[str, float]) -> Part:
    """A part with its clauses."""
    steady, load = kind in ("steady state", "ss"), kind.startswith("load")
    if load and ({"q", "x"} & given.keys()):
        raise ValueError(f'"{text}": a loading dose is given once; write further doses as a part of their own, after "then"')
    if "x" in given and "q" not in given:
        raise ValueError(f'"{text}": doses that are repeated need their interval, as "q12h"')
    if "q" in given and "x" not in given and not steady:
        raise ValueError(f'"{text}": say how many doses, as "x 10", or "steady state {text}"')
    if steady and "q" not in given:
        raise ValueError(f'"{text}": steady state needs the interval between doses, as "q12h"')
    count = given.get("x", 1.0)
    if count != int(count) or not 1 <= count <= MOST:
        raise ValueError(f'"{text}": x {count:g} must be a whole number of doses, from 1 to {MOST}')
    for name, what in (("q", "interval"), ("over", "duration")):
        if given.get(name, 1.0) <= 0:
            raise ValueError(f'"{text}": the {what} must be positive')
    return dataclasses.replace(
        one, steady=steady, interval=given.get("q"), count=int(count), duration=given.get("over"), at=given.get("at")
    )


def _hours(unit: str, text: str) -> float:
    unit = SPELT.get(unit.lower(), unit.lower())
    if not unit:
        raise ValueError(f'"{text}": a time has its unit, as "q12h", "over 30 min" or "at 2 d"')
    if unit not in HOURS:
        raise ValueError(f'"{text}": {unit!r} is no unit of time; they are {", ".join(HOURS)}')
    return HOURS[unit]


def _dose_unit(unit: str, text: str) -> str:
    known = [name for units in DOSES.values() for name in units]
    unit = SPELT.get(unit, unit)
    if unit not in known:
        near = difflib.get_close_matches(unit, [*known, *SPELT], n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f'"{text}": {unit!r} is no unit of a dose{hint} Known: {", ".join(known)}; {GRAMMAR}')
    return unit


def _in_one_unit(parts: list[Part], asked: str | None) -> tuple[str, dict[str, float]]:
    """The unit of all amounts, and what those written in each are multiplied by."""
    units = list(dict.fromkeys(one.unit for one in parts if one.unit))
    if len({one.per_kg for one in parts if one.unit}) > 1:
        raise ValueError("some parts of the regimen are per kg and others are not; write them all in one way")
    if asked is None:
        if len(units) > 1:
            raise ValueError(
                f"the regimen has doses in {' and in '.join(units)}; write them in one unit, that of the data, or name that: "
                "dose_unit="
            )
        return units[0] if units else "", dict.fromkeys(["", *units], 1.0)
    target = SPELT.get(asked, asked)
    kinds = [of_kind for of_kind in DOSES.values() if target in of_kind]
    if not kinds:
        raise ValueError(f"dose_unit must be one of {', '.join(name for kind in DOSES.values() for name in kind)}, got {asked!r}")
    bare = next((one.text for one in parts if not one.unit), None)
    if bare is not None and any(unit != target for unit in units):
        raise ValueError(f'"{bare}" has no unit beside doses in {units[0]}, to be turned into {asked}; write its unit')
    for unit in units:
        if unit not in kinds[0]:
            raise ValueError(f"the regimen has doses in {unit}, which cannot be turned into dose_unit={asked!r}")
    return target, {"": 1.0} | {unit: kinds[0][unit] / kinds[0][target] for unit in units}


def _end(stage: list[Part], starts: list[float], following: list[Part]) -> float:
    """When the parts that follow begin."""
    after = next((one.interval for one in following if one.interval is not None), None)
    if all(one.at is not None for one in following):
        return max(starts)
    ends = []
    for one, start in zip(stage, starts, strict=True):
        wait = one.interval if one.interval is not None else after
        if wait is None:
            raise ValueError(f'"{one.text}" has no interval, and neither has what follows; say when that is given, as "at 12 h"')
        ends.append(start + (one.count - 1) * (one.interval or 0.0) + wait)
    return max(ends)
