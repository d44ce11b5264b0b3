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

#: draws of a unit whose rates are made together, at most; and the variance of phi up to which it is a control
CHUNK, SMALL = 128, 0.5


class Weighted(NamedTuple):
    r"""Expectations given the counts: $\sum_iE[A_{ij}u_i]$ with $u_i = (x_i, w_i)$, and of each unit the mean and covariance
    matrix of w, the log-mean of its ratios and its effective number of draws."""

    pull: Float[Array, "p u"]
    mean: Float[Array, "b q"]
    spread: Float[Array, "b t"]
    log_mean: Float[Array, " b"]
    ess: Float[Array, " b"]


class Sums(NamedTuple):
    r"""Over the draws of each unit so far, by its ratios and by those of g, each divided by the largest, of logarithm `top`,
    and by the latter times $\phi$: of 1, $v - \mu$ and its products in packed form, of the rates times 1 and $v - \mu$; and of
    the squares of the first."""

    top: Float[Any, "b f"]
    moments: Float[Any, "b s m"]
    pull: Float[Any, "b p sq"]
    square: Float[Any, " b"]


def width(p: int, q: int, control: int) -> int:
    """Numbers that sums keep of a unit, nearly."""
    return (1 + control) * (1 + q) * p


def nothing(b: int, C: Any, control: int) -> Sums:
    """Sums of b units before any draws."""
    (p, q), sides = C.shape, 1 + control
    shapes = (b, min(sides, 2)), (b, sides, 1 + q + q * (q + 1) // 2), (b, p, sides * (1 + q)), (b,)
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
    control: int,
) -> tuple[Weighted, Sums | None]:
    r"""By draws from proposals about $N(\mu_i, S_i)$ (`gaussian`).

    With a `control` of 1, an expectation is that under $g = N(\mu_i, S_i)$, in closed form, plus $\sum_r(\omega_r -
    \omega^g_r)h(v_r)$, where $\omega^g_r$ are the self-normalised weights of g, 1/N where g is the proposal. What is left to
    the draws is the difference of $p(\cdot\mid y_i)$ from g. With 2, what this is to first order, the covariance of h under g
    with $\phi = \log p(y_i, \cdot) - \log g$, is in closed form too, and taken off by the draws, where the variance of $\phi$ is
    below `SMALL`: what is left is of second order in $\phi$.

    Args:
        sums: of the draws that were visited, to be returned with the others; without them, none are, and none are kept.
        count: so many of the units. draws: so many rows of the net were visited, and so many are to be, both of them a multiple
            of `CHUNK` or all there are.
    """
    B, C = loadings
    (p, q), k, b, (first, last) = C.shape, len(B), len(units.x), draws
    j, l, _ = lower_indices(q)
    sides = 1 + control
    chunk = len(net) if len(net) <= CHUNK or len(net) % CHUNK else CHUNK

    def of_draws(own: Units, mean: Array, factor: Array, digits: Array, sums: Sums) -> Sums:
        fixed = own.offset + own.x @ B
        near = _log_joint(mean, jnp.sum(jnp.exp(jnp.minimum(fixed + C @ mean, HIGHEST))), own.projected)
        near = near + jnp.sum(jnp.log(jnp.diagonal(factor))) + q * LOG_2PI / 2

        def add(number: Array, sums: Sums) -> Sums:
            part, shift = (
                leaf if len(leaf) == 1 else jax.lax.dynamic_slice_in_dim(leaf, number * chunk, chunk) for leaf in (net, digits)
            )
            v, log_proposal, log_gaussian = proposed(mean, factor, shift, part, proposal)
            A = jnp.exp(jnp.minimum(fixed + product(v, C.T), HIGHEST))
            log_joint = _log_joint(v, jnp.sum(A, axis=1), own.projected)
            logs = jnp.stack([log_joint, log_gaussian][:sides]) - log_proposal
            top = jnp.maximum(sums.top, jnp.max(logs, axis=1))
            ratio, kept, free = jnp.exp(logs - top[:, None]), jnp.exp(sums.top - top), v - mean
            if control == 2:
                phi = log_joint - log_gaussian - near
                ratio, kept = jnp.concatenate([ratio, ratio[1:] * phi]), kept[jnp.asarray([0, 1, 1])]
            terms = jnp.concatenate([jnp.ones_like(v[:, :1]), free], axis=1)
            return Sums(
                top,
                kept[:, None] * sums.moments + ratio @ jnp.concatenate([terms, free[:, j] * free[:, l]], axis=1),
                jnp.repeat(kept, 1 + q) * sums.pull + A.T @ jnp.concatenate([side[:, None] * terms for side in ratio], axis=1),
                kept[0] ** 2 * sums.square + jnp.sum(ratio[0] ** 2),
            )

        return jax.lax.fori_loop(first // chunk, last // chunk, add, sums)

    def expected(sums: Array, totals: Array, first: Array, small: Array) -> Array:
        """From sums (sides, ...) and those of 1, and the covariances with phi under g."""
        means = sums[:2] / totals[:2].reshape(-1, *[1] * (sums.ndim - 1))
        if control == 0:
            return means[0]
        if control == 1:
            return means[0] - means[1]
        seen = (sums[2] - totals[2] * means[1]) / totals[1]
        return means[0] - means[1] + jnp.where(small, first - seen, 0)

    def add(i: Array, state: tuple[Array, tuple, Sums | None]) -> tuple[Array, tuple, Sums | None]:
        total, rows, kept = state
        own, (mean, spread), factor, digits, A = jax.tree.map(lambda leaf: leaf[i], (units, gaussian, factors, bits, means))
        before = none if kept is None else jax.tree.map(lambda leaf: leaf[i], kept)
        sums = of_draws(own, mean, factor, digits, before)
        ratio = sums.moments[:, 0]
        with_phi: Any = _with_phi(C, A, mean, spread, own.projected) if control == 2 else (0, 0, True)
        pull = expected(jnp.moveaxis(sums.pull.reshape(p, sides, 1 + q), 1, 0), ratio, with_phi[0], with_phi[2])
        shift, second = jnp.split(expected(sums.moments[:, 1:], ratio, *with_phi[1:]), [q])
        covariance = second - shift[j] * shift[l] + (spread if control else 0)
        log_mean = sums.top[0] + jnp.log(ratio[0] / last)
        row = (mean + shift, covariance, log_mean, ratio[0] ** 2 / sums.square)
        total = total + jnp.concatenate([pull[:, :1] * own.x, pull[:, :1] * mean + pull[:, 1:]], axis=1)
        kept = kept if kept is None else jax.tree.map(lambda leaf, one: leaf.at[i].set(one), kept, sums)
        return total, jax.tree.map(lambda leaf, one: leaf.at[i].set(one), rows, row), kept

    factors, means = jnp.linalg.cholesky(symmetric(gaussian.spread)), rates(loadings, gaussian, units)
    none = jax.tree.map(lambda leaf: leaf[0], nothing(1, C, control))
    empty = tuple(jnp.zeros((b, *shape), C.dtype) for shape in ((q,), (len(j),), (), ()))
    pull, rows, sums = jax.lax.fori_loop(0, count, add, (jnp.zeros((p, k + q), C.dtype), empty, sums))
    if control:
        pull = pull + _in_closed_form(means, C, units, gaussian)
    return Weighted(pull, *rows), sums


def _log_joint(v: Array, total: Array, projected: Array) -> Array:
    r"""$\log p(y_i, v)$ less what is free of v, from the sum of the rates."""
    return v @ projected - total - jnp.sum(v**2, axis=-1) / 2 - v.shape[-1] * LOG_2PI / 2


def _with_phi(C: Array, A: Array, mean: Array, spread: Array, projected: Array) -> tuple[Array, Array, Array]:
    r"""Covariances under g with $\phi$, of the rates times 1 and $w - \mu$ (p, 1 + q), and of $w - \mu$ and its products in
    packed form; and whether $\phi$ varies little.

    Weighted by the rate of feature j, g moves by $Sc_j$, by which $\phi$ changes in its mean and its slope. Its slope and its
    curvature under g, e and E, are zero where g is the variational posterior; the rest is what rates have beyond them.
    """
    S = symmetric(spread)
    j, l, _ = lower_indices(len(S))
    T = C @ S
    e, E = projected - A @ C - mean, jnp.linalg.inv(S) - jnp.eye(len(S), dtype=C.dtype) - (C.T * A) @ C
    shared = T @ C.T
    second = jnp.expm1(jnp.minimum(shared, HIGHEST)) - shared
    third = (second - shared**2 / 2) @ A
    height = T @ e + jnp.sum((T @ E) * T, axis=1) / 2 - third
    slope = e + T @ E - second @ (A[:, None] * C)
    pull = A[:, None] * jnp.concatenate([height[:, None], height[:, None] * T + slope @ S], axis=1)
    variance = A @ third + e @ S @ e + jnp.sum((E @ S) * (S @ E)) / 2
    return pull, jnp.concatenate([S @ e, (S @ E @ S)[j, l]]), variance < SMALL


def _in_closed_form(A: Array, C: Array, units: Units, gaussian: Posterior) -> Float[Array, "p u"]:
    r"""$\sum_iE_g[A_{ij}u_i]$: weighted by its rate, a Gaussian moves by $S_ic_j$."""
    own = A.T @ jnp.concatenate([units.x, gaussian.mean, gaussian.spread], axis=1)
    k, q = units.x.shape[1], C.shape[1]
    moved = jnp.einsum("pij,pj->pi", symmetric(own[:, k + q :]), C)
    return jnp.concatenate([own[:, :k], own[:, k : k + q] + moved], axis=1)


def span_score(x: Any, mean: Any, spread: Any, present: Any = None) -> tuple[Float[Array, "k q"], Float[Array, " t"]]:
    r"""$\sum_ix_iE[w_i]^\top$ and the lower triangle of $\sum_iE[w_iw_i^\top] - I$, over units that are present."""
    a, b, _ = lower_indices(mean.shape[1])
    second = spread + mean[:, a] * mean[:, b] - np.asarray(a == b, mean.dtype)
    return x.T @ mean, (second if present is None else second * present[:, None]).sum(axis=0)
