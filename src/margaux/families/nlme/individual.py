"""How individual parameters are distributed: a Gaussian variable through a monotone map, with covariates."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.stats import norm
from jaxtyping import Array

from .shapes import EffectShape, as_shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True)
class Individual(abc.ABC):
    r"""$\psi_i = h(\phi_i)$ with $\phi_i = h^{-1}(\psi_{pop}) + c_i^\top\beta + \eta_i$.

    Args:
        start: starting value of $\psi_{pop}$, on the natural scale; found from the data where None.
        covariates: a formula over columns that are constant within a subject, such as "log(Weight/70) + Sex", or, where
            `fit(occ=)` names the occasions, within each of its occasions: $\phi_{ik} = \phi_i + x_{ik}^\top\delta +
            \kappa_{ik}$.
        random: whether there is a random effect $\eta_i$; without, all subjects of equal covariates share $\psi$.
        occasion: whether it varies between a subject's occasions k, too: $\phi_{ik} = \phi_i + \kappa_{ik}$ with
            $\kappa_{ik}\sim N(0, \gamma^2)$; `fit(occ=)` names the column of the occasions. In an event table what is left of
            earlier doses goes on into an occasion, whose parameters hold from its first record on.
        fixed: whether $\psi_{pop}$ is held at its start instead of being estimated.
        coefficients: covariates' effects that are held, by the names they have in `params_`, as {"log(Weight/70)": 0.75}.
        shape: of the random effect, where it is not normal: `BoxCox()` or "boxcox", `StudentT()` or "t" of `margaux.nlme`;
            $\phi_i = h^{-1}(\psi_{pop}) + c_i^\top\beta + T(\eta_i)$ then.
        variance, occasion_variance: values that $\omega^2$ and $\gamma^2$ are held at, on the Gaussian scale; estimated where
            None.

        classes: in how many classes of subjects, which the data do not name, it has typical values of its own:
            $\phi_i\mid k\sim N(h^{-1}(\psi_{pop}) + c_i^\top\beta + \delta_k, \omega^2)$ with probability $p_k$ and
            $\delta_1=0$. One variable says for all parameters that have classes which one a subject belongs to, so that they
            have as many. The first class is that of the lowest value of the first of them; see `NLME.membership_`.

    Raises:
        ValueError: a start or a held value that such a parameter cannot have, nothing that it would be held of, or classes
            that it cannot have.

    >>> LogNormal(fixed=True)
    Traceback (most recent call last):
    ValueError: fixed=True holds the typical value at its start, and there is none: write LogNormal(1.5, fixed=True)
    >>> LogNormal(4.0, classes=1)
    Traceback (most recent call last):
    ValueError: classes must be a whole number of at least 2, got 1; leave it out where all subjects are of one population
    """

    start: float | None = None
    covariates: str | None = None
    random: bool = True
    occasion: bool = False
    _: dataclasses.KW_ONLY
    fixed: bool = False
    coefficients: Mapping[str, float] | tuple[tuple[str, float], ...] = ()
    variance: float | None = None
    occasion_variance: float | None = None
    shape: EffectShape | str | None = None
    classes: int | None = None

    #: what a message says of the values that it takes
    _range = ""

    def __post_init__(self) -> None:
        if self.start is not None and not np.isfinite(self.gaussian(self.start)):
            raise ValueError(f"the starting value {self.start:g} lies outside the range of {type(self).__name__}{self._range}")
        # Hashable, as what programs are found by.
        object.__setattr__(self, "coefficients", tuple(dict(self.coefficients).items()))
        object.__setattr__(self, "shape", as_shape(self.shape))
        if self.shape is not None and not self.random:
            raise ValueError("shape= is of a random effect, which random=False leaves out")
        self._check_held()
        if self.classes is not None:
            self._check_classes()

    def _check_classes(self) -> None:
        if isinstance(self.classes, bool) or not isinstance(self.classes, int | np.integer) or self.classes < 2:
            raise ValueError(
                f"classes must be a whole number of at least 2, got {self.classes!r}; leave it out where all subjects are of one "
                "population"
            )
        for asked, what in (
            (not self.random, "random=False: classes are of the distribution of a random effect"),
            (self.occasion, "occasion=True: a class is a subject's, on all its occasions"),
            (self.shape is not None, "shape=: a random effect is normal within a class"),
            (self.fixed, "fixed=True: the typical values of all classes are estimated"),
            (self.variance is not None, "variance=: the variance within classes is estimated"),
        ):
            if asked:
                raise ValueError(f"classes= does not go with {what}; leave one of them out")

    def _check_held(self) -> None:
        kind = type(self).__name__
        if self.fixed and self.start is None:
            raise ValueError(f"fixed=True holds the typical value at its start, and there is none: write {kind}(1.5, fixed=True)")
        if self.coefficients and not self.covariates:
            raise ValueError(f"coefficients= holds effects of covariates, and this {kind} has no covariates=")
        for label, value in self.coefficients:
            if not np.isfinite(value):
                raise ValueError(f"the coefficient of {label!r} is held at {value}, which is no finite number")
        for name, there in (("variance", self.random), ("occasion_variance", self.occasion)):
            value = getattr(self, name)
            if value is None:
                continue
            if not there:
                effect = "random=False leaves out" if name == "variance" else "is there with occasion=True alone"
                raise ValueError(f"{name}= holds the variance of an effect that {effect}")
            if not (np.isfinite(value) and value > 0):
                more = "; random=False leaves the effect out" if name == "variance" else ""
                raise ValueError(f"{name} must be a positive number, got {value}{more}")

    @abc.abstractmethod
    def natural(self, phi: Array) -> Array:
        """h, of jax arrays."""

    @abc.abstractmethod
    def gaussian(self, psi: Any) -> Any:
        """Inverse of h, of numbers."""

    def values(self, phi: ArrayLike) -> np.ndarray:
        """h of numbers, without a program where it is overridden."""
        return np.asarray(self.natural(jnp.asarray(phi, float)), float)

    def without_numbers(self) -> Individual:
        """The distribution alone, whatever it starts from and is held at: what programs depend on."""
        shape: Any = self.shape
        own = None if shape is None else shape.without_numbers()
        return dataclasses.replace(
            self, start=None, fixed=False, coefficients=(), variance=None, occasion_variance=None, shape=own
        )

    def slope(self, phi: float) -> float:
        """Derivative of h at a number."""
        return float(jax.grad(self.natural)(jnp.asarray(phi, float)))


class Normal(Individual):
    """h(phi) = phi."""

    def natural(self, phi):
        return phi

    def gaussian(self, psi):
        return np.asarray(psi, float)

    def values(self, phi):
        return np.asarray(phi, float)

    def slope(self, phi):
        return 1.0


class LogNormal(Individual):
    """h(phi) = exp(phi): positive parameters."""

    _range = ", whose values are positive"

    def natural(self, phi):
        return jnp.exp(phi)

    def gaussian(self, psi):
        with np.errstate(all="ignore"):
            return np.log(np.asarray(psi, float))

    def values(self, phi):
        with np.errstate(over="ignore"):
            return np.exp(np.asarray(phi, float))

    def slope(self, phi):
        return float(self.values(phi))


@dataclasses.dataclass(frozen=True)
class Bounded(Individual):
    """Parameters between `low` and `high`."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")
        super().__post_init__()

    @property
    def _range(self) -> str:
        return f", whose values are between {self.low:g} and {self.high:g}"

    def _share(self, psi: Any) -> Any:
        return (np.asarray(psi, float) - self.low) / (self.high - self.low)


