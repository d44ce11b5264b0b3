"""How good predicted probabilities are: log score, Brier score and calibration."""

from __future__ import annotations

import numpy as np
import pandas as pd


def log_score(y: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean log probability of what was observed; larger is better.

    Args:
        y: class numbers (n,). probabilities: (n, K).
    """
    own = np.take_along_axis(probabilities, y[:, None], axis=1)
    return float(np.mean(np.log(np.maximum(own, np.finfo(float).tiny))))


def brier_score(y: np.ndarray, probabilities: np.ndarray) -> float:
    """Mean squared distance of the probabilities from the class as a unit vector (Brier 1950), between 0 and 2.

    >>> brier_score(np.array([0, 1]), np.array([[1.0, 0.0], [0.5, 0.5]]))
    0.25
    """
    return float(np.mean(np.sum((probabilities - np.eye(probabilities.shape[1])[y]) ** 2, axis=1)))


def reliability(y: np.ndarray, probabilities: np.ndarray, bins: int = 15) -> pd.DataFrame:
    """Confidence and accuracy of the most probable class, by bins of confidence of equal width.

    Returns:
        One row a bin with observations: "confidence" (mean), "accuracy", "count".
    """
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == y
    bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
    count = np.bincount(bin_of, minlength=bins)
    filled = count > 0

    def mean(values):
        return np.bincount(bin_of, values, bins)[filled] / count[filled]

    return pd.DataFrame({"confidence": mean(confidence), "accuracy": mean(right.astype(float)), "count": count[filled]})


def expected_calibration_error(y: np.ndarray, probabilities: np.ndarray, bins: int = 15) -> float:
    """Mean distance of accuracy from confidence, over bins weighted by their observations (Naeini, Cooper and Hauskrecht 2015).

    >>> expected_calibration_error(np.array([0, 0, 1, 1]), np.full((4, 2), 0.5))
    0.0
    """
    table = reliability(y, probabilities, bins)
    gap = np.abs(table["accuracy"].to_numpy() - table["confidence"].to_numpy())
    return float(np.average(gap, weights=table["count"]))
