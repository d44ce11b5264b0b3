r"""Functions of a large symmetric matrix of which only products are known: Lanczos' method (Golub and Meurant 2010, chapter 4).

After m products with v the matrix is $Q^\top T Q$ on their span, T tridiagonal: $f(A)v\approx\|v\|\,Q f(T)e_1$ and
$v^\top f(A)v\approx\|v\|^2\,e_1^\top f(T)e_1$, a Gauss quadrature, exact of polynomials of degree 2m - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

Product = Callable[[Float[Array, " d"]], Float[Array, " d"]]


class Spanned(NamedTuple):
    """What products with a vector v span.

    Attributes:
        basis: orthonormal, from v on. values, vectors: of T. length: of v.
    """

    basis: Float[Array, "m d"]
    values: Float[Array, " m"]
    vectors: Float[Array, "m m"]
    length: Scalar

    def applied(self, f: Callable[[Array], Array]) -> Float[Array, " d"]:
        """f(A) v."""
        return self.length * (self.vectors @ (f(self.values) * self.vectors[0])) @ self.basis

    def quadratic(self, f: Callable[[Array], Array]) -> Scalar:
        """v' f(A) v."""
        return self.length**2 * jnp.sum(f(self.values) * self.vectors[0] ** 2)


def spanned(product: Product, v: Float[Array, " d"], m: int) -> Spanned:
    """By m products. Where they span no more, the matrix counts as the identity on what is left, which v has no part in."""
    length = jnp.linalg.norm(v)
    tiny = jnp.finfo(v.dtype).eps * 10

    def turn(j: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        basis, diagonal, beside = state
        new = product(basis[j])
        here = new @ basis[j]
        # Twice is enough: rounding would let vectors that are long found come back.
        for _ in range(2):
            new = new - basis.T @ (basis @ new)
        size = jnp.linalg.norm(new)
        more = (size > tiny * (jnp.abs(here) + 1)) & jnp.any(basis[j] != 0)
        there = jnp.any(basis[j] != 0)
        basis = basis.at[j + 1].set(jnp.where(more, new / jnp.where(more, size, 1.0), 0.0))
        return basis, diagonal.at[j].set(jnp.where(there, here, 1.0)), beside.at[j].set(jnp.where(more, size, 0.0))

    basis = jnp.zeros((m + 1, v.size), v.dtype).at[0].set(v / jnp.where(length > 0, length, 1.0))
    basis, diagonal, beside = jax.lax.fori_loop(0, m, turn, (basis, jnp.zeros(m, v.dtype), jnp.zeros(m, v.dtype)))
    t = jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
    values, vectors = jnp.linalg.eigh(t)
    return Spanned(basis[:m], values, vectors, length)
