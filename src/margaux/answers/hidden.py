"""Modes of a unit's posterior that no search from its own neighbourhood meets, looked for where other units have theirs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from ..esteps import ImportanceSampling, ModeMixture
from ..esteps.elsewhere import places
from ..numerics.compiling import compiled
from ..numerics.keys import key_of
from ..numerics.precision import default_dtype, precision, settle
from ..numerics.threads import side_by_side
from ..problem.model import costly
from .posterior import as_numpy, of_all, ours, proposals

if TYPE_CHECKING:
    from .fit import Fit


#: places where every second search starts, of densities that take long fewer
STARTS, SLOW_STARTS = 200, 12
#: times as far as modes are from each other that a search may start from one: all may be near the start of theirs
FARTHEST = 64.0
#: of posteriors with more modes than usual, or of which some were hardly found
WIDE = ModeMixture(n_modes=24, most=400)


def with_hidden(fit: Fit, rows: PyTree, params: PyTree, key: int) -> PyTree:
    """Rows of proposals, made anew for units that may have modes which were not met; as they are where no unit may."""
    units = np.flatnonzero(rows["against"])
    if not len(units):
        return rows
    slow = costly(fit._model().model)
    starts = places(rows["mean"][:, 0], SLOW_STARTS if slow else STARTS, FARTHEST)
    if not slow:
        units = units[missed(fit, rows, params, key, units, starts) > 0]
        if not len(units):
            return rows
        units = np.union1d(units, np.flatnonzero(rows["unseen"]))
    return widely(fit, rows, params, key, units, starts)


def missed(fit: Fit, rows: PyTree, params: PyTree, key: int, units: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """How many of many searches, for each of the units, end at modes that its row has not: of most suspects none."""
    dtype, problem, share = default_dtype(None), fit._model(), fit.share
    chosen, before = ours(share, units)
    with precision(dtype):
        at = as_numpy(fit.params if params is None else params, dtype)
        model, proposal = settle((problem.model, ModeMixture(places=starts)), dtype)

        def visit(unit: int) -> int:
            own = as_numpy(rows, dtype, np.asarray(unit)), as_numpy(fit.data, dtype, np.asarray(unit - before))
            return int(_counted(model, proposal, at, *own, key_of(key)))

        counts = np.array(side_by_side(visit, chosen.tolist(), dtype))
    return counts if share is None else of_all(share, units, counts, {}, {})[0]


@compiled(small=True)
def _counted(model, proposal, params, row, y, key):
    return proposal.missed(key, model, params, row, y)


def widely(fit: Fit, rows: PyTree, params: PyTree, key: int, units: np.ndarray, starts: np.ndarray | None = None) -> PyTree:
    """Rows with more modes: of the given units by many searches, some from `starts`, of the others those that there are."""
    many = WIDE
    if starts is not None:
        count = 2 * len(starts)
        many = dataclasses.replace(WIDE, searches=np.asarray(3 + count), most=np.asarray(2 * count), places=starts)
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
