"""The two ways of running a chunk: all units every iteration, or some of them whose rows are streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..numerics.arrays import as_array, on_host, reshaped, resized
from ..numerics.ladder import rung
from ..problem.model import AbstractBatchSurrogate, AbstractWeighted
from .batches import CHUNK, buffer_capacity, chunk_size, plan_chunk, visits
from .loop import INIT, Carry, Visits, batch_chunk, full_chunk
from .rows import DeviceRows, HostRows
from .share import Part

if TYPE_CHECKING:
    from jaxtyping import Array

    from .job import Job
    from .share import Share


_IDS = INIT - 2

#: rows of all runs and units, flat
Store = DeviceRows | HostRows


class FullBatch:
    """Every iteration visits and rewrites every unit, so that rows (runs, n, ...) stay in the carry.

    Where the parts of the fit allow it there are more units than the data's, at most a quarter, which count for nothing: data
    of a similar size then find the same program.

    Attributes:
        total: iterations of a chunk at most. period: iterations of an epoch.
    """

    period = 1

    def __init__(self, job: Job, carry: Carry, store: Store) -> None:
        self.total, self.keys = CHUNK, stacked(job.keys)
        self.n, self.may_be_padded = job.n, may_be_padded(job)
        self.size = rung(job.n) if self.may_be_padded else job.n
        self.share, self.ids = job.share, None
        if self.share is not None:
            self.n, self.size = self.share.size, self.share.padded
            ids = np.arange(self.size, dtype=np.int32) + self.share.first
            self.ids = self.share.spread(np.where(np.arange(self.size) < self.n, ids, self.share.n).astype(np.int32))
            self.data = self.share.spread(job.data)
        else:
            self.data = job.data if self.size == self.n else jax.tree.map(lambda leaf: resized(leaf, self.size), job.data)
        self.carry = carry
        self.keep(store)

    def run(self, job: Job, length: int) -> tuple[int, PyTree]:
        """At most `length` iterations: how many there were, and their trace."""
        kept, moving = apart(self.carry)
        inputs = (job.settings, self.keys, self.data, self.ids, as_array(job.k + 1), as_array(length), kept)
        self.carry, trace = full_chunk(inputs, moving, total=self.total, mesh=job.mesh, may_be_padded=self.may_be_padded)
        self.carry = of_process(self.carry, self.share)
        return length, trace

    @property
    def store(self) -> Store:
        """The rows, flat."""

        def flat(leaf):
            leaf = resized(leaf, self.n, 1) if self.share is None else self.share.own(leaf, 1)
            return reshaped(leaf, (leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]))

        return DeviceRows(jax.tree.map(flat, self.carry.rows))

    def keep(self, store: Store) -> None:
        """Rows in place of those that are there."""

        def back(leaf):
            return resized(reshaped(leaf, (len(self.keys), self.n, *leaf.shape[1:])), self.size, 1)

        def empty(leaf):
            present = np.arange(self.size).reshape(-1, *(1,) * (leaf.ndim - 2)) < self.n
            return jax.device_put(np.where(present, leaf, 0).astype(leaf.dtype)) if on_host(leaf) else leaf * present

        estep, own = jax.tree.map(back, store.tree)
        # What the algorithm remembers of units that count for nothing is nothing.
        own = own if self.size == self.n else jax.tree.map(empty, own)
        rows = (estep, own) if self.share is None else self.share.spread((estep, own), 1)
        self.carry = self.carry._replace(rows=rows)


class MiniBatch:
    """Every iteration visits b units: the ids of a chunk are drawn first, their rows streamed through it and scattered after it.

    Units that repeat within a chunk are read from a small buffer in the carry, where there is room for it. Of several processes
    all draw the ids of the whole batch, and each visits those of its own units.
    """

    def __init__(self, job: Any, carry: Carry, store: Store) -> None:
        self.store, self.b, self.runs = store, job.batch_size, len(job.keys)
        self.part = Part(job.share, self.b) if job.share is not None else None
        self.period = max(job.n // self.b, 1)
        self.visit_keys = jnp.stack([jax.random.fold_in(key, _IDS) for key in job.keys])
        self.capacity = buffer_capacity(store.tree, job.n, self.b)
        buffer = jax.tree.map(self._empty_buffer, store.tree) if self.capacity else ()
        self.carry = carry._replace(rows=buffer if self.part is None else self.part.spread(buffer, 1))
        self.total = chunk_size(job.data, store.tree, job.n, self.b, self.runs, self.capacity, job.reshuffled)

    def _empty_buffer(self, leaf: Array | np.ndarray) -> Any:
        return jnp.zeros((self.runs, self.capacity + 1, *leaf.shape[1:]), leaf.dtype)

    def run(self, job: Job, length: int) -> tuple[int, PyTree]:
        """At most `length` iterations: how many there were, and their trace."""
        part, runs, total, capacity = self.part, self.runs, self.total, self.capacity
        visited = visits(self.visit_keys, job.n, self.b, job.k + 1, length, total, job.reshuffled)
        # Numbers from n on are of no unit.
        visited, n = (visited, job.n) if part is None else (part.own(visited), part.share.size)
        b = visited.shape[-1]
        ids = np.zeros((runs, total, b), np.int32)
        ids[:, :length] = visited
        planned = length
        plans = [plan_chunk(ids[r, :length], capacity) for r in range(runs)]
        length = min(plan[0] for plan in plans)
        length = length if part is None else int(part.share.least(length))
        if length < planned:
            plans = [plan_chunk(ids[r, :length], capacity) for r in range(runs)]
        slots = np.full((runs, total, b), capacity, np.int32)
        slots[:, :length] = [plan[1] for plan in plans]
        owners = np.stack([plan[2] for plan in plans])
        offset = n * np.arange(runs)[:, None]
        if capacity:
            held = self.store.take(np.where(owners >= 0, owners + offset, 0))
            buffer = self.carry.rows if part is None else part.local(self.carry.rows, 1)
            filled = jax.tree.map(lambda old, new: old.at[:, : new.shape[1]].set(new), buffer, held)
            self.carry = self.carry._replace(rows=filled if part is None else part.spread(filled, 1))

        def times(leaf):
            return np.moveaxis(leaf, 0, 1)

        there = np.minimum(ids, n - 1)
        flat = there + offset[:, :, None]
        named = times(ids if part is None else part.names(ids))
        streamed = Visits(jnp.asarray(named), jnp.asarray(times(slots)), job.units(times(there)), self.store.take(times(flat)))
        kept, moving = apart(self.carry)
        inputs = (job.settings, jnp.stack(job.keys), streamed, as_array(job.k + 1), as_array(length), kept)
        if part is None:
            self.carry, (trace, rows) = batch_chunk(inputs, moving, total=total)
        else:
            spread = (*inputs[:2], part.spread(streamed, 2), *inputs[3:])
            self.carry, (trace, rows) = batch_chunk(spread, moving, total=total, mesh=job.mesh, b=self.b)
            self.carry, rows = of_process(self.carry, part.share), part.local(rows, 2)
        jax.block_until_ready(trace)  # what the chunk needed is gone before its rows are put back
        outside = runs * n
        once = (slots == capacity) & (np.arange(total) < length)[None, :, None] & (ids < n)
        self.store = self.store.put(times(np.where(once, flat, outside)), rows)
        if capacity:
            buffer = self.carry.rows if part is None else part.local(self.carry.rows, 1)
            held = jax.tree.map(lambda leaf: leaf[:, :-1], buffer)
            self.store = self.store.put(np.where(owners >= 0, owners + offset, outside), held)
        return length, trace

    def keep(self, store: Store) -> None:
        """Rows in place of those that are there."""
        self.store = store


def apart(carry: Carry) -> tuple[tuple[PyTree, PyTree], Carry]:
    """Params and average, which are still there if a chunk diverges, and the carry without them, which is donated."""
    return (carry.params, carry.average), carry._replace(params=None, average=None)


def of_process(carry: Carry, share: Share | None) -> Carry:
    """With what is the same in all processes as this one's arrays."""
    if share is None:
        return carry
    params, state, average = share.here((carry.params, carry.state, carry.average))
    return Carry(params, state, average, carry.rows)


def may_be_padded(job: Job) -> bool:
    """Whether units that count for nothing change nothing."""
    problem, algorithm, estep, _ = job.parts
    # In one process groups of a batch surrogate are worth more than programs that serve other sizes.
    whole = isinstance(problem.model, AbstractBatchSurrogate) and not (job.share and isinstance(problem.model, AbstractWeighted))
    alone = (job.mesh is None or job.share is not None) and not whole
    parts = [algorithm, estep, *(getattr(algorithm, name, algorithm) for name in ("statistic", "memory", "update"))]
    # One of a user's own may know its whole batch, whatever it inherits.
    ours = all(type(part).__module__.startswith("margaux.") for part in parts)
    return alone and ours and algorithm.may_be_padded and estep.may_be_padded


def stacked(trees: list[PyTree]) -> PyTree:
    """Of several runs, on a leading axis."""
    if len(trees) == 1:
        return jax.tree.map(lambda leaf: reshaped(leaf, (1, *jnp.shape(leaf))), trees[0])
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
