r"""How classes of subjects are found: one population is fitted, split in many ways, and the best splits are polished.

The individual parameters of a fitted model are drawn given the data, with weights. By these draws EM maximises the likelihood of
a mixture in the parameters of its population alone, from many splits of the former one:
$\log p(y_i\mid\theta')=\log p(y_i\mid\theta)+\log\sum_j w_{ij}\,p(\phi_{ij}\mid\theta')/p(\phi_{ij}\mid\theta)$.
Newton's steps on the likelihood itself, in all parameters, begin where these end. Three classes are split out of two.

References: McLachlan and Peel, Finite Mixture Models (2000), sections 2.12 (starting values) and 3.2 (EM of Gaussian mixtures
with a common covariance matrix).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float

from ...answers.fit import Fit
from ...answers.polish import polished, unpolishable
from ...answers.posterior import UndefinedDensity
from ...engine.outcome import RESULTS
from ...numerics.precision import precision
from . import classes, fitting, membership
from .individual import Individual
from .model import MixedEffects
from .running import Build, Settings
from .whole import with_model

#: shares of the class that is split off, and of the variance along the shift that is then between the two
SHARES, BETWEEN = (0.5, 0.2, 0.8), (0.5, 0.8)
#: draws of all subjects, and of each at least and at most
DRAWS, LEAST, MOST = 10_000, 40, 400
#: iterations of EM from every split, and from those that are polished; how many of these; and how far below the best they may be
FEW, MANY, KEPT, FAR = 30, 300, 2, 5.0
#: a rise of the log-likelihood in an iteration that is none
STILL = 1e-3
#: ends of EM whose log-likelihoods differ by less are one
ALIKE = 0.02
#: log-likelihood by which a class must be better than none; share of a subject, and distance in SDs, that are no class
NO_HIGHER, NOBODY, NOWHERE = 0.02, 0.5, 0.02


class Split(NamedTuple):
    """A population of classes: log p_k (K,), means less C_i beta (K, d), and the covariance within them (d, d)."""

    log_share: Float[np.ndarray, " K"]
    means: Float[np.ndarray, "K d"]
    omega: Float[np.ndarray, "d d"]


class Draws(NamedTuple):
    """Of subjects: individual parameters less C_i beta, all in a row (n m, d); their log weights over the density of the
    population that they were drawn for (n m,), and how many subjects there are."""

    gaps: Float[np.ndarray, "N d"]
    log_weight: Float[np.ndarray, " N"]
    count: int


def estimate(build: Build, individual: dict[str, Individual], settings: Settings) -> tuple[Fit, pd.DataFrame]:
    """As `margaux.families.nlme.fitting.estimate`, of a model that may have classes. A class that the data do not ask for is left
    out of the final model. The table has a row for each split that was polished, with the log-likelihood that it reached;
    `attrs["gain"]` is how much higher that is than with one class less, and `attrs["more"]` how many parameters it takes.

    Raises:
        ValueError: a fit over several processes, or one that cannot be polished.
    """
    wanted = classes.count(individual.items())
    if wanted == 1:
        return fitting.estimate(build, individual, settings)
    if settings.shared:
        raise ValueError("classes= are found by one process, which has all subjects; leave them out, or fit in one process")
    fit, table = fitting.estimate(build, classes.without(individual), settings)
    if fit.result.failed:
        return fit, table
    with precision(settings.dtype):
        here = fit if fit.polished is not None else polished(fit, True)
        if (trouble := unpolishable(here)) is not None:
            raise ValueError(f"classes= are found by the polish of a fit, and {trouble}")
        at = float(here.loglik())
        left: Any = dict(here._model().model.individual)  # type: ignore[attr-defined]
        asked = {name: one if left[name].random else _without_effect(one) for name, one in individual.items()}
        for number in range(2, classes.count(asked.items()) + 1):
            model, units = build(classes.without(asked, number))
            ends = [_polished(here, model, units, params, settings) for params in _splits(here, model)]
            found = [(end, float(end.loglik())) for end in ends if end is not None]
            table = _with_rows(table, model, found)
            best = max(found, key=lambda pair: pair[1], default=None)
            if best is None or best[1] < at + NO_HIGHER + 2 * best[0].loglik().se or _is_none(model, best[0]):
                break
            table.attrs |= {"gain": best[1] - at, "more": _size(best[0]) - _size(here)}
            here, at = best
    given = classes.count(here._model().model.individual)  # type: ignore[attr-defined]
    edge = given < wanted or classes.vanished(here._model().model, here.params)  # type: ignore[arg-type]
    return dataclasses.replace(here, result=RESULTS.boundary) if edge else here, table


def _without_effect(one: Individual) -> Individual:
    return dataclasses.replace(one, random=False, classes=None, variance=None)


def _size(fit: Fit) -> int:
    return sum(np.size(leaf) for leaf in fit.params.values() if not isinstance(leaf, tuple))


def _polished(fit: Fit, model: MixedEffects, units: dict, params: dict, settings: Settings) -> Fit | None:
    """The maximum near a split, with its classes in order; None where there is none."""
    start = with_model(fit, model, units, params)
    # Iterates and runs are of the population that was split.
    trace = {name: value for name, value in fit.trace.items() if name != "params"}
    runs = {name: np.asarray(leaf)[None] if not isinstance(leaf, tuple) else tuple(np.asarray(m)[None] for m in leaf)
            for name, leaf in params.items()}  # fmt: skip
    start = dataclasses.replace(start, trace=trace, run_params=runs, last_params=params)
    try:
        end = polished(start, True)
    except (UndefinedDensity, np.linalg.LinAlgError):
        return None
    if end.polished is None or end.result.failed:
        return None
    right = classes.ordered(model, end.params)
    if np.array_equal(right["share"], end.params["share"]):
        return end
    again = polished(dataclasses.replace(start, params=right, result=end.result), True)
    return again if again.polished is not None else None


def _is_none(model: MixedEffects, fit: Fit) -> bool:
    """Whether a class has nobody, or two of them are one."""
    share = np.exp(scipy.special.log_softmax(np.r_[0.0, fit.params["share"]]))
    own = classes.places(model)
    sd = np.sqrt(np.diagonal(model.covariances(fit.params)))[own]
    each = np.concatenate([np.zeros((1, len(own))), np.reshape(fit.params["shift"], (-1, len(own)))]) / sd
    apart = np.abs(each[:, None] - each[None]).max(axis=2)
    return bool(share.min() * fit._model().n < NOBODY or apart[np.triu_indices(len(each), 1)].min() < NOWHERE)


def _with_rows(table: pd.DataFrame, model: MixedEffects, found: list[tuple[Fit, float]]) -> pd.DataFrame:
    """The table of starts with a row for each end of a split."""
    attrs, rows = dict(table.attrs), []
    for fit, reached in found:
        psi = {
            name: float(one.values(np.concatenate([np.ravel(fit.params.get(key, ())) for key in ("beta", "fixed")])[k]))
            for j, (name, one) in enumerate(model.individual)
            for k in model.coefficients(j)[:1]
        }
        rows.append({"origin": f"{model.classes} classes"} | psi | {"loglik": np.nan, "continued": True, "split": reached})
    out = pd.concat([table, pd.DataFrame(rows)], ignore_index=True) if rows else table
    out.attrs = attrs
    return out


def _splits(fit: Fit, model: MixedEffects) -> list[dict[str, Any]]:
    """Parameters of the model with one class more from where the fit is, the likeliest first."""
    source: Any = fit._model().model
    draws = _draws(fit)
    start = _population(source, fit.params)
    own, d = classes.places(model), len(model.random)
    still = np.asarray([model.held_coefficients[model.coefficients(j)[0]] for j in model.random])
    shape = _Shape(np.asarray([place in own for place in range(d)]), still, _within(model), _variances_held(model))
    ends = [_em(draws, split, shape, FEW) for split in _divided(start, own)]
    best, kept = max((value for _, value in ends), default=-np.inf), []
    for split, value in sorted(ends, key=lambda end: -end[1]):
        if np.isfinite(value) and value > best - FAR and len(kept) < KEPT:
            again = _em(draws, split, shape, MANY)
            if all(abs(again[1] - other[1]) > ALIKE for other in kept):
                kept.append(again)
    kept.sort(key=lambda end: -end[1])
    return [_engine(model, fit.params, split) for split, _ in kept]


def _draws(fit: Fit) -> Draws:
    model: Any = fit._model().model
    count = int(np.clip(DRAWS // fit._model().n, LEAST, MOST))
    z, w = membership.draws_of(fit, count)
    gaps = (z - model.means(fit.params, np.asarray(fit.data["design"], float))[:, None]).reshape(-1, z.shape[2])
    with np.errstate(divide="ignore"):
        log_weight = np.log(w).ravel() - scipy.special.logsumexp(_log_density(gaps, _population(model, fit.params)), axis=0)
    return Draws(gaps, log_weight, len(z))


def _population(model: MixedEffects, params: dict) -> Split:
    omega, d = model.covariances(params), len(model.random)
    if model.classes == 1:
        return Split(np.zeros(1), np.zeros((1, d)), omega)
    means = np.zeros((model.classes, d))
    means[1:, classes.places(model)] = np.reshape(params["shift"], (model.classes - 1, -1))
    return Split(scipy.special.log_softmax(np.r_[0.0, params["share"]]), means, omega)


def _log_density(gaps: Float[np.ndarray, "N d"], split: Split) -> Float[np.ndarray, "K N"]:
    """log p_k + log N(gap; mean_k, omega)."""
    root = np.linalg.inv(np.linalg.cholesky(split.omega))
    constant = np.sum(np.log(np.diagonal(root))) - len(root) / 2 * np.log(2 * np.pi)
    white, centres = gaps @ root.T, split.means @ root.T
    squares = np.stack([np.sum((white - centre) ** 2, axis=1) for centre in centres])
    return split.log_share[:, None] + constant - squares / 2


def _divided(start: Split, own: list[int]) -> list[Split]:
    """Splits of each class along each of the parameters that have classes, along all of them, and along one against another."""
    sd, out = np.sqrt(np.diagonal(start.omega)), []
    directions = [np.eye(len(sd))[place] for place in own]
    if len(own) > 1:
        directions.append(np.sum(directions, axis=0))
        directions += [directions[0] - one for one in directions[1 : len(own)]]
    for k, direction in ((k, direction) for k in range(len(start.means)) for direction in directions):
        for p in SHARES:
            for between in BETWEEN:
                reach = np.sqrt(between / (p * (1 - p))) * direction * sd
                means = np.vstack([start.means, start.means[k] + (1 - p) * reach])
                means[k] -= p * reach
                log_share = np.r_[start.log_share, start.log_share[k] + np.log(p)]
                log_share[k] += np.log(1 - p)
                shrunk = np.where(direction != 0, np.sqrt(1 - between), 1.0)
                out.append(Split(log_share, means, start.omega * np.outer(shrunk, shrunk)))
    return out


class _Shape(NamedTuple):
    """What EM may move: which means differ between classes, which are held, entries of omega that there are, and variances that
    are held (NaN: none)."""

    own: np.ndarray
    still: np.ndarray
    within: np.ndarray
    held: np.ndarray


def _within(model: MixedEffects) -> np.ndarray:
    out = np.eye(len(model.random), dtype=bool)
    for block in model.blocks:
        out[np.ix_(block, block)] = True
    return out


def _variances_held(model: MixedEffects) -> np.ndarray:
    out = np.full(len(model.random), np.nan)
    out[model.independent] = model.held.vector("omega2", len(model.independent))
    return out


def _em(draws: Draws, split: Split, shape: _Shape, turns: int) -> tuple[Split, float]:
    """EM from a split by weighted draws: where it ends, and by how much the log-likelihood is higher than where they are from."""
    n, value = draws.count, -np.inf
    for _ in range(turns):
        with np.errstate(all="ignore"):
            logs = _log_density(draws.gaps, split) + draws.log_weight
        total = scipy.special.logsumexp(logs, axis=0)
        each = scipy.special.logsumexp(total.reshape(n, -1), axis=1)
        now = float(each.sum())
        if not np.isfinite(now):
            return split, -np.inf
        if now < value + STILL:
            return split, now
        value = now
        weight = np.exp(logs.reshape(len(logs), n, -1) - each[:, None]).reshape(len(logs), -1)
        new = _maximised(draws, weight, split, shape)
        if new is None:
            return split, value
        split = new
    return split, value


def _maximised(draws: Draws, weight: Float[np.ndarray, "K N"], split: Split, shape: _Shape) -> Split | None:
    """Means by generalised least squares at the last omega, then omega; None where it is singular."""
    mass, d, count = weight.sum(axis=1), len(split.omega), len(weight)
    sums = weight @ draws.gaps
    precision, own = np.linalg.inv(split.omega), np.flatnonzero(shape.own)
    free = np.flatnonzero(~shape.still)
    # Coefficients: the means of the first class that are not held, and the shifts of the others.
    size = len(free) + (count - 1) * len(own)
    maps = np.zeros((count, d, size))
    maps[:, free, np.arange(len(free))] = 1.0
    for k in range(1, count):
        maps[k, own, len(free) + (k - 1) * len(own) + np.arange(len(own))] = 1.0
    gram = np.einsum("k,kia,ij,kjb->ab", mass, maps, precision, maps)
    moment = np.einsum("kia,ij,kj->a", maps, precision, sums)
    means = maps @ np.linalg.lstsq(gram, moment, rcond=None)[0]
    omega = np.zeros((d, d))
    for own_weight, mean in zip(weight, means, strict=True):
        gap = draws.gaps - mean
        omega += (gap * own_weight[:, None]).T @ gap
    omega = np.where(shape.within, omega / mass.sum(), 0.0)
    fixed = np.isfinite(shape.held)
    omega[fixed, fixed] = shape.held[fixed]
    values = np.linalg.eigvalsh(omega)
    if not np.all(np.isfinite(values)) or values[0] < 1e-8 * values[-1]:
        return None
    with np.errstate(divide="ignore"):
        return Split(np.log(mass / mass.sum()), means, omega)


def _engine(model: MixedEffects, params: dict, split: Split) -> dict[str, Any]:
    """A split as parameters of the engine, its classes in order."""
    own = classes.places(model)
    beta = np.array(params["beta"], float)
    beta[[model.coefficients(j)[0] for j in model.random]] += split.means[0]
    out: dict[str, Any] = {name: leaf for name, leaf in params.items() if name not in ("share", "shift")} | {"beta": beta}
    if model.independent:
        out["omega2"] = np.diagonal(split.omega)[model.independent].copy()
    if model.blocks:
        out["omega"] = tuple(split.omega[np.ix_(block, block)] for block in model.blocks)
    out["share"] = split.log_share[1:] - split.log_share[0]
    out["shift"] = np.ravel((split.means[1:] - split.means[0])[:, own])
    return classes.ordered(model, out)
