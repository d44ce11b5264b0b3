"""Newton's steps to a maximum, and what information matrices tell of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .scores import Evaluation, Place

#: standard errors that a coordinate moves where there is no curvature
FLAT = 5.0
#: an eigenvalue of the information on a common scale that is below zero by no rounding
BENT = 0.1
#: what a coordinate may move in a step: a variance by a factor of seven
LEAP = 2.0


def newton(here: Evaluation | Place, free: np.ndarray, radius: float) -> tuple[np.ndarray, float, float]:
    """A step (k,) in the region, the length that it had before it was held there, and the rise it promises."""
    matrix, score = here.matrix[np.ix_(free, free)], here.gradient[free]
    step = np.zeros(free.size)
    if not free.any():
        return step, 0.0, 0.0
    if not np.all(np.isfinite(matrix)) or not np.all(np.isfinite(score)):
        return step, np.nan, 0.0
    # On a common scale, so that a floor under the eigenvalues means the same for every coordinate.
    scale = np.sqrt(np.maximum(np.abs(np.diagonal(matrix)), 1e-300))
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    values = np.maximum(np.abs(values), 1e-8)
    along = vectors.T @ (score / scale)
    length = float(np.sqrt(np.sum(along**2 / values)))
    share = min(1.0, radius / max(length, 1e-300))
    step[free] = share * (vectors @ (along / values)) / scale
    leap = np.abs(step).max() / LEAP
    if leap > 1:
        step, share = step / leap, share / leap
    return step, length, (share - share**2 / 2) * length**2


def on_a_saddle(here: Evaluation | Place, free: np.ndarray) -> bool:
    """Whether the likelihood bends upwards along some direction, as it does in the logarithm of a scale that is too near zero:
    the slope there is small, and a maximum far."""
    if not free.any():
        return False
    matrix = here.matrix[np.ix_(free, free)]
    scale = np.sqrt(np.maximum(np.abs(np.diagonal(matrix)), 1e-300))
    return bool(np.all(np.isfinite(matrix)) and np.linalg.eigvalsh(matrix / np.outer(scale, scale))[0] < -BENT)


def too_far(step: Any, own: Any) -> Any:
    """Whether steps of a standard error of coordinates are too long to be true, given the information on each alone: one that
    is known well given the others goes far with them, as an intercept does where a covariate is far from zero."""
    return ~(np.asarray(step) <= FLAT) & ~(np.isfinite(step) & (np.asarray(own) > FLAT**-2))


def inverse(matrix: np.ndarray) -> np.ndarray:
    """Of an information matrix (k, k), on a common scale: next to nothing is known of a coordinate beside much of others."""
    scale = np.sqrt(np.maximum(np.abs(np.diagonal(matrix)), 1e-300))
    return np.linalg.pinv(matrix / np.outer(scale, scale), hermitian=True) / np.outer(scale, scale)


def spread(matrix: np.ndarray, others: np.ndarray, free: np.ndarray) -> float:
    """How far information matrices (R, k, k) are from another one: the largest eigenvalue of the differences in its units, of
    the free coordinates; in directions of next to no information, in those of a thousandth of what there is in others."""
    if not free.any():
        return 0.0
    here, others = matrix[np.ix_(free, free)], np.stack([other[np.ix_(free, free)] for other in others])
    scale = np.sqrt(np.maximum(np.abs(np.diagonal(here)), 1e-300))
    here, others = here / np.outer(scale, scale), others / np.outer(scale, scale)
    if not (np.all(np.isfinite(here)) and np.all(np.isfinite(others))):
        return np.nan
    values, vectors = np.linalg.eigh(here)
    along = vectors / np.sqrt(np.maximum(np.abs(values), 1e-3))
    return float(np.abs(np.linalg.eigvalsh(along.T @ (others - here) @ along)).max())


def lengths(moves: np.ndarray, matrix: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Of Newton's steps by scores (m, f) of the free coordinates, in standard errors by an information (k, k); infinite where
    something is not finite."""
    here = matrix[np.ix_(free, free)]
    if not free.any() or not np.all(np.isfinite(here)):
        return np.full(len(moves), np.inf if free.any() else 0.0)
    square = np.einsum("mi,ij,mj->m", moves, inverse(here), moves)
    return np.where(np.isfinite(square), np.sqrt(np.maximum(square, 0.0)), np.inf)


def noise(here: Evaluation, free: np.ndarray) -> float:
    """Monte Carlo error of the length of Newton's step: how the steps by single sets of draws differ."""
    count = len(here.scores)
    if count == 1 or not free.any():
        return 0.0
    matrix = here.matrix[np.ix_(free, free)]
    totals = here.scores.sum(axis=1)[:, free]
    apart = totals - totals.mean(axis=0)
    if not np.all(np.isfinite(matrix)) or not np.all(np.isfinite(apart)):
        return np.nan
    with np.errstate(all="ignore"):
        lengths = np.einsum("ri,ri->r", apart, np.linalg.lstsq(matrix, apart.T, rcond=None)[0].T)
    return float(np.sqrt(max(np.sum(lengths), 0.0) / (count * (count - 1))))
