"""Nonlinear mixed-effects models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, DTypeLike

from ...answers.certificate import Certificate
from ...answers.fit import Fit
from ...answers.fitted import Fitted, Parameters
from ...kernels import AbstractKernel
from ...numerics.compiling import keep_compilations
from ...numerics.precision import precision
from ...showing.parts import check_fitted
from ..sharing import pooled
from . import answers, by_occasion, classes, comparison, informed, intervals, notes, prediction, specification, verdict
from .autocorrelated import check_times
from .building import ModelBuilding
from .censoring import with_limits
from .class_search import estimate
from .data import LongData
from .design import Design
from .dosing import with_regimen
from .dynamics import with_constants
from .error import ResidualError
from .events import named_by_default, reading_events
from .fitting import Settings, check_structural
from .individual import Individual
from .informed import Criteria
from .membership import Membership
from .mild import with_steps
from .model import MixedEffects
from .outcomes import AbstractOutcome
from .prior_places import Priors, checked
from .rows_by_output import check_named, named_column
from .simulating import Simulating
from .writing import Writing


class NLME(ModelBuilding, Criteria, Simulating, Writing, Membership, Parameters, Fitted):
    r"""Nonlinear mixed effects by MCMC-SAEM.

    $y_{ij} = f(\psi_i, x_{ij}) + g\,\epsilon_{ij}$ with $h^{-1}(\psi_i)\sim N(C_i\beta, \Omega)$ for subject i.

    Any function of (parameters, row) is a structural model, and any log-likelihood of a row an outcome; ready ones are in
    `margaux.nlme`. Short SAEM runs from several starts are screened by their log-likelihood and the best is
    continued; `starts_` shows them all. Chains accept or reject subject by subject.

    Args:
        structural: f(parameters, row) -> number, or a `Curve` such as `margaux.families.nlme.oral1cpt`. `row` holds the numeric
            columns of the data by name, and by role "time", "dose", "y".
        individual: name -> distribution: `Normal LogNormal LogitNormal ProbitNormal` of `margaux.nlme`, whose random effects may
            be skewed or have heavy tails, as `LogNormal(shape="boxcox")` and `LogNormal(shape="t")`, or whose subjects be of
            several classes that nobody has named, as `LogNormal(classes=2)`.
        omega: "diagonal", "full", or a list of tuples of names whose effects are correlated.
        priors: what is known beforehand, by the names of `params_`, as {"ka": NormalPrior(1.5, cv=0.3), "omega2_ka":
            InverseWishart(0.09, df=20)}, or by a block of omega, ("V", "CL"). Estimates are then MAP, of log-likelihood + log
            prior, and standard errors by the information of both; `loglik_` is without the prior.
        error: `ConstantError Proportional Combined Power Exponential` of `margaux.nlme`, or a name; by output where there are
            several: {"cp": Combined(), "effect": "constant"}, or one that each has for itself.
        log_likelihood: instead of `structural` and `error`: f(parameters, row) -> log p(y | parameters), or an
            outcome such as `margaux.nlme.Poisson(...)`.
        censoring: how observations beyond limits count: "M3", or "M4", given that they are positive.
        n_iter: iterations at most, of which `n_burn` with gain one; then it decays like k^-`power`. The fit stops
            when the Monte Carlo error is small beside the statistical one (see `margaux.families.nlme.settled`); stop=False runs
            them all.
        n_chains: chains a subject; by default two or more, 50 in all, and one from 500 subjects on.
        n_starts: starts screened, or more where curves have mirror images, for `n_screen` iterations each (a third of them where
            differential equations are solved by steps).
        pattern: moves of the sampler, in turn, or a kernel (see `margaux.Alternating`). n_steps: transitions an iteration;
            by default four, or two from 500 subjects on, whose averages need no more, and where differential equations are
            solved by steps.
        anneal: least ratio of a variance to its last value during the burn-in; 0 for no annealing.
        fixed_effects: how parameters without random effect are estimated: "newton", or "exponentialised", with a
            random effect whose variance vanishes.
        batch_size: subjects an iteration; None for all.
        polish: whether Newton's steps end the fit at the maximum, see `margaux.fit`; by default up to 20,000 subjects.
        random_state: an int. dtype: "float32" or "float64". verbose: show progress.

    Attributes:
        params_: natural scale, named `ka`, `beta_V[log(Weight/70)]`, `omega2_ka`, `gamma2_CL` (between occasions), `cov_V_CL`,
            `a`, `b` (of an output `a[cp]`), `lambda_V` and `nu_V` (of shapes of effects), `share_2` and `beta_CL[class 2]` (of
            classes, of which `membership_` has the probabilities of each subject). stderr_: by Louis.
        individual_: frame of conditional means, SDs and modes a subject. starts_: the screening. See `Fitted`.

    Raises:
        ValueError, TypeError: bad input, before anything is fitted, naming subject and row.

    >>> from margaux import NLME
    >>> from margaux.datasets import load_theophylline
    >>> from margaux.nlme import LogNormal, oral1cpt
    >>> model = NLME(structural=oral1cpt, individual={"ka": LogNormal(1), "V": LogNormal(20), "CL": LogNormal(2)},
    ...              n_iter=60, n_burn=40, verbose=False)
    >>> model = model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
    >>> list(model.params_)
    ['ka', 'V', 'CL', 'omega2_ka', 'omega2_V', 'omega2_CL', 'a']
    """

    def __init__(
        self,
        *,
        structural: Callable[..., Any] | None = None,
        individual: Mapping[str, Individual] | None = None,
        omega: str | Sequence[Sequence[str]] = "diagonal",
        priors: Priors | None = None,
        error: ResidualError | str | Mapping[Any, ResidualError | str] = "constant",
        log_likelihood: Callable[..., Any] | AbstractOutcome | None = None,
        censoring: str = "M3",
        n_iter: int = 2000,
        n_burn: int = 200,
        power: float = 0.7,
        stop: bool = True,
        n_chains: int | None = None,
        n_starts: int = 5,
        n_screen: int = 60,
        pattern: tuple[str, ...] | AbstractKernel = ("independence", "joint", "independence", "component"),
        n_steps: int | None = None,
        anneal: float = 0.95,
        fixed_effects: str = "newton",
        batch_size: int | None = None,
        polish: bool | None = None,
        random_state: int = 0,
        dtype: DTypeLike | None = None,
        verbose: bool = True,
    ) -> None:
        self.structural = structural
        self.individual = individual
        self.omega = omega
        self.priors = priors
        self.error = error
        self.log_likelihood = log_likelihood
        self.censoring = censoring
        self.n_iter = n_iter
        self.n_burn = n_burn
        self.power = power
        self.stop = stop
        self.n_chains = n_chains
        self.n_starts = n_starts
        self.n_screen = n_screen
        self.pattern = pattern
        self.n_steps = n_steps
        self.anneal = anneal
        self.fixed_effects = fixed_effects
        self.batch_size = batch_size
        self.polish = polish
        self.random_state = random_state
        self.dtype = dtype
        self.verbose = verbose

    def __setattr__(self, name: str, value: object) -> None:
        # Answers are worked out when they are asked for, from settings as much as from estimates.
        known = "result_" in vars(self) and name != "verbose" and name in self.get_params()
        if known and value != getattr(self, name):
            raise AttributeError(
                f"this {type(self).__name__} is fitted, and its answers are those of its {name}; fit another one: "
                f"sklearn.base.clone(model).set_params({name}=...).fit(...)"
            )
        super().__setattr__(name, value)

    def fit(
        self,
        data: pd.DataFrame,
        y: str | None = None,
        *,
        id: str | None = None,
        time: str | None = None,
        dose: str | None = None,
        occ: str | None = None,
        cens: str | None = None,
        limit: str | None = None,
        lloq: float | str | Mapping[Any, float] | None = None,
        columns: Mapping[str, str] | None = None,
        output: str | None = None,
    ) -> NLME:
        """Estimate from a long data frame: one row an observation, columns by name; or from an event table.

        Args:
            id: the subject, "id" by default. time, dose, y: their columns; further numeric columns reach f by their own names.
                Over several processes each gives its own rows, by `margaux.shard`.
            occ: the occasion, for parameters with `occasion=True` or covariates that change between occasions, and with which the
                clock of an event table may start anew: the compartments then do, too. "OCC" in any case by default where a
                parameter varies between occasions.
            cens: 1 where y is a limit that the observation lies below, -1 where above, else 0; "CENS" in any case by default.
            limit: the other end of an interval; "LIMIT" by default.
            lloq: limit of quantification, the column of one a row, or {"cp": 0.5} by output: every y below it is censored.
            columns: those of an event table that have other names, as {"AMT": "amount_mg"}.
            output: the column of the output that y is of, where there are several; "DVID" in any case by default.

        A compartment model without `dose` reads doses on rows of their own, by the columns AMT EVID MDV CMT RATE DUR II ADDL SS
        of NONMEM and Monolix in any case, and then ID, TIME and DV where nothing else is named: see
        `margaux.families.nlme.events` and `margaux.nlme.dosed`.
        """
        keep_compilations()
        data, shared = pooled(data)
        outcome, individual = specification.outcome(self), specification.individual(self)
        output, columns = named_column(output, columns)
        roles: dict[str, str | None] = {
            "id": id, "time": time, "y": y, "dose": dose, "occ": occ, "cens": cens, "limit": limit, "output": output
        }  # fmt: skip
        outcome, table = reading_events(data, outcome, roles, columns)
        roles = named_by_default(data, roles, outcome, table is not None, bool(by_occasion.varying(individual)))
        check_named(outcome, roles["output"])
        if roles["y"] is None:
            raise ValueError("name the column of the outcome: fit(data, id=..., time=..., y=...)")
        outcome, self.data_ = by_occasion.grouped(outcome, individual, data, roles, columns=table, lloq=lloq)
        outcome = with_constants(with_regimen(outcome, self.data_.regimen, individual), individual, self.data_)
        check_times(outcome, self.data_)
        if self.data_.censored:
            outcome = with_limits(outcome, self.censoring, self.data_)
        self.data_ = by_occasion.with_occasions(self.data_, individual, outcome)
        specification.check_parameters(self, outcome, individual)
        known = specification.blocks(self, individual), self.data_
        build = functools.partial(specification.built, outcome, *known, priors=checked(self.priors))
        settings = Settings.of(self, shared)
        with precision(settings.dtype):
            one = classes.without(individual)
            build = functools.partial(specification.built, with_steps(outcome, *build(one)), *known, **build.keywords)
            check_structural(*build(one), self.data_)
        return self._ended(*estimate(build, individual, settings))

    def _ended(self, result: Fit, starts: pd.DataFrame) -> NLME:
        result, self.starts_ = informed.noted(self, result, starts)
        self.model_: MixedEffects = result._model().model  # type: ignore[assignment]
        self._design = Design(dict(self.model_.individual), self.data_)
        self.n_observations_, self.n_subjects_ = len(self.data_.codes), len(self.data_.labels)
        with precision(result.dtype):
            self._keep(result)
        return self

    def _keep(self, fit: Fit) -> None:
        super()._keep(fit)
        for name in ("individual_", "by_occasion_", "membership_", "_table", "certificate_"):
            vars(self).pop(name, None)
        with precision(np.dtype(float)):
            params = jax.tree.map(lambda leaf: np.asarray(leaf, float), fit.params)
            values = np.asarray(answers.natural_jacobian(self.model_, params, self._dropped)[0])
        names = answers.natural_names(self.model_, self._design.labels, self._dropped)
        self.params_ = dict(zip(names, values.tolist(), strict=True))
        for about in notes.notes(self):
            self.message_ = f"{self.message_.rstrip('.')}; {about}."

    @property
    def _dropped(self) -> tuple[str, ...]:
        """Names of the variances that were estimated as zero, and of what else the data do not ask for."""
        return notes.dropped(specification.individual(self), dict(self.model_.individual))

    @property
    def held_(self) -> dict[str, float]:
        """Parameters that were held and not estimated, at their values: they count as no parameters and have no errors."""
        return {name: self.params_[name] for name in answers.held_names(self.model_, self._design.labels)}

    @functools.cached_property
    def _table(self) -> pd.DataFrame:
        check_fitted(self)
        return answers.table(self)

    def _costs_nothing(self, answer: str) -> bool:
        return {"summary": "_table", "loglik": "loglik_"}[answer] in self.__dict__

    @property
    def stderr_(self) -> dict[str, float]:  # type: ignore[override]
        """Standard errors by Louis' identity, named as `params_`; NaN where they are not to be trusted."""
        return self._table["se"].to_dict()

    def summary(self, level: float = 0.95, method: str = "louis") -> pd.DataFrame:
        """Estimate, standard error with its Monte Carlo error, RSE in %, t, p and interval, natural scale.

        Intervals are taken on the scale the parameter is normal on (log for variances and error parameters, h^-1 for
        individual parameters), by Student's t: of the subjects less one for variances, of the within-subject degrees of
        freedom for the rest. `method="linearised"` takes the information from the tangents of
        the curves at the conditional modes instead of Louis' identity: quicker, approximate. `frame.attrs["message"]`
        says how the fit ended.
        """
        check_fitted(self)
        frame = self._table if method == "louis" else answers.table(self, method)
        return informed.summarised(self, intervals.with_intervals(self, frame, level))

    def cov_params(self) -> pd.DataFrame:
        """Covariance of the natural parameters, named as `params_` both ways; NaN where it is not to be trusted."""
        check_fitted(self)
        return answers.covariance(self)

    def correlations(self) -> pd.DataFrame:
        """Correlations of the estimates."""
        check_fitted(self)
        return answers.correlations(self)

    @functools.cached_property
    def certificate_(self) -> Certificate:  # type: ignore[override]
        """The checks of `margaux.Fit.certificate`, under the names of `params_`, with those of the family: the starts agree, the
        residuals (npde) are those of the model. Computed when first asked for."""
        check_fitted(self)
        return verdict.renamed(self.result_.certificate, self).and_also(*verdict.checks(self))

    @functools.cached_property
    def loglik_(self) -> Any:
        """Marginal log-likelihood, every constant included, with its error `.se`."""
        return self.loglik()

    def loglik(self, method: str = "auto", n_draws: int | None = None, n_nodes: int = 11) -> Any:
        """By adaptive Gauss-Hermite "quadrature", "importance" sampling, or the better ("auto"), with `.se`: see `Fit.loglik`."""
        check_fitted(self)
        return informed.without_prior(self, answers.loglik(self, method, n_draws, n_nodes))

    def profile(self, name: str, grid: ArrayLike, level: float = 0.95) -> pd.DataFrame:
        """The profile likelihood of one parameter of `params_` over a grid of its values, on the natural scale: `loglik`,
        `mc_error`, `away` and the maximisers; `attrs["interval"]` is the interval. See `margaux.answers.profile`."""
        check_fitted(self)
        informed.refuse(self, "a likelihood profile")
        return answers.along(self, name, grid, True, level)

    def slice(self, name: str, grid: ArrayLike) -> pd.DataFrame:
        """The log-likelihood over a grid of one parameter, the others held: see `margaux.answers.profile.slice`."""
        check_fitted(self)
        informed.refuse(self, "a slice of the likelihood")
        return answers.along(self, name, grid, False)

    @property
    def n_params_(self) -> int:
        """Free scalar parameters."""
        return len(self.params_) - len(self.held_)

    @functools.cached_property
    def individual_(self) -> pd.DataFrame:
        """One row a subject: `mode_ka`, `mean_ka`, `sd_ka` of each individual parameter given the data."""
        check_fitted(self)
        return answers.individual(self)

    @functools.cached_property
    def by_occasion_(self) -> pd.DataFrame:
        """One row an occasion of a subject: `mode_CL`, `mean_CL`, `sd_CL` of each parameter that varies between them."""
        check_fitted(self)
        return by_occasion.parameters(self)

    def shrinkage(self) -> pd.Series:
        """1 - variance of the conditional modes of random effects / their variance; of occasions under "CL[occasion]"."""
        check_fitted(self)
        own = answers.shrinkage(self)
        return pd.concat([own, by_occasion.shrinkage(self)]) if self.model_.varying else own

    def sample_individual(self, n_draws: int = 100, key: int = 0) -> dict[str, np.ndarray]:
        """Draws of individual parameters given the data: name -> (n_draws, subjects), or (n_draws, subjects, occasions)."""
        check_fitted(self)
        return prediction.conditional(self, n_draws, key)

    def predict(self, data: pd.DataFrame | None = None, level: str = "individual") -> np.ndarray:
        """E[y] of each row, in the order of the data: at the conditional modes ("individual"), or at the
        population's parameters and the subject's covariates ("population"). New subjects get the latter. Where there are classes
        the population's is the mean of their typical subjects by their shares, each of which is "class 1", "class 2", ..."""
        check_fitted(self)
        return prediction.predict(self, data, level)

    def simulate(self, data: pd.DataFrame | None = None, n_draws: int = 1, key: int = 0) -> np.ndarray:
        """Outcomes of new subjects with these designs and covariates: (n_draws, rows)."""
        check_fitted(self)
        return prediction.simulate(self, data, n_draws, key)

    def npde(self, n_simulations: int = 1000, key: int = 0) -> Any:
        """Normalised prediction distribution errors, with their tests: see `margaux.families.nlme.residuals`."""
        from . import residuals

        check_fitted(self)
        return residuals.npde(self, n_simulations, key)

    def residuals(self) -> pd.DataFrame:
        """Predictions, weighted residuals (WRES, IWRES) and npde of each observation, in the order of the data."""
        from . import residuals

        check_fitted(self)
        return residuals.residuals(self)

    def lr_test(self, reduced: NLME) -> Any:
        """Likelihood-ratio test against a nested fit: see `margaux.nlme.lr_test`."""
        return comparison.lr_test(reduced, self)

    def wald_test(self, names: str | list[str], value: ArrayLike = 0.0) -> Any:
        """Wald test that the named parameters equal `value`."""
        check_fitted(self)
        informed.refuse_named(self, [names] if isinstance(names, str) else names)
        return answers.wald_test(self, names, value)

    @property
    def plot(self) -> Any:
        """Figures: convergence, fits, predictions, residuals, npde, vpc, goodness, effects, pairs, covariates, forest."""
        from .plots import NLMEPlots

        check_fitted(self)
        return NLMEPlots(self)

    def _units(self, data: LongData) -> dict[str, Any]:
        """Units of a grouped frame under this fit's design, as arrays of its precision."""
        units = data.units | {"design": self._design.matrix(data)}
        return jax.tree.map(lambda leaf: np.asarray(leaf, self.result_.dtype), units)
