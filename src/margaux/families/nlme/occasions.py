"""Parameters that vary between the occasions of a subject, too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from .held import least_squares
from .model import MixedEffects
from .outcomes import PRESENT


class BetweenOccasions(MixedEffects):
    r"""$\psi_{ik} = h(\phi_i + \kappa_{ik})$ on occasion k of subject i,
    $\kappa_{ik}\sim N(\delta^\top x_{ik}, \mathrm{diag}(\gamma^2))$.

    The latent of a subject is $\phi$ (d,) and, of the m parameters that vary, $\kappa$ of at most K occasions, (m, K), flat.
    Those of occasions that a subject does not have are standard normal: nothing depends on them. `gamma2` (m,) joins the engine's
    parameters, and `delta` where covariates x change between occasions. The complete likelihood stays an exponential family: the
    sums of squares and of products with the covariates are what $\gamma^2$ and $\delta$ ask for. A parameter that depends on such
    covariates and does not vary otherwise is $h(\phi_i + \delta^\top x_{ik})$; its coefficients, `drift`, have no closed M-step.

    Reference: Panhard and Samson, Biostatistics 10 (2009), 121-135.

    A subject's data has besides `occasions` (K,), one for those it has; behind the `design` of its coefficients lie the
    covariates of its occasions (K, q), flat.

    Args:
        varying: positions of the parameters that vary. shifted: the parameter of each coefficient of occasions, those that vary
            first. most: K.
    """

    def of_occasions(self, z: Array) -> Float[Array, "m K"]:
        """kappa."""
        return z[len(self.random) :].reshape(len(self.varying), self.most)

    def covariates(self, design: Any) -> Any:
        """Those of occasions, (..., K, q)."""
        return design[..., len(self.owner) :].reshape(*design.shape[:-1], self.most, len(self.shifted))

    def centres(self, params: dict, design: Any) -> Any:
        """What covariates make of kappa, (..., m, K)."""
        if not self.followed:
            return np.zeros((*design.shape[:-1], len(self.varying), self.most))
        weights = params["delta"][:, None] * self._onehot(list(self.shifted[: self.followed]), list(self.varying))
        return (self.covariates(design)[..., : self.followed] @ weights).swapaxes(-1, -2)

    def psi(self, params, z, design):
        """Individual parameters on the natural scale, of those that change between occasions one each (K,)."""
        gaussian = self.of_subject(params, z, design)
        for place, j in enumerate(self.varying):
            gaussian[self.names[j]] += self.of_occasions(z)[place]
        for place, j in enumerate(self.shifted[self.followed :]):
            gaussian[self.names[j]] += params["drift"][place] * self.covariates(design)[:, self.followed + place]
        return {name: one.natural(gaussian[name]) for name, one in self.individual}

    def _sd(self, params: dict, y: dict) -> Float[Array, "m K"]:
        """Standard deviations of the effects of occasions."""
        return jnp.where(y[PRESENT] > 0, jnp.sqrt(params["gamma2"])[:, None], 1.0)

    def log_effects(self, params, z, y):
        if not self.varying:
            return super().log_effects(params, z, y)
        between = norm.logpdf(self.of_occasions(z), self.centres(params, y["design"]), self._sd(params, y))
        return jnp.sum(between) + (super().log_effects(params, z, y) if self.random else 0.0)

    def init_latents(self, key, params, y):
        if not self.varying:
            return super().init_latents(key, params, y)
        effects = jnp.ravel(jnp.asarray(self.centres(params, y["design"]), y["design"].dtype))
        return jnp.concatenate([super().init_latents(key, params, y), effects]) if self.random else effects

    def population(self, params, y):
        centre, root = super().population(params, y)
        if not self.varying:
            return centre, root
        between = jnp.diag(jnp.ravel(self._sd(params, y)))
        return centre, jax.scipy.linalg.block_diag(root, between) if self.random else between

    def effects_of_occasions(self, params, z, y):
        if not self.varying:
            return super().effects_of_occasions(params, z, y)
        return jnp.where(y[PRESENT] > 0, self.of_occasions(z) - self.centres(params, y["design"]), 0.0)

    def suffstats(self, params, z, y):
        out = super().suffstats(params, z, y)
        if self.varying:
            kappa = jnp.where(y[PRESENT] > 0, self.of_occasions(z), 0.0)
            out |= {"kappa2": jnp.sum(kappa**2, axis=1), "n_occasions": jnp.sum(y[PRESENT])}
        if self.followed:
            x = self.covariates(y["design"])[:, : self.followed]
            out |= {"x_kappa": x.T @ kappa.T, "x_x": x.T @ x}
        return out

    def m_step(self, mean_stats, params):
        new: dict[str, Any] = super().m_step(mean_stats, params)
        return self.held.kept(new | self._step_of_occasions(mean_stats, params), params) if self.varying else new

    def _step_of_occasions(self, s: dict, params: dict) -> dict[str, Any]:
        """Least squares of delta, parameter by parameter, then gamma2 at the new delta."""
        squares = s["kappa2"]
        if not self.followed:
            return {"gamma2": self.prior.in_variances("gamma2", squares, s["n_occasions"])}
        owners = np.asarray([self.varying.index(j) for j in self.shifted[: self.followed]])
        gram = s["x_x"] * jnp.asarray(owners[:, None] == owners[None], s["x_x"].dtype)
        moment = s["x_kappa"][np.arange(len(owners)), owners]
        equations = gram, moment
        if self.prior.of("delta"):
            each = 1 / params["gamma2"][owners]
            equations = self.prior.in_normal_equations("delta", gram * each[:, None], moment * each)
        delta = least_squares(*equations, self.held.mask("delta", len(owners)), params["delta"])
        squares = squares.at[owners].add(delta * (gram @ delta) - 2 * delta * moment)
        return {"delta": delta, "gamma2": self.prior.in_variances("gamma2", squares, s["n_occasions"])}
