"""Whether a penalised fit with random intercepts is where its objective is least: by quadrature of each group's effect."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...answers.certificate import Certificate, Check, Level
from .model import group_posteriors, group_scores

#: standard errors that the least objective may be away, and from which on the estimate is nowhere near it
AT, OFF = 0.1, 1.0
#: what a variance must raise the log-likelihood by to be told from none
RISE = 0.01
#: selected coefficients up to which their information is inverted
MOST = 1000
#: of coordinate descent, at most
SWEEPS = 2000


def certificate(
    unit: dict[str, np.ndarray],
    beta: np.ndarray,
    sigma: float,
    intercept: float | None,
    active: np.ndarray,
    weight: float,
    floor: float,
    n_groups: int,
    ended: Check,
) -> Certificate:
    """Of an estimate; `active`: (p,), its selected coefficients. intercept: None where there is none. floor: of sigma."""
    X, y, group = unit["X"], unit["y"], unit["group"]
    eta = X @ beta + (intercept or 0.0)

    def value(sigma):
        return float(group_posteriors(eta, sigma, y, group, n_groups)[0].sum())

    rise = value(sigma) - value(floor)
    edge = rise < RISE
    nan = float("nan")
    if active.sum() > MOST:
        said = f"How far the least objective is was not asked: more than {MOST} coefficients are selected."
        return Certificate((ended, Check("gradient", nan, nan, AT, "careful", said)))
    away, worst = _away(unit, eta, beta, sigma, intercept is not None, active, weight, n_groups, edge)
    level: Level = "pass" if away < AT else "careful" if away < OFF else "failed"
    said = f"The penalised objective is less elsewhere, {away:.2g} standard errors away in {worst}: run longer (n_iter=)."
    if level == "pass":
        said = "The penalised objective is at its least."
    checks = [ended, Check("gradient", away, nan, AT, level, said)]
    said = "Groups differ: the likelihood of no variance between them is lower."
    if edge:
        said = "sigma is all but zero, the edge of what it may be: no variance between the groups is seen in these data."
    return Certificate((*checks, Check("boundary", rise, nan, RISE, "careful" if edge else "pass", said)))


def _away(
    unit: dict[str, Any],
    eta: np.ndarray,
    beta: np.ndarray,
    sigma: float,
    intercept: bool,
    active: np.ndarray,
    weight: float,
    n_groups: int,
    edge: bool,
) -> tuple[float, str]:
    """The penalised Newton step in standard errors, of what is not zero or should not be, and the name of what moves most."""
    X, p = unit["X"], len(beta)

    def scores(some):
        return group_scores(X, eta, sigma, unit["y"], unit["group"], n_groups, some, intercept)

    slope, _, complete = scores(np.zeros(p, bool))
    # Where too many zeros are pressed to hold all their information, each is moved by itself.
    forced = np.maximum(np.abs(slope[:p]) - weight, 0.0) / np.sqrt(np.maximum(complete, 1e-300))
    some = active | (forced > AT / 10)
    if some.sum() > MOST:
        j = int(np.argmax(np.where(active, 0.0, forced)))
        return float(forced[j]), f"x{j}"
    _, information, _ = scores(some)
    at = np.concatenate([beta[some], np.zeros(1 + intercept)])
    kept = np.arange(len(at)) < len(at) - edge
    part, own = information[np.ix_(kept, kept)], np.concatenate([slope[:p][some], slope[p:]])[kept]
    if not part.size:
        return 0.0, "sigma"
    values, vectors = np.linalg.eigh(part)
    if values[0] <= 0:
        return float("inf"), "sigma"
    errors = np.sqrt(np.sum(vectors**2 / values, axis=1))
    penalised = np.where(np.arange(len(at)) < some.sum(), weight, 0.0)[kept]
    moves = np.abs(_step(part, own, at[kept], penalised)) / errors
    names = [f"x{j}" for j in np.flatnonzero(some)] + ["intercept"] * intercept + ["sigma"]
    return float(moves.max()), names[int(moves.argmax())]


def _step(information: np.ndarray, slope: np.ndarray, at: np.ndarray, weight: np.ndarray) -> np.ndarray:
    r"""The s where $-g^\top s + s^\top Is/2 + \sum_jw_j|a_j+s_j|$ is least, by coordinate descent."""
    step, left = np.zeros(len(at)), slope.copy()
    for _ in range(SWEEPS):
        before = step.copy()
        for j, own in enumerate(np.diagonal(information)):
            centre = at[j] + step[j] + left[j] / own
            moved = np.sign(centre) * max(abs(centre) - weight[j] / own, 0.0) - at[j] - step[j]
            step[j] += moved
            left = left - information[:, j] * moved
        if np.abs(step - before).max() <= 1e-9 * (1 + np.abs(step).max()):
            break
    return step
