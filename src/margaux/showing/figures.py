"""Matplotlib figures as inline SVG that is readable on light and on dark paper, with a text that says what is seen."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .page import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from numpy.typing import ArrayLike


#: points of a line, or of a scatter, beyond which it becomes a picture inside the SVG
POINTS = 1500
#: dots an inch of such pictures: twice the 96 of a screen
DPI = 192
#: panels that an alternative text goes through one by one
PANELS = 4
#: characters of an SVG, at most; beyond, all that is drawn is a picture
HEAVY = 400_000

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's own font
    "svg.hashsalt": "margaux",  # the same figure has the same names
    "font.size": 10.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.45",
    "axes.labelcolor": "0.15",
    "xtick.color": "0.35",
    "ytick.color": "0.35",
    "figure.titlesize": 11.0,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "legend.frameon": False,
    "path.simplify_threshold": 0.5,
}

#: ends of the scale of greys: (ink, paper) of the light and of the dark theme
LIGHT, DARK = ((0x1B, 0x1F, 0x24), (0xFF, 0xFF, 0xFF)), ((0xE8, 0xEA, 0xED), (0x15, 0x18, 0x1C))
#: relative luminance that a colour has on dark paper at least
LUMINANCE = 0.30


def drawn(draw: Callable[[], Any], alt: str, caption: str, ranges: bool = True) -> Figure:
    """The figure that a function draws.

    Args:
        draw: returns a matplotlib Figure, Axes, or an array of Axes. alt: what is seen. ranges: what the panels hold follows it.
    """
    with style():
        figure = figure_of(draw())
        width = 96 * float(figure.get_figwidth())
        told, svg = f"{alt} {seen(figure)}".strip() if ranges else alt, _svg(figure)
    _close(figure)
    text, colours = _inlined(svg)
    return Figure(text, told, caption, width, colours)


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's settings for a page."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def figure_of(given: object) -> Any:
    """The matplotlib Figure of a Figure, of Axes, or of several Axes.

    Raises:
        TypeError: none of these.
    """
    from matplotlib.figure import FigureBase

    if isinstance(given, FigureBase):
        return given
    for one in np.ravel(np.asarray(given, dtype=object)):
        if isinstance(getattr(one, "figure", None), FigureBase):
            return one.figure
    raise TypeError(f"a plot must return a Figure, Axes, or an array of Axes, got {type(given).__name__}")


def seen(figure: Drawing) -> str:
    """What the panels of a figure hold: labels, ranges, and how many lines and points.

    >>> from matplotlib.figure import Figure as Drawing
    >>> axis = Drawing().subplots()
    >>> lines = axis.plot([0, 4], [1, 3], label="fit")
    >>> _ = axis.set(xlabel="time", ylabel="dose", title="one"), axis.legend()
    >>> seen(axis.figure)
    'one: time from 0 to 4, dose from 1 to 3; 1 line (fit).'
    """
    panels = [axis for axis in figure.axes if axis.get_visible() and axis.axison and axis.has_data()]
    told = [text for text in map(_panel, panels[:PANELS]) if text]
    more = [axis.get_title() for axis in panels[PANELS:] if axis.get_title()]
    if len(panels) > PANELS:
        names = f": {', '.join(more[:12])}{', ...' if len(more) > 12 else ''}" if more else ""
        told.append(f"{len(panels) - PANELS} more panels{names}.")
    head = f"{len(panels)} panels. " if len(panels) > 1 else ""
    return head + " ".join(told)


def _panel(axis: Any) -> str:
    box = axis.dataLim
    ranges = []
    for label, low, high, one in (
        (axis.get_xlabel(), box.x0, box.x1, axis.xaxis),
        (axis.get_ylabel(), box.y0, box.y1, axis.yaxis),
    ):
        if np.isfinite([low, high]).all() and one.get_visible() and len(one.get_ticklocs()):
            name = " ".join(label.replace("$", "").split()) or one.axis_name
            ranges.append(f"{name} from {low:.3g} to {high:.3g}")
    lines = [line for line in axis.lines if len(line.get_xdata()) > 1 and line.get_linestyle() not in ("None", "none", " ", "")]
    points = sum(len(line.get_xdata()) for line in axis.lines if line.get_marker() not in ("None", "none", None, "", " "))
    points += sum(len(one.get_offsets()) for one in axis.collections if type(one).__name__ == "PathCollection")
    found = ((len(lines), "line"), (points, "point"), (len(axis.patches), "bar"), (len(axis.images), "picture"))
    counts = [f"{count:,} {noun}{'s' if count > 1 else ''}" for count, noun in found if count]
    names = [text for text in axis.get_legend_handles_labels()[1] if not text.startswith("_")]
    legend = f" ({', '.join(dict.fromkeys(names))})" if names else ""
    title = " ".join(axis.get_title().replace("$", "").split())
    body = "; ".join(part for part in (", ".join(ranges), ", ".join(counts) + legend) if part)
    return (f"{title}: {body}" if title and body else title or body) + "."


def _svg(figure: Drawing) -> str:
    """The figure as SVG, with what holds very many points as pictures."""
    _lighten(figure)
    text = _saved(figure)
    if len(text) > HEAVY:
        for axis in figure.axes:
            for artist in (*axis.lines, *axis.collections, *axis.patches):
                artist.set_rasterized(True)
        text = _saved(figure)
    return text


def _lighten(figure: Any) -> None:
    for axis in figure.axes:
        for line in axis.lines:
            if len(line.get_xdata()) > POINTS:
                line.set_rasterized(True)
        for one in axis.collections:
            if len(one.get_offsets()) > POINTS or sum(len(path.vertices) for path in one.get_paths()) > 4 * POINTS:
                one.set_rasterized(True)


def _saved(figure: Drawing) -> str:
    target = io.StringIO()
    figure.savefig(
        target, format="svg", dpi=DPI, transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    return target.getvalue()


def _close(figure: Drawing) -> None:
    """Figures of pyplot stay in its list until they are closed."""
    if figure.canvas.manager is not None:
        from matplotlib import pyplot

        pyplot.close(figure)


def _inlined(svg: str) -> tuple[str, frozenset[str]]:
    """SVG to be set inside a page: names of its own, no rules that reach beyond it, and colours that a theme can set."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r' id="image\w+"', "", svg)  # equal pictures have equal names, and nothing refers to them
    own = "f" + hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{own}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{own}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{own}-\1)", svg)
    svg = re.sub(r"(font: [^;\"']*?)'[^;\"]*", r"\1sans-serif", svg)
    colours: set[str] = set()

    def variable(found: re.Match[str]) -> str:
        colour = found.group(2).lower()
        if themed(colour) is None:
            return found.group(0)
        colours.add(colour)
        return f"{found.group(1)}var(--c{colour})"

    svg = re.sub(r"((?:fill|stroke|stop-color): )#([0-9a-fA-F]{6})\b", variable, svg)
    return re.sub(r"\n\s*", "\n", svg).strip(), frozenset(colours)


