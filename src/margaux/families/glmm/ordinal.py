"""Ordered categories by cumulative probabilities."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .base import AbstractResponse, Crude, Dispersion, host, refuse
from .links import UNIT_LINKS, AbstractUnitLink
from .special import log1mexp


class Ordinal(AbstractResponse):
    r"""Categories y = 0, ..., K - 1 with $P(y\le k) = F(\tau_k - \eta)$, F of the link; parameters: thresholds $\tau$ (K - 1,).

    A positive coefficient makes higher categories likelier. There is no intercept: the thresholds are free.
    """

    link: AbstractUnitLink = UNIT_LINKS["logit"]
    name: ClassVar[str] = "ordinal"
    links: ClassVar[tuple[str, ...]] = ("logit", "probit")
    discrete: ClassVar[bool] = True
    coded: ClassVar[bool] = True
    counts_trials: ClassVar[bool] = False
    dispersion: ClassVar[tuple[str, ...]] = ("thresholds",)
    predictors: ClassVar[tuple[str, ...]] = ()

    def log_kernel(self, y, eta, dispersion, trials=None):
        eta = jnp.asarray(eta)
        thresholds = jnp.asarray(dispersion["thresholds"], eta.dtype)
        top = thresholds.shape[0]
        k = jnp.asarray(y).astype(int)
        upper = thresholds[jnp.clip(k, 0, top - 1)] - eta
        lower = thresholds[jnp.clip(k - 1, 0, top - 1)] - eta
        inner = (k > 0) & (k < top)
        between = self._log_between(jnp.where(inner, lower, -1.0), jnp.where(inner, upper, 1.0))
        return jnp.where(k == 0, self.link.log_mean(upper), jnp.where(k == top, self.link.log_rest(lower), between))

    def _log_between(self, lower: Array, upper: Array) -> Array:
        """log(F(upper) - F(lower)), in the tail where both are, as F is symmetric."""
        if self.link.name == "logit":
            return self.link.log_mean(upper) + self.link.log_rest(lower) + log1mexp(lower - upper)
        right = lower + upper > 0
        low, high = jnp.where(right, -upper, lower), jnp.where(right, -lower, upper)
        top = self.link.log_mean(high)
        return top + log1mexp(self.link.log_mean(low) - top)

    def log_base(self, y, trials=None):
        return jnp.zeros_like(y)

    def probabilities(self, eta: Array, dispersion: Dispersion) -> Float[Array, "... K"]:
        """P(y = k | eta) of each category, along a last axis."""
        thresholds = jnp.asarray(dispersion["thresholds"])
        k = jnp.arange(thresholds.shape[0] + 1)
        return jnp.exp(self.log_kernel(k, jnp.asarray(eta)[..., None], dispersion))

    def mean(self, eta, dispersion, trials=None):
        """Of the codes 0, ..., K - 1."""
        found = self.probabilities(eta, dispersion)
        return found @ jnp.arange(found.shape[-1], dtype=found.dtype)

    def variance(self, eta, dispersion, trials=None):
        found = self.probabilities(eta, dispersion)
        codes = jnp.arange(found.shape[-1], dtype=found.dtype)
        away = codes - (found @ codes)[..., None]
        return jnp.sum(found * away**2, axis=-1)

    def cdf(self, y, eta, dispersion, trials=None):
        thresholds = host(dispersion, "thresholds")
        ends = np.concatenate([[-np.inf], thresholds, [np.inf]])
        k = np.asarray(y).astype(int)
        return self.link.mean_of(ends[k + 1] - eta), self.link.mean_of(ends[k] - eta)

    def simulate(self, key, eta, dispersion, trials=None):
        below = self.link.mean(jnp.asarray(dispersion["thresholds"], eta.dtype) - eta[..., None])
        u = jax.random.uniform(key, (*eta.shape, 1), eta.dtype)
        return jnp.sum(u > below, axis=-1).astype(eta.dtype)

    def check(self, y, trials=None):
        refuse(~np.isfinite(y) | (y < 0) | (y % 1 != 0), y, "and codes of categories are 0, 1, ...", "mend or drop these rows")
        missing = np.setdiff1d(np.arange(int(y.max()) + 1), y)
        if y.max() < 1 or missing.size:
            what = f"never holds category {missing[0]}" if missing.size else "holds one category only"
            raise ValueError(f"{what}, so its thresholds cannot be estimated; recode the categories that occur as 0, 1, ...")

    def row_effects(self, trials=None):
        return False

    def crude(self, y, trials=None):
        # The split of the categories that comes closest to halving the rows tells most.
        shares = np.array([np.mean(y > k) for k in range(int(y.max()))])
        target = (y > int(np.argmin(np.abs(shares - 0.5)))).astype(float)
        begin = (target + 0.5) / 2
        return Crude(target, begin, np.ones(len(y)), lambda mean: mean * (1 - mean), self.link, intercept=True)

    def start_dispersion(self, y, eta, trials=None):
        counts = np.bincount(np.asarray(y).astype(int)) + 0.5
        below = self.link.of_mean(np.cumsum(counts)[:-1] / counts.sum())
        # Averaged over predictors that differ, probabilities are closer to a half than each is: about this factor.
        noise = np.pi**2 / 3 if self.link.name == "logit" else 1.0
        return {"thresholds": below * np.sqrt(1 + float(np.var(eta)) / noise) + float(np.mean(eta))}
