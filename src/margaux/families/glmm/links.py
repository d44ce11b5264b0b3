r"""Links: how the linear predictor gives the mean, $\mu = g^{-1}(\eta)$.

Densities need $\log\mu$, and $\log(1-\mu)$ for probabilities, which links give directly: through $\mu$ both would be lost where
it rounds to zero or one.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.scipy.special import ndtr
from jaxtyping import Array

from .special import log_ndtr, log_sigmoid, sigmoid

#: a predictor beyond which the complementary log-log is one in double precision, and one whose exponential is still a number
#: whose cube is as well
SURE, HUGE = 8.0, 80.0


class AbstractLink(eqx.Module):
    """A link. `mean_of` and `of_mean` are NumPy's, for the host; the others JAX's. All act entry by entry."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """As R has it."""

    @abc.abstractmethod
    def mean(self, eta: Array) -> Array:
        r"""$\mu$."""

    @abc.abstractmethod
    def log_mean(self, eta: Array) -> Array:
        r"""$\log\mu$."""

    @abc.abstractmethod
    def inside(self, eta: Array) -> Array:
        r"""Whether $\eta$ has a mean at all: with the identity, the inverse and the root a positive mean asks for $\eta > 0$."""

    @abc.abstractmethod
    def mean_of(self, eta: np.ndarray) -> np.ndarray:
        r"""$\mu$, on the host."""

    @abc.abstractmethod
    def of_mean(self, mean: np.ndarray) -> np.ndarray:
        r"""$\eta = g(\mu)$, on the host."""


class AbstractUnitLink(AbstractLink):
    """A link of a probability."""

    #: whether $1-\mu(\eta)=\mu(-\eta)$
    symmetric: ClassVar[bool]

    @abc.abstractmethod
    def log_rest(self, eta: Array) -> Array:
        r"""$\log(1-\mu)$."""

    @abc.abstractmethod
    def rest_of(self, eta: np.ndarray) -> np.ndarray:
        r"""$1-\mu$, on the host."""


class Identity(AbstractLink):
    r"""$\mu = \eta$."""

    name: ClassVar[str] = "identity"

    def mean(self, eta):
        return eta

    def log_mean(self, eta):
        return jnp.log(eta)

    def inside(self, eta):
        return eta > 0

    def mean_of(self, eta):
        return np.asarray(eta, float)

    def of_mean(self, mean):
        return np.asarray(mean, float)


class Log(AbstractLink):
    r"""$\mu = e^\eta$."""

    name: ClassVar[str] = "log"

    def mean(self, eta):
        return jnp.exp(eta)

    def log_mean(self, eta):
        return eta

    def inside(self, eta):
        return jnp.ones_like(eta, bool)

    def mean_of(self, eta):
        return np.exp(eta)

    def of_mean(self, mean):
        return np.log(mean)


class Inverse(AbstractLink):
    r"""$\mu = 1/\eta$."""

    name: ClassVar[str] = "inverse"

    def mean(self, eta):
        return 1 / eta

    def log_mean(self, eta):
        return -jnp.log(eta)

    def inside(self, eta):
        return eta > 0

    def mean_of(self, eta):
        return 1 / np.asarray(eta, float)

    def of_mean(self, mean):
        return 1 / np.asarray(mean, float)


class Root(AbstractLink):
    r"""$\mu = \eta^2$, $\eta > 0$."""

    name: ClassVar[str] = "sqrt"

    def mean(self, eta):
        return eta**2

    def log_mean(self, eta):
        return 2 * jnp.log(eta)

    def inside(self, eta):
        return eta > 0

    def mean_of(self, eta):
        return np.square(eta)

    def of_mean(self, mean):
        return np.sqrt(mean)


class Logit(AbstractUnitLink):
    r"""$\mu = 1/(1+e^{-\eta})$."""

    name: ClassVar[str] = "logit"
    symmetric: ClassVar[bool] = True

    def mean(self, eta):
        return sigmoid(eta)

    def log_mean(self, eta):
        return log_sigmoid(eta)

    def log_rest(self, eta):
        return log_sigmoid(-eta)

    def inside(self, eta):
        return jnp.ones_like(eta, bool)

    def mean_of(self, eta):
        return scipy.special.expit(eta)

    def rest_of(self, eta):
        return scipy.special.expit(-np.asarray(eta))

    def of_mean(self, mean):
        return scipy.special.logit(mean)


class Probit(AbstractUnitLink):
    r"""$\mu = \Phi(\eta)$."""

    name: ClassVar[str] = "probit"
    symmetric: ClassVar[bool] = True

    def mean(self, eta):
        return ndtr(eta)

    def log_mean(self, eta):
        return log_ndtr(eta)

    def log_rest(self, eta):
        return log_ndtr(-eta)

    def inside(self, eta):
        return jnp.ones_like(eta, bool)

    def mean_of(self, eta):
        return scipy.special.ndtr(eta)

    def rest_of(self, eta):
        return scipy.special.ndtr(-np.asarray(eta))

    def of_mean(self, mean):
        return scipy.special.ndtri(mean)


class Cloglog(AbstractUnitLink):
    r"""$\mu = 1 - \exp(-e^\eta)$: whether a time of proportional hazards has ended."""

    name: ClassVar[str] = "cloglog"
    symmetric: ClassVar[bool] = False

    def mean(self, eta):
        return -jnp.expm1(-jnp.exp(jnp.minimum(eta, HUGE)))

    def log_mean(self, eta):
        sure = eta > SURE
        return jnp.where(sure, 0.0, jnp.log(-jnp.expm1(-jnp.exp(jnp.where(sure, 0.0, eta)))))

    def log_rest(self, eta):
        return -jnp.exp(jnp.minimum(eta, HUGE))

    def inside(self, eta):
        return jnp.ones_like(eta, bool)

    def mean_of(self, eta):
        return -np.expm1(-np.exp(np.minimum(eta, HUGE)))

    def rest_of(self, eta):
        return np.exp(-np.exp(np.minimum(eta, HUGE)))

    def of_mean(self, mean):
        return np.log(-np.log1p(-np.asarray(mean)))


LINKS: dict[str, AbstractLink] = {
    link.name: link for link in (Identity(), Log(), Inverse(), Root(), Logit(), Probit(), Cloglog())
}
UNIT_LINKS: dict[str, AbstractUnitLink] = {name: link for name, link in LINKS.items() if isinstance(link, AbstractUnitLink)}
