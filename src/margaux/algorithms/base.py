"""What an algorithm is: one iteration of a fit, and the composed one: statistic x memory x update."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..esteps.base import AbstractEStep, Present
from ..problem.model import Latents, Params, leading
from .average import AbstractAverage
from .memory import AbstractMemory, Saga
from .statistics import AbstractFromScore, AbstractStatistic, SufficientStatistics
from .updates import AbstractUpdate, Problem


class Visit(NamedTuple):
    """One iteration's visit of a batch of units.

    Attributes:
        rows: the E-step's and the algorithm's own, of those units. batch: their data. noise: of their E-steps.
        key: of the run. k: the iteration, from one. axis: the name of the mapped axis that units are spread over, and over how
            many devices. present: of each unit whether it counts (b,), where others pad the batch; and how many of all do.
    """

    rows: tuple[PyTree, PyTree]
    batch: PyTree
    noise: PyTree
    key: Array
    k: Array
    axis: str | None = None
    devices: int = 1
    present: Array | None = None
    count: Any = None

    def size(self, problem: Problem) -> Any:
        """How many units there are, over all devices."""
        if self.present is None:
            return leading(self.batch) * self.devices
        return problem.n if self.count is None else self.count

    def counting(self, estep: AbstractEStep) -> AbstractEStep:
        """The E-step, in which units that are not present count for nothing."""
        return estep if self.present is None else Present(estep, self.present)


class AbstractAlgorithm(eqx.Module):
    """One iteration of a fit. `Algorithm` composes one; others implement `init` and `step` directly.

    `rows` is what the algorithm keeps for each unit of the batch besides the E-step's own rows.
    """

    #: how the iterates are averaged unless `fit` is told otherwise
    average: eqx.AbstractVar[AbstractAverage]
    #: whether `step` goes by `Visit.size` and `Visit.counting`, so that its batch may be padded
    may_be_padded: ClassVar[bool] = False
    #: whether an E-step has the same noise at every iteration
    same_noise: ClassVar[bool] = False
    #: whether every iteration needs all units
    all_units: ClassVar[bool] = False
    #: units whose rows are filled by a full pass before the first iteration, and every so many epochs
    refresh_epochs: eqx.AbstractVar[int | None]

    def chosen(self, problem: Problem, estep: AbstractEStep, params: Params, unit: PyTree) -> AbstractAlgorithm:
        """What takes its place in a fit of all units by one process, given the data of the first; most often itself."""
        return self

    @abc.abstractmethod
    def requires(self, problem: Problem) -> str | None:
        """Why this algorithm cannot work on the problem, or None."""

    def check(self, estep: AbstractEStep) -> None:
        """Raises: TypeError, ValueError: it cannot work with the E-step."""

    @abc.abstractmethod
    def init(self, problem: Problem, params: Params, per_unit: PyTree) -> PyTree:
        """State before the first iteration, given the shape of one unit's statistic."""

    @abc.abstractmethod
    def statistics(self, problem: Problem, params: Params, z: Latents, w: Array, batch: PyTree) -> PyTree:
        """Per-unit statistics of weighted draws."""

    def visited(
        self, problem: Problem, estep: AbstractEStep, params: Params, rows: PyTree, batch: PyTree, noise: PyTree, k: Array
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """Per-unit statistics by one E-step, which a full pass stores as rows; the E-step's rows; its figures."""

        def read(z, w):
            return self.statistics(problem, params, z, w, batch)

        return estep.expect(read, noise, problem.model, params, rows, batch, k)

    @property
    @abc.abstractmethod
    def has_rows(self) -> bool:
        """Whether a row a unit is kept."""

    @property
    def first_pass(self) -> bool:
        """Whether rows are filled by a full pass before the first iteration; an algorithm without has `at_rest`."""
        return True

    @property
    def sampling(self) -> str:
        """How mini-batches are drawn unless `fit` is told otherwise."""
        return "reshuffled"

    @abc.abstractmethod
    def refreshed(self, state: PyTree, total: PyTree) -> PyTree:
        """State after a full pass whose rows sum to `total`."""

    def left(self, state: PyTree) -> PyTree:
        """What a fit leaves behind of the state at its end, besides its parameters; most often nothing."""
        return ()

    @abc.abstractmethod
    def step(
        self, problem: Problem, estep: AbstractEStep, params: Params, state: PyTree, visit: Visit
    ) -> tuple[Params, PyTree, tuple[PyTree, PyTree], dict[str, Array]]:
        """Next parameters, state, rows (E-step's, own) and traced figures (means over units).

        `visit.key` is the run's own, the same at every iteration: an algorithm that draws folds k into it.
        """


class AbstractRowless(AbstractAlgorithm):
    """An algorithm that keeps nothing for single units, and so needs no full pass."""

    may_be_padded: ClassVar[bool] = True
    refresh_epochs: int | None = eqx.field(static=True, default=None, init=False)

    @property
    def has_rows(self) -> bool:
        return False

    def refreshed(self, state, total):
        return state


class Algorithm(AbstractAlgorithm):
    """The composed algorithm: a statistic is averaged, remembered, and moves the parameters."""

    may_be_padded: ClassVar[bool] = True
    statistic: AbstractStatistic
    memory: AbstractMemory
    update: AbstractUpdate
    average: AbstractAverage
    refresh_epochs: int | None = eqx.field(static=True)
    #: no update before enough units are seen to tell the parameters: at first there are the statistics of one batch alone
    held: bool = eqx.field(static=True, default=False)
    #: fill the rows by a full pass before the first iteration; otherwise as if all scores were zero, as long as they are unseen
    first_pass: bool = eqx.field(static=True, default=True)

    def at_rest(self, params: Params) -> PyTree:
        """The row of a unit whose score is zero."""
        statistic: Any = self.statistic  # see `requires`
        return statistic.at_rest(params)

    @property
    def has_rows(self) -> bool:
        return self.memory.has_rows

    @property
    def sampling(self) -> str:
        # A reshuffled epoch visits the oldest rows of the table. The statistics then overshoot, and diverge.
        by_table = isinstance(self.memory, Saga) and isinstance(self.statistic, SufficientStatistics)
        return "uniform" if by_table else "reshuffled"

    def requires(self, problem):
        if not self.first_pass and not isinstance(self.statistic, AbstractFromScore):
            return f"{type(self.statistic).__name__} needs the first full pass: it is no function of a score that could be zero"
        return self.update.requires(problem) or self.statistic.requires(problem.model)

    def init(self, problem, params, per_unit):
        return {"memory": self.memory.init(per_unit), "update": self.update.init(params)}

    def statistics(self, problem, params, z, w, batch):
        return self.statistic.per_unit(problem.model, params, z, w, batch)

    def visited(self, problem, estep, params, rows, batch, noise, k):
        return self.statistic.averaged(problem.model, estep, params, rows, batch, noise, k, each=True)

    def refreshed(self, state, total):
        zero = jax.tree.map(lambda t: t * 0, total)
        return state | {"memory": state["memory"] | {"total": total, "lost": zero}}

    def step(self, problem, estep, params, state, visit):
        estep_rows, own_rows = visit.rows
        batch, k = visit.batch, visit.k
        b, estep = visit.size(problem), visit.counting(estep)
        model, each = problem.model, self.has_rows
        value, estep_rows, info = self.statistic.averaged(model, estep, params, estep_rows, batch, visit.noise, k, each)
        local, own_rows = self.memory.contribution(own_rows, value)
        total, info = summed(local, info, visit.axis)
        mean, memory = self.memory.combine(state["memory"], total, problem.n, b, k)
        moved, update = self.update(problem, params, mean, state["update"], k)
        if self.held:
            size = sum(leaf.size for leaf in jax.tree.leaves(params))
            enough = k * b >= jnp.minimum(max(20, 2 * size), problem.n)
            moved = jax.tree.map(lambda new, old: jnp.where(enough, new, old), moved, params)
        info = {name: figure / b for name, figure in info.items()}
        return moved, {"memory": memory, "update": update}, (estep_rows, own_rows), info


def summed(value: PyTree, info: dict[str, Array], axis: str | None) -> tuple[PyTree, dict[str, Array]]:
    """A value summed over devices, by one all-reduce, along with the figures of units, summed over those as well."""
    tree = value, {name: jnp.sum(figure) for name, figure in info.items()}
    if axis is None:
        return tree
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.psum(flat, axis))
