r"""Steps of one-step methods for differential equations, each with an estimate of its error.

The few numbers of a state are written out: units that are mapped then go through a step in a few loops over all of them. Where
they are not so few, the stages of an implicit step are turns of a loop: written out one after the other they are a program that
takes a minute to compile, and many times over what it computes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: a state, number by number
State = tuple[Any, ...]
#: (t, y) -> dy/dt
Slope = Callable[[Any, State], State]
#: (slope, t, y, length of the step) -> the state after it, and the estimate of its error
Step = Callable[..., tuple[State, State]]
#: (stage, y) -> y with what is known of it there
Fill = Callable[[int, State], State]
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


#: numbers of a state up to which the stages of an implicit step are written out
WRITTEN_OUT = 3


def rodas(slope: Slope, t: Any, y: State, step: Any) -> tuple[State, State]:
    r"""A step of Rodas (order 4, L-stable), of stages
    $(I/(h\gamma)-J)\,k_i=f(t+c_ih,\,y+\sum_j a_{ij}k_j)+\sum_j C_{ij}k_j/h+hd_i\,\partial f/\partial t$.

    Nothing is iterated, and no rate is too fast for it.

    Reference: Hairer and Wanner, Solving Ordinary Differential Equations II (2nd ed., 1996), IV.7 and the program RODAS.
    """
    size = range(len(y))
    columns = _jacobian(slope, t, y)
    here, in_time = jax.jvp(lambda t: slope(t, y), (t,), (jnp.ones_like(t),))
    factors = _factored([[(1 / (step * GAMMA) if i == j else 0.0) - columns[j][i] for j in size] for i in size])
    if len(y) > WRITTEN_OUT:
        return _in_turns(slope, t, y, step, (factors, in_time))
    found: list[State] = []
    place = y
    for node, inside, beside, by_time in RODAS:
        if found:
            place = tuple(y[i] + _combined(inside, found, i) for i in size)
            here = slope(t + node * step, place)
        right = [here[i] + _combined(beside, found, i) / step + step * by_time * in_time[i] for i in size]
        found.append(_solved(factors, right))
    return tuple(place[i] + found[-1][i] for i in size), found[-1]


def _jacobian(slope: Slope, t: Any, y: State) -> list[State]:
    """Derivatives of the slope by each number of the state."""
    size = range(len(y))
    if len(y) > WRITTEN_OUT:
        by_all = jax.jacfwd(lambda y: slope(t, tuple(y)))(jnp.stack(y))
        return [tuple(each[j] for each in by_all) for j in size]
    one = jnp.ones_like(y[0])
    units = [tuple(one if i == j else jnp.zeros_like(one) for i in size) for j in size]
    return [jax.jvp(lambda y: slope(t, y), (y,), (unit,))[1] for unit in units]


def _in_turns(slope: Slope, t: Any, y: State, step: Any, known: Any) -> tuple[State, State]:
    """The stages of a step of Rodas by a loop, given the factors of its matrix and the derivative in time."""
    factors, in_time = known
    size, dtype, stages = range(len(y)), y[0].dtype, np.arange(len(RODAS))
    node, inside, beside, by_time = (jnp.asarray(table, dtype) for table in _tables())

    def stage(s: Any, before: tuple[State, State]) -> tuple[State, State]:
        found, _ = before
        place = tuple(y[i] + jnp.sum(inside[s] * found[i]) for i in size)
        here = slope(t + node[s] * step, place)
        right = [here[i] + jnp.sum(beside[s] * found[i]) / step + step * by_time[s] * in_time[i] for i in size]
        solved = _solved(factors, right)
        return tuple(jnp.where(stages == s, solved[i], found[i]) for i in size), place

    nothing = tuple(jnp.zeros(len(stages), dtype) for _ in size)
    found, place = jax.lax.fori_loop(0, len(stages), stage, (nothing, tuple(y)))
    last = tuple(each[-1] for each in found)
    return tuple(place[i] + last[i] for i in size), last


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The coefficients of `RODAS` by stage, those of stages that are not yet there zero."""
    nodes, inside, beside, by_time = zip(*RODAS, strict=True)

    def square(rows: Any) -> np.ndarray:
        return np.stack([np.pad(np.asarray(row, float), (0, len(RODAS) - len(row))) for row in rows])

    return np.asarray(nodes), square(inside), square(beside), np.asarray(by_time)


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
    stages = list(zip(nodes(), [tuple(map(float, inside)) for inside in table.a_lower], strict=True))
    weights, wrong = tuple(map(float, table.b_sol)), tuple(map(float, table.b_error))

    def stepped(slope: Slope, t: Any, y: State, step: Any, fill: Fill = lambda stage, y: y) -> tuple[State, State]:
        size = range(len(y))
        found = [slope(t, fill(0, y))]
        for stage, (node, inside) in enumerate(stages, 1):
            place = tuple(y[i] + step * _combined(inside, found, i) for i in size)
            found.append(slope(t + node * step, fill(stage, place)))
        after = tuple(y[i] + step * _combined(weights, found, i) for i in size)
        return after, tuple(step * _combined(wrong, found, i) for i in size)

    return stepped


@functools.cache
def nodes() -> tuple[float, ...]:
    """Where the stages of `tsitouras` but the first are, in shares of a step."""
    import diffrax

    return tuple(map(float, diffrax.Tsit5.tableau.c))


def _combined(weights: tuple[float, ...], slopes: list[State], i: int) -> Any:
    """The weighted sum of number i of several states."""
    return sum((weight * each[i] for weight, each in zip(weights, slopes, strict=False) if weight), start=0.0)


#: rows of multipliers below the diagonal, and reciprocal pivots with what is right of them
Factors = tuple[list[list[Any]], list[list[Any]], list[Any]]


def _factored(matrix: list[list[Any]]) -> Factors:
    """L and U of a small matrix whose diagonal can be divided by in turn, as that of a short implicit step."""
    size = len(matrix)
    upper, lower, pivots = [list(row) for row in matrix], [[0.0] * size for _ in range(size)], []
    for k in range(size):
        pivots.append(1 / upper[k][k])
        for i in range(k + 1, size):
            lower[i][k] = upper[i][k] * pivots[k]
            for j in range(k + 1, size):
                upper[i][j] = upper[i][j] - lower[i][k] * upper[k][j]
    return lower, upper, pivots


def _solved(factors: Factors, right: list[Any]) -> State:
    lower, upper, pivots = factors
    size = len(right)
    half: list[Any] = []
    for i in range(size):
        half.append(right[i] - sum((lower[i][j] * half[j] for j in range(i)), start=0.0))
    out: list[Any] = [None] * size
    for i in reversed(range(size)):
        out[i] = (half[i] - sum((upper[i][j] * out[j] for j in range(i + 1, size)), start=0.0)) * pivots[i]
    return tuple(out)
