"""The method of Leimkuhler and Matthews: unadjusted Langevin steps whose noise is averaged over two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..problem.schedule import AbstractSchedule
from .base import AbstractKernel, flat_size, move, normal_like
from .scaling import Scaling, step_schedule

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class LeimkuhlerMatthews(AbstractKernel):
    r"""$z_{n+1} = z_n + \gamma P\nabla\log p(z_n, y\mid\theta) + \sqrt{\gamma/2}\,P^{1/2}(\xi_n + \xi_{n+1})$.

    One gradient and one normal vector a step, as `ULA`, with a bias of $O(\gamma^2)$ instead of $O(\gamma)$; Gaussian
    targets are exact at every stable step ($\gamma\Lambda<2$), which for ULA have variances that are too large by a factor
    $1/(1-\gamma\lambda/2)$. It serves posteriors that are next to their priors, as of the weights of a network, where a bias of
    the kernel weighs as much as what the data say.

    Args:
        step_size: $\gamma$, a positive number or a schedule of the iteration; by default $0.5/\Lambda$, with $\Lambda$ the
            largest curvature of the target, found by power iteration as the parameters move.
        preconditioner: P, as in `ULA`.

    Reference: Leimkuhler and Matthews, Rational construction of stochastic numerical methods for molecular sampling, Appl. Math.
    Res. Express 2013, 34-56: BAOAB in the limit of large friction.

    >>> import margaux as mx
    >>> mx.LeimkuhlerMatthews(step_size=0.02).adjusted
    False
    """

    step_size: AbstractSchedule
    scaling: Scaling
    target_acceptance: None
    adjusted: ClassVar[bool] = False

    def __init__(self, step_size: float | AbstractSchedule | None = None, preconditioner: ArrayLike | None = None) -> None:
        self.step_size, relative = step_schedule(step_size, 0.5)
        self.scaling = Scaling(preconditioner, relative)
        self.target_acceptance = None

    def init(self, z):
        size, dtype = flat_size(z)
        return {"scaling": self.scaling.init(z), "noise": jnp.zeros(size, dtype)}

    def noise(self, key, z):
        return normal_like(key, z)

    def refresh(self, z, kstate, logdensity):
        return kstate | {"scaling": self.scaling.refresh(z, kstate["scaling"], logdensity)}

    def step(self, noise, z, kstate, logdensity, scale):
        gradient, _ = ravel_pytree(jax.grad(logdensity)(z))
        scaling, state = self.scaling, kstate["scaling"]
        gamma = scaling.scale(state, scale.astype(gradient.dtype))
        both = jnp.sqrt(gamma / 2) * (kstate["noise"] + noise)
        z = move(z, scaling.root(state, gamma * scaling.root_transposed(state, gradient) + both))
        return z, {"scaling": scaling.learn(state, z), "noise": noise}, jnp.ones((), gradient.dtype)
