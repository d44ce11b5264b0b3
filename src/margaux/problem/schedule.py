"""Schedules of step sizes and Monte Carlo sizes, and what theory says of them."""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class AbstractSchedule(eqx.Module):
    """A positive sequence of the iteration k = 1, 2, ... Its constants are arrays: changing one compiles nothing."""

    @abc.abstractmethod
    def __call__(self, k: Array | np.ndarray | float) -> Array:
        """Value at iteration k (which may be traced)."""


def _number(name: str, value: object, least: float, strict: bool = False) -> np.ndarray:
    if isinstance(value, bool) or not np.isscalar(value) or not np.isreal(value):
        raise TypeError(f"{name} must be a number, got {value!r}")
    value = float(value)  # type: ignore[arg-type]
    if not np.isfinite(value) or value < least or (strict and value == least):
        raise ValueError(f"{name} must be {'above' if strict else 'at least'} {least:g}, got {value}")
    return np.asarray(value)


def _float(k: Array | np.ndarray | float) -> Array:
    return jnp.asarray(k, jnp.result_type(float))


class Constant(AbstractSchedule):
    """The same value at every iteration."""

    value: Array | np.ndarray

    def __init__(self, value: float) -> None:
        self.value = _number("value", value, 0.0, strict=True)

    def __call__(self, k):
        return jnp.asarray(self.value)


class Polynomial(AbstractSchedule):
    r"""$s\,(k + o)^{-a}$.

    Args:
        scale: s > 0. power: $a \ge 0$. offset: $o \ge 0$, which tames the first steps.

    >>> float(Polynomial(60.0, power=0.5)(4))
    30.0
    """

    scale: Array | np.ndarray
    power: Array | np.ndarray
    offset: Array | np.ndarray

    def __init__(self, scale: float, power: float, offset: float = 0.0) -> None:
        self.scale = _number("scale", scale, 0.0, strict=True)
        self.power, self.offset = _number("power", power, 0.0), _number("offset", offset, 0.0)

    def __call__(self, k):
        return self.scale * (_float(k) + self.offset) ** -self.power


class ConstantThenDecay(AbstractSchedule):
    r"""s for the first `n_constant` iterations, then $s\,(k - n_{constant})^{-a}$: SAEM's two phases.

    Args:
        scale: s. n_constant: iterations at s. power: a.
    """

    scale: Array | np.ndarray
    n_constant: Array | np.ndarray
    power: Array | np.ndarray

    def __init__(self, scale: float, n_constant: int, power: float) -> None:
        self.scale = _number("scale", scale, 0.0, strict=True)
        self.n_constant, self.power = _number("n_constant", n_constant, 0.0), _number("power", power, 0.0)

    def __call__(self, k):
        return self.scale * jnp.maximum(_float(k) - self.n_constant, 1.0) ** -self.power


class Growth(AbstractSchedule):
    r"""A Monte Carlo size $\lceil m_0 + s\,e^c\rceil$, with e the epoch $\lceil k/\text{epoch}\rceil$, at most `cap`.

    Args:
        initial: $m_0 \ge 0$. scale: s. power: c. epoch: iterations an epoch (one counts iterations).
    """

    initial: Array | np.ndarray
    scale: Array | np.ndarray
    power: Array | np.ndarray
    epoch: Array | np.ndarray
    cap: Array | np.ndarray

    def __init__(self, initial: float = 1, scale: float = 1.0, power: float = 1.0, epoch: int = 1, cap: float = 1e6) -> None:
        self.initial = _number("initial", initial, 0.0)
        self.scale, self.power = _number("scale", scale, 0.0), _number("power", power, 0.0)
        self.epoch, self.cap = _number("epoch", epoch, 1.0), _number("cap", cap, 1.0)

    def __call__(self, k):
        epochs = jnp.ceil(_float(k) / self.epoch)
        # A hair is taken off first, so that an exact power does not round up.
        size = jnp.ceil(self.initial + self.scale * epochs**self.power - 1e-4)
        return jnp.clip(size, 1.0, self.cap)


