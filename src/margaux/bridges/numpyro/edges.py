"""Parameters whose likelihood is as high on the edge of their space as at the estimate, such as a variance of zero.

Ascent comes near such an edge ever more slowly, so it is looked at when the fit is over.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree
from scipy import optimize

from ...answers.fit import Fit
from ...answers.posterior import latent_size
from ...engine.outcome import RESULTS
from ...numerics.precision import precision
from ...problem.penalty import NoPenalty
from ...problem.space import Box, Positive, Product

if TYPE_CHECKING:
    from ...problem.space import AbstractSpace


#: log-likelihood that tells no difference, its Monte Carlo error that allows to say so, and draws for it
NEGLIGIBLE, TRUSTED, DRAWS = 0.01, 0.1, 500
#: share of the way to the edge that is left where the likelihood is looked at, and distance at which a parameter is put
NEAR, HAIR = 1e-3, 1e-7
#: latents a unit up to which importance sampling is relied on
MOST = 20
#: other parameters up to which they are fitted again
FEW = 20


def at_edges(fit: Fit) -> Fit:
    """The fit with single numbers put on an edge where the likelihood is no lower there, and the rest fitted again."""
    problem = fit.problem
    if fit.result.failed or problem is None or not isinstance(problem.penalty, NoPenalty) or latent_size(fit) > MOST:
        return fit
    ends = _ends(problem.space, fit.params)
    if not ends:
        return fit
    best, held = fit.loglik(n_draws=DRAWS), {}
    if best.se > TRUSTED:
        return fit
    for name, edge in ends:
        there = fit.loglik(params=fit.params | {name: edge + NEAR * (fit.params[name] - edge)}, n_draws=DRAWS)
        if float(there) >= float(best) - NEGLIGIBLE and there.se < TRUSTED:
            held[name] = edge + NEAR * (fit.params[name] - edge)
    if not held:
        return fit
    others = {name: value for name, value in fit.params.items() if name not in held}
    params = _again(fit, others, held) | {name: _hair_inside(name, ends, fit.params[name]) for name in held}
    # Chains of a density that has all but collapsed move no more: later draws come by importance sampling.
    return dataclasses.replace(fit.at(params), result=RESULTS.boundary, rows=None)


def _ends(space: AbstractSpace, params: PyTree) -> list[tuple[str, float]]:
    """(name, end) of single numbers with an end to their space."""
    out = []
    if not isinstance(space, Product) or not isinstance(space.spaces, dict):
        return out
    for name, one in space.spaces.items():
        if np.ndim(params[name]) == 0 and not isinstance(params[name], dict | list | tuple):
            if isinstance(one, Positive):
                out.append((name, 0.0))
            if isinstance(one, Box):
                out += [(name, float(end)) for end in (one.low, one.high) if np.ndim(end) == 0 and np.isfinite(end)]
    return out


def _hair_inside(name: str, ends: list[tuple[str, float]], value: Any) -> np.ndarray:
    """Close enough to count as the edge, and where densities are still finite."""
    edge = min((end for other, end in ends if other == name), key=lambda end: abs(end - float(value)))
    return np.asarray(edge + HAIR * np.sign(float(value) - edge))


def _again(fit: Fit, others: PyTree, held: dict[str, Any]) -> PyTree:
    """The other parameters, given those held near their edge: the same draws for all values make a smooth likelihood.

    Not by the complete likelihood, which near an edge says next to nothing of the incomplete one.
    """
    problem: Any = fit.problem
    space = Product({name: one for name, one in problem.space.spaces.items() if name in others})
    with precision(fit.dtype):
        free, unravel = ravel_pytree(space.to_unconstrained(jax.tree.map(jnp.asarray, others)))
        start = np.asarray(free)

    def back(u: np.ndarray) -> PyTree:
        with precision(fit.dtype):
            return jax.tree.map(np.asarray, space.from_unconstrained(unravel(jnp.asarray(u, free.dtype))))

    def value(u: np.ndarray) -> float:
        return -float(fit.loglik(params=back(u) | held, n_draws=DRAWS))

    if not 0 < start.size <= FEW or not np.all(np.isfinite(start)):
        return others
    return back(optimize.minimize(value, start, method="L-BFGS-B", options={"maxiter": 50, "eps": 1e-4}).x)
