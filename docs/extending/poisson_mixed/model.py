"""The model of one group."""

import jax.numpy as jnp
from jax.scipy.special import gammaln
from jax.scipy.stats import norm

from margaux.problem import AbstractModel, AbstractPointwise


class PoissonIntercept(AbstractModel, AbstractPointwise):
    """y_j ~ Poisson(exp(x_j' beta + sigma z)), z ~ N(0, 1); rows beyond the group's own are masked."""

    def pointwise(self, params, z, unit):
        eta = unit["x"] @ params["beta"] + params["sigma"] * z
        each = unit["y"] * eta - jnp.exp(eta) - gammaln(unit["y"] + 1)
        return jnp.where(unit["mask"] > 0, each, jnp.nan)

    def log_joint(self, params, z, unit):
        return jnp.nansum(self.pointwise(params, z, unit)) + norm.logpdf(z)

    def init_latents(self, key, params, unit):
        return jnp.zeros(())
