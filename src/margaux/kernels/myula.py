"""Langevin kernels for densities with a non-smooth part given by its proximal map."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..problem.schedule import AbstractSchedule
from .base import AbstractProximalKernel, normal_like
from .scaling import Scaling, step_schedule

if TYPE_CHECKING:
    from jaxtyping import Array


class _AbstractProximalULA(AbstractProximalKernel):
    """ULA whose state is that of the scaling of the smooth part."""

    scaling: eqx.AbstractVar[Scaling]

    def init(self, z):
        return self.scaling.init(z)

    def noise(self, key, z):
        return normal_like(key, z)

    def refresh(self, z, kstate, logdensity):
        return self.scaling.refresh(z, kstate, logdensity.smooth)


class MYULA(_AbstractProximalULA):
    r"""ULA on the Moreau-Yosida envelope of the non-smooth part (Durmus, Moulines and Pereyra 2018).

    $z' = z + \gamma\nabla\log p_{smooth}(z) - \frac{\gamma}{\lambda}(z - \mathrm{prox}_{\lambda g}(z))
    + \sqrt{2\gamma}\,\xi$, for $\log p = \log p_{smooth} - g$ of a `margaux.AbstractNonSmooth` model. SOUL, section 4.2.

    Args:
        step_size: $\gamma$, at most $\lambda$; by default $0.5 / (\Lambda + 1/\lambda)$, with $\Lambda$ the curvature of the
            smooth part.
        smoothing: $\lambda$, the envelope's; by default $1/\Lambda$, as that paper advises.

    Raises:
        ValueError: a smoothing that is not positive, or a step that exceeds it.
    """

    step_size: AbstractSchedule
    smoothing: Array | np.ndarray | None
    automatic: bool = eqx.field(static=True)
    scaling: Scaling
    target_acceptance: None
    adjusted: ClassVar[bool] = False

    def __init__(self, step_size: float | AbstractSchedule | None = None, smoothing: float | None = None) -> None:
        self.step_size, self.automatic = step_schedule(step_size, 0.5)
        if smoothing is not None and not smoothing > 0:
            raise ValueError(f"smoothing must be positive, got {smoothing}")
        if smoothing is not None and not self.automatic and float(self.step_size(1)) > smoothing:
            raise ValueError(
                f"step_size {float(self.step_size(1)):g} exceeds smoothing {smoothing:g}: a step would go past the proximal "
                "point, which the envelope draws towards; lower step_size to half of smoothing, or raise smoothing"
            )
        self.smoothing = None if smoothing is None else np.asarray(float(smoothing))
        self.scaling = Scaling(None, self.automatic or smoothing is None)
        self.target_acceptance = None

    def step(self, noise, z, kstate, logdensity, scale):
        flat, unravel = ravel_pytree(z)
        gamma = scale.astype(flat.dtype)
        smoothing = 1 / kstate["curvature"] if self.smoothing is None else jnp.asarray(self.smoothing, flat.dtype)
        if self.automatic:
            gamma = gamma / (kstate["curvature"] + 1 / smoothing)
        gradient = jax.grad(lambda x: logdensity.smooth(unravel(x)))(flat)
        near, _ = ravel_pytree(logdensity.prox(z, smoothing))
        moved = flat + gamma * gradient - gamma / smoothing * (flat - near) + jnp.sqrt(2 * gamma) * noise
        return unravel(moved), kstate, jnp.ones((), flat.dtype)


class ProximalULA(_AbstractProximalULA):
    r"""Forward-backward Langevin: $z' = \mathrm{prox}_{\gamma g}(z + \gamma\nabla\log p_{smooth}(z) + \sqrt{2\gamma}\,\xi)$.

    (Salim and Richtarik 2020, "PSGLA".) Its states share the structure the prox imposes, such as exact
    zeros, and it needs no envelope. "fall" of its state is the flat latent before the last map less that behind it.

    Args:
        step_size: $\gamma$; by default $0.5/\Lambda$.
    """

    step_size: AbstractSchedule
    scaling: Scaling
    target_acceptance: None
    adjusted: ClassVar[bool] = False

    def __init__(self, step_size: float | AbstractSchedule | None = None) -> None:
        self.step_size, relative = step_schedule(step_size, 0.5)
        self.scaling = Scaling(None, relative)
        self.target_acceptance = None

    def init(self, z):
        return super().init(z) | {"fall": jnp.zeros_like(ravel_pytree(z)[0])}

    def step(self, noise, z, kstate, logdensity, scale):
        flat, unravel = ravel_pytree(z)
        gamma = self.scaling.scale(kstate, scale.astype(flat.dtype))
        gradient = jax.grad(lambda x: logdensity.smooth(unravel(x)))(flat)
        moved = flat + gamma * gradient + jnp.sqrt(2 * gamma) * noise
        behind = logdensity.prox(unravel(moved), gamma)
        return behind, kstate | {"fall": moved - ravel_pytree(behind)[0]}, jnp.ones((), flat.dtype)
