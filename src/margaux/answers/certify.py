"""The certificate of a fit: from "the algorithm ended" to "this is the maximum, its likelihood, its errors", or why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..engine.outcome import RESULTS
from ..esteps import MCMC, Exact, ImportanceSampling, Laplace, ModeMixture
from ..numerics.gaussian import FOUND
from ..numerics.ladder import rung
from ..numerics.sampling import HEAVY
from .approximated import correction
from .bias import kernel_bias, stable_step
from .certificate import Certificate, Check, Level
from .diagnostics import trace_checks
from .likelihood import LogLikelihood, loglik
from .polish import Polish, affordable, polish, unpolishable
from .posterior import UndefinedDensity, each_unit, nothing
from .proposing import proposals
from .rules import Rule
from .visits import visits

if TYPE_CHECKING:
    from .fit import Fit


NAN = float("nan")
#: length of Newton's step in standard errors, its noise included, that is at the maximum, and that is nowhere near it
AT_MAXIMUM, FAR_AWAY = 0.2, 1.0
#: by how much two likelihoods may differ beside their errors, and the largest error of one
APART, LARGE_ERROR = 0.05, 0.1
#: units at most that a second likelihood is made of
COMPARED = 5_000
#: numbers that the rows of all units make at all draws of a second likelihood, about
NUMBERS = 40_000_000
#: effective draws of a unit below which its weights are not to be averaged with
FEW = 20
#: falls of the log-likelihood a standard error away (a half for a parabola) beyond which Wald intervals are not to be used
SHALLOW, FLAT = 0.2, 0.02
#: a relative Monte Carlo error of a standard error that matters
ROUGH = 0.05


def certify(fit: Fit) -> Certificate:
    """Every check of a plain fit. A family adds its own by `Certificate.and_also`."""
    checks: list[Check] = [_ended(fit)]
    if fit.result.failed:
        return Certificate(tuple(checks))
    if fit.problem is None:
        unknown = Check("model", NAN, NAN, NAN, "careful", "The fit was loaded without its model and data.")
        return Certificate((*checks, unknown, *trace_checks(fit, None)))
    if (trouble := unpolishable(fit)) is not None:
        return Certificate((*checks, *trace_checks(fit, None), *_unpolished(fit, trouble)))
    try:
        done = examined(fit)
        if done is None:
            return Certificate((*checks, *trace_checks(fit, None), *_very_large(fit)))
        at_maximum = _gradient(fit, done)
        # Chains share the bias of the fit's own kernel, and are no other means.
        settled = at_maximum.level == "pass" and not isinstance(done.rule.estep, MCMC)
        if settled and fit.result is not RESULTS.boundary:
            checks = [_of_no_matter(check) for check in checks]
        checks += [at_maximum, _information(fit), *_shape(fit, done), *_weights(done), *_likelihoods(fit, done)]
    except UndefinedDensity as error:
        return Certificate((*checks, Check("density", NAN, NAN, NAN, "failed", f"{error}.")))
    # Where the maximum has been found by other means, it is of no matter how the chains behaved.
    checks += [_of_no_matter(check) if settled else check for check in trace_checks(fit, done)]
    if not settled:
        checks += [check for check in (stable_step(fit), kernel_bias(fit), *_chains(fit)) if check is not None]
    return Certificate(tuple(checks))


def _of_no_matter(check: Check) -> Check:
    if check.level == "pass":
        return check
    return check._replace(level="pass", sentence=f"{check.sentence.rstrip('.')} (no matter: the maximum has been found since).")


def _chains(fit: Fit) -> list[Check]:
    """Of fits by mini-batches, whose chains make few transitions each."""
    return [visits(fit)] if fit.batch_size is not None and isinstance(fit.estep, MCMC) else []


def _very_large(fit: Fit) -> list[Check]:
    sentence = "The fit is too large to be polished unless polish=True: in a sample of its units gross errors alone are seen."
    return [*_chains(fit), Check("size", float(fit._model().n), NAN, NAN, "careful", sentence)]


def examined(fit: Fit) -> Polish | None:
    """The record of the fit's polish, or of a look at its estimate where it had none; None where that would take too long."""
    if fit.polished is not None:
        return fit.polished
    if not affordable(fit):
        return None
    return fit.remembered("examined", lambda: polish(fit, most=0)[1])


def _ended(fit: Fit) -> Check:
    level: Level = "pass"
    if fit.result.failed:
        level = "failed"
    elif fit.result in (RESULTS.boundary, RESULTS.interrupted):
        level = "careful"
    elif not fit.converged and fit.polished is None:
        level = "careful"
    return Check("result", NAN, NAN, NAN, level, fit.message)


