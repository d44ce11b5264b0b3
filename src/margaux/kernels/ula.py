"""The unadjusted Langevin algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..problem.schedule import AbstractSchedule
from .base import move, normal_like
from .scaling import AbstractScaledKernel, Scaling, step_schedule

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class ULA(AbstractScaledKernel):
    r"""$z' = z + \gamma P \nabla \log p(z, y\mid\theta) + \sqrt{2\gamma}\, P^{1/2}\xi$ (SOUL, eq. 6, sign of the errata).

    Biased by $O(\gamma)$ and never rejecting.

    Args:
        step_size: $\gamma$, a positive number or a schedule of the iteration; by default $0.2/\Lambda$, with
            $\Lambda$ the largest curvature of the target, found by power iteration as the parameters move.
        preconditioner: P over the flattened latent: d positive numbers, a (d, d) matrix, or "diagonal" or
            "dense" for the chain's own running variances or covariance.

    >>> import margaux as mx
    >>> mx.ULA(step_size=0.02).target_acceptance is None
    True
    """

    step_size: AbstractSchedule
    scaling: Scaling
    target_acceptance: None
    adjusted: ClassVar[bool] = False

    def __init__(self, step_size: float | AbstractSchedule | None = None, preconditioner: ArrayLike | None = None) -> None:
        self.step_size, relative = step_schedule(step_size, 0.2)
        self.scaling = Scaling(preconditioner, relative)
        self.target_acceptance = None

    def noise(self, key, z):
        return normal_like(key, z)

    def step(self, noise, z, kstate, logdensity, scale):
        gradient, _ = ravel_pytree(jax.grad(logdensity)(z))
        scaling = self.scaling
        gamma = scaling.scale(kstate, scale.astype(gradient.dtype))
        increment = scaling.root(kstate, gamma * scaling.root_transposed(kstate, gradient) + jnp.sqrt(2 * gamma) * noise)
        z = move(z, increment)
        return z, scaling.learn(kstate, z), jnp.ones((), gradient.dtype)
