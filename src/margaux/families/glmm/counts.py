"""Responses that count: binomial, Poisson, negative binomial of both kinds."""

from __future__ import annotations

import abc
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.scipy.special import gammaln
from jaxtyping import Array

from .base import AbstractResponse, Crude, Dispersion, guarded, host, refuse
from .links import LINKS, UNIT_LINKS, AbstractLink, AbstractUnitLink
from .special import log1mexp, log_rising, softplus

#: where the mean of a count begins for a count of zero
LITTLE = 0.1
#: minus the logarithm of a probability that is too small for two successes
RARE = 50.0


class AbstractCount(AbstractResponse):
    """A response 0, 1, 2, ... that can be zero; `log_base` is zero there."""

    @abc.abstractmethod
    def log_zero(self, eta: Array, dispersion: Dispersion, trials: Array | None = None) -> Array:
        """log P(Y = 0 | eta), exact also where it is all but zero."""

    @abc.abstractmethod
    def log_some(self, eta: Array, dispersion: Dispersion, trials: Array | None = None) -> Array:
        """log P(Y > 0 | eta), exact also where next to nothing is left."""


def _whole(y: np.ndarray, what: str) -> None:
    refuse(~np.isfinite(y) | (y < 0) | (y % 1 != 0), y, f"and {what} are whole and not negative", "mend or drop these rows")


def _counts(y: np.ndarray, link: AbstractLink, square: float, linear: float = 1.0) -> Crude:
    """Variance `linear` mu + `square` mu^2."""
    return Crude(y, np.maximum(y, LITTLE), np.ones(len(y)), lambda mean: linear * mean + square * mean**2, link)


def _excess(y: np.ndarray, mean: np.ndarray) -> float:
    """Squared residuals beyond Poisson's, summed."""
    return float(np.sum((y - mean) ** 2 - mean))


class Binomial(AbstractCount):
    """Successes y of `trials`, or y in {0, 1} without them."""

    link: AbstractUnitLink = UNIT_LINKS["logit"]
    name: ClassVar[str] = "binomial"
    links: ClassVar[tuple[str, ...]] = ("logit", "probit", "cloglog")
    discrete: ClassVar[bool] = True
    coded: ClassVar[bool] = True
    counts_trials: ClassVar[bool] = True
    dispersion: ClassVar[tuple[str, ...]] = ()
    predictors: ClassVar[tuple[str, ...]] = ()

    def log_kernel(self, y, eta, dispersion, trials=None):
        if trials is None and self.link.symmetric:
            return self.link.log_mean(jnp.where(y > 0, eta, -eta))
        n = 1.0 if trials is None else trials
        return y * self.link.log_mean(eta) + (n - y) * self.link.log_rest(eta)

    def log_base(self, y, trials=None):
        if trials is None:
            return np.zeros(np.shape(y))
        return gammaln(trials + 1.0) - gammaln(y + 1.0) - gammaln(trials - y + 1.0)

    def log_zero(self, eta, dispersion, trials=None):
        return (1.0 if trials is None else trials) * self.link.log_rest(eta)

    def log_some(self, eta, dispersion, trials=None):
        n, log_mean = 1.0 if trials is None else trials, self.link.log_mean(eta)
        # One success of n has probability n p where p is next to nothing, and p outlives 1 - (1 - p).
        rare = log_mean < -RARE
        likely = self.log_zero(jnp.where(rare, 0.0, eta), dispersion, trials)
        return jnp.where(rare, jnp.log(n) + log_mean, log1mexp(likely))

    def mean(self, eta, dispersion, trials=None):
        return (1.0 if trials is None else trials) * self.link.mean(eta)

    def variance(self, eta, dispersion, trials=None):
        return (1.0 if trials is None else trials) * jnp.exp(self.link.log_mean(eta) + self.link.log_rest(eta))

    def cdf(self, y, eta, dispersion, trials=None):
        y, n = np.asarray(y, float), np.ones(np.shape(y)) if trials is None else np.asarray(trials, float)
        rest = self.link.rest_of(eta)

        def below(k):
            inside = (k >= 0) & (k < n)
            return np.where(inside, scipy.special.betainc(np.where(inside, n - k, 1.0), np.maximum(k, 0) + 1, rest), k >= n)

        return below(np.floor(y)), below(np.ceil(y) - 1)

    def simulate(self, key, eta, dispersion, trials=None):
        if trials is None:
            return (jax.random.uniform(key, eta.shape, eta.dtype) < self.link.mean(eta)).astype(eta.dtype)
        return jax.random.binomial(key, jnp.broadcast_to(trials, eta.shape), self.link.mean(eta), dtype=eta.dtype)

    def check(self, y, trials=None):
        if trials is None:
            refuse(
                (y != 0) & (y != 1),
                y,
                "and a binomial response without trials is 0 or 1",
                "give the trials in the formula, as successes/trials or cbind(successes, failures)",
            )
            return
        _whole(y, "successes")
        _whole_trials(trials)
        refuse(y > trials, y, "more than there are trials", "mend or drop these rows")

    def row_effects(self, trials=None):
        return trials is not None and bool((np.asarray(trials) > 1).any())

    def crude(self, y, trials=None):
        n = np.ones(len(y)) if trials is None else np.asarray(trials, float)
        return Crude(y / n, (y + 0.5) / (n + 1), n, lambda mean: mean * (1 - mean), self.link)

    def start_dispersion(self, y, eta, trials=None):
        return {}


