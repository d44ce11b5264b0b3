"""Arithmetic in text: numbers, names, operators, comparisons and a few functions. Nothing else can be written in it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "exp": (jnp.exp, 1, 1),
    "log": (jnp.log, 1, 1),
    "sqrt": (jnp.sqrt, 1, 1),
    "abs": (jnp.abs, 1, 1),
    "pow": (operator.pow, 2, 2),
    "min": (lambda *values: functools.reduce(jnp.minimum, values), 2, 99),
    "max": (lambda *values: functools.reduce(jnp.maximum, values), 2, 99),
    "where": (jnp.where, 3, 3),
}
#: names that are functions
FUNCTIONS = tuple(_FUNCTIONS)
#: operators within each other, at most
DEPTH = 200
#: whole exponents up to this stay whole, as in x**2
WHOLE = 64


@dataclasses.dataclass(frozen=True)
class Expression:
    """A function of named numbers, such as `CL / V * central`: equal texts are equal functions.

    Operators + - * / ** and comparisons, joined by `and`, `or`, `not`; functions exp, log, sqrt, abs, pow, min, max and
    where(condition, value, otherwise).

    >>> Expression("ka * depot - CL / V * central").names
    ('ka', 'depot', 'CL', 'V', 'central')
    >>> Expression("where(x > 2, x, 2 * x)")({"x": 3.0}).item()
    3.0
    >>> Expression("__import__('os')")
    Traceback (most recent call last):
    ValueError: "__import__('os')": '__import__' is no function here; they are exp, log, sqrt, abs, pow, min, max, where

    Raises:
        ValueError: what the text has that is no arithmetic.
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ValueError(f'{self.text!r} must be an expression in quotes, such as "CL / V"')
        _checked(self._tree, self.text, 0)

    @functools.cached_property
    def _tree(self) -> ast.expr:
        text = " ".join(self.text.split())
        if not text:
            raise ValueError('an expression is empty; write one, such as "CL / V"')
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                return ast.parse(text, mode="eval").body
        except SyntaxError as problem:
            where = f" near {text[max((problem.offset or 1) - 1, 0) :][:12]!r}" if problem.offset else ""
            raise ValueError(f"{self.text!r} is no arithmetic: {problem.msg}{where}") from problem
        except (ValueError, RecursionError, MemoryError) as problem:
            raise ValueError(f"{self.text[:40]!r}... cannot be read: {problem or 'too deep'}") from problem

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names that it reads, in order."""
        called = {id(node.func) for node in ast.walk(self._tree) if isinstance(node, ast.Call)}
        found = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name) and id(node) not in called]
        return tuple(dict.fromkeys(node.id for node in sorted(found, key=lambda node: node.col_offset)))

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Its value; ValueError where constants make none, such as 1 / 0."""
        try:
            return _value(self._tree, values)
        except (ZeroDivisionError, OverflowError) as problem:
            raise ValueError(f"{self.text!r} has no value: {problem}") from problem


def _checked(node: ast.AST, text: str, depth: int) -> float | None:
    """The value of a constant, None of what depends on names."""
    if depth > DEPTH:
        raise ValueError(f"{text[:40]!r}... is too deep; give parts of it names of their own")
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise ValueError(f"{text!r}: {value!r} is no number")
        return float(value)
    if isinstance(node, ast.Name):
        if node.id in _FUNCTIONS:
            raise ValueError(f"{text!r}: {node.id} is a function; call it, as {node.id}(...)")
        return None
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = (_checked(one, text, depth + 1) for one in (node.left, node.right))
        if left is None or right is None:
            return None
        try:
            found = _ARITHMETIC[type(node.op)](left, right)
        except ArithmeticError as problem:
            raise ValueError(f"{text!r}: {ast.unparse(node)} has no value ({problem})") from problem
        if not isinstance(found, float) or not math.isfinite(found):
            raise ValueError(f"{text!r}: {ast.unparse(node)} is no real number")
        return found
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        found = _checked(node.operand, text, depth + 1)
        return -found if found is not None and isinstance(node.op, ast.USub) else found
    for child in _parts(node, text):
        _checked(child, text, depth + 1)
    return None


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _parts(node: ast.AST, text: str) -> list[ast.expr]:
    """What a node that is allowed consists of."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.Compare) and all(type(one) in _COMPARISONS for one in node.ops):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in _FUNCTIONS:
            raise ValueError(f'"{text}": {name!r} is no function here; they are {", ".join(_FUNCTIONS)}')
        _, least, most = _FUNCTIONS[name]
        if node.keywords or any(isinstance(one, ast.Starred) for one in node.args) or not least <= len(node.args) <= most:
            counted = f"{least}" if least == most else f"{least} or more"
            raise ValueError(f"{text!r}: {name} takes {counted} arguments, without names")
        return node.args
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
        raise ValueError(f"{text!r}: ^ is no operator here; write ** for a power")
    raise ValueError(
        f"{text!r}: {ast.unparse(node)} is no arithmetic; there are + - * / **, comparisons and {', '.join(_FUNCTIONS)}"
    )


def _value(node: ast.AST, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int | float)  # see `_checked`
        return float(node.value)
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.BinOp):
        right = _whole(node)
        return _ARITHMETIC[type(node.op)](_value(node.left, values), _value(node.right, values) if right is None else right)
    if isinstance(node, ast.UnaryOp):
        inside = _value(node.operand, values)
        if isinstance(node.op, ast.Not):
            return jnp.logical_not(inside)
        return -inside if isinstance(node.op, ast.USub) else inside
    if isinstance(node, ast.BoolOp):
        join = jnp.logical_and if isinstance(node.op, ast.And) else jnp.logical_or
        return functools.reduce(join, (_value(one, values) for one in node.values))
    if isinstance(node, ast.Compare):
        sides = [_value(one, values) for one in (node.left, *node.comparators)]
        held = [_COMPARISONS[type(op)](a, b) for op, a, b in zip(node.ops, sides, sides[1:], strict=False)]
        return functools.reduce(jnp.logical_and, held)
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)  # see `_parts`
    return _FUNCTIONS[node.func.id][0](*(_value(one, values) for one in node.args))


def _whole(node: ast.BinOp) -> int | None:
    """The exponent of a power, where it is a small whole number."""
    right = node.right
    if isinstance(node.op, ast.Pow) and isinstance(right, ast.Constant) and isinstance(right.value, int) and right.value <= WHOLE:
        return right.value
    return None
