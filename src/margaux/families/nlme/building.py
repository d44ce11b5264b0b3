"""What is asked of a fitted model on the way to the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...showing.parts import check_fitted

if TYPE_CHECKING:
    from .bootstrap import Bootstrap
    from .covariate_search import CovariateSearch
    from .sir import SIR


class ModelBuilding:
    """Of `NLME`: the bootstrap, sampling importance resampling, and a search for covariates."""

    def bootstrap(self, n: int = 200, *, stratify: str | None = None, level: float = 0.95, key: int = 0) -> Bootstrap:
        r"""The non-parametric bootstrap: as many subjects as there are, drawn with replacement, and the model fitted anew.

        Each replicate is the maximum of $\sum_i c_i\log p(y_i\mid\theta)$ near the estimate, with $c_i$ how often subject i was
        drawn: by Newton's method on adaptive quadrature, all side by side in one program (see `margaux.fit_many`). With more
        than three random effects a subject they are polished one after the other. Effects whose variance was estimated as zero
        are in the replicates' model.

        Args:
            n: replicates. stratify: a column that is constant within a subject: as many are drawn of each of its levels as
                there are. level: of intervals.

        Returns:
            `replicates` (a row each, a column a parameter), `status` of each, `summary()` with mean, bias, standard error,
            percentile and BCa intervals, `message` with how many are used and why others are not.

        Raises:
            ValueError: a number out of its range, or a column that does not exist, has holes or varies within a subject.

        >>> from margaux import NLME
        >>> from margaux.datasets import load_theophylline
        >>> from margaux.nlme import LogNormal, oral1cpt
        >>> model = NLME(structural=oral1cpt, individual={"ka": LogNormal(1), "V": LogNormal(20), "CL": LogNormal(2)},
        ...              n_iter=60, n_burn=40, verbose=False)
        >>> model = model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
        >>> replicates = model.bootstrap(20)
        >>> list(replicates.replicates.columns) == list(model.params_)
        True
        """
        from .bootstrap import bootstrap

        check_fitted(self)
        return bootstrap(_own(self), n, stratify, level, key)

    def sir(
        self, n: int = 1000, resamples: int | None = None, *, inflate: float | None = None, level: float = 0.95, key: int = 0
    ) -> SIR:
        r"""Sampling importance resampling: the uncertainty of the parameters from the likelihood around the estimate.

        Proposals $u_m\sim N(\hat u, c^2 I^{-1})$ on the engine's unconstrained scale u (means on the Gaussian scale, logarithms
        of variances and errors, the log-Cholesky vector of covariance matrices), with Louis' information I; weights
        $w_m\propto L(u_m)/q(u_m)$ by the marginal likelihood itself, of all proposals side by side; and resamples in proportion
        to the weights, without replacement. What they are drawn from is the likelihood as a density of u. No model is fitted
        anew: it takes few subjects, too, whose resamples a bootstrap could not fit. Of a fit with priors they are drawn from the
        posterior density: $w_m\propto L(u_m)\pi(\theta_m)|\partial\theta/\partial u|/q(u_m)$, with the Jacobian of variances and
        blocks that have an inverse Wishart prior; parameters without a prior have a flat one in u.

        Args:
            n: proposals. resamples: a fifth of them by default. inflate: c, of the standard deviations; by default one, and
                more where the proposal turns out too narrow. level: of intervals.

        Returns:
            `resamples` and `proposals` (a row each, a column a parameter), `summary()` with intervals by the weights, `ess`,
            `pareto`, and `message`, which says where the proposal is too narrow and of what.

        Raises:
            ValueError: a number out of its range, or a fit without standard errors to propose by.

        Reference: Dosne, Bergstrand, Harling and Karlsson, J. Pharmacokinet. Pharmacodyn. 43 (2016), 583-596.

        >>> from margaux import NLME
        >>> from margaux.datasets import load_theophylline
        >>> from margaux.nlme import LogNormal, oral1cpt
        >>> model = NLME(structural=oral1cpt, individual={"ka": LogNormal(1), "V": LogNormal(20), "CL": LogNormal(2)},
        ...              n_iter=60, n_burn=40, verbose=False)
        >>> model = model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
        >>> found = model.sir(100)
        >>> found.resamples.shape, list(found.resamples.columns) == list(model.params_)
        ((20, 7), True)
        """
        from .sir import sir

        check_fitted(self)
        return sir(_own(self), n, resamples, inflate, level, key)

    def covariates(
        self, candidates: Mapping[str, Sequence[str]], search: str = "scm", forward: float = 0.05, backward: float = 0.01
    ) -> CovariateSearch:
        r"""Stepwise covariate modelling: which relations between parameters and covariates the likelihood asks for.

        Forward: of all relations that are not in the model, the one with the smallest p-value of the likelihood-ratio test goes
        in, while that is below `forward`. Backward: of those that went in, the one with the largest p-value goes out, while
        that is above `backward`. What the model has from the start stays. One model holds the coefficients of all
        relations, those that are not in it held at zero: each step's models are maximised side by side, from the last step's
        maximum, by one program (see `margaux.fit_many`); with more than three random effects a subject, one after the other.
        The final model is fitted anew from where the search ends.

        The p-values are of one test each, and the search makes many: what it selects is too large on average, and their number
        is to be told with them.

        Args:
            candidates: parameter -> terms of a formula over columns that are constant within a subject, as `covariates=` of its
                distribution takes them. search: "scm". forward, backward: p-values.

        Returns:
            `table` with a row a model that was looked at, `final`, the fitted model, `selected` and `message`. A term whose
            columns are constant, or linearly dependent on what the parameter has, is a row that says so.

        Raises:
            TypeError, ValueError: no such parameter or column, a column that has holes, varies within a subject or is not
                finite, or a p-value out of its range; before anything is fitted.

        >>> from margaux import NLME
        >>> from margaux.datasets import load_theophylline
        >>> from margaux.nlme import LogNormal, oral1cpt
        >>> model = NLME(structural=oral1cpt, individual={"ka": LogNormal(1), "V": LogNormal(20), "CL": LogNormal(2)},
        ...              n_iter=60, n_burn=40, verbose=False)
        >>> model = model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
        >>> found = model.covariates({"V": ["log(Weight/70)"], "CL": ["log(Weight/70)"]})
        >>> found.selected
        {}
        """
        from .covariate_search import searched

        check_fitted(self)
        return searched(_own(self), candidates, search, forward, backward)


def _own(model: ModelBuilding) -> Any:
    return model
