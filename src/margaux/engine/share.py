"""The units that one process holds of a fit over several, and what the processes tell each other."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from ..numerics.arrays import is_key, resized
from ..numerics.ladder import rung
from .stored import Rows

#: bytes of an error's sentence that the other processes are told
SENTENCE = 400
#: processes among which the owner of a unit is found by comparing
FEW = 16


@dataclasses.dataclass(frozen=True)
class Share:
    """Consecutive units of each process. Of one process, which may be one of several that fit on their own, nothing is told to
    others: sums are what they are, and so are lists.

    Attributes:
        sizes: how many units each process holds, in the order of the processes. index: of this process.
        whole: whether every process has the data and the rows of all units, of which it visits its own.
    """

    sizes: tuple[int, ...]
    index: int
    whole: bool = False

    @staticmethod
    def equal(n: int) -> Share:
        """Of n units, as equal as may be over the processes that there are.

        Raises:
            ValueError: fewer units than processes.
        """
        count = jax.process_count()
        if n < count:
            raise ValueError(f"{n} units cannot be shared by {count} processes: start fewer")
        cuts = [n * p // count for p in range(count + 1)]
        return Share(tuple(int(size) for size in np.diff(cuts)), jax.process_index())

    @property
    def alone(self) -> bool:
        """Whether no other process has units."""
        return len(self.sizes) == 1

    @property
    def n(self) -> int:
        """Units of all processes."""
        return sum(self.sizes)

    @property
    def size(self) -> int:
        """Units of this process."""
        return self.sizes[self.index]

    @property
    def first(self) -> int:
        """The first of them."""
        return sum(self.sizes[: self.index])

    @property
    def before(self) -> int:
        """Units that come before those whose data are at hand."""
        return 0 if self.whole else self.first

    def cut(self, tree: PyTree) -> PyTree:
        """This process's units of data that are whole."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[self.first : self.first + self.size], tree)

    @property
    def padded(self) -> int:
        """Units of every process in programs: those beyond its own count for nothing."""
        return rung(max(self.sizes))

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """The number after that of the last unit of each process."""
        return np.cumsum(self.sizes)

    @property
    def mesh(self) -> Mesh:
        """One device of each process."""
        return processes_mesh()

    def owners(self, ids: np.ndarray) -> np.ndarray:
        """The process that holds each of some units."""
        if len(self.sizes) > FEW:
            return np.searchsorted(self.ends, ids, side="right")
        # Several times faster than a search for each.
        return sum((ids >= end for end in self.ends[:-1]), np.zeros(np.shape(ids), np.int8))

    # -- arrays of programs that run on all processes -----------------------------------------------

    def spread(self, tree: PyTree, axis: int = 0, size: int | None = None) -> PyTree:
        """This process's parts as its shares of arrays over all, filled up to `size` entries along an axis."""

        def one(leaf: Any) -> Any:
            if is_key(leaf):
                return jax.random.wrap_key_data(one(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
            part = np.asarray(resized(leaf, self.padded if size is None else size, axis))
            sharding = NamedSharding(self.mesh, PartitionSpec(*(None,) * axis, "units"))
            return jax.make_array_from_process_local_data(sharding, part)

        return jax.tree.map(one, tree)

    def own(self, tree: PyTree, axis: int = 0, size: int | None = None) -> PyTree:
        """This process's parts of arrays over all: the inverse of `spread`."""

        def one(leaf: Any) -> Any:
            if is_key(leaf):
                return jax.random.wrap_key_data(one(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
            part = jax.device_put(np.asarray(leaf.addressable_shards[0].data))
            return resized(part, self.size if size is None else size, axis)

        return jax.tree.map(one, tree)

    def here(self, tree: PyTree) -> PyTree:
        """What is the same in all processes, as this one's arrays."""
        return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)), tree)

    # -- what the processes tell each other ---------------------------------------------------------

    def gathered(self, tree: PyTree, ids: np.ndarray) -> PyTree:
        """Figures of some units (in their order) from those of this process alone."""
        owners = self.owners(ids)
        counts = np.bincount(owners, minlength=len(self.sizes))
        place = np.empty(len(ids), np.int64)
        order = np.argsort(owners, kind="stable")
        place[order] = np.concatenate([p * counts.max() + np.arange(count) for p, count in enumerate(counts)])

        def one(leaf: np.ndarray) -> np.ndarray:
            full = np.zeros((counts.max(), *leaf.shape[1:]), leaf.dtype)
            full[: len(leaf)] = leaf
            every = self.everyones(full)
            return every.reshape(-1, *leaf.shape[1:])[place]

        return jax.tree.map(one, tree)

    def summed(self, tree: PyTree) -> PyTree:
        """Sums over the processes, by one all-reduce in double precision; of one process the tree itself."""
        leaves, structure = jax.tree.flatten(tree)
        if self.alone or not leaves:
            return tree
        self._check_all_here()
        own = np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in leaves])
        with jax.enable_x64(True), losses():
            every = jax.make_array_from_process_local_data(NamedSharding(self.mesh, PartitionSpec("units")), own[None])
            total = np.array(added(self.mesh)(every))
        cuts = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
        parts = [part.reshape(np.shape(leaf)) for part, leaf in zip(np.split(total, cuts), leaves, strict=True)]
        return jax.tree.unflatten(structure, parts)

    def joined(self, own: np.ndarray) -> np.ndarray:
        """Arrays of the processes one after the other along their first axis, however long each is."""
        if self.alone:
            return own
        lengths = self.everyones(np.asarray(len(own)))
        full = np.zeros((lengths.max(), *own.shape[1:]), own.dtype)
        full[: len(own)] = own
        every = self.everyones(full)
        return np.concatenate([part[:length] for part, length in zip(every, lengths, strict=True)])

    def told(self, thing: Any) -> list[Any]:
        """What each process says: names, categories, small tables."""
        if self.alone:
            return [thing]
        data = np.frombuffer(pickle.dumps(thing), np.uint8)
        lengths = self.everyones(np.asarray(len(data)))
        ends = np.cumsum(lengths)
        every = self.joined(data)
        return [pickle.loads(every[end - length : end].tobytes()) for end, length in zip(ends, lengths, strict=True)]

    def some(self, count: int) -> Share:
        """The share of so many of this process's units, where the others choose some of theirs."""
        return Share(tuple(int(size) for size in self.everyones(np.asarray(count))), self.index)

    def everyones(self, value: np.ndarray) -> np.ndarray:
        """An array of each process (P, ...)."""
        if self.alone:
            return np.asarray(value)[None]
        self._check_all_here()
        return everyones(value)

    def _check_all_here(self) -> None:
        """Raises: RuntimeError: of a fit that was loaded by other processes than those that made it."""
        if jax.process_count() != len(self.sizes):
            raise RuntimeError(
                f"this is asked of the units of {len(self.sizes)} processes, and here {jax.process_count()} run: load the file "
                "of each in a process of its own, after margaux.distributed.initialize()"
            )

    def least(self, value: float) -> float:
        """Of all processes."""
        return self.everyones(np.asarray(value, float)).min().item()

    def largest(self, value: float) -> float:
        """Of all processes."""
        return self.everyones(np.asarray(value, float)).max().item()


