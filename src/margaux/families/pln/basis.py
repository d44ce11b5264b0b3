r"""An orthonormal basis of the covariates, in which fits run.

$X = \tilde XR$ with $\tilde X^\top\tilde X = nI$, R upper triangular with a positive diagonal, and $B = R^{-1}\tilde B$:
whatever the units and the origin of covariates are, steps, ridges and tolerances mean the same.

Rows of tall matrices are those of this process's units: a matrix is factored by the triangles that each process has of its own
rows (Demmel, Grigori, Hoemmen and Langou 2012).

References:
    Demmel, Grigori, Hoemmen and Langou (2012), Communication-optimal parallel and sequential QR and LU factorizations, SIAM
    Journal on Scientific Computing 34:A206.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from ...engine.share import Share


def orthonormal(
    x: Float[np.ndarray, "n k"], share: Share | None = None
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "k k"]]:
    """The basis and R. All units are here unless a share says which they are.

    >>> import numpy as np
    >>> basis, R = orthonormal(np.array([[1.0, 2000.0], [1.0, 2001.0], [1.0, 2005.0]]))
    >>> np.allclose(basis.T @ basis, 3 * np.eye(2)), np.round(basis @ R, 6).tolist()
    (True, [[1.0, 2000.0], [1.0, 2001.0], [1.0, 2005.0]])
    """
    share = Share((len(x),), 0) if share is None else share
    basis, R = factored(np.asarray(x, float), share)
    sign, root = np.where(np.diag(R) < 0, -1.0, 1.0), np.sqrt(share.n)
    return basis * sign * root, R * sign[:, None] / root


def factored(tall: Float[np.ndarray, "n r"], share: Share) -> tuple[Float[np.ndarray, "n r"], Float[np.ndarray, "r r"]]:
    """Q and R of a matrix of at least as many rows, in all processes, as columns.

    >>> Q, R = factored(np.array([[3.0, 1.0], [4.0, 2.0], [0.0, 5.0]]), Share((3,), 0))
    >>> np.allclose(Q.T @ Q, np.eye(2)), np.allclose(Q @ R, [[3, 1], [4, 2], [0, 5]])
    (True, True)
    """
    own, triangle = np.linalg.qr(tall)
    size = tall.shape[1]
    full = np.zeros((size, size), tall.dtype)
    full[: len(triangle)] = triangle
    turn, R = np.linalg.qr(share.joined(full))
    return own @ turn[share.index * size :][: len(triangle)], R


def pseudo_inverse(x: Float[np.ndarray, "n k"], share: Share) -> Float[np.ndarray, "k n"]:
    """The columns of this process's units of that of all rows.

    >>> pseudo_inverse(np.array([[1.0], [2.0], [2.0]]), Share((3,), 0)).round(12).tolist()
    [[0.111111111111, 0.222222222222, 0.222222222222]]
    """
    Q, R = factored(x, share)
    return np.linalg.pinv(R) @ Q.T


def coefficients(R: Float[np.ndarray, "k k"], B: Float[np.ndarray, "k p"]) -> Float[np.ndarray, "k p"]:
    """Of the covariates, from those of the basis."""
    return np.linalg.solve(R, np.asarray(B, float)).astype(np.asarray(B).dtype)
