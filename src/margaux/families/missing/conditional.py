r"""The Gaussian of what is missing given what is observed, for all rows at once.

With the precision matrix $Q=\Sigma^{-1}$, $x_m\mid x_o\sim N(\mu_m - A^{-1}r,\ A^{-1})$, $A = Q_{mm}$, $r=(Q d)_m$ where d is
$x-\mu$ with zeros where it is missing. Rows come in groups by number of missing entries; matrices of a group are
laid out with the rows last, so that one sweep works on all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

#: widths of the groups that rows are put into by their number of missing entries
WIDTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
#: share of the rows below which a group is joined to the next wider one
FEW = 0.02
#: cells (rows x columns) up to which all rows make one group, so that another table of that shape compiles nothing
SMALL = 20_000


class Conditional(NamedTuple):
    r"""Of the rows of one group: $A^{-1}$ (m, m, b), $A^{-1}r$ and $A^{-1}\beta_m$ (m, b), $\log|A|$ (b,)."""

    inverse: Float[Array, "m m b"]
    shift: Float[Array, "m b"]
    along: Float[Array, "m b"]
    log_det: Float[Array, " b"]


def group_rows(missing: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[tuple[int, int], ...]]:
    """The order of rows by number of missing entries, their places, and (rows, width) of each group.

    Args:
        missing: (n, p), true where there is nothing.

    Returns:
        order (n,); places (n, M) of the missing entries in that order, p where there are no more; the groups.
    """
    n, p = missing.shape
    counts = missing.sum(axis=1)
    if n * p <= SMALL and counts.any():
        return np.arange(n), np.sort(np.where(missing, np.arange(p), p), axis=1).astype(np.int32), ((n, p),)
    order = np.argsort(counts, kind="stable")
    widths = np.minimum([*WIDTHS, p], p)
    own = widths[np.searchsorted(widths, counts[order])]
    sizes: list[tuple[int, int]] = []
    held = 0
    for width in np.unique(own):
        held += int(np.sum(own == width))
        if held >= FEW * n or width == own[-1]:
            sizes.append((held, int(width)))
            held = 0
    places = np.sort(np.where(missing[order], np.arange(p), p), axis=1)[:, : sizes[-1][1]]
    return order, places.astype(np.int32), tuple(sizes)


def sweep(matrices: Float[Array, "m m b"]) -> tuple[Float[Array, "m m b"], Float[Array, " b"]]:
    """Inverses and log determinants of positive definite matrices, by Gauss-Jordan sweeps (Goodnight 1979)."""
    m = matrices.shape[0]

    def pivot(j, state):
        a, log_det = state
        column = jax.lax.dynamic_index_in_dim(a, j, 1, keepdims=False)
        d = jax.lax.dynamic_index_in_dim(column, j, 0, keepdims=False)
        here = (jnp.arange(m) == j)[:, None]
        scaled = column / d
        swept = a - column[:, None] * scaled[None]
        # Row and column j become column / d, their crossing -1 / d.
        scaled = jnp.where(here, -1 / d, scaled)
        swept = jnp.where(here[None], scaled[:, None], jnp.where(here[:, None], scaled[None], swept))
        return swept, log_det + jnp.log(d)

    swept, log_det = jax.lax.fori_loop(0, m, pivot, (matrices, jnp.zeros(matrices.shape[2], matrices.dtype)))
    return -swept, log_det


def conditionals(
    precision: Float[Array, "p p"], beta: Float[Array, " p"], r: Float[Array, "b p"], places: Int[Array, "b m"]
) -> Conditional:
    """Of the rows of one group. Places p, beyond the last column, stand for nothing missing."""
    p, (b, m) = len(precision), places.shape
    if m == 0:
        nothing = jnp.zeros((0, b), precision.dtype)
        return Conditional(jnp.zeros((0, 0, b), precision.dtype), nothing, nothing, jnp.zeros(b, precision.dtype))
    wide = jnp.pad(precision, ((0, 1), (0, 1)))
    at = places.T
    blocks = wide.ravel()[at[:, None] * (p + 1) + at[None]]
    # What stands for nothing has the identity to itself.
    inverse, log_det = sweep(blocks + jnp.eye(m, dtype=blocks.dtype)[..., None] * (at == p))
    right = at_places(r, places)
    slopes = jnp.append(beta, 0.0)[at]
    return Conditional(inverse, jnp.einsum("jkb,kb->jb", inverse, right), jnp.einsum("jkb,kb->jb", inverse, slopes), log_det)


def at_places(values: Float[Array, "b p"], places: Int[Array, "b m"]) -> Float[Array, "m b"]:
    """Entries of each row at its missing places, zero at place p."""
    padded = jnp.pad(values, ((0, 0), (0, 1)))
    return jnp.take_along_axis(padded, places, axis=1).T


def in_rows(parts: Float[Array, "... m b"], places: Int[Array, "b m"], p: int) -> Float[Array, "... b p"]:
    """The other way round: rows with zeros where nothing is missing."""
    b, m = places.shape
    out = jnp.zeros((b, p + 1, *parts.shape[:-2]), parts.dtype)
    if m:
        out = out.at[jnp.arange(b)[:, None], places].set(parts.T)
    return jnp.moveaxis(out[:, :p], (0, 1), (-2, -1))
