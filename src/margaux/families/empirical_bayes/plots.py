"""Figures of posterior draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...showing.axes import Panels, several

if TYPE_CHECKING:
    from ...showing.axes import AxesLike


def histograms(draws: np.ndarray, names: list[str], at_most: int = 30, ax: AxesLike | None = None) -> Panels:
    """A histogram of each column of `draws` (m, d), with its mean and 95% interval; the first `at_most` columns."""
    axes, _ = several(ax, min(draws.shape[1], at_most), 2.6, 2.1, columns=5)
    for j, axis in enumerate(axes):
        column = draws[:, j]
        axis.hist(column, bins=40, density=True, color="tab:blue", alpha=0.6)
        axis.axvline(column.mean(), color="black", lw=1)
        for end in np.quantile(column, [0.025, 0.975]):
            axis.axvline(end, color="grey", lw=0.8, ls=":")
        axis.set(title=names[j], yticks=[])
    return axes
