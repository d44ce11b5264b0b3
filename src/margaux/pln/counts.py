"""A table of counts, dense or sparse, as fits read it: products with it and a few sums, never a dense copy of a sparse one."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from jaxtyping import Float


class Counts:
    """Counts Y (n, p): an array, or a SciPy sparse matrix, which stays sparse.

    Args:
        values: counts of at least zero.
    """

    def __init__(self, values: Any) -> None:
        self.values: Any = values.tocsr() if scipy.sparse.issparse(values) else np.asarray(values)
        self.n, self.p = self.values.shape

    @property
    def entries(self) -> np.ndarray:
        """What is stored, flat."""
        return np.asarray(self.values.data) if scipy.sparse.issparse(self.values) else self.values.ravel()

    def times(self, right: Float[np.ndarray, "p q"]) -> Float[np.ndarray, "n q"]:
        """Y R."""
        return np.asarray(self.values @ right)

    def transposed_times(self, right: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "p q"]:
        """Y' R."""
        return np.asarray(self.values.T @ right)

    def log_factorials(self) -> float:
        r"""$\sum_{ij}\log y_{ij}!$, in float64."""
        found, times = np.unique(self.entries, return_counts=True)
        return float(times @ scipy.special.gammaln(found.astype(float) + 1))

    def column_sums(self) -> Float[np.ndarray, " p"]:
        """Sums over units."""
        return np.asarray(self.values.sum(axis=0), float).ravel()

    def row_sums(self) -> Float[np.ndarray, " n"]:
        """Sums over features."""
        return np.asarray(self.values.sum(axis=1), float).ravel()
