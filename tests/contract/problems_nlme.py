"""Nonlinear mixed effects by `NLME` with its defaults, against integrals over two random effects on NumPy grids."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import oracles
import pandas as pd
from scipy import special, stats

import margaux as mx
from margaux.families.nlme import Bernoulli, LogNormal, Normal, Poisson, curve, polynomial
from problem import Answer, Problem

VARIANTS = ("plain", "tiny", "no variance", "far start", "heavy tails")
#: subjects of the plain variants and of the tiny one
SIZES = (40, 8)
#: the grid of each random effect, in standard deviations; with 41 points the sum over a narrow posterior aslant is off by 4e-4,
#: and second differences of it are worth nothing
GRID = np.linspace(-6.0, 6.0, 61)
A, B = (one.ravel() for one in np.meshgrid(GRID, GRID))
LOG_CELL = 2 * np.log(GRID[1] - GRID[0])


# One object each, so that programs are compiled once.
LINE, CURVES = polynomial(1), {"emax": curve("emax"), "bolus": curve("bolus1cpt")}
OUTCOMES = {"binary": Bernoulli(LINE), "poisson": Poisson(LINE)}


class OverTwo:
    """Sum over subjects of log of the integral of exp(log_p(b)) N(b; 0, diag(sd^2)) db, over a grid that follows each of them.

    Where the mass of a subject is, is found by laying the grid over it again and again; the next call begins where the last
    one ended, and lays it anew where that has moved.

    Args:
        log_p: two (n, g) to (n, g).
    """

    def __init__(self, n: int) -> None:
        self.first = np.zeros((n, 2)), np.ones((n, 2))
        self.centre, self.spread = self.first

    def __call__(self, log_p: Callable[[np.ndarray, np.ndarray], np.ndarray], log_sds: np.ndarray) -> float:
        sds = np.exp(log_sds)
        for attempt in range(12):
            x, y = (self.centre[:, j, None] + self.spread[:, j, None] * one for j, one in enumerate((A, B)))
            with np.errstate(all="ignore"):
                logs = log_p(sds[0] * x, sds[1] * y) - (x**2 + y**2) / 2
            logs = np.where(np.isfinite(logs), logs, -np.inf)
            top = logs.max(axis=1, keepdims=True)
            w = np.exp(logs - top)
            total = w.sum(axis=1, keepdims=True)
            value = float(np.sum(np.log(total) + top) + np.sum(np.log(self.spread)) + len(logs) * (LOG_CELL - np.log(2 * np.pi)))
            w /= total
            centre = np.column_stack([(w * x).sum(axis=1), (w * y).sum(axis=1)])
            spread = np.sqrt(
                np.column_stack([(w * (x - centre[:, :1]) ** 2).sum(axis=1), (w * (y - centre[:, 1:]) ** 2).sum(axis=1)])
            )
            # The grid has ten points a standard deviation or so, and reaches nine of them to either side.
            ratio = np.maximum(spread, 0.25 * self.spread) * 1.4 / self.spread
            moved = np.abs(centre - self.centre) / self.spread
            if not np.all(np.isfinite(ratio)):
                if attempt:
                    return -np.inf
                self.centre, self.spread = self.first
                continue
            if np.all((ratio > 0.6) & (ratio < 1.6) & (moved < 0.7)):
                return value
            self.centre, self.spread = centre, self.spread * ratio
        return value


def by_nlme(model: mx.NLME, frame: pd.DataFrame, names: list[str], logs: list[str], **roles: Any) -> Answer:
    """Variances and errors are compared on the scale of their logarithms."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(frame, id="id", y="y", **roles)
        except mx.FitError as error:
            nan = np.full(len(names), np.nan)
            return Answer(nan, nan, np.nan, 0.0, "failed", str(error))
        table = model.summary()
    theta = np.array([model.params_.get(name, 0.0) for name in names])
    se = table["se"].reindex(names).to_numpy(float)
    at = np.array([name in logs for name in names])
    with np.errstate(all="ignore"):
        se = np.where(at, se / theta, se)
        theta = np.where(at, np.log(theta), theta)
    value = model.loglik_
    return Answer(theta, se, float(value), value.se, model.certificate_.word, str(model.certificate_))


