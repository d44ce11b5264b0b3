"""Fits by mini-batches: chains that were hardly ever moved are told, an E-step without memory passes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

import margaux as mx
from margaux.answers.visits import _pooled, autocorrelation_time, visits


class ThreeRows(mx.AbstractModel):
    """Three binary rows a unit, with a normal intercept of mean mu and SD exp(s)."""

    def log_joint(self, params, z, y):
        eta = params["mu"] + jnp.exp(params["s"]) * z
        return jnp.sum(y * eta - jax.nn.softplus(eta)) + jax.scipy.stats.norm.logpdf(z)

    def init_latents(self, key, params, y):
        return jnp.zeros((), y.dtype)


@functools.cache
def rows(n: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.random((n, 3)) < special.expit(-0.5 + 0.8 * rng.normal(size=(n, 1)))).astype(float)


@functools.cache
def maximum() -> tuple[np.ndarray, np.ndarray]:
    """(mu, s) and their standard errors, by quadrature over the counts of the four outcomes."""
    counts = np.bincount(rows().sum(axis=1).astype(int), minlength=4)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)

    def value(t):
        p = special.expit(t[0] + np.exp(t[1]) * nodes)
        return -sum(c * np.log(weights / weights.sum() @ (p**k * (1 - p) ** (3 - k))) for k, c in enumerate(counts))

    best = optimize.minimize(value, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-8}).x
    h = 1e-3 * np.eye(2)
    second = [[value(best + a + b) - value(best + a - b) - value(best - a + b) + value(best - a - b) for a in h] for b in h]
    return best, np.sqrt(np.diag(np.linalg.inv(np.array(second) / 4e-6)))


def fitted(estep: Any) -> Any:
    settings: Any = {"n_iter": 1200, "batch_size": 100, "polish": False, "progress": False}
    return mx.fit(ThreeRows(), rows(), mx.soul(), estep, params={"mu": 0.0, "s": 0.0}, **settings)


def off(fit: Any) -> np.ndarray:
    """Standard errors from the maximum."""
    best, se = maximum()
    return (np.array([fit.params["mu"], fit.params["s"]]) - best) / se


def test_chains_that_start_cold_are_told():
    fit = fitted(mx.MCMC(mx.MALA(0.8), n_steps=2))
    away, check = off(fit), visits(fit)
    # Six epochs of two transitions: the standard deviation is far too large.
    assert away[1] > 4
    assert check.level != "pass"
    assert "has made 12 transitions" in check.sentence
    assert "margaux.Quadrature" in check.sentence
    assert abs(check.figure - np.abs(away).max()) < 3 * check.error
    assert autocorrelation_time(fit) > 1.5


def test_an_estep_without_memory_passes():
    fit = fitted(mx.Quadrature(9))
    assert np.abs(off(fit)).max() < 1
    check = visits(fit)
    assert check.level == "pass"
    # A sample of 2,000 in 20,000 has an error of sqrt(10 (1 - 1/10)) = 3 standard errors of all.
    assert check.error == pytest.approx(3.0, rel=0.15)


def test_autocorrelation_time_of_an_autoregression():
    rng, rho = np.random.default_rng(0), 0.8
    series = np.zeros((2000, 50, 2))
    for t in range(1, 2000):
        series[t] = rho * series[t - 1] + rng.normal(size=(50, 2))
    assert _pooled(series[200:]) == pytest.approx((1 + rho) / (1 - rho), rel=0.1)
    assert _pooled(rng.normal(size=(2000, 50, 2))) == pytest.approx(1.0, abs=0.15)
