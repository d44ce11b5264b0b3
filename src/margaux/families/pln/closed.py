r"""Information of $\theta = (b_1, c_1, \dots, b_p, c_p)$ under the variational posteriors, in closed form: no draws."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from ...numerics.compiling import compiled
from ...numerics.packing import lower_indices, symmetric
from .filling import at_zero
from .fitting import Design
from .importance import BLOCK, blocks
from .proposals import PROPOSALS
from .variational import Loadings, Posterior, Units, rates


def complete(design: Design, loadings: Loadings, posterior: Posterior) -> Float[np.ndarray, "p u u"]:
    r"""$\sum_iE[A_{ij}u_{ij}u_{ij}^\top]$ for each feature, u = (x, w): the information of $(b_j, c_j)$, were latents known."""
    k, p = loadings.B.shape
    size = k + loadings.C.shape[1]
    total = np.zeros((p, size, size))
    for block in blocks(design, loadings, posterior, PROPOSALS["vem"], 4 * BLOCK // (p * size)):
        total += np.asarray(_complete(*block.full))[:p]
    return design.share.summed(total)


def observed(
    design: Design, loadings: Loadings, posterior: Posterior
) -> tuple[Float[np.ndarray, "p u u"], Float[np.ndarray, "t t"]]:
    r"""`complete`, and the observed information by Louis' identity as in `margaux.families.pln.inference.louis`.

    There the score, along the path of the mode, has a covariance of what is not linear in w alone. Of a polynomial in Gaussian
    latents $m + Rz$, $RR^\top = S$, the part of second order has the covariance $\tfrac12\langle R^\top E[\nabla^2f]R,
    R^\top E[\nabla^2g]R\rangle$, and those of higher orders are left out: they are small where many counts tell the latents. It
    is nearly what the bound says of $\theta$ when posteriors follow: their means make the first part, their spreads the second.
    """
    (k, p), q = loadings.B.shape, loadings.C.shape[1]
    size = p * (k + q)
    own, whole = np.zeros((p, k + q, k + q)), np.zeros((size, size))
    for block in blocks(design, loadings, posterior, PROPOSALS["vem"], 4 * BLOCK // (size * (q + q * (q + 1) // 2))):
        counts = design.counts.values[block.span]
        y = np.asarray(counts.toarray() if scipy.sparse.issparse(counts) else counts, loadings.C.dtype)
        full, units, gaussian = block.full
        part, rows = _observed(full, units, gaussian, at_zero(y, len(units.x), len(full.C)))
        own += np.asarray(part)[:p]
        each = block.emptied(rows)[:, :, :p].reshape(-1, size)
        whole -= each.T @ each
    own, whole = design.share.summed((own, whole))
    j = np.arange(p)
    whole.reshape(p, k + q, p, k + q)[j, :, j] += own
    return own, whole


@compiled
def _complete(loadings: Loadings, units: Units, gaussian: Posterior) -> Array:
    """The sum over a block of units."""
    return _tilted(loadings, units, gaussian)[2]


@compiled
def _observed(loadings: Loadings, units: Units, gaussian: Posterior, y: Array) -> tuple[Array, Array]:
    """`_complete`, and rows (b, r, p, u) whose products are taken off: what the latents take up, and the second order."""
    C, k, q = loadings.C, len(loadings.B), loadings.C.shape[1]
    A, u, own = _tilted(loadings, units, gaussian)
    j, l, _ = lower_indices(q)
    latent = jnp.arange(q)
    mixed = -jnp.einsum("pi,bp,bpu->bipu", C, A, u)
    mixed = mixed.at[:, latent, :, k + latent].add((y - A)[None]).reshape(len(A), q, -1)
    M = jnp.einsum("pi,bp,pj->bij", C, A, C) + jnp.eye(q, dtype=C.dtype)
    root = jnp.linalg.cholesky(M)
    taken = jax.scipy.linalg.solve_triangular(root, mixed, lower=True)
    path = jax.scipy.linalg.solve_triangular(root, taken, lower=True, trans=1)

    R = jnp.linalg.cholesky(symmetric(gaussian.spread))
    along = jnp.einsum("pi,bij->bpj", C, R)
    pairs = along[:, :, j] * along[:, :, l]
    of_w = jnp.einsum("bpt,bit->btpi", along[:, :, j], R[:, :, l]) + jnp.einsum("bpt,bit->btpi", along[:, :, l], R[:, :, j])
    bent = jnp.einsum("bpt,bpu->btpu", pairs, u).at[..., k:].add(of_w) * A[:, None, :, None]
    turned = jnp.einsum("bpt,bp,pi->bti", pairs, A, C)
    bent = bent + (turned @ path).reshape(bent.shape)
    scale = jnp.where(j == l, np.sqrt(0.5), 1.0).astype(C.dtype)
    return own, jnp.concatenate([taken.reshape(len(A), q, len(C), -1), scale[:, None, None] * bent], axis=1)


def _tilted(loadings: Loadings, units: Units, gaussian: Posterior) -> tuple[Array, Array, Array]:
    """Rates (b, p), the means of u weighted by each (b, p, u), and the sum of `complete`: a Gaussian weighted by a rate moves
    by S c and keeps its covariance matrix."""
    A, C, x = rates(loadings, gaussian, units), loadings.C, units.x
    mean = gaussian.mean[:, None] + jnp.einsum("bij,pj->bpi", symmetric(gaussian.spread), C)
    u = jnp.concatenate([jnp.broadcast_to(x[:, None], (*A.shape, x.shape[1])), mean], axis=2)
    spread: Any = symmetric(A.T @ gaussian.spread)
    return A, u, jnp.einsum("bp,bpu,bpv->puv", A, u, u).at[:, x.shape[1] :, x.shape[1] :].add(spread)
