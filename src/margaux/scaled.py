"""Ascent along the score whose step needs no choosing: it is scaled by the complete-data information."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from .algorithm import AbstractAlgorithm, sum_over_devices
from .average import AbstractAverage
from .model import leading, log_joints
from .penalty import NoPenalty
from .schedule import AbstractSchedule
from .statistics import Score

#: parameters up to which the information is a matrix; beyond, only its largest eigenvalue is followed
DENSE = 32


class ScaledAscent(AbstractAlgorithm):
    r"""$\theta_k = \Pi_\Theta[\theta_{k-1} + \delta_k J_k^{-1}\bar s_k]$, with $J_k$ a running mean of
    $E[-\nabla^2_\theta\log p(y_i, z_i\mid\theta)]$, the complete-data information a unit.

    It is at least the observed information, so gains of up to one are stable: with exact expectations and
    $\delta = 1$ this is the EM gradient algorithm (Lange 1995). Eigenvalues enter by their modulus,
    parameters at the edge of $\Theta$ are moved on their own, and no step exceeds $1 + |\theta_j|$. With a
    penalty, or more than 32 parameters, J is replaced by its largest eigenvalue (by power iteration).

    Args:
        gain: $\delta_k$, without units.
    """

    gain: AbstractSchedule
    average: AbstractAverage
    refresh_epochs: int | None = eqx.field(static=True)

    @property
    def has_rows(self) -> bool:
        return False

    def requires(self, problem):
        return None

    def init(self, params, per_unit):
        flat, _ = ravel_pytree(params)
        if flat.size <= DENSE:
            return {"information": jnp.zeros((flat.size, flat.size), flat.dtype)}
        start = jnp.cos(jnp.arange(1, flat.size + 1, dtype=flat.dtype) ** 2)
        return {"direction": start / jnp.linalg.norm(start), "largest": jnp.zeros((), flat.dtype)}

    def statistics(self, problem, params, z, w, batch):
        return Score().per_unit(problem.model, params, z, w, batch)

    def refreshed(self, state, total):
        return state

    def step(self, problem, estep, params, state, rows, batch, noise, key, k, axis, devices):
        estep_rows, own_rows = rows
        b = leading(batch) * devices
        flat, unravel = ravel_pytree(params)
        dense = flat.size <= DENSE

        def f(z, w):
            total = lambda u: jnp.sum(w * log_joints(problem.model, unravel(u), z, batch))  # noqa: E731
            if dense:
                return jax.grad(total)(flat), -jax.hessian(total)(flat)
            score, product = jax.jvp(jax.grad(total), (flat,), (state["direction"],))
            return score, -product

        value, estep_rows, info = estep.expect(f, noise, problem.model, params, estep_rows, batch, k)
        (score, curvature), info = sum_over_devices((value, info), axis)
        score, curvature = score / b, curvature / b
        share = jnp.asarray(k, flat.dtype) ** -0.6
        if dense:
            information = state["information"] + share * (curvature - state["information"])
            state = {"information": information}
        else:
            size = jnp.linalg.norm(curvature)
            largest = state["largest"] + share * (size - state["largest"])
            state = {"direction": jnp.where(size > 0, curvature / jnp.where(size > 0, size, 1.0), state["direction"]),
                     "largest": largest}  # fmt: skip
        delta = self.gain(k).astype(flat.dtype)
        if dense and isinstance(problem.penalty, NoPenalty):
            held = ravel_pytree(problem.space.at_boundary(params))[0].astype(bool)
            move, length = _newton(information, score, held), delta
        else:
            bound = jnp.linalg.norm(information, 2) if dense else largest
            length = delta / jnp.maximum(bound, jnp.finfo(flat.dtype).eps)
            move = score / jnp.maximum(bound, jnp.finfo(flat.dtype).eps)
        limit = 1 + jnp.abs(flat)
        params = problem.land(unravel(flat + delta * jnp.clip(move, -limit, limit)), length)
        return params, state, (estep_rows, own_rows), {name: figure / b for name, figure in info.items()}


def _newton(information: Array, score: Array, held: Array) -> Array:
    """|J|^-1 s, with the parameters that are `held` at the edge of their space uncoupled from the others."""
    coupled = ~(held[:, None] | held[None, :]) | jnp.eye(score.size, dtype=bool)
    symmetric = jnp.where(coupled, (information + information.T) / 2, 0.0)
    values, vectors = jnp.linalg.eigh(symmetric)
    size = jnp.abs(values)
    size = jnp.maximum(size, jnp.maximum(1e-6 * jnp.max(size), jnp.finfo(score.dtype).tiny ** 0.5))
    return vectors @ ((vectors.T @ score) / size)
