"""The page of a Poisson log-normal PCA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...answers.ending import MARKS
from ...answers.fit_page import likelihoods
from ...showing import convergence, estimates, facts, reproducing
from ...showing.figures import drawn
from ...showing.page import Paragraph, Part, Section, Verdict, attempt, framed, listed, nats, number, section

if TYPE_CHECKING:
    from .estimator import PLNPCA


#: entries of the table up to which errors and the likelihood are computed for a page
ENTRIES = 500_000
WORDS = "Counts are Poisson; their logarithmic means are offset, covariates and a few latent components a unit."


def heading(model: PLNPCA) -> tuple[str, str]:
    """Title and lead."""
    n, p = model.table_.counts.share.n, model.table_.counts.p
    return f"Poisson log-normal PCA of rank {model.loadings_.shape[1]}", f"Counts of {p:,} features in {n:,} units."


def sections(model: PLNPCA, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    table = model.table_
    data = (table.counts.values, table.x, table.offset)
    how = "margaux.report.checksum(t.counts.values, t.x, t.offset), t = model.table_"
    return [
        _what(model),
        section("ending", "How it ended", _ended(model)),
        _estimates(model),
        _convergence(model),
        section(
            "goodness",
            "Goodness of fit",
            attempt("The marginal log-likelihood", lambda: _likelihood(model)),
            attempt("The check of counts", lambda: _counts(model)),
        ),
        section("latents", "The latent posterior: scores and loadings", _latents(model)),
        reproducing.reproducing(
            f"margaux.{model!r}.fit(counts, ...)", model.random_state, lambda: data, command, how, model.loadings_.dtype
        ),
    ]


def _what(model: PLNPCA) -> Section:
    table = model.table_
    spread = table.offset if table.offset.shape[1] > 1 else table.offset[:, 0]
    flat = bool(np.ptp(spread) == 0)
    offsets = "none" if flat else f"from {number(spread.min(), 3)} to {number(spread.max(), 3)}"
    return section(
        "fitted",
        "What was fitted",
        facts.facts(
            ("Model", "PLNPCA"),
            ("In words", WORDS),
            ("Units", f"{table.counts.share.n:,}"),
            ("Features", f"{table.counts.p:,}"),
            ("Covariates", listed(table.covariate_names)),
            ("Offsets", offsets),
            ("Rank", model.loadings_.shape[1]),
            ("Parameters", f"{model.n_params_:,} free"),
            ("Method", model.method),
            ("Starts", len(model.starts_)),
            ("Sweeps", f"{model.n_sweeps_:,}"),
            ("Precision", model.loadings_.dtype),
        ),
    )


def _ended(model: Any) -> list[Part]:
    """The certificate, its word first, and what came of the ascent."""
    certificate = model.certificate_
    word = str(certificate)
    table = certificate.table()[["figure", "error", "threshold", "level", "sentence"]]
    return [
        Verdict(MARKS[certificate.word], word[:1].upper() + word[1:]),
        Verdict("told", f"After {model.n_sweeps_:,} sweeps of the bound, the likelihood itself: {model.ascent_}."),
        framed(table, "What was looked at.", "check", rest="model.certificate_.table() has it"),
    ]


def _affordable(model: PLNPCA, name: str) -> None:
    size = model.table_.counts.share.n * model.table_.counts.p
    if size > ENTRIES and name not in model.__dict__:
        raise ValueError(f"for a table of {size:,} entries it takes long; ask the model for {name} first, and the page has it")


def _estimates(model: PLNPCA) -> Section:
    names = [name for name in model.table_.covariate_names if name != "Intercept"] or model.table_.covariate_names

    def summary() -> pd.DataFrame:
        _affordable(model, "stderr_")
        return model.summary().loc[names]

    def plot() -> Any:
        alt = f"Coefficients of {listed(names, 6)} with 95% intervals, of {model.table_.counts.p:,} features."
        return drawn(model.plot.coefficients, alt, "Coefficients with 95% intervals; in grey those that may be zero.")

    return estimates.estimates(
        summary, "Coefficients with Wald intervals.", "model.summary() has all of them", named="covariate and feature", plot=plot
    )


def _convergence(model: Any) -> Section:
    frame, best = model.starts_, model.starts_["bound"].max()
    near = int((frame["bound"] > best - 1).sum())
    parts: list[Part] = [
        Verdict(
            "good" if near > 1 or len(frame) == 1 else "careful",
            f"Starts: {near} of {len(frame)} ended within one nat of the best bound.",
        )
    ]
    if model.refinement_ is not None:
        parts.append(Verdict("told", f"Ascent of the likelihood: {len(model.refinement_)} rounds; {model.ascent_}."))
    alt = f"Distance of the bound to its last value, {nats(model.elbo_)}, over {model.n_sweeps_:,} sweeps."
    parts += attempt("The plot of convergence", lambda: drawn(model.plot.convergence, alt, "The bound, sweep by sweep."))
    if len(frame) > 1:
        below = best - frame["bound"].min()
        alt = f"Bounds of {len(frame)} starts; the worst is {number(below, 3)} nats below the best."
        parts += attempt("The plot of starts", lambda: drawn(model.plot.starts, alt, "Bounds of the starts below the best one."))
    return section(convergence.ID, convergence.TITLE, parts)


def _likelihood(model: PLNPCA) -> list[Part]:
    bound = ("Variational bound", nats(model.elbo_))
    _affordable(model, "importance_")
    value, frame = model.loglik_, model.importance_
    told = facts.facts(
        ("Log-likelihood", f"{nats(value)} (Monte Carlo error {number(value.se, 2)})"),
        bound,
        ("AIC", nats(model.aic_)),
        ("BIC", nats(model.bic_)),
        ("ICL", nats(model.icl_)),
    )
    ess = 100 * (frame["ess"] / frame["draws"]).to_numpy()
    least = float(ess.min())
    verdict = Verdict(
        "told",
        f"Importance weights: of the draws of any unit at least {number(least, 3)}% count; median {number(np.median(ess), 3)}%.",
    )
    alt = f"Effective draws of {len(ess):,} units from {number(least, 3)}% to {number(ess.max(), 3)}%, and two divergences."
    figure = attempt(
        "The plot of importance",
        lambda: drawn(model.plot.importance, alt, "How well the proposals of the units serve.", ranges=False),
    )
    return [told, verdict, *figure, *likelihoods(np.asarray(value.per_unit, float), model.table_.units, len(ess))]


def _counts(model: PLNPCA) -> list[Part]:
    """Zeros and totals of features, observed and simulated."""
    _affordable(model, "simulated_")
    observed = _dense(model.table_.counts.values)
    zeros = (observed == 0).mean(axis=0)
    simulated = np.mean([(model.simulate(random_state=seed).to_numpy() == 0).mean(axis=0) for seed in range(20)], axis=0)
    gap = np.abs(zeros - simulated)

    def draw() -> Any:
        from matplotlib.figure import Figure as Drawing

        figure = Drawing(figsize=(4.8, 4.2), layout="constrained")
        axis = figure.subplots()
        axis.plot([0, 1], [0, 1], color="0.6", lw=1.0, ls="--")
        axis.plot(simulated, zeros, "o", ms=4, alpha=0.7, color="#0072B2")
        axis.set(xlabel="share of zeros, simulated", ylabel="share of zeros, observed")
        return figure

    alt = f"Share of zero counts of {len(zeros):,} features, observed against simulated: {number(zeros.min(), 3)} to "
    alt += f"{number(zeros.max(), 3)} observed, {number(simulated.min(), 3)} to {number(simulated.max(), 3)} simulated; the "
    alt += f"largest difference is {number(gap.max(), 3)}."
    caption = "How often each count is there (bars) and expected (line); bars end at zero under the model."
    size = " x ".join(f"{length:,}" for length in observed.shape)
    seen = f"Hanging rootogram of {size} counts: how often each is there and is expected given the latents."
    whole = drawn(model.plot.rootogram, seen, caption, ranges=False)
    return [whole, drawn(draw, alt, "Share of zeros of each feature, observed and in 20 simulated tables.", ranges=False)]


def _dense(values: Any) -> np.ndarray:
    return values.toarray() if hasattr(values, "toarray") else np.asarray(values)


def _latents(model: PLNPCA) -> list[Part]:
    n, p = model.table_.counts.share.n, model.table_.counts.p
    rank = model.loadings_.shape[1]
    share = model.explained_variance_ratio_
    scores = np.asarray(model.scores_, float)
    sd = np.sqrt(np.einsum("iqq->iq", np.asarray(model.scores_covariance_, float)))
    frame = pd.DataFrame(
        {
            "share of the variance, %": 100 * share,
            "lowest score": scores.min(axis=0),
            "highest score": scores.max(axis=0),
            "median posterior sd": np.median(sd, axis=0),
        },
        index=pd.Index([f"PC{j + 1}" for j in range(rank)]),
    )
    parts: list[Part] = [
        framed(
            frame,
            "Components: what they explain, and the scores of the units.",
            "component",
            rest="model.scores_frame() has the scores",
        )
    ]
    if rank < 2:
        return [*parts, Paragraph("Planes of components are left out: the fit has one component.")]
    span = f"scores from {number(scores[:, 0].min(), 3)} to {number(scores[:, 0].max(), 3)} on the first component"
    parts += attempt(
        "The biplot",
        lambda: drawn(
            model.plot.biplot,
            f"Biplot of {n:,} units and the {min(15, p)} longest loadings: {span}, {number(100 * share[0], 3)}% "
            f"and {number(100 * share[1], 3)}% of the variance.",
            "Units, and loadings as arrows.",
            ranges=False,
        ),
    )
    parts += attempt(
        "The correlation circle",
        lambda: drawn(
            model.plot.correlation_circle,
            f"Correlation circle of the {min(30, p)} features that the plane shows best.",
            "Correlations of the latents of features with the first two components.",
            ranges=False,
        ),
    )
    parts += attempt(
        "The plot of correlations",
        lambda: drawn(
            model.plot.covariance,
            f"Correlations of the latents of the {min(40, p)} features of largest variance, clustered.",
            "Correlations of the latents of features, given the covariates.",
            ranges=False,
        ),
    )
    return parts
