"""Models whose exact maximum likelihood estimate is known, with data and that estimate."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from scipy import optimize, special, stats

import margaux as mx
from margaux.problem.penalty import AbstractPenalty

normal = jax.scipy.stats.norm.logpdf


class Problem(NamedTuple):
    """A model, its data, a start, its space, and the exact answers."""

    model: Any
    data: Any
    start: dict
    space: Any
    mle: dict
    se: dict
    loglik: float


def exact(negative_loglik, start: dict, logs: tuple[str, ...]) -> tuple[dict, dict, float]:
    """MLE, standard errors from the observed information (central differences) and log-likelihood.

    Args:
        negative_loglik: of a dict of floats. logs: names optimised on the log scale.
    """
    names = list(start)
    to = lambda x: {n: np.exp(v) if n in logs else v for n, v in zip(names, x, strict=True)}  # noqa: E731
    x0 = np.array([np.log(start[n]) if n in logs else start[n] for n in names])
    best = optimize.minimize(lambda x: negative_loglik(to(x)), x0, method="Nelder-Mead",
                             options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 10_000, "maxfev": 10_000})  # fmt: skip
    mle = to(best.x)
    theta = np.array([mle[n] for n in names])
    f = lambda t: negative_loglik(dict(zip(names, t, strict=True)))  # noqa: E731
    h = 1e-4 * np.maximum(np.abs(theta), 0.1)
    k = len(names)
    hessian = np.empty((k, k))
    for i in range(k):
        for j in range(k):
            ei, ej = np.eye(k)[i] * h, np.eye(k)[j] * h
            hessian[i, j] = (f(theta + ei + ej) - f(theta + ei - ej) - f(theta - ei + ej) + f(theta - ei - ej)) / (
                4 * h[i] * h[j]
            )
    se = np.sqrt(np.diagonal(np.linalg.inv(hessian)))
    return mle, dict(zip(names, se, strict=True)), -best.fun


# -- ragged Gaussian random intercept ---------------------------------------------------------------


class RandomIntercept(mx.AbstractExponentialFamily, mx.AbstractConjugate):
    """y_ij ~ N(z_i, 1), z_i ~ N(mu, tau2); ragged, padded with a mask."""

    def log_joint(self, params, z, unit):
        data = jnp.sum(unit["mask"] * normal(unit["y"], z, 1.0))
        return data + normal(z, params["mu"], jnp.sqrt(params["tau2"]))

    def init_latents(self, key, params, unit):
        return params["mu"] + jnp.sqrt(params["tau2"]) * jax.random.normal(key, (), unit["y"].dtype)

    def sample_posterior(self, key, params, unit):
        precision = 1 / params["tau2"] + jnp.sum(unit["mask"])
        mean = (params["mu"] / params["tau2"] + jnp.sum(unit["mask"] * unit["y"])) / precision
        return mean + jax.random.normal(key, (), unit["y"].dtype) / jnp.sqrt(precision)

    def suffstats(self, z, unit):
        return {"z": z, "z2": z**2}

    def m_step(self, s):
        return {"mu": s["z"], "tau2": s["z2"] - s["z"] ** 2}


def simulate_intercepts(n: int, seed: int, mu: float = 1.0, tau2: float = 0.8) -> tuple[list[np.ndarray], dict]:
    """Ragged groups of 2 to 6, as a list and padded."""
    rng = np.random.default_rng(seed)
    groups = [rng.normal(rng.normal(mu, np.sqrt(tau2)), 1.0, rng.integers(2, 7)) for _ in range(n)]
    labels = np.repeat(np.arange(n), [g.size for g in groups])
    units, _ = mx.pad_ragged({"y": np.concatenate(groups)}, labels)
    return groups, units


def intercept_negative_loglik(groups, p) -> float:
    """Exact: the group mean is sufficient, the rest is constant in (mu, tau2)."""
    if p["tau2"] <= 0:
        return np.inf
    size = np.array([g.size for g in groups])
    mean = np.array([g.mean() for g in groups])
    within = sum(stats.norm.logpdf(g, g.mean(), 1.0).sum() + 0.5 * np.log(2 * np.pi / g.size) for g in groups)
    return -(within + stats.norm.logpdf(mean, p["mu"], np.sqrt(p["tau2"] + 1 / size)).sum())


@functools.cache
def random_intercept(n: int = 40, seed: int = 3) -> Problem:
    groups, units = simulate_intercepts(n, seed)
    start = {"mu": 0.5, "tau2": 0.5}
    mle, se, loglik = exact(lambda p: intercept_negative_loglik(groups, p), start, ("tau2",))
    return Problem(RandomIntercept(), units, start, {"tau2": mx.Positive(1e-3)}, mle, se, loglik)


# -- Gamma-Poisson: negative binomial ---------------------------------------------------------------


class GammaPoisson(mx.AbstractExponentialFamily, mx.AbstractConjugate):
    """y_ij ~ Poisson(exp z_i), exp z_i ~ Gamma(shape, rate); three counts a unit."""

    def log_joint(self, params, z, unit):
        a, b = params["shape"], params["rate"]
        data = jnp.sum(unit["y"] * z - jnp.exp(z) - gammaln(unit["y"] + 1))
        return data + a * jnp.log(b) - gammaln(a) + a * z - b * jnp.exp(z)

    def init_latents(self, key, params, unit):
        return jnp.log(jnp.mean(unit["y"]) + 0.5)

    def sample_posterior(self, key, params, unit):
        shape, rate = params["shape"] + jnp.sum(unit["y"]), params["rate"] + unit["y"].size
        return jax.random.loggamma(key, shape) - jnp.log(rate)

    def suffstats(self, z, unit):
        return {"log": z, "mean": jnp.exp(z)}

    def m_step(self, s):
        # Newton on log a - digamma(a) = log E[lambda] - E[log lambda], in 1 / a (Minka 2002).
        gap = jnp.maximum(jnp.log(s["mean"]) - s["log"], 1e-8)
        start = (3 - gap + jnp.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)

        def newton(_, a):
            top = jnp.log(a) - jax.scipy.special.digamma(a) - gap
            return 1 / (1 / a + top / (a**2 * (1 / a - jax.scipy.special.polygamma(1, a))))

        a = jax.lax.fori_loop(0, 5, newton, start)
        return {"rate": a / s["mean"], "shape": a}


@functools.cache
def gamma_poisson(n: int = 60, seed: int = 5) -> Problem:
    rng = np.random.default_rng(seed)
    y = rng.poisson(rng.gamma(2.5, 1 / 0.8, n)[:, None], (n, 3)).astype(float)

    def negative_loglik(p):
        a, b, total = p["shape"], p["rate"], y.sum(1)
        if a <= 0 or b <= 0:
            return np.inf
        each = a * np.log(b) - special.gammaln(a) + special.gammaln(a + total) - (a + total) * np.log(b + 3)
        return -np.sum(each - special.gammaln(y + 1).sum(1))

    start = {"rate": 1.0, "shape": 1.5}
    mle, se, loglik = exact(negative_loglik, start, ("rate", "shape"))
    return Problem(GammaPoisson(), {"y": y}, start, mx.Positive(1e-3), mle, se, loglik)


# -- logistic-normal --------------------------------------------------------------------------------


class LogisticNormal(mx.AbstractExponentialFamily):
    """y_i ~ Binomial(m, logistic z_i), z_i ~ N(mu, tau2)."""

    trials: int = 8

    def log_joint(self, params, z, unit):
        m, y = self.trials, unit["y"]
        choose = gammaln(m + 1.0) - gammaln(y + 1) - gammaln(m - y + 1)
        return choose + y * z - m * jax.nn.softplus(z) + normal(z, params["mu"], jnp.sqrt(params["tau2"]))

    def init_latents(self, key, params, unit):
        return params["mu"] + 0.1 * jax.random.normal(key, (), unit["y"].dtype)

    def suffstats(self, z, unit):
        return {"z": z, "z2": z**2}

    def m_step(self, s):
        return {"mu": s["z"], "tau2": s["z2"] - s["z"] ** 2}


@functools.cache
def logistic_normal(n: int = 80, seed: int = 11) -> Problem:
    rng = np.random.default_rng(seed)
    y = rng.binomial(8, special.expit(rng.normal(-0.4, 1.1, n))).astype(float)
    x, w = np.polynomial.hermite.hermgauss(120)

    def negative_loglik(p):
        if p["tau2"] <= 0:
            return np.inf
        z = p["mu"] + np.sqrt(2 * p["tau2"]) * x
        logs: Any = stats.binom.logpmf(y[:, None], 8, special.expit(z)) + np.log(w / np.sqrt(np.pi))
        return -float(np.sum(np.asarray(special.logsumexp(logs, axis=1))))

    start = {"mu": 0.2, "tau2": 0.6}
    mle, se, loglik = exact(negative_loglik, start, ("tau2",))
    return Problem(LogisticNormal(), {"y": y}, start, {"tau2": mx.Positive(1e-3)}, mle, se, loglik)


# -- Gaussian mixture -------------------------------------------------------------------------------


class Mixture(mx.AbstractExponentialFamily, mx.AbstractDiscrete):
    """x_i ~ sum_k weight_k N(mean_k, variance_k), three components; the latent is the label."""

    def support(self, x):
        return jnp.arange(3)

    def init_latents(self, key, params, x):
        return jnp.zeros((), int)

    def log_joint(self, params, z, x):
        each = jnp.log(params["weights"]) + normal(x, params["means"], jnp.sqrt(params["variances"]))
        return each[z]

    def suffstats(self, z, x):
        hot = jax.nn.one_hot(z, 3, dtype=x.dtype)
        return {"n": hot, "x": hot * x, "x2": hot * x**2}

    def m_step(self, s):
        means = s["x"] / s["n"]
        return {"weights": s["n"], "means": means, "variances": s["x2"] / s["n"] - means**2}


MIXTURE_START = {"weights": np.full(3, 1 / 3), "means": np.array([-2.0, 0.5, 3.0]), "variances": np.ones(3)}
MIXTURE_SPACE = {"weights": mx.Simplex(), "variances": mx.Positive(1e-3)}


def simulate_mixture(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    label = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    return rng.normal(np.array([-2.0, 0.5, 3.0])[label], np.sqrt(np.array([0.5, 0.3, 1.0]))[label])


def mixture_em(x: np.ndarray, n_iter: int = 5000) -> tuple[dict, float]:
    """EM's fixed point from MIXTURE_START, in plain NumPy, and its log-likelihood."""
    w, m, v = (MIXTURE_START[name].copy() for name in ("weights", "means", "variances"))
    logs = np.zeros((x.size, 3))
    for _ in range(n_iter):
        logs = np.log(w) + stats.norm.logpdf(x[:, None], m, np.sqrt(v))
        r = special.softmax(logs, axis=1)
        n_k = r.sum(0)
        w, m = n_k / x.size, r.T @ x / n_k
        v = r.T @ x**2 / n_k - m**2
    return {"weights": w, "means": m, "variances": v}, float(np.log(np.exp(logs).sum(axis=1)).sum())


