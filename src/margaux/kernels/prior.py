"""Kernels that know the prior: for latents that are standard normal before the data are seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..problem.schedule import AbstractSchedule, Constant
from .base import AbstractKernel, AbstractMetropolis, accept, normal_like, unvalued

if TYPE_CHECKING:
    from jaxtyping import Array


class CrankNicolson(AbstractMetropolis):
    r"""$z' = \sqrt{1-\rho^2}\,z + \rho\,\xi$, accepted by the likelihood alone (Cotter, Roberts, Stuart and White 2013).

    The target must be $N(0, I)$ times a likelihood. With $\rho = 1$ it is independence Metropolis-Hastings from the prior;
    for missing covariates that is the sampler of Karimi, Wai, Moulines and Li (appendix B.2).

    Args:
        rho: between 0 and 1.
    """

    step_size: AbstractSchedule
    target_acceptance: None
    adjusted: ClassVar[bool] = True
    rho: Array | np.ndarray

    def __init__(self, rho: float = 1.0) -> None:
        if not 0 < rho <= 1:
            raise ValueError(f"rho must be above 0 and at most 1, got {rho}")
        self.step_size, self.target_acceptance, self.rho = Constant(1.0), None, np.asarray(float(rho))

    def init(self, z):
        return unvalued(z)

    def refresh(self, z, kstate, logdensity):
        return self.valued(z, kstate, logdensity)

    def valued(self, z, kstate, logdensity):
        flat, _ = ravel_pytree(z)
        return kstate | {"value": logdensity(z) + jnp.sum(flat**2) / 2}

    def step(self, noise, z, kstate, logdensity, scale):
        normal, uniform = noise
        flat, unravel = ravel_pytree(z)
        rho = jnp.asarray(self.rho, flat.dtype)
        proposal = unravel(jnp.sqrt(1 - rho**2) * flat + rho * normal)
        new = self.valued(proposal, kstate, logdensity)
        (z, kstate), probability = accept((z, kstate), (proposal, new), new["value"] - kstate["value"], uniform)
        return z, kstate, probability


class EllipticalSlice(AbstractKernel):
    r"""A point of the ellipse through z and $\nu\sim N(0, I)$ whose likelihood is above the slice (Murray, Adams and
    MacKay 2010): always moves, and has nothing to tune. The target must be $N(0, I)$ times a likelihood."""

    step_size: AbstractSchedule
    target_acceptance: None
    adjusted: ClassVar[bool] = True

    def __init__(self) -> None:
        self.step_size, self.target_acceptance = Constant(1.0), None

    def init(self, z):
        return ()

    def noise(self, key, z):
        normal_key, level_key, angle_key = jax.random.split(key, 3)
        return normal_like(normal_key, z), jax.random.uniform(level_key), angle_key

    def refresh(self, z, kstate, logdensity):
        return kstate

    def step(self, noise, z, kstate, logdensity, scale):
        normal, uniform, key = noise
        flat, unravel = ravel_pytree(z)

        def likelihood(x):
            return logdensity(unravel(x)) + jnp.sum(x**2) / 2

        level = likelihood(flat) + jnp.log(uniform.astype(flat.dtype))

        def draw(j):
            return jax.random.uniform(jax.random.fold_in(key, j), (), flat.dtype)

        def point(angle):
            return jnp.cos(angle) * flat + jnp.sin(angle) * normal

        first = 2 * jnp.pi * draw(0)

        def shrink(state):
            j, angle, low, high = state
            low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
            return j + 1, low + (high - low) * draw(j + 1), low, high

        # The bracket closes on z itself, which is above the slice; sixty halvings end it in any precision.
        # A likelihood that is not a number is no place to go.
        def outside(state):
            return ~(likelihood(point(state[1])) >= level) & (state[0] < 60)

        count, angle, _, _ = jax.lax.while_loop(outside, shrink, (0, first, first - 2 * jnp.pi, first))
        moved = jnp.where(count < 60, point(angle), flat)
        return unravel(moved), kstate, jnp.ones((), flat.dtype)
