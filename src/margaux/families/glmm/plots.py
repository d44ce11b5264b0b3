"""Figures of a generalised linear mixed model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree
from matplotlib.ticker import MaxNLocator
from scipy import stats

from ...numerics.precision import precision
from ...numerics.wald import check_level
from ...showing.axes import Panels, headline, legend, several, single
from ...showing.calibration import deciles
from ...showing.panels import quantiles
from ...showing.planes import PALETTE
from . import curves, natural
from .prediction import mean_of, predictor
from .responses import Ordinal, link_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...showing.axes import AxesLike
    from .estimator import GLMM

#: groups of a caterpillar, panels of a figure, parameters of a trace, at most
GROUPS, PANELS, TRACED = 50, 6, 12
#: groups up to which each has its name at the axis
NAMED = 60
#: share of its variance that a conditional mean has at least, where the data tell something of it
TELLING = 0.01
#: trials a row below which shares are compared in groups
FEW_TRIALS = 5
#: links whose coefficients are logarithms, and of what
RATIOS = {"logit": "odds ratio", "log": "ratio of means", "cloglog": "hazard ratio"}


class GLMMPlots:
    """`model.plot.<figure>(ax=None)`; each returns the Axes it draws on, an array of them where there are several panels.

    >>> import numpy as np, pandas as pd
    >>> from margaux import GLMM
    >>> rng = np.random.default_rng(0)
    >>> g, x = np.repeat(np.arange(20), 5), rng.normal(size=100)
    >>> frame = pd.DataFrame({"y": 1 + 2 * x + rng.normal(size=20)[g] + rng.normal(size=100), "x": x, "g": g})
    >>> model = GLMM("y ~ x + (1 | g)", verbose=False).fit(frame)
    >>> model.plot.caterpillar()[0].get_title(), model.plot.effects("x")[0].get_ylabel()
    ('g: Intercept', 'mean of y')
    """

    def __init__(self, fitted: GLMM) -> None:
        self._fitted = fitted

    def caterpillar(
        self, factor: str | None = None, most: int = GROUPS, level: float = 0.95, ax: AxesLike | None = None
    ) -> Panels:
        """Random effects given the data with their intervals, sorted, a panel a factor and effect.

        Args:
            factor: this one alone. most: groups a panel; of more, those whose effects are largest in size.

        Raises:
            ValueError: no such factor.
        """
        check_level(level)
        if most < 1:
            raise ValueError(f"most must be at least 1, got {most}")
        columns = self._columns(factor)
        size = max(min(most, len(frame)) for _, frame in columns)
        axes, figure = several(ax, len(columns), 4.2, 1.2 + 0.17 * size)
        wide = stats.norm.ppf((1 + level) / 2)
        for axis, (title, frame) in zip(axes, columns, strict=True):
            largest = np.argsort(-frame["estimate"].abs().to_numpy(), kind="stable")[:most]
            some: Any = frame.iloc[largest].sort_values("estimate", kind="stable")
            places = np.arange(len(some))
            axis.errorbar(some["estimate"], places, xerr=wide * some["se"], fmt="o", ms=3, lw=1.0, color=PALETTE[0])
            axis.axvline(0.0, color="grey", lw=0.8)
            left = len(frame) - len(some)
            axis.set_title(f"{title}{f' (largest {len(some)} of {len(frame):,})' if left else ''}", fontsize=10)
            axis.set(xlabel=f"random effect, {100 * level:g}% interval", ylim=(-0.8, len(some) - 0.2))
            axis.set_yticks(places if len(some) <= NAMED else [], [str(name) for name in some.index][: len(places)], fontsize=7)
        headline(figure, "Random effects given the data")
        return axes

    def normality(self, factor: str | None = None, ax: AxesLike | None = None) -> Panels:
        r"""Quantiles of the random effects given the data against those of N(0, 1), with the pointwise 95% band.

        A conditional mean is drawn towards zero: by $\operatorname{Var}E[b\mid y] = \sigma^2 - E\operatorname{Var}[b\mid y]$ each
        is divided by $(\sigma^2 - \mathrm{se}^2)^{1/2}$ (Lange and Ryan 1989), exact where the response is Gaussian. Groups that
        tell almost nothing are left out.

        Raises:
            ValueError: no such factor, or no effect that the data tell anything of.
        """
        fitted, drawn = self._fitted, []
        variances = fitted.VarCorr()["variance"].to_dict()
        for (title, frame), key in zip(self._columns(factor), self._keys(factor), strict=True):
            left = variances[key] - frame["se"].to_numpy() ** 2
            told = left > TELLING * variances[key]
            if told.sum() >= 3:
                drawn.append((title, frame["estimate"].to_numpy()[told] / np.sqrt(left[told])))
        if not drawn:
            raise ValueError("the data tell nothing of any random effect: their variances are estimated as zero, or nearly")
        axes, figure = several(ax, len(drawn), 3.6, 3.2)
        for axis, (title, values) in zip(axes, drawn, strict=True):
            quantiles(axis, values, "random effects")
            axis.set_title(title, fontsize=10)
        headline(figure, "Normality of the random effects")
        return axes

    def fixed(self, level: float = 0.95, exponentiate: bool = False, intercept: bool = True, ax: Axes | None = None) -> Axes:
        """Fixed effects with Wald intervals.

        Args:
            exponentiate: as ratios, of odds with the logit link, of means with the logarithm. intercept: show it too.

        Raises:
            ValueError: the link is none whose coefficients are logarithms, or nothing is left to be shown.
        """
        fitted = self._fitted
        names = [name for name in fitted.design_.names if intercept or name != "Intercept"]
        if not names:
            raise ValueError("there is no fixed effect beside the intercept; leave intercept=True")
        link = link_of(fitted.model_.response).name
        if exponentiate and link not in RATIOS:
            raise ValueError(f"coefficients with the link {link} are no logarithms; leave exponentiate=False")
        frame = fitted.summary(level).loc[names, ["estimate", "ci_low", "ci_high"]]
        centre, *ends = (np.exp(values) if exponentiate else values for values in frame.to_numpy(float).T)
        places, sides = np.arange(len(frame))[::-1], np.nan_to_num(np.abs(np.stack(ends) - centre))
        axis = single(ax, 6.0, 1.2 + 0.28 * len(frame))
        axis.errorbar(centre, places, xerr=sides, fmt="o", ms=4, color=PALETTE[0], ecolor="0.5", capsize=2)
        axis.axvline(1.0 if exponentiate else 0.0, color="0.7", lw=0.8)
        axis.set_yticks(places, names)
        what = RATIOS[link] if exponentiate else "fixed effect"
        axis.set(xlabel=f"{what}, {100 * level:g}% interval", ylim=(-0.7, len(frame) - 0.3))
        if exponentiate:
            axis.set_xscale("log")
        return axis

    def effects(
        self, predictor: str | None = None, by: str | None = None, level: float = 0.95, ax: AxesLike | None = None, **at: Any
    ) -> Panels:
        """The mean of the response along a predictor, others held: see `margaux.families.glmm.curves.effect`.

        Args:
            predictor: a column of the table; by default a panel each for the first six. by: a second one, a curve a level.
            at: values of others, by name.

        Raises:
            ValueError: no such predictor, or none at all.
        """
        fitted = self._fitted
        known = curves.predictors(fitted)
        chosen = [name for name in known.names if name != by][:PANELS] if predictor is None else [predictor]
        if not chosen:
            raise ValueError("no column of the table is a fixed effect, so there is no effect to draw")
        frames = [curves.effect(fitted, name, by, level, at) for name in chosen]
        axes, figure = several(ax, len(chosen), 4.2, 3.2)
        for axis, name, frame in zip(axes, chosen, frames, strict=True):
            keys = [key for key in (by, "category") if key in frame]
            groups: list[Any] = list(frame.groupby(keys, sort=False)) if keys else [((), frame)]
            for j, (key, group) in enumerate(groups):
                label = ", ".join(map(_label, key))
                _curve(axis, group, name, name in known.levels, (j, len(groups)), label)
            axis.set(xlabel=name, ylabel=f"{'probability' if 'category' in frame else 'mean'} of {fitted.design_.response}")
            if keys and figure is None:
                legend(None, axis)
        if "category" in frames[0] or by is not None:
            legend(figure, axes[0]) if figure is not None else None
        return axes

    def observed(self, ax: Axes | None = None) -> Axes:
        """Observed responses against those fitted, the random effects given the data.

        A binary or ordinal response, and one with few trials, in ten groups by rising expectation, with two standard errors.
        """
        fitted = self._fitted
        expected, y, grouped = compared(fitted)
        axis = single(ax, 4.8, 4.2)
        if grouped:
            table = deciles(expected, y)
            axis.errorbar(
                table[:, 0], table[:, 1], 2 * np.nan_to_num(table[:, 2]), fmt="o", ms=4, color=PALETTE[0], elinewidth=1.2
            )
            shown = table[:, :2]
        else:
            axis.plot(expected, y, "o", ms=3, alpha=0.5, color=PALETTE[0])
            shown = np.stack([expected, y], axis=1)
        ends = [float(shown.min()), float(shown.max())]
        axis.plot(ends, ends, color="0.5", lw=1.0, ls="--", zorder=0)
        axis.set(xlabel=f"fitted {fitted.design_.response}", ylabel=f"observed {fitted.design_.response}")
        return axis

    def trace(self, names: list[str] | None = None, ax: AxesLike | None = None) -> Panels:
        """Parameters on their natural scale over the iterations, and the estimate.

        Args:
            names: those of `params_` that are shown; by default the first twelve.

        Raises:
            ValueError: no such parameter, or no trace was kept.
        """
        fitted, known = self._fitted, list(self._fitted.params_)
        for name in names or []:
            if name not in known:
                raise ValueError(f'no parameter is called "{name}"; they are {", ".join(known)}')
        shown, values = known[:TRACED] if names is None else names, natural_trace(fitted)
        axes, figure = several(ax, len(shown), 3.6, 2.2)
        for axis, name in zip(axes, shown, strict=True):
            axis.plot(np.arange(1, len(values) + 1), values[:, :, known.index(name)], lw=1.0, color=PALETTE[0])
            axis.axhline(fitted.params_[name], color="black", lw=1.0, ls="--")
            axis.set_title(name, fontsize=10)
            axis.set_xlabel("iteration")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        headline(figure, "Convergence")
        return axes

    def estimates(self, level: float = 0.95, ax: AxesLike | None = None) -> Panels:
        """Parameters with Wald intervals, a panel each, since their units differ; at most the first 24."""
        table = self._fitted.summary(level).head(24)
        axes, figure = several(ax, len(table), 3.0, 1.5)
        half = np.nan_to_num((table["ci_high"] - table["estimate"]).to_numpy(float))
        for axis, name, estimate, width in zip(axes, table.index, table["estimate"], half, strict=True):
            axis.errorbar([estimate], [0], xerr=[width], fmt="o", color="black", capsize=4)
            axis.set_title(str(name), fontsize=10)
            axis.set_yticks([])
        headline(figure, f"Estimates with {100 * level:g}% intervals")
        return axes

    def _keys(self, factor: str | None) -> list[tuple[str, str]]:
        """The factor and effect of each panel."""
        fitted = self._fitted
        if factor is not None and factor not in fitted.layout_.names:
            raise ValueError(f'there is no factor "{factor}"; the factors are {", ".join(fitted.layout_.names)}')
        names = zip(fitted.layout_.names, fitted.design_.terms, strict=True)
        keys = [(name, column) for name, term in names for column in term.columns if factor in (None, name)]
        return keys[:PANELS]

    def _columns(self, factor: str | None) -> list[tuple[str, pd.DataFrame]]:
        """Title and effects, a row a group, of each panel."""
        keys, found = self._keys(factor), self._fitted.ranef()
        return [(f"{name}: {column}", found[name].xs(column, level="effect")) for name, column in keys]


def compared(model: GLMM) -> tuple[np.ndarray, np.ndarray, bool]:
    """Fitted and observed responses (N,), shares where there are trials, and whether they are to be compared in groups."""
    design = model.design_
    eta = predictor(model, None, True)
    if design.trials is not None:
        share = design.y / design.trials
        return mean_of(model, eta, np.ones_like(eta)), share, bool(np.median(design.trials) < FEW_TRIALS)
    grouped = isinstance(model.model_.response, Ordinal) or len(np.unique(design.y)) == 2
    return mean_of(model, eta, None), design.y, grouped


def natural_trace(fitted: GLMM) -> np.ndarray:
    """Parameters by iteration and run, (iterations, runs, q), in the order of `params_`.

    Raises:
        ValueError: no trace was kept.
    """
    trace = fitted.result_.trace.get("params")
    if trace is None or not len(trace):
        raise ValueError(f"no trace was kept (it is for at most 512 scalar parameters; this fit has {len(fitted.params_):,})")
    with precision(np.dtype(np.float64)):
        _, back = ravel_pytree(jax.tree.map(lambda leaf: np.asarray(leaf, float), fitted.result_.params))
        each = jax.vmap(lambda flat: natural.values(fitted.model_, back(flat)))
        found = each(jnp.asarray(trace, float).reshape(-1, trace.shape[-1]))
        return np.asarray(found).reshape(*trace.shape[:2], -1)


def _label(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _curve(axis: Axes, frame: pd.DataFrame, name: str, category: bool, place: tuple[int, int], label: str) -> None:
    """One curve with its band, or points with their intervals, those of several curves beside each other."""
    (j, count), colour = place, PALETTE[place[0] % len(PALETTE)]
    mean, low, high = (frame[column].to_numpy(float) for column in ("mean", "ci_low", "ci_high"))
    if not category:
        axis.fill_between(frame[name], low, high, color=colour, alpha=0.2, lw=0)
        axis.plot(frame[name], mean, color=colour, lw=1.5, label=label)
        return
    ticks = np.arange(len(frame))
    beside = 0.0 if count == 1 else 0.5 * (j / (count - 1) - 0.5)
    sides = np.nan_to_num(np.stack([mean - low, high - mean]))
    axis.errorbar(ticks + beside, mean, sides, fmt="o", ms=4, capsize=2, color=colour, label=label)
    axis.set_xticks(ticks, [_label(value) for value in frame[name]])
