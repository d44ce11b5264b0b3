"""Mixed models by their estimator's defaults: random intercepts of every kind of response, against integrals over a grid."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import oracles
import pandas as pd
from scipy import special, stats

import margaux as mx
from problem import Answer, Problem

VARIANTS = ("plain", "tiny", "no variance", "rare", "extreme", "skewed", "uneven", "far away")
#: rows whose densities over the grid are made at once
TOGETHER = 500

#: log density of rows given the predictor and the response's parameter; what draws them; the names of that parameter
DENSITIES: dict[str, tuple[Callable, Callable, str]] = {
    "poisson": (
        lambda y, eta, _: stats.poisson.logpmf(y, np.exp(eta)),
        lambda rng, eta: rng.poisson(np.exp(np.minimum(eta, 9))),
        "",
    ),
    "binomial": (
        lambda y, eta, _: y * eta - np.logaddexp(0, eta),
        lambda rng, eta: rng.binomial(1, special.expit(eta)),
        "",
    ),
    "nbinom2": (
        lambda y, eta, k: stats.nbinom.logpmf(y, k, k / (k + np.exp(eta))),
        lambda rng, eta: rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(np.minimum(eta, 9)))),
        "theta",
    ),
    "gamma": (
        lambda y, eta, s: stats.gamma.logpdf(y, s**-2, scale=np.exp(eta) * s**2),
        lambda rng, eta: rng.gamma(4.0, np.exp(eta) / 4.0) + 1e-12,
        "sigma",
    ),
    "gaussian": (
        lambda y, eta, s: stats.norm.logpdf(y, eta, s),
        lambda rng, eta: rng.normal(eta, 0.8),
        "sigma",
    ),
}  # fmt: skip


def table(rng: np.random.Generator, family: str, variant: str) -> pd.DataFrame:
    """Rows with a covariate, their groups and the response."""
    n, rows = {"tiny": (6, 4), "uneven": (30, 1)}.get(variant, (40, 6))
    sizes = rng.integers(1, 20, n) if variant == "uneven" else np.full(n, rows)
    g = np.repeat(np.arange(n), sizes)
    x = rng.normal(size=len(g))
    b = rng.exponential(size=n) - 1 if variant == "skewed" else rng.normal(size=n)
    sd = {"no variance": 0.0, "extreme": 2.5}.get(variant, 0.7)
    intercept = {"rare": -2.5, "far away": 4.0}.get(variant, 0.3)
    y = DENSITIES[family][1](rng, intercept + 0.5 * x + sd * b[g])
    return pd.DataFrame({"x": x, "g": g, "y": unit(family, variant) * y})


def unit(family: str, variant: str) -> float:
    """What measurements are in: the oracle's parameters are in units of it."""
    return 1000.0 if variant == "far away" and family == "gaussian" else 1.0


def draw(family: str) -> Callable[[np.random.Generator, str, int], Problem]:
    density, _, name = DENSITIES[family]

    def made(rng: np.random.Generator, variant: str, seed: int) -> Problem:
        data = table(rng, family, variant)
        while len(np.unique(data["y"])) < 2:
            data = table(rng, family, variant)
        found: dict[str, np.ndarray] = {}
        size = unit(family, variant)

        def run() -> Answer:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = mx.GLMM("y ~ x + (1 | g)", family=family, verbose=False, random_state=seed).fit(data)
                own, se = model.params_, model.stderr_
                logs = [key for key in ("sd_g", name) if key]
                theta = [own["Intercept"] / size, own["x"] / size, *(np.log(own[key] / size) for key in logs)]
                errors = [se["Intercept"] / size, se["x"] / size, *(se[key] / own[key] for key in logs)]
            found["theta"] = np.array(theta)
            word = model.certificate_
            return Answer(np.array(theta), np.array(errors), float(model.loglik_), model.loglik_.se, word.word, str(word))

        x, y, g = (data[key].to_numpy() for key in ("x", "y", "g"))
        y = y / size if size > 1 else y
        starts = np.flatnonzero(np.diff(g, prepend=-1))

        def value(theta: np.ndarray) -> float:
            eta, own = theta[0] + theta[1] * x, np.exp(theta[3]) if name else None

            def log_p(b: np.ndarray) -> np.ndarray:
                b = np.broadcast_to(b, (len(starts), b.shape[-1]))
                rows = (density(y[i : i + TOGETHER, None], eta[i : i + TOGETHER, None] + b[g[i : i + TOGETHER]], own)
                        for i in range(0, len(y), TOGETHER))  # fmt: skip
                return np.add.reduceat(np.concatenate(list(rows)), starts)

            return len(y) * np.log(size) - oracles.over_intercepts(log_p, theta[2])

        def truth() -> oracles.Truth:
            first = np.array([0.3, 0.4, -0.5] + ([0.0] if name else []))
            ours = np.clip(np.nan_to_num(found["theta"], posinf=8, neginf=-8), -20, 20)
            return oracles.maximum(value, [first, ours, ours + 0.3], logs=(2,))

        return Problem("glmm", family, variant, run, truth, misspecified=variant == "skewed")

    return made


MODELS = {family: draw(family) for family in DENSITIES}
