r"""Linear differential equations of one or two numbers in closed form, for the many times that steps of others ask for.

With m half the trace of A and $s=m^2-\det A$,
$e^{At}=e^{mt}\left(\cosh(t\sqrt s)\,I+\frac{\sinh(t\sqrt s)}{\sqrt s}(A-mI)\right)$, whose factors are analytic in s: two
exponentials in place of a series with squarings (Apostol, Some explicit formulas for the exponential matrix, 1969).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .linear_systems import LinearSystem

#: numbers that there is a closed form of
MOST = 2
#: s to m^2 below which the factors are series, and of what gathers |2mt|
NEAR, BRIEF = 1e-6, 1e-3
#: determinant to the square of the size of A up to which that is singular, as where something only gathers
SINGULAR = 1e-9


def flow(system: LinearSystem, y: Float[Array, " S"], rate: Float[Array, " S"]) -> Callable[[Any], Float[Array, " S"]]:
    r"""$e^{At}y+\int_0^te^{As}ds\,(b+r)$ as a function of t."""
    given, zero = system.constant + rate, jnp.zeros_like(y[0])
    a, b, c, d = (system.matrix.get(place, zero) for place in ((0, 0), (0, 1), (1, 0), (1, 1)))
    if len(y) == 1:
        lasts = a != 0
        kept = jnp.where(lasts, -given[0] / jnp.where(lasts, a, 1.0), 0.0)
        return lambda time: jnp.stack([jnp.exp(a * time) * (y[0] - kept) + kept + jnp.where(lasts, 0.0, given[0] * time)])
    determinant, size = a * d - b * c, abs(a) + abs(b) + abs(c) + abs(d)
    singular = jnp.abs(determinant) <= SINGULAR * size**2
    kept = jnp.stack([b * given[1] - d * given[0], c * given[0] - a * given[1]]) / jnp.where(singular, 1.0, determinant)
    kept = jnp.where(singular, 0.0, kept)
    m, half = (a + d) / 2, (a - d) / 2
    away, gathers = y - kept, jnp.where(singular, given, 0.0)
    turned = jnp.stack([half * away[0] + b * away[1], c * away[0] - half * away[1]])
    moved = jnp.stack([a * gathers[0] + b * gathers[1], c * gathers[0] + d * gathers[1]])
    factors = _factors(m, half**2 + b * c, (0, 1) in system.matrix and (1, 0) in system.matrix)

    def at(time: Any) -> Array:
        even, odd = factors(time)
        return even * away + odd * turned + kept + time * gathers + _gathered(m, time) * moved

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
            waves = jnp.where(below, root * time, 0.0)
            even, odd = jnp.where(below, up * jnp.cos(waves), even), jnp.where(below, up * jnp.sin(waves) / root, odd)
        small = up * (1 + little / 2 * (1 + little / 12)), up * time * (1 + little / 6 * (1 + little / 20))
        return jnp.where(near, small[0], even), jnp.where(near, small[1], odd)

    return at


def _gathered(m: Any, time: Any) -> Any:
    r"""$\left(\frac{e^{2mt}-1}{2m}-t\right)/2m$: of a singular A, $\int_0^te^{As}ds=tI+$ this times A."""
    u, rate = 2 * m * time, jnp.where(m == 0, 1.0, 2 * m)
    brief = jnp.abs(u) < BRIEF
    return jnp.where(brief, time**2 / 2 * (1 + u / 3 * (1 + u / 4)), (jnp.expm1(u) / rate - time) / rate)
