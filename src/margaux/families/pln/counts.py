"""A table of counts, dense or sparse, as fits read it: a block of rows at a time, never a dense copy of a sparse table nor a
second copy of any. Its units may be one process's share of those of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float

from ...engine.share import Share

#: entries of a block of rows, at most
BLOCK = 1 << 22


class Counts:
    """Counts Y (n, p): an array, which may lie on disk as a memory map, or a SciPy sparse matrix, which stays sparse.

    What is said of units is said of the n of this process. Sums over units are over those of all, and all ask for them together.

    Args:
        values: counts of at least zero. share: which units of all they are; all of them unless given.

    >>> counts = Counts([[1, 0], [2, 3]])
    >>> counts.times(np.eye(2)).tolist(), counts.row_sums(np.sqrt).round(3).tolist()
    ([[1.0, 0.0], [2.0, 3.0]], [1.0, 3.146])
    """

    def __init__(self, values: Any, share: Share | None = None) -> None:
        self.values: Any = values.tocsr() if scipy.sparse.issparse(values) else np.asarray(values)
        self.n, self.p = self.values.shape
        self.share = Share((self.n,), 0) if share is None else share

    def blocks(
        self, dtype: np.dtype | type = np.float64, of: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> Iterator[tuple[slice, Any]]:
        """Blocks of rows of f(Y), entries of the given dtype, with the places of their rows; `of` is an f with f(0) = 0."""
        change = of or (lambda entries: entries)
        for span in self._spans():
            if scipy.sparse.issparse(self.values):
                starts = self.values.indptr[span.start : span.stop + 1]
                stored = slice(starts[0], starts[-1])
                parts = (
                    change(self.values.data[stored].astype(dtype, copy=False)),
                    self.values.indices[stored],
                    starts - starts[0],
                )
                yield span, scipy.sparse.csr_array(parts, shape=(len(starts) - 1, self.p))
            else:
                yield span, change(self.values[span].astype(dtype, copy=False))

    def times(self, right: Float[np.ndarray, "p q"], of: Callable | None = None) -> Float[np.ndarray, "n q"]:
        """f(Y) R, of the dtype of R."""
        right = np.asarray(right)
        parts = (block @ right for _, block in self.blocks(right.dtype, of))
        return np.concatenate([np.zeros((0, right.shape[1]), right.dtype), *parts])

    def transposed_times(self, right: Float[np.ndarray, "n q"], of: Callable | None = None) -> Float[np.ndarray, "p q"]:
        """f(Y)' R, of the dtype of R; blocks add up in float64."""
        return self.share.summed(self.own_transposed_times(right, of)).astype(np.asarray(right).dtype)

    def own_transposed_times(self, right: Float[np.ndarray, "n q"], of: Callable | None = None) -> Float[np.ndarray, "p q"]:
        """The part of this process's units, in float64."""
        right = np.asarray(right)
        total = np.zeros((self.p, right.shape[1]))
        for span, block in self.blocks(right.dtype, of):
            total += block.T @ right[span]
        return total

    def row_sums(self, of: Callable | None = None) -> Float[np.ndarray, " n"]:
        """Sums of f(Y) over features."""
        return self.times(np.ones((self.p, 1)), of)[:, 0]

    def column_sums(self, of: Callable | None = None) -> Float[np.ndarray, " p"]:
        """Sums of f(Y) over all units."""
        return self.transposed_times(np.ones((self.n, 1)), of)[:, 0]

    def row_products(self, weights: Float[np.ndarray, "n o"]) -> Float[np.ndarray, " n"]:
        r"""$\sum_jy_{ij}w_{ij}$, for weights (n, 1) or (n, p)."""
        if weights.shape[1] == 1:
            return self.row_sums() * weights[:, 0]
        parts = (np.asarray((block * weights[span]).sum(axis=1), float) for span, block in self.blocks())
        return np.concatenate([np.zeros(0), *parts])

    def row_log_factorials(self) -> Float[np.ndarray, " n"]:
        r"""$\sum_j\log y_{ij}!$, in float64."""
        return self.row_sums(lambda entries: scipy.special.gammaln(entries + 1))

    def _spans(self) -> Iterator[slice]:
        """Rows whose stored entries fill a block, or single rows that hold more."""
        sparse = scipy.sparse.issparse(self.values)
        ends = self.values.indptr if sparse else np.arange(self.n + 1) * self.p
        first = 0
        while first < self.n:
            last = max(int(np.searchsorted(ends, int(ends[first]) + BLOCK, "right")) - 1, first + 1)
            yield slice(first, min(last, self.n))
            first = last
