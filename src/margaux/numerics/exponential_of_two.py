r"""Exponentials of matrices of one or two rows in closed form: a few exponentials in place of a series with squarings.

With $m$ half the trace of X, $s=((X_{00}-X_{11})/2)^2+X_{01}X_{10}$ and eigenvalues $m\pm\sqrt s$, of any analytic f
$f(X)=\bigl(f(m+\sqrt s)+f(m-\sqrt s)\bigr)/2\,I+f'(X-mI)$, f' being its divided difference at the eigenvalues (Apostol, Some
explicit formulas for the exponential matrix, 1969). What a constant input g becomes is $\varphi(X)g$ with
$\varphi(x)=(e^x-1)/x$, whose divided difference is that of exp at the eigenvalues and 0. Each is taken between the points that
are furthest apart, or by a series, and a diagonal as $f(m-\sqrt s)$ and what comes to that: of compartments, where nothing off
the diagonal is negative, nothing cancels.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .exponential import Entries

#: rows that there is a closed form of
MOST = 2
#: below which s, what phi is taken of, and the larger eigenvalue go by series, whose derivatives are exact, and terms of these
NEAR, NEAR_TERMS = 0.1, 7
BRIEF, BRIEF_TERMS = 0.5, 14
LITTLE, LITTLE_TERMS = 1.0, 18

#: a number and its exponential
Grown = tuple[Any, Any]
#: the diagonal of the exponential, exp's divided difference and, where there is an input, phi's diagonal and divided difference
Parts = tuple[tuple[Any, ...], Any, tuple[Any, ...], Any]


def exponential_of_two(matrix: Entries, size: int, driven: bool) -> Entries:
    """The numbers of $e^X$, without those that are zero whatever the others.

    Args:
        size: rows of X, one or two. driven: whether it has a column more, of a constant input.
    """
    zero = jnp.zeros((), jnp.result_type(*matrix.values()))
    a, b, c, d = (matrix.get(place, zero) if max(place) < size else zero for place in ((0, 0), (0, 1), (1, 0), (1, 1)))
    given = [matrix.get((i, size), zero) for i in range(size)]
    if size == 1:
        grown = jnp.exp(a)
        return {(0, 0): grown} | ({(0, 1): _phi(a, grown) * given[0]} if driven else {})
    both = (0, 1) in matrix and (1, 0) in matrix
    diagonal, odd, of_input, second = _whole(a, b, c, d, driven) if both else _one_way(a, d, driven)
    found = dict(zip(((0, 0), (1, 1)), diagonal, strict=True))
    found |= {place: matrix[place] * odd for place in ((0, 1), (1, 0)) if place in matrix}
    if not driven:
        return found
    first, other = given
    return found | {
        (0, 2): of_input[0] * first + b * second * other,
        (1, 2): c * second * first + of_input[1] * other,
    }


def _one_way(a: Any, d: Any, driven: bool) -> Parts:
    """Of a matrix with eigenvalues a and d."""
    higher, ends = a > d, (jnp.exp(a), jnp.exp(d))
    top, low = (jnp.where(higher, a, d), jnp.where(higher, *ends)), (jnp.where(higher, d, a), jnp.where(higher, *ends[::-1]))
    odd = _difference(top, low)
    if not driven:
        return ends, odd, (), None
    of_input = _phi(a, ends[0]), _phi(d, ends[1])
    little = jnp.maximum(jnp.abs(a), jnp.abs(d)) < LITTLE
    return ends, odd, of_input, jnp.where(little, _series(a + d, a * d), _between(top, low, odd, ~little))


def _whole(a: Any, b: Any, c: Any, d: Any, driven: bool) -> Parts:
    """Of any matrix."""
    m, half, round_trip = (a + d) / 2, (a - d) / 2, b * c
    s = half**2 + round_trip
    near, waves = jnp.abs(s) < NEAR, s <= -NEAR
    apart = ~near & ~waves
    root = jnp.sqrt(jnp.where(near, 1.0, jnp.abs(s)))
    middle, of_near = jnp.exp(m), jnp.where(near, s, 0.0)
    even, odd = (middle * _polynomial(of_near, [1 / math.factorial(2 * k + i) for k in range(NEAR_TERMS)]) for i in (0, 1))
    cosine, sine = _circle(waves, root)
    top, low = ((x, jnp.exp(x)) for x in (jnp.where(apart, m + root, 0.0), jnp.where(apart, m - root, -1.0)))
    odd = jnp.where(waves, middle * sine / root, jnp.where(apart, _difference(top, low), odd))
    even = jnp.where(waves, middle * cosine, even)
    # Of the smaller eigenvalue what is left, and what has come back: (root + half)(root - half) is the round trip.
    larger = root + jnp.abs(half)
    smaller = round_trip / larger
    back = jnp.where(half > 0, larger, smaller), jnp.where(half > 0, smaller, larger)
    sides = tuple(zip(back, (half, -half), strict=True))
    diagonal = tuple(jnp.where(apart, low[1] + own * odd, even + side * odd) for own, side in sides)
    if not driven:
        return diagonal, odd, (), None
    little = jnp.abs(m) + jnp.sqrt(jnp.abs(jax.lax.stop_gradient(s))) < LITTLE
    determinant = jnp.where(apart | little, 1.0, m**2 - s)
    second = jnp.where(apart, _between(top, low, odd, apart & ~little), (m * odd + 1 - even) / determinant)
    second = jnp.where(little, _series(2 * m, m**2 - s), second)
    left = _phi(*low)
    of_input = tuple(jnp.where(apart, left + own * second, odd + (side - m) * second) for own, side in sides)
    return diagonal, odd, of_input, second


def _difference(top: Grown, low: Grown) -> Any:
    """exp's divided difference."""
    apart = top[0] - low[0]
    brief = apart < BRIEF
    return jnp.where(brief, top[1] * _brief(-apart, brief), (top[1] - low[1]) / jnp.where(brief, 1.0, apart))


