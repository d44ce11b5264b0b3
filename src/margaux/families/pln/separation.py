r"""Coefficients that the likelihood raises without end: separation of counts.

With log-rates $\eta_{ij} = o_{ij} + b_j^\top x_i + c_j^\top w_i$, a move of $b_j$ along v leaves the rates of the units where
feature j has counts, and lowers others, if
$$v^\top x_i = 0\ \text{where}\ y_{ij} > 0,\qquad v^\top x_i \le 0\ \text{where}\ y_{ij} = 0.$$
It raises the likelihood whatever C and the latents are, for ever. Such v other than zero are a cone, and where there are none the
estimate of Poisson regression is finite (Haberman 1974; Correia, Guimaraes and Zylkin 2019). A level of a category that has no
counts is a case of it; so is a feature that is only seen where a covariate has its smallest or largest value.

The cone spans all v with $v^\top x_i = 0$ for the units that no v of it separates (those with counts, and more), which one
linear programme finds. Coefficients that are not zero throughout this span have no finite estimate.

References:
    Haberman (1974), The Analysis of Frequency Data, chapter 2. Correia, Guimaraes and Zylkin (2019), Verifying the existence of
    maximum likelihood estimates for generalized linear models, arXiv:1903.01633.
"""

from __future__ import annotations

import numpy as np
import scipy
from jaxtyping import Bool, Float

from .basis import orthonormal
from .counts import Counts

#: below what share of the largest eigenvalue the units with counts may not span the covariates, and what is zero to a direction
SUSPECT, ZERO = 1e-6, 1e-8


#: features times places of the covariates of which processes tell each other at once
TOLD = 1 << 20


def diverging(counts: Counts, x: Float[np.ndarray, "n k"]) -> Bool[np.ndarray, "k p"]:
    """Coefficients without finite estimate. Every process looks at the covariates of all units, and at its own counts.

    >>> counts = Counts([[0, 4, 2], [0, 2, 0], [3, 1, 0], [2, 5, 0]])
    >>> x = np.column_stack([np.ones(4), [0.1, 0.4, 0.7, 0.9]])
    >>> diverging(counts, x).tolist()  # the last feature: at the smallest value alone
    [[False, False, True], [False, False, True]]
    """
    k, share = x.shape[1], counts.share
    out = np.zeros((k, counts.p), bool)
    basis, R = orthonormal(share.joined(np.asarray(x, float)))
    a, b = np.tril_indices(k)
    gram = np.zeros((counts.p, k, k))
    own = basis[share.first :][: counts.n]
    gram[:, a, b] = gram[:, b, a] = counts.transposed_times(own[:, a] * own[:, b], np.sign)
    # With counts in enough different places nothing moves; that is all but a few features.
    suspects = np.flatnonzero(np.linalg.eigvalsh(gram)[:, 0] <= SUSPECT * np.einsum("pii->p", gram))
    if not suspects.size:
        return out
    rows, place = np.unique(basis, axis=0, return_inverse=True)
    place = place.ravel()[share.first :][: counts.n]
    known: dict[bytes, np.ndarray] = {}
    size = max(TOLD // len(rows), 1)
    for first in range(0, len(suspects), size):
        some = suspects[first : first + size]
        for j, seen in zip(some, _seen(counts, some, place, len(rows)), strict=True):
            key = seen.tobytes()
            if key not in known:
                known[key] = _moving(rows, seen, R)
            out[:, j] = known[key]
    return out


def _seen(counts: Counts, features: np.ndarray, place: np.ndarray, places: int) -> Bool[np.ndarray, "f m"]:
    """At which places of the covariates some unit, of any process, has counts of each feature."""
    seen = np.zeros((len(features), places))
    for row, j in zip(seen, features, strict=True):
        row[place[_units(counts, int(j))]] = 1
    return counts.share.summed(seen) > 0


def _units(counts: Counts, feature: int) -> np.ndarray:
    """Units where a feature has counts."""
    column = counts.values[:, [feature]]
    return np.flatnonzero(column.toarray() if scipy.sparse.issparse(column) else column)


def _moving(rows: np.ndarray, seen: np.ndarray, R: np.ndarray) -> np.ndarray:
    """Coefficients of the covariates, R^-1 times those of the basis, that some direction of the cone moves."""
    still = _kernel(rows[seen])
    if not still.shape[1]:
        return np.zeros(len(R), bool)
    separated = np.zeros(len(rows), bool)
    separated[~seen] = _separated(rows[~seen] @ still)
    span = np.linalg.solve(R, _kernel(rows[~separated]))
    scale = np.abs(span).max(initial=0.0, axis=0) if span.size else np.ones(0)
    moved = np.abs(span) > ZERO * np.where(scale > 0, scale, 1)
    return np.asarray(moved.any(axis=1), bool)


def _separated(moves: Float[np.ndarray, "m r"]) -> Bool[np.ndarray, " m"]:
    r"""Units whose rate some u lowers, with $m_i^\top u\le0$ for all."""
    moves = np.where(np.abs(moves) > ZERO, moves, 0.0)
    if moves.shape[1] == 1:
        one = moves[:, 0]
        return np.array((one != 0) & bool((one <= 0).all() or (one >= 0).all()), dtype=bool)
    m, r = moves.shape
    # As much as a sum of s_i <= 1 can be: directions add up, so that the best one separates all that any separates.
    found = scipy.optimize.linprog(
        np.append(np.zeros(r), -np.ones(m)),
        scipy.sparse.hstack([moves, scipy.sparse.eye_array(m)]),
        np.zeros(m),
        bounds=[(None, None)] * r + [(0, 1)] * m,
    )
    return found.x[r:] > 0.5 if found.success else np.zeros(m, bool)


def _kernel(rows: Float[np.ndarray, "m k"]) -> Float[np.ndarray, "k r"]:
    """An orthonormal basis of what every row is orthogonal to."""
    if not len(rows):
        return np.eye(rows.shape[1])
    _, d, vt = np.linalg.svd(rows, full_matrices=True)
    return vt[np.sum(d > ZERO * d.max(initial=0.0)) :].T
