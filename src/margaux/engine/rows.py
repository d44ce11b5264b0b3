"""Where per-unit rows live: device memory, host memory, or files in a folder."""

from __future__ import annotations

import functools
import mmap
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

#: "device", "host", or a folder
Place: TypeAlias = str | Path

#: bytes of data and rows handled at a time, where all units are visited, saved or read
PART_BYTES = 1 << 23
#: bytes of a file that are mapped into memory at a time
SPAN_BYTES = 1 << 23


class DeviceRows(eqx.Module):
    """Rows in device memory; `put` writes in place (its buffer is donated)."""

    tree: PyTree

    def take(self, ids: np.ndarray) -> PyTree:
        return _gather(self.tree, ids)

    def put(self, ids: np.ndarray, rows: PyTree) -> DeviceRows:
        return DeviceRows(_scatter(self.tree, ids, rows))


class HostRows(eqx.Module):
    """Rows in host memory or in memmaps, gathered and scattered by NumPy with one copy each way."""

    tree: PyTree

    def take(self, ids: np.ndarray) -> PyTree:
        return jax.tree.map(jax.device_put, self.read(ids))

    def read(self, ids: np.ndarray, length: int | None = None) -> PyTree:
        """As `take`, in arrays of NumPy's that a device array can be without a copy; see `entries`."""
        return jax.tree.map(lambda leaf: entries(leaf, ids, length=length), self.tree)

    def put(self, ids: np.ndarray, rows: PyTree) -> HostRows:
        flat = np.ravel(ids)

        def write(leaf: np.ndarray, new: Array) -> np.ndarray:
            values = np.asarray(new).reshape((-1,) + leaf.shape[1:])
            inside = flat < leaf.shape[0]
            count = int(inside.sum())
            # A slice is a view, a mask a copy.
            kept = slice(count) if inside[:count].all() else inside
            for places in _spans(leaf, flat[kept]):
                leaf[flat[kept][places]] = values[kept][places]
                release(leaf)
            return leaf

        return HostRows(jax.tree.map(write, self.tree, rows))


@jax.jit
def _gather(tree: PyTree, ids: Array) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[ids], tree)


@functools.partial(jax.jit, donate_argnums=0)
def _scatter(tree: PyTree, ids: Array, rows: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf, new: leaf.at[ids].set(new, mode="drop"), tree, rows)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array that a device array on a CPU can be without a copy: it begins at a multiple of 64 bytes."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + size].view(dtype).reshape(shape)


def entries(leaf: np.ndarray, ids: np.ndarray, dtype: np.dtype | None = None, length: int | None = None) -> np.ndarray:
    """Entries by number along the leading axis (*ids.shape, ...), in an array of `_aligned`; of the first `length` of the leading
    axis of the ids alone, the others being zero.

    What a memmap has is read in the order of the file, a span at a time: of random entries all pages would be in memory.
    """
    out = _aligned(ids.shape + leaf.shape[1:], np.dtype(leaf.dtype if dtype is None else dtype))
    length = len(ids) if length is None else length
    out[length:] = 0
    flat = np.ravel(ids[:length])
    target = out[:length].reshape((len(flat), *leaf.shape[1:]))
    for places in _spans(leaf, flat):
        if isinstance(places, slice) and out.dtype == leaf.dtype:
            np.take(leaf, flat, axis=0, out=target, mode="clip")  # the mode that needs no second buffer
        else:
            target[places] = np.take(leaf, flat[places], axis=0, mode="clip")
        release(leaf)
    return out


def in_spans(leaf: Array | np.ndarray) -> bool:
    """Whether an array is a map of a file too large to be mapped as a whole."""
    return getattr(leaf, "_mmap", None) is not None and leaf.nbytes > SPAN_BYTES


