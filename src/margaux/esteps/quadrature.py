"""Adaptive quadrature, for latents of few dimensions."""

from __future__ import annotations

import dataclasses
import itertools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..kernels.base import flat_size
from ..numerics.gaussian import find_mode, laplace
from ..problem.model import for_searches, leading, mapped
from .base import AbstractEStep, continuous, flat_start, flat_target

#: in three dimensions and more, of the point of most mass under a Gaussian, the share below which one is left out: two in five of
#: 17 cubed
NEGLIGIBLE = 1e-11


class Quadrature(AbstractEStep):
    r"""$\int p(y_i,z)\,dz \approx \sum_j \omega_j\, p(y_i, \hat z_i + L_i u_j)$ over a product Gauss-Hermite grid.

    Centred and scaled at each unit's mode (Pinheiro and Bates 1995, section 2.3); deterministic. The nodes of Gauss and Hermite
    are as good as can be for polynomials, but reach further than a posterior does, $2\sqrt n$ scales; where one is less like a
    Gaussian, as many equidistant ones over a given reach are far better (Trefethen 2022, Exactness of quadrature formulas,
    section 5).

    Args:
        n_nodes: nodes a dimension.
        n_newton: Newton steps an iteration that follow the mode.
        widening: scale of the grid, in units of the inverse root of the curvature: another one is another rule, and a check.
        held: keep centre and scale as they were made.
        reach: scales to either side that equidistant nodes span (the trapezoidal rule); nodes of Gauss and Hermite if None.
        closer: nodes and reach of finer grids, for units whose rows ask for the first, second, ... of them by their `level`.
    """

    may_be_padded: ClassVar[bool] = True
    n_nodes: int = eqx.field(static=True)
    n_newton: int
    widening: Array | np.ndarray
    held: bool = eqx.field(static=True)
    reach: float | None = eqx.field(static=True)
    closer: tuple[tuple[int, float | None], ...] = eqx.field(static=True)

    def __init__(
        self,
        n_nodes: int = 15,
        n_newton: int = 3,
        widening: float = 1.0,
        held: bool = False,
        reach: float | None = None,
        closer: tuple[tuple[int, float | None], ...] = (),
    ) -> None:
        if n_nodes < 1 or n_nodes > 100:
            raise ValueError(f"n_nodes must be between 1 and 100, got {n_nodes}")
        if n_newton < 1:
            raise ValueError(f"n_newton must be at least 1, got {n_newton}")
        if not widening > 0:
            raise ValueError(f"widening must be positive, got {widening}")
        if reach is not None and not (reach > 0 and n_nodes > 1):
            raise ValueError(f"reach must be positive, with two nodes or more, got {reach} with {n_nodes}")
        self.n_nodes, self.n_newton, self.held, self.reach, self.closer = n_nodes, n_newton, held, reach, closer
        self.widening = np.asarray(widening, float)

    def requires(self, model, latents):
        trouble = continuous(model, latents, "quadrature")
        if trouble is not None:
            return trouble
        size, _ = flat_size(latents)
        digits = size * np.log10(self.n_nodes)
        if digits > np.log10(20_000):
            return (
                f"quadrature with {self.n_nodes} nodes in {size} dimensions has 10^{digits:.1f} points a unit; "
                "lower n_nodes, or use margaux.ImportanceSampling or margaux.MCMC"
            )
        return None

    def init(self, key, model, params, y):
        target, _ = flat_target(for_searches(model), params, y)
        found = find_mode(target, flat_start(key, model, params, y))
        return {"mean": found.at, "cholesky": found.root}

    def for_rows(self):
        return Quadrature(1)

    def at_level(self, level: int) -> Quadrature:
        """The grid of units whose rows ask for it."""
        nodes, reach = ((self.n_nodes, self.reach), *self.closer)[level]
        return dataclasses.replace(self, n_nodes=nodes, reach=reach, closer=())

    def noise(self, key, latents):
        return ()

    def expect(self, f, noise, model, params, rows, batch, k):
        def unit(row, y):
            target, unravel = flat_target(model, params, y)
            searched, _ = flat_target(for_searches(model), params, y)
            mode, cholesky = (row["mean"], row["cholesky"]) if self.held else laplace(searched, row["mean"], self.n_newton)
            wide = jnp.asarray(self.widening, mode.dtype) * cholesky
            u, log_weight = (jnp.asarray(part, mode.dtype) for part in self.points(mode.size))
            x = mode + u @ wide.T
            log_w = jax.vmap(target)(x) + log_weight + jnp.sum(jnp.log(jnp.diagonal(wide)))
            return {"mean": mode, "cholesky": cholesky}, jax.vmap(unravel)(x), log_w

        rows, z, log_w = mapped(unit, leading(batch))(rows, batch)
        z = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), z)
        log_w = log_w.T
        log_marginal = jax.nn.logsumexp(log_w, axis=0)
        return f(z, jax.nn.softmax(log_w, axis=0)), rows, {"log_marginal": log_marginal}

    def points(self, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Nodes (m, d) and the log weights (m,) of integrals against Lebesgue measure, without corners of a grid of Gauss and
        Hermite that weigh next to nothing."""
        if self.reach is None:
            x, w = np.polynomial.hermite_e.hermegauss(self.n_nodes)
            each = np.log(w) + x**2 / 2
        else:
            x, spacing = np.linspace(-self.reach, self.reach, self.n_nodes, retstep=True)
            each = np.full(self.n_nodes, np.log(spacing))
        nodes = np.array(list(itertools.product(x, repeat=d)))
        log_weights = np.array([np.sum(c) for c in itertools.product(each, repeat=d)])
        shares = log_weights - np.sum(nodes**2, axis=1) / 2
        kept = shares > np.max(shares) + np.log(NEGLIGIBLE) if self.reach is None and d > 2 else np.full(len(nodes), True)
        return nodes[kept], log_weights[kept]