def themed(colour: str) -> tuple[str, str] | None:
    """A colour (six hexadecimal digits) in the light and in the dark theme; None where it serves both.

    Greys lie between ink and paper. Others are made lighter for dark paper, where they need it.

    >>> themed("000000"), themed("ffffff"), themed("ff7f0e")
    (('#1b1f24', '#e8eaed'), ('#ffffff', '#15181c'), None)
    """
    rgb = np.array([int(colour[i : i + 2], 16) for i in (0, 2, 4)], float)
    if np.ptp(rgb) <= 6:
        share = rgb.mean() / 255
        both = [np.asarray(ink) + share * (np.asarray(paper) - np.asarray(ink)) for ink, paper in (LIGHT, DARK)]
        return _hex(both[0]), _hex(both[1])
    lighter = rgb
    while luminance(lighter) < LUMINANCE:
        lighter = lighter + 0.05 * (255 - lighter)
    return None if lighter is rgb else (f"#{colour}", _hex(lighter))


def luminance(rgb: ArrayLike) -> float:
    """Relative luminance of an sRGB colour from 0 to 255 (WCAG 2.2).

    >>> luminance((255, 255, 255))
    1.0
    """
    share = np.asarray(rgb, float) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _hex(rgb: np.ndarray) -> str:
    return "#" + "".join(f"{round(value):02x}" for value in rgb)
