"""Docstrings as they are written in margaux, turned into what Sphinx reads.

Prose is plain text with `code` in single backticks and $formulae$; sections are Google's, and a line of `Args:` may describe
several arguments.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

from sphinx.application import Sphinx

#: what is kept as it is: a formula of its own, one in the text, code
KEPT = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<math>[^$\n]+(?:\n[^$\n]+)?)\$|``(?P<double>[^`]+)``|`(?P<code>[^`]+)`")
SPECIAL = re.compile(r"([*|\\])|(?<=\w)(_)(?=\W|$)")
HEADING = re.compile(r"(Args|Attributes|Returns|Raises|Examples):\s*$")
ITEM = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)")
TITLES = {"Args": "Arguments"}


def prose(text: str) -> str:
    """Plain text with code and formulae as reStructuredText."""
    out, last = [], 0
    for found in KEPT.finditer(text):
        out.append(SPECIAL.sub(r"\\\g<0>", text[last : found.start()]))
        if found["math"] or found["block"]:
            formula = " ".join((found["math"] or found["block"]).split())
            out.append(rf"\ :math:`{formula}`\ ")
        else:
            out.append(rf"\ ``{' '.join((found['code'] or found['double']).split())}``\ ")
        last = found.end()
    out.append(SPECIAL.sub(r"\\\g<0>", text[last:]))
    return "".join(out)


def arguments(value: Any) -> list[str]:
    try:
        return [name for name in inspect.signature(value).parameters if name != "self"]
    except (TypeError, ValueError):
        return []


def split(line: str, names: list[str]) -> list[str]:
    """A line that describes several arguments, one description a line."""
    if not names:
        return [line]
    one = "|".join(names)
    indent = line[: len(line) - len(line.lstrip())]
    parts = re.split(rf"(?<=[.;)]) (?=(?:{one})(?:, (?:{one}))*: )", line.strip())
    return [indent + part for part in parts]


def paragraphs(lines: list[str]) -> list[str]:
    """Prose, and examples as they stand: those go from a prompt to the next blank line."""
    out: list[str] = []
    text: list[str] = []
    example = False
    for line in lines:
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example:
            text.append(line)
            continue
        out.extend(prose("\n".join(text)).split("\n") if text else [])
        text = []
        out.append(line)
    return out + (prose("\n".join(text)).split("\n") if text else [])


def items(lines: list[str], names: list[str]) -> list[str]:
    """The body of a section: a list where its lines describe names, else prose."""
    separate = [part for line in lines for part in split(line, names)]
    if not separate or not ITEM.match(separate[0]):
        return paragraphs([line.strip() for line in separate])
    out: list[str] = []
    for line in separate:
        found = ITEM.match(line)
        if found:
            out.append(f"* ``{found[1]}``: {found[2]}")
        else:
            out.append(f"  {line.strip()}" if line.strip() else "")
    return prose("\n".join(out)).replace("\n\\* ", "\n* ").removeprefix("\\").split("\n")


def process(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    names = arguments(value)
    out: list[str] = []
    at = 0
    while at < len(lines):
        heading = HEADING.match(lines[at])
        end = at + 1
        if heading:
            while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
                end += 1
            body = textwrap.dedent("\n".join(lines[at + 1 : end])).strip("\n").split("\n")
            known = {"Args": names, "Attributes": [r"\w+_"]}.get(heading[1], [])
            out += ["", f".. rubric:: {TITLES.get(heading[1], heading[1])}", "", *items(body, known), ""]
        else:
            while end < len(lines) and not HEADING.match(lines[end]):
                end += 1
            out += paragraphs(lines[at:end])
        at = end
    lines[:] = out


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
