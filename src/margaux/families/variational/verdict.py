r"""How far the highest ELBO is from a fitted posterior, and the way there from one layer.

The ELBO is that of `bound`: by quadrature where an observation depends on one Gaussian number, otherwise by scrambled Sobol
points that the fit has not seen, in replicates whose spread is the error. Newton's step of all of its parameters is measured in
posterior standard deviations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ...answers.certificate import Certificate, Check, Level
from ...answers.fit import Fit
from ...numerics.compiling import compiled
from ...numerics.precision import precision, settle
from ...showing.parts import check_fitted
from .bound import FEW, LEAST, MOST, NODES, REPLICATES, Bound, _at_draws, _by_quadrature, _nodes, _sobol, one_dimensional
from .model import Variational
from .stationarity import Stationarity, stationarity
from .watching import FELL

#: posterior standard deviations that a mean may be off, and from which on the estimate is nowhere; the share that a standard
#: deviation may be off
AT_MAXIMUM, FAR_AWAY, SPREAD = 0.2, 1.0, 0.08
#: the largest error of an ELBO
LARGE_ERROR = 0.1
#: what a fit says whose last steps were Newton's
MAXIMUM = "The ELBO is at a maximum."
#: numbers that second derivatives may take
AFFORDABLE = 200_000_000
#: Newton steps at most, their length in posterior standard deviations at first and where they end
STEPS, RADIUS, SHORT = 60, 3.0, 1e-3


class Distance(NamedTuple):
    """Newton's step from a posterior to the highest ELBO.

    Attributes:
        params: where it begins. means: of the mean that moves most, in its standard deviations, and spread: of the standard
            deviation that changes most, as a share; both with Monte Carlo errors. positive: whether minus the ELBO is convex.
    """

    params: dict[str, PyTree]
    means: tuple[float, float]
    spread: tuple[float, float]
    positive: bool


class _Objective:
    """Minus the ELBO over flat parameters, its gradient by replicate, and its Hessian."""

    def __init__(self, model: Variational, params: dict[str, PyTree], x: PyTree, y: Array | np.ndarray, z: np.ndarray) -> None:
        def as_array(leaf):
            return jnp.asarray(leaf, float if np.issubdtype(np.asarray(leaf).dtype, np.floating) else None)

        self.model, self.params = settle(model, np.dtype(float)), jax.tree.map(as_array, params)
        self.data = jax.tree.map(as_array, (x, np.asarray(y)))
        self.z, self.nodes = as_array(z), tuple(map(as_array, _nodes()))
        self.flat, self.back = ravel_pytree(self.params)

    def at(self, flat: Array | np.ndarray) -> tuple[float, np.ndarray]:
        value, gradients = _slopes(self.model, self.params, jnp.asarray(flat), *self.data, self.z, self.nodes)
        return float(value), np.asarray(gradients)

    def hessian(self, flat: Array | np.ndarray) -> np.ndarray:
        return np.asarray(_curvature(self.model, self.params, jnp.asarray(flat), *self.data, self.z, self.nodes))

    def log_sigma(self, flat: Array | np.ndarray) -> np.ndarray:
        """Of every weight."""
        params = self.back(jnp.asarray(flat))
        deviations = self.model.posterior.sigma(params)
        spread = jax.tree.map(lambda s, m: jnp.broadcast_to(jnp.log(s), m.shape), deviations, params["mean"])
        return np.asarray(ravel_pytree(spread)[0])

    def moves(self, flat: Array | np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the means, in standard deviations, and of the logarithms of these."""
        log_sigma, mean = self.log_sigma(flat), ravel_pytree(self.back(jnp.asarray(step))["mean"])[0]
        return np.asarray(mean) / np.exp(log_sigma), self.log_sigma(flat + step) - log_sigma


def _total(model: Variational, params: dict[str, PyTree], x: PyTree, y: Array | np.ndarray, z: Array, nodes: tuple) -> Array:
    """Minus the ELBO by the points z (draws, size)."""
    if not one_dimensional(model):
        return -jnp.mean(jnp.sum(_at_draws(model, params, x, y, z), axis=1))
    natural, back = model.natural(params), ravel_pytree(params["mean"])[1]

    def divergence(one):
        return model.temperature * model.prior.divergence(model.posterior, natural, back(one))

    return jnp.mean(jax.lax.map(divergence, z)) - _by_quadrature(model, params, x, y, *nodes)


@compiled
def _slopes(
    model: Variational,
    params: dict[str, PyTree],
    flat: Array,
    x: PyTree,
    y: Array | np.ndarray,
    z: Array,
    nodes: tuple,
) -> tuple[Array, Array]:
    back = ravel_pytree(params)[1]
    one = jax.value_and_grad(lambda flat, z: _total(model, back(flat), x, y, z, nodes))

    # Point by point: what the gradient of a mean over all of them would have to keep is large.
    def each(z):
        return jax.tree.map(lambda part: jnp.mean(part, axis=0), jax.lax.map(lambda row: one(flat, row[None]), z))

    values, gradients = jax.lax.map(each, z)
    return jnp.mean(values), gradients


