"""Adapter for the samplers of blackjax."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from ..problem.schedule import AbstractSchedule, as_schedule
from .base import AbstractKernel


class BlackJAX(AbstractKernel):
    """Any blackjax sampler with `step_size`: "hmc", "nuts", "mala", "barker", ...

    The sampler's state is rebuilt at every transition, since it caches a log density that is stale
    once the parameters have moved.

    Args:
        sampler: the name of a blackjax algorithm, such as "nuts".
        step_size: the first step size; adapted towards `target_acceptance` (None keeps it).
        **settings: passed on, such as num_integration_steps=5 (hmc). `inverse_mass_matrix` defaults to ones.

    Raises:
        ImportError: blackjax is not installed.
        ValueError: blackjax has no such sampler.
    """

    step_size: AbstractSchedule
    target_acceptance: float | None
    adjusted: ClassVar[bool] = True
    sampler: str = eqx.field(static=True)
    settings: dict[str, Any]

    def __init__(
        self, sampler: str, step_size: float | AbstractSchedule = 0.1, target_acceptance: float | None = 0.8, **settings: Any
    ) -> None:
        blackjax = _blackjax()
        if not hasattr(blackjax, sampler):
            raise ValueError(f'blackjax has no sampler "{sampler}"; try "hmc", "nuts", "mala" or "barker"')
        self.step_size = as_schedule(step_size, name="step_size")
        self.target_acceptance = target_acceptance
        self.sampler = sampler
        self.settings = settings

    def init(self, z):
        return ()

    def noise(self, key, z):
        return key

    def refresh(self, z, kstate, logdensity):
        return kstate

    def step(self, noise, z, kstate, logdensity, scale):
        from .base import flat_size

        settings = dict(self.settings)
        size, dtype = flat_size(z)
        if self.sampler in ("hmc", "nuts"):
            settings.setdefault("inverse_mass_matrix", jnp.ones(size, dtype))
        sampler = getattr(_blackjax(), self.sampler)(logdensity, step_size=scale.astype(dtype), **settings)
        state, info = sampler.step(noise, sampler.init(z))
        return state.position, kstate, jnp.asarray(info.acceptance_rate, dtype)


def _blackjax() -> Any:
    try:
        return importlib.import_module("blackjax")
    except ImportError as error:
        raise ImportError("BlackJAX needs blackjax; install it via: pip install 'margaux[blackjax]'") from error
