"""Names of scalar parameters, and the precision scope that fits and inference run in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


def scalar_names(params: PyTree) -> list[str]:
    """One name a scalar parameter: its path, and its index from zero in an array.

    >>> scalar_names({"beta": np.zeros(2), "tau": 1.0})
    ['beta[0]', 'beta[1]', 'tau']
    """
    names: list[str] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        base = path_name(path) or "theta"
        shape = np.shape(leaf)
        names += [base] if shape == () else [f"{base}[{','.join(map(str, i))}]" for i in np.ndindex(*shape)]
    return names


def named_values(params: PyTree) -> list[tuple[str, float]]:
    """Scalar parameters by name."""
    flat = [np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(params)]
    return list(zip(scalar_names(params), np.concatenate(flat).tolist(), strict=True))


def path_name(path: Any) -> str:
    """The dotted name of a pytree path."""
    parts = [str(getattr(p, "key", getattr(p, "name", getattr(p, "idx", p)))) for p in path]
    return ".".join(parts)


@contextlib.contextmanager
def precision(dtype: np.dtype) -> Iterator[None]:
    """float64 inside this scope when asked for; jax's global flags stay as they are."""
    if dtype == np.float64:
        with jax.enable_x64(True):
            yield
    else:
        yield


def default_dtype(dtype: Any) -> np.dtype:
    """float64 on a CPU, float32 on accelerators, unless the caller chooses."""
    if dtype is None:
        return np.dtype(np.float64 if jax.default_backend() == "cpu" else np.float32)
    dtype = np.dtype(dtype)
    if dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    return dtype


def settle(tree: PyTree, dtype: np.dtype) -> PyTree:
    """Array leaves as jax arrays, floating ones of the given dtype; other leaves as they are."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray | np.generic) or isinstance(leaf, jax.Array):
            if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return leaf
            return jnp.asarray(leaf, dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else None)
        return leaf

    return jax.tree.map(one, tree)
