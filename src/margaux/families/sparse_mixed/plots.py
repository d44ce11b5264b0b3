"""Figures of selection paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...showing.axes import Panels, grid

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

    from ...showing.axes import AxesLike


def selection_path(
    frame: pd.DataFrame, names: list[str], truth: ArrayLike | None = None, labels: int = 8, ax: AxesLike | None = None
) -> Panels:
    """Coefficients (columns `names`) along the penalty weights (index), with "n_selected" and "sigma" below them."""
    from matplotlib.ticker import ScalarFormatter

    beta, weights = frame[names].to_numpy(float), frame.index.to_numpy(float)
    true = np.zeros(beta.shape[1], bool) if truth is None else np.ravel(truth) != 0
    axes, _ = grid(ax, 2, 1, 7.0, 6.0, sharex=True, height_ratios=[2, 1])
    top, bottom = axes.flat
    ever = np.flatnonzero(np.any(beta != 0, axis=0))
    plain = "tab:blue" if truth is None else "0.75"
    for j in ever[np.argsort(true[ever], kind="stable")]:
        top.plot(weights, beta[:, j], lw=1.0, color="tab:red" if true[j] else plain)
    for j in np.argsort(-np.abs(beta[-1]))[:labels]:
        if beta[-1, j] != 0:
            top.annotate(names[j], (weights[-1], beta[-1, j]), fontsize=7, xytext=(3, 0), textcoords="offset points")
    top.set(ylabel="coefficient", title="Selection path" + ("" if truth is None else " (red: truly not zero)"))
    bottom.step(weights, frame["n_selected"], where="mid", color="black")
    bottom.set(xlabel="penalty weight", ylabel="selected", xscale="log")
    for place in (bottom.xaxis.set_major_formatter, bottom.xaxis.set_minor_formatter):
        place(ScalarFormatter())
    bottom.margins(x=0.07)
    bottom.invert_xaxis()
    other = bottom.twinx()
    other.plot(weights, frame["sigma"], color="tab:green", marker=".", lw=0.8)
    other.set_ylabel("sigma", color="tab:green")
    return Panels.of(axes[:, 0])
