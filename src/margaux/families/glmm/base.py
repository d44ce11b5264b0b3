r"""What a response distribution of a generalised linear mixed model is: $p(y\mid\eta)$ and its answers."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from .links import AbstractLink
from .starts import coefficients

#: parameters of a response beside the linear predictor, by name: scalars or one a row; thresholds (K - 1,)
Dispersion: TypeAlias = dict


class Crude(NamedTuple):
    """A first look at a response, for starts: what is regressed on X, where its mean begins, how much a row weighs.

    Attributes:
        target: (N,) what the mean is of. begin: (N,) means inside the range. weights: (N,) beside the prior weights.
        variance: of the target, up to a factor, given its mean.
        link: of the mean.
        intercept: whether the regression needs an intercept that X does not have.
    """

    target: np.ndarray
    begin: np.ndarray
    weights: np.ndarray
    variance: Callable[[np.ndarray], np.ndarray]
    link: AbstractLink
    intercept: bool = False


class AbstractResponse(eqx.Module):
    r"""$p(y\mid\eta)$ of each row, entry by entry."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """As `by_name` knows it."""

    @property
    @abc.abstractmethod
    def links(self) -> tuple[str, ...]:
        """Names of the links it can have, the default first."""

    @property
    @abc.abstractmethod
    def discrete(self) -> bool:
        """Whether y is."""

    @property
    @abc.abstractmethod
    def coded(self) -> bool:
        """Whether y may be the code of a category."""

    @property
    @abc.abstractmethod
    def counts_trials(self) -> bool:
        """Whether it may have trials."""

    @property
    @abc.abstractmethod
    def dispersion(self) -> tuple[str, ...]:
        """Names of its parameters beside the linear predictor: positive numbers, and thresholds, which increase."""

    @property
    @abc.abstractmethod
    def predictors(self) -> tuple[str, ...]:
        """Names of linear predictors of its own: "zero", a logit."""

    @abc.abstractmethod
    def log_kernel(self, y: Array, eta: Array, dispersion: Dispersion, trials: Array | None = None) -> Array:
        """log p(y | eta) without what depends on the data alone; -inf where eta has no mean."""

    @abc.abstractmethod
    def log_base(self, y: Array, trials: Array | None = None) -> Array:
        """What `log_kernel` leaves out: computed once, it need not be computed again."""

    def log_density(self, y: Array, eta: Array, dispersion: Dispersion, trials: Array | None = None) -> Array:
        """log p(y | eta), every constant included; three times differentiable in eta without a NaN."""
        return self.log_kernel(y, eta, dispersion, trials) + self.log_base(y, trials)

    @abc.abstractmethod
    def mean(self, eta: Array, dispersion: Dispersion, trials: Array | None = None) -> Array:
        """E[y | eta]."""

    @abc.abstractmethod
    def variance(self, eta: Array, dispersion: Dispersion, trials: Array | None = None) -> Array:
        """Var[y | eta]."""

    @abc.abstractmethod
    def cdf(
        self, y: np.ndarray, eta: np.ndarray, dispersion: Dispersion, trials: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """P(Y <= y) and P(Y < y), on the host: the two between which a randomised quantile residual is drawn."""

    @abc.abstractmethod
    def simulate(self, key: PRNGKeyArray, eta: Array, dispersion: Dispersion, trials: Array | None = None) -> Array:
        """A draw of y, of the shape of eta."""

    @abc.abstractmethod
    def check(self, y: np.ndarray, trials: np.ndarray | None = None) -> None:
        """Whether y is in its range.

        Raises:
            ValueError: it is not; with the row and the mend. The sentence goes on from "the response ...".
        """

    @abc.abstractmethod
    def row_effects(self, trials: np.ndarray | None = None) -> bool:
        """Whether the variance of an effect for every row can be estimated."""

    @abc.abstractmethod
    def crude(self, y: np.ndarray, trials: np.ndarray | None = None) -> Crude:
        """What a first regression needs."""

    @abc.abstractmethod
    def start_dispersion(self, y: np.ndarray, eta: np.ndarray, trials: np.ndarray | None = None) -> Dispersion:
        """Where the parameters of `dispersion` and `predictors` begin, as floats, given crude predictors (N,)."""

    def start(
        self,
        y: np.ndarray,
        X: np.ndarray,
        offset: np.ndarray | None = None,
        weights: np.ndarray | None = None,
        trials: np.ndarray | None = None,
    ) -> np.ndarray:
        """Finite coefficients (p,) of the model without random effects, crude and bounded also under separation."""
        return coefficients(self.crude(y, trials), X, offset, weights)


def guarded(link: AbstractLink, eta: Array) -> tuple[Array, Array]:
    """A predictor that has a mean, and where it is the one asked for."""
    inside = link.inside(eta)
    return jnp.where(inside, eta, 1.0), inside


def refuse(bad: np.ndarray, y: np.ndarray, why: str, mend: str) -> None:
    """Raises a sentence about the first row that is bad, to go on from "the response ..."."""
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(f"is {y[row]:g} at row {row} ({int(bad.sum())} such in all), {why}; {mend}")


def host(dispersion: Dispersion, name: str) -> np.ndarray:
    """A parameter as NumPy's."""
    return np.asarray(dispersion[name], float)


def constrained(response: AbstractResponse, free: Dispersion) -> Dispersion:
    """Parameters from free coordinates: positive ones by exp, thresholds by a first one and logarithms of gaps.

    >>> from margaux.families.glmm.responses import by_name
    >>> float(constrained(by_name("gaussian"), {"sigma": 0.0})["sigma"])
    1.0
    """
    found = {name: free[name] for name in response.predictors}
    for name in response.dispersion:
        found[name] = _increasing(free[name]) if name == "thresholds" else jnp.exp(free[name])
    return found


def _increasing(free: Array) -> Array:
    return jnp.cumsum(jnp.concatenate([free[:1], jnp.exp(free[1:])]))


def unconstrained(response: AbstractResponse, dispersion: Dispersion) -> Dispersion:
    """Free coordinates of parameters, on the host: the inverse of `constrained`."""
    found = {name: host(dispersion, name) for name in response.predictors}
    for name in response.dispersion:
        values = host(dispersion, name)
        gaps = np.concatenate([values[:1], np.log(np.diff(values))]) if name == "thresholds" else np.log(values)
        found[name] = gaps
    return found
