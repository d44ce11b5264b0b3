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
    r"""Coefficients (..., p) of $E[\text{target}] = g^{-1}(X\beta + o)$ for targets (..., N); offset and weights (N,) or alike.

    A small ridge and a bound on the predictor keep them finite where they are infinite, as under separation. With links that ask
    for a positive predictor it is kept there.
    """
    if X.shape[1] == 0:
        return np.zeros((*crude.target.shape[:-1], 0))
    if crude.intercept:
        return coefficients(crude._replace(intercept=False), np.column_stack([np.ones(len(X)), X]), offset, weights)[..., 1:]
    n, p = X.shape
    link = crude.link
    offset = np.zeros(n) if offset is None else np.asarray(offset, float)
    prior = crude.weights * (1.0 if weights is None else np.asarray(weights, float))
    eta = link.of_mean(crude.begin)
    low, high = _range(link.name, eta)
    norms = np.sqrt(np.mean(X**2, axis=0))
    scaled = X / np.where(norms > 0, norms, 1.0)
    beta = np.zeros((*eta.shape[:-1], p))
    for _ in range(STEPS):
        eta = np.clip(eta, low, high)
        step = NUDGE * np.maximum(1.0, np.abs(eta))
        slope = (link.mean_of(eta + step) - link.mean_of(eta - step)) / (2 * step)
        mean = link.mean_of(eta)
        curvature = prior * slope**2 / np.maximum(crude.variance(mean), 1e-12)
        working = eta - offset + (crude.target - mean) / np.where(np.abs(slope) > 1e-12, slope, 1e-12)
        working = np.clip(working, low - offset - BOUND, high - offset + BOUND)
        gram = np.swapaxes(curvature[..., None] * scaled, -1, -2) @ scaled
        ridge = RIDGE * np.maximum(np.trace(gram, axis1=-2, axis2=-1) / p, 1e-12) / max(n, 1) + 1e-12
        gram = gram + ridge[..., None, None] * np.eye(p)
        # As least squares has it: nothing along a direction that rounding leaves without curvature.
        inverse = np.linalg.pinv(gram, rcond=p * np.finfo(float).eps, hermitian=True)
        beta = np.einsum("...ij,...j->...i", inverse, (curvature * working) @ scaled)
        eta = beta @ scaled.T + offset
    return beta / np.where(norms > 0, norms, 1.0)


def _range(link: str, eta: np.ndarray) -> tuple[float | np.ndarray, float | np.ndarray]:
    """Where predictors may go: bounded for probabilities, near those seen for the others, positive where they must be."""
    if link in ("logit", "probit", "cloglog"):
        bound = BOUND if link == "logit" else BOUND / 2 if link == "probit" else 2.0
        return -BOUND if link == "cloglog" else -bound, bound
    least, most = eta.min(axis=-1, keepdims=True), eta.max(axis=-1, keepdims=True)
    spread = np.maximum(most - least, 1.0)
    low, high = least - spread, most + spread
    return (np.maximum(np.maximum(low, least / 10), 1e-8), high) if link in ("inverse", "sqrt") else (low, high)
