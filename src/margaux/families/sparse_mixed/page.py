"""The page of a sparse logistic regression with random effects."""

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
from ...showing.page import Paragraph, Part, Section, Verdict, attempt, nats, number, section

if TYPE_CHECKING:
    from .estimator import SparseMixedLogistic


WORDS = "Logistic regression with a random intercept a group; a penalty selects columns."


def heading(model: SparseMixedLogistic) -> tuple[str, str]:
    """Title and lead."""
    lead = f"{int(model.support_.sum()):,} of {model.support_.size:,} coefficients selected, from {model.n_observations_:,} "
    return "Sparse logistic regression with random effects", lead + f"observations in {len(model.groups_):,} groups."


def sections(model: SparseMixedLogistic, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    fit = model.result_
    told = Verdict(
        "told",
        f"{int(model.support_.sum()):,} of {model.support_.size:,} coefficients are selected at a penalty "
        f"weight of {number(model.penalty_weight)}. They are shrunk: no standard errors.",
    )
    return [
        fitted.what(
            model,
            ("Penalty", f"{model.penalty}, weight {number(model.penalty_weight)}"),
            ("Observations", f"{model.n_observations_:,}"),
            ("Columns", f"{model.support_.size:,}"),
            ("Groups", f"{len(model.groups_):,}"),
            words=WORDS,
            names=list(model.summary().index),
        ),
        fitted.end(model, [told]),
        fitted.estimated(model, "Selected coefficients, and the standard deviation of the random effects."),
        _convergence(model),
        fitted.criteria(
            model,
            ("Penalised objective", nats(model.objective_)),
            more=[*fitted.figure(model, "Calibration", lambda: _calibration(model)), *_path(model)],
        ),
        section("latents", "The latent posterior: random effects", _effects(model)),
        fitted.reproduce(model, command, lambda: fit.data, "margaux.report.checksum(model.result_.data)", "X, y, groups"),
    ]


def _convergence(model: SparseMixedLogistic) -> Section:
    """The checks that a penalised estimate has; the gradient of the likelihood is not zero there, and is none of them."""
    names = {f"beta[{j}]": str(name) for j, name in enumerate(model._names)}
    return of_fit.convergence_of(model.result_, informed=False, names=names)


def _path(model: SparseMixedLogistic) -> list[Part]:
    if not hasattr(model, "path_"):
        return [Paragraph("The selection path is left out: model.path(X, y, groups) has not been called.")]
    frame = model.path_
    alt = f"Coefficients along {len(frame)} penalty weights from {number(frame.index.max())} to {number(frame.index.min())}, and "
    alt += f"the number selected, from {frame['n_selected'].min()} to {frame['n_selected'].max()}."
    return attempt("The selection path", lambda: drawn(model.plot_path, alt, "Selection path.", ranges=False))


def _effects(model: SparseMixedLogistic) -> list[Part]:
    if model.result_.result.failed:
        return [Paragraph("Random effects are left out: the fit failed.")]
    mean, sd = (model.random_effects_[name].to_numpy(float) for name in ("mean", "sd"))
    frame = pd.DataFrame(
        {"estimate": mean, "se": sd, "ci_low": mean - 1.96 * sd, "ci_high": mean + 1.96 * sd}, index=model.random_effects_.index
    )
    held = table(
        frame,
        "Random effects of the groups: posterior means, standard deviations, and 1.96 of them either side.",
        "model.random_effects_ has all",
        named="group",
        posterior=True,
    )
    return [*attempt("The plot of random effects", lambda: forest(frame, what="Random effects")), held]


def _calibration(model: SparseMixedLogistic) -> Part:
    unit = {name: np.asarray(value[0]) for name, value in model.result_.data.items()}
    effects = model.random_effects_["mean"].to_numpy(float)
    expected = expit(unit["X"] @ model.coef_[0] + model.intercept_[0] + effects[unit["group"]])
    return calibration(expected, unit["y"], f"P({model.classes_[1]})", "Of the observations of the fit, their groups known.")
