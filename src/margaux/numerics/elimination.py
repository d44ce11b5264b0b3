"""Many small positive definite matrices at once, with the axis of the many last: eliminated together, calls of LAPACK for each
would cost three times as much."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

#: the order beyond which LAPACK is no slower
MOST = 10


def inverted(matrices: Float[Array, "q q n"]) -> tuple[Float[Array, "q q n"], Float[Array, " n"]]:
    """Inverses and log-determinants, by Gauss and Jordan: positive definite matrices need no pivots.

    >>> import jax.numpy as jnp
    >>> inverse, log_det = inverted(jnp.array([[2.0, 1.0], [1.0, 1.0]])[:, :, None])
    >>> inverse[:, :, 0].tolist(), float(log_det[0])
    ([[1.0, -1.0], [-1.0, 2.0]], 0.0)
    """
    q = len(matrices)
    if q > MOST:
        first = jnp.moveaxis(matrices, 2, 0)
        return jnp.moveaxis(jnp.linalg.inv(first), 0, 2), jnp.linalg.slogdet(first)[1]
    place = jnp.arange(q)

    def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        M, log_det = state
        pivot, column, here = M[k, k], M[:, k], place == k
        row = jnp.where(here[:, None], 1 / pivot, M[k] / pivot)
        others = jnp.where(here[None, :, None], 0.0, M) - column[:, None] * row[None]
        return jnp.where(here[:, None, None], row[None], others), log_det + jnp.log(pivot)

    return jax.lax.fori_loop(0, q, step, (matrices, jnp.zeros_like(matrices[0, 0])))


def solved(matrices: Float[Array, "u u n"], right: Float[Array, "u n"]) -> Float[Array, "u n"]:
    """The solution of each system.

    >>> import jax.numpy as jnp
    >>> solved(jnp.array([[2.0, 1.0], [1.0, 1.0]])[:, :, None], jnp.array([[3.0], [2.0]])).tolist()
    [[1.0], [1.0]]
    """
    u = len(matrices)
    if u > MOST:
        return jnp.linalg.solve(jnp.moveaxis(matrices, 2, 0), right.T[:, :, None])[:, :, 0].T
    place = jnp.arange(u)

    def step(k: Array, M: Array) -> Array:
        row = M[k] / M[k, k]
        return jnp.where((place == k)[:, None, None], row[None], M - M[:, k][:, None] * row[None])

    return jax.lax.fori_loop(0, u, step, jnp.concatenate([matrices, right[:, None]], axis=1))[:, u]
