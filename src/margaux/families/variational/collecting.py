"""Weights kept along the way of a fit: draws of a chain, or a trajectory whose moments are wanted."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ...algorithms.average import AbstractAverage
from ...algorithms.base import AbstractAlgorithm


class Collected(AbstractAlgorithm):
    """An algorithm whose parameters are kept after some iterations; in every other way it is that algorithm.

    What is kept is part of its state, and so of a checkpoint, and is what a fit leaves: leaves (runs, m, ...).

    Args:
        inner: the algorithm. at: iterations (m,), counted from one. without: parameters that are not kept.
    """

    inner: AbstractAlgorithm
    at: Array | np.ndarray
    without: tuple[str, ...] = eqx.field(static=True)
    average: AbstractAverage
    refresh_epochs: int | None = eqx.field(static=True)

    def __init__(self, inner: AbstractAlgorithm, at: np.ndarray, without: tuple[str, ...] = ()) -> None:
        self.inner, self.at, self.without = inner, np.asarray(at, np.int32), without
        self.average, self.refresh_epochs = inner.average, inner.refresh_epochs

    def requires(self, problem):
        return self.inner.requires(problem)

    def check(self, estep):
        self.inner.check(estep)

    @property
    def has_rows(self):
        return self.inner.has_rows

    @property
    def first_pass(self):
        return self.inner.first_pass

    @property
    def sampling(self):
        return self.inner.sampling

    def _chosen(self, params: PyTree) -> PyTree:
        return {name: value for name, value in params.items() if name not in self.without}

    def init(self, problem, params, per_unit):
        # Iterations that are not kept write to the one place too many: a choice of the whole table would copy it.
        def places(leaf: Array) -> Array:
            return jnp.zeros((len(self.at) + 1, *leaf.shape), leaf.dtype)

        kept = jax.tree.map(places, self._chosen(params))
        return {"inner": self.inner.init(problem, params, per_unit), "kept": kept}

    def statistics(self, problem, params, z, w, batch):
        return self.inner.statistics(problem, params, z, w, batch)

    def refreshed(self, state, total):
        return state | {"inner": self.inner.refreshed(state["inner"], total)}

    def left(self, state):
        return jax.tree.map(lambda leaf: leaf[:, :-1], state["kept"])

    def step(self, problem, estep, params, state, visit):
        params, inner, rows, info = self.inner.step(problem, estep, params, state["inner"], visit)
        here = jnp.asarray(self.at) == visit.k
        place = jnp.where(jnp.any(here), jnp.argmax(here), len(self.at))

        def keep(places: Array, leaf: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(places, leaf, place, 0)

        kept = jax.tree.map(keep, state["kept"], self._chosen(params))
        return params, {"inner": inner, "kept": kept}, rows, info
