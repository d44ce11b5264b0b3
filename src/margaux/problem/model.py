"""What is solved: the model of ONE unit, and the capabilities a model may add to it."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

if TYPE_CHECKING:
    from ..numerics.structures import AbstractStructure

Params = PyTree[Array]
Latents = PyTree[Array]
Unit = PyTree[Array]


class AbstractModel(eqx.Module):
    r"""A latent-variable model, written for one unit.

    The marginal likelihood of n independent units is
    $p(y \mid \theta) = \prod_i \int p(y_i, z_i \mid \theta)\,dz_i$; a latent shared by all the data
    makes one unit of them (see `margaux.one_unit`). The library maps these methods over units.
    """

    @abc.abstractmethod
    def log_joint(self, params: Params, z: Latents, y: Unit) -> Scalar:
        r"""$\log p(y_i, z_i \mid \theta)$, a scalar, with every normalising constant."""

    @abc.abstractmethod
    def init_latents(self, key: PRNGKeyArray, params: Params, y: Unit) -> Latents:
        """Starting latents of one unit: a pytree of float arrays."""


class AbstractAveraged(AbstractModel):
    """What exponential families and surrogates share: statistics of units whose posterior means an M-step maximises with."""

    @abc.abstractmethod
    def statistics(self, params: Params, z: Latents, y: Unit) -> PyTree[Array]:
        """Those of one unit for a draw z."""

    def reader(self, params: Params, batch: PyTree, each: bool) -> tuple[Any, PyTree, Callable, Callable]:
        """How the statistics of a batch are averaged: the model and its data ready for draws; what is read from draws
        (m, b, ...) with weights (m, b); and what makes it the statistics of each unit (`each`) or their sum."""

        def read(z: Latents, w: Array) -> PyTree[Array]:
            units = mapped(lambda z_i, y_i: self.statistics(params, z_i, y_i), leading(batch))
            stats = mapped(lambda z_j: units(z_j, batch), leading(z))(z)
            out = jax.tree.map(lambda s: jnp.einsum("mb,mb...->b...", w, s), stats)
            return out if each else jax.tree.map(lambda s: jnp.sum(s, axis=0), out)

        return self, batch, read, lambda found: found


class AbstractExponentialFamily(AbstractAveraged):
    r"""A curved exponential family: $\log p(y_i, z_i\mid\theta) = \langle S(z_i, y_i), \phi(\theta)\rangle - \psi(\theta)$."""

    @abc.abstractmethod
    def suffstats(self, z: Latents, y: Unit) -> PyTree[Array]:
        """Sufficient statistics of one unit."""

    @abc.abstractmethod
    def m_step(self, mean_stats: PyTree[Array]) -> Params:
        """The maximiser of the complete likelihood whose statistics average `mean_stats` over units."""

    def statistics(self, params, z, y):
        return self.suffstats(z, y)


class AbstractSurrogate(AbstractAveraged):
    r"""A model with a surrogate of its own, $\hat{\mathcal L}_i(\vartheta;\theta) \ge -\log p(y_i\mid\vartheta) + const$ with
    equality at $\vartheta = \theta$, given by coefficients that are expectations under $p(z_i\mid y_i,\theta)$.

    Algorithms that average sufficient statistics average the coefficients instead: with a table a unit this is MISSO
    (Karimi, Wai, Moulines and Li, algorithm 2), with Robbins-Monro averages SAEM.
    """

    @abc.abstractmethod
    def surrogate(self, params: Params, z: Latents, y: Unit) -> PyTree[Array]:
        """Coefficients of one unit's surrogate at `params` for a draw z; sums over units and draws must mean something."""

    @abc.abstractmethod
    def m_step(self, mean_surrogate: PyTree[Array]) -> Params:
        """The minimiser of the surrogate whose coefficients average `mean_surrogate` over units."""

    def statistics(self, params, z, y):
        return self.surrogate(params, z, y)


