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
from .exponential_of_two import MOST, exponential_of_two
from .integration import Inputs

#: numbers of a matrix up to which it is multiplied number by number
WRITTEN = 64


@dataclasses.dataclass(frozen=True)
class LinearSystem:
    r"""$dy/dt=Ay+b$.

    Args:
        matrix: A by row and column, without what is zero. constant: b (S,). homogeneous: b is zero.
    """

    matrix: Entries
    constant: Float[Array, " S"]
    homogeneous: bool = False

    def _scaled(self, time: Any, rate: Array | None) -> tuple[Entries, int]:
        """A times the time, with a column more for b and a rate r, if there is any, and how many rows and columns that has."""
        size, zero = len(self.constant), jnp.zeros((), self.constant.dtype)
        column = self.constant if rate is None else self.constant + rate
        driven = {} if rate is None and self.homogeneous else {(i, size): column[i] for i in range(size)}
        entries = self.matrix | driven
        return {place: time * entries.get(place, zero) for place in with_powers(entries)}, size + bool(driven)

    def _steps(self, time: Any, rate: Float[Array, " S"] | None = None) -> tuple[Entries, tuple[Any, ...]]:
        """What the state is multiplied by in a time, without what is zero, and what comes to it then."""
        size, zero = len(self.constant), jnp.zeros((), self.constant.dtype)
        entries, width = self._scaled(time, rate)
        if not entries:
            return {(i, i): 1 + zero for i in range(size)}, (zero,) * size
        driven = width > size
        found = exponential_of_two(entries, size, driven) if size <= MOST else exponential(entries, size, width)[0]
        return {place: value for place, value in found.items() if max(place) < size}, tuple(
            found.get((i, size), zero) for i in range(size)
        )

    def _square(self, entries: Entries) -> Float[Array, "S S"]:
        size = range(len(self.constant))
        zero = jnp.zeros((), self.constant.dtype)
        return jnp.stack([jnp.stack([entries.get((i, j), zero) for j in size]) for i in size])

    def moved(self, y: Float[Array, " S"], time: Any, rate: Float[Array, " S"] | None = None) -> Float[Array, " S"]:
        """The state after a time, or before it where it is negative."""
        factor, brought = self._steps(time, rate)
        return self._square(factor) @ y + jnp.stack(brought)

    def periodic(self, time: Any, after: Float[Array, " S"]) -> Float[Array, " S"]:
        r"""The state that is the same a time later, where a state of zero would be at `after`: $(I-e^{Ah})\,y=$ `after`."""
        size = len(self.constant)
        entries, _ = dataclasses.replace(self, homogeneous=True)._scaled(time, None)
        found, less_one = exponential(entries or {(0, 0): jnp.zeros_like(after[0])}, size, size)
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

        def step(part: Any, t: Any, *passed: Any) -> tuple[Any, tuple[Any, ...]]:
            system = self if later is None else later(part, t)
            factor, brought = system._steps(*passed)
            return factor if len(factor) <= WRITTEN else system._square(factor), brought

        # Number by number: side by side with other units each is an array of them all.
        size = range(len(self.constant))
        factor, brought = jax.vmap(step)(part[:-1], when[:-1], *(each for each in (passed, rates) if each is not None))
        starts = [start[..., i] if start.ndim == 1 else start[jnp.maximum(part, 0).astype(int), i] for i in size]

        def to_next(y: tuple[Any, ...], event: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            anew, own, factor, brought, amount = event
            y = tuple(map(jnp.where, (anew,) * len(size), own, map(jnp.add, _product(factor, y), brought)))
            return tuple(map(jnp.add, y, amount)), y

        amounts = [amount[:, i] for i in size]
        owns = [jnp.broadcast_to(own, when.shape) for own in starts]
        first = [jnp.where(anew[0], own[0], 0.0) for own in owns]
        events = anew[1:], tuple(own[1:] for own in owns), factor, brought, tuple(each[1:] for each in amounts)
        began = tuple(y + each[0] for y, each in zip(first, amounts, strict=True))
        others = jax.lax.scan(to_next, began, events)[1]
        back = jnp.argsort(order)[P : P + T]
        found = jnp.stack([jnp.append(y, more)[back] for y, more in zip(first, others, strict=True)], axis=1)
        reached = asked >= begins[jnp.asarray(numbers[1], int)]
        unknown = jnp.any(jnp.isnan(given.end) & (of_inputs == jnp.reshape(numbers[1], (T, 1))), axis=1)
        return jnp.where((reached & ~unknown)[:, None], found + added, jnp.nan)


def _product(factor: Any, y: tuple[Any, ...]) -> list[Any]:
    """Of a matrix, written out or not, and numbers."""
    if isinstance(factor, dict):
        return [sum((factor[i, j] * y[j] for h, j in factor if h == i), start=jnp.zeros_like(y[i])) for i in range(len(y))]
    return list(factor @ jnp.stack(y))
