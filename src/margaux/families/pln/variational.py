r"""Variational EM of the Poisson log-normal model of rank q, with a full covariance matrix a unit.

Unit i has $z_i = o_i + B^\top x_i + Cw_i$, $w_i\sim N(0, I_q)$ and $y_{ij}\sim\mathrm{Poisson}(e^{z_{ij}})$ (Batardiere, Chiquet,
Kwon and Stoehr, eq. 2). With $w_i\mid y_i\approx N(m_i, S_i)$ the bound is
$$\sum_{ij}\Big[y_{ij}\eta_{ij} - A_{ij} - \log y_{ij}!\Big]
- \tfrac12\sum_i\Big[|m_i|^2 + \mathrm{tr}S_i - \log|S_i| - q\Big],\quad A_{ij} = e^{\eta_{ij}+c_j^\top S_ic_j/2}.$$
Counts enter linearly, so that a sparse table stays sparse, and everything else is products of the rates A of a block of units
with symmetric matrices of order q in packed form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...numerics.compiling import compiled
from ...numerics.elimination import inverted, solved
from ...numerics.packing import lower_indices, symmetric, unpacked

#: the longest step of a feature's coefficients
LONGEST = 2.0
#: rates of a block of units, at most
BLOCK = 1 << 22
#: exponents beyond which rates are not followed
HIGHEST = 80.0


class Loadings(NamedTuple):
    """B (k, p) and C (p, q)."""

    B: Float[Array, "k p"]
    C: Float[Array, "p q"]


class Posterior(NamedTuple):
    """Of each unit: m (n, q), and the lower triangle of S (n, t)."""

    mean: Float[Array, "n q"]
    spread: Float[Array, "n t"]

    def rows(self, rows: Any) -> Posterior:
        """Of some units, as arrays of NumPy."""
        mean, spread = (np.asarray(leaf)[rows] for leaf in self)
        return Posterior(mean, spread)  # type: ignore[arg-type]


class Place(NamedTuple):
    """Loadings and the means of the units."""

    loadings: Loadings
    mean: Float[Array, "n q"]


class Units(NamedTuple):
    """Of a block of units: covariates (b, k), offsets (b, 1) or (b, p), and y C (b, q)."""

    x: Float[Array, "b k"]
    offset: Float[Array, "b o"]
    projected: Float[Array, "b q"]


class Basis(NamedTuple):
    """Covariates of the units of this process, their part of the pseudo-inverse, and one for each unit, zero for one that fills
    the table up; the Gram matrix of the covariates of all units and the number of these."""

    x: Float[Array, "n k"]
    inverse: Float[Array, "k n"]
    real: Float[Array, " n"]
    gram: Float[Array, "k k"]
    count: Array


class Moments(NamedTuple):
    r"""Over units: $X^+M$, $M^\top M$ and $\sum_iS_i$ in packed form."""

    slope: Float[Array, "k q"]
    square: Float[Array, "q q"]
    spread: Float[Array, " t"]


class Sums(NamedTuple):
    r"""Over units, weighted by the rates of each feature: of 1 before and after the steps of the units (p,), of x, xx', xm', m,
    mm' and S in packed form, (p, ...); and minus the rates less the divergence from the prior, a number."""

    before: Float[Array, " p"]
    rates: Float[Array, " p"]
    x: Float[Array, "p k"]
    xx: Float[Array, "p kk"]
    xm: Float[Array, "p kq"]
    m: Float[Array, "p q"]
    mm: Float[Array, "p t"]
    s: Float[Array, "p t"]
    bound: Array


def rates(loadings: Loadings, posterior: Posterior, units: Units) -> Float[Array, "b p"]:
    """A of a block."""
    B, C = loadings
    j, k, twice = lower_indices(C.shape[1])
    left = jnp.concatenate([units.x, posterior.mean, posterior.spread * jnp.asarray(twice, C.dtype)], axis=1)
    exponents = product(left, jnp.concatenate([B, C.T, (C[:, j] * C[:, k]).T / 2]))
    return jnp.exp(jnp.minimum(units.offset + exponents, HIGHEST))


def product(left: Float[Array, "b r"], right: Float[Array, "r p"]) -> Float[Array, "b p"]:
    """left right, of which exponentials are taken next.

    It has a row more than is used, so that they are not written over their arguments: XLA's loop in place is three times
    slower on CPU.
    """
    return (jnp.concatenate([left, left[:1]]) @ right)[:-1]


