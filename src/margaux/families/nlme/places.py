"""The marginal log-likelihood of one data set at many parameters, side by side."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float

from ...answers.flock import Flock
from ...answers.likelihood import WIDER, loglik
from ...answers.posterior import UndefinedDensity, latent_size
from ...answers.rules import NODES, best_rule
from ...answers.scores import Coordinates
from ...esteps import Quadrature
from ...numerics.precision import default_dtype, precision, settle

if TYPE_CHECKING:
    from ...answers.fit import Fit


#: places at which a quadrature is held to others, units whose posteriors are searched for more modes, and the largest gap that
#: is small beside what log-likelihoods at places apart are asked for
HELD, LOOKED_AT, ENOUGH = 40, 256, 0.05
#: draws a unit where there is no grid
DRAWS = 4000


def logliks(fit: Fit, u: Float[np.ndarray, "R k"]) -> tuple[Float[np.ndarray, " R"], float]:
    """Log-likelihoods at unconstrained coordinates (R, k), minus infinity where a density is not defined; and their error.

    By adaptive quadrature around modes that are found anew at every place, with nodes enough to agree with a finer grid, and
    with a finer and wider one, at some of the places that are likely at all; the error is the largest gap there. With more
    than three latents, or several modes, by importance sampling with the same draws at every place, of which it is the standard
    error.
    """
    for nodes, finer, reach in NODES.get(latent_size(fit), ()):
        values, error = _by_grid(fit, u, Quadrature(nodes, reach=reach), finer)
        if error < ENOUGH:
            return values, error
        if np.isinf(error):
            break
    return _by_draws(fit, u)


def _by_grid(fit: Fit, u: np.ndarray, rule: Quadrature, finer: int) -> tuple[np.ndarray, float]:
    """By a grid, and how far others are from it; infinity where a posterior has two modes."""
    dtype, problem = default_dtype(None), fit._model()
    template = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), fit.params)
    with precision(dtype), np.errstate(all="ignore"):
        flock = Flock(jax.tree.map(np.asarray, fit.data), np.ones((len(u), problem.n)), dtype)
        flock.begin(settle(problem.model, dtype), problem.space, template, rule, latent_size(fit), u)

        def at(rule: Quadrature, which: np.ndarray) -> np.ndarray:
            return flock.logs(rule, u[which], which)[which]

        values = at(rule, np.arange(len(u)))
        # Gaps where nothing is likely do not matter.
        far = np.flatnonzero(values > values[np.isfinite(values)].max(initial=-np.inf) - 20)
        some = far[np.unique(np.linspace(0, len(far) - 1, HELD).astype(int))] if len(far) else far
        gaps = [0.0]
        for widening in (1.0, WIDER):
            fine = at(dataclasses.replace(rule, n_nodes=finer, widening=np.asarray(widening)), some)
            gaps.append(float(np.max(np.abs(fine - values[some]), initial=0.0)))
        several = flock.modes(u, LOOKED_AT) > 1
    return np.where(np.isnan(values), -np.inf, values), np.inf if several else max(gaps)


def _by_draws(fit: Fit, u: np.ndarray) -> tuple[np.ndarray, float]:
    """By importance sampling from proposals that are made at the estimate."""
    coordinates, rule = Coordinates(fit), best_rule(fit, level=len(NODES) + 1)
    values, errors = np.full(len(u), -np.inf), np.zeros(len(u))
    for r, place in enumerate(u):
        try:
            found = loglik(fit, method="importance", n_draws=DRAWS, params=coordinates.back(place), rule=rule, tol=np.inf)
        except UndefinedDensity:
            continue
        values[r], errors[r] = float(found), found.se
    return values, float(np.median(errors))
