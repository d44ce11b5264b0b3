"""The Metropolis-adjusted Langevin algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..problem.schedule import AbstractSchedule, as_schedule
from .base import accept, proposal_noise
from .scaling import AbstractScaledKernel, Scaling

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class MALA(AbstractScaledKernel):
    r"""A Langevin proposal (see `ULA`) accepted or rejected, unit by unit (Roberts and Tweedie 1996).

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

    def noise(self, key, z):
        return proposal_noise(key, z)

    def step(self, noise, z, kstate, logdensity, scale):
        normal, uniform = noise
        flat, unravel = ravel_pytree(z)
        scaling = self.scaling
        scale = scale.astype(flat.dtype)
        target = jax.value_and_grad(lambda x: logdensity(unravel(x)))
        value, gradient = target(flat)
        drift = scaling.root_transposed(kstate, gradient)
        # In whitened coordinates the move is gamma C^T grad + sqrt(2 gamma) xi, and so is its reverse.
        whitened = scale * drift + jnp.sqrt(2 * scale) * normal
        proposal = flat + scaling.root(kstate, whitened)
        new_value, new_gradient = target(proposal)
        back = -whitened - scale * scaling.root_transposed(kstate, new_gradient)
        log_ratio = new_value - value - jnp.sum(back**2) / (4 * scale) + jnp.sum(normal**2) / 2
        z, probability = accept(z, unravel(proposal), log_ratio, uniform)
        return z, scaling.learn(kstate, z), probability
