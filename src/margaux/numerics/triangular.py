"""Cholesky factors and solves by them; of one number in plain arithmetic: less to compile and to do than a call of LAPACK."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array


def cholesky(a: Array) -> Array:
    """Lower Cholesky factor."""
    return jnp.sqrt(a) if a.shape[-1] < 2 else jnp.linalg.cholesky(a)


def solve(root: Array, b: Array) -> Array:
    """$L^{-1}b$."""
    return b / jnp.ravel(root) if len(root) < 2 else jax.scipy.linalg.solve_triangular(root, b, lower=True)


def solve_transposed(root: Array, b: Array) -> Array:
    r"""$L^{-\top}b$."""
    return b / jnp.ravel(root) if len(root) < 2 else jax.scipy.linalg.solve_triangular(root, b, lower=True, trans="T")


def inverse_root(root: Array) -> Array:
    """$L^{-1}$."""
    return solve(root, jnp.eye(len(root), dtype=root.dtype))


def inverse(root: Array) -> Array:
    r"""$(LL^\top)^{-1}$."""
    return solve_transposed(root, inverse_root(root))
