"""Gaussian approximations of one unit's posterior, shared by kernels, E-steps and inference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from .arrays import mapped_as

#: a mode is found where Newton's step is shorter than this, in posterior standard deviations
FOUND = 1e-4
#: modes closer than this, in standard deviations, are one
APART = 1.0
#: modes with less than this share of the mass are left out; how often one is to be found: from more than one direction
NEGLIGIBLE, ENOUGH = 1e-6, 4
#: turns that a search has at most, and one for a further mode: where a density falls as fast as an exponential of an exponential,
#: the way back takes one for each power of e
MOST, FURTHER = 200, 50


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
    begin, turn = _newton(logdensity, start)

    def unfinished(pair):
        count, (proposal, mode, damping, (_, slope, _)) = pair
        stuck = jnp.all(mode == start) & (damping < HOPELESS) & (slope @ (proposal - mode) > FOUND**2)
        return (count <= n_newton) | (stuck & (count < n_newton + RESCUES))

    def go_on(pair):
        count, state = pair
        return count + 1, turn(state)

    _, (_, mode, _, (_, _, negative_hessian)) = jax.lax.while_loop(unfinished, go_on, mapped_as(start, (0, begin(start))))
    return mode, _inverse_root(negative_hessian)


def find_mode(logdensity: Callable[[Float[Array, " d"]], Scalar], start: Float[Array, " d"], most: int = MOST) -> Mode:
    r"""As `laplace`, iterated until $\sqrt{g^\top(-H)^{-1}g}<$ `FOUND`, or `most` times; `Mode.away` says which."""
    begin, turn = _newton(logdensity, start, measured=True)

    def unfinished(pair):
        count, (_, _, damping, _), away = pair
        return (count < most) & (away > FOUND) & (damping < HOPELESS)

    def go_on(pair):
        count, state, _ = pair
        state, away, _ = turn(state)
        return count + 1, state, away

    # The first turn finds out where the start is; the second is the first step from there. All by one body: it is what compiles.
    nowhere = mapped_as(start, (-1, begin(start), jnp.full((), jnp.inf, start.dtype)))
    _, state, away = jax.lax.while_loop(unfinished, go_on, nowhere)
    _, mode, _, (value, _, curvature) = state
    return Mode(mode, _inverse_root(curvature), value, away)


def find_modes(
    logdensity: Callable[[Float[Array, " d"]], Scalar],
    place: Callable[[Array, Float[Array, " d"], Float[Array, "d d"]], Float[Array, " d"]],
    like: Float[Array, " d"],
    searches: int | Array | np.ndarray,
    k: int,
    most: int | Array | np.ndarray = 0,
) -> tuple[Mode, Float[Array, " k"], Scalar]:
    """Distinct modes (k, ...), the first where the first search ended, whatever that is; their log masses, minus infinity where
    there is none; and the share of searches that ended where fewer than `ENOUGH` did, which are a sign that there are more modes
    that nobody has found, or one where there were more than k that count.

    Searches are made one after the other by one loop, so that units beside each other do not wait for the slowest of each; one
    that comes within `APART` of a mode that is known ends there.

    Args:
        place: where a search starts, from its number, where the first ended, and the Cholesky factor of the curvature there.
        like: an array of the shape of a point. most: searches where several modes are found, until each was found often enough.
    """
    d, dtype = like.size, like.dtype
    zero, slots, eye = jnp.zeros(d, dtype), np.arange(k), jnp.eye(d, dtype=dtype)
    begin, turn = _newton(logdensity, like, measured=True)
    nothing = _Known(
        jnp.zeros((k, d), dtype),
        jnp.broadcast_to(eye, (k, d, d)),
        jnp.full(k, -jnp.inf, dtype),
        jnp.full(k, jnp.inf, dtype),
        jnp.full(k, -jnp.inf, dtype),
        jnp.zeros(k, dtype),
    )

    def go_on(state):
        i, count, climb, known, first, lost = state
        climb, away, root = turn(climb)
        _, at, damping, (value, _, curvature) = climb
        gap = at - known.at
        near = known.is_one & (jnp.einsum("ki,kij,kj->k", gap, known.curvature, gap) < APART**2)
        longest = jnp.where(i == 0, MOST, FURTHER)
        done = (away <= FOUND) | (damping >= HOPELESS) | (count >= longest) | ((i > 0) & jnp.any(near))
        near = near | ((known.mass > -jnp.inf) & (jnp.einsum("ki,ij,kj->k", gap, curvature, gap) < APART**2))
        mass = value - jnp.sum(jnp.log(jnp.diagonal(root)))
        new = (away < APART) & jnp.isfinite(mass) & ~jnp.any(near)
        # The first stays whatever it is, so that every unit has a proposal; then the slot of least mass, if that is less.
        slot = jnp.where(i == 0, 0, jnp.argmin(jnp.where(slots == 0, jnp.inf, known.mass)))
        put = done & ((i == 0) | (new & (mass > known.mass[slot]) & (k > 1)))
        # What has no slot: the mode itself, or whose slot it takes.
        lost = jnp.where(done & (i > 0) & new, jnp.maximum(lost, jnp.where(put, known.mass[slot], mass)), lost)
        times = known.times + (done & (i > 0) & near)
        found = _Known(at, curvature, value, away, jnp.where(jnp.isfinite(mass), mass, -1e300), jnp.ones((), dtype))
        known = jax.tree.map(lambda old, one: jnp.where(put, old.at[slot].set(one), old), known._replace(times=times), found)
        first = jnp.where(done & (i == 0), root, first)
        i = jnp.where(done, i + 1, i)
        following = begin(place(i, known.at[0], first))
        climb = jax.tree.map(lambda fresh, old: jnp.where(done, fresh, old), following, climb)
        return i, jnp.where(done, -1, count + 1), climb, known, first, lost

    def unfinished(state):
        i, _, _, known, _, lost = state
        return (i < searches) | ((i < most) & (known.rare > 0) & (lost <= known.least))

    start = mapped_as(like, (0, -1, begin(place(jnp.asarray(0), zero, eye)), nothing, eye, jnp.full((), -jnp.inf, dtype)))
    i, _, _, known, _, lost = jax.lax.while_loop(unfinished, go_on, start)
    roots = jax.vmap(_inverse_root)(known.curvature)
    masses = known.value + jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1) + d / 2 * math.log(2 * math.pi)
    masses = jnp.where(jnp.isfinite(masses), masses, -1e300)
    unseen = jnp.where(lost > known.least, 1.0, known.rare / i)
    return Mode(known.at, roots, known.value, known.away), jnp.where(known.mass > -jnp.inf, masses, -jnp.inf), unseen


class _Known(NamedTuple):
    """Modes that were found (k, ...), or one; `mass` is minus infinity where there is none; `times`, how often."""

    at: Array
    curvature: Array
    value: Array
    away: Array
    mass: Array
    times: Array

    @property
    def least(self) -> Array:
        """The log mass from which on a mode counts: where the first search ended may be none, and has no mass then."""
        return jnp.max(jnp.where(self.away < APART, self.mass, -jnp.inf)) + np.log(NEGLIGIBLE)

    @property
    def rare(self) -> Array:
        """Searches that ended at those of several modes of some mass where few did."""
        counted = self.mass > self.least
        return jnp.where(jnp.sum(counted) > 1, jnp.sum(jnp.where(counted & (self.times < ENOUGH), self.times, 0.0)), 0.0)

    @property
    def is_one(self) -> Array:
        """Where the curvature is that of a maximum."""
        return jnp.isfinite(self.away) & (self.mass > -jnp.inf)


#: damping at which a search gives up
HOPELESS = 1e8
#: turns beyond those asked for at most: XLA may compute a comparison twice, rounded to opposite answers for nearly equal
#: densities, and a search then neither moves nor grows its damping, for ever
RESCUES = 50
#: numbers of unknowns of the systems that are solved without a call of LAPACK
WRITTEN_OUT = 3


def _newton(logdensity: Callable[[Array], Scalar], like: Array, measured: bool = False) -> tuple[Any, Any]:
    """What makes the state before the first of the damped Newton steps from a start, and a turn; `measured`, it tells too how far
    away the mode is, and the Cholesky factor of the curvature."""
    eye = jnp.eye(like.size, dtype=like.dtype)

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
        value, slope, curvature = here = jax.tree.map(lambda a, b: jnp.where(better, a, b), there, here)
        mode = jnp.where(better, proposal, mode)
        damping = jnp.where(better, damping * 0.1, jnp.minimum(damping * 10.0 + 1e-3, HOPELESS))
        if not measured:
            return mode + _solve(curvature, damping, slope)[0], mode, damping, here
        # Both systems by one call: what is written twice is compiled twice.
        both = jnp.stack([damping, jnp.zeros_like(damping)])
        (step, plain), (_, positive), (_, root) = jax.vmap(_solve, (None, 0, None))(curvature, both, slope)
        length = jnp.sqrt(jnp.maximum(slope @ plain, 0.0))
        away = jnp.where(positive & jnp.isfinite(value), length, jnp.inf)
        return (mode + step, mode, damping, here), away, root

    def begin(start):
        nowhere = (jnp.full((), -jnp.inf, start.dtype), jnp.zeros_like(start), eye)
        return start, start, jnp.zeros((), start.dtype), nowhere

    return begin, turn


def _solve(a: Array, damping: Scalar, b: Array) -> tuple[Array, Array, Array]:
    """The solution of a damped system, whether its matrix is positive definite, and its Cholesky factor if it is."""
    if b.size == 1:
        own = a[0, 0] + damping
        return b / (jnp.maximum(jnp.abs(a[0, 0]), 1e-8) + damping), own > 0, jnp.sqrt(own).reshape(1, 1)
    # An indefinite curvature is shifted until it is positive: Gershgorin bounds the lowest eigenvalue.
    eye = jnp.eye(b.size, dtype=b.dtype)
    radius = jnp.min(jnp.diagonal(a) - jnp.sum(jnp.abs(a - jnp.diag(jnp.diagonal(a))), axis=1))
    shift = jnp.maximum(-radius, 0.0) * 1.01 + 1e-6
    shifts = damping + jnp.stack([jnp.zeros_like(shift), shift])
    if b.size <= WRITTEN_OUT:
        (plain, other), (positive, _), (root, _) = jax.vmap(lambda by: _eliminate(a + by * eye, b))(shifts)
        return jnp.where(positive, plain, other), positive, root
    factor, shifted = jax.vmap(lambda by: jnp.linalg.cholesky(a + by * eye))(shifts)
    positive = ~jnp.any(jnp.isnan(factor))
    return jax.scipy.linalg.cho_solve((jnp.where(positive, factor, shifted), True), b), positive, factor


def _eliminate(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """As `_solve`, of a small system by $LDL^\top$ written out: a call for a unit's few numbers takes longer than they do."""
    d = b.size
    lower: list[list[Any]] = [[None] * d for _ in range(d)]
    pivots: list[Any] = []
    half: list[Any] = []
    for i in range(d):
        scaled: list[Any] = []
        for j in range(i):
            scaled.append(a[i, j] - sum(scaled[k] * lower[j][k] for k in range(j)))
            lower[i][j] = scaled[j] / pivots[j]
        pivots.append(a[i, i] - sum(scaled[k] * lower[i][k] for k in range(i)))
        half.append(b[i] - sum(lower[i][k] * half[k] for k in range(i)))
    out: list[Any] = [None] * d
    for i in reversed(range(d)):
        out[i] = half[i] / pivots[i] - sum(lower[k][i] * out[k] for k in range(i + 1, d))
    scales = [jnp.sqrt(pivot) for pivot in pivots]
    zero = jnp.zeros_like(pivots[0])
    root = [[zero if j > i else scales[i] if i == j else lower[i][j] * scales[j] for j in range(d)] for i in range(d)]
    return jnp.stack(out), jnp.all(jnp.stack(pivots) > 0), jnp.stack([jnp.stack(row) for row in root])


