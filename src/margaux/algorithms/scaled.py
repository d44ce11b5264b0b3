"""Ascent along the score whose step needs no choosing: it is scaled by the complete-data information."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Scalar

from ..esteps import MCMC
from ..numerics.keys import key_of
from ..problem.model import AbstractNonSmooth, log_joints
from ..problem.penalty import NoPenalty
from ..problem.schedule import AbstractSchedule
from ..problem.space import AbstractSpace, Real
from .average import AbstractAverage
from .base import AbstractAlgorithm, AbstractRowless, summed
from .statistics import Score
from .updates import Problem

#: parameters up to which the information is a matrix; beyond, only its largest eigenvalue is followed
DENSE = 32
#: the coordinate that stands for infinity, where a start lies on the edge of its space
EDGE = 30.0
#: latents of one unit that are many: the information of complete data is then no guide to that of the data
MANY = 200


class ScaledAscent(AbstractRowless):
    r"""$\theta_k = \Pi_\Theta[\theta_{k-1} + \delta_k J_k^{-1}\bar s_k]$, with $J_k$ a running mean of
    $E[-\nabla^2_\theta\log p(y_i, z_i\mid\theta)]$, the complete-data information a unit.

    It is at least the observed information, so gains of up to one are stable: with exact expectations and
    $\delta = 1$ this is the EM gradient algorithm (Lange 1995). The steps are taken in the unconstrained
    coordinates of $\Theta$, eigenvalues enter by their modulus, and no step exceeds $1 + |u_j|$. With more than
    32 parameters J is replaced by its largest eigenvalue (by power iteration); with a penalty too, and then
    the coordinates are the parameters themselves.

    Args:
        gain: $\delta_k$, without units. where_many: what takes its place where one unit has `MANY` latents or more with a
            smooth density, which chains follow: see `margaux.algorithms.ExpandedAscent`.
    """

    gain: AbstractSchedule
    average: AbstractAverage
    where_many: AbstractAlgorithm | None = None

    def chosen(self, problem, estep, params, unit):
        # What has no second derivatives has no curvature to go by.
        smooth = not isinstance(problem.model, AbstractNonSmooth)
        if self.where_many is not None and smooth and problem.n == 1 and isinstance(estep, MCMC):
            latents = jax.eval_shape(problem.model.init_latents, key_of(0), params, unit)
            leaves = jax.tree.leaves(latents)
            small = sum(leaf.size for leaf in jax.tree.leaves(params)) + len(leaves) <= DENSE
            if small and sum(leaf.size for leaf in leaves) >= MANY and self.where_many.requires(problem) is None:
                return self.where_many
        return dataclasses.replace(self, where_many=None)

    def requires(self, problem):
        return None

    def init(self, problem, params, per_unit):
        flat, _ = ravel_pytree(_space(problem).to_unconstrained(params))
        if flat.size <= DENSE:
            return {"information": jnp.zeros((flat.size, flat.size), flat.dtype)}
        start = jnp.cos(jnp.arange(1, flat.size + 1, dtype=flat.dtype) ** 2)
        return {"direction": start / jnp.linalg.norm(start), "largest": jnp.zeros((), flat.dtype)}

    def statistics(self, problem, params, z, w, batch):
        return Score().per_unit(problem.model, params, z, w, batch)

    def step(self, problem, estep, params, state, visit):
        estep_rows, own_rows = visit.rows
        batch, k = visit.batch, visit.k
        b, estep = visit.size(problem), visit.counting(estep)
        space, free = _space(problem), isinstance(problem.penalty, NoPenalty)
        flat, unravel = ravel_pytree(space.to_unconstrained(params))
        flat = jnp.where(jnp.isfinite(flat), flat, jnp.sign(flat) * EDGE)

        def back(u):
            return space.from_unconstrained(unravel(u))

        dense = flat.size <= DENSE

        def f(z, w):
            def total(u):
                return jnp.sum(w * log_joints(problem.model, back(u), z, batch))

            def slopes(u):
                slope = jax.grad(total)(u)
                return slope, slope

            if dense:
                curvature, score = jax.jacfwd(slopes, has_aux=True)(flat)
                return score, -curvature
            score, product = jax.jvp(jax.grad(total), (flat,), (state["direction"],))
            return score, -product

        value, estep_rows, info = estep.expect(f, visit.noise, problem.model, params, estep_rows, batch, k)
        (score, curvature), info = summed(value, info, visit.axis)
        score, curvature = score / b, curvature / b
        share = jnp.asarray(k, flat.dtype) ** -0.6
        if dense:
            information = state["information"] + share * (curvature - state["information"])
            state = {"information": information}
            newton, largest = newton_step(information, score)
        else:
            newton, size = None, jnp.linalg.norm(curvature)
            largest = state["largest"] + share * (size - state["largest"])
            direction = jnp.where(size > 0, curvature / jnp.where(size > 0, size, 1.0), state["direction"])
            state = {"direction": direction, "largest": largest}
        largest = jnp.maximum(largest, jnp.finfo(flat.dtype).eps)
        delta, limit = self.gain(k).astype(flat.dtype), 1 + jnp.abs(flat)
        move = score / largest if newton is None or not free else newton
        moved = back(flat + delta * jnp.clip(move, -limit, limit))
        moved = jax.tree.map(lambda new, old: new.astype(old.dtype), moved, params)
        return problem.land(moved, delta / largest), state, (estep_rows, own_rows), {n: figure / b for n, figure in info.items()}


def _space(problem: Problem) -> AbstractSpace:
    """Whose coordinates the steps are taken in: a proximal map needs the parameters' own."""
    return problem.space if isinstance(problem.penalty, NoPenalty) else Real()


def newton_step(information: Array, score: Array) -> tuple[Array, Scalar]:
    """|J|^-1 s, eigenvalues by their modulus and no smaller than a millionth of the largest; the largest of them."""
    values, vectors = jnp.linalg.eigh((information + information.T) / 2)
    size = jnp.abs(values)
    largest = jnp.max(size)
    size = jnp.maximum(size, jnp.maximum(1e-6 * largest, jnp.finfo(score.dtype).tiny ** 0.5))
    return vectors @ ((vectors.T @ score) / size), largest
