"""Abbreviated code of control streams: assignments, what variables come down to, and sums and products of that."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Collection, Mapping

from .control_records import Record, Stream

_OPERATORS = {
    "EQ": "==", "EQN": "==", "NE": "!=", "NEN": "!=", "GT": ">", "GE": ">=", "LT": "<", "LE": "<=", "AND": " and ", "OR": " or ",
    "NOT": " not ",
}  # fmt: skip
#: functions of Fortran that are functions of sums and products here
FUNCTIONS = {
    **dict.fromkeys(("EXP", "DEXP", "PEXP"), "exp"), **dict.fromkeys(("LOG", "DLOG", "ALOG", "PLOG"), "log"),
    **dict.fromkeys(("SQRT", "DSQRT", "PSQRT"), "sqrt"),
}  # fmt: skip
_ASSIGNMENT = re.compile(r"([A-Za-z]\w*)\s*=(?!=)(.*)")
_IF = re.compile(r"IF\s*\(", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Unknown:
    """What a variable is cannot be told, and why."""

    line: int
    why: str


@dataclasses.dataclass
class Code:
    """Variables of $PK or $ERROR.

    Attributes:
        values: what each comes down to, variables written out. raw: as it was last assigned. lines: where. outside: a message of
            each line that assigns nothing and was not understood.
    """

    values: dict[str, ast.expr | Unknown] = dataclasses.field(default_factory=dict)
    raw: dict[str, ast.expr] = dataclasses.field(default_factory=dict)
    lines: dict[str, int] = dataclasses.field(default_factory=dict)


def read(stream: Stream, record: Record, known: Mapping[str, ast.expr] | None = None) -> Code:
    """The variables of a record of code.

    Args:
        known: what variables from before come down to.

    Raises:
        ValueError: verbatim code, or a call.
    """
    out, inside = Code(dict(known or {})), 0
    for line in record.lines:
        text = line.text.strip()
        if not text:
            continue
        if text.startswith('"') or re.match(r"(CALL|INCLUDE)\b", text, re.IGNORECASE):
            raise stream.problem(line.number, f"{text[:40]!r} may do anything, and is not read; write it as assignments")
        if re.match(r"(END\s*(IF|DO)|ELSE(\s*IF)?)\b", text, re.IGNORECASE):
            inside -= text.upper().startswith("END")
            continue
        if re.match(r"DO\b", text, re.IGNORECASE):
            inside += 1
            continue
        if found := _IF.match(text):
            condition, rest = _closed(text, found.end())
            if re.fullmatch(r"\s*THEN\s*", rest, re.IGNORECASE):
                inside += 1
            else:
                _conditional(stream, out, condition, rest.strip(), line.number)
            continue
        assigned = _ASSIGNMENT.fullmatch(text)
        if assigned is None and re.match(r"(A_0|MTIME|MTDIFF|P|Y)\s*\(", text, re.IGNORECASE):
            raise stream.problem(line.number, f"{text!r} is a part of the model that is not read")
        if assigned is None:
            stream.warn(line.number, f"{text!r} was not understood, and is left out")
            continue
        name = assigned[1].upper()
        if inside:
            _forget(out, name, line.number, f"{name} is assigned under a condition")
        else:
            _assign(stream, out, name, assigned[2], line.number)
    return out


def _closed(text: str, start: int) -> tuple[str, str]:
    """What stands between the bracket that opens before `start` and its end, and what follows."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return text[start:place], text[place + 1 :]
    return text[start:], ""


def _conditional(stream: Stream, out: Code, condition: str, rest: str, line: int) -> None:
    assigned = _ASSIGNMENT.fullmatch(rest)
    if assigned is None:
        stream.warn(line, f"IF ({condition}) {rest} was not understood, and is left out")
        return
    name, tested = assigned[1].upper(), parsed(condition)
    zero = (
        isinstance(tested, ast.Compare) and len(tested.ops) == 1 and isinstance(tested.ops[0], ast.Eq)
        and isinstance(tested.left, ast.Name) and isinstance(tested.comparators[0], ast.Constant)
        and tested.comparators[0].value == 0
    )  # fmt: skip
    if zero and name in out.values:
        stream.warn(line, f"IF ({condition}) {rest}: what is done at zero alone is left out")
    else:
        _forget(out, name, line, f"{name} is assigned under the condition ({condition})")


