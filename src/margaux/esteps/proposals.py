"""Where importance sampling draws a unit's latents from."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ..numerics import triangular
from ..numerics.gaussian import laplace
from ..problem.model import Params, Unit, for_searches
from .base import flat_start, flat_target

if TYPE_CHECKING:
    from ..problem.model import AbstractModel


LOG_2PI = float(np.log(2 * np.pi))


class AbstractProposal(eqx.Module):
    """The density q_i that a unit's latents are drawn from, as a function of random numbers; its row is kept by the E-step."""

    @property
    @abc.abstractmethod
    def extra(self) -> int:
        """Uniform numbers that a draw takes beside a standard normal a latent."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, model: AbstractModel, params: Params, y: Unit) -> PyTree:
        """The row of one unit."""

    def compared(self, model: AbstractModel, params: Params, rows: PyTree, data: PyTree) -> PyTree:
        """Rows of units beside each other, with what one tells of another."""
        return rows

    @abc.abstractmethod
    def follow(self, model: AbstractModel, params: Params, row: PyTree, y: Unit) -> PyTree:
        """The row at moved parameters, before an E-step draws."""

    @abc.abstractmethod
    def draw(
        self, noise: Float[Array, "m e"], model: AbstractModel, params: Params, row: PyTree, y: Unit
    ) -> tuple[Float[Array, "m d"], Float[Array, " m"], Float[Array, "m d"]]:
        """Flat draws, log q of each, and what `learn` is told of them, by noise of `normals`."""

    @abc.abstractmethod
    def learn(self, row: PyTree, told: Float[Array, "m d"], w: Float[Array, " m"]) -> PyTree:
        """The row after an E-step, by the normalised weights of its draws."""

    @abc.abstractmethod
    def figures(self, row: PyTree, log_w: Float[Array, " m"]) -> dict[str, Array]:
        """More figures of a unit, beside its effective size and log marginal likelihood."""


class AtMode(AbstractProposal):
    r"""$(1-\alpha) N(m, S) + \alpha N(m, \delta^2 S)$ in fixed proportions, m the mode and S the inverse curvature.

    Args:
        n_newton: Newton steps an iteration that follow the mode. defensive: $\alpha$. widening: $\delta$.
    """

    n_newton: int
    defensive: float = eqx.field(static=True)
    widening: Array | np.ndarray

    @property
    def extra(self):
        return 0

    def init(self, key, model, params, y):
        target, _ = flat_target(for_searches(model), params, y)
        mode, cholesky = laplace(target, flat_start(key, model, params, y), 30)
        return {"mean": mode, "cholesky": cholesky}

    def follow(self, model, params, row, y):
        target, _ = flat_target(for_searches(model), params, y)
        mode, cholesky = laplace(target, row["mean"], self.n_newton)
        return {"mean": mode, "cholesky": cholesky}

    def wide(self, m: int) -> int:
        """How many of m draws are wide."""
        return round(self.defensive * m)

    def variance(self, m: int) -> Array:
        """Of a whitened coordinate under the mixture of m draws."""
        share, delta = self.wide(m) / m, jnp.asarray(self.widening)
        return (1 - share) + share * delta**2

    def draw(self, noise, model, params, row, y):
        m, d = noise.shape
        wide, delta = self.wide(m), jnp.asarray(self.widening, noise.dtype)
        share = wide / m
        u = noise * jnp.where(jnp.arange(m) < wide, delta, 1.0)[:, None]
        square = jnp.sum(u**2, axis=1)
        log_q = -square / 2
        if wide:
            far = -square / (2 * delta**2) - d * jnp.log(delta)
            log_q = jnp.logaddexp(jnp.log1p(-share) + log_q, jnp.log(share) + far)
        log_q = log_q - d / 2 * jnp.log(2 * jnp.pi) - jnp.sum(jnp.log(jnp.diagonal(row["cholesky"])))
        return row["mean"] + u @ row["cholesky"].T, log_q, u

    def learn(self, row, told, w):
        return row

    def figures(self, row, log_w):
        return {}


class Running(AtMode):
    """As `AtMode`, but m and S are the running posterior mean and covariance of the draws, a tenth of the way each time."""

    def follow(self, model, params, row, y):
        return row

    def learn(self, row, told, w):
        rho, d = 0.1, told.shape[1]
        mean = w @ told
        centred = told - mean
        covariance = (1 - rho) * jnp.eye(d, dtype=told.dtype) + rho * (centred * w[:, None]).T @ centred
        return {
            "mean": row["mean"] + rho * row["cholesky"] @ mean,
            "cholesky": row["cholesky"] @ triangular.cholesky(covariance),
        }
