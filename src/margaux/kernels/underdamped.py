"""Underdamped (kinetic) Langevin dynamics by the UBU splitting."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from ..problem.schedule import AbstractSchedule
from .base import AbstractKernel, flat_size
from .scaling import Scaling, step_schedule

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Underdamped(AbstractKernel):
    r"""$dw = v\,dt,\; dv = \nabla\log p\,dt - \eta v\,dt + \sqrt{2\eta}\,dB$, unadjusted, one gradient a step.

    UBU: the Ornstein-Uhlenbeck and free-flight part is solved exactly for h / 2, the gradient kicks for
    h, and the exact part again (Sanz-Serna and Zygalakis 2021, second order in h).

    Args:
        step_size: h; by default a half of $\Lambda^{-1/2}$, see `Scaling`.
        friction: $\eta$ in units of 1 / h's unit: of $\Lambda^{1/2}$ where the step is found, else as it is.
        preconditioner: as in `ULA`.

    >>> import margaux as mx
    >>> estep = mx.MCMC(mx.Underdamped())
    """

    step_size: AbstractSchedule
    friction: Array | np.ndarray
    scaling: Scaling
    target_acceptance: None
    adjusted: ClassVar[bool] = False

    def __init__(
        self,
        step_size: float | AbstractSchedule | None = None,
        friction: float = 0.3,
        preconditioner: ArrayLike | None = None,
    ) -> None:
        self.step_size, relative = step_schedule(step_size, 0.5)
        if not friction > 0:
            raise ValueError(f"friction must be positive, got {friction}")
        self.friction = np.asarray(float(friction))
        self.scaling = Scaling(preconditioner, relative, power=0.5)
        self.target_acceptance = None

    def init(self, z):
        size, dtype = flat_size(z)
        return {"scaling": self.scaling.init(z), "velocity": jnp.zeros(size, dtype)}

    def noise(self, key, z):
        size, dtype = flat_size(z)
        return jax.random.normal(key, (4, size), dtype)

    def refresh(self, z, kstate, logdensity):
        return kstate | {"scaling": self.scaling.refresh(z, kstate["scaling"], logdensity)}

    def step(self, noise, z, kstate, logdensity, scale):
        flat, unravel = ravel_pytree(z)
        scaling, state, velocity = self.scaling, kstate["scaling"], kstate["velocity"]
        h = scaling.scale(state, scale.astype(flat.dtype))
        friction = jnp.asarray(self.friction, flat.dtype)
        if scaling.relative:
            friction = friction * scale.astype(flat.dtype) / h
        move, velocity = _flight(velocity, noise[:2], h / 2, friction)
        flat = flat + scaling.root(state, move)
        gradient = jax.grad(lambda x: logdensity(unravel(x)))(flat)
        velocity = velocity + h * scaling.root_transposed(state, gradient)
        move, velocity = _flight(velocity, noise[2:], h / 2, friction)
        z = unravel(flat + scaling.root(state, move))
        return z, {"scaling": scaling.learn(state, z), "velocity": velocity}, jnp.ones((), flat.dtype)


def _flight(velocity: Array, normals: Array, t: Array, friction: Array) -> tuple[Array, Array]:
    """Exact solution of dw = v dt, dv = -eta v dt + sqrt(2 eta) dB over time t: increment of w, and v."""
    a = friction * t
    lost = -jnp.expm1(-a)
    variance_v = -jnp.expm1(-2 * a)
    covariance = lost**2 / friction
    # 2a - 3 + 4 e^-a - e^-2a is a cancellation of order a^3: its series where a is small.
    series = a**3 * (2 / 3 - a / 2 + 7 * a**2 / 30 - a**3 / 12)
    variance_w = jnp.where(a < 0.05, series, 2 * a - 2 * lost - lost**2) / friction**2
    first = covariance / jnp.sqrt(variance_v)
    rest = jnp.sqrt(jnp.maximum(variance_w - first**2, 0.0))
    new = (1 - lost) * velocity + jnp.sqrt(variance_v) * normals[0]
    return lost / friction * velocity + first * normals[0] + rest * normals[1], new
