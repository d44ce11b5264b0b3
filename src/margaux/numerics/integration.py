r"""Ordinary differential equations with inputs at known times, by one-step methods of adaptive step.

Units that are mapped take their steps side by side: one loop whose every turn is a step of each towards its own next time, and
that ends with the slowest. Derivatives are forward ones of the steps themselves, and can be transposed: see `transposable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .steps import State, Step, nodes, rodas

#: what a step shrinks by at least, grows by at most, and its caution
LEAST, MOST, CAUTION = 0.2, 8.0, 0.9
#: a step is the error's power of it shorter
ORDER = 0.25

#: share of the tolerances of the others where a part of the state is known, whose own errors no longer make steps short: what is
#: left is then as wrong as it was
FREE = 0.1
#: share of the whole time that no step is shorter than
SHORTEST = 1e-13

#: (t, y, x) -> dy/dt, of a state number by number
Derivative = Callable[[Any, State, Any], State]


class Inputs(NamedTuple):
    """What enters the state: `amount` (E, S) at once at `start` (E,), or `rate` (E, S) from `start` to `end` (E,)."""

    start: Array
    end: Array
    amount: Array
    rate: Array


class Flow(NamedTuple):
    """Numbers of the state that are known exactly between events, whatever the others: `places`, and `of`, x -> (those numbers,
    their rates of input) -> time -> them that much later, number by number."""

    places: tuple[int, ...]
    of: Callable[[Any], Callable[[Array, Array], Callable[[Any], State]]]


class _Steps(NamedTuple):
    """On the way to the next event: where, the length of the step to try, whether it has reached it, and steps so far."""

    t: Any
    y: State
    step: Any
    there: Any
    turns: Any


def states_at(
    derivative: Derivative,
    held: Callable[[Any], Any],
    start: tuple[Any, Float[Array, " S"]],
    times: Float[Array, " T"],
    added: Float[Array, "T S"],
    inputs: Inputs,
    *,
    atol: Float[Array, " S"],
    rtol: float = 1e-5,
    method: Step = rodas,
    most: int = 5000,
    flow: Flow | None = None,
) -> Float[Array, "T S"]:
    """The state at times, with what is `added` there; NaN where it is not reached in so many steps.

    Args:
        derivative: dy/dt at (t, y, x), without the inputs. held: x from the event at a time on until the next.
        start: time and state before all inputs; what starts then counts. Times before it are not reached.
        times, added: where the state is wanted, before the inputs of that very moment, of which `added` is the part that counts.
        rtol, atol: of the error of a step beside the state, and of each of its numbers alone. most: steps. flow: what is known
            of the state without steps, which go by the others then, and are `tsitouras`'; they still follow it, so that none
            goes past what comes and is gone again.
    """
    t0, y0 = start
    size = range(len(y0))
    exact = () if flow is None else flow.places
    share = FREE if exact else 1.0
    shortest = SHORTEST * (jnp.max(times) - t0)

    def arrived(t: Any, y: State, out: State) -> tuple[State, State]:
        now, given = times == t, inputs.start == t
        out = tuple(jnp.where(now, y[i] + added[:, i], out[i]) for i in size)
        return tuple(y[i] + jnp.sum(jnp.where(given, inputs.amount[:, i], 0.0)) for i in size), out

    def going_on(here: tuple[_Steps, State]) -> Any:
        steps, _ = here
        return steps.there & jnp.any(times > steps.t)

    def to_next_event(here: tuple[_Steps, State]) -> tuple[_Steps, State]:
        begun, out = here
        every = jnp.concatenate([times, inputs.start, inputs.end])
        goal = jnp.min(jnp.where(every > begun.t, every, jnp.inf))
        running = (inputs.start <= begun.t) & (inputs.end > begun.t)
        rate = [jnp.sum(jnp.where(running, inputs.rate[:, i], 0.0)) for i in size]
        x = held(begun.t)
        known = None if flow is None else flow.of(x)(*(jnp.stack([each[i] for i in exact]) for each in (begun.y, rate)))

        def with_known(own: State, y: State) -> State:
            return tuple(own[exact.index(i)] if i in exact else y[i] for i in size)

        def slope(t: Any, y: State) -> State:
            return tuple(each + rate[i] for i, each in enumerate(derivative(t, y, x)))

        def stepped(t: Any, y: State, step: Any) -> tuple[State, State]:
            if known is None:
                return method(slope, t, y, step)
            # Of all stages together: a step that is written out has it once.
            own = jax.vmap(known)(t - begun.t + step * jnp.asarray((0.0, *nodes()), y0.dtype))
            return method(slope, t, y, step, lambda stage, y: with_known(tuple(each[stage] for each in own), y))

        # What is known is followed beside the most that there can be of it.
        lasts = jnp.where(jnp.isfinite(goal), goal - begun.t, 0.0)
        most_of_it = sum((abs(begun.y[i]) + abs(rate[i]) * lasts for i in exact), start=jnp.zeros((), y0.dtype))
        most_of_it = jax.lax.stop_gradient(most_of_it)

        def on_the_way(steps: _Steps) -> Any:
            return ~steps.there & (steps.turns < most) & (steps.step > shortest)

        def turn(steps: _Steps) -> _Steps:
            left = goal - steps.t
            reaches = steps.step >= left
            step = jnp.where(reaches, left, steps.step)
            y, wrong = stepped(steps.t, steps.y, step)
            beside = [most_of_it if i in exact else jnp.maximum(jnp.abs(steps.y[i]), jnp.abs(y[i])) for i in size]
            scale = [share * (atol[i] + rtol * beside[i]) for i in size]
            square = jax.lax.stop_gradient(sum((wrong[i] / scale[i]) ** 2 for i in size) / len(y))
            taken = square <= 1  # not, where it is NaN
            factor = jnp.clip(CAUTION * jnp.maximum(square, 1e-20) ** (-ORDER / 2), LEAST, MOST)
            longer = jax.lax.stop_gradient(step) * jnp.where(jnp.isfinite(square), factor, LEAST)
            # A step that was cut short says nothing against longer ones.
            longer = jnp.where(taken & reaches, jnp.maximum(steps.step, longer), longer)
            t = jnp.where(taken, jnp.where(reaches, goal, steps.t + step), steps.t)
            y = tuple(jnp.where(taken, y[i], steps.y[i]) for i in size)
            return _Steps(t, y, longer, taken & reaches, steps.turns + 1)

        # Units that are done are still mapped along: they must not go on to what never comes.
        ended = jax.lax.while_loop(on_the_way, turn, begun._replace(there=~jnp.isfinite(goal)))
        y = ended.y if known is None else with_known(known(ended.t - begun.t), ended.y)
        y, out = arrived(ended.t, y, out)
        return ended._replace(y=y), out

    nothing = jnp.full(len(times), jnp.nan, y0.dtype)
    y, out = arrived(t0, tuple(y0), (nothing,) * len(y0))
    begun = _Steps(jnp.asarray(t0, y0.dtype), y, jnp.asarray(jnp.inf, y0.dtype), jnp.asarray(True), jnp.asarray(0))
    return jnp.stack(jax.lax.while_loop(going_on, to_next_event, (begun, out))[1], axis=1)


def fixed_point(function: Callable[[Array], Array], start: Array, tolerance: float = 1e-9, most: int = 30) -> Array:
    """y = function(y) by Newton's method, whose derivatives are those of the solution; NaN where it is not found.

    Args:
        tolerance: of the last step beside y; where steps of a solver are in the function, it is not smoother than they are exact.
    """

    def newton(y: Array) -> Array:
        def twice(y: Array) -> tuple[Array, Array]:
            value = function(y)
            return value, value

        jacobian, value = jax.jacfwd(twice, has_aux=True)(y)
        return y + jnp.linalg.solve(jnp.eye(len(y), dtype=y.dtype) - jacobian, value - y)

    def moving(state: tuple[Array, Array, Any]) -> Any:
        y, before, turns = state
        return (turns < most) & ~jnp.all(jnp.abs(y - before) <= tolerance * (jnp.abs(y) + jnp.max(jnp.abs(y))))

    y, before, turns = jax.lax.while_loop(moving, lambda s: (newton(s[0]), s[0], s[2] + 1), (newton(start), start, 0))
    # Derivatives of the solution are a step of Newton's behind it, each order by one.
    return jnp.where(turns < most, newton(newton(y)), jnp.nan)


def transposable(function: Callable[[Array, Any], Array], bent: bool = True) -> Callable[[Array, Any], Array]:
    """A function of (x (k,), data) whose derivatives in x, of any order, are by forward mode through it, and can be transposed:
    a loop of unknown length cannot. For few x. Nothing is differentiated in the data.

    Args:
        bent: whether it has second derivatives. Those of a function of it are otherwise Gauss and Newton's, by its first.
    """

    @jax.custom_jvp
    def of(x: Array, data: Any) -> Array:
        return function(x, data)

    @of.defjvp
    def _(primals, tangents):
        x, data = primals
        both = _with_jacobian(function)
        value, jacobian = transposable(both)(x, data) if bent else both(jax.lax.stop_gradient(x), data)
        # Where there is no value there is no slope: NaN would spread, by zero times NaN, to what does not depend on it.
        jacobian = jax.tree.map(lambda each: jnp.where(jnp.isfinite(each), each, 0.0), jacobian)
        if not bent:
            value = value + jacobian @ (x - jax.lax.stop_gradient(x))
        return value, jax.tree.map(lambda each: each @ tangents[0], jacobian)

    return of


def _with_jacobian(function: Callable[[Array, Any], Any]) -> Callable[[Array, Any], Any]:
    def both(x: Array, data: Any) -> Any:
        def push(direction: Array) -> Any:
            return jax.jvp(lambda x: function(x, data), (x,), (direction,))

        return jax.vmap(push, out_axes=(None, -1))(jnp.eye(len(x), dtype=x.dtype))

    return both
