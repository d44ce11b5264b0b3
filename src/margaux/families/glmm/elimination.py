r"""The exact likelihood of crossed factors: the effects of the largest are integrated by adaptive quadrature given the others,
and these by draws from Laplace's approximation to what they are given the data.

$p(y) = \int p(v)\prod_gI_g(v)\,dv$ with $I_g(v)=\int p(y_g\mid u_g, v)p(u_g)\,du_g$, g over the groups of the eliminated factor.
Weights of v, which all the rows of its levels tell, are even where those of all effects together would not be.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ...answers.likelihood import LogLikelihood
from ...numerics.compiling import compiled
from ...numerics.precision import default_dtype, precision, settle
from ...numerics.sampling import effective_size
from .model import ByPredictor

if TYPE_CHECKING:
    from ...answers.fit import Fit

#: effects a group that are integrated, and others that are drawn, at most
INTEGRATED, DRAWN = 2, 300
#: nodes a dimension, and Newton's steps to where they are put
NODES, STEPS = 9, 3
#: pairs of draws, and how often as many more are made until the error is small
PAIRS, AGAIN = 256, 24
#: error of the log-likelihood that is small, and the share of draws that must be effective
SMALL, EVEN = 0.02, 0.05
#: numbers that the rows of the draws made together may hold
NUMBERS = 4_000_000


class Drawn(NamedTuple):
    """Attributes: logs: of the weights (m,). ess: their effective size. gradient: of the log of their mean (p,)."""

    logs: np.ndarray
    ess: float
    gradient: np.ndarray


def can_eliminate(model: Any) -> bool:
    """Whether one unit's effects can be integrated so."""
    rest = sum(factor.size for factor in model.factors) - model.largest.size
    return len(model.factors) > 1 and model.largest.k <= INTEGRATED and rest <= DRAWN


def weighed(fit: Fit, params: Any, mode: Float[np.ndarray, " d"], pairs: int, seed: int) -> Drawn:
    """Draws at some parameters, placed by a mode there."""
    model: Any = fit._model().model
    dtype = default_dtype(None)
    code = np.asarray(fit.data["code"][model.largest.name][0])
    half = np.random.default_rng(seed).normal(size=(pairs, mode.size - model.largest.size))
    with precision(dtype):
        at = settle(jax.tree.map(np.asarray, params), dtype)
        own, unit = settle((model, jax.tree.map(lambda leaf: np.asarray(leaf[0]), fit.data)), dtype)
        u = jnp.asarray(np.concatenate([half, -half]), dtype)
        logs, gradient = _weighed(own, at, unit, jnp.asarray(mode, dtype), u, jnp.asarray(_members(code, model.largest.groups)))
        logs, gradient = np.asarray(logs, float), np.asarray(gradient, float)
    share = np.exp(logs - logs.max())
    return Drawn(logs, float(effective_size(share / share.sum())), gradient)


