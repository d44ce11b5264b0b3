"""The interface of an E-step: `expect(f)` ~ sum over draws of f(z, weight)."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from ..numerics.keys import key_of
from ..problem.model import AbstractDiscrete, AbstractModel, Latents, Params, Unit

#: f(z, w): latents with leaves (m, b, ...), weights (m, b) -> any pytree linear in w
Integrand = Callable[[Latents, Array], PyTree]


class AbstractEStep(eqx.Module):
    """Approximates conditional expectations given the data of a batch of b units.

    A unit's row (chains, modes, adaptation) is made by `init`, carried between iterations by the
    engine, and never indexed here: `expect` receives the rows of its batch and returns them moved.
    Randomness comes from `noise` alone, drawn ahead from a key of (iteration, unit).
    """

    #: whether batches may be padded with units of no weight: figures are one a unit then, and no unit knows of another
    may_be_padded: ClassVar[bool] = False

    @property
    def averages_objective(self) -> bool:
        """Whether the mean log joint is the objective itself, as in variational inference: it is traced then."""
        return False

    @abc.abstractmethod
    def requires(self, model: AbstractModel, latents: Latents) -> str | None:
        """Why this E-step cannot serve the model (with `latents` the shape of one unit's), or None."""

    def refused(self, model: AbstractModel, params: Params, z: Latents, y: Unit, k: int = 1, reach: float = 1.0) -> str | None:
        """Why this E-step cannot be at latents z of one unit, or None: see `margaux.AbstractKernel.refused`."""
        return None

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, model: AbstractModel, params: Params, y: Unit) -> PyTree:
        """The row of one unit."""

    def compared(self, model: Any, params: Params, rows: PyTree, data: PyTree) -> PyTree:
        """The rows of units beside each other, with what those of others tell of one: for answers, not for iterations."""
        return rows

    def prepared(self, problem: Any, params: Params, units: Callable[[Any], PyTree]) -> AbstractEStep:
        """With what is to be known of a model before anything is compiled: called once, on the host, with the data of units by
        their numbers.

        Raises:
            ValueError: what it would take is more than there is.
        """
        return self

    def for_rows(self) -> AbstractEStep:
        """One that makes the same rows, and is the same whatever does not matter to them: they share a program."""
        return self

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, latents: Latents) -> PyTree:
        """All the randomness of one unit's next E-step; `latents` is the shape of one unit's."""

    @abc.abstractmethod
    def expect(
        self, f: Integrand, noise: PyTree, model: Any, params: Params, rows: PyTree, batch: PyTree, k: Array | int
    ) -> tuple[PyTree, PyTree, dict[str, Scalar]]:
        """Value of f, the rows moved, and figures to trace, one a unit (b,)."""


class AbstractMarginal(AbstractEStep):
    """One whose log marginal likelihood is a smooth function of the parameters, to be differentiated as such: an approximation
    has derivatives of its own, which are not the posterior expectations of Fisher and Louis."""

    @abc.abstractmethod
    def followed(self, model: Any, params: Params, rows: PyTree, batch: PyTree) -> PyTree:
        """The rows of units at moved parameters."""

    @abc.abstractmethod
    def log_marginals(
        self, noise: PyTree, model: Any, params: Params, rows: PyTree, batch: PyTree, derivatives: int = 2
    ) -> Array:
        """Of each unit (b,), with two derivatives in the parameters that the rows were followed to, with the first alone, or
        with none."""


class Present(AbstractEStep):
    """Another E-step on a padded batch: units that are not present have the weight zero.

    Attributes:
        present: of each unit of the batch (b,), one or zero.
    """

    estep: AbstractEStep
    present: Array

    @property
    def averages_objective(self):
        return self.estep.averages_objective

    def requires(self, model, latents):
        return self.estep.requires(model, latents)

    def init(self, key, model, params, y):
        return self.estep.init(key, model, params, y)

    def noise(self, key, latents):
        return self.estep.noise(key, latents)

    def expect(self, f, noise, model, params, rows, batch, k):
        def counted(z, w):
            return f(z, w * self.present.astype(w.dtype))

        value, rows, info = self.estep.expect(counted, noise, model, params, rows, batch, k)
        return value, rows, {name: figure * self.present.astype(figure.dtype) for name, figure in info.items()}


def flat_target(model: AbstractModel, params: Params, y: Unit) -> tuple[Callable[[Array], Scalar], Callable[[Array], Latents]]:
    """log p(y_i, z | theta) of a flat latent vector, and the way back to the latent's own structure."""
    shapes = jax.eval_shape(model.init_latents, key_of(0), params, y)
    _, unravel = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))
    return (lambda x: model.log_joint(params, unravel(x), y)), unravel


def flat_start(key: PRNGKeyArray, model: AbstractModel, params: Params, y: Unit) -> Array:
    """The model's starting latents as a flat vector."""
    return ravel_pytree(model.init_latents(key, params, y))[0]


def continuous(model: AbstractModel, latents: Latents, what: str) -> str | None:
    """Why what moves in a continuum cannot serve the model's latents, or None."""
    discrete = isinstance(model, AbstractDiscrete) or hasattr(model, "support")
    if discrete or not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(latents)):
        return (
            f"{what} needs continuous latents; those of {type(model).__name__} are discrete: use margaux.Exact, "
            "which enumerates them"
        )
    return None


def first_draw(tree: PyTree) -> PyTree:
    """A draw axis of length one in front of every leaf."""
    return jax.tree.map(lambda leaf: leaf[None], tree)