@compiled
def _curvature(
    model: Variational,
    params: dict[str, PyTree],
    flat: Array,
    x: PyTree,
    y: Array | np.ndarray,
    z: Array,
    nodes: tuple,
) -> Array:
    back, rows = ravel_pytree(params)[1], z.reshape(-1, z.shape[-1])
    slope = jax.grad(lambda flat, row: _total(model, back(flat), x, y, row[None], nodes))

    def column(along: Array) -> Array:
        def own(row):
            return jax.jvp(lambda flat: slope(flat, row), (flat,), (along,))[1]

        return jnp.mean(jax.lax.map(own, rows), axis=0)

    found = jax.lax.map(column, jnp.eye(flat.size, dtype=flat.dtype))
    return (found + found.T) / 2


def _objective(model: Variational, params: dict[str, PyTree], x: PyTree, y: np.ndarray, key: int) -> _Objective | None:
    """None where it would take too long."""
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(params["mean"]))
    count = sum(np.size(leaf) for leaf in jax.tree.leaves(params))
    entries = max(len(y) * size, sum(np.size(leaf) for leaf in jax.tree.leaves(x)), 1) * count
    exact = one_dimensional(model)
    if exact and not model.prior.by_draws:
        return _Objective(model, params, x, y, np.zeros((1, 1, size))) if NODES * entries <= AFFORDABLE else None
    entries = entries * NODES if exact else entries
    pairs = min(MOST, 2 ** int(np.log2(max(AFFORDABLE // (2 * REPLICATES * entries), 1))))
    if size > FEW or pairs < LEAST:
        return None
    return _Objective(model, params, x, y, _sobol(size, pairs, key).reshape(REPLICATES, -1, size))


def _newton(hessian: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, bool]:
    """Steps (replicates, k), by the absolute eigenvalues, and whether all are positive."""
    values, vectors = np.linalg.eigh(hessian)
    size = np.maximum(np.abs(values), 1e-12 * np.abs(values).max())
    return -(gradients @ vectors / size) @ vectors.T, bool(values[0] > 0)


def _distance(one: _Objective, flat: np.ndarray, gradients: np.ndarray, hessian: np.ndarray) -> Distance:
    steps, positive = _newton(hessian, gradients)
    means, spread = one.moves(flat, steps.mean(axis=0))
    errors = [np.zeros_like(means), np.zeros_like(spread)]
    if len(steps) > 1:
        moves = [one.moves(flat, step) for step in steps]
        errors = [np.std([move[i] for move in moves], axis=0, ddof=1) / np.sqrt(len(steps)) for i in (0, 1)]
    worst = [int(np.argmax(np.abs(part) + 2 * error)) for part, error in zip((means, spread), errors, strict=True)]
    figures = [(float(np.abs(part[j])), float(error[j])) for part, error, j in zip((means, spread), errors, worst, strict=True)]
    return Distance(jax.tree.map(np.asarray, one.back(jnp.asarray(flat))), figures[0], figures[1], positive)


def distance(model: Variational, params: dict[str, PyTree], x: PyTree, y: np.ndarray, key: int = 1) -> Distance | None:
    """From a posterior to the highest ELBO; None where weights or observations are too many to tell."""
    with precision(np.dtype(float)):
        one = _objective(model, params, x, y, key)
        if one is None:
            return None
        flat = np.asarray(one.flat)
        gradients, hessian = one.at(flat)[1], one.hessian(flat)
        if not (np.all(np.isfinite(gradients)) and np.all(np.isfinite(hessian))):
            return Distance(params, (np.inf, 0.0), (np.inf, 0.0), False)
        return _distance(one, flat, gradients, hessian)


def climbed(model: Variational, params: dict[str, PyTree], x: PyTree, y: np.ndarray, key: int = 2) -> dict[str, PyTree]:
    """The parameters of the highest ELBO near these, by Newton's steps where an observation depends on one Gaussian number; these
    otherwise, and where it would take too long."""
    if not one_dimensional(model) or model.prior.by_draws:
        return params
    with precision(np.dtype(float)):
        one = _objective(model, params, x, y, key)
        if one is None:
            return params
        flat, radius = np.asarray(one.flat), RADIUS
        value, gradients = one.at(flat)
        hessian = one.hessian(flat) if np.all(np.isfinite(gradients)) else None
        for _ in range(STEPS):
            if hessian is None or not np.all(np.isfinite(hessian)):
                return params
            step = _newton(hessian, gradients)[0].mean(axis=0)
            length = float(max(np.abs(part).max() for part in one.moves(flat, step)))
            share = min(1.0, radius / max(length, 1e-300))
            there, slopes = one.at(flat + share * step)
            if not (np.all(np.isfinite(slopes)) and there < value + 1e-9 * abs(value)):
                radius = share * length / 4
                if radius < SHORT:
                    break
                continue
            flat, value, gradients, radius = flat + share * step, there, slopes, max(radius, 3 * share * length)
            if length < SHORT:
                break
            hessian = one.hessian(flat)
        return jax.tree.map(np.asarray, one.back(jnp.asarray(flat)))


def certificate(fit: Fit, message: str, converged: bool, away: Distance | Stationarity | None, elbo: Bound | None) -> Certificate:
    """Of a posterior: how its fit ended, whether the ELBO is at its highest, and what its error is.

    Args:
        message, converged: of the fit. away: None where it is not known. elbo: None where the data are not there.
    """
    nan = float("nan")
    if fit.result.failed or message == FELL:
        return Certificate((Check("result", nan, nan, nan, "failed", f"{message.rstrip('.')}."),))
    gradient = _gradient(away)
    level: Level = "pass" if converged or gradient.level == "pass" else "careful"
    out = Certificate((Check("result", nan, nan, nan, level, f"{message.rstrip('.')}."), gradient))
    if elbo is None:
        return out
    level = "pass" if elbo.se <= LARGE_ERROR else "careful"
    said = f"The ELBO is {float(elbo):.3f} by {elbo.method}, with an error of {elbo.se:.2g}."
    return out.and_also(Check("elbo", float(elbo), elbo.se, LARGE_ERROR, level, said))


def _gradient(away: Distance | Stationarity | None) -> Check:
    nan = float("nan")
    if isinstance(away, Stationarity):
        (means, error), (spread, blur) = away
        ended = means + 2 * error < AT_MAXIMUM and abs(spread) + 2 * blur < SPREAD
        how = "large" if spread > 0 else "small"
        said = (
            f"The ELBO is stationary {means:.2g} posterior standard deviations away (root mean square over the means, error "
            f"{error:.2g}), and these deviations are {100 * abs(spread):.2g}% too {how} on average"
        )
        said += "." if ended else ": raise epochs= to come closer."
        return Check("gradient", means, error, AT_MAXIMUM, "pass" if ended else "careful", said)
    if away is None:
        said = "How far the highest ELBO is was not asked: there are too many weights or observations, or the data are not kept."
        return Check("gradient", nan, nan, AT_MAXIMUM, "careful", said)
    (means, error), (spread, blur) = away.means, away.spread
    if not np.isfinite(means):
        return Check("gradient", means, error, AT_MAXIMUM, "failed", "The gradient of the ELBO is not finite at the estimate.")
    if not away.positive:
        said = "The ELBO curves upwards at the estimate, which is at no maximum of it: raise epochs=, or begin elsewhere."
        return Check("gradient", means, error, AT_MAXIMUM, "careful", said)
    if means + 2 * error < AT_MAXIMUM and spread + 2 * blur < SPREAD:
        return Check("gradient", means, error, AT_MAXIMUM, "pass", MAXIMUM)
    said = (
        f"The highest ELBO is elsewhere: means are up to {means:.2g} posterior standard deviations from it (error "
        f"{error:.2g}), and these deviations up to {100 * spread:.2g}%: raise epochs=, or n_draws=."
    )
    return Check("gradient", means, error, AT_MAXIMUM, "failed" if means > FAR_AWAY + 2 * error else "careful", said)


class Judged:
    """The certificate of an estimator of weights."""

    result_: Fit
    elbo_: Any
    _certificate: Certificate | None

    @property
    def certificate_(self) -> Certificate:
        """Whether the ELBO is at its highest, and with what error it is known; computed when first asked for. Where weights and
        observations are too many for second derivatives it is told by scores (`margaux.families.variational.stationarity`), and
        where they are too many for these it says that it does not know."""
        check_fitted(self)
        me: Any = self
        if self.result_ is None or me._data is None:
            said = "The estimator was loaded without its data."
            return Certificate((Check("result", float("nan"), float("nan"), float("nan"), "careful", said),))
        if self._certificate is None:
            x, y = me._scaled(me._data[0]), me._data[1]
            failed = self.result_.result.failed or me.message_ == FELL
            away = None if failed else distance(me._model, me._params, x, y)
            elbo = None if away is None else self.elbo_
            if away is None and not failed:
                away = stationarity(me._model, me._params, x, y, me._dtype)
            self._certificate = certificate(self.result_, me.message_, me.converged_, away, elbo)
        return self._certificate

    def diagnostics(self) -> pd.DataFrame:
        """What was looked at, a row a check: figure, Monte Carlo error, threshold, level and a sentence."""
        return self.certificate_.table()

    @property
    def _at_maximum(self) -> bool:
        """Whether the ELBO is known to be at a maximum."""
        found = self.certificate_
        return "gradient" in found and found["gradient"].level == "pass"
