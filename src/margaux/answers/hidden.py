"""Modes of a unit's posterior that no search from its own neighbourhood meets, looked for where other units have theirs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from ..esteps import ImportanceSampling, ModeMixture
from ..esteps.elsewhere import around, places, surroundings
from ..numerics.gaussian import APART
from ..problem.model import costly
from .proposing import HIDDEN, lanes, rows_of

if TYPE_CHECKING:
    from .fit import Fit


#: places of other units where searches start, of densities that take long
SLOW_STARTS = 12
#: times as far as modes are from each other that a search may start from one: all may be near the start of theirs
FARTHEST = 64.0
#: of posteriors with more modes than usual, or of which some were hardly found
WIDE = ModeMixture(n_modes=24, most=400)


def with_hidden(fit: Fit, rows: PyTree, params: PyTree, key: int) -> PyTree:
    """Rows of proposals, made anew for units that may have modes which were not met; as they are where no unit may."""
    units = np.flatnonzero(rows["against"])
    if costly(fit._model().model):
        return widely(fit, rows, params, key, units, everywhere(rows, units, 2 * SLOW_STARTS)) if len(units) else rows
    more = missed(fit, rows, params, key, units, everywhere(rows, units, HIDDEN))
    # Who only has places around that speak against one mode is looked at from there: such there are of one mode, too.
    others = np.setdiff1d(np.flatnonzero(rows["falls"].any(axis=1)), units)
    also = missed(fit, rows, params, key, others, fallen(fit, rows, others), shared=False)
    units = np.concatenate([units[more], others[also]])
    if not len(units):
        return rows
    units = np.union1d(units, np.flatnonzero(rows["unseen"]))
    return widely(fit, rows, params, key, units, everywhere(rows, units, HIDDEN))


def everywhere(rows: PyTree, units: np.ndarray, count: int) -> np.ndarray:
    """Where searches of units begin (u, count, d): by turns where other units have their modes, and around their own."""
    others = places(rows["mean"][:, 0], count // 2, FARTHEST)
    own = [around(rows["mean"][u, 0], rows["cholesky"][u, 0], count // 2) for u in units]
    return np.reshape([np.stack([others, points], axis=1) for points in own], (len(units), count, rows["mean"].shape[2]))


def fallen(fit: Fit, rows: PyTree, units: np.ndarray) -> np.ndarray:
    """Of the surroundings of units (u, s, d), those at which log densities do not rise towards the mode, from near to far."""
    count = max(_each(fit) - rows["mean"].shape[1], 1)
    near = surroundings(rows["mean"].shape[2], lanes(fit._model().n) == 1)
    found = [np.flatnonzero(rows["falls"][u]) for u in units]
    chosen = [at[np.linspace(0, len(at) - 1, count).round().astype(int)] for at in found]
    points = [rows["mean"][u, 0] + near[at] @ rows["cholesky"][u, 0].T for u, at in zip(units, chosen, strict=True)]
    return np.reshape(points, (len(units), count, near.shape[1]))


def _each(fit: Fit) -> int:
    """Searches of each of a block of copies, or of units."""
    return -(-HIDDEN // lanes(fit._model().n))


def missed(
    fit: Fit, rows: PyTree, params: PyTree, key: int, units: np.ndarray, starts: np.ndarray, shared: bool = True
) -> np.ndarray:
    """Whether searches from the starts (u, s, d) find modes of a unit that its row has not: of most suspects none do.

    A unit's searches are shared by a block of copies of it, so that the program is the one that made its row; or there are so
    few of them that it makes them all.
    """
    if not len(units):
        return np.zeros(0, bool)
    block, each, d = lanes(fit._model().n), _each(fit), starts.shape[2]
    copies = block if shared else 1
    given = np.concatenate([rows["mean"][units], starts], axis=1)
    given = given[:, np.arange(copies * each) % given.shape[1]].reshape(-1, each, d)
    # Filled up to whole blocks, for which there is a program.
    turn = np.arange(-(-len(given) // block) * block) % len(given)
    searched = ImportanceSampling(2, ModeMixture(searches=3 + each, rounds=0))
    found = rows_of(fit, searched, np.repeat(units, copies)[turn], params, key, given[turn])
    kept, means, roots = (
        leaf[: len(given)].reshape(len(units), -1, *leaf.shape[2:])
        for leaf in (found["log_share"] > -np.inf, found["mean"], found["cholesky"])
    )
    counts = [distinct(mean[here], root[here]) for here, mean, root in zip(kept, means, roots, strict=True)]
    return np.array(counts) > rows["modes"][units]


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
