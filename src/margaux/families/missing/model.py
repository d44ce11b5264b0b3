"""Regression with missing covariates as the engine sees it."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...numerics.packing import symmetric
from ...problem.model import AbstractBatchSurrogate, AbstractPointwise, AbstractPredictive, AbstractWeighted, leading
from ...problem.space import AbstractSpace, Positive, PositiveDefinite, Real
from .families import AbstractFamily, Gaussian
from .observed import Groups, Params, Rows, filled, given_observed, spread, spreads

if TYPE_CHECKING:
    from jaxtyping import PyTree


#: how the surrogate of beta is curved: the tightest bound at the current predictor, the largest, or the curvature itself
CURVATURES = ("tight", "largest", "newton")


def check_curvature(curvature: str) -> None:
    """One of `CURVATURES`."""
    if curvature not in CURVATURES:
        raise ValueError(f"curvature must be one of {', '.join(CURVATURES)}; got {curvature!r}")


class AbstractMissing(AbstractBatchSurrogate, AbstractWeighted, AbstractPointwise, AbstractPredictive):
    """A regression whose rows, given what is observed of them, are prepared once for all draws."""

    family: Any
    curvature: str = eqx.field(static=True, default="tight")
    groups: Groups = eqx.field(static=True, default=())
    known: Any = None

    @abc.abstractmethod
    def given(self, params: Params, rows: Rows, groups: Groups) -> tuple[Any, Any]:
        """What the observed entries say of each row: of its predictors, and of the entries that are missing."""

    def __check_init__(self) -> None:
        check_curvature(self.curvature)

    def prepared(self, params, batch):
        if self.known is not None:
            return self, batch
        rows: Rows = batch
        b = leading(rows)
        groups = self.groups if sum(count for count, _ in self.groups) == b else ((b, rows.places.shape[1]),)
        before, known = self.given(params, rows, groups)
        return dataclasses.replace(self, groups=groups, known=known), (rows, before)

    def counted(self, batch, present):
        return batch._replace(weights=batch.weights * present)

    def _one(self, params: dict, y: Any) -> tuple[Rows, Any]:
        """Data of one unit with its preparation."""
        if not isinstance(y, Rows):
            return y
        rows = jax.tree.map(lambda leaf: leaf[None], y)
        before, _ = self.given(params, rows, ((1, y.places.shape[0]),))
        return y, jax.tree.map(lambda leaf: leaf[0], before)


class MissingCovariates(AbstractMissing):
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

    def space(self) -> dict[str, AbstractSpace]:
        """Theta."""
        out: dict[str, AbstractSpace] = {"beta": Real(), "mean": Real(), "covariance": PositiveDefinite()}
        return out | ({"scale": Positive()} if isinstance(self.family, Gaussian) else {})

    def given(self, params, rows, groups):
        return given_observed(params, rows, groups)

    def log_joint(self, params, z, y):
        rows, known = self._one(params, y)
        value = self.family.log_density(rows.y, known.mean + known.sd * z, self._scale(params))
        return known.log_x + value - z**2 / 2 - jnp.log(2 * jnp.pi) / 2

    def pointwise(self, params, z, y):
        rows, known = self._one(params, y)
        return self.family.log_density(rows.y, known.mean + known.sd * z, self._scale(params))

    def simulate(self, key, params, z, y):
        _, known = self._one(params, y)
        return {"y": self.family.simulate(key, known.mean + known.sd * z, self._scale(params))}

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

    def moments(self, params, z, w, batch):
        rows, known = batch
        first, h = self._slopes(params, rows, known.mean + known.sd * z)

        def total(u):
            return jnp.sum(w * u, axis=0) * rows.weights

        return _Moments(total(z), total(z**2), total(h), total(h * z), total(h * z**2), total(first), total(first * z))

    def surrogates(self, params, moments, batch):
        centred = self._centred(params, moments, batch)
        x, turn = centred.point, centred.turn
        b, q = x.shape
        lower = np.flatnonzero(np.tri(q))
        outer = x[:, :, None] * x[:, None, :]
        mixed = x[:, :, None] * turn[:, None, :]
        square = centred.weight[:, None, None] * outer
        information = centred.curvature[:, None, None] * outer + mixed + jnp.swapaxes(mixed, 1, 2)
        packed = [m.reshape(b, q * q)[:, lower] for m in (square, information)]
        target = centred.on_point[:, None] * x + centred.on_direction[:, None] * centred.direction
        covariances = [spreads(batch[0], self.known, self.groups, *pair) for pair in centred.spreads]
        return self._coefficients(packed, target, covariances, centred.weight, batch[0])

    def total_surrogate(self, params, moments, batch):
        centred = self._centred(params, moments, batch)
        x = centred.point
        right = [centred.weight[:, None] * x, centred.curvature[:, None] * x + 2 * centred.turn, centred.on_point[:, None]]
        q = x.shape[1]
        products = x.T @ jnp.concatenate(right, axis=1)
        square, information = products[:, :q], products[:, q : 2 * q]
        packed = [m[np.tril_indices(q)] for m in (square, (information + information.T) / 2)]
        target = products[:, -1] + centred.direction.T @ centred.on_direction
        covariances = [spread(batch[0], self.known, self.groups, *pair) for pair in centred.spreads]
        return self._coefficients(packed, target, covariances, jnp.sum(centred.weight), batch[0])

    def _centred(self, params: dict, moments: _Moments, batch: PyTree) -> _Centred:
        """A row is its point at the mean of z plus the rest of z times a direction."""
        rows, known = batch
        s, w = moments, rows.weights
        z = jnp.where(w > 0, s.z / jnp.where(w > 0, w, 1.0), 0.0)
        origin, along = filled(params, rows, self.known, self.groups)
        point = jnp.concatenate([origin + z[:, None] * along, rows.c], axis=1)
        direction = jnp.concatenate([along, jnp.zeros_like(rows.c)], axis=1)
        cross, squared = s.hz - z * s.h, s.hzz - 2 * z * s.hz + z**2 * s.h
        # The predictor has no variance given z, so that Cov(x | x_o, z) beta = 0, and direction' beta is its SD.
        eta = known.mean + known.sd * z - rows.offset
        on_point = s.h * eta + cross * known.sd + s.first
        on_direction = cross * eta + squared * known.sd + s.firstz - z * s.first
        return _Centred(
            point, direction, w, s.h, cross[:, None] * direction, [(w, s.zz - z * s.z), (s.h, squared)], on_point, on_direction
        )

    def _coefficients(self, packed: list[Array], target: Array, covariances: list[Array], weight: Array, rows: Rows) -> dict:
        """Of E[uu'], E[h uu'] and E[h uu']beta + score with u = (x, c): lower triangles row by row, so that x comes first."""
        count = covariances[0].shape[-1]
        (xx, rest), (first, second) = ((m[..., :count] + c, m[..., count:]) for m, c in zip(packed, covariances, strict=True))
        out = {"weight": weight, "xx": xx, "rest": rest, "information": jnp.concatenate([first, second], axis=-1)}
        out["target"] = target
        if isinstance(self.family, Gaussian):
            each = rows.weights * (rows.y - rows.offset) ** 2
            out["yy"] = each if weight.ndim else jnp.sum(each)
        return out

    def m_step(self, mean_surrogate):
        s = mean_surrogate
        square, information = symmetric(jnp.concatenate([s["xx"], s["rest"]])), symmetric(s["information"])
        p = int(np.sqrt(2 * len(s["xx"])))
        coefficients = jnp.linalg.solve(square[p:, p:], square[p:, :p])
        covariance = (square[:p, :p] - square[:p, p:] @ coefficients) / s["weight"]
        beta = jax.scipy.linalg.solve(information, s["target"], assume_a="pos")
        out = {"beta": jnp.roll(beta, len(beta) - p), "mean": coefficients, "covariance": (covariance + covariance.T) / 2}
        if isinstance(self.family, Gaussian):
            out["scale"] = (s["yy"] - 2 * beta @ s["target"] + beta @ information @ beta) / s["weight"]
        return out


class _Moments(NamedTuple):
    """Weighted sums over the draws of each row, of z, its square, h times one, z and its square, and the slope alike, (b,)."""

    z: Array
    zz: Array
    h: Array
    hz: Array
    hzz: Array
    first: Array
    firstz: Array


class _Centred(NamedTuple):
    r"""u = (x, c) = point + (z - E z) direction, (b, p + k) both. Over draws: sums of the weight, of h (`curvature`), of h
    (z - E z) times direction (`turn`); weights of $Cov(x\mid x_o, z)$ and of the squared direction, without and with h
    (`spreads`); and what point and direction are multiplied with in E[h uu']beta + score."""

    point: Array
    direction: Array
    weight: Array
    curvature: Array
    turn: Array
    spreads: list[tuple[Array, Array]]
    on_point: Array
    on_direction: Array
