r"""Ordinary differential equations with inputs at known times, by Runge-Kutta methods of adaptive step.

Units that are mapped take their steps side by side: one loop whose every turn is a step of each towards its own next time, and
that ends with the slowest. The methods' coefficients are diffrax's (Tsitouras 2011; Kværnø 2004). Derivatives are forward ones of
the steps themselves, and can be transposed: see `transposable`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

#: what a step shrinks by at least, grows by at most, and its caution
LEAST, MOST, CAUTION = 0.2, 8.0, 0.9
#: Newton's iterations of an implicit stage
ITERATIONS = 4

#: (t, y, x) -> dy/dt
Derivative = Callable[[Any, Array, Any], Array]


class Method(NamedTuple):
    """Coefficients of a Runge-Kutta method of order 5 with an estimate of its error of order 4; `diagonal` of an implicit one."""

    lower: np.ndarray
    diagonal: np.ndarray
    nodes: np.ndarray
    weights: np.ndarray
    error: np.ndarray

    @property
    def implicit(self) -> bool:
        return bool(np.any(self.diagonal))


@functools.cache
def method(stiff: bool) -> Method:
    """Kværnø's L-stable method, or that of Tsitouras.

    Raises:
        ImportError: diffrax is not installed.
    """
    try:
        import diffrax
    except ImportError as error:
        raise ImportError("differential equations need diffrax; install it via: pip install 'margaux[ode]'") from error
    table = (diffrax.Kvaerno5 if stiff else diffrax.Tsit5).tableau
    stages = len(table.b_sol)
    lower = np.zeros((stages, stages))
    for i, row in enumerate(table.a_lower):
        lower[i + 1, : i + 1] = row
    diagonal = np.zeros(stages) if table.a_diagonal is None else np.asarray(table.a_diagonal, float)
    return Method(lower, diagonal, np.append(0.0, table.c), np.asarray(table.b_sol), np.asarray(table.b_error))


class Inputs(NamedTuple):
    """What enters the state: `amount` (E, S) at once at `start` (E,), or `rate` (E, S) from `start` to `end` (E,)."""

    start: Array
    end: Array
    amount: Array
    rate: Array


class _Here(NamedTuple):
    t: Any
    y: Array
    step: Any
    out: Array
    turns: Any


def states_at(
    derivative: Derivative,
    x: Any,
    start: tuple[Any, Float[Array, " S"]],
    times: Float[Array, " T"],
    added: Float[Array, "T S"],
    inputs: Inputs,
    *,
    stiff: bool = False,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    most: int = 5000,
) -> Float[Array, "T S"]:
    """The state at times, with what is `added` there; NaN where it is not reached in so many steps.

    Args:
        derivative: dy/dt at (t, y, x), without the inputs.
        start: time and state before all inputs; what starts then counts. Times before it are not reached.
        times, added: where the state is wanted, before the inputs of that very moment, of which `added` is the part that counts.
        rtol, atol: of the error of a step beside the state. most: steps.
    """
    t0, y0 = start
    coefficients = method(stiff)

    def arrived(t: Any, y: Array, out: Array) -> tuple[Array, Array]:
        now = times == t
        out = jnp.where(now[:, None], y + added, out)
        return y + jnp.sum(jnp.where((inputs.start == t)[:, None], inputs.amount, 0.0), axis=0), out

    def following(t: Any) -> Array:
        every = jnp.concatenate([times, inputs.start, inputs.end])
        return jnp.min(jnp.where(every > t, every, jnp.inf))

    def going_on(here: _Here) -> Any:
        return (here.turns < most) & jnp.any(times > here.t)

    def turn(here: _Here) -> _Here:
        goal = following(here.t)
        left = goal - here.t
        reaches = here.step >= left
        step = jnp.where(reaches, left, here.step)
        running = (inputs.start <= here.t) & (inputs.end > here.t)
        rate = jnp.sum(jnp.where(running[:, None], inputs.rate, 0.0), axis=0)
        y, wrong = _step(coefficients, lambda t, y: derivative(t, y, x) + rate, here.t, here.y, step)
        scale = atol + rtol * jnp.maximum(jnp.abs(here.y), jnp.abs(y))
        error = jax.lax.stop_gradient(jnp.sqrt(jnp.mean((wrong / scale) ** 2)))
        taken = error <= 1  # not, where it is NaN
        factor = jnp.clip(CAUTION * jnp.maximum(error, 1e-10) ** -0.2, LEAST, MOST)
        following_step = jax.lax.stop_gradient(step) * jnp.where(jnp.isfinite(error), factor, LEAST)
        # A step that was cut short says nothing against longer ones.
        following_step = jnp.where(taken & reaches, jnp.maximum(here.step, following_step), following_step)
        t = jnp.where(reaches, goal, here.t + step)
        after, out = arrived(t, y, here.out)
        y = jnp.where(reaches, after, y)
        out = jnp.where(reaches, out, here.out)
        return _Here(
            jnp.where(taken, t, here.t),
            jnp.where(taken, y, here.y),
            following_step,
            jnp.where(taken, out, here.out),
            here.turns + 1,
        )

    y, out = arrived(t0, y0, jnp.full((len(times), len(y0)), jnp.nan, y0.dtype))
    first = _Here(jnp.asarray(t0, y0.dtype), y, jnp.asarray(jnp.inf, y0.dtype), out, jnp.asarray(0))
    return jax.lax.while_loop(going_on, turn, first).out


def _step(coefficients: Method, derivative: Callable[[Any, Array], Array], t: Any, y: Array, step: Any) -> tuple[Array, Array]:
    """The state a step later, and the estimate of its error."""
    slopes: list[Array] = []
    inverses: dict[float, Array] = {}
    unsolved = jnp.zeros_like(y)
    if coefficients.implicit:
        jacobian = jax.jacfwd(lambda y: derivative(t, y))(y)
    for row, diagonal, node in zip(coefficients.lower, coefficients.diagonal, coefficients.nodes, strict=True):
        at, place = t + node * step, y + step * _combined(row, slopes, y)
        if diagonal == 0.0:
            slopes.append(derivative(at, place))
            continue
        if diagonal not in inverses:
            inverses[diagonal] = jnp.linalg.inv(jnp.eye(len(y), dtype=y.dtype) - step * diagonal * jacobian)
        slope, change = slopes[-1], jnp.zeros_like(y)
        for _ in range(ITERATIONS):
            change = inverses[diagonal] @ (slope - derivative(at, place + step * diagonal * slope))
            slope = slope - change
        slopes.append(slope)
        unsolved += jnp.abs(change)
    wrong = jnp.abs(_combined(coefficients.error, slopes, y)) + unsolved
    return y + step * _combined(coefficients.weights, slopes, y), step * wrong


def _combined(weights: np.ndarray, slopes: list[Array], like: Array) -> Array:
    total = jnp.zeros_like(like)
    for weight, slope in zip(weights, slopes, strict=False):
        if weight:
            total = total + weight * slope
    return total


def fixed_point(function: Callable[[Array], Array], start: Array, most: int = 30) -> Array:
    """y = function(y) by Newton's method, whose derivatives are those of the solution; NaN where it is not found."""

    def newton(y: Array) -> Array:
        def twice(y: Array) -> tuple[Array, Array]:
            value = function(y)
            return value, value

        jacobian, value = jax.jacfwd(twice, has_aux=True)(y)
        return y + jnp.linalg.solve(jnp.eye(len(y), dtype=y.dtype) - jacobian, value - y)

    def moving(state: tuple[Array, Array, Any]) -> Any:
        y, before, turns = state
        return (turns < most) & ~jnp.all(jnp.abs(y - before) <= 1e-9 * (jnp.abs(y) + jnp.max(jnp.abs(y))))

    y, before, turns = jax.lax.while_loop(moving, lambda s: (newton(s[0]), s[0], s[2] + 1), (newton(start), start, 0))
    # Derivatives of the solution are a step of Newton's behind it, each order by one.
    return jnp.where(turns < most, newton(newton(y)), jnp.nan)


def transposable(function: Callable[[Array, Any], Array]) -> Callable[[Array, Any], Array]:
    """A function of (x (k,), data) whose derivatives in x, of any order, are by forward mode through it, and can be transposed:
    a loop of unknown length cannot. For few x. Nothing is differentiated in the data."""

    @jax.custom_jvp
    def of(x: Array, data: Any) -> Array:
        return function(x, data)

    @of.defjvp
    def _(primals, tangents):
        x, data = primals
        value, jacobian = transposable(_with_jacobian(function))(x, data)
        return value, jax.tree.map(lambda each: each @ tangents[0], jacobian)

    return of


def _with_jacobian(function: Callable[[Array, Any], Any]) -> Callable[[Array, Any], Any]:
    def both(x: Array, data: Any) -> Any:
        def push(direction: Array) -> Any:
            return jax.jvp(lambda x: function(x, data), (x,), (direction,))

        return jax.vmap(push, out_axes=(None, -1))(jnp.eye(len(x), dtype=x.dtype))

    return both
