"""Tables filled up to sizes that programs are compiled for, so that programs of one table serve others of a similar size.

What fills a table up says nothing: its rates are zero, for an offset of minus infinity, as are its counts and loadings, and
the latents of its units follow the prior. So sums over units and over features are what they were.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from ...numerics.ladder import rung
from .variational import Loadings, Posterior, Units

#: entries of a table up to which sizes go up by `STEP`, up to which by a quarter, and beyond which each has its own program
SMALL, MEDIUM, LARGE = 1 << 16, 1 << 17, 1 << 20
#: the steps of the smallest, and how many there are to a power of two between the medium and the large
STEP, FINE = 32, 16


def sizes(n: int, p: int) -> tuple[int, int]:
    """Units and features of the table that stands for one of n and p.

    >>> sizes(116, 114), sizes(112, 110), sizes(500, 290), sizes(20_000, 100)
    ((128, 128), (128, 128), (512, 304), (20000, 100))
    """
    if n * p > LARGE:
        return n, p
    if n * p > MEDIUM:
        return rung(n, FINE), rung(p, FINE)
    # Few units may be drawn very often: see `growth`, which takes 16 at least.
    coarse = STEP // 2 if n <= STEP // 2 else -(-rung(n) // STEP) * STEP, -(-rung(p) // STEP) * STEP
    return coarse if coarse[0] * coarse[1] <= SMALL else (rung(n), rung(p))


class Filled(NamedTuple):
    """Loadings, data and Gaussians of a block of units, on the device."""

    loadings: Loadings
    units: Units
    gaussian: Posterior


def filled(loadings: Loadings, units: Units, gaussian: Posterior, entries: int) -> Filled:
    """A block of units of a table of so many entries, as large as `sizes` says; of a table of more than `LARGE` as it is."""
    if entries > LARGE:
        return Filled(*jax.device_put((loadings, units, gaussian)))
    p = len(loadings.C)
    more, wide = sizes(len(units.x), p)
    full: Any = at_zero(units.x, more), offsets(units.offset, p, (more, wide)), at_zero(units.projected, more)
    return Filled(*jax.device_put((of_features(loadings, wide), Units(*full), of_units(gaussian, more))))


def at_zero(array: Any, *shape: int) -> np.ndarray:
    """An array in the corner of one of zeros, whose first axes are that long."""
    array = np.asarray(array)
    ends = [(0, size - old) for size, old in zip(shape, array.shape, strict=False)]
    return np.pad(array, ends + [(0, 0)] * (array.ndim - len(ends)))


def offsets(offset: Float[Any, "n o"], p: int, shape: tuple[int, int]) -> Float[np.ndarray, "m s"]:
    """Of every entry: minus infinity where there are no counts."""
    offset = np.asarray(offset)
    full = np.full(shape, -np.inf, offset.dtype)
    full[: len(offset), :p] = offset
    return full


def of_features(loadings: Loadings, size: int) -> Loadings:
    """Loadings of that many features."""
    B, C = loadings
    whole: Any = at_zero(B, len(B), size), at_zero(C, size)
    return Loadings(*whole)


def of_units(posterior: Posterior, size: int) -> Posterior:
    """Posteriors of that many units."""
    mean, spread = map(np.asarray, posterior)
    j, k = np.tril_indices(mean.shape[1])
    own = np.tile((j == k).astype(spread.dtype), (size - len(spread), 1))
    whole: Any = at_zero(mean, size), np.concatenate([spread, own])
    return Posterior(*whole)


def emptied(tree: Any, *shape: int) -> Any:
    """Arrays of NumPy without what filled their first axes up."""
    corner = tuple(slice(size) for size in shape)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[corner], tree)
