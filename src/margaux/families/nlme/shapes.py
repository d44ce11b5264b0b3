r"""Shapes of random effects that are not normal: monotone functions of a normal one, with a parameter that is estimated."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .individual import Individual

#: an effect is cut at so many standard deviations, or so much on the Gaussian scale: its exponential stays a number
FARTHEST = 40.0
#: exponents from where on the cut has been reached whatever the effect, and below which a series has no error
LARGEST, SMALL = 30.0, 0.05
#: nu from which on the expansion is next to Student's t
LEAST = 2.0
#: coefficients of (exp(x) - 1) / x
SERIES = [1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040, 1 / 40320]


@dataclasses.dataclass(frozen=True)
class EffectShape(abc.ABC):
    r"""$\psi_i = h(\mu_i + T(\eta_i))$ with $\eta_i\sim N(0, \omega^2)$ and a monotone T of one parameter.

    Args:
        start: where the parameter starts from. fixed: whether it is held there.

    Raises:
        ValueError: a start that it cannot have, or none to be held at.
    """

    start: float | None = None
    _: dataclasses.KW_ONLY
    fixed: bool = False

    #: what the parameter is called before the name of that whose effect it shapes, and where it starts by itself, as it is held
    prefix = ""
    usual = 0.0
    #: whether T is another one for another variance
    scaled = False
    #: what the parameter can be, in words
    _range = ""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.fixed and self.start is None:
            raise ValueError(f"fixed=True holds the shape at its start, and there is none: write {kind}(..., fixed=True)")
        if self.start is not None and not self._possible(self.start):
            raise ValueError(f"{self.prefix} of {kind} cannot be {self.start:g}; it must be {self._range}")

    @abc.abstractmethod
    def _possible(self, value: float) -> bool:
        """Whether it can be that."""

    @abc.abstractmethod
    def effect(self, eta: Array, variance: Array, shape: Array) -> Array:
        """T of an effect. Args: shape: the parameter as the engine has it."""

    def engine(self, value: float) -> float:
        """The parameter as the engine has it."""
        return value

    def natural(self, shape: Array) -> Array:
        """The parameter as `params_` has it."""
        return shape

    @property
    def first(self) -> float:
        """Where the engine's parameter starts from."""
        return self.usual if self.start is None else self.engine(float(self.start))

    def without_numbers(self) -> EffectShape:
        """The shape alone, wherever it starts from: what programs depend on."""
        return dataclasses.replace(self, start=None, fixed=False)


class BoxCox(EffectShape):
    r"""$T(\eta)=(e^{\lambda\eta}-1)/\lambda$: skewed effects, to the right for $\lambda>0$ and to the left for $\lambda<0$;
    normal ones at $\lambda = 0$.

    The typical value of h stays the median. $\lambda$ is `lambda_V` in `params_`, of any sign; its z and p in `summary()` are
    those of $\lambda = 0$, which is an inner point.

    Args:
        start: of $\lambda$, 0 by default. fixed: whether it is held there.

    Reference: Petersson, Hanze, Savic and Karlsson, Semiparametric distributions with estimated shape parameters, Pharm. Res.
    26 (2009), 2174-2185.

    >>> from margaux.nlme import BoxCox, LogNormal
    >>> LogNormal(8.0, shape=BoxCox()).shape
    BoxCox(start=None, fixed=False)
    >>> BoxCox(fixed=True)
    Traceback (most recent call last):
    ValueError: fixed=True holds the shape at its start, and there is none: write BoxCox(..., fixed=True)
    """

    prefix = "lambda"
    _range = "a finite number"

    def _possible(self, value):
        return bool(np.isfinite(value))

    def effect(self, eta, variance, shape):
        x = jnp.minimum(shape * eta, LARGEST)
        near = jnp.abs(x) < SMALL
        small, large = jnp.where(near, x, 0.0), jnp.where(near, 1.0, x)
        ratio = jnp.where(near, jnp.polyval(jnp.asarray(SERIES[::-1], eta.dtype), small), jnp.expm1(large) / large)
        return _cut(eta * ratio, variance)


