"""Penalties and spaces in a file: the library's own by their names and fields, others by a name that asks for them again."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..engine import fingerprint
from ..numerics.precision import precision, settle
from ..problem.penalty import AbstractPenalty
from ..problem.space import AbstractSpace

_PACKAGE = __name__.partition(".")[0]


def described(part: AbstractPenalty | AbstractSpace) -> dict[str, Any]:
    """A penalty or a space as JSON: what it is rebuilt from (None for classes of one's own), and what it is compared by."""
    return {"kind": type(part).__name__, "made": _written(part), "settings": fingerprint.of_settings(part, type(part).__name__)}


def restored(name: str, held: dict[str, Any] | None, given: Any, dtype: np.dtype, path: str | Path) -> Any:
    """The part of a file by `described`, or the given one if it is the same or the file has none.

    Args:
        name: "penalty" or "space". held: what the file has, if anything. given: None to ask the file.

    Raises:
        ValueError: the file does not hold it and none is given, or another one is.
    """
    if given is None:
        if held is None:
            raise ValueError(f"{path} does not hold the {name} of its fit; pass {name}= as at the fit")
        if held["made"] is None:
            raise ValueError(f"{path} cannot hold the {name} {held['kind']}, which is not of margaux; pass {name}= as at the fit")
        return _read(held["made"])
    with precision(dtype):
        here = described(settle(given, dtype))["settings"]
    there = here if held is None else held["settings"]
    for key in {**there, **here}:
        if there.get(key) != here.get(key):
            raise ValueError(
                f"{name}= is not that of the fit in {path}: {key} is {there.get(key, 'nothing')} there and "
                f"{here.get(key, 'nothing')} here; leave it out, or fit again"
            )
    return given


def _written(node: Any) -> Any:
    """None where something in it has no name in the file."""
    if isinstance(node, np.ndarray | np.generic | jax.Array):
        array = np.asarray(node)
        return {"array": array.tolist(), "dtype": str(array.dtype)}
    if node is None or isinstance(node, bool | int | float | str):
        return {"value": node}
    named, kind = {}, type(node).__name__
    if type(node) is dict and all(isinstance(key, str) for key in node):
        named = node
    elif type(node) in (list, tuple):
        named = {str(i): item for i, item in enumerate(node)}
    elif isinstance(node, AbstractPenalty | AbstractSpace) and type(node).__module__.startswith(f"{_PACKAGE}."):
        named = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
        kind = f"{type(node).__module__}:{kind}"
    else:
        return None
    inside = {key: _written(value) for key, value in named.items()}
    return None if None in inside.values() else {"kind": kind, "inside": inside}


def _read(made: Any) -> Any:
    if "array" in made:
        return np.asarray(made["array"], made["dtype"])
    if "value" in made:
        return made["value"]
    inside = {key: _read(value) for key, value in made["inside"].items()}
    if made["kind"] == "dict":
        return inside
    if made["kind"] in ("list", "tuple"):
        return (list if made["kind"] == "list" else tuple)(inside.values())
    module, _, name = made["kind"].partition(":")
    kind = getattr(importlib.import_module(module), name) if module.startswith(f"{_PACKAGE}.") else None
    if not (isinstance(kind, type) and issubclass(kind, AbstractPenalty | AbstractSpace)):
        raise ValueError(f"{made['kind']} is no penalty or space of margaux")
    # As pytrees are put together: its arguments have been checked when it was first made.
    out = object.__new__(kind)
    for field, value in inside.items():
        object.__setattr__(out, field, value)
    return out