class AbstractBatchSurrogate(AbstractSurrogate):
    """A surrogate worked out for the units of a batch together, from few sums over the draws of each.

    For speed alone: whatever depends on the parameters and not on the draws is worked out once an iteration (`prepared`),
    the sums are all that is done for a draw (`moments`), and they become coefficients when the draws are over.
    """

    @abc.abstractmethod
    def prepared(self, params: Params, batch: PyTree) -> tuple[Any, PyTree]:
        """The model and the data of units ready for draws at these parameters. It must not change a prepared model."""

    @abc.abstractmethod
    def moments(self, params: Params, z: Latents, w: Array, batch: PyTree) -> PyTree[Array]:
        """Sums over draws (m, b, ...) with weights (m, b), a row a unit, that the coefficients are made of; prepared."""

    @abc.abstractmethod
    def surrogates(self, params: Params, moments: PyTree, batch: PyTree) -> PyTree[Array]:
        """Coefficients of each unit, (b, ...); prepared."""

    @abc.abstractmethod
    def total_surrogate(self, params: Params, moments: PyTree, batch: PyTree) -> PyTree[Array]:
        """Their sum over units; prepared."""

    def reader(self, params, batch, each):
        ready, known = self.prepared(params, batch)
        finish = ready.surrogates if each else ready.total_surrogate
        return ready, known, lambda z, w: ready.moments(params, z, w, known), lambda found: finish(params, found, known)

    def surrogate(self, params, z, y):
        ready, batch = self.prepared(params, jax.tree.map(lambda leaf: leaf[None], y))
        draw = jax.tree.map(lambda leaf: leaf[None, None], z)
        weight = jnp.ones((1, 1), jnp.result_type(*jax.tree.leaves(z)))
        one = ready.surrogates(params, ready.moments(params, draw, weight, batch), batch)
        return jax.tree.map(lambda leaf: leaf[0], one)


class AbstractConjugate(eqx.Module):
    """Capability: exact draws from p(z_i | y_i, theta). Inherit it beside a model class."""

    @abc.abstractmethod
    def sample_posterior(self, key: PRNGKeyArray, params: Params, y: Unit) -> Latents:
        """One exact draw of the unit's latents given its data."""


class AbstractDiscrete(eqx.Module):
    """Capability: a latent with finitely many values. Inherit it beside a model class."""

    @abc.abstractmethod
    def support(self, y: Unit) -> Latents:
        """Every value of the latent, stacked on a leading axis."""


class AbstractPointwise(eqx.Module):
    """Capability: the density of each observation given the unit's latents, for cross-validation and posterior checks."""

    @abc.abstractmethod
    def pointwise(self, params: Params, z: Latents, y: Unit) -> Array:
        r"""$\log p(y_{ij}\mid z_i,\theta)$ by observation of the unit (a scalar where it has one); NaN in padding."""


class AbstractConcave(eqx.Module):
    """Capability: a log joint density that is concave in the latents, so that a unit's posterior has one mode and no other need
    be looked for. Inherit it beside a model class."""

    @property
    @abc.abstractmethod
    def concave(self) -> bool:
        """Whether it is, at all parameters."""


class AbstractCostly(eqx.Module):
    """Capability: a density that may take long, as one of a differential equation's solution, so that quadratures try few nodes
    first and modes are searched for in fewer places. Inherit it beside a model class."""

    @property
    @abc.abstractmethod
    def costly(self) -> bool:
        """Whether it does."""

    @abc.abstractmethod
    def lengths(self, data: PyTree) -> Array:
        """About how long the density of each unit takes, (n,), in any unit: units that take alike are worked out together."""

    @abc.abstractmethod
    def for_searches(self) -> Any:
        """The same densities and gradients, with second derivatives that take less, near enough for Newton's steps and for the
        shape of proposals."""


class AbstractStructured(eqx.Module):
    """Capability: which latents of a unit depend on each other given the data. Inherit it beside a model class."""

    @abc.abstractmethod
    def structure(self, params: Params, y: Unit) -> AbstractStructure:
        """Such as `margaux.Band(1)` of states in time. One that reads second derivatives in a way of its own may use both."""


class AbstractDifferentiated(eqx.Module):
    """Capability: two derivatives of the log joint in the parameters, of all draws together and faster than by differentiation.
    Inherit it beside a model class."""

    @abc.abstractmethod
    def derivatives(self, params: Params, z: Latents, w: Array, batch: PyTree) -> tuple[Array, Array]:
        r"""$\nabla\log p(y_i, z_{ij}\mid\theta)$ of draws z (m, b, ...) as (m, b, p), p in the order of flat parameters, and
        $\sum_{ij} w_{ij}\nabla^2\log p$ (p, p), for weights w (m, b)."""


