"""The observed likelihood of a table over free coordinates, its maximum and its information."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from ...engine.share import ALONE, Share
from ...numerics.compiling import compiled
from .blocks import dealt, each, padded, summed
from .completed import Completions
from .coordinates import Struct
from .exact import Moments, moments, score
from .families import AbstractFamily, Gaussian
from .information import sums, total
from .observed import Groups, Params, Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from .multinomial import Multinomial


#: Newton steps at most; the step, in standard errors, below which an estimate is at the maximum
NEWTON, NEAR = 50, 1e-7
#: a step, in standard errors, so short that the information is what it was
SHORT = 1e-3
#: climbs from random starts where the likelihood may have several maxima, and how near two log-likelihoods are the same
STARTS, CLOSE = 3, 0.05
#: value of an objective that is not finite
UNDEFINED = 1e10
#: rows times coordinates from which the information is worked out in closed form, and columns up to which it can be
MANY, WIDEST = 500_000, 64
#: share of the blocks that a climb begins with, one in so many; rows a coordinate that these must have; the smallest eigenvalue
#: of their information that is gone by, as a share of the largest
SAMPLED, ROOM, LEAST = 8, 4, 1e-8
#: rows whose scores are computed at a time
BLOCK = 4096


class Sample(NamedTuple):
    """Rows of a likelihood, and of which rows they are the completions where covariates are discrete."""

    rows: Rows
    completions: Completions | None = None


@compiled
def outcomes(family: AbstractFamily | Multinomial, groups: Groups, params: Params, sample: Sample) -> tuple[Array, Array, Array]:
    """Of each (completed) row the mean and variance of its predictor given the observed covariates, and log p(y | x_o)."""
    rows, completions = sample
    wide = params if completions is None else completions.widened(params)

    def of(rows: Rows) -> tuple[Array, Array, Array]:
        found = moments(family, groups, wide, rows)[0]
        return found.predictor, found.variance, found.log_outcome

    return each(of, rows, groups)


def log_densities(
    family: AbstractFamily | Multinomial, groups: Groups, params: Params, sample: Sample
) -> tuple[Moments, Array, Array]:
    """Of each (completed) row its moments, log p(y, x_o, d), and log p(x_o, d)."""
    rows, completions = sample
    per_row = moments(family, groups, params if completions is None else completions.widened(params), rows)[0]
    before = per_row.log_x if completions is None else per_row.log_x + completions.log_prior(params["cells"])
    return per_row, before + per_row.log_outcome, before


def _per_row(sample: Sample, logs: Array) -> Array:
    """Summed over what is discrete and missing."""
    return logs if sample.completions is None else sample.completions.gather(logs)[0]


def _weights(sample: Sample) -> Array:
    rows, completions = sample
    if completions is None:
        return rows.weights
    return jax.ops.segment_max(rows.weights, completions.owner, len(completions.design))


@compiled
def value_and_gradient(
    family: AbstractFamily | Multinomial, groups: tuple, struct: Struct, flat: Array, sample: Sample
) -> tuple[Array, Array]:
    """Observed log-likelihood and its gradient in the free coordinates."""
    rows, completions = sample
    params, back = jax.vjp(struct.natural, flat)
    if completions is None:

        def of(rows: Rows) -> tuple[Array, Params]:
            per_row, covariance = moments(family, groups, params, rows)
            return rows.weights @ (per_row.log_outcome + per_row.log_x), score(family, params, rows, per_row, covariance)

        value, slope = summed(of, rows, groups)
        return value, back(slope)[0]
    wide, narrow = jax.vjp(completions.widened, params)
    per_row, logs, _ = log_densities(family, groups, params, sample)
    values, share = completions.gather(logs)
    shared = rows._replace(weights=rows.weights * share)
    covariance = moments(family, groups, wide, shared)[1]
    slope = narrow(score(family, wide, shared, per_row, covariance))[0]
    prior = jax.grad(lambda gamma: shared.weights @ completions.log_prior(gamma))(params["cells"])
    return shared.weights @ values[completions.owner], back(slope | {"cells": prior})[0]


@compiled
def _information(family: AbstractFamily | Multinomial, groups: Groups, struct: Struct, flat: Array, rows: Rows) -> Array:
    params = struct.natural(flat)
    return total(struct, flat, summed(lambda block: sums(family, groups, params, block), rows, groups))


@compiled
def _log_outcome(family: AbstractFamily | Multinomial, groups: Groups, struct: Struct, flat: Array, sample: Sample) -> Array:
    params = struct.natural(flat)
    if sample.completions is None:
        return summed(lambda rows: rows.weights @ moments(family, groups, params, rows)[0].log_outcome, sample.rows, groups)
    _, after, before = log_densities(family, groups, params, sample)
    return _weights(sample) @ (_per_row(sample, after) - _per_row(sample, before))


@compiled
def _scores(family: AbstractFamily | Multinomial, struct: Struct, flat: Array, sample: Sample) -> Array:
    """Gradients of the rows one by one, (n, size), each as it counts in the sum."""
    rows, completions = sample
    params, back = jax.vjp(struct.natural, flat)
    wide, narrow = (params, lambda slope: (slope,)) if completions is None else jax.vjp(completions.widened, params)
    share = jnp.ones_like(rows.y)
    if completions is not None:
        share = completions.gather(log_densities(family, ((len(rows.y), rows.places.shape[1]),), params, sample)[1])[1]

    def of(row: Rows, share: Array, at: Array) -> Array:
        one = jax.tree.map(lambda leaf: leaf[None], row._replace(weights=row.weights * share))
        per_row, covariance = moments(family, ((1, row.places.shape[0]),), wide, one)
        slope = narrow(score(family, wide, one, per_row, covariance))[0]
        if completions is not None:
            prior = completions.log_prior
            slope |= {"cells": jax.grad(lambda gamma: prior(gamma)[at] * one.weights[0])(params["cells"])}
        return back(slope)[0]

    slopes = jax.lax.map(lambda args: of(*args), (rows, share, jnp.arange(len(rows.y))), batch_size=BLOCK)
    return slopes if completions is None else jax.ops.segment_sum(slopes, completions.owner, len(completions.design))


class Maximum(NamedTuple):
    """A polished fit: parameters, log-likelihood, iterations, and the largest entry of the gradient over the rows."""

    params: Params
    loglik: float
    n_iter: int
    gradient: float


class Likelihood:
    r"""The observed log-likelihood of some rows over the free coordinates, those of coefficients left out held at zero.

    Args:
        family: an `AbstractFamily`, or `multinomial.Multinomial`. completions: of rows with discrete covariates.
        dropped: positions of beta, row by row, that are zero. share: of several processes, each of which is given all rows and
            visits some; those with completions are visited by every process.
    """

    def __init__(
        self,
        family: AbstractFamily | Multinomial,
        rows: Rows,
        groups: tuple,
        dropped: tuple[int, ...] = (),
        completions: Completions | None = None,
        share: Share = ALONE,
    ) -> None:
        self.family, self.groups, self.share = family, groups, ALONE if completions is not None else share
        lead = () if isinstance(family, AbstractFamily) else (family.n_classes - 1,)
        k, p = rows.c.shape[1], rows.x.shape[1]
        more: dict[str, int] = {}
        if completions is not None:
            k, wide = completions.designs.shape[1], k
            more = {"s": completions.turn.shape[1] - k - p, "w": wide - k, "m": completions.features.shape[1]}
        self.struct = Struct(k, p, isinstance(family, Gaussian), lead, **more)
        self.y, self.weights = np.asarray(rows.y), np.asarray(rows.weights)
        self.turn = self.place = np.arange(len(rows.y))
        if completions is None:
            rows, groups, self.turn = dealt(rows, groups, self.share)
            rows, self.groups, self.place = padded(rows, groups)
        self.sample = jax.tree.map(jax.device_put, Sample(rows, completions))
        self.size = float(self.share.summed(np.sum(np.asarray(_weights(self.sample)))))
        self.free = np.setdiff1d(np.arange(self.struct.size), np.asarray(dropped, int))
        #: whether the information is that in closed form
        self.closed = completions is None and len(self.y) * self.struct.size > MANY and p <= WIDEST

    @property
    def data(self) -> Rows:
        """The (completed) rows of this process, with those that fill them up."""
        return self.sample.rows

    def of_all(self, values: Any) -> np.ndarray:
        """Of an array with an entry for each row of `data` the entries of all rows that were given, in their order."""
        own = self.share.joined(np.asarray(values)[self.place])
        out = np.empty_like(own)
        out[self.turn] = own
        return out

    def outcomes(self, params: Params) -> tuple[np.ndarray, ...]:
        """Of each (completed) row the mean and variance of its predictor, and log p(y | x_o)."""
        return tuple(map(self.of_all, outcomes(self.family, self.groups, params, self.sample)))

    def without(self, dropped: tuple[int, ...]) -> Likelihood:
        """The same with other positions of beta at zero."""
        out = copy.copy(self)
        out.free = np.setdiff1d(np.arange(self.struct.size), np.asarray(dropped, int))
        return out

    def sampled(self) -> Likelihood | None:
        """That of some blocks of the rows, of a large table."""
        length = sum(count for count, _ in self.groups)
        blocks = -(-(int(self.place.max()) + 1) // length)
        some = max(blocks // SAMPLED, -(-ROOM * self.struct.size // length))
        if not self.closed or self.share.largest(2 * some > blocks):
            return None
        out, weights = copy.copy(self), np.array(self.data.weights)
        weights[some * length :] = 0.0
        out.sample = Sample(self.data._replace(weights=jax.device_put(weights)))
        out.size = float(self.share.summed(weights.sum()))
        return out

    def pack(self, params: Params) -> np.ndarray:
        """Free coordinates of parameters."""
        return self.struct.pack(params)[self.free]

    def whole(self, flat: np.ndarray) -> np.ndarray:
        """All coordinates."""
        out = np.zeros(self.struct.size)
        out[self.free] = flat
        return out

    def objective(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the log-likelihood a row, and its gradient; a large number where it is not finite."""
        value, gradient = value_and_gradient(self.family, self.groups, self.struct, self.whole(flat), self.sample)
        value, gradient = self.share.summed((value, gradient))
        value, gradient = float(value), np.asarray(gradient)[self.free]
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return UNDEFINED, np.zeros_like(flat)
        return -value / self.size, -gradient / self.size

    def log_outcome(self, flat: np.ndarray) -> float:
        """log p(y | x_o), without the covariates' part."""
        own = _log_outcome(self.family, self.groups, self.struct, jnp.asarray(self.whole(flat)), self.sample)
        return float(self.share.summed(own))

    def scores(self, flat: np.ndarray) -> Float[np.ndarray, "n f"]:
        """Gradient of each row's part of the log-likelihood, weight included."""
        found = np.asarray(_scores(self.family, self.struct, jnp.asarray(self.whole(flat)), self.sample))[:, self.free]
        return self.of_all(found) if self.sample.completions is None else found

    def information(self, flat: np.ndarray, h: float = 1e-5) -> np.ndarray:
        """Observed information: in closed form, or of small tables, whose visits cost less than another program, by forward
        differences of the exact score."""
        if self.closed:
            found = _information(self.family, self.groups, self.struct, jnp.asarray(self.whole(flat)), self.data)
            return np.asarray(self.share.summed(found))[np.ix_(self.free, self.free)]
        _, here = self.objective(flat)
        columns = [(self.objective(flat + h * unit)[1] - here) / h for unit in np.eye(len(flat))]
        matrix = self.size * np.stack(columns)
        return (matrix + matrix.T) / 2

    def climb(
        self, start: Params, max_iter: int = 1000, callback: Callable[..., Any] | None = None
    ) -> tuple[np.ndarray, float, int]:
        """L-BFGS: free coordinates, log-likelihood, iterations.

        Of a large table it is done on some blocks of rows first; from there on all are visited, in coordinates in which the
        information of those is the identity, so that few visits are left.
        """
        origin, turn = self.pack(start), None
        some = self.sampled()
        if some is not None and some.size > 0:
            origin = some._descend(origin, None, max_iter, None)[0]
            values, vectors = np.linalg.eigh(some.information(origin) / some.size)
            turn = vectors / np.sqrt(np.maximum(np.abs(values), LEAST * np.abs(values).max()))
        flat, value, n_iter = self._descend(origin, turn, max_iter, callback)
        return flat, -value * self.size, n_iter

    def _descend(
        self, origin: np.ndarray, turn: np.ndarray | None, max_iter: int, callback: Callable[..., Any] | None
    ) -> tuple[np.ndarray, float, int]:
        """Free coordinates, objective, iterations; steps are taken in coordinates u of origin + turn u, where there is a turn."""

        def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
            if turn is None:
                return self.objective(u)
            value, slope = self.objective(origin + turn @ u)
            return value, turn.T @ slope

        found = scipy.optimize.minimize(
            objective,
            origin if turn is None else np.zeros_like(origin),
            jac=True,
            method="L-BFGS-B",
            callback=callback,
            options={"maxiter": max_iter, "maxcor": 30, "ftol": 1e-12 if turn is None else 1e-15, "gtol": 1e-8},
        )
        return found.x if turn is None else origin + turn @ found.x, float(found.fun), int(found.nit)

    def maximise(
        self, start: Params, max_iter: int = 1000, callback: Callable[..., Any] | None = None
    ) -> tuple[Maximum, np.ndarray]:
        """L-BFGS, polished; and the observed information there."""
        flat, _, n_iter = self.climb(start, max_iter, callback)
        flat, information, more = self.polish(flat)
        value, gradient = self.objective(flat)
        params = self.struct.params(self.whole(flat))
        found = Maximum(params, -value * self.size, n_iter + more, float(np.abs(gradient).max()))
        return found, information

    def elsewhere(self, start: Params, flat: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The best of this and of climbs from random starts, and the log-likelihoods that those reach.

        Where few rows are complete the likelihood may have several maxima: they begin from coefficients and correlations drawn at
        random.
        """
        rng, values = np.random.default_rng(seed), []
        best = self.objective(flat)[0]
        for _ in range(STARTS):
            p = self.struct.p
            factors = rng.normal(size=(p, 2))
            covariance = factors @ factors.T + np.eye(p)
            scale = np.sqrt(np.diagonal(covariance))
            beta = start["beta"] + rng.normal(size=np.shape(start["beta"]))
            other, _, _ = self.climb(start | {"beta": beta, "covariance": covariance / np.outer(scale, scale)}, 200)
            value = self.objective(other)[0]
            if value < best - CLOSE / self.size:
                flat, _, _ = self.polish(other)
                best = value = self.objective(flat)[0]
            values.append(-value * self.size)
        return flat, np.array(values)

    def polish(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        r"""Newton steps to the maximum: where it is, the information there (within a step of `SHORT`), and how many.

        A step is $|I|^{-1}g$, with the absolute eigenvalues of the information, no longer than a radius in their metric: where
        the information is indefinite it leaves the saddle. The radius grows with steps that raise the likelihood.
        """
        value, gradient = self.objective(flat)
        information, n_iter, radius = self.information(flat), 0, 3.0
        step, length = newton_step(information, self.size * gradient)
        while length > NEAR and n_iter < NEWTON:
            share = min(1.0, radius / length)
            there, slope = self.objective(flat - share * step)
            # The last steps change the likelihood by less than its rounding, and are known by the gradient.
            better = there < value or (length < SHORT and np.abs(slope).max() < np.abs(gradient).max())
            if not better:
                radius = share * length / 4
                if radius < max(NEAR, length / 1e6):
                    break
                continue
            radius, n_iter = min(100.0, max(radius, 3 * share * length)), n_iter + 1
            flat, value, gradient = flat - share * step, there, slope
            if share * length > SHORT:
                information = self.information(flat)
            step, length = newton_step(information, self.size * gradient)
        return flat, information, n_iter


def newton_step(information: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, float]:
    """|I|^-1 g and its length in the metric |I|, by the absolute eigenvalues."""
    values, vectors = np.linalg.eigh(information)
    along = vectors.T @ gradient
    values = np.maximum(np.abs(values), 1e-12 * np.abs(values).max())
    return vectors @ (along / values), float(np.sqrt(np.sum(along**2 / values)))


def start(family: AbstractFamily | Multinomial, rows: Rows, completions: Completions | None = None) -> Params:
    """Where to begin with standardised covariates: no slopes, and intercepts that suit the outcome's mean or shares."""
    k, p = rows.c.shape[1], rows.x.shape[1]
    out: Params = {"mean": np.zeros((k, p)), "covariance": np.eye(p)}
    if completions is not None:
        k = completions.designs.shape[1]
        out["cells"] = np.zeros((k, completions.features.shape[1]))
    size = k + p if completions is None else completions.turn.shape[1]
    if isinstance(family, AbstractFamily):
        out["beta"] = np.zeros(size)
        out["beta"][0] = family.link(float(np.average(rows.y, weights=rows.weights)))
    else:
        out["beta"] = np.zeros((family.n_classes - 1, size))
        shares = np.bincount(np.asarray(rows.y, int), rows.weights, family.n_classes)
        out["beta"][:, 0] = np.log(shares[1:] / shares[0])
    return out | ({"scale": np.asarray(np.var(rows.y))} if isinstance(family, Gaussian) else {})
