"""Sizes that programs are compiled for: data of a similar size find the same program."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import PyTree

from .arrays import resized

#: equal steps between a power of two and the next; beyond a size finer ones, and beyond another, where work takes much longer
#: than compiling, every size is its own
STEPS, MANY, FINE_STEPS, LARGEST = 4, 1 << 12, 16, 1 << 16


def rung(size: int, steps: int | None = None) -> int:
    """The least of 1, 2, ..., 8, 10, 12, 14, 16, 20, 24, 28, 32, ... that is no smaller: at most a quarter more, or with more
    `steps`, a power of two, as much less.

    >>> [rung(size) for size in (0, 3, 9, 11, 480, 500, 1000, 5000, 100_001)]
    [0, 3, 10, 12, 512, 512, 1024, 5120, 100001]
    """
    step = _step(int(size), steps)
    return -(-int(size) // step) * step


def rung_below(size: int) -> int:
    """The largest that is no larger.

    >>> [rung_below(size) for size in (0, 3, 9, 11, 500, 512, 5000)]
    [0, 3, 8, 10, 448, 512, 4864]
    """
    step = _step(int(size) + 1)
    return int(size) // step * step


def _step(size: int, steps: int | None = None) -> int:
    if size < 2 or size > LARGEST:
        return 1
    below = 1 << (size - 1).bit_length() - 1
    return max(below // (steps or (STEPS if size <= MANY else FINE_STEPS)), 1)


def padded(tree: PyTree, size: int, axis: int = 0) -> PyTree:
    """NumPy arrays repeated at their last entry along an axis, up to `size` of it."""

    return jax.tree.map(lambda leaf: resized(np.asarray(leaf), size, axis), tree)
