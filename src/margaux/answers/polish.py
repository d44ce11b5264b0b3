"""The last steps of a fit: Newton's, by scores and Louis' information with common random numbers, to the maximum itself."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..engine.outcome import RESULTS
from ..esteps import MCMC, Exact, ImportanceSampling, Quadrature
from ..problem.penalty import NoPenalty
from .likelihood import TOLERANCE, LogLikelihood, agreed, loglik
from .posterior import UndefinedDensity, each_unit, latent_size, nothing, where_undefined
from .rules import NODES, Rule, best_rule
from .scores import Coordinates, Evaluation, evaluate

if TYPE_CHECKING:
    from .fit import Fit
    from .flock import Place


#: the length of Newton's step, in standard errors, that ends the polish; and how far a step goes at most, at first
CLOSE, RADIUS = 0.03, 1.5
#: steps at most, those tried included; how far parameters move, as one unit's data tell them, before proposals are made anew,
#: on the way and where it ends
MOST, MOVED, NEAR = 50, 0.15, 0.02
#: coordinates that are looked at on either side, at most; how far where there is no curvature; a rise that is one; and how far
#: proposals are still good
LOOKED_AT, FLAT, RISEN, AFAR = 12, 5.0, 0.02, 0.3
#: how far from the half of a parabola a fall may be by proposals made for elsewhere
PLAIN = 0.15
#: times as many steps as long as ten of them raise the log-likelihood by one
PATIENCE = 4
#: what a coordinate may move in a step: a variance by a factor of seven
LEAP = 2.0
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
    if fit.estep is not None and not isinstance(fit.estep, MCMC | ImportanceSampling | Quadrature | Exact):
        return "the E-step is one of your own, and only it knows what is maximised"
    if not isinstance(problem.penalty, NoPenalty):
        return "the objective is penalised"
    if len(fit.names) > LARGEST:
        return f"there are more than {LARGEST} parameters"
    return None


def polish(fit: Fit, rule: Rule | None = None, most: int = MOST) -> tuple[PyTree, Polish]:
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

    Raises:
        UndefinedDensity: a log density is NaN at the estimate.
    """
    # What overflows on the way is seen by its value, which is then refused.
    with np.errstate(all="ignore"):
        return _polished(fit, best_rule(fit) if rule is None else rule, most)


def _polished(fit: Fit, rule: Rule, most: int) -> tuple[PyTree, Polish]:
    began = time.perf_counter()
    search = _Search(fit, rule)
    search.climb(most)
    search.look_closer(most)
    search.all_draws(most > 0)
    drops, higher = search.around()
    if higher is not None and most > 0:
        search.go(higher)
        search.climb(most)
        search.look_closer(most)
        search.all_draws(True)
        drops, _ = search.around()
    _, length, _ = newton(search.at, search.free, RADIUS)
    matrix = search.at.matrix[np.ix_(search.free, search.free)]
    positive = not search.free.any() or bool(np.all(np.isfinite(matrix)) and np.linalg.eigvalsh(matrix)[0] > 0)
    moved = (search.at.u - search.first)[search.free]
    away = float(np.sqrt(max(moved @ matrix @ moved, 0.0))) if positive else np.nan
    error = _noise(search.at, search.free)
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
    return n <= FEW_UNITS or (size in NODES and n * NODES[size][0][1] ** size <= MANY_POINTS)


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