def _gradient(fit: Fit, done: Polish) -> Check:
    if not np.isfinite(done.length):
        return Check("gradient", NAN, NAN, AT_MAXIMUM, "failed", "The gradient is not finite at the estimate.")
    upper = done.length + 2 * done.error
    if upper < AT_MAXIMUM and done.converged | (done.length < AT_MAXIMUM / 2):
        sentence = "The gradient is zero: the estimate is at a maximum of the likelihood."
        return Check("gradient", done.length, done.error, AT_MAXIMUM, "pass", sentence)
    if done.length - 2 * done.error < AT_MAXIMUM:
        sentence = (
            f"How far the maximum is cannot be told: Newton's step is {done.length:.2g} standard errors long, "
            f"with a Monte Carlo error of {done.error:.2g}."
        )
        return Check("gradient", done.length, done.error, AT_MAXIMUM, "careful", sentence)
    move = np.abs(fit.information().newton) / fit.information().se
    worst = f", most of it in {fit.names[int(np.nanargmax(move))]}" if np.any(np.isfinite(move)) else ""
    sentence = f"The maximum is {done.length:.2g} standard errors away{worst}: run longer, or from other starting values."
    return Check("gradient", done.length, done.error, AT_MAXIMUM, "failed" if done.length > FAR_AWAY else "careful", sentence)


def _information(fit: Fit) -> Check:
    info = fit.information()
    if not np.all(np.isfinite(info.matrix)):
        return Check("information", NAN, NAN, 0.0, "careful", f"Standard errors are missing: {info.message}.")
    lowest, error = info.lowest
    known = np.isfinite(info.se)
    rough = float(np.max(np.nan_to_num(info.se_error / info.se, nan=np.inf)[known], initial=0.0))
    if info.message:
        return Check("information", lowest, error, 0.0, "careful", f"Standard errors: {info.message}.")
    if rough > ROUGH:
        size = f"of up to {100 * rough:.0f}%" if np.isfinite(rough) else "so large that some draws alone give none"
        sentence = f"Standard errors have Monte Carlo errors {size}: raise n_draws of the information."
        return Check("information", lowest, error, 0.0, "careful", sentence)
    return Check("information", lowest, error, 0.0, "pass", "The information is positive definite.")


def _shape(fit: Fit, done: Polish) -> list[Check]:
    known = np.isfinite(done.drops).all(axis=1)
    if not known.any():
        return []
    fall = np.where(known, done.drops.min(axis=1), np.inf)
    j, figure = int(fall.argmin()), float(fall.min())
    name = _coordinate(fit, j)
    if figure < -FLAT:
        sentence = f"The likelihood is higher by {-figure:.3g} elsewhere along {name}: the estimate is not the maximum."
        return [Check("shape", figure, NAN, SHALLOW, "failed", sentence)]
    if figure < FLAT:
        sentence = (
            f"The likelihood is flat along {name}: the data hardly bound it on one side, and neither its estimate nor its "
            "standard error means much."
        )
        return [Check("shape", figure, NAN, SHALLOW, "careful", sentence)]
    if figure < SHALLOW:
        sentence = f"The likelihood is far from a parabola along {name}: use fit.profile instead of Wald intervals."
        return [Check("shape", figure, NAN, SHALLOW, "careful", sentence)]
    return [Check("shape", figure, NAN, SHALLOW, "pass", "The likelihood falls on either side of every parameter.")]


def _coordinate(fit: Fit, j: int) -> str:
    """The parameter that an unconstrained coordinate moves most."""
    from .scores import Coordinates

    coordinates = Coordinates(fit)
    column = np.abs(coordinates.jacobian(coordinates.to(fit.params))[:, j])
    return fit.names[int(np.nanargmax(column))] if np.any(np.isfinite(column)) else "a parameter"


def _weights(done: Polish) -> list[Check]:
    if not isinstance(done.rule.estep, ImportanceSampling):
        return []
    ess, pareto = done.evaluation.ess, done.evaluation.pareto
    draws: Any = done.rule.estep.n_draws
    worst = int(np.nanargmin(ess))
    uneven = (pareto > HEAVY) & (ess < 0.2 * draws)
    level: Level = "careful" if ess[worst] < FEW or uneven.mean() > 0.02 else "pass"
    out = []
    several = 0 if done.rule.modes is None else int(np.sum(done.rule.modes > 1))
    if level == "pass":
        sentence = "The importance weights are even."
    else:
        sentence = f"The importance weights of unit {worst} have an effective size of {ess[worst]:.1f} of {draws} draws."
    out.append(Check("weights", float(ess[worst]), NAN, float(FEW), level, sentence))
    if several:
        lost = 0 if done.rule.unseen is None else int(np.sum(done.rule.unseen > 0))
        sentence = f"The posteriors of {several} units have several modes; draws come from all that were found."
        if lost:
            sentence += (
                f" There are more in {lost} of them, or may be: estimates and likelihood are of a part of these posteriors."
            )
        out.append(Check("modes", float(several), NAN, NAN, "careful" if lost else "pass", sentence))
    return out


