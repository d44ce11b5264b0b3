"""The search for a maximum of the likelihood: where it is, and how it steps and looks around."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ..esteps import ImportanceSampling, Laplace, ModeMixture, Quadrature
from ..problem.mixed import mixed
from ..problem.model import costly
from .likelihood import TOLERANCE, LogLikelihood, beside_others, of_quadrature, share_of_quadrature
from .marginals import log_likelihoods
from .posterior import UndefinedDensity, each_unit, latent_size, nothing
from .rules import Rule, best_rule, grid_of, laplace_rule, quadratures, with_grid, with_levels
from .scores import Coordinates, Evaluation, Place, evaluate
from .steps import FLAT, inverse, lengths, newton, on_a_saddle, spread, too_far

if TYPE_CHECKING:
    from .fit import Fit


#: the length of Newton's step, in standard errors, that ends the polish; and how far a step goes at most, at first
CLOSE, RADIUS = 0.03, 1.5
#: how far parameters move, as one unit's data tell them, before proposals are made anew, on the way and where it ends
MOVED, NEAR = 0.15, 0.02
#: coordinates that are looked at on either side, at most; a rise that is one; and how far proposals are still good
LOOKED_AT, RISEN, AFAR = 12, 0.02, 0.3
#: by what quadratures are centred a look away, and draws are made
NEARBY, SAME = ModeMixture(searches=1, rounds=1), ModeMixture(searches=1)
#: nodes a dimension by which falls are glanced at, by those of the rule; and points over all units from which that is quicker
GLANCE, MANY = {9: 5, 15: 9, 17: 9, 35: 25}, 20_000
#: a fall to both sides that is none: a standard error should cost a half
NOTHING = 0.1
#: how far from the half of a parabola a fall may be by proposals made for elsewhere, far away and nearer
PLAIN, WILD = 0.15, 0.45
#: times as many steps as long as ten of them raise the log-likelihood by one
PATIENCE = 4
#: share of units that have finer grids of their own, at most; and of what is allowed that others may be off by
FEW, FEWER = 0.5, 0.7
#: scale of the quadrature that scores and information are held to; how far these may be apart, in standard errors and in units of
#: the information
ASIDE, NEAR_BY, ALIKE = 1.2, 0.05, 0.1


class _Look(NamedTuple):
    """Parameters nearby, how much lower the log-likelihood is there, and how much of that may be noise."""

    params: PyTree
    fall: float
    slack: float


class Search:
    """Where the polish is: parameters, the model evaluated there, the rule, and the region that a step may reach."""

    def __init__(self, fit: Fit, rule: Rule) -> None:
        self.fit, self.rule, self.coordinates = fit, rule, Coordinates(fit)
        self.params, self.n = fit.params, fit._model().n
        self.first = self.coordinates.to(self.params)
        self.steps: list[tuple[float, float]] = []
        self.since, self.thorough = 0.0, True  # whether proposals are from searches of all modes
        self.level, self.levels = 0, np.zeros(self.n, int)  # of quadratures: of all, and of units beyond that
        self.doubtful = np.zeros(0, int)  # units that made the last quadrature not to be trusted, if there are few
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

    def go(self, params: PyTree, nearby: bool = False) -> None:
        """To a place from afar, or nearby, with proposals of its own."""
        self.params, self.rule, self.since, self.thorough = params, self.rule_at(params, nearby), 0.0, not nearby
        self.at = self.evaluated(params)

    def rule_at(self, params: PyTree, nearby: bool = False) -> Rule:
        """Of a place, or of one nearby: where one mode of each unit has been found, none looks there for more."""
        if isinstance(self.rule.estep, Laplace):
            return laplace_rule(self.fit, params)
        proposal, quadrature = None, isinstance(self.rule.estep, Quadrature)
        several = self.rule.modes is not None and self.rule.modes.max() > 1
        if nearby and quadrature and several and not mixed(self.fit._model().model):
            return self.rule  # a single search would miss modes
        if nearby and (quadrature or (self.rule.modes is not None and not several)):
            proposal = NEARBY if quadrature else SAME
        return self._with_levels(best_rule(self.fit, params, level=self.level, proposal=proposal))

    def _with_levels(self, rule: Rule) -> Rule:
        if not self.levels.any() or not isinstance(rule.estep, Quadrature):
            return rule
        return with_levels(rule, self.levels, self._beyond)

    @property
    def _beyond(self) -> tuple[tuple[int, int, float | None], ...]:
        """Quadratures that are finer than that of all units."""
        return quadratures(self.fit._model().model, latent_size(self.fit))[self.level + 1 :]

    def look_closer(self, most: int) -> None:
        """By proposals of this place, where they were made too far away for second derivatives; then by a finer rule, or by
        draws, where a quadrature does not agree with others, as for logarithms of Gamma variables."""
        if self.since > NEAR and self.rule.has_likelihood and self.rule.rows is not None:
            self.go(self.params, nearby=not isinstance(self.rule.estep, Quadrature))
            self.climb(most)
        climbed = isinstance(self.rule.estep, Quadrature)
        while isinstance(self.rule.estep, Quadrature):
            if self.trusted():
                return
            self._finer()
            self.climb(most)
        if climbed and most > 0:
            self._look_back(most)

    def anew(self) -> None:
        """What finer grids or draws were needed for was of another place."""
        self.level, self.levels = 0, np.zeros(self.n, int)

    def _finer(self) -> None:
        """A finer grid, or draws, for all units; where densities take long and few ask for it, the next for these."""
        few, slow = self.doubtful, costly(self.fit._model().model)
        if slow and 0 < len(few) <= self.n * FEW and self.levels[few].max() < len(self._beyond):
            self.levels = self.levels.copy()
            self.levels[few] += 1
        else:
            self.level, self.levels = self.level + 1, np.maximum(self.levels - 1, 0)
        here = slow and self.thorough and self.since <= NEAR  # proposals that take long are those of this place
        grid = grid_of(self.fit._model(), latent_size(self.fit), self.level) if here else None
        if grid is None:
            self.go(self.params)
            return
        self.rule = self._with_levels(with_grid(self.rule, grid, latent_size(self.fit)))
        self.at = self.evaluated(self.params)

    def trusted(self) -> bool:
        """Whether a quadrature agrees with others in likelihoods, scores and information: at a kink of a posterior, as at the
        edge of what a predictor may be, it is right about the first alone."""
        value, off = beside_others(self.fit, self.params, self.rule, self.at.logs[0])
        self.held_to_others = self.params, of_quadrature(value, off)
        if self.likelihood is None:
            slack = FEWER * TOLERANCE * share_of_quadrature(self.fit)
            self.doubtful = of_most(np.abs(off).max(axis=0), lambda some: of_quadrature(value[some], off[:, some]).se, slack)
            return False
        estep = dataclasses.replace(self.rule.estep, widening=np.asarray(ASIDE))
        other = evaluate(self.fit, dataclasses.replace(self.rule, estep=estep), self.params, range(1))
        gap = Place(self.at.u, np.nan, self.at.gradient - other.gradient, self.at.matrix)
        near = not newton(gap, self.free, RADIUS)[1] > NEAR_BY
        gaps = (self.at.scores - other.scores)[0][:, self.free]

        def together(some: np.ndarray) -> float:
            return lengths(gaps[some].sum(axis=0)[None], self.at.matrix, self.free)[0]

        self.doubtful = of_most(lengths(gaps, self.at.matrix, self.free), together, FEWER * NEAR_BY)
        return near and not spread(self.at.matrix, other.matrix[None], self.free) > ALIKE

    def _look_back(self, most: int) -> None:
        """Draws took over on a bad road; where it ends quadratures may do again."""
        there, levels = (self.params, self.rule, self.at, self.since, self.thorough), (self.level, self.levels)
        self.anew()
        self.go(self.params)
        if isinstance(self.rule.estep, Quadrature):
            self.climb(most)
            if isinstance(self.rule.estep, Quadrature) and self.trusted():
                return
        (self.params, self.rule, self.at, self.since, self.thorough), (self.level, self.levels) = there, levels

    @property
    def likelihood(self) -> LogLikelihood | None:
        """By a quadrature that agreed with others, if there was one where the search is now."""
        params, value = self.held_to_others or (None, None)
        if params is not self.params or value is None:
            return None
        return value if value.se <= TOLERANCE * share_of_quadrature(self.fit) else None

    def climb(self, most: int) -> None:
        """Steps by few sets of draws until they are short."""
        radius, began = RADIUS, len(self.steps)
        for count in range(PATIENCE * most):
            # From far away the way is long, and worth its while as long as it leads up.
            if count >= most and not self.at.loglik > self.steps[max(began + count - 10, 0)][0] + 1.0:
                return
            step, length, gain = newton(self.at, self.free, radius)
            self.steps.append((self.at.loglik, length))
            if not np.isfinite(length) or radius < 1e-4 or (length < CLOSE / 3 and not on_a_saddle(self.at, self.free)):
                return
            params = self.coordinates.back(self.at.u + step)
            there = self.tried(params, self.scouts)
            gained = -np.inf if there is None else rise(self.at, there)
            enough = 0.1 * gain - 1e-9 * abs(self.at.loglik)
            if not gained > enough and length > CLOSE and isinstance(self.rule.estep, Quadrature):
                there, gained = self._anew(params)  # where units know much the nodes of here say nothing about there
            if there is None or not gained > enough:
                radius = 0.25 * min(radius, length)
                continue
            moved = min(length, radius)
            if gained > 0.75 * gain and length > 0.99 * radius:
                radius = 2 * radius
            self.params, self.at = params, there
            self.since += moved / np.sqrt(self.n)
            if self.since > MOVED and self.rule.has_likelihood and self.rule.rows is not None:
                self.go(params)

    def _anew(self, params: PyTree) -> tuple[Evaluation | None, float]:
        """What a quadrature says at a place by nodes of its own, which it keeps if that is higher; and by how much it is."""
        rule, before, since, thorough = self.rule, self.at, self.since, self.thorough
        self.rule, self.since, self.thorough = self.rule_at(params, nearby=True), 0.0, False
        there = self.tried(params, self.scouts) if isinstance(self.rule.estep, Quadrature) else None
        gained = -np.inf if there is None else there.loglik - before.loglik
        if not gained > 0 or self.rule is rule:
            self.rule, self.since, self.thorough = rule, since, thorough
        return there, gained

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
            if there is None or rise(self.at, there) < 0.1 * gain:
                return
            self.params, self.at = params, there

    def around(self) -> tuple[np.ndarray, PyTree]:
        """The fall of the log-likelihood a standard error to either side of each coordinate, of very many those about which
        next to nothing is known; and the highest place found there, None where none is higher."""
        here, k = self.at, self.at.u.size
        drops, places = np.full((k, 2), np.nan), np.flatnonzero(self.free)
        if not self.rule.has_likelihood or not len(places) or not np.all(np.isfinite(here.matrix)):
            return drops, None
        base, glance, found = self.value(self.params, self.rule), self._glance(), []
        covariance = inverse(here.matrix[np.ix_(self.free, self.free)])
        sizes = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
        sizes[~(np.isfinite(sizes) & (sizes > 0) & (np.diagonal(here.matrix)[places] > 0))] = np.inf
        wanted = np.flatnonzero(sizes > FLAT)[:LOOKED_AT] if len(places) > LOOKED_AT else range(len(places))
        for place in wanted:
            j, size = places[place], sizes[place]
            toward = covariance[:, place] / size if np.isfinite(size) else np.full(len(places), np.inf)
            looks = self.looked_at(place, toward, base, glance)
            if np.abs(toward).max() <= FLAT and max(abs(look.fall) for look in looks) < NOTHING:
                looks = self.looked_at(place, np.full(len(places), np.inf), base)  # its curvature was one of rounding errors
            drops[j] = [look.fall for look in looks[:2]]
            found += [look for look in looks if -look.fall > RISEN + look.slack]
        return drops, min(found, key=lambda look: look.fall).params if found else None

    def _glance(self) -> Callable[[PyTree], float] | None:
        """The fall of the log-likelihood at some parameters by few nodes or draws, which are off alike here and there: it tells a
        half, and what is anything else is looked at by the rule itself. None where that would cost little, or where units are
        so few that a standard error takes their posteriors far."""
        estep = self.rule.estep
        if isinstance(estep, ImportanceSampling) and self.n * MOVED**2 >= 1:  # by one set of draws
            first = self._by_one_set(self.params)
            return lambda params: first - self._by_one_set(params)
        if not isinstance(estep, Quadrature) or estep.n_nodes not in GLANCE:
            return None
        size = latent_size(self.fit)
        if self.n * estep.n_nodes**size < MANY or self.n * MOVED**2 < 1:
            return None
        glance = glancing(estep)
        few = dataclasses.replace(self.rule, estep=glance, width=(size + 2) * glance.n_nodes**size)
        base, _ = self.value(self.params, few)
        return lambda params: base - self.value(params, few)[0]

    def _by_one_set(self, params: PyTree) -> float:
        try:
            return float(np.sum(_logs(self.fit, self.rule, params, 0)))
        except UndefinedDensity:
            return -np.inf

    def looked_at(
        self, place: int, toward: np.ndarray, base: tuple[float, float], glance: Callable[[PyTree], float] | None = None
    ) -> list[_Look]:
        """To either side of one of the free coordinates, by so much of all of them; where that is too far to be true, by
        what is sensible, and at zero."""
        here, places = self.at.u, np.flatnonzero(self.free)
        flat = bool(too_far(np.abs(toward).max(), self.at.matrix[places[place], places[place]]))
        if flat:
            toward = toward * FLAT / np.abs(toward).max() if np.all(np.isfinite(toward)) else FLAT * np.eye(len(places))[place]
        # Proposals are held near by; further away they would be those of other posteriors, and serve to see a parabola.
        afar = bool(flat or self.n * MOVED**2 < 1 or np.any(np.abs(toward) > AFAR))
        ends = [here[places] - toward, here[places] + toward]
        if flat and abs(here[places[place]]) > FLAT:
            ends.append(np.where(np.arange(len(places)) == place, 0.0, here[places]))
        out = []
        for end in ends:
            u = here.copy()
            u[places] = end
            params = self.coordinates.back(u)
            if glance is not None and not flat and abs((fall := glance(params)) - 0.5) < PLAIN:
                out.append(_Look(params, fall, 0.0))
                continue
            value, error = (-np.inf, 0.0) if flat else self.value(params, self.rule)
            if not abs(base[0] - value - 0.5) < (PLAIN - 3 * error if afar else WILD):
                value, error = self.value(params, self.rule_at(params, nearby=not flat))
            out.append(_Look(params, base[0] - value, 3 * afar * np.hypot(error, base[1])))
        return out

    def value(self, params: PyTree, rule: Rule) -> tuple[float, float]:
        """The log-likelihood by the common draws and its error; minus infinity where it is not defined."""
        known = isinstance(rule.estep, Laplace) or (isinstance(rule.estep, Quadrature) and latent_size(self.fit) > 1)
        if known and params is self.params and rule is self.rule:
            return self.at.loglik, 0.0
        try:
            logs = np.stack([_logs(self.fit, _looked_by(self.fit, rule), params, r) for r in range(min(2, rule.replicates))])
        except UndefinedDensity:
            return -np.inf, 0.0
        error = 0.0 if len(logs) == 1 else float(np.sqrt(np.sum(np.diff(logs, axis=0) ** 2)) / 2)
        return float(np.sum(_mean(logs))), error


def glancing(grid: Quadrature) -> Quadrature:
    """With fewer nodes, if there is such a grid."""
    closer = tuple((GLANCE.get(nodes, nodes), reach) for nodes, reach in grid.closer)
    return dataclasses.replace(grid, n_nodes=GLANCE.get(grid.n_nodes, grid.n_nodes), closer=closer)


def of_most(off: np.ndarray, left: Callable[[np.ndarray], float], slack: float) -> np.ndarray:
    """The units whose errors (n,) are largest, as few as leave others whose errors together, a function of them, are allowed."""
    order = np.argsort(-np.where(np.isnan(off), np.inf, off))
    return next((order[:count] for count in range(len(order)) if left(order[count:]) <= slack), order)


def rise(here: Evaluation, there: Evaluation) -> float:
    """By how much the log-likelihood rises, by common draws; of a rule without likelihoods, by the slope at both ends."""
    if np.all(np.isfinite(here.logs)):
        return float(np.sum(_mean(there.logs)) - np.sum(_mean(here.logs)))
    return float((here.gradient + there.gradient) @ (there.u - here.u) / 2)


def _logs(fit: Fit, rule: Rule, params: PyTree, key: int) -> np.ndarray:
    if isinstance(rule.estep, Laplace) and not rule.estep.correct:
        values = log_likelihoods(fit, rule.estep, params, rule.rows)
        if np.isnan(values).any():
            raise UndefinedDensity(int(np.isnan(values).argmax()), params)
        return values
    return each_unit(fit, nothing, rule.estep, params, key=key, width=rule.width, rows=rule.rows)[1]["log_marginal"].astype(float)


def _looked_by(fit: Fit, rule: Rule) -> Rule:
    """Of a single latent the finer quadrature, whose program there is already."""
    if not isinstance(rule.estep, Quadrature) or latent_size(fit) > 1:
        return rule
    return dataclasses.replace(rule, estep=rule.finely(), width=3 * rule.finer)


def _mean(logs: np.ndarray) -> np.ndarray:
    top = logs.max(axis=0)
    return top + np.log(np.mean(np.exp(logs - top), axis=0))
