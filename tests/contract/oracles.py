"""Exact maxima that share no code with the library: NumPy quadrature and SciPy's optimisers from many starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special, stats

#: points of the rules that integrate one latent out: a grid over the prior's standard deviations
GRID = np.linspace(-9.0, 9.0, 1201)
LOG_STEP = np.log(GRID[1] - GRID[0])


class Truth(NamedTuple):
    """The maximum: parameters (unconstrained), standard errors (NaN where the maximum is on an edge), log-likelihood.

    `regular`: not on an edge. `shallow`: the log-likelihood falls by less than a fifth, not a half, a standard error to one side
    of a parameter, the others following: errors by Wald do not hold, and to doubt them is right.
    """

    theta: np.ndarray
    se: np.ndarray
    loglik: float
    regular: bool
    shallow: bool = False


def maximum(
    value: Callable[[np.ndarray], float], starts: list[np.ndarray], edge: float = -6.0, logs: tuple[int, ...] = ()
) -> Truth:
    """The best of several searches by gradients, polished by Nelder and Mead.

    Args:
        value: minus the log-likelihood of the unconstrained parameters. logs: positions of logs of standard deviations, at
            an edge below `edge`.
    """

    def safe(theta: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            try:
                found = value(theta)
            except np.linalg.LinAlgError:  # far out, where matrices are singular
                return 1e12
        return float(found) if np.isfinite(found) else 1e12

    best: Any = None
    for start in starts:
        found = optimize.minimize(safe, start, method="L-BFGS-B")
        if best is None or found.fun < best.fun:
            best = found
    theta, hessian = _settled(safe, np.asarray(best.x), float(best.fun))
    scale = np.sqrt(np.maximum(np.abs(np.diag(hessian)), 1e-300))
    values = np.linalg.eigvalsh(hessian / np.outer(scale, scale)) if np.all(np.isfinite(hessian)) else np.array([-1.0])
    regular = bool(values[0] > 1e-6) and all(theta[j] > edge for j in logs) and bool(np.all(np.abs(theta) < 12))
    with np.errstate(all="ignore"):
        covariance = np.linalg.inv(hessian) if regular else np.full(hessian.shape, np.nan)
        se = np.sqrt(np.diag(covariance))
    regular = regular and bool(np.all(np.isfinite(se)))
    least = safe(theta)
    shallow = (
        regular and min(safe(theta + sign * covariance[j] / se[j]) - least for j in range(len(se)) for sign in (-1, 1)) < 0.2
    )
    return Truth(theta, se, -least, regular, bool(shallow))


def _settled(value: Callable[[np.ndarray], float], theta: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """The minimum nearby by Newton's steps, by Nelder and Mead's method where these do not lead down; the Hessian there."""
    for _ in range(2):
        slope, hessian = _differences(value, theta)
        for _ in range(4):
            if not np.all(np.isfinite(hessian)) or np.linalg.eigvalsh(hessian)[0] <= 0:
                break
            step = -np.linalg.solve(hessian, slope)
            there = value(theta + step)
            if not there <= least + 1e-9 * abs(least):
                break
            theta, least = theta + step, there
            if np.sqrt(max(step @ hessian @ step, 0.0)) < 1e-3:
                return theta, _differences(value, theta)[1]
            slope = _differences(value, theta, False)[0]
        found = optimize.minimize(value, theta, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-6, "maxiter": 600})
        theta, least = found.x, found.fun
    return theta, _differences(value, theta)[1]


def _differences(value: Callable[[np.ndarray], float], theta: np.ndarray, second: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Central differences: gradient, and Hessian."""
    k = len(theta)
    e = np.diag(1e-3 * np.maximum(np.abs(theta), 0.3))
    slope = np.array([(value(theta + a) - value(theta - a)) / (2 * a.sum()) for a in e])
    hessian = np.zeros((k, k))
    for i, a in enumerate(e if second else ()):
        for j, b in enumerate(e[: i + 1]):
            corners = value(theta + a + b) - value(theta + a - b) - value(theta - a + b) + value(theta - a - b)
            hessian[i, j] = hessian[j, i] = corners / (4 * a.sum() * b.sum())
    return slope, hessian


def over_intercepts(log_p: Callable[[np.ndarray], np.ndarray], log_sd: float) -> float:
    """Sum over groups of log of the integral of exp(log_p(z)) N(z; 0, sd^2) dz: log_p maps z (g, grid) to (g, grid)."""
    sd = np.exp(log_sd)
    logs = log_p(sd * GRID) + stats.norm.logpdf(GRID)
    # Where a group's likelihood is narrower than the grid, the grid is drawn together around its mode.
    top = logs.argmax(axis=1)
    width = 1 / np.sqrt(np.maximum(-_curvature(logs, top), 1.0))
    if width.min() > 4 * (GRID[1] - GRID[0]):
        return float(np.sum(special.logsumexp(logs, axis=1) + LOG_STEP))
    fine = GRID[top][:, None] + width[:, None] * GRID[None, :]
    logs = log_p(sd * fine) + stats.norm.logpdf(fine)
    return float(np.sum(special.logsumexp(logs, axis=1) + LOG_STEP + np.log(width)))