@functools.cache
def processes_mesh() -> Mesh:
    """One device of each process."""
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    devices = [firsts[process] for process in sorted(firsts)]
    return jax.make_mesh((len(devices),), ("units",), axis_types=(AxisType.Auto,), devices=devices)


#: of what nobody shares, where the number of units is no matter
ALONE = Share((0,), 0)


@functools.cache
def added(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """The program that adds up rows (P, m) that lie one in each process: one all-reduce."""
    return jax.jit(lambda rows: jnp.sum(rows, axis=0), out_shardings=NamedSharding(mesh, PartitionSpec()))


@functools.cache
def collected(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """The program that brings rows (P, ...) that lie one in each process to all of them: one all-gather."""
    return jax.jit(lambda rows: rows, out_shardings=NamedSharding(mesh, PartitionSpec()))


class ProcessLost(RuntimeError):
    """Another process of the fit has ended before its time."""


def everyones(value: np.ndarray) -> np.ndarray:
    """An array of each process (P, ...).

    Raises:
        ProcessLost: one of them has ended.
    """
    mesh = processes_mesh()
    with jax.enable_x64(True), losses():
        every = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("units")), np.asarray(value)[None])
        return np.array(collected(mesh)(every))


@contextlib.contextmanager
def losses() -> Iterator[None]:
    """What a broken connection raises in the middle of a sum over processes becomes one sentence."""
    try:
        yield
    except Exception as error:
        broken = any(word in str(error) for word in ("Gloo", "NCCL", "nccl", "coordination"))
        if isinstance(error, ProcessLost) or not broken:
            raise
        raise ProcessLost(
            f"process {jax.process_index()} has lost another process of this fit (see what the others print, and whether one was "
            "killed); start all of them again: with checkpoint= the fit goes on from its last checkpoint, also over another "
            f"number of processes. {str(error).splitlines()[0][:200]}"
        ) from error


