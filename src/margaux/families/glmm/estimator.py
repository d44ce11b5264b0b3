"""Generalised linear mixed models."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...answers.certificate import Certificate
from ...answers.fit import Fit
from ...answers.fitted import Parameters
from ...answers.likelihood import LogLikelihood
from ...answers.polish import polish
from ...answers.rules import best_rule, laplace_rule
from ...engine.outcome import FitError
from ...esteps import Laplace
from ...numerics.compiling import keep_compilations
from ...numerics.wald import wald_table
from ...showing.parts import check_fitted
from . import natural, prediction, priors, reml
from .answers import Answers
from .base import AbstractResponse
from .corrected import Correction, corrected
from .effects import effects_of, frames
from .elimination import can_eliminate
from .fitting import METHODS, MOST, Asked, approximate, check_size, estimate, is_exact, started
from .formula import design
from .layout import laid_out
from .likelihood import remember_exact, settled, without_prior
from .many import fitted_together
from .marginal_means import typical
from .model import Mixed
from .responses import Ordinal, by_name
from .verdict import certified, of_correction

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

    from .many_answers import ManyGLMM


class GLMM(Parameters, Answers):
    r"""Generalised linear mixed models by formula, at the maximum of their exact likelihood where it can be integrated.

    $g(E[y\mid b]) = X\beta + \sum_t Z_tb_t + \text{offset}$ with $b_t\sim N(0, \Sigma_t)$ independent over the groups of each
    factor. Effects of up to three dimensions a group are integrated by adaptive quadrature (Pinheiro and Bates 1995), nested ones
    by quadrature within quadrature. Crossed ones are fitted by Laplace's approximation, in which the largest factor is eliminated
    (Bates, Maechler, Bolker and Walker 2015), and from there to the maximum of the exact likelihood where the others are few
    enough to be drawn; elsewhere weighted draws tell how far the approximation is off.

    Args:
        formula: lme4's and glmmTMB's, as "incidence/size ~ period + (1 | herd)": see `margaux.families.glmm.formula.design`.
        family: gaussian, binomial, poisson, nbinom1, nbinom2, gamma, beta, ordinal, student, or a response of
            `margaux.families.glmm.responses`, as `ZeroInflated(by_name("poisson"))`. link: by name; the family's first if None.
        method: "auto"; "quadrature", or an error where effects have too many dimensions; "laplace", what lme4 and glmmTMB give.
        reml: of a Gaussian response, variances at the maximum of the restricted likelihood and fixed effects by generalised least
            squares given those, as lme4 does by default; `loglik_` is the restricted one. See `margaux.families.glmm.reml`.
        prior: scales by name, as {"x": 2.5, "sd_g": np.inf}: fixed effects N(0, 2.5^2), which separation leaves finite; standard
            deviations Gamma(2) with mode at the scale, covariances Wishart, which keeps them off zero. The estimate is then
            penalised, and its errors are by the curvature of the penalised likelihood; `loglik_` is the likelihood there. See
            `margaux.families.glmm.priors.Prior`.
        n_nodes: of the quadrature a dimension, while it climbs; its likelihood is held to finer ones in any case.
        start: starting values of some of `params_`, by name. n_iter: Newton's steps at most.
        random_state: an int. dtype: "float32" or "float64". verbose: show progress.

    Attributes:
        params_, stderr_: fixed effects by the names of their columns; `sigma`, `theta` and the like; `sd_herd`, `sd_g[x]`,
            `cor_g[Intercept,x]`. design_: of the formula. groups_: how many of each factor. climbed_: the fit that
            `conf_int(method="profile")` is of. correction_: how far Laplace's estimate was from that of the exact likelihood,
            where it has been mended (`margaux.families.glmm.corrected.Correction`). See `Fitted` for the rest.

    Raises:
        ValueError, TypeError: bad input, before anything is compiled, with where and how to mend it.

    >>> import numpy as np, pandas as pd
    >>> from margaux import GLMM
    >>> rng = np.random.default_rng(0)
    >>> herd, x = np.repeat(np.arange(30), 8), rng.normal(size=240)
    >>> y = rng.poisson(np.exp(0.5 + 0.3 * x + 0.6 * rng.normal(size=30)[herd]))
    >>> model = GLMM("y ~ x + (1 | herd)", family="poisson", verbose=False).fit(pd.DataFrame({"y": y, "x": x, "herd": herd}))
    >>> list(model.params_), model.certificate_.word
    (['Intercept', 'x', 'sd_herd'], 'certified')
    """

    def __init__(
        self,
        formula: str = "",
        *,
        family: str | AbstractResponse = "gaussian",
        link: str | None = None,
        method: str = "auto",
        reml: bool = False,
        prior: Mapping[str, float] | None = None,
        n_nodes: int | None = None,
        start: Mapping[str, float] | None = None,
        n_iter: int = MOST,
        random_state: int = 0,
        dtype: DTypeLike | None = None,
        verbose: bool = True,
    ) -> None:
        self.formula = formula
        self.family = family
        self.link = link
        self.method = method
        self.reml = reml
        self.prior = prior
        self.n_nodes = n_nodes
        self.start = start
        self.n_iter = n_iter
        self.random_state = random_state
        self.dtype = dtype
        self.verbose = verbose

    def fit(self, data: pd.DataFrame, *, offset: str | ArrayLike | None = None, weights: str | ArrayLike | None = None) -> GLMM:
        """Estimate.

        Args:
            data: a row an observation. offset: added to the linear predictor, a column's name or (N,). weights: prior weights.

        Raises:
            ValueError, TypeError: bad input, before anything is compiled. FitError: the fit failed; `.fit` is the partial one.
        """
        asked = self._asked()
        response = self._response()
        found = design(self.formula, data, offset=offset, weights=weights)
        found = found.ordered() if isinstance(response, Ordinal) else found
        found.check(response)
        if self.reml:
            reml.check(response, self.method, found)
        if not found.terms:
            raise ValueError(
                f'"{self.formula}" has no random effects; write them as (1 | group), or use a generalised linear model'
            )
        keep_compilations()
        layout = laid_out(found, response, whole=self.reml)
        start = started(found, response, layout)
        if not self.reml:
            check_size(found, layout, start)
        prior = priors.given(self.prior, found.names, layout.factors, self.reml)
        model = Mixed(response, layout.factors, start.scale, prior, np.asarray(1 / len(layout.rows)))
        if self.start is not None:
            start = start._replace(params=natural.given(model, found, start.params, self.start))
        fit = (reml.estimate if self.reml else estimate)(model, layout, start, asked)
        self.design_, self.layout_, self.model_, self._sizes = found, layout, model, start.sizes
        self.typical_ = typical(found, data)
        self._names = natural.names(model, found)
        self._keep(fit)
        if fit.result.failed:
            raise FitError(fit)
        return self

    def fit_many(
        self,
        Y: Any,
        data: pd.DataFrame,
        *,
        offset: str | ArrayLike | None = None,
        weights: str | ArrayLike | None = None,
        trials: str | ArrayLike | None = None,
    ) -> ManyGLMM:
        r"""The same model for each of many responses of one table, all at once: genes, taxa, voxels.

        Each response has parameters of its own and ends at the maximum of its own likelihood, by adaptive quadrature (Gaussian
        ones in closed form); they share the design, one compiled program, and the checks of a single fit's certificate. A
        response that cannot be fitted is told of in the verdicts and does not stop the others.

        Args:
            Y: responses, (rows, R) or a frame with a column each. data: the columns of the formula's right side, in the same
                order of rows. The left side may be empty, as in "~ x + (1 | g)", and is not read.
            offset, weights, trials: a column's name, (rows,), or one for each response (rows, R). trials: of binomial responses.

        Raises:
            ValueError, TypeError: bad input that concerns all responses, or more random effects that hang together than can be
                integrated, unless `method="laplace"`.

        >>> import numpy as np, pandas as pd
        >>> from margaux import GLMM
        >>> rng = np.random.default_rng(0)
        >>> donor, x = np.repeat(np.arange(12), 5), rng.normal(size=60)
        >>> counts = rng.poisson(np.exp(1 + np.outer(x, [0.0, 0.5, 0.0]) + 0.4 * rng.normal(size=(12, 3))[donor]))
        >>> genes = pd.DataFrame(counts, columns=["A", "B", "C"]).assign(D=0)
        >>> samples = pd.DataFrame({"x": x, "donor": donor})
        >>> fits = GLMM("~ x + (1 | donor)", family="poisson", verbose=False).fit_many(genes, samples)
        >>> fits.test("x")["p_adjusted"].lt(0.05).tolist(), fits.verdicts["message"]["D"]
        ([False, True, False, False], 'not fitted: the response is 0 in every row; there is nothing to model')
        """
        asked = self._asked()
        if self.start is not None:
            raise ValueError("start= is of one fit; fit_many begins each response with a regression of its own: leave it out")
        if self.reml or self.prior:
            raise ValueError("fit_many maximises plain likelihoods: leave reml= and prior= out, or fit one response at a time")
        given = {"offset": offset, "weights": weights, "trials": trials}
        return fitted_together(self.formula, self._response(), asked, Y, data, given)

    def _response(self) -> AbstractResponse:
        return self.family if isinstance(self.family, AbstractResponse) else by_name(self.family, self.link)

    def _asked(self) -> Asked:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.n_nodes is not None and not (isinstance(self.n_nodes, int) and 1 <= self.n_nodes <= 100):
            raise ValueError(f"n_nodes must be a whole number from 1 to 100, got {self.n_nodes!r}")
        return Asked(self.method, self.n_nodes, self.n_iter, self.random_state, self.dtype, self.verbose)

    def _keep(self, fit: Fit) -> None:
        for name in ("stderr_", "loglik_", "_effects"):
            vars(self).pop(name, None)
        self.climbed_ = self.result_ = fit
        self.correction_: Correction | None = None
        self.n_iter_, self.converged_, self.message_ = fit.n_iter, fit.converged, fit.message
        if self._approximated and not self.reml and not fit.result.failed:
            # The approximation's own errors and likelihood, where the exact ones could be had.
            _examine(fit)
            if is_exact(self.model_.response):
                remember_exact(fit)
            elif self._eliminates and (found := corrected(fit)) is not None:
                self.result_, self.correction_ = found[0], found[1]
                fit.remembered("approximation", lambda: of_correction(found[1]))
                _examine(self.result_)
        self._values, self._jacobian = natural.moved(self.model_, self.result_.params)
        self.params_ = dict(zip(self._names, self._values.tolist(), strict=True))
        self.n_observations_, self.n_features_in_ = len(self.design_.y), len(self.design_.names)
        self.groups_ = {name: len(term.labels) for name, term in zip(self.layout_.names, self.design_.terms, strict=True)}

    @property
    def certificate_(self) -> Certificate:  # type: ignore[override]
        """Whether this is the maximum, and its errors true: see `margaux.Fit.certificate`."""
        check_fitted(self)
        return certified(self)

    # -- tables -------------------------------------------------------------------------------------

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Estimate, standard error, z, p and interval: fixed effects, then the response's parameters, then those of covariances.

        Standard deviations have no test by their standard error, whose hypothesis is at the edge: see `anova`.
        """
        check_fitted(self)
        covariance = self.cov_params().to_numpy()
        with np.errstate(invalid="ignore"):
            se = np.sqrt(np.diagonal(covariance))
        frame = wald_table(self._values, se, level, self._names)
        frame.loc[[name.startswith("sd_") for name in self._names], ["z", "p"]] = np.nan
        told = [str(self.certificate_), self.message_]
        if self.prior:
            told.insert(1, f"the estimate is penalised: {priors.described(self.prior, self.design_.names, self.model_.factors)}")
        frame.attrs["message"] = "; ".join(part.rstrip(".") for part in told) + "."
        return frame

    @functools.cached_property
    def stderr_(self) -> dict[str, Any]:
        """Standard errors, by name as `params_`; NaN where they are not to be trusted."""
        check_fitted(self)
        return self.summary()["se"].to_dict()

    def cov_params(self) -> pd.DataFrame:
        """Covariance of the estimates, with the names of `summary` both ways."""
        check_fitted(self)
        found = self._jacobian @ self.result_.information().covariance @ self._jacobian.T
        edge = np.array([name.startswith(("sd_", "cor_")) and self._at_edge(name) for name in self._names])
        return pd.DataFrame(np.where(edge[:, None] | edge, np.nan, found), index=self._names, columns=self._names)

    def _at_edge(self, name: str) -> bool:
        """Whether a standard deviation or a correlation is of a singular covariance, where Wald errors do not hold."""
        return any(
            name.split("[")[0] in (f"sd_{factor.name}", f"cor_{factor.name}") and self.singular_(factor.name)
            for factor in self.model_.factors
        )

    @functools.cached_property
    def loglik_(self) -> LogLikelihood:
        """Marginal log-likelihood, every constant included."""
        check_fitted(self)
        return without_prior(settled(self.result_, self._eliminates), self.result_)

    @property
    def _approximated(self) -> bool:
        """Whether standard errors and modes are those of Laplace's approximation."""
        return approximate(self.model_.response, self.result_.estep, len(self.layout_.rows), self._asked())

    @property
    def _eliminates(self) -> bool:
        """Whether crossed factors were approximated, and their likelihood is exact all the same."""
        exact = self.method == "laplace" or is_exact(self.model_.response)
        return self._approximated and not exact and len(self.layout_.rows) == 1 and can_eliminate(self.model_)

    def fixef(self) -> pd.Series:
        """Fixed effects, as lme4 calls them."""
        check_fitted(self)
        return pd.Series({name: self.params_[name] for name in self.design_.names}, name="estimate")

    def ranef(self) -> dict[str, pd.DataFrame]:
        """Random effects given the data, a frame a factor: "estimate" (conditional means; modes of Laplace's approximation) and
        "se", a row a group and effect."""
        check_fitted(self)
        return frames(self._effects, self.design_, self.layout_.names)

    @functools.cached_property
    def _effects(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        done = self.result_.known("examined") or self.result_.polished
        rule = (laplace_rule if self._approximated else best_rule)(self.result_) if done is None else done.rule
        return effects_of(self.result_, rule, self.layout_)

    def VarCorr(self) -> pd.DataFrame:
        """Variances, standard deviations and correlations of the random effects, a row an effect of each factor."""
        check_fitted(self)
        rows = []
        for factor, term in zip(self.model_.factors, self.design_.terms, strict=True):
            for i, covariance in enumerate(self.covariance_(factor.name)):
                sd = np.sqrt(np.diagonal(self.covariance_(factor.name)))
                row = {"group": factor.name, "effect": term.columns[i], "variance": sd[i] ** 2, "sd": sd[i]}
                rows.append(row | {f"cor_{term.columns[j]}": covariance[j] / (sd[i] * sd[j]) for j in range(i)})
        return pd.DataFrame(rows).set_index(["group", "effect"])

    def covariance_(self, factor: str) -> np.ndarray:
        """Of a group's effects (k, k), by the factor's name.

        Raises:
            ValueError: there is no such factor.
        """
        check_fitted(self)
        one = next((one for one in self.model_.factors if one.name == factor), None)
        if one is None:
            raise ValueError(f'there is no factor "{factor}"; the factors are {", ".join(self.layout_.names)}')
        root = natural.root(one, self.result_.params)
        return root @ root.T

    # -- predictions --------------------------------------------------------------------------------

    def predict(
        self,
        data: pd.DataFrame | None = None,
        *,
        re_form: str | None = None,
        kind: str = "response",
        offset: str | ArrayLike | None = None,
        allow_new_levels: bool = False,
    ) -> np.ndarray:
        """Predictions (rows,): see `margaux.families.glmm.prediction.predicted`."""
        check_fitted(self)
        return prediction.predicted(self, data, re_form, kind, offset, allow_new_levels)

    def simulate(self, n: int = 1, *, re_form: str | None = "NA", random_state: int | None = None) -> pd.DataFrame:
        """New responses for the rows of the fit, a column each: see `margaux.families.glmm.prediction.simulated`."""
        check_fitted(self)
        return prediction.simulated(self, n, re_form, self.random_state if random_state is None else random_state)

    @property
    def plot(self) -> Any:
        """Figures; see `margaux.families.glmm.plots.GLMMPlots`."""
        from .plots import GLMMPlots

        check_fitted(self)
        return GLMMPlots(self)

    @property
    def is_singular_(self) -> bool:
        """Whether a covariance of random effects is at the edge, as lme4's isSingular."""
        check_fitted(self)
        return any(self.singular_(factor.name) for factor in self.model_.factors)

    def singular_(self, factor: str) -> bool:
        """Whether a covariance is at the edge: in some direction effects vary by a ten-thousandth of a moderate spread.

        Raises:
            ValueError: there is no such factor.
        """
        return bool(natural.singular(self.covariance_(factor), self._sizes[factor]))

    @property
    def fitted_by_(self) -> str:
        """ "quadrature", "laplace", or "laplace, corrected": by Laplace's to the maximum of the exact likelihood."""
        check_fitted(self)
        if self.correction_ is not None:
            return "laplace, corrected"
        return "laplace" if isinstance(self.result_.estep, Laplace) else "quadrature"


def _examine(fit: Fit) -> None:
    fit.remembered("examined", lambda: polish(fit, laplace_rule(fit), most=0)[1])
