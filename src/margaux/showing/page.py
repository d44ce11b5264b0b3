"""What a page is made of, free of what it is about: sections of sentences, tables and figures, and their rendering."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd

#: rows that a table shows
ROWS = 40
#: sentences about a failure longer than this are cut
LONGEST = 400


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A sentence or several."""

    kind: ClassVar[str] = "paragraph"
    text: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A sentence with a mark that says how good its news are: "good", "careful", "bad", or "told" for neither."""

    kind: ClassVar[str] = "verdict"
    mark: str
    text: str


@dataclasses.dataclass(frozen=True)
class Facts:
    """Names and what they stand for."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Code:
    """Text to be copied as it is."""

    kind: ClassVar[str] = "code"
    text: str
    caption: str


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells as text; the first of each row names it. `numeric` says which columns are numbers. `note` stands below."""

    kind: ClassVar[str] = "table"
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Figure:
    """An inline SVG, its alternative text, and its caption. `width` is in CSS pixels; `colours` are those that a theme sets."""

    kind: ClassVar[str] = "figure"
    svg: str
    alt: str
    caption: str
    width: float
    colours: frozenset[str]


Part = Paragraph | Verdict | Facts | Code | Table | Figure


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading, its anchor, and what stands below it."""

    id: str
    title: str
    parts: tuple[Part, ...]


def section(id: str, title: str, *parts: Part | Iterable[Part]) -> Section:
    """A section of parts and of lists of them."""
    flat: list[Part] = []
    for part in parts:
        flat += [part] if isinstance(part, Part) else list(part)
    return Section(id, title, tuple(flat))


def attempt(what: str, make: Callable[[], Part | Iterable[Part]]) -> list[Part]:
    """The parts that a function makes, or a sentence that says why they are not there.

    A page is wanted most where something went wrong, so that no failure of a part may take the page with it.

    >>> attempt("The plot", lambda: 1 / 0)
    [Paragraph(text='The plot is left out: division by zero.')]
    """
    try:
        made = make()
        return [made] if isinstance(made, Part) else list(made)
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        why = why if len(why) <= LONGEST else why[:LONGEST] + "..."
        return [Paragraph(f"{what} is left out: {why.rstrip('.')}.")]


def number(value: Any, digits: int = 4) -> str:
    """A number for a reader; a dash where there is none.

    >>> [number(x) for x in (1234.5678, 0.000123456, 7, 2.5e9, -0.5, float("nan"), float("inf"), True)]
    ['1234.6', '0.0001235', '7', '2.5e9', '-0.5', '–', '∞', 'yes']
    """
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    value = float(value)
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    if size and not 1e-4 <= size < 1e7:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    places = digits - 1 - math.floor(math.log10(size)) if size else 0
    text = f"{value:.{max(places, 1 if size >= 10 ** (digits - 1) else 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def nats(value: float) -> str:
    """A log-likelihood or a criterion: three places, since differences between models count.

    >>> nats(-5174.28119), nats(float("nan"))
    ('-5174.281', '–')
    """
    return f"{value:.3f}" if math.isfinite(value) else number(float(value))


def probability(value: float) -> str:
    """A p-value: three places, and no more zeros than mean something.

    >>> probability(0.0421), probability(2e-9), probability(float("nan"))
    ('0.042', '< 0.001', '–')
    """
    if math.isnan(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


#: how the columns of the frames of margaux are called on a page, and how their numbers are written
HEADS = {
    "se": "standard error",
    "p": "p",
    "ci_low": "from",
    "ci_high": "to",
    "rse": "relative se, %",
    "sd": "standard deviation",
    "mc_error": "Monte Carlo error of it",
    "ok": "fine",
}


def framed(
    frame: pd.DataFrame, caption: str, named: str = "", heads: dict[str, str] | None = None, most: int = ROWS, rest: str = ""
) -> Table:
    """A data frame as a table: the index names the rows.

    Args:
        named: the head of the index. heads: names of columns that differ from the frame's. most: rows that are shown.
        rest: where all rows are to be found.
    """
    heads = HEADS | (heads or {})
    shown = frame.head(most)
    numeric = [bool(pd.api.types.is_numeric_dtype(frame[name])) for name in frame.columns]
    columns = [
        [probability(value) if name == "p" else number(value) if isnumber else str(value) for value in shown[name]]
        for name, isnumber in zip(shown.columns, numeric, strict=True)
    ]
    labels = [words(name) for name in shown.index]
    left = len(frame) - len(shown)
    note = f"{left:,} more rows are not shown{'; ' + rest if rest else ''}." if left else ""
    return Table(
        caption,
        (named, *(heads.get(str(name), str(name)) for name in frame.columns)),
        tuple(zip(labels, *columns, strict=True)),
        (False, *numeric),
        note,
    )


def listed(items: Sequence[Any], most: int = 12) -> str:
    """Items as a list in a sentence, the rest counted.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    words = [str(item) for item in items[:most]]
    return ", ".join(words) + (f" and {len(items) - most:,} more" if len(items) > most else "")


def words(name: object) -> str:
    """A label of an index, of one level or several."""
    return " · ".join(map(str, name)) if isinstance(name, tuple) else str(name)
