"""Arrays handled without a program of their own: on a CPU an array of jax is one of NumPy's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .compiling import LARGE


def as_array(number: int) -> jax.Array:
    """An int as an array, for which jnp.asarray would compile a program."""
    return jax.device_put(np.asarray(number, np.int32))


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def on_host(leaf: Any) -> bool:
    """Whether NumPy can see an array without a copy."""
    if not isinstance(leaf, jax.Array):
        return True
    return leaf.is_fully_addressable and next(iter(leaf.devices())).platform == "cpu"


def taken(leaf: Any, ids: np.ndarray, axis: int = 0) -> Any:
    """Entries by number along an axis: by NumPy what it can see."""
    if is_key(leaf):
        return jax.random.wrap_key_data(taken(jax.random.key_data(leaf), ids, axis), impl=jax.random.key_impl(leaf))
    return np.take(np.asarray(leaf), ids, axis) if on_host(leaf) else jnp.take(leaf, ids, axis)


def resized(leaf: Any, size: int, axis: int = 0) -> Any:
    """An array cut to a size along an axis, or repeated at its last entry up to it."""
    if leaf.shape[axis] == size:
        return leaf
    cut = taken(leaf, np.minimum(np.arange(size), leaf.shape[axis] - 1), axis)
    return jax.device_put(cut) if isinstance(cut, np.ndarray) and isinstance(leaf, jax.Array) else cut


def reshaped(leaf: Any, shape: tuple[int, ...]) -> Any:
    """An array in another shape.

    What NumPy holds cannot be donated: a large array would be copied when it is, and is left to jax.
    """
    if not isinstance(leaf, jax.Array) or leaf.size >= LARGE or not on_host(leaf):
        return leaf.reshape(shape)
    if is_key(leaf):
        data: Any = np.asarray(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(data.reshape((*shape, data.shape[-1])), impl=jax.random.key_impl(leaf))
    return jax.device_put(np.asarray(leaf).reshape(shape))


def mapped_as(data: PyTree, tree: PyTree) -> PyTree:
    """The same tree, mapped over whatever the data are. A loop whose carry is mapped from its start is traced by `jax.vmap`
    once, and not again for every part of it that turns out to be."""
    here = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(data) if not is_key(leaf))

    def one(leaf):
        leaf = jnp.asarray(leaf)
        return jax.lax.select(jnp.broadcast_to(here == 0, leaf.shape), leaf, leaf)

    return jax.tree.map(one, tree)
