"""From sections to HTML."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from .figures import themed
from .page import Figure, Paragraph, Section

if TYPE_CHECKING:
    from .report import Page


#: bytes of all figures together, so that a page stays below three million
BUDGET = 2_600_000
MARKS = {"good": "✓ Fine.", "careful": "! Careful.", "bad": "✕ Not to be trusted.", "told": "Note."}


def rendered(page: Page) -> str:
    """The HTML of a `margaux.report.Page`."""
    page = page._replace(sections=within(page.sections, BUDGET))
    figures = [part for section in page.sections for part in section.parts if isinstance(part, Figure)]
    used = sorted(frozenset().union(*(figure.colours for figure in figures)))
    colours = [(colour, themed(colour)) for colour in used]
    environment = Environment(
        loader=PackageLoader(__package__ or "margaux.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        page=page, colours=colours, marks=MARKS, version=version("margaux"), svg=_svg
    )


def within(sections: list[Section], budget: int) -> list[Section]:
    """The sections with figures of so many bytes together; those beyond are left out with a sentence."""
    out, left = [], budget
    for section in sections:
        parts = []
        for part in section.parts:
            if isinstance(part, Figure):
                size = len(part.svg.encode())
                if size > left:
                    part = Paragraph(f"A figure is left out, to keep the page small enough to send: {part.caption}")
                else:
                    left -= size
            parts.append(part)
        out.append(dataclasses.replace(section, parts=tuple(parts)))
    return out


def _svg(figure: Figure, place: str) -> Markup:
    """The SVG as one picture with its alternative text; a `<title>` would pop up under the pointer."""
    head, rest = figure.svg.split(">", 1)
    return Markup(f'{head} role="img" id="{place}" aria-label="{escape(figure.alt)}">{rest}')
