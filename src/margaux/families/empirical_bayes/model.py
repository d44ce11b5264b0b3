"""Logistic regression whose coefficients are latent and whose prior is estimated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from ...numerics.density import bernoulli_logit
from ...problem.model import AbstractExponentialFamily, AbstractFactorised, AbstractPointwise, AbstractPredictive


class AbstractBayesianLogistic(AbstractFactorised, AbstractExponentialFamily, AbstractPointwise, AbstractPredictive):
    r"""$y_j\sim\mathrm{Bernoulli}(\mathrm{logit}^{-1}(x_j^\top\beta))$ with a prior on $\beta$.

    One unit: its data are `x` (rows, d) and `y` (rows,), its latent is $\beta$ (d,).
    """

    def log_likelihood(self, params, z, rows):
        return jnp.sum(self.pointwise(params, z, rows))

    def pointwise(self, params, z, y):
        return bernoulli_logit(y["y"], y["x"] @ z)

    def simulate(self, key, params, z, y):
        return {"y": jax.random.bernoulli(key, jax.nn.sigmoid(y["x"] @ z)).astype(z.dtype)}

    def init_latents(self, key, params, y):
        return jnp.zeros(y["x"].shape[1], y["x"].dtype)


class MeanPrior(AbstractBayesianLogistic):
    r"""$\beta\sim N(\theta 1, \sigma^2 I)$, $\theta$ estimated (SOUL, section 4.1)."""

    sigma: float

    def log_prior(self, params, z):
        return jnp.sum(norm.logpdf(z, params["theta"], self.sigma))

    def suffstats(self, z, y):
        return jnp.mean(z)

    def m_step(self, mean_stats):
        return {"theta": mean_stats}


class MeanScalePrior(AbstractBayesianLogistic):
    r"""$\beta\sim N(\theta 1, \sigma^2 I)$, both estimated."""

    def log_prior(self, params, z):
        return jnp.sum(norm.logpdf(z, params["theta"], params["sigma"]))

    def suffstats(self, z, y):
        return {"mean": jnp.mean(z), "square": jnp.mean(z**2)}

    def m_step(self, mean_stats):
        mean = mean_stats["mean"]
        return {"theta": mean, "sigma": jnp.sqrt(mean_stats["square"] - mean**2)}


class ARDPrior(AbstractBayesianLogistic):
    r"""Automatic relevance determination: $\beta_j\sim N(0, \sigma_j^2)$, one scale a coefficient.

    The first coefficient is the intercept, with the fixed prior $N(0, \texttt{intercept\_sd}^2)$.
    """

    intercept_sd: float

    def log_prior(self, params, z):
        rest = jnp.sum(norm.logpdf(z[1:], 0.0, params["sigma"]))
        return rest + norm.logpdf(z[0], 0.0, self.intercept_sd)

    def suffstats(self, z, y):
        return z[1:] ** 2

    def m_step(self, mean_stats):
        return {"sigma": jnp.sqrt(mean_stats)}
