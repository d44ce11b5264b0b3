"""Blocks in turn: the latents of every unit given those they share, then the shared ones given all units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Scalar

from ..problem.model import Latents, leading
from ..problem.schedule import AbstractSchedule, Constant
from .base import AbstractBlockedKernel, AbstractKernel, gain
from .mala import MALA

if TYPE_CHECKING:
    from ..problem.model import Unit


class Blocked(AbstractBlockedKernel):
    r"""One transition moves every unit's latents given the shared ones, each accepted by itself, then the shared ones given
    all units (Metropolis within Gibbs: Tierney 1994, section 2.4). For models of `margaux.AbstractShared`.

    The cost of a transition grows with the number of units, and the acceptance of a unit does not depend on it: a joint
    move of so many latents would be rejected ever more often. Each unit, and the shared block, has a step size of its own,
    adapted by Robbins-Monro with gain (number of transitions)^-0.6 towards its kernel's target.

    Args:
        units, shared: kernels that accept or reject; of a schedule of step sizes the first value counts.

    Traces as acceptance the lower of the mean over units and that of the shared block.

    Raises:
        TypeError, ValueError: no kernel, or an unadjusted one, whose bias a Gibbs sweep would pass from block to block.

    >>> import margaux as mx
    >>> estep = mx.MCMC(mx.Blocked(units=mx.MALA(), shared=mx.MALA(preconditioner="dense")), n_steps=5)
    """

    step_size: AbstractSchedule
    target_acceptance: None
    adjusted: ClassVar[bool] = True
    units: AbstractKernel
    shared: AbstractKernel

    def __init__(self, units: AbstractKernel | None = None, shared: AbstractKernel | None = None) -> None:
        self.step_size, self.target_acceptance = Constant(1.0), None
        self.units, self.shared = MALA() if units is None else units, MALA() if shared is None else shared
        for name, kernel in [("units", self.units), ("shared", self.shared)]:
            if not isinstance(kernel, AbstractKernel):
                raise TypeError(f"{name} must be a margaux kernel such as mx.MALA(); got {kernel!r}")
            if not kernel.adjusted:
                kind = type(kernel).__name__
                raise ValueError(f"{name} is {kind}, which never rejects; use mx.MALA(), or {kind} on the whole latent")

    def init(self, z):
        dtype = jnp.result_type(*jax.tree.leaves(z))
        return {
            "units": jax.vmap(self.units.init)(z["units"]),
            "shared": self.shared.init(z["shared"]),
            "log_scale": {"units": jnp.zeros(leading(z["units"]), dtype), "shared": jnp.zeros((), dtype)},
            "n_transitions": jnp.ones((), dtype),
        }

    def noise(self, key, z):
        of_units, of_shared = jax.random.split(key)
        keys = jax.vmap(lambda i: jax.random.fold_in(of_units, i))(jnp.arange(leading(z["units"])))
        return {"units": jax.vmap(self.units.noise)(keys, z["units"]), "shared": self.shared.noise(of_shared, z["shared"])}

    def refresh(self, z, kstate, logdensity):
        def each(z_i, state, y_i):
            return self.units.refresh(z_i, state, _given(logdensity, z["shared"], y_i))

        units = jax.vmap(each)(z["units"], kstate["units"], logdensity.y)
        return kstate | {"units": units, "shared": self.shared.refresh(z["shared"], kstate["shared"], _among(logdensity, z))}

    def step(self, noise, z, kstate, logdensity, scale):
        log_scale = kstate["log_scale"]

        def size(kernel, block):
            return kernel.step_size(1) * jnp.exp(log_scale[block]) * scale

        def each(e, z_i, state, s, y_i):
            target = _given(logdensity, z["shared"], y_i)
            return self.units.step(e, z_i, self.units.valued(z_i, state, target), target, s)

        moved = jax.vmap(each)(noise["units"], z["units"], kstate["units"], size(self.units, "units"), logdensity.y)
        units, of_units, accepted = moved
        z = {"shared": z["shared"], "units": units}
        target, step = _among(logdensity, z), size(self.shared, "shared")
        known = self.shared.valued(z["shared"], kstate["shared"], target)
        shared, of_shared, taken = self.shared.step(noise["shared"], z["shared"], known, target, step)
        rate = gain(kstate["n_transitions"])
        state = {
            "units": of_units,
            "shared": of_shared,
            "log_scale": {
                "units": log_scale["units"] + rate * _miss(self.units, accepted),
                "shared": log_scale["shared"] + rate * _miss(self.shared, taken),
            },
            "n_transitions": kstate["n_transitions"] + 1,
        }
        return {"shared": shared, "units": units}, state, jnp.minimum(jnp.mean(accepted), taken)


def _given(target: Any, shared: Latents, y: Unit) -> Any:
    """The density of one unit's latents given the shared ones."""
    return lambda z: target.unit(shared, z, y)


def _among(target: Any, z: Latents) -> Any:
    """The density of the shared latents given all units."""
    return lambda shared: target({"shared": shared, "units": z["units"]})


def _miss(kernel: AbstractKernel, acceptance: Array) -> Array | Scalar:
    """How far acceptance is above what the kernel aims at; zero where it keeps its step."""
    aim = kernel.target_acceptance
    return jnp.zeros_like(acceptance) if aim is None else acceptance - aim
