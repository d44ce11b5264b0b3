"""Functions of a few numbers, differentiated in these numbers and not in each of the many directions in which they move."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, PyTree


def by_partials(function: Callable[[Float[Array, " k"], PyTree], Array]) -> Callable[[Float[Array, " k"], PyTree], Array]:
    r"""The same function f(x, data) of k numbers x, whose derivative is $\nabla f(x)\cdot\dot x$ with partial derivatives that
    are computed once, whatever the number of directions $\dot x$ and in either mode; so are all higher derivatives in x.

    For what takes long to compute from a few numbers that depend on many. Of what is differentiated f reads its arguments alone.

    >>> smooth = by_partials(lambda x, scale: scale * jnp.exp(x[0]) * x[1])
    >>> jax.hessian(smooth)(jnp.array([0.0, 2.0]), 3.0).tolist()
    [[6.0, 3.0], [3.0, 0.0]]
    """
    return lambda x, data: _derivatives(function, 0)(x, data)[0]


def _derivatives(function: Callable[[Array, Any], Array], order: int) -> Callable[[Array, Any], tuple[Array, ...]]:
    """f and its derivatives up to an order, each with one axis of k more than the one before; the next is the derivative of the
    last."""

    @jax.custom_jvp
    def up_to(x: Array, data: Any) -> tuple[Array, ...]:
        return _computed(function, order, x, data)

    def derivative(primals: tuple[Array, Any], tangents: tuple[Any, Any]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        x, data = primals
        found = _derivatives(function, order + 1)(x, data)
        step = _materialised(tangents[0])
        # Term by term: products and sums of vectors this short take longer than they do.
        moved = tuple(functools.reduce(operator.add, [slope[..., i] * step[i] for i in range(len(x))]) for slope in found[1:])
        if not all(_is_nothing(leaf) for leaf in jax.tree.leaves(tangents[1], is_leaf=_is_nothing)):
            beside = jax.tree.map(_materialised, tangents[1], is_leaf=_is_nothing)
            own = jax.jvp(lambda data: _computed(function, order, x, data), (data,), (beside,))[1]
            moved = tuple(one + other for one, other in zip(moved, own, strict=True))
        return found[:-1], moved

    up_to.defjvp(derivative, symbolic_zeros=True)
    return up_to


def _is_nothing(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


def _materialised(tangent: Any) -> Any:
    if not _is_nothing(tangent):
        return tangent
    real = jnp.issubdtype(tangent.dtype, jnp.inexact)
    return (jnp if real else np).zeros(tangent.shape, tangent.dtype)


def _computed(function: Callable[[Array, Any], Array], order: int, x: Array, data: Any) -> tuple[Array, ...]:
    if order == 0:
        return (function(x, data),)

    def along(direction: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        return jax.jvp(lambda x: _computed(function, order - 1, x, data), (x,), (direction,))

    known, slopes = jax.vmap(along, out_axes=(None, -1))(jnp.eye(len(x), dtype=x.dtype))
    return (*known, slopes[-1])
