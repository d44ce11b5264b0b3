"""The exact E-step: a conjugate model's own draws, or enumeration of a discrete latent."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..problem.model import AbstractConjugate, AbstractDiscrete, leading, mapped
from .base import AbstractEStep


class Exact(AbstractEStep):
    """Enumerates the support of an `AbstractDiscrete` latent, or draws from an `AbstractConjugate` posterior.

    Args:
        n_draws: draws a unit where they are drawn; enumeration has no such choice.
    """

    may_be_padded: ClassVar[bool] = True
    n_draws: int = eqx.field(static=True)

    def __init__(self, n_draws: int = 1) -> None:
        if n_draws < 1:
            raise ValueError(f"n_draws must be at least 1, got {n_draws}")
        self.n_draws = n_draws

    def requires(self, model, latents):
        if isinstance(model, AbstractConjugate | AbstractDiscrete):
            return None
        return (
            f"{type(model).__name__} has neither sample_posterior nor support, which the exact E-step needs; "
            "inherit from margaux.AbstractConjugate or margaux.AbstractDiscrete, or use margaux.MCMC"
        )

    def init(self, key, model, params, y):
        return ()

    def noise(self, key, latents):
        return jax.random.split(key, self.n_draws)

    def expect(self, f, noise, model, params, rows, batch, k):
        b, joint = leading(batch), model.log_joint
        if isinstance(model, AbstractDiscrete):

            def enumerate_unit(y):
                z = model.support(y)
                return z, jax.vmap(lambda z_j: joint(params, z_j, y))(z)

            z, log_p = mapped(enumerate_unit, b)(batch)
            z, log_p = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), (z, log_p))
            log_marginal = jax.nn.logsumexp(log_p, axis=0)
            return f(z, jax.nn.softmax(log_p, axis=0)), rows, {"log_marginal": log_marginal}

        def draw(keys, y):
            return mapped(lambda key: model.sample_posterior(key, params, y), self.n_draws)(keys)

        z = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), mapped(draw, b)(noise, batch))
        dtype = jnp.result_type(*jax.tree.leaves(params))
        return f(z, jnp.full((self.n_draws, b), 1.0 / self.n_draws, dtype)), rows, {}
