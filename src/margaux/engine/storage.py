"""Arrays and a JSON header in one file, written atomically and read without pickle."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.lib.format import dtype_to_descr, read_array_header_1_0, read_magic, write_array_header_1_0

from ..numerics.naming import path_name
from .rows import PART_BYTES, parts, row_bytes

if TYPE_CHECKING:
    from jaxtyping import Array


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FORMAT = 1

#: what to do about a file that cannot be read
MEND = "delete it or pass another path"


def write(path: str | Path, header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Write to a neighbour and rename, so that a kill leaves the old file or the new one.

    The file is one of numpy.savez. Arrays of the host or the device go into it part by part: none is copied as a whole. The
    neighbour has one name, so that what a kill leaves of it is written over the next time; it is removed where writing fails.

    Raises:
        OSError: it cannot be written, or another process is writing it.
    """
    with staged(path, header, arrays):
        pass


@contextlib.contextmanager
def staged(path: str | Path, header: dict[str, Any], arrays: dict[str, Any]) -> Iterator[None]:
    """As `write`, of a file that takes its place where the block ends without an error, and is gone where it does not.

    Raises:
        OSError: as `write`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    text = json.dumps({"format": FORMAT, **header})
    arrays = {"__header__": np.frombuffer(text.encode(), np.uint8), **arrays}
    # Opened as it is: another process may be writing it.
    with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags & ~os.O_TRUNC, 0o666)) as file:
        _claim(file)
        try:
            file.truncate(0)
            with zipfile.ZipFile(file, "w") as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        about = {"descr": dtype_to_descr(array.dtype), "fortran_order": False, "shape": array.shape}
                        write_array_header_1_0(member, about)
                        for part in parts(array):
                            member.write(part.tobytes())
            file.flush()
            os.fsync(file.fileno())
            yield
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    os.replace(temporary, path)
    _settle_names(path.parent)


def _settle_names(folder: Path) -> None:
    """Have a rename outlive a power cut before anything counts on it, where the system can."""
    with contextlib.suppress(OSError):  # of systems that open no folders, or sync none
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _claim(file: Any) -> None:
    """Keep other processes from writing the same file, on systems that know locks.

    Raises:
        BlockingIOError: one does.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(errno.EWOULDBLOCK, "another process is writing it") from error
    except OSError:
        return  # a file system without locks


class _Mismatch(ValueError):
    """A file of ours that belongs to something else."""

    def __init__(self, name: str, leaf: Array | np.ndarray, found: Any) -> None:
        was = "nothing" if found is None else f"{found.dtype}{found.shape}"
        super().__init__(f"the file holds {was} where this fit has {leaf.dtype}{leaf.shape} ({name})")


@contextlib.contextmanager
def _readable(path: str | Path, mend: str = MEND) -> Iterator[None]:
    """Whatever a damaged file raises becomes one error that names the file, and how to mend it."""
    try:
        yield
    except (FileNotFoundError, _Mismatch):
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a margaux file, or is damaged ({error}); {mend}") from error


def read(path: str | Path, without: str | None = None, mend: str = MEND) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file by `write`, but for those whose names begin with `without`. `mend` as in `read_parts`.

    Raises:
        FileNotFoundError, ValueError: no such file, or one that is not ours.
    """
    with _readable(path, mend), np.load(path, allow_pickle=False) as file:
        names = [name for name in file.files if without is None or not name.startswith(without)]
        arrays = {name: file[name] for name in names}
        header = json.loads(bytes(arrays.pop("__header__")).decode())
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} has format {header.get('format')}, this version reads {FORMAT}; fit again")
    return header, arrays


def read_parts(path: str | Path, name: str, template: PyTree, mend: str = MEND) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One array part by part, with where it goes on the leading axis; its shape and dtype are those of `template`. `mend` says
    what to do about a damaged file.

    Raises:
        ValueError: another shape or dtype, or a damaged file.
    """
    with _readable(path, mend), zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            raise _Mismatch(name, template, None)
        with archive.open(f"{name}.npy") as member:
            read_magic(member)
            shape, _, dtype = read_array_header_1_0(member)
            if shape != template.shape or dtype != template.dtype:
                raise _Mismatch(name, template, jax.ShapeDtypeStruct(shape, dtype))
            size = row_bytes(template)
            count = max(PART_BYTES // size, 1)
            for first in range(0, shape[0], count):
                held = min(count, shape[0] - first)
                yield np.arange(first, first + held), np.frombuffer(member.read(held * size), dtype).reshape((held, *shape[1:]))


def flatten(prefix: str, tree: PyTree) -> dict[str, Any]:
    """Leaves of a pytree as named arrays, of the host or the device."""
    leaves = enumerate(jax.tree.leaves(tree))
    return {f"{prefix}/{i}": leaf if isinstance(leaf, jax.Array | np.ndarray) else np.asarray(leaf) for i, leaf in leaves}


def unflatten(prefix: str, template: PyTree, arrays: dict[str, np.ndarray]) -> PyTree:
    """The pytree of `flatten`, checked against a template of the same structure.

    Raises:
        ValueError: another structure, shape or dtype.
    """
    leaves, structure = jax.tree.flatten(template)
    out = []
    for i, leaf in enumerate(leaves):
        found = arrays.get(f"{prefix}/{i}")
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            raise _Mismatch(f"{prefix}/{i}", leaf, found)
        out.append(found)
    return jax.tree.unflatten(structure, out)


def describe(tree: PyTree) -> Any:
    """The structure of a pytree, as JSON; leaves are numbered.

    JSON cannot name a class: a container that is no dict, list or tuple becomes an ordered dict by the names of what it holds.
    """
    counter = iter(range(1 << 30))

    def walk(node: Any) -> Any:
        if node is None:
            return None
        if type(node) is dict:
            return {"dict": {name: walk(node[name]) for name in sorted(node)}}
        if type(node) in (list, tuple):
            return {type(node).__name__: [walk(item) for item in node]}
        inside, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda item: item is not node)
        if len(inside) == 1 and inside[0][1] is node:
            return next(counter)
        return {"ordered": {path_name(path): walk(item) for path, item in inside}}

    return walk(tree)


def rebuild(structure: PyTree) -> PyTree:
    """The pytree of `describe`, with leaf numbers for leaves."""
    if structure is None or isinstance(structure, int):
        return structure
    (kind, content), *_ = structure.items()
    if kind in ("dict", "ordered"):
        return (dict if kind == "dict" else OrderedDict)((name, rebuild(item)) for name, item in content.items())
    return (list if kind == "list" else tuple)(rebuild(item) for item in content)


def fill(template: PyTree, prefix: str, arrays: dict[str, np.ndarray]) -> PyTree:
    """A rebuilt pytree with its arrays in place of leaf numbers."""
    return jax.tree.map(lambda i: arrays[f"{prefix}/{i}"], template)


def numbered(params: PyTree, arrays: dict[str, np.ndarray]) -> PyTree:
    """As `rebuild`, in the structure of given parameters.

    Raises:
        ValueError: others than those in the file.
    """
    leaves, structure = jax.tree.flatten(params)
    held = [arrays[f"params/{i}"].shape for i in range(sum(name.startswith("params/") for name in arrays))]
    if held != [np.shape(leaf) for leaf in leaves]:
        raise ValueError(
            f"params= has arrays of shapes {[np.shape(leaf) for leaf in leaves]}, the file {held}; pass those of the fit"
        )
    return jax.tree.unflatten(structure, range(len(leaves)))
