"""What algorithms share that climb the marginal likelihood as a function, by an E-step that is exact or keeps its noise."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ..problem.penalty import L2, NoPenalty
from .base import AbstractRowless
from .statistics import Score


class AbstractClimb(AbstractRowless):
    """One evaluation an iteration: of the likelihood where the last step led, which is taken or not, and the next step from the
    best place so far."""

    #: expectations are taken by the same noise in every iteration: the likelihood is then a function of the parameters
    same_noise: ClassVar[bool] = True
    all_units: ClassVar[bool] = True

    def requires(self, problem):
        if isinstance(problem.penalty, NoPenalty | L2):
            return None
        return f"{type(problem.penalty).__name__} has a kink, where Newton's steps are none; use margaux.soul, or the penalty L2"

    def statistics(self, problem, params, z, w, batch):
        return Score().per_unit(problem.model, params, z, w, batch)


def better(taken: Array, new: Any, old: Any) -> Any:
    """The place that was tried, or the best before it."""
    return jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, old)


def led_to(params: PyTree, u: Array, back: Any) -> PyTree:
    """Parameters at coordinates, in the precision that they have."""
    return jax.tree.map(lambda new, old: new.astype(old.dtype), back(u), params)


def traced(info: dict[str, Array], b: Any, value: Array, first: Array, best: Array, length: Array) -> dict[str, Array]:
    """Figures of an iteration. Of a place that was tried and left nothing is known; one that the fit begins at is its end."""
    figures = {name: figure / b for name, figure in info.items()}
    figures["log_marginal"] = jnp.where(first | jnp.isfinite(value), figures["log_marginal"], best / b)
    return figures | {"newton": length}
