"""Regressions with missing covariates, fitted by their estimators' defaults: logistic, linear, Poisson, a binary covariate."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from oracles_missing import Regression
from scipy import special

import margaux as mx
from problem import Answer, Problem

VARIANTS = ("plain", "random holes", "tiny", "quasi-separation", "collinear", "heavy missingness", "heavy tails")
#: rows of a problem, and of a tiny one
SIZES, TINY = (120, 400), 25


def covariates(rng: np.random.Generator, variant: str, n: int, p: int) -> np.ndarray:
    """Gaussian, correlated by 0.4; all but the same, or of three degrees of freedom."""
    share = 0.995 if variant == "collinear" else 0.4
    root = np.linalg.cholesky((1 - share) * np.eye(p) + share)
    x = rng.standard_t(3, size=(n, p)) if variant == "heavy tails" else rng.normal(size=(n, p))
    return np.array([1.0, -0.5, 0.0])[:p] + x @ root.T * np.array([1.0, 2.0, 0.5])[:p]


def with_holes(rng: np.random.Generator, variant: str, x: np.ndarray) -> np.ndarray:
    """Completely at random, or by the first column, which is then always observed."""
    share = 0.6 if variant == "heavy missingness" else 0.2
    if variant != "random holes":
        return np.where(rng.random(x.shape) < share, np.nan, x)
    chance = special.expit(1.5 * (x[:, :1] - np.median(x[:, 0])) - 1)
    hole = rng.random(x.shape) < chance
    hole[:, 0] = False
    return np.where(hole, np.nan, x)


def outcome(rng: np.random.Generator, kind: str, variant: str, x: np.ndarray) -> np.ndarray:
    """By the model, with slopes drawn at random."""
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    slopes = rng.normal(0, 0.6, x.shape[1]) * (0.5 if kind == "poisson" else 1.0)
    eta = rng.normal(0.2, 0.3) + z @ slopes
    if variant == "quasi-separation":
        eta = 8.0 * z[:, 0] if kind == "logistic" else eta - 3.0 if kind == "poisson" else 10 * eta
    if kind == "logistic":
        y = (rng.random(len(x)) < special.expit(eta)).astype(float)
        y[:2] = 0.0, 1.0
        return y
    if kind == "poisson":
        y = rng.poisson(np.exp(np.minimum(eta, 6))).astype(float)
        return y if y.any() else np.r_[1.0, y[1:]]
    return eta + rng.normal(size=len(x)) * np.exp(rng.normal(0, 0.3))


def run(kind: str, x: np.ndarray, y: np.ndarray, discrete: Any = None) -> Answer:
    made: dict[str, Callable[..., Any]] = {"logistic": mx.MissingLogistic, "gaussian": mx.MissingLinear}
    make = made.get(kind, lambda **settings: mx.MissingGLM(family="poisson", **settings))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(discrete=discrete, verbose=False).fit(x, y)
    table, said = model.summary(), model.certificate_
    estimate, se = table["estimate"].to_numpy(float), table["se"].to_numpy(float)
    return Answer(estimate, se, float(model.loglik_), model.loglik_.se, said.word, str(said))


def plain(kind: str, rng: np.random.Generator, variant: str, seed: int) -> Problem:
    n, p = TINY if variant == "tiny" else int(rng.choice(SIZES)), int(rng.integers(2, 4))
    whole = covariates(rng, variant, n, p)
    y = outcome(rng, kind, variant, whole)
    x = with_holes(rng, variant, whole)
    x[0] = whole[0]
    return Problem("missing", kind, variant, lambda: run(kind, x, y), lambda: Regression(kind, x, y).maximum(rng),
                   variant == "heavy tails")  # fmt: skip


def binary(rng: np.random.Generator, variant: str, seed: int) -> Problem:
    """A binary column, the last one, with holes; the means of the others depend on it."""
    n = TINY if variant == "tiny" else int(rng.choice(SIZES))
    d = (rng.random(n) < 0.35).astype(float)
    d[:4] = 0.0, 1.0, 0.0, 1.0
    whole = covariates(rng, variant, n, 2) + 0.8 * d[:, None]
    y = outcome(rng, "logistic", variant, np.column_stack([whole, d]))
    x = with_holes(rng, variant, np.column_stack([whole, d]))
    x[:4] = np.column_stack([whole, d])[:4]
    return Problem("missing", "binary covariate", variant, lambda: run("logistic", x, y, [2]),
                   lambda: Regression("logistic", x[:, :2], y, x[:, 2]).maximum(rng), variant == "heavy tails")  # fmt: skip


MODELS: dict[str, Callable[..., Problem]] = {
    "logistic": lambda *a: plain("logistic", *a),
    "linear": lambda *a: plain("gaussian", *a),
    "poisson": lambda *a: plain("poisson", *a),
    "binary covariate": binary,
}
