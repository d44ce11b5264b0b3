"""Bayesian regressions as variational fits of one layer, whose best ELBO is known: theta are posterior means, their errors the
posterior standard deviations, and the log-likelihood the ELBO."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from oracles import Truth
from scipy import optimize, special

import margaux as mx
from problem import Answer, Problem

VARIANTS = ("plain", "tiny", "collinear", "strong", "far start", "wide scales")
#: rows and columns of a problem, and of a tiny one
SIZES, TINY = ((100, 3), (400, 8)), (10, 3)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


class MeanField:
    """The negative ELBO of independent Gaussians over (mean, log sd, log noise where it is estimated), prior N(0, 1).

    Args:
        kind: "gaussian", "logistic" or "poisson". rows: (n, d), of the predictor. noise: of a Gaussian outcome, None to estimate
            it.
    """

    def __init__(self, kind: str, rows: np.ndarray, y: np.ndarray, noise: float | None = 1.0) -> None:
        self.kind, self.rows, self.y, self.noise = kind, rows, y, noise if kind == "gaussian" else 1.0

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        x, y, d = self.rows, self.y, self.rows.shape[1]
        mu, sd = theta[:d], np.exp(theta[d : 2 * d])
        m, s = x @ mu, np.sqrt(x**2 @ sd**2)
        extra = []
        if self.kind == "gaussian":
            log_noise = theta[-1] if self.noise is None else np.log(self.noise)
            v = np.exp(2 * log_noise)
            square = (y - m) ** 2 + s**2
            value = -0.5 * np.sum(np.log(2 * np.pi * v) + square / v)
            by_m, by_s = (y - m) / v, -s / v
            extra = [np.sum(square / v - 1)] if self.noise is None else []
        else:
            eta = m[:, None] + s[:, None] * NODES
            rate = special.expit(eta) if self.kind == "logistic" else np.exp(np.minimum(eta, 50))
            log_p = y[:, None] * eta - (
                np.logaddexp(0, eta) if self.kind == "logistic" else rate + special.gammaln(y + 1)[:, None]
            )
            value = float(np.sum(log_p @ WEIGHTS))
            slope = y[:, None] - rate
            by_m, by_s = slope @ WEIGHTS, (slope * NODES) @ WEIGHTS
        value -= np.sum((mu**2 + sd**2 - 1) / 2 - np.log(sd))
        by_sd = (by_s / np.maximum(s, 1e-300)) @ x**2 * sd**2 + 1 - sd**2
        return -value, -np.concatenate([x.T @ by_m - mu, by_sd, extra])

    def best(self) -> Truth:
        d = self.rows.shape[1]
        start = np.concatenate([np.zeros(d), np.full(d, -1.0), [0.0] * (self.noise is None)])
        found = optimize.minimize(self, start, jac=True, method="L-BFGS-B",
                                  options={"maxiter": 5000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-7})  # fmt: skip
        return Truth(found.x[:d], np.exp(found.x[d : 2 * d]), -float(found.fun), True)


def data(rng: np.random.Generator, kind: str, variant: str) -> tuple[np.ndarray, np.ndarray]:
    n, d = TINY if variant == "tiny" else SIZES[rng.integers(2)]
    share = 0.98 if variant == "collinear" else 0.3
    x = rng.normal(size=(n, d)) @ np.linalg.cholesky((1 - share) * np.eye(d) + share).T
    if variant == "wide scales":
        x = x * np.geomspace(0.1, 10.0, d)
    w = rng.normal(size=d) / (np.std(x, axis=0) * np.sqrt(d)) * (4.0 if variant == "strong" and kind != "poisson" else 1.0)
    eta = x @ w + 0.3
    if kind == "gaussian":
        return x, eta + rng.normal(size=n)
    if kind == "logistic":
        y = (rng.random(n) < special.expit(eta)).astype(float)
        y[:2] = 0.0, 1.0
        return x, y
    return x, rng.poisson(np.exp(np.minimum(eta, 4) + (2.0 if variant == "strong" else 0.0))).astype(float)


def by_density(kind: str, rng: np.random.Generator, variant: str, seed: int) -> Problem:
    """`mx.fit_variational` of weights and an intercept, N(0, 1) each; noise of one."""
    x, y = data(rng, kind, variant)
    rows = np.column_stack([np.ones(len(x)), x])

    def log_density(w: Any, row: Any) -> Any:
        eta = row["x"] @ w
        if kind == "gaussian":
            return jax.scipy.stats.norm.logpdf(row["y"], eta)
        return row["y"] * eta - jnp.logaddexp(0.0, eta)

    start = np.full(rows.shape[1], 4.0 if variant == "far start" else 0.0)

    def run() -> Answer:
        found = mx.fit_variational(log_density, start, {"x": rows, "y": y}, progress=False, throw=False, key=seed,
                                   log_prior=lambda w: jnp.sum(jax.scipy.stats.norm.logpdf(w)))  # fmt: skip
        return Answer(np.asarray(found.mean), np.asarray(found.sd), float(found.elbo), found.elbo.se, *word(found))

    return Problem("networks", f"density {kind}", variant, run, MeanField(kind, rows, y).best)


def word(found: Any) -> tuple[str, str]:
    """Of a certificate; where there is none, whether it has converged."""
    said = getattr(found, "certificate_", None) or getattr(found, "certificate", None)
    if said is not None:
        return said.word, str(said)
    converged = found.converged_ if hasattr(found, "converged_") else found.converged
    return ("certified" if converged else "careful"), found.message_ if hasattr(found, "message_") else found.message


def by_estimator(kind: str, rng: np.random.Generator, variant: str, seed: int) -> Problem:
    """`mx.BayesianRegressor` (its noise estimated) or `mx.BayesianClassifier`, of one linear layer on standardised columns."""
    x, y = data(rng, kind, variant)
    outputs = 2 if kind == "logistic" else 1
    layer = eqx.nn.Linear(x.shape[1], outputs, key=jax.random.key(seed))
    if variant == "far start":
        layer = eqx.tree_at(lambda one: one.weight, layer, layer.weight + 2.0)
    z = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(x))])

    def run() -> Answer:
        settings: dict[str, Any] = {"network": layer, "random_state": seed % 1000, "verbose": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind == "logistic":
                found = mx.BayesianClassifier(**settings).fit(x, y)
            else:
                found = mx.BayesianRegressor(likelihood=kind, **settings).fit(x, y)
        mean, sd = (np.concatenate([np.ravel(one["weight"]), np.ravel(one["bias"])]) for one in (found.params_, found.stderr_))
        return Answer(mean, sd, float(found.elbo_), found.elbo_.se, *word(found))

    if kind == "logistic":
        return Problem("networks", "classifier", variant, run, lambda: two_outputs(z, y))
    scale = float(y.std()) if kind == "gaussian" else 1.0
    target = (y - y.mean()) / scale if kind == "gaussian" else y
    best = MeanField(kind, z, target, None).best

    def truth() -> Truth:
        found = best()
        return found._replace(loglik=found.loglik - len(y) * np.log(scale))

    return Problem("networks", kind, variant, run, truth)


def two_outputs(z: np.ndarray, y: np.ndarray) -> Truth:
    """Softmax of two outputs: by symmetry the second has minus the weights of the first, and the same deviations."""
    d = z.shape[1]
    difference = MeanField("logistic", z, y, 1.0)

    def value(theta: np.ndarray) -> tuple[float, np.ndarray]:
        # The difference of outputs has mean 2 mu and variance twice that of each: its own divergence is taken out.
        mu, log_sd = theta[:d], theta[d:]
        inner = np.concatenate([2 * mu, log_sd + np.log(2) / 2])
        here, slope = difference(inner)
        own = np.sum((4 * mu**2 + 2 * np.exp(2 * log_sd) - 1) / 2 - inner[d:])
        both = 2 * np.sum((mu**2 + np.exp(2 * log_sd) - 1) / 2 - log_sd)
        by_mu = 2 * slope[:d] - 4 * mu + 2 * mu
        by_log_sd = slope[d:] - (2 * np.exp(2 * log_sd) - 1) + 2 * (np.exp(2 * log_sd) - 1)
        return here - own + both, np.concatenate([by_mu, by_log_sd])

    found = optimize.minimize(value, np.r_[np.zeros(d), np.full(d, -1.0)], jac=True, method="L-BFGS-B",
                              options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-7})  # fmt: skip
    mu, sd = found.x[:d], np.exp(found.x[d:])
    # In the order of the tensors: weights (2, columns), then biases (2,).
    order = np.r_[0 : d - 1, d : 2 * d - 1, d - 1, 2 * d - 1]
    return Truth(np.r_[-mu, mu][order], np.r_[sd, sd][order], -float(found.fun), True)


MODELS: dict[str, Callable[..., Problem]] = {
    "density linear": lambda *a: by_density("gaussian", *a),
    "density logistic": lambda *a: by_density("logistic", *a),
    "regressor": lambda *a: by_estimator("gaussian", *a),
    "counts": lambda *a: by_estimator("poisson", *a),
    "classifier": lambda *a: by_estimator("logistic", *a),
}
