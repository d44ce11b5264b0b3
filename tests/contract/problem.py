"""A fit to be judged, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from oracles import Truth


class Answer(NamedTuple):
    """What a fit says.

    Attributes:
        theta: estimates, in the oracle's coordinates. se: their standard errors, NaN where the family gives none.
        loglik, error: the log-likelihood (or the objective) and its stated error. word, said: of the certificate.
    """

    theta: np.ndarray
    se: np.ndarray
    loglik: float
    error: float
    word: str
    said: str


class Problem(NamedTuple):
    """Attributes:
    family, model, variant: what is fitted, to which kind of data.
    run: the fit with default settings. truth: its exact maximum; called after `run`.
    misspecified: whether the data are not of the model, of which the certificate may well speak.
    """

    family: str
    model: str
    variant: str
    run: Callable[[], Answer]
    truth: Callable[[], Truth]
    misspecified: bool = False
