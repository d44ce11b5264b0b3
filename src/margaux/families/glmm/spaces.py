"""Spaces of what describes covariances and categories: correlations, and thresholds."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...problem.space import AbstractSpace

#: how far the least eigenvalue of a matrix of correlations is kept from zero
LEAST = 1e-10


def matrix(correlations: Float[Array, " m"], k: int) -> Float[Array, "k k"]:
    """The symmetric matrix with ones on the diagonal, from what is below it, row by row.

    >>> matrix(jnp.array([0.5]), 2).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    low = jnp.zeros((k, k), correlations.dtype).at[np.tril_indices(k, -1)].set(correlations)
    return low + low.T + jnp.eye(k, dtype=correlations.dtype)


class Correlations(AbstractSpace):
    """Correlations (k (k - 1) / 2,) of k variables, row by row below the diagonal. Coordinates: the rows of the Cholesky factor
    below its diagonal, each by the diagonal's entry.

    Args:
        k: how many variables.
    """

    k: int = eqx.field(static=True)

    def project(self, x):
        values, vectors = jnp.linalg.eigh(matrix(x, self.k))
        near = (vectors * jnp.maximum(values, LEAST)) @ vectors.T
        scale = jnp.sqrt(jnp.diagonal(near))
        return jnp.where(values[0] >= LEAST, x, (near / jnp.outer(scale, scale))[np.tril_indices(self.k, -1)])

    def at_boundary(self, x, tol=1e-6):
        return jnp.full(x.shape, jnp.linalg.eigvalsh(matrix(x, self.k))[0] <= tol)

    def to_unconstrained(self, x):
        root = jnp.linalg.cholesky(matrix(x, self.k))
        return (root / jnp.diagonal(root)[:, None])[np.tril_indices(self.k, -1)]

    def from_unconstrained(self, u):
        low = jnp.zeros((self.k, self.k), u.dtype).at[np.tril_indices(self.k, -1)].set(u) + jnp.eye(self.k, dtype=u.dtype)
        root = low / jnp.linalg.norm(low, axis=1, keepdims=True)
        return (root @ root.T)[np.tril_indices(self.k, -1)]


class Scaled(AbstractSpace):
    """All numbers (p,). Coordinates: in units of their own.

    Args:
        scale: the units (p,).
    """

    scale: Array | np.ndarray

    def project(self, x):
        return x

    def at_boundary(self, x, tol=1e-6):
        return jnp.zeros(x.shape, bool)

    def to_unconstrained(self, x):
        return x / jnp.asarray(self.scale, x.dtype)

    def from_unconstrained(self, u):
        return u * jnp.asarray(self.scale, u.dtype)


class Ordered(AbstractSpace):
    """Increasing numbers (m,). Coordinates: the first, and logarithms of the gaps."""

    def project(self, x):
        return jax.lax.cummax(x)

    def at_boundary(self, x, tol=1e-6):
        close = jnp.diff(x) <= tol
        return jnp.concatenate([jnp.zeros(1, bool), close])

    def to_unconstrained(self, x):
        return jnp.concatenate([x[:1], jnp.log(jnp.diff(x))])

    def from_unconstrained(self, u):
        return jnp.cumsum(jnp.concatenate([u[:1], jnp.exp(u[1:])]))