class AbstractPredictive(eqx.Module):
    """Capability: new data of a unit given its latents."""

    @abc.abstractmethod
    def simulate(self, key: PRNGKeyArray, params: Params, z: Latents, y: Unit) -> PyTree[Array]:
        r"""A draw from $p(y_i\mid z_i,\theta)$, by name and shaped as the observations; what y conditions on is kept."""


class AbstractWeighted(eqx.Module):
    """Capability: units with weights, so that of a batch which is worked out together some may count for nothing."""

    @abc.abstractmethod
    def counted(self, batch: PyTree, present: Array) -> PyTree:
        """Units (b, ...) of which only those that are present (b,) have a weight."""


class AbstractNonSmooth(AbstractModel):
    r"""$\log p(y, z\mid\theta)$ = a part smooth in z, minus a g(z) that has a proximal map instead of a gradient.

    `log_joint` stays the whole, normalising constants included: it is what the parameters are scored by.
    """

    @abc.abstractmethod
    def log_smooth(self, params: Params, z: Latents, y: Unit) -> Scalar:
        """The part with a gradient in z; constants in z may be left out."""

    @abc.abstractmethod
    def prox(self, params: Params, z: Latents, step: Scalar, y: Unit) -> Latents:
        r"""$\arg\min_x\, g(x) + |x - z|^2/(2\,\text{step})$, at the given parameters."""


class AbstractLikelihood(AbstractModel):
    r"""Latents whose prior has no parameters and is known by its score alone, which the kernel brings (`margaux.PlugAndPlayULA`).

    `log_joint` is $\log p(y\mid z,\theta)$, every constant in $\theta$ included: the prior drops out of the score and of Louis'
    information of $\theta$. The marginal likelihood itself stays unknown, with whatever needs the density of latents.
    """


class AbstractFactorised(AbstractModel):
    r"""$\log p(y, z\mid\theta) = \log p(z\mid\theta) + \sum_j \log p(y_j\mid z,\theta)$ over the rows of one unit's data.

    Every leaf of the unit's data has the rows on its leading axis. `log_joint` is the sum of the two.
    """

    @abc.abstractmethod
    def log_prior(self, params: Params, z: Latents) -> Scalar:
        """log p(z | theta)."""

    @abc.abstractmethod
    def log_likelihood(self, params: Params, z: Latents, rows: Unit) -> Scalar:
        """Sum over some rows of log p(y_j | z, theta)."""

    def log_joint(self, params, z, y):
        return self.log_prior(params, z) + self.log_likelihood(params, z, y)


class AbstractShared(AbstractModel):
    r"""Latents that all units share beside latents by unit, in one unit of data that holds all rows:
    $\log p(y, s, z\mid\theta) = \log p(s\mid\theta) + \sum_i \log p(y_i, z_i\mid s, \theta)$.

    Latents are {"shared": s, "units": z}, and every leaf of z and of the data has the units on its leading axis.
    `log_joint` is the sum. `margaux.Blocked` moves each z_i by itself, then s.
    """

    @abc.abstractmethod
    def log_shared(self, params: Params, shared: Latents, y: Unit) -> Scalar:
        r"""$\log p(s\mid\theta)$, with what the data say of s directly."""

    @abc.abstractmethod
    def log_unit(self, params: Params, shared: Latents, z: Latents, y: Unit) -> Scalar:
        r"""$\log p(y_i, z_i\mid s, \theta)$ of one unit, from its own latents and data."""

    def log_joint(self, params, z, y):
        units = jax.vmap(lambda z_i, y_i: self.log_unit(params, z["shared"], z_i, y_i))(z["units"], y)
        return self.log_shared(params, z["shared"], y) + jnp.sum(units)


class AbstractPopulation(eqx.Module):
    """Capability: a Gaussian that the latents of a unit are drawn from before its data are seen."""

    @abc.abstractmethod
    def population(self, params: Params, y: Unit) -> tuple[Array, Array]:
        """Mean (d,) and lower Cholesky factor (d, d) of p(z_i | theta), latents flattened."""


