"""The unadjusted Langevin algorithm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..schedule import AbstractSchedule, as_schedule
from .base import AbstractKernel, Preconditioner, move, normal_like


class ULA(AbstractKernel):
    r"""$z' = z + \gamma P \nabla \log p(z, y\mid\theta) + \sqrt{2\gamma}\, P^{1/2}\xi$ (SOUL, eq. 6, sign of the errata).

    Biased by $O(\gamma)$ in the mean and never rejecting.

    Args:
        step_size: $\gamma$, a positive number or a schedule of the iteration.
        preconditioner: P as d positive numbers or a (d, d) matrix, over the flattened latent.

    >>> import margaux as mx
    >>> mx.ULA(step_size=0.02).target_acceptance is None
    True
    """

    step_size: AbstractSchedule
    preconditioner: Preconditioner
    target_acceptance: None

    def __init__(self, step_size: Any, preconditioner: Any = None) -> None:
        self.step_size = as_schedule(step_size, name="step_size")
        self.preconditioner = Preconditioner(preconditioner)
        self.target_acceptance = None

    def init(self, z):
        return ()

    def noise(self, key, z):
        return normal_like(key, z)

    def refresh(self, z, kstate, logdensity):
        return kstate

    def step(self, noise, z, kstate, logdensity, scale):
        gradient, _ = ravel_pytree(jax.grad(logdensity)(z))
        scale = scale.astype(gradient.dtype)
        pre = self.preconditioner
        increment = pre.root(scale * pre.root_transposed(gradient) + jnp.sqrt(2 * scale) * noise)
        return move(z, increment), kstate, jnp.ones((), gradient.dtype)
