r"""Variances of the coefficients of many features, without a matrix of order kp.

The information of B when C is known is $L(I - S)L^\top$: L holds the Cholesky factors of $\sum_iA_{ij}x_ix_i^\top$, a block of
order k a feature, and S, with $D_i = \mathrm{diag}(A_i)$, is what the latents hide,
$$S = L^{-1}\Big[\sum_ix_ix_i^\top\otimes D_iC(I + C^\top D_iC)^{-1}C^\top D_i\Big]L^{-\top}.$$
It has kq eigenvalues near 1, along loadings times covariates, and the others fall off fast. So the variance of a coefficient,
$f^\top(I - S)^{-1}f$ with f of one feature, is
$$|f|^2 + \sum_{l\le r}\frac{\lambda_l}{1 - \lambda_l}(u_l^\top f)^2 + \rho,
\qquad \frac{s}{1 - s/m} \le \rho \le \frac{s}{1 - \lambda_{r+1}},$$
with $s = f^\top Sf - \sum_{l\le r}\lambda_l(u_l^\top f)^2$, which is known, and $m = |f|^2 - \sum_{l\le r}(u_l^\top f)^2$: the
bounds of Jensen and of the chord for the convex $\lambda/(1 - \lambda)$ under the spectral measure of what is left of f, and
their middle is taken. Eigenvectors are found in a block Krylov space, which grows by one block in a pass over the units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...engine.share import ALONE, Share
from ...numerics.compiling import compiled
from ...numerics.packing import lower_indices, symmetric

#: vectors of a pass beyond kq, and passes at most
MORE, PASSES = 16, 12
#: the largest relative change of a variance in a pass, and relative width of its bounds, at which it ends
SETTLED, WITHIN = 2e-3, 0.01
#: columns that pass over the units together
COLUMNS = 24

#: blocks of units, and their rates (b, p)
Passes = Callable[[], Iterator[tuple[Any, Array]]]


def hidden_variances(passes: Passes, C: Array, seed: int = 0, share: Share = ALONE) -> Float[np.ndarray, "k p"]:
    r"""The diagonal of the inverse of the information.

    Args:
        passes: blocks of units of this process with their rates, as often as it is called. share: which of all they are.

    Raises:
        ValueError: if after `PASSES` passes bounds are more than `WITHIN` of a variance apart, or a variance still moves.
    """
    weights, hidden = _blocks(passes, C, share)
    p, k, _ = weights.shape
    root = np.linalg.cholesky(weights)
    back = np.linalg.inv(root)
    own = back @ hidden @ np.swapaxes(back, 1, 2)
    loadings = np.einsum("pba,pq->paqb", root, np.asarray(C, float)).reshape(p * k, -1)
    block = np.hstack([loadings, np.random.default_rng(seed).standard_normal((p * k, MORE))])
    count = block.shape[1]
    basis = image = np.zeros((p * k, 0))
    before = np.inf
    for passed in range(min(PASSES, p * k // count)):
        for _ in range(2):
            block = np.linalg.qr(block - basis @ (basis.T @ block))[0]
        basis, image = np.hstack([basis, block]), np.hstack([image, _image(passes, C, back, block, share)])
        values, turn = (leaf[..., ::-1] for leaf in np.linalg.eigh(basis.T @ image))
        # The eigenvectors of a last block have not settled.
        kept = max(passed * count, count - MORE // 2)
        variances, width = _variances(back, own, values, basis @ turn[:, :kept])
        if width < WITHIN and np.max(np.abs(variances / before - 1)) < SETTLED:
            return variances
        before, block = variances, image[:, -count:]
    raise ValueError(
        "standard errors of this many coefficients need a few leading directions, and here there are too many: the spread of "
        'rates over units differs too much between features; use fewer features, or kind "variational"'
    )


def _variances(back: np.ndarray, own: np.ndarray, values: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Variances (k, p) by the leading eigenvectors, and the largest relative width of their bounds."""
    (p, k, _), kept = back.shape, vectors.shape[1]
    along = np.einsum("pba,pbl->apl", back, vectors.reshape(p, k, kept)) ** 2
    lead, beyond = np.clip(values[:kept], 0, None), max(values[kept], 0.0)
    whole = np.einsum("pba,pba->ap", back, back)
    s = np.maximum(np.einsum("pba,pbc,pca->ap", back, own, back) - along @ lead, 0)
    mass = np.maximum(whole - along.sum(axis=2), np.finfo(float).tiny)
    low, high = s / (1 - np.minimum(s / mass, beyond)), s / (1 - beyond)
    found = whole + along @ (lead / (1 - lead)) + (low + high) / 2
    return found, float(np.max((high - low) / found))


