"""Whether each of many fits is the maximum of its likelihood and its numbers hold: the checks of a single fit's certificate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ...answers.certify import AT_MAXIMUM, FAR_AWAY, FLAT, LARGE_ERROR, SHALLOW
from ...answers.search import CLOSE, NEAR_BY
from .counts import Binomial
from .many_search import Search
from .ordinal import Ordinal
from .verdict import CERTAIN, SHARE

#: the words, from good to bad
WORDS = ("certified", "careful", "failed")
CAREFUL, FAILED = 1, 2


class Found(NamedTuple):
    """What is judged.

    Attributes:
        search: where it ended. positive: whether the information is positive definite (R,). names: of the parameter that a
            coordinate moves most (R, k). singular: by factor (R,). certain, worst: share of rows whose answer fixed effects make
            certain, and the fixed effect that does most (R,). approximate: whether it is by Laplace's approximation.
    """

    search: Search
    positive: Bool[np.ndarray, " R"]
    names: np.ndarray
    singular: dict[str, Bool[np.ndarray, " R"]]
    certain: Float[np.ndarray, " R"]
    worst: np.ndarray
    approximate: bool


class Trouble(NamedTuple):
    """Where a check is not passed (R,), how bad that is, and a sentence about one response."""

    where: Bool[np.ndarray, " R"]
    level: int
    sentence: object

    def told(self, r: int) -> str:
        return self.sentence(r)  # type: ignore[operator]


def verdicts(found: Found) -> tuple[np.ndarray, np.ndarray]:
    """A word and what is wrong, "" where nothing is, of each response."""
    count = len(found.search.u)
    worst, messages = np.zeros(count, int), [[] for _ in range(count)]
    for trouble in (*_of_maximum(found), *_of_shape(found), *_of_likelihood(found), *_of_model(found)):
        for r in np.flatnonzero(trouble.where).tolist():
            messages[r].append(trouble.told(r))
        worst = np.where(trouble.where, np.maximum(worst, trouble.level), worst)
    return np.array(WORDS, object)[worst], np.array(["; ".join(parts) for parts in messages], object)


def _of_maximum(found: Found) -> Iterator[Trouble]:
    length = found.search.length
    lost = ~np.isfinite(length) | ~np.isfinite(found.search.here.value)
    yield Trouble(lost, FAILED, lambda r: "the log-likelihood or its gradient is not finite where the search ended")
    for where, level in ((length > FAR_AWAY, FAILED), ((length >= CLOSE) & (length <= FAR_AWAY), CAREFUL)):
        yield Trouble(
            where & ~lost,
            level,
            lambda r: f"not converged: the maximum is {length[r]:.2g} standard errors away after {found.search.steps[r]} steps",
        )
    yield Trouble(
        ~found.positive & ~lost,
        CAREFUL,
        lambda r: "no standard errors: the information is singular or indefinite, some parameters are not identified",
    )


def _of_shape(found: Found) -> Iterator[Trouble]:
    drops = found.search.drops
    known = np.isfinite(drops).all(axis=2)
    falls = np.where(known, drops.min(axis=2), np.inf)
    j = falls.argmin(axis=1)
    fall = falls[np.arange(len(j)), j]

    def name(r: int) -> str:
        return str(found.names[r, j[r]])

    higher = fall < -FLAT
    yield Trouble(higher, FAILED, lambda r: f"the likelihood is higher by {-fall[r]:.3g} elsewhere along {name(r)}")
    flat = ~higher & (fall < FLAT)
    yield Trouble(flat, CAREFUL, lambda r: f"the likelihood is flat along {name(r)}: the data hardly bound it on one side")
    shallow = ~higher & ~flat & (fall < SHALLOW)
    yield Trouble(
        shallow,
        CAREFUL,
        lambda r: f"the likelihood is far from a parabola along {name(r)}: use profile intervals of a single fit",
    )


def _of_likelihood(found: Found) -> Iterator[Trouble]:
    search = found.search
    if found.approximate:
        unknown = np.isnan(search.apart)
        yield Trouble(unknown, CAREFUL, lambda r: "Laplace's approximation, of which is not known how far it is off")
        yield Trouble(
            search.apart >= AT_MAXIMUM,
            CAREFUL,
            lambda r: f"the maximum of the likelihood itself is about {search.apart[r]:.2g} standard errors from Laplace's",
        )
        return
    yield Trouble(
        ~(search.error <= LARGE_ERROR),
        CAREFUL,
        lambda r: f"quadratures differ by {search.error[r]:.2g} in the log-likelihood",
    )
    yield Trouble(
        search.apart > NEAR_BY,
        CAREFUL,
        lambda r: f"quadratures differ by {search.apart[r]:.2g} standard errors in the maximum",
    )


def _of_model(found: Found) -> Iterator[Trouble]:
    response = found.search.together.model.response
    if isinstance(response, Binomial | Ordinal):
        yield Trouble(
            found.certain >= SHARE,
            FAILED,
            lambda r: (
                f"separation: fixed effects, mostly {found.worst[r]}, make {100 * found.certain[r]:.0f}% of the answers certain"
            ),
        )
    for name, where in found.singular.items():
        yield Trouble(
            where,
            CAREFUL,
            lambda r, name=name: f"boundary (singular) fit: effects of {name} vary in fewer directions than they have",
        )


def certainty(eta: Float[np.ndarray, "R N"]) -> Float[np.ndarray, " R"]:
    """Share of rows whose answer the predictor makes certain."""
    return np.mean(np.abs(eta) > CERTAIN, axis=1)