def unit_steps(
    loadings: Loadings, posterior: Posterior, units: Units, steps: int, diagonal: bool = False, slack: float = 0.0
) -> tuple[Posterior, Array, Array]:
    r"""Newton steps of each unit's m with $S = (I + C^\top\mathrm{diag}(A)C)^{-1}$, a quarter as long where the bound would fall
    by more than `slack`, relative to the unit's rates. A diagonal S has the inverses of the diagonal.

    Returns:
        The posterior, its rates, and each unit's part of the bound less what is linear in y and B.
    """
    C = loadings.C
    q = C.shape[1]
    j, k, _ = lower_indices(q)
    products, own = C[:, j] * C[:, k], jnp.asarray(j == k, C.dtype)

    def value(state: Posterior, A: Array) -> Array:
        log_det = inverted(unpacked(state.spread.T))[1]
        square = jnp.sum(state.mean**2, axis=1) + state.spread @ own - log_det - q
        return jnp.sum(units.projected * state.mean, axis=1) - jnp.sum(A, axis=1) - square / 2

    def move(state: tuple) -> tuple:
        posterior, A, best, share = state
        information = unpacked((A @ products).T) + jnp.eye(q, dtype=C.dtype)[:, :, None]
        S = inverted(information)[0]
        step = jnp.sum(S * (units.projected - A @ C - posterior.mean).T, axis=1).T
        spread = own / jnp.where(own > 0, information[j, k].T, 1) if diagonal else S[j, k].T
        tried = Posterior(posterior.mean + share[:, None] * step, posterior.spread + share[:, None] * (spread - posterior.spread))
        moved = rates(loadings, tried, units)
        there = value(tried, moved)
        good = there >= best - slack * (1 + jnp.sum(A, axis=1))

        def keep(new, old):
            return jnp.where(good.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        share = jnp.where(good, 1.0, share / 4)
        return Posterior(*map(keep, tried, posterior)), keep(moved, A), keep(there, best), share

    A = rates(loadings, posterior, units)
    state = (posterior, A, value(posterior, A), jnp.ones(len(A), A.dtype))
    posterior, A, best, _ = jax.lax.fori_loop(0, steps, lambda _, state: move(state), state)
    return posterior, A, best


@compiled
def visit(loadings: Loadings, posterior: Posterior, units: Units, steps: int, diagonal: bool = False) -> tuple[Posterior, Sums]:
    """A block of units: their steps, and the sums that the features need."""
    before = jnp.sum(rates(loadings, posterior, units), axis=0)
    posterior, A, value = unit_steps(loadings, posterior, units, steps, diagonal)
    x, m = units.x, posterior.mean
    (a, b, _), (j, k, _) = lower_indices(x.shape[1]), lower_indices(m.shape[1])
    mixed = (x[:, :, None] * m[:, None, :]).reshape(len(x), -1)
    right = [jnp.ones_like(x[:, :1]), x, x[:, a] * x[:, b], mixed, m, m[:, j] * m[:, k], posterior.spread]
    cuts = np.cumsum([part.shape[1] for part in right])[:-1]
    total, first, xx, xm, means, mm, s = jnp.split(A.T @ jnp.concatenate(right, axis=1), cuts, axis=1)
    return posterior, Sums(before, total[:, 0], first, xx, xm, means, mm, s, jnp.sum(value))


@compiled
def feature_steps(loadings: Loadings, linear: Loadings, sums: Sums) -> tuple[Loadings, Array]:
    r"""A Newton step of each feature's $(b_j, c_j)$. The gradient is exact; the curvature
    $\sum_iA_{ij}[u_{ij}u_{ij}^\top + \mathrm{diag}(0, S_i)]$, $u_{ij} = (x_i, m_i + S_ic_j)$, has in u the mean of the $S_i$
    weighted by the rates.

    Args:
        linear: X'Y (k, p) and Y'M (p, q).

    Returns:
        The step, and the increase that each feature's quadratic promises, (p,).
    """
    B, C = loadings
    k, q = len(B), C.shape[1]
    pull = jnp.einsum("pij,pj->pi", symmetric(sums.s), C)
    gradient = jnp.concatenate([linear.B.T - sums.x, linear.C - sums.m - pull], axis=1)
    centre = pull / jnp.maximum(sums.rates, jnp.finfo(C.dtype).tiny)[:, None]
    cross = sums.m[:, :, None] * centre[:, None, :]
    mm = symmetric(sums.mm) + symmetric(sums.s) + cross + jnp.swapaxes(cross, 1, 2) + pull[:, :, None] * centre[:, None, :]
    xm = sums.xm.reshape(-1, k, q) + sums.x[:, :, None] * centre[:, None, :]
    top = jnp.concatenate([symmetric(sums.xx), xm], axis=2)
    curvature = jnp.concatenate([top, jnp.concatenate([jnp.swapaxes(xm, 1, 2), mm], axis=2)], axis=1)
    ridge = 1e-6 * jnp.einsum("pii->p", curvature) / (k + q) + jnp.finfo(C.dtype).tiny
    curvature = curvature + ridge[:, None, None] * jnp.eye(k + q, dtype=C.dtype)
    step = solved(jnp.moveaxis(curvature, 0, 2), gradient.T).T
    step = step * jnp.minimum(1.0, LONGEST / jnp.maximum(jnp.max(jnp.abs(step), axis=1, keepdims=True), 1e-30))
    return Loadings(step[:, :k].T, step[:, k:]), jnp.sum(gradient * step, axis=1) / 2


@compiled
def moments(posterior: Posterior, basis: Basis) -> Moments:
    """Of the units of this process."""
    m = posterior.mean
    return Moments(basis.inverse @ m, m.T @ m, basis.real @ posterior.spread)


@compiled
def whitened(
    loadings: Loadings, posterior: Posterior, of_all: Moments, basis: Basis, past: Place, diagonal: bool = False
) -> tuple[Loadings, Posterior, Place]:
    r"""The same predictors with m free of X and $\frac1n\sum_i(m_im_i^\top + S_i) = I$, which raises the bound (parameter
    expansion: Liu, Rubin and Wu 1998); and a past place in these coordinates. Where S stays diagonal, only the diagonal is that
    of I."""
    m, S = posterior.mean, symmetric(posterior.spread)
    j, k, _ = lower_indices(m.shape[1])
    slope = of_all.slope
    second = (of_all.square - slope.T @ basis.gram @ slope + symmetric(of_all.spread)) / basis.count
    root = jnp.diag(jnp.sqrt(jnp.diag(second))) if diagonal else jnp.linalg.cholesky(second)
    back = jnp.linalg.inv(root)
    turned = jnp.einsum("ij,njk,lk->nil", back, S, back)[:, j, k]
    turned = jnp.where(basis.real[:, None] > 0, turned, jnp.asarray(j == k, m.dtype))

    def there(l, m):
        return Place(Loadings(l.B + slope @ l.C.T, l.C @ root), (m - basis.x @ slope) @ back.T)

    new = there(loadings, m)
    return new.loadings, Posterior(new.mean, turned), there(*past)
