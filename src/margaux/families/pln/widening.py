r"""A fit of PLN-PCA as the start of a fit of higher rank.

The components added are the leading ones of what the fit leaves of log counts, $\log(1 + y_{ij}) - \log(1 + A_{ij})$ with
rates A. Unlike residuals of counts these are of moderate size where a fit of low rank is far from the counts.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from ...numerics.compiling import compiled
from ...numerics.packing import lower_indices, symmetric
from .basis import factored
from .filling import at_zero
from .fitting import Design
from .importance import blocks
from .proposals import PROPOSALS
from .variational import BLOCK, Loadings, Posterior, Units, rates

#: columns beyond those wanted, and passes, of the randomised range finder
MORE, PASSES = 6, 8
#: the variance of the latents of a new component given the counts
SPREAD = 0.1


def widened(design: Design, loadings: Loadings, posterior: Posterior, rank: int, seed: int = 0) -> tuple[Loadings, Posterior]:
    """The same fit with more components, the leading ones of its residuals."""
    C, n, dtype = loadings.C, design.share.n, loadings.C.dtype
    extra = rank - C.shape[1]
    u, d, v = _residual(design, loadings, posterior, extra, seed)
    wider = jnp.asarray(np.concatenate([C, v * d / np.sqrt(n)], axis=1), dtype)
    return Loadings(loadings.B, wider), _beside(posterior, np.sqrt(n) * u, SPREAD)


def padded(loadings: Loadings, posterior: Posterior, rank: int) -> tuple[Loadings, Posterior]:
    """The same fit with components of no weight, whose latents follow the prior: the bound is what it was."""
    (p, q), n = loadings.C.shape, len(posterior.mean)
    C = jnp.concatenate([loadings.C, jnp.zeros((p, rank - q), loadings.C.dtype)], axis=1)
    return Loadings(loadings.B, C), _beside(posterior, np.zeros((n, rank - q)), 1.0)


def _beside(posterior: Posterior, mean: Float[np.ndarray, "n e"], variance: float) -> Posterior:
    """More latents, independent of the others."""
    dtype, (n, q) = posterior.mean.dtype, posterior.mean.shape
    rank = q + mean.shape[1]
    S = np.zeros((n, rank, rank), dtype)
    S[:, :q, :q] = symmetric(posterior.spread)
    new = np.arange(q, rank)
    S[:, new, new] = variance
    j, k, _ = lower_indices(rank)
    return Posterior(jnp.asarray(np.concatenate([posterior.mean, mean], axis=1), dtype), jnp.asarray(S[:, j, k]))


def _residual(
    design: Design, loadings: Loadings, posterior: Posterior, rank: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Leading singular vectors and values of the residuals, by block power steps (Halko, Martinsson and Tropp 2011), each of
    which sees a block of units at a time."""
    n, p = design.share.n, design.counts.p
    v = np.linalg.qr(np.random.default_rng(seed).normal(size=(p, min(rank + MORE, n, p))))[0]
    for _ in range(PASSES):
        v = np.linalg.qr(_through(design, loadings, posterior, v)[1])[0]
    basis, triangle = factored(_through(design, loadings, posterior, v)[0], design.share)
    u, d, turn = np.linalg.svd(triangle)
    found = (v @ turn.T)[:, :rank]
    # As in `start`, factors of shares have other signs than those of the whole.
    sign = np.sign(np.take_along_axis(found, np.argmax(np.abs(found), axis=0)[None], axis=0)[0])
    return (basis @ u)[:, :rank] * sign, d[:rank], found * sign


def _through(design: Design, loadings: Loadings, posterior: Posterior, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R v and R'R v, R the residuals."""
    dtype, right = loadings.C.dtype, np.zeros(v.shape)
    basis, left = v.astype(dtype), []
    for block in blocks(design, loadings, posterior, PROPOSALS["vem"], BLOCK // design.counts.p):
        counts = design.counts.values[block.span]
        y = np.asarray(counts.toarray() if scipy.sparse.issparse(counts) else counts, dtype)
        full, units, gaussian = block.full
        (rows, _), wide = units.projected.shape, len(full.C)
        some, back = _block(full, gaussian, units, at_zero(y, rows, wide), at_zero(basis, wide))
        left.append(block.emptied(some).astype(float))
        right += np.asarray(back)[: len(v)]
    return np.concatenate(left), design.share.summed(right)


@compiled
def _block(loadings: Loadings, gaussian: Posterior, units: Units, y: Array, v: Array) -> tuple[Array, Array]:
    R = jnp.log1p(y) - jnp.log1p(rates(loadings, gaussian, units))
    left = R @ v
    return left, R.T @ left