class LogitNormal(Bounded):
    """h(phi) = low + (high - low) / (1 + exp(-phi)): with random=False, a fixed effect between bounds; at one
    of them it has no standard error, and `summary()` says so."""

    def natural(self, phi):
        return self.low + (self.high - self.low) * jax.nn.sigmoid(phi)

    def gaussian(self, psi):
        with np.errstate(all="ignore"):
            return scipy.special.logit(self._share(psi))

    def values(self, phi):
        return self.low + (self.high - self.low) * scipy.special.expit(np.asarray(phi, float))

    def slope(self, phi):
        return (self.high - self.low) * float(scipy.special.expit(phi) * scipy.special.expit(-phi))


class ProbitNormal(Bounded):
    """h(phi) = low + (high - low) Phi(phi), with the standard normal distribution function."""

    def natural(self, phi):
        return self.low + (self.high - self.low) * norm.cdf(phi)

    def gaussian(self, psi):
        with np.errstate(all="ignore"):
            return scipy.special.ndtri(self._share(psi))

    def values(self, phi):
        return self.low + (self.high - self.low) * scipy.special.ndtr(np.asarray(phi, float))

    def slope(self, phi):
        return (self.high - self.low) * float(np.exp(-(phi**2) / 2) / np.sqrt(2 * np.pi))
