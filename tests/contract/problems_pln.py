"""Principal components of counts by `PLNPCA` with its defaults, against integrals over one latent on a NumPy grid."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import oracles
from scipy import optimize, special

import margaux as mx
from problem import Answer, Problem

VARIANTS = ("plain", "tiny", "no variance", "few counts", "overdispersed")
#: units of the plain variants and of the tiny one, and features
SIZES, FEATURES = (80, 15), 5
GRID = np.linspace(-8.0, 8.0, 401)


def minus_loglik(flat: np.ndarray, y: np.ndarray, x: np.ndarray) -> tuple[float, np.ndarray]:
    """Of y_ij ~ Poisson(exp(x_i b_j + c_j w_i)), w_i ~ N(0, 1), and its gradient; theta holds B (k, p) and c (p,)."""
    k, p = x.shape[1], y.shape[1]
    B, c = flat[: k * p].reshape(k, p), flat[k * p :]
    fixed = x @ B
    with np.errstate(over="ignore"):
        rates = np.exp(np.minimum(fixed[:, None] + GRID[None, :, None] * c, 300))
    logs = (y * fixed).sum(axis=1)[:, None] + np.outer(y @ c, GRID) - rates.sum(axis=2) - GRID**2 / 2
    log_total = np.asarray(special.logsumexp(logs, axis=1))
    w = np.exp(logs - log_total[:, None])
    rate, weighted = np.einsum("ig,igp->ip", w, rates), np.einsum("ig,g,igp->ip", w, GRID, rates)
    slope = np.concatenate([(x.T @ (y - rate)).ravel(), y.T @ (w @ GRID) - weighted.sum(axis=0)])
    constant = len(y) * (np.log(GRID[1] - GRID[0]) - 0.5 * np.log(2 * np.pi)) - special.gammaln(y + 1).sum()
    return -float(log_total.sum() + constant), -slope


def truth(y: np.ndarray, x: np.ndarray, size: int, edge: float) -> oracles.Truth:
    """From several starts; the sign of c is that of its largest entry. Compared are the first `size` parameters."""
    k, p = x.shape[1], y.shape[1]
    first = np.zeros((k, p))
    first[0] = np.log(y.mean(axis=0) + 0.1)
    rng = np.random.default_rng(0)
    best = None
    for scale in (0.1, 0.5, 0.5, 1.0):
        start = np.concatenate([first.ravel(), scale * rng.normal(size=p)])
        found = optimize.minimize(minus_loglik, start, (y, x), jac=True, method="BFGS", options={"gtol": 1e-6, "maxiter": 500})
        if best is None or found.fun < best.fun:
            best = found
    theta = best.x
    hessian = np.array([(minus_loglik(theta + e, y, x)[1] - minus_loglik(theta - e, y, x)[1]) / 2e-4
                        for e in 1e-4 * np.eye(len(theta))])  # fmt: skip
    values = np.linalg.eigvalsh(hessian) if np.all(np.isfinite(hessian)) else np.array([-1.0])
    regular = bool(values[0] > 1e-3 and np.linalg.norm(theta[k * p :]) > edge and np.all(np.abs(theta) < 12))
    se = np.sqrt(np.diag(np.linalg.inv(hessian))) if regular else np.full(len(theta), np.nan)
    return oracles.Truth(theta[:size], se[:size], -float(best.fun), regular)


def counted(covariate: bool, rng: np.random.Generator, variant: str, seed: int) -> Problem:
    """An intercept, or a covariate besides, and one component."""
    n, p = SIZES[variant == "tiny"], FEATURES
    x = np.column_stack([np.ones(n), rng.normal(size=n)])[:, : 1 + covariate]
    level = -1.0 if variant == "few counts" else 1.2
    B = np.vstack([rng.normal(level, 0.5, p), rng.normal(0, 0.4, p)])[: 1 + covariate]
    c = rng.normal(0, 0.6, p) * (variant != "no variance")
    eta = x @ B + rng.normal(size=(n, 1)) * c
    if variant == "overdispersed":
        eta = eta + rng.normal(0, 0.6, (n, p))
    y = rng.poisson(np.exp(eta)).astype(float)
    y[0, y.sum(axis=0) == 0] = 1.0

    def run() -> Answer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = mx.PLNPCA(rank=1, random_state=seed, verbose=False)
            model.fit(y, covariates=x[:, 1:] if covariate else None)
            value = model.loglik_
            theta, se = np.asarray(model.coef_), np.asarray(model.stderr_["coef"])
            return Answer(theta.ravel(), se.ravel(), float(value), value.se, model.certificate_.word, str(model.certificate_))

    size = x.shape[1] * p
    kind = "covariate" if covariate else "intercept"
    return Problem("pln", kind, variant, run, lambda: truth(y, x, size, 0.05), variant == "overdispersed")


MODELS: dict[str, Callable[..., Problem]] = {
    "intercept": lambda *a: counted(False, *a),
    "covariate": lambda *a: counted(True, *a),
}
