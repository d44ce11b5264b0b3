"""Units of a Parquet file, or of arrays that are stored in chunks, as memory maps that mini-batches can read unit by unit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.lib.format import dtype_to_descr, write_array_header_1_0

from ..engine.rows import check_place, row_bytes

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

#: rows of a table, and bytes of an array, that are read at a time
ROWS, BYTES = 1 << 16, 1 << 23

RECORD = "units.json"


def on_disk(
    source: str | Path | PyTree,
    folder: str | Path,
    *,
    columns: Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
    dtype: DTypeLike | None = None,
) -> Any:
    """Units copied once into files that `margaux.fit` reads unit by unit: memory maps in a folder.

    Parquet, zarr and HDF5 are decoded a group or chunk at a time, and a reshuffled mini-batch has units of all of them. Here each
    is decoded once, some rows at a time, so that memory stays small; the copy takes the size of the decoded numbers on disk. A
    Parquet file copied before, with the same columns and unchanged since (by size and time), is not copied again.

    Args:
        source: path of a Parquet file with one row a unit, or a pytree of arrays with units on the leading axis (zarr, HDF5).
        folder: where the copy goes: `units_0.npy` and so on.
        columns: of a Parquet file, names for one array (n, p), by default all; or a dict of them, whose arrays are (n,) for a
            single name and (n, p) for a list.
        dtype: of all arrays; by default that of what they hold.

    Returns:
        Memory maps in the structure of `source`, or of `columns`.

    Raises:
        ImportError: a Parquet file without pyarrow. TypeError, ValueError: columns that are not there, hold no numbers or have
            gaps, an empty table, or a folder without room.

    >>> import tempfile, numpy as np, margaux as mx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     units = mx.on_disk({"y": np.arange(6.0).reshape(3, 2)}, folder)
    ...     type(units["y"]).__name__, units["y"].shape, float(units["y"][2, 1])
    ('memmap', (3, 2), 5.0)
    """
    place = check_place(Path(folder))
    assert isinstance(place, Path)
    if isinstance(source, str | Path):
        return _from_parquet(Path(source), place, columns, dtype)
    if columns is not None:
        raise TypeError("columns= are those of a Parquet file; index arrays before they are passed")
    leaves, structure = jax.tree.flatten(source)
    for leaf in leaves:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype") or not leaf.shape:
            raise TypeError(f"units are arrays with a leading axis, or the path of a Parquet file; got a {type(leaf).__name__}")
    kinds = [np.dtype(leaf.dtype if dtype is None else dtype) for leaf in leaves]
    with _files(place, [(leaf.shape, kind) for leaf, kind in zip(leaves, kinds, strict=True)]) as files:
        for leaf, kind, file in zip(leaves, kinds, files, strict=True):
            for part in _slabs(leaf):
                np.ascontiguousarray(part, kind).tofile(file)
    (place / RECORD).unlink(missing_ok=True)
    return jax.tree.unflatten(structure, _maps(place, len(leaves)))


def _from_parquet(path: Path, folder: Path, columns: Any, dtype: DTypeLike | None) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError as problem:
        raise ImportError(f"{path.name} needs pyarrow; install it via: pip install 'margaux[parquet]'") from problem
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    # Through a buffer, not a group's columns as a whole.
    with parquet.ParquetFile(path, buffer_size=1 << 20) as table:
        wanted = columns if isinstance(columns, Mapping) else {"": list(table.schema_arrow.names if columns is None else columns)}
        names = list(dict.fromkeys(name for group in wanted.values() for name in _listed(group)))
        kinds = _kinds(table.schema_arrow, names, path)
        n = table.metadata.num_rows
        if n == 0:
            raise ValueError(f"{path.name} has no rows; pass a table with at least one unit")
        shapes = []
        for group in wanted.values():
            kind = np.result_type(*(kinds[name] for name in _listed(group))) if dtype is None else np.dtype(dtype)
            shapes.append(((n,) if isinstance(group, str) else (n, len(group)), kind))
        state = path.stat()
        record = {
            "source": str(path.absolute()),
            "bytes": state.st_size,
            "time": state.st_mtime_ns,
            "columns": list(wanted.values()),
            "arrays": [[list(shape), str(kind)] for shape, kind in shapes],
        }
        if not _copied(folder, record):
            (folder / RECORD).unlink(missing_ok=True)
            with _files(folder, shapes) as files:
                for part in _parts(table, names, path):
                    for group, (_, kind), file in zip(wanted.values(), shapes, files, strict=True):
                        one = part[group] if isinstance(group, str) else np.stack([part[name] for name in group], axis=1)
                        one.astype(kind, copy=False).tofile(file)
            (folder / RECORD).write_text(json.dumps(record))
    pa.default_memory_pool().release_unused()
    maps = _maps(folder, len(wanted))
    return dict(zip(wanted, maps, strict=True)) if isinstance(columns, Mapping) else maps[0]


def _listed(group: str | Sequence[str]) -> list[str]:
    return [group] if isinstance(group, str) else list(group)


def _kinds(schema: Any, names: list[str], path: Path) -> dict[str, np.dtype]:
    """The types of columns, all of numbers."""
    import pyarrow.types as types

    if not names:
        raise ValueError("columns= is empty; name at least one")
    out = {}
    for name in names:
        if name not in schema.names:
            raise ValueError(f"{path.name} has no column {name!r}; it has {', '.join(schema.names[:20])}")
        kind = schema.field(name).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise TypeError(f"column {name!r} of {path.name} is {kind}; encode it as numbers, or leave it out by columns=")
        out[name] = np.dtype(kind.to_pandas_dtype())
    return out


def _parts(table: Any, names: list[str], path: Path) -> Iterator[dict[str, np.ndarray]]:
    """Columns of some rows at a time.

    Raises: ValueError: a cell is empty.
    """
    first = 0
    for batch in table.iter_batches(ROWS, columns=names):
        for name in names:
            column = batch.column(name)
            if column.null_count:
                row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise ValueError(f"column {name!r} of {path.name} is empty in row {row}; fill it, or drop the row")
        yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in names}
        first += len(batch)


def _slabs(leaf: Any) -> Iterator[np.ndarray]:
    """An array some of its leading axis at a time, in whole chunks where it is stored in chunks."""
    chunk = (getattr(leaf, "chunks", None) or (1,))[0]
    chunk = chunk if isinstance(chunk, int) else 1
    size = max(BYTES // (row_bytes(leaf) * chunk), 1) * chunk
    for first in range(0, leaf.shape[0], size):
        yield np.asarray(leaf[first : first + size])


@contextlib.contextmanager
def _files(folder: Path, shapes: list[tuple[tuple[int, ...], np.dtype]]) -> Iterator[list[Any]]:
    """Files for arrays, which get their names once all are whole.

    Raises: ValueError: the folder has no room.
    """
    needed, free = sum(int(np.prod(shape)) * kind.itemsize for shape, kind in shapes), shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(f"the units are {needed / 1e9:.3g} GB, but there are {free / 1e9:.3g} GB free in {folder}")
    # Several processes may copy at the same time: each has its own, and the last one's stays.
    paths = [folder / f"units_{i}.{os.getpid()}.part" for i in range(len(shapes))]
    try:
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(path.open("wb")) for path in paths]
            for file, (shape, kind) in zip(files, shapes, strict=True):
                about = {"descr": dtype_to_descr(kind), "fortran_order": False, "shape": tuple(shape)}
                write_array_header_1_0(file, about)
            yield files
        for i, path in enumerate(paths):
            path.replace(folder / f"units_{i}.npy")
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _copied(folder: Path, record: dict[str, Any]) -> bool:
    """Whether the folder has what a record says."""
    try:
        known = json.loads((folder / RECORD).read_text())
        return known == record and all((folder / f"units_{i}.npy").is_file() for i in range(len(record["arrays"])))
    except (OSError, ValueError):
        return False


def _maps(folder: Path, count: int) -> list[np.ndarray]:
    return [np.load(folder / f"units_{i}.npy", mmap_mode="r") for i in range(count)]
