"""The residual error of a control stream: what Y is in $ERROR."""

from __future__ import annotations

import ast
import dataclasses
import math

from .control_code import Code, Product, Unknown, collected, is_call, names, number, product, terms, text
from .control_parameters import Reading
from .control_records import Variances
from .control_structure import Structure
from .error import Combined, ConstantError, Exponential, Proportional, ResidualError

#: what is observed, as products are told apart by it
_F = "F"


@dataclasses.dataclass(frozen=True)
class _Size:
    """A standard deviation: a constant times a THETA, or none, times the prediction to a power of 0 or 1."""

    constant: float
    theta: int | None
    power: int


def residual(reading: Reading, code: Code, found: Structure, sigma: Variances) -> tuple[ResidualError, float]:
    """The error, and c of a prediction that is concentration over c.

    Raises:
        ValueError: Y is nothing that a model here has, with its line.
    """
    stream = reading.stream
    line = code.lines.get("Y")
    if line is None:
        raise stream.problem(stream.all("ERROR")[0].number if stream.all("ERROR") else None, "$ERROR does not assign Y")
    for flag in ("F_FLAG", "MDVRES"):
        if flag in code.lines:
            raise stream.problem(code.lines[flag], f"{flag} changes what Y means; censored data are NLME.fit(lloq=...) or CENS")
    y = code.values["Y"]
    if isinstance(y, Unknown):
        mend = "censored data are NLME.fit(lloq=...) or CENS, and an error of logarithms is error='exponential'"
        raise stream.problem(y.line, f"{y.why}, and Y depends on it; {mend}")
    y = _Scaled(found.central).visit(y)
    if any(is_call(node, "log") and _reads(node, found) for node in ast.walk(y)):
        raise stream.problem(line, "Y is a logarithm; exponentiate DV in the data, and write Y = F*EXP(EPS(1))")
    exponential = _exponential(y)
    if exponential is not None:
        scale = _prediction(reading, exponential[0], found, line)
        stream.warn(line, "Y = F*EXP(EPS) is an error on the logarithmic scale, which FO and FOCE take for a proportional one")
        size = _Size(1.0, None, 0)
        return Exponential(fixed=_held(reading, sigma, exponential[1], [size], ["a"], line).get("a")), scale
    split = _linear(y)
    if split is None:
        raise stream.problem(line, f"Y = {text(y)} is not linear in EPS")
    mean, weights = split
    scale = _prediction(reading, mean, found, line)
    if not weights:
        raise stream.problem(line, "Y has no EPS")
    return _error(reading, weights, found, sigma, line), scale


class _Scaled(ast.NodeTransformer):
    """A over S of the observed compartment, which is F."""

    def __init__(self, central: int) -> None:
        self._amount, self._scale = f"A_{central}", f"S{central}"

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        ends = [one.id if isinstance(one, ast.Name) else "" for one in (node.left, node.right)]
        if isinstance(node.op, ast.Div) and ends == [self._amount, self._scale]:
            return ast.Name(_F)
        return self.generic_visit(node)


def _reads(node: ast.AST, found: Structure) -> bool:
    """Whether an expression reads the prediction."""
    return any(name == _F or name.startswith("A_") for name in names(node))


def _exponential(y: ast.expr) -> tuple[ast.expr, int] | None:
    """P and k of P * EXP(EPS(k))."""
    if not (isinstance(y, ast.BinOp) and isinstance(y.op, ast.Mult)):
        return None
    for one, other in ((y.left, y.right), (y.right, y.left)):
        if is_call(other, "exp") and (eps := _eps(other.args[0])) is not None:  # type: ignore[attr-defined]
            return one, eps
    return None


def _eps(node: ast.AST) -> int | None:
    return int(node.id.removeprefix("EPS_")) if isinstance(node, ast.Name) and node.id.startswith("EPS_") else None