class _Search:
    """Where the polish is: parameters, the model evaluated there, the rule, and the region that a step may reach."""

    def __init__(self, fit: Fit, rule: Rule) -> None:
        self.fit, self.rule, self.coordinates = fit, rule, Coordinates(fit)
        self.params, self.n = fit.params, fit._model().n
        self.first = self.coordinates.to(self.params)
        self.steps: list[tuple[float, float]] = []
        self.since, self.level = 0.0, 0
        self.held_to_others: tuple[Any, LogLikelihood] | None = None
        self.at = self.evaluated(self.params)
        self.free = self._free()

    def _free(self) -> np.ndarray:
        """The coordinates that may move: finite, and not those of parameters alone whose edge the likelihood presses on."""
        finite, edges = np.isfinite(self.first), self.coordinates.edges(self.params)
        if not edges.any() or not finite.all():
            return finite
        jacobian = self.coordinates.jacobian(self.first)
        flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(self.params)]).astype(float)
        ahead = flat + 1e-3 * jacobian @ newton(self.at, finite, RADIUS)[0]
        pressed = edges & (np.abs(self.coordinates.projected(ahead) - ahead) > 1e-12 * (1 + np.abs(ahead)))
        return np.abs(jacobian[~pressed]).sum(axis=0) > 0 if (~pressed).any() else ~finite

    @property
    def scouts(self) -> range:
        """Few sets of draws lead the way; all of them tell where it ends."""
        return range(min(2, self.rule.replicates))

    def evaluated(self, params: PyTree, keys: range | None = None) -> Evaluation:
        return evaluate(self.fit, self.rule, params, self.scouts if keys is None else keys)

    def tried(self, params: PyTree, keys: range) -> Evaluation | None:
        """None where a log density is NaN: too far."""
        try:
            return self.evaluated(params, keys)
        except UndefinedDensity:
            return None

    def go(self, params: PyTree) -> None:
        """To a place from afar, with proposals of its own."""
        self.params, self.rule, self.since = params, self.rule_at(params), 0.0
        self.at = self.evaluated(params)

    def rule_at(self, params: PyTree) -> Rule:
        return best_rule(self.fit, params, level=self.level)

    def look_closer(self, most: int) -> None:
        """By proposals of this place, where they were made too far away for second derivatives; then by a finer rule, or by
        draws, where a quadrature does not agree with others, as for logarithms of Gamma variables."""
        if self.since > NEAR and self.rule.has_likelihood and self.rule.rows is not None:
            self.go(self.params)
            self.climb(most)
        while isinstance(self.rule.estep, Quadrature):
            self.held_to_others = self.params, agreed(self.fit, self.params, self.rule, self.at.logs[0])
            if self.held_to_others[1].se <= TOLERANCE / 2:
                return
            self.level += 1
            self.go(self.params)
            self.climb(most)

    @property
    def likelihood(self) -> LogLikelihood | None:
        """By a quadrature that agreed with others, if there was one where the search is now."""
        params, value = self.held_to_others or (None, None)
        return value if params is self.params and value is not None and value.se <= TOLERANCE / 2 else None

    def climb(self, most: int) -> None:
        """Steps by few sets of draws until they are short."""
        radius, began = RADIUS, len(self.steps)
        for count in range(PATIENCE * most):
            # From far away the way is long, and worth its while as long as it leads up.
            if count >= most and not self.at.loglik > self.steps[max(began + count - 10, 0)][0] + 1.0:
                return
            step, length, gain = newton(self.at, self.free, radius)
            self.steps.append((self.at.loglik, length))
            if not np.isfinite(length) or length < CLOSE / 3 or radius < 1e-4:
                return
            params = self.coordinates.back(self.at.u + step)
            there = self.tried(params, self.scouts)
            rise = -np.inf if there is None else _rise(self.at, there)
            if there is None or not rise > 0.1 * gain - 1e-9 * abs(self.at.loglik):
                radius = 0.25 * min(radius, length)
                continue
            moved = min(length, radius)
            if rise > 0.75 * gain and length > 0.99 * radius:
                radius = 2 * radius
            self.params, self.at = params, there
            self.since += moved / np.sqrt(self.n)
            if self.since > MOVED and self.rule.has_likelihood and self.rule.rows is not None:
                self.go(params)

    def all_draws(self, moving: bool) -> None:
        """The model by all sets of draws, after the step that they would still make where those of a few have led."""
        everything = range(self.rule.replicates)
        if len(everything) == len(self.scouts):
            return
        self.at = self.evaluated(self.params, everything)
        for _ in range(2 if moving else 0):
            step, length, gain = newton(self.at, self.free, RADIUS)
            if not CLOSE / 3 < length < RADIUS:
                return
            self.steps.append((self.at.loglik, length))
            params = self.coordinates.back(self.at.u + step)
            there = self.tried(params, everything)
            if there is None or _rise(self.at, there) < 0.1 * gain:
                return
            self.params, self.at = params, there

    def around(self) -> tuple[np.ndarray, PyTree]:
        """The fall of the log-likelihood a standard error to either side of each coordinate, and the highest place found
        there, None where none is higher."""
        here, k = self.at, self.at.u.size
        drops, higher, best = np.full((k, 2), np.nan), None, RISEN
        places = np.flatnonzero(self.free)
        if not self.rule.has_likelihood or not 0 < len(places) <= LOOKED_AT or not np.all(np.isfinite(here.matrix)):
            return drops, higher
        near, (base, base_error) = self.rule, self.value(self.params, self.rule)
        covariance = np.linalg.pinv(here.matrix[np.ix_(self.free, self.free)], hermitian=True)
        for place, j in enumerate(places):
            size = np.sqrt(max(covariance[place, place], 0.0))
            known = np.isfinite(size) and size > 0 and here.matrix[j, j] > 0
            toward = covariance[:, place] / size if known else FLAT * np.eye(len(places))[place]
            flat = not known or np.abs(toward).max() > FLAT
            if flat:  # or no maximum: as far as is sensible
                toward = toward * FLAT / np.abs(toward).max()
            # Proposals are held near by; further away they would be those of other posteriors, and serve to see a parabola.
            afar = bool(flat or self.n * MOVED**2 < 1 or np.any(np.abs(toward) > AFAR))
            looks: list[tuple[int | None, Any]] = [
                (side, here.u[places] + sign * toward) for side, sign in enumerate((-1.0, 1.0))
            ]
            if flat and abs(here.u[j]) > FLAT:
                looks.append((None, np.where(np.arange(len(places)) == place, 0.0, here.u[places])))
            for side, there in looks:
                u = here.u.copy()
                u[places] = there
                params = self.coordinates.back(u)
                value, error = (-np.inf, 0.0) if flat else self.value(params, near)
                if afar and not abs(base - value - 0.5) < PLAIN - 3 * error:
                    value, error = self.value(params, self.rule_at(params))
                if side is not None:
                    drops[j, side] = base - value
                if value - base > best + 3 * afar * np.hypot(error, base_error):
                    best, higher = value - base, params
        return drops, higher

    def value(self, params: PyTree, rule: Rule) -> tuple[float, float]:
        """The log-likelihood by the common draws and its error; minus infinity where it is not defined."""
        try:
            logs = np.stack([_logs(self.fit, _looked_by(self.fit, rule), params, r) for r in range(min(2, rule.replicates))])
        except UndefinedDensity:
            return -np.inf, 0.0
        error = 0.0 if len(logs) == 1 else float(np.sqrt(np.sum(np.diff(logs, axis=0) ** 2)) / 2)
        return float(np.sum(_mean(logs))), error


