"""What a function does, as a word that is the same in another process: its code, and the values that it reads."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Hashable
from pathlib import Path, PurePath
from types import FunctionType, ModuleType
from typing import Any

from ..numerics.digest import Digest

#: what is told by what is in it, by joblib's hash
TABLES = ("pandas", "polars", "pyarrow")


def code_of(function: Callable[..., Any]) -> str:
    """A digest of a function's code, defaults, what it closes over and the global names that it reads, all the way down.

    Numbers, words, arrays, tables, functions, classes and models count by their value, and so do modules outside the
    installation, by their file; a `Fit` by its parameters, which took other seconds each time; other objects by their class.

    >>> scale = 2.0
    >>> code_of(lambda i: scale * i) == code_of(lambda i: scale * i), code_of(lambda i: i) == code_of(lambda i: -i)
    (True, False)
    """
    return hashlib.blake2b(repr(_Lasting().of(function)).encode(), digest_size=16).hexdigest()


def name_of(function: Callable[..., Any]) -> str:
    """Its module and its name there."""
    bare = function.func if isinstance(function, functools.partial) else function
    named = bare if hasattr(bare, "__qualname__") else type(bare)
    return f"{named.__module__}.{named.__qualname__}"


class _Lasting(Digest):
    """Tokens without addresses: of what cannot be told by its value, the class."""

    def _made_of(self, value: Any) -> Hashable:
        if _name(type(value)) == "margaux.answers.fit.Fit":
            return ("fit", self.of(value.params))
        return super()._made_of(value)

    def _itself(self, value: Any) -> Hashable:
        if isinstance(value, ModuleType):
            return ("module", value.__name__, _source(value))
        if isinstance(value, PurePath):
            return ("path", str(value))
        if type(value).__module__.split(".")[0] in TABLES:
            import joblib

            return (_name(type(value)), joblib.hash(value))
        # An object that is called is told by what it does then; its class is a user's.
        called = vars(type(value)).get("__call__")
        return (_name(type(value)), self.of(called) if isinstance(called, FunctionType) else None)

    def _function(self, function: FunctionType) -> Hashable:
        return ("function", _name(function)) if _is_installed(function) else super()._function(function)

    def _class(self, cls: type) -> Hashable:
        return ("class", _name(cls)) if _is_installed(cls) else super()._class(cls)


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _is_installed(value: Any) -> bool:
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    return module is not None and "<locals>" not in value.__qualname__ and _lies_with_libraries(module)


def _lies_with_libraries(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ != "__main__" and not hasattr(module, "__path__")
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _source(module: ModuleType) -> str:
    """A digest of a user's module; nothing of one that is installed."""
    if _lies_with_libraries(module):
        return ""
    try:
        return hashlib.blake2b(inspect.getsource(module).encode(), digest_size=16).hexdigest()
    except (OSError, TypeError):
        return ""
