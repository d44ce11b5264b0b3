"""Conditional modes of a subject's random effects, iterated until they are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Scalar

from ...numerics.compiling import compiled
from ...numerics.gaussian import normals
from ...numerics.keys import key_of

if TYPE_CHECKING:
    from ...problem.model import Unit
    from .model import MixedEffects


#: a mode is there when Newton's step promises to raise the log density by less than this
TOLERANCE = 1e-8
#: turns at most, and damping beyond which no step is short enough to rise
TURNS, STIFF = 200, 1e10
#: draws of the population, the best of which are starts besides its mean
DRAWS, BEST = 64, 2


class Mode(NamedTuple):
    """Of one subject: the mode (d,), a Cholesky factor of the inverse curvature there (d, d), and whether it was reached."""

    place: Float[Array, " d"]
    root: Float[Array, "d d"]
    reached: Bool[Array, ""]


def find_mode(model: MixedEffects, params: dict, y: Unit) -> Mode:
    r"""The highest of the modes of $p(\phi_i\mid y_i)$ that Newton's method reaches from the population's mean and from
    the best of `DRAWS` draws of it.

    In coordinates where the population is standard normal, so that the units of parameters do not matter. Steps go along
    $\sum_k v_k v_k^\top g/(|\lambda_k| + \mu)$ with the eigenvalues $\lambda_k$ of minus the Hessian, and the damping $\mu$
    grows where the density falls (Levenberg and Marquardt): it climbs from wherever it starts.
    """
    centre, root = model.population(params, y)

    @jax.jit
    def target(u):
        value = model.log_joint(params, centre + root @ u, y)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    draws = normals(key_of(0), DRAWS, centre.size, centre.dtype, True)
    best = jnp.argsort(-jax.vmap(target)(draws))[:BEST]
    starts = jnp.concatenate([jnp.zeros((1, centre.size), centre.dtype), draws[best]])
    places, values, curvatures, reached = jax.vmap(lambda start: _climb(target, start))(starts)
    at = jnp.argmax(jnp.where(jnp.isfinite(values), values, -jnp.inf))
    return Mode(centre + root @ places[at], root @ _inverse_root(curvatures[at]), reached[at])


def _climb(target: Callable[[Array], Scalar], start: Array) -> tuple[Array, Array, Array, Array]:
    """Place, value, minus the Hessian, and whether the place is a mode."""

    def gradient(u):
        value, slope = jax.value_and_grad(target)(u)
        return slope, (value, slope)

    def local(u):
        hessian, (value, slope) = jax.jacfwd(gradient, has_aux=True)(u)
        return value, slope, -hessian

    def modified(curvature):
        values, vectors = jnp.linalg.eigh(curvature)
        return jnp.maximum(jnp.abs(values), 1e-6), vectors

    def promised(state):
        """What Newton's step would gain, twice."""
        values, vectors = modified(state["here"][2])
        return jnp.sum((vectors.T @ state["here"][1]) ** 2 / values)

    def going(state):
        return (state["turn"] < TURNS) & (state["damping"] < STIFF) & ~state["reached"]

    def turn(state):
        value, slope, curvature = state["here"]
        values, vectors = modified(curvature)
        moved = state["place"] + vectors @ ((vectors.T @ slope) / (values + state["damping"]))
        there = local(moved)
        finite = jnp.isfinite(there[0]) & jnp.all(jnp.isfinite(there[1])) & jnp.all(jnp.isfinite(there[2]))
        better = finite & ((there[0] >= value) | ~jnp.isfinite(value))
        shorter = jnp.where(state["damping"] < 1e-6, 0.0, 0.1 * state["damping"])
        new = {
            "place": jnp.where(better, moved, state["place"]),
            "here": jax.tree.map(lambda a, b: jnp.where(better, a, b), there, state["here"]),
            "damping": jnp.where(better, shorter, 10 * state["damping"] + 1e-2),
            "turn": state["turn"] + 1,
        }
        return new | {"reached": promised(new) < TOLERANCE}

    here = local(start)
    usable = jnp.isfinite(here[0]) & jnp.all(jnp.isfinite(here[1])) & jnp.all(jnp.isfinite(here[2]))
    eye = jnp.eye(start.size, dtype=start.dtype)
    # Where the density has no value, the population's own climbs back to its mean.
    here = jax.tree.map(lambda a, b: jnp.where(usable, a, b), here, (jnp.full_like(here[0], -jnp.inf), -start, eye))
    first = {"place": start, "here": here, "damping": jnp.zeros((), start.dtype), "turn": jnp.zeros((), jnp.int32)}
    first["reached"] = jnp.zeros((), bool)
    end = jax.lax.while_loop(going, turn, first)
    value, _, curvature = end["here"]
    return end["place"], value, curvature, end["reached"]


def _inverse_root(curvature: Array) -> Array:
    """Cholesky factor of the inverse, with eigenvalues held to those a population of such spread allows."""
    values, vectors = jnp.linalg.eigh(curvature)
    # The prior alone has curvature one; less is a flat direction or a saddle, where nothing narrower than it is safe.
    inverse = (vectors / jnp.maximum(values, 0.1)) @ vectors.T
    return jnp.linalg.cholesky(inverse)


@compiled
def conditional_modes(model: MixedEffects, params: dict, units: dict) -> tuple[Array, Array]:
    """Conditional modes of phi (n, d), and which subjects' were reached (n,)."""
    found = jax.vmap(lambda y: find_mode(model, params, y))(units)
    return found.place, found.reached
