"""Chunks of iterations that visit some units: their data and rows are streamed, read ahead and written behind on one thread."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..numerics.arrays import as_array
from ..numerics.threads import Background, background
from .batches import buffer_capacity, chunk_size, plan_chunk, same_epoch, visits
from .chunks import Store, apart, of_process
from .loop import INIT, Carry, Visits, batch_chunk
from .part import Part
from .rows import DeviceRows

if TYPE_CHECKING:
    from jaxtyping import Array

    from .job import Job

_IDS = INIT - 2


class Planned(NamedTuple):
    """What is known of a chunk before the one before it has ended.

    Attributes:
        first, length: its first iteration, and how many there are. ids: numbers of the visited among the units held here
            (total, runs, b), from n on of none. flat: where their rows are. slots: in the buffer. owners: whose row each slot of
            the buffer keeps (runs, capacity), -1 of none; None where nothing repeats. streamed: what the program is given, but
            for rows.
    """

    first: int
    length: int
    ids: np.ndarray
    flat: np.ndarray
    slots: np.ndarray
    owners: np.ndarray | None
    streamed: Visits


class Ahead(NamedTuple):
    """A planned chunk with its rows as they were before the chunk before it, and where that chunk has newer ones.

    Attributes:
        rows, held: of the visits, and of the buffer's owners; None where rows stay on the device. newer: of both, places and
            where they are among the rows that the chunk before writes.
    """

    planned: Planned
    rows: PyTree
    held: PyTree
    newer: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None


class MiniBatch:
    """Every iteration visits b units: the ids of a chunk are drawn first, their rows streamed through it and scattered after it.

    Units that repeat within a chunk are read from a small buffer in the carry, where there is room for it. Of several processes
    all draw the ids of the whole batch, and each visits those of its own units.

    While a chunk runs, a thread writes the rows of the one before and reads data and rows of the next. Rows that both visit are
    those of the chunk that runs: they are put in place once it has ended. So the thread changes no bit.

    Attributes:
        waited: seconds in which the device had nothing to do, of the latest chunk.
    """

    def __init__(self, job: Job, carry: Carry, store: Store) -> None:
        size: Any = job.batch_size
        self._store, self.b, self.runs = store, size, len(job.keys)
        self.part = Part(job.share, self.b) if job.share is not None else None
        self.n = job.n if job.share is None else job.share.size
        self.period = max(job.n // self.b, 1)
        self.visit_keys = jnp.stack([jax.random.fold_in(key, _IDS) for key in job.keys])
        self.capacity = buffer_capacity(store.tree, job.n, self.b)
        buffer = jax.tree.map(self._empty_buffer, store.tree) if self.capacity else ()
        self.carry = carry._replace(rows=buffer if self.part is None else self.part.spread(buffer, 1))
        held = 1.0 if job.share is None else max(job.share.sizes) / job.n
        self.total = chunk_size(job.data, store.tree, job.n, self.b, self.runs, self.capacity, job.reshuffled, held)
        self.waited = 0.0
        self.thread: Background | None = None
        self.next: Future[Ahead] | None = None
        self.writing: list[Future[Any]] = []
        #: the chunk that has run, and the rows that it wrote
        self.latest: tuple[Planned, PyTree, PyTree] | None = None

    def _empty_buffer(self, leaf: Array | np.ndarray) -> Any:
        return jnp.zeros((self.runs, self.capacity + 1, *leaf.shape[1:]), leaf.dtype)

    # -- rows ---------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The rows, flat, once all are written. Whoever asks may change them: what was read ahead is forgotten."""
        self._forget()
        writing, self.writing = self.writing, []
        for written in writing:
            written.result()
        return self._store

    def keep(self, store: Store) -> None:
        """Rows in place of those that are there."""
        _ = self.store
        self._store = store

    def _forget(self) -> None:
        if self.next is not None and not self.next.cancel():
            self.next.exception()  # it reads no more
        self.next = self.latest = None

    def close(self) -> None:
        """The thread ends, with what it has to write."""
        self._forget()
        if self.thread is not None:
            for written in self.writing:
                written.exception()
            self.thread.close()
            self.thread = None

    # -- a chunk ------------------------------------------------------------------------------------

    def run(self, job: Job, length: int) -> tuple[int, PyTree]:
        """At most `length` iterations: how many there were, and their trace."""
        began = time.perf_counter()
        self.thread = self.thread or background(job.dtype)
        planned, rows, held = self._now(job, length)
        length = min(length, planned.length)
        if held is not None:
            buffer = self.carry.rows if self.part is None else self.part.local(self.carry.rows)
            filled = jax.tree.map(lambda old, new: old.at[:, : new.shape[1]].set(new), buffer, held)
            self.carry = self.carry._replace(rows=filled if self.part is None else self.part.spread(filled, 1))
        if self.thread is not None and (asked := job.asked_for(length)) > 0:
            # Before the program is begun, which has the cores.
            self.next = self.thread.begin(self._ahead, job, job.k + 1 + length, asked, planned._replace(length=length))
        kept, moving = apart(self.carry)
        visited = planned.streamed._replace(rows=rows if self.part is None else self.part.spread(rows, 2))
        inputs = (job.settings, jnp.stack(job.keys), visited, as_array(job.k + 1), as_array(length), kept)
        del rows, held, visited
        handed = time.perf_counter()
        if self.part is None:
            self.carry, (trace, rows) = batch_chunk(inputs, moving, total=self.total)
        else:
            self.carry, (trace, rows) = batch_chunk(inputs, moving, total=self.total, mesh=job.mesh, b=self.b)
        del inputs, moving
        jax.block_until_ready(trace)  # what the chunk needed is gone before its rows are put back
        back = time.perf_counter()
        if self.part is not None:
            self.carry, rows = of_process(self.carry, self.part.share), self.part.local(rows)
        self._put(planned._replace(length=length), rows)
        self.waited = time.perf_counter() - back + handed - began
        return length, trace

    def _now(self, job: Job, length: int) -> tuple[Planned, PyTree, PyTree]:
        """The chunk that begins now, its rows and those of its buffer's owners: read ahead, or now."""
        ahead, latest = self.next, self.latest
        self.next = self.latest = None
        found = None if ahead is None else ahead.result()
        if found is None or found.planned.first != job.k + 1:
            latest, _ = None, self.store
            found = self._ahead(job, job.k + 1, length, None)
        planned, rows, held, newer = found
        if isinstance(self._store, DeviceRows):
            held = None if planned.owners is None else self._store.take(self._slots(planned.owners, 0))
            return planned, self._store.take(planned.flat), held
        if newer is not None and latest is not None:
            _, written, buffer = latest
            rows, held = (_renewed(tree, at, written, buffer) for tree, at in zip((rows, held), newer, strict=True))
        return planned, jax.tree.map(jax.device_put, rows), jax.tree.map(jax.device_put, held)

    def _ahead(self, job: Job, first: int, count: int, before: Planned | None) -> Ahead:
        """A chunk planned, with its data and, from the host, its rows, given the one that runs meanwhile."""
        planned = self._planned(job, first, count)
        if isinstance(self._store, DeviceRows):
            return Ahead(planned, None, None, None)
        owners = None if planned.owners is None else self._slots(planned.owners, 0)
        rows, held = self._store.read(planned.flat, planned.length), None if owners is None else self._store.read(owners)
        within = before is not None and job.reshuffled and same_epoch(before.first, first + planned.length - 1, self.period)
        if before is None or within:
            return Ahead(planned, rows, held, None)
        written = np.concatenate([np.ravel(places) for places in self._written(before) if places is not None])
        return Ahead(planned, rows, held, (_both(planned.flat, written), _both(owners, written)))

    def _planned(self, job: Job, first: int, count: int) -> Planned:
        part, runs, total, capacity, n = self.part, self.runs, self.total, self.capacity, self.n
        if job.reshuffled and self.period >= total:  # no further than the epoch, in which nothing repeats
            count = min(count, self.period - (first - 1) % self.period)
        visited = visits(self.visit_keys, job.n, self.b, first, count, total, job.reshuffled)
        fresh = job.reshuffled and same_epoch(first, first + count - 1, self.period)
        if part is not None:
            # No process waits for the others here: each knows what all of them visit.
            length = count if fresh else part.reach(visited, capacity)
            count, visited = length, part.own(visited[:, :length])
        slots, owners = np.full((runs, total, visited.shape[-1]), capacity, np.int32), None
        if not fresh:
            plans = [plan_chunk(ids, capacity) for ids in visited]
            length = min(plan[0] for plan in plans)
            if length < count:
                plans = [plan_chunk(ids[:length], capacity) for ids in visited]
            count = length
            slots[:, :count] = [plan[1] for plan in plans]
            owners = np.stack([plan[2] for plan in plans])
            owners = owners if np.any(owners >= 0) else None
        ids = np.zeros((total, runs, visited.shape[-1]), np.int32)
        ids[:count] = np.moveaxis(visited[:, :count], 0, 1)
        slots = np.ascontiguousarray(np.moveaxis(slots, 0, 1))
        there = np.minimum(ids, n - 1)
        flat = there + n * np.arange(runs)[:, None]
        named = ids if part is None else part.names(ids)
        streamed = Visits(jnp.asarray(named), jnp.asarray(slots), job.units(there, length=count), ())
        return Planned(first, count, ids, flat, slots, owners, streamed if part is None else part.spread(streamed, 2))

    def _slots(self, owners: np.ndarray, empty: int) -> np.ndarray:
        """Where the rows of the buffer's owners are."""
        return np.where(owners >= 0, owners + self.n * np.arange(self.runs)[:, None], empty)

    def _written(self, planned: Planned) -> tuple[np.ndarray, np.ndarray | None]:
        """Where a chunk's rows go, those of visits and those of the buffer; to beyond all rows what goes nowhere."""
        outside = self.runs * self.n
        inside = (np.arange(self.total) < planned.length)[:, None, None] & (planned.ids < self.n)
        once = np.where((planned.slots == self.capacity) & inside, planned.flat, outside)
        return once, None if planned.owners is None else self._slots(planned.owners, outside)

    def _put(self, planned: Planned, rows: PyTree) -> None:
        buffer = None
        if planned.owners is not None:
            whole = self.carry.rows if self.part is None else self.part.local(self.carry.rows)
            buffer = jax.tree.map(lambda leaf: leaf[:, :-1], whole)
        if self.thread is None or isinstance(self._store, DeviceRows):
            self._store = self._with(planned, rows, buffer)
            return
        self.latest = planned, rows, buffer
        for written in [written for written in self.writing if written.done()]:
            self.writing.remove(written)
            written.result()
        self.writing.append(self.thread.begin(self._with, planned, rows, buffer))

    def _with(self, planned: Planned, rows: PyTree, buffer: PyTree) -> Store:
        """The store with a chunk's rows, written in place."""
        once, owned = self._written(planned)
        store = self._store.put(once, rows)
        return store if owned is None else store.put(owned, buffer)


