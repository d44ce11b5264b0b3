"""Units: which of them an iteration visits, how many visits a compiled chunk holds, and ragged ones."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from ..numerics.arrays import as_array
from ..numerics.compiling import compiled
from .permutation import images
from .rows import in_spans, row_bytes

#: iterations a compiled chunk holds at most, and bytes a mini-batch one streams: more from files, all of whose pages a chunk may
#: have to look at
CHUNK, CHUNK_BYTES, FROM_FILES = 1024, 1 << 26, 2
#: units up to which permutations are written out; those of more units are keyed ones, worked out where they are visited
WRITTEN_OUT = 100_000

#: bytes of rows that a chunk of single-unit batches keeps for units that repeat in it
BUFFER_BYTES = 1 << 16


def visits(keys: PRNGKeyArray, n: int, b: int, first: int, count: int, most: int, reshuffled: bool) -> np.ndarray:
    """Ids (runs, count, b) of the units of iterations first, first + 1, ...; they depend on a run's key and iteration alone.

    Reshuffled epochs are slices of a fresh permutation (its last n mod b units wait for another epoch);
    uniform draws are without replacement within an iteration. `keys` (runs,) has one key a run. What is compiled
    serves every count up to `most`. Beyond `WRITTEN_OUT` units nothing is of the size n: neither time nor memory.
    """
    per_epoch = n // b
    if n > WRITTEN_OUT:
        turns = first - 1 + np.arange(most) if reshuffled else first + np.arange(most)
        epochs, offsets = np.divmod(turns, per_epoch) if reshuffled else (turns, np.zeros_like(turns))
        places = b * offsets[:, None] + np.arange(b)
        found = images(keys, epochs.astype(np.int32), places.astype(np.int32), as_array(count), n)
        return np.asarray(found)[:, :count]
    if reshuffled:
        epoch, offset = divmod(first - 1, per_epoch)
        orders = _orders(_Keys(keys), n, epoch, -(-(offset + count) // per_epoch), (most - 2) // per_epoch + 2)
        return orders[:, :, : per_epoch * b].reshape(len(orders), -1, b)[:, offset : offset + count]
    if b * b > 2000 * n:
        return _permutations(keys, n, first, count, most)[:, :, :b]
    # Floyd's sampling of b of n: the j-th draw below n - b + j + 1, or that bound if it is taken.
    drawn = np.asarray(_candidates(keys, n, b, as_array(first), most))[:, :count]
    chosen = drawn.copy()
    for j in range(1, b):
        taken = np.any(chosen[..., :j] == drawn[..., j : j + 1], axis=-1)
        chosen[..., j][taken] = n - b + j
    return chosen


@compiled
def _candidates(keys: PRNGKeyArray, n: int, b: int, first: Array, most: int) -> Array:
    """The j-th of b draws (runs, most, b) lies below n - b + j + 1."""
    bounds = jnp.arange(n - b + 1, n + 1, dtype=jnp.int32)

    def draw(i: Array) -> Array:
        return jax.random.randint(jax.random.fold_in(keys[i // most], first + i % most), (b,), 0, bounds, jnp.int32)

    # One flat axis, not two, is what XLA compiles fast.
    return jax.vmap(draw)(jnp.arange(keys.size * most, dtype=jnp.int32)).reshape(keys.size, most, b)


class _Keys:
    """Keys that compare by value."""

    def __init__(self, keys: PRNGKeyArray) -> None:
        self.keys = keys
        self.bytes = np.asarray(jax.random.key_data(keys)).tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keys) and self.keys.dtype == other.keys.dtype and self.bytes == other.bytes

    def __hash__(self) -> int:
        return hash(self.bytes)


@functools.lru_cache(maxsize=1)
def _orders(keys: _Keys, n: int, epoch: int, count: int, most: int) -> np.ndarray:
    """The orders (runs, count, n) of epochs, kept for the next chunks of a long one."""
    return _permutations(keys.keys, n, epoch, count, most)


def _permutations(keys: PRNGKeyArray, n: int, first: int, count: int, most: int) -> np.ndarray:
    """Permutations (runs, count, n) of the units in turns first, first + 1, ...: epochs or iterations."""
    return np.asarray(_permuted(keys, n, as_array(first), as_array(count), most))[:, :count]


@compiled
def _permuted(keys: PRNGKeyArray, n: int, first: Array, count: Array, most: int) -> Array:
    units = jnp.arange(n, dtype=jnp.int32)

    def turn(t: Array, out: Array) -> Array:
        now = jax.vmap(lambda key: jax.random.permutation(jax.random.fold_in(key, first + t), units))(keys)
        return jax.lax.dynamic_update_index_in_dim(out, now, t, 1)

    return jax.lax.fori_loop(0, count, turn, jnp.zeros((keys.size, most, n), jnp.int32))


def buffer_capacity(rows: PyTree, n: int, b: int) -> int:
    """Rows the buffer of repeated units holds: the compiled loop copies it each iteration, so it grows with the batch.

    None where a single row is larger than that: chunks then end where a unit repeats.
    """
    fits = int(BUFFER_BYTES * b**0.5) // row_bytes(rows)
    return max(min(n, fits), b) if fits else 0


def chunk_size(data: PyTree, rows: PyTree, n: int, b: int, runs: int, capacity: int, reshuffled: bool, held: float = 1.0) -> int:
    """Iterations a compiled mini-batch chunk may hold: bounded in bytes, and by the repeats its buffer has room for.

    Args:
        held: the share of the units, and so of a batch's bytes, that one process has.
    """
    from_files = any(in_spans(leaf) for leaf in jax.tree.leaves((data, rows)))
    size = CHUNK_BYTES * (FROM_FILES if from_files else 1) / ((row_bytes(data) + 2 * row_bytes(rows) + 8) * b * held * runs)
    if capacity < n:
        fresh = n if reshuffled else (2 * n * max(capacity, 1)) ** 0.5
        size = min(size, (fresh + capacity) / b)
    return int(2 ** np.floor(np.log2(np.clip(size, 1, CHUNK))))


def same_epoch(first: int, last: int, period: int) -> bool:
    """Whether iterations from `first` to `last` lie in one epoch of `period` of them: reshuffled, they repeat no unit."""
    return (first - 1) // period == (last - 1) // period


def drawn_by(n: int, reshuffled: bool) -> str:
    """How ids are drawn, in a word that differs where they do."""
    return ("reshuffled" if reshuffled else "uniform") + (", keyed" if n > WRITTEN_OUT else "")


def earlier_visits(ids: np.ndarray) -> np.ndarray:
    """How often each unit of visits (T, b) was visited before."""
    flat = ids.ravel()
    order = np.argsort(flat, kind="stable")
    sorted_ids = flat[order]
    starts = np.r_[True, sorted_ids[1:] != sorted_ids[:-1]]
    rank = np.empty(flat.size, np.int64)
    rank[order] = np.arange(flat.size) - np.maximum.accumulate(np.where(starts, np.arange(flat.size), 0))
    return rank.reshape(ids.shape)


def plan_chunk(ids: np.ndarray, capacity: int) -> tuple[int, np.ndarray, np.ndarray]:
    """How far a chunk may go, where repeated units keep their rows, and which units those are.

    Rows are read before the chunk and written after it, so a unit visited twice keeps its row in a
    small buffer meanwhile. The chunk ends before more than `capacity` units repeat; units of one iteration differ.

    Args:
        ids: (T, b) visits. capacity: slots of the buffer, zero or at least b.

    Returns:
        length <= T; slot (T, b), `capacity` where there is none; the unit of each slot (capacity,), -1 if unused.
    """
    count, b = ids.shape
    flat, rank = ids.ravel(), earlier_visits(ids).ravel()
    repeats = np.cumsum((rank == 1).reshape(count, b).sum(axis=1))
    length = int(np.searchsorted(repeats, capacity, side="right"))
    owners = np.unique(flat[: length * b][rank[: length * b] == 1])
    unit_of_slot = np.full(capacity, -1, np.int32)
    unit_of_slot[: owners.size] = owners
    slot = np.full(flat.size, capacity, np.int32)
    if owners.size:
        at = np.minimum(np.searchsorted(owners, flat), owners.size - 1)
        slot = np.where(owners[at] == flat, at, capacity).astype(np.int32)
    return length, slot.reshape(count, b), unit_of_slot
