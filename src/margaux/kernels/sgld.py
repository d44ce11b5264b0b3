"""Stochastic gradient Langevin dynamics: a mini-batch of the rows that share one latent."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..problem.schedule import AbstractSchedule
from .base import AbstractSubsamplingKernel, flat_size
from .scaling import Scaling, step_schedule


class SGLD(AbstractSubsamplingKernel):
    r"""ULA with the likelihood's gradient from `batch_size` random rows (Welling and Teh 2011).

    For a `margaux.AbstractFactorised` model, whose rows are independent given the latent. With the
    control variate (Baker, Fearnhead, Fox and Nemeth 2019) the estimate is
    $G^\star + \frac Nb\sum_{i\in B}[\nabla\ell_i(z) - \nabla\ell_i(z^\star)]$, with $G^\star$ the full
    gradient at an anchor $z^\star$ which is moved to the chain every `refresh_every` E-steps.

    Args:
        step_size: $\gamma$; by default $0.2/\Lambda$ ($\Lambda$ costs a full pass every ten E-steps).
        batch_size: rows a transition, drawn with replacement.
        control_variate: use one. refresh_every: E-steps between two anchors; leave it at one where the
            likelihood depends on the parameters, since the full gradient is theirs too.
    """

    step_size: AbstractSchedule
    batch_size: int = eqx.field(static=True)
    control_variate: bool = eqx.field(static=True)
    refresh_every: int
    scaling: Scaling
    target_acceptance: None
    adjusted: ClassVar[bool] = False

    def __init__(
        self,
        batch_size: int,
        step_size: float | AbstractSchedule | None = None,
        control_variate: bool = True,
        refresh_every: int = 1,
    ) -> None:
        if batch_size < 1 or refresh_every < 1:
            raise ValueError(f"batch_size and refresh_every must be at least 1, got {batch_size} and {refresh_every}")
        self.step_size, relative = step_schedule(step_size, 0.2)
        self.batch_size, self.control_variate, self.refresh_every = batch_size, control_variate, refresh_every
        self.scaling = Scaling(None, relative)
        self.target_acceptance = None

    def init(self, z):
        size, dtype = flat_size(z)
        state = {"scaling": self.scaling.init(z)}
        if self.control_variate:
            vector = jnp.zeros(size, dtype)
            state |= {"anchor": vector, "gradient": vector, "visits": jnp.zeros((), jnp.int32)}
        return state

    def noise(self, key, z):
        normal_key, row_key = jax.random.split(key)
        size, dtype = flat_size(z)
        return jax.random.normal(normal_key, (size,), dtype), jax.random.uniform(row_key, (self.batch_size,), dtype)

    def refresh(self, z, kstate, logdensity):
        kstate = kstate | {"scaling": self.scaling.refresh(z, kstate["scaling"], logdensity)}
        if not self.control_variate:
            return kstate
        flat, unravel = ravel_pytree(z)

        def moved(state):
            gradient = jax.grad(lambda x: logdensity.likelihood(unravel(x), None))(flat)
            return state | {"anchor": flat, "gradient": gradient}

        due = kstate["visits"] % self.refresh_every == 0
        kstate = jax.lax.cond(due, moved, lambda state: state, kstate)
        return kstate | {"visits": kstate["visits"] + 1}

    def step(self, noise, z, kstate, logdensity, scale):
        normal, uniforms = noise
        flat, unravel = ravel_pytree(z)
        gamma = self.scaling.scale(kstate["scaling"], scale.astype(flat.dtype))
        n_rows = logdensity.n_rows
        ids = jnp.minimum((uniforms * n_rows).astype(jnp.int32), n_rows - 1)
        part = jax.grad(lambda x: logdensity.likelihood(unravel(x), ids))
        gradient = part(flat)
        if self.control_variate:
            gradient = gradient - part(kstate["anchor"])
        gradient = gradient * (n_rows / self.batch_size)
        if self.control_variate:
            gradient = gradient + kstate["gradient"]
        gradient = gradient + jax.grad(lambda x: logdensity.prior(unravel(x)))(flat)
        moved = flat + gamma * gradient + jnp.sqrt(2 * gamma) * normal
        return unravel(moved), kstate, jnp.ones((), flat.dtype)
