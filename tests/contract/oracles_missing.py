"""Exact maxima of regressions with missing Gaussian covariates, by NumPy and SciPy alone.

Given the observed covariates of a row the missing ones are Gaussian, and so is the linear predictor: the likelihood takes one
dimension of quadrature (an even grid), or none for a Gaussian outcome. A binary covariate with holes is summed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from oracles import Truth
from scipy import optimize, special

SHARES = np.linspace(0.0, 1.0, 121)
#: coefficients in standard deviations of their columns, and their errors, beyond which a maximum is not regular
LARGE, WIDE = 15.0, 10.0
#: falls of the log-likelihood a standard error away (a half for a parabola) below which a Wald error means nothing
SHALLOW = 0.12


def log_outcome(kind: str, y: np.ndarray, m: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """log p(y) of a predictor N(m, v)."""
    if kind == "gaussian":
        return -0.5 * (np.log(2 * np.pi * (v + scale)) + (y - m) ** 2 / (v + scale))

    def log_p(eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        if kind == "logistic":
            return y * eta - np.logaddexp(0, eta)
        return y * eta - np.exp(np.minimum(eta, 300)) - special.gammaln(y + 1)

    def slopes(eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = special.expit(eta) if kind == "logistic" else np.exp(np.minimum(eta, 300))
        return y - mean, mean * (1 - mean) if kind == "logistic" else mean

    # The mode is where eta = m + v (y - mean(eta)), whose two sides cross once.
    low, high = m - v, m + v
    if kind == "poisson":
        low, high = m - v * np.exp(np.minimum(m, 300)), np.maximum(m, np.minimum(m + v * y, np.log(y + 1e-9)))
    for _ in range(45):
        middle = (low + high) / 2
        above = middle - m - v * slopes(middle)[0] > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    mode, safe_v = (low + high) / 2, np.maximum(v, 1e-300)
    start, above = log_p(mode, y), slopes(mode)[0]

    def fall(step: np.ndarray) -> np.ndarray:
        return start + above * step - log_p(mode + step, y) + step**2 / (2 * safe_v)

    # An even grid between where the integrand, whose logarithm is concave, has fallen by 38 on either side.
    ends = []
    for side in (-1.0, 1.0):
        near, far = np.zeros(len(y)), 9 * np.sqrt(v)
        for _ in range(20):
            middle = (near + far) / 2
            short = fall(side * middle) < 38
            near, far = np.where(short, middle, near), np.where(short, far, middle)
        ends.append(mode + side * far)
    eta = ends[0][:, None] + (ends[1] - ends[0])[:, None] * SHARES
    logs = log_p(eta, y[:, None]) - (eta - m[:, None]) ** 2 / (2 * safe_v[:, None])
    step = (ends[1] - ends[0]) / (len(SHARES) - 1)
    found = special.logsumexp(logs, axis=1) + np.log(np.maximum(step, 1e-300)) - np.log(2 * np.pi * safe_v) / 2
    return np.where(v > 0, found, log_p(m, y))


def gaussian_rows(kind: str, patterns: Any, beta: np.ndarray, mean: np.ndarray, sigma: np.ndarray, scale: float, n: int,
                  shift: float = 0.0) -> np.ndarray:  # fmt: skip
    """log p(y, x_o) of every row at an intercept raised by `shift`."""
    out = np.empty(n)
    for seen, rows, x, y in patterns:
        m, v, log_x = np.full(len(rows), beta[0] + shift + mean @ beta[1:]), np.full(len(rows), beta[1:] @ sigma @ beta[1:]), 0.0
        if seen.any():
            root = np.linalg.cholesky(sigma[np.ix_(seen, seen)])
            white = np.linalg.solve(root, (x - mean[seen]).T)
            along = np.linalg.solve(root, sigma[seen] @ beta[1:])
            m, v = m + along @ white, np.maximum(v - along @ along, 0.0)
            log_x = -0.5 * np.sum(white**2, axis=0) - np.log(np.diag(root)).sum() - seen.sum() / 2 * np.log(2 * np.pi)
            if seen.all():
                v = np.zeros(len(rows))
        out[rows] = log_outcome(kind, y, m, v, scale) + log_x
    return out


def grouped(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Rows by the pattern of their holes."""
    seen = ~np.isnan(x)
    return [(one, rows := np.flatnonzero((seen == one).all(axis=1)), x[np.ix_(rows, one)], y[rows])
            for one in np.unique(seen, axis=0)]  # fmt: skip


