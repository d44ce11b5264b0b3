"""Answers by Laplace's approximation: its own derivatives, and what weighted draws say of its errors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..algorithms.base import Visit
from ..algorithms.objective import coordinates, curvature
from ..esteps import Laplace
from ..numerics.compiling import compiled
from ..numerics.keys import key_of
from ..numerics.precision import default_dtype, precision, settle
from ..numerics.sampling import pooled
from .likelihood import LogLikelihood
from .posterior import each_unit, latent_size, nothing, proposals
from .rules import Rule
from .scores import Coordinates, Evaluation, evaluate, symmetrised

if TYPE_CHECKING:
    from .fit import Fit


#: draws a unit that correct the approximation in each replicate, and replicates; numbers that draws may hold
DRAWS, REPLICATES, NUMBERS = 1000, 8, 20_000_000
#: effective draws of a unit, in a replicate, below which they tell nothing
FEW = 5


def laplace_rule(fit: Fit, params: PyTree = None) -> Rule:
    """The rule of a fit whose latents are approximated, with modes at the estimate or at `params`."""
    structure = fit.estep.structure if isinstance(fit.estep, Laplace) else None
    estep = Laplace(structure)
    return Rule(estep, proposals(fit, estep, params), 1, latent_size(fit) * (estep.n_draws + 3))


def approximated(fit: Fit, rule: Rule, params: PyTree) -> Evaluation:
    """Scores, information and log-likelihoods of the approximation itself."""
    problem, dtype = fit._model(), default_dtype(None)
    with precision(dtype):
        at = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), params)
        problem, estep, data = settle((problem, rule.estep, jax.tree.map(np.asarray, fit.data)), dtype)
        found = jax.tree.map(lambda leaf: np.asarray(leaf, float), _derivatives(problem, estep, at, rule.rows, data))
    scores, information, logs = found
    nothing_known = np.full(problem.n, np.nan)
    return Evaluation(
        Coordinates(fit).to(params),
        scores[None],
        symmetrised(information - scores.T @ scores)[None],
        logs[None],
        nothing_known,
        nothing_known,
    )


@compiled
def _derivatives(problem: Any, estep: Any, params: PyTree, rows: PyTree, data: PyTree) -> Any:
    u, back = coordinates(problem, params)
    keys = jax.random.split(key_of(0), jax.tree.leaves(data)[0].shape[0])
    shapes = jax.eval_shape(problem.model.init_latents, keys[0], params, jax.tree.map(lambda leaf: leaf[0], data))
    noise = jax.vmap(lambda key: estep.noise(key, shapes))(keys)
    visit = Visit((rows, ()), data, noise, keys[0], jnp.ones((), int))
    (scores, information), _, info = curvature(problem, estep, visit, params, u, back)
    return scores, information, info["log_marginal"]


def corrected(fit: Fit, rule: Rule, params: PyTree = None, tol: float = 0.02) -> LogLikelihood:
    """The log-likelihood by weighted draws from the approximation; more of them until its error is small."""
    estep, width = _weighting(fit, rule)
    logs: list[np.ndarray] = []
    ess = np.zeros(0)
    for count in range(4):
        keys = range(count * REPLICATES, (count + 1) * REPLICATES)
        found = [each_unit(fit, nothing, estep, params, key=1 + key, width=width, rows=rule.rows)[1] for key in keys]
        logs += [info["log_marginal"] for info in found]
        ess = np.min([info["ess"] for info in found], axis=0)
        values, relative = pooled(np.stack(logs))
        se = float(np.sqrt(np.sum(relative**2)))
        if se <= tol or ess.min() < FEW:
            break
    few = float(ess.min())
    message = "" if few >= FEW else f"the weights have an effective size of {few:.1f}: the error itself is too small"
    return LogLikelihood(values, se, "weighted draws from Laplace's approximation", message)


def correction(fit: Fit, evaluation: Evaluation, rule: Rule) -> tuple[float, float, float]:
    """Newton's step from the estimate to the maximum of the exact likelihood, as far as weighted draws tell: its length in
    standard errors, the Monte Carlo error of that, and the least effective size of the draws."""
    estep, width = _weighting(fit, rule)
    draws = Rule(estep, rule.rows, REPLICATES, width)
    found = evaluate(fit, draws, fit.params, range(REPLICATES), second=False)
    totals = found.scores.sum(axis=1)
    inverse = np.linalg.pinv(evaluation.matrix)
    mean, spread = totals.mean(axis=0), np.atleast_2d(np.cov(totals, rowvar=False)) / REPLICATES
    length = float(np.sqrt(max(mean @ inverse @ mean, 0.0)))
    error = float(np.sqrt(max(np.trace(inverse @ spread), 0.0)))
    return length, error, float(found.ess.min())


def _weighting(fit: Fit, rule: Rule) -> tuple[Laplace, int]:
    """The rule's E-step with weighted draws, as many as memory holds, and what a unit of them takes."""
    size = latent_size(fit)
    rows = max(np.size(leaf) for leaf in jax.tree.leaves(fit.data)) // fit._model().n
    width = max(size, rows)
    draws = int(np.clip(NUMBERS // width, 16, DRAWS)) // 2 * 2
    plain: Any = rule.estep
    return dataclasses.replace(plain, correct=True, n_draws=draws), draws * (width + 3)
