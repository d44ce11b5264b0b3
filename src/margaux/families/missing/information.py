r"""The observed information in closed form, in one visit of the rows.

With the natural parameters $h_i = QB^\top c_i$ and $Q = \Sigma^{-1}$ of the covariates,
$\log p(y_i, x_{i,o}) = \log\int e^{h_i^\top x - x^\top Qx/2}\,p(y_i\mid\eta)\,dx_m - F_i(h, Q)$. With $\bar x = E[x\mid x_o]$,
C the covariance $A^{-1}$ of $x_m$ in its places, $t_j = C\beta_j$, and g, G first and second derivatives of $\log Z(m, V)$ in the
means $m$ of the predictors, the integral changes along $(dh, dQ, d\beta)$ to second order by

$(e + \sum_j g_jf_j)^\top C(e + \sum_j g_jf_j) + \sum_{jk}G_{jk}f_j^\top Cf_k + \tfrac12 tr(dQ\,C\,dQ\,C)
+ (dm, dV)^\top\nabla^2\log Z\,(dm, dV)$

where $e = dh - dQ\,\bar x$, $f_j = d\beta_j - dQ\,t_j$, $dm_j = \bar x^\top d\beta_j + t_j^\top e$ and
$dV_{jk} = t_j^\top d\beta_k + t_k^\top d\beta_j - t_j^\top dQ\,t_k$. As $\partial_V = \tfrac12\partial_m\partial_m^\top$,
the last term takes derivatives of Z in m up to the fourth. Sums over rows are products of matrices with a row each.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .coordinates import Struct
from .families import AbstractFamily, Gaussian
from .observed import Groups, Params, Rows, filled, given_observed, spreads

if TYPE_CHECKING:
    from .multinomial import Multinomial


class Before(NamedTuple):
    r"""Of rows given their observed covariates: $\bar x$, $t_j$, the lower triangle of C row by row; and
    $\partial^kZ/Z$ in the j means of the predictors, k = 1, ..., 4."""

    x: Float[Array, "b p"]
    along: Float[Array, "b j p"]
    covariance: Float[Array, "b t"]
    ratios: tuple[Array, Array, Array, Array]


@functools.singledispatch
def before(family: AbstractFamily | Multinomial, groups: Groups, params: Params, rows: Rows) -> Before:
    """See `Before`."""
    raise TypeError(f"no information in closed form for {type(family).__name__}")


@before.register
def _(family: AbstractFamily, groups: Groups, params: Params, rows: Rows) -> Before:
    found, known = given_observed(params, rows, groups)
    origin, unit = filled(params, rows, known, groups)
    one = jnp.ones_like(rows.y)
    ratios = family.ratios(rows.y, found.mean, found.sd**2, params.get("scale", jnp.ones((), rows.y.dtype)))
    shaped: Any = tuple(ratio.reshape(-1, *[1] * k) for k, ratio in enumerate(ratios, start=1))
    return Before(origin, (found.sd[:, None] * unit)[:, None], spreads(rows, known, groups, one, one), shaped)


class Sums(NamedTuple):
    r"""Weighted sums over rows. With $u = (c, g, \bar x + \sum_jg_jt_j)$, $u_j = (0, 1_j, t_j)$ of length r, and
    $S = uu^\top + \sum_{jk}G_{jk}u_ju_k^\top$: of C times S and times C, packed lower triangles; what $(dm, dV)$ contributes to
    the second derivatives in $\beta, H = BQ, Q$ and the scale; the first derivatives in them; and $cc^\top$."""

    products: Float[Array, "t s"]
    bent: Float[Array, "n n"]
    slope: Float[Array, " n"]
    fixed: Float[Array, "k k"]


def sums(family: AbstractFamily | Multinomial, groups: Groups, params: Params, rows: Rows) -> Sums:
    """Over the rows of a group."""
    x, along, covariance, (first, second, third, fourth) = before(family, groups, params, rows)
    w, c = rows.weights, rows.c
    b, j, p = along.shape
    curved = second - first[:, :, None] * first[:, None]
    after = x + jnp.einsum("bj,bjp->bp", first, along)
    point = jnp.concatenate([c, first, after], axis=1)
    units = jnp.broadcast_to(jnp.eye(j), (b, j, j))
    directions = jnp.concatenate([jnp.zeros((b, j, c.shape[1])), units, along], axis=2)
    square = _lower(point, point) + jnp.sum(_lower(jnp.einsum("bjl,blr->bjr", curved, directions), directions), axis=1)
    products = covariance.T @ (w[:, None] * jnp.concatenate([square, covariance], axis=1))

    moved = _moved(family, c, x, along)
    one, other = np.tril_indices(j)
    # A change of V counts its lower triangle twice, but for the diagonal, and is half a second derivative in m.
    half = _twice(j) / 2
    first_v, mixed = half * second[:, one, other], half * third[:, :, one, other]
    twofold = half[:, None] * half * fourth[:, one, other][:, :, one, other]
    mixed = mixed - first[:, :, None] * first_v[:, None]
    twofold = twofold - first_v[:, :, None] * first_v[:, None]
    bend = jnp.block([[curved, mixed], [jnp.swapaxes(mixed, 1, 2), twofold]])
    size = moved.shape[2]
    bent = moved.reshape(-1, size).T @ jnp.einsum("bfg,bgn->bfn", w[:, None, None] * bend, moved).reshape(-1, size)

    slope = jnp.einsum("bf,bfn->n", w[:, None] * jnp.concatenate([first, first_v], axis=1), moved)
    held = (w[:, None] * c).T @ x
    spread = -_twice(p) / 2 * (w @ (_lower(x, x) + covariance))
    at = j * (c.shape[1] + p)
    slope = slope.at[at : at + held.size + len(spread)].add(jnp.concatenate([held.ravel(), spread]))
    return Sums(products, bent, slope, (w[:, None] * c).T @ c)


def _moved(family: AbstractFamily | Multinomial, c: Array, x: Array, along: Array) -> Float[Array, "b f n"]:
    """How the means of the predictors, and the lower triangle of their variance, move with beta, H, the lower triangle of Q, and
    the scale."""
    b, j, p = along.shape
    k, (one, other) = c.shape[1], np.tril_indices(j)
    own = np.eye(j)
    entries = jnp.concatenate([c, x], axis=1)
    turns = jnp.concatenate([jnp.zeros((b, j, k)), along], axis=2)
    m_beta = own[:, :, None] * entries[:, None, None]
    v_beta = own[other][:, :, None] * turns[:, one, None] + own[one][:, :, None] * turns[:, other, None]
    m_h, v_h = c[:, None, :, None] * along[:, :, None], jnp.zeros((b, len(one), k * p))
    m_q, v_q = -_form(along, x[:, None]), -_form(along[:, one], along[:, other])
    m_parts = [m_beta.reshape(b, j, -1), m_h.reshape(b, j, -1), m_q]
    v_parts = [v_beta.reshape(b, len(one), -1), v_h, v_q]
    if isinstance(family, Gaussian):
        # The residual variance adds to that of the predictor.
        m_parts, v_parts = [*m_parts, jnp.zeros((b, j, 1))], [*v_parts, jnp.ones((b, len(one), 1))]
    return jnp.concatenate([jnp.concatenate(m_parts, axis=2), jnp.concatenate(v_parts, axis=2)], axis=1)


def total(struct: Struct, flat: Array, over: Sums) -> Float[Array, "f f"]:
    """The observed information in the free coordinates, from the sums over all rows."""
    k, p, j = struct.k, struct.p, math.prod(struct.lead)
    r = k + j + p
    of_p, of_r = _places(p), _places(r)
    count = p * (p + 1) // 2
    joint = over.products[:, : r * (r + 1) // 2][of_p][:, :, of_r].transpose(0, 2, 1, 3)
    twin = over.products[:, r * (r + 1) // 2 :][of_p][:, :, of_p]
    # tr(dQ C dQ C) takes C_bc C_da at dQ_ab dQ_cd.
    joint = joint.at[:, k + j :, :, k + j :].add(twin.transpose(3, 0, 1, 2) / 2)
    # The columns of e + sum g f and f are those of H', beta and -Q.
    n_beta = j * (k + p)
    h = n_beta + np.arange(k * p).reshape(k, p).T
    beta = (np.arange(n_beta).reshape(j, k + p)[:, k:]).T
    at = np.concatenate([h, beta, n_beta + k * p + of_p], axis=1).ravel()
    sign = np.where(np.arange(r) < k + j, 1.0, -1.0)
    size = n_beta + k * p + count + struct.scale
    joint = (joint * sign[:, None, None] * sign).reshape(p * r, p * r)
    second = over.bent + jnp.zeros((size, size)).at[at[:, None], at[None]].add(joint)

    def remainder(u: Array) -> Array:
        natural = _natural(struct, u)
        h, packed = natural[n_beta : n_beta + k * p].reshape(k, p), natural[n_beta + k * p :][:count]
        q = packed[of_p]
        half = jnp.sum(over.fixed * (h @ jnp.linalg.solve(q, h.T))) / 2
        return over.slope @ natural - half + over.fixed[0, 0] * jnp.linalg.slogdet(q)[1] / 2

    jacobian = jax.jacfwd(lambda u: _natural(struct, u))(flat)
    matrix = jacobian.T @ second @ jacobian + jax.hessian(remainder)(flat)
    return -(matrix + matrix.T) / 2


def _natural(struct: Struct, flat: Array) -> Float[Array, " n"]:
    """beta, H = BQ, the lower triangle of Q, and the scale."""
    params, root = struct.natural(flat), struct.root(flat)
    q = root @ root.T
    parts = [params["beta"].ravel(), (params["mean"] @ q).ravel(), q[np.tril_indices(struct.p)]]
    return jnp.concatenate([*parts, *([params["scale"][None]] if struct.scale else [])])


def _lower(a: Array, b: Array) -> Array:
    """Lower triangles of ab', (..., t)."""
    one, other = np.tril_indices(a.shape[-1])
    return a[..., one] * b[..., other]


def _form(a: Array, b: Array) -> Any:
    """a'Qb as a linear function of the lower triangle of Q, symmetric, (..., t)."""
    return _twice(a.shape[-1]) / 2 * (_lower(a, b) + _lower(b, a))


def _twice(size: int) -> np.ndarray:
    """How often an entry of a lower triangle stands in the symmetric matrix."""
    one, other = np.tril_indices(size)
    return np.where(one == other, 1.0, 2.0)


def _places(size: int) -> np.ndarray:
    """Where the entries of a symmetric matrix are in its lower triangle."""
    one, other = np.indices((size, size))
    high, low = np.maximum(one, other), np.minimum(one, other)
    return high * (high + 1) // 2 + low
