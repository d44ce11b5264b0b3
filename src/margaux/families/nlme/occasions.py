"""Parameters that vary between the occasions of a subject, too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from .model import MixedEffects
from .outcomes import PRESENT


class BetweenOccasions(MixedEffects):
    r"""$\psi_{ik} = h(\phi_i + \kappa_{ik})$ on occasion k of subject i, $\kappa_{ik}\sim N(0, \mathrm{diag}(\gamma^2))$.

    The latent of a subject is $\phi$ (d,) and, of the m parameters that vary, the effects of at most K occasions, (m, K), flat.
    Those of occasions that a subject does not have are standard normal: nothing depends on them. `gamma2` (m,) joins the engine's
    parameters. The complete likelihood stays an exponential family: the sums of squared effects are what $\gamma^2$ asks for.

    Reference: Panhard and Samson, Biostatistics 10 (2009), 121-135.

    A subject's data has besides `occasions` (K,), one for those it has.

    Args:
        varying: positions of the parameters that vary. most: K.
    """

    def of_occasions(self, z: Array) -> Float[Array, "m K"]:
        """The effects of the occasions."""
        return z[len(self.random) :].reshape(len(self.varying), self.most)

    def psi(self, params, z, design):
        """Individual parameters on the natural scale, of those that vary one an occasion (K,)."""
        gaussian = self.of_subject(params, z, design)
        for j, effects in zip(self.varying, self.of_occasions(z), strict=True):
            gaussian[self.names[j]] += effects
        return {name: one.natural(gaussian[name]) for name, one in self.individual}

    def _sd(self, params: dict, y: dict) -> Float[Array, "m K"]:
        """Standard deviations of the effects of occasions."""
        return jnp.where(y[PRESENT] > 0, jnp.sqrt(params["gamma2"])[:, None], 1.0)

    def log_effects(self, params, z, y):
        between = jnp.sum(norm.logpdf(self.of_occasions(z), 0.0, self._sd(params, y)))
        return between + (super().log_effects(params, z, y) if self.random else 0.0)

    def init_latents(self, key, params, y):
        effects = jnp.zeros(len(self.varying) * self.most, y["design"].dtype)
        return jnp.concatenate([super().init_latents(key, params, y), effects]) if self.random else effects

    def population(self, params, y):
        parts = [jnp.diag(jnp.ravel(self._sd(params, y)))]
        centre, root = super().population(params, y)
        return centre, jax.scipy.linalg.block_diag(root, *parts) if self.random else parts[0]

    def squares_of_occasions(self, z, y):
        return jnp.sum(jnp.where(y[PRESENT] > 0, self.of_occasions(z) ** 2, 0.0), axis=1)

    def suffstats(self, params, z, y):
        own = {"kappa2": self.squares_of_occasions(z, y), "n_occasions": jnp.sum(y[PRESENT])}
        return super().suffstats(params, z, y) | own

    def m_step(self, mean_stats, params):
        new: dict[str, Any] = super().m_step(mean_stats, params)
        return self.held.kept(new | {"gamma2": mean_stats["kappa2"] / mean_stats["n_occasions"]}, params)
