"""Fits of nested models against each other, and of any models side by side."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy

from . import classes, shaped
from .informed import refuse

if TYPE_CHECKING:
    from .estimator import NLME


@dataclasses.dataclass(frozen=True)
class LikelihoodRatioTest:
    """Twice the difference of log-likelihoods; `error` is its Monte Carlo SD. `p` is by the mixture of chi-squared distributions
    where one variance is tested against zero, and `note` says by what."""

    statistic: float
    df: int
    p: float
    error: float
    note: str = ""


def lr_test(reduced: NLME, full: NLME) -> LikelihoodRatioTest:
    r"""Likelihood-ratio test of nested fits to the same data.

    A variance that is zero under the reduced model lies on the boundary of its space: twice the difference is then distributed as
    $\tfrac12\chi^2_{k-1} + \tfrac12\chi^2_k$ with k parameters tested, one of them a variance (its covariances with
    the other effects count among the k). Of several variances the weights of the mixture depend on the information: the
    p-value is then that of $\chi^2_k$, which is too large, and the note says so.

    References: Self and Liang, J. Am. Stat. Assoc. 82 (1987), 605-610; Stram and Lee, Biometrics 50 (1994), 1171-1177.

    Raises:
        ValueError: different data, models that are not nested, have priors or other numbers of classes, or the full model has no
            more parameters.
    """
    for one in (reduced, full):
        refuse(one, "a likelihood-ratio test")
    if reduced.n_observations_ != full.n_observations_ or not np.array_equal(
        reduced.data_.units["rows"]["y"], full.data_.units["rows"]["y"]
    ):
        raise ValueError("the two models were fitted to different data")
    classes.refuse_comparison(dict(reduced.individual or {}), dict(full.individual or {}))
    error: Any = getattr(full.model_.outcome, "error", None)
    neutral = {} if error is None else dict.fromkeys(error.multipliers, 1.0)
    for name, value in full.held_.items():
        there = reduced.params_.get(name, neutral.get(name, 0.0))
        if (name in reduced.params_ and name not in reduced.held_) or not np.isclose(there, value):
            also = f"is {there:g}" if name in reduced.held_ or name not in reduced.params_ else "is estimated"
            raise ValueError(
                f"the models are not nested: {name} is held at {value:g} in the full one and {also} in the reduced one"
            )
    df = full.n_params_ - reduced.n_params_
    if df < 1:
        raise ValueError(f"the full model has {full.n_params_} parameters and the reduced one {reduced.n_params_}; swap them?")
    statistic = 2 * (float(full.loglik_) - float(reduced.loglik_))
    error = 2 * float(np.hypot(full.loglik_.se, reduced.loglik_.se))
    edges = shaped.scales(full)
    new = [n for n in full.params_ if n not in reduced.params_ and n not in full.held_]
    variances = sum(n.startswith(("omega2_", "gamma2_")) or n in edges for n in new)
    what = "1 / nu" if any(n in edges for n in new) else "a variance"
    at, note = max(statistic, 0.0), ""

    def upper(k):
        return float(scipy.special.chdtrc(k, at)) if k else float(at == 0)

    p = upper(df)
    if variances == 1:
        p = (upper(df - 1) + upper(df)) / 2
        note = f"{what} is tested on its boundary: p by the mixture of chi-squared with {df - 1} and {df} degrees of freedom"
    elif variances:
        which = f"{variances} {'parameters' if what == '1 / nu' else 'variances'}"
        note = f"{which} are tested on their boundaries: p by chi-squared is an upper bound; drop one at a time"
    if undefined := [n for n in shaped.names(full.model_) if n in new and f"omega2_{n.partition('_')[2]}" in new]:
        note = f"{note}; {', '.join(undefined)} is not defined without its effect, so that p is approximate".removeprefix("; ")
    return LikelihoodRatioTest(statistic, df, p, error, note)


def compare(*fits: Any, **named: Any) -> pd.DataFrame:
    """Fits to the same data side by side: parameters, log-likelihood with its error, AIC, AICc, BIC, BICc; best AIC first.

    Raises:
        ValueError: fewer than two fits, different data, or priors.
    """
    every = {f"model {j + 1}": one for j, one in enumerate(fits)} | named
    if len(every) < 2:
        raise ValueError("compare needs at least two fits")
    for one in every.values():
        refuse(one, "a comparison by criteria")
    if len({one.n_observations_ for one in every.values()}) > 1:
        raise ValueError("the fits are to different numbers of observations; their likelihoods do not compare")
    rows = {
        name: {
            "parameters": one.n_params_,
            "loglik": float(one.loglik_),
            "loglik_se": one.loglik_.se,
            "aic": one.aic_,
            "aicc": one.aicc_,
            "bic": one.bic_,
            "bicc": one.bicc_,
            "message": one.message_,
        }
        for name, one in every.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").sort_values("aic")
