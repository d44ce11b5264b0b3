r"""The effects of one factor integrated, group by group, given all others: $I_g(v)=\int p(y_g\mid u_g, v)\,p(u_g)\,du_g$.

By Gauss and Hermite's nodes, centred at each group's mode and scaled by its curvature (Pinheiro and Bates 1995, section 2.3).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

if TYPE_CHECKING:
    from .model import Mixed

#: a mode is found where Newton's step is shorter, in standard deviations that effects have before data; steps at most; and how
#: long they may be
FOUND, STEPS, LONGEST = 1e-3, 60, 2.0


class Inner(NamedTuple):
    """The groups' integrals.

    Attributes:
        logs: of each (groups,). own: effects at the nodes (m, k, groups). share: of the posterior that each has (m, groups).
        eta: predictors there (m, groups, most). rows: data of each group's rows (groups, most, ...), of no weight in padding.
    """

    logs: Float[Array, " groups"]
    own: Float[Array, "m k groups"]
    share: Float[Array, "m groups"]
    eta: Float[Array, "m groups most"]
    rows: dict[str, Array]

    @property
    def mean(self) -> Float[Array, "k groups"]:
        return jnp.einsum("mg,mkg->kg", self.share, self.own)

    @property
    def second(self) -> Float[Array, "k k groups"]:
        return jnp.einsum("mg,mkg,mlg->klg", self.share, self.own, self.own)


def members(code: Int[np.ndarray, " rows"], there: np.ndarray, groups: int) -> Int[np.ndarray, "groups most"]:
    """Rows of each group, of those that are there; the number of all rows in padding."""
    rows = np.flatnonzero(there)
    own = code[rows]
    sizes = np.bincount(own, minlength=groups)
    order = np.argsort(own, kind="stable")
    out = np.full((groups, max(sizes.max(), 1)), len(code))
    out[own[order], np.arange(len(own)) - np.repeat(np.cumsum(sizes) - sizes, sizes)] = rows[order]
    return out


def integrated(
    model: Mixed, params, unit, others: dict[str, Array], start: Float[Array, "k groups"], members: Array, n_nodes: int
) -> Inner:
    """The largest factor's effects integrated, given the `others` by factor; modes are searched from `start`.

    Derivatives in the parameters and in the others are those of the sums with their nodes held.
    """
    largest = model.largest
    latents = {**others, largest.name: jnp.zeros((largest.groups, largest.k), start.dtype)}
    fixed = model.predictor(params, latents, unit)
    loading = unit["Z"][largest.name] @ largest.root(params)
    there = members < len(fixed)
    at_row = jnp.where(there, members, 0)  # padding repeats a row, with no weight
    eta, a = fixed[at_row], loading[at_row]
    rows = {name: unit[name][at_row] for name in ("y", "base", "weight", "trials") if name in unit}
    rows["weight"] = jnp.where(there, rows["weight"], 0.0)

    def predictor(own: Array) -> Array:
        return eta + jnp.einsum("gmk,kg->gm", a, own)

    mode, roots = _modes(*jax.lax.stop_gradient((params, rows, eta, a, start)), model=model)
    x, w = np.polynomial.hermite_e.hermegauss(n_nodes)
    nodes = jnp.asarray(list(itertools.product(x, repeat=largest.k)), start.dtype)
    log_w = jnp.asarray([sum(c) for c in itertools.product(np.log(w / np.sqrt(2 * np.pi)), repeat=largest.k)], start.dtype)

    def at(node: Array, log_weight: Array) -> tuple[Array, Array, Array]:
        own = mode + jnp.einsum("gkl,l->kg", roots, node)
        prior = jnp.sum(node**2) / 2 - jnp.sum(own**2, axis=0) / 2
        there = predictor(own)
        return model.log_likelihood(params, there, rows) + prior + log_weight, own, there

    values, own, etas = jax.vmap(at)(nodes, log_w)
    logs = jax.nn.logsumexp(values, axis=0) + jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1)
    return Inner(logs, own, jax.nn.softmax(values, axis=0), etas, rows)


def _modes(params, rows, eta, a, start, *, model: Mixed) -> tuple[Float[Array, "k groups"], Float[Array, "groups k k"]]:
    """Modes, and roots of the inverse curvature there. Curvature that is none is left out, so that every step leads up."""
    eye = jnp.eye(start.shape[0], dtype=start.dtype)

    def log_rows(at: Array) -> Array:
        return model.log_rows(params, at, rows)

    def slope(at: Array) -> Array:
        return jax.jvp(log_rows, (at,), (jnp.ones_like(at),))[1]

    def local(own: Array) -> tuple[Array, Array]:
        at = eta + jnp.einsum("gmk,kg->gm", a, own)
        first, second = jax.jvp(slope, (at,), (jnp.ones_like(at),))
        gradient = jnp.einsum("gm,gmk->gk", first, a) - own.T
        return gradient, eye + jnp.einsum("gm,gmk,gml->gkl", jnp.maximum(-second, 0.0), a, a)

    def go_on(state):
        count, own, _ = state
        gradient, matrix = local(own)
        step = jnp.linalg.solve(matrix, gradient[:, :, None])[:, :, 0].T
        step = jnp.where(jnp.isfinite(step), step, 0.0)
        step = step * jnp.minimum(1.0, LONGEST / jnp.maximum(jnp.sqrt(jnp.sum(step**2, axis=0)), 1e-30))
        return count + 1, own + step, jnp.abs(step).max()

    def unfinished(state):
        count, _, size = state
        return (count < STEPS) & (size > FOUND)

    _, mode, _ = jax.lax.while_loop(unfinished, go_on, (0, start, jnp.full((), jnp.inf, start.dtype)))
    return mode, jnp.linalg.cholesky(jnp.linalg.inv(local(mode)[1]))