class AbstractUneven(eqx.Module):
    """Capability: units in groups of about equal size, so that small ones are not padded to the size of the largest."""

    @property
    @abc.abstractmethod
    def groups(self) -> tuple[tuple[int, int], ...]:
        """(number of units, rows of each) of successive groups; none where units have one size."""

    @abc.abstractmethod
    def trimmed(self, units: PyTree, rows: int) -> PyTree:
        """Data of some units without what lies beyond so many rows, which is padding."""


def costly(model: Any) -> bool:
    """Whether a model's densities take long: see `AbstractCostly`."""
    return isinstance(model, AbstractCostly) and bool(model.costly)


def for_searches(model: Any) -> Any:
    """What modes are searched for by: see `AbstractCostly`. Any other model as it is."""
    return model.for_searches() if isinstance(model, AbstractCostly) else model


def mapped(function: Callable[..., Any], size: int, in_axes: Any = 0) -> Callable[..., Any]:
    """`jax.vmap` over an axis of a known size, without a batch dimension when that size is one.

    A batch dimension of one turns matrix products into batched ones, several times slower on CPU.
    """
    if size != 1:
        return jax.vmap(function, in_axes=in_axes)

    def single(*args: Any) -> Any:
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        first = [a if axis is None else jax.tree.map(lambda leaf: leaf[0], a) for a, axis in zip(args, axes, strict=True)]
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*first))

    return single


def over_units(model: AbstractModel, function: Callable[..., Any], batch: PyTree) -> Callable[..., Any]:
    """`function(*parts, y)` mapped over units: group by group where the batch is all that an uneven model has groups for."""
    if not isinstance(model, AbstractUneven) or sum(count for count, _ in model.groups) != leading(batch):
        return lambda *parts: mapped(function, leading(batch))(*parts, batch)

    def grouped(*parts: Any) -> Any:
        out, first = [], 0
        for count, rows in model.groups:
            *some, units = jax.tree.map(lambda leaf, a=first, b=first + count: leaf[a:b], (*parts, batch))
            out.append(mapped(function, count)(*some, model.trimmed(units, rows)))
            first += count
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *out)

    return grouped


def two_derivatives(
    model: AbstractModel, back: Callable[[Array], Params], u: Array, z: Latents, w: Array, batch: PyTree
) -> tuple[Array, Array]:
    """As of `AbstractDifferentiated`, in coordinates u of the parameters, of any model."""
    if not isinstance(model, AbstractDifferentiated):
        return differentiated(model, back, u, z, w, batch)

    def flat(u: Array) -> Array:
        return ravel_pytree(back(u))[0]

    each, hessian = model.derivatives(back(u), z, w, batch)
    jacobian, total = jax.jacfwd(flat)(u), jnp.einsum("mb,mbp->p", w, each)
    bent = jax.hessian(lambda u: flat(u) @ total)(u)
    return each @ jacobian, jacobian.T @ hessian @ jacobian + bent


def differentiated(
    model: AbstractModel, back: Callable[[Array], Params], u: Array, z: Latents, w: Array, batch: PyTree
) -> tuple[Array, Array]:
    """As `two_derivatives`, by differentiating the log joint of every draw."""

    # Traced once, by the name of a program of its own: its second use finds the first.
    @functools.partial(jax.jit, inline=True)
    def value(u: Array) -> Array:
        return log_joints(model, back(u), z, batch)

    return jax.jacfwd(value)(u), jax.hessian(lambda u: jnp.sum(w * value(u)))(u)


def leading(tree: PyTree) -> int:
    """The common leading axis of a pytree of arrays."""
    return jax.tree.leaves(tree)[0].shape[0]


def log_joints(model: AbstractModel, params: Params, z: Latents, batch: PyTree) -> Array:
    """Log joint of every draw and unit: latents (m, b, ...), batch (b, ...) -> (m, b)."""
    units = mapped(lambda z_i, y_i: model.log_joint(params, z_i, y_i), leading(batch))
    return mapped(lambda z_j: units(z_j, batch), leading(z))(z)
