"""The structural model of a model file: ready ones by name, others by their equations, there and back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from . import ready_odes
from .dosing import Administered, dosed
from .dynamics import Dynamics
from .expressions import Expression
from .kinds import labelled
from .model_keys import (
    NAME_OR_NAMES,
    NUMBER,
    NUMBERS,
    NUMBERS_BY_NAME,
    SWITCH,
    TABLE,
    TEXT,
    TEXT_OR_TEXTS,
    TEXTS,
    TEXTS_BY_NAME,
    WHOLE,
    Kind,
    Source,
)
from .ready_odes import transit1cpt, turnover
from .structural import CURVES, Curve, polynomial, superposed
from .written import Equations, equations_of, written

#: ready models by differential equations
ODES: dict[str, Curve] = {one.name: one for one in vars(ready_odes).values() if isinstance(one, Curve)}
#: and those that have a setting, with its key
MADE: dict[str, tuple[str, Kind, Callable[[Any], Curve]]] = {
    "transit1cpt": ("n", WHOLE, transit1cpt),
    "turnover": ("action", TEXT, turnover),
}
_POLYNOMIAL = re.compile(r"polynomial(\d{1,2})")
#: of doses, as `dosed` and `ode` take them
_OF_DOSES = {"lag": NAME_OR_NAMES, "bioavailability": NAME_OR_NAMES, "duration": TEXT, "rate": TEXT}
_READY = {"name": TEXT, "n": WHOLE, "action": TEXT, "constants": NUMBERS_BY_NAME, "doses": TABLE, "event_table": SWITCH}
_SOLVER = {"stiff": SWITCH, "rtol": NUMBER, "atol": NUMBER, "max_steps": WHOLE}
_OF_EQUATIONS = {
    "name": TEXT, "output": TEXT_OR_TEXTS, "derivatives": TEXTS_BY_NAME, "initial": TEXTS_BY_NAME, "define": TEXTS_BY_NAME,
    "positive": TEXTS,
}  # fmt: skip


def structural(table: Mapping[str, Any], parameters: Collection[str], source: Source) -> Curve:
    """The structural model of a file's table.

    Args:
        parameters: names of the individual parameters.

    Raises:
        ValueError: what is wrong, with key and line.
    """
    if "output" in table or "derivatives" in table:
        return _of_equations(table, parameters, source)
    source.check(table, ["structural"], _READY | _OF_DOSES | {"output": TEXT, "derivatives": TABLE}, needed=["name"])
    name = table["name"]
    found = _POLYNOMIAL.fullmatch(name)
    if found:
        curve = polynomial(int(found[1]))
    else:
        source.one_of(name, ["structural", "name"], [*CURVES, *ODES, *MADE])
        curve = CURVES.get(name) or ODES.get(name) or _made(table, name, source)
    for key in {one for one, _, _ in MADE.values()} & table.keys():
        if name not in MADE or MADE[name][0] != key:
            raise source.problem(["structural", key], f"{name} has no {key}; leave it out")
    for key, change in (("constants", _with_constants), ("doses", _superposed)):
        if key in table:
            curve = _tried(source, key, change, curve, table[key], source)
    return _with_doses(curve, table, source)


def _made(table: Mapping[str, Any], name: str, source: Source) -> Curve:
    key, kind, make = MADE[name]
    if key not in table:
        raise source.problem(["structural"], f"{name} needs {key} = ... ({kind.words})")
    return _tried(source, key, make, table[key])


def _tried(source: Source, key: str, make: Callable[..., Curve], *given: Any) -> Curve:
    try:
        return make(*given)
    except ValueError as problem:
        if source.name in str(problem):
            raise
        raise source.problem(["structural", key], str(problem)) from problem


def _with_constants(curve: Curve, constants: Mapping[str, float], source: Source) -> Curve:
    return curve.with_columns(**constants)


def _superposed(curve: Curve, doses: Mapping[str, Any], source: Source) -> Curve:
    source.check(doses, ["structural", "doses"], {"times": NUMBERS, "amounts": NUMBERS}, needed=["times"])
    return superposed(curve, doses["times"], doses.get("amounts"))


def _with_doses(curve: Curve, table: Mapping[str, Any], source: Source) -> Curve:
    options = _options(table)
    if not options and not table.get("event_table"):
        return curve
    if table.get("event_table") is False:
        raise source.problem(["structural", "event_table"], f"{next(iter(options))} is of event tables; leave event_table out")
    return _tried(source, next(iter(options), "event_table"), lambda: dosed(curve, **options))


def _options(table: Mapping[str, Any]) -> dict[str, Any]:
    """Names of what varies between doses, by numbers of compartments where these are numbers."""
    given = {key: table[key] for key in _OF_DOSES if key in table}
    for key, value in given.items():
        if isinstance(value, dict):
            given[key] = {int(place) if place.isdecimal() else place: name for place, name in value.items()}
    return given


def _of_equations(table: Mapping[str, Any], parameters: Collection[str], source: Source) -> Curve:
    source.check(table, ["structural"], _OF_EQUATIONS | _SOLVER | _OF_DOSES, needed=["output"])
    parts: dict[str, list[tuple[str, Expression]]] = {"derivatives": [], "initial": [], "define": []}
    for part, out in parts.items():
        for name, text in table.get(part, {}).items():
            out.append((name, _expression(text, ["structural", part, name], source)))
    output = _outputs(table["output"], source)
    options = _options(table) | {key: table[key] for key in _SOLVER if key in table}
    try:
        equations = Equations(output, *(tuple(parts[part]) for part in parts), parameters=tuple(parameters))
        curve = written(equations, table.get("name", "equations"), table.get("positive"), **options)
    except ValueError as problem:
        raise source.problem(["structural"], str(problem)) from problem
    for one in ("atol", "rtol", "max_steps"):
        if table.get(one, 1) <= 0:
            raise source.problem(["structural", one], f"must be positive, got {table[one]}")
    return curve


def _outputs(given: str | Mapping[str, str], source: Source) -> Any:
    keys = ["structural", "output"]
    if isinstance(given, str):
        return _expression(given, keys, source)
    try:
        labels = labelled(given, "output")
    except ValueError as problem:
        raise source.problem(keys, str(problem)) from problem
    each = zip(labels, given.items(), strict=True)
    return tuple((label, _expression(text, [*keys, name], source)) for label, (name, text) in each)


def _expression(text: str, keys: Sequence[str], source: Source) -> Expression:
    try:
        return Expression(text)
    except ValueError as problem:
        raise source.problem(keys, str(problem)) from problem


def described(curve: Any) -> dict[str, Any]:
    """The table of a structural model, from which `structural` makes an equal one.

    Raises:
        ValueError: it is a Python function, or one that no table makes.
    """
    table = _described(curve)
    if table is None:
        raise ValueError(
            f"structural={curve!r} is a function of Python, which no model file holds; use a ready model by name, or write its "
            'equations in a file: [structural] output = "...", and [structural.derivatives] of differential equations'
        )
    return table


def _described(curve: Any) -> dict[str, Any] | None:
    if not isinstance(curve, Curve):
        return None
    equations = equations_of(curve)
    if equations is not None:
        return _of_text(curve, equations)
    degree = _POLYNOMIAL.fullmatch(curve.name)
    if degree and curve == polynomial(int(degree[1])):
        return {"name": curve.name}
    for name, one in (CURVES | ODES).items():
        if one == curve:
            return {"name": name}
    return _changed(curve) or _setting(curve)


def _of_text(curve: Curve, equations: Equations) -> dict[str, Any]:
    (_, first), *others = equations.outputs
    out: dict[str, Any] = {"name": curve.name, "output": first.text}
    if others:
        out["output"] = {label: one.text for label, one in equations.outputs}
    for part in ("derivatives", "initial", "define"):
        if named := getattr(equations, part):
            out[part] = {name: one.text for name, one in named}
    known = [name for name in curve.parameters if name in equations.parameters]
    if list(curve.positive) != known:
        out["positive"] = list(curve.positive)
    function = curve.function
    if isinstance(function, Dynamics):
        plain: Any = Dynamics(function.derivative, function.states, function.output)
        out |= {key: getattr(function, key) for key in _SOLVER if getattr(function, key) != getattr(plain, key)}
        out |= _named(function)
    return out


def _named(function: Any) -> dict[str, Any]:
    """What `_OF_DOSES` has, by compartments."""
    out: dict[str, Any] = {}
    for key in ("lag", "bioavailability"):
        if places := {str(number): name for number, name in enumerate(getattr(function, key), 1) if name is not None}:
            out[key] = places
    return out | {key: getattr(function, key) for key in ("duration", "rate") if getattr(function, key) is not None}


def _changed(curve: Curve) -> dict[str, Any] | None:
    """A ready curve with constants, doses of its own, or those of an event table."""
    function: Any = curve.function
    if isinstance(function, Administered):
        for base in CURVES.values():
            if base.function == function.curve:
                own = _named(function)
                if function.curve.lag:
                    own["lag"] = {place: name for place, name in own["lag"].items() if place != "1"}
                own = {key: value for key, value in own.items() if value}
                if dosed(base, **_options(own)) == curve:
                    return {"name": base.name, **(own or {"event_table": True})}
        return None
    inner = getattr(function, "curve", None)
    if not isinstance(inner, Curve):
        return None
    base = _described(inner)
    if base is None or "output" in base or "doses" in base:
        return None
    if hasattr(function, "constants") and curve == inner.with_columns(**dict(function.constants)) and "constants" not in base:
        return {**base, "constants": dict(function.constants)}
    if hasattr(function, "times") and curve == superposed(inner, function.times, function.amounts):
        amounts = {} if function.amounts is None else {"amounts": list(function.amounts)}
        return {**base, "doses": {"times": list(function.times), **amounts}}
    return None


def _setting(curve: Curve) -> dict[str, Any] | None:
    """A ready model by differential equations that was made with a setting."""
    function = curve.function
    if not isinstance(function, Dynamics) or getattr(function.derivative, "__module__", "") != ready_odes.__name__:
        return None
    action = re.fullmatch(r"turnover\[(.+)\]", curve.name)
    given = {"name": "turnover", "action": action[1]} if action else {"name": "transit1cpt", "n": len(function.states) - 3}
    _, _, make = MADE[given["name"]]
    again = make(given[MADE[given["name"]][0]])
    # Functions made twice are not equal; all else is.
    same: Any = dataclasses.replace(
        function, **{key: getattr(again.function, key) for key in ("derivative", "output", "initial")}
    )
    return given if dataclasses.replace(curve, function=same) == again else None
