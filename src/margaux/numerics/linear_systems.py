r"""Linear differential equations with inputs at known times, solved exactly: $dy/dt=Ay+b$ plus what comes in.

Between two events the state goes to $e^{Ah}y+\int_0^he^{As}ds\,(b+r)$ in one step whatever h, r the rates of the inputs that
last: the exponential of A with a column more. All these are computed side by side, and only the products with the state in turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .exponential import Entries, exponential, with_powers
from .integration import Inputs


@dataclasses.dataclass(frozen=True)
class LinearSystem:
    r"""$dy/dt=Ay+b$.

    Args:
        matrix: A by row and column, without what is zero. constant: b (S,). homogeneous: b is zero.
    """

    matrix: Entries
    constant: Float[Array, " S"]
    homogeneous: bool = False

    def _moving(self, time: Any, rate: Array | None) -> tuple[Entries, list[Any], list[Any]]:
        r"""$e^{Ah}$, its diagonal less one, and what b and a rate r, if there is any, have become in the time h."""
        size, zero = len(self.constant), jnp.zeros((), self.constant.dtype)
        column = self.constant if rate is None else self.constant + rate
        driven = {} if rate is None and self.homogeneous else {(i, size): column[i] for i in range(size)}
        entries = self.matrix | driven
        if not entries:
            return {(i, i): 1 + zero for i in range(size)}, [zero] * size, [zero] * size
        scaled = {place: time * entries.get(place, zero) for place in with_powers(entries)}
        found, less_one = exponential(scaled, size, size + bool(driven))
        return found, less_one, [found.get((i, size), zero) for i in range(size)]

    def steps(self, time: Any, rate: Float[Array, " S"] | None = None) -> tuple[Float[Array, "S S"], Float[Array, " S"]]:
        """What the state is multiplied by in a time, and what comes to it then."""
        found, _, brought = self._moving(time, rate)
        return self._square(found), jnp.stack(brought)

    def _square(self, entries: Entries) -> Float[Array, "S S"]:
        size = range(len(self.constant))
        zero = jnp.zeros((), self.constant.dtype)
        return jnp.stack([jnp.stack([entries.get((i, j), zero) for j in size]) for i in size])

    def moved(self, y: Float[Array, " S"], time: Any, rate: Float[Array, " S"]) -> Float[Array, " S"]:
        """The state after a time, or before it where it is negative."""
        factor, brought = self.steps(time, rate)
        return factor @ y + brought

    def periodic(self, time: Any, after: Float[Array, " S"]) -> Float[Array, " S"]:
        r"""The state that is the same a time later, where a state of zero would be at `after`: $(I-e^{Ah})\,y=$ `after`."""
        found, less_one, _ = self._moving(time, None)
        growth = self._square(found | {(i, i): p for i, p in enumerate(less_one)})
        return jnp.linalg.solve(-growth, after)

    def steady(self, rate: Float[Array, " S"]) -> Float[Array, " S"]:
        """The state that a constant rate keeps."""
        return jnp.linalg.solve(-self._square(self.matrix), self.constant + rate)

    def states_at(
        self,
        begins: Float[Array, " P"],
        start: Float[Array, "*P S"],
        times: tuple[Float[Array, " T"], Any],
        added: Float[Array, "T S"],
        inputs: tuple[Inputs, Any],
        lasting: bool = True,
        later: Callable[[Any, Any], LinearSystem] | None = None,
    ) -> Float[Array, "T S"]:
        """As `integration.states_at`, of a record in several parts, each of which begins with `start` at a time of its own.

        Args:
            start: one for all parts, or each its own. times, inputs: each with the number of the part that it is in. lasting:
                whether any input lasts. later: the system that holds from a time of a part on, where it is not one for all.
        """
        (asked, place), (given, own) = times, inputs
        T, E, P = len(asked), len(given.start), len(begins)
        # What begins comes before what is observed at that time, and that before what is given then.
        when = jnp.concatenate([begins, asked, given.start, *[given.end] * lasting])
        of_inputs = jnp.broadcast_to(own, (E,))
        numbers = (jnp.arange(P), jnp.broadcast_to(place, (T,)), of_inputs, *[of_inputs] * lasting)
        part = jnp.concatenate([jnp.asarray(number, when.dtype) for number in numbers])
        order = jax.lax.sort((part, jax.lax.stop_gradient(when), jnp.arange(len(when))), num_keys=2)[2]
        when, part, anew = when[order], part[order], order < P
        enters = (order >= P + T) & (order < P + T + E)
        amount = jnp.where(enters[:, None], given.amount[jnp.where(enters, order - P - T, 0)], 0.0)

        passed = when[1:] - when[:-1]
        passed = jnp.where(jnp.isfinite(passed) & ~anew[1:] & (part[1:] == part[:-1]), passed, 0.0)
        rates = None
        if lasting:
            running = (given.start <= when[:-1, None]) & (given.end > when[:-1, None]) & (of_inputs == part[:-1, None])
            rates = running.astype(when.dtype) @ given.rate

        def step(part: Any, t: Any, *passed: Any) -> tuple[Array, Array]:
            return (self if later is None else later(part, t)).steps(*passed)

        factor, brought = jax.vmap(step)(part[:-1], when[:-1], *(each for each in (passed, rates) if each is not None))
        of_part = start if start.ndim == 1 else start[jnp.maximum(part, 0).astype(int)]

        def to_next(y: Array, event: Any) -> tuple[Array, Array]:
            anew, start, factor, brought, amount = event
            y = jnp.where(anew, of_part if start is None else start, jnp.sum(factor * y, axis=1) + brought)
            return y + amount, y

        own = None if start.ndim == 1 else of_part[1:]
        first = jnp.where(anew[0], of_part if own is None else of_part[0], 0.0)
        others = jax.lax.scan(to_next, first + amount[0], (anew[1:], own, factor, brought, amount[1:]))[1]
        found = jnp.zeros((len(when), start.shape[-1]), start.dtype).at[order].set(jnp.concatenate([first[None], others]))
        reached = asked >= begins[jnp.asarray(numbers[1], int)]
        unknown = jnp.any(jnp.isnan(given.end) & (of_inputs == jnp.reshape(numbers[1], (T, 1))), axis=1)
        return jnp.where((reached & ~unknown)[:, None], found[P : P + T] + added, jnp.nan)
