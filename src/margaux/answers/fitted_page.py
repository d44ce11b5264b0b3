"""The page of any estimator around `margaux.fit`, and what the pages of all estimators share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..answers.ending import ending
from ..showing import estimates, facts, reproducing
from ..showing.page import Part, Section, attempt, nats, number, section
from . import fit_page as of_fit

if TYPE_CHECKING:
    from .fitted import Fitted


#: what the pages of estimators say a summary has
WALD = "Estimates with Wald intervals."


def heading(model: Fitted) -> tuple[str, str]:
    """Title and lead."""
    return type(model).__name__, f"{facts.sentence(model)} {model.n_observations_:,} observations."


def sections(model: Fitted, command: str | None = None) -> list[Section]:
    """The sections of the page."""
    fit = model.result_
    return [
        what(model, ("Observations", f"{model.n_observations_:,}")),
        end(model),
        estimated(model),
        of_fit.convergence_of(fit),
        criteria(model),
        of_fit.latents(fit),
        reproduce(model, command, lambda: fit.data, "margaux.report.checksum(model.result_.data)"),
    ]


def what(model: Fitted, *pairs: tuple[str, Any], words: str = "", names: Sequence[str] | None = None) -> Section:
    """What was fitted: the estimator in a sentence, pairs of its own, the parameters, and how the fit ran."""
    fit = model.result_
    return section(
        "fitted",
        "What was fitted",
        facts.facts(
            ("Model", type(model).__name__),
            ("In words", words or facts.sentence(model)),
            *pairs,
            ("Parameters", facts.counted(fit.names if names is None else names)),
            *facts.running(fit),
        ),
    )


def end(model: Fitted, extra: Sequence[Part] = ()) -> Section:
    """The word of its certificate, and how it ended by the estimator's own sentence."""
    certificate = None if of_fit.why_not(model.result_) else model.certificate_
    return ending(model.result_, model.message_, model.converged_, extra, certificate)


def estimated(model: Fitted, caption: str = WALD, against: float | None = 0.0, plot: Callable[..., Any] | None = None) -> Section:
    """The estimates of `summary()`, or the last finite values of a fit that failed."""
    if model.result_.result.failed:
        return of_fit.alone(model.result_, "the fit failed")
    return estimates.estimates(model.summary, caption, "model.summary() has all of them", against=against, plot=plot)


def criteria(
    model: Fitted,
    *extra: tuple[str, Any],
    title: str = "Goodness of fit",
    names: Sequence[str] | None = None,
    more: Iterable[Part] = (),
) -> Section:
    """Log-likelihood, AIC and BIC, then what the family adds."""

    def likelihood() -> list[Part]:
        if model.result_.result.failed:
            raise ValueError("the fit failed")
        value = model.loglik_
        error = f" (Monte Carlo error {number(value.se, 2)})" if value.se > 0 else ""
        told = facts.facts(("Log-likelihood", nats(value) + error), ("AIC", nats(model.aic_)), ("BIC", nats(model.bic_)), *extra)
        return [told]

    return section("goodness", title, attempt("The marginal log-likelihood", likelihood), *more)


def figure(model: Fitted, what: str, make: Callable[[], Part | Iterable[Part]]) -> list[Part]:
    """A figure of a fit that did not fail, or why it is not there."""
    if model.result_.result.failed:
        return []
    return attempt(what, make)


def reproduce(model: Fitted, command: str | None, data: Callable[[], Any], how: str, arguments: str = "...") -> Section:
    """The settings that differ, the seed, versions and the checksum."""
    seed = getattr(model, "random_state", getattr(model.result_, "seed", None))
    call = f"margaux.{model!r}.fit({arguments})"
    return reproducing.reproducing(call, seed, data, command, how, getattr(model.result_, "dtype", None))
