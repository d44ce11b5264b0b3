"""The data of a control stream: $INPUT and $DATA."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .control_records import Stream, words

#: columns that mean something in event tables here and nothing in streams
ELSEWHERE = ("DUR", "TINF", "ADM", "CENS", "LIMIT", "DVID")
#: data items whose meaning is not followed
REFUSED = ("DATE", "DAT1", "DAT2", "DAT3", "L1", "L2", "CALL", "CONT", "PCMT")
#: those that are named by another in $INPUT, as DV=CONC
RESERVED = ("ID", "TIME", "DV", "AMT", "EVID", "MDV", "CMT", "RATE", "II", "ADDL", "SS")
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq, "NE": operator.ne, "GT": operator.gt, "GE": operator.ge, "LT": operator.lt, "LE": operator.le,
    "EQN": operator.eq, "NEN": operator.ne, "==": operator.eq, "=": operator.eq, "/=": operator.ne, "<=": operator.le,
    ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


_EQUAL = ("EQ", "NE", "==", "=", "/=")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition of IGNORE or ACCEPT."""

    column: str
    relation: str
    value: str

    def holds(self, frame: pd.DataFrame) -> np.ndarray:
        """Of each row: numbers where both are, texts otherwise, of which only equality can be asked."""
        own = frame[self.column].astype(str).str.strip()
        compare = _COMPARED[self.relation]
        if not _NUMBER.fullmatch(self.value):
            return np.asarray(compare(own, self.value))
        value = float(self.value)
        read: Any = pd.to_numeric(own.replace({"": "0", ".": "0"}), errors="coerce")
        numbers = np.asarray(read, float)
        return np.asarray(compare(numbers, value)) & (np.isfinite(numbers) | (compare is operator.ne))


@dataclasses.dataclass(frozen=True)
class Input:
    """The columns of a stream's data, and which of its rows count.

    Attributes:
        path: of the file. columns: by place, with the name in the table, None of what is dropped. every: by place, the names.
            synonyms: other names of columns. mark: what a line that does not count begins with.
    """

    path: Path
    columns: tuple[str | None, ...]
    every: tuple[str, ...]
    synonyms: dict[str, str]
    mark: str
    ignore: tuple[Condition, ...]
    accept: tuple[Condition, ...]


def described(stream: Stream, folder: Path) -> Input:
    """What $INPUT and $DATA say.

    Raises:
        ValueError: a column or an option that changes what the data are and is not read.
    """
    record = stream.only("INPUT", "it names the columns of the data")
    columns: list[str | None] = []
    every: list[str] = []
    synonyms: dict[str, str] = {}
    for word in words(record):
        parts = [part.upper() for part in word.split("=")]
        kept = [part for part in parts if part not in ("DROP", "SKIP")]
        name = next((one for one in kept if one in RESERVED), kept[0] if kept else f"DROPPED{len(every)}")
        synonyms |= {one: name for one in kept if one != name}
        dropped = len(kept) < len(parts)
        if name in every:
            raise stream.problem(record.number, f"$INPUT has {name} twice")
        if not dropped and name in REFUSED:
            raise stream.problem(
                record.number, f"$INPUT has {name}, which is not followed; drop it, as {name}=DROP, or recode it"
            )
        every.append(name)
        columns.append(None if dropped else name)
    for name in ("ID", "TIME", "DV", "AMT"):
        if name not in columns:
            raise stream.problem(record.number, f"$INPUT has no {name}")
    for place, name in enumerate(columns):
        if name in ELSEWHERE:
            columns[place] = synonyms[str(name)] = f"{name}_"
            stream.warn(record.number, f"the column {name} is called {name}_, as {name} says something in event tables here")
    return _read_options(stream, folder, tuple(columns), tuple(every), synonyms)