def _curvature(logs: np.ndarray, top: np.ndarray) -> np.ndarray:
    at = np.clip(top, 1, logs.shape[1] - 2)
    rows = np.arange(len(logs))
    step = GRID[1] - GRID[0]
    return (logs[rows, at - 1] - 2 * logs[rows, at] + logs[rows, at + 1]) / step**2


def grouped_binomial(y: np.ndarray, trials: float) -> Callable[[np.ndarray], float]:
    """y_ij ~ Binomial(trials, logistic(mu + z_i)): theta = (mu, log sd)."""
    total, m = y.sum(axis=1)[:, None], trials * y.shape[1]
    constant = np.sum(special.gammaln(trials + 1) - special.gammaln(y + 1) - special.gammaln(trials - y + 1))

    def value(theta: np.ndarray) -> float:
        log_p = lambda z: total * (theta[0] + z) - m * np.logaddexp(0, theta[0] + z)  # noqa: E731
        return -over_intercepts(log_p, theta[1]) - constant

    return value


def grouped_poisson(y: np.ndarray) -> Callable[[np.ndarray], float]:
    """y_ij ~ Poisson(exp(mu + z_i)): theta = (mu, log sd)."""
    total, m = y.sum(axis=1)[:, None], y.shape[1]
    constant = -np.sum(special.gammaln(y + 1))

    def value(theta: np.ndarray) -> float:
        log_p = lambda z: total * (theta[0] + z) - m * np.exp(np.minimum(theta[0] + z, 500))  # noqa: E731
        return -over_intercepts(log_p, theta[1]) - constant

    return value


def grouped_gaussian(y: np.ndarray) -> Callable[[np.ndarray], float]:
    """y_ij ~ N(mu + z_i, exp(2 theta_2)): theta = (mu, log sd, log noise), in closed form."""
    m, mean = y.shape[1], y.mean(axis=1)
    within = np.sum((y - mean[:, None]) ** 2)

    def value(theta: np.ndarray) -> float:
        noise, between = np.exp(2 * theta[2]), np.exp(2 * theta[1])
        one = stats.norm.logpdf(mean, theta[0], np.sqrt(between + noise / m)).sum()
        rest = -within / (2 * noise) - len(y) * ((m - 1) / 2 * np.log(2 * np.pi * noise) + 0.5 * np.log(m))
        return -(one + rest)

    return value


def gamma_poisson(y: np.ndarray) -> Callable[[np.ndarray], float]:
    """y_ij ~ Poisson(l_i), l_i ~ Gamma(exp theta_1, exp theta_0): theta = (log rate, log shape)."""
    total, m = y.sum(axis=1), y.shape[1]

    def value(theta: np.ndarray) -> float:
        b, a = np.exp(theta)
        each = a * np.log(b) - special.gammaln(a) + special.gammaln(a + total) - (a + total) * np.log(b + m)
        return -np.sum(each) + np.sum(special.gammaln(y + 1))

    return value


def two_normals(x: np.ndarray) -> Callable[[np.ndarray], float]:
    """x ~ p N(a, s^2) + (1 - p) N(b, s^2): theta = (logit p, a, b, log s)."""

    def value(theta: np.ndarray) -> float:
        s, p = np.exp(theta[3]), special.expit(theta[0])
        return -float(np.sum(np.logaddexp(np.log(p) + stats.norm.logpdf(x, theta[1], s),
                                          np.log1p(-p) + stats.norm.logpdf(x, theta[2], s))))  # fmt: skip

    return value


def squares(y: np.ndarray) -> Callable[[np.ndarray], float]:
    """y ~ N(z^2, exp(2 theta_0)), z ~ N(0, exp(2 theta_1)): two modes."""
    grid = np.linspace(-1, 1, 6001)

    def value(theta: np.ndarray) -> float:
        reach = 9 * np.exp(theta[1])
        z = reach * grid
        noise = max(np.exp(theta[0]), 2e-3)
        logs = stats.norm.logpdf(y[:, None], z**2, noise) + stats.norm.logpdf(z, 0, np.exp(theta[1]))
        return -float(np.sum(special.logsumexp(logs, axis=1) + np.log(z[1] - z[0])))

    return value
