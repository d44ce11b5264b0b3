"""Visual predictive checks: statistics of the observations over the bands that simulations of the model span."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import scipy

from ...numerics.precision import precision
from ...numerics.wald import check_level
from ...showing.axes import Panels, headline, legend, several
from . import prediction
from .censoring import CENSORED, limited
from .corrected import corrections, typical
from .limits import of_rows
from .outcomes import Bernoulli, Ordinal
from .rows_by_output import parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...showing.axes import AxesLike
    from .estimator import NLME
    from .outcomes import AbstractOutcome


#: percentiles of the outcome that are checked
LEVELS = (0.05, 0.5, 0.95)
COLOURS = ("tab:blue", "tab:red", "tab:blue")


@dataclasses.dataclass(frozen=True)
class Bands:
    """One statistic or several by bin: where the bins lie (B,), the observed (B, S), and the simulations' `level` interval
    and median, each (B, S)."""

    x: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray


def binned(x: np.ndarray, n_bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Bin of each x (N,) and the median x of each bin: every value its own bin where few differ, else by quantiles.

    >>> binned(np.array([0.0, 1.0, 1.0, 5.0]), 3)[1]
    array([0., 1., 5.])
    """
    values, codes = np.unique(x, return_inverse=True)
    if len(values) > n_bins:
        edges = np.unique(np.quantile(x, np.linspace(0, 1, n_bins + 1)[1:-1]))
        codes = np.unique(np.searchsorted(edges, x, side="right"), return_inverse=True)[1]
        values = np.asarray([np.median(x[codes == b]) for b in range(codes.max() + 1)])
    return codes, values


def bands(
    x: np.ndarray,
    y: np.ndarray,
    simulations: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    n_bins: int,
    level: float = 0.95,
) -> Bands:
    """Statistics of y (N,) by bin of x (N,), and of each of the simulations (K, N).

    Args:
        statistic: values (..., m) of a bin -> (..., S).
    """
    codes, centres = binned(x, n_bins)
    tails = [0.5 - level / 2, 0.5, 0.5 + level / 2]
    observed, spans = [], []
    for b in range(len(centres)):
        inside = codes == b
        observed.append(statistic(y[inside]))
        spans.append(np.quantile(statistic(simulations[:, inside]), tails, axis=0))
    low, middle, high = np.stack(spans, axis=1)
    return Bands(centres, np.stack(observed), low, middle, high)


def percentiles(values: np.ndarray) -> np.ndarray:
    """(..., m) -> (..., 3) at `LEVELS`."""
    return np.moveaxis(np.quantile(values, LEVELS, axis=-1), 0, -1)


