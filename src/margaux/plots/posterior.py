"""Figures of posterior draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def histograms(draws: np.ndarray, names: list[str], at_most: int = 30) -> Figure:
    """A histogram of each column of `draws` (m, d), with its mean and 95% interval; the first `at_most` columns."""
    import matplotlib.pyplot as plt

    shown = min(draws.shape[1], at_most)
    columns = min(shown, 5)
    figure, grid = plt.subplots(-(-shown // columns), columns, figsize=(2.6 * columns, 2.1 * -(-shown // columns)), squeeze=False)
    for j, axis in enumerate(grid.flat):
        if j >= shown:
            axis.set_visible(False)
            continue
        column = draws[:, j]
        axis.hist(column, bins=40, density=True, color="tab:blue", alpha=0.6)
        axis.axvline(column.mean(), color="black", lw=1)
        for end in np.quantile(column, [0.025, 0.975]):
            axis.axvline(end, color="grey", lw=0.8, ls=":")
        axis.set(title=names[j], yticks=[])
    figure.tight_layout()
    return figure
