"""Variational inference of weights on the engine against the closed form of Bayesian linear regression."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from margaux.families.variational.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from margaux.families.variational.model import Variational, blocks
from margaux.families.variational.networks import Network
from margaux.families.variational.posterior import GaussianPosterior
from margaux.families.variational.priors import Laplace, Normal, ScaleMixture

N, D, NOISE = 200, 5, float(np.sqrt(0.5))


def linear_regression():
    """Data, precision matrix and mean of the exact posterior, and the negative ELBO of any Gaussian."""
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal(np.zeros(D), 0.3 * np.ones((D, D)) + 0.7 * np.eye(D), N)
    w = rng.normal(size=D)
    y = x @ w + NOISE * rng.normal(size=N)
    precision = x.T @ x / NOISE**2 + np.eye(D)
    mean = np.linalg.solve(precision, x.T @ y / NOISE**2)

    def loss(mu, sigma):
        sigma = np.broadcast_to(sigma, mu.shape)
        square = np.sum((y - x @ mu) ** 2) + np.sum(x**2 @ sigma**2)
        data = -N / 2 * np.log(2 * np.pi * NOISE**2) - square / (2 * NOISE**2)
        return -data + np.sum(-np.log(sigma) + (sigma**2 + mu**2) / 2 - 0.5)

    return x, y, precision, mean, loss


@pytest.fixture(scope="module")
def regression():
    return linear_regression()


def best_sigma(precision, spread):
    return (np.trace(precision) / D) ** -0.5 if spread == "all" else np.diag(precision) ** -0.5


def model(spread, n_blocks=10, information=None):
    posterior = GaussianPosterior(spread, information, n_blocks)
    return Variational(Network(lambda w, x: x @ w), Gaussian(NOISE, learned=False), Normal(1.0), posterior, N, n_blocks)


def test_the_loss_is_evidence_and_divergence(regression):
    """Minus the ELBO is minus the log evidence and the divergence of Gaussians, both in closed form.

    Of the data at hand: those of the reference are drawn through a decomposition that differs between processors.
    """
    x, y, precision, mean, loss = regression
    evidence = stats.multivariate_normal.logpdf(y, np.zeros(N), x @ x.T + NOISE**2 * np.eye(N))
    for spread in ("weight", "all"):
        sigma = np.broadcast_to(best_sigma(precision, spread), mean.shape)
        divergence = (np.diag(precision) @ sigma**2 - D - np.linalg.slogdet(precision)[1] - 2 * np.log(sigma).sum()) / 2
        assert loss(mean, sigma) == pytest.approx(divergence - evidence, abs=1e-7)


@pytest.mark.parametrize("spread", ["all", "weight"])
def test_the_mean_of_the_integrand_is_the_elbo(regression, spread):
    """With Gauss-Hermite points of every weight, whose products integrate a quadratic exactly."""
    x, y, precision, mean, loss = regression
    with jax.enable_x64(True):
        variational, data = model(spread, 7), blocks(x, y, 7)
        params = jax.tree.map(jnp.asarray, variational.start(mean + 0.1, 0.2))
        nodes = np.array(np.meshgrid(*[[-1.0, 1.0]] * D)).reshape(D, -1).T
        value = np.mean([
            jax.vmap(lambda unit, z=z: variational.log_joint(params, z, unit))(jax.tree.map(jnp.asarray, data)).mean()
            for z in jnp.asarray(nodes)
        ])  # fmt: skip
    assert -N * value == pytest.approx(loss(mean + 0.1, 0.2), rel=1e-10)


@pytest.mark.parametrize("prior", [Normal(0.7), Laplace(0.4), ScaleMixture(0.3, 1.0, 0.1)])
def test_divergences_from_priors(prior):
    """Against the integral over one weight; by draws for the mixture, whose divergence is a mean over them."""
    mu, sigma = 0.3, 0.5
    log_prior = {
        "Normal": lambda w: stats.norm.logpdf(w, 0, 0.7), "Laplace": lambda w: stats.laplace.logpdf(w, 0, 0.4),
        "ScaleMixture": lambda w: np.log(0.3 * stats.norm.pdf(w, 0, 1.0) + 0.7 * stats.norm.pdf(w, 0, 0.1)),
    }[type(prior).__name__]  # fmt: skip
    log_q = lambda w: stats.norm.logpdf(w, mu, sigma)  # noqa: E731
    wanted = integrate.quad(lambda w: np.exp(log_q(w)) * (log_q(w) - log_prior(w)), mu - 10 * sigma, mu + 10 * sigma, limit=200)[
        0
    ]
    with jax.enable_x64(True):
        posterior = GaussianPosterior("weight")
        params = jax.tree.map(jnp.asarray, posterior.start(np.array([mu]), sigma))
        z = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
        value = np.mean([*jax.vmap(lambda z: prior.divergence(posterior, params, z))(jnp.asarray(z)[:, None])])
    assert value == pytest.approx(wanted, abs=2e-3 if isinstance(prior, ScaleMixture) else 1e-8)


ETA = np.array([0.3, -1.0])
CASES: list[Any] = [
    (Bernoulli(), {}, [1.0, 0.0], stats.bernoulli.logpmf([1, 0], 1 / (1 + np.exp(-ETA)))),
    (Poisson(), {}, [3.0, 0.0], stats.poisson.logpmf([3, 0], np.exp(ETA))),
    (Gaussian(), {"log_noise": np.log(0.4)}, [0.1, 0.2], stats.norm.logpdf([0.1, 0.2], ETA, 0.4)),
    (Gaussian(2.0, learned=False), {}, [0.1, 0.2], stats.norm.logpdf([0.1, 0.2], ETA, 2.0)),
]


@pytest.mark.parametrize(("likelihood", "params", "y", "wanted"), CASES)
def test_likelihoods_of_one_output(likelihood, params, y, wanted):
    found = likelihood.log_prob(params, jnp.asarray(ETA)[:, None], jnp.asarray(y))
    np.testing.assert_allclose(found, wanted, rtol=2e-6)  # single precision


def test_the_categorical_likelihood():
    outputs = np.array([[0.3, -1.0, 2.0], [0.0, 0.5, 0.1]])
    logs = outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))
    found = Categorical().log_prob({}, jnp.asarray(outputs), jnp.array([2, 0]))
    np.testing.assert_allclose(found, logs[[0, 1], [2, 0]], rtol=1e-6)


def test_bad_settings():
    with pytest.raises(ValueError, match="sigma, the standard deviation at the start, must be positive"):
        GaussianPosterior("all").start(np.zeros(2), 0.0)
    with pytest.raises(ValueError, match='spread must be "all"'):
        GaussianPosterior("layer")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_blocks must be between 1 and the 3 observations, got 4"):
        blocks(np.zeros((3, 1)), np.zeros(3), 4)
    with pytest.raises(ValueError, match="share must be between"):
        ScaleMixture(share=1.0)
