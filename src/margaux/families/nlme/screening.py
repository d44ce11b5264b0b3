"""Which starts are continued: short runs of SAEM from all of them, and their likelihoods."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from ...answers.fit import Fit
from ...answers.likelihood import agreed, loglik, marginals
from ...answers.posterior import UndefinedDensity
from ...answers.proposing import proposals
from ...answers.rules import best_rule
from ...answers.search import glancing
from ...engine.outcome import RESULTS, FitError
from ...esteps import ImportanceSampling, ModeMixture, Quadrature
from .flipflop import flipped
from .model import MixedEffects
from .running import Settings, run_by_size
from .start import intercepts, some_subjects

#: draws a subject in a replicate; replicates for the likelihoods of starts, for those of the ends of fits, and at most
DRAWS, FEW, REPLICATES, MOST = 400, 2, 4, 64
#: the error of those of the ends of fits
ERROR = 0.0125

#: proposals by which ends are compared that may be in one place: at a single mode, with its curvature
ROUGH = ModeMixture(searches=1, rounds=0)

#: iterations of short runs where a curve takes long: a third, and so many at least
LEAST = 20

#: subjects up to which all are screened on
ALL = 300

#: a start is out of the running when its log-likelihood after the screening is lower by so much, and so much a subject
FAR, FAR_EACH = 5.0, 0.1
#: times that, by proposals at single modes, that no better ones make up for
ROUGHLY = 3.0

#: log-likelihood at which the data overrule the side of the user's starting values: twice it is very strong evidence
#: (Kass and Raftery 1995)
STRONGLY = 5.0


def screened(model: MixedEffects, units: dict, starts: list, settings: Settings) -> tuple[list[dict], pd.DataFrame]:
    """Short SAEM runs from every start, on some of very many subjects: where they end, and a table of all of them.

    Continued are the one of highest log-likelihood, and the best that ended in another mode unless it is far below. Of two modes
    that are mirror images, one is always on the side that the user started from.
    """
    n_iter = max(settings.n_screen // 3, min(settings.n_screen, LEAST)) if model.costly else settings.n_screen
    n_burn = 4 * n_iter // 5
    if len(units["mask"]) > ALL:  # of fewer, the short runs share the programs of the fit
        units = some_subjects(units, settings.seed)
    places = np.asarray([intercepts(model, start) for _, start in starts])
    natural = {name: one.values(x) for (name, one), x in zip(model.individual, places.T, strict=True)}
    table = pd.DataFrame({"origin": [kind for kind, _ in starts]} | natural)
    first = [start for _, start in starts]
    if len(starts) == 1:
        return first, table.assign(loglik=np.nan, continued=True, reached=np.nan)
    algorithm, estep = settings.algorithm(n_burn), settings.estep(len(units["mask"]), model.costly)
    fits = [
        run_by_size(
            model, units, algorithm, estep, params=start, space=model.space(), n_iter=n_iter, batch_size=None,
            key=settings.seed + 1, dtype=settings.dtype, progress=False, polish=False, throw=False,
            shared=settings.shared, near_enough=settings.polishes(units, start),
        )
        for start in first
    ]  # fmt: skip
    ends = [fit.params for fit in fits]
    ended = [at for at, fit in enumerate(fits) if not fit.result.failed]
    if model.costly and ended and not any(_apart(model, ends[ended[0]], ends[at]) for at in ended[1:]):
        # In one place it hardly matters which goes on, and likelihoods take longer than the runs.
        return ends, table.assign(loglik=np.nan, continued=np.arange(len(ends)) == ended[0], reached=np.nan)
    values = np.asarray([_short_of(fit, roughly=True) for fit in fits])
    near = FAR + FAR_EACH * len(units["mask"])
    places = [at for at in _of_places(model, ends, values) if values[at] > np.nanmax(values) - ROUGHLY * near]
    if len(places) > 1 and not model.costly:  # in one place it hardly matters which goes on
        values[places] = [_short_of(fits[at]) for at in places]
    if not np.any(np.isfinite(values)):
        raise FitError(dataclasses.replace(fits[0], result=RESULTS.diverged))
    table = table.assign(loglik=values, continued=False, reached=np.nan)
    order = np.argsort(-np.where(np.isnan(values), -np.inf, values))
    best = int(order[0])
    others = [at for at in order[1:] if values[at] > values[best] - near and _apart(model, ends[best], ends[at])]
    side = _side_asked_for(model)
    if side is not None and _side(model, ends[best]) != side:
        others = [at for at in others if _side(model, ends[at]) == side] or others
    table.loc[[best, *others[:1]], "continued"] = True
    return ends, table


def _apart(model: MixedEffects, params: dict, other: dict) -> bool:
    """Whether two ends lie in different modes: typical parameters more than 1.5 SDs of the random effects apart."""
    here = intercepts(model, params)
    scale = 0.2 * (1 + np.abs(here))
    if model.random:
        scale[model.random] = np.maximum(1.5 * np.sqrt(np.diagonal(model.covariances(params))), scale[model.random])
    return bool(np.any(np.abs(intercepts(model, other) - here) > scale))


def _side(model: MixedEffects, params: dict) -> bool | None:
    """Whether a curve with two sets of parameters has those where absorption is the slower."""
    psi = {name: float(one.values(x)) for (name, one), x in zip(model.individual, intercepts(model, params), strict=True)}
    return flipped(getattr(model.outcome, "structural", None), psi)


def _side_asked_for(model: MixedEffects) -> bool | None:
    """The side of the user's starting values; None where they do not say."""
    psi = dict(zip(model.names, model.typical.tolist(), strict=True))
    return flipped(getattr(model.outcome, "structural", None), psi) if np.all(np.isfinite(model.typical)) else None


