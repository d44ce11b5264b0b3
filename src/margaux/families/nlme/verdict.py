"""What a mixed-effects fit is held to besides being at its maximum: starts that agree, residuals that the model would make."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from ...answers.certificate import Certificate, Check
from . import answers, flipflop, informed, membership, residuals, shaped, solutions

if TYPE_CHECKING:
    from .estimator import NLME


NAN = float("nan")
#: what is said of the engine's likelihood, and what it is with priors
POSTERIOR = {
    "The log-likelihood is": "The log-likelihood with the log prior is",
    "maximum of the likelihood": "maximum of the posterior density",
    "The likelihood falls": "The posterior density falls",
}
#: by how much modes that starts reached may differ in log-likelihood before it is told
APART = 2.0
#: p-values of the npde, corrected for their number, below which the model is to be looked at
DOUBTFUL = 0.01
#: numbers that are simulated for the npde at most; simulations, at least and at most
SIMULATED, LEAST, MOST = 4_000_000, 200, 1000


def checks(fitted: NLME) -> list[Check]:
    """Of `NLME.certificate_`, besides those of `Fit.certificate`."""
    if fitted.result_.result.failed:
        return []
    found = [
        starts(fitted), mirror(fitted), solutions.check(fitted), tails(fitted), membership.check(fitted), npde(fitted)
    ]  # fmt: skip
    return [check for check in found if check is not None]


def renamed(certificate: Certificate, fitted: NLME) -> Certificate:
    """The same checks, whose sentences name parameters as `params_` does."""
    names = answers.engine_names(fitted.model_, fitted._design.labels)
    # Longer names first: beta[10] before beta[1].
    order = sorted(names, key=len, reverse=True)

    def told(sentence: str) -> str:
        for engine in order:
            sentence = sentence.replace(engine, names[engine])
        for words, those in POSTERIOR.items() if informed.has_priors(fitted) else ():
            sentence = sentence.replace(words, those)
        return sentence

    return Certificate(tuple(check._replace(sentence=told(check.sentence)) for check in certificate.checks))


def starts(fitted: NLME) -> Check | None:
    """Modes of the likelihood that were reached from several starts; "careful" where the one that was kept is not the highest."""
    reached = fitted.starts_["reached"].to_numpy(float)
    reached = reached[np.isfinite(reached)]
    if len(reached) < 2:
        return None
    spread, below = float(np.ptp(reached)), float(reached.max() - fitted.result_.loglik())
    if below > APART:
        sentence = (
            f"Another mode has a log-likelihood {below:.1f} higher; the one on the side of the starting values was kept "
            "(see starts_)."
        )
        return Check("starts", below, fitted.loglik_.se, APART, "careful", sentence)
    if spread > APART:
        sentence = f"Starts reached two modes of the likelihood, {spread:.1f} apart; the higher was kept (see starts_)."
        return Check("starts", spread, NAN, APART, "pass", sentence)
    return Check("starts", spread, NAN, APART, "pass", "The starts that were continued agree.")


def mirror(fitted: NLME) -> Check | None:
    """Absorption slower than elimination, or compartments out of order, where the same curve has other parameters."""
    said = flipflop.note(fitted.structural, fitted.params_)
    if flipflop.flipped(fitted.structural, fitted.params_) is None:
        return None
    sentence = f"{said[:1].upper()}{said[1:]}." if said else flipflop.in_order(fitted.structural)
    return Check("flip-flop", NAN, NAN, NAN, "careful" if said else "pass", sentence)


def tails(fitted: NLME) -> Check | None:
    """Whether degrees of freedom are as many as the quantiles of `margaux.nlme.StudentT` hold for."""
    if not (found := shaped.doubtful(fitted)):
        return None
    told = ", ".join(f"{name} = {value:.2g}" for name, value in found.items())
    sentence = (
        f"Tails are so heavy ({told}) that Student's t has no variance, and its quantiles are not those of the expansion: "
        "subjects far out are to be looked at (individual_), or the effect has another distribution."
    )
    return Check("tails", min(found.values()), NAN, shaped.LEAST, "careful", sentence)


def npde(fitted: NLME) -> Check | None:
    """The least of three p-values of the npde (mean, variance, normality) times three; None for outcomes without residuals. Each
    is the larger of that of independent ones and that of ones as they are simulated."""
    n = fitted.n_observations_
    if not fitted.model_.outcome.continuous or n > SIMULATED // LEAST:
        return None
    longest = int(fitted.data_.units["mask"].sum(axis=1).max())
    times = max(int(np.clip(SIMULATED // n, LEAST, MOST)), 2 * longest + 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = residuals.npde(fitted, times)
    scores = found.frame["npde"].to_numpy(float)
    scores = scores[np.isfinite(scores)]
    if len(scores) < 3:
        return None
    independent: dict[str, float] = residuals.standard_normal(scores)["p"].to_dict()  # type: ignore[assignment]
    simulated = residuals.as_simulated(scores, found.spread)
    p = {name: max(independent[name], value) for name, value in simulated.items()}
    p["global"] = min(1.0, 3 * min(p.values()))
    level = "pass" if p["global"] >= DOUBTFUL else "careful"
    if level == "pass":
        return Check("npde", p["global"], NAN, DOUBTFUL, "pass", "Residuals (npde) are as the model has them.")
    wrong = {
        "mean": f"their mean is {scores.mean():+.2f}, so the curve or its covariates are off",
        "variance": f"their variance is {scores.var(ddof=1):.2f} for 1, so the error or the variances of the effects are",
        "normality": "they are not normal",
    }
    told = "; ".join(sentence for name, sentence in wrong.items() if 3 * p[name] < DOUBTFUL)
    sentence = (
        f"The residuals (npde) are not those of the model (p = {p['global']:.2g} after correction for three tests): {told}."
    )
    return Check("npde", p["global"], NAN, DOUBTFUL, level, sentence)