def _both(ids: np.ndarray | None, written: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places in `ids` of what is also in `written`, whose numbers differ, and where it is there."""
    if ids is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(written, kind="stable")
    flat = np.ravel(ids)
    at = order[np.minimum(np.searchsorted(written, flat, sorter=order), written.size - 1)]
    places = np.flatnonzero(written[at] == flat)
    return places, at[places]


def _renewed(tree: PyTree, newer: tuple[np.ndarray, np.ndarray], written: PyTree, buffer: PyTree) -> PyTree:
    """Rows of NumPy's, in place, with newer ones by their number among the written and, after these, those of the buffer."""
    places, sources = newer
    if tree is None or not places.size:
        return tree
    count = np.prod(jax.tree.leaves(written)[0].shape[:3])
    visited = sources < count

    def one(leaf: np.ndarray, rows: Array, *kept: Array) -> np.ndarray:
        flat, tail = leaf.reshape(-1, *leaf.shape[leaf.ndim - rows.ndim + 3 :]), rows.shape[3:]
        flat[places[visited]] = np.asarray(rows).reshape(-1, *tail)[sources[visited]]
        if kept:
            flat[places[~visited]] = np.asarray(kept[0]).reshape(-1, *tail)[sources[~visited] - count]
        return leaf

    return jax.tree.map(one, tree, written, *([] if buffer is None else [buffer]))