def _forget(out: Code, name: str, line: int, why: str) -> None:
    out.values[name], out.lines[name] = Unknown(line, why), line
    out.raw.pop(name, None)


def _assign(stream: Stream, out: Code, name: str, text: str, line: int) -> None:
    tree = parsed(text)
    if tree is None:
        _forget(out, name, line, f"{name} = {text.strip()} was not understood")
        return
    value = written_out(tree, out.values)
    out.values[name], out.raw[name], out.lines[name] = value, tree, line


def parsed(text: str) -> ast.expr | None:
    """An expression of Fortran, its names in capitals; None of what is none. THETA(1) is a name, THETA_1."""
    plain = re.sub(r"\.([A-Za-z]{2,3})\.", lambda found: _OPERATORS.get(found[1].upper(), found[0]), text).upper()
    plain = plain.replace("/=", "!=").replace(" AND ", " and ").replace(" OR ", " or ").replace(" NOT ", " not ")
    plain = re.sub(r"(?<![A-Z_\d])(\d+\.?\d*|\.\d+)D([+-]?\d+)", r"\1E\2", plain)
    plain = re.sub(r"\b(THETA|ETA|EPS|ERR|A)\s*\(\s*(\d+)\s*\)", lambda f: f"{'EPS' if f[1] == 'ERR' else f[1]}_{f[2]}", plain)
    try:
        tree = ast.parse(plain.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if not isinstance(
            node,
            ast.Name | ast.Constant | ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp | ast.Call | ast.operator | ast.unaryop
            | ast.cmpop | ast.boolop | ast.expr_context,
        ):  # fmt: skip
            return None
        if isinstance(node, ast.Constant) and (isinstance(node.value, bool) or not isinstance(node.value, int | float)):
            return None
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.keywords:
                return None
            node.func.id = FUNCTIONS.get(node.func.id, node.func.id)
    return tree


def written_out(tree: ast.expr, values: Mapping[str, ast.expr | Unknown]) -> ast.expr | Unknown:
    """An expression with variables replaced by what they come down to."""
    lost = [values[name] for name in names(tree) if isinstance(values.get(name), Unknown)]
    if lost:
        assert isinstance(lost[0], Unknown)
        return lost[0]

    class Replaced(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            return ast.Call(node.func, [self.visit(one) for one in node.args], [])

        def visit_Name(self, node: ast.Name) -> ast.AST:
            found = values.get(node.id)
            return found if isinstance(found, ast.expr) else node

    return Replaced().visit(ast.parse(ast.unparse(tree), mode="eval").body)


def names(tree: ast.AST) -> list[str]:
    """The variables of an expression, each as often as it is read."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]


def number(tree: ast.AST) -> float | None:
    """The value of a constant, None of what is none."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        return float(tree.value)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        value = number(tree.operand)
        return value if value is None or isinstance(tree.op, ast.UAdd) else -value
    if isinstance(tree, ast.BinOp):
        left, right = number(tree.left), number(tree.right)
        if left is None or right is None:
            return None
        try:
            found = {
                ast.Add: lambda: left + right, ast.Sub: lambda: left - right, ast.Mult: lambda: left * right,
                ast.Div: lambda: left / right, ast.Pow: lambda: left**right,
            }.get(type(tree.op), lambda: None)()  # fmt: skip
        except ArithmeticError:
            return None
        return found if isinstance(found, float) else None
    return None


def terms(tree: ast.expr, sign: float = 1.0) -> list[tuple[float, ast.expr]]:
    """An expression as a sum: factors and what they multiply; a constant multiplies the constant 1."""
    value = number(tree)
    if value is not None:
        return [(sign * value, ast.Constant(1))]
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub):
        return terms(tree.left, sign) + terms(tree.right, sign if isinstance(tree.op, ast.Add) else -sign)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        return terms(tree.operand, -sign if isinstance(tree.op, ast.USub) else sign)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
        left, right = number(tree.left), number(tree.right)
        if left is not None or right is not None:
            return terms(tree.right, sign * left) if left is not None else terms(tree.left, sign * (right or 0.0))
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div) and number(tree.right):
        return terms(tree.left, sign / (number(tree.right) or 1.0))
    return [(sign, tree)]


