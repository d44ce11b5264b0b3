"""Goodness of fit on one page: observations against predictions, and residuals against time and prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...showing.axes import Panels, grid, headline
from ...showing.panels import scatter
from . import residuals as of_residuals
from .censoring import CENSORED
from .vpc import binned

if TYPE_CHECKING:
    from ...showing.axes import AxesLike
    from .estimator import NLME

#: bins of the medians that residuals are drawn with
BINS = 8


def goodness(fitted: NLME, n_simulations: int, key: int, log: bool, ax: AxesLike | None) -> Panels:
    """See `NLMEPlots.goodness`."""
    frame = of_residuals.residuals(fitted, n_simulations, key)
    data = fitted.data_
    y, time = data.roles["y"], data.roles.get("time")
    order = np.argsort(data.frame.index.to_numpy(), kind="stable")
    limited = data.flat(data.units["rows"][CENSORED])[order] != 0 if data.censored else np.zeros(len(frame), bool)
    columns = 3 if time else 2
    axes, figure = grid(ax, 2, columns, 4.0 * columns, 7.0)
    seen = frame[y].to_numpy(float)
    for axis, level, short in zip(axes[:, 0], ("population", "individual"), ("PRED", "IPRED"), strict=True):
        predicted = frame[level].to_numpy(float)
        some = (seen > 0) & (predicted > 0) if log else np.ones(len(seen), bool)
        axis.plot(predicted[some & ~limited], seen[some & ~limited], "o", ms=3, alpha=0.6, color="tab:blue")
        if limited.any():
            axis.plot(predicted[some & limited], seen[some & limited], "v", ms=3.5, mfc="none", color="tab:red", label="limit")
            axis.legend(frameon=False, fontsize=8)
        both = np.concatenate([predicted[some], seen[some]])
        axis.plot([both.min(), both.max()], [both.min(), both.max()], color="black", lw=1)
        scale = "log" if log else "linear"
        axis.set(xlabel=f"{short}: {level} prediction of {y}", ylabel=f"observed {y}", xscale=scale, yscale=scale)
    rows = [("iwres", "IWRES", "individual", "IPRED"), ("npde", "npde", "population", "PRED")]
    for row, (name, label, level, short) in zip(axes, rows, strict=True):
        against = [(time, frame[time].to_numpy(float))] if time else []
        against += [(f"{short}: {level} prediction of {y}", frame[level].to_numpy(float))]
        values = frame[name].to_numpy(float)
        there = np.isfinite(values)
        for axis, (what, x) in zip(row[1:], against, strict=True):
            scatter(axis, x[there], values[there])
            codes, centres = binned(x[there], BINS)
            axis.plot(centres, [np.median(values[there][codes == b]) for b in range(len(centres))], color="tab:red", lw=1.2)
            axis.set(xlabel=what, ylabel=label)
    headline(figure, "Goodness of fit; medians of residuals by bin in red")
    return axes
