"""What a posterior of weights says of observations: expected log-likelihoods, and predictions by draws."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..compiling import compiled, is_large
from ..esteps import Noise
from ..naming import settle
from .draws import moved
from .model import Variational
from .networks import Network

#: draws of all blocks together, at least, behind an ELBO
ENOUGH = 100

#: bytes of activations that are held together: of an accelerator, whose memory is its own, and elsewhere
ACTIVATIONS = {"cpu": 1 << 28, "other": 1 << 32}


def expected_log_likelihood(model: Variational, params: dict[str, PyTree], data: PyTree, key: int, dtype: Any) -> float:
    """Mean over the observations of E_q log p(y | x, w), by as many draws of each block as make `ENOUGH` of all.

    Args:
        data: blocks, with leaves (B, b, ...).
    """
    as_arrays = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf, _dtype(leaf, dtype)), tree)  # noqa: E731
    n_draws = -(-ENOUGH // len(data["weight"]))
    keys = jax.random.split(jax.random.key(key), n_draws)
    sums = np.asarray(_by_block(settle(model, dtype), as_arrays(params), as_arrays(data), keys), float)
    return float(sums.sum() / n_draws / np.asarray(data["weight"], float).sum())


@compiled(large=lambda model, params, *rest: is_large(params))
def _by_block(model: Variational, params: dict[str, PyTree], data: PyTree, keys: Array) -> Array:
    def block(i: Array, unit: PyTree) -> tuple[Array, Array]:
        def single(key: Array) -> Array:
            z = Noise(1).noise(jax.random.fold_in(key, i), model.init_latents(key, params, unit))
            return model.log_likelihood(params, jax.tree.map(lambda leaf: leaf[0], z), unit)

        return i + 1, jnp.sum(jax.lax.map(single, keys))

    return jax.lax.scan(block, jnp.zeros((), jnp.int32), data)[1]


def divergence(model: Variational, params: dict[str, PyTree], key: int, dtype: Any) -> float:
    """KL of the posterior from the prior; where it is not in closed form, by a thousand draws (fewer of many weights)."""
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params)
    size = sum(leaf.size for leaf in jax.tree.leaves(params["mean"]))
    n_draws = int(np.clip(10**7 // size, 10, 1000)) if model.prior.by_draws else 1
    return float(_divergence(settle(model, dtype), params, jax.random.split(jax.random.key(key), n_draws)))


@compiled
def _divergence(model: Variational, params: dict[str, PyTree], keys: Array) -> Array:
    def single(key: Array) -> Array:
        z = Noise(1).noise(key, params["mean"])
        return model.prior.divergence(model.posterior, model.natural(params), jax.tree.map(lambda leaf: leaf[0], z))

    return jnp.mean(jax.lax.map(single, keys))


def outputs_of_draws(
    network: Network, means: PyTree, deviations: PyTree, x: PyTree, n_draws: int, key: int, dtype: Any
) -> np.ndarray:
    """Outputs (n_draws, n, o) of the network: each draw of the weights is one for all observations."""
    posterior = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (means, deviations))
    n = len(jax.tree.leaves(x)[0])
    one = jax.tree.map(lambda leaf: leaf[:1], x)
    size = min(n, slice_size(network, means, one, dtype))
    network = settle(network, dtype)
    keys = jax.random.split(jax.random.key(key), n_draws)
    out = []
    for first in range(0, n, size):
        ids = np.minimum(np.arange(first, first + size), n - 1)  # one program for all parts
        part = jax.tree.map(lambda leaf, ids=ids: jnp.asarray(leaf[ids], _dtype(leaf, dtype)), x)
        out.append(np.asarray(_outputs(network, posterior, part, keys))[:, : n - first])
    return np.concatenate(out, axis=1)


@compiled(large=lambda network, posterior, *rest: is_large(posterior[0]))
def _outputs(network: Network, posterior: tuple[PyTree, PyTree], x: PyTree, keys: Array) -> Array:
    def single(key: Array) -> Array:
        z = Noise(1).noise(key, posterior[0])
        return network.outputs(moved(*posterior, jax.tree.map(lambda leaf: leaf[0], z)), x)

    return jax.lax.map(single, keys)


def slice_size(network: Network, weights: PyTree, x: PyTree, dtype: Any) -> int:
    """Observations whose activations are to be held together, by what one of them, x (1, ...), takes."""
    backend = "cpu" if jax.default_backend() == "cpu" else "other"
    struct = lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), _dtype(leaf, dtype) or leaf.dtype)  # noqa: E731
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


def _dtype(leaf: Any, dtype: Any) -> Any:
    return dtype if np.issubdtype(np.asarray(leaf).dtype, np.floating) else None
