r"""The exact likelihood of crossed factors: the effects of the largest are integrated by adaptive quadrature given the others,
and these by draws from Laplace's approximation to what they are given the data.

$p(y) = \int p(v)\prod_gI_g(v)\,dv$ with $I_g(v)=\int p(y_g\mid u_g, v)p(u_g)\,du_g$, g over the groups of the eliminated factor.
Weights of v, which all the rows of its levels tell, are even where those of all effects together would not be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ...answers.likelihood import LogLikelihood
from ...numerics.compiling import compiled
from ...numerics.gaussian import normals
from ...numerics.keys import key_of
from ...numerics.precision import default_dtype, precision, settle
from ...numerics.sampling import effective_size
from .curvature import ByPredictor
from .inner import integrated, members

if TYPE_CHECKING:
    from ...answers.fit import Fit

#: effects a group that are integrated, and others that are drawn, at most
INTEGRATED, DRAWN = 2, 300
#: nodes a dimension; chord steps to where draws are centred
NODES, CHORDS = 9, 4
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
    with precision(dtype):
        at = settle(jax.tree.map(np.asarray, params), dtype)
        own, unit = settle((model, jax.tree.map(lambda leaf: np.asarray(leaf[0]), fit.data)), dtype)
        of_groups = jnp.asarray(members(code, np.ones(len(code), bool), model.largest.groups))
        logs, gradient = _weighed(own, at, unit, jnp.asarray(mode, dtype), key_of(seed), of_groups, pairs)
        logs, gradient = np.asarray(logs, float), np.asarray(gradient, float)
    share = np.exp(logs - logs.max())
    return Drawn(logs, float(effective_size(share / share.sum())), gradient)


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


@compiled
def _weighed(model, params, unit, mode, key, members, pairs):
    flat, back = ravel_pytree(params)
    structure = ByPredictor(model, params, unit)
    factor = structure.factor(structure.curvature(None, mode), 0.0)
    own, rest = structure._apart(mode)
    half = normals(key, pairs, rest.size, mode.dtype, quasi=True)
    u = jnp.concatenate([half, -half])
    root_diagonal = jnp.diagonal(factor.root)

    def log_marginal(flat: Array, v: Array) -> Array:
        centre = own - factor.weighted @ (v - rest)
        others = model.by_factor(structure._together(jnp.zeros_like(centre), v))
        inner = integrated(model, back(flat), unit, others, centre, members, NODES)
        return jnp.sum(inner.logs) - jnp.sum(v**2) / 2 + model.log_prior(back(flat))

    # Where the others' effects are most likely once the largest factor's are integrated, and not at their own modes.
    slope = jax.grad(lambda v: log_marginal(flat, v))
    top = jax.lax.fori_loop(0, CHORDS, lambda _, v: v + jax.scipy.linalg.cho_solve((factor.root, True), slope(v)), rest)

    def one(flat: Array, draw: Array) -> Array:
        v = top + jax.scipy.linalg.solve_triangular(factor.root, draw, lower=True, trans="T")
        log_q = -jnp.sum(draw**2) / 2 + jnp.sum(jnp.log(root_diagonal))
        return log_marginal(flat, v) - log_q

    batch = max(1, NUMBERS // members.size)

    def both(draw: Array) -> tuple[Array, Array]:
        return jax.value_and_grad(one)(flat, draw)

    logs, gradients = jax.lax.map(both, u, batch_size=min(batch, len(u)))
    return logs, jax.nn.softmax(logs) @ gradients
