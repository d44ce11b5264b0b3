"""Multinomial logistic regression with missing covariates as the engine sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...problem.space import AbstractSpace, PositiveDefinite, Real
from .model import AbstractMissing
from .multinomial import Multinomial, Predictors, filled_each, given_observed_each, spread_each
from .observed import Rows

if TYPE_CHECKING:
    from jaxtyping import PyTree


class MissingMultinomial(AbstractMissing):
    r"""$x_i\sim N(B^\top c_i, \Sigma)$ with entries missing at random, $y_i\mid x_i$ one of K classes with the logits
    $\eta_{ij}=\beta_j^\top(c_i, x_i)$ of classes 1, ..., K - 1 against class 0.

    The outcome sees what is missing through $\eta_i$ alone, so the latent has K - 1 numbers a row, $\eta_i = m_i + L_iz_i$ with
    $z_i\sim N(0, I)$ before y is seen; everything else is integrated out.

    Parameters: "beta" (K - 1, k + p), a row a class, "mean" B (k, p), "covariance" (p, p). A unit's data is a row of
    `observed.Rows` without an offset, whose weight counts in the surrogate, not in `log_joint`. The surrogate of beta is
    quadratic with curvature $W\otimes E[uu^\top]$, $u=(c, x)$.

    Args:
        curvature: W: "tight" and "largest" are both $\tfrac12(I - 11^\top/K)$, which bounds the curvature everywhere (Boehning
            1992); "newton" is the curvature itself, $\mathrm{diag}(p)-pp^\top$, and no bound.
        groups: of `observed.arrange`, for batches of all rows.
        known: of a prepared model, the second part of `given_observed_each`.
    """

    family: Multinomial
    n_columns: int = eqx.field(static=True, kw_only=True)

    def space(self) -> dict[str, AbstractSpace]:
        """Theta."""
        return {"beta": Real(), "mean": Real(), "covariance": PositiveDefinite()}

    def given(self, params, rows, groups):
        return given_observed_each(params, rows, groups)

    def log_joint(self, params, z, y):
        rows, before = self._one(params, y)
        value = self.family.log_density(rows.y, before.mean + before.root @ z)
        return before.log_x + value - z @ z / 2 - len(z) * jnp.log(2 * jnp.pi) / 2

    def pointwise(self, params, z, y):
        rows, before = self._one(params, y)
        return self.family.log_density(rows.y, before.mean + before.root @ z)

    def simulate(self, key, params, z, y):
        _, before = self._one(params, y)
        return {"y": self.family.simulate(key, before.mean + before.root @ z)}

    def init_latents(self, key, params, y):
        rows = y if isinstance(y, Rows) else y[0]
        return jnp.zeros(self.family.n_classes - 1, rows.y.dtype)

    def moments(self, params, z, w, batch):
        rows, before = batch
        eta = jnp.moveaxis(before.mean + jnp.einsum("bjl,mbl->mbj", before.root, z), 2, 0)
        p = self.family.probabilities(eta)
        w = w * rows.weights
        first = self.family.chosen(rows.y)[:, None] - p
        parts: list[Any] = [None] * 3
        if self.curvature == "newton":
            h = p[:, None] * (jnp.eye(len(p), dtype=p.dtype)[..., None, None] - p[None])
            parts = [jnp.einsum(f"mb,jkmb{terms}", w, h, *[z] * n) for n, terms in enumerate(_DRAWS)]
        return _Moments(
            jnp.einsum("mb,mbl->bl", w, z),
            jnp.einsum("mb,mbl,mbo->blo", w, z, z),
            jnp.einsum("mb,jmb->bj", w, first),
            jnp.einsum("mb,jmb,mbl->bjl", w, first, z),
            *parts,
        )

    def surrogates(self, params, moments, batch):
        return self._coefficients(params, moments, batch, total=False)

    def total_surrogate(self, params, moments, batch):
        return self._coefficients(params, moments, batch, total=True)

    def _coefficients(self, params: PyTree, s: _Moments, batch: tuple[Rows, Predictors], total: bool) -> dict[str, Array]:
        """Of each row, or summed: E[uu'], what multiplies beta, and with "newton" the curvature."""
        rows, weights, beta = batch[0], batch[0].weights, params["beta"]
        k = rows.c.shape[1]
        origin, directions = filled_each(params, rows, self.known, self.groups)
        u = jnp.concatenate([rows.c, origin], axis=1)

        def square(h: Array, hz: Array, hzz: Array) -> Array:
            r"""$E[h uu^\top]$ from sums over draws of h, hz and hzz'."""
            half = h[:, None] * u / 2
            half = half.at[:, k:].add(jnp.einsum("bl,lbp->bp", hz, directions))
            body = u.T @ half if total else u[:, :, None] * half[:, None]
            spread = spread_each(rows, self.known, self.groups, h, hzz, total)
            return (body + jnp.swapaxes(body, -1, -2)).at[..., k:, k:].add(spread)

        if total:
            score = (s.first.T @ u).at[:, k:].add(jnp.einsum("bjl,lbp->jp", s.firstz, directions))
        else:
            score = (s.first[:, :, None] * u[:, None]).at[..., k:].add(jnp.einsum("bjl,lbp->bjp", s.firstz, directions))
        out = {"weight": jnp.sum(weights) if total else weights, "square": square(weights, s.z, s.zz)}
        if self.curvature == "newton":
            each = jax.vmap(jax.vmap(square, in_axes=1, out_axes=-1), in_axes=1, out_axes=-1)(s.h, s.hz, s.hzz)
            out["information"] = each
            return out | {"target": jnp.einsum("...qrlj,lr->...jq", each, beta) + score}
        # The inverse of W is 2 (I + 11').
        return out | {"target": beta @ out["square"] + 2 * (score + jnp.sum(score, axis=-2, keepdims=True))}

    def m_step(self, mean_surrogate):
        s = mean_surrogate
        square, target = s["square"], s["target"]
        k = len(square) - self.n_columns
        coefficients = jnp.linalg.solve(square[:k, :k], square[:k, k:])
        covariance = (square[k:, k:] - square[k:, :k] @ coefficients) / s["weight"]
        if self.curvature == "newton":
            information = jnp.transpose(s["information"], (3, 0, 2, 1)).reshape(target.size, target.size)
            beta = jax.scipy.linalg.solve(information, target.ravel(), assume_a="pos").reshape(target.shape)
        else:
            beta = jax.scipy.linalg.solve(square, target.T, assume_a="pos").T
        return {"beta": beta, "mean": coefficients, "covariance": (covariance + covariance.T) / 2}


#: sums over draws of the curvature times nothing, z, and zz'
_DRAWS = ("->bjk", ",mbl->bjkl", ",mbl,mbo->bjklo")


class _Moments(NamedTuple):
    """Weighted sums over the draws of each row: of z and zz', of the slope and the slope times z', and with "newton" of the
    curvature h times 1, z and zz'."""

    z: Float[Array, "b l"]
    zz: Float[Array, "b l l"]
    first: Float[Array, "b j"]
    firstz: Float[Array, "b j l"]
    h: Array
    hz: Array
    hzz: Array
