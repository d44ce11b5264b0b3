r"""More zeros, or fewer, than a response has by itself: zero inflation and hurdles.

Both have a predictor of their own for zeros, `dispersion["zero"]`, the logit of $\pi$: a number, or one a row.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, PRNGKeyArray

from .base import AbstractResponse, Crude, Dispersion, host, refuse
from .continuous import Beta, Gamma
from .counts import AbstractCount
from .special import log_sigmoid, sigmoid

#: draws of a count until one is positive, before those left are found by adding up probabilities; terms of that sum at most
TRIES, TERMS = 20, 10_000
#: the least share of zeros, or of others, that a start has
SHARE = 0.02


def _logit_of(share: float) -> float:
    return float(scipy.special.logit(np.clip(share, SHARE, 1 - SHARE)))


class ZeroInflated(AbstractResponse):
    r"""Zero with probability $\pi$, else a count that may be zero itself."""

    response: AbstractCount
    discrete: ClassVar[bool] = True
    coded: ClassVar[bool] = False
    predictors: ClassVar[tuple[str, ...]] = ("zero",)

    def __check_init__(self) -> None:
        if not isinstance(self.response, AbstractCount):
            raise ValueError(
                f"{self.response.name} has no zeros to inflate: zero inflation is of counts; take Hurdle for zeros beside "
                "positive measurements"
            )

    @property
    def name(self):
        return f"zero-inflated {self.response.name}"

    @property
    def links(self):
        return self.response.links

    @property
    def counts_trials(self):
        return self.response.counts_trials

    @property
    def dispersion(self):
        return self.response.dispersion

    def log_kernel(self, y, eta, dispersion, trials=None):
        zero = dispersion["zero"]
        counted = log_sigmoid(-zero) + self.response.log_kernel(y, eta, dispersion, trials)
        none = log_sigmoid(-zero) + self.response.log_zero(eta, dispersion, trials)
        return jnp.where(y == 0, jnp.logaddexp(log_sigmoid(zero), none), counted)

    def log_base(self, y, trials=None):
        return self.response.log_base(y, trials)

    def mean(self, eta, dispersion, trials=None):
        return sigmoid(-dispersion["zero"]) * self.response.mean(eta, dispersion, trials)

    def variance(self, eta, dispersion, trials=None):
        share, mean = sigmoid(-dispersion["zero"]), self.response.mean(eta, dispersion, trials)
        return share * (self.response.variance(eta, dispersion, trials) + (1 - share) * mean**2)

    def cdf(self, y, eta, dispersion, trials=None):
        zero = scipy.special.expit(host(dispersion, "zero"))
        upto, below = self.response.cdf(y, eta, dispersion, trials)
        return zero + (1 - zero) * upto, np.where(np.asarray(y) > 0, zero + (1 - zero) * below, 0.0)

    def simulate(self, key, eta, dispersion, trials=None):
        one, other = jax.random.split(key)
        counts = self.response.simulate(one, eta, dispersion, trials)
        return jnp.where(jax.random.uniform(other, eta.shape, eta.dtype) < sigmoid(dispersion["zero"]), 0.0, counts)

    def check(self, y, trials=None):
        self.response.check(y, trials)
        if not (y == 0).any():
            raise ValueError("is never zero, so that zero inflation cannot be estimated; leave it out")

    def row_effects(self, trials=None):
        return self.response.row_effects(trials)

    def crude(self, y, trials=None):
        return self.response.crude(y, trials)

    def start_dispersion(self, y, eta, trials=None):
        found = self.response.start_dispersion(y, eta, trials)
        expected = float(np.mean(self.response.cdf(np.zeros(len(y)), eta, found, trials)[0]))
        # Zeros beyond those that the counts have anyway.
        excess = (float(np.mean(y == 0)) - expected) / max(1 - expected, SHARE)
        return {**found, "zero": _logit_of(excess)}


class Hurdle(AbstractResponse):
    r"""Zero with probability $\pi$, else positive: a count given that it is not zero, or a gamma or beta measurement."""

    response: AbstractResponse
    coded: ClassVar[bool] = False
    predictors: ClassVar[tuple[str, ...]] = ("zero",)

    def __check_init__(self) -> None:
        if not isinstance(self.response, (AbstractCount, Gamma, Beta)):
            raise ValueError(f"{self.response.name} is not positive; a hurdle is of counts, gamma or beta")

    @property
    def name(self):
        return f"hurdle {self.response.name}"

    @property
    def links(self):
        return self.response.links

    @property
    def discrete(self):
        return self.response.discrete

    @property
    def counts_trials(self):
        return self.response.counts_trials

    @property
    def dispersion(self):
        return self.response.dispersion

    def _log_positive(self, eta: Array, dispersion: Dispersion, trials: Array | None) -> Array:
        """log P(Y > 0) of the response by itself."""
        if isinstance(self.response, AbstractCount):
            return self.response.log_some(eta, dispersion, trials)
        return jnp.zeros_like(eta)

    def log_kernel(self, y, eta, dispersion, trials=None):
        zero, none = dispersion["zero"], y == 0
        # A measurement has no density at zero, and none is asked for there.
        positive = self.response.log_kernel(jnp.where(none, _SAFE, y), eta, dispersion, trials)
        positive = positive - self._log_positive(eta, dispersion, trials)
        return jnp.where(none, log_sigmoid(zero), log_sigmoid(-zero) + positive)

    def log_base(self, y, trials=None):
        return jnp.where(y == 0, 0.0, self.response.log_base(jnp.where(y == 0, _SAFE, y), trials))

    def mean(self, eta, dispersion, trials=None):
        log_share = log_sigmoid(-dispersion["zero"]) - self._log_positive(eta, dispersion, trials)
        return jnp.exp(log_share) * self.response.mean(eta, dispersion, trials)

    def variance(self, eta, dispersion, trials=None):
        log_share = log_sigmoid(-dispersion["zero"]) - self._log_positive(eta, dispersion, trials)
        mean = self.response.mean(eta, dispersion, trials)
        square = self.response.variance(eta, dispersion, trials) + mean**2
        return jnp.exp(log_share) * square - (jnp.exp(log_share) * mean) ** 2

    def cdf(self, y, eta, dispersion, trials=None):
        zero = scipy.special.expit(host(dispersion, "zero"))
        y = np.asarray(y, float)
        upto, below = self.response.cdf(np.where(y == 0, 0.0 if self.discrete else _SAFE, y), eta, dispersion, trials)
        none = self.response.cdf(np.zeros_like(y), eta, dispersion, trials)[0] if self.discrete else np.zeros_like(y)
        rest = np.maximum(1 - none, np.finfo(float).tiny)

        def beyond(p):
            # Where the count is all but surely zero, a positive one is a one.
            return zero + (1 - zero) * np.where(none < 1, np.clip((p - none) / rest, 0.0, 1.0), y >= 1)

        return np.where(y > 0, beyond(upto), zero), np.where(y > 0, beyond(below), 0.0)

    def simulate(self, key, eta, dispersion, trials=None):
        one, other = jax.random.split(key)
        positive = (
            _positive_count(self.response, one, eta, dispersion, trials)
            if isinstance(self.response, AbstractCount)
            else self.response.simulate(one, eta, dispersion, trials)
        )
        return jnp.where(jax.random.uniform(other, eta.shape, eta.dtype) < sigmoid(dispersion["zero"]), 0.0, positive)

    def check(self, y, trials=None):
        zero = y == 0
        if not zero.any():
            raise ValueError("is never zero, so that its hurdle cannot be estimated; leave it out")
        if zero.all():
            raise ValueError(
                "is zero in every row, so that what lies beyond the hurdle cannot be estimated; model whether it is zero"
            )
        refuse(y < 0, y, "and a hurdle is of zeros and positive values", "mend or drop these rows")
        self.response.check(np.where(zero, 1.0 if self.discrete else _SAFE, y), trials)

    def row_effects(self, trials=None):
        return self.response.row_effects(trials)

    def crude(self, y, trials=None):
        inner: Crude = self.response.crude(np.where(y == 0, 1.0 if self.discrete else _SAFE, y), trials)
        return inner._replace(weights=inner.weights * (y > 0))

    def start_dispersion(self, y, eta, trials=None):
        some = y > 0
        found = self.response.start_dispersion(y[some], eta[some], None if trials is None else trials[some])
        return {**found, "zero": _logit_of(float(np.mean(~some)))}


#: a value at which every positive response has a density
_SAFE = 0.5


def _positive_count(
    response: AbstractCount, key: PRNGKeyArray, eta: Array, dispersion: Dispersion, trials: Array | None
) -> Array:
    """A draw of the count given that it is positive.

    Draws are repeated where they are zero. Rows that still are zero then, which are those of small means, get the smallest count
    at which the probabilities add up to a uniform number: both ways are exact, and so is one after the other.
    """

    def again(k, found):
        fresh = response.simulate(jax.random.fold_in(key, k), eta, dispersion, trials)
        return jnp.where(found > 0, found, fresh)

    drawn = jax.lax.fori_loop(0, TRIES, again, jnp.zeros_like(eta))
    u = jax.random.uniform(jax.random.fold_in(key, TRIES), eta.shape, eta.dtype)
    log_positive = response.log_some(eta, dispersion, trials)

    def going(state):
        found, total, k = state
        return jnp.any(total < u) & (k < TERMS)

    def add(state):
        found, total, k = state
        count = jnp.full_like(eta, k)
        total = total + jnp.exp(response.log_density(count, eta, dispersion, trials) - log_positive)
        return jnp.where((found == 0) & (total >= u), count, found), total, k + 1

    # Rows that have their count ask for nothing more.
    begin = jnp.where(drawn > 0, jnp.inf, 0.0)
    last, _, _ = jax.lax.while_loop(going, add, (drawn, begin, jnp.asarray(1)))
    return jnp.maximum(last, 1.0)
