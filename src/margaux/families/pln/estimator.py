"""Poisson log-normal PCA: `PLNPCA`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from ...answers.certificate import Certificate
from ...answers.fitted import Answering
from ...answers.likelihood import LogLikelihood
from ...engine.share import Share, check_alike
from ...numerics.compiling import keep_compilations
from ...numerics.packing import symmetric
from ...numerics.precision import default_dtype, precision
from ...showing.cards import Card
from ...showing.parts import check_fitted
from ..conventions import Conventional, contained
from . import frames
from .answers import entropy, principal
from .basis import coefficients, orthonormal
from .checks import check_rank, check_settings
from .fitting import Design, Solution
from .goodness import chosen_units, frequencies, goodness
from .growth import PROPOSAL, Adapted, precise
from .kinds import CountsLike, Covariates, Offsets
from .of_coefficients import OfCoefficients
from .of_units import OfUnits
from .outcome import as_fit
from .polish import polish
from .progress import SweepLine
from .proposals import Proposal
from .refinement import WHOLE, Refinement, check_table, of_method, refine
from .restarts import Search, best_of, default_starts
from .table import Table, diverging_message, read
from .variational import BLOCK, Loadings, Posterior
from .verdict import certify

#: entries of a table that a certificate's likelihoods look at
LOOKED_AT = 500_000
#: answers that are computed when first asked for
LATER = ("_own_errors", "importance_", "certificate_")


class Ended(NamedTuple):
    """Where the ascent of the likelihood ended, in its own coordinates, and what its draws say of the likelihood there."""

    design: Design
    loadings: Loadings
    likelihood: Adapted


class PLNPCA(OfUnits, OfCoefficients, Answering, Conventional):
    r"""Principal components of counts: $y_{ij}\sim\mathrm{Poisson}(e^{z_{ij}})$, $z_i = o_i + B^\top x_i + Cw_i$,
    $w_i\sim N(0, I_q)$ (Batardiere, Chiquet, Kwon and Stoehr, eq. 2).

    Fitted by variational EM with a full covariance matrix a unit, from several starts, of which the best is kept; from there
    the likelihood itself is ascended by importance sampling, as long as that raises it beyond its error.

    Over several processes (`margaux.shard`) all find the same; scores_, table_ and what has a row a unit are of their own units.

    Args:
        rank: q; `pln_ranks` chooses it. n_starts: starts; by default sixteen, fewer for large tables.
        method: "auto", as said, for tables of up to twenty million entries; "variational", the first part alone; or one of
            "isgd-vem", "isgd-vemmix", "aisgd-snis", "aisgd-hessian" and "student", the second part with that proposal (section
            6) whatever it promises. refinement: its settings, a `margaux.families.pln.refinement.Refinement`.
        posterior_covariance: "full", or "diagonal" for variational posteriors whose latents are independent.
        tol: rise of the bound in a sweep, in nats, at which a fit ends. max_sweeps: sweeps at most.
        loglik_tol: Monte Carlo error of `loglik_`, in nats, at which draws are enough.
        random_state: an int. dtype: "float64" or "float32"; up to four million entries float64 serves. verbose: show progress.

    Attributes:
        coef_ (k, p), NaN where the estimate is infinite; loadings_ (p, q), columns by falling variance; scores_ (n, q) and
        scores_covariance_ (n, q, q), means and covariances of w given y; explained_variance_ratio_ (q,); elbo_, the bound with
        every constant at the variational estimate, and bounds_, that of each sweep; variational_, that solution, for an
        orthonormal basis of the covariates; starts_, a row a start; table_, what was fitted; n_sweeps_, converged_; ascent_,
        what came of the ascent of the likelihood, and refinement_, a row a step or None; certificate_, whether all this holds.

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
        loglik_tol: float = 0.02,
        random_state: int = 0,
        dtype: Any = None,
        verbose: bool = True,
    ) -> None:
        self.rank = rank
        self.method = method
        self.refinement = refinement
        self.n_starts = n_starts
        self.posterior_covariance: Literal["full", "diagonal"] = posterior_covariance
        self.tol = tol
        self.max_sweeps = max_sweeps
        self.loglik_tol = loglik_tol
        self.random_state = random_state
        self.dtype = dtype
        self.verbose = verbose

    def fit(
        self, counts: CountsLike, y: Covariates | None = None, *, covariates: Covariates | None = None,
        formula: str | None = None, offsets: Offsets | None = None,
    ) -> Any:  # fmt: skip
        """Estimate. `counts` (n, p), `covariates`, `formula` and `offsets` as in `margaux.families.pln.table.read`.

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
        share, n, p = table.counts.share, table.counts.share.n, table.counts.p
        if not share.alone:
            check_alike({}, {name: value for name, value in self.get_params().items() if name != "verbose"})
        check_rank(self.rank, n, p)
        check_settings(self.n_starts, self.posterior_covariance, self.tol, self.max_sweeps, self.loglik_tol, self.random_state)
        settings, forced = of_method(self.method, self.refinement)
        keep_compilations()
        dtype = default_dtype(self.dtype)
        if n * p <= BLOCK:
            dtype = np.dtype(float)
        design = self._design(table)
        check_table(settings, forced, design)
        x, R = orthonormal(design.x, share)
        design = design._replace(x=x)
        relative = 1e-6 if dtype == np.float32 else 1e-9
        n_starts = default_starts(n, p) if self.n_starts is None else self.n_starts
        search = Search(n_starts, self.random_state, dtype, self.tol, relative, self.max_sweeps, self.posterior_covariance)
        with precision(dtype):
            with SweepLine(f"PLNPCA of rank {self.rank}", n_starts) as line:
                solution, starts = fitter(design, self.rank, search, line if self.verbose and share.index == 0 else None)
            refined = self._refined(design, solution, settings, forced)
            self._keep(table, R, solution, refined, starts)
        if not solution.converged:
            warnings.warn(f"the bound still rises after {self.max_sweeps} sweeps; raise max_sweeps", stacklevel=3)

    def _refined(self, design: Design, solution: Solution, settings: Refinement | None, forced: bool) -> Solution:
        """The solution moved up the likelihood, or as it is."""
        self.refinement_, self._polished, self._ended, large = None, None, None, design.share.n * design.counts.p > WHOLE
        if settings is None or (large and not forced):
            size = f", which is left alone beyond {WHOLE:.0e} entries unless a method is named" if settings else ""
            self.ascent_ = f"the variational estimate{size}"
            return solution
        parts, seed, told = [], self.random_state, []
        if forced or self.refinement is not None:
            found = refine(design, solution.loadings, solution.posterior, settings, seed, forced, self.verbose)
            solution = solution._replace(loadings=found.loadings, posterior=found.posterior)
            parts.append(found.history)
            told.append(found.verdict)
        if not forced:
            done = polish(design, solution.loadings, solution.posterior, seed)
            solution = solution._replace(loadings=done.loadings, posterior=done.posterior)
            parts.append(done.history)
            told.append(done.verdict)
            self._polished, self._ended = done.end, Ended(design, done.loadings, done.likelihood)
        history = pd.concat(parts, ignore_index=True)
        self.refinement_, self.ascent_ = history if len(history) > 1 else None, "; ".join(told)
        return solution

    def _keep(self, table: Table, R: np.ndarray, solution: Solution, refined: Solution, starts: pd.DataFrame) -> None:
        """The variational solution, and what the estimator answers from."""
        found = principal(refined.loadings, refined.posterior)
        loadings, self._posterior = (jax.tree.map(np.asarray, part) for part in found)
        self._loadings = loadings._replace(B=coefficients(R, loadings.B))
        self.table_, self.starts_, self.variational_ = table, starts, solution
        self.coef_ = np.where(table.diverging, np.nan, self._loadings.B)
        self.loadings_, self.scores_ = self._loadings.C, self._posterior.mean
        variance = np.sum(self.loadings_.astype(float) ** 2, axis=0)
        self.explained_variance_ratio_ = variance / variance.sum()
        self.bounds_, self.converged_ = solution.bounds, solution.converged
        self.elbo_, self.n_iter_ = solution.bounds[-1], len(solution.bounds)
        self.n_features_in_ = len(table.all_features)
        for name in LATER:
            vars(self).pop(name, None)
        self.result_ = as_fit(self)

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
            proposal: a name in `margaux.families.pln.proposals.PROPOSALS`, or a `Proposal`.
            error: of the log-likelihood, at which draws are enough; `loglik_tol` unless given.

        Returns:
            loglik and its error; the draws of a replicate and ess, their effective number; pareto, the shape of the largest
            weights, from 0.7 on too uneven; and the divergences KL[proposal, conditional] and KL[conditional, proposal], of the
            proposal and the law of the latents given the counts.
        """
        check_fitted(self)
        return self._quality(proposal, self.loglik_tol if error is None else error, self.random_state, adapt=False)

    def _quality(
        self, proposal: Proposal | str, error: float, seed: int, adapt: bool = True, some: tuple[np.ndarray, Share] | None = None
    ) -> pd.DataFrame:
        """Of all units, or of some with their share of all that were chosen."""
        with precision(np.dtype(float)):
            design, (loadings, posterior) = self._design(self.table_), self._double()
            if some is not None:
                design, posterior = design.rows(*some), posterior.rows(some[0])
            found = precise(design, loadings, posterior, proposal, error, seed, adapt)
        return frames.quality(self.table_.units if some is None else self.table_.units[some[0]], found)

    @functools.cached_property
    def importance_(self) -> pd.DataFrame:
        """`proposal_quality` of what `loglik_` comes from: Student's t about the variational posteriors, adapted where its
        weights are uneven, with draws until the error of `loglik_` is below `loglik_tol`; first those of the ascent."""
        check_fitted(self)
        if self._ended is None:
            return self._quality(PROPOSAL, self.loglik_tol, self.random_state)
        with precision(np.dtype(float)):
            design, loadings, known = self._ended
            found = precise(design, loadings, known.about, PROPOSAL, self.loglik_tol, self.random_state, begun=known)
        return frames.quality(self.table_.units, found)

    @property
    def loglik_(self) -> LogLikelihood:
        """log p(y), every constant included, by importance sampling from the variational posteriors, with its error."""
        value, error = self.table_.counts.share.joined(self.importance_[["loglik", "error"]].to_numpy()).T
        return LogLikelihood(value, float(np.sqrt(np.sum(error**2))))

    @functools.cached_property
    def certificate_(self) -> Certificate:
        """Whether this is the maximum of the likelihood, its errors are true and the counts are those of the model, in one word:
        see `margaux.families.pln.verdict`. Of a large table it looks at some units, drawn at random."""
        check_fitted(self)
        design, share = self._design(self.table_), self.table_.counts.share
        n, p = share.n, design.counts.p
        told = share.summed(np.einsum("nqq->q", self.scores_covariance_)) / n
        few = max(LOOKED_AT // p, 64)
        some = chosen_units(share, few, self.random_state) if few < n else None
        with precision(np.dtype(float)):
            loadings, posterior = self._double()
            looked = self._polished
            if looked is None and n * p <= WHOLE:
                x, R = orthonormal(design.x, share)
                turned = loadings._replace(B=jnp.asarray(R @ np.asarray(loadings.B)))
                looked = polish(design._replace(x=x), turned, posterior, self.random_state, 0).end
            fits = goodness(design, loadings, posterior, self.random_state)
        one = self.importance_ if some is None else self._quality(PROPOSAL, self.loglik_tol, self.random_state, some=some)
        # It is enough that the second tells a wrong first one.
        two = self._quality("laplace student", 3 * self.loglik_tol, self.random_state + 4099, some=some)
        first, second = (pd.concat(share.told(found)) for found in (one, two))
        bound = self.converged_, self.elbo_
        return certify(bound, looked, (first, second), self.loglik_tol, self.starts_, told, self.table_, fits)

    def frequencies(self, most: int, feature: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """How often each count up to `most` is there, and is expected given the latents: see `margaux.families.pln.goodness`."""
        check_fitted(self)
        with precision(np.dtype(float)):
            return frequencies(self._design(self.table_), *self._double(), most, feature, self.random_state)

    @property
    def message_(self) -> str:
        """The certificate's word and what did not pass."""
        return str(self.certificate_)

    @property
    def n_sweeps_(self) -> int:
        """`n_iter_`: the iterations are sweeps of the bound."""
        return self.n_iter_

    @property
    def loglik_se_(self) -> float:
        """Monte Carlo error of `loglik_`."""
        return self.loglik_.se

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
        return -2 * float(self.loglik_) + float(np.log(self.table_.counts.share.n)) * self.n_params_

    @property
    def icl_(self) -> float:
        r"""Integrated classification likelihood (Biernacki, Celeux and Govaert 2000): `bic_` plus twice the entropy of the
        posteriors of the latents, $\sum_i\log|2\pi eS_i|$. It prefers ranks whose latents the counts determine."""
        with precision(np.dtype(float)):
            return self.bic_ + 2 * float(self.table_.counts.share.summed(entropy(self._posterior)))

    def _card(self) -> Card | None:
        if not hasattr(self, "result_"):
            return None
        known = "_own_errors" in self.__dict__
        table = self.summary() if known else frames.coefficients(self.table_, self.coef_, self.coef_ * np.nan, 0.95)
        bound = "no longer rises" if self.converged_ else f"still rises after {self.n_sweeps_} sweeps: raise max_sweeps"
        n, p = self.table_.counts.share.n, len(self.loadings_)
        figures = {"rank": self.loadings_.shape[1], "units": n, "features": p, "bound": f"{self.elbo_:.2f}"}
        figures |= {"log-likelihood": repr(self.loglik_)} if "importance_" in self.__dict__ else {}
        message, trusted = f"The bound {bound}; {self.ascent_}.", self.converged_
        if "certificate_" in self.__dict__:
            message, trusted = self.message_, self.certificate_.word == "certified"
        return Card(type(self).__name__, message, trusted, table, len(table), figures)

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

    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """Names of the components."""
        check_fitted(self)
        return np.asarray(frames.components(self.loadings_.shape[1]), object)

    @contained
    def fit_transform(
        self, counts: CountsLike, y: object = None, *, covariates: Covariates | None = None,
        formula: str | None = None, offsets: Offsets | None = None,
    ) -> np.ndarray:  # fmt: skip
        """`fit`, and the scores of every unit given, (m, q); NaN where a unit was left out for want of an offset."""
        fitted = self.fit(counts, covariates=covariates, formula=formula, offsets=offsets)
        return frames.everywhere(fitted.table_.kept_rows, fitted.scores_)

    def to_anndata(self) -> Any:
        """The fit as an AnnData; see `margaux.families.pln.export.as_anndata`."""
        from .export import as_anndata

        check_fitted(self)
        return as_anndata(self)

    @property
    def plot(self) -> Any:
        """Figures; see `margaux.families.pln.plots.PLNPlots`."""
        from .plots import PLNPlots

        check_fitted(self)
        return PLNPlots(self)
