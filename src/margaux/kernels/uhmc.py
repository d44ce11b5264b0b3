"""Unadjusted Hamiltonian Monte Carlo."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..problem.schedule import AbstractSchedule
from .base import normal_like
from .scaling import AbstractScaledKernel, Scaling, step_schedule

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class UnadjustedHMC(AbstractScaledKernel):
    r"""A fresh momentum, then `n_leapfrog` steps of length h that are never rejected: bias of order $h^2$.

    (Bou-Rabee and Eberle 2023.)

    Args:
        step_size: h; by default a half of $\Lambda^{-1/2}$, see `Scaling`.
        n_leapfrog: leapfrog steps a transition, one gradient each and one more.
        preconditioner: as in `ULA`, the inverse mass matrix.

    >>> import margaux as mx
    >>> estep = mx.MCMC(mx.UnadjustedHMC(n_leapfrog=8))
    """

    step_size: AbstractSchedule
    n_leapfrog: int = eqx.field(static=True)
    scaling: Scaling
    target_acceptance: None
    adjusted: ClassVar[bool] = False

    def __init__(
        self,
        step_size: float | AbstractSchedule | None = None,
        n_leapfrog: int = 5,
        preconditioner: ArrayLike | None = None,
    ) -> None:
        self.step_size, relative = step_schedule(step_size, 0.5)
        if n_leapfrog < 1:
            raise ValueError(f"n_leapfrog must be at least 1, got {n_leapfrog}")
        self.n_leapfrog = n_leapfrog
        self.scaling = Scaling(preconditioner, relative, power=0.5)
        self.target_acceptance = None

    def noise(self, key, z):
        return normal_like(key, z)

    def step(self, noise, z, kstate, logdensity, scale):
        flat, unravel = ravel_pytree(z)
        scaling = self.scaling
        h = scaling.scale(kstate, scale.astype(flat.dtype))

        def force(x):
            return scaling.root_transposed(kstate, jax.grad(lambda x: logdensity(unravel(x)))(x))

        def leapfrog(_, state):
            x, p = state
            x = x + h * scaling.root(kstate, p)
            return x, p + h * force(x)

        x, p = jax.lax.fori_loop(0, self.n_leapfrog - 1, leapfrog, (flat, noise + h / 2 * force(flat)))
        z = unravel(x + h * scaling.root(kstate, p))
        return z, scaling.learn(kstate, z), jnp.ones((), flat.dtype)
