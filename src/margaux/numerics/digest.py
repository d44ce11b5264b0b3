"""What a program depends on besides arrays, as a value: two objects with one token do the same.

Classes and functions of this library and of those it rests on are told by their names, and the versions stand for their code.
Those of a user are told by their code: bytecode, constants, defaults, what they close over, and the global names that they read,
all the way down. What cannot be told so stands for itself, and is not portable: it may change behind a program's back, and
programs that depend on it are shared with nobody.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
import types
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

#: libraries whose functions are told by their names, and what their version is filed under
TRUSTED = {
    "margaux": None, "jax": "jax", "jaxlib": "jaxlib", "equinox": "equinox", "jaxtyping": "jaxtyping", "numpy": "numpy",
    "scipy": "scipy", "optax": "optax", "numpyro": "numpyro", "blackjax": "blackjax", "diffrax": "diffrax", "lineax": "lineax",
    "optimistix": "optimistix", "flax": "flax", "tensorflow_probability": "tensorflow-probability", "math": None,
    "functools": None, "operator": None, "builtins": None, "typing": None, "collections": None, "abc": None,
    "dataclasses": None, "itertools": None, "enum": None,
}  # fmt: skip
#: objects that are looked into, at most: what has more inside is told by itself
LARGEST = 20_000
#: of a class, what is made anew with it, or says nothing of what it does
IDLE = frozenset({"__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__", "__firstlineno__",
                  "__static_attributes__", "__abstractmethods__", "_abc_impl", "__dataclass_fields__", "__dataclass_params__",
                  "__match_args__", "__slots__", "__hash__", "__eq__", "__repr__", "__parameters__", "__orig_bases__",
                  "__annotate__", "__annotate_func__", "__annotations_cache__", "__replace__", "__abstractvars__",
                  "__abstractclassvars__", "__setattr__", "__delattr__", "__slotnames__"})  # fmt: skip
PLAIN = (type(None), bool, int, str, bytes, complex, type(Ellipsis))


class Digest:
    """Tokens of objects; `portable` as long as all of them mean the same later, and in another process."""

    def __init__(self) -> None:
        self.portable = True
        self._open: dict[int, int] = {}
        self._known: dict[int, tuple[Any, Hashable]] = {}

    def of(self, value: Any) -> Hashable:
        """The token of an object."""
        if isinstance(value, PLAIN):
            return (type(value).__name__, value)
        if isinstance(value, float):
            return ("float", value.hex())
        if isinstance(value, np.dtype):
            return ("dtype", str(value))
        if isinstance(value, jax.ShapeDtypeStruct):
            return ("shape", value.shape, str(value.dtype), value.weak_type, repr(value.sharding))
        if eqx.is_array(value):
            return self._array(value)
        if id(value) in self._known:
            return self._known[id(value)][1]
        if len(self._known) > LARGEST:
            return self._itself(value)
        if id(value) in self._open:  # one that holds itself, as a recursive function does
            return ("again", self._open[id(value)])
        self._open[id(value)] = len(self._open)
        token = self._made_of(value)
        del self._open[id(value)]
        self._known[id(value)] = value, token
        return token

    def _array(self, value: Any) -> Hashable:
        """An array that is no argument: its numbers."""
        if isinstance(value, Tracer):
            return self._itself(value)
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return ("key", str(value.dtype), self._array(jax.random.key_data(value)))
        held = np.asarray(value)
        if held.dtype == object:
            return self._itself(value)
        return ("array", held.shape, str(held.dtype), hashlib.blake2b(np.ascontiguousarray(held).tobytes()).hexdigest())

    def _made_of(self, value: Any) -> Hashable:
        if isinstance(value, tuple | list | dict | set | frozenset) and getattr(value, "__dict__", None):
            return self._itself(value)
        if isinstance(value, tuple | list):
            return (self.of(type(value)), tuple(map(self.of, value)))
        if isinstance(value, dict):
            return (self.of(type(value)), tuple((self.of(name), self.of(item)) for name, item in value.items()))
        if isinstance(value, frozenset | set):
            return (self.of(type(value)), tuple(sorted(map(self.of, value), key=repr)))
        if isinstance(value, functools.partial):
            return ("partial", self.of(value.func), self.of(value.args), self.of(value.keywords))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return ("method", self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, jax.tree_util.PyTreeDef):
            return ("structure", str(value)) if "CustomNode" not in str(value) else self._itself(value)
        if isinstance(value, types.ModuleType):
            return ("module", value.__name__) if _trusted(value.__name__) else self._itself(value)
        if _goes_by_its_name(value):
            return (type(value).__name__, value.__module__, value.__qualname__)
        if dataclasses.is_dataclass(value):
            fields = [field.name for field in dataclasses.fields(value)]
            # What equinox copies of a class to its modules has two underlines.
            if any(name not in fields and not name.startswith("__") for name in getattr(value, "__dict__", ())):
                return self._itself(value)
            return (self.of(type(value)), tuple((name, self.of(getattr(value, name, None))) for name in fields))
        if _trusted(type(value).__module__) and hasattr(value, "__wrapped__"):  # jax's transformations of functions
            return (self.of(type(value)), self.of(dict(vars(value))))
        return self._itself(value)

    def _itself(self, value: Any) -> Hashable:
        self.portable = False
        try:
            hash(value)
        except TypeError:
            return _Same(value)
        return ("itself", type(value), value)

    def _function(self, function: types.FunctionType) -> Hashable:
        if _goes_by_its_name(function):
            return ("function", function.__module__, function.__qualname__)
        if not all(map(_trusted, _named_by(function.__code__, "IMPORT_NAME"))):
            self.portable = False
        cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
        read = ((name, function.__globals__[name]) for name in _named_by(function.__code__, "LOAD_GLOBAL", "LOAD_NAME")
                if name in function.__globals__)  # fmt: skip
        names = tuple((name, self.of(value)) for name, value in read)
        given = function.__defaults__, function.__kwdefaults__
        own = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
        return ("code", self._code(function.__code__), self.of(given), self.of(own), cells, names)

    def _cell(self, cell: types.CellType) -> Hashable:
        try:
            return self.of(cell.cell_contents)
        except ValueError:
            return "empty"

    def _code(self, code: types.CodeType) -> Hashable:
        constants = tuple(self._code(part) if isinstance(part, types.CodeType) else self.of(part) for part in code.co_consts)
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        return (code.co_code, names, code.co_flags, code.co_argcount, code.co_exceptiontable, constants)

    def _class(self, cls: type) -> Hashable:
        if _goes_by_its_name(cls):
            return ("class", cls.__module__, cls.__qualname__)
        own = sorted((name, value) for name, value in vars(cls).items() if name not in IDLE)
        return ("class", cls.__qualname__, self.of(cls.__bases__), tuple((name, self._attribute(value)) for name, value in own))

    def _attribute(self, value: Any) -> Hashable:
        """Of a class: what stands around a function is told by that function, anything else as it is."""
        inner: Any = None
        if isinstance(value, staticmethod | classmethod):
            inner = value.__func__
        elif isinstance(value, property):
            inner = value.fget
        elif isinstance(value, functools.cached_property):
            inner = value.func
        elif _trusted(type(value).__module__) and isinstance(getattr(value, "method", None), types.FunctionType):  # equinox's
            inner = value.method
        return self.of(value) if inner is None else (type(value).__name__, self.of(inner))


class _Same:
    """Equal to what holds the same object, which it keeps alive."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value


