"""Modes of a unit's posterior that no search from its own neighbourhood meets, looked for where other units have theirs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from ..esteps import ImportanceSampling, ModeMixture
from ..esteps.elsewhere import TOLD, around, places
from ..numerics.gaussian import APART
from ..problem.model import costly
from .proposing import STARTS, lanes, rows_of

if TYPE_CHECKING:
    from .fit import Fit


#: where searches of units that have more modes than were met start; of densities that take long, places of other units
HIDDEN, SLOW_STARTS = 400, 12
#: times as far as modes are from each other that a search may start from one: all may be near the start of theirs
FARTHEST = 64.0
#: of posteriors with more modes than usual, or of which some were hardly found
WIDE = ModeMixture(n_modes=24, most=400)


def with_hidden(fit: Fit, rows: PyTree, params: PyTree, key: int) -> PyTree:
    """Rows of proposals, made anew for units that may have modes which were not met; as they are where no unit may."""
    units = suspects(fit, rows, params, key, np.arange(len(rows["modes"])))
    if not len(units):
        return rows
    if costly(fit._model().model):
        return widely(fit, rows, params, key, units, everywhere(rows, units, 2 * SLOW_STARTS))
    units = np.union1d(units, np.flatnonzero(rows["unseen"]))
    return widely(fit, rows, params, key, units, everywhere(rows, units, HIDDEN))


def suspects(fit: Fit, rows: PyTree, params: PyTree, key: int, units: np.ndarray) -> np.ndarray:
    """Those of some units that have modes which were not met; where densities take long, that may have."""
    if costly(fit._model().model):
        return units[rows["against"][units] > 0]
    hinted = units[np.isfinite(rows["hints"][units, 0, 0])]
    return hinted[missed(fit, rows, params, key, hinted)]


def everywhere(rows: PyTree, units: np.ndarray, count: int) -> np.ndarray:
    """Where searches of units begin (u, count, d): by turns where other units have their modes, and around their own."""
    others = places(rows["mean"][:, 0], count // 2, FARTHEST)
    own = [around(rows["mean"][u, 0], rows["cholesky"][u, 0], count // 2) for u in units]
    return np.reshape([np.stack([others, points], axis=1) for points in own], (len(units), count, rows["mean"].shape[2]))


def missed(fit: Fit, rows: PyTree, params: PyTree, key: int, units: np.ndarray) -> np.ndarray:
    """Whether searches from its hints find modes of a unit that its row has not, or has no room for: of most suspects none do.

    They are made by the program that made the row.
    """
    if not len(units):
        return np.zeros(0, bool)
    block, modes, size = lanes(fit._model().n), STARTS - TOLD, rows["mean"].shape[2]
    # A lane is as long as its searches: of few units each has several, with some of the hints.
    parts = int(np.clip(block // len(units), 1, TOLD))
    own = np.array_split(rows["hints"][units], parts, axis=1)
    hinted = max(hints.shape[1] for hints in own)
    starts = np.full((len(units), parts, STARTS, size), np.nan)
    starts[:, :, :modes] = rows["mean"][units][:, None]
    for part, hints in enumerate(own):
        starts[:, part, modes : modes + hints.shape[1]] = hints
    # Filled up to whole blocks, for which there is a program.
    turn = np.arange(-(-len(units) * parts // block) * block) % (len(units) * parts)
    searched = ImportanceSampling(2, ModeMixture(searches=3 + modes + hinted, rounds=0))
    found = rows_of(fit, searched, np.repeat(units, parts)[turn], params, key, starts.reshape(-1, STARTS, size)[turn])
    many = (len(units), parts * modes)
    kept, means, roots = (
        found[name][: len(units) * parts].reshape(many + leaf)
        for name, leaf in (("log_share", ()), ("mean", (size,)), ("cholesky", (size, size)))
    )
    counts = [distinct(mean[here], root[here]) for here, mean, root in zip(kept > -np.inf, means, roots, strict=True)]
    return (np.array(counts) > rows["modes"][units]) | (rows["modes"][units] >= rows["mean"].shape[1])


def distinct(means: np.ndarray, roots: np.ndarray) -> int:
    """Of modes (m, d), those that are not within `APART` of one before them, by the curvature of either."""
    gaps = means[:, None] - means
    white = np.einsum("iab,ijb->ija", np.linalg.inv(roots), gaps)
    square = np.sum(white**2, axis=-1)
    near = np.tril(np.minimum(square, square.T) < APART**2, -1)
    return int(np.sum(~near.any(axis=1)))


def widely(fit: Fit, rows: PyTree, params: PyTree, key: int, units: np.ndarray, starts: np.ndarray | None = None) -> PyTree:
    """Rows with more modes: of the given units by many searches, some from `starts`, of the others those that there are."""
    many = WIDE
    if starts is not None:
        count = starts.shape[1]
        many = dataclasses.replace(WIDE, searches=np.asarray(3 + count), most=np.asarray(2 * count))
    fresh = rows_of(fit, ImportanceSampling(2, many), units, params, key, starts)
    out = {}
    for name, leaf in fresh.items():
        out[name] = _with_slots(rows[name], leaf.shape[1:])
        out[name][units] = leaf
    return out


def _with_slots(leaf: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """With as many components a unit as another: those beyond its own repeat the first, and have no share."""
    if leaf.shape[1:] == shape:
        return np.array(leaf)
    lacking = shape[0] - leaf.shape[1]
    more = np.full((len(leaf), lacking), -np.inf) if leaf.ndim == 2 else np.repeat(leaf[:, :1], lacking, axis=1)
    return np.concatenate([leaf, more], axis=1)
