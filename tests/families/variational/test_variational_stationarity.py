"""Distances to a stationary ELBO by scores, beside the closed form of conjugate regressions, and in a network's certificate."""

import numpy as np
import pytest

import margaux as mx
from margaux.families.variational import stationarity as module
from margaux.families.variational.likelihoods import Gaussian
from margaux.families.variational.model import Variational
from margaux.families.variational.networks import Network
from margaux.families.variational.posterior import GaussianPosterior, Spread
from margaux.families.variational.priors import Normal
from margaux.families.variational.stationarity import stationarity

N, D, NOISE = 300, 250, 0.7


def conjugate(temperature, spread: Spread = "weight"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    y = x @ rng.normal(size=D) / D**0.5 + NOISE * rng.normal(size=N)
    curvature = x.T @ x / NOISE**2 / temperature + np.eye(D)
    mean = np.linalg.solve(curvature, x.T @ y / NOISE**2 / temperature)
    network, likelihood = Network(lambda w, x: x @ w), Gaussian(NOISE, learned=False)
    model = Variational(network, likelihood, Normal(1.0), GaussianPosterior(spread), N, 6, temperature=temperature)
    return model, x, y, curvature, mean


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_steps_and_deviations_are_those_of_the_closed_form(temperature):
    model, x, y, curvature, mean = conjugate(temperature)
    best = np.diag(curvature) ** -0.5
    for seed, wide in ((0, 1.0), (1, 1.1), (2, 0.9)):
        moved = mean + 0.3 * best * np.random.default_rng(seed).normal(size=D) * (seed > 0)
        sigma = wide * best
        found = stationarity(model, {"mean": moved, "log_sigma": np.log(sigma)}, x, y, np.dtype(float))
        assert found is not None
        steps = sigma * (curvature @ (mean - moved))
        exact = np.sqrt(np.mean(steps**2))
        assert abs(found.means[0] - exact) < 4 * found.means[1] + 0.05, (seed, found, exact)
        share = np.mean(sigma**2 / best**2 - 1) / 2
        assert abs(found.spread[0] - share) < 4 * found.spread[1] + 1e-6, (seed, found, share)


def test_what_is_not_known():
    model, x, y, _, mean = conjugate(1.0, "all")
    assert stationarity(model, {"mean": mean, "log_sigma": np.zeros(())}, x, y, np.dtype(float)) is None
    model, x, y, _, mean = conjugate(1.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "AFFORDABLE", 1000)
        assert stationarity(model, {"mean": mean, "log_sigma": np.zeros(D)}, x, y, np.dtype(float)) is None


def test_the_certificate_of_many_weights_says_how_far_it_is():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    y = (x[:, 0] * x[:, 1] + 0.5 * rng.normal(size=200) > 0).astype(int)
    far, near = (mx.BayesianClassifier(temperature=0.1, epochs=epochs, verbose=False).fit(x, y) for epochs in (20, 1500))
    checks = [model.certificate_["gradient"] for model in (far, near)]
    assert checks[0].level == "careful" and "raise epochs" in checks[0].sentence
    assert "posterior standard deviations away" in checks[1].sentence
    assert checks[1].figure < checks[0].figure / 2
