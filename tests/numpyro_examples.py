"""NumPyro models whose exact maximum likelihood estimate is known."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.example_libraries import stax
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints
from scipy import optimize, special, stats

import margaux as mx
from helpers import exact, normal
from margaux.numerics.density import bernoulli_logit

#: whose values may be any array
param: Any = numpyro.param
sample: Any = numpyro.sample


class Example(NamedTuple):
    """A model with its arguments, the exact answers, and the negative log-likelihood they come from."""

    model: Callable
    args: tuple
    mle: dict
    se: dict
    loglik: float


# -- Gamma-Poisson: negative binomial ---------------------------------------------------------------


def gamma_poisson_model(y):
    shape = param("shape", 1.5, constraint=constraints.positive)
    rate = param("rate", 1.0, constraint=constraints.positive)
    with numpyro.plate("units", len(y)):
        mean = sample("mean", dist.Gamma(shape, rate))
        sample("y", dist.Poisson(mean), obs=y)


@functools.cache
def gamma_poisson(n: int = 80, seed: int = 5) -> Example:
    rng = np.random.default_rng(seed)
    y = rng.poisson(rng.gamma(2.5, 2 / 0.8, n))
    # Negative binomial: shape successes, each with probability rate / (1 + rate).
    value = lambda p: -stats.nbinom.logpmf(y, p["shape"], p["rate"] / (1 + p["rate"])).sum()  # noqa: E731
    return Example(gamma_poisson_model, (y,), *exact(value, {"rate": 1.0, "shape": 1.5}, ("rate", "shape")))


# -- eight schools ----------------------------------------------------------------------------------

SCHOOLS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def centred(y, sigma):
    mu = param("mu", 0.0)
    tau = param("tau", 5.0, constraint=constraints.positive)
    with numpyro.plate("schools", len(y)):
        theta = sample("theta", dist.Normal(mu, tau))
        sample("y", dist.Normal(theta, sigma), obs=y)


def non_centred(y, sigma):
    mu = param("mu", 0.0)
    tau = param("tau", 5.0, constraint=constraints.nonnegative)
    with numpyro.plate("schools", len(y)):
        z = sample("z", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * z)
        sample("y", dist.Normal(theta, sigma), obs=y)


def schools_negative_loglik(y, sigma, p) -> float:
    """The marginal: y_j ~ N(mu, sigma_j^2 + tau^2)."""
    return -stats.norm.logpdf(y, p["mu"], np.sqrt(sigma**2 + p["tau"] ** 2)).sum()


@functools.cache
def sharper_schools() -> Example:
    """Standard errors a third as large, which puts tau inside."""
    y, sigma = SCHOOLS[0], SCHOOLS[1] / 3
    value = lambda p: schools_negative_loglik(y, sigma, p)  # noqa: E731
    return Example(centred, (y, sigma), *exact(value, {"mu": 0.0, "tau": 5.0}, ("tau",)))


# -- ragged random-intercept logistic ---------------------------------------------------------------


def logistic_model(y, x, mask):
    beta = param("beta", jnp.zeros(2))
    tau = param("tau", 1.0, constraint=constraints.positive)
    n, size = y.shape
    with numpyro.plate("units", n, dim=-2):
        a = sample("a", dist.Normal(0.0, tau))
        with numpyro.plate("visits", size, dim=-1), numpyro.handlers.mask(mask=mask):
            sample("y", dist.Bernoulli(logits=beta[0] + beta[1] * x + a), obs=y)


class Logistic(mx.AbstractModel):
    """`logistic_model`, by hand."""

    def log_joint(self, params, z, unit):
        eta = params["beta"][0] + params["beta"][1] * unit["x"] + z
        data = jnp.sum(jnp.where(unit["mask"], bernoulli_logit(unit["y"], eta), 0.0))
        return data + normal(z, 0.0, params["tau"])

    def init_latents(self, key, params, unit):
        return params["tau"] * jax.random.normal(key, (), unit["x"].dtype)


def simulate_logistic(n: int, seed: int) -> dict[str, np.ndarray]:
    """Groups of 2 to 7 visits."""
    rng = np.random.default_rng(seed)
    mask = np.arange(7) < rng.integers(2, 8, n)[:, None]
    x = rng.normal(size=mask.shape)
    y = rng.random(mask.shape) < special.expit(-0.4 + 0.8 * x + rng.normal(0, 1.2, (n, 1)))
    return {"y": np.where(mask, y, 0).astype(float), "x": np.where(mask, x, 0.0), "mask": mask}


@functools.cache
def logistic(n: int = 120, seed: int = 2) -> Example:
    data = simulate_logistic(n, seed)
    nodes, weights = np.polynomial.hermite.hermgauss(60)

    def value(p):
        a = np.sqrt(2) * p["tau"] * nodes
        eta = (p["beta[0]"] + p["beta[1]"] * data["x"])[..., None] + a
        each = np.where(data["mask"][..., None], data["y"][..., None] * eta - np.logaddexp(0, eta), 0.0).sum(axis=1)
        return -float(np.sum(np.asarray(special.logsumexp(each, axis=1, b=weights / np.sqrt(np.pi)))))

    answers = exact(value, {"beta[0]": 0.0, "beta[1]": 0.0, "tau": 1.0}, ("tau",))
    return Example(logistic_model, (data["y"], data["x"], data["mask"]), *answers)


# -- two levels: an intercept a county, a slope that all share --------------------------------------


def radon_model(y, x):
    mu = param("mu", 0.0)
    tau = param("tau", 1.0, constraint=constraints.positive)
    sigma = param("sigma", 1.0, constraint=constraints.positive)
    slope = sample("slope", dist.Normal(0.0, 1.0))
    n, size = y.shape
    with numpyro.plate("counties", n, dim=-2):
        level = sample("level", dist.Normal(mu, tau))
        with numpyro.plate("houses", size, dim=-1):
            sample("y", dist.Normal(level + slope * x, sigma), obs=y)


class Radon(mx.problem.AbstractShared):
    """`radon_model`, by hand."""

    def log_shared(self, params, shared, y):
        return normal(shared, 0.0, 1.0)

    def log_unit(self, params, shared, z, y):
        return normal(z, params["mu"], params["tau"]) + jnp.sum(normal(y["y"], z + shared * y["x"], params["sigma"]))

    def init_latents(self, key, params, y):
        return {"shared": jnp.zeros(()), "units": jnp.mean(y["y"], axis=1)}


@functools.cache
def radon(n: int = 30, size: int = 5, seed: int = 8) -> Example:
    rng = np.random.default_rng(seed)
    x = rng.binomial(1, 0.4, (n, size)).astype(float)
    y = rng.normal(1.4, 0.5, (n, 1)) - 0.7 * x + rng.normal(0, 0.7, (n, size))
    county = np.repeat(np.arange(n), size)
    same = (county[:, None] == county).astype(float)
    flat = x.ravel()

    def value(p):
        covariance = p["sigma"] ** 2 * np.eye(n * size) + p["tau"] ** 2 * same + np.outer(flat, flat)
        root = np.linalg.cholesky(covariance)
        gap = np.linalg.solve(root, y.ravel() - p["mu"])
        return float(gap @ gap / 2 + np.log(np.diagonal(root)).sum() + n * size / 2 * np.log(2 * np.pi))

    return Example(radon_model, (y, x), *exact(value, {"mu": 0.0, "sigma": 1.0, "tau": 1.0}, ("sigma", "tau")))


# -- a network for the mean, a normal intercept a unit ----------------------------------------------

#: a hidden unit for each time that the curve of `network_data` crosses zero: with more the likelihood has ridges without end
NET = stax.serial(stax.Dense(3), stax.Tanh, stax.Dense(1))


def network_model(y, x):
    net = numpyro.module("net", NET, (1, x.shape[-1]))
    tau = param("tau", 1.0, constraint=constraints.positive)
    n, size = y.shape
    mean = net(x)
    with numpyro.plate("units", n, dim=-2):
        a = sample("a", dist.Normal(0.0, tau))
        with numpyro.plate("visits", size, dim=-1):
            sample("y", dist.Normal(mean + a, 1.0), obs=y)


def network_data(n: int = 150, size: int = 4, seed: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 1))
    return 2 * np.sin(2.5 * x) + 0.4 + rng.normal(0, 0.8, (n, 1)) + rng.normal(size=(n, size)), x


def network_loglik(y, x, params) -> Any:
    """The marginal: y_i ~ N(net(x_i) 1, I + tau^2 1 1^T)."""
    size = y.shape[1]
    gap = y - NET[1](params["net$params"], x)
    tau2 = params["tau"] ** 2
    square = jnp.sum(gap**2, axis=1) - tau2 / (1 + size * tau2) * jnp.sum(gap, axis=1) ** 2
    return -jnp.sum(square + jnp.log1p(size * tau2) + size * jnp.log(2 * jnp.pi)) / 2


class NetworkMaximum(NamedTuple):
    """The largest log-likelihood, and there the curve and the spread of intercepts with their standard errors."""

    loglik: float
    reading: np.ndarray
    se: np.ndarray


def network_reading(params) -> Any:
    """What the data tell whichever order and signs the hidden units have: the curve at nine places, and tau."""
    places = np.linspace(-1.8, 1.8, 9)[:, None]
    return jnp.append(NET[1](params["net$params"], places)[:, 0], params["tau"])


def network_maximum(y, x, start) -> NetworkMaximum:
    """The maximum that BFGS finds from a start; standard errors by the delta method from the exact information."""
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, start))
        value = jax.jit(jax.value_and_grad(lambda u: -network_loglik(y, x, unravel(u))))
        best = optimize.minimize(lambda u: tuple(map(np.asarray, value(u))), np.asarray(flat), jac=True, method="BFGS")
        reading = lambda u: network_reading(unravel(u))  # noqa: E731
        information = jax.hessian(lambda u: -network_loglik(y, x, unravel(u)))(best.x)
        slopes = np.asarray(jax.jacobian(reading)(best.x))
        covariance = slopes @ np.linalg.solve(information, slopes.T)
        return NetworkMaximum(-best.fun, np.asarray(reading(best.x)), np.sqrt(np.diag(covariance)))
