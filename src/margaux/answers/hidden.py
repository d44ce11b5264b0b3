"""Modes of a unit's posterior that no search from its own neighbourhood meets, looked for where other units have theirs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from ..esteps import ImportanceSampling, ModeMixture
from ..esteps.elsewhere import Elsewhere
from ..problem.model import AbstractConcave, costly
from .posterior import each_unit, nothing, proposals

if TYPE_CHECKING:
    from .fit import Fit


#: places at which each log density is looked at, and where searches start, of densities that take long fewer
LOOKS, STARTS, SLOW_STARTS = 16, 200, 12
#: times as far as modes are from each other that a search may start from one: all may be near the start of theirs
FARTHEST = 64.0
#: of posteriors with more modes than usual, or of which some were hardly found
WIDE = ModeMixture(n_modes=24, most=400)


def with_hidden(fit: Fit, rows: PyTree, params: PyTree, key: int) -> PyTree:
    """Rows of proposals, made anew for units that may have modes which were not met; as they are where no unit may."""
    units = suspects(fit, rows, params, np.arange(fit._model().n))
    if not len(units):
        return rows
    slow = costly(fit._model().model)
    units = units if slow else np.union1d(units, np.flatnonzero(rows["unseen"]))
    return widely(fit, rows, params, key, units, places(rows["mean"][:, 0], SLOW_STARTS if slow else STARTS, FARTHEST))


def suspects(fit: Fit, rows: PyTree, params: PyTree, asked: np.ndarray) -> np.ndarray:
    """Of the asked units those whose log density does not rise towards the mode that was found from everywhere that others have
    theirs, or is higher there."""
    model = fit._model().model
    if len(asked) < 2 or (isinstance(model, AbstractConcave) and model.concave):
        return asked[:0]
    modes = rows["mean"][:, 0]
    looks, own = Elsewhere(places(modes[asked], LOOKS)), {"mean": modes, "cholesky": rows["cholesky"][:, 0]}
    width = 2 * LOOKS * (modes.shape[1] + 1)
    _, figures = each_unit(fit, nothing, looks, params, width=width, rows=own, units=asked)
    return asked[figures["against"] > 0]


def places(modes: np.ndarray, count: int, farthest: float = 1.0) -> np.ndarray:
    """Points spread as the modes (n, d) of units are: from one of them in the direction that leads from a second to a third, up
    to so many times as far."""
    modes = modes[np.isfinite(modes).all(axis=1)]
    if not len(modes):
        return np.zeros((count, modes.shape[1]))
    rng = np.random.default_rng(count)
    first, second, third = rng.integers(0, len(modes), (3, count))
    reach = rng.uniform(size=(count, 1)) * farthest ** rng.uniform(size=(count, 1))
    return modes[first] + reach * (modes[third] - modes[second])


def widely(fit: Fit, rows: PyTree, params: PyTree, key: int, units: np.ndarray, starts: np.ndarray | None = None) -> PyTree:
    """Rows with more modes: of the given units by many searches, some from `starts`, of the others those that there are."""
    many = WIDE
    if starts is not None:
        many = dataclasses.replace(WIDE, searches=np.asarray(len(starts)), most=np.asarray(2 * len(starts)), places=starts)
    fresh = proposals(fit, ImportanceSampling(2, many), params, units, key)
    out = {}
    for name, leaf in fresh.items():
        out[name] = _with_slots(rows[name], leaf.shape[1:])
        out[name][units] = leaf[units]
    return out


def _with_slots(leaf: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """With as many components a unit as another: those beyond its own repeat the first, and have no share."""
    if leaf.shape[1:] == shape:
        return np.array(leaf)
    lacking = shape[0] - leaf.shape[1]
    more = np.full((len(leaf), lacking), -np.inf) if leaf.ndim == 2 else np.repeat(leaf[:, :1], lacking, axis=1)
    return np.concatenate([leaf, more], axis=1)
