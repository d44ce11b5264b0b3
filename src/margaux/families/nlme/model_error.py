"""The residual errors of a model file, there and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .autocorrelated import AR1
from .by_output import error_of
from .censoring import METHODS
from .error import ERRORS, ResidualError, as_error
from .kinds import label
from .model_keys import HELD, SWITCH, TABLE, TEXT, Source

if TYPE_CHECKING:
    from .estimator import NLME

#: of one output, or of each
ONE = {"model": TEXT, "fixed": HELD, "random": SWITCH, "correlated": SWITCH}
CENSORING = {"censoring": TEXT}


def read(table: Mapping[str, Any], outputs: Sequence[str], source: Source) -> ResidualError | dict[str, ResidualError]:
    """The errors that the table of a file says: one, or by output, `[error.1]`.

    Raises:
        ValueError: what is wrong, with key and line.
    """
    own = {key: value for key, value in table.items() if isinstance(value, Mapping) and label(key) in outputs}
    if not own:
        source.check(table, ["error"], ONE | CENSORING)
        found: Any = _one(table, ["error"], source)
    else:
        source.check(table, ["error"], dict.fromkeys(own, TABLE) | CENSORING)
        found = {label(key): _one(value, ["error", key], source) for key, value in own.items()}
    try:
        error_of(found, tuple(outputs))
    except ValueError as problem:
        raise source.problem(["error"], str(problem)) from problem
    return found


def censoring(table: Mapping[str, Any], source: Source) -> str:
    """How limits of quantification count."""
    return source.one_of(table.get("censoring", METHODS[0]), ["error", "censoring"], METHODS)


def _one(table: Mapping[str, Any], keys: list[str], source: Source) -> ResidualError:
    source.check(table, keys, ONE | (CENSORING if keys == ["error"] else {}))
    name = source.one_of(table.get("model", "constant"), [*keys, "model"], ERRORS)
    given: dict[str, Any] = {"fixed": table.get("fixed"), "random": table.get("random", False)}
    try:
        return AR1(name, **given) if table.get("correlated") else dataclasses.replace(ERRORS[name], **given)
    except ValueError as problem:
        raise source.problem([*keys, "fixed"], str(problem)) from problem


def written(asked: NLME) -> dict[str, dict[str, Any]]:
    """The tables of a model's errors, by name.

    Raises:
        ValueError: an error that no file could name.
    """
    censored = {} if asked.censoring == METHODS[0] else {"censoring": asked.censoring}
    if not isinstance(asked.error, Mapping):
        return {"error": _described(as_error(asked.error)) | censored}
    return {"error": censored} | {f"error.{label(key)}": _described(as_error(one)) for key, one in asked.error.items()}


def _described(error: ResidualError) -> dict[str, Any]:
    one: Any = error.of if isinstance(error, AR1) else error
    free = {name: each for name, each in ERRORS.items() if type(each) is type(one) and _form(each) == _form(one)}
    if not free:
        raise ValueError(f"error={error!r} is no error of margaux.nlme, which a model file could name")
    out: dict[str, Any] = {"model": next(iter(free))}
    out |= {"correlated": True} if isinstance(error, AR1) else {}
    out |= {"random": True} if error.random else {}
    return out | ({"fixed": error.held} if error.held else {})


def _form(error: Any) -> Any:
    return getattr(error, "form", 0)
