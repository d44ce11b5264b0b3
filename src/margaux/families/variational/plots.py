"""Figures of a Bayesian network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.ticker import NullFormatter
from scipy.stats import binomtest
from sklearn.base import is_classifier

from ...engine.validate import whole
from ...showing.axes import Panels, grid, single
from ...showing.planes import PALETTE
from .observations import inputs, numbers_of, outcomes
from .scores import expected_calibration_error, reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...showing.axes import AxesLike
    from ...tables.kinds import Column, Tabular

BLUE, ORANGE, GREEN, PINK, *_ = PALETTE
#: shares of the weights that are pruned
SHARES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)
#: tensors that a legend can tell apart, and observations that are drawn one by one
TENSORS, POINTS = 6, 2000


class BayesianPlots:
    """`model.plot.elbo(ax=None)` and others: each returns the Axes it draws on, two where it has two panels.

    >>> import numpy as np, margaux as mx
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = mx.BayesianClassifier(epochs=2, verbose=False).fit(X, X[:, 0] > 0)
    >>> BayesianPlots(model).elbo().get_xlabel()
    'epoch'
    """

    def __init__(self, fitted: Any) -> None:
        self._fitted = fitted

    def elbo(self, ax: Axes | None = None) -> Axes:
        """Negative ELBO an observation by epoch, of the fit (the mean over its draws) and of observations held out; of Laplace's
        approximation, SWAG and chains the negative log posterior (up to a constant) of the way of the weights.

        The axis is logarithmic where the values are positive and span more than a factor of five.
        """
        history = self._fitted.history_
        axis = single(ax, 6.0, 3.6)
        epoch, shown = history["epoch"].to_numpy(), list(history.columns[1:])
        for name, colour in zip(shown, (BLUE, ORANGE), strict=False):
            label = "held out" if name == "validation" else "fit"
            there = history[name].notna()
            marker = "o" if there.sum() < 30 else None
            axis.plot(epoch[there], -history[name][there], color=colour, marker=marker, ms=3, lw=1.4, label=label)
        values = -history[shown].to_numpy(float)
        values = values[np.isfinite(values)]
        if values.size and values.min() > 0 and values.max() > 5 * values.min():
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("{x:g}" if values.max() < 30 * values.min() else NullFormatter())
        if "validation" in shown and history["validation"].notna().any():
            best = int(np.nanargmax(history["validation"]))
            told = f"best held out: {-history['validation'].iloc[best]:.3f} at epoch {epoch[best]:g}"
            axis.plot(epoch[best], -history["validation"].iloc[best], "o", ms=7, mfc="none", color=ORANGE, label=told)
            axis.legend(frameon=False, fontsize=8)
        what = "ELBO" if "elbo" in history else "log posterior"
        axis.set(xlabel="epoch", ylabel=f"negative {what} an observation")
        axis.grid(color="0.92", which="both", lw=0.6)
        return axis

    def signal_to_noise(self, ax: AxesLike | None = None) -> Panels:
        """|mean| / standard deviation of the weights: its density by tensor, and the share of all weights below it.

        The six largest tensors have a line of their own. Weights that are zero, as after pruning, count in the share alone.
        """
        ratios, names = self._fitted.signal_to_noise(), list(self._fitted.stderr_)
        parts = dict(zip(names, np.split(ratios, np.cumsum([sd.size for sd in self._fitted.stderr_.values()])[:-1]), strict=True))
        largest = sorted(names, key=lambda name: -parts[name].size)[:TENSORS]
        rest = [name for name in names if name not in largest]
        lines = {name: parts[name] for name in names if name in largest}
        if rest:
            lines[f"{len(rest)} other tensors"] = np.concatenate([parts[name] for name in rest])
        positive = np.log10(ratios[ratios > 0])
        low, high = np.quantile(positive, [0.002, 0.9995]) if positive.size else (-3.0, 0.0)
        high = min(positive.max(initial=high), high + 1)  # a few that are far off widen the axis by no more than ten
        low, high = min(low, -0.25), max(high, 0.25)

        axes, figure = grid(ax, 2, 1, 6.2, 5.2, sharex=True, height_ratios=[3, 2])
        top, bottom = axes.flat
        for (name, values), colour in zip(lines.items(), PALETTE, strict=False):
            some = np.log10(values[values > 0])
            heights, edges = np.histogram(some, int(np.clip(2 * np.sqrt(some.size), 6, 60)), (low, high))
            heights = heights / max(some.size, 1) / (edges[1] - edges[0])
            top.stairs(heights, 10**edges, color=colour, lw=1.4, label=f"{name} ({values.size:,})")
        top.set(ylabel="density, a factor of ten", xscale="log")
        top.set_ylim(0, None)
        if figure is None:
            top.legend(frameon=False, fontsize=8)
        else:
            figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8)
        counts, edges = np.histogram(positive, 400, (low, high))
        below = np.sum(ratios == 0) + np.sum(positive < low) + np.concatenate([[0], np.cumsum(counts)])
        bottom.plot(10**edges, 100 * below / ratios.size, color="0.2", lw=1.4)
        bottom.set(xlabel="|mean| / standard deviation of a weight", ylabel=f"% of {ratios.size:,}\nweights below", ylim=(0, 102))
        for axis in (top, bottom):
            axis.axvline(1.0, color="0.7", lw=0.8, ls="--")
            axis.grid(color="0.92", lw=0.6)
        zeros = float(np.mean(ratios == 0))
        if zeros:
            bottom.set_title(f"{100 * zeros:.3g}% of the weights are zero", fontsize=9)
        return Panels.of(axes[:, 0])

    def pruning(
        self, X: Tabular, y: Column, shares: Sequence[float] = SHARES, n_draws: int = 30, ax: AxesLike | None = None
    ) -> Panels:
        """Accuracy (R^2 of a regressor) and log score when the weights of the smallest signal-to-noise ratios are zero.

        Args:
            X, y: observations to score. shares: of the weights that are pruned, in [0, 1). n_draws: of the weights.

        Raises:
            ValueError: observations unlike those of the fit, or a share outside [0, 1).
        """
        cut = np.sort(np.asarray(shares, float))
        frame = pd.DataFrame([self._fitted.pruned(share).evaluate(X, y, n_draws) for share in cut])
        first = "accuracy" if "accuracy" in frame else "r2"
        axes = Panels.of(grid(ax, 2, 1, 6.2, 4.8, sharex=True)[0][:, 0])
        titles = {"accuracy": "accuracy", "r2": "$R^2$", "log_score": "log score"}
        for axis, name, colour in zip(axes, (first, "log_score"), (BLUE, GREEN), strict=True):
            axis.plot(100 * cut, frame[name], "o-", ms=4, lw=1.4, color=colour)
            axis.axhline(frame[name].iloc[0], color="0.6", lw=0.8, ls="--")
            axis.set_ylabel(titles[name])
            axis.grid(color="0.92", lw=0.6)
        axes[1].set(xlabel="% of the weights pruned", xlim=(-2, 102))
        return axes

    def reliability(self, X: Tabular, y: Column, bins: int = 15, n_draws: int = 30, ax: AxesLike | None = None) -> Panels:
        """Accuracy against the confidence of the most probable class, by bins of equal width, with 95% intervals and counts.

        Args:
            X, y: observations. bins: their number. n_draws: of the weights.

        Raises:
            TypeError: the fit is no classifier. ValueError: observations unlike those of the fit.
        """
        model, bins = self._fitted, whole("bins", bins, 1)
        if not is_classifier(model):
            raise TypeError("reliability is of a classifier; a regressor has plot.predictions(X, y)")
        probabilities = model.predict_proba(X, n_draws)
        numbers = numbers_of(y, model.classes_, len(probabilities))
        table = reliability(numbers, probabilities, bins)
        right = (table["accuracy"] * table["count"]).round().astype(int)
        ends = [binomtest(k, n).proportion_ci(method="wilson") for k, n in zip(right, table["count"], strict=True)]
        accuracy = table["accuracy"].to_numpy()
        # Rounding may leave an end of an interval at the accuracy itself on its other side.
        half = np.maximum([accuracy - [end.low for end in ends], [end.high for end in ends] - accuracy], 0)

        axes, _ = grid(ax, 2, 1, 4.8, 5.6, sharex=True, height_ratios=[3, 1])
        top, bottom = axes.flat
        top.plot([0, 1], [0, 1], color="0.6", lw=0.9, ls="--", label="calibrated")
        top.errorbar(
            table["confidence"],
            accuracy,
            half,
            fmt="o",
            ms=5,
            color=BLUE,
            ecolor=BLUE,
            elinewidth=1,
            capsize=2,
            label="observed, 95% interval",
        )
        top.set(ylabel="accuracy", ylim=(-0.02, 1.02))
        top.legend(frameon=False, fontsize=8, loc="best")
        calibration = expected_calibration_error(numbers, probabilities, bins)
        whole_accuracy = np.mean(probabilities.argmax(axis=1) == numbers)
        top.set_title(f"expected calibration error {calibration:.3f}, accuracy {whole_accuracy:.3f}", fontsize=9)
        heights, edges = np.histogram(probabilities.max(axis=1), bins, (0, 1))
        bottom.bar(edges[:-1], heights, np.diff(edges), align="edge", color=BLUE, alpha=0.5, edgecolor="white")
        if heights.max() > 50:
            bottom.set_yscale("symlog", linthresh=1)
            bottom.set_ylim(0, None)
        bottom.set(xlabel="confidence", ylabel="observations", xlim=(-0.02, 1.02))
        for axis in (top, bottom):
            axis.grid(color="0.92", lw=0.6)
            axis.set_axisbelow(True)
        return Panels.of(axes[:, 0])

    def predictions(self, X: Tabular, y: Column, n_draws: int = 100, ax: Axes | None = None) -> Axes:
        """Observed outcomes beside their predicted means, with a band of two standard deviations either side.

        Against the column where X has one, otherwise against the predicted mean: an observation off its bar is surprising. Of
        many, two thousand are drawn.

        Args:
            X, y: observations. n_draws: of the weights.

        Raises:
            TypeError: the fit is no regressor. ValueError: observations unlike those of the fit.
        """
        model = self._fitted
        if is_classifier(model):
            raise TypeError("predictions are of a regressor; a classifier has plot.reliability(X, y)")
        x = inputs(X, model._shape)
        observed = outcomes(y, len(x), model.likelihood, fitting=False)
        mean, sd = model.predict(x, n_draws), model.predict_std(x, n_draws)
        floor = 0.0 if model.likelihood == "poisson" else -np.inf
        inside = np.abs(observed - mean) <= 2 * sd
        shown = np.unique(np.linspace(0, len(x) - 1, min(len(x), POINTS)).round().astype(int))
        axis = single(ax, 6.0, 4.6)
        if x.shape[1:] == (1,):
            grid = np.linspace(x.min(), x.max(), 200)
            centre, width = model.predict(grid[:, None], n_draws), 2 * model.predict_std(grid[:, None], n_draws)
            axis.fill_between(
                grid, np.maximum(centre - width, floor), centre + width, color=BLUE, alpha=0.2, lw=0, label="± 2 sd"
            )
            axis.plot(grid, centre, color=BLUE, lw=1.6, label="predicted mean")
            across, xlabel, ylabel = x[:, 0], "x", "outcome"
        else:
            bars = np.stack([np.maximum(mean - 2 * sd, floor), mean + 2 * sd], axis=1)[shown]
            across, xlabel, ylabel = mean, "predicted mean", "observed"
            segments = np.stack([np.repeat(mean[shown, None], 2, axis=1), bars], axis=2)
            axis.add_collection(
                LineCollection(
                    list(segments),
                    colors=BLUE,
                    alpha=float(np.clip(60 / len(shown), 0.08, 0.4)),
                    lw=1.2,
                    label="predicted mean ± 2 sd",
                )
            )
            ends = [mean.min(), mean.max()]
            axis.plot(ends, ends, color="0.3", lw=0.9, ls="--", label="observed = predicted")
        for there, colour, label in ((inside, "0.25", "inside"), (~inside, PALETTE[5], "outside")):
            some = shown[there[shown]]
            if some.size:
                axis.plot(across[some], observed[some], "o", ms=3, mew=0, alpha=0.7, color=colour, label=label)
        axis.set(xlabel=xlabel, ylabel=ylabel)
        r2 = 1 - np.sum((observed - mean) ** 2) / np.sum((observed - observed.mean()) ** 2)
        axis.set_title(f"$R^2$ {r2:.3f}; {100 * inside.mean():.1f}% of {len(x)} inside", fontsize=9)
        axis.legend(frameon=False, fontsize=8)
        axis.grid(color="0.92", lw=0.6)
        axis.set_axisbelow(True)
        return axis
