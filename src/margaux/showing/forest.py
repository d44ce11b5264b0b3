"""A forest plot: estimates with their intervals, in panels of parameters that share a scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .figures import drawn
from .page import Figure, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: rows that are drawn
ROWS = 40
#: ratio of sizes within a panel, and panels at most
RATIO, PANELS = 12.0, 4
#: characters of a name
NAME = 34


def forest(frame: pd.DataFrame, level: float = 0.95, against: float | None = 0.0, what: str = "Estimates") -> Figure:
    """Estimates with intervals.

    Where sizes differ by more than a factor of twelve, parameters of one size share a panel with a scale of its own. Of more
    than forty rows those of largest |z| are drawn, where there are any, and otherwise the first.

    Args:
        frame: "estimate", "ci_low", "ci_high" and perhaps "z", a named row a parameter. against: a value marked by a line.
        what: the rows are, for alternative text and caption.

    Raises:
        ValueError: no estimate is finite.
    """
    finite = frame.loc[np.isfinite(frame["estimate"].to_numpy(float))]
    if finite.empty:
        raise ValueError("no estimate is finite")
    shown = chosen(finite)
    groups = grouped(shown)
    without = int((~np.isfinite(shown[["ci_low", "ci_high"]].to_numpy(float)).all(axis=1)).sum())

    def draw() -> Any:
        from matplotlib.figure import Figure as Drawing

        heights = [len(group) + 1.0 for group in groups]
        figure = Drawing(figsize=(6.0, 0.55 * len(groups) + 0.27 * sum(heights) + 0.1), layout="constrained")
        axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights).ravel()
        for axis, group in zip(axes, groups, strict=True):
            _panel(axis, group, against)
        axes[-1].set_xlabel(f"{what.lower()}{interval}")
        return figure

    interval = f" with {100 * level:g}% intervals" if without < len(shown) else ", which have no intervals"
    some = len(frame) - len(shown)
    told = f"Forest plot of {len(shown)}{f' of {len(frame):,}' if some else ''} {what.lower()}"
    ends = ", ".join(f"{_short(name)} {number(row['estimate'], 3)}{_interval(row)}" for name, row in shown.head(6).iterrows())
    caption = f"{what}{interval}."
    if len(groups) > 1:
        caption += " Each panel has a scale of its own."
    if 0 < without < len(shown):
        caption += f" {without} without interval {'are' if without > 1 else 'is'} hollow."
    if some:
        caption += f" {some:,} more are not drawn."
    return drawn(draw, f"{told}: {ends}{', and so on' if len(shown) > 6 else ''}.", caption, ranges=False)


def chosen(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that are drawn, in their order."""
    if len(frame) <= ROWS or "z" not in frame or bool(frame["z"].isna().all()):
        return frame.head(ROWS)
    size = frame["z"].abs().fillna(-1.0).to_numpy(float)
    return frame.iloc[np.sort(np.argsort(-size, kind="stable")[:ROWS])]


def grouped(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """Rows whose largest numbers are of one size, in the order of the first of each; within a group their own order.

    >>> frame = pd.DataFrame({"estimate": [1.0, 300.0, 2.0], "ci_low": np.nan, "ci_high": np.nan}, index=list("abc"))
    >>> [list(group.index) for group in grouped(frame)]
    [['a', 'c'], ['b']]
    """
    ends = np.abs(frame[["estimate", "ci_low", "ci_high"]].to_numpy(float))
    size = np.where(np.isfinite(ends), ends, 0.0).max(axis=1)
    place, top, group = np.zeros(len(size), int), np.inf, -1
    for row in np.argsort(-size, kind="stable"):
        if group < 0 or (size[row] * RATIO < top and size[row] > 0 and group < PANELS - 1):
            group, top = group + 1, size[row]
        place[row] = group
    order = sorted(set(place.tolist()), key=lambda one: int(np.flatnonzero(place == one)[0]))
    return [frame.loc[place == one] for one in order]


def _panel(axis: Axes, group: pd.DataFrame, against: float | None) -> None:
    places = np.arange(len(group))[::-1]
    centre, low, high = (group[name].to_numpy(float) for name in ("estimate", "ci_low", "ci_high"))
    known = np.isfinite(low) & np.isfinite(high)
    ends = np.concatenate([centre, low[known], high[known]])
    # Zero is shown where it is near: far from it an interval would shrink to a dot.
    if against is not None and ends.min() - 0.6 * np.ptp(ends) <= against <= ends.max() + 0.6 * np.ptp(ends):
        axis.axvline(against, color="0.6", lw=1.0, ls="--", zorder=0)
    axis.hlines(places[known], low[known], high[known], color="#0072B2", lw=1.6)
    axis.plot(centre[known], places[known], "o", ms=5, color="#0072B2")
    axis.plot(centre[~known], places[~known], "o", ms=5, mfc="none", color="#0072B2")
    axis.set_yticks(places, [_short(name) for name in group.index])
    axis.set_ylim(-0.7, len(group) - 0.3)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x", color="0.9", lw=0.6)
    axis.set_axisbelow(True)


def _short(name: object) -> str:
    text = " · ".join(map(str, name)) if isinstance(name, tuple) else str(name)
    text = text.replace("$", r"\$")
    return text if len(text) <= NAME else text[: NAME - 1] + "…"


def _interval(row: Any) -> str:
    return f" ({number(row['ci_low'], 3)} to {number(row['ci_high'], 3)})" if np.isfinite(row["ci_low"]) else ""
