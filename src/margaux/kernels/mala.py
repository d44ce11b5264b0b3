"""The Metropolis-adjusted Langevin algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..problem.schedule import AbstractSchedule, as_schedule
from .base import AbstractMetropolis, accept, flat_size, unvalued
from .scaling import AbstractScaledKernel, Scaling

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class MALA(AbstractMetropolis, AbstractScaledKernel):
    r"""A Langevin proposal (see `ULA`) accepted or rejected, unit by unit (Roberts and Tweedie 1996).

    A step costs one density with its gradient: those of the current state are kept within an E-step.

    Args:
        step_size: $\gamma$, the first one where the E-step adapts it.
        preconditioner: as in `ULA`.
        target_acceptance: 0.574 by default; None keeps the step size.
    """

    step_size: AbstractSchedule
    scaling: Scaling
    target_acceptance: float | None
    adjusted: ClassVar[bool] = True

    def __init__(
        self,
        step_size: float | AbstractSchedule = 0.1,
        preconditioner: ArrayLike | None = None,
        target_acceptance: float | None = 0.574,
    ) -> None:
        self.step_size = as_schedule(step_size, name="step_size")
        self.scaling = Scaling(preconditioner, relative=False)
        self.target_acceptance = target_acceptance

    def init(self, z):
        size, dtype = flat_size(z)
        return self.scaling.init(z) | unvalued(z) | {"gradient": jnp.zeros(size, dtype)}

    def refresh(self, z, kstate, logdensity):
        return self.valued(z, self.scaling.refresh(z, kstate, logdensity), logdensity)

    def valued(self, z, kstate, logdensity):
        flat, unravel = ravel_pytree(z)
        value, gradient = jax.value_and_grad(lambda x: logdensity(unravel(x)))(flat)
        return kstate | {"value": value, "gradient": gradient}

    def step(self, noise, z, kstate, logdensity, scale):
        normal, uniform = noise
        flat, unravel = ravel_pytree(z)
        scaling = self.scaling
        scale = scale.astype(flat.dtype)
        target = jax.value_and_grad(lambda x: logdensity(unravel(x)))
        value, gradient = kstate["value"], kstate["gradient"]
        drift = scaling.root_transposed(kstate, gradient)
        # In whitened coordinates the move is gamma C^T grad + sqrt(2 gamma) xi, and so is its reverse.
        whitened = scale * drift + jnp.sqrt(2 * scale) * normal
        proposal = flat + scaling.root(kstate, whitened)
        new_value, new_gradient = target(proposal)
        back = -whitened - scale * scaling.root_transposed(kstate, new_gradient)
        log_ratio = new_value - value - jnp.sum(back**2) / (4 * scale) + jnp.sum(normal**2) / 2
        here, there = (z, value, gradient), (unravel(proposal), new_value, new_gradient)
        (z, value, gradient), probability = accept(here, there, log_ratio, uniform)
        return z, scaling.learn(kstate, z) | {"value": value, "gradient": gradient}, probability