def _inverse_root(precision: Array) -> Array:
    """Cholesky factor of the inverse of a curvature, with directions of no curvature held to a unit scale."""
    d = precision.shape[0]
    if d == 1:
        return 1.0 / jnp.sqrt(jnp.where(precision > 1e-8, precision, 1.0))
    values, vectors = jnp.linalg.eigh(jnp.where(jnp.isfinite(precision), precision, jnp.eye(d, dtype=precision.dtype)))
    repaired = (vectors * jnp.where(values > 1e-8, values, 1.0)) @ vectors.T
    # Of the matrix with its order reversed the factor is upper triangular, and its inverse the factor that is sought.
    factor, other = jax.vmap(jnp.linalg.cholesky)(jnp.stack([precision, repaired])[:, ::-1, ::-1])
    upper = jnp.where(jnp.any(jnp.isnan(factor)), other, factor)[::-1, ::-1]
    return jax.scipy.linalg.solve_triangular(upper, jnp.eye(d, dtype=precision.dtype)).T


def normals(key: PRNGKeyArray, m: int, d: int, dtype: jnp.dtype, quasi: bool, uniforms: int = 0) -> Float[Array, "m e"]:
    r"""m standard normal vectors, with further entries that are uniform between 0 and 1; quasi-Monte-Carlo ones are a `lattice`.

    It is shifted uniformly (Cranley and Patterson 1976), so that each point is exactly standard normal.
    """
    size = d + uniforms
    if not quasi:
        signed = jax.random.uniform(key, (m, size), dtype, np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype)), 1.0)
    else:
        shift = jax.random.uniform(key, (size,), dtype)
        u = (shift + jnp.arange(1, m + 1, dtype=dtype)[:, None] * jnp.asarray(lattice_steps(size) % 1.0, dtype)) % 1.0
        edge = jnp.finfo(dtype).eps
        signed = 2 * jnp.clip(u, edge, 1 - edge) - 1
    # Not `ndtri`, which is as accurate far from the middle but several times the code to compile.
    normal = math.sqrt(2.0) * jax.lax.erf_inv(signed[:, :d])
    return jnp.concatenate([normal, (1 + signed[:, d:]) / 2], axis=1) if uniforms else normal


def lattice(shift: Float[np.ndarray, " d"], count: int) -> Float[np.ndarray, "count d"]:
    """Points that fill the unit cube evenly: a Kronecker lattice by `lattice_steps`. (SciPy's nets take .6 s to import.)"""
    return (shift + np.arange(1, count + 1)[:, None] * lattice_steps(len(shift))) % 1.0


def lattice_steps(d: int) -> Float[np.ndarray, " d"]:
    r"""Powers of the inverse of the root of $x^{d+1} = x + 1$, the golden ratio for d = 1 (Roberts 2018)."""
    root = 2.0
    for _ in range(40):
        root = (1.0 + root) ** (1.0 / (d + 1))
    return root ** -np.arange(1.0, d + 1)
