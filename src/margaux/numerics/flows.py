r"""Linear differential equations of one or two numbers in closed form, for the many times that steps of others ask for.

With m half the trace of A and $s=m^2-\det A$,
$e^{At}=e^{mt}\left(\cosh(t\sqrt s)\,I+\frac{\sinh(t\sqrt s)}{\sqrt s}(A-mI)\right)$, whose factors are analytic in s: two
exponentials in place of a series with squarings (Apostol, Some explicit formulas for the exponential matrix, 1969).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .linear_systems import LinearSystem

#: s to m^2 below which the factors are series, and of what gathers |2mt|
NEAR, BRIEF = 1e-6, 1e-3
#: s to m^2, and the determinant to the square of the entries' sum, above which a flow is by its two exponentials
APART, INVERTIBLE = 1e-3, 1e-5


def flow(system: LinearSystem, y: Float[Array, " S"], rate: Float[Array, " S"]) -> Callable[[Any], tuple[Any, ...]]:
    r"""$e^{At}y+\int_0^te^{As}ds\,(b+r)$ as a function of t, number by number.

    Where the eigenvalues are apart and none is nearly zero it is a constant and an exponential of each, whose factors are made
    once for all times. Others go the long way, by a loop of one turn: among units side by side none is taken if all are so.
    """
    given, zero = system.constant + rate, jnp.zeros_like(y[0])
    a, b, c, d = (system.matrix.get(place, zero) for place in ((0, 0), (0, 1), (1, 0), (1, 1)))
    if len(y) == 1:
        slow = jnp.where(a == 0, 1.0, a)
        return lambda t: (jnp.exp(a * t) * y[0] + jnp.where(a == 0, t, jnp.expm1(slow * t) / slow) * given[0],)
    m, half, determinant = (a + d) / 2, (a - d) / 2, a * d - b * c
    s, size = half**2 + b * c, abs(a) + abs(b) + abs(c) + abs(d)
    apart = (s > APART * m**2) & (abs(determinant) > INVERTIBLE * size**2)
    root, divisor = jnp.sqrt(jnp.where(apart, s, 1.0)), jnp.where(apart, determinant, 1.0)
    kept = (b * given[1] - d * given[0]) / divisor, (c * given[0] - a * given[1]) / divisor
    left = y[0] - kept[0], y[1] - kept[1]
    turned = (half * left[0] + b * left[1]) / root, (c * left[0] - half * left[1]) / root
    slower, faster = ([(x + sign * z) / 2 for x, z in zip(left, turned, strict=True)] for sign in (1, -1))
    general = _general(system, y, rate)

    def at(time: Any) -> tuple[Any, ...]:
        up, down = jnp.exp((m + root) * time), jnp.exp((m - root) * time)
        short = tuple(k + up * x + down * z for k, x, z in zip(kept, slower, faster, strict=True))
        return jax.lax.while_loop(lambda s: s[0], lambda _: (jnp.zeros_like(apart), general(time)), (~apart, short))[1]

    return at


def _general(system: LinearSystem, y: Array, rate: Array) -> Callable[[Any], tuple[Any, ...]]:
    """`flow` of two numbers, whatever their matrix."""
    given, zero = system.constant + rate, jnp.zeros_like(y[0])
    a, b, c, d = (system.matrix.get(place, zero) for place in ((0, 0), (0, 1), (1, 0), (1, 1)))
    m, half, determinant = (a + d) / 2, (a - d) / 2, a * d - b * c
    factors = _factors(m, half**2 + b * c, (0, 1) in system.matrix and (1, 0) in system.matrix)
    kept = jnp.stack([b * given[1] - d * given[0], c * given[0] - a * given[1]])
    kept = kept / jnp.where(determinant == 0, 1.0, determinant)
    turned, of_kept = (jnp.stack([half * x[0] + b * x[1], c * x[0] - half * x[1]]) for x in (y, kept))
    moved = jnp.stack([a * given[0] + b * given[1], c * given[0] + d * given[1]])
    # The smaller eigenvalue times t, where dividing by it loses as many digits as leaving it out.
    size, least = abs(a) + abs(b) + abs(c) + abs(d), jnp.sqrt(jnp.finfo(y.dtype).eps)

    def at(time: Any) -> tuple[Any, ...]:
        even, odd = factors(time)
        lasting = kept - even * kept - odd * of_kept
        gathering = time * given + _gathered(m, time) * moved
        return tuple(even * y + odd * turned + jnp.where(jnp.abs(determinant) * time <= least * size, gathering, lasting))

    return at


def _factors(m: Any, s: Any, waving: bool) -> Callable[[Any], tuple[Any, Any]]:
    r"""$e^{mt}\cosh(t\sqrt s)$ and $e^{mt}\sinh(t\sqrt s)/\sqrt s$ as functions of t. Args: waving: whether s may be negative."""
    near, below = jnp.abs(s) <= NEAR * m**2, s < 0
    root = jnp.sqrt(jnp.where(near, 1.0, jnp.abs(s)))
    slower, faster = m + jnp.where(below | near, 0.0, root), m - jnp.where(below | near, 0.0, root)

    def at(time: Any) -> tuple[Any, Any]:
        up, down, little = jnp.exp(slower * time), jnp.exp(faster * time), s * time**2
        even, odd = (up + down) / 2, (up - down) / (2 * root)
        if waving:
            cosine, sine = _circle(below, root * time)
            even, odd = jnp.where(below, up * cosine, even), jnp.where(below, up * sine / root, odd)
        small = up * (1 + little / 2 * (1 + little / 12)), up * time * (1 + little / 6 * (1 + little / 20))
        return jnp.where(near, small[0], even), jnp.where(near, small[1], odd)

    return at


def _circle(waves: Any, angle: Any) -> tuple[Any, Any]:
    """Cosine and sine where there are waves, by a loop of one turn: among units side by side none is taken if there are none, as
    of compartments, and steps that are written out would have the two again wherever they are used."""

    def turn(_: Any) -> tuple[Any, Any, Any]:
        return jnp.zeros_like(waves), jnp.cos(angle), jnp.sin(angle)

    return jax.lax.while_loop(lambda state: state[0], turn, (waves, jnp.ones_like(angle), jnp.zeros_like(angle)))[1:]


def _gathered(m: Any, time: Any) -> Any:
    r"""$\left(\frac{e^{2mt}-1}{2m}-t\right)/2m$: of a singular A, $\int_0^te^{As}ds=tI+$ this times A."""
    u, rate = 2 * m * time, jnp.where(m == 0, 1.0, 2 * m)
    brief = jnp.abs(u) < BRIEF
    return jnp.where(brief, time**2 / 2 * (1 + u / 3 * (1 + u / 4)), (jnp.expm1(u) / rate - time) / rate)
