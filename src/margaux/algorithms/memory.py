"""What an algorithm remembers between iterations: the second of its three choices.

Each memory splits its update in two, so that one sum over units (and devices) is all that an
iteration needs: `contribution` is local to the units of the batch, `combine` works on the sum.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ..problem.schedule import AbstractSchedule

if TYPE_CHECKING:
    from jaxtyping import Array


class AbstractMemory(eqx.Module):
    """Turns the statistics of a batch into an estimate of their mean over all n units."""

    #: whether a row a unit is kept
    has_rows: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def init(self, struct: PyTree) -> PyTree:
        """State before the first iteration; `struct` is the shape of one unit's statistic."""

    @abc.abstractmethod
    def contribution(self, rows: PyTree, s: PyTree) -> tuple[PyTree, PyTree]:
        """What the batch adds to the sum over units, and its new rows. `s` is a sum without rows, else one row a unit."""

    @abc.abstractmethod
    def combine(self, state: PyTree, total: PyTree, n: int, b: int, k: Array) -> tuple[PyTree, PyTree]:
        """The estimated mean over units, and the new state."""


def _zeros(struct: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), struct)


class NoMemory(AbstractMemory):
    """The batch mean alone (SOUL, ISGD, MCEM)."""

    has_rows: ClassVar[bool] = False

    def init(self, struct):
        return ()

    def contribution(self, rows, s):
        return s, rows

    def combine(self, state, total, n, b, k):
        return jax.tree.map(lambda t: t / b, total), state


class RobbinsMonro(AbstractMemory):
    r"""$S_k = S_{k-1} + \gamma_k (\bar s_k - S_{k-1})$ (SAEM, Delyon, Lavielle and Moulines 1999, eq. 7)."""

    step: AbstractSchedule
    has_rows: ClassVar[bool] = False

    def init(self, struct):
        return _zeros(struct)

    def contribution(self, rows, s):
        return s, rows

    def combine(self, state, total, n, b, k):
        # The first iteration replaces the arbitrary start, whatever the gain.
        gain = jnp.where(k == 1, 1.0, self.step(k))
        mean = jax.tree.map(lambda m, t: m + gain.astype(m.dtype) * (t / b - m), state, total)
        return mean, mean


class Table(AbstractMemory):
    """One row a unit, and their running total (SAG; incremental EM; MISO and MISSO).

    The total is compensated (Neumaier), and so is the difference of new and old row (Knuth's two-sum): it does not drift
    however many rows are exchanged.
    """

    has_rows: ClassVar[bool] = True

    def init(self, struct):
        return {"total": _zeros(struct), "lost": _zeros(struct)}

    def contribution(self, rows, s):
        return _exchange(rows, s), s

    def combine(self, state, total, n, b, k):
        state = _compensated_add(state, *total)
        return _table_mean(state, n), state


class Saga(AbstractMemory):
    r"""Unbiased table memory: $V = \frac1b\sum_{i\in B}(s_i - \bar s_i) + \frac1n\sum_j \bar s_j$.

    Of scores it is SAGA (Defazio, Bach and Lacoste-Julien 2014, eq. 1) with weight one; of sufficient
    statistics it is fiEM (Karimi, Wai, Moulines and Lavielle 2019, eq. 12): $S_k = (1-\rho)S_{k-1} + \rho V$, by default with
    $\rho=\min(1, bn^{-2/3})$.
    """

    weight: AbstractSchedule | None
    has_rows: ClassVar[bool] = True

    def init(self, struct):
        return {"total": _zeros(struct), "lost": _zeros(struct), "mean": _zeros(struct)}

    def contribution(self, rows, s):
        return _exchange(rows, s), s

    def combine(self, state, total, n, b, k):
        table = {"total": state["total"], "lost": state["lost"]}
        mean = _moved(self.weight, state["mean"], _table_mean(table, n), total[0], n, b, k)
        return mean, {**_compensated_add(table, *total), "mean": mean}


class Anchor(AbstractMemory):
    r"""SVRG: $V = \frac1b\sum_{i\in B}(s_i - s_i^{a}) + \frac1n\sum_j s_j^{a}$, the anchor refreshed by full passes.

    Johnson and Zhang (2013) for scores; of sufficient statistics, with weight rho, it is sEM-vr
    (Chen, Zhu, Teh and Zhang 2018, algorithm 1).
    """

    weight: AbstractSchedule | None
    has_rows: ClassVar[bool] = True

    def init(self, struct):
        return {"total": _zeros(struct), "lost": _zeros(struct), "mean": _zeros(struct)}

    def contribution(self, rows, s):
        return jax.tree.map(lambda new, old: jnp.sum(new - old, axis=0), s, rows), rows

    def combine(self, state, total, n, b, k):
        mean = _moved(self.weight, state["mean"], _table_mean(state, n), total, n, b, k)
        return mean, {**state, "mean": mean}


def _moved(weight: AbstractSchedule | None, mean: PyTree, table: PyTree, total: PyTree, n: int, b: int, k: Array) -> PyTree:
    r"""$(1-\rho)S + \rho V$, V the table's mean and what the batch is from it; S starts as the table's mean."""
    rho = jnp.minimum(1.0, b / n ** (2 / 3)) if weight is None else weight(k)

    def move(s, t, d):
        s = jnp.where(k == 1, t, s)
        return s + rho.astype(s.dtype) * (d / b + t - s)

    return jax.tree.map(move, mean, table, total)


def _table_mean(state: PyTree, n: int) -> PyTree:
    return jax.tree.map(lambda t, c: (t + c) / n, state["total"], state["lost"])


def _exchange(rows: PyTree, s: PyTree) -> tuple[PyTree, PyTree]:
    """What new rows add to the total, and what rounding took from it."""

    def taken(new, old, moved):
        back = moved - new
        return (new - (moved - back)) - (old + back)

    moved = jax.tree.map(jnp.subtract, s, rows)
    lost = jax.tree.map(taken, s, rows, moved)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), moved), jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), lost)


def _compensated_add(state: PyTree, delta: PyTree, before: PyTree) -> PyTree:
    """The total moved by `delta`; what rounding took, now and `before` (from delta itself), is kept beside it."""
    total = jax.tree.map(jnp.add, state["total"], delta)

    def lost(old, d, new, c, e):
        return c + (e + jnp.where(jnp.abs(old) >= jnp.abs(d), (old - new) + d, (d - new) + old))

    return {"total": total, "lost": jax.tree.map(lost, state["total"], delta, total, state["lost"], before)}