def _trusted(module: str) -> bool:
    return module.split(".")[0] in TRUSTED


def _goes_by_its_name(value: Any) -> bool:
    """Whether it is what a trusted module has under its name: a function that `jax.vmap` gives has the name of another."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not _trusted(module):
        return False
    there: Any = sys.modules.get(module)
    for part in name.split("."):
        there = getattr(there, part, None)
    return there is value or getattr(there, "__wrapped__", None) is value


def _named_by(code: types.CodeType, *instructions: str) -> list[str]:
    """Names that code, and the code within it, uses by some instructions."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in instructions}
    inner = (name for part in code.co_consts if isinstance(part, types.CodeType) for name in _named_by(part, *instructions))
    return sorted(names.union(inner))


@functools.cache
def surroundings() -> str:
    """A digest of what stands for the code of trusted functions, and of the machine that programs are compiled for."""
    package = Path(__file__).resolve().parents[1]
    parts = hashlib.blake2b()
    for path in sorted(package.rglob("*.py")):
        parts.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    for name in filter(None, TRUSTED.values()):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.update(f"{name} {importlib.metadata.version(name)}".encode())
    parts.update(repr((sys.version, platform.platform(), _processor(), os.environ.get("XLA_FLAGS"))).encode())
    return parts.hexdigest()


def _processor() -> str:
    """Its model and what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
