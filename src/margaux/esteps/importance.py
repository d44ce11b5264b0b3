"""Importance sampling from a Gaussian proposal of each unit."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..gaussian import laplace, normals
from ..kernels.base import flat_size
from ..model import leading, mapped
from ..schedule import AbstractSchedule, as_schedule
from .base import AbstractEStep, flat_start, flat_target


class ImportanceSampling(AbstractEStep):
    r"""Self-normalised importance sampling (ISGD: Batardiere, Chiquet, Kwon and Stoehr, algorithms 1 and 2).

    Proposal of unit i: $(1-\alpha) N(m_i, S_i) + \alpha N(m_i, \delta^2 S_i)$, a defensive mixture in fixed proportions.

    Args:
        n_draws: draws a unit, a number, or a growing schedule (rounded up to whole rounds of 64).
        proposal: "laplace", the mode and curvature at the current parameters, followed by `n_newton`
            Newton steps an iteration; or "adapted", the running posterior mean and covariance of the draws.
        defensive: $\alpha$, the share of wide draws (0 for none).
        widening: $\delta$, their standard deviations in units of the proposal's.
        quasi: quasi-Monte-Carlo normals (a randomly shifted lattice) in place of independent ones.
        control_variate: subtract a Gaussian control variate: the quadratic in z through 2d + 1 points of
            any averaged function, whose moment under the proposal is known exactly. It acts as 2d + 1
            more draws with signed weights that vanish as n_draws grows.

    Traces the effective sample size and the log marginal likelihood.
    """

    n_draws: int | AbstractSchedule
    proposal: str = eqx.field(static=True)
    defensive: float = eqx.field(static=True)
    widening: Array | np.ndarray
    quasi: bool = eqx.field(static=True)
    control_variate: bool = eqx.field(static=True)
    n_newton: int

    def __init__(
        self,
        n_draws: Any = 64,
        proposal: str = "laplace",
        defensive: float = 0.1,
        widening: float = 2.0,
        quasi: bool = False,
        control_variate: bool = True,
        n_newton: int = 2,
    ) -> None:
        if isinstance(n_draws, int):
            if n_draws < 2:
                raise ValueError(f"n_draws must be at least 2, got {n_draws}")
            self.n_draws = n_draws
        else:
            self.n_draws = as_schedule(n_draws, name="n_draws")
        if proposal not in ("laplace", "adapted"):
            raise ValueError(f'proposal must be "laplace" or "adapted", got {proposal!r}')
        if not 0 <= defensive < 1:
            raise ValueError(f"defensive must be a share in [0, 1), got {defensive}")
        if not widening >= 1:
            raise ValueError(f"widening must be at least 1, got {widening}")
        if n_newton < 1:
            raise ValueError(f"n_newton must be at least 1, got {n_newton}")
        self.proposal, self.defensive, self.widening = proposal, float(defensive), np.asarray(widening, float)
        self.quasi, self.control_variate, self.n_newton = quasi, control_variate, n_newton

    @property
    def _round(self) -> int:
        return self.n_draws if isinstance(self.n_draws, int) else 64

    def requires(self, model, latents):
        size, _ = flat_size(latents)
        if size > 200:
            return (
                f"importance sampling from a dense Gaussian is hopeless for {size} latents a unit; "
                "use margaux.MCMC, or write the model for smaller units"
            )
        return None

    def init(self, key, model, params, y):
        target, _ = flat_target(model, params, y)
        mode, cholesky = laplace(target, flat_start(key, model, params, y), 30)
        return {"mean": mode, "cholesky": cholesky}

    def noise(self, key, latents):
        if not isinstance(self.n_draws, int):
            return key
        size, dtype = flat_size(latents)
        return normals(key, self.n_draws, size, dtype, self.quasi)

    def expect(self, f, noise, model, params, rows, batch, k):
        b = leading(batch)
        if self.proposal == "laplace":
            rows = mapped(lambda row, y: self._laplace(model, params, row, y), b)(rows, batch)
        if isinstance(self.n_draws, int):
            z, log_w, u = self._draws(noise, model, params, rows, batch)
            log_mean = jax.nn.logsumexp(log_w, axis=0) - jnp.log(self.n_draws)
            w = jax.nn.softmax(log_w, axis=0)
            ess = 1.0 / jnp.sum(w**2, axis=0)
            value = f(*self._with_control_variate(z, w, u, model, params, rows, batch))
            if self.proposal == "adapted":
                rows = mapped(_adapt, b)(rows, jnp.moveaxis(u, 1, 0), w.T)
        else:
            value, log_mean, ess = self._growing(f, noise, model, params, rows, batch, k)
        return value, rows, {"ess": jnp.sum(ess), "log_marginal": jnp.sum(log_mean)}

    def _laplace(self, model, params, row, y):
        target, _ = flat_target(model, params, y)
        mode, cholesky = laplace(target, row["mean"], self.n_newton)
        return {"mean": mode, "cholesky": cholesky}

    def _wide(self, m: int) -> int:
        return round(self.defensive * m)

    def _draws(self, noise, model, params, rows, batch):
        """Latents (m, b, ...), log weights (m, b), whitened draws (m, b, d) from normals (b, m, d)."""
        m = noise.shape[1]
        wide, delta = self._wide(m), jnp.asarray(self.widening, noise.dtype)
        share = wide / m
        stretch = jnp.where(jnp.arange(m) < wide, delta, 1.0)[:, None]
        log_det = lambda c: jnp.sum(jnp.log(jnp.diagonal(c)))  # noqa: E731

        def unit(e, row, y):
            target, unravel = flat_target(model, params, y)
            u = e * stretch
            d = u.shape[1]
            square = jnp.sum(u**2, axis=1)
            log_q = -square / 2
            if wide:
                far = -square / (2 * delta**2) - d * jnp.log(delta)
                log_q = jnp.logaddexp(jnp.log1p(-share) + log_q, jnp.log(share) + far)
            log_q = log_q - d / 2 * jnp.log(2 * jnp.pi) - log_det(row["cholesky"])
            x = row["mean"] + u @ row["cholesky"].T
            return jax.vmap(unravel)(x), jax.vmap(target)(x) - log_q, u

        z, log_w, u = mapped(unit, leading(batch))(noise, rows, batch)
        swap = lambda t: jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), t)  # noqa: E731
        log_w = jnp.where(jnp.isnan(log_w), -jnp.inf, log_w)
        return swap(z), swap(log_w), swap(u)

    def _with_control_variate(self, z, w, u, model, params, rows, batch):
        """Append the 2d + 1 signed points: E_q[c] - mean_j c(u_j), c the quadratic through them."""
        if not self.control_variate:
            return z, w
        m, _, d = u.shape
        share = self._wide(m) / m
        h = jnp.sqrt(jnp.asarray(3.0, u.dtype))
        variance = (1 - share) + share * jnp.asarray(self.widening, u.dtype) ** 2
        linear = jnp.mean(u, axis=0).T / (2 * h)
        curved = (variance - jnp.mean(u**2, axis=0)).T / (2 * h**2)
        signed = jnp.concatenate([curved - linear, curved + linear, -2 * jnp.sum(curved, axis=0, keepdims=True)])
        corners = jnp.concatenate([h * jnp.eye(d), -h * jnp.eye(d), jnp.zeros((1, d))]).astype(u.dtype)

        def unit(row, y):
            _, unravel = flat_target(model, params, y)
            return jax.vmap(unravel)(row["mean"] + corners @ row["cholesky"].T)

        points = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), mapped(unit, leading(batch))(rows, batch))
        return jax.tree.map(lambda a, c: jnp.concatenate([a, c]), z, points), jnp.concatenate([w, signed])

    def _growing(self, f, keys, model, params, rows, batch, k):
        """Two passes over rounds of the same draws: first each unit's normaliser, then the average."""
        d, dtype = rows["mean"].shape[1], rows["mean"].dtype
        assert not isinstance(self.n_draws, int)
        rounds = jnp.maximum(jnp.ceil(self.n_draws(k) / self._round).astype(jnp.int32), 1)

        def draw(r):
            unit = lambda key: normals(jax.random.fold_in(key, r), self._round, d, dtype, self.quasi)  # noqa: E731
            return self._draws(jax.vmap(unit)(keys), model, params, rows, batch)

        def add(r, state):
            _, log_w, _ = draw(r)
            both = jnp.stack([jax.nn.logsumexp(log_w, axis=0), jax.nn.logsumexp(2 * log_w, axis=0)])
            return jnp.logaddexp(state, both)

        start = jnp.full((2, leading(batch)), -jnp.inf, dtype)
        log_sum, log_square = jax.lax.fori_loop(0, rounds, add, start)

        def average(r):
            z, log_w, u = draw(r)
            z, w = self._with_control_variate(z, jnp.exp(log_w - log_sum) * rounds, u, model, params, rows, batch)
            return f(z, w / rounds)

        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(average, 0))
        value = jax.lax.fori_loop(0, rounds, lambda r, value: jax.tree.map(jnp.add, value, average(r)), zero)
        return value, log_sum - jnp.log(rounds * self._round), jnp.exp(2 * log_sum - log_square)


def _adapt(row, u, w):
    """Move a unit's proposal a tenth of the way to the weighted moments of its draws (in whitened coordinates)."""
    rho, d = 0.1, u.shape[1]
    mean = w @ u
    centred = u - mean
    covariance = (1 - rho) * jnp.eye(d, dtype=u.dtype) + rho * (centred * w[:, None]).T @ centred
    return {
        "mean": row["mean"] + rho * row["cholesky"] @ mean,
        "cholesky": row["cholesky"] @ jnp.linalg.cholesky(covariance),
    }
