r"""IVON: means and precisions of a Gaussian posterior by Newton's steps, at the cost of Adam.

Variational online Newton steps (Khan and Rue 2023, "The Bayesian learning rule") with the cheap estimate of the curvature of
Shen et al. (2024, "Variational learning is effective for large deep networks", algorithm 1), as an update of the score: with
$F$ the tempered ELBO an observation and $u=\log\sigma$,

$$\hat a = \frac{T/n - \partial_uF}{\sigma^2}$$

estimates the curvature of $-F$ in a mean, without that of the entropy (Stein's identity: a draw's gradient times its noise), for
every prior and every way of drawing. At the maximum $\sigma^2 = T/(na)$.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ...algorithms.average import AbstractAverage
from ...algorithms.base import Algorithm
from ...algorithms.memory import NoMemory
from ...algorithms.statistics import Score
from ...algorithms.updates import AbstractUpdate
from ...problem.schedule import AbstractSchedule
from .model import Variational

#: the first step by default, and what is kept of the direction in each
FIRST, KEPT = 0.1, 0.9
#: weight of the newest curvature: as much at most, as if the last tenth of all counted, and no more than in an average over all
#: blocks: a weight whose input is zero but in a few of them has its curvature from these
NEWEST, TENTH = 0.01, 10.0
#: curvature of a logarithm of a scale that is learned, an observation, and how far one moves in a step
OF_SCALES, FARTHEST = 2.0, 0.05
#: how far a mean moves in a step: its curvature is not known yet at the start
REACH = 0.1
#: curvature an observation that a fit begins with, and the largest standard deviation
BEGINNING, LARGEST = 0.1, 0.1


def started(temperature: float, n: int) -> float:
    """The standard deviations where a fit begins: a curvature too small would make its first steps too long.

    >>> round(started(1.0, 1000), 6), round(started(0.01, 1000), 6)
    (0.1, 0.01)
    """
    return min(LARGEST, (temperature / (n * BEGINNING)) ** 0.5)


class Falling(AbstractSchedule):
    r"""$s\,(1+\cos(\pi k/n))/2$: from `first` to zero in `n_iter` iterations.

    >>> schedule = Falling(0.1, 100)
    >>> round(float(schedule(0)), 6), round(float(schedule(50)), 6), round(float(schedule(100)), 6)
    (0.1, 0.05, 0.0)
    """

    first: Array | np.ndarray
    n_iter: Array | np.ndarray

    def __init__(self, first: float, n_iter: int) -> None:
        self.first, self.n_iter = np.asarray(float(first)), np.asarray(float(n_iter))

    def __call__(self, k):
        return self.first * (1 + jnp.cos(jnp.pi * jnp.minimum(k / self.n_iter, 1.0))) / 2


class IVON(AbstractUpdate):
    r"""$\mu\leftarrow\mu+\delta_k\bar g/a$ with $\bar g$ a running mean of $\partial_\mu F$, and $\sigma^2 = T/(na)$.

    The curvature is averaged by $a\leftarrow a+\rho(\hat a-a)+\tfrac{\rho^2}2(\hat a-a)^2/a$, which is positive whatever the
    estimates are (Lin, Schmidt and Khan 2020, "Handling the positive-definite constraint in the Bayesian learning rule"). No mean
    moves by more than `REACH`. Logarithms of scales that are learned, such as the noise, follow their own score over the
    curvature two that they have at a maximum.

    Args:
        step: $\delta_k$, without units: one is Newton's own step.
    """

    step: AbstractSchedule

    def requires(self, problem):
        model = problem.model
        if isinstance(model, Variational) and model.posterior.spread == "weight":
            return None
        return 'IVON finds a standard deviation for each weight of a network; use spread="weight", or method="adam"'

    def init(self, params):
        def zeros() -> PyTree:
            return jax.tree.map(jnp.zeros_like, params["mean"])

        return {"direction": zeros(), "curvature": zeros()}

    def __call__(self, problem, params, s, state, k):
        model: Any = problem.model
        k = jnp.asarray(k, float)
        share, delta = model.temperature / model.n, self.step(k)
        newest = jnp.minimum(jnp.minimum(NEWEST, TENTH / k), 1 / model.n_blocks)

        def curvature(u: Array, slope: Array, old: Array) -> Array:
            variance = jnp.exp(2 * u)
            old = jnp.where(k <= 1, share / variance, old)
            # No draw makes it more than two and a half times as large.
            gap = jnp.minimum((share - slope) / variance - old, old / newest)
            return old + newest * gap + newest**2 / 2 * gap**2 / old

        def each(function: Any, *trees: PyTree) -> PyTree:
            return jax.tree.map(lambda like, *leaves: function(*leaves).astype(like.dtype), params["mean"], *trees)

        bent = each(curvature, params["log_sigma"], s["log_sigma"], state["curvature"])
        direction = each(lambda old, g: KEPT * old + (1 - KEPT) * g, state["direction"], s["mean"])
        moved = {
            name: value + jnp.clip(s[name] / OF_SCALES, -FARTHEST, FARTHEST).astype(value.dtype)
            for name, value in params.items()
            if name not in ("mean", "log_sigma")
        }
        moved["mean"] = each(
            lambda m, g, a: m + jnp.clip(delta * g / (1 - KEPT**k) / a, -REACH, REACH), params["mean"], direction, bent
        )
        moved["log_sigma"] = each(lambda a: jnp.log(share / a) / 2, bent)
        return problem.land(moved, delta), {"direction": direction, "curvature": bent}


def ivon(step: AbstractSchedule, average: AbstractAverage) -> Algorithm:
    """The algorithm: scores of a batch, no memory, and `IVON`."""
    return Algorithm(statistic=Score(), memory=NoMemory(), update=IVON(step), average=average, refresh_epochs=None)
