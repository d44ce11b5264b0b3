"""Generalised linear models of one outcome given its linear predictor, and averaged over a Gaussian predictor."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.scipy.special import gammaln, log_ndtr
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PRNGKeyArray

#: nodes of the adaptive trapezoidal rule; Newton steps to its centre at most, and how far one may go
NODES, NEWTON, FARTHEST = 41, 100, 2.0
#: where the rule ends: how far the logarithm of the integrand has fallen there, and Newton steps to it
DROP, REACH = 20.0, 4
#: variance from which derivatives are moments of u
WIDE = 10.0


class AbstractFamily(eqx.Module):
    r"""$\log p(y\mid\eta)$, concave in the linear predictor $\eta$. Functions act entry by entry; `scale` is $\sigma^2$."""

    @abc.abstractmethod
    def log_density(self, y: Array, eta: Array, scale: Array) -> Array:
        """With every constant."""

    @abc.abstractmethod
    def simulate(self, key: PRNGKeyArray, eta: Array, scale: Array) -> Array:
        """A draw of y."""

    @abc.abstractmethod
    def slopes(self, y: Array, eta: Array, scale: Array) -> tuple[Array, Array]:
        """First and second derivative in eta."""

    @abc.abstractmethod
    def bound(self, y: Array, eta: Array, scale: Array) -> Array:
        r"""h with $\log p(y|\vartheta)\ge\log p(y|\eta)+\ell'(\eta)(\vartheta-\eta)-\tfrac h2(\vartheta-\eta)^2$ for all
        $\vartheta$; where there is none, minus the second derivative."""

    @abc.abstractmethod
    def largest_bound(self, y: Array, eta: Array, scale: Array) -> Array:
        """A bound that does not depend on eta, where there is one."""

    def near_mode(self, y: Array, mean: Array) -> Array:
        """Where to look for the mode of p(y | u) N(u; mean, .) first."""
        return mean

    @abc.abstractmethod
    def link(self, mean: float) -> float:
        """The predictor whose outcome has this mean."""

    @abc.abstractmethod
    def mean(self, eta: Array, variance: Array) -> Array:
        """E[y] for eta ~ N(eta, variance)."""

    def marginal(self, y: Array, mean: Array, variance: Array, scale: Array) -> tuple[Array, Array, Array]:
        r"""$\log\int p(y\mid u)N(u; m, v)\,du$ and its first two derivatives in m, which are all that exact scores need:
        with expectations under the posterior of u they are $E\ell'$ and $E[\ell''+\ell'^2]-(E\ell')^2$. Where v is large
        $\ell''$ is narrow beside the distance of nodes, and they are $E(u-m)/v$ and $Var(u)/v^2-1/v$, which are the same.

        By a trapezoidal rule over all where the integrand is not next to nothing, see `_Rule`.
        """
        rule = _Rule.of(self, y, mean, variance, scale)
        far = variance > WIDE
        precision = jnp.where(far, 1 / rule.wide**2, 0.0)

        def ratios(u):
            first, second = self.slopes(y, u, scale)
            first, second = jnp.where(far, (u - mean) * precision, first), jnp.where(far, -precision, second)
            return first, second + first**2

        total, (first, square) = rule.averages(self, y, mean, scale, ratios, 2)
        # Without variance all nodes are the one point, and each weighs the same.
        weight = jnp.where(variance > 0, rule.step / rule.wide / np.sqrt(2 * np.pi), 1 / NODES)
        return rule.height + jnp.log(total * weight), first, square - first**2

    def slopes_to_fourth(self, y: Array, eta: Array, scale: Array) -> tuple[Array, ...]:
        """Derivatives one to four of the log density in eta."""
        one = jnp.ones_like(eta)

        def third(u):
            return jax.jvp(lambda v: self.slopes(y, v, scale)[1], (u,), (one,))[1]

        return (*self.slopes(y, eta, scale), *jax.jvp(third, (eta,), (one,)))

    def ratios(self, y: Array, mean: Array, variance: Array, scale: Array) -> tuple[Array, ...]:
        r"""$Z^{(k)}(m)/Z(m)$, k = 1, ..., 4, of $Z(m) = \int p(y\mid u)N(u; m, v)\,du$: what the information needs.

        They are posterior means of $p^{(k)}/p$; where the posterior of u is narrower than the prior, or v large, of Hermite
        polynomials of $(u-m)/v$, which vary less there.
        """
        rule = _Rule.of(self, y, mean, variance, scale)
        far = (variance > WIDE) | (2 * rule.sd**2 < variance)
        precision = jnp.where(far, 1 / rule.wide**2, 0.0)

        def at(u):
            near = self.slopes_to_fourth(y, u, scale)
            instead = (u - mean) * precision, -precision, 0.0, 0.0
            return bell(*(jnp.where(far, other, own) for other, own in zip(instead, near, strict=True)))

        return rule.averages(self, y, mean, scale, at, 4)[1]


def bell(first: Array, second: Array, third: Array, fourth: Array) -> tuple[Array, ...]:
    """$f^{(k)}/f$, k = 1, ..., 4, from the derivatives of log f: Bell's polynomials."""
    return (
        first,
        second + first**2,
        third + 3 * first * second + first**3,
        fourth + 4 * first * third + 3 * second**2 + 6 * first**2 * second + first**4,
    )


class _Rule(NamedTuple):
    """The trapezoidal rule between the points where the integrand p(y | u) N(u; m, v) has fallen by exp(-DROP): it vanishes at
    both, so that the error falls exponentially in the number of nodes.

    mode, sd: of the integrand, by its curvature there. below: from the mode to the first node; height: of its logarithm.
    wide: the prior's SD, in whose units all is done, so that nothing is lost where the variance is tiny or zero.
    """

    mode: Array
    sd: Array
    below: Array
    step: Array
    wide: Array
    height: Array

    @staticmethod
    def of(family: AbstractFamily, y: Array, mean: Array, variance: Array, scale: Array) -> _Rule:
        mode, sd = _mode(family, y, mean, variance, scale)
        wide = jnp.sqrt(jnp.where(variance > 0, variance, 1.0))
        below, above = (_reach(family, y, mean, variance, scale, mode, sd, side) for side in (-1.0, 1.0))
        step = (below + above) / (NODES - 1)
        height = family.log_density(y, mode, scale) - ((mode - mean) / wide) ** 2 / 2
        return _Rule(mode, sd, below, step, wide, height)

    def averages(
        self, family: AbstractFamily, y: Array, mean: Array, scale: Array, of: Callable[[Array], tuple[Array, ...]], count: int
    ) -> tuple[Array, tuple[Array, ...]]:
        """The sum of the integrand over the nodes, and averages of `count` functions of u under it."""

        def add(state, node):
            u = self.mode + (node * self.step - self.below)
            share = jnp.exp(family.log_density(y, u, scale) - ((u - mean) / self.wide) ** 2 / 2 - self.height)
            return tuple(part + share * one for part, one in zip(state, (1.0, *of(u)), strict=True)), None

        start = (jnp.zeros_like(mean),) * (1 + count)
        (total, *sums), _ = jax.lax.scan(add, start, jnp.arange(NODES, dtype=mean.dtype))
        return total, tuple(part / total for part in sums)


def _mode(family: AbstractFamily, y: Array, mean: Array, variance: Array, scale: Array) -> tuple[Array, Array]:
    """Where p(y | u) N(u; m, v) is highest, to a thousandth of its width, and that width by the curvature there."""

    def curved(u):
        first, second = family.slopes(y, u, scale)
        return variance * first - (u - mean), 1 - variance * second

    def newton(state):
        u, _, count = state
        slope, curvature = curved(u)
        step = slope / curvature
        # Far out the curvature is all but gone, and a whole step would overshoot.
        return u + jnp.clip(step, -FARTHEST, FARTHEST), jnp.max(step**2 * curvature - 1e-6 * variance), count + 1

    def going(state):
        return (state[1] > 0) & (state[2] < NEWTON)

    begin = (family.near_mode(y, mean), jnp.asarray(jnp.inf, mean.dtype), 0)
    mode, _, _ = jax.lax.while_loop(going, newton, begin)
    return mode, jnp.sqrt(variance / curved(mode)[1])


def _reach(
    family: AbstractFamily, y: Array, mean: Array, variance: Array, scale: Array, mode: Array, sd: Array, side: float
) -> Array:
    """How far from the mode, on one side, the integrand falls by exp(-DROP); Newton steps, as its logarithm is concave."""
    width = jnp.where(variance > 0, variance, 1.0)
    height = family.log_density(y, mode, scale) - (mode - mean) ** 2 / (2 * width)
    farthest = jnp.sqrt(2 * DROP * variance)

    def newton(_, t):
        u = mode + side * t
        fallen = height - family.log_density(y, u, scale) + (u - mean) ** 2 / (2 * width) - DROP
        slope = side * ((u - mean) / width - family.slopes(y, u, scale)[0])
        return jnp.clip(t - fallen / jnp.where(slope > 0, slope, 1.0), sd, farthest)

    # Halfway steps overshoot outwards, never inwards, so that whatever is left of the way is only range to spare.
    return jax.lax.fori_loop(0, REACH, newton, jnp.minimum(np.sqrt(2 * DROP) * sd, farthest))


class Logistic(AbstractFamily):
    """y in {0, 1}, logit link."""

    def log_density(self, y, eta, scale):
        return y * eta - jax.nn.softplus(eta)

    def simulate(self, key, eta, scale):
        return jax.random.bernoulli(key, jax.nn.sigmoid(eta)).astype(eta.dtype)

    def slopes(self, y, eta, scale):
        probability = jax.nn.sigmoid(eta)
        return y - probability, -probability * (1 - probability)

    def bound(self, y, eta, scale):
        # Jaakkola and Jordan (2000): tanh(eta / 2) / (2 eta), at most 1/4.
        half = jnp.abs(eta) / 2
        small = half < 1e-2
        safe = jnp.where(small, 1.0, half)
        return jnp.where(small, 0.25 * (1 - half**2 / 3 + 2 * half**4 / 15), jnp.tanh(safe) / (4 * safe))

    def largest_bound(self, y, eta, scale):
        return jnp.full_like(eta, 0.25)

    def link(self, mean):
        return float(scipy.special.logit(mean))

    def mean(self, eta, variance):
        nodes, weights = np.polynomial.hermite_e.hermegauss(41)
        u = eta[..., None] + jnp.sqrt(variance)[..., None] * nodes
        return jax.nn.sigmoid(u) @ jnp.asarray(weights / weights.sum(), u.dtype)


class Probit(AbstractFamily):
    """y in {0, 1}, probit link; averages over a Gaussian predictor are closed."""

    def log_density(self, y, eta, scale):
        return log_ndtr((2 * y - 1) * eta)

    def simulate(self, key, eta, scale):
        return jax.random.bernoulli(key, jax.scipy.special.ndtr(eta)).astype(eta.dtype)

    def slopes(self, y, eta, scale):
        # With x = -sign eta the Mills ratio is x + 1/x - 2/x^3 + ... far out, where its difference from x would cancel.
        sign = 2 * y - 1
        x = -sign * eta
        far = x > 20
        safe = jnp.where(far, x, 20.0)
        gap = (1 - (2 - (10 - 74 / safe**2) / safe**2) / safe**2) / safe
        near = jnp.where(far, 0.0, eta)
        mills = jnp.where(far, x + gap, jnp.exp(norm.logpdf(near) - log_ndtr(sign * near)))
        return sign * mills, -mills * jnp.where(far, gap, mills - x)

    def bound(self, y, eta, scale):
        return jnp.ones_like(eta)

    def largest_bound(self, y, eta, scale):
        return jnp.ones_like(eta)

    def link(self, mean):
        return float(scipy.special.ndtri(mean))

    def mean(self, eta, variance):
        return jax.scipy.special.ndtr(eta / jnp.sqrt(1 + variance))

    def marginal(self, y, mean, variance, scale):
        root = jnp.sqrt(1 + variance)
        first, second = self.slopes(y, mean / root, scale)
        return self.log_density(y, mean / root, scale), first / root, second / root**2

    def ratios(self, y, mean, variance, scale):
        root = jnp.sqrt(1 + variance)
        found = self.slopes_to_fourth(y, mean / root, scale)
        return bell(*(one / root**k for k, one in enumerate(found, start=1)))


class Gaussian(AbstractFamily):
    r"""$y = \eta + \epsilon$, $\epsilon\sim N(0, \sigma^2)$; averages over a Gaussian predictor are closed."""

    def log_density(self, y, eta, scale):
        return norm.logpdf(y, eta, jnp.sqrt(scale))

    def simulate(self, key, eta, scale):
        return eta + jnp.sqrt(scale) * jax.random.normal(key, eta.shape, eta.dtype)

    def slopes(self, y, eta, scale):
        return (y - eta) / scale, -jnp.ones_like(eta) / scale

    def bound(self, y, eta, scale):
        return jnp.ones_like(eta) / scale

    def largest_bound(self, y, eta, scale):
        return jnp.ones_like(eta) / scale

    def link(self, mean):
        return mean

    def mean(self, eta, variance):
        return eta

    def marginal(self, y, mean, variance, scale):
        total = variance + scale
        return norm.logpdf(y, mean, jnp.sqrt(total)), (y - mean) / total, -1 / total

    def ratios(self, y, mean, variance, scale):
        total = variance + scale
        return bell((y - mean) / total, -1 / total, *[jnp.zeros_like(mean)] * 2)


class Poisson(AbstractFamily):
    """Counts with log link."""

    def log_density(self, y, eta, scale):
        return y * eta - jnp.exp(eta) - gammaln(y + 1)

    def simulate(self, key, eta, scale):
        return jax.random.poisson(key, jnp.exp(eta)).astype(eta.dtype)

    def slopes(self, y, eta, scale):
        rate = jnp.exp(eta)
        return y - rate, -rate

    def bound(self, y, eta, scale):
        return jnp.exp(eta)

    def largest_bound(self, y, eta, scale):
        return jnp.exp(eta)

    def near_mode(self, y, mean):
        # Above it the curvature is that of an exponential, and Newton steps come down by one at a time.
        return jnp.minimum(mean, jnp.log(y + 1) + 1)

    def link(self, mean):
        return float(np.log(mean))

    def mean(self, eta, variance):
        return jnp.exp(eta + variance / 2)


FAMILIES: dict[str, AbstractFamily] = {
    "logistic": Logistic(),
    "probit": Probit(),
    "gaussian": Gaussian(),
    "poisson": Poisson(),
}


def marginal_scale_slope(y: Array, mean: Float[Array, ...], variance: Array, scale: Array) -> Array:
    r"""$\partial\log N(y; m, v+\sigma^2)/\partial\sigma^2$."""
    total = variance + scale
    return ((y - mean) ** 2 / total - 1) / (2 * total)
