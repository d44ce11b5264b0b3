"""What is drawn on a plane of components: units by colour, ellipses, and labels that do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.collections import EllipseCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import Ellipse
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike

from .panels import FEW

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: an entry a unit
PerUnit: TypeAlias = ArrayLike | pd.Series

#: colours that stay apart in every common kind of colour blindness (Okabe and Ito 2008)
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
MARKERS = "osD^vP"
#: kinds that a legend can tell apart, and labels that are tried
KINDS, LABELS = 20, 200


class Colouring(NamedTuple):
    """A colour a unit: a number, or one of some kinds.

    Attributes:
        name: of what is shown. values: (n,), numbers, or places in `kinds` and NaN where missing. kinds: names of the categories,
            None for numbers.
    """

    name: str | None
    values: np.ndarray
    kinds: list[str] | None


def colouring(color: PerUnit | None, table: Any) -> Colouring | None:
    """The colours of the units of a table.

    Args:
        color: the name of a column of the design (`table_.covariate_names`); or an array or Series, an entry a unit, of the
            units that were fitted or of all that were given. A Series is put in order by the names of the units, where they
            have some.

    Raises:
        ValueError: if it names no covariate, has another length, misses units, or has too many kinds.
    """
    if color is None:
        return None
    if isinstance(color, str):
        if color not in table.covariate_names:
            raise ValueError(f'color: no covariate is called "{color}"; they are {table.covariate_names}; or give an array')
        values = pd.Series(table.x[:, table.covariate_names.index(color)], name=color)
    else:
        values = aligned(color, table, "color")
    kinds = pd.api.types.is_bool_dtype(values) or not pd.api.types.is_numeric_dtype(values) or values.nunique() <= FEW
    name = None if values.name is None else str(values.name)
    if not kinds:
        numbers = values.to_numpy(float, na_value=np.nan)
        return Colouring(name, np.where(np.isfinite(numbers), numbers, np.nan), None)
    category = values.astype("category").cat.remove_unused_categories()
    if len(category.cat.categories) > KINDS:
        raise ValueError(
            f"color has {len(category.cat.categories)} kinds and a legend can tell {KINDS} apart; join some, or give numbers"
        )
    codes = category.cat.codes.to_numpy(float)
    return Colouring(name, np.where(codes < 0, np.nan, codes), [_text(kind) for kind in category.cat.categories])


def aligned(values: PerUnit, table: Any, what: str) -> pd.Series:
    """An entry a fitted unit of what was given for the fitted units or for all of them."""
    if isinstance(values, pd.Series):
        series = values
    else:
        array = np.asarray(values)
        if array.ndim != 1:
            raise ValueError(f"{what} must have one dimension, an entry a unit, not shape {array.shape}")
        series = pd.Series(array)
    n, rows, units = len(table.units), np.asarray(table.kept_rows), table.units
    whole = pd.RangeIndex(len(rows))
    if len(series) == len(rows) and not series.index.equals(whole) and series.index.sort_values().equals(whole):
        series = series.sort_index()
    numbered = units.equals(pd.Index(np.flatnonzero(rows)))
    if not numbered and not isinstance(series.index, pd.RangeIndex) and series.index.is_unique and units.is_unique:
        lost = units.difference(series.index, sort=False)
        if len(lost):
            raise ValueError(
                f'{what} has no entry for {len(lost)} of the units ("{lost[0]}"); index it by the names of the units'
            )
        return series.loc[units]
    if len(series) not in (n, len(rows)):
        raise ValueError(f"{what} has {len(series)} entries and there are {n} units; give an entry a unit")
    return series if len(series) == n else series.loc[rows]


def _text(kind: object) -> str:
    return f"{kind:g}" if isinstance(kind, float) else str(kind)


def shape(covariance: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Width, height and angle in degrees of $\{u : u^\top S^{-1}u\le-2\log(1 - level)\}$, which hold `level` of N(0, S).

    Args:
        covariance: S, (..., 2, 2).

    >>> width, height, angle = shape(np.diag([1.0, 4.0]), 0.95)
    >>> float(round(width / height, 6)), float(abs(angle))
    (2.0, 90.0)
    """
    values, vectors = np.linalg.eigh(covariance)
    lengths = 2 * np.sqrt(-2 * np.log1p(-level) * np.maximum(values, 0))
    return lengths[..., 1], lengths[..., 0], np.degrees(np.arctan2(vectors[..., 1, 1], vectors[..., 0, 1]))


