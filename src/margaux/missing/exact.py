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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from ..compiling import compiled
from ..packing import symmetric
from .families import AbstractFamily, Gaussian, marginal_scale_slope
from .observed import Groups, Params, Rows, filled, given_observed, spread


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
def moments(family: Any, groups: Groups, params: Params, rows: Rows) -> tuple[Moments, Array]:
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


def score(family: Any, params: Params, rows: Rows, found: Moments, covariance: Array) -> dict[str, Array]:
    """Gradient of the observed log-likelihood in beta, mean, covariance and scale: Fisher's identity."""
    w, g1 = rows.weights, found.first
    gap = found.x - rows.c @ params["mean"]
    weighted = w[:, None] * gap
    precision = jnp.linalg.inv(params["covariance"])
    second = gap.T @ weighted + covariance
    # Written for one predictor and for several: transposes put the rows last, where the weights are.
    push = w * g1.T
    curved = (w * found.second.T).T.reshape(-1, *g1.shape[1:]).T @ found.along.reshape(-1, found.x.shape[1])
    out = {
        "beta": jnp.concatenate([push @ rows.c, push @ found.x + curved], axis=-1),
        "mean": rows.c.T @ weighted @ precision,
        "covariance": (precision @ second @ precision - jnp.sum(w) * precision) / 2,
    }
    if isinstance(family, Gaussian):
        out["scale"] = w @ marginal_scale_slope(rows.y, found.predictor, found.variance, params["scale"])
    return out


@compiled
def value_and_gradient(family: Any, groups: tuple, struct: Any, flat: Array, rows: Rows) -> tuple[Array, Array]:
    """Observed log-likelihood and its gradient in the free coordinates of `pack`."""

    here, back = jax.vjp(struct.natural, flat)
    found, covariance = moments(family, groups, here, rows)
    return rows.weights @ (found.log_outcome + found.log_x), back(score(family, here, rows, found, covariance))[0]


def _factor(root: Float[Array, "p p"]) -> Float[Array, "p p"]:
    """Lower triangular, with the diagonal exp of what is given."""
    return jnp.tril(root, -1) + jnp.diag(jnp.exp(jnp.diagonal(root)))


@compiled
def _log_outcome(family: Any, groups: Groups, params: Params, rows: Rows) -> Array:
    return rows.weights @ moments(family, groups, params, rows)[0].log_outcome


