r"""A model so small that its maximum is known: $y_i\sim N(z_i, 1)$, $z_i\sim N(\mu, 1)$, fitted by the mean of y."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from ..problem.model import AbstractModel

#: units, and iterations of the fit along chains
N, ITERATIONS = 50, 2000
#: standard deviation of the estimate by MCMC over seeds, from twenty of them; the standard error of the mean itself is 0.2
MONTE_CARLO_ERROR = 0.006


class Normal(AbstractModel):
    """One unit."""

    def log_joint(self, params, z, y):
        normal = jax.scipy.stats.norm.logpdf
        return normal(y, z) + normal(z, params["mu"])

    def init_latents(self, key, params, y):
        return 0.0 * y


class Found(NamedTuple):
    """Estimates of mu and the log-likelihood there, beside the exact ones, and seconds of compiling and of iterating."""

    exact: float
    quadrature: float
    mcmc: float
    exact_loglik: float
    loglik: float
    compiling: float
    running: float


def tried(seed: int = 0) -> Found:
    """The model fitted by quadrature and by MCMC.

    >>> found = tried()
    >>> abs(found.quadrature - found.exact) < 1e-6, abs(found.loglik - found.exact_loglik) < 1e-6
    (True, True)
    """
    import margaux as mx

    y = np.random.default_rng(12).normal(1.0, np.sqrt(2.0), N)
    start, settings = {"mu": 0.0}, {"key": seed, "progress": False}
    exact = float(y.mean())
    by_quadrature = mx.fit(
        Normal(), y, mx.soul(step=1.0, average=mx.LastIterate()), mx.Quadrature(9), params=start, n_iter=60, **settings
    )
    by_mcmc = mx.fit(
        Normal(),
        y,
        mx.soul(),
        mx.MCMC(mx.MALA(), n_steps=2),
        params=start,
        n_iter=ITERATIONS,
        **settings,
    )
    at = y - by_quadrature.params["mu"]
    exact_loglik = float(-0.5 * np.sum(at**2) / 2 - N / 2 * np.log(4 * np.pi))
    timings = by_mcmc.timings
    return Found(
        exact,
        float(by_quadrature.params["mu"]),
        float(by_mcmc.params["mu"]),
        exact_loglik,
        float(by_quadrature.loglik("quadrature")),
        timings.get("compile", 0.0),
        timings.get("run", 0.0),
    )
