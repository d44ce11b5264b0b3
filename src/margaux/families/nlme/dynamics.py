r"""Structural models by ordinary differential equations, whose doses are an event table."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...numerics.exponential_of_two import MOST
from ...numerics.forward import transposable
from ...numerics.integration import Flow, Inputs, fixed_point, states_at
from ...numerics.linear_systems import LinearSystem
from ...numerics.steps import State, rodas, tsitouras
from .dosing import LAST, AbstractAdministration, Regimen, administered, read_of_dose
from .linear import Linearity, closed, flow_of, linearity, system
from .outcomes import DOSES, OCCASION
from .responses import AT_INTERVALS, NEVER, UNTIL_NOW
from .timetable import IN_PART, SINCE, Parameters

if TYPE_CHECKING:
    from .data import LongData

#: of a row and of a dose, the number of the part of its subject's record, between two resets; of a subject, when each begins
PART, BEGINS = "part", "begins"
#: of a subject, which of its doses are at steady state
STEADY = "places at steady state"
#: steps between two events, on average, and more, that a subject is given by default
STEPS, MORE = 100, 1000
#: of the size of a state, its initial value or the largest dose, what is negligible
NEGLIGIBLE = 1e-4
#: the tolerance of a solution from which a fit is started; the share of the steps that it may take, since wild places take most,
#: and that of one where modes are searched for, from far away
ROUGH, HURRIED, SEARCHED = 1e-3, 0.5, 0.25
#: infusions of a regimen at steady state that can overlap; what has more of them is not a number
OVERLAPS = 8


@dataclasses.dataclass(frozen=True)
class Dynamics(AbstractAdministration):
    r"""A prediction by $dy/dt = f(t, y;\psi)$ plus what doses put in: f(parameters, row).

    Each dose enters its compartment at once, or at a constant rate, its lag time after its record; resets put the state back to
    its initial one. Every input is where a step begins. At steady state the state is the fixed point of one interval of the
    regimen, by Newton's method. Linear equations have exponentials of matrices in place of steps, and of the fixed point too. See
    `ode` for the arguments.

    Args:
        derivatives: what is wanted of them, "any", the "first" (see `transposable`), or any by "forward" mode alone, which costs
            as many solutions as there are directions, and not as there are parameters. patience: times the usual steps at most.
    """

    derivative: Callable[..., Any]
    states: tuple[str, ...]
    output: Callable[..., Any]
    initial: Callable[..., Any] | None = None
    stiff: bool | None = None
    rtol: float = 1e-5
    atol: float | None = None
    max_steps: int | None = None
    regimen: Regimen = Regimen()
    lag: tuple[str | None, ...] = ()
    bioavailability: tuple[str | None, ...] = ()
    duration: str | None = None
    rate: str | None = None
    linear: bool | None = None
    derivatives: str = "any"
    patience: float = 1.0

    by_parts = True

    @property
    def needs_doses(self):
        return self.initial is None

    def __call__(self, parameters: Mapping[str, Any], row: Mapping[str, Any]) -> Array:
        rows = {name: leaf if name == DOSES else jnp.asarray(leaf)[None] for name, leaf in row.items()}
        return self.over_rows(parameters, rows)[0]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Labels, where there are several."""
        return getattr(self.output, "outputs", ())

    @property
    def names(self) -> tuple[str, ...]:
        named = (*self.lag, *self.bioavailability, self.duration, self.rate)
        return tuple(dict.fromkeys(name for name in named if name is not None))

    @property
    def compartments(self) -> int:
        return len(self.states)

    @property
    def _lasting(self) -> bool:
        """Whether anything flows in for a time."""
        return self.regimen.infusions or (self.regimen.steady and self.regimen.forever)

    def rough(self) -> Dynamics:
        """The same equations solved near enough for a start."""
        return dataclasses.replace(self, rtol=max(self.rtol, ROUGH), patience=HURRIED)

    def for_searches(self) -> Dynamics:
        """The same equations for searches, which go by first derivatives and turn back where a solution takes very long."""
        return dataclasses.replace(self, derivatives="first", patience=min(self.patience, SEARCHED))

    def over_rows(self, parameters: Mapping[str, Any], rows: Mapping[str, Any]) -> Float[Array, " T"]:
        """The predictions of one subject's rows."""
        names = sorted(parameters)
        values = [jnp.ravel(parameters[name]) for name in names]
        sizes = tuple(
            (name, len(value) if jnp.ndim(parameters[name]) else None) for name, value in zip(names, values, strict=True)
        )
        x, solved = jnp.concatenate(values), functools.partial(_predictions, self, sizes)
        if self.derivatives == "forward":
            return solved(x, dict(rows))
        return transposable(solved, self.derivatives == "any")(x, dict(rows))

    def predictions(self, psi: Parameters, rows: Mapping[str, Any]) -> Float[Array, " T"]:
        """Those of rows, as the function of parameters that is differentiated."""
        states = self._states(psi, rows)
        own = {name: leaf for name, leaf in rows.items() if name not in (DOSES, OCCASION)}
        if not psi.changes:
            return jax.vmap(lambda state, row: self.output(self._named(state), psi, row))(states, own)
        places = rows[OCCASION].astype(int)
        return jax.vmap(lambda k, state, row: self.output(self._named(state), psi.on(k), row))(places, states, own)

    def _named(self, state: Any) -> dict[str, Array]:
        return dict(zip(self.states, state, strict=True))

    def _slope(self, t: Any, y: State, psi: Mapping[str, Any]) -> State:
        return self._written_out(self.derivative(t, self._named(y), psi), y[0].dtype)

    def _written_out(self, values: Any, dtype: Any) -> State:
        """A state, or its derivative, number by number: of a mapping by name, where what is not named is zero, or in order."""
        if isinstance(values, Mapping):
            values = [values.get(name, 0.0) for name in self.states]
        return tuple(jnp.asarray(value, dtype) for value in values)

    def linearity(self, names: tuple[str, ...], dtype: Any) -> Linearity | None:
        """How the equations are linear in the states, or None where they are not known to be, or are not to be solved so."""
        return None if self.linear is False else _linearity(self, names, np.dtype(dtype))

    def _system(self, psi: Mapping[str, Any], start: Array) -> LinearSystem | None:
        known = self.linearity(tuple(psi), start.dtype)
        return None if known is None else system(self._slope, known, start, psi)

    def _start(self, psi: Mapping[str, Any], dtype: Any) -> Float[Array, " S"]:
        return jnp.stack(self._written_out({} if self.initial is None else self.initial(psi), dtype))

    def _states(self, psi: Parameters, rows: Mapping[str, Any]) -> Float[Array, "T S"]:
        times = rows["time"]
        dtype = jnp.result_type(times, *psi.values(), float)
        doses = rows.get(DOSES)
        if doses is None:
            return self._alone(psi, rows, self._start(psi, dtype))
        starts, inputs, steady = self._inputs(psi, doses, dtype)
        acts = (starts[None] == times[:, None]) & (jnp.arange(len(starts)) < rows[LAST][:, None])
        place = doses[PART] if steady is None else jnp.concatenate([doses[PART], steady[0]])
        amounts = inputs.amount[: len(starts)]
        here = rows[PART]

        def added_in(number: Any) -> Array:
            added = (acts & (doses[PART] == number)).astype(dtype) @ amounts
            if steady is not None:
                at = (inputs.start[len(starts) :] == times[:, None]) & (steady[0] == number)
                added += (at & (steady[1] < rows[LAST][:, None])).astype(dtype) @ inputs.amount[len(starts) :]
            return added

        every = inputs
        if psi.changes:  # no step goes across the beginning of an occasion
            nothing = jnp.zeros((len(doses[SINCE]), len(self.states)), dtype)
            every = Inputs(*map(jnp.concatenate, zip(inputs, (doses[SINCE], doses[SINCE], nothing, nothing), strict=True)))
            place = jnp.concatenate([place, doses[IN_PART]])

        def held(number: Any) -> Callable[[Any], Parameters]:
            return lambda t: psi.at(doses, number, t)

        def of_part(number: Any, begin: Any) -> Array:
            own = place == number
            mine = every._replace(start=jnp.where(own, every.start, jnp.inf), end=jnp.where(own, every.end, -jnp.inf))
            start = self._start(held(number)(begin), dtype)
            asked = jnp.where(here == number, times, -jnp.inf)
            states = self._solve(held(number), (begin, start), asked, added_in(number), mine)
            return jnp.where(jnp.any(own & jnp.isnan(every.end)), jnp.nan, states)

        numbers = jnp.arange(doses[BEGINS].shape[0])
        start = self._start(psi.at(doses, 0, doses[BEGINS][0]), dtype)
        if (linear := self._system(psi.at(doses, 0, doses[BEGINS][0]), start)) is not None:
            later, lasting = None, self._lasting
            if psi.changes:
                start = jax.vmap(lambda number, begin: self._start(held(number)(begin), dtype))(numbers, doses[BEGINS])
                later = functools.partial(self._system_at, psi, doses, start[0])
            return linear.states_at(doses[BEGINS], start, (times, here), added_in(here[:, None]), (every, place), lasting, later)
        if len(numbers) == 1:
            return of_part(0, doses[BEGINS][0])
        each = jax.vmap(of_part)(numbers, doses[BEGINS])
        return jnp.take_along_axis(each, here.astype(int)[None, :, None], axis=0)[0]

    def _system_at(self, psi: Parameters, doses: Any, start: Array, part: Any, t: Any) -> Any:
        return self._system(psi.at(doses, part, t), start)

    def _alone(self, psi: Mapping[str, Any], rows: Mapping[str, Any], start: Array) -> Array:
        """Without an event table: from time 0, or the first that is earlier, and with a dose of the rows' own at time 0."""
        times = rows["time"]
        amount = jnp.zeros((1, len(start)), start.dtype)
        if "dose" in rows:
            amount = amount.at[0, 0].set(rows["dose"][0])
        zero = jnp.zeros(1, start.dtype)
        added = jnp.where((times == 0)[:, None], amount, 0.0)
        begin = jnp.minimum(jnp.min(times), 0.0)
        given = Inputs(zero, zero, amount, jnp.zeros_like(amount))
        return self._solve(lambda _: psi, (begin, start), times, added, given, lasting=False)

    def _solve(
        self, held: Callable[[Any], Any], start: Any, times: Array, added: Array, inputs: Inputs, lasting: bool = True
    ) -> Array:
        """Args: held: the parameters that hold from an event on until the next; linear equations are those of the first."""
        if (linear := self._system(held(start[0]), start[1])) is not None:
            return linear.states_at(jnp.reshape(start[0], 1), start[1], (times, 0), added, (inputs, 0), lasting)
        own = jnp.abs(jax.lax.stop_gradient(start[1]))
        given = jax.lax.stop_gradient(jnp.max(jnp.abs(inputs.amount) + jnp.abs(inputs.rate), initial=0.0))
        size = jnp.where(own > 0, own, jnp.maximum(jnp.max(own), given))
        atol = NEGLIGIBLE * self.rtol * jnp.where(size > 0, size, 1.0) if self.atol is None else jnp.full_like(own, self.atol)
        times_more = self.patience * max(1.0, (1e-5 / self.rtol) ** 0.25)
        psi = held(start[0])

        def slope(t: Any, y: State, x: Any) -> State:
            return self._slope(t, y, psi.like(x) if isinstance(psi, Parameters) else x)

        return states_at(
            slope, lambda t: dict(held(t)), start, times, added, inputs,
            method=tsitouras() if self.stiff is False else rodas, flow=self._flow(psi, slope), rtol=self.rtol, atol=atol,
            most=self.max_steps or (lambda events: times_more * (STEPS * events + MORE)), lanes=self.derivatives != "forward",
        )  # fmt: skip

    def _flow(self, psi: Mapping[str, Any], slope: Callable[..., State]) -> Flow | None:
        """Of the states that are linear whatever the others, where there are any: explicit steps need then not be as short as
        their rates would have them. Rodas' are as long as without."""
        if self.linear is False or self.stiff is not False:
            return None
        known = _closed(self, tuple(psi), np.dtype(jnp.result_type(float)))
        return None if known is None else flow_of(slope, len(self.states), *known)

    def _inputs(self, every: Parameters, doses: Any, dtype: Any) -> tuple[Array, Inputs, tuple[Array, Array] | None]:
        """When each dose arrives (E,); all inputs, those of the doses first; and of what is added at steady state the part and
        the place among the doses, where there is any."""
        psi = every.of_doses(doses)
        fraction = self._of_dose(self.bioavailability, psi, doses, 1.0)
        fraction = jnp.where(doses["steady"] == UNTIL_NOW, 1.0, fraction)
        amount = doses["amount"] * fraction
        starts = doses["time"] + self._of_dose(self.lag, psi, doses, 0.0)
        lasts = self.lasts(psi, doses, amount) if self.regimen.infusions else jnp.zeros_like(starts)
        into = doses["compartment"][:, None] == 1 + jnp.arange(len(self.states))
        slow, forever = lasts > 0, doses["steady"] == UNTIL_NOW
        rate = jnp.where(slow, amount / jnp.where(slow, lasts, 1.0), 0.0)
        inputs = Inputs(
            starts,
            starts + lasts,
            jnp.where((slow | forever)[:, None], 0.0, amount[:, None] * into),
            jnp.where(forever, 0.0, rate)[:, None] * into,
        )
        if not self.regimen.steady:
            return starts, inputs, None
        places = doses[STEADY].astype(int)
        of_doses = starts, lasts, amount, into
        more = [
            self._at_steady_state(psi.on(place), doses, place, of_doses, self._start(psi.on(place), dtype)) for place in places
        ]
        counted = list(zip(places, more, strict=True))
        own = jnp.concatenate([jnp.broadcast_to(place, extra.start.shape) for place, extra in counted])
        number = doses[PART][own]
        whole = Inputs(*(jnp.concatenate(parts) for parts in zip(inputs, *more, strict=True)))
        return starts, whole, (number, own)

    def _of_dose(self, names: tuple[str | None, ...], psi: Mapping[str, Any], doses: Any, none: float) -> Array:
        """A quantity of each dose, by the compartment that it enters."""
        out = jnp.full(doses["time"].shape, none, jnp.result_type(doses["time"], *psi.values()))
        for number, name in enumerate(names, 1):
            if name is not None:
                out = jnp.where(doses["compartment"] == number, read_of_dose(name, psi, doses), out)
        return out

    def _at_steady_state(self, psi: Mapping[str, Any], doses: Any, place: Any, of_doses: Any, start: Array) -> Inputs:
        """What one dose at steady state adds at its record: the state that doses before it leave there, beyond the initial one,
        and the infusions of them that still run. Nothing, where the dose is at none."""
        given, lasts, amount, into = (values[place] for values in of_doses)
        record, steady = doses["time"][place], doses["steady"][place]
        interval = jnp.where(doses["interval"][place] > 0, doses["interval"][place], 1.0)
        held, none = jnp.where(steady == UNTIL_NOW, doses["amount"][place], 0.0), jnp.zeros_like(start)
        slow = lasts > 0
        rate = jnp.where(slow, amount / jnp.where(slow, lasts, 1.0), 0.0)
        whole = jnp.floor(lasts / interval)
        linear = self._system(psi, start)

        at_once = jnp.where(slow, 0.0, amount) * into
        given_slowly = jnp.stack([rate * into, rate * whole * into])
        ends = jnp.stack([lasts - whole * interval, jnp.asarray(jnp.inf)])

        def after(y: Array, time: Any) -> Array:
            """The state a time after a dose that finds y."""
            if linear is not None and not self._lasting:
                return linear.moved(y + at_once, time)
            inputs = Inputs(jnp.zeros(2), ends, jnp.zeros((2, len(y))), given_slowly)
            return self._solve(lambda _: psi, (0.0, y + at_once), jnp.reshape(time, 1), jnp.zeros((1, len(y))), inputs)[0]

        def before(y: Array, time: Any) -> Array:
            """The state that leads, in a time in which all goes on as at the dose, to one that finds y."""
            rates = jnp.sum(jnp.where((ends > 0)[:, None], given_slowly, 0.0), axis=0)
            if linear is not None:
                return linear.moved(y + at_once, -time, rates)

            def back(t: Any, state: Mapping[str, Any], psi: Mapping[str, Any]) -> State:
                return tuple(-each - rates[i] for i, each in enumerate(self._slope(t, tuple(state.values()), psi)))

            backwards = dataclasses.replace(self, derivative=back, linear=False)
            return backwards._solve(lambda _: psi, (0.0, y + at_once), jnp.reshape(time, 1), *_nothing(len(y)))[0]

        lagged = given - record
        if linear is not None:
            periodic = linear.periodic(interval, after(none, interval))
            for_ever = linear.steady(held * into)
        else:
            periodic = fixed_point(lambda y: after(y, interval), start, self.rtol)
            for_ever = fixed_point(lambda y: y + jnp.stack(self._slope(record, tuple(y), psi)) + held * into, start)
        left = periodic
        if any(self.lag):
            left = jnp.where(lagged > 0, after(periodic, jnp.maximum(interval - lagged, 0.0)), periodic)
            left = jnp.where(lagged > interval, before(periodic, jnp.maximum(lagged - interval, 0.0)), left)
        left = jnp.where(steady == UNTIL_NOW, for_ever, left)
        some = steady != NEVER
        left = jnp.where(some, left - start, none)
        out = Inputs(record[None], record[None], left[None], none[None])
        if not self._lasting:
            return out
        earlier = jnp.arange(1, OVERLAPS + 1)
        ends = given + lasts - earlier * interval
        ends = jnp.where(some & slow & (ends > jnp.maximum(record, given - interval)), ends, record)
        running = jnp.where(steady == UNTIL_NOW, held, rate)
        ends = jnp.where((steady == UNTIL_NOW) & (earlier == 1), given, ends)
        ends = jnp.where((steady == AT_INTERVALS) & slow & (lasts + lagged > OVERLAPS * interval), jnp.nan, ends)
        every = len(earlier)
        return Inputs(
            jnp.append(out.start, jnp.full(every, record)),
            jnp.append(out.end, ends),
            jnp.concatenate([out.amount, jnp.zeros((every, len(start)))]),
            jnp.concatenate([out.rate, jnp.broadcast_to(running * into, (every, len(start)))]),
        )