@dataclasses.dataclass
class Product:
    """An expression as a product: a constant, powers (base, exponent) and the exponential of a sum of terms."""

    constant: float = 1.0
    powers: list[tuple[ast.expr, ast.expr]] = dataclasses.field(default_factory=list)
    exponent: list[tuple[float, ast.expr]] = dataclasses.field(default_factory=list)

    def to_the(self, power: float) -> Product:
        powers = [(base, _times(exponent, power)) for base, exponent in self.powers]
        return Product(self.constant**power, powers, [(power * factor, one) for factor, one in self.exponent])

    def times(self, other: Product) -> Product:
        return Product(self.constant * other.constant, self.powers + other.powers, self.exponent + other.exponent)


def _times(tree: ast.expr, factor: float) -> ast.expr:
    value = number(tree)
    if value is not None:
        return ast.Constant(value * factor)
    return tree if factor == 1 else ast.BinOp(ast.Constant(factor), ast.Mult(), tree)


def product(tree: ast.expr, whole: Collection[str] = ()) -> Product:
    """An expression as a product, whose factors that read nothing but variables of `whole` are not taken apart."""
    value = number(tree)
    if value is not None:
        return Product(value)
    atom = Product(1.0, [(tree, ast.Constant(1.0))])
    if only(tree, whole):
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow):
            return Product(1.0, [(tree.left, tree.right)])
        if is_call(tree, "exp"):
            return Product(exponent=[(1.0, tree.args[0])])  # type: ignore[attr-defined]
        if is_call(tree, "sqrt"):
            return Product(1.0, [(tree.args[0], ast.Constant(0.5))])  # type: ignore[attr-defined]
        return atom
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        return product(tree.operand, whole).times(Product(-1.0 if isinstance(tree.op, ast.USub) else 1.0))
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult | ast.Div):
        left, right = product(tree.left, whole), product(tree.right, whole)
        if isinstance(tree.op, ast.Div):
            if right.constant == 0:
                return atom
            right = right.to_the(-1.0)
        return left.times(right)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow):
        power, base = number(tree.right), product(tree.left, whole)
        if power is not None and base.constant > 0:
            return base.to_the(power)
        return Product(1.0, [(tree.left, tree.right)])
    if is_call(tree, "sqrt"):
        inside = product(tree.args[0], whole)  # type: ignore[attr-defined]
        return inside.to_the(0.5) if inside.constant > 0 else atom
    if is_call(tree, "exp"):
        out = Product()
        for factor, one in terms(tree.args[0]):  # type: ignore[attr-defined]
            inside = product(one.args[0], whole) if is_call(one, "log") else None  # type: ignore[attr-defined]
            usable = inside is not None and inside.constant > 0
            out = out.times(inside.to_the(factor) if usable and inside is not None else Product(exponent=[(factor, one)]))
        return out
    return atom


def collected(found: Product) -> dict[str, float] | None:
    """Exponents of a product's bases by their text, none of zero; None where some are no constants, or exponentials."""
    out: dict[str, float] = {}
    for base, exponent in found.powers:
        value = number(exponent)
        if value is None:
            return None
        out[text(base)] = out.get(text(base), 0.0) + value
    return None if found.exponent else {name: value for name, value in out.items() if value}


def is_call(tree: ast.AST, name: str) -> bool:
    """Whether it is a call of one argument of this function."""
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == name and len(tree.args) == 1


def only(tree: ast.AST, known: Collection[str]) -> bool:
    """Whether an expression reads some of these variables and no others."""
    read = names(tree)
    return bool(read) and all(name in known for name in read)


def text(tree: ast.AST) -> str:
    """An expression for people and formulas."""
    return re.sub(r"\b(THETA|ETA|EPS|A)_(\d+)\b", r"\1(\2)", ast.unparse(ast.fix_missing_locations(tree)))
