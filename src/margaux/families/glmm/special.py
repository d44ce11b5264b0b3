"""Special functions whose derivatives are exact to the third order, also far out where plain formulas cancel."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array

from ...numerics import density

#: from where the tail of the normal distribution is a continued fraction, and its depth: exact to double precision there
TAIL, DEPTH = 6.0, 14
#: coefficients of Stirling's series, and from where it is exact to double precision
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
FAR = 9.0
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@jax.custom_jvp
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)). Its derivative is a product and not a difference, so that it is exact where it is close to one."""
    return jax.nn.sigmoid(x)


sigmoid.defjvps(lambda tangent, value, x: tangent * value * sigmoid(-x))


@jax.custom_jvp
def log_sigmoid(x: Array) -> Array:
    """log of `sigmoid`."""
    return -density.softplus(-x)


log_sigmoid.defjvps(lambda tangent, _, x: tangent * sigmoid(-x))


def softplus(x: Array) -> Array:
    """log(1 + exp(x))."""
    return -log_sigmoid(-x)


@jax.custom_jvp
def _gap(t: Array) -> Array:
    r"""$\phi(t)/\Phi(-t) - t = 1/(t + 2/(t + 3/(t + \dots)))$ for t of at least `TAIL`."""
    found = t
    for k in range(DEPTH, 1, -1):
        found = t + k / found
    return 1 / found


# The gap g has g' = (t + g) g - 1, which costs less to differentiate again than the fraction.
_gap.defjvps(lambda tangent, value, t: tangent * ((t + _gap(t)) * _gap(t) - 1))


def log_ndtr(x: Array) -> Array:
    r"""$\log\Phi(x)$."""
    far = x < -TAIL
    t = jnp.where(far, -x, TAIL)
    tail = -(t**2) / 2 - HALF_LOG_TWO_PI - jnp.log(t + _gap(t))
    near = jnp.where(far, 0.0, x)
    high = near > 0
    # Each side of zero has the form that keeps what is small.
    below, above = jnp.where(high, 0.0, near), jnp.where(high, near, 0.0)
    return jnp.where(far, tail, jnp.where(high, jnp.log1p(-ndtr(-above)), jnp.log(ndtr(below))))


def log1mexp(x: Array) -> Array:
    """log(1 - exp(x)) for x < 0."""
    near = x > -math.log(2)
    close, away = jnp.where(near, x, -1.0), jnp.where(near, -1.0, x)
    return jnp.where(near, jnp.log(-jnp.expm1(close)), jnp.log1p(-jnp.exp(away)))


def _stirling(x: Array) -> Array:
    r"""$\log\Gamma(x) - (x - \tfrac12)\log x + x - \tfrac12\log 2\pi$ for x of at least `FAR`."""
    square = 1 / (x * x)
    found = jnp.zeros_like(x)
    for coefficient in reversed(STIRLING):
        found = found * square + coefficient
    return found / x


def _log_product(x: Array) -> Array:
    """log of x (x + 1) ... (x + 8)."""
    product = x
    for k in range(1, 9):
        product = product * (x + k)
    return jnp.log(product)


def log_gamma(x: Array) -> Array:
    r"""$\log\Gamma(x)$ for x > 0, by Stirling's series, nine further on where x is small.

    Its derivatives are those of sums and products, which cost a fraction of polygamma functions.
    """
    small = x < FAR
    low = jnp.where(small, x, 1.0)
    far = jnp.where(small, low + 9.0, x)
    found = (far - 0.5) * jnp.log(far) - far + HALF_LOG_TWO_PI + _stirling(far)
    return found - jnp.where(small, _log_product(low), 0.0)


def log_rising(y: Array, size: Array, log_size: Array) -> Array:
    r"""$\log\Gamma(r+y) - \log\Gamma(r) - y\log r$ for r > 0 and y >= 0, which goes to zero as r grows.

    Without the cancellation of two large logarithms, and with derivatives by $\log r$ that stay exact as r goes to zero.

    Args:
        y: the step. size, log_size: r and its logarithm.
    """
    large = size > FAR
    r = jnp.where(large, size, FAR + 1)
    # The difference of the two series is log1p and a step of Stirling's remainder.
    far = (r + y - 0.5) * jnp.log1p(y / r) - y + _stirling(r + y) - _stirling(r)
    low = jnp.where(large, 1.0, size)
    log_low = jnp.where(large, 0.0, log_size)
    near = log_gamma(low + jnp.where(y > 0, y, 1.0)) - log_gamma(low + 1.0) + (1 - y) * log_low
    return jnp.where(y > 0, jnp.where(large, far, near), 0.0)