def _blocks(passes: Passes, C: Array, share: Share) -> Float[np.ndarray, "2 p k k"]:
    r"""$\sum_iA_{ij}x_ix_i^\top$ of each feature, and its block of what the latents hide."""
    total = share.summed(sum(np.asarray(_block(C, block.units.x, A), float) for block, A in passes()))
    k = int(np.sqrt(np.shape(total)[2]))
    return np.reshape(total, (2, len(C), k, k))


def _image(
    passes: Passes, C: Array, back: np.ndarray, basis: Float[np.ndarray, "kp r"], share: Share
) -> Float[np.ndarray, "kp r"]:
    """S times a matrix."""
    p, k, _ = back.shape
    pulled = np.einsum("pba,pbr->rap", back, basis.reshape(p, k, -1))
    parts = [jnp.asarray(pulled[first : first + COLUMNS], C.dtype) for first in range(0, len(pulled), COLUMNS)]
    total = np.zeros_like(pulled)
    for block, A in passes():
        M = _latent_covariance(C, A)
        for number, part in enumerate(parts):
            first = number * COLUMNS
            total[first : first + COLUMNS] += np.asarray(_image_part(C, block.units.x, A, M, part))
    total = share.summed(total)
    return np.einsum("pab,rbp->par", back, total).reshape(p * k, -1)


@compiled
def _latent_covariance(C: Array, A: Array) -> Array:
    """I + C'DC of each unit, inverted, (b, q, q)."""
    j, k, _ = lower_indices(C.shape[1])
    return jnp.linalg.inv(symmetric(A @ (C[:, j] * C[:, k])) + jnp.eye(C.shape[1], dtype=C.dtype))


@compiled
def _block(C: Array, x: Array, A: Array) -> Float[Array, "2 p kk"]:
    j, k, twice = lower_indices(C.shape[1])
    packed = _latent_covariance(C, A)[:, j, k] * jnp.asarray(twice, C.dtype)
    hidden = A**2 * (packed @ (C[:, j] * C[:, k]).T)
    squares = (x[:, :, None] * x[:, None]).reshape(len(x), -1)
    return jnp.stack([A.T @ squares, hidden.T @ squares])


@compiled
def _image_part(C: Array, x: Array, A: Array, M: Array, v: Float[Array, "r k p"]) -> Float[Array, "r k p"]:
    r"""$\sum_ix_i\otimes D_iCM_iC^\top D_i\sum_ax_{ia}v_a$, the products with A as of a matrix (b, p) with one (p, rq)."""
    (p, q), r = C.shape, len(v)

    def through(total: Array, each: tuple) -> tuple:
        xa, va = each
        wide = (va[:, None] * C.T).reshape(r * q, p)
        return total + xa[:, None] * (A @ wide.T), None

    inside = jax.lax.scan(through, jnp.zeros((len(x), r * q), C.dtype), (x.T, jnp.swapaxes(v, 0, 1)))[0]
    solved = jnp.einsum("bij,brj->bri", M, inside.reshape(-1, r, q)).reshape(-1, r * q)

    def back(xa):
        return jnp.sum(((xa[:, None] * solved).T @ A).reshape(r, q, p) * C.T, axis=1)

    return jnp.swapaxes(jax.lax.map(back, x.T), 0, 1)
