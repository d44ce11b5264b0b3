"""Figures of a regression with missing covariates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...showing.axes import Panels, grid, single

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...showing.axes import AxesLike


class MissingPlots:
    """`model.plot.coefficients()`, on one Axes, and `.missingness()`, on two."""

    def __init__(self, fitted: Any) -> None:
        self._fitted = fitted

    def coefficients(self, level: float = 0.95, ax: Axes | None = None) -> Axes:
        """Coefficients per standard deviation of their column, with intervals; intercepts are left out."""
        frame = self._fitted.summary(level)
        widths = np.nanstd(self._fitted.table_.x, axis=0)
        # A multinomial outcome has as many blocks of rows as classes after the first.
        blocks = len(frame) // (1 + len(widths))
        frame, widths = frame[np.arange(len(frame)) % (1 + len(widths)) > 0], np.tile(widths, blocks)
        places = np.arange(len(frame))[::-1]
        axis = single(ax, 6.0, 1.2 + 0.28 * len(frame))
        centre = frame["estimate"].to_numpy() * widths
        half = (frame["ci_high"] - frame["estimate"]).to_numpy() * widths
        axis.errorbar(centre, places, xerr=np.nan_to_num(half), fmt="o", ms=4, color="tab:blue", ecolor="0.5", capsize=2)
        axis.axvline(0.0, color="0.7", lw=0.8)
        axis.set_yticks(places, frame.index)
        axis.set(xlabel=f"coefficient a standard deviation, {100 * level:g}% interval", ylim=(-0.7, len(frame) - 0.3))
        return axis

    def missingness(self, n_patterns: int = 25, ax: AxesLike | None = None) -> Panels:
        """Share missing in each column, and the commonest patterns of what is missing together with their numbers of rows."""
        table = self._fitted.table_
        missing = np.isnan(table.x)
        patterns, counts = np.unique(missing, axis=0, return_counts=True)
        shown = np.argsort(-counts)[:n_patterns]
        p = missing.shape[1]
        axes, _ = grid(ax, 2, 1, 3.0 + 0.35 * p, 5.5, sharex=True, height_ratios=[1, 2])
        top, bottom = axes.flat
        top.bar(np.arange(p), 100 * missing.mean(axis=0), color="tab:red")
        top.set_ylabel("% missing")
        bottom.imshow(patterns[shown], aspect="auto", cmap="Reds", vmin=0, vmax=1.4, interpolation="nearest")
        bottom.set_yticks(np.arange(len(shown)), [str(count) for count in counts[shown]], fontsize=7)
        bottom.set_xticks(np.arange(p), table.names, rotation=90)
        bottom.set_ylabel(f"rows ({len(shown)} of {len(counts)} patterns)")
        return Panels.of(axes[:, 0])
