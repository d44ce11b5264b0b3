r"""What the score of PLN-PCA needs of the latents of a block of units, by self-normalised importance sampling.

Rates of a chunk of draws of one unit are made once: they give its weights first, and then its sums, which are rescaled when a
larger weight comes. They are the only numbers of which there are draws x features, and one program serves any number of draws.
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

#: draws of a unit whose rates are made together, at most
CHUNK = 128


class Weighted(NamedTuple):
    r"""Expectations given the counts: $\sum_iE[A_{ij}u_i]$ with $u_i = (x_i, w_i)$, and of each unit the mean and covariance
    matrix of w, the log-mean of its ratios and its effective number of draws."""

    pull: Float[Array, "p u"]
    mean: Float[Array, "b q"]
    spread: Float[Array, "b t"]
    log_mean: Float[Array, " b"]
    ess: Float[Array, " b"]


class _Sums(NamedTuple):
    r"""Over the draws of a unit so far, by its ratios and by those of g, each divided by the largest, whose logarithm is `top`
    (s,): of 1, $v - \mu$ and its products in packed form (s, 1 + q + t), of the rates times 1 and $v - \mu$ (p, s(1 + q)); and
    of the squares of the first."""

    top: Array
    moments: Array
    pull: Array
    square: Array


@compiled
def weighted(
    loadings: Loadings,
    units: Units,
    gaussian: Posterior,
    bits: Array,
    net: Array,
    count: Array,
    draws: Array,
    proposal: Proposal,
    control: bool,
) -> Weighted:
    r"""By draws from proposals about $N(\mu_i, S_i)$ (`gaussian`).

    With `control`, an expectation is that under $g = N(\mu_i, S_i)$, in closed form, plus $\sum_r(\omega_r - \omega^g_r)h(v_r)$,
    where $\omega^g_r$ are the self-normalised weights of g, 1/N where g is the proposal. What is left to the draws is the
    difference of $p(\cdot\mid y_i)$ from g.

    Args:
        count, draws: so many of the units, and of the rows of the net, which are a multiple of `CHUNK` or all there are.
    """
    B, C = loadings
    (p, q), k, b = C.shape, len(B), len(units.x)
    j, l, _ = lower_indices(q)
    sides = 2 if control else 1
    chunk = len(net) if len(net) <= CHUNK or len(net) % CHUNK else CHUNK

    def of_draws(own: Units, mean: Array, factor: Array, digits: Array) -> _Sums:
        fixed = own.offset + own.x @ B

        def add(number: Array, sums: _Sums) -> _Sums:
            part, shift = (
                leaf if len(leaf) == 1 else jax.lax.dynamic_slice_in_dim(leaf, number * chunk, chunk) for leaf in (net, digits)
            )
            v, log_proposal, log_gaussian = proposed(mean, factor, shift, part, proposal)
            A = jnp.exp(jnp.minimum(fixed + product(v, C.T), HIGHEST))
            log_joint = v @ own.projected - jnp.sum(A, axis=1) - jnp.sum(v**2, axis=1) / 2 - q * LOG_2PI / 2
            logs = jnp.stack([log_joint, log_gaussian][:sides]) - log_proposal
            top = jnp.maximum(sums.top, jnp.max(logs, axis=1))
            ratio, kept, free = jnp.exp(logs - top[:, None]), jnp.exp(sums.top - top), v - mean
            terms = jnp.concatenate([jnp.ones_like(v[:, :1]), free], axis=1)
            return _Sums(
                top,
                kept[:, None] * sums.moments + ratio @ jnp.concatenate([terms, free[:, j] * free[:, l]], axis=1),
                jnp.repeat(kept, 1 + q) * sums.pull + A.T @ jnp.concatenate([side[:, None] * terms for side in ratio], axis=1),
                kept[0] ** 2 * sums.square + jnp.sum(ratio[0] ** 2),
            )

        moments, pull = jnp.zeros((sides, 1 + q + len(j)), C.dtype), jnp.zeros((p, sides * (1 + q)), C.dtype)
        none = _Sums(moments[:, 0] - jnp.inf, moments, pull, moments[0, 0])
        return jax.lax.fori_loop(0, draws // chunk, add, none)

    def expected(sums: Array, total: Array) -> Array:
        means = sums / total[:, None]
        return means[0] - means[1] if control else means[0]

    def add(i: Array, state: tuple[Array, tuple]) -> tuple[Array, tuple]:
        total, rows = state
        own, (mean, spread), factor, digits = jax.tree.map(lambda leaf: leaf[i], (units, gaussian, factors, bits))
        sums = of_draws(own, mean, factor, digits)
        ratio = sums.moments[:, 0]
        pull = expected(jnp.moveaxis(sums.pull.reshape(p, sides, 1 + q), 1, 0), ratio[:, None])
        shift, second = jnp.split(expected(sums.moments[:, 1:], ratio), [q])
        covariance = second - shift[j] * shift[l] + (spread if control else 0)
        log_mean = sums.top[0] + jnp.log(ratio[0] / draws)
        row = (mean + shift, covariance, log_mean, ratio[0] ** 2 / sums.square)
        total = total + jnp.concatenate([pull[:, :1] * own.x, pull[:, :1] * mean + pull[:, 1:]], axis=1)
        return total, jax.tree.map(lambda leaf, one: leaf.at[i].set(one), rows, row)

    factors = jnp.linalg.cholesky(symmetric(gaussian.spread))
    none = jnp.zeros((b, q), C.dtype), jnp.zeros((b, len(j)), C.dtype), jnp.zeros(b, C.dtype), jnp.zeros(b, C.dtype)
    pull, rows = jax.lax.fori_loop(0, count, add, (jnp.zeros((p, k + q), C.dtype), none))
    if control:
        pull = pull + _in_closed_form(loadings, units, gaussian)
    return Weighted(pull, *rows)


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