def scatter(axis: Any, places: np.ndarray, colours: Colouring | None, level: float | None) -> None:
    """Points (n, 2) by colour, and an ellipse a kind that has three points unless `level` is None."""
    n = len(places)
    style: dict[str, Any] = {"s": float(np.clip(4000 / n, 3, 18)), "alpha": 0.8, "lw": 0, "rasterized": n > 5000, "zorder": 2}
    if colours is None:
        axis.scatter(*places.T, color=PALETTE[0], **style)
        return
    missing = np.isnan(colours.values)
    if missing.any():
        axis.scatter(*places[missing].T, color="0.75", label="missing", **style)
    if colours.kinds is None:
        drawn = axis.scatter(*places[~missing].T, c=colours.values[~missing], cmap="viridis", **style)
        bar = axis.figure.colorbar(drawn, ax=axis, label=colours.name, shrink=0.8)
        bar.solids.set_alpha(1.0)
        return
    for k, kind in enumerate(colours.kinds):
        group, colour = places[colours.values == k], PALETTE[k % len(PALETTE)]
        axis.scatter(*group.T, color=colour, marker=MARKERS[k % len(MARKERS)], label=kind, **style)
        if level is not None and len(group) > 2:
            width, height, angle = shape(np.cov(group.T), level)
            face = {"facecolor": to_rgba(colour, 0.05), "edgecolor": colour, "lw": 1.2, "zorder": 1}
            axis.add_patch(Ellipse(tuple(group.mean(axis=0)), float(width), float(height), angle=float(angle), **face))
    axis.autoscale_view()
    axis.legend(
        title=colours.name,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        borderaxespad=0.0,
        markerscale=1.5,
        alignment="left",
    )


def ellipses(axis: Axes, places: np.ndarray, covariance: np.ndarray, level: float, colours: Colouring | None) -> None:
    """One faint ellipse a point: places (n, 2), covariance (n, 2, 2)."""
    width, height, angle = shape(covariance, level)
    inks = [PALETTE[0]] * len(places)
    if colours is not None and colours.kinds is not None:
        inks = ["0.75" if np.isnan(k) else PALETTE[int(k) % len(PALETTE)] for k in colours.values]
    elif colours is not None:
        inks = ["0.5"] * len(places)
    drawn = EllipseCollection(
        width,
        height,
        angle,
        units="xy",
        offsets=places,
        offset_transform=axis.transData,
        facecolors="none",
        edgecolors=inks,
        linewidths=0.6,
        alpha=0.6,
        zorder=1.5,
    )
    axis.add_collection(drawn)
    half = np.sqrt(-2 * np.log1p(-level) * np.diagonal(covariance, axis1=1, axis2=2))
    axis.update_datalim(np.concatenate([places - half, places + half]))
    axis.autoscale_view()


def label(axis: Axes, places: np.ndarray, texts: Sequence[Any], spare: np.ndarray, fontsize: float = 7) -> list[Any]:
    """Texts beside places (m, 2), the first ones first; one that finds no room is left out.

    Each goes where it leaves the origin and covers neither another text nor the points `spare` (l, 2). `LABELS` are tried.
    """
    axis.figure.canvas.figure.draw_without_rendering()
    scale = axis.figure.dpi / 72
    frame = axis.get_window_extent()
    inside = np.array([frame.x0, frame.y0, -frame.x1, -frame.y1])
    free = axis.transData.transform(spare)
    taken, drawn = np.concatenate([free - 1.5 * scale, -free - 1.5 * scale], axis=1), []
    pixels, origin = axis.transData.transform(places), axis.transData.transform([(0.0, 0.0)])[0]
    halo = [withStroke(linewidth=2, foreground="white", alpha=0.85)]
    for place, pixel, text in list(zip(places, pixels, texts, strict=True))[:LABELS]:
        note = axis.annotate(
            short(text),
            place,
            (0, 0),
            textcoords="offset points",
            fontsize=fontsize,
            path_effects=halo,
            ha="center",
            va="center",
            zorder=4,
        )
        extent = note.get_window_extent()
        size = np.array([extent.width, extent.height]) / 2
        for offset in _offsets(pixel - origin, size, 2 * scale):
            centre = pixel + offset
            box = np.concatenate([centre - size, -centre - size])
            # Boxes are (left, bottom, -right, -top): two overlap where each begins before the other ends.
            clear = np.all(box >= inside) and not np.any(np.all(taken + np.roll(box, 2) < 0, axis=1))
            if clear:
                note.xyann = tuple(offset / scale)
                taken, drawn = np.vstack([taken, box]), [*drawn, note]
                break
        else:
            note.remove()
    return drawn


def _offsets(direction: np.ndarray, half: np.ndarray, gap: float) -> np.ndarray:
    """Centres of a text around its place, in pixels, (8, 2): those away from the origin first."""
    turns = np.arctan2(direction[1], direction[0]) + np.pi / 4 * np.array([0, 1, -1, 2, -2, 3, -3, 4])
    way = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    return way / np.abs(way).max(axis=1, keepdims=True) * (half + gap)


def short(name: object, most: int = 24) -> str:
    """A long name without its middle.

    >>> short("a very long name of a bacterium", 16)
    'a very l…cterium'
    """
    name = str(name)
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"
