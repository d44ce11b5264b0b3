"""`margaux fit empirical-bayes-logistic`: logistic regression whose prior is estimated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...showing.answer import Answer
from ...showing.command import Run
from ...showing.inputs import among, outcome_name, read_table, regression_of
from ...showing.options import Columns, Data, Formula, Iterations, OptionalY, words

if TYPE_CHECKING:
    from .estimator import EmpiricalBayesLogistic


PRIORS = ("mean", "mean_scale", "ard")


def empirical_bayes_logistic(
    data: Data,
    run: Run,
    y: OptionalY = None,
    columns: Columns = None,
    formula: Formula = None,
    prior: Annotated[
        str, typer.Option(help="mean (estimated), mean_scale (both) or ard (a scale each).", autocompletion=words(*PRIORS))
    ] = "mean",
    sigma: Annotated[
        float | None, typer.Option(help="Prior standard deviation where it is not estimated.", show_default="sqrt(5)")
    ] = None,
    n_iter: Iterations = None,
) -> Answer:
    """Fit a Bayesian logistic regression with an estimated prior; give columns like scales, as by --formula 'y ~ scale(a)'."""
    from .estimator import EmpiricalBayesLogistic

    among(prior, PRIORS, "--prior")
    frame = read_table(data)
    regression = regression_of(frame, y, columns, formula, data, complete=True)
    more: dict[str, Any] = {name: value for name, value in [("sigma", sigma), ("n_iter", n_iter)] if value is not None}
    with run.fitting():
        fitted = EmpiricalBayesLogistic(prior=prior, **more, **run.settings).fit(*regression)
    return answer(fitted, f"logistic regression of {outcome_name(y, formula)} on {data.name}", run.level)


def answer(fitted: EmpiricalBayesLogistic, title: str, level: float) -> Answer:
    """What is said and written of a fitted `EmpiricalBayesLogistic`: the prior's estimates, and the coefficients given them."""
    table, loglik = coefficients(fitted, level), fitted.loglik_
    says = [
        f"{fitted.n_observations_} rows, {fitted.n_features_in_} inputs, {fitted.n_iter_} iterations",
        f"log-likelihood {float(loglik):.3f} (Monte Carlo error {loglik.se:.3f}), AIC {fitted.aic_:.2f}, BIC {fitted.bic_:.2f}",
        f"posterior of the coefficients, with intervals of {100 * level:g}%:",
        table.round(4).to_string(),
        fitted.summary(level).attrs["message"],
    ]
    return Answer(
        fitted,
        title,
        fitted.summary(level),
        says,
        {"coefficients": lambda: table},
        figures={"coefficients": fitted.plot_coefficients, "trace": fitted.result_.plot.trace},
        facts={
            "coefficients": {str(name): row.to_dict() for name, row in table.iterrows()},
            "n_observations": fitted.n_observations_,
            "message": fitted.summary(level).attrs["message"],
        },
        level=level,
    )


def coefficients(fitted: EmpiricalBayesLogistic, level: float) -> Any:
    """Posterior mean, standard deviation and interval of the coefficients, by name."""
    import numpy as np
    import pandas as pd

    draws = fitted.draws_
    own = getattr(fitted, "feature_names_in_", [f"x{j}" for j in range(fitted.n_features_in_)])
    names = (["intercept"] if fitted.fit_intercept else []) + [str(name) for name in own]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    columns = {"mean": draws.mean(axis=0), "sd": draws.std(axis=0, ddof=1), "ci_low": low, "ci_high": high}
    return pd.DataFrame(columns, index=pd.Index(names, name="coefficient"))


#: of `margaux fit`
COMMANDS = (empirical_bayes_logistic,)
