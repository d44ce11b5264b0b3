"""Keys of the random number generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array


def key_of(seed: int | Array) -> Any:
    """`jax.random.key`, of a whole number and the usual generator without a program.

    >>> bool((jax.random.key_data(key_of(7)) == jax.random.key_data(jax.random.key(7))).all())
    True
    """
    usual = getattr(jax.config, "jax_default_prng_impl", "") == "threefry2x32"
    plain = usual and isinstance(seed, int | np.integer)
    if not plain or not 0 <= seed < 2**32:
        return jax.random.key(seed)
    words: Any = np.array([0, seed], np.uint32)
    return jax.random.wrap_key_data(words)
