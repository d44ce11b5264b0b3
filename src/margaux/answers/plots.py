"""Figures of a fit: what people look at before they read a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..showing.axes import Panels, headline, several, single

if TYPE_CHECKING:
    import pandas as pd
    from jaxtyping import PyTree
    from matplotlib.axes import Axes

    from ..showing.axes import AxesLike
    from .fit import Fit


class FitPlots:
    """`fit.plot.<figure>(ax=None)`; each returns the Axes it draws on, several where it has a panel a parameter or latent."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    def trace(self, names: list[str] | None = None, truth: dict[str, float] | None = None, ax: AxesLike | None = None) -> Panels:
        """Iterates of each parameter by run, the estimate, and where averaging starts.

        Args:
            names: parameters to show, at most twelve by default. truth: reference values by name.
        """
        fit = self._fit
        if "params" not in fit.trace:
            raise ValueError(f"traces are kept for at most 512 scalar parameters; this fit has {len(fit.names)}")
        chosen = _chosen(fit.names, names)
        axes, figure = several(ax, len(chosen), 4.0, 2.6)
        flat = _flat(fit.params)
        for axis, name in zip(axes, chosen, strict=True):
            j = fit.names.index(name)
            values = fit.trace["params"][:, :, j]
            stride = max(values.shape[0] // 4000, 1)
            axis.plot(np.arange(1, values.shape[0] + 1)[::stride], values[::stride], lw=0.7, alpha=0.8)
            axis.axhline(flat[j], color="black", lw=1.2, label="estimate")
            if truth and name in truth:
                axis.axhline(truth[name], color="tab:red", ls="--", lw=1.2, label="reference")
            if fit.averaged_from:
                axis.axvline(fit.averaged_from, color="grey", ls=":", lw=1, label="averaging starts")
            axis.set(title=name, xlabel="iteration")
        axes[0].legend(frameon=False, fontsize=8)
        headline(figure, "Convergence")
        return axes

    def profile(self, frame: pd.DataFrame, truth: float | None = None, ax: Axes | None = None) -> Axes:
        """A `Fit.profile`: log-likelihoods with their Monte Carlo error, the quadratic through them and its maximiser."""
        axis, name, grid = single(ax, 4.0, 3.0), frame.index.name, frame.index.to_numpy(float)
        axis.errorbar(grid, frame["loglik"], 2 * frame["mc_error"], fmt="o", ms=3, capsize=2, label="log-likelihood, 2 MC errors")
        fine = np.linspace(grid.min(), grid.max(), 200)
        axis.plot(fine, np.polyval(frame.attrs["quadratic"], fine), lw=1, label="quadratic fit")
        axis.axvline(frame.attrs["maximiser"], color="black", lw=1, label=f"maximiser {frame.attrs['maximiser']:.3g}")
        if truth is not None:
            axis.axvline(truth, color="tab:red", ls="--", lw=1, label="reference")
        axis.set(xlabel=name, ylabel="log p(y | theta)")
        axis.legend(frameon=False, fontsize=8)
        return axis

    def estimates(self, level: float = 0.95, truth: dict[str, float] | None = None, ax: AxesLike | None = None) -> Panels:
        """Estimates with Wald intervals, one panel a parameter, since their units differ."""
        fit = self._fit
        table = fit.summary(level).head(24)
        axes, figure = several(ax, len(table), 3.0, 1.5)
        for axis, (name, row) in zip(axes, table.iterrows(), strict=True):
            half = row["ci_high"] - row["estimate"]
            axis.errorbar([row["estimate"]], [0], xerr=None if np.isnan(half) else [half], fmt="o", color="black", capsize=4)
            if truth and name in truth:
                axis.axvline(truth[str(name)], color="tab:red", ls="--", lw=1.2, label="reference")
                axis.legend(frameon=False, fontsize=7)
            axis.set(title=str(name), yticks=[])
        headline(figure, f"Estimates with {100 * level:g}% intervals")
        return axes

    def latents(self, most: int = 60, ax: AxesLike | None = None) -> Panels:
        """Posterior mean and one standard deviation of the first latents of each unit, sorted."""
        import jax

        moments = self._fit.latents()
        pairs = list(zip(jax.tree.leaves(moments["mean"]), jax.tree.leaves(moments["sd"]), strict=True))
        columns = [
            (m.reshape(m.shape[0], -1)[:, j], s.reshape(s.shape[0], -1)[:, j]) for m, s in pairs for j in range(min(m[0].size, 6))
        ][:6]
        axes, figure = several(ax, len(columns), 4.0, 2.6)
        for j, (axis, (mean, sd)) in enumerate(zip(axes, columns, strict=True)):
            order = np.argsort(mean)
            order = order[np.unique(np.linspace(0, order.size - 1, most).astype(int))]
            axis.errorbar(np.arange(order.size), mean[order], yerr=sd[order], fmt=".", lw=0.8, color="tab:blue")
            axis.set(title=f"latent {j}", xlabel="unit (sorted)")
        headline(figure, "Posterior mean and one standard deviation", fontsize=11)
        return axes


def _flat(params: PyTree) -> np.ndarray:
    import jax

    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def _chosen(known: list[str], names: list[str] | None) -> list[str]:
    if names is None:
        return known[:12]
    for name in names:
        if name not in known:
            raise ValueError(f'no parameter is called "{name}"; they are {known}')
    return names
