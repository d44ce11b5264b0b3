"""The Axes that figures are drawn on, and what plot methods return.

One rule holds in the whole library: a method takes `ax=` and returns what it has drawn on. A figure of one panel takes and
returns one matplotlib Axes; one of several panels takes as many Axes (an array or a list) and returns them as `Panels`. Either
way `.figure` is the figure they belong to. Titles and legends of a whole figure are left out on Axes of the caller's.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    #: one or several, as matplotlib itself gives them
    AxesLike = Axes | Sequence[Axes] | np.ndarray

#: backends that write files and show nothing
SILENT = {"agg", "cairo", "pdf", "pgf", "ps", "svg", "template"}


class Panels(np.ndarray):
    """The Axes of a figure of several panels, an array of them.

    >>> drawn, _ = several(None, 3, 2.0, 2.0)
    >>> drawn.shape, drawn.figure is drawn[0].figure
    ((3,), True)
    """

    @property
    def figure(self) -> Figure:
        """The figure they belong to."""
        return self.flat[0].figure

    @classmethod
    def of(cls, axes: AxesLike) -> Panels:
        """Axes as an array of objects."""
        return np.asarray(axes, dtype=object).view(cls)


def blank(width: float, height: float) -> Figure:
    """A new figure, which pyplot shows where there is someone to look; elsewhere nothing but its Axes keeps it."""
    if _shown():
        from matplotlib import pyplot

        return pyplot.figure(figsize=(width, height), layout="constrained")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _shown() -> bool:
    """Whether pyplot shows figures: in a notebook, or in windows of a program that uses it."""
    if os.environ.get("MPLBACKEND", "").startswith("module://"):
        return True
    if "matplotlib.pyplot" not in sys.modules:
        return False
    import matplotlib

    return matplotlib.get_backend().lower() not in SILENT


def single(ax: Axes | None, width: float, height: float) -> Axes:
    """The Axes to draw on: the one given, or of a new figure of this size.

    Raises:
        ValueError: not one Axes.
    """
    if ax is None:
        return blank(width, height).subplots()
    return _given(ax, 1)[0]


def several(ax: AxesLike | None, count: int, width: float, height: float, columns: int = 3) -> tuple[Panels, Figure | None]:
    """So many Axes: those given, or panels of this size in rows of `columns`; and the figure if it is new.

    Raises:
        ValueError: not as many Axes.
    """
    if ax is not None:
        return _given(ax, count), None
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = blank(width * columns, height * rows + 0.3)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.set_axis_off()
    return Panels.of(axes[:count]), figure


def grid(
    ax: AxesLike | None, rows: int, columns: int, width: float, height: float, **settings: Any
) -> tuple[Panels, Figure | None]:
    """Axes (rows, columns) of a figure of this size, with settings of matplotlib's `subplots`, or those given.

    Raises:
        ValueError: not as many Axes.
    """
    if ax is not None:
        return Panels.of(_given(ax, rows * columns).reshape(rows, columns)), None
    figure = blank(width, height)
    return Panels.of(figure.subplots(rows, columns, squeeze=False, **settings)), figure


def _given(ax: AxesLike, count: int) -> Panels:
    given = np.ravel(np.asarray(ax, dtype=object))
    if len(given) != count or not all(hasattr(axis, "scatter") for axis in given):
        raise ValueError(f"ax must be {count} matplotlib Axes, as many as the figure has panels, got {len(given)}")
    return Panels.of(given)


def legend(figure: Figure | None, axis: Axes) -> None:
    """One legend of a whole figure, below it; on Axes of the caller's, one within the first."""
    handles, labels = axis.get_legend_handles_labels()
    if figure is None:
        axis.legend(handles, labels, frameon=False, fontsize=8)
    else:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)


def headline(figure: Figure | None, text: str, **settings: Any) -> None:
    """A title of a whole figure."""
    if figure is not None:
        figure.suptitle(text, **settings)
