r"""What the score of PLN-PCA needs of the latents of a block of units, by self-normalised importance sampling.

Rates of a chunk of draws of one unit are made once: they give its weights first, and then its sums, which are rescaled when a
larger weight comes. They are the only numbers of which there are draws x features, and one program serves any number of draws.
The sums of each unit can be kept, and draws added to them.
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


class Sums(NamedTuple):
    r"""Over the draws of each unit so far, by its ratios and by those of g, each divided by the largest, whose logarithm is `top`:
    of 1, $v - \mu$ and its products in packed form, of the rates times 1 and $v - \mu$; and of the squares of the first."""

    top: Float[Any, "b s"]
    moments: Float[Any, "b s m"]
    pull: Float[Any, "b p sq"]
    square: Float[Any, " b"]


def width(p: int, q: int, control: bool) -> int:
    """Numbers that sums keep of a unit, nearly."""
    return (2 if control else 1) * (1 + q) * p


def nothing(b: int, C: Any, control: bool) -> Sums:
    """Sums of b units before any draws."""
    (p, q), sides = C.shape, 2 if control else 1
    shapes = (b, sides), (b, sides, 1 + q + q * (q + 1) // 2), (b, p, sides * (1 + q)), (b,)
    top, *rest = (np.zeros(shape, C.dtype) for shape in shapes)
    return Sums(top - np.inf, *rest)


@compiled
def weighted(
    loadings: Loadings,
    units: Units,
    gaussian: Posterior,
    bits: Array,
    net: Array,
    sums: Sums | None,
    count: Array,
    draws: Array,
    proposal: Proposal,
    control: bool,
) -> tuple[Weighted, Sums | None]:
    r"""By draws from proposals about $N(\mu_i, S_i)$ (`gaussian`).

    With `control`, an expectation is that under $g = N(\mu_i, S_i)$, in closed form, plus $\sum_r(\omega_r - \omega^g_r)h(v_r)$,
    where $\omega^g_r$ are the self-normalised weights of g, 1/N where g is the proposal. What is left to the draws is the
    difference of $p(\cdot\mid y_i)$ from g.

    Args:
        sums: of the draws that were visited, to be returned with the others; without them, none are, and none are kept.
        count: so many of the units. draws: so many rows of the net were visited, and so many are to be, both of them a multiple
            of `CHUNK` or all there are.
    """
    B, C = loadings
    (p, q), k, b, (first, last) = C.shape, len(B), len(units.x), draws
    j, l, _ = lower_indices(q)
    sides = 2 if control else 1
    chunk = len(net) if len(net) <= CHUNK or len(net) % CHUNK else CHUNK

    def of_draws(own: Units, mean: Array, factor: Array, digits: Array, sums: Sums) -> Sums:
        fixed = own.offset + own.x @ B

        def add(number: Array, sums: Sums) -> Sums:
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
            return Sums(
                top,
                kept[:, None] * sums.moments + ratio @ jnp.concatenate([terms, free[:, j] * free[:, l]], axis=1),
                jnp.repeat(kept, 1 + q) * sums.pull + A.T @ jnp.concatenate([side[:, None] * terms for side in ratio], axis=1),
                kept[0] ** 2 * sums.square + jnp.sum(ratio[0] ** 2),
            )

        return jax.lax.fori_loop(first // chunk, last // chunk, add, sums)

    def expected(sums: Array, total: Array) -> Array:
        means = sums / total[:, None]
        return means[0] - means[1] if control else means[0]

    def add(i: Array, state: tuple[Array, tuple, Sums | None]) -> tuple[Array, tuple, Sums | None]:
        total, rows, kept = state
        own, (mean, spread), factor, digits = jax.tree.map(lambda leaf: leaf[i], (units, gaussian, factors, bits))
        before = none if kept is None else jax.tree.map(lambda leaf: leaf[i], kept)
        sums = of_draws(own, mean, factor, digits, before)
        ratio = sums.moments[:, 0]
        pull = expected(jnp.moveaxis(sums.pull.reshape(p, sides, 1 + q), 1, 0), ratio[:, None])
        shift, second = jnp.split(expected(sums.moments[:, 1:], ratio), [q])
        covariance = second - shift[j] * shift[l] + (spread if control else 0)
        log_mean = sums.top[0] + jnp.log(ratio[0] / last)
        row = (mean + shift, covariance, log_mean, ratio[0] ** 2 / sums.square)
        total = total + jnp.concatenate([pull[:, :1] * own.x, pull[:, :1] * mean + pull[:, 1:]], axis=1)
        kept = kept if kept is None else jax.tree.map(lambda leaf, one: leaf.at[i].set(one), kept, sums)
        return total, jax.tree.map(lambda leaf, one: leaf.at[i].set(one), rows, row), kept

    factors = jnp.linalg.cholesky(symmetric(gaussian.spread))
    none = jax.tree.map(lambda leaf: leaf[0], nothing(1, C, control))
    empty = tuple(jnp.zeros((b, *shape), C.dtype) for shape in ((q,), (len(j),), (), ()))
    pull, rows, sums = jax.lax.fori_loop(0, count, add, (jnp.zeros((p, k + q), C.dtype), empty, sums))
    if control:
        pull = pull + _in_closed_form(loadings, units, gaussian)
    return Weighted(pull, *rows), sums


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
