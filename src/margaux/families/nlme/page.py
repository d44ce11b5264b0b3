"""The page of a nonlinear mixed-effects fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...answers import fit_page as of_fit
from ...answers import fitted_page as fitted
from ...answers.ending import ending
from ...showing import convergence, facts
from ...showing.figures import drawn
from ...showing.page import Code, Paragraph, Part, Section, Table, Verdict, attempt, framed, listed, nats, probability, section
from . import membership, words
from .answers import engine_names
from .informed import has_priors, own_priors

if TYPE_CHECKING:
    from .estimator import NLME


#: observations times simulations of the checks by simulation, and observations up to which there are any
SIMULATED, OBSERVATIONS = 4_000_000, 40_000
WORDS = "A nonlinear curve a subject, whose parameters vary normally between subjects on a scale of their own; by SAEM."
#: below the equations
EQUATIONS = "Parameters have the names of the table of estimates; e is standard normal."


def heading(model: NLME) -> tuple[str, str]:
    """Title and lead."""
    lead = f"Nonlinear mixed effects: {model.n_subjects_:,} subjects, {model.n_observations_:,} observations."
    return _curve(model), lead


def sections(model: NLME, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    fit, data = model.result_, model.data_
    roles = ", ".join(f'{role}="{column}"' for role, column in data.roles.items())
    against = None  # no parameter of these models is a difference from zero but effects of covariates
    return [
        fitted.what(
            model,
            ("Structural model", _curve(model)),
            ("Outcome", type(model.model_.outcome).__name__),
            ("Individual parameters", _individual(model)),
            *(
                [("Priors (the estimates are MAP)", listed([f"{name}: {told}" for name, told in own_priors(model).items()]))]
                if has_priors(model)
                else []
            ),
            ("Subjects", f"{model.n_subjects_:,}"),
            ("Between subjects", words.effects(model)),
            ("Residual error", words.error(model)),
            ("Covariates", words.covariates(model)),
            ("Observations", f"{model.n_observations_:,}"),
            ("Roles of columns", words.roles(model)),
            words=WORDS,
            names=list(model.params_),
        ),
        ending(fit, certificate=None if of_fit.why_not(fit) else model.certificate_),
        fitted.estimated(
            model, "Estimates on their natural scale; intervals by Student's t, on the scale they are normal on.", against
        ),
        section("equations", "The model in equations", attempt("The model", lambda: Code(model.equations(), EQUATIONS))),
        _convergence(model),
        _criteria(model),
        section("latents", "The latent posterior: individual parameters", _individuals(model)),
        section("data", "The data", attempt("The table of the data", lambda: _data(model))),
        fitted.reproduce(
            model, command, lambda: data.frame, "margaux.report.checksum(frame), its rows sorted by subject", f"data, {roles}"
        ),
    ]


def _data(model: NLME) -> Table:
    frame = model.data_summary().reset_index()
    rows = tuple(tuple(map(str, row)) for row in frame.itertuples(index=False))
    return Table("What was fitted to: medians and ranges, or counts.", ("", "", ""), rows, (False, False, False))


def _curve(model: NLME) -> str:
    curve = model.structural if model.structural is not None else model.log_likelihood
    return str(getattr(curve, "name", None) or getattr(curve, "__name__", None) or type(curve).__name__)


def _individual(model: NLME) -> str:
    kinds = [
        f"{name} ({type(one).__name__}{'' if one.random else ', no random effect'}"
        f"{'' if one.shape is None else f', {type(one.shape).__name__}'}{f', {one.classes} classes' if one.classes else ''})"
        for name, one in model.model_.individual
    ]
    return listed(kinds)


def _criteria(model: NLME) -> Section:
    if not has_priors(model):
        extra = ("AICc", _criterion(model, "aicc_")), ("Hybrid BIC", _criterion(model, "bicc_"))
        return fitted.criteria(model, *extra, more=_goodness(model))

    def densities() -> Part:
        return facts.facts(("Log-likelihood", nats(model.loglik_)), ("Log prior", nats(model.log_prior_)))

    told = [] if model.result_.result.failed else attempt("The marginal log-likelihood", densities)
    return section("goodness", "Goodness of fit", told, *_goodness(model))


def _criterion(model: NLME, name: str) -> str:
    return "" if model.result_.result.failed else nats(getattr(model, name))


def _convergence(model: NLME) -> Section:
    count, n = len(model.params_), model.n_iter_
    alt = f"Iterates of {count} parameters over {n:,} iterations, {model.n_burn} of them burn-in."
    caption = "Iterates on the natural scale; the estimate is the horizontal line and the burn-in ends at the dotted one."
    trace = attempt("The trace plot", lambda: drawn(model.plot.convergence, alt, caption))
    checks = attempt(
        "The diagnostics",
        lambda: convergence.diagnostics(of_fit.quick(model.result_), engine_names(model.model_, model._design.labels)),
    )
    starts: list[Part] = []
    if isinstance(model.starts_, pd.DataFrame) and len(model.starts_) > 1:
        added = " with the log prior added" if has_priors(model) else ""
        starts = [framed(model.starts_, f"The starts that were screened, and their log-likelihoods{added}.", "start", most=10)]
    return section(convergence.ID, convergence.TITLE, checks, convergence.course(model.result_), trace, starts)


def _goodness(model: NLME) -> list[Part]:
    n, y = model.n_observations_, model.data_.roles["y"]
    parts: list[Part] = []
    shown = min(12, model.n_subjects_)
    parts += fitted.figure(
        model,
        "The plot of individual fits",
        lambda: drawn(
            lambda: model.plot.fits(n=shown),
            f"Observed {y} of {shown} of {model.n_subjects_} subjects under their curves.",
            f"The first {shown} of {model.n_subjects_:,} subjects: observed, individual curve, and the population's.",
        ),
    )
    if n > OBSERVATIONS:
        return [
            *parts,
            *_predictions(model),
            Paragraph(
                f"Checks by simulation are left out: {n:,} observations take long; call model.plot.vpc() and model.npde()."
            ),
        ]
    times = int(np.clip(SIMULATED // n, 100, 500))
    parts += _panels(model, times) if model.model_.outcome.continuous else _predictions(model)
    parts += fitted.figure(
        model,
        "The visual predictive check",
        lambda: drawn(
            lambda: model.plot.vpc(n_simulations=times),
            f"Visual predictive check of {n:,} observations by {times} simulations.",
            "Visual predictive check: the observed statistics should lie in the bands.",
        ),
    )
    parts += fitted.figure(model, "npde", lambda: _npde(model))
    return parts


def _predictions(model: NLME) -> list[Part]:
    alt = f"{model.n_observations_:,} observed {model.data_.roles['y']} against population and individual predictions."
    return fitted.figure(
        model, "The plot of predictions", lambda: drawn(model.plot.predictions, alt, "Observed against predicted.")
    )


def _panels(model: NLME, times: int) -> list[Part]:
    y = model.data_.roles["y"]
    alt = f"{model.n_observations_:,} observed {y} against predictions, and their residuals against time and predictions."
    caption = "Observed against predicted, residuals of the individual curves, and npde; medians of residuals by bin in red."
    return fitted.figure(model, "The panels of fit", lambda: drawn(lambda: model.plot.goodness(times), alt, caption))


def _npde(model: NLME) -> list[Part]:
    times = int(np.clip(SIMULATED // model.n_observations_, 200, 1000))
    p = model.npde(times).test()["p"]
    fine = p["global"] > 0.05
    value = probability(p["global"])
    value = value if value.startswith("<") else f"= {value}"
    verdict = Verdict(
        "good" if fine else "careful",
        f"npde (global test, p {value}): they {'show no departure' if fine else 'depart'} from independent N(0, 1).",
    )
    alt = f"Normalised prediction distribution errors of {model.n_observations_:,} observations."
    caption = "npde: independent N(0, 1) where the model holds; the grey and coloured bands are those of N(0, 1)."
    return [verdict, drawn(lambda: model.plot.npde(times), alt, caption)]


def _individuals(model: NLME) -> list[Part]:
    def table() -> list[Part]:
        frame = model.individual_
        shrinkage = ", ".join(f"{name} {100 * value:.0f}%" for name, value in model.shrinkage().items())
        told = [Paragraph(f"Shrinkage of the conditional modes: {shrinkage}.")] if shrinkage else []
        told += [Paragraph(membership.told(model))] if model.model_.classes > 1 else []
        caption = "Conditional modes, means and standard deviations of the individual parameters."
        return [*told, framed(frame, caption, model.data_.roles["id"], most=15, rest="model.individual_ has all of them")]

    if model.result_.result.failed:
        return [Paragraph("Individual parameters are left out: the fit failed.")]
    alt = f"Histograms of the conditional modes of the random effects of {model.n_subjects_} subjects."
    effects = fitted.figure(
        model,
        "The plot of random effects",
        lambda: drawn(model.plot.effects, alt, "Conditional modes of the random effects, with their estimated density."),
    )
    pairs = fitted.figure(
        model,
        "The plot of pairs of random effects",
        lambda: drawn(
            model.plot.pairs,
            f"Conditional modes of the random effects of {model.n_subjects_} subjects against each other.",
            "Random effects against each other, with the 95% ellipse of the estimated covariance.",
        ),
    )
    covariates = fitted.figure(
        model,
        "The plot against covariates",
        lambda: drawn(
            model.plot.covariates,
            "Random effects against the covariates of the subjects.",
            "Random effects against covariates; a trend suggests a covariate of the model.",
        ),
    )
    return [*effects, *pairs, *covariates, *attempt("The table of individual parameters", table)]
