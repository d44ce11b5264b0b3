"""A structural model by differential equations, from the user's functions."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .dosing import Regimen
from .dynamics import Dynamics
from .kinds import OUTPUT, labelled, selected
from .linear import nonlinear
from .structural import Curve


def ode(
    derivative: Callable[..., Any],
    states: Sequence[str],
    output: str | Callable[..., Any] | Mapping[int | str, str | Callable[..., Any]],
    *,
    initial: Callable[..., Any] | None = None,
    parameters: Sequence[str] | None = None,
    stiff: bool | None = None,
    rtol: float = 1e-5,
    atol: float | None = None,
    max_steps: int | None = None,
    linear: bool | None = None,
    lag: str | Mapping[int | str, str] | None = None,
    bioavailability: str | Mapping[int | str, str] | None = None,
    duration: str | None = None,
    rate: str | None = None,
    positive: Sequence[str] | None = None,
    name: str = "ode",
) -> Curve:
    r"""A structural model by differential equations: $dy/dt=f(t,y;\psi)$ plus the doses of an event table.

    Compartments are numbered (CMT) in the order of `states`. Without an event table, `fit(dose=)` puts each subject's dose into
    the first one at time 0; without doses the initial state is what moves.

    Args:
        derivative: (t, state, psi) -> derivatives, a mapping by name of a state, or all of them in order. `state` and `psi` map
            names to numbers: individual parameters on their natural scale, and columns that are constant within a subject.
        states: names. output: the name of the state that is observed, or (state, psi) -> number, or (state, psi, row) -> number.
            Several are given by label, as {"cp": ..., "effect": ...}: a column of the data says which a row is of, DVID or
            `fit(output=)`, and each has a residual error of its own.
        initial: psi -> state before any dose, a mapping by name; what is not named is 0, as all is by default.
        parameters: names of individual parameters; found by calling the functions where None.
        stiff: True: by an L-stable method, Rodas, which no rate is too fast for, however wild the parameters that a chain tries.
            False: by Tsitouras' explicit one, many times quicker for many states and mild rates. By default a fit whose
            parameters all have starting values takes the explicit one if it needs few steps there (see
            `margaux.families.nlme.mild`), and all else Rodas.
        rtol, atol: tolerances of a step's error, relative and absolute; by default the latter is a ten-thousandth of `rtol` times
            the initial value of each state, or where that is 0 the largest dose. max_steps: of a subject, by default 100 for each
            of its rows and doses and 1000 more; a solution that needs more counts as impossible.
        linear: equations that are linear in the states, with coefficients that are constant in time, are recognised by their
            operations and solved exactly, by exponentials of matrices: what is said above of steps is then not read. Where one
            or two states are so whatever the others, as a drug's of linear kinetics beside its effect, their way is known and
            explicit steps need not be as short as their rates. False: by steps none the less. True: an error where they are
            not recognised.
        lag, bioavailability, duration, rate: as in `margaux.nlme.dosed`, by number or name of a compartment.
        positive: parameters that are naturally positive, all by default.

    References: Tsitouras, Runge-Kutta pairs of order 5(4) satisfying only the first column simplifying assumption (2011);
    Kværnø, Singly diagonally implicit Runge-Kutta methods with an explicit first stage (2004); Hairer, Nørsett and Wanner,
    Solving Ordinary Differential Equations I (1993), II.4; Moler and Van Loan, Nineteen dubious ways to compute the exponential
    of a matrix, twenty-five years later (2003).

    >>> def saturable(t, state, psi):
    ...     C = state["central"] / psi["V"]
    ...     return {"central": -psi["Vm"] * C / (psi["Km"] + C)}
    >>> ode(saturable, ["central"], lambda state, psi: state["central"] / psi["V"], name="michaelis_menten")
    michaelis_menten(V, Vm, Km | time)

    Raises:
        ValueError, TypeError: names that are twice there, or not at all; functions that fail at plausible values;
            equations that are said to be linear and are not.
    """
    named = (states,) if isinstance(states, str) else tuple(states)
    if not named or len(set(named)) < len(named):
        raise ValueError(f"states must be different names, at least one, got {list(named)}")
    if isinstance(output, Mapping):
        each_output = tuple(_observed(one, named) for one in output.values())
        observed: Callable[..., Any] = Several(labelled(output, "output"), each_output)
    else:
        observed = _observed(output, named)

    def each(given: str | Mapping[int | str, str] | None, what: str) -> tuple[str | None, ...]:
        table = {1: given} if isinstance(given, str) else dict(given or {})
        places = {named.index(key) + 1 if key in named else key: value for key, value in table.items()}
        if unknown := [place for place in places if place not in range(1, len(named) + 1)]:
            raise ValueError(f"{what} names compartment {unknown[0]}; they are 1 to {len(named)}, {', '.join(named)}")
        return tuple(places.get(number) for number in range(1, len(named) + 1)) if table else ()

    function = Dynamics(
        derivative=derivative, states=named, output=observed, initial=initial, stiff=stiff, rtol=rtol, atol=atol,
        max_steps=max_steps, regimen=Regimen(True, True, None), lag=each(lag, "lag"),
        bioavailability=each(bioavailability, "bioavailability"), duration=duration, rate=rate, linear=linear,
    )  # fmt: skip
    found = tuple(parameters) if parameters is not None else read_by(function)
    found = tuple(dict.fromkeys((*found, *function.names)))
    if linear and (others := nonlinear(function._slope, len(named), found, jnp.result_type(float))):
        raise ValueError(
            f"linear=True, but the derivative of {named[others[0]]} is not known to be linear in the states, with "
            "coefficients that are constant in time; leave linear= out, and it is solved by steps"
        )
    return Curve(function, found, ("time",), positive=found if positive is None else tuple(positive), name=name)


def _observed(output: str | Callable[..., Any], states: tuple[str, ...]) -> Callable[..., Any]:
    """One output as a function of (state, psi, row)."""
    if not isinstance(output, str):
        return output if _arguments(output) > 2 else _WithoutRow(output)
    if output not in states:
        raise ValueError(f"output = {output!r} is no state; they are {', '.join(states)}")
    return _State(output)


@dataclasses.dataclass(frozen=True)
class Several:
    """The output of a row, of several. Args: outputs: labels. functions: (state, psi, row) -> number of each."""

    outputs: tuple[str, ...]
    functions: tuple[Callable[..., Any], ...]

    def __call__(self, state: Mapping[str, Any], psi: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        return selected([function(state, psi, row) for function in self.functions], row[OUTPUT])


@dataclasses.dataclass(frozen=True)
class _State:
    name: str

    def __call__(self, state: Mapping[str, Any], psi: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        return state[self.name]


@dataclasses.dataclass(frozen=True)
class _WithoutRow:
    function: Callable[..., Any]

    def __call__(self, state: Mapping[str, Any], psi: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        return self.function(state, psi)


def _arguments(function: Callable[..., Any]) -> int:
    try:
        return len(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return 2


class Asked(dict):
    """Numbers by any name, which remembers the names."""

    def __missing__(self, name: str) -> float:
        self[name] = 1.0
        return 1.0


class _Named(dict):
    """A state, whose other names are errors."""

    def __missing__(self, name: str) -> float:
        raise ValueError(f"the functions ask for {name!r}, which is no state; they are {', '.join(self)}")


class _Row(dict):
    def __missing__(self, name: str) -> float:
        return 1.0


def read_by(model: Dynamics) -> tuple[str, ...]:
    """The individual parameters that a model's functions ask for, in the order in which they do."""
    psi, state = Asked(), _Named.fromkeys(model.states, np.float64(1.0))
    slopes = model.derivative(1.0, state, psi)
    if isinstance(slopes, Mapping):
        if unknown := [name for name in slopes if name not in model.states]:
            raise ValueError(f"the derivative names {unknown[0]!r}, which is no state; they are {', '.join(model.states)}")
    elif len(slopes) != len(model.states):
        raise ValueError(f"the derivative gives {len(slopes)} numbers for {len(model.states)} states: {', '.join(model.states)}")
    if model.initial is not None:
        begun = model.initial(psi)
        if isinstance(begun, Mapping) and (unknown := [name for name in begun if name not in model.states]):
            raise ValueError(f"initial names {unknown[0]!r}, which is no state; they are {', '.join(model.states)}")
    model.output(state, psi, _Row())
    return tuple(psi)
