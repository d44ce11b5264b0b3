"""Which functions are affine, told from the operations that they consist of and from no value of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

#: inputs that a value is affine in, by number; None, where it may depend on one in another way
Marks = frozenset[int] | None

NOTHING: frozenset[int] = frozenset()
#: beside inputs, of a value that has a number of its own added which may not be zero
CONSTANT = -1
#: affine in all operands together; where the others depend on no input, in one of two, in the first, in all but one
TOGETHER = {
    *("add", "add_any", "sub", "neg", "broadcast_in_dim", "reshape", "squeeze", "slice", "concatenate", "transpose"),
    *("reduce_sum", "cumsum", "rev", "copy", "copy_p", "pad", "convert_element_type", "stack", "unstack", "split"),
}
ONE_OF_TWO = {"mul", "dot_general"}
THE_FIRST = {"div", "gather", "dynamic_slice"}
ALL_BUT = {"select_n": 0, "scatter": 1, "scatter-add": 1}
#: functions within
CALLS = {"jit", "pjit", "closed_call"}


def affine_in(function: Callable[..., Any], x: Sequence[Any], other: Any) -> list[Marks]:
    r"""Of each number of `function(x, other)`, the numbers of `x` that it is affine in: $a_0+\sum_i a_ix_i$ over these, with
    coefficients that depend on `other` alone, and `CONSTANT` where $a_0$ may not be zero. None where it is not known to be
    affine. Only shapes and types are read.

    >>> affine_in(lambda x, k: [k * x[0] - x[1] / k, x[0] + k**2, x[0] * x[1]], [1.0, 1.0], 3.0) == [{0, 1}, {0, CONSTANT}, None]
    True
    """
    closed = jax.make_jaxpr(function)(list(x), other)
    marks: list[Marks] = [frozenset({i}) for i in range(len(x))]
    inputs = [*marks, *[NOTHING] * (len(closed.jaxpr.invars) - len(x))]
    out = _followed(closed.jaxpr, inputs)
    return [_constant(atom) if mark == NOTHING else mark for atom, mark in zip(closed.jaxpr.outvars, out, strict=True)]


def _followed(jaxpr: Any, inputs: list[Marks]) -> list[Marks]:
    """Marks of the outputs."""
    known: dict[Any, Marks] = dict.fromkeys(jaxpr.constvars, NOTHING) | dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom: Any) -> Marks:
        return NOTHING if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        marks = [of(atom) for atom in equation.invars]
        if equation.primitive.name in CALLS and any(mark != NOTHING for mark in marks):
            out = _followed(equation.params["jaxpr"].jaxpr, marks)
        else:
            out = [_after(equation, marks)] * len(equation.outvars)
        known |= dict(zip(equation.outvars, out, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _after(equation: Any, marks: list[Marks]) -> Marks:
    """Marks of what one operation gives."""
    if all(mark == NOTHING for mark in marks):
        return NOTHING
    known = [mark for mark in marks if mark is not None]
    if len(known) < len(marks) or not all(_real(atom) for atom in equation.outvars):
        return None
    name, moved = equation.primitive.name, [mark != NOTHING for mark in marks]
    affine = (
        name in TOGETHER
        or (name in ONE_OF_TWO and sum(moved) == 1)
        or (name in THE_FIRST and not any(moved[1:]))
        or (name in ALL_BUT and not moved[ALL_BUT[name]])
    )
    if not affine:
        return None
    summed = name in TOGETHER or name in ALL_BUT
    operands = enumerate(zip(equation.invars, marks, strict=True))
    constants = [_constant(atom) for i, (atom, mark) in operands if summed and mark == NOTHING and i != ALL_BUT.get(name)]
    return frozenset().union(*known, *constants)


def _constant(atom: Any) -> frozenset[int]:
    """Of a number that depends on no input: nothing of zero."""
    return NOTHING if np.all(getattr(atom, "val", 1) == 0) else frozenset({CONSTANT})


def _real(atom: Any) -> bool:
    return jax.numpy.issubdtype(atom.aval.dtype, jax.numpy.floating)
