r"""What the score of PLN-PCA needs of the latents of a block of units, by self-normalised importance sampling.

The rates of all draws of a unit are made once: they give its weights first and its sums after. They are the only numbers of
which there are draws x features, and of one unit at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...numerics.compiling import compiled
from ...numerics.packing import lower_indices, symmetric
from .proposals import LOG_2PI, Proposal, proposed
from .variational import HIGHEST, Loadings, Posterior, Units, product, rates

#: rates of a unit that are held; beyond, they are made twice, a chunk of draws at a time
HELD = 1 << 22


class Weighted(NamedTuple):
    r"""Expectations given the counts: $\sum_iE[A_{ij}u_i]$ with $u_i = (x_i, w_i)$, and of each unit the mean and covariance
    matrix of w, the log-mean of its ratios and its effective number of draws."""

    pull: Float[Array, "p u"]
    mean: Float[Array, "b q"]
    spread: Float[Array, "b t"]
    log_mean: Float[Array, " b"]
    ess: Float[Array, " b"]


@compiled
def weighted(
    loadings: Loadings, units: Units, gaussian: Posterior, bits: Array, net: Array, proposal: Proposal, control: bool
) -> Weighted:
    r"""By draws from proposals about $N(\mu_i, S_i)$ (`gaussian`).

    With `control`, an expectation is that under $g = N(\mu_i, S_i)$, in closed form, plus $\sum_r(\omega_r - \omega^g_r)h(v_r)$,
    where $\omega^g_r$ are the self-normalised weights of g, 1/N where g is the proposal. What is left to the draws is the
    difference of $p(\cdot\mid y_i)$ from g.
    """
    B, C = loadings
    (p, q), k, n_draws = C.shape, len(B), len(net)
    j, l, _ = lower_indices(q)
    chunks = 1 << max(int(np.ceil(np.log2(n_draws * p / HELD))), 0)
    chunks = chunks if n_draws % chunks == 0 else 1

    def one(total: Array, unit: tuple[Units, Posterior, Array]) -> tuple[Array, tuple[Array, ...]]:
        own, (mean, spread), digits = unit
        fixed = own.offset + own.x @ B
        v, log_proposal, log_gaussian = proposed(mean, symmetric(spread), digits, net, proposal)

        def made(v):
            return jnp.exp(jnp.minimum(fixed + product(v, C.T), HIGHEST))

        def split(leaf):
            return leaf.reshape(chunks, -1, *leaf.shape[1:])

        if chunks == 1:
            A = made(v)
            sums = jnp.sum(A, axis=1)
        else:
            sums = jax.lax.map(lambda v: jnp.sum(made(v), axis=1), split(v)).ravel()
        log_joint = v @ own.projected - sums - jnp.sum(v**2, axis=1) / 2 - q * LOG_2PI / 2
        log_ratio = log_joint - log_proposal
        weight = jax.nn.softmax(log_ratio)
        signed = weight - jax.nn.softmax(log_gaussian - log_proposal) if control else weight
        right = signed[:, None] * jnp.concatenate([jnp.broadcast_to(own.x, (n_draws, k)), v], axis=1)
        if chunks == 1:
            total = total + A.T @ right
        else:

            def add(total, part):
                return (total + made(part[0]).T @ part[1], None)

            total = jax.lax.scan(add, total, (split(v), split(right)))[0]
        free = v - mean
        shift, second = signed @ free, ((signed[:, None] * free).T @ free)[j, l]
        covariance = second - shift[j] * shift[l] + (spread if control else 0)
        log_mean = jax.nn.logsumexp(log_ratio) - jnp.log(jnp.asarray(n_draws, C.dtype))
        return total, (mean + shift, covariance, log_mean, 1 / jnp.sum(weight**2))

    pull, rest = jax.lax.scan(one, jnp.zeros((p, k + q), C.dtype), (units, gaussian, bits))
    if control:
        pull = pull + _in_closed_form(loadings, units, gaussian)
    return Weighted(pull, *rest)


def _in_closed_form(loadings: Loadings, units: Units, gaussian: Posterior) -> Float[Array, "p u"]:
    r"""$\sum_iE_g[A_{ij}u_i]$: weighted by its rate, a Gaussian moves by $S_ic_j$."""
    B, C = loadings
    A = rates(loadings, gaussian, units)
    own = A.T @ jnp.concatenate([units.x, gaussian.mean, gaussian.spread], axis=1)
    k, q = len(B), C.shape[1]
    moved = jnp.einsum("pij,pj->pi", symmetric(own[:, k + q :]), C)
    return jnp.concatenate([own[:, :k], own[:, k : k + q] + moved], axis=1)


def span_score(x: Any, mean: Any, spread: Any) -> tuple[Float[Array, "k q"], Float[Array, " t"]]:
    r"""$\sum_ix_iE[w_i]^\top$ and the lower triangle of $\sum_iE[w_iw_i^\top] - I$."""
    a, b, _ = lower_indices(mean.shape[1])
    return x.T @ mean, (spread + mean[:, a] * mean[:, b] - np.asarray(a == b, mean.dtype)).sum(axis=0)
