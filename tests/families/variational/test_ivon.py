"""Variational online Newton steps reach closed forms, at any temperature and with any prior, and say what they cannot do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_bayesian_exact import Cubature, check_linear, check_logistic, logistic  # noqa: F401
from test_variational import NOISE, D, N, linear_regression

import margaux as mx
from margaux.algorithms.average import LastIterate
from margaux.families.variational.ivon import Falling, ivon
from margaux.families.variational.likelihoods import Gaussian
from margaux.families.variational.model import Variational, blocks
from margaux.families.variational.networks import Network
from margaux.families.variational.posterior import GaussianPosterior
from margaux.families.variational.priors import Normal


@pytest.fixture(scope="module")
def linear():
    return linear_regression()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("temperature", "n_blocks"), [(1.0, 1), (1.0, 4), (0.1, 1)])
def test_exact_scores_end_at_the_closed_form(linear, temperature, n_blocks):
    x, y, precision, *_ = linear
    # Of a tempered posterior: the data count 1 / T times, or the prior T times and the whole divided by T.
    data = precision - np.eye(D)
    tempered = data / temperature + np.eye(D)
    mean = np.linalg.solve(tempered, x.T @ y / NOISE**2 / temperature)
    network, likelihood = Network(lambda w, x: x @ w), Gaussian(NOISE, False)
    model = Variational(network, likelihood, Normal(1.0), GaussianPosterior(), N, n_blocks, temperature=temperature)
    found = mx.fit(model, blocks(x, y, n_blocks), ivon(Falling(0.5, 3000), LastIterate()), Cubature(), n_iter=3000,
                   params=model.start(np.zeros(D), 0.3), progress=False)  # fmt: skip
    np.testing.assert_allclose(found.params["mean"], mean, atol=1e-8)
    np.testing.assert_allclose(np.exp(found.params["log_sigma"]), np.diag(tempered) ** -0.5, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_draws_end_at_the_closed_form(linear, logistic, reference, seed):  # noqa: F811
    check_linear(linear, "ivon", "weight", seed)
    check_logistic(logistic, reference, "ivon", "weight", seed)


def test_a_bound_is_reached_in_fewer_iterations_than_by_adam():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=300)
    elbo = {}
    for method in ("adam", "ivon"):
        model = mx.BayesianRegressor(temperature=1.0, method=method, epochs=200, verbose=False).fit(x, y)
        elbo[method] = model.elbo_
    assert elbo["ivon"] > elbo["adam"] + 0.05 and model.step_ == 0.1


def test_curvatures_stay_positive_whatever_the_scores_are():
    update = ivon(mx.Polynomial(0.1, 0.0), LastIterate()).update
    model = Variational(Network(lambda w, x: x @ w), Gaussian(1.0, False), Normal(1.0), GaussianPosterior(), 50, 1)
    rng = np.random.default_rng(0)

    class AsItIs:
        def __init__(self):
            self.model = model

        def land(self, params, step):
            return params

    nowhere: Any = AsItIs()
    with jax.enable_x64(True):
        params = {"mean": jnp.zeros(3), "log_sigma": jnp.log(jnp.full(3, 0.1))}
        state = update.init(params)
        for k in range(1, 200):
            # A draw's score in a logarithm of a deviation is in proportion to it.
            far = 100 * np.exp(params["log_sigma"]) * rng.standard_cauchy(3)
            score = {"mean": jnp.asarray(rng.normal(size=3)), "log_sigma": jnp.asarray(far)}
            params, state = update(nowhere, params, score, state, jnp.asarray(k))
            assert np.all(np.asarray(state["curvature"]) > 0) and np.all(np.isfinite(params["log_sigma"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spread": "all"}, 'IVON finds a standard deviation for each weight of a network; use spread="weight"'),
        ({"step": optax.adam(0.1)}, "the step of IVON is a number or a schedule, in units of Newton's; pass step=0.1, say"),
        ({"step": -1.0}, "step must be positive"),
    ],
)
def test_what_is_refused(settings, message):
    x = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises((ValueError, TypeError), match=message):
        mx.BayesianRegressor(temperature=1.0, method="ivon", epochs=1, verbose=False, **settings).fit(x, x[:, 0])
