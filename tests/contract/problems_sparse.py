"""Penalised, sparse and empirical-Bayes fits by their estimators' defaults, where their integrals are of few dimensions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import oracles
from oracles import Truth
from oracles_missing import SHALLOW, newton, safe
from scipy import optimize, special, stats

import margaux as mx
from problem import Answer, Problem

VARIANTS = ("plain", "tiny", "no variance", "collinear", "extreme")
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
LOG_WEIGHTS = np.log(WEIGHTS / np.sqrt(2 * np.pi))


def parabolic(value: Callable[[np.ndarray], float], theta: np.ndarray, hessian: Any = None) -> bool:
    """Whether the log-likelihood falls a standard error to either side as Wald errors need."""
    if hessian is None:
        hessian = newton(safe(value), theta)[1]
    covariance = np.linalg.inv(hessian)
    steps = [covariance[j] / np.sqrt(covariance[j, j]) for j in range(len(theta))]
    return all(value(theta + side * step) - value(theta) > SHALLOW for step in steps for side in (-1, 1))


# -- logistic regression with random intercepts, penalised ---------------------------------------


class Mixed:
    """log p(y) of y_i ~ Bernoulli(logistic(x_i' beta + sigma z_g)): theta = (beta, sigma), by adaptive quadrature."""

    def __init__(self, x: np.ndarray, y: np.ndarray, group: np.ndarray) -> None:
        self.x, self.y = x, y
        self.member = (group[:, None] == np.unique(group)).astype(float)

    def value(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the log-likelihood and its gradient."""
        eta, sigma, member, y = self.x @ theta[:-1], theta[-1], self.member, self.y
        mode = np.zeros(member.shape[1])
        for _ in range(30):
            mean = special.expit(eta + sigma * (member @ mode))
            curved = 1 + sigma**2 * ((mean * (1 - mean)) @ member)
            mode = mode + np.clip((sigma * ((y - mean) @ member) - mode) / curved, -2, 2)
        z = mode + NODES[:, None] / np.sqrt(curved)  # (nodes, groups)
        logits = eta + sigma * (z @ member.T)
        logs = (y * logits - np.logaddexp(0, logits)) @ member - z**2 / 2 + NODES[:, None] ** 2 / 2 + LOG_WEIGHTS[:, None]
        total = special.logsumexp(logs, axis=0)
        share = np.exp(logs - total) @ member.T  # of each row's group
        gap = share * (y - special.expit(logits))
        slope = np.concatenate([gap.sum(axis=0) @ self.x, [np.sum(gap * (z @ member.T))]])
        return -float(np.sum(total - np.log(curved) / 2)), -slope

    def maximum(self, weight: float) -> Truth:
        """Of the penalised likelihood, by L-BFGS over positive and negative parts; errors from the unpenalised information."""
        p = self.x.shape[1]

        def split(parts: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self.value(np.append(parts[:p] - parts[p : 2 * p], parts[-1]))
            total = value + weight * parts[: 2 * p].sum()
            return total, np.concatenate([slope[:p] + weight, -slope[:p] + weight, slope[p:]])

        best: Any = None
        for sigma in (0.1, 1.0):
            found = optimize.minimize(split, np.append(np.zeros(2 * p), sigma), jac=True, method="L-BFGS-B",
                                      bounds=[(0, None)] * (2 * p) + [(1e-5, None)],
                                      options={"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-7})  # fmt: skip
            best = found if best is None or found.fun < best.fun else best
        theta = np.append(best.x[:p] - best.x[p : 2 * p], best.x[-1])
        h = 1e-4
        columns = [(self.value(theta + h * e)[1] - self.value(theta - h * e)[1]) / (2 * h) for e in np.eye(p + 1)]
        hessian = (np.array(columns) + np.array(columns).T) / 2
        # A variance that does not raise the likelihood lies on its edge.
        rise = self.value(np.append(theta[:-1], 1e-5))[0] - self.value(theta)[0]
        regular = bool(rise > 0.01 and np.linalg.eigvalsh(hessian)[0] > 1e-6)
        se = np.sqrt(np.diag(np.linalg.inv(hessian))) if regular else np.full(p + 1, np.nan)
        return Truth(theta, se, -float(best.fun), regular)


def mixed(rng: np.random.Generator, variant: str, seed: int) -> Problem:
    n, p, groups = (40, 5, 8) if variant == "tiny" else (300, 10, 30)
    share = 0.95 if variant == "collinear" else 0.2
    x = rng.normal(size=(n, p)) @ np.linalg.cholesky((1 - share) * np.eye(p) + share).T
    beta = np.where(np.arange(p) < 3, rng.normal(0, 1, p), 0.0) * (4.0 if variant == "extreme" else 1.0)
    group = np.arange(n) % groups
    sigma = 0.0 if variant == "no variance" else float(rng.uniform(0.7, 1.5))
    y = (rng.random(n) < special.expit(x @ beta + sigma * rng.normal(size=groups)[group])).astype(int)
    y[:2] = 0, 1
    weight = float(rng.choice([2.0, 10.0])) * n / 300

    def run() -> Answer:
        model = mx.SparseMixedLogistic(penalty_weight=weight, random_state=seed % 1000, verbose=False).fit(x, y, group)
        theta = np.append(model.coef_[0], model.sigma_)
        said = model.certificate_
        return Answer(theta, np.full(p + 1, np.nan), -model.objective_, 0.0, said.word, str(said))

    return Problem("sparse", "mixed", variant, run, lambda: Mixed(x, y.astype(float), group).maximum(weight))


# -- sparse signals, each seen by itself -----------------------------------------------------------


def laplace_value(y: np.ndarray, a: np.ndarray, log_theta: float, log_sigma2: float) -> float:
    """Minus log p(y) of y_j = a_j x_j + noise, x_j Laplace of rate theta: the sum of two halves of a Gaussian."""
    theta, sd = np.exp(log_theta), np.exp(log_sigma2 / 2) / a
    u = y / a
    halves = [special.log_ndtr(side * u / sd - theta * sd) - side * theta * u for side in (1, -1)]
    return -float(np.sum(np.logaddexp(*halves) + np.log(theta / 2) + (theta * sd) ** 2 / 2 - np.log(a)))


def inverse(rng: np.random.Generator, variant: str, seed: int) -> Problem:
    """A diagonal operator, so that the coordinates are independent; the noise level known."""
    d = 8 if variant == "tiny" else 60
    a = np.geomspace(0.3, 2, d) if variant == "collinear" else np.ones(d)
    noise = 0.5 if variant != "extreme" else 0.05
    x = np.zeros(d) if variant == "no variance" else rng.laplace(0, 1.0, d)
    y = a * x + noise * rng.normal(size=d)

    def value(theta: np.ndarray) -> float:
        return laplace_value(y, a, theta[0], 2 * np.log(noise))

    def run() -> Answer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = mx.SparseInverse(prior="l1", noise_sd=noise, random_state=seed % 1000, verbose=False).fit(np.diag(a), y)
        said, table = model.certificate_, model.result_.summary()
        theta = np.array([np.log(model.theta_)])
        # Its log-likelihood, of as many dimensions as the signal, is not given: the oracle's at the estimate.
        return Answer(theta, table["se"].to_numpy(float), -value(theta), 0.0, said.word, str(said))

    def truth() -> Truth:
        grid = np.linspace(-4, 9, 200)
        start = grid[int(np.argmin([value(np.array([t])) for t in grid]))]
        theta, hessian, length = newton(safe(value), np.array([start]))
        regular = bool(hessian[0, 0] > 1e-3 and length < 0.02 and theta[0] < 8) and parabolic(value, theta, hessian)
        return Truth(theta, hessian[0] ** -0.5 if regular else np.array([np.nan]), -value(theta), regular)

    return Problem("sparse", "inverse", variant, run, truth)


# -- a logistic regression whose prior is estimated ------------------------------------------------


class EmpiricalBayes:
    """log p(y) of a logistic regression with prior N(mean, diag sd^2) on its coefficients, by adaptive product quadrature."""

    def __init__(self, rows: np.ndarray, y: np.ndarray, prior: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]) -> None:
        self.rows, self.y, self.prior, d = rows, y, prior, rows.shape[1]
        nodes, weights = np.polynomial.hermite_e.hermegauss(24)
        self.grid = np.stack(np.meshgrid(*[nodes] * d, indexing="ij")).reshape(d, -1)
        logs = np.log(weights / np.sqrt(2 * np.pi))
        self.log_weights = np.sum(np.meshgrid(*[logs] * d, indexing="ij"), axis=0).ravel() + np.sum(self.grid**2, axis=0) / 2

    def value(self, theta: np.ndarray) -> float:
        x, y = self.rows, self.y
        mean, sd = self.prior(theta)
        w = mean.copy()
        for _ in range(60):
            p = special.expit(x @ w)
            hessian = x.T @ (x * (p * (1 - p))[:, None]) + np.diag(sd**-2.0)
            step = np.linalg.solve(hessian, x.T @ (y - p) - (w - mean) / sd**2)
            w = w + step * min(1.0, 2.0 / max(float(np.sqrt(step @ hessian @ step)), 1e-12))
        root = np.linalg.cholesky(np.linalg.inv(hessian))
        at = w[:, None] + root @ self.grid
        eta = x @ at
        logs = y @ eta - np.sum(np.logaddexp(0, eta), axis=0) + np.sum(stats.norm.logpdf(at.T, mean, sd), axis=1)
        half = len(w) / 2 * np.log(2 * np.pi)
        return -float(special.logsumexp(logs + self.log_weights) + half + np.log(np.diag(root)).sum())


def empirical_bayes(kind: str, rng: np.random.Generator, variant: str, seed: int) -> Problem:
    n, d = (20, 2) if variant == "tiny" else (150, 2 if kind == "ard" else 3)
    share = 0.95 if variant == "collinear" else 0.2
    z = rng.normal(size=(n, d)) @ np.linalg.cholesky((1 - share) * np.eye(d) + share).T
    x = z[:, 1:]
    rows = np.column_stack([np.ones(n), x])
    w = np.full(d, 0.8) if variant == "no variance" else rng.normal(0.8, 1.2, d)
    y = (rng.random(n) < special.expit(rows @ w * (4.0 if variant == "extreme" else 1.0))).astype(int)
    y[:2] = 0, 1
    sigma, ones = 5.0**0.5, np.ones(d)
    names = {"mean": ["theta"], "mean_scale": ["theta", "sigma"], "ard": [f"sigma[{j}]" for j in range(d - 1)]}[kind]
    priors: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
        "mean": lambda theta: (theta[0] * ones, sigma * ones),
        "mean_scale": lambda theta: (theta[0] * ones, np.exp(theta[1]) * ones),
        "ard": lambda theta: (0 * ones, np.append(sigma, np.exp(theta))),
    }
    logs = {"mean": (), "mean_scale": (1,), "ard": tuple(range(d - 1))}[kind]

    def run() -> Answer:
        model = mx.EmpiricalBayesLogistic(prior=kind, random_state=seed % 1000, verbose=False).fit(x, y)
        said, table = model.certificate_, model.result_.summary()
        value = model.loglik_
        theta, se = table["estimate"].to_numpy(float).copy(), table["se"].to_numpy(float).copy()
        order = [list(table.index).index(name) for name in names]
        theta, se = theta[order], se[order]
        for j in logs:
            se[j], theta[j] = se[j] / theta[j], np.log(theta[j])
        return Answer(theta, se, float(value), value.se, said.word, str(said))

    def truth() -> Truth:
        one = EmpiricalBayes(rows, y.astype(float), priors[kind])
        k = len(names)
        found = oracles.maximum(one.value, [np.full(k, s) for s in (0.0, 1.0, -1.0)], edge=-3.0, logs=logs)
        return found._replace(regular=found.regular and parabolic(one.value, found.theta))

    return Problem("sparse", f"empirical {kind}", variant, run, truth)


MODELS: dict[str, Callable[..., Problem]] = {
    "mixed": mixed,
    "inverse": inverse,
    "empirical mean": lambda *a: empirical_bayes("mean", *a),
    "empirical mean_scale": lambda *a: empirical_bayes("mean_scale", *a),
    "empirical ard": lambda *a: empirical_bayes("ard", *a),
}
