r"""The temperature where observations are many: one fit, and from its end short ones at other temperatures.

A fit to many observations takes so long that there is time for one. A posterior at a temperature $T'$ is near one at T whose
deviations are multiplied by $(T'/T)^{1/2}$, as at a maximum $\sigma^2 = T/(na)$ with a curvature a (see
`margaux.families.variational.ivon`). From there each temperature of the ladder that is asked gets a sixth of the first fit's
iterations, and the log scores of what is held out are those of fits of the same length. The one that is chosen goes on from its
own end, with all observations, for as many epochs as the first fit had. The first fit's own temperature goes on, too: what it
gains tells whether the score still rises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from .tempering import COLUMNS, FAILED, GAIN, Candidate, Choice, error, ladder, nearest, walk

#: epochs of the first fit, and its iterations, at least
PASSES, FEWEST = 3, 1200
#: share of its epochs for which it goes on at a temperature that is tried
TRIED = 1 / 6

#: what a fit says that went on from another
SETTLED_ON = "The log score held out no longer rose as the fit went on."
RISING_ON = "The log score held out still rose as the fit went on: raise epochs= for a better one."


class Ended(NamedTuple):
    """What a fit ends with: log scores (m,) of the observations held out, and its posterior, as `Settings.begin` has one."""

    scores: np.ndarray
    begin: Any


#: a fit to the observations that are not held out: (candidate, where it goes on from or None, epochs)
Fitted = Callable[[Candidate, Any, float], Ended]


def first_epochs(n_blocks: int) -> int:
    """Of the first fit.

    >>> first_epochs(100), first_epochs(500)
    (12, 3)
    """
    return max(PASSES, -(-FEWEST // n_blocks))


def cooled(begin: Any, factor: float) -> Any:
    """A posterior whose temperature is multiplied by a factor.

    >>> cooled(([0.5], [0.2], {}), 0.25)
    ([0.5], [0.1], {})
    """
    means, deviations, own = begin
    return means, jax.tree.map(lambda leaf: leaf * factor**0.5, deviations), own


def choose_onward(prior: str | None, fitted: Fitted, start: int, first: int, epochs: int | None) -> Choice:
    """The temperature of the highest mean log score, or the highest within one standard error of it, and where its fit ended.

    Where the first fit fails, the last is one from the start, at the same temperature.

    Args:
        prior: its name, where one is given. start: where the walk starts, in `tempering.LADDER`. first: epochs of the first fit.
            epochs: of the last, by default as many.
    """
    steps = ladder(prior)
    origin = steps[start]
    base = fitted(origin, None, first)
    if np.any(base.scores == FAILED):
        return Choice(origin, 1, False, _table([(origin, base.scores)], origin), "", many=True, epochs=epochs or first)
    tried: dict[Candidate, Ended] = {}

    def mean(one: Candidate) -> float:
        if one not in tried:
            place = cooled(base.begin, one.temperature / origin.temperature)
            tried[one] = fitted(one, place, TRIED * first)
        return float(tried[one].scores.mean())

    mean(origin)
    walk(steps, start, mean)
    walked = [one for one in steps if one in tried]
    chosen = nearest(walked, max(walked, key=mean), lambda one: tried[one].scores)
    gain = tried[origin].scores - base.scores
    rising = bool(gain.mean() > GAIN * error(gain))
    table = _table([(one, tried[one].scores) for one in walked], chosen)
    said = (
        f"Temperature {chosen.temperature:g}, by the log score of {len(base.scores)} observations held out, {mean(chosen):.4g}."
    )
    ended = (RISING_ON if rising else SETTLED_ON) if epochs is None else None
    begin = tried[chosen].begin
    return Choice(chosen, 1, rising, table, said, epochs is None, begin, ended, many=True, epochs=epochs or first)


def _table(tried: Sequence[tuple[Candidate, np.ndarray]], chosen: Candidate) -> pd.DataFrame:
    """A row a temperature."""
    best, rows = dict(tried)[chosen], []
    for one, own in tried:
        difference = own - best
        figures = [own.mean(), difference.mean(), error(difference)] if not np.any(own == FAILED) else [np.nan] * 3
        rows.append([one.temperature, one.prior, 1, *figures, len(own), one == chosen])
    return pd.DataFrame(rows, columns=COLUMNS)
