r"""What is said of chains of weights, and of SWAG: whether draws are of one posterior, and whether there are enough of them.

Weights of networks can be exchanged without a change of what they predict, and chains need not agree on them. They are compared
by what they say of observations of the fit, the log-likelihood of each and of all, by split $\hat R$ and by the number of draws
that would tell as much were they independent, $Mv/\mathrm{Var}(\bar\theta)$ of M half-chains with means $\bar\theta$ and pooled
variance v (Gelman and Rubin 1992).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...answers.certificate import Check, Level
from ...answers.diagnostics import rhat
from .trajectory import HOT

#: R-hat of nine tenths of the observations, and draws that tell as much as independent ones
AGREED, ENOUGH = 1.1, 25
#: draws of a chain that can be compared with others
LEAST = 8
#: how much the log posterior of an observation may rise over SWAG's weights
ROSE = 0.02
NAN = float("nan")
#: what holds of SWAG however it ended
SPREAD, WIDE = "spread", "How wide the Gaussians of SWAG are follows from step and blocks: they are no posterior's deviations."


def failing(message: str) -> tuple[Check, ...]:
    """Of a member that failed."""
    return (Check("result", NAN, NAN, NAN, "failed", message),)


def chained(values: np.ndarray, heats: Sequence[float]) -> tuple[Check, ...]:
    """Of chains.

    Args:
        values: (draws, chains, n), log-likelihoods of observations. heats: temperature of each chain's momentum over T.
    """
    heat = max(heats)
    said = f"The momentum of the chains has {heat:.3g} times the temperature that it should have"
    warm = heat > HOT
    said += ": draws are too wide, pass a smaller step=, or a larger batch_size=." if warm else "."
    hot = Check("heat", heat, NAN, HOT, "careful" if warm else "pass", said)
    if len(values) < LEAST:
        said = f"Chains of {len(values)} draws cannot be told to have mixed: raise cycles= or epochs=."
        return hot, Check("mixing", NAN, NAN, AGREED, "careful", said)
    every = np.concatenate([values, values.mean(axis=2, keepdims=True)], axis=2)
    far = rhat(every)
    if not np.all(np.isfinite(far)):
        return hot, Check("mixing", NAN, NAN, AGREED, "failed", "Draws have log-likelihoods that are not finite, or stand still.")
    worst, enough = float(max(np.quantile(far[:-1], 0.9), far[-1])), effective(every)
    few = float(min(np.quantile(enough[:-1], 0.1), enough[-1]))
    mixed: Level = "pass" if worst < AGREED else "careful"
    said = f"Chains agree on what they say of observations (R-hat {worst:.3f})."
    if mixed != "pass":
        said = f"Chains disagree on what they say of observations (R-hat {worst:.3f}): raise epochs=."
    told = f"Draws tell as much as about {few:.0f} independent ones"
    level: Level = "pass" if few >= ENOUGH else "careful"
    return (
        hot,
        Check("mixing", worst, NAN, AGREED, mixed, said),
        Check("draws", few, NAN, ENOUGH, level, f"{told}." if level == "pass" else f"{told}, which are few: raise epochs=."),
    )


def effective(values: np.ndarray) -> np.ndarray:
    """Draws that would tell as much were they independent, of each entry of (draws, chains, p), by halves of chains."""
    half = len(values) // 2
    split = np.concatenate([values[:half], values[len(values) - half :]], axis=1)
    within, between = split.var(axis=0, ddof=1).mean(axis=0), split.mean(axis=0).var(axis=0, ddof=1)
    pooled = within * (half - 1) / half + between
    count = split.shape[0] * split.shape[1]
    return np.minimum(split.shape[1] * pooled / np.maximum(between, 1e-300), count)


def averaged(log_joints: Sequence[np.ndarray]) -> tuple[Check, ...]:
    """Of SWAG: whether the log posterior an observation (iterations,) of any member still moved where weights were kept; and,
    always, that its spreads are not a posterior's."""
    rises = []
    for values in log_joints:
        tail = np.asarray(values[len(values) // 2 :], float)
        third = max(len(tail) // 3, 1)
        first, last = tail[:third], tail[-third:]
        rise, error = last.mean() - first.mean(), np.hypot(first.std(), last.std()) / np.sqrt(third)
        rises.append(float(rise) if abs(rise) > 3 * error else 0.0)
    rise = max(rises, key=abs)
    level: Level = "pass" if abs(rise) <= ROSE else "careful"
    said = "The log posterior was level where weights were kept."
    if level != "pass":
        how, mend = ("rose", "raise epochs=") if rise > 0 else ("fell", "pass a smaller step=")
        said = f"The log posterior of an observation still {how} by {abs(rise):.2g} where weights were kept: {mend}."
    return Check("drift", rise, NAN, ROSE, level, said), Check(SPREAD, NAN, NAN, NAN, "careful", WIDE)
