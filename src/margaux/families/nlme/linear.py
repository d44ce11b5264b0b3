"""Differential equations that are linear in the states, with coefficients that are constant in time: told by their operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...numerics.affine import CONSTANT, affine_in
from ...numerics.flows import flow
from ...numerics.integration import Flow
from ...numerics.linear_systems import LinearSystem

#: the time among what a derivative may depend on, before the states
TIME = 0


class Linearity(NamedTuple):
    """Of a linear derivative, which states (column) each number (row) depends on, and whether nothing is added."""

    places: tuple[tuple[int, int], ...]
    homogeneous: bool


class _Traced(dict):
    """Parameters without values, of any name."""

    def __init__(self, named: Iterable[tuple[str, Any]], other: Any) -> None:
        super().__init__(named)
        self._other = other

    def __missing__(self, name: str) -> Any:
        return self._other


Slope = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], tuple[Any, ...]]


def nonlinear(slope: Slope, states: int, names: tuple[str, ...], dtype: Any) -> list[int]:
    """Numbers of the states whose derivative is not known to be linear."""
    return [i for i, mark in enumerate(_marks(slope, states, names, dtype)) if mark is None or TIME in mark]


def linearity(slope: Slope, states: int, names: tuple[str, ...], dtype: Any) -> Linearity | None:
    """None where the derivative is not known to be linear: what depends on the time, or on a state in any other way."""
    marks = _marks(slope, states, names, dtype)
    known = [mark for mark in marks if mark is not None and TIME not in mark]
    if len(known) < len(marks):
        return None
    places = tuple((i, j - 1) for i, mark in enumerate(known) for j in sorted(mark) if j > TIME)
    return Linearity(places, not any(CONSTANT in mark for mark in known))


def closed(slope: Slope, states: int, names: tuple[str, ...], dtype: Any) -> tuple[tuple[int, ...], Linearity] | None:
    """The numbers of the most states whose derivatives are linear in these states alone, as of a drug on its way through the
    body whatever its effect, and how they are; None where there are none, or all are."""
    marks = _marks(slope, states, names, dtype)
    own = {i: mark for i, mark in enumerate(marks) if mark is not None and TIME not in mark}
    while others := [i for i, mark in own.items() if any(j > TIME and j - 1 not in own for j in mark)]:
        for i in others:
            del own[i]
    if len(own) in (0, states):
        return None
    numbers = tuple(own)
    places = tuple((numbers.index(i), numbers.index(j - 1)) for i, mark in own.items() for j in sorted(mark) if j > TIME)
    return numbers, Linearity(places, not any(CONSTANT in mark for mark in own.values()))


def _marks(slope: Slope, states: int, names: tuple[str, ...], dtype: Any) -> list[frozenset[int] | None]:
    number = jnp.zeros((), dtype)

    def of(x: list[Any], values: list[Any]) -> tuple[Any, ...]:
        return slope(x[0], tuple(x[1:]), _Traced(zip(names, values, strict=False), values[-1]))

    return affine_in(of, [number] * (1 + states), [number] * (len(names) + 1))


def system(slope: Slope, known: Linearity, start: Array, psi: Mapping[str, Any]) -> LinearSystem:
    """The matrix and the constant of a linear derivative at some parameters."""
    none = tuple(jnp.zeros_like(start))
    size = range(len(none))

    def of(y: tuple[Any, ...]) -> tuple[Any, ...]:
        return slope(jnp.zeros((), start.dtype), y, psi)

    columns = [jax.jvp(of, (none,), (tuple(jnp.asarray(i == j, start.dtype) for i in size),))[1] for j in size]
    constant = jnp.zeros_like(start) if known.homogeneous else jnp.stack(of(none))
    return LinearSystem({(i, j): columns[j][i] for i, j in known.places}, constant, known.homogeneous)


def flow_of(slope: Slope, states: int, numbers: tuple[int, ...], known: Linearity) -> Flow:
    """The way of the states of `closed`, whatever the others."""

    def own_slope(t: Any, own: tuple[Any, ...], psi: Mapping[str, Any]) -> tuple[Any, ...]:
        every = [jnp.zeros_like(own[0])] * states
        for number, value in zip(numbers, own, strict=True):
            every[number] = value
        found = slope(t, tuple(every), psi)
        return tuple(found[number] for number in numbers)

    def of(psi: Mapping[str, Any]) -> Callable[[Array, Array], Callable[[Any], tuple[Any, ...]]]:
        nothing = jnp.zeros(len(numbers), jnp.result_type(float, *psi.values()))
        return functools.partial(flow, system(own_slope, known, nothing, psi))

    return Flow(numbers, of)
