"""The same chain at half its step, driven by the same Brownian path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..problem.schedule import AbstractSchedule
from .alternating import Alternating
from .base import AbstractKernel
from .leimkuhler_matthews import LeimkuhlerMatthews
from .plug_and_play import PlugAndPlayULA
from .uhmc import UnadjustedHMC
from .underdamped import Underdamped

if TYPE_CHECKING:
    from jaxtyping import PyTree


class Halves(AbstractKernel):
    """Two half steps of an unadjusted kernel, or one whole step with the sum of their noise.

    Both cover the same time with the same path, so that what they differ by is the discretisation alone.
    """

    inner: AbstractKernel
    fine: bool = eqx.field(static=True)
    step_size: AbstractSchedule
    target_acceptance: None
    adjusted: ClassVar[bool] = False

    def __init__(self, inner: AbstractKernel, fine: bool) -> None:
        self.inner, self.fine = inner, fine
        self.step_size, self.target_acceptance = inner.step_size, None

    @property
    def brings_prior(self):
        return self.inner.brings_prior

    def init(self, z):
        return self.inner.init(z)

    def noise(self, key, z):
        first, second = jax.random.split(key)
        return self.inner.noise(first, z), self.inner.noise(second, z)

    def refresh(self, z, kstate, logdensity):
        return self.inner.refresh(z, kstate, logdensity)

    def step(self, noise, z, kstate, logdensity, scale):
        first, second = noise
        if not self.fine:
            return self.inner.step(_joined(first, second), z, kstate, logdensity, scale)
        z, kstate, _ = self.inner.step(first, z, kstate, logdensity, scale / 2)
        return self.inner.step(second, z, kstate, logdensity, scale / 2)


def _joined(first: PyTree, second: PyTree) -> Any:
    """The normals of the whole step; what else a kernel draws (the rows of SGLD) is the first half's."""
    if isinstance(first, tuple):
        return (_joined(first[0], second[0]), *first[1:])
    return (first + second) / jnp.sqrt(jnp.asarray(2.0, first.dtype))


def halved(kernel: AbstractKernel) -> tuple[AbstractKernel, AbstractKernel, int]:
    """The kernel as it is and at half its step, coupled, and the order in the step of the bias of its expectations.

    Raises:
        ValueError: an adjusted kernel, which has no such bias, or one whose moves take turns with others.
    """
    if kernel.adjusted:
        raise ValueError(f"{type(kernel).__name__} is exact: its step size biases nothing, there is nothing to probe")
    if isinstance(kernel, Alternating) and set(kernel.pattern) != {"ula"}:
        raise ValueError(
            f"the moves {kernel.pattern} take turns, and only unadjusted ones have half steps; probe mx.Alternating(('ula',))"
        )
    if isinstance(kernel, UnadjustedHMC):
        half = eqx.tree_at(lambda k: k.step_size, kernel, _Half(kernel.step_size))
        fine = UnadjustedHMC(None, 2 * kernel.n_leapfrog)
        return kernel, eqx.tree_at(lambda k: (k.step_size, k.scaling), fine, (half.step_size, kernel.scaling)), 2
    second = isinstance(kernel, LeimkuhlerMatthews | Underdamped) or (isinstance(kernel, PlugAndPlayULA) and kernel.averaged)
    return Halves(kernel, fine=False), Halves(kernel, fine=True), 2 if second else 1


class _Half(AbstractSchedule):
    whole: AbstractSchedule

    def __call__(self, k):
        return self.whole(k) / 2
