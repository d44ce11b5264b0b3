"""Poisson log-normal PCA: `PLNPCA`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin

from ..compiling import keep_compilations
from ..inference.marginal import LogLikelihood
from ..naming import default_dtype, precision
from ..packing import symmetric
from ..pln import frames
from ..pln.answers import entropy, principal, settled
from ..pln.basis import coefficients, orthonormal
from ..pln.checks import check_rank
from ..pln.fitting import Design, Solution
from ..pln.growth import precise
from ..pln.inference import standard_errors
from ..pln.progress import SweepLine
from ..pln.proposals import Proposal
from ..pln.refinement import WHOLE, Refinement, check_table, of_method, refine
from ..pln.restarts import best_of, default_starts
from ..pln.simulation import check_scores, expected, simulated, units_of
from ..pln.table import Table, diverging_message, like, read
from ..pln.variational import BLOCK, Loadings, Posterior
from ..shown import Card, Shown
from .fitted import check_fitted

#: answers that are computed when first asked for
LATER = ("stderr_", "importance_")


class PLNPCA(Shown, TransformerMixin, BaseEstimator):
    r"""Principal components of counts: $y_{ij}\sim\mathrm{Poisson}(e^{z_{ij}})$, $z_i = o_i + B^\top x_i + Cw_i$,
    $w_i\sim N(0, I_q)$ (Batardiere, Chiquet, Kwon and Stoehr, eq. 2).

    Fitted by variational EM with a full covariance matrix a unit, from several starts, of which the best is kept; from there
    the likelihood itself is ascended by importance sampling, as long as that raises it beyond its error.

    Args:
        rank: q; `pln_ranks` chooses it. n_starts: starts; by default sixteen, fewer for large tables.
        method: "auto", as said, for tables of up to twenty million entries; "variational", the first part alone; or one of
            "isgd-vem", "isgd-vemmix", "aisgd-snis", "aisgd-hessian" and "student", the second part with that proposal (section
            6) whatever it promises. refinement: its settings, a `margaux.pln.refinement.Refinement`.
        posterior_covariance: "full", or "diagonal" for variational posteriors whose latents are independent.
        tol: rise of the bound in a sweep, in nats, at which a fit ends. max_sweeps: sweeps at most.
        random_state: an int. dtype: "float64" or "float32"; up to four million entries float64 serves. verbose: show progress.

    Attributes:
        coef_ (k, p), NaN where the estimate is infinite; loadings_ (p, q), columns by falling variance; scores_ (n, q) and
        scores_covariance_ (n, q, q), means and covariances of w given y; explained_variance_ratio_ (q,); elbo_, the bound with
        every constant at the variational estimate, and bounds_, that of each sweep; result_, the variational solution, for an
        orthonormal basis of the covariates; starts_, a row a start; table_, what was fitted; n_sweeps_, converged_; verdict_,
        what came of the ascent, and refinement_, a row a round or None.

    Raises:
        TypeError, ValueError: bad input, before anything is compiled.

    >>> import numpy as np, margaux as mx
    >>> rng = np.random.default_rng(0)
    >>> counts = rng.poisson(np.exp(1 + rng.normal(size=(60, 2)) @ rng.normal(0, 0.7, (2, 8))))
    >>> model = mx.PLNPCA(rank=2, verbose=False).fit(counts)
    >>> model.transform(counts).shape, model.summary().shape, model.converged_
    ((60, 2), (8, 6), True)
    """

    def __init__(
        self,
        rank: int = 5,
        *,
        method: str = "auto",
        refinement: Refinement | None = None,
        n_starts: int | None = None,
        posterior_covariance: Literal["full", "diagonal"] = "full",
        tol: float = 1e-3,
        max_sweeps: int = 1000,
        random_state: int = 0,
        dtype: Any = None,
        verbose: bool = True,
    ) -> None:
        self.rank = rank
        self.method = method
        self.refinement = refinement
        self.n_starts = n_starts
        self.posterior_covariance = posterior_covariance
        self.tol = tol
        self.max_sweeps = max_sweeps
        self.random_state = random_state
        self.dtype = dtype
        self.verbose = verbose

    def fit(self, counts: Any, y: Any = None, *, covariates: Any = None, formula: str | None = None, offsets: Any = None) -> Any:
        """Estimate. `counts` (n, p), `covariates`, `formula` and `offsets` as in `margaux.pln.table.read`.

        Args:
            y: covariates too, (n,) or (n, k), as the second argument; `fit_transform` ignores it, since a pipeline passes its
                target there.

        Raises:
            TypeError: covariates are given twice.
        """
        if y is not None and covariates is not None:
            raise TypeError("covariates are given twice, as the second argument and by covariates=; give them once")
        self._estimate(read(counts, y if covariates is None else covariates, formula, offsets))
        message = diverging_message(self.table_)
        if message:
            warnings.warn(message, stacklevel=2)
        return self

    def _estimate(self, table: Table, fitter: Callable[..., tuple[Solution, pd.DataFrame]] = best_of) -> None:
        """Fit a table, by a function with the arguments of `best_of`."""
        check_rank(self.rank, table.counts.n, table.counts.p)
        check_settings(self.n_starts, self.posterior_covariance, self.tol, self.max_sweeps, self.random_state)
        settings, forced = of_method(self.method, self.refinement)
        keep_compilations()
        dtype = default_dtype(self.dtype)
        if table.counts.n * table.counts.p <= BLOCK:
            dtype = np.dtype(float)
        design = self._design(table)
        check_table(settings, forced, design)
        x, R = orthonormal(design.x)
        design = design._replace(x=x)
        relative = 1e-6 if dtype == np.float32 else 1e-9
        n_starts = default_starts(table.counts.n, table.counts.p) if self.n_starts is None else self.n_starts
        with precision(dtype):
            with SweepLine(f"PLNPCA of rank {self.rank}", n_starts) as line:
                solution, starts = fitter(
                    design, self.rank, n_starts, self.random_state, dtype, self.tol, relative, self.max_sweeps,
                    line if self.verbose else None, self.posterior_covariance,
                )  # fmt: skip
            refined = self._refined(design, solution, settings, forced)
            self._keep(table, R, solution, refined, starts)
        if not solution.converged:
            warnings.warn(f"the bound still rises after {self.max_sweeps} sweeps; raise max_sweeps", stacklevel=3)

    def _refined(self, design: Design, solution: Solution, settings: Refinement | None, forced: bool) -> Solution:
        """The solution moved up the likelihood, or as it is."""
        self.refinement_, large = None, design.counts.n * design.counts.p > WHOLE
        if settings is None or (large and not forced):
            size = f", which is left alone beyond {WHOLE:.0e} entries unless a method is named" if settings else ""
            self.verdict_ = f"the variational estimate{size}"
            return solution
        seed = self.random_state
        found = refine(design, solution.loadings, solution.posterior, settings, seed, forced, self.verbose)
        self.refinement_, self.verdict_ = found.history if len(found.history) > 1 else None, found.verdict
        return solution._replace(loadings=found.loadings, posterior=found.posterior)

    def _keep(self, table: Table, R: np.ndarray, solution: Solution, refined: Solution, starts: pd.DataFrame) -> None:
        """The variational solution, and what the estimator answers from."""
        found = principal(refined.loadings, refined.posterior)
        loadings, self._posterior = (jax.tree.map(np.asarray, part) for part in found)
        self._loadings = loadings._replace(B=coefficients(R, loadings.B))
        self.table_, self.starts_, self.result_ = table, starts, solution
        self.coef_ = np.where(table.diverging, np.nan, self._loadings.B)
        self.loadings_, self.scores_ = self._loadings.C, self._posterior.mean
        variance = np.sum(self.loadings_.astype(float) ** 2, axis=0)
        self.explained_variance_ratio_ = variance / variance.sum()
        self.bounds_, self.converged_ = solution.bounds, solution.converged
        self.elbo_, self.n_sweeps_ = solution.bounds[-1], len(solution.bounds)
        self.n_features_in_ = len(table.all_features)
        for name in LATER:
            vars(self).pop(name, None)

    @staticmethod
    def _design(table: Table) -> Design:
        return Design(table.counts, table.x, table.offset)

    def _double(self) -> tuple[Loadings, Posterior]:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (self._loadings, self._posterior))

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

    def proposal_quality(self, proposal: Proposal | str = "hessian", error: float | None = None) -> pd.DataFrame:
        """How well a proposal does in importance sampling, a row a unit.

        Args:
            proposal: a name in `margaux.pln.proposals.PROPOSALS`, or a `Proposal`. error: see `margaux.pln.growth.precise`.

        Returns:
            loglik and its error; ess, the effective number of the draws of a replicate, `.attrs["draws"]`; and the divergences
            KL[proposal, conditional] and KL[conditional, proposal], of the proposal and the law of the latents given the counts.
        """
        check_fitted(self)
        with precision(np.dtype(float)):
            found, plan = precise(self._design(self.table_), *self._double(), proposal, error, self.random_state)
        return frames.quality(self.table_, found, plan.draws)

    @functools.cached_property
    def importance_(self) -> pd.DataFrame:
        """`proposal_quality` of the variational posteriors, with draws doubled until the error of `loglik_` is below 0.05."""
        return self.proposal_quality("vem mixture")

    @property
    def loglik_(self) -> LogLikelihood:
        """log p(y), every constant included, by importance sampling from the variational posteriors, with its error."""
        found = self.importance_
        return LogLikelihood(found["loglik"].to_numpy(), float(np.sqrt(np.sum(found["error"].to_numpy() ** 2))))

    @functools.cached_property
    def stderr_(self) -> np.ndarray:
        """Standard errors of `coef_`, (k, p); see `margaux.pln.inference`."""
        check_fitted(self)
        design, size = self._design(self.table_), np.sqrt(np.mean(self.table_.x**2, axis=0))
        with precision(np.dtype(float)):
            loadings, posterior = self._double()
            scaled = loadings._replace(B=loadings.B * size[:, None])
            errors = standard_errors(design._replace(x=design.x / size), scaled, posterior) / size[:, None]
        return np.where(self.table_.diverging, np.nan, errors)

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

    @property
    def icl_(self) -> float:
        r"""Integrated classification likelihood (Biernacki, Celeux and Govaert 2000): `bic_` plus twice the entropy of the
        posteriors of the latents, $\sum_i\log|2\pi eS_i|$. It prefers ranks whose latents the counts determine."""
        with precision(np.dtype(float)):
            return self.bic_ + 2 * entropy(self._posterior)

    def _card(self) -> Card | None:
        if not hasattr(self, "result_"):
            return None
        known = "stderr_" in self.__dict__
        table = self.summary() if known else frames.coefficients(self.table_, self.coef_, self.coef_ * np.nan, 0.95)
        bound = "no longer rises" if self.converged_ else f"still rises after {self.n_sweeps_} sweeps: raise max_sweeps"
        n, p = len(self.scores_), len(self.loadings_)
        figures = {"rank": self.loadings_.shape[1], "units": n, "features": p, "bound": f"{self.elbo_:.2f}"}
        figures |= {"log-likelihood": repr(self.loglik_)} if "importance_" in self.__dict__ else {}
        message = f"The bound {bound}; {self.verdict_}."
        return Card(type(self).__name__, message, self.converged_, table, len(table), figures)

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Coefficients: estimate, standard error, z, p and interval, a row a covariate and feature."""
        check_fitted(self)
        frames.check_level(level)
        return frames.coefficients(self.table_, self.coef_, self.stderr_, level)

    def conf_int(self, level: float = 0.95) -> pd.DataFrame:
        """Wald confidence intervals of the coefficients."""
        return self.summary(level).filter(["ci_low", "ci_high"])

    def covariance_frame(self) -> pd.DataFrame:
        """`covariance_` with the names of the features."""
        return frames.by_feature(self.table_, self.covariance_, self.table_.features)

    def loadings_frame(self) -> pd.DataFrame:
        """`loadings_`, a row a feature and a column a component."""
        check_fitted(self)
        return frames.by_feature(self.table_, self.loadings_)

    def scores_frame(self) -> pd.DataFrame:
        """`scores_`, a row a unit of the fit and a column a component."""
        check_fitted(self)
        return frames.by_unit(self.table_, self.scores_)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the components."""
        check_fitted(self)
        return np.asarray(frames.components(self.loadings_.shape[1]), object)

    def fit_transform(
        self, counts: Any, y: Any = None, *, covariates: Any = None, formula: str | None = None, offsets: Any = None
    ) -> np.ndarray:
        """`fit`, and the scores of every unit given, (m, q); NaN where a unit was left out for want of an offset."""
        fitted = self.fit(counts, covariates=covariates, formula=formula, offsets=offsets)
        return _everywhere(fitted.table_.kept_rows, fitted.scores_)

    def transform(self, counts: Any, covariates: Any = None, offsets: Any = None, covariance: bool = False) -> Any:
        """Posterior means of the latents of other units, (m, q), and if wanted their covariances, (m, q, q).

        Args:
            counts, covariates, offsets: see `margaux.pln.table.like`. A unit without counts has NaN if its offset is
                computed from them, by a name that the fit was given; else it is a unit as any other.
        """
        check_fitted(self)
        table = like(self.table_, counts, covariates, offsets)
        with precision(self._loadings.C.dtype):
            found = settled(self._design(table), jax.tree.map(jnp.asarray, self._loadings))
            mean = _everywhere(table.kept_rows, np.asarray(found.mean))
            return (mean, _everywhere(table.kept_rows, np.asarray(symmetric(found.spread)))) if covariance else mean

    def score(self, counts: Any, y: Any = None, *, covariates: Any = None, offsets: Any = None) -> float:
        """Mean over units of log p(counts), with every constant, by importance sampling from their own posteriors.

        Args:
            counts, covariates, offsets: see `margaux.pln.table.like`. y: ignored.
        """
        check_fitted(self)
        table = like(self.table_, counts, covariates, offsets)
        with precision(np.dtype(float)):
            loadings, _ = self._double()
            posterior = jax.tree.map(jnp.asarray, settled(self._design(table), loadings))
            found, _ = precise(self._design(table), loadings, posterior, seed=self.random_state)
        return float(found.loglik.mean())

    def inverse_transform(self, scores: Any, covariates: Any = None, offsets: Any = None) -> np.ndarray:
        """Expected counts (m, p) of units at scores (m, q); see `predict`."""
        return self.predict(covariates, offsets, scores)

    def predict(self, covariates: Any = None, offsets: Any = None, scores: Any = None) -> np.ndarray:
        """Expected counts of units, (m, p), over the features that have counts: at given scores, or averaged over N(0, I).

        Args:
            covariates: (m, k) as in the fit. offsets: (m,), (m, 1) or (m, p). Without either the units are those of the fit,
                with its offsets; others need offsets of their own if the fit had any. scores: (m, q).

        Raises:
            ValueError: the fit had offsets and these units have none.
        """
        check_fitted(self)
        w = None if scores is None else check_scores(scores, self.loadings_.shape[1])
        return expected(self._loadings, *units_of(self.table_, covariates, offsets, None if w is None else len(w)), w)

    def simulate(
        self,
        n_units: int | None = None,
        *,
        covariates: Any = None,
        offsets: Any = None,
        scores: Any = None,
        random_state: Any = 0,
    ) -> pd.DataFrame:
        """Counts drawn from the fitted model, a row a unit and a column a feature: at given scores, or at scores from N(0, I).

        Args:
            n_units: how many; by default as many as covariates, scores, or units of the fit. Others as in `predict`.
            random_state: an int, or a NumPy generator.
        """
        check_fitted(self)
        w = None if scores is None else check_scores(scores, self.loadings_.shape[1])
        if w is not None and n_units not in (None, len(w)):
            raise ValueError(f"scores have {len(w)} rows, and n_units is {n_units}; leave n_units out")
        x, offset = units_of(self.table_, covariates, offsets, n_units if w is None else len(w))
        return simulated(self.table_, self._loadings, x, offset, w, random_state)

    def to_anndata(self) -> Any:
        """The fit as an AnnData; see `margaux.pln.export.as_anndata`."""
        from ..pln.export import as_anndata

        check_fitted(self)
        return as_anndata(self)

    @property
    def plot(self) -> Any:
        """Figures; see `margaux.plots.pln.PLNPlots`."""
        from ..plots.pln import PLNPlots

        check_fitted(self)
        return PLNPlots(self)


def check_settings(n_starts: int | None, covariance: str, tol: float, max_sweeps: int, random_state: int) -> None:
    """Raises: TypeError, ValueError: a setting of the fit is out of range."""
    for name, value, least in (("n_starts", n_starts, 1), ("max_sweeps", max_sweeps, 1), ("random_state", random_state, 0)):
        if value is None and name == "n_starts":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"{name} must be a whole number, got {value!r}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if covariance not in ("full", "diagonal"):
        raise ValueError(f'posterior_covariance must be "full" or "diagonal", not {covariance!r}')
    if not 0 < tol < np.inf:
        raise ValueError(f"tol must be positive, the rise of the bound in nats at which a fit ends, got {tol}")


def _everywhere(kept: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Rows of the units that have an offset among all, NaN for the others."""
    out = np.full((len(kept), *values.shape[1:]), np.nan, values.dtype)
    out[kept] = values
    return out
