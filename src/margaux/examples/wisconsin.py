"""Empirical-Bayes logistic regression by SOUL on the Wisconsin breast cancer data.

y_i ~ Bernoulli(logistic(v_i^T beta)), beta ~ N(theta 1, 5 I): the coefficients beta are one latent
shared by all the data, and theta is estimated by maximum marginal likelihood (De Bortoli, Durmus,
Pereyra and Vidal 2021, section 4.1, in the set-up of 10 columns with an intercept).
"""

import jax
import jax.numpy as jnp
import numpy as np

import margaux as mx
from margaux.datasets import load_wisconsin
from margaux.numerics.density import bernoulli_logit

#: by quadrature-grade importance sampling: estimate, standard error, log-likelihood
EXACT = {"theta": 0.729}
EXACT_SE = {"theta": 0.714}
EXACT_LOGLIK = -69.515


class EmpiricalBayesLogistic(mx.AbstractModel):
    """Logistic regression whose coefficients share a prior mean."""

    variance: float = 5.0

    def log_joint(self, params, beta, data):
        likelihood = jnp.sum(bernoulli_logit(data["y"], data["X"] @ beta))
        prior = jax.scipy.stats.norm.logpdf(beta, params["theta"], jnp.sqrt(self.variance))
        return likelihood + jnp.sum(prior)

    def init_latents(self, key, params, data):
        return jnp.zeros(data["X"].shape[1], data["X"].dtype)


def data():
    """Intercept and nine standardised columns, as one unit."""
    X, y = load_wisconsin(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0, ddof=1)
    return mx.one_unit({"X": np.column_stack([np.ones(len(X)), X]), "y": y.astype(float)})


def fit(key=1, n_iter=400_000, **settings):
    """SOUL with the paper's steps: gamma = 8.34e-5, delta_n = 60 n^-0.8, averaged from n = 20,000."""
    step = mx.Polynomial(60.0, power=0.8)
    return mx.fit(
        EmpiricalBayesLogistic(),
        data(),
        mx.soul(step, average=mx.StepWeighted(step, burn_in=20_000)),
        mx.MCMC(mx.ULA(step_size=8.34e-5), warm_up=100),
        params={"theta": 0.0},
        space={"theta": mx.Box(-100.0, 100.0)},
        n_iter=n_iter,
        key=key,
        dtype="float32",
        **settings,
    )