def line(rng: np.random.Generator, variant: str, seed: int) -> Problem:
    """y = c0 + c1 t + noise, both random: the marginal is Gaussian."""
    n, t = SIZES[variant == "tiny"], np.linspace(0.0, 1.0, 5)
    sds = np.exp(rng.normal([-0.3, -0.3], 0.4)) * (1.0, 0.0 if variant == "no variance" else 1.0)
    centre, noise = rng.normal(0, 1, 2), float(np.exp(rng.normal(-1, 0.3)))
    b = centre + sds * rng.normal(size=(n, 2))
    error = rng.standard_t(3, (n, 5)) if variant == "heavy tails" else rng.normal(size=(n, 5))
    y = b[:, :1] + b[:, 1:] * t + noise * error
    off = 3.0 if variant == "far start" else 1.0
    model = mx.NLME(structural=LINE, individual={"c0": Normal(off * centre[0]), "c1": Normal(off * centre[1])},
                    random_state=seed, verbose=False)  # fmt: skip
    X = np.column_stack([np.ones(5), t])

    def value(theta: np.ndarray) -> float:
        cov = X @ np.diag(np.exp(theta[2:4])) @ X.T + np.exp(2 * theta[4]) * np.eye(5)
        return -float(stats.multivariate_normal(X @ theta[:2], cov).logpdf(y).sum())

    frame = pd.DataFrame({"id": np.repeat(np.arange(n), 5), "time": np.tile(t, n), "y": y.ravel()})
    names, logs = ["c0", "c1", "omega2_c0", "omega2_c1", "a"], ["omega2_c0", "omega2_c1", "a"]
    at = np.array([*centre, *2 * np.log(np.maximum(sds, 0.1)), np.log(noise)])
    starts = [at, at - [0, 0, 0, 3, 0], at - [0, 0, 3, 0, 0]]
    return Problem("nlme", "line", variant, lambda: by_nlme(model, frame, names, logs, time="time"),
                   lambda: oracles.maximum(value, starts, edge=-9.0, logs=(2, 3)), variant == "heavy tails")  # fmt: skip


