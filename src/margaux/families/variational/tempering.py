r"""The temperature of a posterior of weights, and the length of its fit, by the log score of observations held out.

A tempered posterior maximises $\sum_iE_q\log p(y_i\mid x_i, w) - T\,\mathrm{KL}[q\|p]$. At T = 1 it is the variational posterior;
below one the data count 1/T times, and as $T\to0$ it becomes a point estimate. Independent Gaussians of many weights and few
observations predict best well below one (Wenzel et al. 2020, "How good is the Bayes posterior in deep neural networks really?").
The weight of the divergence is learned from predictions, as in SafeBayes (Gruenwald and van Ommen 2017), here from predictions of
observations held out: a fifth of them, or each of five parts in turn where they are few. Of many, and many weights, one fit is
all that can be afforded, and short ones go on from it: see `margaux.families.variational.continuing`.

Priors are $N(0, 1/d)$ for the weights of a unit of d inputs (see `fan_in`), and where it predicts better at the temperature that
was found a half or a quarter as wide: T tells how much noise the weights have, and $T/s^2$, s the width of the prior, how much
they are held back. $N(0, 1)$ at T = 1, the plain posterior, is tried beside them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

#: temperatures that are tried, from the one at a start down, or up, as long as the score rises
LADDER = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
#: priors that are tried in turn, each narrower than the one before, with what their standard deviations are divided by
WIDTHS = {"fan-in": 1.0, "fan-in / 2": 2.0, "fan-in / 4": 4.0}
#: where the walk starts: of classes, and of numbers, whose noise is learned with the weights and vanishes where these are free
CLASSES, NUMBERS = 3, 1
#: standard errors that a longer fit must gain; and one of the plain posterior, which does not fit too much for being fitted long
GAIN, GAIN_OF_PLAIN = 2.0, 1.0
#: observations below which none can be spared; and from which on one fifth tells as much as five folds
SPARED, PLENTY = 50, 1000
#: observations, and their number times that of the weights, from which on fits at other temperatures go on from one that is there
MANY, MUCH = 10_000, 1_000_000_000
#: parts of which each is held out in turn
FOLDS = 5
#: log score of an observation by a fit that has failed
FAILED = -1e6
#: how often a fit may be made twice as long
DOUBLINGS = 3


class Candidate(NamedTuple):
    """A temperature, and the name of a prior: one of `WIDTHS`, "N(0, 1)" or "given"."""

    temperature: float
    prior: str


#: what the plain posterior is, where no prior is given
PLAIN = Candidate(1.0, "N(0, 1)")

#: what a fit says whose length was chosen, and was long enough or not
SETTLED = "The log score held out no longer rises with longer fits."
RISING = "The log score held out still rose when the fit was made twice as long: raise epochs= for a better one."

#: of a table of what was tried
COLUMNS = pd.Index(["temperature", "prior", "length", "log_score", "difference", "se", "held_out", "chosen"])
#: log scores (m,) of the observations that are held out, of a fit to the others: (candidate, mask of those held out, length)
Scored = Callable[[Candidate, np.ndarray, int], np.ndarray]


@dataclasses.dataclass
class Choice:
    """What was chosen.

    Attributes:
        candidate: temperature and prior. length: how often the shortest fit, a power of two. rising: whether the score still
            rose when the fit was made as long as that. table: a row a candidate: "temperature", "prior", "log_score" an
            observation held out, "difference" from the chosen one with its standard error "se", "held_out" (observations),
            "chosen". said: a sentence. lengthened: whether the length was chosen, too. begin: where the fit goes on from, as in
            `Settings`. ended: what is to be said of its length, where it went on. many: whether observations are so many that
            fits go on from others. epochs: of the fit, where they are.
    """

    candidate: Candidate
    length: int
    rising: bool
    table: pd.DataFrame
    said: str
    lengthened: bool = False
    begin: Any = None
    ended: str | None = None
    many: bool = False
    epochs: float | None = None

    @property
    def searched(self) -> bool:
        """Whether it is by observations held out."""
        return len(self.table) > 0


def plain(prior: str | None) -> Candidate:
    """The plain posterior, where the prior has this name, or none is given."""
    return PLAIN if prior is None else Candidate(1.0, prior)


def ladder(prior: str | None) -> list[Candidate]:
    """What is tried beside it."""
    return [Candidate(temperature, prior or "fan-in") for temperature in LADDER]


def is_much(n: int, weights: PyTree) -> bool:
    """Whether a fit of so many weights to so many observations takes so long that there is time for one."""
    return n >= MANY and n * sum(np.size(leaf) for leaf in jax.tree.leaves(weights)) >= MUCH


def folds(n: int, labels: np.ndarray | None, seed: int, parts: int = FOLDS) -> list[np.ndarray]:
    """Masks (n,) of the observations that are held out in turn: one of so many parts, of each class where there are labels."""
    order = np.random.default_rng([seed, 1]).permutation(n)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    part = np.empty(n, int)
    part[order] = np.arange(n) % parts
    return [part == k for k in range(1 if n >= PLENTY else parts)]


def choose(prior: str | None, masks: Sequence[np.ndarray], scored: Scored, start: int, longer: bool) -> Choice:
    """The candidate of the highest mean log score, and how long its fit has to be.

    The ladder is walked from a start by the scores of all parts held out, and the plain posterior is scored beside it. Of
    temperatures whose score is within one standard error of the best one the highest is taken, the nearest to Bayes' rule, and
    with it the prior is made narrower as long as the score rises, unless it was given. Then fits of the chosen one and of the
    plain posterior are made twice as long, until that does not raise the score: a posterior that predicts well may only be slower
    to find. The plain one is taken where it is within a standard error, too.

    Args:
        prior: its name, where one is given. start: where the walk starts, in `LADDER`. longer: whether fits may be made longer.
    """
    steps = ladder(prior)
    scores: dict[Candidate, list[np.ndarray]] = {}

    def all_of(one: Candidate) -> np.ndarray:
        if one not in scores:
            scores[one] = [scored(one, mask, 1) for mask in masks]
        return np.concatenate(scores[one])

    def mean(one: Candidate) -> float:
        return float(all_of(one).mean())

    mean(plain(prior))
    walk(steps, start, mean)
    walked = [one for one in steps if one in scores]
    best = max((plain(prior), *walked), key=mean)
    chosen = nearest(walked, best, all_of) if best in walked else best
    for name in [*WIDTHS][1:] if prior is None and chosen in walked else ():
        one = chosen._replace(prior=name)
        if mean(one) <= mean(chosen):
            break
        chosen = one
    tried = list(dict.fromkeys([plain(prior), *walked, *scores]))
    found = {one: _Length(1, False, all_of(one)) for one in (chosen, tried[0])}
    if longer:
        gains = {one: GAIN_OF_PLAIN if one == tried[0] else GAIN for one in found}
        found = {one: _lengthened(one, scores[one], masks, scored, gain) for one, gain in gains.items()}
        gap = found[tried[0]].scores - found[chosen].scores
        chosen = tried[0] if gap.mean() >= -error(gap) else chosen
    table = _table(tried, {one: all_of(one) for one in tried}, found, chosen)
    return Choice(chosen, found[chosen].times, found[chosen].rising, table, _said(chosen, table, tried[0]), longer)


def walk(steps: Sequence[Candidate], start: int, mean: Callable[[Candidate], float]) -> None:
    """Ask for mean scores from the start down, or up, as long as they rise."""
    for way in (1, -1):
        at = start
        while 0 <= at + way < len(steps) and mean(steps[at + way]) > mean(steps[at]):
            at += way
        if at != start:
            break


def nearest(walked: Sequence[Candidate], best: Candidate, scores: Callable[[Candidate], np.ndarray]) -> Candidate:
    """The first, of the highest temperature, whose score is within one standard error of the best one's."""
    differences = {one: scores(one) - scores(best) for one in walked}
    return next(one for one in walked if differences[one].mean() >= -error(differences[one]))


