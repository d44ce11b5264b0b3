"""Where Laplace's approximation of a network is taken: Hessians written out, modes by them, and scales that settle."""

import equinox as eqx
import jax
import numpy as np
import pytest

import margaux as mx
from margaux.families.variational import gauss_newton
from margaux.families.variational.gauss_newton import Objective, mode
from margaux.families.variational.likelihoods import Gaussian
from margaux.families.variational.networks import as_network
from margaux.numerics.precision import precision


def curve(n=80, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (n, 1))
    return x, np.sin(x[:, 0]) + 0.2 * rng.normal(size=n)


def net(width, seed=1):
    return eqx.nn.MLP(1, 1, width, 1, jax.nn.tanh, key=jax.random.key(seed))


@pytest.fixture
def objective():
    x, y = curve()
    network, weights = as_network(net(4))
    with precision(np.dtype(float)):
        yield Objective(network, weights, Gaussian(0.2, learned=False), x, y)


def test_the_hessian_is_that_of_differences_of_slopes(objective):
    at, h = objective.start, 1e-5
    found = objective.hessian(at, {})
    by_differences = [
        (objective.slope(at - h * e, {})[1] - objective.slope(at + h * e, {})[1]) / (2 * h) for e in np.eye(objective.size)
    ]
    np.testing.assert_allclose(found, by_differences, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(objective.curved(at, {}, np.ones(objective.size)), found.sum(axis=1), rtol=1e-8)


def test_a_mode_is_found_from_where_the_curvature_is_not_positive(objective, monkeypatch):
    """With the Hessian written out, and from there by conjugate gradients."""
    prior = np.ones(objective.size)
    assert np.linalg.eigvalsh(objective.hessian(objective.start, {}))[0] < -1
    found = mode(objective, objective.start, {}, prior, lambda v: v, 1e-9)
    curvature = objective.hessian(found.flat, {}) + np.diag(prior)
    assert found.away < 1e-9 and np.linalg.eigvalsh(curvature)[0] > 0
    assert np.abs(objective.slope(found.flat, {})[1] - found.flat).max() < 1e-2
    monkeypatch.setattr(gauss_newton, "WRITTEN", 0)
    inverse = np.linalg.inv(curvature)
    other = mode(objective, found.flat + 0.01, {}, prior, lambda v: inverse @ v, 1e-9)
    np.testing.assert_allclose(other.flat, found.flat, atol=1e-4)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_scales_of_a_small_network_settle(seed):
    """Where the evidence falls at the scales that were to raise it, a shorter way to them does."""
    x, y = curve(seed=seed)
    model = mx.BayesianRegressor(method="laplace", network=net(10, seed), verbose=False, random_state=seed).fit(x, y)
    assert model.converged_, model.message_
    assert model._noise() == pytest.approx(0.2, rel=0.25)
    grid = np.linspace(-2.5, 2.5, 50)[:, None]
    assert np.sqrt(np.mean((model.predict(grid) - np.sin(grid[:, 0])) ** 2)) < 0.12
