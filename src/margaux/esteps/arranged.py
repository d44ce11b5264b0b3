"""How the latents of a model that declares nothing hang together, found at its start and held to second derivatives elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree, Scalar

from ..numerics.keys import key_of
from ..numerics.sparsity import Probes, asked, joined, structured
from ..numerics.structures import AbstractStructure, Dense, LogDensity, second_product
from .base import flat_start, flat_target

#: latents a unit from which on a structure is looked for, and the most for which it is; latents of all units that are probed
FEWEST, MOST, PROBED = 100, 20_000, 20_000
#: how far places and parameters are from the start at which a structure is tried; how often it is; units together, and numbers
AWAY, TIMES, TOGETHER, NUMBERS = 0.3, 2, 16, 4_000_000
#: by how much a product with the inverse may miss, as a share
EXACT = 1e-8


def arranged(problem: Any, params: PyTree, units: Callable[[np.ndarray], PyTree]) -> AbstractStructure:
    """The structure of the latents of all units, dense where there is none that pays or that holds.

    Args:
        problem: with `model`, `space` and `n`. units: the data of some units, by their numbers.
    """
    model: Any = problem.model
    first = units(np.arange(1))
    d = _starts(model, params, first).shape[1]
    if not FEWEST <= d <= MOST:
        return Dense()
    some = np.unique(np.linspace(0, problem.n - 1, min(problem.n, max(PROBED // d, 1))).astype(int))
    probes, moved = Probes(lambda z, params, y: flat_target(model, params, y)[0](z)), _moved(problem, params)
    patterns = []
    for i in some:
        batch = units(np.array([i]))
        y, z = jax.tree.map(lambda leaf: leaf[0], batch), _starts(model, params, batch)[0]
        found = asked(probes.dependent, z, params, y)
        # Where a second derivative is that no value went into, nothing of this can be trusted.
        there = asked(probes.curved, z + AWAY * _noise(z, i), moved, y)
        if joined(found, there).nnz > found.nnz:
            return Dense()
        patterns.append(found)
    pattern = joined(*patterns)
    structure = structured(pattern)
    if isinstance(structure, Dense):
        return structure
    most = int(np.diff(pattern.indptr).max())
    tried = jax.jit(lambda key, params, batch: _missed(structure, most, model, key, params, batch))
    together = int(np.clip(NUMBERS // structure.numbers(d), 1, min(TOGETHER, problem.n)))
    for first in range(0, problem.n, together):
        batch = units(np.minimum(np.arange(first, first + together), problem.n - 1))
        for turn in range(TIMES):
            if not float(tried(key_of(turn + TIMES * first), moved, batch)) < EXACT:
                return Dense()
    return structure


def missed(structure: AbstractStructure, log_density: LogDensity, z: Float[Array, " d"], damping: Scalar | float = 0.0) -> Scalar:
    """By how much, as a share, the inverse of second derivatives that a structure reads fails to undo a product with them all."""
    v = jnp.cos(jnp.arange(z.size, dtype=z.dtype))
    factor = structure.factor(structure.curvature(log_density, z), damping)
    return jnp.max(jnp.abs(factor.solve(second_product(log_density, z)(v) + damping * v) - v))


def _missed(structure: AbstractStructure, most: int, model: Any, key: Any, params: PyTree, batch: PyTree) -> Scalar:
    """The most of some units, at a place near their start; `most`: second derivatives of one latent that are not zero."""

    def unit(z: Array, y: PyTree) -> Scalar:
        target, _ = flat_target(model, params, y)
        near = z + AWAY * jax.random.normal(key, z.shape, z.dtype)
        entries = [jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(structure.curvature(target, near))]
        return missed(structure, target, near, 2.0 * most * jnp.max(jnp.stack(entries)))

    return jnp.max(jax.vmap(unit)(_starts(model, params, batch), batch))


def _starts(model: Any, params: PyTree, batch: PyTree) -> Float[Array, "b d"]:
    return jax.vmap(lambda y: flat_start(key_of(0), model, params, y))(batch)


def _noise(z: Array, seed: int) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=z.shape), z.dtype)


def _moved(problem: Any, params: PyTree) -> PyTree:
    """Parameters near the start, of which none is zero by chance."""
    flat, back = ravel_pytree(problem.space.to_unconstrained(params))
    flat = jnp.where(jnp.isfinite(flat), flat, 0.0)
    return problem.space.from_unconstrained(back(flat + AWAY * _noise(flat, 1)))
