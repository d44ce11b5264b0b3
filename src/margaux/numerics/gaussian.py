"""Gaussian approximations of one unit's posterior, shared by kernels, E-steps and inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

#: a mode is found where Newton's step is shorter than this, in posterior standard deviations
FOUND = 1e-4


class Mode(NamedTuple):
    """A mode of a density, or where the search for it ended.

    Attributes:
        at: the point (d,). root: Cholesky factor (d, d) of the inverse curvature there. value: the log density.
        away: the length of Newton's step from there in posterior standard deviations, infinite where the curvature is indefinite.
    """

    at: Float[Array, " d"]
    root: Float[Array, "d d"]
    value: Scalar
    away: Scalar


def laplace(
    logdensity: Callable[[Float[Array, " d"]], Scalar], start: Float[Array, " d"], n_newton: int | Array
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    r"""Mode $\hat z$ and the Cholesky factor of $(-\nabla^2\log p)^{-1}$ there, by so many damped Newton steps.

    A step is kept only where it raises the density; otherwise the damping grows tenfold
    (Levenberg and Marquardt), so that a start in a region without curvature is safe. Where none of them was kept, and the start
    is no mode, more are tried until one is: who comes back with the same start would stay there for ever. For whom follows a
    mode from one iteration to the next; `find_mode` goes on until it is found.
    """
    first, turn = _newton(logdensity, start)

    def unfinished(pair):
        count, (proposal, mode, damping, (_, slope, _)) = pair
        stuck = jnp.all(mode == start) & (damping < HOPELESS) & (slope @ (proposal - mode) > FOUND**2)
        return (count <= n_newton) | stuck

    def go_on(pair):
        count, state = pair
        return count + 1, turn(state)

    _, (_, mode, _, (_, _, negative_hessian)) = jax.lax.while_loop(unfinished, go_on, (0, first))
    return mode, _inverse_root(negative_hessian)


def find_mode(logdensity: Callable[[Float[Array, " d"]], Scalar], start: Float[Array, " d"], most: int = 200) -> Mode:
    r"""As `laplace`, iterated until $\sqrt{g^\top(-H)^{-1}g}<$ `FOUND`, or `most` times; `Mode.away` says which."""
    eye = jnp.eye(start.size, dtype=start.dtype)
    first, turn = _newton(logdensity, start)

    def away(state):
        _, _, damping, (value, slope, curvature) = state
        length = jnp.sqrt(jnp.maximum(slope @ _solve(curvature, jnp.zeros_like(damping), slope, eye), 0.0))
        return jnp.where(_is_positive(curvature) & jnp.isfinite(value), length, jnp.inf)

    def unfinished(pair):
        count, (_, _, damping, _), length = pair
        return (count < most) & (length > FOUND) & (damping < HOPELESS)

    def go_on(pair):
        count, state, _ = pair
        state = turn(state)
        return count + 1, state, away(state)

    # The first turn finds out where the start is; the second is the first step from there. All by one body: it is what compiles.
    _, state, length = jax.lax.while_loop(unfinished, go_on, (-1, first, jnp.full((), jnp.inf, start.dtype)))
    _, mode, _, (value, _, curvature) = state
    return Mode(mode, _inverse_root(curvature), value, length)


#: damping at which a search gives up
HOPELESS = 1e8


def _newton(logdensity: Callable[[Array], Scalar], start: Array) -> tuple[Any, Any]:
    """The state before the first turn of damped Newton steps, and a turn."""
    eye = jnp.eye(start.size, dtype=start.dtype)

    # A program within the program: every pass of a transformation over the loop finds its batched form again.
    @jax.jit
    def local(z):
        def gradient(x):
            value, slope = jax.value_and_grad(logdensity)(x)
            return slope, (value, slope)

        hessian, (value, slope) = jax.jacfwd(gradient, has_aux=True)(z)
        return value, slope, -hessian

    # One evaluation a turn, at the point proposed by the last: its code is compiled once.
    def turn(state):
        proposal, mode, damping, here = state
        there = local(proposal)
        better = (there[0] >= here[0]) & jnp.all(jnp.isfinite(proposal)) & jnp.all(jnp.isfinite(there[1]))
        here = jax.tree.map(lambda a, b: jnp.where(better, a, b), there, here)
        mode = jnp.where(better, proposal, mode)
        damping = jnp.where(better, damping * 0.1, jnp.minimum(damping * 10.0 + 1e-3, HOPELESS))
        return mode + _solve(here[2], damping, here[1], eye), mode, damping, here

    nowhere = (jnp.full((), -jnp.inf, start.dtype), jnp.zeros_like(start), eye)
    return (start, start, jnp.zeros((), start.dtype), nowhere), turn


def _is_positive(a: Array) -> Array:
    """Whether a symmetric matrix is positive definite."""
    return a[0, 0] > 0 if a.size == 1 else ~jnp.any(jnp.isnan(jnp.linalg.cholesky(a)))


def _solve(a: Array, damping: Scalar, b: Array, eye: Array) -> Array:
    if b.size == 1:
        return b / (jnp.maximum(jnp.abs(a[0, 0]), 1e-8) + damping)
    # An indefinite curvature is shifted until it is positive: Gershgorin bounds the lowest eigenvalue.
    factor = jnp.linalg.cholesky(a + damping * eye)
    radius = jnp.min(jnp.diagonal(a) - jnp.sum(jnp.abs(a - jnp.diag(jnp.diagonal(a))), axis=1))
    shifted = jnp.linalg.cholesky(a + (damping + jnp.maximum(-radius, 0.0) * 1.01 + 1e-6) * eye)
    factor = jnp.where(jnp.any(jnp.isnan(factor)), shifted, factor)
    return jax.scipy.linalg.cho_solve((factor, True), b)


def _inverse_root(precision: Array) -> Array:
    """Cholesky factor of the inverse of a curvature, with directions of no curvature held to a unit scale."""
    d = precision.shape[0]
    if d == 1:
        return 1.0 / jnp.sqrt(jnp.where(precision > 1e-8, precision, 1.0))
    factor = jnp.linalg.cholesky(precision)
    values, vectors = jnp.linalg.eigh(jnp.where(jnp.isfinite(precision), precision, jnp.eye(d, dtype=precision.dtype)))
    repaired = (vectors * jnp.where(values > 1e-8, values, 1.0)) @ vectors.T
    factor = jnp.where(jnp.any(jnp.isnan(factor)), jnp.linalg.cholesky(repaired), factor)
    inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(d, dtype=precision.dtype), lower=True)
    return jnp.linalg.cholesky(inverse.T @ inverse)


def normals(key: PRNGKeyArray, m: int, d: int, dtype: jnp.dtype, quasi: bool) -> Float[Array, "m d"]:
    r"""m standard normal vectors; quasi-Monte-Carlo ones are a `lattice`.

    It is shifted uniformly (Cranley and Patterson 1976), so that each point is exactly standard normal.
    """
    if not quasi:
        return jax.random.normal(key, (m, d), dtype)
    shift = jax.random.uniform(key, (d,), dtype)
    u = (shift + jnp.arange(1, m + 1, dtype=dtype)[:, None] * jnp.asarray(lattice_steps(d) % 1.0, dtype)) % 1.0
    edge = jnp.finfo(dtype).eps
    return jax.scipy.special.ndtri(jnp.clip(u, edge, 1 - edge))


def lattice(shift: Float[np.ndarray, " d"], count: int) -> Float[np.ndarray, "count d"]:
    """Points that fill the unit cube evenly: a Kronecker lattice by `lattice_steps`. (SciPy's nets take .6 s to import.)"""
    return (shift + np.arange(1, count + 1)[:, None] * lattice_steps(len(shift))) % 1.0


def lattice_steps(d: int) -> Float[np.ndarray, " d"]:
    r"""Powers of the inverse of the root of $x^{d+1} = x + 1$, the golden ratio for d = 1 (Roberts 2018)."""
    root = 2.0
    for _ in range(40):
        root = (1.0 + root) ** (1.0 / (d + 1))
    return root ** -np.arange(1.0, d + 1)
