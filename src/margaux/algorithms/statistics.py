"""What is averaged over the posterior draws: the first of an algorithm's three choices."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..esteps import AbstractEStep
from ..problem.model import AbstractAveraged, Latents, Params, leading, log_joints, mapped

if TYPE_CHECKING:
    import numpy as np


class AbstractStatistic(eqx.Module):
    """A quantity linear in the posterior of each unit, given weighted draws.

    Latents have leaves of shape (m draws, b units, ...); the weights (m, b) sum to one over draws.
    """

    @abc.abstractmethod
    def total(self, model: Any, params: Params, z: Latents, w: Float[Array, "m b"], batch: PyTree) -> PyTree:
        """Sum over the units of the batch."""

    @abc.abstractmethod
    def per_unit(self, model: Any, params: Params, z: Latents, w: Float[Array, "m b"], batch: PyTree) -> PyTree:
        """One value a unit, on the leading axis."""

    def averaged(
        self,
        model: Any,
        estep: AbstractEStep,
        params: Params,
        rows: PyTree,
        batch: PyTree,
        noise: PyTree,
        k: Array,
        each: bool,
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """By an E-step: one value a unit (`each`) or the sum over the batch; the E-step's rows; its figures."""
        read = self.per_unit if each else self.total
        return estep.expect(lambda z, w: read(model, params, z, w, batch), noise, model, params, rows, batch, k)

    @abc.abstractmethod
    def requires(self, model: Any) -> str | None:
        """Why this model cannot give the statistic, or None."""


class AbstractFromScore(AbstractStatistic):
    """A statistic made from the score, along with which the mean log joint is had for nothing."""

    @abc.abstractmethod
    def valued(self, model: Any, params: Params, z: Latents, w: Array, batch: PyTree, each: bool) -> tuple[PyTree, Array]:
        """The statistic, one a unit (`each`) or summed, and the weighted log joint summed over units and draws."""

    @abc.abstractmethod
    def at_rest(self, params: Params) -> PyTree:
        """That of a unit whose score is zero."""

    def total(self, model, params, z, w, batch):
        return self.valued(model, params, z, w, batch, each=False)[0]

    def per_unit(self, model, params, z, w, batch):
        return self.valued(model, params, z, w, batch, each=True)[0]

    def averaged(self, model, estep, params, rows, batch, noise, k, each):
        if not estep.averages_objective:
            return super().averaged(model, estep, params, rows, batch, noise, k, each)

        def read(z, w):
            return self.valued(model, params, z, w, batch, each)

        (value, log_joint), rows, info = estep.expect(read, noise, model, params, rows, batch, k)
        return value, rows, info | {"log_joint": log_joint}

    def requires(self, model):
        return None


class Score(AbstractFromScore):
    r"""$\nabla_\theta \log p(y_i \mid \theta) = E[\nabla_\theta \log p(y_i, z_i \mid \theta) \mid y_i]$ (Fisher's identity).

    `total` is one reverse pass over the weighted log joint: units x parameters is never stored.
    """

    def valued(self, model, params, z, w, batch, each):
        if not each:
            value, score = jax.value_and_grad(lambda p: jnp.sum(w * log_joints(model, p, z, batch)))(params)
            return score, value

        def unit(z_i, w_i, y_i):
            def draws(p):
                return mapped(lambda z_ij: model.log_joint(p, z_ij, y_i), leading(z_i))(z_i)

            return jax.value_and_grad(lambda p: jnp.sum(w_i * draws(p)))(params)

        by_unit = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), z)
        values, scores = mapped(unit, w.shape[1])(by_unit, w.T, batch)
        return scores, jnp.sum(values)

    def at_rest(self, params):
        return jax.tree.map(jnp.zeros_like, params)


class SufficientStatistics(AbstractStatistic):
    """The conditional mean of S(z_i, y_i) of a curved exponential family, or of a model's own surrogate's coefficients."""

    def total(self, model, params, z, w, batch):
        _, _, read, finish = model.reader(params, batch, each=False)
        return finish(read(z, w))

    def per_unit(self, model, params, z, w, batch):
        _, _, read, finish = model.reader(params, batch, each=True)
        return finish(read(z, w))

    def averaged(self, model, estep, params, rows, batch, noise, k, each):
        ready, known, read, finish = model.reader(params, batch, each)
        found, rows, info = estep.expect(read, noise, ready, params, rows, known, k)
        return finish(found), rows, info

    def requires(self, model):
        if isinstance(model, AbstractAveraged):
            return None
        return (
            f"{type(model).__name__} has no suffstats and m_step, which this algorithm averages and maximises; "
            "inherit from margaux.AbstractExponentialFamily or AbstractSurrogate, or use a gradient algorithm such as "
            "margaux.soul"
        )


class SurrogateMinimiser(AbstractFromScore):
    r"""The minimiser $v_i = \theta + L^{-1} \nabla_\theta \log p(y_i\mid\theta)$ of a unit's quadratic surrogate.

    With $\hat{\mathcal L}_i(\vartheta;\theta) = -\log p(y_i|\theta) - \langle s_i, \vartheta-\theta\rangle
    + \tfrac L2 |\vartheta-\theta|^2$ (MISSO, eqs. 4 and 6) the sum of surrogates is minimised by the mean of v_i.
    """

    lipschitz: Array | np.ndarray

    def valued(self, model, params, z, w, batch, each):
        scores, value = Score().valued(model, params, z, w, batch, each)
        share = jnp.sum(w, axis=0) if each else jnp.sum(w)

        def anchor(p, s):
            here = share.reshape(share.shape + (1,) * p.ndim).astype(p.dtype) * p
            return here + s / self.lipschitz.astype(p.dtype)

        return jax.tree.map(anchor, params, scores), value

    def at_rest(self, params):
        return params
