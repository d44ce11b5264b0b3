"""Where the variational EM of PLN-PCA begins."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from .fitting import Design
from .variational import Loadings, Posterior


def by_log_counts(design: Design, rank: int, seed: int = 0, dtype: np.dtype | type = np.float64) -> tuple[Loadings, Posterior]:
    """Regression and principal components of log(1 + y) less the offsets, by a randomised range finder (Halko, Martinsson and
    Tropp 2011, algorithm 4.4), which sees products with the table only."""
    counts = design.counts
    x, offset = np.asarray(design.x, dtype), np.asarray(design.offset, dtype)
    n, p = counts.n, counts.p
    over_offset = (lambda r: offset @ r.sum(axis=0, keepdims=True)) if offset.shape[1] == 1 else (lambda r: offset @ r)
    under_offset = (lambda r: np.tile(offset.T @ r, (p, 1))) if offset.shape[1] == 1 else (lambda r: offset.T @ r)
    inverse = np.linalg.pinv(x)
    B = (counts.transposed_times(inverse.T, np.log1p) - under_offset(inverse.T)).T

    def times(r):
        return counts.times(r, np.log1p) - over_offset(r) - x @ (B @ r)

    def transposed(r):
        return counts.transposed_times(r, np.log1p) - under_offset(r) - B.T @ (x.T @ r)

    size = min(rank + 8, n, p)
    basis = np.linalg.qr(times(np.random.default_rng(seed).normal(size=(p, size)).astype(dtype)))[0]
    for _ in range(4):
        basis = np.linalg.qr(times(np.linalg.qr(transposed(basis))[0]))[0]
    u, d, vt = np.linalg.svd(transposed(basis).T, full_matrices=False)
    m = (basis @ u)[:, :rank] * np.sqrt(n)
    C = vt[:rank].T * d[:rank] / np.sqrt(n)
    spread = np.tile((0.1 * np.eye(rank))[np.tril_indices(rank)], (n, 1))

    def as_device(leaf):
        return jnp.asarray(leaf, dtype)

    return Loadings(as_device(B), as_device(C)), Posterior(as_device(m), as_device(spread))


def at_random(
    design: Design, rank: int, seed: int = 0, scale: float = 0.3, dtype: np.dtype | type = np.float64
) -> tuple[Loadings, Posterior]:
    """Rates that fit each feature's total, loadings from N(0, scale^2), and the prior as posterior."""
    n, p = design.counts.n, design.counts.p
    C = scale * np.random.default_rng(seed).normal(size=(p, rank))
    exposure = np.exp(design.offset).sum(axis=0)
    wanted = np.log(np.maximum(design.counts.column_sums(), 0.5) / exposure) - (C**2).sum(axis=1) / 2
    B = np.linalg.pinv(design.x) @ np.ones((n, 1)) * wanted
    spread = np.tile(np.eye(rank)[np.tril_indices(rank)], (n, 1))

    def as_device(leaf):
        return jnp.asarray(leaf, dtype)

    return Loadings(as_device(B), as_device(C)), Posterior(as_device(np.zeros((n, rank))), as_device(spread))
