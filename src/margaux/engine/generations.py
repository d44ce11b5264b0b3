"""The files of a checkpoint: that of process 0, and beside it one of each other process, all of one generation or not used.

Process 0's file holds what all processes share and the rows of its own units, and names the generation that it belongs to. The
others' files are there, whole, before it takes the place of an earlier one, and files of an earlier generation are removed only
after that. So there is a whole set at every moment, whoever is killed. One process has the one file.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import storage
from .share import Share, everyones, together

if TYPE_CHECKING:
    from jaxtyping import Array


def write(path: Path, header: dict[str, Any], common: dict[str, Any], rows: dict[str, Any], share: Share | None) -> None:
    """Write a generation, each process its own rows (names -> arrays, flat over runs and units), and remove what came before.

    Raises:
        OSError: a process could not write; the files are those of before.
    """
    if share is None:
        storage.write(path, header, common | rows)
        _remove(path, None)
        return
    drawn = everyones(np.frombuffer(os.urandom(4), np.uint32))[0].item()
    generation = f"{header['k']}-{drawn:08x}"
    header = header | {"generation": generation, "sizes": share.sizes}
    try:
        with contextlib.ExitStack() as first:
            with together(True):
                if share.index == 0:
                    first.enter_context(storage.staged(path, header, common | rows))
                else:
                    about = {"kind": "shard", "generation": generation, "process": share.index}
                    storage.write(shard(path, generation, share.index, len(share.sizes)), about, rows)
    except BaseException:
        if share.index == 0:
            _remove(path, generation, others=False)
        raise
    if share.index == 0:
        _remove(path, generation)


def shard(path: Path, generation: str, process: int, processes: int) -> Path:
    """The file of a process other than the first."""
    return path.with_name(f"{path.name}.{generation}.{process}-of-{processes}")


def _remove(path: Path, generation: str | None, others: bool = True) -> None:
    """Remove the shards of all generations but one, or of that one alone, with what kills have left of them."""
    named = re.compile(re.escape(path.name) + r"\.(\d+-[0-9a-f]{8})\.\d+-of-\d+(\.tmp)?")
    with contextlib.suppress(OSError):  # they are in nobody's way
        for file in path.parent.iterdir():
            found = named.fullmatch(file.name)
            if found and (found[1] != generation) == others:
                file.unlink(missing_ok=True)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header of a checkpoint, and what all processes share.

    Raises:
        FileNotFoundError, ValueError: as `storage.read`.
    """
    return storage.read(path, without="rows/")


def check_agreed(path: Path, header: dict[str, Any], share: Share | None) -> None:
    """Raises: ValueError: processes have read different generations."""
    if share is None:
        return
    number = int(header.get("generation", "0-0").partition("-")[2], 16)
    every = everyones(np.array([header["k"], number], np.int64))
    if np.any(every != every[0]):
        raise ValueError(f"processes found different generations of the checkpoint {path}: a fit still writes it; start again")


def read_rows(
    path: Path, header: dict[str, Any], name: str, leaf: Array | np.ndarray, runs: int, n: int, share: Share | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of this process's units, whichever processes wrote them, some at a time: their places in its store, flat over runs and
    units, and the rows. `leaf` is one array of that store.

    Raises:
        ValueError: a file of another process is missing, damaged, or of another generation.
    """
    first, size = (0, n) if share is None else (share.first, share.size)
    begin = 0
    sizes = header.get("sizes", [n])
    for process, held in enumerate(sizes):
        begin, units = begin + held, range(begin, begin + held)
        if not held or units.stop <= first or units.start >= first + size:
            continue
        file, mend = path, storage.MEND
        if process > 0:
            file = shard(path, header["generation"], process, len(sizes))
            mend = f"put the file back as it was written, or delete {path} to begin again"
            _check(path, file, header["generation"], process, len(sizes), mend)
        template = np.broadcast_to(leaf.dtype.type(0), (runs * held, *leaf.shape[1:]))
        for ids, part in storage.read_parts(file, name, template, mend):
            run, unit = np.divmod(ids, held)
            unit = unit + units.start - first
            own = (unit >= 0) & (unit < size)
            yield run[own] * size + unit[own], part if own.all() else part[own]


def _check(path: Path, file: Path, generation: str, process: int, processes: int, mend: str) -> None:
    """Raises: ValueError: a process's file is not there, or not what the first one's says."""
    if not file.exists():
        raise ValueError(
            f"the checkpoint {path} was written by {processes} processes, and the file {file.name} of process {process} is not "
            f"beside it (all processes must see one folder); {mend}"
        )
    about, _ = storage.read(file, without="rows/", mend=mend)
    if (about.get("generation"), about.get("process")) != (generation, process):
        raise ValueError(f"{file} is of another checkpoint than {path}; {mend}")
