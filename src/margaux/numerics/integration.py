r"""Ordinary differential equations with inputs at known times, by one-step methods of adaptive step.

Solutions that are mapped take their steps side by side, in lanes (see `margaux.numerics.lanes`): a turn is a step of each towards
its own next time. Derivatives are forward ones of the steps themselves, and can be transposed: see `margaux.numerics.forward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, Float

from .lanes import Work, done
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


class _Job(NamedTuple):
    """A solution to find. Args: known: what the derivative and what holds between events close over."""

    start: Any
    y: State
    times: Array
    added: Array
    inputs: Inputs
    atol: Array
    known: Any


class _Between(NamedTuple):
    """What holds from an event at `since` to the next at `goal`: x, the inputs' rates, and of numbers that are known without
    steps what makes them and the most that there can be of them; the shortest step to take, and how many at most."""

    since: Any
    goal: Any
    x: Any
    rate: State
    factors: list[Any]
    most: Any
    shortest: Any
    limit: Any


class _Lane(NamedTuple):
    """On the way to the next event: where, the length of the step to try, steps so far, whether it has come there, whether there
    is no other or it cannot be reached, and the states at times that were passed, number by number."""

    t: Any
    y: State
    step: Any
    turns: Any
    halted: Any
    over: Any
    between: _Between
    out: State


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
    most: Callable[[Any], Any] | int = 5000,
    flow: Flow | None = None,
    lanes: bool = True,
) -> Float[Array, "T S"]:
    """The state at times, with what is `added` there; NaN where it is not reached in so many steps.

    Args:
        derivative: dy/dt at (t, y, x), without the inputs. held: x from the event at a time on until the next.
        start: time and state before all inputs; what starts then counts. Times before it are not reached.
        times, added: where the state is wanted, before the inputs of that very moment, of which `added` is the part that counts.
        rtol, atol: of the error of a step beside the state, and of each of its numbers alone. most: steps, or a function of
            the number of times and inputs after the start. flow: what is known of the state without steps, which go by the
            others then, and are `tsitouras`'; they still follow it, so that none goes past what comes and is gone again. lanes:
            whether those that are mapped go by lanes; if not they may be differentiated before they are mapped.
    """
    t0, y0 = start
    t0, y0 = jnp.asarray(t0, y0.dtype), tuple(y0)
    here = jax.eval_shape(held, t0)
    by_slope, of_slope = hoisted(derivative, t0, y0, here)
    by_held, of_held = hoisted(held, t0)
    size = range(len(y0))
    exact = () if flow is None else flow.places
    share = FREE if exact else 1.0
    by_flow: list[Callable[..., Any]] = []

    def factors_of(x: Any, y: Array, rate: Array) -> list[Any]:
        """What is made once of what is known between two events."""
        assert flow is not None
        at, factors = hoisted(flow.of(x)(y, rate), t0)
        by_flow[:] = [at]
        return factors

    numbers = jax.ShapeDtypeStruct((len(exact),), t0.dtype)
    by_factors, of_factors = hoisted(factors_of, here, numbers, numbers) if exact else (None, [])

    def bounds(job: _Job) -> tuple[Any, Any]:
        """The shortest step, and the most of them."""
        events = jnp.sum(job.times > job.start) + 2 * jnp.sum(jnp.isfinite(job.inputs.start))
        limit = jnp.asarray(most(events) if callable(most) else most, t0.dtype)
        return jax.lax.stop_gradient(SHORTEST * (jnp.max(job.times) - job.start)), limit

    def between(job: _Job, t: Any, y: State) -> _Between:
        """What holds from an event on, past which the state is so."""
        every = jnp.concatenate([job.times, job.inputs.start, job.inputs.end])
        goal = jnp.min(jnp.where(every > t, every, jnp.inf))
        running = (job.inputs.start <= t) & (job.inputs.end > t)
        rate = tuple(jnp.sum(jnp.where(running, job.inputs.rate[:, i], 0.0)) for i in size)
        x = by_held(job.known[1], t)
        lasts = jnp.where(jnp.isfinite(goal), goal - t, 0.0)
        most_of_it = sum((abs(y[i]) + abs(rate[i]) * lasts for i in exact), start=jnp.zeros((), t0.dtype))
        factors = by_factors(job.known[2], x, *(jnp.stack([each[i] for i in exact]) for each in (y, rate))) if by_factors else []
        return _Between(t, goal, x, rate, factors, jax.lax.stop_gradient(most_of_it), *bounds(job))

    def onwards(job: _Job, lane: _Lane) -> _Lane:
        """Past the event that it has come to, and towards the next."""
        now, given = job.times == lane.t, job.inputs.start == lane.t
        out = tuple(jnp.where(now, lane.y[i] + job.added[:, i], lane.out[i]) for i in size)
        y = tuple(lane.y[i] + jnp.sum(jnp.where(given, job.inputs.amount[:, i], 0.0)) for i in size)
        ahead = between(job, lane.t, y)
        ends = ~(jnp.any(job.times > lane.t) & jnp.isfinite(ahead.goal))
        return _Lane(lane.t, y, lane.step, lane.turns, ends, ends, ahead, out)

    def begin(job: _Job) -> _Lane:
        ahead = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(between, job, job.start, job.y))
        nothing = jnp.full(len(times), jnp.nan, t0.dtype)
        longest, yes = jnp.full_like(t0, jnp.inf), jnp.asarray(True)
        return _Lane(job.start, job.y, longest, jnp.asarray(0), yes, ~yes, ahead, (nothing,) * len(y0))

    def stepped(job: _Job, lane: _Lane, step: Any) -> tuple[State, State]:
        """The state after a step, and the estimate of its error."""
        between = lane.between

        def slope(t: Any, y: State) -> State:
            return tuple(each + between.rate[i] for i, each in enumerate(by_slope(job.known[0], t, y, between.x)))

        if not exact:
            return method(slope, lane.t, lane.y, step)
        # Of all stages together: a step that is written out has it once. The last is where the step ends.
        stages = lane.t - between.since + step * jnp.asarray((0.0, *nodes()), step.dtype)
        own = jax.vmap(lambda time: by_flow[0](between.factors, time))(stages)

        def with_known(stage: int, y: State) -> State:
            return tuple(own[exact.index(i)][stage] if i in exact else y[i] for i in size)

        y, wrong = method(slope, lane.t, lane.y, step, with_known)
        return with_known(-1, y), wrong

    def turn(job: _Job, lane: _Lane) -> _Lane:
        left = lane.between.goal - lane.t
        reaches = lane.step >= left
        step = jnp.where(reaches, left, lane.step)
        y, wrong = stepped(job, lane, step)
        # What is known is followed beside the most that there can be of it.
        beside = [lane.between.most if i in exact else jnp.maximum(jnp.abs(lane.y[i]), jnp.abs(y[i])) for i in size]
        scale = [share * (job.atol[i] + rtol * beside[i]) for i in size]
        square = jax.lax.stop_gradient(sum((wrong[i] / scale[i]) ** 2 for i in size) / len(y))
        taken = square <= 1  # not, where it is NaN
        factor = jnp.clip(CAUTION * jnp.maximum(square, 1e-20) ** (-ORDER / 2), LEAST, MOST)
        longer = jax.lax.stop_gradient(step) * jnp.where(jnp.isfinite(square), factor, LEAST)
        # A step that was cut short says nothing against longer ones.
        longer = jnp.where(taken & reaches, jnp.maximum(lane.step, longer), longer)
        halted, turns = taken & reaches, lane.turns + 1
        lost = ~halted & ((turns >= lane.between.limit) | ~(longer > lane.between.shortest))
        t = jnp.where(taken, jnp.where(reaches, lane.between.goal, lane.t + step), lane.t)
        y = tuple(jnp.where(taken, y[i], lane.y[i]) for i in size)
        return _Lane(t, y, longer, turns, halted, lost, lane.between, lane.out)

    job = _Job(t0, y0, times, added, inputs, jnp.asarray(atol), (of_slope, of_held, of_factors))
    return jnp.stack(done(Work(begin, turn, onwards, lambda lane: lane.out), job, lanes), axis=1)


def hoisted(function: Callable[..., Any], *like: Any) -> tuple[Callable[..., Any], list[Any]]:
    """A function of what it closes over and its arguments, which are like these; and what it closes over."""
    made, shape = jax.make_jaxpr(function, return_shape=True)(*like)
    structure = jax.tree.structure(shape)

    def of(closed: list[Any], *args: Any) -> Any:
        return jax.tree.unflatten(structure, jaxpr_as_fun(ClosedJaxpr(made.jaxpr, closed))(*jax.tree.leaves(args)))

    return of, list(made.consts)


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
