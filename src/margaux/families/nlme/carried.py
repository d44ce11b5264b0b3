r"""What doses have left in a linear compartment model, carried from one dose to the next.

A dose that has all been given decays as its phase does. Where the last dose before a row was given at $t_k$, all that were over
by then add $Z_k\,e^{-\lambda(t-t_k)}$; $Z_k$ is $Z_{k-1}\,e^{-\lambda(t_k-t_{k-1})}$ and what those have left that were over
since. The few that are not over yet are added to a row one by one. It is the sum over all pairs of a row and a dose, in as many
exponentials as there are rows and doses. Doses at steady state are one that is given now, and what those before it have left.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .responses import AT_INTERVALS, UNTIL_NOW, Pair, decay, one, past

#: of each dose, the first of its subject's that is not over when it is given, and the first since the compartments were empty
OVER, ANEW = "first not over", "first since empty"
#: subjects of fewer doses are as fast by pairs, and so are more doses that go on at once
FEWEST, MOST = 3, 4


def with_places(doses: Mapping[str, np.ndarray], part: np.ndarray, padding: np.ndarray) -> dict[str, np.ndarray]:
    """The doses of subjects (n, E), with the places that `carried` reads. Args: part, padding: of each (n, E)."""
    time, rate, place = doses["time"], doses["rate"], np.arange(part.shape[1])
    lasts = np.where(rate > 0, doses["amount"] / np.where(rate > 0, rate, 1.0), doses["duration"])
    ends = time + np.where(doses["steady"] == UNTIL_NOW, 0.0, lasts)
    begins = np.diff(part, axis=1, prepend=part[:, :1] - 1) != 0
    anew = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    over = np.where(padding, place, anew)
    for k in place[1:]:  # when all from the first on to this one are over
        ends[:, k] = np.where(begins[:, k], ends[:, k], np.maximum(ends[:, k - 1], ends[:, k]))
    for k in place:
        ended = (place >= anew[:, k, None]) & (place <= k) & (ends <= time[:, k, None])
        over[:, k] += np.where(padding[:, k], 0, ended.sum(axis=1))
    return dict(doses) | {OVER: over.astype(float), ANEW: anew.astype(float)}


def reach(doses: Mapping[str, np.ndarray]) -> int | None:
    """How many doses at most are over between a dose and the next, or not yet over when one is given, a power of two; None where
    doses last as parameters say, are few, or too many go on at once."""
    width, rate = doses["time"].shape[-1], doses["rate"]
    if OVER not in doses or width < FEWEST or bool(np.any(rate < 0)):
        return None
    lasts = np.where(rate > 0, doses["amount"] / np.where(rate > 0, rate, 1.0), doses["duration"])
    if np.any((doses["steady"] == AT_INTERVALS) & (lasts > doses["interval"])):
        return None
    over, place = doses[OVER], np.arange(width)
    ended = over - np.maximum(np.concatenate([over[..., :1] * 0, over[..., :-1]], axis=-1), doses[ANEW])
    most = int(max(np.max(ended), np.max(place + 1 - over), 1))
    return None if most > MOST else 1 << (most - 1).bit_length()


def carried(
    rates: Pair,
    absorbed: bool,
    doses: Mapping[str, Any],
    entering: Array,
    lasts: Array | None,
    steady: bool,
    most: int,
    last: Array,
    since: Callable[[Array], Array],
) -> Array:
    """What all doses add to a phase at a row: at its rate, or its divided difference where they are absorbed.

    Args:
        entering: how much of each dose arrives in the phase. lasts: how long each does, None where all are given at once.
            steady: whether some are at steady state. most: see `reach`.
        last: the place of the last dose that was given, negative for none. since: the time from the dose at a place to the row.
    """
    place = jnp.arange(doses["time"].shape[0])
    over, anew = (doses[name].astype(int) for name in (OVER, ANEW))
    before = jnp.maximum(jnp.concatenate([jnp.zeros_like(over[:1]), over[:-1]]), anew)
    kept = _of(absorbed, decay(rates, jnp.maximum(jnp.diff(doses["time"], prepend=doses["time"][:1]), 0.0)))
    kept = jax.tree.map(lambda leaf: jnp.where(anew < place, leaf, 0.0), kept)
    given = jnp.where(doses["steady"] == UNTIL_NOW, 0.0, entering) if steady else entering

    def ended(i: int) -> Any:
        at = jnp.maximum(over - 1 - i, 0)
        found = one(rates, doses["time"] - doses["time"][at], None if lasts is None else lasts[at])
        return _some(over - 1 - i >= before, _of(absorbed, found * given[at]))

    left = functools.reduce(operator.add, [ended(i) for i in range(most)])
    if steady:
        left = left + _of(absorbed, past(rates, doses, lasts) * entering)

    def carry(left: Any, here: tuple[Any, Any]) -> tuple[Any, Any]:
        left = left * here[0] + here[1]
        return left, left

    left = jax.lax.scan(carry, jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), left), (kept, left))[1]
    k = jnp.maximum(last, 0)
    out = jax.tree.map(lambda leaf: leaf[k], left) * _of(absorbed, decay(rates, since(k)))
    if lasts is not None:
        for i in range(most):
            at = jnp.minimum(over[k] + i, len(place) - 1)
            out = out + _some(over[k] + i <= k, _of(absorbed, one(rates, since(at), lasts[at]) * given[at]))
    return jnp.where(last >= 0, out.difference if absorbed else out, 0.0)


def _some(condition: Any, found: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.where(condition, leaf, 0.0), found)


def _of(absorbed: bool, pair: Pair) -> Any:
    """What is carried of a pair: all of it, or its value at the first rate alone."""
    return pair if absorbed else pair.a