def _spans(leaf: np.ndarray, ids: np.ndarray) -> Iterator[slice | np.ndarray]:
    """Places in some ids of a memmap, by spans of the file that are read or written together; of an array in memory all."""
    if not in_spans(leaf) or not ids.size:
        yield slice(None)
        return
    order = np.argsort(ids)
    span = max(SPAN_BYTES // row_bytes(leaf), 1)
    cuts = np.searchsorted(ids[order], np.arange(span, leaf.shape[0], span))
    yield from (places for places in np.split(order, cuts) if places.size)


def release(leaf: Array | np.ndarray) -> None:
    """Pages of a memmap go from the process's memory; what was written to them stays (the system writes it to the file)."""
    mapped = getattr(leaf, "_mmap", None)
    # What was written to a private map ("c") is nowhere else.
    if mapped is not None and getattr(leaf, "mode", None) != "c" and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def is_chunked(leaf: Any) -> bool:
    """Whether an array is stored in chunks elsewhere (zarr, HDF5)."""
    return hasattr(leaf, "chunks") and not isinstance(leaf, np.ndarray | jax.Array)


def row_bytes(rows: PyTree) -> int:
    """Bytes of one unit."""
    return max(sum(int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize for leaf in jax.tree.leaves(rows)), 1)


def empty_rows(struct: PyTree, n: int, where: Place) -> DeviceRows | HostRows:
    """Zeros for n units, `struct` being one unit's: "device", "host", or a folder, whose `rows_0.npy` and so on are replaced.

    Raises:
        ValueError: the folder has no room.
    """
    if where == "device":
        return DeviceRows(jax.tree.map(lambda s: jnp.zeros((n,) + s.shape, s.dtype), struct))
    if where == "host":
        return HostRows(jax.tree.map(lambda s: np.zeros((n,) + s.shape, s.dtype), struct))
    folder = Path(where)
    leaves, structure = jax.tree.flatten(struct)
    paths = [folder / f"rows_{i}.npy" for i in range(len(leaves))]
    for path in paths:
        path.unlink(missing_ok=True)  # not written over: the result of an earlier fit may still read it
    needed, free = n * sum(s.size * s.dtype.itemsize for s in leaves), shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"rows of {n} units are {needed / 1e9:.3g} GB, but there are {free / 1e9:.3g} GB free in {folder}; pass a folder "
            "on a larger disk"
        )
    files = [np.lib.format.open_memmap(p, "w+", s.dtype, (n, *s.shape)) for p, s in zip(paths, leaves, strict=True)]
    return HostRows(jax.tree.unflatten(structure, files))


def check_place(rows: str | Path) -> Place:
    """The place as "device", "host", or a folder that can be written. A path's folder is made, a mere word's is not.

    Raises:
        TypeError, ValueError: something else.
    """
    if not isinstance(rows, str | Path):
        raise TypeError(f'rows must be "device", "host" or a folder, got {rows!r} ({type(rows).__name__})')
    if rows in ("device", "host"):
        return rows
    folder = Path(rows).absolute()
    if isinstance(rows, str) and Path(rows).name == rows and not folder.is_dir():
        raise ValueError(f'rows must be "device", "host" or a folder, and there is no folder {rows!r}; make it, or pass a path')
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"rows cannot be kept in the folder {folder}: {error.strerror or error}; pass a folder that can be written, "
            'or rows="host" or "device"'
        ) from error
    return folder


def parts(leaf: Array | np.ndarray) -> Iterator[np.ndarray]:
    """An array of the host, a memmap or the device, some `PART_BYTES` of its leading axis at a time."""
    if not leaf.shape or leaf.nbytes <= PART_BYTES:
        yield np.asarray(leaf)
        return
    n = leaf.shape[0]
    size = min(max(PART_BYTES // row_bytes(leaf), 1), n)
    for first in range(0, n, size):
        if isinstance(leaf, np.ndarray):
            yield leaf[first : first + size]
            release(leaf)
        else:  # one program serves all parts: the last begins earlier, and is cut
            start = min(first, n - size)
            yield np.asarray(jax.lax.dynamic_slice_in_dim(leaf, start, size))[first - start :]
