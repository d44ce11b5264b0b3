"""A fingerprint of data, by which others see that they have the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import scipy

#: numbers that go into the hash at a time, and at most
BLOCK, MOST = 1 << 20, 250_000_000


def checksum(*data: Any) -> str:
    """SHA-256 of arrays, data frames, sparse matrices, and dicts and sequences of them.

    Numbers count as float64, so that 1 and 1.0 are the same; text as UTF-8; shapes and names of columns and keys count, the
    index of a frame does not.

    Raises:
        ValueError: more than 250 million numbers.

    >>> checksum(np.arange(3)) == checksum([0.0, 1.0, 2.0]), len(checksum("text"))
    (True, 64)
    >>> checksum(pd.DataFrame({"a": [1, 2]})) == checksum(pd.DataFrame({"b": [1, 2]}))
    False
    """
    leaves = list(_leaves(data, ""))
    size = sum(np.size(leaf) for _, leaf in leaves)
    if size > MOST:
        raise ValueError(f"{size:,} numbers are more than the {MOST:,} that are hashed")
    code = hashlib.sha256()
    for name, leaf in leaves:
        array = np.asarray(leaf)
        code.update(f"{name}{array.shape}".encode())
        for first in range(0, max(array.size, 1), BLOCK):
            code.update(_bytes(array.reshape(-1)[first : first + BLOCK]))
    return code.hexdigest()


def _leaves(data: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(data, pd.DataFrame):
        for column in data.columns:
            yield f"{name}/{column}", data[column].to_numpy()
    elif scipy.sparse.issparse(data):
        rows = data.tocsr()
        yield from ((f"{name}/{part}", getattr(rows, part)) for part in ("indptr", "indices", "data"))
    elif isinstance(data, dict):
        for key in sorted(data, key=str):
            yield from _leaves(data[key], f"{name}/{key}")
    elif hasattr(data, "_fields"):
        for key in data._fields:
            yield from _leaves(getattr(data, key), f"{name}/{key}")
    elif isinstance(data, tuple):
        for place, one in enumerate(data):
            yield from _leaves(one, f"{name}/{place}")
    elif data is not None:
        yield name, data


def _bytes(flat: np.ndarray) -> bytes:
    if flat.dtype.kind in "biuf":
        return flat.astype("<f8").tobytes()
    return "\x1f".join(map(str, flat.tolist())).encode()
