"""Arrays and a JSON header in one file, written atomically and read without pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

FORMAT = 1


def write(path: str | Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write to a neighbour and rename, so that a kill leaves the old file or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + f".{os.getpid()}.tmp")
    text = json.dumps({"format": FORMAT, **header})
    with open(temporary, "wb") as file:
        np.savez(file, **{"__header__": np.frombuffer(text.encode(), np.uint8)}, **arrays)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file by `write`.

    Raises:
        FileNotFoundError, ValueError: no such file, or one that is not ours.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(bytes(arrays.pop("__header__")).decode())
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a margaux file, or is damaged ({error}); delete it or pass another path") from error
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} has format {header.get('format')}, this version reads {FORMAT}; fit again")
    return header, arrays


def flatten(prefix: str, tree: PyTree) -> dict[str, np.ndarray]:
    """Leaves of a pytree as named arrays."""
    return {f"{prefix}/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def unflatten(prefix: str, template: PyTree, arrays: dict[str, np.ndarray]) -> PyTree:
    """The pytree of `flatten`, checked against a template of the same structure.

    Raises:
        ValueError: another structure, shape or dtype.
    """
    leaves, structure = jax.tree.flatten(template)
    out = []
    for i, leaf in enumerate(leaves):
        found = arrays.get(f"{prefix}/{i}")
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            was = "nothing" if found is None else f"{found.dtype}{found.shape}"
            raise ValueError(f"the file holds {was} where this fit has {leaf.dtype}{leaf.shape} ({prefix} {i})")
        out.append(found)
    return jax.tree.unflatten(structure, out)


def describe(tree: PyTree) -> Any:
    """The structure of a pytree of dicts, lists and tuples, as JSON; leaves are numbered.

    Raises:
        TypeError: another container, which JSON cannot name.
    """
    counter = iter(range(1 << 30))

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {"dict": {name: walk(node[name]) for name in sorted(node)}}
        if isinstance(node, list | tuple):
            return {type(node).__name__ if type(node) in (list, tuple) else "tuple": [walk(item) for item in node]}
        if len(jax.tree.leaves(node)) == 1 and jax.tree.structure(node) == jax.tree.structure(0):
            return next(counter)
        raise TypeError(f"cannot save parameters held in a {type(node).__name__}; use dicts, lists and tuples")

    return walk(tree)


def rebuild(structure: Any) -> PyTree:
    """The pytree of `describe`, with leaf numbers for leaves."""
    if isinstance(structure, int):
        return structure
    (kind, content), *_ = structure.items()
    if kind == "dict":
        return {name: rebuild(item) for name, item in content.items()}
    return (list if kind == "list" else tuple)(rebuild(item) for item in content)


def fill(template: PyTree, prefix: str, arrays: dict[str, np.ndarray]) -> PyTree:
    """A rebuilt pytree with its arrays in place of leaf numbers."""
    return jax.tree.map(lambda i: arrays[f"{prefix}/{i}"], template)
