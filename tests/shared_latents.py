"""Models of one unit with many latents, and their maximum by arithmetic that shares no code with the library."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg, optimize, stats

import margaux as mx

normal = jax.scipy.stats.norm.logpdf


class Shared(NamedTuple):
    """A model with its data and start, and the exact maximum with standard errors, in the order of the start's names."""

    model: Any
    data: Any
    start: dict[str, float]
    mle: np.ndarray
    se: np.ndarray
    loglik: float


class StochasticVolatility(mx.AbstractModel):
    """y_t ~ N(0, exp(h_t)); h is autoregressive: mean mu, coefficient tanh(a), innovations of SD exp(s), stationary."""

    def log_joint(self, params, z, y):
        phi, sd = jnp.tanh(params["a"]), jnp.exp(params["s"])
        h = z - params["mu"]
        prior = normal(h[0], 0.0, sd / jnp.sqrt(1 - phi**2)) + jnp.sum(normal(h[1:], phi * h[:-1], sd))
        return prior + jnp.sum(normal(y, 0.0, jnp.exp(z / 2)))

    def init_latents(self, key, params, y):
        return params["mu"] + 0.1 * jax.random.normal(key, y.shape, y.dtype)


class CrossedEffects(mx.AbstractModel):
    """y_ij ~ N(mu + a_i + b_j, exp(e)^2), a_i ~ N(0, exp(a)^2), b_j ~ N(0, exp(b)^2)."""

    def log_joint(self, params, z, y):
        of = lambda name: jnp.exp(params[name])  # noqa: E731
        data = normal(y, params["mu"] + z["rows"][:, None] + z["columns"][None], of("e"))
        return jnp.sum(data) + jnp.sum(normal(z["rows"], 0.0, of("a"))) + jnp.sum(normal(z["columns"], 0.0, of("b")))

    def init_latents(self, key, params, y):
        return {"rows": jnp.zeros(y.shape[0], y.dtype), "columns": jnp.zeros(y.shape[1], y.dtype)}


def filtered(theta: np.ndarray, y: np.ndarray, points: int = 240) -> float:
    """Log-likelihood of stochastic volatility (a, mu, s) by a filter on a grid: each integral a sum over `points`."""
    phi, mu, sd = np.tanh(theta[0]), theta[1], np.exp(theta[2])
    spread = sd / np.sqrt(1 - phi**2)
    h = np.linspace(-7 * spread, 7 * spread, points)
    width = h[1] - h[0]
    kernel = stats.norm.pdf(h[None], phi * h[:, None], sd) * width
    seen = stats.norm.pdf(y[:, None], 0.0, np.exp((h + mu) / 2))
    now, total = stats.norm.pdf(h, 0.0, spread) * width, 0.0
    for t in range(len(y)):
        now = (now if t == 0 else now @ kernel) * seen[t]
        share = now.sum()
        total, now = total + np.log(share), now / share
    return total


def crossed(theta: np.ndarray, y: np.ndarray) -> float:
    """Log-likelihood of crossed effects (a, b, e, mu): the observations are jointly Gaussian."""
    a, b, e = np.exp(2 * theta[:3])
    rows, columns = y.shape
    i, j = np.arange(rows).repeat(columns), np.tile(np.arange(columns), rows)
    root = np.linalg.cholesky(a * (i[:, None] == i) + b * (j[:, None] == j) + e * np.eye(y.size))
    white = linalg.solve_triangular(root, y.ravel() - theta[3], lower=True)
    return float(stats.norm.logpdf(white).sum() - np.log(np.diag(root)).sum())


def _maximum(loglik: Any, start: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The maximum, standard errors by differences of second order, and the log-likelihood there."""
    found = optimize.minimize(lambda x: -loglik(x), start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-8})
    best, step = found.x, 1e-3
    shifts = step * np.eye(len(best))
    second = lambda u, v: (loglik(best + u + v) - loglik(best + u - v) - loglik(best - u + v) + loglik(best - u - v)) / 4  # noqa: E731
    hessian = np.array([[second(u, v) for v in shifts] for u in shifts]) / step**2
    return best, np.sqrt(np.diag(np.linalg.inv(-hessian))), -float(found.fun)


@functools.cache
def stochastic_volatility(n: int = 400, seed: int = 0) -> Shared:
    rng = np.random.default_rng(seed)
    phi, mu, sd = 0.95, -0.5, 0.35
    h = [rng.normal(0, sd / np.sqrt(1 - phi**2))]
    for _ in range(n - 1):
        h.append(phi * h[-1] + rng.normal(0, sd))
    y = rng.normal(size=n) * np.exp((mu + np.array(h)) / 2)
    exact = _maximum(lambda x: filtered(x, y), np.array([np.arctanh(phi), mu, np.log(sd)]))
    return Shared(StochasticVolatility(), mx.one_unit(y), {"a": 1.0, "mu": 0.0, "s": -0.5}, *exact)


@functools.cache
def crossed_effects(rows: int = 20, columns: int = 10, seed: int = 0) -> Shared:
    rng = np.random.default_rng(seed)
    y = 1.0 + 0.8 * rng.normal(size=(rows, 1)) + 0.5 * rng.normal(size=(1, columns)) + 0.7 * rng.normal(size=(rows, columns))
    exact = _maximum(lambda x: crossed(x, y), np.array([np.log(0.8), np.log(0.5), np.log(0.7), 1.0]))
    return Shared(CrossedEffects(), mx.one_unit(y), {"a": 0.0, "b": 0.0, "e": 0.0, "mu": 0.0}, *exact)
