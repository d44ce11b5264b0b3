"""Ascent in a model that is expanded by scales of the latents, where posteriors are next to their priors."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..esteps import MCMC
from ..problem.model import leading, log_joints
from ..problem.penalty import NoPenalty
from ..problem.schedule import AbstractSchedule
from .average import AbstractAverage
from .base import AbstractRowless, summed
from .scaled import DENSE, newton_step
from .statistics import Score


class ExpandedAscent(AbstractRowless):
    r"""`ScaledAscent` in $p(y, \tilde z\mid\theta,\phi)=p(y, e^{\phi}\tilde z\mid\theta)\,e^{\phi^\top d}$, whose latents have a
    scale $e^{\phi_l}$ for each of their arrays (of $d_l$ numbers a unit).

    Its marginal likelihood does not depend on $\phi$ (Liu, Rubin and Wu 1998, parameter expansion). A step
    $(\delta_\theta,\delta_\phi)=\delta_k|J_k|^{-1}\bar s_k$ moves the chains along, $z\leftarrow e^{\delta_\phi}z$, so that a
    prior and latents that follow it get as far as the data have a say, and not as far as the complete data would. Those
    are many more where latents are many and data few: EM, and `ScaledAscent`, then move the scale of a prior by next to nothing
    in an iteration. At a stationary point the mean of $\partial_\phi\log p$ is zero, and the maximum is that of
    $p(y\mid\theta)$.

    Where posteriors are next to priors, a kernel's bias weighs as much as what the data say: use one that is adjusted, as
    `margaux.MALA`. Scores are those of the chains' last states in an iteration, J a running mean over their first chains.

    Args:
        gain: $\delta_k$, without units.
    """

    all_units: ClassVar[bool] = True
    may_be_padded: ClassVar[bool] = False
    gain: AbstractSchedule
    average: AbstractAverage

    def requires(self, problem):
        if isinstance(problem.penalty, NoPenalty):
            return None
        return f"{type(problem.penalty).__name__} is about parameters as they are: leave expanded out"

    def init(self, problem, params, per_unit):
        flat, _ = ravel_pytree(problem.space.to_unconstrained(params))
        size = flat.size + per_unit["scale"].shape[-1]
        if size > DENSE:
            raise ValueError(
                f"{flat.size} parameters and {size - flat.size} arrays of latents are more than {DENSE}: leave expanded out"
            )
        return {"information": jnp.zeros((size, size), flat.dtype)}

    def statistics(self, problem, params, z, w, batch):
        score = Score().per_unit(problem.model, params, z, w, batch)
        return {"score": score, "scale": jnp.zeros((leading(batch), len(jax.tree.leaves(z))))}

    def step(self, problem, estep, params, state, visit):
        if not isinstance(estep, MCMC):
            raise TypeError(
                f"soul(expanded=True) moves the states of chains, which {type(estep).__name__} has not: use margaux.MCMC"
            )
        (rows, own), batch, b = visit.rows, visit.batch, visit.size(problem)
        _, rows, info = estep.expect(lambda z, w: jnp.zeros(()), visit.noise, problem.model, params, rows, batch, visit.k)
        draws = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), rows["z"])
        flat, unravel = ravel_pytree(problem.space.to_unconstrained(params))
        sizes = jnp.asarray([leaf[0].size for leaf in jax.tree.leaves(draws)], flat.dtype)

        def back(u):
            return problem.space.from_unconstrained(unravel(u))

        def total(x, draws):
            u, phi = x[: flat.size], x[flat.size :]
            logs = log_joints(problem.model, back(u), _scaled(draws, phi), batch)
            return jnp.sum(logs) / leading(draws) + phi @ sizes

        here = jnp.concatenate([flat, jnp.zeros_like(sizes)])
        score = jax.grad(total)(here, draws)
        curvature = -jax.jacfwd(jax.grad(total))(here, jax.tree.map(lambda leaf: leaf[:1], draws))
        (score, curvature), info = summed((score, curvature), info, visit.axis)
        information = state["information"] + jnp.asarray(visit.k, flat.dtype) ** -0.6 * (curvature / b - state["information"])
        newton, largest = newton_step(information, score / b)
        delta = self.gain(visit.k).astype(flat.dtype)
        limit = jnp.concatenate([1 + jnp.abs(flat), jnp.ones_like(sizes)])
        moved = delta * jnp.clip(newton, -limit, limit)
        params = jax.tree.map(lambda new, old: new.astype(old.dtype), back(flat + moved[: flat.size]), params)
        phi = moved[flat.size :]
        # Latents of a bounded support may not be moved out of it.
        possible = jnp.isfinite(total(jnp.concatenate([flat, phi]), draws))
        possible = possible if visit.axis is None else jax.lax.pmin(possible.astype(int), visit.axis) > 0
        phi = jnp.where(possible, phi, 0.0)
        rows = rows | {"z": _scaled(rows["z"], phi)}
        if "log_scale" in rows:  # a step is a squared length
            rows |= {"log_scale": rows["log_scale"] + (2 * (phi @ sizes) / jnp.sum(sizes)).astype(rows["log_scale"].dtype)}
        figures = {name: figure / b for name, figure in info.items()}
        return problem.land(params, delta / largest), {"information": information}, (rows, own), figures


def _scaled(z: PyTree, phi: Array) -> PyTree:
    """Each array of latents times the exponential of its own number."""
    leaves, structure = jax.tree.flatten(z)
    return structure.unflatten([leaf * jnp.exp(own).astype(leaf.dtype) for leaf, own in zip(leaves, phi, strict=True)])