def _linear(node: ast.expr) -> tuple[ast.expr, dict[int, ast.expr]] | None:
    """What is without EPS, and the factor of each; None of what is not linear."""
    if not any(name.startswith("EPS_") for name in names(node)):
        return node, {}
    zero, one = ast.Constant(0), ast.Constant(1)
    if (eps := _eps(node)) is not None:
        return zero, {eps: one}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _linear(ast.BinOp(zero, ast.Sub(), node.operand))
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _linear(node.left), _linear(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Add | ast.Sub):
        if left[1].keys() & right[1].keys():
            return None
        # The sign of an EPS does not matter.
        return ast.BinOp(left[0], node.op, right[0]), left[1] | right[1]
    if isinstance(node.op, ast.Mult) and not (left[1] and right[1]):
        (mean, factors), plain = (left, right[0]) if left[1] else (right, left[0])
        return ast.BinOp(mean, ast.Mult(), plain), {k: ast.BinOp(one, ast.Mult(), plain) for k, one in factors.items()}
    if isinstance(node.op, ast.Div) and not right[1]:
        return ast.BinOp(left[0], ast.Div(), right[0]), {k: ast.BinOp(v, ast.Div(), right[0]) for k, v in left[1].items()}
    return None


def _simplified(node: ast.expr) -> list[tuple[float, ast.expr]]:
    """The terms of a sum that are not zero."""
    return [(factor, one) for factor, one in terms(node) if factor != 0 and product(one).constant != 0]


def _observed(whole: Product, found: Structure) -> tuple[float, dict[str, float], int] | None:
    """A product as a constant, other factors, and the power of the prediction."""
    powers = collected(whole)
    if powers is None:
        return None
    amount, power = f"A({found.central})", 0.0
    if amount in powers:
        power = powers.pop(amount)
        if powers.pop(found.volume, 0.0) != -power:
            return None
    power += powers.pop(_F, 0.0)
    return (whole.constant, powers, int(power)) if power == int(power) else None


def _prediction(reading: Reading, mean: ast.expr, found: Structure, line: int) -> float:
    """c where the prediction is concentration over c."""
    parts = _simplified(mean)
    seen = _observed(product(parts[0][1]), found) if len(parts) == 1 else None
    if seen is None or seen[1] or seen[2] != 1 or parts[0][0] * seen[0] <= 0:
        raise reading.stream.problem(
            line, f"the prediction of Y is {text(mean)}; F, or A({found.central})/{found.volume}, is read, and constants times it"
        )
    factor = parts[0][0] * seen[0]
    if f"A_{found.central}" in names(parts[0][1]):
        return 1 / factor
    if found.scale is None:
        raise reading.stream.problem(line, f"F is an amount without S{found.central}; write S{found.central} = {found.volume}")
    return found.scale / factor


def _error(reading: Reading, weights: dict[int, ast.expr], found: Structure, sigma: Variances, line: int) -> ResidualError:
    stream = reading.stream
    if len(weights) == 1:
        ((eps, weight),) = weights.items()
        sizes, form = _sizes(reading, weight, found, line)
        owners = [eps] * len(sizes)
    else:
        each = [(eps, _sizes(reading, weight, found, line)[0]) for eps, weight in weights.items()]
        if any(len(own) > 1 for _, own in each) or len(each) > 2:
            raise stream.problem(line, "Y has several EPS with composite factors; one additive and one proportional are read")
        owners, sizes, form = [eps for eps, _ in each], [own[0] for _, own in each], 2
    powers = sorted(one.power for one in sizes)
    order = sorted(range(len(sizes)), key=lambda k: sizes[k].power)
    sizes, owners = [sizes[k] for k in order], [owners[k] for k in order]
    labels = {(0,): ["a"], (1,): ["b"], (0, 1): ["a", "b"]}.get(tuple(powers))
    if labels is None:
        raise stream.problem(line, "the error is neither additive, nor proportional, nor both")
    for block in sigma.blocks:
        if len(set(block) & set(owners)) > 1:
            raise stream.problem(sigma.lines[block[0]], "correlated EPS are not read; write a diagonal $SIGMA")
    held: dict[str, float] = {}
    for eps in dict.fromkeys(owners):
        own = [k for k, one in enumerate(owners) if one == eps]
        held |= _held(reading, sigma, eps, [sizes[k] for k in own], [labels[k] for k in own], line)
    fixed = held or None
    if len(labels) == 2:
        return Combined(form, fixed=fixed)
    return (ConstantError if labels == ["a"] else Proportional)(fixed=fixed)