def curved(name: str, rng: np.random.Generator, variant: str, seed: int) -> Problem:
    """Emax, or a bolus of one compartment: two log-normal parameters, constant error."""
    n = SIZES[variant == "tiny"]
    if name == "emax":
        x, typical, parameters = np.array([5.0, 20.0, 80.0, 300.0]), np.array([100.0, 50.0]), ("Emax", "EC50")
        f = lambda a, b: a[..., None] * x / (b[..., None] + x)  # noqa: E731
        noise = float(rng.uniform(3, 12))
    else:
        x, typical, parameters = np.array([0.5, 2.0, 6.0, 14.0]), np.array([10.0, 1.5]), ("V", "CL")
        f = lambda a, b: 100.0 / a[..., None] * np.exp(-(b / a)[..., None] * x)  # noqa: E731
        noise = float(rng.uniform(0.3, 1.2))
    typical = typical * np.exp(rng.normal(0, 0.2, 2))
    sds = rng.uniform(0.25, 0.7, 2) * (1.0, 0.0 if variant == "no variance" else 1.0)
    phi = np.log(typical) + sds * rng.normal(size=(n, 2))
    error = rng.standard_t(3, (n, 4)) if variant == "heavy tails" else rng.normal(size=(n, 4))
    y = f(np.exp(phi[:, 0]), np.exp(phi[:, 1])) + noise * error
    off = np.exp(rng.choice([-1, 1], 2) * np.log(3.0)) if variant == "far start" else np.ones(2)
    individual = {key: LogNormal(float(value)) for key, value in zip(parameters, typical * off, strict=True)}
    model = mx.NLME(structural=CURVES[name], individual=individual, random_state=seed, verbose=False)
    constant, integral = -2 * np.log(2 * np.pi), OverTwo(n)

    def value(theta: np.ndarray) -> float:
        if np.any(np.abs(theta - at) > (4, 4, 14, 14, 3)):
            return np.inf
        s = np.exp(theta[4])

        def log_p(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            curves = f(np.exp(theta[0] + a), np.exp(theta[1] + b))
            return -((y[:, None] - curves) ** 2).sum(axis=2) / (2 * s**2) - 4 * theta[4] + constant

        return -integral(log_p, theta[2:4] / 2)

    frame = pd.DataFrame({"id": np.repeat(np.arange(n), 4), "time": np.tile(x, n), "y": y.ravel(), "dose": 100.0})
    names = [*parameters, *(f"omega2_{key}" for key in parameters), "a"]
    roles = {"time": "time"} | ({} if name == "emax" else {"dose": "dose"})
    at = np.array([*np.log(typical), *2 * np.log(np.maximum(sds, 0.1)), np.log(noise)])
    starts = [at, at - [0, 0, 0, 3, 0]]
    return Problem("nlme", name, variant, lambda: by_nlme(model, frame, names, names, **roles),
                   lambda: oracles.maximum(value, starts, edge=-9.0, logs=(2, 3)), variant == "heavy tails")  # fmt: skip


def counted(kind: str, rng: np.random.Generator, variant: str, seed: int) -> Problem:
    """Counts or binary outcomes: a random intercept and a common slope in time."""
    n, t = SIZES[variant == "tiny"] * 2, np.linspace(-1.0, 1.0, 6)
    sd = 0.0 if variant == "no variance" else float(rng.uniform(0.4, 1.5))
    centre = rng.normal(0.3, 0.5, 2)
    effect = rng.standard_t(3, (n, 1)) if variant == "heavy tails" else rng.normal(size=(n, 1))
    eta = centre[0] + sd * np.clip(effect, -5, 5) + centre[1] * t
    y = (rng.poisson(np.exp(eta)) if kind == "poisson" else rng.random((n, 6)) < special.expit(eta)).astype(float)
    off = 3.0 if variant == "far start" else 1.0
    individual = {"c0": Normal(off * centre[0]), "c1": Normal(off * centre[1], random=False)}
    model = mx.NLME(log_likelihood=OUTCOMES[kind], individual=individual, random_state=seed, verbose=False)

    def value(theta: np.ndarray) -> float:
        if np.any(np.abs(theta) > 30):
            return np.inf
        fixed = theta[0] + theta[1] * t
        constant = -special.gammaln(y + 1).sum() if kind == "poisson" else 0.0

        def log_p(b: np.ndarray) -> np.ndarray:
            b = np.broadcast_to(b, (n, b.shape[-1]))
            linear = y.sum(axis=1)[:, None] * b + (y @ fixed)[:, None]
            each = [np.exp(np.minimum(f + b, 500)) if kind == "poisson" else np.logaddexp(0, f + b) for f in fixed]
            return linear - np.sum(each, axis=0)

        return -oracles.over_intercepts(log_p, theta[2] / 2) - constant

    frame = pd.DataFrame({"id": np.repeat(np.arange(n), 6), "time": np.tile(t, n), "y": y.ravel()})
    at = np.array([*centre, 2 * np.log(max(sd, 0.2))])
    starts = [at, at - [0, 0, 3], at + [0, 0, 1]]
    return Problem("nlme", kind, variant, lambda: by_nlme(model, frame, ["c0", "c1", "omega2_c0"], ["omega2_c0"], time="time"),
                   lambda: oracles.maximum(value, starts, edge=-9.0, logs=(2,)), variant == "heavy tails")  # fmt: skip


MODELS: dict[str, Callable[..., Problem]] = {
    "line": line,
    "emax": lambda *a: curved("emax", *a),
    "bolus": lambda *a: curved("bolus", *a),
    "binary": lambda *a: counted("binary", *a),
    "poisson": lambda *a: counted("poisson", *a),
}
