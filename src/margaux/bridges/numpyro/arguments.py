"""The arguments of a NumPyro model: which of them run over units, and how the rest is kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ...numerics.naming import path_name
from .checks import Refusal

#: what a leaf of the arguments is: an array over units, another array, a count of units, or anything else
UNITS, WHOLE, COUNT, FIXED = "units", "whole", "count", "fixed"


class Arguments(eqx.Module):
    """Arguments taken apart: arrays over units (the data of a fit), other arrays, and what is no array."""

    names: tuple[str, ...] = eqx.field(static=True)
    kinds: tuple[str, ...] = eqx.field(static=True)
    fixed: tuple[Any, ...] = eqx.field(static=True)
    whole: tuple[Any, ...]
    structure: PyTree = eqx.field(static=True)

    def put_together(self, units: dict[str, Array], count: int) -> tuple[tuple, dict[str, Any]]:
        """Positional and named arguments of a call with the data of `count` units."""
        whole, fixed = iter(self.whole), iter(self.fixed)
        take = {
            UNITS: lambda name: units[name],
            WHOLE: lambda name: next(whole),
            COUNT: lambda name: count,
            FIXED: lambda name: next(fixed),
        }
        leaves = [take[kind](name) for name, kind in zip(self.names, self.kinds, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    def listed(self, kind: str) -> list[str]:
        """Names of the leaves of a kind."""
        return [name for name, k in zip(self.names, self.kinds, strict=True) if k == kind]


def taken_apart(
    leaves: list[tuple[str, Any]], structure: PyTree, chosen: Callable[[str, Any], str]
) -> tuple[Arguments, dict[str, Any]]:
    """`Arguments` by a rule that names the kind of each leaf, and the data over units."""
    kinds = [chosen(name, leaf) for name, leaf in leaves]

    def pick(kind):
        return tuple(leaf for (_, leaf), k in zip(leaves, kinds, strict=True) if k == kind)

    names = tuple(name for name, _ in leaves)
    data = {name: leaf for (name, leaf), kind in zip(leaves, kinds, strict=True) if kind == UNITS}
    return Arguments(names, tuple(kinds), pick(FIXED), pick(WHOLE), structure), data


def named_leaves(model: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> tuple[list[tuple[str, Any]], Any]:
    """Leaves of the arguments, named as the model names them, and their structure. What looks like an array becomes one.

    Raises:
        Refusal: a table, or an array of something else than numbers.
    """
    args, kwargs = jax.tree.map(_plain, (args, kwargs))
    paths, structure = jax.tree_util.tree_flatten_with_path((args, kwargs))
    names = [p.name for p in parameters(model).values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    out = []
    for path, leaf in paths:
        side, first, *rest = path
        position = first.idx if side.idx == 0 else None
        head = first.key if position is None else names[position] if position < len(names) else f"argument {position}"
        name = ".".join([str(head), *([path_name(rest)] if rest else [])])
        if isinstance(leaf, np.ndarray) and not is_array(leaf):
            raise Refusal(f'argument "{name}" is an array of {leaf.dtype}; pass numbers, such as codes by pandas.factorize')
        out.append((name, leaf))
    return out, structure


def parameters(model: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """What a model says that it takes; nothing where it does not say."""
    try:
        return inspect.signature(model).parameters
    except (TypeError, ValueError):
        return {}


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array of numbers, of at least one axis."""
    return isinstance(leaf, np.ndarray | jax.Array) and leaf.ndim > 0 and _numeric(leaf)


def check_unit_args(unit_args: Any, leaves: list[tuple[str, Any]]) -> tuple[str, ...]:
    """Names of arguments that run over units, as given by the caller.

    Raises:
        ValueError: a name that is no argument.
    """
    chosen = (unit_args,) if isinstance(unit_args, str) else tuple(unit_args)
    heads = {name.split(".")[0] for name, _ in leaves} | {name for name, _ in leaves}
    for name in chosen:
        if name not in heads:
            raise ValueError(f'unit_args names "{name}", which is no argument given to the model; they are {sorted(heads)}')
    return chosen


def rows(data: dict[str, PyTree], ids: np.ndarray) -> dict[str, PyTree]:
    """Data of some units."""
    return {name: leaf[ids] for name, leaf in data.items()}


def _plain(leaf: object) -> Any:
    """Series and the like as arrays, arrays without an axis as numbers; others as they are."""
    if hasattr(leaf, "columns"):
        raise Refusal(
            f"an argument is a {type(leaf).__name__}, which JAX cannot slice; pass its columns, each as an argument or in a "
            'dictionary such as {"y": frame["y"].to_numpy()}'
        )
    if not hasattr(leaf, "__array__"):
        return leaf
    array = leaf if isinstance(leaf, np.ndarray | jax.Array) else np.asarray(leaf)
    return array.item() if array.ndim == 0 and _numeric(array) else array


def _numeric(array: np.ndarray | jax.Array) -> bool:
    return jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool
