"""Rows of tables that lie on disk."""

from __future__ import annotations

from typing import Any

import numpy as np


class Rows:
    """Consecutive rows of an array that is stored in chunks (zarr, HDF5), or of an AnnData, which are read when asked for.

    Args:
        stored: what holds them, among others. first, last: the first of them, and the one after the last.

    >>> rows = Rows(np.arange(20).reshape(10, 2), 3, 7)
    >>> rows.shape, rows[1:3].tolist()
    ((4, 2), [[8, 9], [10, 11]])
    """

    def __init__(self, stored: Any, first: int, last: int) -> None:
        self.stored, self.first, self.last = stored, first, last

    @property
    def shape(self) -> tuple[int, ...]:
        """With the number of these rows first."""
        return (self.last - self.first, *self.stored.shape[1:])

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.stored.shape)

    @property
    def dtype(self) -> np.dtype:
        """Of the entries."""
        return self.stored.dtype

    @property
    def chunks(self) -> Any:
        """In which the array is stored, None where that is not said."""
        return getattr(self.stored, "chunks", None)

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, step = rows.indices(len(self))
        return np.asarray(self.stored[self.first + start : self.first + stop : step])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __repr__(self) -> str:
        return f"Rows({self.first} to {self.last - 1} of {self.stored!r})"
