"""How the parameters move: the third of an algorithm's three choices."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ..problem.model import AbstractModel, Params
from ..problem.penalty import AbstractPenalty, NoPenalty
from ..problem.schedule import AbstractSchedule
from ..problem.space import AbstractSpace

if TYPE_CHECKING:
    import optax


class Problem(eqx.Module):
    r"""Minimise $-\log p(y\mid\theta) + g(\theta)$ over $\theta\in\Theta$, for n units.

    Algorithms work on this objective divided by n, so that a step size means the same at every n.
    """

    model: AbstractModel
    space: AbstractSpace
    penalty: AbstractPenalty
    #: in a program a number that it is given, so that it serves any
    n: Any

    def land(self, params: Params, step: Array) -> Params:
        """Proximal step of g / n, then projection onto Theta."""
        if not isinstance(self.penalty, NoPenalty):
            params = self.penalty.prox(params, step / self.n)
        return self.space.project(params)


class AbstractUpdate(eqx.Module):
    """Turns the estimated mean statistic into the next parameters."""

    def requires(self, problem: Problem) -> str | None:
        """Why the update cannot work on the problem, or None."""
        return None

    @abc.abstractmethod
    def init(self, params: Params) -> PyTree:
        """State before the first iteration."""

    @abc.abstractmethod
    def __call__(self, problem: Problem, params: Params, s: PyTree, state: PyTree, k: Array) -> tuple[Params, PyTree]:
        """The next parameters and state."""


class Ascent(AbstractUpdate):
    r"""$\theta_k = \Pi_\Theta[\mathrm{prox}_{\delta_k g/n}(\theta_{k-1} + \delta_k \bar s_k)]$ (SOUL eq. 5, errata's sign)."""

    step: AbstractSchedule

    def init(self, params):
        return ()

    def __call__(self, problem, params, s, state, k):
        delta = self.step(k)
        moved = jax.tree.map(lambda p, g: p + delta.astype(p.dtype) * g, params, s)
        return problem.land(moved, delta), state


def is_optimiser(step: object) -> TypeGuard[optax.GradientTransformation]:
    """Whether it is an optax gradient transformation, by its two functions: optax takes its time to import."""
    return callable(getattr(step, "init", None)) and callable(getattr(step, "update", None))


class Optax(AbstractUpdate):
    """Any optax gradient transformation, then the proximal step and the projection.

    The proximal step has length `step` (default one): an optimiser's own step is not visible from outside.
    """

    optimiser: optax.GradientTransformation = eqx.field(static=True)
    step: AbstractSchedule

    def init(self, params):
        return self.optimiser.init(params)

    def __call__(self, problem, params, s, state, k):
        descent = jax.tree.map(jnp.negative, s)
        moves, state = self.optimiser.update(descent, state, params)
        return problem.land(jax.tree.map(jnp.add, params, moves), self.step(k)), state


class MStep(AbstractUpdate):
    """The model's closed-form maximiser of the complete likelihood, projected."""

    def requires(self, problem):
        if isinstance(problem.penalty, NoPenalty):
            return None
        return (
            f"a penalty ({type(problem.penalty).__name__}) has no place in the model's own M-step; use a gradient algorithm such "
            "as margaux.soul, margaux.isgd or margaux.misso(lipschitz=...), or put the penalty into m_step"
        )

    def init(self, params):
        return ()

    def __call__(self, problem, params, s, state, k):
        model: Any = problem.model
        new = model.m_step(s)
        return problem.space.project(jax.tree.map(lambda p, q: jnp.asarray(q, p.dtype), params, new)), state


class Mean(AbstractUpdate):
    """The minimiser of a sum of quadratic surrogates of curvature L: the mean of theirs, prox with step 1 / L."""

    lipschitz: Any

    def init(self, params):
        return ()

    def __call__(self, problem, params, s, state, k):
        return problem.land(s, 1.0 / self.lipschitz), state