@contextlib.contextmanager
def together(several: bool) -> Iterator[None]:
    """What one process raises, all raise: none waits for one that has given up. With one process nothing is done.

    Raises:
        OSError: files failed another process. RuntimeError: anything else did.
    """
    if not several:
        yield
        return
    own: Exception | None = None
    try:
        yield
    except Exception as error:
        own = error
    told = np.zeros(SENTENCE + 1, np.uint8)
    if own is not None:
        data = np.frombuffer(f"{type(own).__name__}: {own}".encode()[:SENTENCE], np.uint8)
        told[0], told[1 : len(data) + 1] = 1 + isinstance(own, OSError), data
    every = everyones(told)
    if own is not None:
        raise own
    for process, (kind, *sentence) in enumerate(every):
        if kind:
            raised = OSError if kind == 2 else RuntimeError
            raise raised(f"process {process} gave up: {bytes(c for c in sentence if c).decode(errors='replace')}")


def check_alike(data: PyTree, *settings: Any) -> None:
    """Raises: ValueError: the units of the processes have other names, shapes or types, or their calls other settings."""
    units = str([(str(path), str(leaf.dtype), leaf.shape[1:]) for path, leaf in jax.tree_util.tree_flatten_with_path(data)[0]])
    numbers = [zlib.crc32(text.encode()) for text in (units, *map(str, settings))]
    every = everyones(np.array(numbers, np.int64))
    for place, what in enumerate(["names, shapes or types of the units", *("settings of the fit" for _ in settings)]):
        other = np.flatnonzero(every[:, place] != every[0, place])
        if other.size:
            raise ValueError(f"{what} differ between processes 0 and {other[0]}: every process makes the same call on data alike")


class Shard:
    """The units of this process as data of a fit over all: what `margaux.shard` returns.

    Attributes:
        data: pytree of arrays, this process's units on the leading axis. share: which of all they are.
    """

    def __init__(self, data: PyTree, share: Share) -> None:
        self.data, self.share = data, share

    def __repr__(self) -> str:
        last = self.share.first + self.share.size
        return f"Shard(units {self.share.first} to {last - 1} of {self.share.n}, process {self.share.index})"


def alone(share: Share | None, what: str) -> None:
    """Raises: TypeError: what sees all units in one process is asked of a fit over several."""
    if share is not None and not share.whole:
        raise TypeError(
            f"{what} of a fit over several processes would see the {share.size} units of this one alone, of {share.n}; use the "
            "estimate in one process: margaux.fit(..., params=fit.params, n_iter=1) on the units that are to be looked at"
        )


def split(data: Any) -> tuple[PyTree, Share | None]:
    """Data and the share that they are, None of one process's; rows that lie on disk are read."""
    if not isinstance(data, Shard):
        return data, None
    return jax.tree.map(lambda leaf: leaf[:] if isinstance(leaf, Rows) else leaf, data.data), data.share
