"""Whether the residuals of a mixed model look as those of data from it: uniformity, dispersion, zeros, outliers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy.sparse

from .counts import AbstractCount
from .residuals import simulated_ranks
from .zeros import Hurdle, ZeroInflated

if TYPE_CHECKING:
    from .estimator import GLMM

#: p values below which a sentence says that something is wrong
DOUBTFUL = 0.05


def check_residuals(model: GLMM, n_simulations: int, random_state: int) -> pd.DataFrame:
    r"""Tests of a fit against data simulated from it with new random effects, a row each.

    "uniformity": the largest distance of the distribution function of the ranks from the diagonal (Kolmogorov and Smirnov's).
    "dispersion": the sum of squares of $(y - m)/s$, m and s the moments of each row over the simulations, about the means of its
    groups, by its average over the simulations: above one is overdispersion. "zeros": how many there are, of responses that
    count or have zeros of their own. "outliers": rows beyond all simulations.

    A figure is compared with those that each simulated data set has among all others, the observed one included: these p values
    are of K + 1 exchangeable data sets, whatever goes together within groups. The estimate is taken as known, which makes
    them a little too large. Two-sided, but for uniformity and outliers, of which only much is wrong.

    Returns:
        A frame with "figure", "expected" (the average over simulations), "p" and a "sentence".

    Raises:
        ValueError: fewer than 50 simulations.

    References: Dunn and Smyth, J. Comput. Graph. Stat. 5 (1996), 236-244; Hope, J. R. Stat. Soc. B 30 (1968), 582-598.
    """
    values, ranks = simulated_ranks(model, n_simulations, random_state)
    spread = _dispersion(values, [term.codes for term in model.design_.terms])
    rows = {
        "uniformity": _row(_distance(ranks), False, _UNIFORMITY),
        "dispersion": _row(spread / spread[1:].mean(), True, _DISPERSION),
    }
    if _counts_zeros(model):
        rows["zeros"] = _row(np.sum(values == 0, axis=0), True, _ZEROS)
    rows["outliers"] = _row(_outliers(values), False, _OUTLIERS)
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=["figure", "expected", "p", "sentence"])
    frame.attrs["n_simulations"] = n_simulations
    return frame


def _counts_zeros(model: GLMM) -> bool:
    response = model.model_.response
    zero_one = response.counts_trials and model.design_.trials is None
    return isinstance(response, (AbstractCount, ZeroInflated, Hurdle)) and not zero_one


#: what is said where a figure is low, where it is high, and where it is as expected
_UNIFORMITY = (
    "",
    "The residuals do not follow the distribution of the model",
    "The residuals follow the distribution of the model",
)
_DISPERSION = (
    "The response varies less than the model has it",
    "The response varies more than the model has it: think of an effect of each row, or of another family",
    "The response varies as the model has it",
)
_ZEROS = (
    "There are fewer zeros than the model has: think of a hurdle",
    "There are more zeros than the model has: think of zero inflation",
    "There are as many zeros as the model has",
)
_OUTLIERS = (
    "",
    "More rows than expected lie beyond all simulations: look at them",
    "No more rows lie beyond all simulations than expected",
)


def _row(figures: np.ndarray, both: bool, told: tuple[str, str, str]) -> tuple[float, float, float, str]:
    """Of a figure of all data sets, the observed first: it, its average, p and a sentence."""
    here, others = float(figures[0]), figures[1:]
    p = monte_carlo_p(here, others, both)
    high = here >= np.median(others)
    sentence = told[2] if p >= DOUBTFUL else told[1] if high else told[0]
    return here, float(others.mean()), p, f"{sentence} ({here:.3g}, {others.mean():.3g} expected, p = {p:.2g})."


def monte_carlo_p(here: float, others: np.ndarray, both: bool) -> float:
    """The share of exchangeable figures at least as large as one of them, that one included; twice the lesser tail if both."""
    above, below = ((1 + np.sum(others >= here)) / (1 + len(others)), (1 + np.sum(others <= here)) / (1 + len(others)))
    return float(min(1.0, 2 * min(above, below)) if both else above)


def _distance(ranks: np.ndarray) -> np.ndarray:
    """Kolmogorov and Smirnov's distance of each column (rows, M) from the uniform distribution."""
    n = len(ranks)
    ordered = np.sort(ranks, axis=0)
    place = np.arange(n)[:, None]
    return np.maximum((place + 1) / n - ordered, ordered - place / n).max(axis=0)


def _dispersion(values: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """Sums of squares (M,) of standardised values (rows, M), about the means of groups that have several rows."""
    sd = values.std(axis=1)
    varied = sd > 1e-12 * max(float(sd.max()), 1e-300)
    away = (values[varied] - values[varied].mean(axis=1, keepdims=True)) / sd[varied, None]
    for codes in groups:
        found, at = np.unique(codes[varied], return_inverse=True)
        if len(at) < 2 * len(found):
            continue
        member = scipy.sparse.csr_array((np.ones(len(at)), (at, np.arange(len(at)))), shape=(len(found), len(at)))
        means = (member @ away) / np.bincount(at)[:, None]
        away = away - means[at]
    return np.sum(away**2, axis=0)


def _outliers(values: np.ndarray) -> np.ndarray:
    """How many rows of each column (rows, M) are the only largest or smallest of theirs."""
    ordered = np.sort(values, axis=1)
    top = (values == ordered[:, -1:]) & (ordered[:, -1:] > ordered[:, -2:-1])
    bottom = (values == ordered[:, :1]) & (ordered[:, :1] < ordered[:, 1:2])
    return np.sum(top | bottom, axis=0)