def _whole_trials(trials: np.ndarray) -> None:
    trials = np.asarray(trials, float)
    bad = trials % 1 != 0
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(f"has {trials[row]:g} trials at row {row} ({int(bad.sum())} such in all); trials are whole numbers")


class Poisson(AbstractCount):
    r"""Counts of mean and variance $\mu$."""

    link: AbstractLink = LINKS["log"]
    name: ClassVar[str] = "poisson"
    links: ClassVar[tuple[str, ...]] = ("log", "identity", "sqrt")
    discrete: ClassVar[bool] = True
    coded: ClassVar[bool] = False
    counts_trials: ClassVar[bool] = False
    dispersion: ClassVar[tuple[str, ...]] = ()
    predictors: ClassVar[tuple[str, ...]] = ()

    def log_kernel(self, y, eta, dispersion, trials=None):
        eta, inside = guarded(self.link, eta)
        return jnp.where(inside, y * self.link.log_mean(eta) - self.link.mean(eta), -jnp.inf)

    def log_base(self, y, trials=None):
        return -gammaln(y + 1.0)

    def log_zero(self, eta, dispersion, trials=None):
        eta, inside = guarded(self.link, eta)
        return jnp.where(inside, -self.link.mean(eta), -jnp.inf)

    def log_some(self, eta, dispersion, trials=None):
        return log1mexp(self.log_zero(eta, dispersion, trials))

    def mean(self, eta, dispersion, trials=None):
        return self.link.mean(eta)

    def variance(self, eta, dispersion, trials=None):
        return self.link.mean(eta)

    def cdf(self, y, eta, dispersion, trials=None):
        mean = self.link.mean_of(eta)

        def below(k):
            return np.where(k >= 0, scipy.special.gammaincc(np.maximum(k, 0) + 1, mean), 0.0)

        return below(np.floor(y)), below(np.ceil(np.asarray(y)) - 1)

    def simulate(self, key, eta, dispersion, trials=None):
        return jax.random.poisson(key, self.link.mean(eta), eta.shape).astype(eta.dtype)

    def check(self, y, trials=None):
        _whole(y, "counts")

    def row_effects(self, trials=None):
        return True

    def crude(self, y, trials=None):
        return _counts(y, self.link, 0.0)

    def start_dispersion(self, y, eta, trials=None):
        return {}


