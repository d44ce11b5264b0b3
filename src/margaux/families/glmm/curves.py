r"""How the mean of the response changes with one predictor, the others held: a band by the delta method."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree
from scipy import stats

from ...numerics.precision import precision
from ...numerics.wald import check_level
from ...tables.checks import is_number, listed
from .model import fixed_effects
from .ordinal import Ordinal

if TYPE_CHECKING:
    from .estimator import GLMM

#: points of a curve
POINTS = 80
#: numbers at which a second predictor is held, by quantile, where it has more values than that
QUANTILES = (0.1, 0.5, 0.9)


class Columns(NamedTuple):
    """Predictors of the fixed effects: `levels` of those that are categories, of the others their values."""

    levels: dict[str, list[Any]]
    numbers: dict[str, np.ndarray]

    @property
    def names(self) -> list[str]:
        return [*self.numbers, *self.levels]

    def typical(self) -> dict[str, Any]:
        """Means of numbers, and the first level of categories, which is the reference."""
        return {name: float(np.mean(values)) for name, values in self.numbers.items()} | {
            name: levels[0] for name, levels in self.levels.items()
        }

    def along(self, name: str) -> list[Any]:
        """Where a curve of this predictor is computed."""
        if name in self.levels:
            return self.levels[name]
        values = self.numbers[name]
        return np.linspace(values.min(), values.max(), POINTS).tolist()

    def few(self, name: str) -> list[Any]:
        """Where this predictor is held, a curve each."""
        if name in self.levels:
            return self.levels[name]
        values = np.unique(self.numbers[name])
        return (values if len(values) <= len(QUANTILES) else np.quantile(self.numbers[name], QUANTILES)).tolist()


def predictors(model: GLMM) -> Columns:
    """The columns of the table that the fixed effects are made of."""
    recipe, table = model.design_.fixed.recipe, model.design_.table
    levels, numbers = {}, {}
    for name in recipe.used:
        if name in recipe.levels:
            levels[name] = recipe.levels[name]
            continue
        values = pd.Series(table[name])
        if not is_number(values) or _as_category(name, recipe.parts):
            levels[name] = sorted(values.unique().tolist())
        else:
            numbers[name] = values.to_numpy(float)
    return Columns(levels, numbers)


def _as_category(name: str, parts: list[Any]) -> bool:
    """Whether a column of numbers is used as one of categories, as in C(period)."""
    kinds = [one for part in parts for one in getattr(part, "components", []) if one.kind == "categoric"]
    return any(re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", str(one.name)) for one in kinds)


def effect(
    model: GLMM, predictor: str, by: str | None = None, level: float = 0.95, at: dict[str, Any] | None = None
) -> pd.DataFrame:
    r"""The mean of the response along one predictor, for a group whose random effects are zero.

    Other numbers are held at their means, other categories at their first level, the offset at its mean. With $h$ the linear
    predictor $\eta = x^\top\beta$ the interval is $h \pm z\,(\nabla h^\top V\nabla h)^{1/2}$, V the covariance of the estimates,
    taken to the scale of the response. Where the mean is no function of $\eta$ alone, as with zeros of their own, h is its
    logarithm, and of an ordinal response the logits of the probabilities of its categories.

    Args:
        by: a second predictor; a curve for each of its levels, or for three quantiles of a number. at: values of others, by name.

    Returns:
        Columns: the predictor, `by`, "category" of an ordinal response, "mean", "ci_low", "ci_high".

    Raises:
        ValueError: no such predictor, or a level that the fit does not have.

    >>> import numpy as np, pandas as pd
    >>> from margaux import GLMM
    >>> rng = np.random.default_rng(0)
    >>> g, x = np.repeat(np.arange(20), 5), rng.normal(size=100)
    >>> frame = pd.DataFrame({"y": 1 + 2 * x + rng.normal(size=20)[g] + rng.normal(size=100), "x": x, "g": g})
    >>> found = effect(GLMM("y ~ x + (1 | g)", verbose=False).fit(frame), "x")
    >>> list(found), len(found)
    (['x', 'mean', 'ci_low', 'ci_high'], 80)
    """
    check_level(level)
    columns = predictors(model)
    _check(predictor, columns, "the predictor")
    if by is not None:
        _check(by, columns, "by")
        if by == predictor:
            raise ValueError(f'by and the predictor are both "{by}"; leave by out')
    for name in at or {}:
        _check(name, columns, "at")
    held = columns.typical() | (at or {})
    values, curves = columns.along(predictor), [None] if by is None else columns.few(by)
    rows = pd.DataFrame([held | {predictor: value} | ({} if by is None else {by: one}) for one in curves for value in values])
    mean, low, high = _intervals(model, _design(model, rows, columns), level)
    shown = rows[[predictor] if by is None else [predictor, by]]
    if mean.shape[1] == 1:
        return shown.assign(mean=mean[:, 0], ci_low=low[:, 0], ci_high=high[:, 0])
    labels, count = list(model.design_.levels), len(rows)
    long = shown.loc[np.repeat(np.arange(count), len(labels))].reset_index(drop=True)
    return long.assign(category=labels * count, mean=mean.ravel(), ci_low=low.ravel(), ci_high=high.ravel())


def _check(name: str, columns: Columns, what: str) -> None:
    if name not in columns.names:
        raise ValueError(f'{what} "{name}" is none of the fixed effects; they are made of {listed(columns.names)}')


def _design(model: GLMM, rows: pd.DataFrame, columns: Columns) -> np.ndarray:
    """X of rows whose categories have the type that those of the data have."""
    table = model.design_.table
    for name in columns.levels:
        if table[name].dtype == bool:
            rows[name] = rows[name].astype(bool)
    return model.design_.fixed.new(rows)


def _intervals(model: GLMM, X: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means and ends of intervals (rows, 1), or (rows, K) of an ordinal response."""
    response, fit = model.model_.response, model.result_
    offset = float(np.mean(model.design_.offset))

    def transformed(params: Any) -> Any:
        eta = X @ fixed_effects(params) + offset
        trials = _one_each(model, eta)
        if isinstance(response, Ordinal):
            p = response.probabilities(eta, params["dispersion"])
            return jnp.log(p) - jnp.log1p(-p)
        return (jnp.log(response.mean(eta, params["dispersion"], trials)) if response.predictors else eta)[:, None]

    with precision(np.dtype(np.float64)):
        flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: np.asarray(leaf, float), fit.params))
        h = np.asarray(transformed(unravel(flat)))
        slopes = np.asarray(jax.jacfwd(lambda theta: transformed(unravel(theta)))(flat))
        # What the mean does not depend on may have a covariance that is not known.
        some = np.flatnonzero(np.any(slopes != 0, axis=(0, 1)))
        covariance = fit.cov_params().to_numpy(float)[np.ix_(some, some)]
        half = stats.norm.ppf((1 + level) / 2) * np.sqrt(
            np.einsum("rki,ij,rkj->rk", slopes[:, :, some], covariance, slopes[:, :, some])
        )

        def back(values: np.ndarray) -> np.ndarray:
            if isinstance(response, Ordinal):
                return np.asarray(jax.nn.sigmoid(values))
            if response.predictors:
                return np.exp(values)
            eta = jnp.asarray(values[:, 0])
            return np.asarray(response.mean(eta, fit.params["dispersion"], _one_each(model, eta)))[:, None]

        ends = np.sort(np.stack([back(h - half), back(h + half)]), axis=0)
        return back(h), ends[0], ends[1]


def _one_each(model: GLMM, eta: Any) -> Any:
    """Trials of new rows: their mean is a share."""
    return None if model.design_.trials is None else jnp.ones_like(eta)
