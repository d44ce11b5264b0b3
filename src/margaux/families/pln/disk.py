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


def _blocks(counts: Any) -> Iterator[np.ndarray]:
    """Rows of whole chunks."""
    n, p = counts.shape
    chunks = getattr(counts, "chunks", None)
    rows = chunks[0] if chunks and isinstance(chunks[0], int) else 1
    size = rows * max(BLOCK // (rows * p), 1)
    for first in range(0, n, size):
        block = np.asarray(counts[first : first + size])
        # SciPy's sparse arrays hold no half precision and no foreign order of bytes.
        yield block.astype(np.float32 if block.dtype == np.float16 else block.dtype.newbyteorder("="), copy=False)