def chosen(model: MixedEffects, reached: np.ndarray, ends: list[dict]) -> int:
    """The end of highest log-likelihood; of two mirror images the one on the user's side, unless data are strongly against."""
    values = np.where(np.isnan(reached), -np.inf, reached)
    best, side = int(values.argmax()), _side_asked_for(model)
    if side is None or _side(model, ends[best]) == side:
        return best
    own = [at for at, end in enumerate(ends) if _side(model, end) == side and values[at] > values[best] - STRONGLY]
    return max(own, key=lambda at: values[at], default=best)


def _of_places(model: MixedEffects, ends: list[dict], values: np.ndarray) -> list[int]:
    """The best of the ends in each place, best first."""
    kept: list[int] = []
    for at in np.argsort(-np.where(np.isnan(values), -np.inf, values)):
        if np.isfinite(values[at]) and all(_apart(model, ends[other], ends[at]) for other in kept):
            kept.append(int(at))
    return kept


def _short_of(fit: Fit, roughly: bool = False) -> float:
    """The likelihood where a short run ended, minus infinity where there is none: other starts go on."""
    try:
        return -np.inf if fit.result.failed else likelihood(fit, FEW, roughly)
    except UndefinedDensity:
        return -np.inf


def likelihood(fit: Fit, replicates: int = REPLICATES, roughly: bool = False) -> float:
    """Log-likelihood at the fit's parameters: by quadrature where that is exact enough, else by the same draws at any parameters,
    more of them until its error is small."""
    rule = best_rule(fit, proposal=ROUGH if roughly else None)
    if isinstance(rule.estep, Quadrature):
        if roughly:
            rule = dataclasses.replace(rule, estep=glancing(rule.estep))
        if replicates < REPLICATES:
            return float(np.sum(marginals(fit, rule)))
        value = agreed(fit, None, rule)
        if value.se <= ERROR:
            return float(value)
        rule = dataclasses.replace(rule, rows=None)
    own = rule.estep.proposal if isinstance(rule.estep, ImportanceSampling) else ModeMixture()
    estep = ImportanceSampling(DRAWS, own, quasi=True)
    rows = proposals(fit, estep) if rule.rows is None else rule.rows
    while True:
        value = loglik(fit, estep=estep, replicates=replicates, rows=rows)
        if replicates < REPLICATES or replicates >= MOST or not value.se > ERROR:
            return float(value)
        replicates *= 4
