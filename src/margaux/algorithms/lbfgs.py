"""Limited-memory BFGS on the marginal likelihood: Newton's method for more parameters than second derivatives are taken in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .average import AbstractAverage
from .base import summed
from .climbing import AbstractClimb, better, led_to, traced
from .objective import coordinates, gradient, penalised

if TYPE_CHECKING:
    import numpy as np

#: rise, as a share of the promised one, below which a step is too long; rise, as a share of the log-likelihood, that is rounding
ARMIJO, ROUNDING = 1e-4, 1e-12
#: shares of a step that was too long which the next may be
LEAST, MOST = 0.1, 0.5
#: what a coordinate may move in a step, beside its own size
LEAP = 2.0


class _Point(NamedTuple):
    """The best place so far in unconstrained coordinates: objective, gradient, the direction of its step, and the share of it
    that is being tried (of none before the first, whose objective is minus infinity); and what is remembered of the curvature."""

    u: Float[Array, " k"]
    value: Array
    gradient: Float[Array, " k"]
    direction: Float[Array, " k"]
    share: Array
    memory: PyTree


class LBFGS(AbstractClimb):
    r"""Steps along $B\nabla$, B from the changes of the gradient over the last iterations (Liu and Nocedal 1989, by optax).

    One E-step an iteration: a step that does not raise $\log p(y\mid\theta)-g(\theta)$ enough (Armijo) is tried again, shorter by
    the parabola through what is known. The trace "newton" is $\sqrt{\nabla^\top B\nabla}$, what is left in standard errors as
    far as B tells.

    Args:
        first: length of the first step, where `sizes` is None. sizes: about what standard errors of the coordinates will be, a
            tree like the parameters.
        memory: iterations that are remembered.
    """

    first: Array | np.ndarray
    sizes: PyTree
    memory: int = eqx.field(static=True)
    average: AbstractAverage

    def init(self, problem, params, per_unit):
        u, _ = ravel_pytree(problem.space.to_unconstrained(params))
        if self.sizes is not None and ravel_pytree(self.sizes)[0].size != u.size:
            raise ValueError(
                f"sizes holds {ravel_pytree(self.sizes)[0].size} numbers and the parameters have {u.size} coordinates"
            )
        zero = jnp.zeros((), u.dtype)
        return _Point(u, zero - jnp.inf, 0 * u, 0 * u, zero, self._remembering.init(u))

    @property
    def _remembering(self) -> Any:
        import optax

        return optax.scale_by_lbfgs(self.memory)

    def step(self, problem, estep, params, state, visit):
        last_rows, own_rows = visit.rows
        b = visit.size(problem)
        u, back = coordinates(problem, params)
        best: _Point = state
        score, rows, info = gradient(problem, estep, visit, params, u, back)
        score, info = summed(score, info, visit.axis)
        value, slope, _ = penalised(problem, back, u)
        value, slope = info["log_marginal"] - value, score - slope

        sizes = jnp.ones_like(u) if self.sizes is None else ravel_pytree(self.sizes)[0].astype(u.dtype)
        first = jnp.isneginf(best.value)
        promised = best.share * jnp.sum(best.direction * best.gradient)
        gained = value - best.value
        sound = jnp.isfinite(value) & jnp.all(jnp.isfinite(slope))
        taken = first | (sound & (gained >= ARMIJO * promised - ROUNDING * jnp.abs(best.value)))
        towards: Any
        towards, memory = self._remembering.update(-slope * sizes, best.memory, u / sizes)
        # Until a step is known, and where the memory misleads, one of the given length along the gradient.
        lost = first | ~(jnp.sum(-towards * sizes * slope) > 0)
        tiny = jnp.finfo(u.dtype).tiny
        length = 1.0 if self.sizes is not None else self.first / jnp.maximum(jnp.linalg.norm(slope), tiny)
        direction = jnp.where(lost, length * sizes**2 * slope, -towards * sizes)
        share = 1 / jnp.maximum(jnp.max(jnp.abs(direction) / (LEAP + jnp.abs(u))), 1.0)
        shorter = jnp.clip(jnp.nan_to_num(promised / (2 * (promised - gained)), nan=LEAST), LEAST, MOST) * best.share
        now = _Point(u, value, slope, direction, share.astype(u.dtype), memory)
        now = better(taken, now, best._replace(share=shorter))
        rows = better(taken, rows, last_rows)  # at a place that was left modes may have been lost
        length = jnp.sqrt(jnp.maximum(jnp.sum(now.direction * now.gradient), 0.0))
        length = jnp.where(first & (length > 0), jnp.inf, length)  # of which nothing is known before the second
        figures = traced(info, b, value, first, now.value, length)
        return led_to(params, now.u + now.share * now.direction, back), now, (rows, own_rows), figures
