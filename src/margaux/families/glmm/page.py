"""The page of a generalised linear mixed model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...answers import fit_page as of_fit
from ...answers import fitted_page as fitted
from ...showing import convergence
from ...showing.figures import drawn
from ...showing.page import Paragraph, Part, Section, attempt, framed, listed, section
from . import curves
from .plots import TRACED
from .responses import link_of
from .verdict import inner_names

if TYPE_CHECKING:
    from .estimator import GLMM


WORDS = "A response whose mean is a function of a linear predictor, with effects of groups that are normal and integrated over."
#: how the exact likelihood, or what stands for it, was found
HOW = {
    "quadrature": "adaptive quadrature of the exact likelihood",
    "laplace, corrected": "the exact likelihood, from Laplace's approximation, by quadrature within weighted draws",
    "laplace": "Laplace's approximation, with weighted draws that tell how far it is off",
}
#: groups whose effects are listed
LISTED = 15


def heading(model: GLMM) -> tuple[str, str]:
    """Title and lead."""
    groups = listed([f"{count:,} of {name}" for name, count in model.groups_.items()])
    return model.design_.recipe.formula, f"Mixed model: {model.n_observations_:,} observations in groups, {groups}."


def sections(model: GLMM, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    design, response = model.design_, model.model_.response
    given = "offset=..., weights=..." if model.design_.recipe.offset is True else ""
    return [
        fitted.what(
            model,
            ("Formula", design.recipe.formula),
            ("Family", response.name),
            ("Link", link_of(response).name),
            ("Response", _response(model)),
            ("Observations", f"{model.n_observations_:,}"),
            ("Groups", listed([f"{name} ({count:,})" for name, count in model.groups_.items()])),
            ("Random effects", listed([term.text for term in design.terms])),
            ("Offset", "yes" if np.any(design.offset != 0) else ""),
            ("Prior weights", "yes" if np.any(design.weights != 1) else ""),
            ("Likelihood by", HOW[model.fitted_by_]),
            words=WORDS,
            names=list(model.params_),
        ),
        fitted.end(model),
        fitted.estimated(
            model,
            "Fixed effects on the scale of the linear predictor, then parameters of the response and of the covariances. "
            "Intervals are Wald's.",
        ),
        section("variances", "Variances of the random effects", _variances(model)),
        _convergence(model),
        fitted.criteria(model, more=_goodness(model)),
        section("effects", "Effects on the response", _effects(model)),
        section("latents", "The latent posterior: random effects", _random(model)),
        fitted.reproduce(
            model,
            command,
            lambda: design.table,
            "margaux.report.checksum(model.design_.table)",
            f"data, {given}" if given else "data",
        ),
    ]


def _response(model: GLMM) -> str:
    design = model.design_
    if design.trials is not None:
        return f"{design.response}: {design.y.sum():,.0f} successes of {design.trials.sum():,.0f} trials"
    if design.levels:
        shares = np.bincount(design.y.astype(int), minlength=len(design.levels)) / len(design.y)
        return f"{design.response}: " + listed(
            [f"{level} ({share:.0%})" for level, share in zip(design.levels, shares, strict=True)]
        )
    return f"{design.response}, from {design.y.min():g} to {design.y.max():g}"


def _variances(model: GLMM) -> list[Part]:
    if model.result_.result.failed:
        return [Paragraph("Variances are left out: the fit failed.")]

    def table() -> list[Part]:
        frame = model.VarCorr()
        groups = [f"{model.groups_[str(name)]:,}" for name, _ in frame.index]
        shown = frame.assign(groups=groups)
        caption = "Variances, standard deviations and correlations of the random effects, and how many groups have them."
        heads = {name: f"correlation with {name[4:]}" for name in frame.columns if name.startswith("cor_")}
        return [framed(shown, caption, "factor and effect", heads=heads, rest="model.VarCorr() has all of them")]

    return attempt("The table of variances", table)


def _convergence(model: GLMM) -> Section:
    """The checks and traces by the names that users know."""
    checks = attempt("The diagnostics", lambda: convergence.diagnostics(of_fit.quick(model.result_), inner_names(model)))
    count, n = len(model.params_), model.n_iter_
    alt = f"Iterates of {min(count, TRACED)} of {count} parameters over {n:,} iterations."
    caption = "Iterates of the parameters on their natural scale; the estimate is the horizontal line."
    trace = attempt("The trace plot", _drawing(model.plot.trace, alt, caption))
    return section(convergence.ID, convergence.TITLE, checks, convergence.course(model.result_), trace)


def _goodness(model: GLMM) -> list[Part]:
    y, n = model.design_.response, model.n_observations_
    return fitted.figure(
        model,
        "The plot of observed against fitted",
        lambda: drawn(
            model.plot.observed,
            f"{n:,} observed {y} against fitted ones.",
            "Observed against fitted, the random effects given the data. Binary and ordinal responses are compared in groups by "
            "rising expectation.",
        ),
    )


def _effects(model: GLMM) -> list[Part]:
    if model.result_.result.failed:
        return [Paragraph("Effects are left out: the fit failed.")]
    known = curves.predictors(model).names
    if not known:
        return [Paragraph("The fixed effects are an intercept alone.")]
    alt = f"Mean of {model.design_.response} along {listed(known)}."
    caption = (
        "The mean of the response along each predictor, for a group whose random effects are zero; other numbers at their means, "
        "other categories at their first level. Bands are 95% intervals by the delta method."
    )
    return attempt("The plot of effects", lambda: drawn(model.plot.effects, alt, caption))


def _random(model: GLMM) -> list[Part]:
    if model.result_.result.failed:
        return [Paragraph("Random effects are left out: the fit failed.")]
    names = listed(list(model.groups_))
    parts: list[Part] = []
    for what, draw, alt, caption in (
        (
            "The caterpillar plot",
            model.plot.caterpillar,
            f"Random effects of {names} in rising order, with 95% intervals.",
            "Random effects given the data, with 95% intervals; of many groups the fifty with the largest.",
        ),
        (
            "The plot of normality",
            model.plot.normality,
            f"Quantiles of the random effects of {names} against those of the normal distribution.",
            "Random effects against the normal distribution, with its pointwise 95% band.",
        ),
    ):
        parts += attempt(what, _drawing(draw, alt, caption))
    return [*parts, *(part for name in model.groups_ for part in attempt(f"The table of {name}", _listing(model, name)))]


def _drawing(draw: Any, alt: str, caption: str) -> Any:
    return lambda: drawn(draw, alt, caption)


def _listing(model: GLMM, name: str) -> Any:
    def table() -> Part:
        frame: pd.DataFrame = model.ranef()[name]
        kind = "means" if model.fitted_by_ == "quadrature" else "modes"
        caption = f"Random effects of {name}: conditional {kind} and standard errors."
        return framed(frame, caption, f"{name} and effect", most=LISTED, rest=f'model.ranef()["{name}"] has all of them')

    return table
