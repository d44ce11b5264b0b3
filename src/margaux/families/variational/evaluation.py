"""What a posterior of weights predicts of observations, by draws."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ...esteps import Noise
from ...numerics.compiling import compiled, is_large
from ...numerics.keys import key_of
from ...numerics.ladder import rung
from ...numerics.precision import settle
from .draws import moved
from .networks import Network

#: bytes of activations that are held together: of an accelerator, whose memory is its own, and elsewhere
ACTIVATIONS = {"cpu": 1 << 28, "other": 1 << 32}


def outputs_of_draws(
    network: Network, means: PyTree, deviations: PyTree, x: PyTree, n_draws: int, key: int, dtype: np.dtype
) -> np.ndarray:
    """Outputs (n_draws, n, o) of the network: each draw of the weights is one for all observations."""

    def placed(leaf):
        return jax.device_put(np.asarray(leaf, _dtype(leaf, dtype)))

    posterior = jax.tree.map(placed, (means, deviations))
    n = len(jax.tree.leaves(x)[0])
    one = jax.tree.map(lambda leaf: leaf[:1], x)
    # One program for all parts, and for other observations of a similar number.
    size = min(n if is_large(means) else rung(n), slice_size(network, means, one, dtype))
    network = settle(network, dtype)
    out = []
    for first in range(0, n, size):
        ids = np.minimum(np.arange(first, first + size), n - 1)
        part = jax.tree.map(lambda leaf, ids=ids: placed(leaf[ids]), x)
        out.append(np.asarray(_outputs(network, posterior, part, key_of(key), n_draws))[:, : n - first])
    return np.concatenate(out, axis=1)


@compiled(large=lambda network, posterior, *rest: is_large(posterior[0]))
def _outputs(network: Network, posterior: tuple[PyTree, PyTree], x: PyTree, key: Array, n_draws: int) -> Array:
    def single(key: Array) -> Array:
        z = Noise(1).noise(key, posterior[0])
        return network.outputs(moved(*posterior, jax.tree.map(lambda leaf: leaf[0], z)), x)

    return jax.lax.map(single, jax.random.split(key, n_draws))


def outputs_at(network: Network, weights: PyTree, x: PyTree, dtype: np.dtype) -> np.ndarray:
    """Outputs (m, n, o) of the network at each of some weights (m, ...)."""

    def placed(leaf):
        return jax.device_put(np.asarray(leaf, _dtype(leaf, dtype)))

    weights, network = jax.tree.map(placed, weights), settle(network, dtype)
    n, first = len(jax.tree.leaves(x)[0]), jax.tree.map(lambda leaf: leaf[0], weights)
    size = min(rung(n), slice_size(network, first, jax.tree.map(lambda leaf: leaf[:1], x), dtype))
    out = []
    for start in range(0, n, size):
        ids = np.minimum(np.arange(start, start + size), n - 1)
        part = jax.tree.map(lambda leaf, ids=ids: placed(leaf[ids]), x)
        out.append(np.asarray(_at(network, weights, part))[:, : n - start])
    return np.concatenate(out, axis=1)


@compiled(large=lambda network, weights, x: is_large(jax.tree.map(lambda leaf: leaf[0], weights)))
def _at(network: Network, weights: PyTree, x: PyTree) -> Array:
    return jax.lax.map(lambda one: network.outputs(one, x), weights)


def slice_size(network: Network, weights: PyTree, x: PyTree, dtype: np.dtype) -> int:
    """Observations whose activations are to be held together, by what one of them, x (1, ...), takes."""
    backend = "cpu" if jax.default_backend() == "cpu" else "other"

    def struct(leaf):
        return jax.ShapeDtypeStruct(np.shape(leaf), _dtype(leaf, dtype) or leaf.dtype)

    traced = jax.make_jaxpr(network.outputs)(jax.tree.map(struct, weights), jax.tree.map(struct, x))
    return max(ACTIVATIONS[backend] // max(_bytes(traced.jaxpr), 1), 1)


#: operations that a compiler makes part of the next one
MOVES = {"pad", "slice", "reshape", "transpose", "broadcast_in_dim", "squeeze", "convert_element_type", "copy"}


def _bytes(jaxpr: Any) -> int:
    """What the operations of a program make, all told."""
    total = 0
    for equation in jaxpr.eqns:
        parts = [getattr(part, "jaxpr", part) for part in equation.params.values()]
        inner = [part for part in parts if hasattr(part, "eqns")]
        if inner:
            total += sum(map(_bytes, inner))
        elif equation.primitive.name not in MOVES:
            total += sum(out.aval.size * out.aval.dtype.itemsize for out in equation.outvars)
    return total


def _dtype(leaf: Array | np.ndarray, dtype: np.dtype) -> Any:
    return dtype if np.issubdtype(np.asarray(leaf).dtype, np.floating) else None
