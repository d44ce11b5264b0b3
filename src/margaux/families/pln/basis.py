r"""An orthonormal basis of the covariates, in which fits run.

$X = \tilde XR$ with $\tilde X^\top\tilde X = nI$, R upper triangular with a positive diagonal, and $B = R^{-1}\tilde B$:
whatever the units and the origin of covariates are, steps, ridges and tolerances mean the same.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def orthonormal(x: Float[np.ndarray, "n k"]) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "k k"]]:
    """The basis and R.

    >>> import numpy as np
    >>> basis, R = orthonormal(np.array([[1.0, 2000.0], [1.0, 2001.0], [1.0, 2005.0]]))
    >>> np.allclose(basis.T @ basis, 3 * np.eye(2)), np.round(basis @ R, 6).tolist()
    (True, [[1.0, 2000.0], [1.0, 2001.0], [1.0, 2005.0]])
    """
    basis, R = np.linalg.qr(np.asarray(x, float))
    sign, root = np.where(np.diag(R) < 0, -1.0, 1.0), np.sqrt(len(x))
    return basis * sign * root, R * sign[:, None] / root


def coefficients(R: Float[np.ndarray, "k k"], B: Float[np.ndarray, "k p"]) -> Float[np.ndarray, "k p"]:
    """Of the covariates, from those of the basis."""
    return np.linalg.solve(R, np.asarray(B, float)).astype(np.asarray(B).dtype)
