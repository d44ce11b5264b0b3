"""Where the variational EM of PLN-PCA begins."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from .basis import factored, pseudo_inverse
from .fitting import Design
from .variational import Loadings, Posterior


def by_log_counts(design: Design, rank: int, seed: int = 0, dtype: np.dtype | type = np.float64) -> tuple[Loadings, Posterior]:
    """Regression and principal components of log(1 + y) less the offsets, by a randomised range finder (Halko, Martinsson and
    Tropp 2011, algorithm 4.4), which sees products with the table only."""
    counts = design.counts
    x, offset = np.asarray(design.x, dtype), np.asarray(design.offset, dtype)
    share, n, p = counts.share, counts.share.n, counts.p
    over_offset = (lambda r: offset @ r.sum(axis=0, keepdims=True)) if offset.shape[1] == 1 else (lambda r: offset @ r)
    under_offset = (lambda r: np.tile(offset.T @ r, (p, 1))) if offset.shape[1] == 1 else (lambda r: offset.T @ r)

    def summed(r):
        """log(1 + y) less the offsets, transposed, times r: a sum over all units."""
        return share.summed(counts.own_transposed_times(r, np.log1p) - under_offset(r)).astype(dtype)

    B = summed(pseudo_inverse(x, share).T).T

    def times(r):
        return counts.times(r, np.log1p) - over_offset(r) - x @ (B @ r)

    def transposed(r):
        return summed(r) - B.T @ share.summed(x.T @ r).astype(dtype)

    size = min(rank + 8, n, p)
    basis = factored(times(np.random.default_rng(seed).normal(size=(p, size)).astype(dtype)), share)[0]
    for _ in range(4):
        basis = factored(times(np.linalg.qr(transposed(basis))[0]), share)[0]
    u, d, vt = np.linalg.svd(transposed(basis).T, full_matrices=False)
    # The sign of a component is that of its largest loading: factors of shares have others than those of the whole.
    sign = np.sign(np.take_along_axis(vt, np.argmax(np.abs(vt), axis=1)[:, None], axis=1)[:, 0])
    u, vt = u * sign, vt * sign[:, None]
    m = (basis @ u)[:, :rank] * np.sqrt(n)
    C = vt[:rank].T * d[:rank] / np.sqrt(n)
    spread = np.tile((0.1 * np.eye(rank))[np.tril_indices(rank)], (counts.n, 1))

    def as_device(leaf):
        return jnp.asarray(leaf, dtype)

    return Loadings(as_device(B), as_device(C)), Posterior(as_device(m), as_device(spread))


def at_random(
    design: Design, rank: int, seed: int = 0, scale: float = 0.3, dtype: np.dtype | type = np.float64
) -> tuple[Loadings, Posterior]:
    """Rates that fit each feature's total, loadings from N(0, scale^2), and the prior as posterior."""
    n, p, share = design.counts.n, design.counts.p, design.counts.share
    C = scale * np.random.default_rng(seed).normal(size=(p, rank))
    exposure, level = share.summed((np.exp(design.offset).sum(axis=0), pseudo_inverse(design.x, share).sum(axis=1)))
    wanted = np.log(np.maximum(design.counts.column_sums(), 0.5) / exposure) - (C**2).sum(axis=1) / 2
    B = level[:, None] * wanted
    spread = np.tile(np.eye(rank)[np.tril_indices(rank)], (n, 1))

    def as_device(leaf):
        return jnp.asarray(leaf, dtype)

    return Loadings(as_device(B), as_device(C)), Posterior(as_device(np.zeros((n, rank))), as_device(spread))
