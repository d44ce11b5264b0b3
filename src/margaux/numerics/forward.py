"""Derivatives of functions whose loops are of unknown length, by forward mode through them, however they are mapped.

A function is mapped first and differentiated then, in whatever order that was asked for: what it maps in a way of its own, as
`margaux.numerics.lanes` does, is so mapped in its derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from .lanes import mapped

#: (x, data) -> values
Function = Callable[[Any, Any], Any]


def transposable(function: Callable[[Array, Any], Any], bent: bool = True) -> Callable[[Array, Any], Any]:
    """A function of (x (k,), data) whose derivatives in x, of any order, are by forward mode through it, and can be transposed:
    a loop of unknown length cannot. For few x. Nothing is differentiated in the data.

    Args:
        bent: whether it has second derivatives. Those of a function of it are otherwise Gauss and Newton's, by its first.
    """

    @jax.custom_jvp
    def of(x: Array, data: Any) -> Any:
        return function(x, data)

    @of.defjvp
    def _(primals, tangents):
        x, data = primals
        both = _with_jacobian(function)
        value, jacobian = transposable(both)(x, data) if bent else both(jax.lax.stop_gradient(x), data)
        # Where there is no value there is no slope: NaN would spread, by zero times NaN, to what does not depend on it.
        jacobian = jax.tree.map(lambda each: jnp.where(jnp.isfinite(each), each, 0.0), jacobian)
        if not bent:
            value = value + jacobian @ (x - jax.lax.stop_gradient(x))
        return value, jax.tree.map(lambda each: each @ tangents[0], jacobian)

    return of


def pushed(function: Function) -> Callable[[Array, Array, Any], tuple[Any, Any]]:
    """(x, directions (K, ...) of it, data) -> values, and their derivatives (K, ...) in these."""

    def plain(x: Array, t: Array, data: Any) -> tuple[Any, Any]:
        def push(t: Array) -> Any:
            return jax.jvp(lambda x: function(x, data), (x,), (t,))

        return jax.vmap(push, out_axes=(None, 0))(t)

    of = custom_vmap(plain)

    @of.def_vmap
    def _(size: int, batched: Any, x: Array, t: Array, data: Any) -> tuple[Any, Any]:
        of_x, of_t, of_data = batched
        if of_x or any(jax.tree.leaves(of_data)):
            mapping = jax.vmap(function, (0, jax.tree.map(lambda flag: 0 if flag else None, of_data)))
            value, slopes = pushed(mapping)(mapped(size, x, of_x), jnp.moveaxis(mapped(size, t, of_t), 0, 1), data)
            slopes = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), slopes)
            return (value, slopes), (_flags(value, True), _flags(slopes, True))
        if not of_t:
            value, slopes = plain(x, t, data)
            return (value, slopes), (_flags(value, False), _flags(slopes, False))
        # Directions of the same x are directions side by side: it is solved once.
        value, slopes = of(x, t.reshape(-1, *x.shape), data)
        slopes = jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), slopes)
        return (value, slopes), (_flags(value, False), _flags(slopes, True))

    return of


def _flags(tree: Any, mapped: bool) -> Any:
    """Of all leaves, whether they are mapped."""
    return jax.tree.map(lambda _: mapped, tree)


def _with_jacobian(function: Callable[[Array, Any], Any]) -> Callable[[Array, Any], tuple[Any, Any]]:
    def both(x: Array, data: Any) -> tuple[Any, Any]:
        value, slopes = pushed(function)(x, jnp.eye(len(x), dtype=x.dtype), data)
        return value, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), slopes)

    return both
