"""Crude coefficients by iteratively reweighted least squares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .base import Crude

#: steps; the bound of a predictor on the scale of its spread under the link; a ridge, as a share of the mean curvature
STEPS, BOUND, RIDGE = 8, 8.0, 1e-3
#: by how much a predictor moves to see what its mean does
NUDGE = 1e-5


def coefficients(crude: Crude, X: np.ndarray, offset: np.ndarray | None = None, weights: np.ndarray | None = None) -> np.ndarray:
    r"""Coefficients (p,) of $E[\text{target}] = g^{-1}(X\beta + o)$.

    A small ridge and a bound on the predictor keep them finite where they are infinite, as under separation. With links that ask
    for a positive predictor it is kept there.
    """
    if X.shape[1] == 0:
        return np.zeros(0)
    if crude.intercept:
        return coefficients(crude._replace(intercept=False), np.column_stack([np.ones(len(X)), X]), offset, weights)[1:]
    n, p = X.shape
    link = crude.link
    offset = np.zeros(n) if offset is None else np.asarray(offset, float)
    prior = crude.weights * (1.0 if weights is None else np.asarray(weights, float))
    eta = link.of_mean(crude.begin)
    low, high = _range(link.name, eta)
    norms = np.sqrt(np.mean(X**2, axis=0))
    scaled = X / np.where(norms > 0, norms, 1.0)
    beta = np.zeros(p)
    for _ in range(STEPS):
        eta = np.clip(eta, low, high)
        step = NUDGE * np.maximum(1.0, np.abs(eta))
        slope = (link.mean_of(eta + step) - link.mean_of(eta - step)) / (2 * step)
        mean = link.mean_of(eta)
        curvature = prior * slope**2 / np.maximum(crude.variance(mean), 1e-12)
        working = eta - offset + (crude.target - mean) / np.where(np.abs(slope) > 1e-12, slope, 1e-12)
        working = np.clip(working, low - offset - BOUND, high - offset + BOUND)
        gram = scaled.T @ (curvature[:, None] * scaled)
        gram[np.diag_indices(p)] += RIDGE * max(float(np.trace(gram)) / p, 1e-12) / max(n, 1) + 1e-12
        beta = np.linalg.lstsq(gram, scaled.T @ (curvature * working), rcond=None)[0]
        eta = scaled @ beta + offset
    return beta / np.where(norms > 0, norms, 1.0)


def _range(link: str, eta: np.ndarray) -> tuple[float, float]:
    """Where predictors may go: bounded for probabilities, near those seen for the others, positive where they must be."""
    if link in ("logit", "probit", "cloglog"):
        bound = BOUND if link == "logit" else BOUND / 2 if link == "probit" else 2.0
        return -BOUND if link == "cloglog" else -bound, bound
    spread = max(float(np.ptp(eta)), 1.0)
    low, high = float(eta.min()) - spread, float(eta.max()) + spread
    return (max(low, float(eta.min()) / 10, 1e-8), high) if link in ("inverse", "sqrt") else (low, high)
