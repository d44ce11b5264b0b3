"""Where searches for further modes begin, and whether a posterior rises towards its mode where other units have theirs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Scalar

from ..numerics import triangular

#: how much of the way to the mode a place is set against, and the change of a log density, as a share, that is no rounding
NEARER, CHANGE = 0.01, 1e-9
#: starts of searches: this many standard deviations from the first mode
FAR = (5.0, -5.0, 20.0, -20.0, 80.0, -80.0)
#: whose multiples fill the unit interval evenly
GOLDEN = (math.sqrt(5) - 1) / 2
#: standard deviations from the centre up to which a place says nothing: a mean of draws is no mode
CLOSE = 4.0
#: of the places that speak against one mode, how many are told at most
TOLD = 16
#: places in a unit's own surroundings, and how far these reach, the same: further out many densities of one mode do not rise
#: towards it; but no others tell a unit alone of modes there
AROUND, NEAREST, FARTHEST, ALONE = 48, 5.0, 30.0, 1000.0


def further(turn: Any) -> Any:
    """Times as far as `FAR` that searches of a turn in a new direction begin: in the first as far, then up to half as near and
    sixteen times as far."""
    return 2.0 ** ((turn > 0) * (5 * ((turn * GOLDEN) % 1.0) - 1))


def around(centre: np.ndarray, root: np.ndarray, count: int) -> np.ndarray:
    """Points (count, d) near and far in random directions around a centre, by the Cholesky factor of a covariance."""
    turn, far = np.divmod(np.arange(count), len(FAR))
    direction = np.random.default_rng(count).normal(size=(turn[-1] + 1, len(centre)))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return centre + (np.take(FAR, far) * further(turn))[:, None] * (direction @ root.T)[turn]


def places(modes: Any, count: int, farthest: float = 1.0) -> Any:
    """Points (count, d) spread as the modes (n, d) of units are: from one of them in the direction that leads from a second to a
    third, up to so many times as far; the same choice of units for the same numbers."""
    rng = np.random.default_rng(count)
    first, second, third = rng.integers(0, len(modes), (3, count))
    reach = rng.uniform(size=(count, 1)) * farthest ** rng.uniform(size=(count, 1))
    return modes[first] + reach.astype(modes.dtype) * (modes[third] - modes[second])


def surroundings(d: int, alone: bool) -> np.ndarray:
    """Points (`AROUND`, d) each in a random direction of its own, from near to far, evenly in the logarithms of distances."""
    direction = np.random.default_rng(AROUND).normal(size=(AROUND, d))
    distance = np.geomspace(NEAREST, ALONE if alone else FARTHEST, AROUND)
    return distance[:, None] * direction / np.linalg.norm(direction, axis=1, keepdims=True)


def against(
    logdensity: Callable[[Array], Scalar], centre: Float[Array, " d"], root: Float[Array, "d d"], x: Float[Array, "p d"]
) -> Bool[Array, " p"]:
    r"""At which of the places $x_j$ the log density falls on the first part of the way to the centre $m$,
    $h(x_j) > h(x_j + \epsilon(m - x_j))$, or is above that at $m$ itself: at none if there is one mode, with convex level sets
    around it. Places close to the centre, by the Cholesky factor of a covariance, do not count.
    """
    at = jnp.concatenate([centre[None], x, x + NEARER * (centre - x)])
    top, here, nearer = jnp.split(jax.vmap(logdensity)(at), [1, 1 + len(x)])
    slack = CHANGE * jnp.abs(here)
    falls = (here > nearer + slack) | ((here > top + slack) & jnp.isfinite(here))
    away = jnp.sum((triangular.inverse_root(root) @ (x - centre).T) ** 2, axis=0)
    return falls & (away > CLOSE**2)


def told(x: Float[Array, "p d"], falls: Bool[Array, " p"]) -> Float[Array, "t d"]:
    """`TOLD` of the places that speak against one mode, from among all of them; infinite where there are none."""
    first, count = jnp.argsort(~falls, stable=True), jnp.sum(falls)
    return jnp.where(count > 0, x[first[jnp.arange(TOLD) * count // TOLD]], jnp.inf)
