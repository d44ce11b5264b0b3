"""Residual errors of several outputs, each with parameters of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .autocorrelated import AR1
from .error import ResidualError, as_error
from .kinds import OUTPUT, label, selected


@dataclasses.dataclass(frozen=True)
class ErrorByOutput:
    """A residual error for each of several outputs. Parameters are those of each, with its label: `a[cp]`.

    Args:
        outputs: labels. errors: of each.
    """

    outputs: tuple[str, ...]
    errors: tuple[ResidualError, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{name}[{output}]" for output, one in zip(self.outputs, self.errors, strict=True) for name in one.names)

    @property
    def closed(self) -> bool:
        """Whether each error has one parameter, a scale with a closed estimate."""
        return all(one.closed for one in self.errors)

    @property
    def held(self) -> dict[str, float]:
        """The parameters that are held, and their values."""
        pairs = zip(self.outputs, self.errors, strict=True)
        return {f"{name}[{output}]": value for output, one in pairs for name, value in one.held.items()}

    @property
    def multipliers(self) -> dict[str, tuple[int, ...]]:
        """As of one error, `residual[cp]` of the output cp."""
        firsts = np.cumsum([0, *(len(one.names) for one in self.errors)]).tolist()
        each = zip(self.outputs, self.errors, firsts, strict=False)
        return {f"{name}[{output}]": tuple(first + k for k in own)
                for output, one, first in each for name, own in one.multipliers.items()}  # fmt: skip

    def without_numbers(self) -> ErrorByOutput:
        return dataclasses.replace(self, errors=tuple(one.without_numbers() for one in self.errors))

    def at(self, rows: Mapping[str, Any]) -> OfRows:
        return OfRows(self.errors, rows[OUTPUT])

    def of_each(self, values: Array, rows: Mapping[str, Any]) -> Array:
        """Sums of values of rows, by output."""
        return jnp.stack([jnp.sum(jnp.where(rows[OUTPUT] == place, values, 0.0)) for place in range(len(self.errors))])

    def parts(self, rows: Mapping[str, Any]) -> list[tuple[ResidualError, np.ndarray]]:
        return [(one, np.asarray(rows[OUTPUT]) == place) for place, one in enumerate(self.errors)]


@dataclasses.dataclass(frozen=True)
class OfRows:
    """The residual error of rows, each by that of its output. Args: place: of each row's output."""

    errors: tuple[ResidualError, ...]
    place: Any

    def sd(self, error: Array, f: Array) -> Array:
        return self._of(error, lambda one, own: one.sd(own, f))

    def covariance(self, error: Array, f: Array) -> Array:
        return jnp.diag(self.sd(error, f) ** 2)

    def unscaled(self, f: Array) -> Array:
        return self._of(jnp.ones(sum(len(one.names) for one in self.errors), f.dtype), lambda one, own: one.sd(own, f))

    def transformed(self, y: Array) -> Array:
        return selected([one.transformed(y) for one in self.errors], self.place)

    def log_density(self, error: Array, f: Array, y: Array) -> Array:
        return self._of(error, lambda one, own: one.log_density(own, f, y))

    def noisy(self, error: Array, f: Array, noise: Array) -> Array:
        return self._of(error, lambda one, own: one.noisy(own, f, noise))

    def _of(self, error: Array, each: Callable[[ResidualError, Array], Array]) -> Array:
        ends = np.cumsum([len(one.names) for one in self.errors])
        own = [error[end - len(one.names) : end] for one, end in zip(self.errors, ends, strict=True)]
        return selected([each(one, part) for one, part in zip(self.errors, own, strict=True)], self.place)


def error_of(error: Any, outputs: tuple[str, ...]) -> ResidualError | ErrorByOutput:
    """The residual error of a model with these outputs; without any, that of one.

    Args:
        error: an error or its name, that each output has with parameters of its own; or one for each output by its label.

    Raises:
        ValueError: an unknown name, an output without an error or an error without an output, or a value that would be held
            for all of them.
    """
    if not isinstance(error, Mapping):
        one = as_error(error)
        if not outputs:
            return one
        _refuse_correlated([one])
        if one.held:
            raise ValueError(
                f"error={one!r} would be held for each of the outputs {', '.join(outputs)}; say of which, as "
                f"error={{{outputs[0]!r}: ..., {outputs[1]!r}: ...}}"
            )
        return ErrorByOutput(outputs, (one,) * len(outputs))
    if not outputs:
        raise ValueError(
            "error= has an error for each output, and the structural model has one output; give one error, or a model with "
            "several outputs, as ode(..., output={...}) or outputs({...})"
        )
    given = {label(key): as_error(one) for key, one in error.items()}
    _refuse_correlated(list(given.values()))
    if len(given) < len(error) or set(given) != set(outputs):
        raise ValueError(
            f"error= is of the outputs {', '.join(map(label, error))}, and the structural model has {', '.join(outputs)}; give "
            "each its error"
        )
    return ErrorByOutput(outputs, tuple(given[output] for output in outputs))


def _refuse_correlated(errors: list[ResidualError]) -> None:
    if any(isinstance(one, AR1) for one in errors):
        raise ValueError("AR1 is for a model with one output: whose residuals are whose neighbours is not said of several")
