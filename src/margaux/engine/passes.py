"""Every unit visited at fixed parameters, part by part: where the rows of a fit come from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..numerics.arrays import as_array, resized
from ..numerics.compiling import shapes_of
from ..numerics.ladder import rung
from ..numerics.threads import in_turn
from .loop import INIT, Settings, begin, first_state, init_rows, latent_struct, visit_all
from .rows import PART_BYTES, DeviceRows, HostRows, Place, empty_rows, row_bytes
from .share import Share

_PASS = INIT - 1

#: units handled at once, at most
MOST = 4096


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Ids of n units in blocks of one size, made as they are asked for; the last id is repeated."""

    n: int
    size: int

    def __len__(self) -> int:
        return -(-self.n // self.size)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.block(first) for first in range(0, self.n, self.size))

    def block(self, first: int) -> np.ndarray:
        return np.minimum(np.arange(first, first + self.size), self.n - 1)


@dataclasses.dataclass(frozen=True)
class Passes:
    """Passes over the n units of the runs whose keys are given. `units` gives the data of some, of `size` bytes a unit.

    Blocks of units are visited side by side and put away in their order: the same bits on any number of threads. Of several
    processes each visits its own units, and sums are those of all.
    """

    settings: Settings
    dtype: np.dtype
    n: int
    keys: list[Any]
    units: Callable[[np.ndarray], PyTree]
    size: int
    share: Share | None = None

    @property
    def first(self) -> int:
        """The number of the first unit."""
        return 0 if self.share is None else self.share.first

    def summed(self, total: PyTree) -> PyTree:
        """Over all processes."""
        return total if self.share is None else self.share.summed(total)

    def blocks(self, rows: int) -> Blocks:
        """The units in blocks small in bytes of data and of `rows` a unit."""
        most = min(self.n, MOST, max(PART_BYTES // (self.size + rows), 1))
        return Blocks(self.n, rung(-(-self.n // -(-self.n // most))))

    def start(
        self, params: list[PyTree], data: PyTree, unit: PyTree, place: Place
    ) -> tuple[HostRows | DeviceRows, list[tuple[PyTree, PyTree]]]:
        """Rows of the E-step, and zeros for the algorithm's own (`unit` is the shape of a unit's statistic), flat over runs and
        units; and the state of algorithm and average of each run."""
        n, own = self.n, unit if self.settings.algorithm.has_rows else ()

        blocks = self.blocks(_bytes((latent_struct(self.settings.problem, params[0], data), own)))
        if len(blocks) == 1 and place == "device":  # without a trace for the shapes
            ids = blocks.block(0)
            units = self.units(ids)
            begun = [
                begin(self.settings, key, p, units, ids + self.first, unit) for key, p in zip(self.keys, params, strict=True)
            ]
            made, states = map(list, zip(*begun, strict=True))
            made = [jax.tree.map(lambda leaf: resized(leaf, n), rows) for rows in made]
            joined = jax.tree.map(lambda *leaf: jnp.concatenate(leaf), *made) if len(made) > 1 else made[0]
            return DeviceRows((joined, empty_rows(own, len(made) * n, place).tree)), states
        first = blocks.block(0)[:1]
        one = shapes_of(init_rows, self.settings, self.keys[0], params[0], self.units(first), jnp.asarray(first))
        one = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), one)
        store = empty_rows((one, own), len(self.keys) * n, place)
        kind, blocks = type(store), self.blocks(_bytes((one, own)))
        rows = kind(store.tree[0])
        for r, (key, p) in enumerate(zip(self.keys, params, strict=True)):

            def made_of(ids, key=key, p=p):
                return jax.block_until_ready(init_rows(self.settings, key, p, self.units(ids), ids + self.first))

            for ids, made in zip(blocks, in_turn(made_of, blocks, self.dtype), strict=True):
                rows = rows.put(ids + r * n, made)
        return kind((rows.tree, store.tree[1])), [first_state(self.settings, p, unit) for p in params]

    def visit(self, params: list[PyTree], store: HostRows | DeviceRows, k: int) -> tuple[Any, list[PyTree]]:
        """Rows after an E-step, written in place (flat over runs and units), and each run's sum of statistics."""
        totals = []
        for r, (key, p) in enumerate(zip(self.keys, params, strict=True)):
            store, total = self._visited(jax.random.fold_in(key, _PASS), p, store, r * self.n, k)
            totals.append(jax.tree.map(lambda leaf, row: jnp.asarray(leaf, row.dtype), self.summed(total), store.tree[1]))
        return store, totals

    def _visited(self, key: Any, params: PyTree, store: HostRows | DeviceRows, offset: int, k: int) -> tuple[Any, PyTree]:
        """Of one run, whose rows begin at `offset`."""
        blocks = self.blocks(row_bytes(store.tree))
        # In double precision: what is lost here stays lost, in a running total.
        total = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:]), store.tree[1])

        def taken():
            for ids in blocks:  # on this thread, which writes them
                yield ids, type(store)(store.tree[0]).take(ids + offset)

        def visit(part):
            ids, rows = part
            units = self.units(ids)
            return jax.block_until_ready(visit_all(self.settings, key, params, rows, units, ids + self.first, as_array(k)))

        for ids, (rows, part) in zip(blocks, in_turn(visit, taken(), self.dtype), strict=True):
            store = store.put(ids + offset, rows)
            jax.tree.map(lambda sum, leaf: np.add(sum, leaf, out=sum), total, part)
        return store, total

    def rest(self, params: list[PyTree], store: HostRows | DeviceRows, k: int) -> tuple[Any, list[PyTree]]:
        """Rows of units whose scores are taken to be zero, unseen; and each run's sum of them."""
        n, kind, totals = self.n, type(store), []
        algorithm: Any = self.settings.algorithm  # one without a first pass
        own, blocks = kind(store.tree[1]), self.blocks(row_bytes(store.tree))

        def repeated(b):
            return lambda leaf: jnp.broadcast_to(leaf, (b, *leaf.shape))

        for r, p in enumerate(params):
            row = algorithm.at_rest(p)
            for ids in blocks:
                own = own.put(ids + r * n, jax.tree.map(repeated(len(ids)), row))
            totals.append(jax.tree.map(lambda leaf: (n if self.share is None else self.share.n) * leaf, row))
        return kind((store.tree[0], own.tree)), totals


def _bytes(struct: PyTree) -> int:
    """Of one unit, given its shapes."""
    return sum(s.size * s.dtype.itemsize for s in jax.tree.leaves(struct))
