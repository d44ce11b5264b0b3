r"""Steps of one-step methods for differential equations, each with an estimate of its error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

#: (derivative of (t, y), t, y, length of the step) -> the state after it, and the estimate of its error
Step = Callable[[Callable[[Any, Array], Array], Any, Array, Any], tuple[Array, Array]]
#: of `rodas`: gamma, and by stage the node, the coefficients of the derivative's argument, of the slopes beside it, and of df/dt
GAMMA = 0.25
RODAS: tuple[tuple[float, tuple[float, ...], tuple[float, ...], float], ...] = (
    (0.0, (), (), 0.25),
    (0.386, (1.544,), (-5.6688,), -0.1043),
    (0.21, (0.9466785280815826, 0.2557011698983284), (-2.430093356833875, -0.2063599157091915), 0.1035),
    (
        0.63,
        (3.314825187068521, 2.896124015972201, 0.9986419139977817),
        (-0.1073529058151375, -9.594562251023355, -20.47028614809616),
        -0.0362,
    ),
    (
        1.0,
        (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950),
        (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160),
        0.0,
    ),
    (
        1.0,
        (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 1.0),
        (8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054),
        0.0,
    ),
)


def rodas(derivative: Callable[[Any, Array], Array], t: Any, y: Array, step: Any) -> tuple[Array, Array]:
    r"""A step of Rodas (order 4, L-stable): stages $(I/(h\gamma)-J)\,k_i=f(t+c_ih,\,y+\sum_j a_{ij}k_j)+\sum_j C_{ij}k_j/h+hd_if_t$.

    Nothing is iterated, and no rate is too fast for it.

    Reference: Hairer and Wanner, Solving Ordinary Differential Equations II (2nd ed., 1996), IV.7 and the program RODAS.
    """
    jacobian = jax.jacfwd(derivative, argnums=1)(t, y)
    slope, in_time = jax.jvp(lambda t: derivative(t, y), (t,), (jnp.ones_like(t),))
    solving = inverse(jnp.eye(len(y), dtype=y.dtype) / (step * GAMMA) - jacobian)
    slopes: list[Array] = []
    place = y
    for node, inside, beside, by_time in RODAS:
        if slopes:
            place = y + _combined(inside, slopes, y)
            slope = derivative(t + node * step, place)
        slopes.append(solving @ (slope + _combined(beside, slopes, y) / step + step * by_time * in_time))
    return place + slopes[-1], slopes[-1]


@functools.cache
def tsitouras() -> Step:
    """A step of the explicit method of order 5 of Tsitouras (2011), by the coefficients of diffrax.

    Raises:
        ImportError: diffrax is not installed.
    """
    try:
        import diffrax
    except ImportError as error:
        raise ImportError("explicit steps need diffrax; install it via: pip install 'margaux[ode]'") from error
    table = diffrax.Tsit5.tableau

    def stepped(derivative: Callable[[Any, Array], Array], t: Any, y: Array, step: Any) -> tuple[Array, Array]:
        slopes = [derivative(t, y)]
        for node, inside in zip(table.c, table.a_lower, strict=True):
            slopes.append(derivative(t + node * step, y + step * _combined(inside, slopes, y)))
        return y + step * _combined(table.b_sol, slopes, y), step * _combined(table.b_error, slopes, y)

    return stepped


def _combined(weights: Any, slopes: list[Array], like: Array) -> Array:
    total = jnp.zeros_like(like)
    for weight, slope in zip(weights, slopes, strict=False):
        if weight:
            total = total + weight * slope
    return total


@jax.custom_jvp
def inverse(matrix: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """Of a small matrix whose diagonal can be divided by in turn, as that of a short implicit step: by Gauss and Jordan."""
    out = matrix
    for i in range(len(matrix)):
        pivot = 1 / out[i, i]
        row = (out[i] * pivot).at[i].set(pivot)
        column = out[:, i].at[i].set(0.0)
        out = (out.at[:, i].set(0.0) - jnp.outer(column, row)).at[i].set(row)
    return out


@inverse.defjvp
def _(primals, tangents):
    found = inverse(*primals)
    return found, -found @ tangents[0] @ found
