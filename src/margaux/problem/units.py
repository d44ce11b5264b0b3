"""Data as units: all of it as one, or ragged ones padded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import PyTree

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def one_unit(data: PyTree) -> PyTree:
    """The whole data set as one unit, for a latent that all of it shares (leading axis 1).

    >>> import numpy as np, margaux as mx
    >>> mx.one_unit({"x": np.zeros((5, 2))})["x"].shape
    (1, 5, 2)
    """
    return jax.tree.map(lambda leaf: leaf[None], data)


def pad_ragged(values: PyTree, groups: ArrayLike, fill: float = 0.0) -> tuple[PyTree, np.ndarray]:
    """Pad the rows of a long table to one block a unit, with a mask.

    Args:
        values: dict of arrays (or a pandas frame) with N rows.
        groups: N unit labels, in any order; units come out in order of first appearance.
        fill: what padded cells hold.

    Returns:
        A dict of arrays (n, max rows a unit, ...) with a float `mask` (n, max rows), and the n labels.

    Raises:
        ValueError: lengths differ, or there are no rows.

    >>> import margaux as mx
    >>> units, labels = mx.pad_ragged({"y": [1.0, 2.0, 3.0]}, groups=["a", "b", "a"])
    >>> units["y"].tolist(), units["mask"].tolist(), labels.tolist()
    ([[1.0, 3.0], [2.0, 0.0]], [[1.0, 1.0], [1.0, 0.0]], ['a', 'b'])
    """
    import pandas as pd

    groups = np.asarray(groups)
    if groups.size == 0:
        raise ValueError("there are no rows to group; pass at least one")
    if pd.isna(groups).any():
        raise ValueError(f"row {int(np.flatnonzero(pd.isna(groups))[0])} has no group label; drop or label it")
    codes, labels = pd.factorize(groups)
    sizes = np.bincount(codes)
    order = np.argsort(codes, kind="stable")
    column = np.empty(codes.size, int)
    column[order] = np.arange(codes.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    mask = np.zeros((sizes.size, sizes.max()))
    mask[codes, column] = 1.0
    out: dict[str, np.ndarray] = {}
    for name in values:
        rows = np.asarray(values[name])
        if rows.shape[:1] != (codes.size,):
            raise ValueError(f'"{name}" has {rows.shape[0] if rows.ndim else 0} rows, groups {codes.size}; they must agree')
        dtype = float if np.issubdtype(rows.dtype, np.integer) else rows.dtype
        out[name] = np.full(mask.shape + rows.shape[1:], fill, dtype)
        out[name][codes, column] = rows
    return out | {"mask": mask}, np.asarray(labels)
