"""What tells one fit from another: arrays by a hash of all their bytes, settings by name and value, functions by their jaxpr.

Everything here comes out the same in another process on another machine: no address and no order of a set is in it.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xxhash
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import PyTree

from ..numerics.arrays import is_key
from ..numerics.naming import path_name
from .rows import parts
from .share import Share, everyones

#: entries up to which an array is told by its values
FEW = 8

_ADDRESS = re.compile(r" ?(at |id=)?0x[0-9a-f]+")


def of_array(leaf: Any) -> str:
    """Type and shape of an array with its values, or where they are many with a hash of all of them.

    It is read part by part, so that a memmap is never in memory as a whole.
    """
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    # On a CPU NumPy reads an array of jax where it is; elsewhere the parts are fetched one by one.
    there = isinstance(leaf, jax.Array) and any(device.platform != "cpu" for device in leaf.devices())
    leaf = leaf if there or isinstance(leaf, np.ndarray) else np.asarray(leaf)
    kind = f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    if leaf.dtype.hasobject:
        return kind
    if leaf.size <= FEW:
        return f"{kind} {np.asarray(leaf).tolist()!r}" if leaf.shape else repr(np.asarray(leaf).item())
    code = xxhash.xxh3_128()
    for part in parts(leaf):
        code.update(np.ascontiguousarray(part).view(np.uint8).data)
    return f"{kind} #{code.hexdigest()}"


def of_data(tree: PyTree, name: str) -> dict[str, str]:
    """Every leaf of a pytree of arrays, by name."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {".".join(filter(None, (name, path_name(path)))): of_array(leaf) for path, leaf in leaves}


def of_units(tree: PyTree, share: Share | None) -> dict[str, str]:
    """Data unit by unit, so that the same units in the same order are told to be the same however they are shared."""
    first, n = (0, None) if share is None else (share.first, share.n)

    def one(leaf: Any) -> str:
        leaf = jax.random.key_data(leaf) if is_key(leaf) else leaf
        total, unit = 0, first
        for part in parts(leaf):
            rows = np.ascontiguousarray(part)
            hashes = [xxhash.xxh3_64_intdigest(row.tobytes(), seed=unit + i) for i, row in enumerate(rows)]
            total = (total + sum(hashes)) % 2**64
            unit += len(part)
        # Sums modulo 2^64 do not depend on who has which units.
        every = (
            [total]
            if share is None
            else map(int, everyones(np.array([total], np.uint64).view(np.uint32)).view(np.uint64).ravel())
        )
        shape = ",".join(map(str, (n or leaf.shape[0], *leaf.shape[1:])))
        return f"{leaf.dtype}[{shape}] #{sum(every) % 2**64:x}"

    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {".".join(filter(None, ("data", path_name(path)))): one(leaf) for path, leaf in leaves}


def of_settings(node: Any, name: str) -> dict[str, str]:
    """What an object is made of, field by field: its type under its own name, numbers, words and arrays under theirs.

    Functions and objects of unknown kinds count by their type alone: what they do is in the jaxpr that they are called in.
    """
    if isinstance(node, np.ndarray | np.generic | jax.Array):
        return {name: of_array(node)}
    if node is None or isinstance(node, bool | int | float | complex | str | bytes):
        return {name: repr(node)}
    if isinstance(node, np.dtype | enum.Enum):
        return {name: str(node)}
    if isinstance(node, type):
        return {name: node.__name__}
    inside: dict[str, Any] = {}
    if isinstance(node, dict):
        inside = {str(key): value for key, value in node.items()}
    elif isinstance(node, tuple) and hasattr(node, "_fields"):
        inside = dict(zip(node._fields, node, strict=True))  # type: ignore[attr-defined]
    elif isinstance(node, list | tuple):
        inside = {str(i): value for i, value in enumerate(node)}
    elif isinstance(node, set | frozenset):
        return {name: repr(sorted(map(str, node)))}
    elif dataclasses.is_dataclass(node):
        inside = {field.name: getattr(node, field.name, None) for field in dataclasses.fields(node)}
    else:
        leaves = jax.tree_util.tree_flatten_with_path(node)[0]
        inside = {path_name(path): leaf for path, leaf in leaves if leaf is not node}
    out = {name: type(node).__name__}
    for key, value in inside.items():
        out |= of_settings(value, f"{name}.{key}")
    return out


def of_function(function: Callable[..., Any], *args: Any) -> str:
    """Hash of the jaxpr of a function at arguments of these shapes, with the constants it closes over by their values.

    Arrays among the arguments may be `jax.ShapeDtypeStruct`; modules are traced in their arrays, and their values do not count.
    """
    jaxpr, _, _ = eqx.filter_make_jaxpr(function)(*args)
    code = xxhash.xxh3_128()
    for line in _lines(jaxpr):
        code.update(line.encode())
        code.update(b"\n")
    return f"#{code.hexdigest()}"


def _lines(closed: Any) -> list[str]:
    """A jaxpr equation by equation, its variables numbered as they come."""
    jaxpr, consts = (closed.jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else (closed, ())
    numbers: dict[Any, int] = {}

    def atom(x: Any) -> str:
        if isinstance(x, Literal):
            return f"{of_array(x.val)}:{x.aval}"
        return f"v{numbers.setdefault(x, len(numbers))}:{x.aval}"

    def names(atoms):
        return " ".join(map(atom, atoms))

    lines = [f"constant {atom(v)} = {of_array(value)}" for v, value in zip(jaxpr.constvars, consts, strict=False)]
    lines.append(f"inputs {names(jaxpr.invars)}")
    for eqn in jaxpr.eqns:
        lines.append(f"{names(eqn.outvars)} = {eqn.primitive.name} {names(eqn.invars)}")
        # What a jitted function is called changes nothing.
        for name in sorted(eqn.params.keys() - {"name"}):
            lines += _parameter(name, eqn.params[name])
    return [*lines, f"outputs {names(jaxpr.outvars)}"]


def _parameter(name: str, value: Any) -> list[str]:
    """A parameter of an equation. Functions, such as the rules of custom derivatives, have run where they count."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return [f"{name} {{", *_lines(value), "}"]
    if isinstance(value, tuple | list):
        return [f"{name} (", *(line for item in value for line in _parameter(name, item)), ")"]
    if isinstance(value, np.ndarray | jax.Array):
        return [f"{name} {of_array(value)}"]
    if callable(value) or hasattr(value, "call_wrapped"):
        return [f"{name} function"]
    return [f"{name} {_ADDRESS.sub('', str(value))}"]