def _between(top: Grown, low: Grown, odd: Any, asked: Array) -> Any:
    r"""$\varphi$'s divided difference, exp's at 0 and two numbers one of which is not small, by exp's at these two."""
    falling, rising = top[0] <= 0, low[0] > 0
    of_top, of_low = _phi(*top), _phi(*low)
    ends = jnp.where(falling, odd - of_top, jnp.where(rising, odd - of_low, of_top - of_low))
    apart = jnp.where(falling, low[0], jnp.where(rising, top[0], top[0] - low[0]))
    return ends / jnp.where(asked, apart, 1.0)


def _phi(x: Any, grown: Any) -> Any:
    r"""$(e^x-1)/x$, by $e^x$."""
    brief = jnp.abs(x) < BRIEF
    return jnp.where(brief, _brief(x, brief), (grown - 1) / jnp.where(brief, 1.0, x))


def _brief(x: Any, brief: Array) -> Any:
    return _polynomial(jnp.where(brief, x, 0.0), [1 / math.factorial(k + 1) for k in range(BRIEF_TERMS)])


def _series(trace: Any, determinant: Any) -> Any:
    r"""$\sum_kh_k/(k+2)!$, h the sums of all products of k of two small eigenvalues."""
    before, now, out = jnp.zeros_like(trace), jnp.ones_like(trace), jnp.zeros_like(trace)
    for k in range(LITTLE_TERMS):
        out = out + now / math.factorial(k + 2)
        before, now = now, trace * now - determinant * before
    return out


def _polynomial(x: Any, coefficients: list[float]) -> Any:
    out = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        out = coefficient + x * out
    return out


def _circle(waves: Array, angle: Array) -> tuple[Array, Array]:
    """Cosine and sine where there are waves, by a loop of one turn: among units side by side none is taken if there are none."""

    def turn(_: Any) -> tuple[Any, Any, Any]:
        return jnp.zeros_like(waves), jnp.cos(angle), jnp.sin(angle)

    return jax.lax.while_loop(lambda state: state[0], turn, (waves, jnp.ones_like(angle), jnp.zeros_like(angle)))[1:]