def as_schedule(value: object, name: str = "schedule") -> AbstractSchedule:
    """A schedule as it is; a positive number as a constant one.

    Raises:
        TypeError, ValueError: neither, or not positive.
    """
    if isinstance(value, AbstractSchedule):
        return value
    if isinstance(value, bool) or not np.isscalar(value) or not np.isreal(value):
        raise TypeError(f"{name} must be a positive number or a schedule such as mx.Polynomial(1.0, power=0.8); got {value!r}")
    if not 0 < float(value) < np.inf:  # type: ignore[arg-type]
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return Constant(float(value))  # type: ignore[arg-type]


def exponent(schedule: AbstractSchedule) -> float:
    """The a of a sequence that goes like $k^{-a}$, read at large k (growing sequences have a < 0)."""
    low, high = 1e6, 1e8
    if isinstance(schedule, Growth):  # its rate, whatever the cap
        return -float(schedule.power) if schedule.scale > 0 else 0.0
    if isinstance(schedule, Polynomial | ConstantThenDecay):
        return float(schedule.power)
    if isinstance(schedule, Constant):
        return 0.0
    values = [float(np.asarray(schedule(k))) for k in (low, high)]
    return -float(np.log(values[1] / values[0]) / np.log(high / low))


def check_schedules(
    step: float | AbstractSchedule | None,
    step_size: float | AbstractSchedule | None = None,
    mc_size: float | AbstractSchedule | None = None,
) -> str:
    r"""One sentence on what theory says of the schedules; it never forbids.

    With $\delta_n\sim n^{-a}$ the step of theta, $\gamma_n\sim n^{-b}$ the Langevin step and
    $m_n\sim n^{c}$ the Monte Carlo size, SOUL (De Bortoli et al. 2021) converges with growing batches if
    $a\le1,\ a+b/2>1,\ a-b+c>1$ (eqs. 8 and 12) and with fixed ones if
    $a\le1,\ a+b/2>1,\ 2a-2b>1,\ a-2b>0$ (eq. 9, theorem 5). Exact kernels need $1/2<a\le1$ (Robbins and
    Monro). MISSO (theorem 2) needs $\sum_k M_k^{-1/2}<\infty$, that is c > 2.

    Args:
        step: of theta; None for MISSO's algorithms. step_size: of an unadjusted kernel; None for an exact one.
        mc_size: draws an iteration, a number or a schedule.

    >>> check_schedules(Polynomial(1.0, 0.8), step_size=0.01)
    'The Langevin step is constant: theta converges up to a bias of order gamma^(1/2) (SOUL, theorems 2 and 6).'
    """
    c = 0.0 if mc_size is None else 0.0 - exponent(as_schedule(mc_size, "mc_size"))
    if step is None:
        if c > 2 + 1e-6:
            return f"The Monte Carlo size grows like k^{c:.3g}, so sum M_k^(-1/2) is finite: MISSO's theorem 2 applies."
        grows = f"The Monte Carlo size grows like k^{max(c, 0):.3g}"
        return f"{grows}, so sum M_k^(-1/2) diverges: MISSO's theorem 2 needs a power above 2."
    a = exponent(as_schedule(step, "step"))
    tolerance = 1e-6
    if a > 1 + tolerance:
        return (
            f"The step of theta decays like n^-{a:.3g}, so its sum is finite: the fit may stop short; use a power of at most 1."
        )
    if step_size is None:
        if a > 0.5 + tolerance:
            return "The Robbins-Monro conditions hold: the steps sum to infinity, their squares do not."
        falls = "is constant" if a <= tolerance else f"decays like n^-{a:.3g}"
        return f"The step of theta {falls}: its squares do not sum, so only an average converges."
    b = exponent(as_schedule(step_size, "step_size"))
    growing = a + b / 2 > 1 + tolerance and a - b + c > 1 + tolerance
    fixed = a + b / 2 > 1 + tolerance and 2 * a - 2 * b > 1 + tolerance and a - 2 * b > tolerance
    if fixed:
        return "The fixed-batch conditions hold (SOUL, eq. 9): theta converges to the maximum."
    if growing:
        return "The growing-batch conditions hold (SOUL, eqs. 8 and 12): theta converges to the maximum."
    if b <= tolerance:
        return "The Langevin step is constant: theta converges up to a bias of order gamma^(1/2) (SOUL, theorems 2 and 6)."
    rates = f"delta ~ n^-{a:.3g}, gamma ~ n^-{b:.3g}, m ~ n^{max(c, 0):.3g}"
    return f"Neither eq. 9 nor eq. 12 of SOUL holds ({rates}): no theorem promises convergence."
