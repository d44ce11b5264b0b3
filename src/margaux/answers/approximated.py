"""How far Laplace's approximation is off, as weighted draws from it tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .likelihood import FEW_EFFECTIVE
from .rules import CORRECTED, Rule, weighted_draws
from .scores import Evaluation, evaluate

if TYPE_CHECKING:
    from .fit import Fit

#: replicates that tell whether draws are even enough for more of them to be worth while
AT_FIRST = 2


def correction(fit: Fit, evaluation: Evaluation, rule: Rule) -> tuple[float, float, float]:
    """Newton's step from the estimate to the maximum of the exact likelihood, as far as weighted draws tell: its length in
    standard errors, the Monte Carlo error of that, and the least effective size of the draws."""
    draws = weighted_draws(fit, rule)
    found = evaluate(fit, draws, fit.params, range(AT_FIRST), second=False)
    if np.median(found.ess) >= FEW_EFFECTIVE:
        found = evaluate(fit, draws, fit.params, range(CORRECTED), second=False)
    totals = found.scores.sum(axis=1)
    inverse = np.linalg.pinv(evaluation.matrix)
    mean, spread = totals.mean(axis=0), np.atleast_2d(np.cov(totals, rowvar=False)) / len(totals)
    length = float(np.sqrt(max(mean @ inverse @ mean, 0.0)))
    error = float(np.sqrt(max(np.trace(inverse @ spread), 0.0)))
    return length, error, float(found.ess.min())
