"""The certificate of a fit of PLN-PCA: the maximum, its likelihood, its information, its counts; and one word."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...answers.certificate import Certificate, Check, Level
from .goodness import Goodness
from .growth import HEAVY
from .polish import End
from .table import Table, diverging_message

NAN = float("nan")
#: standard errors from the maximum that are at it, and that are nowhere near it
AT_MAXIMUM, FAR_AWAY = 0.1, 1.0
#: by how many of their errors two likelihoods may differ
APART = 4.0
#: nats by which the start that came second may be below the best one
SPREAD = 2.0
#: variance of a component's latents given the counts, of one before, from which on the counts do not tell it
UNTOLD = 0.98
#: p-values below which counts are not those of the model, and by what share figures must be off to matter
UNLIKELY, MATTERS = 1e-3, 0.03


def certify(
    bound: tuple[bool, float],
    polished: End | None,
    likelihoods: tuple[pd.DataFrame, pd.DataFrame],
    tol: float,
    starts: pd.DataFrame,
    told: np.ndarray,
    table: Table,
    found: Goodness,
) -> Certificate:
    """Every check.

    Args:
        bound: whether it no longer rises, and its value. polished: the distance to the maximum, None where the table is too
            large to look. likelihoods: two independent answers of `growth.precise`, a row a unit. tol: error that was asked for.
        starts: their bounds. told: mean variance of each component given the counts, of one before, (q,).
    """
    return Certificate(
        (
            _bound(*bound),
            *_maximum(polished),
            *_likelihoods(*likelihoods, tol),
            _starts(starts),
            _components(told),
            _separation(table),
            *_goodness(found),
        )
    )


def _bound(converged: bool, value: float) -> Check:
    if converged:
        return Check("bound", value, NAN, NAN, "pass", "The variational bound no longer rises.")
    return Check("bound", value, NAN, NAN, "careful", "The variational bound still rises: raise max_sweeps.")


def _maximum(polished: End | None) -> list[Check]:
    if polished is None:
        told = 'How far the maximum is was not looked at in so large a table: name a method, such as "student".'
        return [Check("gradient", NAN, NAN, AT_MAXIMUM, "careful", told)]
    off, error = polished.off, polished.error
    if off <= max(AT_MAXIMUM, 3 * error) and error < AT_MAXIMUM / 2:
        sentence, level = "No coefficient or loading is far from the maximum of the likelihood.", "pass"
    elif off <= 3 * error:
        sentence, level = (
            f"How far the maximum is cannot be told: {off:.2g} standard errors, with an error of {error:.2g}.",
            "careful",
        )
    else:
        sentence = f'The maximum of the likelihood is {off:.2g} standard errors away; fit with method="auto", or a lower rank.'
        level = "failed" if off > FAR_AWAY else "careful"
    checks = [Check("gradient", off, error, AT_MAXIMUM, level, sentence)]
    if np.isfinite(polished.smallest):
        good = polished.smallest > 0
        sentence = (
            "The information is positive definite."
            if good
            else "The information is not positive definite: the likelihood is nearly flat in some direction, as where the rank "
            "is too high, and loadings are not determined."
        )
        checks.append(Check("information", polished.smallest, NAN, 0.0, "pass" if good else "careful", sentence))
    return checks


def _likelihoods(one: pd.DataFrame, two: pd.DataFrame, tol: float) -> list[Check]:
    (first, e1), (second, e2) = (
        (float(np.sum(each["loglik"].to_numpy())), float(np.sqrt(np.sum(each["error"].to_numpy() ** 2)))) for each in (one, two)
    )
    wanted = max(tol, 1e-7 * abs(first))
    if e1 <= wanted:
        sentence, level = f"The log-likelihood has a Monte Carlo error of {e1:.2g}.", "pass"
    else:
        sentence = f"The log-likelihood has a Monte Carlo error of {e1:.2g}, above the {wanted:.2g} asked for."
        level = "careful"
    checks = [Check("log-likelihood", first, e1, wanted, level, sentence)]
    error, gap = float(np.hypot(e1, e2)), second - first
    good = abs(gap) <= APART * error
    sentence = (
        "A second log-likelihood, by other proposals and draws, agrees."
        if good
        else f"Two log-likelihoods, by other proposals and draws, differ by {gap:.2g}: their errors are not to be trusted."
    )
    checks.append(Check("second log-likelihood", gap, error, APART * error, "pass" if good else "failed", sentence))
    shapes = one["pareto"].to_numpy()
    worst, heavy = float(np.max(shapes)), int(np.sum(shapes > HEAVY))
    sentence = (
        "The weights of every unit are even enough for these errors."
        if not heavy
        else f"The weights of {heavy} units are uneven, so that the error of the log-likelihood is not to be trusted."
    )
    checks.append(Check("weights", worst, NAN, HEAVY, "careful" if heavy else "pass", sentence))
    share = float(np.min(one["ess"].to_numpy() / one["draws"].to_numpy()))
    checks.append(
        Check("effective draws", share, NAN, NAN, "pass", f"Of the draws of any unit at least {100 * share:.0f}% count.")
    )
    return checks


def _starts(starts: pd.DataFrame) -> Check:
    if len(starts) == 1:
        told = "There was one start, so that other maxima were not looked for; raise n_starts."
        return Check("starts", 0.0, NAN, SPREAD, "pass", told)
    best, second = np.sort(starts["bound"].to_numpy())[::-1][:2]
    gap = float(best - second)
    if gap <= SPREAD:
        return Check("starts", gap, NAN, SPREAD, "pass", "More than one start came to the best bound.")
    told = f"One start alone came to the best bound, {gap:.1f} nats above the next: there may be better ones; raise n_starts."
    return Check("starts", gap, NAN, SPREAD, "careful", told)


def _components(told: np.ndarray) -> Check:
    worst = float(told.max())
    if worst < UNTOLD:
        return Check("components", worst, NAN, UNTOLD, "pass", "The counts tell every component.")
    sentence = (
        f"The counts tell nothing of {int(np.sum(told >= UNTOLD))} of {len(told)} components, so the rank is too high for them; "
        "choose it by pln_ranks."
    )
    return Check("components", worst, NAN, UNTOLD, "careful", sentence)


def _separation(table: Table) -> Check:
    count, message = int(table.diverging.sum()), diverging_message(table)
    if message is None:
        return Check("separation", 0.0, NAN, 0.0, "pass", "Every coefficient has a finite estimate.")
    return Check("separation", float(count), NAN, 0.0, "careful", message[0].upper() + message[1:] + ".")


def _goodness(found: Goodness) -> list[Check]:
    out = []
    told = {
        "dispersion": (
            "counts vary {:.2f} times as much as the model says",
            "such as negative-binomial counts, or a rank too low",
        ),
        "zeros": ("there are {:.2f} times as many zeros as the model expects", "such as counts with excess zeros"),
    }
    for name, (what, why) in told.items():
        figure, error, p = getattr(found, name), getattr(found, f"{name}_error"), found.p(name)
        bad = p < UNLIKELY and abs(figure - 1) > MATTERS
        level: Level = "careful" if bad else "pass"
        said = what.format(figure)
        sentence = f"Given the latents {said} (p = {p:.2g})"
        sentence += f', {why}: use standard errors that do without the model, summary(errors="robust").' if bad else "."
        out.append(Check(name, figure, error, 1 + MATTERS, level, sentence))
    return out
