"""What a model file may contain: keys, what each of them is, and where a mistake is."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

_HEADER = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([\w-]+)""")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _each(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(kind, value))


def _table(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(kind, value.values()))


def _text(value: Any) -> bool:
    return isinstance(value, str)


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a value must be, in words and as a test."""

    words: str
    test: Callable[[Any], bool]


TEXT = Kind('text in quotes, such as "name"', _text)
NUMBER = Kind("a finite number", _number)
WHOLE = Kind("a whole number", _whole)
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
TEXTS = Kind('a list of texts, such as ["V", "CL"]', _each(_text))
NUMBERS = Kind("a list of finite numbers", _each(_number))
TABLE = Kind("a table", lambda value: isinstance(value, dict))
TEXTS_BY_NAME = Kind('texts by name, such as {AMT = "amount"}', _table(_text))
NUMBERS_BY_NAME = Kind("finite numbers by name, such as {b = 0.1}", _table(_number))
NAME_OR_NAMES = Kind('a name, or names by compartment, such as {1 = "F1"}', lambda v: _text(v) or _table(_text)(v))
NUMBER_OR_TEXT = Kind("a finite number, or the name of a column", lambda v: _number(v) or _text(v))
TEXT_OR_TEXTS = Kind('text in quotes, or texts by output, such as {1 = "A / V", 2 = "E"}', lambda v: _text(v) or _table(_text)(v))
LIMITS = Kind(
    "a finite number, the name of a column, or numbers by output, such as {1 = 0.5}",
    lambda v: _number(v) or _text(v) or _table(_number)(v),
)
HELD = Kind("a finite number, or numbers by name, such as {b = 0.1}", lambda v: _number(v) or _table(_number)(v))
BLOCKS = Kind(
    '"diagonal", "full" or a list of lists of names, such as [["V", "CL"]]', lambda v: _text(v) or _each(_each(_text))(v)
)


@dataclasses.dataclass(frozen=True)
class Source:
    """The text of a model file."""

    name: str
    text: str

    def problem(self, keys: Sequence[str], message: str) -> ValueError:
        """The error of a key, with the line where that can be found."""
        line = self.line(keys)
        where = f"{self.name}, line {line}" if line else self.name
        return ValueError(f"{where}: {'.'.join(keys) + ': ' if keys else ''}{message}")

    def line(self, keys: Sequence[str]) -> int | None:
        """The line, from one, where a key or as much of it as is written on a line of its own stands."""
        best, found = 0, None
        for number, path in self._paths():
            common = 0
            while common < min(len(path), len(keys)) and path[common] == keys[common]:
                common += 1
            if common == len(path) and common > best:
                best, found = common, number
        return found

    def _paths(self) -> Iterator[tuple[int, list[str]]]:
        table: list[str] = []
        within = ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if within:
                within = "" if within in line else within
                continue
            if header := _HEADER.match(line):
                table = _parts(header[1])
                yield number, table
            elif key := _KEY.match(line):
                yield number, table + _parts(key[1])
            for mark in ('"""', "'''"):
                if line.count(mark) % 2:
                    within = mark

    def check(
        self, table: Mapping[str, Any], keys: Sequence[str], allowed: Mapping[str, Kind], needed: Iterable[str] = ()
    ) -> None:
        """Raises: ValueError: a key that is not allowed, one that is needed and absent, or a value of another kind."""
        for name, value in table.items():
            if name not in allowed:
                what = ".".join(keys) or "a model file"
                raise self.problem([*keys, name], f"{what} has no key {name!r}{nearest(name, allowed)}")
            if not allowed[name].test(value):
                raise self.problem([*keys, name], f"must be {allowed[name].words}, got {value!r}")
        for name in needed:
            if name not in table:
                raise self.problem(keys, f"{name} is missing; add {name} = ... ({allowed[name].words})")

    def one_of(self, value: str, keys: Sequence[str], known: Iterable[str]) -> str:
        """Raises: ValueError: it is none of them."""
        if value not in known:
            raise self.problem(keys, f"{value!r} is unknown{nearest(value, known)}")
        return value


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: which name may be meant, and which there are.

    >>> nearest("intial", ["initial", "fixed"])
    "; did you mean 'initial'? There are initial, fixed"
    """
    names = list(known)
    lower = {one.lower(): one for one in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    meant = f"; did you mean {lower[close[0]]!r}? There are " if close else "; there are "
    return meant + ", ".join(names)


def _parts(text: str) -> list[str]:
    return [next(group for group in found.groups() if group is not None) for found in _PART.finditer(text)]
