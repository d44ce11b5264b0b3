"""Sums over many observations, a slice at a time, whose gradient holds the activations of one slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


def sum_of_slices(function: Callable[[PyTree, PyTree, PyTree], Array], count: int) -> Callable[[PyTree, PyTree, PyTree], Array]:
    """`function(params, shared, rows)`, a sum over rows, as the sum over `count` slices of them.

    Only `params` have a gradient. It is taken along with the value, slice by slice.

    >>> function = lambda p, shared, x: jnp.sum((p - shared) * x**2)
    >>> whole, sliced = function, sum_of_slices(function, 3)
    >>> x = jnp.arange(6.0)
    >>> float(jax.grad(whole)(2.0, 1.0, x)), float(jax.grad(sliced)(2.0, 1.0, x))
    (55.0, 55.0)
    """
    if count == 1:
        return function

    def parts(rows: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf.reshape((count, leaf.shape[0] // count) + leaf.shape[1:]), rows)

    @jax.custom_vjp
    def total(params: PyTree, shared: PyTree, rows: PyTree) -> Array:
        def add(sum, part):
            return (sum + function(params, shared, part), None)

        zero = jnp.zeros((), jax.eval_shape(function, params, shared, jax.tree.map(lambda leaf: leaf[0], parts(rows))).dtype)
        return jax.lax.scan(add, zero, parts(rows))[0]

    def forward(params: PyTree, shared: PyTree, rows: PyTree) -> tuple[Array, PyTree]:
        def add(sums: Any, part: PyTree) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, jax.value_and_grad(function)(params, shared, part)), None

        first = jax.tree.map(lambda leaf: leaf[0], parts(rows))
        struct = jax.eval_shape(jax.value_and_grad(function), params, shared, first)
        return jax.lax.scan(add, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), struct), parts(rows))[0]

    def backward(gradient: PyTree, g: Array) -> tuple[PyTree, None, None]:
        return jax.tree.map(lambda leaf: g * leaf, gradient), None, None

    total.defvjp(forward, backward)
    return total
