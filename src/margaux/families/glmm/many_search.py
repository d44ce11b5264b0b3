"""The maxima of many likelihoods: climbs side by side, finer rules where one does not agree with others, looks to every side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ...answers.ascents import Heights, climb, newton, pseudo_inverses
from ...answers.likelihood import TOLERANCE, WIDER
from ...answers.many import FEW, NEAR
from ...answers.rules import NODES
from ...answers.search import ASIDE, NOTHING, RISEN
from ...answers.steps import FLAT, too_far
from ...esteps import Laplace, Quadrature

if TYPE_CHECKING:
    from ...esteps import AbstractEStep
    from .together import Together

#: the length of Newton's step, in standard errors, that ends a climb
CLOSE = 1e-5
#: how far maxima by two quadratures may be apart, in standard errors, before a finer one is asked
APART = 1e-4
#: steps by few nodes, whose scores are not quite the slopes of their values where effects vary much
LEADING = 20
#: Newton's steps that follow a mode to a place that is looked at from afar
FOLLOWED = 4
#: the shortest step that tells, in roots of the precision
ROUGH = 30
#: times that a climb goes on from higher ground
AGAIN = 3


class Search:
    """Where the searches of R responses are.

    Attributes:
        u, here: coordinates and the model there. length: of Newton's step that is left, in standard errors. steps: taken.
        error: of the log-likelihood. apart: how far the maximum by another rule is, in standard errors; NaN where there is none.
        drops: how much lower the log-likelihood is a standard error to either side of each coordinate (R, k, 2).
    """

    def __init__(self, together: Together, n_iter: int, told: Callable[[str, int], None]) -> None:
        self.together, self.n_iter, self.told = together, n_iter, told
        self.u = np.array(together.u, float)
        count, k = self.u.shape
        self.here = Heights(np.full(count, -np.inf), np.zeros((count, k)), np.zeros((count, k, k)))
        self.length, self.steps = np.full(count, np.nan), np.zeros(count, int)
        self.error, self.apart = np.zeros(count), np.full(count, np.nan)
        self.level, self.drops = np.zeros(count, int), np.full((count, k, 2), np.nan)

    @property
    def everyone(self) -> np.ndarray:
        return np.arange(len(self.u))

    def by_quadrature(self, width: int, n_nodes: int | None) -> None:
        """Few nodes lead the way; more tell where it ends, and as many as it takes to agree with others."""
        lead = Quadrature(n_nodes or FEW[width])
        self._climb(lead, self.everyone, NEAR, min(LEADING, self.n_iter))
        which = self.everyone
        for level in range(len(NODES[width])):
            self.level[which] = level
            self._climb(_rules(width, level)[0], which, CLOSE)
            self._compare(width, which)
            which = np.flatnonzero(~((self.error < TOLERANCE / 2) & (self.apart < APART)))
            if not len(which):
                break
        self._look(lambda level: _rules(width, level)[0])

    def by_laplace(self, width: int, exact: bool) -> None:
        """Of the approximation, and how far its maximum is from that of the likelihood where this can be integrated."""
        rule = Laplace()
        self._climb(rule, self.everyone, CLOSE)
        self._look(lambda level: rule)
        if exact or width not in NODES:
            return
        nodes, finer, reach = NODES[width][0]
        quadrature = Quadrature(nodes, reach=reach, n_newton=FOLLOWED)
        self.together.begin(quadrature, self.u, self.everyone)
        there = self.together.heights(quadrature, self.u, self.everyone)
        self.apart = newton(there, self.u, np.ones(len(self.u))).length
        self.error = np.abs(there.value - self.here.value)

    def _climb(self, rule: AbstractEStep, which: np.ndarray, close: float, most: int | None = None) -> None:
        """To the maxima; those that lost a mode on the way, so that no step leads up any more, go on once it is found again."""
        if not len(which):
            return
        # Rounding of the log-likelihood hides steps shorter than its root.
        close = max(close, ROUGH * np.sqrt(np.finfo(self.together.dtype).eps))
        for _ in range(2):
            self.together.begin(rule, self.u[which], which)
            length, steps, stuck = climb(
                lambda u, some: self.together.heights(rule, u, some),
                self.u,
                self.here,
                which,
                close,
                most or self.n_iter,
                lambda left: self.told("Newton's steps", left),
                self.together.keep,
            )
            self.length[which] = length[which]
            self.steps += steps
            which = which[stuck[which]]
            if not len(which):
                return

    def _compare(self, width: int, which: np.ndarray) -> None:
        """Likelihoods by a finer rule, and by a finer and wider one; and the maximum by a rule that is a little wider."""
        if not len(which):
            return
        rule, fine = _rules(width, int(self.level[which[0]]))
        self.told("comparing quadratures", len(which))
        values = [self.together.values(one, self.u[which], which) for one in (fine, _widened(fine, WIDER))]
        self.error[which] = np.maximum(np.abs(values[0] - self.here.value[which]), np.abs(values[0] - values[1]))
        other = self.together.heights(_widened(rule, ASIDE), self.u[which], which)
        here = self.here.of(which)
        gap = Heights(here.value, here.gradient - other.gradient, here.matrix)
        self.apart[which] = newton(gap, self.u[which], np.ones(len(which))).length

    def _look(self, rule_of: Callable[[int], AbstractEStep]) -> None:
        """To either side of every coordinate; where that is higher, climbs go on from there."""
        which = np.flatnonzero(np.isfinite(self.length))
        for _ in range(AGAIN):
            higher = np.zeros(len(self.u), bool)
            for level in np.unique(self.level[which]):
                some = which[self.level[which] == level]
                higher[some] = self._look_around(rule_of(int(level)), some)
            which = np.flatnonzero(higher)
            if not len(which):
                return
            for level in np.unique(self.level[which]):
                self._climb(rule_of(int(level)), which[self.level[which] == level], CLOSE)

    def _look_around(self, rule: AbstractEStep, which: np.ndarray) -> np.ndarray:
        """Fills `drops`, and moves `u` to the highest place that is higher: which of them have moved."""
        k = self.u.shape[1]
        covariance = pseudo_inverses(self.here.matrix[which])
        base = self.here.value[which]
        best, place = base + RISEN, self.u[which].copy()
        for j in range(k):
            toward, flat = _toward(covariance, self.here.matrix[which, j, j], j)
            falls = self._fallen(rule, which, toward, base, best, place)
            # A curvature that is one of rounding errors hides that nothing falls.
            again = ~flat & (np.abs(falls).max(axis=1) < NOTHING)
            far = np.flatnonzero(flat | again)
            if len(far):
                further = np.where(again[:, None], FLAT * np.eye(k)[j], toward)
                some = tuple(part[far] for part in (further, base, best, place))
                falls[far] = self._fallen(rule, which[far], *some)
                zero = self.u[which[far]].copy()
                zero[:, j] = np.where(np.abs(zero[:, j]) > FLAT, 0.0, zero[:, j])
                self._raised(rule, which[far], zero, some[2], some[3])
                best[far], place[far] = some[2], some[3]
            self.drops[which, j] = falls
        moved = best > base + RISEN
        self.u[which] = np.where(moved[:, None], place, self.u[which])
        return moved

    def _fallen(
        self,
        rule: AbstractEStep,
        which: np.ndarray,
        toward: Float[np.ndarray, "m k"],
        base: np.ndarray,
        best: np.ndarray,
        place: np.ndarray,
    ) -> Float[np.ndarray, "m 2"]:
        """To either side; `best` and `place` are replaced where that is higher."""
        self.told("looking around", len(which))
        ends = [self.u[which] - toward, self.u[which] + toward]
        return np.stack([base - self._raised(rule, which, end, best, place) for end in ends], axis=1)

    def _raised(self, rule: AbstractEStep, which: np.ndarray, end: np.ndarray, best: np.ndarray, place: np.ndarray) -> np.ndarray:
        values = self.together.values(rule, end, which)
        values = np.where(np.isnan(values), -np.inf, values)
        higher = values > best
        best[higher], place[higher] = values[higher], end[higher]
        return values


def _toward(covariance: Float[np.ndarray, "m k k"], own: np.ndarray, j: int) -> tuple[Float[np.ndarray, "m k"], np.ndarray]:
    """A standard error of a coordinate with what moves along, and whether that is too far to look: then as far as is sensible."""
    size = np.sqrt(np.maximum(covariance[:, j, j], 0.0))
    toward = covariance[:, :, j] / np.where(size > 0, size, np.nan)[:, None]
    known: Any = np.isfinite(toward).all(axis=1)
    toward = np.where(known[:, None], toward, FLAT * np.eye(covariance.shape[1])[j])
    most = np.abs(toward).max(axis=1)
    far = too_far(most, own)
    return np.where(far[:, None], toward * (FLAT / most)[:, None], toward), ~known | far


def _rules(width: int, level: int) -> tuple[Quadrature, Quadrature]:
    """One that climbs, and the finer one that it is to agree with."""
    nodes, finer, reach = NODES[width][level]
    return Quadrature(nodes, reach=reach, n_newton=FOLLOWED), Quadrature(finer, reach=reach, n_newton=FOLLOWED)


def _widened(rule: Any, widening: float) -> Quadrature:
    return dataclasses.replace(rule, widening=np.asarray(widening))
