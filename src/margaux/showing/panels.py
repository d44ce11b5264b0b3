"""Panels that several figures are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from .axes import Panels


#: a number of at most so many values is shown by category
FEW = 4


def scatter(axis: Axes, x: ArrayLike, values: np.ndarray) -> None:
    axis.plot(x, values, "o", ms=2.5, alpha=0.6)
    axis.axhline(0, color="black", lw=0.8)
    for end in (-1.96, 1.96):
        axis.axhline(end, color="grey", lw=0.8, ls=":")


def histogram(axis: Axes, values: np.ndarray, label: str) -> None:
    values = values[np.isfinite(values)]
    x = np.linspace(-4, 4, 200)
    axis.hist(values, bins="fd", density=True, color="tab:blue", alpha=0.45)
    axis.plot(x, stats.norm.pdf(x), color="black", lw=1.1)
    axis.set(xlabel=label, yticks=[])


def quantiles(axis: Axes, values: np.ndarray, label: str) -> None:
    """Quantiles against those of N(0, 1), with the pointwise 95% band of independent draws from it."""
    values = np.sort(values[np.isfinite(values)])
    n, rank = len(values), np.arange(1, len(values) + 1)
    theory = stats.norm.ppf((rank - 0.5) / n)
    low, high = (stats.norm.ppf(stats.beta.ppf(tail, rank, n + 1 - rank)) for tail in (0.025, 0.975))
    axis.fill_between(theory, low, high, color="0.85", lw=0)
    axis.plot(theory, theory, color="black", lw=0.8)
    axis.plot(theory, values, "o", ms=2.5, alpha=0.7)
    axis.set(xlabel="quantile of N(0, 1)", ylabel=f"quantile of {label}")


def relation(axis: Axes, values: pd.Series, eta: np.ndarray) -> None:
    """One random effect against one covariate."""
    there = np.asarray(values.notna())
    values, eta = values.dropna(), eta[there]
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values) and values.nunique() > FEW:
        x = values.to_numpy(float)
        axis.plot(x, eta, "o", ms=3, alpha=0.6)
        slope, intercept, r, p, _ = stats.linregress(x, eta)
        ends = np.asarray([x.min(), x.max()])
        axis.plot(ends, intercept + slope * ends, color="tab:red", lw=1)
        axis.set_title(f"r = {r:.2f}, p = {p:.2g}", fontsize=8)
        return
    kinds = sorted(values.unique().tolist(), key=lambda v: v if isinstance(v, int | float) else str(v))
    groups = [eta[(values == kind).to_numpy()] for kind in kinds]
    axis.boxplot(groups, tick_labels=[f"{kind:g}" if isinstance(kind, float) else str(kind) for kind in kinds], widths=0.5)
    if len(groups) > 1 and min(map(len, groups)) > 1:
        axis.set_title(f"p = {stats.f_oneway(*groups).pvalue:.2g} (analysis of variance)", fontsize=8)


def bottom(axes: Panels, label: str, columns: int = 3) -> None:
    """The x label of a grid, below the lowest panel of each column."""
    for axis in axes[-columns:]:
        axis.set_xlabel(label)
