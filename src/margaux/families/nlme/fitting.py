"""How a nonlinear mixed-effects model is fitted: starts, screening, SAEM, and a look at the boundary."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pandas as pd

from ...algorithms.updates import Problem
from ...answers.ahead import ahead
from ...answers.fit import Fit
from ...answers.polish import polished
from ...answers.profile import held
from ...answers.proposing import proposals
from ...engine.outcome import RESULTS
from ...esteps import ImportanceSampling, ModeMixture
from ...numerics import programs
from ...numerics.precision import precision
from ...problem.penalty import NoPenalty
from ...problem.space import as_space
from . import shaped
from .between_models import carried_over
from .data import LongData
from .individual import Individual
from .model import MixedEffects
from .outcomes import DOSES, PRESENT, Continuous, whole
from .refusals import refuse_zero_predictions
from .running import Build, Settings, saem
from .screening import chosen, likelihood, screened
from .start import first_parameters, plausible, rows_at

#: a correlation is one where the log-likelihood is no lower then to within this, and a variance zero to within that
NEGLIGIBLE, NO_LOWER = 0.05, 0.001
#: what is said of differential equations without a solution
UNSOLVED = "the differential equations cannot be solved, in so many steps (ode(max_steps=...)) or at all,"
#: what leaves an effect out
WITHOUT = {"omega2": "random", "gamma2": "occasion"}
#: share of a variance that is next to none
VANISHING = 1e-4
#: which are looked at: variance of the modes over omega2 below the one, eigenvalue of the correlations below the other
SHRUNK, NEARLY = 0.3, 0.1


def check_structural(model: MixedEffects, units: dict, data: LongData) -> None:
    """Try the user's function at plausible parameters, before anything is fitted.

    Raises:
        ValueError: it fails, has the wrong shape, or is not finite somewhere, with subject and row.
    """
    given = bool(np.all(np.isfinite(model.typical)))
    starts = zip(model.individual, model.typical.tolist(), strict=True)
    psi = {name: start if np.isfinite(start) else _middle(one) for (name, one), start in starts}
    rows = units["rows"]
    outcome = model.outcome
    function = outcome.structural if isinstance(outcome, Continuous) else getattr(outcome, "function", None)
    what = "the structural function" if isinstance(outcome, Continuous) else "the log-likelihood"
    if function is not None:
        number = jax.ShapeDtypeStruct((), np.float64)
        try:
            row = {name: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], np.float64), rows[name])
                   if name == DOSES else number for name in rows}  # fmt: skip
            shape = jax.eval_shape(function, {name: number for name in psi}, row)
        except KeyError as error:
            raise ValueError(
                f"{what} asks for {error.args[0]!r}, which is no individual parameter ({', '.join(psi)}) and no numeric "
                f"column without holes, or role ({', '.join(rows)})"
            ) from error
        if getattr(shape, "shape", None) != ():
            raise ValueError(
                f"{what} must return one number for one row, but returns {getattr(shape, 'shape', type(shape).__name__)} "
                f"({data.where(0)})"
            )
    u = np.asarray([one.gaussian(psi[name]) for name, one in model.individual])
    tried = data.flat(rows_at(model, units, u))
    bad = ~np.isfinite(tried)
    if bad.any() and (given or bad.all()):
        at = int(np.flatnonzero(bad)[0])
        told = f"{what} is not finite" if whole(function) is None else UNSOLVED
        raise ValueError(f"{told} at the starting values ({data.where(at)}): {_readable(psi)}")
    if bad.any() or np.any(tried == 0):
        refuse_zero_predictions(outcome, dict(model.individual), rows, data)


def _middle(one: Individual) -> float:
    """A value such a parameter can have."""
    return float(one.values(0.0)) or 1.0


def _readable(psi: dict) -> str:
    return ", ".join(f"{name} = {float(value):g}" for name, value in psi.items())


def estimate(build: Build, individual: dict[str, Individual], settings: Settings) -> tuple[Fit, pd.DataFrame]:
    """The fit, and its starts: where each came from, its log-likelihood after the screening, and where it was continued the
    one that it reached. A random effect of no variance is left out of the final model.

    Args:
        build: individual parameters -> (model, units).
    """
    with precision(settings.dtype):
        model, units = build(individual)
        starts = first_parameters(model, units, settings)
        n, (_, start) = len(units["mask"]), starts[0]
        problem = Problem(model, as_space(model.space(), start), NoPenalty(), n)

        def begin() -> None:
            if settings.polish is not False:
                ahead(problem, settings.estep(n, model.costly), start, units, compared=False)

        with programs.meanwhile(begin):
            ends, table = screened(model, units, starts, settings)
            continued = np.flatnonzero(table["continued"])
            fits = [saem(build, individual, ends[at], settings, polish=False) for at in continued]
        if len(fits) > 1:
            table.loc[continued, "reached"] = [likelihood(fit) for fit in fits]
        best = chosen(model, table["reached"].to_numpy()[continued], [fit.params for fit in fits])
        fit = polished(fits[best], settings.polish)
        if len(fits) == 1:  # there is nothing to choose, and the polish has it
            table.loc[continued, "reached"] = likelihood(fit) if fit.polished is None else fit.polished.evaluation.loglik
        return _on_the_boundary(build, individual, fit, settings), table


def refined(build: Build, individual: dict[str, Individual], start: dict, settings: Settings) -> Fit:
    """The fit from engine parameters that are near the maximum: no other starts are screened."""
    with precision(settings.dtype):
        return _on_the_boundary(build, individual, saem(build, individual, start, settings), settings)


def _on_the_boundary(build: Build, individual: dict[str, Individual], fit: Fit, settings: Settings) -> Fit:
    """The fit, or where its effects are not all asked for by the data the one on the boundary."""
    fit, individual, normal = _without_tails(build, individual, fit, settings)
    fit, dropped = _without_unused(build, individual, fit, settings)
    dropped |= normal
    fit, singular = _made_singular(fit)
    return dataclasses.replace(fit, result=RESULTS.boundary) if (dropped or singular) and not fit.result.failed else fit


def _without_tails(
    build: Build, individual: dict[str, Individual], fit: Fit, settings: Settings
) -> tuple[Fit, dict[str, Individual], bool]:  # fmt: skip
    """The fit with effects normal whose tails are no heavier, its individual parameters, and whether there were any.

    Where tails are next to normal, the likelihood is next to flat: before a shape is left out, the model is fitted once more
    from heavy ones.
    """
    found = False
    while not fit.result.failed and (name := shaped.normal_tails(fit._model().model, fit.params)) is not None:  # type: ignore[arg-type]
        model, _ = build(individual)
        less = individual | {name: dataclasses.replace(individual[name], shape=None)}
        reduced = saem(build, less, carried_over(model, build(less)[0], fit.params), settings)
        if _lower(reduced, fit):
            break
        again = saem(build, individual, shaped.with_heavy_tails(model, fit.params, name), settings)
        if _lower(reduced, again):
            fit = again
            break
        fit, individual, found = reduced, less, True
    return fit, individual, found


def _without_unused(build: Build, individual: dict[str, Individual], fit: Fit, settings: Settings) -> tuple[Fit, bool]:
    """The fit without the random effects that the data do not ask for, and whether there were any.

    EM hardly moves a variance that is small, so a small one may be a slow one: before it is left out, the model is fitted once
    more from a plausible variance. No smaller model is fitted where the likelihood falls towards it by the model that is there.
    """
    dropped = False
    while (least := _least_used(fit)) is not None:
        name, kind, place = least
        if _falls_without(fit, kind, place):
            break
        gone: dict[str, Any] = {WITHOUT[kind]: False} | ({"shape": None} if kind == "omega2" else {})
        less = individual | {name: dataclasses.replace(individual[name], **gone)}
        model, units = build(individual)
        reduced = saem(build, less, carried_over(model, build(less)[0], fit.params), settings)
        if _lower(reduced, fit):
            break
        wide = {key: np.array(value) if key != "omega" else value for key, value in fit.params.items()}
        wide[kind][place] = max(plausible(model, units, wide)[kind][place], wide[kind][place])
        again = saem(build, individual, wide, settings)
        if _lower(reduced, again):
            fit = again
            break
        fit, individual, dropped = reduced, less, True
    return fit, dropped


def _lower(reduced: Fit, fit: Fit) -> bool:
    """Whether the log-likelihood of a smaller model is lower, beyond the errors of both."""
    if reduced.result.failed:
        return True
    one, other = reduced.loglik(), fit.loglik()
    return float(one) + NO_LOWER + 2 * float(np.hypot(one.se, other.se)) < float(other)


def _falls_without(fit: Fit, kind: str, place: int) -> bool:
    """Whether the log-likelihood is lower, beyond its errors, where a random effect has next to no variance and all other
    parameters are at their best."""
    here = float(fit.loglik()) if fit.polished is None else fit.polished.evaluation.loglik
    less = held(fit, f"{kind}[{place}]", VANISHING * float(fit.params[kind][place]), here)
    return less is not None and (less.below or _lower(less.fit, fit))


def _least_used(fit: Fit) -> tuple[str, str, int] | None:
    """The parameter whose effects between subjects, or between occasions, the data use least, if they hardly do: where subjects'
    posteriors lie spreads much less than omega2, or gamma2. With the name of that variance among the engine's parameters, and the
    place in it. One that has a prior is not looked at: at zero its density is zero."""
    model: Any = fit._model().model
    if fit.result.failed or not (model.independent or model.varying):
        return None
    # Means of the proposals that are learned.
    rows = None if fit.polished is None else fit.polished.rule.rows
    rows = proposals(fit, ImportanceSampling(2, ModeMixture())) if rows is None else rows
    every, d = np.reshape(rows["mean"], (len(fit.data["mask"]), -1, np.shape(rows["mean"])[-1]))[:, 0], len(model.random)
    used: dict[tuple[str, str, int], float] = {}
    if model.independent:
        spread = (every[:, :d] - model.means(fit.params, np.asarray(fit.data["design"]))).var(axis=0)
        for place, j in enumerate(model.independent):
            if not model.held.mask("omega2", len(model.independent))[place] and place not in model.prior.of("omega2"):
                used[model.names_of_random[j], "omega2", place] = spread[j] / fit.params["omega2"][place]
    for place, j in enumerate(model.varying):
        kappa = every[:, d:].reshape(len(every), len(model.varying), -1) - model.centres(
            fit.params, np.asarray(fit.data["design"])
        )
        own = kappa[:, place][np.asarray(fit.data[PRESENT]) > 0]
        if not model.held.mask("gamma2", len(model.varying))[place] and place not in model.prior.of("gamma2"):
            used[model.names[j], "gamma2", place] = np.mean(own**2) / fit.params["gamma2"][place]
    least = min(used, key=used.__getitem__, default=None)
    return least if least is not None and used[least] < SHRUNK else None


def _made_singular(fit: Fit) -> tuple[Fit, bool]:
    """The fit with covariance matrices put on the boundary where the likelihood is no lower there, and whether any is."""
    singular, params = False, fit.params
    for position, matrix in enumerate(params.get("omega", ())):
        sd = np.sqrt(np.diagonal(matrix))
        values, vectors = np.linalg.eigh(matrix / np.outer(sd, sd))
        if values[0] > NEARLY:
            continue
        edge = (vectors * np.where(values > NEARLY, values, 1e-7)) @ vectors.T
        edge = edge / np.sqrt(np.outer(np.diagonal(edge), np.diagonal(edge))) * np.outer(sd, sd)
        moved = params | {"omega": tuple(edge if p == position else m for p, m in enumerate(params["omega"]))}
        if likelihood(fit.at(moved)) > likelihood(fit) - NEGLIGIBLE:
            singular, params = True, moved
    return dataclasses.replace(fit, params=params) if singular else fit, singular
