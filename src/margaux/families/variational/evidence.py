r"""The marginal likelihood by Laplace's approximation, and the precision of the prior and the noise that make it highest.

At the mode w* of P weights with prior $N(0, \Lambda^{-1})$ and $H = C+\Lambda$ the precision of the Gaussian there,

$$\log p(y) \approx \log p(y\mid w^*) + \log p(w^*) + \tfrac P2\log2\pi - \tfrac12\log\det H
= \log p(y\mid w^*) - \tfrac12w^{*\top}\Lambda w^* - \tfrac12\log\det(\Lambda^{-1/2}H\Lambda^{-1/2})$$

(MacKay 1992, "A practical Bayesian framework for backpropagation networks"; Immer, Bauer, Fortuin, Raetsch and Khan 2021,
"Scalable marginal likelihood estimation for model selection in deep learning"). With w* and the curvature of the data held it is
concave in the logarithms of precisions and noise, since $\log\det(\sum_ke^{t_k}M_k)$ of positive $M_k$ is convex in t: there is
one maximum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int

from .structures import Joint, at

#: factors of the prior's precisions, and the noise in standard deviations of the outcome, are kept between these
FACTORS, NOISES = (1e-6, 1e8), (1e-4, 1e2)


class Prior(NamedTuple):
    """Of the weights: N(0, width^2 / factor), with a width for each tensor and a factor for each group of them.

    Attributes:
        widths, members, sizes: of each tensor, the last two its group and how many of its weights are free. names: of the
            groups. free: whether the factors are chosen.
    """

    widths: Float[np.ndarray, " t"]
    members: Int[np.ndarray, " t"]
    sizes: Int[np.ndarray, " t"]
    names: tuple[str, ...]
    free: bool

    @property
    def scales(self) -> Float[np.ndarray, " p"]:
        """The width of each weight that is free."""
        return np.repeat(self.widths, self.sizes)

    @property
    def groups(self) -> Int[np.ndarray, " p"]:
        return np.repeat(self.members, self.sizes)

    def of_tensors(self, scales: Scales) -> Float[np.ndarray, " t"]:
        """Standard deviations."""
        return self.widths / np.sqrt(scales.factors[self.members])


class Scales(NamedTuple):
    """What is chosen: factors (G,) of the prior's precisions, and the noise (None where it is given, or there is none)."""

    factors: Float[np.ndarray, " g"]
    noise: float | None

    def towards(self, other: Scales, share: float) -> Scales:
        """Part of the way to others, in logarithms."""
        factors = self.factors ** (1 - share) * other.factors**share
        noise = None if self.noise is None or other.noise is None else self.noise ** (1 - share) * other.noise**share
        return Scales(factors, noise)

    def noiseless(self, unit: float) -> bool:
        """Whether the noise is as small as may be."""
        return self.noise is not None and self.noise < 1.01 * NOISES[0] * unit

    def at_bounds(self, prior: Prior, unit: float) -> list[str]:
        """Sentences on those that ended at a bound."""
        said = []
        for name, factor in zip(prior.names, self.factors, strict=True):
            if prior.free and factor > 0.99 * FACTORS[1]:
                said.append(f"The evidence asks for no weights in {name}: their prior is as narrow as may be.")
            if prior.free and factor < 1.01 * FACTORS[0]:
                said.append(f"The evidence asks for a prior of {name} as wide as may be.")
        if self.noiseless(unit):
            said.append("The evidence asks for no noise at all: it is as small as may be.")
        return said


@dataclasses.dataclass
class Evidence:
    """The log evidence as a function of `Scales`, with the mode and the curvature held.

    Args:
        curvatures: of the data, at `noise`. squares: of the mode, in units of the prior's scales. fit: the log-likelihood at the
            mode, at `noise`. residual: the sum of squares of residuals of n outcomes, where there is noise.
        unit: the standard deviation of the outcome.
    """

    prior: Prior
    curvatures: Sequence[Any]
    squares: Float[np.ndarray, " p"]
    fit: float
    n: int
    residual: float = 0.0
    noise: float | None = None
    unit: float = 1.0

    def gaussian(self, scales: Scales) -> Joint:
        """Of the weights around the mode."""
        beta = 1.0 if scales.noise is None or self.noise is None else (self.noise / scales.noise) ** 2
        return at(self.curvatures, scales.factors[self.prior.groups], beta)

    def __call__(self, scales: Scales) -> tuple[float, Float[np.ndarray, " g"], float]:
        """Value, and its derivatives in the logarithms of factors and noise."""
        posterior, groups, count = self.gaussian(scales), self.prior.groups, len(scales.factors)
        known = 1 - posterior.shares()  # of each weight; in all the number of effective parameters
        held = scales.factors * np.bincount(groups, self.squares, count)
        fit, by_noise = self.fit, 0.0
        if scales.noise is not None and self.noise is not None:
            precisions = scales.noise**-2, self.noise**-2
            fit += self.n * np.log(self.noise / scales.noise) - self.residual * (precisions[0] - precisions[1]) / 2
            by_noise = self.residual * precisions[0] - self.n + known.sum()
        return fit - held.sum() / 2 - posterior.log_det / 2, (np.bincount(groups, known, count) - held) / 2, float(by_noise)

    def highest(self, start: Scales) -> Scales:
        """The scales of the maximum."""
        free, noisy = self.prior.free, start.noise is not None
        count = len(start.factors) if free else 0

        def scales(logs: np.ndarray) -> Scales:
            return Scales(np.exp(logs[:count]) if free else start.factors, float(np.exp(logs[-1])) if noisy else None)

        def objective(logs: np.ndarray) -> tuple[float, np.ndarray]:
            value, by_factors, by_noise = self(scales(logs))
            return -value, -np.concatenate([by_factors if free else [], [by_noise] if noisy else []])

        begin = np.log([*(start.factors if free else ()), *([start.noise] if start.noise is not None else [])])
        if not begin.size:
            return start
        bounds = [tuple(np.log(FACTORS))] * count + [tuple(np.log(np.multiply(NOISES, self.unit)))] * noisy
        options = {"maxiter": 100, "ftol": 1e-9, "gtol": 1e-5}
        found = scipy.optimize.minimize(objective, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return scales(found.x)
