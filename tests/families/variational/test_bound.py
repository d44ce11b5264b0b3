"""ELBOs against an exact one: one-dimensional quadrature of each observation, on the host."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import margaux as mx
from margaux.families.variational.bound import _by_block
from margaux.families.variational.model import blocks

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
SEEDS = 30


@functools.cache
def logistic() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(200), rng.normal(size=(200, 5))])
    return x, (rng.random(200) < special.expit(x @ rng.normal(size=6))).astype(float)


@functools.cache
def fitted() -> Any:
    loglik = lambda w, row: row["y"] * (row["x"] @ w) - jax.nn.softplus(row["x"] @ w)  # noqa: E731
    prior = lambda w: jnp.sum(jax.scipy.stats.norm.logpdf(w))  # noqa: E731
    x, y = logistic()
    return mx.fit_variational(loglik, np.zeros(6), {"x": x, "y": y}, log_prior=prior, epochs=500, progress=False)


def exact(mean: np.ndarray, sd: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """E_q log p(y | w) - KL[q | N(0, I)] of a logistic regression."""
    eta = (x @ mean)[:, None] + np.sqrt(x**2 @ sd**2)[:, None] * NODES
    data = np.sum((y[:, None] * eta - np.logaddexp(0, eta)) @ (WEIGHTS / WEIGHTS.sum()))
    return float(data - np.sum((sd**2 + mean**2 - 1) / 2 - np.log(sd)))


def test_the_elbo_of_a_density_has_a_true_error():
    found, (x, y) = fitted(), logistic()
    target = exact(found.mean, found.sd, x, y)
    assert found.elbo.method == "sobol"
    assert found.elbo.se < 0.01
    assert found.elbo == pytest.approx(target, abs=5 * found.elbo.se)
    bounds = [found._elbo_of(*found._data, random_state=seed).times(200) for seed in range(SEEDS)]
    z = np.array([(b - target) / b.se for b in bounds])
    # Student's t of seven degrees of freedom: 91% within two, and the mean of thirty.
    assert stats.binom.cdf(int(np.sum(np.abs(z) < 2)), SEEDS, 0.91) > 0.005
    assert abs(z.mean()) < 4 * 1.2 / np.sqrt(SEEDS)


@pytest.mark.parametrize("spread", ["weight", "all"])
def test_a_linear_layer_is_integrated_exactly(spread):
    x, y = logistic()
    layer = eqx.nn.Linear(5, 2, key=jax.random.key(0))
    settings: Any = {"epochs": 100, "n_blocks": 4, "standardize": False, "verbose": False, "dtype": "float64", "spread": spread}
    model = mx.BayesianClassifier(temperature=1.0, network=layer, **settings).fit(x[:, 1:], y.astype(int))
    assert model.elbo_.method == "quadrature"
    assert model.elbo_.se == 0
    # Two classes by two rows of weights: the difference of the rows is what the data tell of.
    mean, sd = model.params_, model.stderr_
    eta_mean = x[:, 1:] @ (mean["weight"][1] - mean["weight"][0]) + mean["bias"][1] - mean["bias"][0]
    eta_variance = x[:, 1:] ** 2 @ np.sum(sd["weight"] ** 2, axis=0) + np.sum(sd["bias"] ** 2)
    eta = eta_mean[:, None] + np.sqrt(eta_variance)[:, None] * NODES
    data = np.sum((y[:, None] * eta - np.logaddexp(0, eta)) @ (WEIGHTS / WEIGHTS.sum()))
    kl = sum(np.sum((sd[name] ** 2 + mean[name] ** 2 - 1) / 2 - np.log(sd[name])) for name in mean)
    assert model.elbo_ == pytest.approx(data - kl, abs=1e-8)
    assert not hasattr(model, "loglik_")


def test_pairs_of_draws_agree_with_points():
    """What large networks have, on one that has an exact answer."""
    found, (x, y) = fitted(), logistic()
    _, outcome = found._data
    data = blocks(found._data[0], outcome, 1)
    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, found._params)
        sums = np.asarray(
            _by_block(found._model, params, jax.tree.map(jnp.asarray, data), jax.random.split(jax.random.key(0), 400))
        )
    mean, sd = found.mean, found.sd
    kl = np.sum((sd**2 + mean**2 - 1) / 2 - np.log(sd))
    assert sums.mean() - kl == pytest.approx(exact(mean, sd, x, y), abs=4 * sums.std() / 20)
