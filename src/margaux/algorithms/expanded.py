"""Ascent in a model that is expanded by places and scales of the latents, where posteriors are next to their priors."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..esteps import MCMC
from ..problem.model import AbstractLikelihood, leading, log_joints
from ..problem.penalty import NoPenalty
from ..problem.schedule import AbstractSchedule
from .average import AbstractAverage
from .base import AbstractRowless, summed
from .scaled import DENSE, newton_step
from .statistics import Score


class ExpandedAscent(AbstractRowless):
    r"""`ScaledAscent` in $p(y, \tilde z\mid\theta,\phi,c)=p(y, c+e^{\phi}\tilde z\mid\theta)\,e^{\phi^\top d}$,
    whose latents have a place $c_l$ and a scale $e^{\phi_l}$ for each of their arrays (of $d_l$ numbers a unit).

    Its marginal likelihood does not depend on them (Liu, Rubin and Wu 1998, parameter expansion). A step
    $\delta_k|J_k|^{-1}\bar s_k$ of $(\theta,\phi,c)$ moves the chains along, $z\leftarrow c+e^\phi z$, so that a prior
    and latents that follow it get as far as the data have a say, and not as far as the complete data would. Those
    are many more where latents are many and data few: EM, and `ScaledAscent`, then move the scale of a prior by next to nothing
    in an iteration. At a stationary point the means of $\partial_\phi\log p$ and $\partial_c\log p$ are zero, and the
    maximum is that of $p(y\mid\theta)$. Latents that a move would take out of their support are moved by scales alone, as those
    that are positive, or else not at all.

    Where posteriors are next to priors, a kernel's bias weighs as much as what the data say: use one that is adjusted, as
    `margaux.MALA`, or `margaux.LeimkuhlerMatthews`. Scores are those of the chains' last states in an iteration, J a running mean
    over their first chains.

    Args:
        gain: $\delta_k$, without units.
    """

    all_units: ClassVar[bool] = True
    may_be_padded: ClassVar[bool] = False
    gain: AbstractSchedule
    average: AbstractAverage

    def requires(self, problem):
        if isinstance(problem.model, AbstractLikelihood):
            return f"the prior of {type(problem.model).__name__} has no place and scale that could be moved: leave expanded out"
        if isinstance(problem.penalty, NoPenalty):
            return None
        return f"{type(problem.penalty).__name__} is about parameters as they are: leave expanded out"

    def init(self, problem, params, per_unit):
        flat, _ = ravel_pytree(problem.space.to_unconstrained(params))
        arrays = per_unit["scale"].shape[-1]
        size = flat.size + 2 * arrays
        if flat.size + arrays > DENSE:
            raise ValueError(f"{flat.size} parameters and {arrays} arrays of latents are more than {DENSE}: leave expanded out")
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
        p, leaves = flat.size, jax.tree.leaves(draws)
        sizes = jnp.asarray([leaf[0].size for leaf in leaves], flat.dtype)
        L = len(leaves)
        # Moves are about the centre of an array, in units of its spread: each number is of the order of one.
        centre = jnp.stack([_over(leaf, visit.axis) for leaf in leaves]).astype(flat.dtype)
        square = jnp.stack([_over((leaf - m) ** 2, visit.axis) for leaf, m in zip(leaves, centre, strict=True)])
        spread = jnp.sqrt(jnp.where(square > 0, square, 1.0)).astype(flat.dtype)

        def back(u):
            return problem.space.from_unconstrained(unravel(u))

        def affine(draws, phi, shift):
            return _moved(draws, phi, centre + spread * shift - jnp.exp(phi) * centre)

        def total(x, draws):
            u, phi, shift = x[:p], x[p : p + L], x[p + L :]
            logs = log_joints(problem.model, back(u), affine(draws, phi, shift), batch)
            # The centre is of the draws themselves.
            return jnp.sum(logs) / leading(draws) + phi @ (sizes - 1 / (chains * visit.devices))

        chains = leading(draws)
        here = jnp.concatenate([flat, jnp.zeros(2 * L, flat.dtype)])
        score = jax.grad(total)(here, draws)
        curvature = -jax.jacfwd(jax.grad(total))(here, jax.tree.map(lambda leaf: leaf[:1], draws))
        (score, curvature), info = summed((score, curvature), info, visit.axis)
        information = state["information"] + jnp.asarray(visit.k, flat.dtype) ** -0.6 * (curvature / b - state["information"])
        gain, standing = self.gain(visit.k).astype(flat.dtype), centre / spread
        limit = jnp.concatenate([1 + jnp.abs(flat), jnp.ones(L, flat.dtype), 1 + jnp.abs(standing)])

        def step(basis):
            """Newton's step along the columns of a basis; the largest curvature there."""
            newton, largest = newton_step(basis.T @ information @ basis, basis.T @ score / b)
            along = basis @ newton
            return gain * along * jnp.minimum(1.0, jnp.min(limit / jnp.maximum(jnp.abs(along), 1e-30))), largest

        whole, largest = step(jnp.eye(p + 2 * L, dtype=flat.dtype))
        scales = jnp.concatenate([jnp.zeros((p, L)), jnp.eye(L), jnp.diag(standing)]).astype(flat.dtype)
        by_scale = step(jnp.concatenate([jnp.eye(p + 2 * L, p, dtype=flat.dtype), scales], axis=1))[0]
        alone = step(jnp.eye(p + 2 * L, p, dtype=flat.dtype))[0]

        def possible(move):
            found = jnp.isfinite(total(jnp.concatenate([flat, move[p:]]), draws))
            return found if visit.axis is None else jax.lax.pmin(found.astype(int), visit.axis) > 0

        def scaled(move):
            return move.at[p + L :].set(jnp.expm1(move[p : p + L]) * standing)

        by_scale = scaled(by_scale)
        move = jax.lax.cond(
            possible(whole), lambda: whole, lambda: jnp.where(possible(by_scale), by_scale, alone)
        )  # fmt: skip
        params = jax.tree.map(lambda new, old: new.astype(old.dtype), back(flat + move[:p]), params)
        phi = move[p : p + L]
        rows = rows | {"z": affine(rows["z"], phi, move[p + L :])}
        if "log_scale" in rows:  # a step is a squared length
            rows |= {"log_scale": rows["log_scale"] + (2 * (phi @ sizes) / jnp.sum(sizes)).astype(rows["log_scale"].dtype)}
        figures = {name: figure / b for name, figure in info.items()}
        return problem.land(params, gain / largest), {"information": information}, (rows, own), figures


def _over(leaf: Array, axis: str | None) -> Array:
    """The mean, over devices too."""
    return jnp.mean(leaf) if axis is None else jax.lax.pmean(jnp.mean(leaf), axis)


def _moved(z: PyTree, phi: Array, shift: Array) -> PyTree:
    """Each array of latents times the exponential of its own number, and moved by another."""
    leaves, structure = jax.tree.flatten(z)
    parts = zip(leaves, phi, shift, strict=True)
    return structure.unflatten([leaf * jnp.exp(a).astype(leaf.dtype) + c.astype(leaf.dtype) for leaf, a, c in parts])
