"""SAEM for models whose M-step is closed for some parameters and numerical for the others."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from ..problem.model import AbstractModel, Latents, Params, Unit, for_searches, leading, log_joints, mapped, over_units
from ..problem.schedule import AbstractSchedule
from .average import AbstractAverage
from .base import AbstractRowless, summed
from .memory import RobbinsMonro
from .scaled import newton_step

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Array


#: least eigenvalue of correlations while variances are annealed
LOOSE = 0.1


class AbstractCurvedFamily(AbstractModel):
    r"""Parameters in two groups: one maximises a closed M-step, the other has none.

    Parameters are a dict. Statistics may depend on the parameters of the second group.
    """

    @property
    @abc.abstractmethod
    def numerical(self) -> tuple[str, ...]:
        """Names of the parameters without a closed M-step."""

    @property
    @abc.abstractmethod
    def variances(self) -> tuple[str, ...]:
        """Names of the variances (vectors) and covariance matrices, for simulated annealing."""

    @abc.abstractmethod
    def suffstats(self, params: Params, z: Latents, y: Unit) -> PyTree:
        """Sufficient statistics of one unit."""

    @abc.abstractmethod
    def m_step(self, mean_stats: PyTree, params: Params) -> Params:
        """The maximiser over the first group, the second as it is."""


class SAEM(AbstractRowless):
    r"""MCMC-SAEM: $S_k = S_{k-1} + \gamma_k(S(z_k) - S_{k-1})$, then an M-step (Kuhn and Lavielle 2005).

    Parameters without a closed M-step take a Newton step on the complete likelihood of the current draws,
    $u_k = u_{k-1} + \gamma_k J_k^{-1}\nabla_u\log p(y, z_k\mid\theta)$, in unconstrained coordinates, with $J_k$ the
    Robbins-Monro mean of the complete information. Its rest point is the maximum of the marginal likelihood; the
    mean of maximisers over draws, which is the usual numerical M-step, has a rest point beside it.

    Simulated annealing: in the first `anneal_until` iterations no variance falls below `anneal` times its last value,
    and correlations keep off one and minus one.

    Args:
        gain: $\gamma_k$, as `margaux.ConstantThenDecay(1.0, K1, power)`.
    """

    gain: AbstractSchedule
    anneal: Array | np.ndarray
    anneal_until: Array | np.ndarray
    average: AbstractAverage

    def requires(self, problem):
        if isinstance(problem.model, AbstractCurvedFamily):
            return None
        return f"{type(problem.model).__name__} does not inherit from AbstractCurvedFamily; use margaux.saem"

    def init(self, problem, params, per_unit):
        model: Any = problem.model
        coordinates = problem.space.to_unconstrained(params)
        flat, _ = ravel_pytree({name: coordinates[name] for name in model.numerical})
        information = jnp.zeros((flat.size, flat.size), flat.dtype)
        return {"memory": RobbinsMonro(self.gain).init(per_unit), "information": information}

    def statistics(self, problem, params, z, w, batch):
        model: Any = problem.model
        units = over_units(model, lambda z_i, y_i: model.suffstats(params, z_i, y_i), batch)
        stats = mapped(units, leading(z))(z)
        return jax.tree.map(lambda s: jnp.einsum("mb,mb...->b...", w, s), stats)

    def step(self, problem, estep, params, state, visit):
        estep_rows, own_rows = visit.rows
        batch, k = visit.batch, visit.k
        model: Any = problem.model
        b, estep = visit.size(problem), visit.counting(estep)
        coordinates = problem.space.to_unconstrained(params)
        open_ = {name: coordinates[name] for name in model.numerical}
        u, unravel = ravel_pytree(open_)

        def at(u):
            moved = problem.space.from_unconstrained(coordinates | unravel(u))
            return params | {name: moved[name] for name in model.numerical}

        def f(z, w):
            stats = jax.tree.map(lambda s: jnp.sum(s, axis=0), self.statistics(problem, params, z, w, batch))
            if not u.size:
                return stats, jnp.zeros_like(u), jnp.zeros((0, 0), u.dtype)

            def complete(u):
                return jnp.sum(w * log_joints(for_searches(model), at(u), z, batch))

            def slope(u):
                value = jax.grad(complete)(u)
                return value, value

            hessian, score = jax.jacfwd(slope, has_aux=True)(u)
            return stats, score, -hessian

        value, estep_rows, info = estep.expect(f, visit.noise, model, params, estep_rows, batch, k)
        (stats, score, curvature), info = summed(value, info, visit.axis)
        gain = jnp.where(k == 1, 1.0, self.gain(k)).astype(jax.tree.leaves(params)[0].dtype)
        mean, memory = RobbinsMonro(self.gain).combine(state["memory"], stats, problem.n, b, k)
        new = model.m_step(mean, params)
        information = state["information"]
        if u.size:
            information = information + gain * (curvature / b - information)
            limit = 1 + jnp.abs(u)
            moved = at(u + gain * jnp.clip(newton_step(information, score / b)[0], -limit, limit))
            new = new | {name: moved[name] for name in model.numerical}
        slow = jnp.where(k <= self.anneal_until, self.anneal, 0.0)
        for name in model.variances:
            new[name] = jax.tree.map(lambda q, p: _no_faster(q, p, slow.astype(q.dtype)), new[name], params[name])
        new = jax.tree.map(lambda q, p: q.astype(p.dtype), new, params)
        state = {"memory": memory, "information": information}
        return problem.space.project(new), state, (estep_rows, own_rows), {n: figure / b for n, figure in info.items()}


def _no_faster(new: Any, old: Any, share: Any) -> Any:
    """Variances no smaller than a share of the old ones.

    A matrix is stretched, and while there is annealing its correlations keep eigenvalues of `LOOSE`: EM cannot turn the
    axes of a matrix that is nearly singular.
    """
    if new.ndim < 2:
        return jnp.maximum(new, share * old)
    variances = jnp.diagonal(new)
    kept = jnp.maximum(variances, share * jnp.diagonal(old))
    values, vectors = jnp.linalg.eigh(new / jnp.sqrt(jnp.outer(variances, variances)))
    loose = (vectors * jnp.maximum(values, jnp.where(share > 0, LOOSE, 0.0))) @ vectors.T
    return loose * jnp.sqrt(jnp.outer(kept, kept))
