"""The part of mini-batches that each of several processes visits."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from ..numerics.arrays import is_key
from ..numerics.ladder import rung
from .batches import earlier_visits
from .share import FEW, Share


class Part:
    """One process's part of the batches of mini-batch fits."""

    def __init__(self, share: Share, b: int) -> None:
        self.share = share
        largest = max(share.sizes) / share.n
        mean, spread = b * largest, (b * largest * (1 - largest)) ** 0.5
        self.b = self._places(min(b, mean + 5 * spread + 1))

    @staticmethod
    def _places(size: float) -> int:
        # Of places to spare the arithmetic is done as well: finer steps than those of data.
        return rung(int(size), 256)

    def reach(self, ids: np.ndarray, capacity: int) -> int:
        """How many iterations of batches (runs, T, b) repeat no more than `capacity` units of any process in any run."""
        length, processes = ids.shape[1], len(self.share.sizes)
        for run in ids:
            iteration, place = np.nonzero(earlier_visits(run) == 1)
            cells = iteration * processes + self.share.owners(run[iteration, place])
            repeats = np.bincount(cells, minlength=len(run) * processes).reshape(len(run), processes)
            length = min(length, int(np.sum(np.all(np.cumsum(repeats, axis=0) <= capacity, axis=1))))
        return length

    def own(self, ids: np.ndarray) -> np.ndarray:
        """Of batches (runs, T, b) this process's units, by its own numbers, in as many places as that takes in any process.
        Places to spare have numbers beyond its units, each another one."""
        share, (runs, length, b) = self.share, ids.shape
        rows = runs * length
        flat = ids.reshape(rows, b)
        owners = share.owners(flat)
        counts = _counts(owners, len(share.sizes))
        self.b = max(self.b, self._places(counts.max()))
        kept = np.arange(share.size, share.size + rows * self.b, dtype=np.int32).reshape(rows, self.b)
        mine = owners == share.index
        kept[np.arange(self.b) < counts[:, share.index, None]] = flat[mine] - share.first
        return kept.reshape(runs, length, self.b)

    def names(self, own: np.ndarray) -> np.ndarray:
        """The numbers that units have among those of all processes; that of none for places to spare."""
        share = self.share
        return np.where(own < share.size, own + share.first, share.n).astype(np.int32)

    def spread(self, tree: PyTree, axis: int) -> PyTree:
        """As one array over all processes, of which this one's entries stay where they are."""
        mesh = self.share.mesh
        sharding = NamedSharding(mesh, PartitionSpec(*(None,) * axis, "units"))

        def one(leaf: jax.Array) -> jax.Array:
            shape = (*leaf.shape[:axis], leaf.shape[axis] * mesh.size, *leaf.shape[axis + 1 :])
            return jax.make_array_from_single_device_arrays(shape, sharding, [leaf])

        return _of_keys_too(one, tree)

    def local(self, tree: PyTree) -> PyTree:
        """This process's part of it, which goes where the whole goes that a program is given for good."""
        return _of_keys_too(lambda leaf: leaf.addressable_shards[0].data, tree)


def _counts(owners: np.ndarray, processes: int) -> np.ndarray:
    """How many units of each batch (rows, b) each process has: (rows, P)."""
    if processes <= FEW:
        return np.stack([np.count_nonzero(owners == process, axis=1) for process in range(processes)], axis=1)
    rows = len(owners)
    cells = owners + processes * np.arange(rows)[:, None]
    return np.bincount(cells.ravel(), minlength=rows * processes).reshape(rows, processes)


def _of_keys_too(one: Callable[[jax.Array], jax.Array], tree: PyTree) -> PyTree:
    """Of random keys what is done to their numbers."""

    def each(leaf: jax.Array) -> jax.Array:
        if is_key(leaf):
            return jax.random.wrap_key_data(one(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        return one(leaf)

    return jax.tree.map(each, tree)
