"""Responses that are measurements: Gaussian, Student, gamma, beta."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array

from .base import AbstractResponse, Crude, guarded, host, refuse
from .links import LINKS, UNIT_LINKS, AbstractLink, AbstractUnitLink
from .special import HALF_LOG_TWO_PI, log_gamma, log_rising

#: a Student response begins with so many degrees of freedom
DEGREES = 5.0
#: the least part of the range that a simulated or starting value keeps from its ends
EDGE = 1e-12


def _finite(y: np.ndarray) -> None:
    refuse(~np.isfinite(y), y, "which is no number", "drop the row")


def _positive(x: float) -> float:
    """A start of something positive."""
    return float(max(x, 1e-8)) if np.isfinite(x) else 1.0


class Gaussian(AbstractResponse):
    r"""$y = \mu + \epsilon$, $\epsilon\sim N(0, \sigma^2)$; parameter sigma."""

    link: AbstractLink = LINKS["identity"]
    name: ClassVar[str] = "gaussian"
    links: ClassVar[tuple[str, ...]] = ("identity", "log", "inverse")
    discrete: ClassVar[bool] = False
    coded: ClassVar[bool] = False
    counts_trials: ClassVar[bool] = False
    dispersion: ClassVar[tuple[str, ...]] = ("sigma",)
    predictors: ClassVar[tuple[str, ...]] = ()

    def log_kernel(self, y, eta, dispersion, trials=None):
        sigma = dispersion["sigma"]
        return -(((y - self.link.mean(eta)) / sigma) ** 2) / 2 - jnp.log(sigma)

    def log_base(self, y, trials=None):
        return jnp.full_like(y, -HALF_LOG_TWO_PI)

    def mean(self, eta, dispersion, trials=None):
        return self.link.mean(eta)

    def variance(self, eta, dispersion, trials=None):
        return dispersion["sigma"] ** 2 * jnp.ones_like(eta)

    def cdf(self, y, eta, dispersion, trials=None):
        below = scipy.special.ndtr((np.asarray(y) - self.link.mean_of(eta)) / host(dispersion, "sigma"))
        return below, below

    def simulate(self, key, eta, dispersion, trials=None):
        return self.link.mean(eta) + dispersion["sigma"] * jax.random.normal(key, eta.shape, eta.dtype)

    def check(self, y, trials=None):
        _finite(y)
        if self.link.name == "log" and not (y > 0).any():
            raise ValueError("has no positive value, and the log link asks for positive means; take the identity link")

    def row_effects(self, trials=None):
        return False

    def crude(self, y, trials=None):
        return _of_location(y, self.link)

    def start_dispersion(self, y, eta, trials=None):
        return {"sigma": _positive(float(np.std(y - self.link.mean_of(eta))))}


def _of_location(y: np.ndarray, link: AbstractLink) -> Crude:
    """Least squares; where the link asks for positive means they begin at least at a tenth of the average size."""
    begin = y if link.name == "identity" else np.maximum(y, 0.1 * float(np.mean(np.abs(y))) + EDGE)
    return Crude(y, begin, np.ones(len(y)), np.ones_like, link)


class Student(AbstractResponse):
    r"""$y = \mu + \sigma t_\nu$: outliers weigh little. Parameters sigma and, unless it is given, df."""

    link: AbstractLink = LINKS["identity"]
    df: float | None = eqx.field(default=None, static=True)
    name: ClassVar[str] = "student"
    links: ClassVar[tuple[str, ...]] = ("identity", "log", "inverse")
    discrete: ClassVar[bool] = False
    coded: ClassVar[bool] = False
    counts_trials: ClassVar[bool] = False
    predictors: ClassVar[tuple[str, ...]] = ()

    @property
    def dispersion(self):
        return ("sigma", "df") if self.df is None else ("sigma",)

    def _degrees(self, dispersion: dict) -> Array | float:
        return dispersion["df"] if self.df is None else self.df

    def log_kernel(self, y, eta, dispersion, trials=None):
        sigma, half = dispersion["sigma"], jnp.asarray(self._degrees(dispersion), eta.dtype) / 2
        z = (y - self.link.mean(eta)) / sigma
        # Gamma(nu/2 + 1/2) / Gamma(nu/2) by sqrt(nu/2), which it approaches.
        constant = log_rising(jnp.asarray(0.5, eta.dtype), half, jnp.log(half))
        return constant - jnp.log(sigma) - (half + 0.5) * jnp.log1p(z**2 / (2 * half))

    def log_base(self, y, trials=None):
        return jnp.full_like(y, -HALF_LOG_TWO_PI)

    def mean(self, eta, dispersion, trials=None):
        """NaN where there is none, with one degree of freedom or less."""
        return jnp.where(self._degrees(dispersion) > 1, self.link.mean(eta), jnp.nan)

    def variance(self, eta, dispersion, trials=None):
        """Infinite with two degrees of freedom or less."""
        df = self._degrees(dispersion)
        finite = jnp.where(df > 2, df, 3.0)
        return jnp.where(df > 2, dispersion["sigma"] ** 2 * finite / (finite - 2), jnp.inf) * jnp.ones_like(eta)

    def cdf(self, y, eta, dispersion, trials=None):
        z = (np.asarray(y) - self.link.mean_of(eta)) / host(dispersion, "sigma")
        below = scipy.special.stdtr(np.asarray(self._degrees(dispersion), float), z)
        return below, below

    def simulate(self, key, eta, dispersion, trials=None):
        noise = jax.random.t(key, jnp.broadcast_to(jnp.asarray(self._degrees(dispersion), eta.dtype), eta.shape), dtype=eta.dtype)
        return self.link.mean(eta) + dispersion["sigma"] * noise

    def check(self, y, trials=None):
        _finite(y)
        if self.link.name == "log" and not (y > 0).any():
            raise ValueError("has no positive value, and the log link asks for positive means; take the identity link")

    def row_effects(self, trials=None):
        return False

    def crude(self, y, trials=None):
        return _of_location(y, self.link)

    def start_dispersion(self, y, eta, trials=None):
        # The median of |t| is 0.73 for five degrees of freedom.
        sigma = _positive(float(np.median(np.abs(y - self.link.mean_of(eta)))) / 0.73)
        return {"sigma": sigma} if self.df is not None else {"sigma": sigma, "df": DEGREES}


class Gamma(AbstractResponse):
    r"""Positive y of mean $\mu$ and standard deviation $\sigma\mu$: shape $1/\sigma^2$; parameter sigma."""

    link: AbstractLink = LINKS["log"]
    name: ClassVar[str] = "gamma"
    links: ClassVar[tuple[str, ...]] = ("log", "inverse", "identity")
    discrete: ClassVar[bool] = False
    coded: ClassVar[bool] = False
    counts_trials: ClassVar[bool] = False
    dispersion: ClassVar[tuple[str, ...]] = ("sigma",)
    predictors: ClassVar[tuple[str, ...]] = ()

    def log_kernel(self, y, eta, dispersion, trials=None):
        eta, inside = guarded(self.link, eta)
        shape = dispersion["sigma"] ** -2.0
        u = jnp.log(y) - self.link.log_mean(eta)
        # k log k - k - log Gamma(k) is small where k is large, and its terms are not.
        constant = shape * jnp.log(shape) - shape - log_gamma(shape)
        return jnp.where(inside, constant - shape * (jnp.expm1(u) - u), -jnp.inf)

    def log_base(self, y, trials=None):
        return -jnp.log(y)

    def mean(self, eta, dispersion, trials=None):
        return self.link.mean(eta)

    def variance(self, eta, dispersion, trials=None):
        return (dispersion["sigma"] * self.link.mean(eta)) ** 2

    def cdf(self, y, eta, dispersion, trials=None):
        shape = host(dispersion, "sigma") ** -2.0
        below = scipy.special.gammainc(shape, shape * np.asarray(y) / self.link.mean_of(eta))
        return below, below

    def simulate(self, key, eta, dispersion, trials=None):
        shape = jnp.broadcast_to(dispersion["sigma"] ** -2.0, eta.shape)
        return self.link.mean(eta) / shape * jax.random.gamma(key, shape, eta.shape, eta.dtype)

    def check(self, y, trials=None):
        _finite(y)
        refuse(
            y <= 0,
            y,
            "and a gamma response is positive",
            "drop these rows, or model zeros by a hurdle (margaux's Hurdle) of gamma",
        )
        least = np.finfo(float).tiny
        refuse(y < least, y, f"and less than {least:.0e} is zero to a computer", "measure it in other units, or drop these rows")

    def row_effects(self, trials=None):
        return False

    def crude(self, y, trials=None):
        return Crude(y, np.maximum(y, EDGE), np.ones(len(y)), np.square, self.link)

    def start_dispersion(self, y, eta, trials=None):
        mean = np.maximum(self.link.mean_of(eta), EDGE)
        return {"sigma": min(_positive(float(np.sqrt(np.mean((y / mean - 1) ** 2)))), 10.0)}


class Beta(AbstractResponse):
    r"""y strictly between 0 and 1, of mean $\mu$ and variance $\mu(1-\mu)/(1+\phi)$; parameter phi."""

    link: AbstractUnitLink = UNIT_LINKS["logit"]
    name: ClassVar[str] = "beta"
    links: ClassVar[tuple[str, ...]] = ("logit", "probit", "cloglog")
    discrete: ClassVar[bool] = False
    coded: ClassVar[bool] = False
    counts_trials: ClassVar[bool] = False
    dispersion: ClassVar[tuple[str, ...]] = ("phi",)
    predictors: ClassVar[tuple[str, ...]] = ()

    def log_kernel(self, y, eta, dispersion, trials=None):
        phi = dispersion["phi"]
        log_mean, log_rest = self.link.log_mean(eta), self.link.log_rest(eta)
        a, b = phi * jnp.exp(log_mean), phi * jnp.exp(log_rest)
        # Gamma(a) = Gamma(1 + a) / a, and log a is at hand also where a is all but zero.
        gammas = log_gamma(1 + a) + log_gamma(1 + b) - log_mean - log_rest - 2 * jnp.log(phi)
        return log_gamma(phi) - gammas + a * jnp.log(y) + b * jnp.log1p(-y)

    def log_base(self, y, trials=None):
        return -jnp.log(y) - jnp.log1p(-y)

    def mean(self, eta, dispersion, trials=None):
        return self.link.mean(eta)

    def variance(self, eta, dispersion, trials=None):
        return jnp.exp(self.link.log_mean(eta) + self.link.log_rest(eta)) / (1 + dispersion["phi"])

    def cdf(self, y, eta, dispersion, trials=None):
        phi = host(dispersion, "phi")
        a, b = phi * self.link.mean_of(eta), phi * self.link.rest_of(eta)
        below = scipy.special.betainc(np.maximum(a, 1e-300), np.maximum(b, 1e-300), np.asarray(y, float))
        return below, below

    def simulate(self, key, eta, dispersion, trials=None):
        a = jnp.broadcast_to(dispersion["phi"] * jnp.exp(self.link.log_mean(eta)), eta.shape)
        b = jnp.broadcast_to(dispersion["phi"] * jnp.exp(self.link.log_rest(eta)), eta.shape)
        one, other = jax.random.split(key)
        # In logarithms both gammas keep their ratio where they would be zero.
        ratio = jax.random.loggamma(one, a, eta.shape, eta.dtype) - jax.random.loggamma(other, b, eta.shape, eta.dtype)
        edge = jnp.finfo(eta.dtype).epsneg
        return jnp.clip(jax.nn.sigmoid(ratio), jnp.finfo(eta.dtype).tiny, 1 - edge)

    def check(self, y, trials=None):
        _finite(y)
        outside = (y <= 0) | (y >= 1)
        refuse(
            outside,
            y,
            "and a beta response lies strictly between 0 and 1",
            "give shares as fractions; zeros need a hurdle (margaux's Hurdle) of beta",
        )

    def row_effects(self, trials=None):
        return False

    def crude(self, y, trials=None):
        return Crude(y, np.clip(y, 0.01, 0.99), np.ones(len(y)), lambda mean: mean * (1 - mean), self.link)

    def start_dispersion(self, y, eta, trials=None):
        mean = np.clip(self.link.mean_of(eta), 0.01, 0.99)
        spread = float(np.mean((y - mean) ** 2 / (mean * (1 - mean))))
        return {"phi": float(np.clip(1 / max(spread, EDGE) - 1, 0.1, 1e6))}
