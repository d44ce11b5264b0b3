"""What is solved: the model of ONE unit, and the capabilities a model may add to it."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

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


class AbstractExponentialFamily(AbstractModel):
    r"""A curved exponential family: $\log p(y_i, z_i\mid\theta) = \langle S(z_i, y_i), \phi(\theta)\rangle - \psi(\theta)$."""

    @abc.abstractmethod
    def suffstats(self, z: Latents, y: Unit) -> PyTree[Array]:
        """Sufficient statistics of one unit."""

    @abc.abstractmethod
    def m_step(self, mean_stats: PyTree[Array]) -> Params:
        """The maximiser of the complete likelihood whose statistics average `mean_stats` over units."""


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


def one_unit(data: PyTree) -> PyTree:
    """The whole data set as one unit, for a latent that all of it shares (leading axis 1).

    >>> import numpy as np, margaux as mx
    >>> mx.one_unit({"x": np.zeros((5, 2))})["x"].shape
    (1, 5, 2)
    """
    return jax.tree.map(lambda leaf: leaf[None], data)


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


def leading(tree: PyTree) -> int:
    """The common leading axis of a pytree of arrays."""
    return jax.tree.leaves(tree)[0].shape[0]


def log_joints(model: AbstractModel, params: Params, z: Latents, batch: PyTree) -> Array:
    """Log joint of every draw and unit: latents (m, b, ...), batch (b, ...) -> (m, b)."""
    units = mapped(lambda z_i, y_i: model.log_joint(params, z_i, y_i), leading(batch))
    return mapped(lambda z_j: units(z_j, batch), leading(z))(z)
