"""The marginal log-likelihood along one parameter: the others held (a slice), or maximised over (a profile)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
import pandas as pd
import scipy
from jaxtyping import PyTree

from ..numerics.wald import check_level
from .likelihood import LogLikelihood, loglik
from .rules import best_rule
from .scores import Coordinates, Evaluation, evaluate

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .fit import Fit
    from .rules import Rule


#: length of Newton's step over the other parameters, in standard errors, that ends a search; its longest, and steps at most
CLOSE, RADIUS, MOST = 0.02, 1.5, 40
#: times as much as Newton's step promises that a search may still rise, and how far below a level that must leave it
PROMISE, CLEARLY = 3.0, 1.0


def slice(fit: Fit, name: str, grid: ArrayLike, method: str = "auto", n_draws: int | None = None) -> pd.DataFrame:
    r"""$\log p(y\mid\theta)$ over a grid of one scalar parameter, the others held at the estimate (SOUL, figure 3a).

    Args:
        name: one of `fit.names`. grid: values of it. method, n_draws: as in `Fit.loglik`.

    Returns:
        A frame indexed by the grid with `loglik` and its Monte Carlo error `mc_error`. `attrs["quadratic"]` is
        the weighted quadratic fit (highest power first), `attrs["maximiser"]` where it is largest.

    Raises:
        ValueError: no such parameter, fewer than three values, or one that the space has not at the others' estimates.
    """
    j, values = _checked(fit, name, grid)
    flat, coordinates = _flat(fit.params), Coordinates(fit)
    # The mirror entry of a symmetric matrix moves along.
    jacobian = coordinates.jacobian(coordinates.to(fit.params))
    twins = np.all(jacobian == jacobian[j], axis=1) & np.any(jacobian[j] != 0)
    twins[j] = True
    points = [_unflat(fit.params, np.where(twins, value, flat)) for value in values]
    for value, point in zip(values, points, strict=True):
        if not np.allclose(_flat(coordinates.back(coordinates.to(point))), _flat(point), rtol=1e-5, atol=1e-8):
            raise ValueError(f"{name} = {value:g} lies outside its space where the other parameters are held; use profile")
    found = [loglik(fit, method=method, n_draws=n_draws, params=point) for point in points]
    return _frame(name, values, found)


def profile(
    fit: Fit, name: str, grid: ArrayLike, method: str = "auto", n_draws: int | None = None, level: float = 0.95
) -> pd.DataFrame:
    r"""The profile likelihood $\max_{\theta: \theta_j = c}\log p(y\mid\theta)$ over a grid of values c of one scalar parameter.

    From the estimate outwards, each maximum is the start of the next. Newton's steps by scores and Louis' information with common
    random numbers (`best_rule`) run along the surface $\theta_j = c$ of the unconstrained coordinates, until what is left is
    shorter than `CLOSE` standard errors.

    Args:
        name: one of `fit.names`. grid: values of it. method, n_draws: of the likelihoods, as in `Fit.loglik`. level: of the
            interval.

    Returns:
        As `slice`, with `away`, what is left of Newton's step in standard errors (NaN where there is no other parameter), and a
        column a parameter with the maximisers. `attrs["interval"]` holds the values where twice the fall from the maximum is the
        quantile of $\chi^2_1$, by linear interpolation of its signed root; NaN where the grid does not reach so far.

    Raises:
        ValueError: no such parameter, fewer than three values, or a value on the edge of the parameter's space or outside.

    References: Cox and Snell, Analysis of Binary Data (2nd ed., 1989), appendix 1; Venzon and Moolgavkar, Applied
    Statistics 37 (1988), 87-94.
    """
    check_level(level)
    j, values = _checked(fit, name, grid)
    search = _Constrained(fit, j, name)
    estimate = float(_flat(fit.params)[j])
    reached: dict[float, End] = {}
    for side in (np.sort(values[values >= estimate]), np.sort(values[values < estimate])[::-1]):
        params = fit.params
        for value in side:
            end = search.maximum(params, float(value))
            params, reached[float(value)] = end.params, end
    ends = [reached[float(value)] for value in values]
    found = [loglik(fit, method=method, n_draws=n_draws, params=end.params) for end in ends]
    frame = _frame(name, values, found).assign(away=[end.away for end in ends])
    frame[fit.names] = np.stack([_flat(end.params) for end in ends])
    top = max(float(loglik(fit, method=method, n_draws=n_draws)), max(map(float, found)))
    frame.attrs["interval"] = _interval(values, frame["loglik"].to_numpy(), estimate, top, level)
    return frame


class Held(NamedTuple):
    """A fit at the maximum over all parameters but one, or on the way to one that is clearly below a level, and its
    log-likelihood."""

    fit: Fit
    below: bool
    loglik: float


def held(fit: Fit, name: str, value: float, level: float, rule_of: Callable[[Fit, PyTree], Rule] | None = None) -> Held | None:
    """The fit at the maximum over all parameters but one, which has a given value; None where that was not reached.

    Proposals are made anew at every point: where a variance is next to none, no other serves a mean that moves. The search ends
    early where what its next step promises, `PROMISE` times over, leaves the log-likelihood `CLEARLY` below `level`.

    Args:
        rule_of: how expectations are taken at some parameters; `best_rule` if None.
    """
    j = fit.names.index(name)
    try:
        end = _Constrained(fit, j, name, held=False, rule_of=rule_of).maximum(fit.params, value, level)
    except (ValueError, np.linalg.LinAlgError):
        return None
    reached = end.below(level) or end.away <= CLOSE or np.isnan(end.away)
    return Held(fit.at(end.params), end.below(level), end.loglik) if reached else None


class End(NamedTuple):
    """Where a search has ended: how far the maximum is from there in standard errors, and the log-likelihood."""

    params: PyTree
    away: float
    loglik: float

    def below(self, level: float) -> bool:
        """Whether the maximum is clearly lower than that."""
        return self.loglik + PROMISE * self.away**2 / 2 + CLEARLY < level


class _Constrained:
    """The search for the maximum over the other parameters, by proposals that are held, or made anew at every point."""

    #: how expectations are taken at some parameters; `best_rule` if None
    rule_of: Callable[[Fit, PyTree], Rule] | None = None

    def __init__(
        self, fit: Fit, j: int, name: str, held: bool = True, rule_of: Callable[[Fit, PyTree], Rule] | None = None
    ) -> None:
        self.fit, self.j, self.name, self.coordinates, self.held = fit, j, name, Coordinates(fit), held
        self.rule_of = rule_of

    def _rule(self, params: PyTree) -> Rule:
        return best_rule(self.fit, params) if self.rule_of is None else self.rule_of(self.fit, params)

    def maximum(self, params: PyTree, value: float, level: float = -np.inf) -> End:
        """The maximum, or a place after the first step from which it is clearly below a level."""
        u = self._onto(self.coordinates.to(params), value)
        rule = self._rule(self.coordinates.back(u))
        at = self._evaluated(u, rule)
        radius, first = RADIUS, True
        for _ in range(MOST):
            step, length = self._newton(at)
            if not length > CLOSE or radius < 1e-3 or (not first and End(params, length, at.loglik).below(level)):
                break
            there = self._evaluated(self._onto(at.u + step * min(1.0, radius / length), value), rule)
            if there.loglik < at.loglik - 1e-9 * abs(at.loglik):
                radius = min(radius, length) / 4
                continue
            at, first = there, False
        return End(self.coordinates.back(at.u), float(length), at.loglik)

    def _evaluated(self, u: np.ndarray, rule: Rule) -> Evaluation:
        params = self.coordinates.back(u)
        rule = rule if self.held else self._rule(params)
        return evaluate(self.fit, rule, params, range(rule.replicates))._replace(u=u)

    def _onto(self, u: np.ndarray, value: float) -> np.ndarray:
        """The point of the surface next to u, by Newton's method for one equation."""
        for _ in range(100):
            gap = value - float(_flat(self.coordinates.back(u))[self.j])
            if abs(gap) < 1e-10 * (1 + abs(value)):
                return u
            along = self.coordinates.jacobian(u)[self.j]
            with np.errstate(all="ignore"):
                move = along * (gap / (along @ along))
            if not np.all(np.isfinite(move)):
                break
            u = u + move * min(1.0, 2.0 / np.abs(move).max())
        raise ValueError(f"{self.name} = {value:g} lies outside its space, or on the edge of it; choose a grid inside")

    def _newton(self, here: Evaluation) -> tuple[np.ndarray, float]:
        """Newton's step in the tangent of the surface, and its length in standard errors; zero and NaN in no dimensions."""
        tangent = scipy.linalg.null_space(self.coordinates.jacobian(here.u)[self.j][None])
        if tangent.shape[1] == 0:
            return np.zeros(here.u.size), np.nan
        values, vectors = np.linalg.eigh(tangent.T @ here.matrix @ tangent)
        values = np.maximum(np.abs(values), 1e-8 * np.abs(values).max())
        along = vectors.T @ (tangent.T @ here.gradient)
        return tangent @ (vectors @ (along / values)), float(np.sqrt(np.sum(along**2 / values)))