def _likelihoods(fit: Fit, done: Polish) -> list[Check]:
    if not done.rule.has_likelihood:  # chains give none, and other means are for few latents
        return []
    if isinstance(done.rule.estep, Laplace):
        return [fit.remembered("approximation", lambda: _approximation(fit, done))]
    value = fit.loglik()
    level: Level = "careful" if value.message or not value.se <= LARGE_ERROR else "pass"
    sentence = f"The log-likelihood is {float(value):.3f} by {value.method}, with an error of {value.se:.2g}"
    sentence += f"; {value.message}." if value.message else "."
    out = [Check("likelihood", float(value), value.se, LARGE_ERROR, level, sentence)]
    if isinstance(done.rule.estep, Exact) and done.rule.deterministic:
        return out
    found = fit.remembered("second likelihood", lambda: _second(fit, done.rule))
    if found is None:
        return out
    units, other = found
    first, whole = float(value.per_unit[units].sum()), len(units) == len(value.per_unit)
    gap, error = abs(first - float(other)), float(np.hypot(value.se * np.sqrt(len(units) / len(value.per_unit)), other.se))
    level = "pass" if gap < APART + 3 * error else "careful"
    where = "" if whole else f" of {len(units)} units"
    sentence = f"Two likelihoods{where} by independent means agree."
    if level != "pass":
        sentence = (
            f"Two likelihoods{where} differ by {gap:.2g}: {first:.2f} by {value.method}, {float(other):.2f} by fresh draws."
        )
    return [*out, Check("likelihoods", gap, error, APART, level, sentence)]


def _approximation(fit: Fit, done: Polish) -> Check:
    """Whether latents are at their modes, and how far Laplace's estimate is from the maximum of the likelihood itself."""
    figures = each_unit(fit, nothing, done.rule.estep, rows=done.rule.rows, width=done.rule.width)[1]
    away, outside = figures["away"].astype(float), figures["outside"].astype(float)
    lost = int(np.argmax(np.nan_to_num(away, nan=np.inf)))
    if not away[lost] < FOUND:
        sentence = f"The mode of the latents of unit {lost} was not found, around which they are approximated: no number holds."
        return Check("approximation", float(away[lost]), NAN, FOUND, "failed", sentence)
    astray = int(np.argmax(np.nan_to_num(outside, nan=np.inf)))
    if not outside[astray] < np.finfo(figures["outside"].dtype).eps ** 0.25:
        sentence = (
            f"Latents of unit {astray} depend on each other where the structure that was declared says that they do not (second "
            f"derivatives there are {outside[astray]:.2g} of the others'): no number holds; declare another, or none."
        )
        return Check("approximation", float(outside[astray]), NAN, 0.0, "failed", sentence)
    value = fit.loglik()
    length, error, ess = fit.remembered("correction", lambda: correction(fit, done.evaluation, done.rule))
    told = f"The log-likelihood is {float(value):.3f} by {value.method}, whose error is about {value.se:.2g}"
    level: Level = "pass" if ess >= FEW and length + 2 * error < AT_MAXIMUM else "careful"
    if ess < FEW:
        sentence = f"{told}; weighted draws are too uneven (effective size {ess:.1f}) to tell how far its estimate is off."
    else:
        sentence = f"{told}; the maximum of the likelihood itself is {length:.2g} +- {error:.2g} standard errors away."
    return Check("approximation", length, error, AT_MAXIMUM, level, sentence)


def _second(fit: Fit, rule: Rule) -> tuple[np.ndarray, LogLikelihood] | None:
    """Some units, all if they are few, and their likelihood by draws and proposals that share nothing with those of the first."""
    if not rule.has_likelihood:
        return None
    n = fit._model().n
    units = np.arange(n) if n <= COMPARED else np.sort(np.random.default_rng(7).choice(n, COMPARED, replace=False))
    # Where the rule is one of draws, the program is there already.
    estep = rule.estep if isinstance(rule.estep, ImportanceSampling) else fresh_draws(fit.data, n, len(units))
    rows = proposals(fit, estep, units=None if len(units) == n else units, key=7)
    return units, loglik(fit, estep=estep, rows=rows, replicates=3, first_key=100, units=units)


def fresh_draws(data: PyTree, n: int, count: int) -> ImportanceSampling:
    """What a quadrature's likelihood is compared with, for so many of n units."""
    held = count * max(sum(np.size(leaf) for leaf in jax.tree.leaves(data)) // n, 1)
    return ImportanceSampling(int(np.clip(min(100_000 // rung(count), NUMBERS // held), 100, 2000)), ModeMixture(), quasi=True)


def _unpolished(fit: Fit, trouble: str) -> list[Check]:
    """A penalised or a variational estimate, or one of very many parameters."""
    if fit.estep is not None and fit.estep.averages_objective:
        return []
    if "penalised" in trouble:
        verdict = fit.remembered("stationarity", fit.stationarity)
        level: Level = "pass" if verdict.stationary else "careful"
        return [Check("stationarity", verdict.value, verdict.se, 3 * verdict.noise, level, f"The penalised objective: {verdict}")]
    return [Check("gradient", NAN, NAN, AT_MAXIMUM, "careful", f"The maximum was not verified: {trouble}.")]
