"""Where a family keeps its parts: beside its classes, under names that all families share."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


def part_of(subject: object, part: str) -> ModuleType | None:
    """The module of that name ("page", "arviz") in the folder of the nearest class of a subject that has one, or None."""
    for one in type(subject).__mro__:
        folder = sys.modules.get(one.__module__.rpartition(".")[0])
        if folder is not None and hasattr(folder, "__path__"):
            name = f"{folder.__name__}.{part}"
            if importlib.util.find_spec(name) is not None:
                return importlib.import_module(name)
    return None


def check_fitted(estimator: object) -> None:
    """Raises: sklearn.exceptions.NotFittedError: `fit` has not been called."""
    if not hasattr(estimator, "result_"):
        from sklearn.exceptions import NotFittedError

        raise NotFittedError(f"this {type(estimator).__name__} is not fitted yet; call fit first")