class Struct(NamedTuple):
    """How free coordinates are laid out; hashable, so that it is no reason to compile again. `lead` is (j,) with several
    predictors."""

    k: int
    p: int
    scale: bool
    lead: tuple[int, ...] = ()

    @property
    def n_beta(self) -> int:
        return math.prod(self.lead) * (self.k + self.p)

    @property
    def size(self) -> int:
        return self.n_beta + self.k * self.p + self.p * (self.p + 1) // 2 + self.scale

    def unravel(self, flat: Array) -> dict[str, Array]:
        k, p = self.k, self.p
        cuts = np.cumsum([self.n_beta, k * p, p * (p + 1) // 2])
        out = {"beta": flat[: cuts[0]].reshape(*self.lead, k + p), "mean": flat[cuts[0] : cuts[1]].reshape(k, p)}
        out["root"] = jnp.zeros((p, p), flat.dtype).at[np.tril_indices(p)].set(flat[cuts[1] : cuts[2]])
        return out | ({"log_scale": flat[cuts[2]]} if self.scale else {})

    def pack(self, params: Params) -> np.ndarray:
        """Free coordinates: beta, mean, the Cholesky factor of the precision with log diagonal, log scale."""
        factor = np.linalg.cholesky(np.linalg.inv(params["covariance"]))
        factor[np.diag_indices(self.p)] = np.log(np.diagonal(factor))
        last = [np.log(params["scale"])] if self.scale else []
        return np.concatenate([np.ravel(params["beta"]), np.ravel(params["mean"]), factor[np.tril_indices(self.p)], last])

    def natural(self, flat: Array) -> dict[str, Array]:
        """Parameters at free coordinates, differentiable."""
        free = self.unravel(flat)
        factor = _factor(free["root"])
        out = {"beta": free["beta"], "mean": free["mean"], "covariance": jnp.linalg.inv(factor @ factor.T)}
        return out | ({"scale": jnp.exp(free["log_scale"])} if self.scale else {})

    def params(self, flat: np.ndarray) -> Params:
        """The same as NumPy arrays."""
        return {name: np.asarray(value) for name, value in self.natural(jnp.asarray(flat)).items()}


class Maximum(NamedTuple):
    """An exact fit: parameters, log-likelihood, iterations, and the largest entry of the gradient over the rows."""

    params: Params
    loglik: float
    n_iter: int
    gradient: float


def start(family: Any, rows: Rows) -> Params:
    """Where to begin with standardised covariates: no slopes, and intercepts that suit the outcome's mean or shares."""
    k, p = rows.c.shape[1], rows.x.shape[1]
    out: Params = {"mean": np.zeros((k, p)), "covariance": np.eye(p)}
    if isinstance(family, AbstractFamily):
        out["beta"] = np.zeros(k + p)
        out["beta"][0] = family.link(float(np.average(rows.y, weights=rows.weights)))
    else:
        out["beta"] = np.zeros((family.n_classes - 1, k + p))
        shares = np.bincount(np.asarray(rows.y, int), rows.weights, family.n_classes)
        out["beta"][:, 0] = np.log(shares[1:] / shares[0])
    return out | ({"scale": np.asarray(np.var(rows.y))} if isinstance(family, Gaussian) else {})


class Likelihood:
    r"""The observed log-likelihood of some rows over the free coordinates, those of coefficients left out held at zero.

    Args:
        family: an `AbstractFamily`, or `multinomial.Multinomial`. dropped: positions of beta, row by row, that are zero.
    """

    def __init__(self, family: Any, rows: Rows, groups: tuple, dropped: tuple[int, ...] = ()) -> None:
        self.family, self.groups = family, groups
        lead = () if isinstance(family, AbstractFamily) else (family.n_classes - 1,)
        self.struct = Struct(rows.c.shape[1], rows.x.shape[1], isinstance(family, Gaussian), lead)
        self.data = jax.tree.map(jnp.asarray, rows)
        self.size = float(np.sum(rows.weights))
        self.free = np.setdiff1d(np.arange(self.struct.size), np.asarray(dropped, int))

    def pack(self, params: Params) -> np.ndarray:
        """Free coordinates of parameters."""
        return self.struct.pack(params)[self.free]

    def whole(self, flat: np.ndarray) -> np.ndarray:
        """All coordinates."""
        out = np.zeros(self.struct.size)
        out[self.free] = flat
        return out

    def objective(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the log-likelihood a row, and its gradient; a large number where it is not finite."""
        value, gradient = value_and_gradient(self.family, self.groups, self.struct, jnp.asarray(self.whole(flat)), self.data)
        value = float(value)
        if not np.isfinite(value):
            return 1e10, np.zeros_like(flat)
        return -value / self.size, -np.asarray(gradient)[self.free] / self.size

    def log_outcome(self, flat: np.ndarray) -> float:
        """log p(y | x_o), without the covariates' part."""
        params = self.struct.natural(jnp.asarray(self.whole(flat)))
        return float(_log_outcome(self.family, self.groups, params, self.data))

    def information(self, flat: np.ndarray, h: float = 1e-5) -> np.ndarray:
        """Observed information, by forward differences of the exact score."""
        _, here = self.objective(flat)
        columns = [(self.objective(flat + h * unit)[1] - here) / h for unit in np.eye(len(flat))]
        matrix = self.size * np.stack(columns)
        return (matrix + matrix.T) / 2

    def climb(self, start: Params, max_iter: int = 1000, callback: Any = None) -> tuple[np.ndarray, float, int]:
        """L-BFGS: free coordinates, log-likelihood, iterations."""
        found = scipy.optimize.minimize(
            self.objective, self.pack(start), jac=True, method="L-BFGS-B", callback=callback,
            options={"maxiter": max_iter, "maxcor": 30, "ftol": 1e-14, "gtol": 1e-6},
        )  # fmt: skip
        return found.x, -float(found.fun) * self.size, int(found.nit)

    def maximise(self, start: Params, max_iter: int = 1000, callback: Any = None) -> tuple[Maximum, np.ndarray]:
        """L-BFGS and then Newton steps; and the observed information there."""
        flat, _, n_iter = self.climb(start, max_iter, callback)
        value, gradient = self.objective(flat)
        information, rough = self.information(flat), np.abs(gradient).max() > 1e-5
        for _ in range(5):
            if np.abs(gradient).max() < 1e-9:
                break
            moved = flat - self.size * np.linalg.lstsq(information, gradient, rcond=None)[0]
            there, slope = self.objective(moved)
            if not there <= value + 1e-12:
                break
            flat, value, gradient = moved, there, slope
        if rough:
            information = self.information(flat)
        params = self.struct.params(self.whole(flat))
        return Maximum(params, -value * self.size, n_iter, float(np.abs(gradient).max())), information
