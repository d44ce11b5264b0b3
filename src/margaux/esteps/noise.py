"""The E-step of variational inference: latents are fixed noise, whatever the parameters."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from ..kernels.base import flat_size
from .base import AbstractEStep, flat_target


class Noise(AbstractEStep):
    r"""$z \sim N(0, I)$: the model's `log_joint` is then the reparameterised integrand
    $\log p(y_i \mid w) - d_i(\theta)$ at $w = t(\theta, z)$ (MISSO, example 2).

    Args:
        n_draws: draws a unit.
        antithetic: draw pairs z, -z.
    """

    n_draws: int = eqx.field(static=True)
    antithetic: bool = eqx.field(static=True)

    def __init__(self, n_draws: int = 1, antithetic: bool = False) -> None:
        if n_draws < 1 or (antithetic and n_draws % 2):
            raise ValueError(f"n_draws must be at least 1, and even for antithetic pairs; got {n_draws}")
        self.n_draws, self.antithetic = n_draws, antithetic

    def requires(self, model, latents):
        return None

    def init(self, key, model, params, y):
        return ()

    def noise(self, key, latents):
        size, dtype = flat_size(latents)
        if self.antithetic:
            half = jax.random.normal(key, (self.n_draws // 2, size), dtype)
            return jnp.concatenate([half, -half])
        return jax.random.normal(key, (self.n_draws, size), dtype)

    def expect(self, f, noise, model, params, rows, batch, k):
        _, unravel = flat_target(model, params, jax.tree.map(lambda leaf: leaf[0], batch))
        z = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), jax.vmap(jax.vmap(unravel))(noise))
        w = jnp.full((self.n_draws, noise.shape[0]), 1.0 / self.n_draws, noise.dtype)
        return f(z, w), rows, {}
