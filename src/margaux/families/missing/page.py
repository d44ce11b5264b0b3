"""The page of a regression with missing covariates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...answers import fitted_page as fitted
from ...answers.ending import ending
from ...numerics.precision import precision
from ...showing import convergence
from ...showing.calibration import calibration
from ...showing.figures import drawn
from ...showing.page import Paragraph, Part, Section, Verdict, attempt, framed, listed, nats, number, section
from . import answers

if TYPE_CHECKING:
    from .estimator import MissingGLM


#: classes of an outcome whose calibration is drawn
CLASSES = 3
WORDS = "A generalised linear model whose normal covariates are missing at random; rows with holes count for what they tell."


def heading(model: MissingGLM) -> tuple[str, str]:
    """Title and lead."""
    x = model.table_.x
    lead = f"{len(x):,} rows, {x.shape[1]} covariates, {number(100 * float(np.isnan(x).mean()), 3)}% of the entries missing."
    return f"{type(model).__name__}: {model.family} regression with missing covariates", lead


def sections(model: MissingGLM, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    table = model.table_
    missing = np.isnan(table.x)
    whole = int((~missing.any(axis=1)).sum())
    data = (table.x, table.y, table.weights, table.offset)
    return [
        fitted.what(
            model,
            ("Family", model.family),
            ("Method", model.method),
            ("Rows", f"{len(table.x):,}, {whole:,} complete"),
            ("Covariates", table.x.shape[1]),
            ("Discrete", listed([one.name for one in table.discrete]) if table.discrete else ""),
            ("Classes", "" if table.classes is None else listed(list(table.classes))),
            words=WORDS,
            names=answers.parameter_names(table, model.params_),
        ),
        ending(model.result_, certificate=model.certificate_, converged=model.converged_),
        fitted.estimated(model, "Coefficients with Wald intervals (observed information)."),
        _convergence(model),
        fitted.criteria(model, ("Log-likelihood of the outcome alone", _outcome(model)), more=_goodness(model)),
        section("latents", "The latent posterior: missing entries", _entries(model)),
        fitted.reproduce(
            model, command, lambda: data, "margaux.report.checksum(t.x, t.y, t.weights, t.offset), t = model.table_"
        ),
    ]


def _outcome(model: MissingGLM) -> str:
    return "" if model.result_.result.failed else nats(model.loglik_outcome_)


#: how a page marks the levels of a check
MARKS = {"pass": "good", "careful": "careful", "failed": "bad"}


def _convergence(model: MissingGLM) -> Section:
    """The checks, a sentence each, with their figures; and the traces of methods that have some."""
    fit = model.result_
    checks = [
        Verdict(MARKS[one.level], f"{one.name[:1].upper()}{one.name[1:]}: {one.sentence}") for one in model.certificate_.checks
    ]
    frame = model.certificate_.table().drop(columns="sentence")
    table = framed(
        frame, "What was measured, and what it was held to.", "check", rest="model.certificate_.table() has all of them"
    )
    if model.method == "exact":
        how = Paragraph(f"The exact likelihood was maximised in {fit.n_iter} iterations by L-BFGS and Newton steps.")
        return section(convergence.ID, convergence.TITLE, how, checks, table)
    names = {f"beta[{j}]": f"{name} (standardised)" for j, name in enumerate(["intercept", *model.table_.names])}
    return section(
        convergence.ID,
        convergence.TITLE,
        checks,
        table,
        convergence.course(fit),
        attempt("The trace plot", lambda: convergence.trace(fit, names)),
    )


def _goodness(model: Any) -> list[Part]:
    table = model.table_

    def calibrated() -> list[Part]:
        with precision(np.dtype(float)):
            expected = answers.expected_outcome(model._family(), model.result_.params, model._own())
        note = "Of the rows of the fit, given what is observed of each."
        if expected.ndim == 1:
            what = f"P({table.classes[1]})" if table.classes is not None else "outcome"
            return [calibration(expected, table.y, what, note)]
        return [
            calibration(expected[:, k], table.y == k, f"P({table.classes[k]})", note)
            for k in range(min(len(table.classes), CLASSES))
        ]

    coefficients = fitted.figure(
        model,
        "The plot of standardised coefficients",
        lambda: drawn(
            model.plot.coefficients,
            "Coefficients per standard deviation of their column, with intervals.",
            "Coefficients per standard deviation of their column: comparable with each other.",
        ),
    )
    share = 100 * np.isnan(table.x).mean(axis=0)
    alt = ", ".join(f"{name} {number(value, 3)}%" for name, value in list(zip(table.names, share, strict=True))[:10])
    holes = fitted.figure(
        model,
        "The plot of missingness",
        lambda: drawn(
            model.plot.missingness,
            f"Share missing by column: {alt}.",
            "Share missing in each column, and the commonest patterns.",
            ranges=False,
        ),
    )
    return [*coefficients, *fitted.figure(model, "Calibration", calibrated), *holes]


def _entries(model: MissingGLM) -> list[Part]:
    def table() -> list[Part]:
        given, filled = model.table_.x, model.conditional_mean()
        rows: dict[str, dict[str, float]] = {}
        for j, name in enumerate(model.table_.names):
            hole = np.isnan(given[:, j])
            rows[name] = {
                "missing": int(hole.sum()),
                "observed mean": float(np.nanmean(given[:, j])),
                "observed sd": float(np.nanstd(given[:, j])),
                "mean of what is missing": float(filled[hole, j].mean()) if hole.any() else np.nan,
            }
        frame = pd.DataFrame.from_dict(rows, orient="index").astype({"missing": int})
        return [
            framed(
                frame,
                "Missing entries: their conditional means given the outcome and what is observed of their rows.",
                "column",
                rest="model.conditional_mean() and model.impute() have the entries",
            )
        ]

    if model.result_.result.failed:
        return [Paragraph("The table of missing entries is left out: the fit failed.")]
    return attempt("The table of missing entries", table)
