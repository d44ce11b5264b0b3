"""Poisson log-normal PCA: `PLNPCA`."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy
from sklearn.base import BaseEstimator, TransformerMixin

from ..compiling import compiled, keep_compilations
from ..inference.marginal import LogLikelihood
from ..naming import default_dtype, precision
from ..packing import lower_indices, symmetric
from ..pln.checks import check_rank
from ..pln.fitting import Design
from ..pln.importance import marginal
from ..pln.inference import standard_errors
from ..pln.restarts import best_of
from ..pln.table import design, diverging_message, like, read
from ..pln.variational import Loadings, Posterior, Units, unit_steps
from .fitted import check_fitted

#: Newton steps that find the posterior of new units
SETTLED = 40


class PLNPCA(TransformerMixin, BaseEstimator):
    r"""Principal components of counts: $y_{ij}\sim\mathrm{Poisson}(e^{z_{ij}})$, $z_i = o_i + B^\top x_i + Cw_i$,
    $w_i\sim N(0, I_q)$ (Batardiere, Chiquet, Kwon and Stoehr, eq. 2).

    Fitted by variational EM with a full covariance matrix a unit, from several starts, of which the best is kept.

    Args:
        rank: q. n_starts: starts; by default sixteen, fewer for large tables.
        tol: rise of the bound in a sweep, in nats, at which a fit ends. max_sweeps: sweeps at most.
        random_state: an int. dtype: "float64", or "float32" for large tables.

    Attributes:
        coef_ (k, p), NaN where the estimate is infinite; loadings_ (p, q), columns by falling variance; scores_ (n, q) and
        scores_covariance_ (n, q, q), means and covariances of w given y; explained_variance_ratio_ (q,); elbo_, the bound with
        every constant; starts_, a row a start; table_, what was fitted; n_sweeps_, converged_.

    Raises:
        TypeError, ValueError: bad input, before anything is compiled.

    >>> import numpy as np, margaux as mx
    >>> rng = np.random.default_rng(0)
    >>> counts = rng.poisson(np.exp(1 + rng.normal(size=(60, 2)) @ rng.normal(0, 0.7, (2, 8))))
    >>> model = mx.PLNPCA(rank=2).fit(counts)
    >>> model.transform(counts).shape, model.summary().shape, model.converged_
    ((60, 2), (8, 6), True)
    """

    def __init__(
        self,
        rank: int = 5,
        *,
        n_starts: int | None = None,
        tol: float = 1e-3,
        max_sweeps: int = 1000,
        random_state: int = 0,
        dtype: Any = None,
    ) -> None:
        self.rank = rank
        self.n_starts = n_starts
        self.tol = tol
        self.max_sweeps = max_sweeps
        self.random_state = random_state
        self.dtype = dtype

    def fit(self, counts: Any, y: Any = None, *, covariates: Any = None, formula: str | None = None, offsets: Any = None) -> Any:
        """Estimate. `counts` (n, p), `covariates`, `formula` and `offsets` as in `margaux.pln.table.read`; `y` is ignored."""
        table = read(counts, covariates, formula, offsets)
        check_rank(self.rank, table.counts.n, table.counts.p)
        keep_compilations()
        dtype = default_dtype(self.dtype)
        single = dtype == np.float32
        with precision(dtype):
            solution, starts = best_of(
                self._design(table), self.rank, self.n_starts, self.random_state, dtype, self.tol,
                1e-6 if single else 1e-9, self.max_sweeps,
            )  # fmt: skip
            loadings, posterior = _principal(solution.loadings, solution.posterior)
        self.table_, self.starts_ = table, starts
        self._loadings, self._posterior = (jax.tree.map(np.asarray, part) for part in (loadings, posterior))
        self.coef_ = np.where(table.diverging, np.nan, self._loadings.B)
        self.loadings_, self.scores_ = self._loadings.C, self._posterior.mean
        variance = np.sum(self.loadings_.astype(float) ** 2, axis=0)
        self.explained_variance_ratio_ = variance / variance.sum()
        self.elbo_, self.n_sweeps_, self.converged_ = solution.bounds[-1], len(solution.bounds), solution.converged
        self.n_features_in_ = len(table.all_features)
        self.result_ = solution
        for name in ("stderr_", "loglik_"):
            self.__dict__.pop(name, None)
        message = diverging_message(table)
        if message:
            warnings.warn(message, stacklevel=2)
        if not solution.converged:
            warnings.warn(f"the bound still rises after {self.max_sweeps} sweeps; raise max_sweeps", stacklevel=2)
        return self

    @staticmethod
    def _design(table: Any) -> Design:
        return Design(table.counts, table.x, table.offset)

    @property
    def scores_covariance_(self) -> np.ndarray:
        """Covariances of the latents of each unit given its counts, (n, q, q)."""
        check_fitted(self)
        return np.asarray(symmetric(self._posterior.spread))

    @property
    def covariance_(self) -> np.ndarray:
        """CC', the covariance of z given the covariates, (p, p)."""
        check_fitted(self)
        return self.loadings_ @ self.loadings_.T

    @functools.cached_property
    def loglik_(self) -> LogLikelihood:
        """log p(y), every constant included, by importance sampling from the variational posteriors, with its error."""
        check_fitted(self)
        with precision(np.dtype(float)):
            found = marginal(self._design(self.table_), *self._double())
        return LogLikelihood(found.loglik, found.total[1])

    @functools.cached_property
    def stderr_(self) -> np.ndarray:
        """Standard errors of `coef_`, (k, p); see `margaux.pln.inference`."""
        check_fitted(self)
        with precision(np.dtype(float)):
            errors = standard_errors(self._design(self.table_), *self._double())
        return np.where(self.table_.diverging, np.nan, errors)

    def _double(self) -> tuple[Loadings, Posterior]:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (self._loadings, self._posterior))

    @property
    def n_params_(self) -> int:
        """Coefficients, and loadings up to a rotation."""
        check_fitted(self)
        (p, q), k = self.loadings_.shape, len(self.coef_)
        return p * (k + q) - q * (q - 1) // 2

    @property
    def aic_(self) -> float:
        """Akaike's criterion, by the marginal likelihood."""
        return -2 * float(self.loglik_) + 2 * self.n_params_

    @property
    def bic_(self) -> float:
        """Schwarz's criterion, by the marginal likelihood and the number of units."""
        return -2 * float(self.loglik_) + float(np.log(len(self.scores_))) * self.n_params_

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Coefficients: estimate, standard error, z, p and interval, a row a covariate and feature."""
        check_fitted(self)
        index = pd.MultiIndex.from_product([self.table_.covariate_names, self.table_.features], names=["covariate", "feature"])
        estimate, se = self.coef_.ravel().astype(float), self.stderr_.ravel()
        z = estimate / se
        half = scipy.special.ndtri(0.5 + level / 2) * se
        out = {"estimate": estimate, "se": se, "z": z, "p": 2 * scipy.special.ndtr(-np.abs(z)),
               "ci_low": estimate - half, "ci_high": estimate + half}  # fmt: skip
        return pd.DataFrame(out, index=index)

    def transform(self, counts: Any, covariates: Any = None, offsets: Any = None) -> np.ndarray:
        """Posterior means of the latents of other units, (m, q); NaN where a unit has no counts."""
        check_fitted(self)
        table = like(self.table_, counts, covariates, offsets)
        dtype = self._loadings.C.dtype
        with precision(dtype):
            loadings = jax.tree.map(jnp.asarray, self._loadings)
            units = Units(*(jnp.asarray(leaf, dtype) for leaf in (table.x, table.offset, table.counts.times(self._loadings.C))))
            found = np.asarray(_settled(loadings, units))
        out = np.full((len(table.kept_rows), found.shape[1]), np.nan, dtype)
        out[table.kept_rows] = found
        return out

    def predict(self, covariates: Any = None, offsets: Any = None, scores: Any = None) -> np.ndarray:
        """Expected counts of units with such covariates, (m, p): at given scores, or averaged over them.

        Args:
            covariates: (m, k) as in the fit; by default those of the units that were fitted. offsets: (m, 1) or (m, p), zeros by
                default, or the fit's. scores: (m, q).
        """
        check_fitted(self)
        own = covariates is None
        x = self.table_.x if own else design(self.table_, covariates)
        offset = (self.table_.offset if own else np.zeros((len(x), 1))) if offsets is None else np.asarray(offsets, float)
        eta = offset.reshape(len(x), -1) + x @ self._loadings.B
        if scores is None:
            return np.exp(eta + np.sum(self.loadings_.astype(float) ** 2, axis=1) / 2)
        return np.exp(eta + np.asarray(scores) @ self.loadings_.T)


@compiled
def _settled(loadings: Loadings, units: Units) -> Any:
    """Means of the posteriors of units from nothing."""
    b, q = units.projected.shape
    j, k, _ = lower_indices(q)
    prior = Posterior(jnp.zeros_like(units.projected), jnp.tile(jnp.asarray(j == k, units.x.dtype), (b, 1)))
    return unit_steps(loadings, prior, units, SETTLED)[0].mean


@compiled
def _principal(loadings: Loadings, posterior: Posterior) -> tuple[Loadings, Posterior]:
    """Turned so that loadings are orthogonal, by falling variance, with the largest entry of each positive."""
    u, d, vt = jnp.linalg.svd(loadings.C, full_matrices=False)
    sign = jnp.sign(jnp.take_along_axis(u, jnp.argmax(jnp.abs(u), axis=0)[None], axis=0)[0])
    turn = vt * sign[:, None]
    j, k, _ = lower_indices(len(d))
    spread = jnp.einsum("ab,nbc,dc->nad", turn, symmetric(posterior.spread), turn)
    return Loadings(loadings.B, u * d * sign), Posterior(posterior.mean @ turn.T, spread[:, j, k])
