"""Of a fit with priors: what its numbers are, and what is not asked of it. Criteria of fits without."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...numerics.precision import precision
from . import answers, prior_places

if TYPE_CHECKING:
    import pandas as pd

    from ...answers.fit import Fit
    from ...answers.likelihood import LogLikelihood

#: said of the engine's fit, and of the table of starts
NOTE = "Maximum a posteriori: what this fit maximises, and what it calls its log-likelihood, has the log prior in it."
STARTS = "loglik and reached are log-likelihoods with the log prior added"


class Criteria:
    """Of `NLME`: the log prior, and criteria that count parameters."""

    @property
    def log_prior_(self) -> float:
        """Log density of the priors at the estimate, by variables as `NormalPrior` and `InverseWishart` have them; zero without
        any. `loglik_` is without it."""
        return log_prior(self)

    @property
    def aic_(self: Any) -> float:
        """-2 log-likelihood + 2 k. Raises: ValueError: the fit has priors, as of the other criteria."""
        refuse(self, "AIC")
        return -2 * float(self.loglik_) + 2 * self.n_params_

    @property
    def aicc_(self: Any) -> float:
        """AIC corrected for n subjects: + 2 k (k + 1) / (n - k - 1)."""
        k, n = self.n_params_, self.n_subjects_
        return self.aic_ + (2 * k * (k + 1) / (n - k - 1) if n > k + 1 else np.inf)

    @property
    def bic_(self: Any) -> float:
        """-2 log-likelihood + k log(number of subjects)."""
        refuse(self, "BIC")
        return -2 * float(self.loglik_) + self.n_params_ * float(np.log(self.n_subjects_))

    @property
    def bicc_(self: Any) -> float:
        """Hybrid BIC: log(subjects) for what random effects carry, log(observations) for the rest (Delattre et al. 2014)."""
        refuse(self, "BIC")
        few = answers.carried_by_observations(self)
        penalty = (self.n_params_ - few) * np.log(self.n_subjects_) + few * np.log(self.n_observations_)
        return -2 * float(self.loglik_) + float(penalty)


def has_priors(fitted: Any) -> bool:
    """Whether an estimator maximises a posterior density."""
    return bool(fitted.priors)


def refuse(fitted: Any, what: str) -> None:
    """Raises: ValueError: the estimate maximises a posterior density, of which this would say what holds for likelihoods."""
    if has_priors(fitted):
        raise ValueError(
            f"{what} is for estimates of maximum likelihood, and this fit has priors: it maximises the log-likelihood and "
            "the log prior together, and counts no free parameters; fit it without priors=, or read summary() and its standard "
            "errors"
        )


def refuse_named(fitted: Any, names: list[str]) -> None:
    """Raises: ValueError: a test of parameters whose own priors are in their estimates."""
    for name in names:
        if name in own_priors(fitted):
            raise ValueError(
                f"{name} has a prior, which is in its estimate and its standard error: it is not tested; see summary()"
            )


def log_prior(fitted: Any) -> float:
    """At the estimate."""
    model = fitted.model_
    if not model.prior.places:
        return 0.0
    with precision(np.dtype(float)):
        return float(model.prior.value(jax.tree.map(lambda leaf: np.asarray(leaf, float), fitted.result_.params)))


def without_prior(fitted: Any, value: LogLikelihood) -> LogLikelihood:
    """The log-likelihood of what the engine has with the log prior in it."""
    if not has_priors(fitted):
        return value
    share = log_prior(fitted) / len(value.per_unit)
    return type(value)(value.per_unit - share, value.se, value.method, value.message)


def own_priors(fitted: Any) -> dict[str, str]:
    """Priors in words by the names of `params_`, variances and covariances of a block under that of the whole."""
    out: dict[str, str] = {}
    spaced = {"".join(name.split()): name for name in fitted.params_}
    for asked, prior in prior_places.checked(fitted.priors).items():
        if isinstance(asked, str):
            out[spaced["".join(asked.split())]] = str(prior)
            continue
        names = {f"omega2_{name}" for name in asked} | {f"cov_{a}_{b}" for a in asked for b in asked}
        out |= {name: f"{prior} of {', '.join(asked)}" for name in fitted.params_ if name in names}
    return out


def noted(fitted: Any, fit: Fit, starts: pd.DataFrame) -> tuple[Fit, pd.DataFrame]:
    """The engine's fit and the table of starts, which say that the log prior is in their numbers."""
    if not has_priors(fitted):
        return fit, starts
    starts.attrs["message"] = STARTS
    return dataclasses.replace(fit, note=f"{fit.note} {NOTE}".strip()), starts


def summarised(fitted: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """A summary with a column of priors, and without t and p of parameters that have one."""
    if not has_priors(fitted):
        return frame
    told, own = frame.attrs["message"].rstrip("."), own_priors(fitted)
    frame = frame.assign(prior=[own.get(name, "") for name in frame.index])
    frame.loc[list(own), ["t", "p"]] = np.nan
    frame.attrs["message"] = (
        f"{told}; estimates are MAP, of log-likelihood + log prior, and standard errors by the information of both; a parameter "
        "with a prior is not tested."
    )
    return frame
