"""Individual parameters of control streams: a typical value, an effect between subjects, covariates."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from .control_code import Unknown, is_call, names, number, only, product, terms, text
from .control_records import Stream, Theta, Variances
from .individual import Individual, LogitNormal, LogNormal, Normal


@dataclasses.dataclass
class Reading:
    """What is known while parameters are read: the elements of the stream, its columns, and who has taken what.

    Attributes:
        binary: whether a column is 0 or 1 everywhere, None where that cannot be told. owners: the parameter that each THETA and
            ETA belongs to. names: what the elements of the stream are called here. read: columns that parameters read.
    """

    stream: Stream
    thetas: dict[int, Theta]
    omega: Variances
    columns: tuple[str, ...]
    binary: Callable[[str], bool | None]
    owners: dict[str, str] = dataclasses.field(default_factory=dict)
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    read: set[str] = dataclasses.field(default_factory=set)

    @property
    def covariates(self) -> tuple[str, ...]:
        """Columns that parameters read."""
        return tuple(sorted(self.read))

    def theta(self, node: ast.AST) -> Theta | None:
        """The THETA that an expression is."""
        if not isinstance(node, ast.Name) or not node.id.startswith("THETA_"):
            return None
        return self.thetas.get(int(node.id.removeprefix("THETA_")))

    def eta(self, node: ast.AST) -> int | None:
        """The number of the ETA that an expression is."""
        return int(node.id.removeprefix("ETA_")) if isinstance(node, ast.Name) and node.id.startswith("ETA_") else None

    def take(self, element: str, parameter: str, line: int) -> None:
        """Raises: ValueError: another parameter has it already, and no model here shares one."""
        fixed = element.startswith("THETA") and self.thetas[int(element[6:-1])].fixed
        if element in self.owners and not fixed:
            raise self.stream.problem(
                line, f"{element} is in {self.owners[element]} and in {parameter}, and no element can be in two places here"
            )
        self.owners[element] = parameter


@dataclasses.dataclass
class _Parts:
    """What an expression is made of: the typical value, its scale, an effect, and coefficients of covariates."""

    factor: float = 1.0
    typical: Theta | None = None
    on_log_scale: bool = False
    relative: bool = False
    eta: int | None = None
    coefficients: list[tuple[str, Theta | None, float]] = dataclasses.field(default_factory=list)


def individual(reading: Reading, name: str, ours: str, value: ast.expr | Unknown, line: int) -> Individual:
    """The distribution of a parameter, by what it comes down to.

    Args:
        name: in the stream. ours: in the model.

    Raises:
        ValueError: it is none that a model here has, with the line and how it could be written.
    """
    stream = reading.stream
    if isinstance(value, Unknown):
        raise stream.problem(value.line, f"{value.why}, and {name} depends on it; write {name} without conditions")
    known = {*reading.columns, *(f"THETA_{k}" for k in reading.thetas), *(f"ETA_{k}" for k in reading.omega.values)}
    for one in names(value):
        if one not in known:
            shown = text(ast.Name(one))
            raise stream.problem(line, f"{name} reads {shown}, which is no column of $INPUT, element or variable before it")
    reading.read |= set(names(value)) & set(reading.columns)
    found = _logit(reading, value)
    kind: type[Individual] = LogNormal if found is None else LogitNormal
    found = found or _product(reading, name, value, line)
    if found is None:
        found, kind = _sum(reading, value), Normal
    if found is None:
        raise stream.problem(
            line,
            f"{name} = {text(value)} is no product THETA * EXP(ETA) with powers of covariates, and no sum THETA + ETA with "
            "covariates times THETAs; write it as one of them",
        )
    return _built(reading, name, ours, kind, found, line)


def _exponent(reading: Reading, found: _Parts, factor: float, node: ast.expr) -> bool:
    """A term of a sum on the Gaussian scale; whether it is one that a model has."""
    theta, eta = reading.theta(node), reading.eta(node)
    if eta is not None:
        if factor != 1 or found.eta is not None:
            return False
        found.eta = eta
        return True
    if theta is not None:
        if factor != 1 or found.typical is not None:
            return False
        found.typical, found.on_log_scale = theta, True
        return True
    return _covariate(reading, found, factor, node)


def _covariate(reading: Reading, found: _Parts, factor: float, node: ast.expr) -> bool:
    """A THETA, or a constant, times a function of columns."""
    if only(node, reading.columns):
        found.coefficients.append((_term(node), None, factor))
        return True
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    for one, other in ((node.left, node.right), (node.right, node.left)):
        theta = reading.theta(one)
        if theta is not None and only(other, reading.columns) and factor == 1:
            found.coefficients.append((_term(other), theta, 1.0))
            return True
    return False


def _term(node: ast.expr) -> str:
    """A function of columns as a term of a formula."""
    plain = text(node)
    return plain if isinstance(node, ast.Name) or is_call(node, "log") else f"I({plain})"


def _product(reading: Reading, name: str, value: ast.expr, line: int) -> _Parts | None:
    whole = product(value, reading.columns)
    if whole.constant <= 0:
        return None
    found = _Parts(whole.constant)
    for base, exponent in whole.powers:
        theta, power = reading.theta(base), number(exponent)
        if theta is not None and power == 1 and found.typical is None:
            found.typical = theta
        elif theta is not None and only(exponent, reading.columns):
            if theta.initial is not None and theta.initial <= 0:
                raise reading.stream.problem(theta.line, f"{theta.name} is the base of a power, and must be positive")
            found.coefficients.append((_term(exponent), theta, math.nan))
        elif only(base, reading.columns):
            if power is not None:
                found.coefficients.append((f"log({text(base)})", None, power))
            elif (of_power := reading.theta(exponent)) is not None:
                found.coefficients.append((f"log({text(base)})", of_power, 1.0))
            else:
                return None
        elif power == 1 and (step := _step(reading, base)) is not None:
            found.coefficients.append(_checked_step(reading, name, step, line))
        else:
            return None
    for factor, node in whole.exponent:
        if not _exponent(reading, found, factor, node):
            return None
    if found.eta is None and not found.coefficients and found.typical is not None and found.typical.low < 0:
        return None  # of a typical value that may be negative
    return found


def _step(reading: Reading, base: ast.expr) -> tuple[Theta, str, str] | None:
    """THETA, column and text of 1 + THETA * column."""
    parts = [(factor, one) for factor, one in terms(base)]
    ones = [factor for factor, one in parts if number(one) == 1]
    rest = [one for factor, one in parts if number(one) != 1 and factor == 1]
    if ones != [1.0] or len(rest) != 1 or len(parts) != 2:
        return None
    found = _Parts()
    if not _covariate(reading, found, 1.0, rest[0]):
        return None
    ((term, theta, _),) = found.coefficients
    return None if theta is None else (theta, term, text(base))


def _checked_step(reading: Reading, name: str, step: tuple[Theta, str, str], line: int) -> tuple[str, Theta, float]:
    """The same on the logarithmic scale, where the covariate is 0 or 1."""
    theta, term, shown = step
    if term not in reading.columns or not reading.binary(term):
        raise reading.stream.problem(
            line,
            f"{name} has the factor {shown}, which is linear, and the parameter is log-normal: its covariates act on the "
            f"logarithm. Write a power, as (COV/70)**{theta.name}, or EXP({theta.name}*(COV - 70)); a factor of a column is read "
            "where it is 0 or 1 in the data",
        )
    if theta.fixed and theta.initial is not None and theta.initial <= -1:
        raise reading.stream.problem(theta.line, f"{theta.name} = {theta.initial:g} makes {shown} negative")
    return term, theta, math.inf


def _sum(reading: Reading, value: ast.expr) -> _Parts | None:
    found = _Parts()
    proportional = _proportional(reading, value)
    constants = 0.0
    for factor, node in terms(value) if proportional is None else proportional:
        if number(node) == 1:
            constants += factor
        elif not _exponent(reading, found, factor, node):
            return None
    if constants and found.typical is not None:
        return None
    found.relative = proportional is not None
    found.on_log_scale, found.factor = False, constants if found.typical is None else 1.0
    return found


def _proportional(reading: Reading, value: ast.expr) -> list[tuple[float, ast.expr]] | None:
    """THETA * (1 + ETA) as the terms THETA and ETA, whose variance is that of ETA times the square of THETA."""
    whole = product(value, reading.columns)
    if whole.exponent or whole.constant != 1 or len(whole.powers) != 2 or any(number(e) != 1 for _, e in whole.powers):
        return None
    for (one, _), (other, _) in (whole.powers, whole.powers[::-1]):
        parts = terms(other)
        etas = [node for factor, node in parts if factor == 1 and reading.eta(node) is not None]
        if reading.theta(one) is not None and len(parts) == 2 and len(etas) == 1 and sum(number(n) == 1 for _, n in parts) == 1:
            number_of = reading.eta(etas[0])
            if number_of in reading.omega.fixed and reading.omega.values.get(number_of or 0):
                return None
            return [(1.0, one), (1.0, etas[0])]
    return None


def _logit(reading: Reading, value: ast.expr) -> _Parts | None:
    """EXP(u) / (1 + EXP(u)) or 1 / (1 + EXP(-u)), u a sum."""
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div)):
        return None
    below = terms(value.right)
    powers = [node for factor, node in below if factor == 1 and is_call(node, "exp")]
    if len(below) != 2 or len(powers) != 1 or not any(factor == 1 and number(node) == 1 for factor, node in below):
        return None
    inside: ast.expr = powers[0].args[0]  # type: ignore[attr-defined]
    if number(value.left) == 1:
        sign = -1.0
    elif ast.dump(value.left) == ast.dump(powers[0]):
        sign = 1.0
    else:
        return None
    found = _Parts()
    if all(_exponent(reading, found, sign * factor, node) for factor, node in terms(inside)) and found.typical is not None:
        return found
    return None


def _built(reading: Reading, name: str, ours: str, kind: type[Individual], found: _Parts, line: int) -> Individual:
    stream, typical = reading.stream, found.typical
    if typical is not None:
        reading.take(typical.name, name, line)
        reading.names[typical.name] = ours
        _tell_bounds(stream, typical, kind, found)
    start = _start(kind, found)
    labels = [label for label, _, _ in found.coefficients]
    if len(set(labels)) < len(labels):
        raise stream.problem(line, f"{name} has the covariate {max(labels, key=labels.count)} twice; join the two")
    held: dict[str, float] = {}
    for label, theta, scale in found.coefficients:
        if theta is not None:
            reading.take(theta.name, name, line)
            reading.names[theta.name] = f"beta_{ours}[{label}]"
        value = scale if theta is None else _coefficient(theta, scale)
        if theta is None or theta.fixed:
            assert value is not None  # fixed ones have values
            held[label] = value
        if theta is not None and not math.isfinite(scale):
            base = "the logarithm of" if math.isnan(scale) else "the logarithm of 1 +"
            stream.warn(line, f"beta_{ours}[{label}] is {base} {theta.name}")
    settings: dict[str, Any] = {"covariates": " + ".join(labels) or None, "coefficients": held}
    settings |= _effect(reading, name, ours, found.eta, line)
    if found.relative and typical is not None:
        stream.warn(
            line, f"omega2_{ours} is the variance of ETA({found.eta}) times the square of {typical.name}: {name} is normal"
        )
    fixed = typical is None or typical.fixed
    try:
        return kind(start, fixed=fixed, **settings)
    except ValueError as problem:
        raise stream.problem(typical.line if typical else line, f"{name}: {problem}") from problem


def _coefficient(theta: Theta, scale: float) -> float | None:
    """A coefficient on the Gaussian scale, of a THETA that is one, its exponential (NaN), or one less than that (infinity)."""
    if theta.initial is None or math.isfinite(scale):
        return theta.initial
    return math.log(theta.initial) if math.isnan(scale) else math.log1p(theta.initial) if theta.initial > -1 else None


def _start(kind: type[Individual], found: _Parts) -> float | None:
    if found.typical is None:
        return found.factor
    value = found.typical.initial
    if value is None:
        return None
    if kind is LogitNormal:
        return 1 / (1 + math.exp(-value))
    return found.factor * (math.exp(value) if found.on_log_scale and kind is LogNormal else value)


def _effect(reading: Reading, name: str, ours: str, eta: int | None, line: int) -> dict[str, Any]:
    if eta is None:
        return {"random": False}
    reading.take(f"ETA({eta})", name, line)
    value = reading.omega.values[eta]
    reading.names[f"OMEGA({eta},{eta})"] = f"omega2_{ours}"
    if eta not in reading.omega.fixed:
        return {}
    return {"random": False} if value == 0 else {"variance": value}


def _tell_bounds(stream: Stream, theta: Theta, kind: type[Individual], found: _Parts) -> None:
    """Bounds that the model does not have."""
    natural = kind is LogNormal and not found.on_log_scale
    if not theta.fixed and (math.isfinite(theta.high) or (math.isfinite(theta.low) and not (natural and theta.low == 0))):
        stream.warn(theta.line, f"the bounds ({theta.low:g}, {theta.high:g}) of {theta.name} are not kept")


def blocks(reading: Reading, owners: Mapping[int, str]) -> list[tuple[str, ...]]:
    """Correlated effects, by names of parameters.

    Args:
        owners: the parameter of each ETA that one has.

    Raises:
        ValueError: a block that is held, or some of whose effects no parameter has.
    """
    out = []
    for block in reading.omega.blocks:
        line = reading.omega.lines[block[0]]
        if any(eta in reading.omega.fixed for eta in block):
            raise reading.stream.problem(line, "a block of $OMEGA is fixed, and no matrix is held here; leave FIX out")
        if absent := [eta for eta in block if eta not in owners]:
            raise reading.stream.problem(line, f"ETA({absent[0]}) of a block is in no parameter; leave it out of $OMEGA")
        out.append(tuple(owners[eta] for eta in block))
    return out
