"""Sizes that programs are compiled for: data of a similar size find the same program."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import PyTree

#: sizes between a power of two and the next, in equal steps
RUNGS = 4


def rung(size: int) -> int:
    """The least of 1, 2, ..., 8, 10, 12, 14, 16, 20, 24, 28, 32, ... that is no smaller: at most a quarter more.

    >>> [rung(size) for size in (0, 3, 9, 11, 480, 500, 1000)]
    [0, 3, 10, 12, 512, 512, 1024]
    """
    step = 1 << max((size - 1).bit_length() - 1 - (RUNGS.bit_length() - 1), 0) if size > 1 else 1
    return -(-size // step) * step


def padded(tree: PyTree, size: int, axis: int = 0) -> PyTree:
    """NumPy arrays repeated at their last entry along an axis, up to `size` of it."""

    def longer(leaf: np.ndarray) -> np.ndarray:
        leaf = np.asarray(leaf)
        ids = np.minimum(np.arange(size), leaf.shape[axis] - 1)
        return leaf if leaf.shape[axis] == size else np.take(leaf, ids, axis=axis)

    return jax.tree.map(longer, tree)