# -- of a user's own --------------------------------------------------------------------------------


class Cubed(AbstractPenalty):
    """A penalty that is not of margaux."""

    weight: float = eqx.field(default=1.0)

    def value(self, params):
        return self.weight * abs(params["mu"]) ** 3

    def prox(self, params, step):
        return params


# -- away from the maximum --------------------------------------------------------------------------


class Gaussian(mx.AbstractModel):
    """y_i ~ N(z_i, 1), z_i ~ N(mu, tau2): marginally N(mu, 1 + tau2)."""

    def log_joint(self, params, z, y):
        return normal(y, z, 1.0) + normal(z, params["mu"], jnp.sqrt(params["tau2"]))

    def init_latents(self, key, params, y):
        return 0.0 * y


def unmoved(n: int, estep: Any, n_iter: int) -> mx.Fit:
    """A fit of `Gaussian` that stays where it starts, away from the maximum, of data that are not from the model."""
    y = np.random.default_rng(4).standard_t(3, n) * 2 + 0.4
    start = {"mu": 0.1, "tau2": 1.7}
    return mx.fit(Gaussian(), y, mx.soul(1e-12, mx.LastIterate()), estep, params=start, n_iter=n_iter,
                  space={"tau2": mx.Positive(1e-3)}, polish=False, progress=False)  # fmt: skip