class _Length(NamedTuple):
    """Of fits of one candidate: how often the shortest, whether the score still rose with that, and their scores."""

    times: int
    rising: bool
    scores: np.ndarray


def _lengthened(one: Candidate, shortest: list[np.ndarray], masks: Sequence[np.ndarray], scored: Scored, gain: float) -> _Length:
    """Fits twice as long, until that does not raise the score by so many standard errors: of two parts held out, which tell
    enough of the length; then all are fitted as long as that."""
    some, times, rising = masks[:2], 1, False
    best = np.concatenate(shortest[: len(some)])
    for _ in range(DOUBLINGS):
        twice = np.concatenate([scored(one, mask, 2 * times) for mask in some])
        rising = bool((twice - best).mean() > gain * error(twice - best))
        if not rising:
            break
        times, best = 2 * times, twice
    if times == 1:
        return _Length(1, False, np.concatenate(shortest))
    return _Length(times, rising, np.concatenate([best, *(scored(one, mask, times) for mask in masks[2:])]))


def error(differences: np.ndarray) -> float:
    """Standard error of their mean."""
    return float(differences.std(ddof=1) / np.sqrt(len(differences)))


def _table(
    tried: Sequence[Candidate], scores: dict[Candidate, np.ndarray], longer: dict[Candidate, _Length], chosen: Candidate
) -> pd.DataFrame:
    """A row a candidate, and one more of each that was made longer."""
    of = [(one, 1, scores[one]) for one in tried]
    of += [(one, length.times, length.scores) for one, length in longer.items() if length.times > 1]
    last = longer[chosen]
    rows = []
    for one, times, own in of:
        difference = own - last.scores
        figures = [own.mean(), difference.mean(), error(difference)]
        if np.any(own == FAILED):
            figures = [np.nan] * 3
        rows.append([one.temperature, one.prior, times, *figures, len(own), one == chosen and times == last.times])
    return pd.DataFrame(rows, columns=COLUMNS)


def _said(chosen: Candidate, table: pd.DataFrame, plain: Candidate) -> str:
    own, first = table[table["chosen"]].iloc[0], table.iloc[0]
    said = (
        f"Temperature {chosen.temperature:g}, by the log score of {own['held_out']} observations held out, {own['log_score']:.4g}"
    )
    return f"{said}." if chosen == plain else f"{said} ({first['log_score']:.4g} by the plain posterior)."


def kept_plain(reason: str) -> Choice:
    """The plain posterior, where nothing can be chosen."""
    return Choice(PLAIN, 1, False, pd.DataFrame(), f"Temperature 1, the plain posterior: {reason}.")


def log_scores(outputs: np.ndarray, log_prob: Callable[[Any], Any]) -> np.ndarray:
    """Of each observation (n,), the log of its density averaged over draws of the weights.

    Args:
        outputs: (draws, n, o). log_prob: of one draw's outputs (n, o).
    """
    each = np.stack([np.asarray(log_prob(one), float) for one in outputs])
    highest = each.max(axis=0)
    return highest + np.log(np.mean(np.exp(each - highest), axis=0))
