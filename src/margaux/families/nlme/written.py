"""Structural models whose equations are text: differential equations or a formula of a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .equations import ode
from .expressions import FUNCTIONS, Expression
from .structural import Curve

#: the independent variable
TIME = "time"

Named = tuple[tuple[str, Expression], ...]


@dataclasses.dataclass(frozen=True)
class Equations:
    r"""Equations in text: $dy_s/dt$ of each state s from their initial values, and what is observed.

    Args:
        output: what is observed, of parameters, `time`, states, definitions and columns of the row; or that of each of several
            outputs, with its label.
        derivatives: of each state, in the order of the compartments; none for a formula of the row.
        initial: values of states before any dose, zero where none is named. define: expressions by name, each of what comes
            before it. parameters: names of the individual parameters.

    Raises:
        ValueError: a name that is twice there, an order that cannot be followed, or a state in an initial value.
    """

    output: Expression | Named
    derivatives: Named = ()
    initial: Named = ()
    define: Named = ()
    parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        groups = {"a state": self.states, "a definition": tuple(dict(self.define)), "a parameter": self.parameters}
        owner: dict[str, str] = {TIME: "the independent variable"} | dict.fromkeys(FUNCTIONS, "a function")
        for kind, names in groups.items():
            for name in names:
                if not name.isidentifier():
                    raise ValueError(f"{name!r} is no name that an expression can have: letters, digits and _")
                if name in owner:
                    raise ValueError(f"{name!r} is {owner[name]} and {kind}; rename one")
                owner[name] = kind
        seen: list[str] = []
        for name, one in self.define:
            if ahead := [other for other in one.names if other in dict(self.define) and other not in seen]:
                raise ValueError(f"the definition of {name} reads {ahead[0]}, which is defined later; define it before")
            seen.append(name)
        for name, one in self.initial:
            if name not in self.states:
                raise ValueError(f"initial names {name!r}, which is no state; they are {', '.join(self.states)}")
            if moving := [other for other in self.read([one]) if other in (TIME, *self.states)]:
                raise ValueError(f"the initial value of {name} reads {moving[0]}, which is not there before the beginning")

    @property
    def outputs(self) -> Named:
        """With their labels; one alone has none."""
        return (("", self.output),) if isinstance(self.output, Expression) else self.output

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.derivatives)

    def read(self, expressions: Sequence[Expression]) -> list[str]:
        """All names that some expressions come down to, definitions written out."""
        define, out = dict(self.define), {}
        waiting = list(expressions)
        while waiting:
            for name in waiting.pop(0).names:
                if name in define and name not in out:
                    waiting.append(define[name])
                out[name] = None
        return [name for name in out if name not in define]

    @property
    def moving(self) -> list[str]:
        """What the derivatives and the initial values read that is no state: parameters, and columns constant in a subject."""
        every = self.read([one for _, one in (*self.derivatives, *self.initial)])
        return [name for name in every if name not in (TIME, *self.states)]

    @property
    def columns(self) -> list[str]:
        """Columns of the data that are read."""
        every = dict.fromkeys([*self.moving, *self.read([one for _, one in self.outputs])])
        return [name for name in every if name not in (TIME, *self.states, *self.parameters)]

    @property
    def used(self) -> list[str]:
        """Parameters that are read."""
        every = {*self.moving, *self.read([one for _, one in self.outputs])}
        return [name for name in self.parameters if name in every]

    def values(self, known: Mapping[str, Any], otherwise: Callable[[str], Any]) -> Mapping[str, Any]:
        """Values by name: those known, of definitions, and of what else there is."""
        return _Values(dict(self.define), dict(known), otherwise)


class _Values(Mapping[str, Any]):
    def __init__(self, define: Mapping[str, Expression], known: dict[str, Any], otherwise: Callable[[str], Any]) -> None:
        self._define, self._known, self._otherwise = define, known, otherwise

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._define[name](self) if name in self._define else self._otherwise(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclasses.dataclass(frozen=True)
class Derivative:
    """(t, state, psi) -> derivatives by name."""

    equations: Equations

    def __call__(self, t: Any, state: Mapping[str, Any], psi: Mapping[str, Any]) -> dict[str, Any]:
        values = self.equations.values({TIME: t, **state}, psi.__getitem__)
        return {name: one(values) for name, one in self.equations.derivatives}


@dataclasses.dataclass(frozen=True)
class Initial:
    """psi -> initial values by name."""

    equations: Equations

    def __call__(self, psi: Mapping[str, Any]) -> dict[str, Any]:
        values = self.equations.values({}, psi.__getitem__)
        return {name: one(values) for name, one in self.equations.initial}


@dataclasses.dataclass(frozen=True)
class Observed:
    """(state, psi, row) -> number, of one of the outputs, where what is no parameter is a column of the row."""

    equations: Equations
    output: Expression

    def __call__(self, state: Mapping[str, Any], psi: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        own = self.equations.parameters
        values = self.equations.values({TIME: row["time"], **state}, lambda name: (psi if name in own else row)[name])
        return self.output(values)


@dataclasses.dataclass(frozen=True)
class Formula:
    """(parameters, row) -> number, of equations with one output."""

    equations: Equations

    def __call__(self, parameters: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
        own = self.equations.parameters
        values = self.equations.values({TIME: row["time"]}, lambda name: (parameters if name in own else row)[name])
        ((_, output),) = self.equations.outputs
        return output(values)


def written(equations: Equations, name: str = "equations", positive: Sequence[str] | None = None, **options: Any) -> Curve:
    """A structural model of these equations; `options` are those of `ode`, where there are differential equations.

    >>> text = Equations(Expression("central / V"), (("central", Expression("-CL / V * central")),), parameters=("V", "CL"))
    >>> written(text)
    equations(V, CL | time)
    >>> written(Equations(Expression("E0 + slope * time"), parameters=("E0", "slope")), name="line")
    line(E0, slope | time)

    Raises:
        ValueError: a parameter that nothing reads, or options of differential equations or several outputs where there are none.
    """
    (_, first), *others = equations.outputs
    if equations.derivatives:
        constants = [one for one in equations.moving if one not in equations.parameters]
        initial = Initial(equations) if equations.initial else None
        each: Any = {label: Observed(equations, one) for label, one in equations.outputs}
        observed = each if others else Observed(equations, first)
        curve = ode(
            Derivative(equations), equations.states, observed, initial=initial, parameters=(*equations.used, *constants),
            positive=(), name=name, **options,
        )  # fmt: skip
    else:
        if options:
            raise ValueError(f"{next(iter(options))} is of differential equations, and there are none")
        if others:
            raise ValueError("several outputs are of differential equations, and there are none")
        if equations.initial:
            raise ValueError("initial values are of differential equations, and there are none")
        curve = Curve(Formula(equations), tuple(equations.used), (TIME, *equations.columns), name=name)
    if unread := [one for one in equations.parameters if one not in curve.parameters]:
        raise ValueError(f"no equation reads the parameter {unread[0]}; leave it out")
    known = [one for one in curve.parameters if one in equations.parameters]
    return dataclasses.replace(curve, positive=tuple(known if positive is None else positive))


def equations_of(curve: Any) -> Equations | None:
    """The equations of a structural model that is text; None of any other."""
    function = getattr(curve, "function", None)
    inside = getattr(function, "derivative", function)
    return inside.equations if isinstance(inside, Derivative | Formula) else None
