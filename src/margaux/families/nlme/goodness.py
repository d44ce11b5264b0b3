"""Goodness of fit on one page: observations against predictions, and residuals against time and prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...showing.axes import Panels, grid, headline
from ...showing.panels import scatter
from . import residuals as of_residuals
from .censoring import CENSORED
from .rows_by_output import in_order, parts
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
    how = in_order(data, data.flat(data.units["rows"][CENSORED])) if data.censored else np.zeros(len(frame))
    of_outputs = parts(fitted, sorted_rows=True)
    columns = 3 if time else 2
    axes, figure = grid(ax, 2 * len(of_outputs), columns, 4.0 * columns, 7.0 * len(of_outputs))
    for place, (name, own) in enumerate(of_outputs):
        _of_output(axes[2 * place : 2 * place + 2], pd.DataFrame(frame[own]), how[own] != 0, (name, y, time), log)
    headline(figure, "Goodness of fit; medians of residuals by bin in red")
    return axes


def _of_output(axes: np.ndarray, frame: pd.DataFrame, limited: np.ndarray, names: tuple[str, str, str | None], log: bool) -> None:
    """Two rows of panels. Args: names: of what is observed, and the columns of it and of the time."""
    name, y, time = names
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
        axis.set(xlabel=f"{short}: {level} prediction of {name}", ylabel=f"observed {name}", xscale=scale, yscale=scale)
    rows = [("iwres", "IWRES", "individual", "IPRED"), ("npde", "npde", "population", "PRED")]
    for row, (column, label, level, short) in zip(axes, rows, strict=True):
        against = [(time, frame[time].to_numpy(float))] if time else []
        against += [(f"{short}: {level} prediction of {name}", frame[level].to_numpy(float))]
        values = frame[column].to_numpy(float)
        there = np.isfinite(values)
        for axis, (what, x) in zip(row[1:], against, strict=True):
            scatter(axis, x[there], values[there])
            codes, centres = binned(x[there], BINS)
            axis.plot(centres, [np.median(values[there][codes == b]) for b in range(len(centres))], color="tab:red", lw=1.2)
            axis.set(xlabel=what, ylabel=label)
