"""Vectors of which some entries are held at given values."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .space import AbstractSpace, Box, Positive, Product, Real


class Held(AbstractSpace):
    """Vectors some of whose entries have given values; the others lie in a space of their own, whose coordinates they keep.

    Held entries have no coordinate: they are no free parameters, have no standard error, and Newton's steps leave them alone.

    Args:
        space: of the others, entry by entry: `Real`, `Positive` or `Box`. held: which entries have given values. values: these,
            in a vector of all entries; whatever there is in the places of the others is not read.

    Raises:
        TypeError, ValueError: a space of whole vectors, or a value that is held outside of it.

    >>> space = Held(Positive(), (False, True), np.array([np.nan, 2.0]))
    >>> x = jnp.array([1.0, 5.0])
    >>> space.project(x).tolist(), space.to_unconstrained(x).tolist()
    ([1.0, 2.0], [0.0])
    >>> space.from_unconstrained(jnp.zeros(1)).tolist()
    [1.0, 2.0]
    """

    space: AbstractSpace
    held: tuple[bool, ...] = eqx.field(static=True)
    values: Array | np.ndarray

    def __init__(self, space: AbstractSpace, held: tuple[bool, ...], values: Array | np.ndarray) -> None:
        if not isinstance(space, Real | Positive | Box):
            raise TypeError(f"entries are held in a space entry by entry (Real, Positive, Box), not in a {type(space).__name__}")
        self.space, self.held, self.values = space, tuple(held), np.where(np.asarray(held), values, 1.0)
        if len(self.held) != len(self.values):
            raise ValueError(f"{len(self.held)} entries are held or not, but there are {len(self.values)} values")
        if not np.all(np.isfinite(self.values)):
            raise ValueError(f"a value that is held must be finite, got {values}")

    @property
    def _free(self) -> np.ndarray:
        return np.flatnonzero(~np.asarray(self.held, bool))

    def _with_values(self, x: Array) -> Array:
        return jnp.where(np.asarray(self.held, bool), jnp.asarray(self.values, x.dtype), x)

    def project(self, x):
        return self._with_values(self.space.project(x))

    def at_boundary(self, x, tol=1e-6):
        return ~np.asarray(self.held, bool) & self.space.at_boundary(x, tol)

    def to_unconstrained(self, x):
        return self.space.to_unconstrained(x)[self._free]

    def from_unconstrained(self, u):
        every = jnp.zeros(len(self.held), u.dtype).at[self._free].set(u)
        return self._with_values(self.space.from_unconstrained(every))


def with_values_of(space: AbstractSpace, params: PyTree) -> AbstractSpace:
    """The space whose held entries have the values that they have in some parameters."""
    if not isinstance(space, Product):
        return _replaced(space, params)
    return Product(jax.tree.map(_replaced, space.spaces, params, is_leaf=lambda x: isinstance(x, AbstractSpace)))


def without_values(space: AbstractSpace) -> AbstractSpace:
    """The space whose held entries have no particular values: programs of it serve them all, by `with_values_of`."""
    if not isinstance(space, Product):
        return _replaced(space, np.ones(len(space.held))) if isinstance(space, Held) else space
    return Product(jax.tree.map(without_values, space.spaces, is_leaf=lambda x: isinstance(x, AbstractSpace)))


def _replaced(space: AbstractSpace, values: Any) -> AbstractSpace:
    return eqx.tree_at(lambda held: held.values, space, values) if isinstance(space, Held) else space
