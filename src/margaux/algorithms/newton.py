"""Newton's method on the marginal likelihood, where the E-step is exact, or held to the same draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from .average import AbstractAverage
from .base import summed
from .climbing import AbstractClimb, better, led_to, traced
from .objective import coordinates, curvature, penalised

if TYPE_CHECKING:
    import numpy as np

#: parameters up to which second derivatives are taken
LARGEST = 100
#: share of the promised rise below which a step is taken back, and above which the region grows; and by what it shrinks
POOR, GOOD, SHRINK = 1e-4, 0.75, 0.25
#: rise, as a share of the log-likelihood, that is rounding; least eigenvalue of the scaled information that is positive
ROUNDING, POSITIVE = 1e-12, 1e-8
#: promised rise below which a step is judged by the slope where it ends: the likelihood's own noise may hide it
FAINT = 1e-2
#: what a coordinate may move in a step, beside its own size
LEAP = 2.0


class _Point(NamedTuple):
    """The best place so far in unconstrained coordinates: objective, gradient, the matrix of its steps, how far these may go in
    the metric of that; what the step that is being tried promises, how long it is, and how long it would have been (minus
    infinity before the first)."""

    u: Float[Array, " k"]
    value: Array
    gradient: Float[Array, " k"]
    matrix: Float[Array, "k k"]
    radius: Array
    promised: Array
    tried: Array
    length: Array


class Newton(AbstractClimb):
    r"""Trust-region Newton steps on $\log p(y\mid\theta) - g(\theta)$ in the unconstrained coordinates u of $\Theta$.

    With Fisher's identity $s_i = E[\nabla_u\log p(y_i, z_i\mid\theta)\mid y_i]$ the step is $|M|^{-1}\sum_is_i$, where M is
    Louis' information $\sum_i E[-\nabla^2_u] - E[\nabla_u\nabla_u^\top] + s_is_i^\top$, of which far away eigenvalues may be
    negative taken by their modulus (Dauphin et al. 2014, section 4). It is held to a region
    $\delta^\top|M|\delta\le r^2$: a step that does not raise the likelihood is taken back, and the region shrinks (Nocedal and
    Wright 2006, algorithm 4.1).
    The trace "newton" is the length $\sqrt{s^\top|M|^{-1}s}$ of what is left, in standard errors.

    Args:
        radius: r at first.
    """

    radius: Array | np.ndarray
    average: AbstractAverage

    def init(self, problem, params, per_unit):
        u, _ = ravel_pytree(problem.space.to_unconstrained(params))
        if u.size > LARGEST:
            raise ValueError(
                f"Newton's steps take second derivatives in {u.size} parameters, and at most {LARGEST}; use margaux.lbfgs"
            )
        zero = jnp.zeros((), u.dtype)
        nowhere = jnp.full((), -jnp.inf, u.dtype)
        return _Point(u, nowhere, 0 * u, jnp.eye(u.size, dtype=u.dtype), zero + self.radius, zero, zero, nowhere)

    def step(self, problem, estep, params, state, visit):
        last_rows, own_rows = visit.rows
        b = visit.size(problem)
        flat, back = coordinates(problem, params)
        best: _Point = state

        (scores, louis), estep_rows, info = curvature(problem, estep, visit, params, flat, back)
        (score, louis), info = summed((jnp.sum(scores, axis=0), louis), info, visit.axis)
        value, gradient, bent = penalised(problem, back, flat)
        value, gradient = info["log_marginal"] - value, score - gradient
        matrix = (louis + louis.T) / 2 + bent

        gained = value - best.value
        first = best.length < 0
        risen = gained >= POOR * best.promised - ROUNDING * jnp.abs(best.value)
        calmer = (best.promised < FAINT) & (_length(best.matrix, gradient) < best.length)
        taken = first | (jnp.isfinite(value) & (risen | calmer))
        grown = jnp.where(~first & (gained > GOOD * best.promised), 2 * best.radius, best.radius)
        region = jnp.where(taken, grown, SHRINK * best.tried)
        now = _Point(flat, value, gradient, matrix, region, best.promised, best.tried, best.length)
        now = better(taken, now, best._replace(radius=region))
        # Modes are followed from where the search is: at a place that it left they may have been lost.
        estep_rows = better(taken, estep_rows, last_rows)
        step, promised, tried, length = _step(now)
        now = now._replace(promised=promised, tried=tried, length=length)
        figures = traced(info, b, value, first, now.value, length)
        return led_to(params, now.u + step, back), now, (estep_rows, own_rows), figures


def _length(matrix: Array, gradient: Array) -> Array:
    """Of Newton's step, in the metric of its matrix."""
    values, vectors, scale = _scaled(matrix)
    return jnp.sqrt(jnp.sum((vectors.T @ (gradient / scale)) ** 2 / values))


def _scaled(matrix: Array) -> tuple[Array, Array, Array]:
    """Eigenvalues, by their modulus and with a floor, and eigenvectors on a common scale of the coordinates; and that scale."""
    scale = jnp.sqrt(jnp.maximum(jnp.abs(jnp.diagonal(matrix)), jnp.finfo(matrix.dtype).tiny))
    values, vectors = jnp.linalg.eigh(matrix / jnp.outer(scale, scale))
    return jnp.maximum(jnp.abs(values), POSITIVE), vectors, scale


def _step(at: _Point) -> tuple[Array, Array, Array, Array]:
    """A step in the region, what it promises, how long it is, and how long it would have been."""
    values, vectors, scale = _scaled(at.matrix)
    along = vectors.T @ (at.gradient / scale)
    length = jnp.sqrt(jnp.sum(along**2 / values))
    step = (vectors @ (along / values)) / scale
    leap = jnp.max(jnp.abs(step) / (LEAP + jnp.abs(at.u)))
    share = jnp.minimum(at.radius / jnp.maximum(length, jnp.finfo(length.dtype).tiny), 1 / jnp.maximum(leap, 1.0))
    share = jnp.minimum(share, 1.0)
    return share * step, (share - share**2 / 2) * length**2, share * length, length