def correction(fit: Fit, mode: np.ndarray, covariance: np.ndarray) -> tuple[float, float, float]:
    """Newton's step from Laplace's estimate to the maximum of the exact likelihood: its length in standard errors, the Monte
    Carlo error of that, and the effective share of the draws."""
    found = [weighed(fit, fit.params, mode, PAIRS // 2, seed) for seed in (11, 12)]
    one, other = (draws.gradient for draws in found)
    mean, apart = (one + other) / 2, (one - other) / 2
    length, error = (float(np.sqrt(max(step @ covariance @ step, 0.0))) for step in (mean, apart))
    return length, error, min(draws.ess for draws in found) / PAIRS


def likelihood(fit: Fit, params: Any, mode: np.ndarray, seed: int = 1, tol: float = SMALL) -> LogLikelihood:
    """Its logarithm with its error, by more draws until that is small."""
    logs, error, ess = np.zeros(0), np.inf, 0.0
    for turn in range(AGAIN):
        found = weighed(fit, params, mode, PAIRS, seed + 1000 * turn)
        logs = np.concatenate([logs, found.logs])
        ratio = np.exp(logs - logs.max()).reshape(-1, 2, PAIRS).mean(axis=1).ravel()  # a draw and its mirror image are one
        error, ess = float(ratio.std(ddof=1) / np.sqrt(len(ratio)) / ratio.mean()), found.ess
        if error <= tol:
            break
    value = float(np.log(np.mean(np.exp(logs - logs.max()))) + logs.max())
    message = "" if ess >= EVEN * 2 * PAIRS else f"the weights have an effective size of {ess:.1f} of {2 * PAIRS} draws"
    return LogLikelihood(np.array([value]), error, "quadrature within weighted draws", message)


def _members(code: np.ndarray, groups: int) -> np.ndarray:
    """Rows of each group (groups, most), the number of rows in padding."""
    sizes = np.bincount(code, minlength=groups)
    order = np.argsort(code, kind="stable")
    out = np.full((groups, max(sizes.max(), 1)), len(code))
    out[code[order], np.arange(len(code)) - np.repeat(np.cumsum(sizes) - sizes, sizes)] = order
    return out


@compiled
def _weighed(model, params, unit, mode, u, members):
    flat, back = ravel_pytree(params)
    structure = ByPredictor(model, params, unit)
    factor = structure.factor(structure.curvature(None, mode), 0.0)
    own, rest = structure._apart(mode)
    root_diagonal = jnp.diagonal(factor.root)

    def one(flat: Array, draw: Array) -> Array:
        v = rest + jax.scipy.linalg.solve_triangular(factor.root, draw, lower=True, trans="T")
        centre = own - factor.weighted @ (v - rest)
        log_q = -jnp.sum(draw**2) / 2 + jnp.sum(jnp.log(root_diagonal))
        inner = _integrals(model, back(flat), unit, structure, v, centre, members)
        return jnp.sum(inner) - jnp.sum(v**2) / 2 - log_q + model.log_prior(back(flat))

    batch = max(1, NUMBERS // members.size)

    def both(draw: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(one)(flat, draw)

    logs, gradients = jax.lax.map(both, u, batch_size=min(batch, len(u)))
    return logs, jax.nn.softmax(logs) @ gradients


def _integrals(model, params, unit, structure, v, centre, members) -> Float[Array, " groups"]:
    """Logarithms of the groups' integrals, by nodes around each one's mode."""
    latents = model.by_factor(structure._together(jnp.zeros((structure.k, structure.groups), v.dtype), v))
    fixed = model.predictor(params, latents, unit)
    loading = unit["Z"][structure.largest.name] @ structure.largest.root(params)
    there = members < len(fixed)
    at_row = jnp.where(there, members, 0)  # padding repeats a row, with no weight
    eta, a = fixed[at_row], loading[at_row]
    rows = {name: unit[name][at_row] for name in ("y", "base", "weight", "trials") if name in unit}
    rows["weight"] = jnp.where(there, rows["weight"], 0.0)

    def log_rows(at: Array) -> Array:
        return model.log_rows(params, at, rows)

    def slope(at: Array) -> Array:
        return jax.jvp(log_rows, (at,), (jnp.ones_like(at),))[1]

    def predictor(own: Array) -> Array:
        return eta + jnp.einsum("gmk,kg->gm", a, own)

    def turn(own: Array) -> tuple[Array, Array]:
        first, second = jax.jvp(slope, (predictor(own),), (jnp.ones_like(eta),))
        gradient = jnp.einsum("gm,gmk->gk", first, a) - own.T
        matrix = jnp.eye(structure.k) - jnp.einsum("gm,gmk,gml->gkl", second, a, a)
        return gradient, matrix

    mode = jax.lax.stop_gradient(centre)
    for _ in range(STEPS):
        gradient, matrix = jax.lax.stop_gradient(turn(mode))
        mode = mode + jnp.linalg.solve(matrix, gradient[:, :, None])[:, :, 0].T
    roots = jnp.linalg.cholesky(jnp.linalg.inv(jax.lax.stop_gradient(turn(mode)[1])))
    x, w = np.polynomial.hermite_e.hermegauss(NODES)
    nodes = np.array(list(itertools.product(x, repeat=structure.k)))
    log_w = np.array([sum(c) for c in itertools.product(np.log(w / np.sqrt(2 * np.pi)), repeat=structure.k)])

    def at(node: Array, log_weight: Array) -> Array:
        own = mode + jnp.einsum("gkl,l->kg", roots, node)
        return jnp.sum(log_rows(predictor(own)), axis=1) - jnp.sum(own**2, axis=0) / 2 + jnp.sum(node**2) / 2 + log_weight

    values = jax.vmap(at)(jnp.asarray(nodes), jnp.asarray(log_w))
    return jax.nn.logsumexp(values, axis=0) + jnp.sum(jnp.log(jnp.diagonal(roots, axis1=1, axis2=2)), axis=1)
