"""Symmetric matrices as their lower triangles, row by row."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float


def lower_indices(q: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows and columns of the lower triangle, and how often each entry stands in the whole matrix."""
    j, k = np.tril_indices(q)
    return j, k, np.where(j == k, 1.0, 2.0)


def unpacked(lower: Float[Array, "t n"]) -> Float[Array, "q q n"]:
    """As `symmetric`, of lower triangles along the first axis.

    >>> import jax.numpy as jnp
    >>> unpacked(jnp.arange(3.0)[:, None])[:, :, 0].tolist()
    [[0.0, 1.0], [1.0, 2.0]]
    """
    return lower[_places(len(lower))]


def symmetric(lower: Float[Array, "... t"]) -> Float[Array, "... q q"]:
    """Symmetric matrices from their lower triangles.

    >>> import jax.numpy as jnp
    >>> symmetric(jnp.arange(3.0)).tolist()
    [[0.0, 1.0], [1.0, 2.0]]
    """
    return lower[..., _places(lower.shape[-1])]


def _places(size: int) -> np.ndarray:
    """Where entries of a matrix stand in its lower triangle of so many."""
    q = int(np.sqrt(2 * size))
    j, k = np.indices((q, q))
    high, low = np.maximum(j, k), np.minimum(j, k)
    return high * (high + 1) // 2 + low
