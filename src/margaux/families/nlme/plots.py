"""Figures of a nonlinear mixed-effects fit: convergence, fits, residuals, predictive checks, random effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree
from scipy import stats

from ...answers.plots import _chosen
from ...numerics.precision import precision
from ...showing.axes import Panels, grid, headline, legend, several
from ...showing.panels import bottom, histogram, quantiles, relation, scatter
from . import answers
from . import forest as of_covariates
from . import goodness as of_fit
from . import residuals as of_residuals
from . import vpc as checks
from .curves import fine_curves, predicted_rows
from .outcomes import Bernoulli, Ordinal
from .rows_by_output import parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...showing.axes import AxesLike
    from .estimator import NLME


class NLMEPlots:
    """`fitted.plot.<figure>(ax=None)`; each returns the Axes it draws on, an array of them.

    Raises:
        ValueError: a figure that has no meaning for this outcome or these data; the message says what does.
    """

    def __init__(self, fitted: Any) -> None:
        self._fitted = fitted

    def convergence(self, names: list[str] | None = None, ax: AxesLike | None = None) -> Panels:
        """Natural-scale parameters over the iterations, the estimate, and the end of the burn-in.

        Args:
            names: parameters to show, as in `params_`; all by default.
        """
        fitted = self._fitted
        known = list(fitted.params_)
        chosen = known if names is None else _chosen(known, names)
        values = natural_trace(fitted)
        iteration = np.arange(1, len(values) + 1)
        axes, figure = several(ax, len(chosen), 3.6, 2.2)
        for axis, name in zip(axes, chosen, strict=True):
            axis.plot(iteration, values[:, :, known.index(name)], lw=0.8, color="tab:blue")
            axis.axhline(fitted.params_[name], color="black", lw=1.0, label="estimate")
            if 0 < fitted.n_burn < len(values):
                axis.axvline(fitted.n_burn, color="grey", ls=":", lw=1.2, label="end of the burn-in")
            axis.set_title(name, fontsize=10)
        bottom(axes, "iteration")
        legend(figure, axes[0])
        return axes

    def fits(self, page: int = 1, n: int = 12, subjects: list | None = None, ax: AxesLike | None = None) -> Panels:
        """Observations of each subject under its own curve and the population's.

        Curves are drawn on a fine grid of times where other columns that the model reads are constant within subjects,
        else through the observed rows.

        Args:
            page: which n subjects, from 1. subjects: these instead of all.
        """
        fitted = self._fitted
        data = fitted.data_
        if fitted.model_.outcome.survival:
            raise ValueError("times to events have no curve through observations; look at plot.vpc()")
        if "time" not in data.roles:
            raise ValueError('curves need the time of each row: fit(data, ..., time="column")')
        labels = list(data.labels)
        if subjects is not None:
            for subject in subjects:
                if subject not in labels:
                    raise ValueError(f"no subject is called {subject!r}; the first ones are {labels[:5]}")
            labels = list(subjects)
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        pages = -(-len(labels) // n)
        if not 1 <= page <= pages:
            raise ValueError(f"page must be between 1 and {pages} ({len(labels)} subjects, {n} a page), got {page}")
        shown = labels[(page - 1) * n : page * n]
        key, time, y = (data.roles[role] for role in ("id", "time", "y"))
        of_outputs = parts(fitted)
        curves_of = [fine_curves(fitted, shown, own) for _, own in of_outputs]
        panels = [(*output, curves, label) for output, curves in zip(of_outputs, curves_of, strict=True) for label in shown]
        axes, figure = several(ax, len(panels), 3.4, 2.2)
        for axis, (name, own, curves, label) in zip(axes, panels, strict=True):
            curve, seen = curves[curves[key] == label], data.frame[own & (data.frame[key] == label)]
            axis.plot(curve[time], curve["population"], color="0.5", ls="--", lw=1.1, label="population")
            axis.plot(curve[time], curve["individual"], color="tab:blue", lw=1.4, label="individual")
            axis.plot(seen[time], seen[y], "o", color="black", ms=3.5, label="observed")
            axis.set_title(f"{key} {label}" + (f": {name}" if len(of_outputs) > 1 else ""), fontsize=9)
        bottom(axes, time)
        if figure is None:
            axes[0].set_ylabel(y)
        else:
            figure.supylabel(y, fontsize=10)
        legend(figure, axes[0])
        headline(figure, "Individual fits" + (f" (page {page} of {pages})" if pages > 1 else ""))
        return axes

    def predictions(self, log: bool = False, ax: AxesLike | None = None) -> Panels:
        """Observations against population and individual predictions, with the identity line."""
        fitted = self._fitted
        outcome, y = fitted.model_.outcome, fitted.data_.roles["y"]
        if outcome.survival or isinstance(outcome, Bernoulli | Ordinal):
            raise ValueError(
                f"observed against predicted says little of the outcome {type(outcome).__name__}; look at plot.vpc()"
            )
        seen = fitted.data_.frame[y].sort_index().to_numpy(float)
        of_outputs = parts(fitted, sorted_rows=True)
        axes, figure = several(ax, 2 * len(of_outputs), 4.2, 4.0, columns=2)
        levels = {level: predicted_rows(fitted, level) for level in ("population", "individual")}
        panels = [(name, own, level) for name, own in of_outputs for level in levels]
        for axis, (name, own, level) in zip(axes, panels, strict=True):
            predicted = levels[level]
            some = own & (seen > 0) & (predicted > 0) if log else own
            axis.plot(predicted[some], seen[some], "o", ms=3, alpha=0.6)
            both = np.concatenate([predicted[some], seen[some]])
            axis.plot([both.min(), both.max()], [both.min(), both.max()], color="black", lw=1, label="identity")
            axis.set(xlabel=f"{level} prediction of {name}", ylabel=f"observed {name}", box_aspect=1)
            if log:
                axis.set(xscale="log", yscale="log")
        axes[0].legend(frameon=False, fontsize=8)
        headline(figure, "Observed against predicted")
        return axes

    def residuals(self, n_simulations: int = 1000, key: int = 0, ax: AxesLike | None = None) -> Panels:
        """Population weighted residuals (WRES), individual ones (IWRES) and npde: against time and prediction, and against
        the standard normal distribution. Continuous outcomes only."""
        fitted = self._fitted
        frame = of_residuals.residuals(fitted, n_simulations, key)
        rows = [("wres", "WRES", "population"), ("iwres", "IWRES", "individual"), ("npde", "npde", "population")]
        time, of_outputs = fitted.data_.roles.get("time"), parts(fitted, sorted_rows=True)
        axes, figure = grid(ax, 3 * len(of_outputs), 4 if time else 3, 3.1 * (4 if time else 3), 7.6 * len(of_outputs))
        panels = [(y, frame[own], *row) for y, own in of_outputs for row in rows]
        for row, (y, part, name, label, level) in zip(axes, panels, strict=True):
            values = np.asarray(part[name], float)
            against = ([(time, part[time])] if time else []) + [(f"{level} prediction of {y}", part[level])]
            for axis, (what, x) in zip(row, against, strict=False):
                scatter(axis, x, values)
                axis.set(xlabel=what, ylabel=label)
            histogram(row[-2], values, label)
            quantiles(row[-1], values, label)
        headline(figure, "Residuals: by simulation (WRES, npde) and at the conditional modes (IWRES)")
        return axes

    def npde(self, n_simulations: int = 1000, key: int = 0, ax: AxesLike | None = None) -> Panels:
        """npde with their tests: quantiles, histogram, and percentiles against time and prediction over the bands of
        independent N(0, 1). Continuous outcomes only."""
        fitted = self._fitted
        frame = of_residuals.residuals(fitted, n_simulations, key)
        p = of_residuals.standard_normal(frame["npde"].to_numpy(float))["p"]
        time, of_outputs = fitted.data_.roles.get("time"), parts(fitted, sorted_rows=True)
        each = 4 if time else 3
        axes, figure = several(ax, each * len(of_outputs), 4.2, 3.3, columns=2)
        for place, (y, own) in enumerate(of_outputs):
            part, panels = frame[own & frame["npde"].notna().to_numpy()], axes[each * place : each * (place + 1)]
            values, what = np.asarray(part["npde"], float), f"npde of {y}" if len(of_outputs) > 1 else "npde"
            against = ([(time, part[time])] if time else []) + [(f"population prediction of {y}", part["population"])]
            quantiles(panels[0], values, what)
            histogram(panels[1], values, what)
            reference = np.random.default_rng(key).normal(size=(400, len(values)))
            bins = int(np.clip(np.median(np.bincount(fitted.data_.codes)), 4, 10))
            for axis, (label, x) in zip(panels[2:], against, strict=True):
                x = np.asarray(x, float)
                axis.plot(x, values, ".", color="0.6", ms=3)
                checks.draw(axis, checks.bands(x, values, reference, checks.percentiles, bins))
                axis.set(xlabel=label, ylabel=f"{what}: 5th, 50th, 95th percentile")
        legend(figure, axes[2])
        headline(
            figure,
            f"npde: p = {p['mean']:.2g} (mean), {p['variance']:.2g} (variance), {p['normality']:.2g} (normality), "
            f"{p['global']:.2g} (global)",
        )
        return axes

    def vpc(
        self,
        n_simulations: int = 500,
        n_bins: int | None = None,
        by: str | None = None,
        level: float = 0.95,
        log: bool = False,
        key: int = 0,
        ax: AxesLike | None = None,
        corrected: bool = False,
    ) -> Panels:
        """Visual predictive check: the observed over bands of simulated data of the same design.

        Continuous outcomes: 5th, 50th and 95th percentiles by bin of time; categories: their proportions; counts: percentiles,
        mean and share of zeros; where there are limits, simulations beyond those of their row lie at them, and their share is
        checked beside; times to events: Kaplan-Meier curves. A simulated event is censored where its subject was; a
        subject with an event, at a draw from the estimated censoring times beyond it.

        Args:
            n_bins: bins, by quantiles of time; from the rows a subject by default, and a bin a value where few differ.
            by: a column with one value a subject to stratify by. level: of the bands. log: logarithmic axis of the outcome.
            corrected: whether observations and simulations are multiplied by the median population prediction of their bin over
                their own (Bergstrand et al. 2011), which takes out differences of dose, covariates and time within a bin.
        """
        return checks.vpc(self._fitted, n_simulations, n_bins, by, level, log, key, ax, corrected)

    def effects(self, ax: AxesLike | None = None) -> Panels:
        """Conditional modes of the random effects with the estimated normal density, and their shrinkage."""
        fitted = self._fitted
        eta, shrinkage = self._effects(), fitted.shrinkage()
        axes, figure = several(ax, eta.shape[1], 3.6, 2.8)
        for axis, name in zip(axes, eta.columns, strict=True):
            sd = float(np.sqrt(fitted.params_[f"omega2_{name}"]))
            reach = max(3.2 * sd, 1.1 * float(np.abs(eta[name]).max()))
            x = np.linspace(-reach, reach, 200)
            axis.hist(eta[name], bins="fd" if len(eta) > 40 else 8, density=True, color="tab:blue", alpha=0.45)
            axis.plot(x, stats.norm.pdf(x, scale=sd), color="black", lw=1.2, label="estimated density")
            axis.set(xlabel=f"random effect of {name}", yticks=[])
            axis.set_title(f"{name} (shrinkage {100 * shrinkage[name]:.0f}%)", fontsize=10)
        legend(figure, axes[0])
        return axes

    def pairs(self, ax: AxesLike | None = None) -> Panels:
        """Conditional modes of the random effects against each other, with the 95% ellipse of the estimated covariance."""
        fitted, eta = self._fitted, self._effects()
        d = eta.shape[1]
        if d < 2:
            raise ValueError(f"one random effect ({eta.columns[0]}) has no pairs; look at plot.effects()")
        with precision(fitted.result_.dtype):
            omega = fitted.model_.covariances(fitted.result_.params)
        angle = np.linspace(0, 2 * np.pi, 100)
        circle = np.sqrt(stats.chi2.ppf(0.95, 2)) * np.stack([np.cos(angle), np.sin(angle)])
        axes, figure = grid(ax, d, d, 2.3 * d + 0.4, 2.2 * d + 0.4)
        for i, row in enumerate(eta.columns):
            for j, column in enumerate(eta.columns):
                axis = axes[i, j]
                if i == j:
                    axis.hist(eta[row], bins="fd" if len(eta) > 40 else 8, color="tab:blue", alpha=0.45)
                    axis.set(yticks=[])
                    axis.set_title(row, fontsize=10)
                elif j < i:
                    axis.plot(eta[column], eta[row], "o", ms=3, alpha=0.6)
                    values, vectors = np.linalg.eigh(omega[np.ix_([j, i], [j, i])])
                    ellipse = vectors @ (np.sqrt(np.maximum(values, 0.0))[:, None] * circle)
                    axis.plot(*ellipse, color="black", lw=0.9)
                else:
                    axis.set_axis_off()
                    r = np.corrcoef(eta[column], eta[row])[0, 1]
                    axis.text(0.5, 0.5, f"r = {r:.2f}", ha="center", va="center", transform=axis.transAxes)
                if i == d - 1:
                    axis.set_xlabel(column)
                if j == 0 and i:
                    axis.set_ylabel(row)
        headline(figure, "Conditional modes of the random effects,\nand the 95% ellipse of their covariance", fontsize=10)
        return axes

    def covariates(self, columns: list[str] | None = None, ax: AxesLike | None = None) -> Panels:
        """Conditional modes of the random effects against covariates: scatter for numbers, boxes for categories.

        Args:
            columns: columns with one value a subject; by default the first six that differ between subjects.
        """
        eta, data = self._effects(), self._fitted.data_
        chosen = _covariates(data, columns)
        width, height = max(2.7 * len(chosen) + 0.5, 5.4), 2.3 * eta.shape[1] + 0.4
        axes, figure = grid(ax, eta.shape[1], len(chosen), width, height, sharey="row")
        for j, column in enumerate(chosen):
            values = data.subjects[column]
            for i, name in enumerate(eta.columns):
                axis = axes[i, j]
                relation(axis, values, eta[name].to_numpy(float))
                axis.axhline(0, color="grey", lw=0.8, ls=":")
                if i == eta.shape[1] - 1:
                    axis.set_xlabel(column)
                if j == 0:
                    axis.set_ylabel(f"random effect of {name}", fontsize=9)
        headline(figure, "Random effects (conditional modes) against covariates", fontsize=11)
        return axes

    def forest(
        self,
        parameters: list[str] | None = None,
        reference: dict[str, Any] | None = None,
        quantiles: tuple[float, float] = (0.05, 0.95),
        level: float = 0.9,
        ax: Axes | None = None,
    ) -> Axes:
        """What covariates do to the typical parameters: ratios to a reference subject with their intervals, over the band from
        0.8 to 1.25. The numbers are those of `margaux.families.nlme.forest.covariate_effects`, which explains the arguments."""
        frame = of_covariates.covariate_effects(self._fitted, parameters, reference, quantiles, level)
        return of_covariates.draw(frame, level, ax)

    def goodness(self, n_simulations: int = 1000, key: int = 0, log: bool = False, ax: AxesLike | None = None) -> Panels:
        """Goodness of fit on one page: observations against population and individual predictions with the identity line, and
        IWRES and npde against time and prediction with their medians by bin. Continuous outcomes only; limits are triangles.

        Args:
            n_simulations, key: of the npde. log: logarithmic axes of observations and predictions.
        """
        return of_fit.goodness(self._fitted, n_simulations, key, log, ax)

    def _effects(self) -> pd.DataFrame:
        if not self._fitted.model_.random:
            raise ValueError("no random effect is left in this fit: every variance was estimated as zero")
        return answers.effects(self._fitted)


def natural_trace(fitted: NLME) -> np.ndarray:
    """Natural parameters by iteration and run, (iterations, runs, p), in the order of `params_`."""
    fit, model = fitted.result_, fitted.model_
    if "params" not in fit.trace and model.classes > 1:
        raise ValueError("the iterates are of one population, out of which classes were split; starts_ has what they reached")
    if "params" not in fit.trace:
        raise ValueError(f"traces are kept for at most 512 scalar parameters; this fit has {fitted.n_params_}")
    flat = fit.trace["params"]
    with precision(fit.dtype):
        size, unravel = ravel_pytree(fit.params)[0].size, ravel_pytree(fit.params)[1]
        each = jax.jit(jax.vmap(lambda x: answers.natural_values(model, unravel(x), fitted._dropped)))
        return np.asarray(each(flat.reshape(-1, size).astype(fit.dtype)), float).reshape(*flat.shape[:2], -1)


def _covariates(data: Any, columns: list[str] | None) -> list[str]:
    roles = {data.roles.get(role) for role in ("id", "time", "y")}
    rest = [str(name) for name in data.frame.columns if name not in roles]

    def steady(name: str) -> bool:
        return bool(data.frame.groupby(data.roles["id"])[name].nunique(dropna=False).max() <= 1)

    if columns is None:
        chosen = [name for name in rest if data.subjects[name].nunique() > 1 and steady(name)][:6]
        if not chosen:
            raise ValueError(f"no column has one value a subject and differs between subjects; columns are {', '.join(rest)}")
        return chosen
    for name in columns:
        if name not in data.frame.columns:
            raise ValueError(f"{name!r} is no column of the data; they are {', '.join(rest)}")
        if not steady(name):
            raise ValueError(f"{name} varies within a subject; random effects are shown against columns with one value a subject")
    return list(columns)
