"""Permutations of many units that are never written out: where one sends a few places is worked out from its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from ..numerics.compiling import compiled

if TYPE_CHECKING:
    from jaxtyping import Array

#: rounds of the network; four make a permutation that cannot be told from a random one by few of its values (Luby and Rackoff)
ROUNDS = 6


@compiled
def images(keys: PRNGKeyArray, turns: Array, places: Array, count: Array, n: int) -> Array:
    r"""Where the permutations of the runs (r,) in turns (T,) send places (T, b): units (r, T, b), of the first `count` turns.

    A unit is a pair of digits $(x, y)$, $i = x\,w + y$ with $w=\lceil\sqrt n\rceil$, and a round of the generalised Feistel
    network (Black and Rogaway 2002, section 5) adds to one digit a keyed hash of the other, modulo its range. Pairs beyond n,
    fewer than $\sqrt n$ of them, go through the network again until they fall below it (cycle walking).

    Args:
        turns: what is folded into the keys: an epoch or an iteration each. n: how many units, at most 2^31 - 1.
    """
    width = int(np.ceil(np.sqrt(n)))
    ranges = -(-n // width), width

    def network(seeds: Array, i: Array) -> Array:
        digits = [i // width, i % width]
        for j in range(ROUNDS):
            size = np.uint32(ranges[j % 2])
            added = digits[j % 2] + _below(_hashed(digits[1 - j % 2], seeds[j]), size)
            digits[j % 2] = jnp.where(added >= size, added - size, added)
        return digits[0] * np.uint32(width) + digits[1]

    def one(key: Array, turn: Array, places: Array) -> Array:
        seeds = jax.random.bits(jax.random.fold_in(key, turn), (ROUNDS,), jnp.uint32)
        walked = network(seeds, places.astype(jnp.uint32))

        def again(i: Array) -> Array:
            return jnp.where(i >= n, network(seeds, i), i)

        return jax.lax.while_loop(lambda i: jnp.any(i >= n), again, walked).astype(jnp.int32)

    def all_turns(key: Array) -> Array:
        def turn(t: Array, found: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(found, one(key, turns[t], places[t]), t, 0)

        return jax.lax.fori_loop(0, count, turn, jnp.zeros(places.shape, jnp.int32))

    return jnp.stack([all_turns(key) for key in keys])


def _hashed(digit: Array, seed: Array) -> Array:
    """Bits of 32 that all depend on all of the digit's and the seed's (the finaliser of MurmurHash3)."""
    h = digit ^ seed
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> shift)) * np.uint32(factor)
    return h ^ (h >> 16)


def _below(h: Array, size: np.uint32) -> Array:
    """A hash scaled to the numbers below a size of at most 2^16: the upper half of their product, in words of 32 bits."""
    return ((h >> 16) * size + ((h & 0xFFFF) * size >> 16)) >> 16
