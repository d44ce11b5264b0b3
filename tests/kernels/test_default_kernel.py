"""The default chain is exact; what an unadjusted one does to an estimate is told."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from margaux.answers.bias import kernel_bias
from shared_latents import crossed_effects, stochastic_volatility

normal = jax.scipy.stats.norm.logpdf


def fitted(problem: Any, estep: Any, n_iter: int, key: int = 0) -> Any:
    settings: Any = {"params": problem.start, "n_iter": n_iter, "key": key, "polish": False, "progress": False}
    return mx.fit(problem.model, problem.data, mx.soul(), estep, **settings)


def off(problem: Any, fit: Any) -> np.ndarray:
    """Standard errors from the exact maximum."""
    return (np.array([float(fit.params[name]) for name in sorted(problem.start)]) - problem.mle) / problem.se


def test_defaults_of_chains():
    default, named = mx.MCMC(), mx.MCMC(mx.ULA(0.1))
    assert isinstance(default.kernel, mx.MALA)
    assert default.kernel.adjusted
    assert (default.n_steps, default.warm_up) == (5, 500)
    assert (named.n_steps, named.warm_up) == (1, 0)
    assert (mx.MCMC(n_steps=2, warm_up=0).n_steps, mx.MCMC(n_steps=2, warm_up=0).warm_up) == (2, 0)


def test_crossed_effects_by_the_default_chain():
    problem = crossed_effects()
    away = np.array([off(problem, fitted(problem, mx.MCMC(), 8000, key)) for key in range(3)])
    # After so few iterations the last is a tenth of a standard error below (twenty keys), each key 0.05 around that.
    np.testing.assert_allclose(away.mean(axis=0), 0.0, atol=0.2)


@pytest.mark.slow
def test_stochastic_volatility_by_the_default_chain():
    problem = stochastic_volatility()
    away = np.array([off(problem, fitted(problem, mx.MCMC(), 60_000, key)) for key in range(3)])
    assert np.abs(away.mean(axis=0)).max() < 0.2, away


@pytest.mark.slow
def test_the_bias_of_an_unadjusted_chain_is_told():
    problem = stochastic_volatility()
    fit = fitted(problem, mx.MCMC(mx.ULA(0.003), n_steps=5, warm_up=500), 20_000)
    away, check = np.abs(off(problem, fit)).max(), kernel_bias(fit)
    assert away > 0.8
    assert check is not None
    assert check.level == "careful"
    # To first order, by an information that is that of the biased estimate.
    assert check.figure == pytest.approx(away, rel=0.35)
    assert "margaux.MALA" in check.sentence


class Intercepts(mx.AbstractModel):
    """y_ij ~ N(z_i, 1), z_i ~ N(mu, exp(s)^2)."""

    def log_joint(self, params, z, y):
        return jnp.sum(normal(y, z)) + normal(z, params["mu"], jnp.exp(params["s"]))

    def init_latents(self, key, params, y):
        return jnp.mean(y)


@pytest.mark.parametrize("step, level", [(0.15, "careful"), (0.01, "pass")])
def test_the_bias_of_a_known_chain(step, level):
    rng = np.random.default_rng(0)
    y = 1.0 + 0.7 * rng.normal(size=(500, 1)) + rng.normal(size=(500, 4))
    settings: Any = {"params": {"mu": 0.0, "s": 0.0}, "n_iter": 1500, "polish": False, "progress": False}
    fit = mx.fit(Intercepts(), y, mx.soul(), mx.MCMC(mx.ULA(step), n_steps=3), **settings)
    # A Gaussian of precision P has variance 1 / P (1 - h P / 2) under the chain of step h.
    ratio = np.exp(-2 * float(fit.params["s"]))
    precision = 4 + ratio
    variance = lambda h: 1 / (precision * (1 - h * precision / 2))  # noqa: E731
    expected = 500 * ratio * 2 * (variance(step) - variance(step / 2)) * fit.information().se[1]
    check = kernel_bias(fit)
    assert check is not None
    assert check.level == level
    assert check.figure == pytest.approx(expected, abs=4 * check.error + 0.02 * expected)
    assert check.error < 0.1


def test_exact_kernels_have_no_such_check():
    problem = crossed_effects()
    assert kernel_bias(fitted(problem, mx.MCMC(), 100)) is None
