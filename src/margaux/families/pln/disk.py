"""Tables of counts that lie on disk, read a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy

from .counts import BLOCK

#: share of non-zero entries from which on a table is kept dense
DENSE = 0.25


def on_disk(counts: Any) -> bool:
    """Whether this is a memory map, or an array that is stored in chunks (zarr, HDF5)."""
    return isinstance(counts, np.memmap) or (hasattr(counts, "chunks") and hasattr(counts, "shape"))


def from_disk(counts: Any) -> Any:
    """A table (n, p) of numbers with many zeros as a SciPy CSR array of what is not zero. A memory map with few zeros stays on
    disk, another table becomes an array. Zeros and shapes are all that is looked at.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     table = np.memmap(file, np.int32, shape=(3, 8))
    ...     table[1, 2] = 7
    ...     from_disk(table).todense().tolist()[1]
    [0, 0, 7, 0, 0, 0, 0, 0]
    """
    if counts.ndim != 2 or counts.dtype.kind not in "buif" or 0 in counts.shape:
        return np.asarray(counts)
    parts, stored = [], 0
    for block in _blocks(counts):
        parts.append(scipy.sparse.csr_array(block))
        stored += parts[-1].nnz
        if stored > DENSE * counts.shape[0] * counts.shape[1]:
            return counts if isinstance(counts, np.memmap) else np.asarray(counts)
    return scipy.sparse.vstack(parts, format="csr") if len(parts) > 1 else parts[0]


def sparse_rows(stored: Any, rows: slice) -> Any:
    """Rows of a matrix that a backed AnnData has stored in compressed form, as CSR: their entries alone are read.

    Raises:
        ValueError: it is stored by columns, where every row is everywhere.
    """
    group = stored.group
    if stored.format != "csr":
        raise ValueError(
            "the counts are stored by columns (CSC), so that a process would read all of them to have its rows; write .X as CSR "
            "(adata.X = adata.X.tocsr()) before they are shared"
        )
    starts = np.asarray(group["indptr"][rows.start : rows.stop + 1])
    data, indices = (np.asarray(group[name][starts[0] : starts[-1]]) for name in ("data", "indices"))
    return scipy.sparse.csr_array((data, indices, starts - starts[0]), shape=(len(starts) - 1, stored.shape[1]))


def _blocks(counts: Any) -> Iterator[np.ndarray]:
    """Rows of whole chunks, which of a share of the rows may begin within one."""
    n, p = counts.shape
    chunks = getattr(counts, "chunks", None)
    rows = chunks[0] if chunks and isinstance(chunks[0], int) else 1
    size = rows * max(BLOCK // (rows * p), 1)
    ends = [*range(size - getattr(counts, "first", 0) % rows, n, size), n]
    for first, last in zip([0, *ends], ends, strict=False):
        block = np.asarray(counts[first:last])
        # SciPy's sparse arrays hold no half precision and no foreign order of bytes.
        yield block.astype(np.float32 if block.dtype == np.float16 else block.dtype.newbyteorder("="), copy=False)
