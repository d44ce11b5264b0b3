"""Lines of subjects, and the exact mode of the posterior density of their parameters."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

import margaux as mx
from margaux.families.nlme import InverseWishart, Normal

COLUMNS: dict[str, Any] = {"id": "id", "time": "t", "y": "y"}

#: parameters, the log-likelihood of some, and standard errors
Mode = tuple[dict[str, float], Callable[[dict[str, float]], float], dict[str, float]]


def line(psi, row):
    return psi["m"] + psi["s"] * row["t"]


def lines(n: int = 50, seed: int = 0) -> pd.DataFrame:
    """Lines of subjects, whose levels depend on x."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        x, level, slope = rng.normal(), 2.0 + 0.7 * rng.normal(), -0.5 + 0.3 * rng.normal()
        for t in np.arange(rng.integers(3, 7)) / 2:
            rows.append((i, t, x, level + 0.6 * x + slope * t + 0.4 * rng.normal()))
    return pd.DataFrame(rows, columns=["id", "t", "x", "y"])


def log_prior(priors: dict, at: dict[str, float]) -> float:
    """By SciPy, of a model whose individual parameters are normal."""
    total = 0.0
    for name, prior in priors.items():
        if isinstance(name, tuple):
            a, b = name
            cov = at.get(f"cov_{a}_{b}", at.get(f"cov_{b}_{a}"))
            matrix: Any = np.array([[at[f"omega2_{a}"], cov], [cov, at[f"omega2_{b}"]]])
            total += stats.invwishart.logpdf(matrix, prior.df, (prior.df + 3) * prior.matrix)
        elif isinstance(prior, InverseWishart):
            total += stats.invgamma.logpdf(at[name], prior.df / 2, scale=(prior.df + 2) * float(prior.matrix[0, 0]) / 2)
        elif name == "a":
            total += stats.norm.logpdf(np.log(at[name]), np.log(prior.center), np.sqrt(np.log1p(prior.cv**2)))
        else:
            total += stats.norm.logpdf(at[name], prior.center, prior.sd or prior.cv * abs(prior.center))
    return float(total)


def exact_mode(table: pd.DataFrame, priors: dict, full: bool = False) -> Mode:
    """The mode of the Gaussian likelihood times the prior, the log-likelihood of parameters, and standard errors there."""
    parts = [(own["t"].to_numpy(), own["x"].iloc[0], own["y"].to_numpy()) for _, own in table.groupby("id")]

    def natural(u: np.ndarray) -> dict[str, float]:
        root = np.array([[np.exp(u[3]), 0.0], [u[6] if full else 0.0, np.exp(u[4])]])
        omega = root @ root.T
        out = dict(zip(["m", "beta_m[x]", "s"], u[:3], strict=True))
        out |= {"omega2_m": omega[0, 0], "omega2_s": omega[1, 1]}
        return out | ({"cov_m_s": omega[0, 1]} if full else {}) | {"a": np.exp(u[5])}

    def loglik(at: dict[str, float]) -> float:
        total, cov = 0.0, at.get("cov_m_s", 0.0)
        for t, x, y in parts:
            covariance: Any = at["omega2_m"] + at["omega2_s"] * np.outer(t, t) + at["a"] ** 2 * np.eye(len(t))
            covariance += cov * (t[:, None] + t[None])
            total += stats.multivariate_normal.logpdf(y, at["m"] + at["beta_m[x]"] * x + at["s"] * t, covariance)
        return total

    def objective(u: np.ndarray) -> float:
        return -loglik(natural(u)) - log_prior(priors, natural(u))

    u = optimize.minimize(objective, np.r_[1.0, 0.0, 0.0, -0.5, -0.5, -0.5, [0.0] * full], options={"gtol": 1e-5}).x
    k, step = len(u), 1e-4 * (1 + np.abs(u))
    hessian, slopes = np.empty((k, k)), np.empty((k, 6 + full))
    for i in range(k):
        e = step * (np.arange(k) == i)
        ends = [np.array(list(natural(u + sign * e).values())) for sign in (1, -1)]
        slopes[i] = (ends[0] - ends[1]) / (2 * step[i])
        for j in range(k):
            f = step * (np.arange(k) == j)
            four = [objective(u + p * e + q * f) * p * q for p in (1, -1) for q in (1, -1)]
            hessian[i, j] = sum(four) / (4 * step[i] * step[j])
    errors = np.sqrt(np.diagonal(slopes.T @ np.linalg.inv(hessian) @ slopes))
    best = natural(u)
    return best, loglik, dict(zip(best, errors, strict=True))


def fit_lines(table: pd.DataFrame, priors: Any, **settings: Any) -> mx.NLME:
    asked: dict[str, Any] = {"individual": {"m": Normal(1.0, covariates="x"), "s": Normal(0.0)}} | settings
    return mx.NLME(structural=line, priors=priors, n_starts=1, verbose=False, **asked).fit(table, **COLUMNS)


def check_mode(fitted: mx.NLME, exact: Mode) -> None:
    best, loglik, errors = exact
    assert list(fitted.params_) == list(best)
    assert float(fitted.loglik_) == pytest.approx(loglik(fitted.params_), abs=1e-3)
    for name, value in best.items():
        assert abs(fitted.params_[name] - value) < 0.03 * errors[name]
        assert fitted.stderr_[name] == pytest.approx(errors[name], rel=0.02)
