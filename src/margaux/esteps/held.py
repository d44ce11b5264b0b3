"""Quadrature whose nodes stay where they were made, of one unit: how answers take sums once a fit is over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..numerics import triangular
from ..numerics.arrays import mapped_as
from ..problem.model import leading
from .base import AbstractEStep, flat_target
from .quadrature import Quadrature

#: points of a piece by the number of latents, which divide those of the usual grids almost evenly; and points up to which all
#: grids are served by one program
PIECES: dict[int, tuple[int, int]] = {1: (11, 88), 2: (75, 2025), 3: (147, 9261), 4: (575, 5750)}


class HeldQuadrature(AbstractEStep):
    r"""$\sum_j \omega_j\, p(y_i, m_i + L_i u_j)$ of the rows' centres $m_i$ and scales $L_i$, piece by piece of the points.

    Rows of a mixture of Gaussians $\sum_k\alpha_kq_k$, $q_k = N(m_{ik}, L_{ik}L_{ik}^\top)$, have a grid for each of them, which
    integrates its part of the density, $p\,\alpha_kq_k/\sum_l\alpha_lq_l$: of densities with several modes.

    Weights are relative to the largest density so far, so that nothing overflows. The number of points is an argument of the
    program, which serves grids of all sizes. A row with a `span` has the pieces from its first up to its second number alone.

    Attributes:
        nodes, log_weights: points, padded by such of no weight. pieces: how many there are. widening: see `Quadrature`.
        size: points of each.
    """

    nodes: Array | np.ndarray
    log_weights: Array | np.ndarray
    pieces: Array | np.ndarray
    widening: Array | np.ndarray
    size: int = eqx.field(static=True)

    def requires(self, model, latents):
        return None

    def init(self, key, model, params, y):
        raise TypeError("the rows of a held quadrature are made by `Quadrature`")

    def noise(self, key, latents):
        return ()

    def expect(self, f, noise, model, params, rows, batch, k):
        if leading(batch) != 1:
            raise ValueError(f"a held quadrature is of one unit, got {leading(batch)}")
        row, y = jax.tree.map(lambda leaf: leaf[0], (rows, batch))
        target, unravel = flat_target(model, params, y)
        parts: Any = None
        span = row.get("span")
        if row["mean"].ndim == 2:
            row, parts = _present(row)
        mean, dtype = row["mean"], row["mean"].dtype
        wide = jnp.asarray(self.widening, dtype) * row["cholesky"]
        nodes, log_weights = jnp.asarray(self.nodes, dtype), jnp.asarray(self.log_weights, dtype)

        # Traced once, by the name of a program of its own: its second use finds the first.
        f = jax.jit(f, inline=True)

        def of_part(i):
            own, at = i // self.pieces, (i % self.pieces) * self.size
            x = mean[own] + jax.lax.dynamic_slice_in_dim(nodes, at, self.size) @ wide[own].T
            log_w = jax.vmap(target)(x) + jax.lax.dynamic_slice_in_dim(log_weights, at, self.size)
            log_w += jax.vmap(lambda x: parts(x)[own])(x) + jnp.sum(jnp.log(jnp.diagonal(wide[own])))
            return jax.tree.map(lambda leaf: leaf[:, None], jax.vmap(unravel)(x)), log_w

        def piece(i):
            if parts is not None:
                return of_part(i)
            u = jax.lax.dynamic_slice_in_dim(nodes, i * self.size, self.size)
            x = mean + u @ wide.T
            log_w = jax.vmap(target)(x) + jax.lax.dynamic_slice_in_dim(log_weights, i * self.size, self.size)
            return jax.tree.map(lambda leaf: leaf[:, None], jax.vmap(unravel)(x)), log_w

        def add(i, state):
            top, total, value = state
            z, log_w = piece(i)
            higher = jnp.maximum(top, jnp.max(log_w))
            level = jnp.where(higher == -jnp.inf, 0.0, higher)
            shrunk, w = jnp.exp(top - level), jnp.exp(log_w - level)
            value = jax.tree.map(lambda old, new: old * shrunk + new, value, f(z, w[:, None]))
            return higher, total * shrunk + jnp.sum(w), value

        one = mean if parts is None else mean[0]
        points = jax.tree.map(lambda s: jax.ShapeDtypeStruct((self.size, 1, *s.shape), s.dtype), jax.eval_shape(unravel, one))
        shapes = jax.eval_shape(f, points, jax.ShapeDtypeStruct((self.size, 1), dtype))
        nothing = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
        start = (jnp.full((), -jnp.inf, dtype), jnp.zeros((), dtype), nothing)
        pieces = self.pieces if parts is None else self.pieces * len(mean)
        first, last = (0, pieces) if span is None else (span[0], span[1])
        top, total, value = jax.lax.fori_loop(first, last, add, mapped_as(mean, start))
        log_marginal = top + jnp.log(total)
        log_marginal += jnp.sum(jnp.log(jnp.diagonal(wide))) if parts is None else 0.0
        return jax.tree.map(lambda leaf: leaf / total, value), rows, {"log_marginal": log_marginal[None]}


def _present(row: dict[str, Array]) -> tuple[dict[str, Array], Callable[[Array], Array]]:
    """A mixture with the first, which is a mode, in the place of Gaussians without a share; and the logarithms of the parts
    of a density at x that belong to each, (K,)."""
    there = row["log_share"] > -jnp.inf
    mean = jnp.where(there[:, None], row["mean"], row["mean"][0])
    root = jnp.where(there[:, None, None], row["cholesky"], row["cholesky"][0])
    inverses = jax.vmap(triangular.inverse_root)(root)
    level = row["log_share"] + jnp.sum(jnp.log(jnp.diagonal(inverses, axis1=1, axis2=2)), axis=1)

    def parts(x: Array) -> Array:
        white = jnp.einsum("kij,kj->ki", inverses, x - mean)
        return jax.nn.log_softmax(level - jnp.sum(white**2, axis=1) / 2)

    return {"mean": mean, "cholesky": root}, parts


def held(rule: Quadrature, d: int) -> HeldQuadrature:
    """The same sum over points that stay where they were made, of d latents."""
    nodes, log_weights, pieces = _padded(rule.n_nodes, rule.reach, d)
    return HeldQuadrature(nodes, log_weights, np.asarray(pieces), rule.widening, PIECES[d][0])


@functools.lru_cache(maxsize=32)
def _padded(n_nodes: int, reach: float | None, d: int) -> tuple[np.ndarray, np.ndarray, int]:
    nodes, log_weights = Quadrature(n_nodes, reach=reach).points(d)
    size, most = PIECES[d]
    pieces = -(-len(nodes) // size)
    missing = max(most, pieces * size) - len(nodes)
    nodes = np.concatenate([nodes, np.zeros((missing, d))])
    return nodes, np.concatenate([log_weights, np.full(missing, -np.inf)]), pieces
