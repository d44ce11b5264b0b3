"""The floating-point precision that fits and inference run in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@contextlib.contextmanager
def precision(dtype: np.dtype) -> Iterator[None]:
    """float64 inside this scope when asked for; jax's global flags stay as they are."""
    if dtype == np.float64:
        with jax.enable_x64(True):
            yield
    else:
        yield


def default_dtype(dtype: DTypeLike | None) -> np.dtype:
    """float64 on a CPU, float32 on accelerators, unless the caller chooses."""
    if dtype is None:
        return np.dtype(np.float64 if jax.default_backend() == "cpu" else np.float32)
    dtype = np.dtype(dtype)
    if dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    return dtype


def settle(tree: PyTree, dtype: np.dtype) -> PyTree:
    """Array leaves as jax arrays, floating ones of the given dtype; other leaves as they are."""

    def one(leaf: object) -> Any:
        if isinstance(leaf, np.ndarray | np.generic) or isinstance(leaf, jax.Array):
            if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return leaf
            kind = dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else None
            # What NumPy holds goes to the device without a program.
            return jnp.asarray(leaf, kind) if isinstance(leaf, jax.Array) else jax.device_put(np.asarray(leaf, kind))
        return leaf

    return jax.tree.map(one, tree)
