r"""Derivatives of a mixed model in its parameters by the chain rule: $\eta$ is linear in $\beta$ and in the entries of $\Lambda$,
so that all they take of $\log p(y\mid\eta)$ are its own derivatives, row by row and draw by draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

if TYPE_CHECKING:
    from .model import Mixed


def by_rows(model: Mixed, params: Any, z: Any, w: Float[Array, "m b"], batch: Any) -> tuple[Array, Array]:
    """As `margaux.problem.AbstractDifferentiated` has it: (m, b, p) and (p, p); of covariances by their factors' entries."""
    of_draws = _over_draws(lambda z_i, y: (model.predictor(params, z_i, y), loadings(model, z_i, y)))
    eta, A = of_draws(z, batch)
    each, hessian = by_predictor(model, params, eta, A, w, batch)
    of_prior, twice_prior = two_of_prior(model, params)
    return each + of_prior, hessian + jnp.sum(w) * twice_prior


def by_predictor(
    model: Mixed,
    params: Any,
    eta: Float[Array, "m b rows"],
    A: Float[Array, "m b rows c"],
    w: Float[Array, "m b"],
    batch: Any,
) -> tuple[Array, Array]:
    r"""The same of $\eta$ and of what entries of $\Lambda$ are multiplied by in it, without a prior."""
    own, back = ravel_pytree(params["dispersion"])

    def logs(eta: Array, own: Array) -> Array:
        changed = {**params, "dispersion": back(own)}
        return _over_draws(lambda e, y: model.log_rows(changed, e, y))(eta, batch)

    def slope(eta: Array, own: Array) -> Array:
        return jax.jvp(lambda e: logs(e, own), (eta,), (jnp.ones_like(eta),))[1]

    first, second = jax.jvp(lambda e: slope(e, own), (eta,), (jnp.ones_like(eta),))
    of_own = jax.jacfwd(lambda o: logs(eta, o))(own)  # (m, b, rows, d)
    across = jax.jacfwd(lambda o: slope(eta, o))(own)
    twice = jax.hessian(lambda o: jnp.sum(w[:, :, None] * logs(eta, o)))(own)

    X, bent = batch["X"], w[:, :, None] * second
    averaged = jnp.einsum("mb,mbrd->brd", w, across)
    beta_beta = jnp.einsum("brp,br,brq->pq", X, jnp.sum(bent, axis=0), X)
    beta_root = jnp.einsum("brp,brc->pc", X, jnp.einsum("mbr,mbrc->brc", bent, A))
    beta_own = jnp.einsum("brp,brd->pd", X, averaged)
    root_root = jnp.einsum("mbrc,mbr,mbre->ce", A, bent, A)
    own_root = jnp.einsum("mb,mbrd,mbrc->dc", w, across, A)
    hessian = jnp.block([
        [beta_beta, beta_own, beta_root],
        [beta_own.T, twice, own_root],
        [beta_root.T, own_root.T, root_root],
    ])  # fmt: skip
    scores = (jnp.einsum("mbr,brp->mbp", first, X), jnp.sum(of_own, axis=2), jnp.einsum("mbr,mbrc->mbc", first, A))
    return jnp.concatenate(scores, axis=2), hessian


def two_of_prior(model: Mixed, params: Any) -> tuple[Array | float, Array | float]:
    """Two derivatives of a unit's share of the prior."""
    if model.prior is None:
        return 0.0, 0.0
    flat, back = ravel_pytree(params)

    def value(flat: Array) -> Any:
        return model.log_prior(back(flat))

    return jax.grad(value)(flat), jax.hessian(value)(flat)


def _over_draws(function: Any) -> Any:
    """A function of one unit's draw and data, of draws (m, b, ...) and units (b, ...)."""
    return jax.vmap(jax.vmap(function), in_axes=(0, None))


def loadings(model: Mixed, z: Any, y: Any) -> Float[Array, "rows c"]:
    r"""What each row's $\eta$ is multiplied by in each entry of the factors' $\Lambda$, in their order."""
    out = []
    for factor in model.in_order:
        own = z[factor.name][y["code"][factor.name]] if factor.groups > 1 else z[factor.name]
        low = np.tril_indices(factor.k) if factor.structure == "us" else (np.arange(factor.k), np.arange(factor.k))
        out.append(y["Z"][factor.name][:, low[0]] * own[:, low[1]])
    return jnp.concatenate(out, axis=1)
