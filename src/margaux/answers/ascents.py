"""Newton's method in a trust region for many functions at once, each of which stops by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..algorithms.newton import FAINT, GOOD, LEAP, POOR, SHRINK
from .search import RADIUS

#: a region too small
STUCK = 1e-6
#: coordinates to a standard error from where on a maximum lies at infinity, and the length of a step that is near enough to that
ENDLESS, ENOUGH = 10.0, 1e-3
#: least eigenvalue of an information matrix scaled to a unit diagonal that is told from none
LEAST = 1e-9


class Heights(NamedTuple):
    """Of m functions of k coordinates: values, gradients, and minus their second derivatives."""

    value: Float[np.ndarray, " m"]
    gradient: Float[np.ndarray, "m k"]
    matrix: Float[np.ndarray, "m k k"]

    def of(self, which: np.ndarray) -> Heights:
        return Heights(*(part[which] for part in self))

    def replaced(self, which: np.ndarray, new: Heights) -> None:
        for part, fresh in zip(self, new, strict=True):
            part[which] = fresh


class Steps(NamedTuple):
    """Newton's steps in their regions (m, k), how long they are (m,), how long they would be without, what rise they promise."""

    step: Float[np.ndarray, "m k"]
    taken: Float[np.ndarray, " m"]
    length: Float[np.ndarray, " m"]
    promised: Float[np.ndarray, " m"]


def newton(here: Heights, u: Float[np.ndarray, "m k"], radius: Float[np.ndarray, " m"]) -> Steps:
    r"""$M^{-1}g$ with the eigenvalues of M by their modulus, held to $\delta^\top M\delta\le r^2$; of length NaN where a number
    is not finite."""
    sound: Any = np.isfinite(here.gradient).all(axis=1) & np.isfinite(here.matrix).all(axis=(1, 2))
    scaled, scale = _scaled(here.matrix, sound)
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(np.abs(values), 1e-8)
    along = np.einsum("mij,mi->mj", vectors, np.where(sound[:, None], here.gradient, 0.0) / scale)
    length = np.sqrt(np.sum(along**2 / values, axis=1))
    step = np.einsum("mij,mj->mi", vectors, along / values) / scale
    leap = np.max(np.abs(step) / (LEAP + np.abs(u)), axis=1, initial=0.0)
    share = np.minimum(radius / np.maximum(length, 1e-300), 1 / np.maximum(leap, 1.0))
    share = np.minimum(share, 1.0)
    length = np.where(sound, length, np.nan)
    return Steps(share[:, None] * step, share * length, length, (share - share**2 / 2) * length**2)


def inverses(matrix: Float[np.ndarray, "m k k"]) -> tuple[Float[np.ndarray, "m k k"], Bool[np.ndarray, " m"]]:
    """Of information matrices, and whether they are positive definite beyond rounding; NaN where they are not."""
    sound: Any = np.isfinite(matrix).all(axis=(1, 2))
    scaled, scale = _scaled(matrix, sound)
    values, vectors = np.linalg.eigh(scaled)
    positive = sound & (values[:, 0] > LEAST * values[:, -1])
    found = np.einsum("mij,mj,mkj->mik", vectors, 1 / np.where(positive[:, None], values, 1.0), vectors)
    found = found / (scale[:, :, None] * scale[:, None, :])
    return np.where(positive[:, None, None], found, np.nan), positive


def pseudo_inverses(matrix: Float[np.ndarray, "m k k"]) -> Float[np.ndarray, "m k k"]:
    """Of information matrices, large where next to nothing is known; zero of those that are not finite."""
    sound: Any = np.isfinite(matrix).all(axis=(1, 2))
    scaled, scale = _scaled(matrix, sound)
    found = np.linalg.pinv(scaled, hermitian=True) / (scale[:, :, None] * scale[:, None, :])
    return np.where(sound[:, None, None], found, 0.0)


def _scaled(matrix: np.ndarray, sound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Matrices on a common scale of their coordinates, so that eigenvalues mean the same for each; and that scale (m, k)."""
    matrix = np.where(sound[:, None, None], matrix, np.eye(matrix.shape[1]))
    scale = np.sqrt(np.maximum(np.abs(np.diagonal(matrix, axis1=1, axis2=2)), 1e-300))
    scaled = matrix / (scale[:, :, None] * scale[:, None, :])
    return (scaled + np.swapaxes(scaled, 1, 2)) / 2, scale


def climb(
    heights: Callable[[np.ndarray, np.ndarray], Heights],
    u: Float[np.ndarray, "R k"],
    here: Heights,
    which: Int[np.ndarray, " m"],
    close: float,
    most: int,
    told: Callable[[int], None],
    kept: Callable[[np.ndarray, np.ndarray], None],
) -> tuple[Float[np.ndarray, " R"], Int[np.ndarray, " R"], Bool[np.ndarray, " R"]]:
    """Some of R functions to where Newton's step is shorter than `close`; `u` and `here` are moved in place.

    A step that does not raise its function is taken back, and its region shrinks (Nocedal and Wright 2006, algorithm 4.1). A
    function that rises towards infinity is left where next to nothing is to be gained.

    Args:
        heights: of coordinates (m, k) and which of the functions these belong to (m,). most: steps of each. told: hears how many
            functions are still on their way. kept: hears of each evaluation which functions it was of, and which have gone there.

    Returns:
        The length of the step that is left, how many steps were taken, and whether none leads up any more although it is long, of
        each of the R; NaN, 0 and False of those not asked for.
    """
    length, count = np.full(len(u), np.nan), np.zeros(len(u), int)
    stuck = np.zeros(len(u), bool)
    radius, rounding = np.full(len(u), RADIUS), 10 * np.finfo(np.float64).eps
    here.replaced(which, heights(u[which], which))
    kept(which, np.ones(len(which), bool))
    active = which
    while True:
        steps = newton(here.of(active), u[active], radius[active])
        length[active] = steps.length
        endless = (steps.length < ENOUGH) & (np.abs(steps.step).max(axis=1, initial=0.0) > ENDLESS * steps.taken)
        going = (steps.length > close) & ~endless & (radius[active] > STUCK) & (count[active] < most)
        stuck[active] = (steps.length > close) & ~endless & (radius[active] <= STUCK)
        active, steps = active[going], Steps(*(part[going] for part in steps))
        if not len(active):
            return length, count, stuck
        told(len(active))
        before, there = here.of(active), u[active] + steps.step
        now = heights(there, active)
        count[active] += 1
        gained = now.value - before.value
        risen = gained >= POOR * steps.promised - rounding * np.abs(before.value)
        after = newton(now, there, radius[active]).length
        calmer = (steps.promised < FAINT) & (after < steps.length)
        finite = np.isfinite(now.value) & np.isfinite(after)
        taken = finite & (risen | calmer)
        grown = (gained > GOOD * steps.promised) & (steps.taken > 0.99 * radius[active])
        radius[active] = np.where(taken, np.where(grown, 2.0, 1.0) * radius[active], SHRINK * steps.taken)
        kept(active, taken)
        moved = active[taken]
        u[moved] = there[taken]
        here.replaced(moved, now.of(taken))
