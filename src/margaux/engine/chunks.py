"""Chunks of iterations that visit all units, and what they share with those that visit some (`margaux.engine.minibatch`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..numerics.arrays import as_array, on_host, reshaped, resized
from ..numerics.ladder import rung
from ..problem.model import AbstractBatchSurrogate, AbstractWeighted
from .batches import CHUNK
from .loop import Carry, full_chunk
from .rows import DeviceRows, HostRows

if TYPE_CHECKING:
    from .job import Job
    from .share import Share


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
    #: seconds in which the device had nothing to do, of the latest chunk
    waited = 0.0

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

    def close(self) -> None:
        """Nothing goes on beside the chunks."""


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