# A program within programs: a density stands in one many times, and each pass of a transformation finds its own form again.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _predictions(dynamics: Dynamics, sizes: tuple[tuple[str, int | None], ...], x: Array, rows: Mapping[str, Any]) -> Array:
    """Args: sizes: how many numbers of x each parameter has, None where it is one."""
    ends = np.cumsum([size or 1 for _, size in sizes])
    parts = [x[end - 1] if size is None else x[end - size : end] for end, (_, size) in zip(ends.tolist(), sizes, strict=True)]
    return dynamics.predictions(Parameters(zip((name for name, _ in sizes), parts, strict=True), rows), rows)


@functools.lru_cache
def _linearity(dynamics: Dynamics, names: tuple[str, ...], dtype: Any) -> Linearity | None:
    return linearity(dynamics._slope, len(dynamics.states), names, dtype)


@functools.lru_cache
def _closed(dynamics: Dynamics, names: tuple[str, ...], dtype: Any) -> tuple[tuple[int, ...], Linearity] | None:
    found = closed(dynamics._slope, len(dynamics.states), names, dtype)
    return found if found is not None and len(found[0]) <= MOST else None


def with_constants(outcome: Any, individual: Collection[str], data: LongData) -> Any:
    """An outcome whose differential equations read what is no individual parameter from columns; any other as it is.

    Raises:
        ValueError: such a column changes within a subject.
    """
    if not isinstance(administered(outcome), Dynamics):
        return outcome
    curve, rows = outcome.structural, data.units["rows"]
    read = [name for name in curve.parameters if name not in individual and name in rows]
    for name in read:
        moved = data.flat(rows[name] != rows[name][:, :1])
        if moved.any():
            raise ValueError(
                f"{name} is no individual parameter and is read from the data, where it changes within a subject "
                f"({data.where(int(np.flatnonzero(moved)[0]))}); what differential equations read is a constant of the subject"
            )
    left = {field: tuple(name for name in getattr(curve, field) if name not in read) for field in ("parameters", "positive")}
    return dataclasses.replace(outcome, structural=dataclasses.replace(curve, **left))


def _nothing(states: int) -> tuple[Array, Inputs]:
    """No inputs, and nothing added at one time."""
    none = jnp.zeros((1, states))
    return none, Inputs(jnp.full(1, jnp.inf), jnp.full(1, jnp.inf), none, none)
