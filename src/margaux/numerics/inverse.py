"""From an information matrix to the covariance matrix of estimates."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

#: the least eigenvalue that is believed, relative to the largest, of a matrix whose diagonal is scaled to one
LEAST = 1e-9


def guarded(
    information: Float[np.ndarray, "d d"], free: Bool[np.ndarray, " d"] | None = None
) -> tuple[Float[np.ndarray, "d d"], str]:
    """The inverse over the free coordinates, zero elsewhere; and "".

    Where the matrix is not positive definite beyond rounding: NaN, and a sentence that says so.

    >>> guarded(np.diag([4.0, 2.0]))
    (array([[0.25, 0.  ],
           [0.  , 0.5 ]]), '')
    >>> guarded(np.ones((2, 2)))[1]
    'the information is singular or indefinite (scaled eigenvalues 0 to 2)'
    """
    free = np.ones(len(information), bool) if free is None else free
    block = information[np.ix_(free, free)]
    trouble = _trouble(block)
    if trouble:
        return np.full_like(information, np.nan), trouble
    inverse = np.zeros_like(information)
    inverse[np.ix_(free, free)] = np.linalg.inv(block)
    return inverse, ""


def within(information: Float[np.ndarray, "d d"], basis: Float[np.ndarray, "d r"]) -> Float[np.ndarray, "d d"]:
    """The covariance matrix of estimates that move in the span of an orthonormal basis alone; NaN as of `guarded`."""
    return basis @ guarded(basis.T @ information @ basis)[0] @ basis.T


def absolute(information: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """The inverse with the absolute values of its eigenvalues; NaN where there are none."""
    if not np.all(np.isfinite(information)):
        return np.full_like(information, np.nan)
    values, vectors = np.linalg.eigh(information)
    return (vectors / np.maximum(np.abs(values), LEAST * np.abs(values).max(initial=1e-300))) @ vectors.T


def _trouble(block: np.ndarray) -> str:
    size = np.abs(np.diagonal(block))
    if not block.size:
        return ""
    if np.all(np.isfinite(block)) and np.all(size > 0):
        scaled = block / np.sqrt(np.outer(size, size))
        try:  # a tenth of the time of the eigenvalues, which are told where it fails
            np.linalg.cholesky(scaled - LEAST * np.abs(scaled).sum(axis=1).max() * np.eye(len(scaled)))
            return ""
        except np.linalg.LinAlgError:
            values = np.linalg.eigvalsh(scaled)
    else:
        values = np.array([0.0])
    low, high = (0.0 if abs(value) < 1e-12 else value for value in (values[0], values[-1]))
    return f"the information is singular or indefinite (scaled eigenvalues {low:.2g} to {high:.2g})"