def kaplan_meier(time: np.ndarray, event: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Kaplan-Meier estimate of P(T > t) on a grid of times; it keeps its last value after the last subject has left.

    >>> kaplan_meier(np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1]), np.array([0.5, 1.0, 2.5, 3.0]))
    array([1.        , 0.66666667, 0.66666667, 0.        ])
    """
    found = scipy.stats.ecdf(scipy.stats.CensoredData.right_censored(time, event == 0)).sf
    return np.concatenate([[1.0], found.probabilities])[np.searchsorted(found.quantiles, grid, side="right")]


def followed_until(time: np.ndarray, event: np.ndarray, rng: np.random.Generator, n_draws: int) -> np.ndarray:
    """Censoring times (n_draws, n): the observed one, or for an event a draw from what lies beyond it.

    The censoring distribution is estimated by Kaplan and Meier with the roles exchanged; what mass it leaves lies at the end
    of the study, the largest time observed.
    """
    grid = np.unique(time)
    survival = kaplan_meier(time, 1.0 - event, grid)
    survival[-1] = 0.0
    beyond = survival[np.searchsorted(grid, time)]
    # Inverse of the survival function below its value at the event; ends at the last time.
    u = beyond * rng.uniform(size=(n_draws, len(time)))
    drawn = grid[np.minimum(len(grid) - np.searchsorted(survival[::-1], u, side="right"), len(grid) - 1)]
    return np.where(event > 0, drawn, time)


def vpc(
    fitted: NLME,
    n_simulations: int = 500,
    n_bins: int | None = None,
    by: str | None = None,
    level: float = 0.95,
    log: bool = False,
    key: int = 0,
    ax: AxesLike | None = None,
    corrected: bool = False,
) -> Panels:
    """See `NLMEPlots.vpc`."""
    if n_simulations < 20:
        raise ValueError(f"n_simulations must be at least 20, got {n_simulations}")
    check_level(level)
    if n_bins is not None and n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    data, outcome = fitted.data_, fitted.model_.outcome
    if "time" not in data.roles:
        raise ValueError('a predictive check needs the time of each row: fit(data, ..., time="column")')
    predictions = typical(fitted) if corrected else np.ones(len(data.codes))
    with precision(fitted.result_.dtype):
        simulations = data.flat(np.asarray(prediction.drawn(fitted, data, n_simulations, key), float))
    groups = strata(fitted, by)
    if outcome.survival:
        return _survival(fitted, simulations, groups, level, key, ax)
    y = data.frame[data.roles["y"]].to_numpy(float)
    time = data.frame[data.roles["time"]].to_numpy(float)
    of_outputs = parts(fitted)
    counts = [np.bincount(data.codes[own]) for _, own in of_outputs]
    bins = [n_bins or int(np.clip(np.median(count[count > 0]), 5, 12)) for count in counts]
    beyond = {}
    if data.censored:
        simulations, beyond = limited(data.flat(data.units["rows"][CENSORED]), of_rows(data), simulations)
    checked: list[tuple] = []
    for (name, own), count in zip(of_outputs, bins, strict=True):
        spread = [(f"{name} (5th, 50th, 95th percentile)", percentiles, True)]
        panels = [(*panel, y, simulations) for panel in (spread if data.censored else _panels(outcome, y, name))]
        sides = [(side, shares) for side, shares in beyond.items() if np.any(shares[0][own])]
        panels += [(f"share of {name} {side} its limit", _mean, False, *shares) for side, shares in sides]
        rows = [(label, group & own) for label, group in groups]
        checked += [(label, some, count, *panel) for label, some in rows if some.any() for panel in panels]
    axes, figure = several(ax, len(checked), 6.0 if len(checked) == 1 else 4.4, 3.6)
    for axis, (label, rows, count, title, statistic, scatter, seen, simulated) in zip(axes, checked, strict=True):
        scale = np.ones(())
        if corrected and scatter:
            title = f"corrected {title}"
            rows = rows & np.isfinite(predictions)
            scale = corrections(predictions[rows], binned(time[rows], count)[0])
        shown = seen[rows] * scale
        if scatter:
            axis.plot(time[rows], shown, ".", color="0.6", ms=3, zorder=1)
        draw(axis, bands(time[rows], shown, simulated[:, rows] * scale, statistic, count, level))
        axis.set(xlabel=data.roles["time"], ylabel=title, title=label, yscale="log" if log and scatter else "linear")
    legend(figure, axes[0])
    what = "Prediction-corrected visual predictive check" if corrected else "Visual predictive check"
    headline(figure, f"{what}: {100 * level:g}% bands of {n_simulations} simulations", fontsize=11)
    return axes


def _panels(outcome: AbstractOutcome, y: np.ndarray, name: str) -> list[tuple[str, Callable, bool]]:
    """What is checked of an outcome: axis label, statistic, and whether observations are shown."""
    whole = not outcome.continuous and bool(np.all(y == np.round(y)))
    values = np.unique(y)

    def share(k):
        return lambda v: np.mean(v == k, axis=-1)[..., None]

    if isinstance(outcome, Bernoulli) or (whole and set(values) <= {0.0, 1.0}):
        return [(f"proportion of {name} = 1", share(1.0), False)]
    if isinstance(outcome, Ordinal):
        return [(f"proportion of {name} = {k}", share(float(k)), False) for k in range(1, len(outcome.thresholds) + 2)]
    spread = (f"{name} (5th, 50th, 95th percentile)", percentiles, True)
    if not whole:
        return [spread]
    mean = (f"mean {name}", _mean, False)
    zeros = [(f"proportion of {name} = 0", share(0.0), False)] if np.any(y == 0) else []
    return [spread, mean, *zeros]


def _mean(values: np.ndarray) -> np.ndarray:
    return np.mean(values, axis=-1)[..., None]


def strata(fitted: NLME, by: str | None) -> list[tuple[str, np.ndarray]]:
    """Rows of each value of a column that is constant within subjects: label, (N,) of bool. Numbers of more than six values
    are parted at their median.

    Raises:
        ValueError: no such column, or it varies within a subject.
    """
    data = fitted.data_
    if by is None:
        return [("", np.ones(len(data.codes), bool))]
    if by not in data.frame.columns:
        raise ValueError(f"by={by!r} is no column of the data; they are {', '.join(map(str, data.frame.columns))}")
    values = data.frame[by].to_numpy()
    if bool(np.any(values != data.subjects[by].to_numpy()[data.codes])):
        raise ValueError(f"{by} varies within a subject or is missing; strata need a column with one value a subject")
    levels = sorted(set(values.tolist()))
    if len(levels) <= 6:
        return [(f"{by} = {level:g}" if isinstance(level, float) else f"{by} = {level}", values == level) for level in levels]
    if not np.issubdtype(values.dtype, np.number):
        raise ValueError(f"{by} has {len(levels)} categories; strata need six at most")
    middle = float(np.median(data.subjects[by].to_numpy(float)))
    return [(f"{by} <= {middle:g}", values <= middle), (f"{by} > {middle:g}", values > middle)]


def draw(axis: Axes, band: Bands) -> None:
    """Bands with their medians, and the observed statistics."""
    colours = COLOURS if band.observed.shape[1] == 3 else ("tab:blue",) * band.observed.shape[1]
    for s, colour in enumerate(colours):
        first = s == 0
        label = "simulated band" if first else None
        axis.fill_between(band.x, band.low[:, s], band.high[:, s], color=colour, alpha=0.25, lw=0, label=label, zorder=2)
        axis.plot(band.x, band.middle[:, s], color=colour, lw=0.8, label="simulated median" if first else None, zorder=3)
        line = "-" if colour == "tab:red" or len(colours) == 1 else "--"
        axis.plot(
            band.x, band.observed[:, s], "o" + line, color="black", ms=3, lw=1.2, label="observed" if first else None, zorder=4
        )


def survival_bands(
    time: np.ndarray, event: np.ndarray, simulations: np.ndarray, level: float, key: int, n_grid: int = 200
) -> Bands:
    """Kaplan-Meier curve of observed times over those of simulated times (K, n), censored like the observations."""
    grid = np.linspace(0.0, time.max(), n_grid)
    end = followed_until(time, event, np.random.default_rng(key), len(simulations))
    happened = (simulations <= end).astype(float)
    seen = np.minimum(simulations, end)
    curves = np.stack([kaplan_meier(t, e, grid) for t, e in zip(seen, happened, strict=True)])
    low, middle, high = np.quantile(curves, [0.5 - level / 2, 0.5, 0.5 + level / 2], axis=0)[:, :, None]
    return Bands(grid, kaplan_meier(time, event, grid)[:, None], low, middle, high)


def _survival(fitted: NLME, simulations: np.ndarray, groups: list, level: float, key: int, ax: AxesLike | None) -> Panels:
    data = fitted.data_
    time = data.frame[data.roles["time"]].to_numpy(float)
    # A subject's last row in time holds the event or the censoring.
    order = np.lexsort((time, data.codes))
    last = order[np.flatnonzero(np.append(np.diff(data.codes[order]) != 0, True))]
    time = time[last]
    event = (data.frame[data.roles["y"]].to_numpy(float)[last] > 0).astype(float)
    axes, figure = several(ax, len(groups), 6.0 if len(groups) == 1 else 4.6, 3.8)
    for axis, (label, rows) in zip(axes, groups, strict=True):
        group = rows[last]
        band = survival_bands(time[group], event[group], simulations[:, last[group]], level, key)
        axis.fill_between(band.x, band.low[:, 0], band.high[:, 0], color="tab:blue", alpha=0.25, lw=0, label="simulated band")
        axis.plot(band.x, band.middle[:, 0], color="tab:blue", lw=0.8, label="simulated median")
        exact = np.unique(np.concatenate([[0.0], time[group]]))
        curve = kaplan_meier(time[group], event[group], exact)
        axis.step(exact, curve, where="post", color="black", lw=1.2, label="observed")
        censored = np.unique(time[group][event[group] == 0])
        if len(censored):
            axis.plot(censored, kaplan_meier(time[group], event[group], censored), "|", color="black", ms=6, label="censored")
        axis.set(xlabel=data.roles["time"], ylabel="survival (Kaplan-Meier)", title=label, ylim=(0, 1.03))
    legend(figure, axes[0])
    headline(figure, f"Visual predictive check: {100 * level:g}% band of {len(simulations)} simulations", fontsize=11)
    return axes
