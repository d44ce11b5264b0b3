r"""What a fit of PLN-PCA says of units: its own axes, posteriors of new units, and the entropy of the latents."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...numerics.compiling import compiled
from ...numerics.packing import lower_indices, symmetric
from .filling import emptied, filled
from .fitting import Design
from .variational import BLOCK, Loadings, Posterior, Units, unit_steps

#: Newton steps of a round, and rounds at most: a step that is refused is tried at a quarter of its length; and last steps
STEPS, ROUNDS, LAST = 16, 20, 8


def settled(design: Design, loadings: Loadings, block: int = BLOCK) -> Posterior:
    """Posteriors of units from nothing, where each unit's part of the bound is highest under given loadings."""
    dtype, n, (p, q) = loadings.C.dtype, design.counts.n, loadings.C.shape
    projected = design.counts.times(np.asarray(loadings.C))
    size = max(min(block // p, n), 1)
    parts = []
    for first in range(0, n, size):
        span = slice(first, first + size)
        units: Any = [np.asarray(leaf[span], dtype) for leaf in (design.x, design.offset, projected)]
        rows = len(units[0])
        none: Any = np.zeros((rows, q), dtype), np.zeros((rows, q * (q + 1) // 2), dtype)
        full = filled(loadings, Units(*units), Posterior(*none), n * p)
        parts.append(emptied(_settled(full.loadings, full.units), rows))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


@compiled
def _settled(loadings: Loadings, units: Units) -> Posterior:
    """Rounds of Newton steps until no mean moves, from the mean of the prior and a spread that raises no log-rate by more than a
    half: that of the prior raises the rates of large loadings beyond what can be inverted. The last steps are to the fixed point
    itself: near to it the rounding of the bound refuses steps, by chance, and leaves half of the digits."""
    b, q = units.projected.shape
    j, k, _ = lower_indices(q)
    narrow = 1 / jnp.maximum(jnp.max(jnp.sum(loadings.C**2, axis=1)), 1)
    start = Posterior(jnp.zeros_like(units.projected), jnp.tile(jnp.asarray(j == k, units.x.dtype) * narrow, (b, 1)))
    eps = float(jnp.finfo(units.x.dtype).eps)
    close = np.sqrt(eps)

    def moving(state: tuple[Posterior, Array, Array]) -> Array:
        return (state[1] > close) & (state[2] < ROUNDS)

    def more(state: tuple[Posterior, Array, Array]) -> tuple[Posterior, Array, Array]:
        new = unit_steps(loadings, state[0], units, STEPS)[0]
        return new, jnp.max(jnp.abs(new.mean - state[0].mean)), state[2] + 1

    near = jax.lax.while_loop(moving, more, (start, jnp.asarray(jnp.inf, units.x.dtype), jnp.asarray(0)))[0]
    return unit_steps(loadings, near, units, LAST, slack=64 * eps)[0]


def principal(loadings: Loadings, posterior: Posterior) -> tuple[Loadings, Posterior]:
    """Turned so that loadings are orthogonal, by falling variance, with the largest entry of each positive."""
    B, C, mean, packed = (np.asarray(leaf) for leaf in (*loadings, *posterior))
    u, d, vt = np.linalg.svd(C, full_matrices=False)
    sign = np.sign(np.take_along_axis(u, np.argmax(np.abs(u), axis=0)[None], axis=0)[0])
    turn = vt * sign[:, None]
    j, k, _ = lower_indices(len(d))
    whole: Any = packed
    parts: Any = B, u * d * sign, mean @ turn.T, (turn @ symmetric(whole) @ turn.T)[:, j, k]
    return Loadings(*parts[:2]), Posterior(*parts[2:])


def entropy(posterior: Posterior) -> float:
    r"""$\sum_i\tfrac12\log|2\pi eS_i|$, in float64."""
    n, q = posterior.mean.shape
    S = np.asarray(symmetric(jnp.asarray(posterior.spread)), float)
    return float(np.sum(np.linalg.slogdet(S)[1]) + n * q * np.log(2 * np.pi * np.e)) / 2
