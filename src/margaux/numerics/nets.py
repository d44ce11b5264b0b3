"""Sobol nets: points that fill the unit cube evenly."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import scipy
from jaxtyping import Float, Int

#: binary digits of a point
BITS = 30


def sobol(size: int, power: int, rng: np.random.Generator) -> Float[np.ndarray, "count size"]:
    r"""$2^{power}$ points of a Sobol sequence whose digits are scrambled by a random matrix and shifted.

    Point for point those of `scipy.stats.qmc.Sobol`, which spawns the generator that it is given, by SciPy's direction numbers:
    to import `scipy.stats` takes .4 s of a process whose whole fit takes 2.

    References: Joe and Kuo, SIAM J. Sci. Comput. 30 (2008), 2635-2654; Matousek, J. Complexity 14 (1998), 527-556.
    """
    numbers = _directions(size)
    if numbers is None:
        return scipy.stats.qmc.Sobol(size, rng=rng).random_base2(power)
    places = np.arange(BITS - 1, -1, -1, dtype=np.uint32)
    shift = rng.integers(2, size=(1, size, BITS), dtype=np.uint32) @ 2 ** places[::-1]
    mixing = np.tril(rng.integers(2, size=(size, BITS, BITS), dtype=np.uint32), -1) + np.eye(BITS, dtype=np.uint32)
    digits = numbers[:, None, :] >> places[None, :, None] & np.uint32(1)
    mixed = ((mixing @ digits & np.uint32(1)) << places[None, :, None]).sum(axis=1, dtype=np.uint32)
    points = shift
    for step in mixed.T[:power]:  # in the order of Gray's code, by which each point differs from the one before it in one step
        points = np.concatenate([points, np.flip(points, 0) ^ step])
    return points * 2.0**-BITS


@functools.cache
def _directions(size: int) -> Int[np.ndarray, "size bits"] | None:
    """Direction numbers, None where SciPy has them elsewhere."""
    path = Path(scipy.__file__).parent / "stats" / "_sobol_direction_numbers.npz"
    if not path.exists():
        return None
    with np.load(path) as table:
        polynomials, first = table["poly"][:size], table["vinit"][:size]
    out = np.ones((size, BITS), np.int64)
    for row, polynomial, known in zip(out[1:], polynomials[1:].tolist(), first[1:], strict=True):
        degree = polynomial.bit_length() - 1
        row[:degree] = known[:degree]
        for j in range(degree, BITS):
            row[j] = row[j - degree]
            for k in range(degree):
                if polynomial >> (degree - 1 - k) & 1:
                    row[j] ^= row[j - k - 1] << (k + 1)
    return (out << np.arange(BITS - 1, -1, -1)).astype(np.uint32)
