"""The records of a NONMEM control stream: its text by record, numbers and lists."""

from __future__ import annotations

import dataclasses
import re

#: records by the names that are understood, of which the first letters may stand for the whole
KNOWN = (
    "PROBLEM", "INPUT", "DATA", "SUBROUTINES", "PK", "ERROR", "THETA", "OMEGA", "SIGMA", "ESTIMATION", "ESTM", "COVARIANCE",
    "TABLE", "SCATTERPLOT", "SIZES", "WARNINGS", "SIMULATION", "SIMULATE", "SIML",
)  # fmt: skip
#: records without a part in the model
ASIDE = ("ESTIMATION", "ESTM", "COVARIANCE", "TABLE", "SCATTERPLOT", "SIZES", "WARNINGS", "SIMULATION", "SIMULATE", "SIML")


_FIXED, _ROOTS = {"FIX", "FIXED"}, {"SD", "STANDARD"}
_OPTIONS = _FIXED | _ROOTS | {"VARIANCE", "CORRELATION", "CORRELATON", "COVARIANCE", "CHOLESKY"}


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a record, its comment cut off, and its number in the file."""

    number: int
    text: str


@dataclasses.dataclass(frozen=True)
class Record:
    """A record of the stream: `$NAME` and the lines up to the next one."""

    name: str
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        return " ".join(line.text for line in self.lines).strip()

    @property
    def number(self) -> int:
        return self.lines[0].number


@dataclasses.dataclass
class Stream:
    """A control stream that is being read: its records, and what is said of lines that are not followed."""

    name: str
    records: list[Record]
    warnings: list[str] = dataclasses.field(default_factory=list)

    def problem(self, line: int | None, message: str) -> ValueError:
        """The error of a line."""
        return ValueError(f"{self.name}{f', line {line}' if line else ''}: {message}")

    def warn(self, line: int | None, message: str) -> None:
        """Say what is not followed, once."""
        told = f"{self.name}{f', line {line}' if line else ''}: {message}"
        if told not in self.warnings:
            self.warnings.append(told)

    def all(self, name: str) -> list[Record]:
        return [record for record in self.records if record.name == name]

    def only(self, name: str, mend: str) -> Record:
        """Raises: ValueError: there is none, or there are several."""
        found = self.all(name)
        if not found:
            raise self.problem(None, f"there is no ${name}; {mend}")
        if len(found) > 1:
            raise self.problem(found[1].number, f"a second ${name}; keep one")
        return found[0]


def split(text: str, name: str) -> Stream:
    """The records of a text.

    Raises:
        ValueError: no record, a second problem, or a record whose part in the model is not known.
    """
    stream = Stream(name, [])
    records: list[tuple[str, list[Line]]] = []
    continued = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition(";")[0].rstrip()
        head = re.match(r"\s*\$(\w+)", line)
        if head and not continued:
            records.append((_named(stream, head[1].upper(), number), [Line(number, line[head.end() :].strip())]))
        elif line.strip():
            if not records:
                raise stream.problem(number, f"{line.strip()[:30]!r} stands before any record; a stream begins with $PROBLEM")
            if continued:
                before = records[-1][1].pop()
                records[-1][1].append(Line(before.number, f"{before.text.removesuffix('&').rstrip()} {line.strip()}"))
            else:
                records[-1][1].append(Line(number, line.strip()))
        continued = line.endswith("&")
    if not records:
        raise stream.problem(None, "there is no record, such as $PROBLEM, in this file; is it a control stream?")
    stream.records = [Record(record, tuple(lines)) for record, lines in records]
    stream.only("PROBLEM", "a stream begins with one")
    return stream


def _named(stream: Stream, name: str, number: int) -> str:
    found = [one for one in KNOWN if len(name) >= 3 and one.startswith(name)] + [name] * (name == "PK")
    if not found:
        raise stream.problem(
            number,
            f"${name} is not read here, and may be a part of the model; there are {', '.join('$' + one for one in KNOWN[:10])}",
        )
    return {"ESTM": "ESTIMATION", "SIMULATE": "SIMULATION", "SIML": "SIMULATION"}.get(found[0], found[0])


@dataclasses.dataclass(frozen=True)
class Theta:
    """An element of $THETA: bounds, initial value, and whether it is fixed."""

    number: int
    line: int
    low: float
    initial: float | None
    high: float
    fixed: bool

    @property
    def name(self) -> str:
        return f"THETA({self.number})"


@dataclasses.dataclass(frozen=True)
class Variances:
    """$OMEGA or $SIGMA: values of the diagonal, which are fixed, and blocks of correlated ones, all from one on."""

    values: dict[int, float]
    fixed: set[int]
    blocks: list[tuple[int, ...]]
    lines: dict[int, int]


def thetas(stream: Stream) -> list[Theta]:
    """The elements of $THETA.

    Raises:
        ValueError: what is no element, with its line.
    """
    out: list[Theta] = []
    for record in stream.all("THETA"):
        for line in record.lines:
            rest = line.text
            while rest.strip(" ,"):
                rest = rest.lstrip(" ,")
                found = re.match(r"\(([^()]*)\)(?:\s*[xX](\d+))?|([^\s,()]+)", rest)
                if found is None:
                    raise stream.problem(line.number, f"$THETA {rest!r} is no element, such as (0, 5, 10) or 5 FIX")
                rest = rest[found.end() :]
                word = re.match(r"\s*FIX(?:ED)?\b", rest, re.IGNORECASE)
                rest = rest[word.end() :] if word else rest
                inside = found[1] if found[1] is not None else found[3]
                for _ in range(int(found[2] or 1)):
                    out.append(_theta(stream, line.number, inside, bool(word), len(out) + 1))
    return out


def _theta(stream: Stream, line: int, text: str, fixed: bool, number: int) -> Theta:
    inner = re.search(r"\bFIX(?:ED)?\b", text, re.IGNORECASE)
    parts = [part.strip() for part in re.split(r",", re.sub(r"\bFIX(?:ED)?\b", "", text, flags=re.IGNORECASE))]
    if len(parts) == 1 and " " in parts[0]:
        parts = parts[0].split()
    values = [_number(stream, part, line, "$THETA") for part in parts]
    if not values or len(values) > 3:
        raise stream.problem(line, f"$THETA ({text}) is no (low, initial, high)")
    low, initial, high = values[0] if len(values) > 1 else None, values[min(len(values), 2) - 1], (*values, None, None)[2]
    if initial is None and (fixed or inner):
        raise stream.problem(line, f"THETA({number}) is fixed without a value; write it")
    infinite = float("inf")
    # What NONMEM holds for no bound.
    low = -infinite if low is None or low <= -1e6 else low
    high = infinite if high is None or high >= 1e6 else high
    return Theta(number, line, low, initial, high, fixed or bool(inner))


def _number(stream: Stream, text: str, line: int, record: str) -> float | None:
    if not text:
        return None
    plain = {"INF": "inf", "-INF": "-inf"}.get(text.upper().removesuffix("INITY"), text.upper().replace("D", "E"))
    try:
        return float(plain)
    except ValueError as problem:
        raise stream.problem(line, f"{record} {text!r} is no number") from problem


def variances(stream: Stream, name: str) -> Variances:
    """The elements of $OMEGA or $SIGMA.

    Raises:
        ValueError: what is no element, or means what no model here has, with its line.
    """
    out = Variances({}, set(), [], {})
    for record in stream.all(name):
        text, at = record.text, len(out.values)
        block = re.search(r"\bBLOCK\s*\(\s*(\d+)\s*\)", text, re.IGNORECASE)
        rest = re.sub(r"\b(BLOCK|DIAGONAL)\s*\(\s*\d+\s*\)", " ", text, flags=re.IGNORECASE)
        told = set(re.findall(r"[A-Z]{2,}", rest.upper()))
        if unread := told - _OPTIONS:
            mend = "write occasions in Python, as LogNormal(occasion=True)" if "SAME" in unread else "leave it out"
            raise stream.problem(record.number, f"${name} has {', '.join(sorted(unread))}, which is not read; {mend}")
        items = _elements(stream, record, rest)
        if block:
            items = _diagonal(stream, record, int(block[1]), items, told)
        for number, (value, fixed) in enumerate(items, at + 1):
            if value < 0:
                raise stream.problem(record.number, f"{name}({number},{number}) = {value:g} is negative; a variance is not")
            out.values[number], out.lines[number] = value, record.number
            if fixed or value == 0:
                out.fixed.add(number)
        if block and len(items) > 1:
            out.blocks.append(tuple(range(at + 1, at + len(items) + 1)))
    return out


def _diagonal(
    stream: Stream, record: Record, size: int, items: list[tuple[float, bool]], told: set[str]
) -> list[tuple[float, bool]]:
    """Variances of a block, by the lower triangle of its matrix."""
    if len(items) != size * (size + 1) // 2:
        raise stream.problem(record.number, f"${record.name} BLOCK({size}) has {len(items)} values, not {size * (size + 1) // 2}")
    fixed = any(one for _, one in items)
    if "CHOLESKY" in told and fixed:
        raise stream.problem(record.number, f"${record.name} BLOCK CHOLESKY FIX is not read; write variances and covariances")
    return [(items[k * (k + 3) // 2][0] ** (2 if told & _ROOTS else 1), fixed) for k in range(size)]


def _elements(stream: Stream, record: Record, text: str) -> list[tuple[float, bool]]:
    """Variances, each with whether it is fixed; of blocks the numbers as they stand."""
    out: list[tuple[float, bool]] = []
    block = re.search(r"BLOCK", record.text, re.IGNORECASE) is not None
    leading = False
    for found in re.finditer(r"\(([^()]*)\)(?:\s*[xX](\d+))?|([^\s,()]+)", text):
        inside = (found[1] if found[1] is not None else found[3]).upper()
        parts = inside.replace(",", " ").split()
        numbers, told = [part for part in parts if part not in _OPTIONS], {part for part in parts if part in _OPTIONS}
        if not numbers and not out:
            leading = leading or bool(told & _FIXED)
            if told & _ROOTS and not block:
                raise stream.problem(record.number, f"${record.name}: write {inside} behind its number, as (0.3 {inside})")
        elif not numbers:
            value, fixed = out[-1]
            out[-1] = (value**2 if told & _ROOTS and not block else value, fixed or bool(told & _FIXED))
        for part in numbers:
            value = _number(stream, part, record.number, f"${record.name}")
            assert value is not None  # a word is not empty
            value = value**2 if told & _ROOTS and not block else value
            out += [(value, bool(told & _FIXED))] * int(found[2] or 1)
    return [(value, True) for value, _ in out] if leading else out


def words(record: Record) -> list[str]:
    """The words of a record, commas and blanks between them."""
    return [word for word in re.split(r"[\s,]+", re.sub(r"\s*=\s*", "=", record.text)) if word]
