"""Random-walk Metropolis."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from jax.flatten_util import ravel_pytree

from ..problem.schedule import AbstractSchedule, as_schedule
from .base import AbstractMetropolis, accept, unvalued
from .scaling import AbstractScaledKernel, Scaling

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class RandomWalk(AbstractMetropolis, AbstractScaledKernel):
    r"""Proposal $z + s\,P^{1/2}\xi$, accepted or rejected unit by unit (Metropolis et al. 1953).

    Args:
        step_size: s, the first one where the E-step adapts it.
        preconditioner: P, as in `ULA`.
        target_acceptance: 0.35 by default (between 0.44 in one dimension and 0.234 in many); None keeps s.
    """

    step_size: AbstractSchedule
    scaling: Scaling
    target_acceptance: float | None
    adjusted: ClassVar[bool] = True

    def __init__(
        self,
        step_size: float | AbstractSchedule = 0.5,
        preconditioner: ArrayLike | None = None,
        target_acceptance: float | None = 0.35,
    ) -> None:
        self.step_size = as_schedule(step_size, name="step_size")
        self.scaling = Scaling(preconditioner, relative=False)
        self.target_acceptance = target_acceptance

    def init(self, z):
        return self.scaling.init(z) | unvalued(z)

    def refresh(self, z, kstate, logdensity):
        return self.valued(z, self.scaling.refresh(z, kstate, logdensity), logdensity)

    def step(self, noise, z, kstate, logdensity, scale):
        normal, uniform = noise
        flat, unravel = ravel_pytree(z)
        proposal = unravel(flat + self.scaling.root(kstate, scale.astype(flat.dtype) * normal))
        new = logdensity(proposal)
        (z, value), probability = accept((z, kstate["value"]), (proposal, new), new - kstate["value"], uniform)
        return z, self.scaling.learn(kstate, z) | {"value": value}, probability
