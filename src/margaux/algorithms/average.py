"""Averages of the iterates, with an explicit burn-in."""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..problem.schedule import AbstractSchedule, as_schedule


class AbstractAverage(eqx.Module):
    r"""$\hat\theta_N = \sum_{n>n_0} w_n\theta_n / \sum_{n>n_0} w_n$, with burn-in $n_0$."""

    #: iterations left out; a fraction below one is of n_iter
    burn_in: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def weight(self, k: Array) -> Array:
        """Weight of iterate k."""


class LastIterate(AbstractAverage):
    """No average: the last iterate."""

    burn_in: Array | np.ndarray

    def __init__(self) -> None:
        self.burn_in = np.asarray(0.0)

    def weight(self, k):
        return jnp.ones(())


class PolyakRuppert(AbstractAverage):
    """The plain mean of the iterates after the burn-in (Polyak and Juditsky 1992).

    Args:
        burn_in: a number of iterations, or a fraction (below one) of n_iter.
    """

    burn_in: Array | np.ndarray

    def __init__(self, burn_in: float = 0.5) -> None:
        self.burn_in = _burn_in(burn_in)

    def weight(self, k):
        return jnp.ones(())


class LinearlyWeighted(AbstractAverage):
    """The mean with weight k - burn_in: what is left of the start weighs less than in the plain mean.

    Lacoste-Julien, Schmidt and Bach (2012), section 3; Shamir and Zhang (2013).

    Args:
        burn_in: a number of iterations.
    """

    burn_in: Array | np.ndarray

    def __init__(self, burn_in: int) -> None:
        if burn_in < 0:
            raise ValueError(f"burn_in must not be negative, got {burn_in}")
        self.burn_in = np.asarray(float(burn_in))

    def weight(self, k):
        return jnp.asarray(k - self.burn_in, jnp.result_type(float))


class StepWeighted(AbstractAverage):
    r"""The mean weighted by the steps $\delta_n$ (SOUL, eq. 4), after the burn-in.

    Args:
        step: the schedule of $\delta_n$; `margaux.soul` passes its own.
        burn_in: as in `PolyakRuppert`. From the first iteration the start would weigh most of all.
    """

    step: AbstractSchedule
    burn_in: Array | np.ndarray

    def __init__(self, step: object, burn_in: float = 0.5) -> None:
        self.step = as_schedule(step, name="step")
        self.burn_in = _burn_in(burn_in)

    def weight(self, k):
        return self.step(k)


def _burn_in(value: float) -> np.ndarray:
    if not value >= 0:
        raise ValueError(f"burn_in must be a number of iterations or a fraction of n_iter, at least 0; got {value}")
    return np.asarray(float(value))


def start(average: AbstractAverage, params: PyTree) -> tuple[Array, PyTree]:
    """Sum of weights and mean before the first iterate."""
    dtype = jnp.result_type(*jax.tree.leaves(params))
    return jnp.zeros((), dtype), jax.tree.map(jnp.copy, params)


def include(average: AbstractAverage, state: tuple, params: PyTree, k: Array, burn_in: Array) -> tuple[Array, PyTree]:
    """The average moved by iterate k; until the burn-in is over it is the iterate itself."""
    if isinstance(average, LastIterate):
        return state[0], params
    weight_sum, mean = state
    w = jnp.where(k > burn_in, average.weight(k), 0.0).astype(weight_sum.dtype)
    new_sum = weight_sum + w
    share = jnp.where(new_sum > 0, w / jnp.where(new_sum > 0, new_sum, 1.0), 1.0)
    return new_sum, jax.tree.map(lambda m, p: m + share.astype(m.dtype) * (p - m), mean, params)
