"""Names of scalar parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PyTree

if TYPE_CHECKING:
    from collections.abc import Sequence


def scalar_names(params: PyTree) -> list[str]:
    """One name a scalar parameter: its path, and its index from zero in an array.

    >>> scalar_names({"beta": np.zeros(2), "tau": 1.0})
    ['beta[0]', 'beta[1]', 'tau']
    """
    names: list[str] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        base = path_name(path) or "theta"
        shape = np.shape(leaf)
        names += [base] if shape == () else [f"{base}[{','.join(map(str, i))}]" for i in np.ndindex(*shape)]
    return names


def named_values(params: PyTree) -> list[tuple[str, float]]:
    """Scalar parameters by name."""
    flat = [np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(params)]
    return list(zip(scalar_names(params), np.concatenate(flat).tolist(), strict=True))


def path_name(path: Sequence[Any]) -> str:
    """The dotted name of a pytree path."""
    parts = [str(getattr(p, "key", getattr(p, "name", getattr(p, "idx", p)))) for p in path]
    return ".".join(parts)
