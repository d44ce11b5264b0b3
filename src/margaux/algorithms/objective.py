"""The marginal log-likelihood as a function to climb: its derivatives, by one E-step that is exact or keeps its noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..esteps.base import AbstractEStep, AbstractMarginal
from ..problem.model import Params, leading, log_joints, two_derivatives
from ..problem.penalty import NoPenalty
from .scaled import EDGE
from .updates import Problem

if TYPE_CHECKING:
    from .base import Visit


def coordinates(problem: Problem, params: Params) -> tuple[Float[Array, " k"], Callable[[Array], Params]]:
    """The unconstrained ones of the parameters, and the way back."""
    flat, unravel = ravel_pytree(problem.space.to_unconstrained(params))
    flat = jnp.where(jnp.isfinite(flat), flat, jnp.sign(flat) * EDGE)
    return flat, lambda u: problem.space.from_unconstrained(unravel(u))


def gradient(
    problem: Problem, estep: AbstractEStep, visit: Visit, params: Params, u: Array, back: Callable[[Array], Params]
) -> tuple[Array, PyTree, dict[str, Array]]:
    """Of the units visited here (k,), by one reverse pass; the E-step's rows, and its figures with "log_marginal"."""

    def read(z: Array, w: Array) -> Array:
        return jax.grad(lambda u: jnp.sum(w * log_joints(problem.model, back(u), z, visit.batch)))(u)

    if not isinstance(estep, AbstractMarginal):
        return _expected(read, problem, estep, visit, params)
    marginals, rows, present = _marginals(problem, estep, visit, params, back, 1)
    value, pull = jax.vjp(marginals, u)
    return pull(present * jnp.ones_like(value))[0], rows, {"log_marginal": present * value}


def curvature(
    problem: Problem, estep: AbstractEStep, visit: Visit, params: Params, u: Array, back: Callable[[Array], Params]
) -> tuple[tuple[Array, Array], PyTree, dict[str, Array]]:
    r"""Scores of the units visited here (b, k) and the sum of their information (k, k); rows and figures as of `gradient`.

    By Fisher's identity and Louis', $s_i = E[\nabla_u\log p]$ and $E[-\nabla_u^2\log p] - Cov(\nabla_u\log p)$; of a likelihood
    that is a function of its own, by differentiating that.
    """

    def read(z: Array, w: Array) -> tuple[Array, Array]:
        each, hessian = two_derivatives(problem.model, back, u, z, w, visit.batch)
        return jnp.einsum("mb,mbi->bi", w, each), -hessian - jnp.einsum("mb,mbi,mbj->ij", w, each, each)

    if not isinstance(estep, AbstractMarginal):
        (scores, complete), rows, info = _expected(read, problem, estep, visit, params)
        return (scores, complete + scores.T @ scores), rows, info
    if leading(visit.batch) == 1 and visit.present is None:
        return _differences(problem, estep, visit, params, u, back)
    marginals, rows, present = _marginals(problem, estep, visit, params, back, 2)
    information = -jax.hessian(lambda u: jnp.sum(present * marginals(u)))(u)
    values, slopes = jax.vmap(lambda along: jax.jvp(marginals, (u,), (along,)))(jnp.eye(u.size, dtype=u.dtype))
    return ((present * slopes).T, information), rows, {"log_marginal": present * values[0]}


def _differences(
    problem: Problem, estep: AbstractMarginal, visit: Visit, params: Params, u: Array, back: Callable[[Array], Params]
) -> tuple[tuple[Array, Array], PyTree, dict[str, Array]]:
    """The same of one unit, which is large: differences of gradients take no more memory than one gradient does."""
    rows = estep.followed(problem.model, params, visit.rows[0], visit.batch)
    step = jnp.finfo(u.dtype).eps ** 0.25

    def height(u: Array, rows: PyTree) -> Array:
        return jnp.sum(estep.log_marginals(visit.noise, problem.model, back(u), rows, visit.batch, 1))

    def sloped(away: Array) -> tuple[Array, Array]:
        moved = estep.followed(problem.model, back(u + away), rows, visit.batch)
        return jax.value_and_grad(height)(u + away, moved)

    eye = jnp.eye(u.size, dtype=u.dtype)
    values, slopes = jax.lax.map(sloped, step * jnp.concatenate([0 * eye[:1], eye, -eye]))
    plus, minus = jnp.split(slopes[1:], 2)
    return (slopes[:1], (minus - plus) / (2 * step)), rows, {"log_marginal": values[:1]}


def _expected(read: Any, problem: Problem, estep: AbstractEStep, visit: Visit, params: Params) -> Any:
    # Draws that keep their noise: the units' scores do not depend on the iteration.
    k = jnp.ones_like(visit.k)
    found, rows, info = visit.counting(estep).expect(read, visit.noise, problem.model, params, visit.rows[0], visit.batch, k)
    if "log_marginal" not in info:
        raise TypeError(
            f"{type(estep).__name__} gives no likelihood to climb; use margaux.Quadrature, margaux.Laplace, "
            "margaux.ImportanceSampling, or margaux.Exact of a discrete latent"
        )
    return found, rows, info


def _marginals(
    problem: Problem, estep: AbstractMarginal, visit: Visit, params: Params, back: Callable[[Array], Params], derivatives: int
) -> Any:
    rows = estep.followed(problem.model, params, visit.rows[0], visit.batch)
    present = jnp.ones(()) if visit.present is None else visit.present

    def marginals(u: Array) -> Array:
        return estep.log_marginals(visit.noise, problem.model, back(u), rows, visit.batch, derivatives)

    return marginals, rows, present


def penalised(problem: Problem, back: Callable[[Array], Params], u: Array) -> tuple[Array, Array, Array]:
    """g with its two derivatives in the coordinates."""

    def value(u: Array) -> Array:
        return problem.penalty.value(back(u)) + jnp.zeros((), u.dtype)

    if isinstance(problem.penalty, NoPenalty):
        return jnp.zeros((), u.dtype), jnp.zeros_like(u), jnp.zeros((u.size, u.size), u.dtype)
    return value(u), jax.grad(value)(u), jax.hessian(value)(u)
