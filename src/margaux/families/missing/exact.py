r"""Exact maximum likelihood where the outcome depends on one linear predictor, or a few.

Given $x_o$ the predictor $\eta_i=\beta^\top(c_i, x_i)$ is Gaussian, $N(m_i, v_i)$, so that
$\log p(y_i, x_{i,o}) = \log N(x_{i,o}) + \log\int p(y_i|u)N(u; m_i, v_i)du$ takes one dimension of quadrature at most. Its
gradient is that of Fisher's identity in closed form: with $g_1, g_2$ the derivatives of the second term in m,
$E[x_m|x_o,y]=\xi+g_1 t$ and $Cov=A^{-1}+g_2 tt^\top$, $t=A^{-1}\beta_m$. With J predictors, a row of "beta" each, $g_1$ is a
vector, $g_2$ a matrix, and t has J columns; of such a family `moments` is registered where the family is.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...numerics.packing import symmetric
from .families import AbstractFamily, Gaussian, marginal_scale_slope
from .observed import Groups, Params, Rows, filled, given_observed, spread

if TYPE_CHECKING:
    from .multinomial import Multinomial


class Moments(NamedTuple):
    r"""Of each row given all that is observed of it: $\log p(y\mid x_o)$, $\log p(x_o)$; the predictor before y is seen, $m$ and
    $v$; the derivatives $g_1, g_2$; $E[x\mid x_o, y]$ (n, p), and $A^{-1}\beta_m$ in its places (n, p).

    With several predictors m and $g_1$ are (n, j), v and $g_2$ (n, j, j), and the last (n, j, p).
    """

    log_outcome: Float[Array, " n"]
    log_x: Float[Array, " n"]
    predictor: Float[Array, "n ..."]
    variance: Float[Array, "n ..."]
    first: Float[Array, "n ..."]
    second: Float[Array, "n ..."]
    x: Float[Array, "n p"]
    along: Float[Array, "n ... p"]


@functools.singledispatch
def moments(family: AbstractFamily | Multinomial, groups: Groups, params: Params, rows: Rows) -> tuple[Moments, Array]:
    r"""And $\sum_i w_i Cov(x_i\mid x_{i,o}, y_i)$, (p, p)."""
    raise TypeError(f"no exact likelihood for {type(family).__name__}")


@moments.register
def _(family: AbstractFamily, groups: Groups, params: Params, rows: Rows) -> tuple[Moments, Array]:
    before, known = given_observed(params, rows, groups)
    variance = before.sd**2
    log_z, g1, g2 = family.marginal(rows.y, before.mean, variance, params.get("scale", jnp.ones((), rows.y.dtype)))
    # Of z = (eta - m) / sd the mean is sd g1 and the variance 1 + v g2.
    origin, along = filled(params, rows, known, groups)
    along = before.sd[:, None] * along
    x = origin + g1[:, None] * along
    covariance = symmetric(spread(rows, known, groups, rows.weights, rows.weights * (1 + variance * g2)))
    return Moments(log_z, before.log_x, before.mean, variance, g1, g2, x, along), covariance


def score(
    family: AbstractFamily | Multinomial, params: Params, rows: Rows, found: Moments, covariance: Array
) -> dict[str, Array]:
    """Gradient of the observed log-likelihood in beta, mean, covariance and scale: Fisher's identity."""
    w, g1 = rows.weights, found.first
    gap = found.x - rows.c @ params["mean"]
    weighted = w[:, None] * gap
    precision = jnp.linalg.inv(params["covariance"])
    second = gap.T @ weighted + covariance
    # Written for one predictor and for several: transposes put the rows last, where the weights are.
    push = w * g1.T
    along = found.along.reshape(math.prod(found.along.shape[:-1]), found.x.shape[1])
    curved = (w * found.second.T).T.reshape(-1, *g1.shape[1:]).T @ along
    out = {
        "beta": jnp.concatenate([push @ rows.c, push @ found.x + curved], axis=-1),
        "mean": rows.c.T @ weighted @ precision,
        "covariance": (precision @ second @ precision - jnp.sum(w) * precision) / 2,
    }
    if isinstance(family, Gaussian):
        out["scale"] = w @ marginal_scale_slope(rows.y, found.predictor, found.variance, params["scale"])
    return out
