"""Falls of a likelihood that few nodes tell, beside those by the rule itself."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import margaux as mx
from margaux.answers import search as module
from margaux.answers.polish import polish


class Counts(mx.AbstractModel):
    """Counts with a random intercept, a random slope and a random bend."""

    def log_joint(self, params, z, unit):
        eta = params["mu"] + z[0] + z[1] * unit["x"] + z[2] * unit["x"] ** 2
        prior = jnp.sum(norm.logpdf(z, 0.0, jnp.exp(params["log_sd"])))
        return jnp.sum(unit["y"] * eta - jnp.exp(eta)) + prior

    def init_latents(self, key, params, unit):
        return jnp.zeros(3)


@pytest.fixture(scope="module")
def fit():
    rng = np.random.default_rng(5)
    x = np.broadcast_to(np.linspace(-1, 1, 12), (60, 12))
    z = rng.normal(size=(60, 3)) * [0.6, 0.5, 0.4]
    y = rng.poisson(np.exp(1.5 + z[:, :1] + z[:, 1:2] * x + z[:, 2:] * x**2)).astype(float)
    start = {"mu": 1.5, "log_sd": np.log([0.6, 0.5, 0.4])}
    data = {"x": x.copy(), "y": y}
    return mx.fit(Counts(), data, mx.soul(), mx.MCMC(), params=start, n_iter=60, key=0, progress=False, polish=False)


def test_few_nodes_tell_the_falls_of_the_rule(fit, monkeypatch):
    params, glanced = polish(fit)
    assert glanced.converged and np.all(np.abs(glanced.drops - 0.5) < module.PLAIN)
    monkeypatch.setattr(module, "GLANCE", {})
    _, whole = polish(fit.at(params), most=0)
    np.testing.assert_allclose(glanced.drops, whole.drops, atol=0.01)


def test_what_is_no_half_is_looked_at_by_the_rule(fit, monkeypatch):
    params, _ = polish(fit)
    away = fit.at(params | {"mu": params["mu"] + 0.1})
    _, glanced = polish(away, most=0)
    monkeypatch.setattr(module, "GLANCE", {})
    _, whole = polish(away, most=0)
    changed = np.abs(whole.drops - 0.5) > module.PLAIN + 0.05
    assert changed.any()
    np.testing.assert_allclose(glanced.drops[changed], whole.drops[changed], atol=1e-6)