class StudentT(EffectShape):
    r"""$T(\eta)=\omega\,t_\nu^{-1}(\Phi(\eta/\omega))$: effects with the tails of Student's t of $\nu$ degrees of freedom and
    scale $\omega$, independent of other effects.

    The quantile of t is by the expansion of Cornish and Fisher up to $\nu^{-4}$, whose error is below 3% within three $\omega$
    from $\nu=3$ on: the distribution is that of the expansion exactly. $\nu$ is `nu_V` in `params_`. Intervals are
    taken on the scale of $1/\nu$, which is 0 of normal effects: that is the edge, which
    `margaux.nlme.lr_test` tests.
    Where data have no heavier tails than the normal distribution, $\nu$ is infinite, the effect normal, and the fit says so.

    Args:
        start: of $\nu$, 10 by default. fixed: whether it is held there.

    References: Petersson, Hanze, Savic and Karlsson, Semiparametric distributions with estimated shape parameters, Pharm. Res.
    26 (2009), 2174-2185, whose transformation is not of $\eta/\omega$ and stops at $\nu^{-3}$; Abramowitz and Stegun, Handbook
    of Mathematical Functions, 26.7.5.

    >>> from margaux.nlme import LogNormal, StudentT
    >>> LogNormal(8.0, shape=StudentT(5, fixed=True)).shape
    StudentT(start=5, fixed=True)
    >>> StudentT(1.0)
    Traceback (most recent call last):
    ValueError: nu of StudentT cannot be 1; it must be at least 2
    """

    prefix = "nu"
    usual = float(np.log(10.0))
    scaled = True
    _range = "at least 2"

    def _possible(self, value):
        return bool(np.isfinite(value)) and value >= LEAST

    def engine(self, value):
        return float(np.log(value))

    def natural(self, shape):
        return jnp.exp(shape)

    def effect(self, eta, variance, shape):
        sd = jnp.sqrt(variance)
        z = eta / sd
        s, inverse = z * z, jnp.exp(-shape)
        first = (s + 1) / 4
        second = ((5 * s + 16) * s + 3) / 96
        third = (((3 * s + 19) * s + 17) * s - 15) / 384
        fourth = ((((79 * s + 776) * s + 1482) * s - 1920) * s - 945) / 92160
        return _cut(eta * (1 + inverse * (first + inverse * (second + inverse * (third + inverse * fourth)))), variance)


SHAPES = {"boxcox": BoxCox(), "t": StudentT()}


def as_shape(shape: EffectShape | str | None) -> EffectShape | None:
    """A shape from its name.

    Raises:
        ValueError: an unknown one.
    """
    if shape is None or isinstance(shape, EffectShape):
        return shape
    if isinstance(shape, str) and shape in SHAPES:
        return SHAPES[shape]
    raise ValueError(f"shape must be one of {', '.join(SHAPES)}, or BoxCox(...) or StudentT(...), got {shape!r}")


def of_table(table: Mapping[str, Any]) -> EffectShape:
    """From a model file's shape, shape_initial and shape_fixed. Raises: ValueError: it is none."""
    own = as_shape(table.get("shape"))
    if own is None:
        raise ValueError(f"is of a shape, which is missing; add shape = {next(iter(SHAPES))!r}")
    return type(own)(table.get("shape_initial"), fixed=table.get("shape_fixed", False))


def described(one: Individual) -> dict[str, Any]:
    """As `of_table` reads it; nothing of a normal effect. Raises: ValueError: a shape of another kind."""
    if one.shape is None:
        return {}
    name = next((name for name, known in SHAPES.items() if type(known) is type(one.shape)), None)
    if name is None:
        raise ValueError(f"{one.shape!r} is a shape that no model file holds; there are {', '.join(SHAPES)}")
    shape: Any = one.shape
    out = {"shape": name} | ({} if shape.start is None else {"shape_initial": float(shape.start)})
    return out | ({"shape_fixed": True} if shape.fixed else {})


def _cut(effect: Array, variance: Array) -> Array:
    most = FARTHEST * jnp.maximum(jax.lax.stop_gradient(jnp.sqrt(variance)), 1.0)
    return jnp.clip(effect, -most, most)


class _Reciprocal:
    """Of a positive number, infinity included, that is normal as its reciprocal."""

    _range = ", which is positive"

    def gaussian(self, psi: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(np.asarray(psi, float) > 0, 1 / np.asarray(psi, float), np.nan)

    def values(self, phi: Any) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.where(np.asarray(phi, float) > 0, 1 / np.asarray(phi, float), np.inf)

    def slope(self, phi: float) -> float:
        return -(phi**-2)


RECIPROCAL = _Reciprocal()
