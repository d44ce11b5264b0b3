"""A model as the text of a file that `from_toml` reads."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import model_error
from .events import NAMES
from .individual import Bounded, Individual, LogitNormal, LogNormal, Normal, ProbitNormal
from .kinds import outputs_of
from .model_priors import written
from .model_structure import described
from .shapes import described as described_shape

if TYPE_CHECKING:
    from .estimator import NLME


_NAMES: dict[type, str] = {
    Normal: "normal", LogNormal: "lognormal", LogitNormal: "logitnormal", ProbitNormal: "probitnormal",
}  # fmt: skip
_HELD = {"coefficients": (), "variance": None, "occasion_variance": None}
_NO_SETTINGS = ("structural", "individual", "omega", "priors", "error", "log_likelihood", "censoring", "random_state", "verbose")


def to_toml(asked: NLME, data: str | None = None, title: str = "") -> str:
    """See `NLME.to_toml`."""
    if asked.log_likelihood is not None:
        raise ValueError("a model file holds a structural model with a residual error, and this one has log_likelihood=")
    parts = [f"title = {_value(title)}"] if title else []
    parts += [f"omega = {_value(asked.omega)}"] if asked.omega != "diagonal" else []
    tables: dict[str, dict[str, Any]] = {"data": ({} if data is None else {"file": data}) | _roles(asked)}
    structure = described(asked.structural)
    nested = {key: structure.pop(key) for key in list(structure) if isinstance(structure[key], dict)}
    tables |= {"structural": structure} | {f"structural.{key}": value for key, value in nested.items()}
    for name, one in (asked.individual or {}).items():
        tables[f"parameters.{_key(name)}"] = _parameter(name, one)
    tables["priors"] = written(asked.priors or {})
    for name, table in model_error.written(asked).items():
        tables[".".join(map(_key, name.split(".", 1)))] = table
    tables["settings"] = _settings(asked)
    for name, table in tables.items():
        if table:
            parts.append("\n".join(["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]))
    return "\n".join(parts).lstrip("\n") + "\n"


def _parameter(name: str, one: Individual) -> dict[str, Any]:
    kind = _NAMES.get(type(one))
    if kind is None:
        raise ValueError(
            f"individual[{name!r}] is a {type(one).__name__}, which no model file holds; there are {', '.join(_NAMES.values())}"
        )
    out: dict[str, Any] = {"distribution": kind}
    out |= {} if one.start is None else {"initial": one.start}
    out |= {"low": one.low, "high": one.high} if isinstance(one, Bounded) else {}
    out |= {key: getattr(one, key) for key in ("fixed", "occasion") if getattr(one, key)}
    out |= {} if one.random else {"random": False}
    out |= {"covariates": one.covariates} if one.covariates else {}
    out |= {"classes": int(one.classes)} if one.classes else {}
    out |= described_shape(one)
    held = {key: getattr(one, key) for key, none in _HELD.items() if getattr(one, key) != none}
    return out | {key: dict(value) if key == "coefficients" else value for key, value in held.items()}


def _settings(asked: NLME) -> dict[str, Any]:
    if not isinstance(asked.random_state, int | np.integer):
        raise ValueError(f"random_state={asked.random_state!r} must be a whole number to be written into a file")
    out: dict[str, Any] = {"seed": int(asked.random_state)}
    for name, one in inspect.signature(type(asked)).parameters.items():
        value = getattr(asked, name)
        if name in _NO_SETTINGS or value is None or value == one.default:
            continue
        if name == "pattern" and not isinstance(value, list | tuple):
            raise ValueError(
                f'pattern={value!r} is a kernel, which no model file holds; name its moves, as ("joint", "component")'
            )
        out[name] = np.dtype(value).name if name == "dtype" else value
    return out


def _roles(asked: NLME) -> dict[str, Any]:
    """The columns that a fitted model was fitted by; none of one that is not yet."""
    if not hasattr(asked, "data_"):
        return {}
    data = asked.data_
    out: dict[str, Any] = dict(data.roles)
    if data.columns:
        out["columns"] = {NAMES[role][0]: column for role, column in data.columns.items()}
    if data.lloq is None:
        return out
    if np.all(data.lloq == data.lloq[0]):
        return out | {"lloq": float(data.lloq[0])}
    if data.output is not None:
        limits = {name: data.lloq[data.output == place] for place, name in enumerate(outputs_of(asked.structural))}
        if all(np.all(np.isnan(one)) or np.all(one == one[0]) for one in limits.values()):
            return out | {"lloq": {name: float(one[0]) for name, one in limits.items() if np.isfinite(one[0])}}
    for column in data.frame.select_dtypes("number").columns:
        if np.array_equal(data.frame[column].to_numpy(float), data.lloq, equal_nan=True):
            return out | {"lloq": str(column)}
    raise ValueError("the limits of quantification are no column of numbers of the data, and cannot be named in a file")


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(key))} = {_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