def _sizes(reading: Reading, weight: ast.expr, found: Structure, line: int) -> tuple[list[_Size], int]:
    """The parts of the standard deviation of an EPS's term, and the form in which two are joined."""
    parts = _simplified(weight)
    whole = product(weight)
    if len(parts) == 1 and len(whole.powers) >= 1:
        roots = [(base, e) for base, e in whole.powers if number(e) == 0.5 and len(_simplified(base)) > 1]
        if len(roots) == 1 and len(whole.powers) == 1 and whole.constant == 1 and not whole.exponent:
            own = [_size(reading, factor, one, found, line, 2) for factor, one in _simplified(roots[0][0])]
            return own, 2
    if len(parts) > 2:
        raise reading.stream.problem(line, f"the factor {text(weight)} of an EPS has more than two parts")
    return [_size(reading, factor, one, found, line, 1) for factor, one in parts], 1


def _size(reading: Reading, factor: float, node: ast.expr, found: Structure, line: int, root: int) -> _Size:
    seen = _observed(product(node), found)
    problem = reading.stream.problem(
        line, f"the standard deviation has {text(node)}; a THETA, the prediction, and their product are read"
    )
    if seen is None:
        raise problem
    constant, powers, power = factor * seen[0], seen[1], seen[2] / root
    own = [name for name, exponent in powers.items() if exponent == root and name.startswith("THETA(")]
    if len(own) != len(powers) or len(own) > 1 or power not in (0, 1) or constant == 0 or (root == 2 and constant < 0):
        raise problem
    theta = int(own[0][6:-1]) if own else None
    if theta is not None and theta not in reading.thetas:
        raise reading.stream.problem(line, f"THETA({theta}) is not in $THETA")
    return _Size(abs(constant) ** (1 / root), theta, int(power))


def _held(reading: Reading, sigma: Variances, eps: int, sizes: list[_Size], labels: list[str], line: int) -> dict[str, float]:
    """The error parameters of one EPS that are held, and their values."""
    stream = reading.stream
    if eps not in sigma.values:
        raise stream.problem(line, f"EPS({eps}) has no variance in $SIGMA")
    variance, free = sigma.values[eps], eps not in sigma.fixed
    reading.take(f"EPS({eps})", "Y", line)
    if variance == 0:
        raise stream.problem(sigma.lines[eps], f"SIGMA({eps},{eps}) is 0; leave EPS({eps}) out")
    held: dict[str, float] = {}
    for size, label in zip(sizes, labels, strict=True):
        theta = None if size.theta is None else reading.thetas[size.theta]
        if theta is not None:
            reading.take(theta.name, "Y", line)
            reading.names[theta.name] = label
        if theta is None or theta.fixed:
            value = 1.0 if theta is None else theta.initial
            assert value is not None  # fixed ones have values
            held[label] = size.constant * abs(value) * math.sqrt(variance)
    if free:
        if len(held) == len(sizes) > 1:
            raise stream.problem(line, "the two parts of the error have a fixed ratio, which no error here has")
        if len(held) < len(sizes):
            stream.warn(line, f"SIGMA({eps},{eps}) and a THETA say the same; write 1 FIX")
        held = {}
    if all(size.theta is None for size in sizes):
        reading.names[f"SIGMA({eps},{eps})"] = " and ".join(f"{label}**2" for label in labels)
    return held