def _checked(fit: Fit, name: str, grid: ArrayLike) -> tuple[int, np.ndarray]:
    if name not in fit.names:
        raise ValueError(f"there is no parameter {name!r}; they are {fit.names}")
    values = np.unique(np.asarray(grid, float))
    if values.size < 3:
        raise ValueError(f"a profile needs at least three different values of {name}, got {values.size}")
    return fit.names.index(name), values


def _frame(name: str, grid: np.ndarray, found: list[LogLikelihood]) -> pd.DataFrame:
    frame = pd.DataFrame(
        {"loglik": [float(f) for f in found], "mc_error": [f.se for f in found]}, index=pd.Index(grid, name=name)
    )
    errors = frame["mc_error"].to_numpy()
    weights = 1 / np.maximum(errors, 1e-9) if np.all(np.isfinite(errors)) and np.all(errors > 0) else None
    quadratic = np.polyfit(grid, frame["loglik"], 2, w=weights)
    inside = quadratic[0] < 0
    frame.attrs["quadratic"] = quadratic
    frame.attrs["maximiser"] = (
        float(-quadratic[1] / (2 * quadratic[0])) if inside else float(grid[int(np.argmax(frame["loglik"]))])
    )
    return frame


def _interval(grid: np.ndarray, logs: np.ndarray, estimate: float, top: float, level: float) -> tuple[float, float]:
    """Where the signed root of twice the fall crosses the normal quantile on either side."""
    root = np.sqrt(2 * np.maximum(top - logs, 0.0))
    quantile = float(scipy.special.ndtri(0.5 + level / 2))
    ends = []
    for sign in (-1, 1):
        side = sign * (grid - estimate) > 0
        away = np.concatenate([[0.0], np.sort(sign * (grid[side] - estimate))])
        fall = np.concatenate([[0.0], root[side][:: 1 if sign > 0 else -1]])
        past = np.flatnonzero(fall >= quantile)
        if not len(past):
            ends.append(np.nan)
            continue
        last = past[0] + 1
        ends.append(estimate + sign * float(np.interp(quantile, fall[last - 2 : last], away[last - 2 : last])))
    return ends[0], ends[1]


def _flat(params: PyTree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]).astype(float)


def _unflat(template: PyTree, flat: np.ndarray) -> PyTree:
    leaves, structure = jax.tree.flatten(template)
    parts = np.split(flat, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    return structure.unflatten([part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)])
