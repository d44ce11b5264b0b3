"""The page of a sparse inverse problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from ...answers import fit_page as of_fit
from ...answers import fitted_page as fitted
from ...showing.facts import facts
from ...showing.figures import drawn
from ...showing.page import Paragraph, Part, Section, Verdict, attempt, number, section

if TYPE_CHECKING:
    from .estimator import SparseInverse


#: entries of x up to which their posterior is sampled for a page
ENTRIES = 4000
WORDS = "A linear operator of x plus normal noise; the prior of x is exp(-theta phi(x)), and theta is estimated."


def heading(model: SparseInverse) -> tuple[str, str]:
    """Title and lead."""
    lead = f"{model.x_.size:,} unknowns from {model.y_.size:,} data; the weight of the prior is estimated."
    return f"Sparse inverse problem: {type(model.prior_).__name__} prior", lead


def sections(model: SparseInverse, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    fit = model.result_
    return [
        fitted.what(
            model,
            ("Prior", type(model.prior_).__name__),
            ("Operator", type(model.operator_).__name__),
            ("Data", f"{model.y_.size:,}"),
            ("Unknowns", " x ".join(map(str, model.x_.shape))),
            ("Noise level", "estimated" if model.noise_sd is None else f"given: {number(model.noise_sd)}"),
            words=WORDS,
            names=list(model.params_),
        ),
        fitted.end(model),
        fitted.estimated(model, "Weight of the prior, and the noise level where it is estimated.", None),
        _convergence(model),
        section("goodness", "Goodness of fit", fitted.figure(model, "The check of residuals", lambda: _residuals(model))),
        section("latents", "The latent posterior: x", _reconstruction(model), _posterior(model)),
        fitted.reproduce(model, command, lambda: fit.data, "margaux.report.checksum(model.result_.data)", "A, y"),
    ]


def _convergence(model: SparseInverse) -> Section:
    whole = of_fit.convergence_of(model.result_)
    theta = model.trace()
    alt = f"Iterates of theta over {len(theta):,} iterations, from {number(theta[0])} to {number(theta[-1])}; estimate "
    plot = attempt(
        "The trace of theta",
        lambda: drawn(model.plot_trace, alt + number(model.theta_) + ".", "Iterates of theta and their running average."),
    )
    return section(whole.id, whole.title, [part for part in whole.parts if part.kind != "figure"], plot)


def _residuals(model: SparseInverse) -> list[Part]:
    gap = (model.y_ - model.predict()).ravel() / model.sigma_
    n, value = gap.size, float(np.sum(gap**2))
    told = facts(
        ("Residual sum of squares / sigma²", f"{number(value)} of {n:,} data"),
        ("Root mean square of the residuals", number(float(np.sqrt(np.mean(gap**2)) * model.sigma_))),
        ("sigma", number(model.sigma_)),
        ("theta", number(model.theta_)),
    )
    low, high = stats.chi2.ppf([0.001, 0.999], n)
    mark, text = ("good", "about as large as the noise") if value <= high else ("careful", "larger than the noise explains")
    if value < low:
        text = "smaller than the noise, as of an estimate that also follows it"
    verdict = Verdict(mark, f"Residuals: they are {text}.")

    def draw() -> Any:
        from matplotlib.figure import Figure as Drawing

        axis = Drawing(figsize=(5.4, 2.8), layout="constrained").subplots()
        axis.hist(gap, bins=min(60, max(10, n // 20)), density=True, color="#0072B2", alpha=0.6)
        x = np.linspace(min(-4.0, gap.min()), max(4.0, gap.max()), 200)
        axis.plot(x, stats.norm.pdf(x), color="0.1", lw=1.2, label="N(0, 1)")
        axis.set(xlabel="(y - A x) / sigma", ylabel="density")
        axis.legend()
        return axis

    alt = f"Histogram of {n:,} residuals over sigma, from {number(gap.min(), 3)} to {number(gap.max(), 3)}, with N(0, 1)."
    return [told, verdict, drawn(draw, alt, "Residuals at the maximum a posteriori, over the noise level.", ranges=False)]


def _reconstruction(model: SparseInverse) -> list[Part]:
    x = np.asarray(model.x_, float)
    count = int(np.sum(np.abs(x) > 1e-6 * max(np.abs(x).max(), 1e-300)))
    alt = f"The maximum a posteriori x, of {x.size:,} entries from {number(x.min(), 3)} to {number(x.max(), 3)}, {count:,} not 0."
    return fitted.figure(
        model,
        "The reconstruction",
        lambda: drawn(
            model.plot_reconstruction,
            alt,
            f"The maximum a posteriori of x: {count:,} of {x.size:,} entries are not zero.",
            ranges=False,
        ),
    )


def _posterior(model: SparseInverse) -> list[Part]:
    if model.result_.result.failed:
        return []
    if model.x_.size > ENTRIES:
        return [
            Paragraph(
                f"Posterior standard deviations of x are left out: {model.x_.size:,} entries take long; see "
                "model.result_.latents()."
            )
        ]
    return attempt("The posterior of x", lambda: _band(model))


def _band(model: SparseInverse) -> list[Part]:
    moments = model.result_.latents(n_draws=1000)
    mean, sd = (np.ravel(moments[name]) for name in ("mean", "sd"))
    if mean.size != model.x_.size:
        raise ValueError("the latents of this prior are not x itself")

    def draw() -> Any:
        from matplotlib.figure import Figure as Drawing

        axis = Drawing(figsize=(6.4, 2.8), layout="constrained").subplots()
        at = np.arange(mean.size)
        axis.fill_between(at, mean - 2 * sd, mean + 2 * sd, color="#56B4E9", alpha=0.5, lw=0, label="± 2 standard deviations")
        axis.plot(at, mean, color="#0072B2", lw=0.9, label="posterior mean")
        axis.set(xlabel="entry", ylabel="x")
        axis.legend()
        return axis

    alt = f"Posterior means of the {mean.size:,} entries of x from {number(mean.min(), 3)} to {number(mean.max(), 3)}, with "
    alt += f"standard deviations from {number(sd.min(), 3)} to {number(sd.max(), 3)}."
    caption = "Posterior means of x with two standard deviations, by the chain of the fit."
    return [drawn(draw, alt, caption, ranges=False)]