def _negative_binomial_cdf(y: np.ndarray, size: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    share = size / (size + mean)

    def below(k):
        return np.where(k >= 0, scipy.special.betainc(size, np.maximum(k, 0) + 1, share), 0.0)

    return below(np.floor(y)), below(np.ceil(np.asarray(y)) - 1)


def _gamma_poisson(key: Array, size: Array, mean: Array) -> Array:
    one, other = jax.random.split(key)
    rate = mean / size * jax.random.gamma(one, jnp.broadcast_to(size, mean.shape), mean.shape, mean.dtype)
    return jax.random.poisson(other, rate, mean.shape).astype(mean.dtype)


class NegativeBinomial2(AbstractCount):
    r"""Counts of variance $\mu + \mu^2/\theta$; parameter theta."""

    link: AbstractLink = LINKS["log"]
    name: ClassVar[str] = "nbinom2"
    links: ClassVar[tuple[str, ...]] = ("log", "identity", "sqrt")
    discrete: ClassVar[bool] = True
    coded: ClassVar[bool] = False
    counts_trials: ClassVar[bool] = False
    dispersion: ClassVar[tuple[str, ...]] = ("theta",)
    predictors: ClassVar[tuple[str, ...]] = ()

    def log_kernel(self, y, eta, dispersion, trials=None):
        eta, inside = guarded(self.link, eta)
        theta = jnp.asarray(dispersion["theta"], eta.dtype)
        log_theta, log_mean = jnp.log(theta), self.link.log_mean(eta)
        found = y * log_mean - (y + theta) * softplus(log_mean - log_theta) + log_rising(y, theta, log_theta)
        return jnp.where(inside, found, -jnp.inf)

    def log_base(self, y, trials=None):
        return -gammaln(y + 1.0)

    def log_zero(self, eta, dispersion, trials=None):
        eta, inside = guarded(self.link, eta)
        theta = dispersion["theta"]
        return jnp.where(inside, -theta * softplus(self.link.log_mean(eta) - jnp.log(theta)), -jnp.inf)

    def log_some(self, eta, dispersion, trials=None):
        return log1mexp(self.log_zero(eta, dispersion, trials))

    def mean(self, eta, dispersion, trials=None):
        return self.link.mean(eta)

    def variance(self, eta, dispersion, trials=None):
        mean = self.link.mean(eta)
        return mean + mean**2 / dispersion["theta"]

    def cdf(self, y, eta, dispersion, trials=None):
        return _negative_binomial_cdf(y, host(dispersion, "theta"), self.link.mean_of(eta))

    def simulate(self, key, eta, dispersion, trials=None):
        return _gamma_poisson(key, jnp.asarray(dispersion["theta"], eta.dtype), self.link.mean(eta))

    def check(self, y, trials=None):
        _whole(y, "counts")

    def row_effects(self, trials=None):
        return False

    def crude(self, y, trials=None):
        return _counts(y, self.link, 1.0)

    def start_dispersion(self, y, eta, trials=None):
        mean = np.maximum(self.link.mean_of(eta), LITTLE)
        excess = _excess(y, mean)
        return {"theta": float(np.clip(np.sum(mean**2) / excess, 0.1, 100.0)) if excess > 0 else 100.0}


class NegativeBinomial1(AbstractCount):
    r"""Counts of variance $\mu(1+\alpha)$; parameter alpha."""

    link: AbstractLink = LINKS["log"]
    name: ClassVar[str] = "nbinom1"
    links: ClassVar[tuple[str, ...]] = ("log", "identity", "sqrt")
    discrete: ClassVar[bool] = True
    coded: ClassVar[bool] = False
    counts_trials: ClassVar[bool] = False
    dispersion: ClassVar[tuple[str, ...]] = ("alpha",)
    predictors: ClassVar[tuple[str, ...]] = ()

    def log_kernel(self, y, eta, dispersion, trials=None):
        eta, inside = guarded(self.link, eta)
        alpha = jnp.asarray(dispersion["alpha"], eta.dtype)
        log_mean = self.link.log_mean(eta)
        log_size = log_mean - jnp.log(alpha)
        size = jnp.exp(log_size)
        found = y * log_mean - (y + size) * jnp.log1p(alpha) + log_rising(y, size, log_size)
        return jnp.where(inside, found, -jnp.inf)

    def log_base(self, y, trials=None):
        return -gammaln(y + 1.0)

    def log_zero(self, eta, dispersion, trials=None):
        eta, inside = guarded(self.link, eta)
        alpha = dispersion["alpha"]
        return jnp.where(inside, -jnp.exp(self.link.log_mean(eta)) * jnp.log1p(alpha) / alpha, -jnp.inf)

    def log_some(self, eta, dispersion, trials=None):
        return log1mexp(self.log_zero(eta, dispersion, trials))

    def mean(self, eta, dispersion, trials=None):
        return self.link.mean(eta)

    def variance(self, eta, dispersion, trials=None):
        return self.link.mean(eta) * (1 + dispersion["alpha"])

    def cdf(self, y, eta, dispersion, trials=None):
        mean = self.link.mean_of(eta)
        return _negative_binomial_cdf(y, mean / host(dispersion, "alpha"), mean)

    def simulate(self, key, eta, dispersion, trials=None):
        mean = self.link.mean(eta)
        return _gamma_poisson(key, mean / dispersion["alpha"], mean)

    def check(self, y, trials=None):
        _whole(y, "counts")

    def row_effects(self, trials=None):
        return False

    def crude(self, y, trials=None):
        return _counts(y, self.link, 0.0)

    def start_dispersion(self, y, eta, trials=None):
        mean = np.maximum(self.link.mean_of(eta), LITTLE)
        return {"alpha": float(np.clip(_excess(y, mean) / np.sum(mean), 0.01, 100.0))}