class Regression:
    """The observed likelihood in standardised columns. theta: beta, means, log-Cholesky of the covariance, and where there is
    one log scale; with a binary column d its coefficient, the changes of the means with it, and its log odds, last."""

    def __init__(self, kind: str, x: np.ndarray, y: np.ndarray, d: np.ndarray | None = None) -> None:
        self.centre, self.width = np.nanmean(x, axis=0), np.nanstd(x, axis=0)
        self.kind, self.d, self.p, self.n = kind, d, x.shape[1], len(x)
        self.patterns = grouped((x - self.centre) / self.width, y)
        self.shift = -float(np.sum(~np.isnan(x) * np.log(self.width)))
        self.y = y

    def value(self, theta: np.ndarray) -> float:
        """Minus the log-likelihood in the units of the data."""
        p = self.p
        beta, mean, root = theta[: p + 1], theta[p + 1 : 2 * p + 1], np.zeros((p, p))
        end = 2 * p + 1 + p * (p + 1) // 2
        root[np.tril_indices(p)] = theta[2 * p + 1 : end]
        root[np.diag_indices(p)] = np.exp(np.diag(root))
        scale = float(np.exp(theta[end])) if self.kind == "gaussian" else 1.0
        sigma = root @ root.T
        rows = lambda mean, shift: gaussian_rows(self.kind, self.patterns, beta, mean, sigma, scale, self.n, shift)  # noqa: E731
        if self.d is None:
            return -float(rows(mean, 0.0).sum()) - self.shift
        own = theta[-p - 2 :]
        zero = rows(mean, 0.0) - np.logaddexp(0, own[-1])
        one = rows(mean + own[1:-1], own[0]) - np.logaddexp(0, -own[-1])
        return -float(np.where(np.isnan(self.d), np.logaddexp(zero, one), np.where(self.d == 1, one, zero)).sum()) - self.shift

    def starts(self, rng: np.random.Generator) -> list[np.ndarray]:
        """No slopes; and slopes and correlations at random."""
        p = self.p
        links: dict[str, Any] = {"gaussian": float, "logistic": special.logit, "poisson": np.log}
        first = links[self.kind](self.y.mean())
        more = [np.log(np.var(self.y) + 1e-9)] if self.kind == "gaussian" else []
        last = np.zeros(0 if self.d is None else p + 2)
        out = [np.concatenate([[first], np.zeros(2 * p + p * (p + 1) // 2), more, last])]
        for _ in range(2):
            theta = out[0].copy()
            theta[1 : p + 1] = rng.normal(size=p) * (np.std(self.y) if self.kind == "gaussian" else 0.5)
            theta[2 * p + 1 : 2 * p + 1 + p * (p + 1) // 2] = 0.3 * rng.normal(size=p * (p + 1) // 2)
            out.append(theta)
        return out

    def maximum(self, rng: np.random.Generator) -> Truth:
        """beta in the order of the table's columns (a binary one last), with errors, and the log-likelihood."""
        value, options = safe(self.value), {"maxiter": 500}
        found = [optimize.minimize(value, start, method="L-BFGS-B", options=options) for start in self.starts(rng)]
        best = min(found, key=lambda one: one.fun)
        theta, hessian, length = newton(safe(self.value), best.x)
        p, k = self.p, len(theta)
        turn = np.zeros((p + 1 + (self.d is not None), k))
        turn[0, 0], turn[0, 1 : p + 1] = 1.0, -self.centre / self.width
        turn[1 : p + 1, 1 : p + 1] = np.diag(1 / self.width)
        if self.d is not None:
            turn[-1, -p - 2] = 1.0
        values = np.linalg.eigvalsh(hessian)
        regular = bool(values[0] > 1e-7 * values[-1] and length < 0.02)
        se = np.full(len(turn), np.nan)
        if regular:
            covariance = np.linalg.inv(hessian)
            own = np.r_[1 : p + 1, [k - p - 2] if self.d is not None else []].astype(int)
            se = np.sqrt(np.diag(turn @ covariance @ turn.T))
            if self.kind != "gaussian":
                regular = bool(np.all(np.abs(theta[own]) < LARGE) and np.all(np.diag(covariance)[own] < WIDE**2))
            for j in [0, *own]:
                step = covariance[:, j] / np.sqrt(covariance[j, j])
                fall = min(self.value(theta + step), self.value(theta - step)) - self.value(theta)
                regular = regular and fall > SHALLOW
        return Truth(turn @ theta, se, -float(self.value(theta)), regular)


def safe(value: Callable[[np.ndarray], float]) -> Callable[[np.ndarray], float]:
    """A large number where there is none."""

    def guarded(theta: np.ndarray) -> float:
        try:
            with np.errstate(all="ignore"):
                found = value(theta)
        except np.linalg.LinAlgError:
            return 1e12
        return float(found) if np.isfinite(found) else 1e12

    return guarded


def newton(value: Callable[[np.ndarray], float], theta: np.ndarray, h: float = 3e-4) -> tuple[np.ndarray, np.ndarray, float]:
    """The maximum by Newton's steps of differences, the Hessian there, and the length of the last step in standard errors."""
    theta, hessian, length = np.array(theta), np.eye(len(theta)), np.inf
    for _ in range(6):
        here, k = value(theta), len(theta)
        e = h * np.eye(k)
        up, down = (np.array([value(theta + sign * row) for row in e]) for sign in (1, -1))
        gradient, hessian = (up - down) / (2 * h), np.empty((k, k))
        for i in range(k):
            hessian[i, i] = (up[i] - 2 * here + down[i]) / h**2
            for j in range(i):
                both = value(theta + e[i] + e[j]) + value(theta - e[i] - e[j])
                hessian[i, j] = hessian[j, i] = (both - up[i] - up[j] + 2 * here - down[i] - down[j]) / (2 * h**2)
        values, vectors = np.linalg.eigh(hessian)
        along = vectors.T @ gradient
        values = np.maximum(np.abs(values), 1e-9 * np.abs(values).max())
        length, step = float(np.sqrt(np.sum(along**2 / values))), vectors @ (along / values)
        share = min(1.0, 3.0 / max(length, 1e-300))
        while share > 1e-4 and value(theta - share * step) > here + 1e-9:
            share /= 2
        if length < 2e-3 or share <= 1e-4:
            break
        theta = theta - share * step
    return theta, hessian, length
