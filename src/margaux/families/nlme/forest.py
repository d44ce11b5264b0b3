"""What covariates do to individual parameters: ratios to a reference subject, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy

from ...numerics.wald import check_level
from ...showing.axes import single
from ...showing.panels import FEW
from . import intervals
from .design import occasions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .estimator import NLME

#: ratios that bioequivalence studies take for the same
SAME = (0.8, 1.25)


def covariate_effects(
    fitted: NLME,
    parameters: Sequence[str] | None = None,
    reference: Mapping[str, Any] | None = None,
    quantiles: tuple[float, float] = (0.05, 0.95),
    level: float = 0.9,
) -> pd.DataFrame:
    r"""Ratio of each parameter's typical value, one covariate at a time changed, to that of the reference subject.

    $h(c^\top\beta) / h(c_{ref}^\top\beta)$, with the interval of its logarithm by the delta method from `cov_params` and
    Student's t (of a log-normal parameter it is linear in $\beta$). Covariates of more than four values are shown at
    two quantiles over subjects, others at each value but the reference.

    Args:
        parameters: with covariates; all by default. reference: values of covariates; by default the median over subjects of
            numbers of more than four values, the commonest value of others.
        quantiles: of a covariate over subjects, or over occasions where it changes between them. level: of the intervals.

    Returns:
        A row an effect: `parameter`, `covariate`, `value`, `reference`, `ratio`, `low`, `high`.

    Raises:
        ValueError: no covariates, an unknown parameter or covariate, a parameter that is not positive, a reference value of
            another kind than the data's.

    Reference: Menon-Andersen et al., Clin. Pharmacol. Ther. 90 (2011), 471-474 (forest plots of covariates).
    """
    check_level(level)
    if not 0 <= quantiles[0] < quantiles[1] <= 1:
        raise ValueError(f"quantiles must be two increasing numbers between 0 and 1, got {quantiles}")
    with_effects = _with_covariates(fitted, parameters)
    columns = list(dict.fromkeys(column for of_one in with_effects.values() for column in of_one))
    values = {column: _observed(fitted, column) for column in columns}
    centre = {column: _centre(values[column]) for column in columns}
    for column, value in (reference or {}).items():
        if column not in centre:
            raise ValueError(f"reference names {column!r}, which is no covariate; they are {', '.join(columns)}")
        centre[column] = _of_kind(column, value, values[column])
    base = pd.DataFrame(fitted.data_.frame.iloc[:1]).assign(**centre)
    rows, changed = [], [base]
    for name, of_one in with_effects.items():
        for column in of_one:
            for value in _values(values[column], centre[column], quantiles):
                rows.append({"parameter": name, "covariate": column, "value": value, "reference": centre[column]})
                changed.append(base.assign(**{column: value}))
    design = fitted._design.on_one_occasion(pd.concat(changed, ignore_index=True))
    ends = [_ratio(fitted, row["parameter"], design[k + 1], design[0], level) for k, row in enumerate(rows)]
    return pd.DataFrame(rows).assign(**dict(zip(("ratio", "low", "high"), np.asarray(ends).T, strict=True)))


def _observed(fitted: NLME, column: str) -> pd.Series:
    """The values of a covariate, of each subject, or of each occasion where it changes between them."""
    data = fitted.data_
    constant = not np.any(data.frame[column].to_numpy() != data.subjects[column].to_numpy()[data.codes])
    return pd.Series((data.subjects if constant else occasions(data))[column].reset_index(drop=True))


def _with_covariates(fitted: NLME, asked: Sequence[str] | None) -> dict[str, list[str]]:
    """Parameters with covariates: name -> their columns."""
    import formulaic

    parse: Any = formulaic.Formula
    known = fitted.data_.frame.columns
    found = {
        name: [str(column) for column in sorted(parse(one.covariates).required_variables) if column in known]
        for name, one in fitted.model_.individual
        if one.covariates
    }
    if not found:
        raise ValueError('no parameter of this fit has covariates; give them as LogNormal(covariates="log(WT/70)")')
    if asked is None:
        return found
    if lost := [name for name in asked if name not in found]:
        raise ValueError(f"{', '.join(lost)} have no covariates in this fit; {', '.join(found)} have")
    return {name: found[name] for name in asked}


def _by_value(values: pd.Series) -> bool:
    """Whether a covariate is shown at each of its values."""
    number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    return not number or values.nunique() <= FEW


def _centre(values: pd.Series) -> Any:
    if _by_value(values):
        counts = values.value_counts()
        return min(counts.index[counts == counts.max()].tolist(), key=str)
    return float(np.median(values.to_numpy(float)))


def _values(values: pd.Series, centre: Any, quantiles: tuple[float, float]) -> list[Any]:
    if _by_value(values):
        return [value for value in sorted(set(values.tolist()), key=lambda v: (str(type(v)), v)) if value != centre]
    return np.quantile(values.to_numpy(float), quantiles).tolist()


def _of_kind(column: str, value: Any, values: pd.Series) -> Any:
    """A reference value of a covariate, checked."""
    if not _by_value(values):
        if isinstance(value, bool | str) or not np.isfinite(value):
            raise ValueError(f"reference: {column} holds numbers, got {value!r}")
        return float(value)
    if value not in set(values.tolist()):
        raise ValueError(f"reference: {column} = {value!r} is no value of the data; they are {sorted(set(values), key=str)}")
    return value


def _ratio(fitted: NLME, name: str, changed: np.ndarray, reference: np.ndarray, level: float) -> tuple[float, float, float]:
    """The ratio of one parameter between two rows of the design, and its interval."""
    model, j = fitted.model_, fitted.model_.names.index(name)
    one, own = dict(model.individual)[name], model.coefficients(j) + [len(model.owner) + k for k in model.shifts(j)]
    named = [f"beta_{name}[{fitted._design.labels[k]}]" if fitted._design.labels[k] else name for k in own]
    values = np.asarray([fitted.params_[each] for each in named])
    gaussian = np.append(float(one.gaussian(values[0])), values[1:])
    phi, centre = (float(row[own] @ gaussian) for row in (changed, reference))
    top, bottom = float(one.values(phi)), float(one.values(centre))
    if not (top > 0 and bottom > 0):
        raise ValueError(
            f"{name} is {top:.3g} and {bottom:.3g} where they are compared, and ratios are of positive parameters; choose "
            "others: parameters=[...]"
        )
    # Of log h(phi), in the natural intercept and the coefficients.
    slopes = (one.slope(phi) / top * changed[own] - one.slope(centre) / bottom * reference[own]) / np.append(
        one.slope(gaussian[0]), np.ones(len(own) - 1)
    )
    free = [k for k, each in enumerate(named) if each not in fitted.held_]
    covariance = np.zeros((len(named), len(named)))
    covariance[np.ix_(free, free)] = fitted.cov_params().loc[named, named].to_numpy(float)[np.ix_(free, free)]
    # Of what moves, the coefficient of which least is known.
    degrees = np.min([each for k, each in enumerate(_degrees(fitted, named)) if k in free and slopes[k] != 0], initial=np.inf)
    half = float(scipy.special.stdtrit(degrees, 0.5 + level / 2)) * float(np.sqrt(slopes @ covariance @ slopes))
    ratio = top / bottom
    return ratio, ratio * np.exp(-half), ratio * np.exp(half)


def _degrees(fitted: NLME, names: list[str]) -> list[float]:
    every = dict(zip(fitted.params_, intervals.degrees_of_freedom(fitted), strict=True))
    return [float(every[name]) for name in names]


def draw(frame: pd.DataFrame, level: float, ax: Axes | None) -> Axes:
    """A line an effect, from the top: its interval over the band of `SAME`, with its numbers beside it."""
    count = len(frame)
    axis = single(ax, 7.0, 0.34 * count + 1.5)
    place = np.arange(count)[::-1]
    ratio, low, high = (frame[name].to_numpy(float) for name in ("ratio", "low", "high"))
    axis.axvspan(*SAME, color="0.9", lw=0, label=f"{SAME[0]:g} to {SAME[1]:g}")
    axis.axvline(1.0, color="black", lw=0.8)
    axis.errorbar(ratio, place, xerr=[ratio - low, high - ratio], fmt="o", color="tab:blue", ms=4, lw=1.4, capsize=2,
                  label=f"ratio and {100 * level:g}% interval")  # fmt: skip
    for k, (_, row) in enumerate(frame.iterrows()):
        text = f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        axis.text(1.02, place[k], text, transform=axis.get_yaxis_transform(), va="center", fontsize=8)
    said = [(row["parameter"], row["covariate"], _said(row["value"]), _said(row["reference"])) for _, row in frame.iterrows()]
    told = [f"{name}: {column} = {value} ({reference})" for name, column, value, reference in said]
    axis.set_yticks(place, told)
    axis.set(xlabel="ratio to the reference (in brackets)", xscale="log", ylim=(-0.6, count - 0.4))
    least, most = np.nanmin(np.append(low, 0.75)), np.nanmax(np.append(high, 1.3))
    ticks = [tick for tick in (0.01, 0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0, 100.0) if least <= tick <= most]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return axis


def _said(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
