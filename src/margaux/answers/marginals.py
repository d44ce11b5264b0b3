"""The likelihood that an approximation has of its own, at any parameters: of all units at once, by modes that are followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..algorithms.base import Visit
from ..algorithms.objective import coordinates, curvature
from ..numerics.compiling import compiled
from ..numerics.keys import key_of
from ..numerics.precision import default_dtype, precision, settle

if TYPE_CHECKING:
    from ..esteps.base import AbstractMarginal
    from .fit import Fit


def derivatives(fit: Fit, estep: AbstractMarginal, params: PyTree, rows: PyTree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of the units (n, k), the sum of their information (k, k), in unconstrained coordinates, and log-likelihoods (n,)."""
    scores, information, logs = _called(_derivatives, fit, estep, params, rows)
    return scores, information, logs


def log_likelihoods(fit: Fit, estep: AbstractMarginal, params: PyTree, rows: PyTree) -> np.ndarray:
    """Of the units (n,), to a millionth: modes are those of the rows, followed until next to nothing is left."""
    return _called(_values, fit, estep, params, rows)


def followed(fit: Fit, estep: AbstractMarginal, params: PyTree, rows: PyTree) -> PyTree:
    """Rows at some parameters, from those of others."""
    return _called(_followed, fit, estep, params, rows)


def _called(program: Any, fit: Fit, estep: AbstractMarginal, params: PyTree, rows: PyTree) -> Any:
    dtype = default_dtype(None)
    with precision(dtype):
        at, rows = (
            jax.tree.map(lambda leaf: np.asarray(leaf, dtype if leaf.dtype.kind == "f" else None), tree)
            for tree in (jax.tree.map(np.asarray, params), jax.tree.map(np.asarray, rows))
        )
        problem, estep, data = settle((fit._model(), estep, jax.tree.map(np.asarray, fit.data)), dtype)
        return jax.tree.map(lambda leaf: np.asarray(leaf, float), program(problem, estep, at, rows, data))


def _noise(problem: Any, estep: Any, params: PyTree, data: PyTree) -> PyTree:
    keys = jax.random.split(key_of(0), jax.tree.leaves(data)[0].shape[0])
    shapes = jax.eval_shape(problem.model.init_latents, keys[0], params, jax.tree.map(lambda leaf: leaf[0], data))
    return jax.vmap(lambda key: estep.noise(key, shapes))(keys)


@compiled
def _derivatives(problem, estep, params, rows, data):
    u, back = coordinates(problem, params)
    visit = Visit((rows, ()), data, _noise(problem, estep, params, data), key_of(0), jnp.ones((), int))
    (scores, information), _, info = curvature(problem, estep, visit, params, u, back)
    return scores, information, info["log_marginal"]


@compiled
def _values(problem, estep, params, rows, data):
    rows = estep.followed(problem.model, params, rows, data)
    return estep.log_marginals(_noise(problem, estep, params, data), problem.model, params, rows, data, 0)


@compiled
def _followed(problem, estep, params, rows, data):
    return estep.followed(problem.model, params, rows, data)
