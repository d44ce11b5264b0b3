"""The page of an empirical-Bayes logistic regression."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import expit

from ...answers import fit_page as of_fit
from ...answers import fitted_page as fitted
from ...showing.calibration import calibration
from ...showing.estimates import table
from ...showing.figures import drawn
from ...showing.forest import forest
from ...showing.page import Paragraph, Part, Section, attempt, listed, section

if TYPE_CHECKING:
    from .estimator import EmpiricalBayesLogistic


#: coefficients whose histograms are drawn, and observations whose probabilities are
HISTOGRAMS, OBSERVATIONS = 15, 5000
WORDS = "Logistic regression with normal coefficients, whose prior is estimated by maximum marginal likelihood."


def heading(model: EmpiricalBayesLogistic) -> tuple[str, str]:
    """Title and lead."""
    lead = f"{model.n_observations_:,} observations, {model.n_features_in_:,} columns; the prior is estimated."
    return "Empirical-Bayes logistic regression", lead


def sections(model: EmpiricalBayesLogistic, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    fit = model.result_
    return [
        fitted.what(
            model,
            ("Prior", model.prior),
            ("Observations", f"{model.n_observations_:,}"),
            ("Columns", f"{model.n_features_in_:,}"),
            ("Classes", listed(list(model.classes_))),
            words=WORDS,
        ),
        fitted.end(model),
        fitted.estimated(model, "Parameters of the prior, with Wald intervals."),
        of_fit.convergence_of(fit),
        fitted.criteria(model, more=fitted.figure(model, "Calibration", lambda: _calibration(model))),
        section("latents", "The latent posterior: coefficients", _coefficients(model)),
        fitted.reproduce(model, command, lambda: fit.data, "margaux.report.checksum(model.result_.data)", "X, y"),
    ]


def names_of(model: EmpiricalBayesLogistic) -> list[str]:
    """Names of the coefficients, intercept first."""
    own = getattr(model, "feature_names_in_", [f"x{j}" for j in range(model.n_features_in_)])
    return (["intercept"] if model.fit_intercept else []) + [str(name) for name in own]


def _coefficients(model: EmpiricalBayesLogistic) -> list[Part]:
    if model.result_.result.failed:
        return [Paragraph("The posterior of the coefficients is left out: the fit failed.")]
    draws, names = np.asarray(model.draws_, float), names_of(model)
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    mean, sd = draws.mean(axis=0), draws.std(axis=0)
    columns = {"estimate": mean, "se": sd, "z": mean / np.where(sd > 0, sd, np.nan), "ci_low": low, "ci_high": high}
    frame = pd.DataFrame(columns, index=pd.Index(names))
    shown = min(len(names), HISTOGRAMS)
    alt = f"Posterior histograms of {shown} of {len(names)} coefficients, from {len(draws):,} draws."
    held = table(
        frame.drop(columns="z"),
        f"Posterior means, standard deviations and 95% intervals, of {len(draws):,} draws.",
        "model.draws_ has all",
        named="coefficient",
        posterior=True,
    )
    if len(names) > shown:
        return [*attempt("The forest plot", lambda: forest(frame, what="Posterior means")), held]
    histograms = attempt(
        "The histograms",
        lambda: drawn(lambda: model.plot_coefficients(names), alt, "Posterior of each coefficient, its mean and 95% interval."),
    )
    return [*attempt("The forest plot", lambda: forest(frame, what="Posterior means")), *histograms, held]


def _calibration(model: EmpiricalBayesLogistic) -> Part:
    x, y = (np.asarray(model.result_.data[name][0], float)[:OBSERVATIONS] for name in ("x", "y"))
    draws = np.asarray(model.draws_, float)[:: max(len(model.draws_) // 200, 1)]
    expected = expit(x @ draws.T).mean(axis=1)
    return calibration(expected, y, f"P({model.classes_[1]})", "Of the observations of the fit.")
