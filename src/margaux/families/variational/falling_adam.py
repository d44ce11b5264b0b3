r"""Adam (Kingma and Ba 2015) by a step of a schedule whose numbers are traced, so that fits of every length share one program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from ...algorithms.average import AbstractAverage
from ...algorithms.base import Algorithm
from ...algorithms.memory import NoMemory
from ...algorithms.statistics import Score
from ...algorithms.updates import AbstractUpdate
from ...problem.schedule import AbstractSchedule

#: the moments, without a step
MOMENTS = optax.scale_by_adam()


class Adam(AbstractUpdate):
    r"""$\theta_k = \theta_{k-1} + \delta_k\,\hat m_k/(\hat v_k^{1/2} + \epsilon)$, as `optax.adam` has it.

    Args:
        step: $\delta_k$, its first at k = 0 as optax counts.
    """

    step: AbstractSchedule

    def init(self, params):
        return MOMENTS.init(params)

    def __call__(self, problem, params, s, state, k):
        moves, state = MOMENTS.update(s, state, params)
        delta: Any = self.step(jnp.asarray(k, float) - 1)
        moved = jax.tree.map(lambda p, move: p + (delta * move).astype(p.dtype), params, moves)
        return problem.land(moved, delta), state


def falling_adam(step: AbstractSchedule, average: AbstractAverage) -> Algorithm:
    """The algorithm: scores of a batch, no memory, and `Adam`."""
    return Algorithm(statistic=Score(), memory=NoMemory(), update=Adam(step), average=average, refresh_epochs=None)
