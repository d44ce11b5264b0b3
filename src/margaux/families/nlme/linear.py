"""Differential equations that are linear in the states, with coefficients that are constant in time: told by their operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...numerics.affine import CONSTANT, affine_in
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
