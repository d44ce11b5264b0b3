"""Residual error: how an observation scatters around the structural model's prediction f."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array

#: the individual parameter that multiplies an error, of which each subject has its own
MULTIPLIER = "residual"


@dataclasses.dataclass(frozen=True)
class ResidualError(abc.ABC):
    r"""y = f + g(f) epsilon, with epsilon standard normal; of one parameter where g is a times a known function.

    Args:
        fixed: values that parameters are held at instead of being estimated: a number where there is one parameter, else by
            name, as `Combined(fixed={"b": 0.1})`.
        random: whether each subject multiplies g by a factor of its own, $w_i=e^{\eta_i}$ with $\eta_i\sim N(0,\omega^2)$ ("eta
            on RUV" of NONMEM): an individual parameter `residual`, of an output `residual[cp]`, whose variance is
            `omega2_residual`. It can be given as others are, as {"residual": LogNormal(1.0, fixed=True, covariates="Site")}.

    Raises:
        ValueError: no such parameter, a value that is not positive, or random=True of an error that is not multiplied with the
            parameters that are its `scales`.

    >>> Combined(random=True).multipliers
    {'residual': (0, 1)}

    References: Karlsson, Jonsson, Wiltse and Wade, J. Pharmacokinet. Biopharm. 26 (1998), 207-246 (of `random`).
    """

    fixed: float | Mapping[str, float] | tuple[tuple[str, float], ...] | None = dataclasses.field(default=None, kw_only=True)
    random: bool = dataclasses.field(default=False, kw_only=True)

    #: names of the error parameters, and whether the only one is a scale with a closed estimate
    names = ("a",)
    closed = True
    #: whether observations and predictions must be positive
    positive = False
    #: whether the error vanishes with the prediction
    relative = False

    @property
    def scales(self) -> tuple[int, ...]:
        """Places of the parameters with which g is multiplied: of all by default."""
        return tuple(range(len(self.names)))

    @property
    def multipliers(self) -> dict[str, tuple[int, ...]]:
        """Individual parameters that multiply g, and the places of the parameters by which they do."""
        return {MULTIPLIER: self.scales} if self.random else {}

    def _check_scales(self) -> None:
        parameters, f = np.full(len(self.names), 0.7), np.array([0.3, 2.0])
        doubled = parameters * np.where(np.isin(np.arange(len(parameters)), self.scales), 2.0, 1.0)
        # Errors are made while programs are traced, too.
        with jax.ensure_compile_time_eval():
            sizes = [np.asarray(self.sd(jnp.asarray(own), jnp.asarray(f)), float) for own in (parameters, doubled)]
        if not np.allclose(sizes[1], 2 * sizes[0], rtol=1e-4):
            raise ValueError(
                f"{type(self).__name__} does not double with its parameters {', '.join(self.names[k] for k in self.scales)}, "
                "which random=True multiplies; say by `scales` which it does"
            )

    def __post_init__(self) -> None:
        # Hashable, as what programs are found by.
        if isinstance(self.fixed, Mapping):
            object.__setattr__(self, "fixed", tuple(self.fixed.items()))
        kind = type(self).__name__
        if isinstance(self.fixed, int | float) and len(self.names) > 1:
            names = ", ".join(self.names)
            raise ValueError(
                f"{kind} has the parameters {names}: hold one by its name, as fixed={{{self.names[0]!r}: {self.fixed}}}"
            )
        for name, value in self.held.items():
            if name not in self.names:
                raise ValueError(f"{kind} has no parameter {name!r} to hold; it has {', '.join(self.names)}")
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"{name} of {kind} must be a positive number to be held, got {value}")
        if self.random:
            self._check_scales()

    @property
    def held(self) -> dict[str, float]:
        """The parameters that are held, and their values."""
        if self.fixed is None:
            return {}
        return {self.names[0]: float(self.fixed)} if isinstance(self.fixed, int | float) else dict(self.fixed)

    @abc.abstractmethod
    def sd(self, error: Array, f: Array) -> Array:
        """g(f), of the scale that `transformed` works on."""

    def transformed(self, y: Array) -> Array:
        """The scale on which the error is additive."""
        return y

    def log_density(self, error: Array, f: Array, y: Array) -> Array:
        """log p(y | f), with the Jacobian of the scale."""
        return norm.logpdf(y, f, self.sd(error, f))

    def unscaled(self, f: Array) -> Array:
        """g(f) at parameters of one."""
        return self.sd(jnp.ones(len(self.names), f.dtype), f)

    def noisy(self, error: Array, f: Array, noise: Array) -> Array:
        """Observations of f with standard normal noise."""
        scaled = self.sd(error, f) * noise
        return f * jnp.exp(scaled) if self.positive else f + scaled

    def covariance(self, error: Array, f: Array) -> Array:
        """Of the errors of rows (T, T), on the scale of `transformed`."""
        return jnp.diag(self.sd(error, f) ** 2)

    def at(self, rows: Mapping[str, Any]) -> ResidualError:
        """The error of these rows, with `sd`, `unscaled`, `transformed`, `log_density` and `noisy`: itself."""
        return self

    def of_each(self, values: Array, rows: Mapping[str, Any]) -> Array:
        """Sums of values of rows, by output, (1,)."""
        return jnp.sum(values)[None]

    def parts(self, rows: Mapping[str, Any]) -> list[tuple[ResidualError, np.ndarray]]:
        """The error of each output, and which rows are of it."""
        return [(self, np.ones(np.shape(rows["y"]), bool))]

    def without_numbers(self) -> ResidualError:
        """The error, whatever is held of it: what programs depend on."""
        return dataclasses.replace(self, fixed=None)

    def start(self, residual_sd: float, size: float) -> list[float]:
        """Starting values from a residual standard deviation (of the transformed scale) and the typical size of f."""
        return [residual_sd]


class ConstantError(ResidualError):
    """g = a."""

    def sd(self, error, f):
        return error[0] * jnp.ones_like(f)


class Proportional(ResidualError):
    """g = b |f|."""

    names = ("b",)
    relative = True

    def sd(self, error, f):
        return error[0] * jnp.maximum(jnp.abs(f), 1e-12)

    def start(self, residual_sd, size):
        return [residual_sd / size]


@dataclasses.dataclass(frozen=True)
class Combined(ResidualError):
    """Form 1: g = a + b |f|; form 2: g = sqrt(a^2 + b^2 f^2)."""

    form: int = 2
    names = ("a", "b")
    closed = False

    def __post_init__(self) -> None:
        if self.form not in (1, 2):
            raise ValueError(f"form must be 1 (a + b f) or 2 (sqrt(a^2 + b^2 f^2)), got {self.form}")
        super().__post_init__()

    def sd(self, error, f):
        if self.form == 1:
            return error[0] + error[1] * jnp.abs(f)
        return jnp.sqrt(error[0] ** 2 + (error[1] * f) ** 2)

    def start(self, residual_sd, size):
        return [residual_sd / 2, residual_sd / 2 / size]


class Power(ResidualError):
    """g = a + b |f|^c."""

    names = ("a", "b", "c")
    closed = False

    @property
    def scales(self):
        return (0, 1)

    def sd(self, error, f):
        return error[0] + error[1] * jnp.maximum(jnp.abs(f), 1e-12) ** error[2]

    def start(self, residual_sd, size):
        return [residual_sd / 2, residual_sd / 2 / size, 1.0]


class Exponential(ResidualError):
    """log y = log f + a epsilon."""

    positive = True

    def sd(self, error, f):
        return error[0] * jnp.ones_like(f)

    def transformed(self, y):
        return jnp.log(jnp.maximum(y, 1e-300))

    def log_density(self, error, f, y):
        log_y = self.transformed(y)
        return norm.logpdf(log_y, self.transformed(f), error[0]) - log_y


ERRORS = {
    "constant": ConstantError(),
    "proportional": Proportional(),
    "combined1": Combined(1),
    "combined2": Combined(2),
    "combined": Combined(2),
    "power": Power(),
    "exponential": Exponential(),
}


def as_error(error: ResidualError | str) -> ResidualError:
    """A residual error from its name.

    Raises:
        ValueError: unknown name.
    """
    if isinstance(error, ResidualError):
        return error
    if error in ERRORS:
        return ERRORS[error]
    raise ValueError(f"error must be one of {list(ERRORS)} or a ResidualError, got {error!r}")
