"""The last steps of a fit: Newton's, by scores and Louis' information with common random numbers, to the maximum itself."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..engine.outcome import RESULTS
from ..esteps import MCMC, Exact, ImportanceSampling, Laplace, Quadrature
from ..problem.penalty import NoPenalty
from .likelihood import LogLikelihood, loglik
from .posterior import UndefinedDensity, latent_size, where_undefined
from .rules import NODES, Rule, best_rule, quadratures
from .scores import Coordinates, Evaluation
from .search import CLOSE, RADIUS, Search
from .steps import newton, noise

if TYPE_CHECKING:
    from .fit import Fit


#: steps at most, those tried included; and times that the search goes on from a higher place nearby
MOST, AGAIN = 50, 3
#: parameters up to which second derivatives are taken
LARGEST = 100
#: units, and points of a quadrature over all of them, up to which every fit is polished unless told otherwise
FEW_UNITS, MANY_POINTS = 20_000, 50_000_000
#: runs that are compared, at most
RUNS = 8


@dataclasses.dataclass(frozen=True)
class Polish:
    """What the polish of a fit did, or what was found at its estimate where it did nothing.

    Attributes:
        steps: (log-likelihood, length of Newton's step in standard errors) before each step and at the end.
        moved: how far the estimate went, in standard errors by the last information. evaluation, rule: at the end.
        length, error: of Newton's step at the end, in standard errors, and its Monte Carlo error.
        drops: by how much the log-likelihood falls a standard error to either side of each unconstrained coordinate, the
            others following (k, 2): a half where it is a parabola; NaN where not looked at.
        converged: whether the length is below `CLOSE`, to within the error, and the information positive definite.
        seconds: of wall clock. likelihood: at the end, where a quadrature was held to others there.
    """

    steps: tuple[tuple[float, float], ...]
    moved: float
    evaluation: Evaluation
    rule: Rule
    length: float
    error: float
    drops: np.ndarray
    converged: bool
    seconds: float
    likelihood: LogLikelihood | None = None


def unpolishable(fit: Fit) -> str | None:
    """Why the fit's estimate cannot be polished, or None."""
    problem = fit._model()
    if fit.estep is not None and fit.estep.averages_objective:
        return "the objective is a variational bound"
    if fit.estep is not None and not isinstance(fit.estep, MCMC | ImportanceSampling | Quadrature | Laplace | Exact):
        return "the E-step is one of your own, and only it knows what is maximised"
    if not isinstance(problem.penalty, NoPenalty):
        return "the objective is penalised"
    if len(fit.names) > LARGEST:
        return f"there are more than {LARGEST} parameters"
    return None


def polish(fit: Fit, rule: Rule | None = None, most: int = MOST, held: np.ndarray | None = None) -> tuple[PyTree, Polish]:
    r"""The maximum near a fit's estimate, and what was done to reach it.

    Newton's step $|I|^{-1}s$ in the unconstrained coordinates, I Louis' information with the absolute values of its eigenvalues
    where it is indefinite, held to a trust region in its own metric, $\sqrt{\delta^\top|I|\delta}\le r$: the region shrinks where
    the log-likelihood rises less than a tenth of what was promised, and grows where it rises as promised (Nocedal and
    Wright 2006, algorithm 4.1). Likelihoods are compared by the same draws from the same proposals, which are made anew when
    the parameters have moved. A parameter on an edge of its space stays there if the likelihood presses it against that.
    At the end the log-likelihood is looked at a standard error to either side of every coordinate; where it is higher there, as
    on the far side of a variance that had collapsed, the search goes on from there.

    Args:
        most: evaluations at most, `PATIENCE` times as many while they lead up fast; with none, the estimate is only looked at.
        held: which unconstrained coordinates stay where they are (k,).

    Raises:
        UndefinedDensity: a log density is NaN at the estimate.
    """
    # What overflows on the way is seen by its value, which is then refused.
    with np.errstate(all="ignore"):
        return _polished(fit, best_rule(fit) if rule is None else rule, most, held)


def _polished(fit: Fit, rule: Rule, most: int, held: np.ndarray | None = None) -> tuple[PyTree, Polish]:
    began = time.perf_counter()
    search = Search(fit, rule)
    if held is not None:
        search.free = search.free & ~held
    for _ in range(1 + AGAIN):
        search.climb(most)
        search.look_closer(most)
        search.all_draws(most > 0)
        drops, higher = search.around()
        if higher is None or most == 0:
            break
        search.anew()
        search.go(higher)
    _, length, _ = newton(search.at, search.free, RADIUS)
    matrix = search.at.matrix[np.ix_(search.free, search.free)]
    positive = not search.free.any() or bool(np.all(np.isfinite(matrix)) and np.linalg.eigvalsh(matrix)[0] > 0)
    moved = (search.at.u - search.first)[search.free]
    away = float(np.sqrt(max(moved @ matrix @ moved, 0.0))) if positive else np.nan
    error = noise(search.at, search.free)
    steps = (*search.steps, (search.at.loglik, length))
    converged = positive and length < CLOSE + 2 * error
    spent, found = time.perf_counter() - began, search.likelihood
    done = Polish(steps, away, search.at, search.rule, length, error, drops, converged, spent, found)
    return search.params, done


def polished(fit: Fit, wanted: bool | None = None) -> Any:
    """The fit at the maximum, where it can be polished: see `margaux.fit`. Several runs that disagree are compared first."""
    if fit.result is RESULTS.undefined:
        return dataclasses.replace(fit, note=where_undefined(fit))
    if wanted is False or fit.result.failed or fit.result is RESULTS.interrupted or unpolishable(fit) is not None:
        return fit
    if wanted is None and not affordable(fit):
        return fit
    try:
        start = _best_run(fit)
        rule = best_rule(start)
        if isinstance(rule.estep, MCMC) and wanted is None:
            return start
        params, done = polish(start, rule)
    except UndefinedDensity as error:
        return dataclasses.replace(fit, result=RESULTS.undefined, note=str(error))
    on_edge = bool(np.any(Coordinates(fit).edges(params)))
    left = fit.result is RESULTS.boundary and bool(np.any(Coordinates(fit).edges(fit.params)))
    result = RESULTS.boundary if on_edge else RESULTS.successful if left else fit.result
    return dataclasses.replace(start, params=params, polished=done, result=result)


def affordable(fit: Fit) -> bool:
    """Whether a polish takes about as long as a fit, not many times longer."""
    n, size = fit._model().n, latent_size(fit)
    return n <= FEW_UNITS or (size in NODES and n * quadratures(fit._model().model, size)[0][1] ** size <= MANY_POINTS)


def _best_run(fit: Fit) -> Any:
    """The fit from the mean of its runs where they agree; from the best of them, by likelihood, where they do not."""
    runs = len(jax.tree.leaves(fit.run_params)[0])
    if runs == 1 or "params" not in fit.trace:
        return fit
    flat = np.concatenate([np.reshape(leaf, (runs, -1)) for leaf in jax.tree.leaves(fit.run_params)], axis=1)
    noise = fit.trace["params"][fit.averaged_from :].std(axis=0).mean(axis=0) if len(fit.trace["params"]) > 30 else 0.0
    if np.all(np.ptp(flat, axis=0) <= 6 * noise + 1e-6 * np.abs(flat).max(axis=0)):
        return fit
    each = [jax.tree.map(lambda leaf, r=r: leaf[r], fit.run_params) for r in range(min(runs, RUNS))]
    values = []
    for params in (fit.params, *each):
        try:
            values.append(float(loglik(fit, params=params, tol=np.inf, n_draws=2000)))
        except (UndefinedDensity, TypeError):
            values.append(-np.inf)
    best = int(np.nanargmax(values))
    return fit if best == 0 else fit.at(each[best - 1])