def _read_options(
    stream: Stream, folder: Path, columns: tuple[str | None, ...], every: tuple[str, ...], synonyms: dict[str, str]
) -> Input:
    record = stream.only("DATA", "it names the file of the data")
    text = record.text
    quoted = re.match(r"""\s*(?:"([^"]+)"|'([^']+)'|(\S+))""", text)
    if quoted is None:
        raise stream.problem(record.number, "$DATA names no file")
    file, rest = next(group for group in quoted.groups() if group), text[quoted.end() :]
    marks, conditions = "#", {"IGNORE": [], "ACCEPT": []}
    pattern = re.compile(r"\s*,?\s*(IGNORE|ACCEPT)\s*=?\s*(?:\(([^()]*)\)|[\"'](.)[\"']|([^\s,(]))", re.IGNORECASE)
    while rest.strip(" ,"):
        found = pattern.match(rest)
        if found:
            kind = found[1].upper()
            if found[2] is not None:
                conditions[kind] += [_condition(stream, record.number, one, every, synonyms) for one in found[2].split(",")]
            elif kind == "IGNORE":
                marks = found[3] or found[4]
            else:
                raise stream.problem(record.number, f"$DATA {found[0].strip()} is no list of conditions, as ACCEPT=(AGE.GT.18)")
            rest = rest[found.end() :]
            continue
        word = re.match(r"\s*,?\s*(\S+)", rest)
        assert word is not None  # something is left
        if not re.match(r"(NO)?(REWIND|WIDE|CHECKOUT|OPEN)$", word[1].upper()):
            raise stream.problem(record.number, f"$DATA {word[1]} is not read; there are IGNORE and ACCEPT")
        rest = rest[word.end() :]
    if conditions["IGNORE"] and conditions["ACCEPT"]:
        raise stream.problem(record.number, "$DATA has both IGNORE=(...) and ACCEPT=(...); write one of them")
    return Input(folder / file, columns, every, synonyms, marks, tuple(conditions["IGNORE"]), tuple(conditions["ACCEPT"]))


def _condition(stream: Stream, line: int, text: str, every: tuple[str, ...], synonyms: dict[str, str]) -> Condition:
    found = re.fullmatch(r"\s*(\w+?)\s*(?:\.(\w+)\.|(==|/=|<=|>=|=|<|>)|\s)\s*[\"']?([^\"']+?)[\"']?\s*", text)
    relation = "" if found is None else (found[2] or found[3] or "EQ").upper()
    if found is None or relation not in _COMPARED:
        raise stream.problem(line, f"$DATA: {text.strip()!r} is no condition, such as BLQ.EQ.1")
    name = found[1].upper()
    name = name if name in every else synonyms.get(name, name)
    if name not in every:
        raise stream.problem(line, f"$DATA: {text.strip()!r} is about {name}, which is no column of $INPUT")
    if not _NUMBER.fullmatch(found[4]) and not (re.fullmatch(r"\w+|\.", found[4]) and relation in _EQUAL):
        raise stream.problem(line, f"$DATA: {text.strip()!r} is no comparison with a number; write one condition each")
    return Condition(name, relation, found[4].strip())


def table(given: Input, path: Path) -> pd.DataFrame:
    """The rows of a file that count, with the columns of $INPUT.

    Raises:
        ValueError: no row, or one of no number where numbers are.
    """
    rows: list[list[str]] = []
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        if not line.strip() or _marked(line, given.mark):
            continue
        cells = line.split(",") if "," in line else line.split("\t") if "\t" in line else line.split()
        cells = [cell.strip().strip("\"'") for cell in cells]
        rows.append((cells + [""] * len(given.every))[: len(given.every)])
    frame = pd.DataFrame(rows, columns=list(given.every), dtype=str)
    keep = np.ones(len(frame), bool)
    for one in given.ignore:
        keep &= ~one.holds(frame)
    if given.accept:
        keep &= np.any([one.holds(frame) for one in given.accept], axis=0)
    frame = frame.loc[keep].reset_index(drop=True)
    if not len(frame):
        raise ValueError(f"{path.name} has no rows that count; look at IGNORE and ACCEPT of $DATA")
    kept = [place for place, name in enumerate(given.columns) if name is not None]
    frame = frame.iloc[:, kept].set_axis([str(given.columns[place]) for place in kept], axis=1)
    for name in frame.columns:
        own = frame[name].where(~frame[name].isin(["", "."]))
        numbers = pd.Series(pd.to_numeric(own, errors="coerce"), index=own.index)
        if (numbers.isna() == own.isna()).all():
            frame[name] = numbers
        elif name != "TIME":
            at = int(np.flatnonzero(numbers.isna() & own.notna())[0])
            raise ValueError(f"{path.name}: {name} = {own.iloc[at]!r} is no number (row {at + 1} of those that count); "
                             f"IGNORE=@ leaves out a line of names")  # fmt: skip
    begun = frame["ID"].ne(frame["ID"].shift())
    again = frame.loc[begun, "ID"].duplicated()
    if again.any():
        first = frame.loc[begun, "ID"][again].iloc[0]
        raise ValueError(f"{path.name}: ID {first:g} begins a second time, as another individual; number individuals anew")
    return frame


def _marked(line: str, mark: str) -> bool:
    first = line.lstrip()[0] if mark == "@" else line[0]
    return (first.isalpha() or first == "@") if mark == "@" else first == mark
