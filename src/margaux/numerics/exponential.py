r"""Exponentials of small matrices, by Taylor's series with scaling and squaring.

The few numbers of a matrix are written out, without those that are zero whatever the others: matrices that are mapped then go
through a product in a few loops over all of them. Derivatives are those of the sums and products, in forward mode of any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

#: numbers of a matrix by row and column
Entries = dict[tuple[int, int], Any]

#: the degree of the series is the square of it; scaled matrices have a norm of at most 1, where the remainder is below 3e-15
BLOCK = 4
#: squarings; what would need more is not a number
MOST = 64
#: products of two numbers in one of two matrices, above which they are not written out
WRITTEN = 600


def with_powers(places: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Where the powers of a matrix have numbers that has them at these places.

    >>> with_powers([(1, 0), (2, 1)])
    ((1, 0), (2, 0), (2, 1))
    """
    out = set(places)
    while more := {(i, end) for i, j in out for k, end in out if j == k} - out:
        out |= more
    return tuple(sorted(out))


def exponential(matrix: Entries, size: int, width: int) -> tuple[Entries, list[Any]]:
    r"""$E=e^X$ and the diagonal of $E-I$, of a matrix whose places hold those of its powers; NaN where X is too large.

    Scaled by $2^{-s}$ and squared s times. A number of the diagonal is kept as $E_{ii}$ and as $p_i=E_{ii}-1$, of which
    $p_i(2+p_i)+\sum_{k\ne i}E_{ik}E_{ki}$ is the next: where nothing off the diagonal of X is negative, as in compartments,
    nothing cancels, and what has nearly vanished and what has hardly moved are both exact to their last digits.

    Args:
        size: rows and columns that X is measured by, the first ones: others add what is linear in them. width: all.

    Reference: Moler and Van Loan, Nineteen dubious ways to compute the exponential of a matrix, twenty-five years later (2003).
    """
    places = tuple(matrix)
    dtype = jnp.result_type(*matrix.values())
    rows = [sum((abs(matrix[i, j]) for j in range(size) if (i, j) in matrix), start=jnp.zeros((), dtype)) for i in range(size)]
    norm = jax.lax.stop_gradient(jnp.max(jnp.stack(rows)))
    needed = jnp.ceil(jnp.log2(jnp.maximum(norm, 1.0)))
    possible = needed <= MOST  # not, where it is NaN
    squarings = jnp.where(possible, needed, 0.0)
    scale = jnp.where(possible, jnp.exp2(-squarings), jnp.nan)
    small = {place: value * scale for place, value in matrix.items()}
    diagonal = [(i, i) for i in range(width)]
    zero = jnp.zeros_like(scale)
    if sum(j == k for _, j in places for k, _ in places) <= WRITTEN:
        small = _series(small, _product)
        less_one = [small.get(place, zero) for place in diagonal]
        return _squared(small | {place: 1 + p for place, p in zip(diagonal, less_one, strict=True)}, less_one, squarings)
    whole = jnp.zeros((width, width), dtype).at[tuple(zip(*places, strict=True))].set(jnp.stack(list(small.values())))
    whole = _series(whole, jnp.matmul)
    out, less_one = _squared_whole(whole + jnp.eye(width, dtype=dtype), jnp.diagonal(whole), squarings)
    return {place: out[place] for place in (*places, *diagonal)}, list(less_one)


def _product(a: Entries, b: Entries) -> Entries:
    """Of two matrices that have numbers at the same places, which hold those of their product."""
    zero = jnp.zeros_like(next(iter(a.values())))
    return {(i, j): sum((a[i, k] * b[k, j] for h, k in a if h == i and (k, j) in b), start=zero) for i, j in a}


def _sum(weights: Iterable[float], matrices: Iterable[Any]) -> Any:
    weights = tuple(weights)
    return jax.tree.map(lambda *each: sum(w * value for w, value in zip(weights, each, strict=True)), *matrices)


def _series(x: Any, product: Any) -> Any:
    r"""$\sum_{k=1}^{16}X^k/k!$ in six products, by Paterson's and Stockmeyer's scheme."""
    powers = [x]
    for _ in range(BLOCK - 1):
        powers.append(product(powers[-1], x))
    coefficients = [1 / math.factorial(k) for k in range(BLOCK * BLOCK + 1)]
    out = _sum(coefficients[-BLOCK:], powers)
    for start in range(BLOCK * (BLOCK - 2), -1, -BLOCK):
        own = coefficients[start + 1 : start + 1 + BLOCK]
        out = _sum((*own, 1.0), (*powers, product(powers[-1], out)))
    return out


def _repeated(turn: Any, state: Any, times: Array) -> Any:
    def once(state: tuple[Any, Array]) -> tuple[Any, Array]:
        return turn(*state[0]), state[1] - 1

    return jax.lax.while_loop(lambda state: state[1] > 0, once, (state, times))[0]


def _squared(x: Entries, less_one: list[Any], times: Array) -> tuple[Entries, list[Any]]:
    def turn(x: Entries, less_one: list[Any]) -> tuple[Entries, list[Any]]:
        out, after = _product(x, x), []
        for i, p in enumerate(less_one):
            back = sum((x[i, k] * x[k, i] for h, k in x if h == i != k and (k, i) in x), start=jnp.zeros_like(p))
            out[i, i], p = _kept(out[i, i], p * (2 + p) + back)
            after.append(p)
        return out, after

    return _repeated(turn, (x, less_one), times)


def _squared_whole(x: Array, less_one: Array, times: Array) -> tuple[Array, Array]:
    every = jnp.diag_indices(len(x))

    def turn(x: Array, less_one: Array) -> tuple[Array, Array]:
        off = x.at[every].set(0.0)
        out = x @ x
        own, after = _kept(out[every], less_one * (2 + less_one) + jnp.sum(off * off.T, axis=1))
        return out.at[every].set(own), after

    return _repeated(turn, (x, less_one), times)


def _kept(whole: Any, less_one: Any) -> tuple[Any, Any]:
    """A number and what it is less one, each from whichever of them is known the better."""
    near = less_one > -0.5
    return jnp.where(near, 1 + less_one, whole), jnp.where(near, less_one, whole - 1)
