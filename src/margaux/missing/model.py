"""Regression with missing covariates as the engine sees it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..model import AbstractSurrogate, leading
from ..space import AbstractSpace, Positive, PositiveDefinite, Real
from .families import AbstractFamily, Gaussian
from .observed import Predictor, Rows, completed, given_observed, spread

#: how the surrogate of beta is curved: the tightest bound at the current predictor, the largest, or the curvature itself
CURVATURES = ("tight", "largest", "newton")


class MissingCovariates(AbstractSurrogate):
    r"""$x_i\sim N(B^\top c_i, \Sigma)$ with entries missing at random, $y_i\mid x_i$ a generalised linear model in
    $\eta_i=\beta^\top(c_i, x_i)$.

    The outcome sees what is missing through $\eta$ alone, so the latent is one number a row: $\eta_i = m_i + \sqrt{v_i}z_i$ with
    $z_i\sim N(0, 1)$ before y is seen. Everything else is integrated out. A chain of z accepts just as independence
    Metropolis-Hastings from the conditional Gaussian of $x_m$ does (Karimi, Wai, Moulines and Li, appendix B.2; its
    covariance with the minus of the errata).

    Parameters: "beta" (k + p,), "mean" B (k, p), "covariance" (p, p), and "scale" of a linear model. A unit's data is a
    row of `observed.Rows`, whose weight counts in the surrogate, not in `log_joint`: use algorithms of surrogates where
    weights differ. The surrogate of beta is quadratic, $D_i=E[z_i\ell'(\eta_i)]$, $H_i=E[h(\eta_i)z_iz_i^\top]$, and the
    minimiser of their sum is $(\sum_i H_i)^{-1}\sum_i(H_i\beta_i + D_i)$ (errata; eq. 44 has the sign wrong); those of B and
    Sigma are the moments of x.

    Args:
        curvature: h: "tight" (for logistic outcomes the bound of Jaakkola and Jordan), "largest" (1/4, the paper's), or
            "newton", minus the second derivative, which is no bound.
        groups: of `observed.arrange`, for batches of all rows.
        known: of a prepared model, the second part of `given_observed`.
    """

    family: AbstractFamily
    curvature: str = eqx.field(static=True, default="tight")
    groups: tuple[tuple[int, int], ...] = eqx.field(static=True, default=())
    known: Any = None

    def __check_init__(self) -> None:
        if self.curvature not in CURVATURES:
            raise ValueError(f"curvature must be one of {', '.join(CURVATURES)}; got {self.curvature!r}")

    def space(self) -> dict[str, AbstractSpace]:
        """Theta."""
        out: dict[str, AbstractSpace] = {"beta": Real(), "mean": Real(), "covariance": PositiveDefinite()}
        return out | ({"scale": Positive()} if isinstance(self.family, Gaussian) else {})

    def prepared(self, params, batch):
        if self.known is not None:
            return self, batch
        rows: Rows = batch
        b = leading(rows)
        groups = self.groups if sum(count for count, _ in self.groups) == b else ((b, rows.places.shape[1]),)
        prepared, known = given_observed(params, rows, groups)
        return MissingCovariates(self.family, self.curvature, groups, known), (rows, prepared)

    def _one(self, params: dict, y: Any) -> tuple[Rows, Predictor]:
        """Data of one unit with its preparation."""
        if not isinstance(y, Rows):
            return y
        rows = jax.tree.map(lambda leaf: leaf[None], y)
        prepared, _ = given_observed(params, rows, ((1, y.places.shape[0]),))
        return y, jax.tree.map(lambda leaf: leaf[0], prepared)

    def log_joint(self, params, z, y):
        rows, known = self._one(params, y)
        value = self.family.log_density(rows.y, known.mean + known.sd * z, self._scale(params))
        return known.log_x + value - z**2 / 2 - jnp.log(2 * jnp.pi) / 2

    def init_latents(self, key, params, y):
        rows = y if isinstance(y, Rows) else y[0]
        return 0.0 * rows.y

    def _scale(self, params: dict) -> Any:
        return params.get("scale", jnp.ones((), params["beta"].dtype))

    def _slopes(self, params: dict, rows: Rows, eta: Array) -> tuple[Array, Array]:
        """$\\ell'$ and h at predictors, times the scale."""
        scale = self._scale(params)
        first, second = self.family.slopes(rows.y, eta, scale)
        if self.curvature == "newton":
            h = -second
        else:
            h = (self.family.bound if self.curvature == "tight" else self.family.largest_bound)(rows.y, eta, scale)
        return first * scale, h * scale

    def surrogate(self, params, z, y):
        model, batch = self.prepared(params, jax.tree.map(lambda leaf: leaf[None], y))
        return model.total_surrogate(params, z[None, None], jnp.ones((1, 1), z.dtype), batch)

    def total_surrogate(self, params, z, w, batch):
        rows, known = batch
        k = rows.c.shape[1]
        eta = known.mean + known.sd * z
        first, h = self._slopes(params, rows, eta)
        w = w * rows.weights
        whole, curved = jnp.sum(w, axis=0), jnp.sum(w * h, axis=0)
        # Given eta a row is its fill-in at z = 0 plus z times a direction. Of several draws, sums over draws come first.
        if len(z) == 1:
            point = self._design(params, rows, z[0])
            products = point.T @ jnp.concatenate([whole[:, None] * point, curved[:, None] * point], axis=1)
            score = point.T @ (w[0] * first[0])
        else:
            origin = self._design(params, rows, jnp.zeros_like(z[0]))
            along = self._design(params, rows, jnp.ones_like(z[0])) - origin
            moments = lambda u: (jnp.sum(u * z, axis=0), jnp.sum(u * z**2, axis=0))  # noqa: E731
            pairs = [_products(origin, along, sums, *moments(u)) for sums, u in ((whole, w), (curved, w * h))]
            products = jnp.concatenate(pairs, axis=1)
            score = origin.T @ jnp.sum(w * first, axis=0) + along.T @ jnp.sum(w * first * z, axis=0)
        square, information = jnp.split(products, 2, axis=1)
        zero = jnp.zeros_like(whole)
        covariances = [spread(rows, self.known, self.groups, sums, zero) for sums in (whole, curved)]
        information = information.at[k:, k:].add(covariances[1])
        out = {
            "weight": jnp.sum(whole),
            "cc": square[:k, :k],
            "cx": square[:k, k:],
            "xx": square[k:, k:] + covariances[0],
            "information": information,
            "target": information @ params["beta"] + score,
        }
        if isinstance(self.family, Gaussian):
            out["yy"] = jnp.sum(whole * (rows.y - rows.offset) ** 2)
        return out

    def _design(self, params: dict, rows: Rows, z: Array) -> Array:
        """(c, E[x | x_o, z]) of each row, (b, k + p)."""
        return jnp.concatenate([rows.c, completed(params, rows, self.known, self.groups, z)], axis=1)

    def m_step(self, mean_surrogate):
        s = mean_surrogate
        coefficients = jnp.linalg.solve(s["cc"], s["cx"])
        covariance = (s["xx"] - s["cx"].T @ coefficients) / s["weight"]
        beta = jax.scipy.linalg.solve(s["information"], s["target"], assume_a="pos")
        out = {"beta": beta, "mean": coefficients, "covariance": (covariance + covariance.T) / 2}
        if isinstance(self.family, Gaussian):
            out["scale"] = (s["yy"] - 2 * beta @ s["target"] + beta @ s["information"] @ beta) / s["weight"]
        return out


def _products(a: Array, b: Array, aa: Array, ab: Array, bb: Array) -> Array:
    """$\\sum_i (aa_i a_ia_i^\\top + ab_i(a_ib_i^\\top + b_ia_i^\\top) + bb_i b_ib_i^\\top)$."""
    return a.T @ (aa[:, None] * a + ab[:, None] * b) + b.T @ (ab[:, None] * a + bb[:, None] * b)
