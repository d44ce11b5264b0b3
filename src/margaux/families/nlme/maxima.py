"""Maxima of many likelihoods of one model: subjects weighted anew, or some coefficients held at zero."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from ...answers.certify import examined
from ...answers.many import fit_many
from ...answers.polish import polish
from ...answers.posterior import UndefinedDensity, latent_size
from ...answers.rules import NODES, best_rule
from ...answers.scores import Coordinates, Evaluation, evaluate
from ...answers.search import CLOSE
from ...answers.steps import too_far
from ...engine.progress import Line
from ...numerics.inverse import guarded
from ...numerics.precision import precision
from .answers import lifted

if TYPE_CHECKING:
    from ...answers.fit import Fit


class Maxima(NamedTuple):
    """Of R likelihoods.

    Attributes:
        params: the engine's, with a leading axis R. loglik, error: maxima and how far off they may be (R,). converged: whether
            what is left of Newton's step is short, and the information positive definite (R,). flat: entries of the parameters
            about which next to nothing is known there, as of a variance that vanishes (R, p), in the order of flat parameters.
    """

    params: PyTree
    loglik: Float[np.ndarray, " R"]
    error: Float[np.ndarray, " R"]
    converged: Bool[np.ndarray, " R"]
    flat: Bool[np.ndarray, "R p"]


def maxima(
    fit: Fit,
    counts: Int[np.ndarray, "R n"],
    starts: list[PyTree],
    held: Bool[np.ndarray, "R k"] | None = None,
    progress: bool = False,
) -> Maxima:
    r"""Where $\sum_i c_{ri}\log p(y_i\mid\theta)$ is largest near a start, for r = 1, ..., R.

    Up to three latents a subject all are found side by side (`margaux.fit_many`). Those of more latents, and those whose
    subjects are not integrated well by quadrature, are polished one after the other by whatever suits them
    (`margaux.answers.polish`).

    Args:
        fit: model, space and data of the subjects. counts: how often each subject is there. starts: one of all, or R of them.
        held: unconstrained coordinates that stay where they start.
    """
    starts = [_inside(start) for start in (starts if len(starts) == len(counts) else starts * len(counts))]
    count, size = len(counts), sum(np.size(leaf) for leaf in jax.tree.leaves(starts[0]))
    held = np.zeros((count, 0), bool) if held is None else held
    if latent_size(fit) in NODES:
        problem = fit._model()
        many = fit_many(
            problem.model,
            fit.data,
            params=starts,
            space=problem.space,
            weights=counts,
            held=held if held.size else None,
            progress=progress,
        )
        found = Maxima(many.each, many.loglik, many.error, many.converged, np.isnan(many.stderr.to_numpy()))
        places = [jax.tree.map(lambda leaf, r=r: leaf[r], many.each) for r in range(count)]
    else:
        none, places = np.full(count, np.nan), starts
        params = jax.tree.map(lambda *leaf: np.stack(leaf), *starts)
        found = Maxima(params, none, none.copy(), np.zeros(count, bool), np.zeros((count, size), bool))
    left = np.flatnonzero(~found.converged).tolist()
    line = Line("Newton's steps", len(left)) if progress and left else None
    for done, r in enumerate(left):
        _put(found, r, _polished(fit, counts[r], places[r], held[r] if held.size else None))
        if line is not None:
            line.update(done + 1, "one after the other")
    if line is not None:
        line.close()
    return found


def at_the_estimate(fit: Fit) -> Evaluation:
    """Scores and information at a fit's estimate, by its polish or by a look there."""
    done = examined(fit)
    if done is not None:
        return done.evaluation
    rule = best_rule(fit)
    return evaluate(fit, rule, fit.params, range(rule.replicates))


def _inside(params: dict) -> dict:
    """Parameters from where steps lead away: no covariance matrix on its edge."""
    return lifted(params) if "omega" in params else params


def _polished(fit: Fit, counts: np.ndarray, start: PyTree, held: np.ndarray | None) -> Maxima | None:
    """The maximum of one likelihood; None where a log density is undefined."""
    ids = np.repeat(np.arange(len(counts)), counts)
    data = jax.tree.map(lambda leaf: np.asarray(leaf)[ids], fit.data)
    problem = dataclasses.replace(fit._model(), n=len(ids))
    own = dataclasses.replace(fit, params=start, data=data, problem=problem, rows=None, polished=None)
    try:
        with precision(fit.dtype):
            params, done = polish(own, held=held)
    except (UndefinedDensity, np.linalg.LinAlgError):
        return None
    value, error = done.evaluation.loglik, 0.0
    if done.likelihood is not None:
        value, error = float(done.likelihood), done.likelihood.se
    matrix, jacobian = done.evaluation.matrix, _jacobian(own, params)
    free = np.ones(len(matrix), bool) if held is None else ~held
    flat = free & too_far(np.sqrt(np.diagonal(guarded(matrix, free)[0])), np.diagonal(matrix))
    converged = done.converged or bool(done.length < CLOSE + 2 * done.error and flat.any() and not flat.all())
    unknown = np.abs(jacobian[:, flat]).sum(axis=1) > 0
    return Maxima(params, np.array(value), np.array(error), np.array(converged), unknown)


def _jacobian(fit: Fit, params: PyTree) -> np.ndarray:
    coordinates = Coordinates(fit)
    return coordinates.jacobian(coordinates.to(params))


def _put(found: Maxima, r: int, one: Maxima | None) -> None:
    if one is None:
        return
    for leaf, new in zip(jax.tree.leaves(found), jax.tree.leaves(one), strict=True):
        leaf[r] = new