def newton(here: Evaluation | Place, free: np.ndarray, radius: float) -> tuple[np.ndarray, float, float]:
    """A step (k,) in the region, the length that it had before it was held there, and the rise it promises."""
    matrix, score = here.matrix[np.ix_(free, free)], here.gradient[free]
    step = np.zeros(free.size)
    if not free.any():
        return step, 0.0, 0.0
    if not np.all(np.isfinite(matrix)) or not np.all(np.isfinite(score)):
        return step, np.nan, 0.0
    # On a common scale, so that a floor under the eigenvalues means the same for every coordinate.
    scale = np.sqrt(np.maximum(np.abs(np.diagonal(matrix)), 1e-300))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    values = np.maximum(np.abs(values), 1e-8)
    along = vectors.T @ (score / scale)
    length = float(np.sqrt(np.sum(along**2 / values)))
    share = min(1.0, radius / max(length, 1e-300))
    step[free] = share * (vectors @ (along / values)) / scale
    leap = np.abs(step).max() / LEAP
    if leap > 1:
        step, share = step / leap, share / leap
    return step, length, (share - share**2 / 2) * length**2


def _noise(here: Evaluation, free: np.ndarray) -> float:
    """Monte Carlo error of the length of Newton's step: how the steps by single sets of draws differ."""
    count = len(here.scores)
    if count == 1 or not free.any():
        return 0.0
    matrix = here.matrix[np.ix_(free, free)]
    totals = here.scores.sum(axis=1)[:, free]
    apart = totals - totals.mean(axis=0)
    if not np.all(np.isfinite(matrix)) or not np.all(np.isfinite(apart)):
        return np.nan
    with np.errstate(all="ignore"):
        lengths = np.einsum("ri,ri->r", apart, np.linalg.lstsq(matrix, apart.T, rcond=None)[0].T)
    return float(np.sqrt(max(np.sum(lengths), 0.0) / (count * (count - 1))))


def _rise(here: Evaluation, there: Evaluation) -> float:
    """By how much the log-likelihood rises, by common draws; of a rule without likelihoods, by the slope at both ends."""
    if np.all(np.isfinite(here.logs)):
        return float(np.sum(_mean(there.logs)) - np.sum(_mean(here.logs)))
    return float((here.gradient + there.gradient) @ (there.u - here.u) / 2)


def _logs(fit: Fit, rule: Rule, params: PyTree, key: int) -> np.ndarray:
    return each_unit(fit, nothing, rule.estep, params, key=key, width=rule.width, rows=rule.rows)[1]["log_marginal"].astype(float)


def _looked_by(fit: Fit, rule: Rule) -> Rule:
    """Of a single latent the finer quadrature, whose program there is already."""
    if not isinstance(rule.estep, Quadrature) or latent_size(fit) > 1:
        return rule
    return dataclasses.replace(rule, estep=Quadrature(rule.finer, held=True), width=3 * rule.finer)


def _mean(logs: np.ndarray) -> np.ndarray:
    top = logs.max(axis=0)
    return top + np.log(np.mean(np.exp(logs - top), axis=0))
