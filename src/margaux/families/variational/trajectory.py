r"""What is kept of the way that weights went: the draws of a chain, or the moments of SWAG.

SWAG (Maddox, Garipov, Izmailov, Vetrov and Wilson 2019, "A simple baseline for Bayesian uncertainty in deep learning",
algorithm 1) fits a Gaussian to the weights along which stochastic gradients of a constant step went: their mean, half of their
variances, and half of the covariance of the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ...problem.schedule import AbstractSchedule
from .collecting import Collected
from .langevin import Cyclical, Langevin, Levelling

if TYPE_CHECKING:
    from ...answers.fit import Fit

#: the part of a cycle at whose steps draws are kept, draws of each, and numbers that are kept of a chain at most; and of how
#: many cycles one is left out, from the first on
STAGE, DRAWS, KEPT, BEFORE = 0.25, 4, 20_000_000, 4
#: iterations of a cycle at least
SHORTEST = 10
#: SWAG: the part of a fit whose step is constant, that step over the first one, weights that are kept there, and the last of
#: them, whose covariance is
LEVEL, LAST, WEIGHTS, RANK = 0.5, 0.1, 40, 20
#: cycles by default, and friction, that of gradient descent with momentum 0.9
CYCLES, FRICTION = 20, 0.1
#: temperature of the momentum over T from which on a step is too long; blocks from which on steps are shorter: the noise of
#: their scores heats in proportion to both
HOT, FEW = 1.2, 8


class Chain(NamedTuple):
    """Draws of the weights (m, ...), in the order of the chain, and of logarithms of scales that are learned (m,), by name."""

    weights: PyTree
    scales: dict[str, np.ndarray]

    @classmethod
    def joined(cls, chains: Sequence[Chain]) -> Chain:
        """One after the other."""
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *chains)

    @property
    def count(self) -> int:
        """Draws."""
        return len(jax.tree.leaves(self.weights)[0])

    @property
    def mean(self) -> PyTree:
        return jax.tree.map(lambda leaf: leaf.mean(axis=0, dtype=float), self.weights)

    @property
    def deviations(self) -> PyTree:
        return jax.tree.map(lambda leaf: leaf.std(axis=0, dtype=float, ddof=1 if self.count > 1 else 0), self.weights)

    def _places(self, n_draws: int) -> np.ndarray:
        """As far apart as they may be, and each as often as any other."""
        return np.arange(n_draws) * self.count // n_draws

    def draws(self, n_draws: int, seed: int) -> PyTree:
        """Of the weights, (n_draws, ...): those that there are, whatever the seed."""
        return jax.tree.map(lambda leaf: leaf[self._places(n_draws)], self.weights)

    def log_noises(self, n_draws: int) -> np.ndarray | None:
        """Of the same draws, where the noise is learned."""
        return self.scales["log_noise"][self._places(n_draws)] if "log_noise" in self.scales else None


class Swag(NamedTuple):
    """A Gaussian of a diagonal and a few directions: the mean; variances of all weights that were `kept`; and deviations (k, ...)
    of the last of them from the mean. `scales` are means of logarithms of scales that are learned, by name."""

    mean: PyTree
    variances: PyTree
    last: PyTree
    scales: dict[str, np.ndarray]
    kept: np.ndarray

    @classmethod
    def of(cls, kept: Chain) -> Swag:
        """Of weights along the way."""
        mean = kept.mean
        variances = jax.tree.map(lambda leaf: leaf.var(axis=0, dtype=float), kept.weights)
        last = jax.tree.map(lambda leaf, centre: (leaf[-RANK:] - centre).astype(leaf.dtype), kept.weights, mean)
        scales = {name: np.asarray(logs.mean(dtype=float)) for name, logs in kept.scales.items()}
        return cls(mean, variances, last, scales, np.asarray(kept.count))

    @property
    def count(self) -> int:
        """Deviations that are kept."""
        return len(jax.tree.leaves(self.last)[0])

    @property
    def _freedom(self) -> int:
        # Of a fit that was cut short there may be one, which is zero.
        return max(self.count - 1, 1)

    @property
    def deviations(self) -> PyTree:
        def root(variance: np.ndarray, last: np.ndarray) -> np.ndarray:
            return np.sqrt((variance + np.sum(last**2, axis=0, dtype=float) / self._freedom) / 2)

        return jax.tree.map(root, self.variances, self.last)

    def draws(self, n_draws: int, seed: int) -> PyTree:
        r"""$\bar w + \frac1{\sqrt2}\Sigma_{\mathrm{diag}}^{1/2}z_1 + \frac1{\sqrt{2(K-1)}}Dz_2$ (eq. 1), (n_draws, ...)."""
        rng = np.random.default_rng(seed)
        along = rng.normal(size=(n_draws, self.count)) / np.sqrt(2 * self._freedom)

        def drawn(mean: np.ndarray, variance: np.ndarray, last: np.ndarray) -> np.ndarray:
            alone = rng.normal(size=(n_draws, *mean.shape)) * np.sqrt(variance / 2)
            return mean + alone + np.tensordot(along, last, axes=1)

        return jax.tree.map(drawn, self.mean, self.variances, self.last)

    def log_noises(self, n_draws: int) -> np.ndarray | None:
        """The one noise, of each draw, where it is learned."""
        return np.full(n_draws, self.scales["log_noise"]) if "log_noise" in self.scales else None


def first_step(n_blocks: int) -> float:
    """Where steps begin, over the inverse of the largest curvature of the log posterior an observation."""
    return min(1.0, FEW / n_blocks)


class Cycles(NamedTuple):
    """Chains by cyclical SG-MCMC: how often the step falls, and the friction."""

    cycles: int
    friction: float

    def check(self, n_iter: int) -> None:
        """Raises: ValueError: cycles are too short for their steps to fall."""
        if n_iter < SHORTEST * self.cycles:
            raise ValueError(
                f"cycles = {self.cycles} share {n_iter} iterations of a chain, and a cycle needs {SHORTEST}: raise epochs=, or "
                "lower cycles="
            )

    def steps(self, first: float, n_iter: int) -> AbstractSchedule:
        return Cyclical(first, n_iter / self.cycles)

    def at(self, n_iter: int, size: int) -> np.ndarray:
        """Iterations whose weights, of this number, are kept."""
        length, first = n_iter / self.cycles, self.cycles // BEFORE
        own = int(np.clip(min(DRAWS, STAGE * length, KEPT // (size * self.cycles)), 1, None))
        ends = np.floor(np.arange(first + 1, self.cycles + 1) * length)
        return np.sort((ends[:, None] - np.floor(np.arange(own) * STAGE * length / own)).ravel())

    def heat(self, kinetic: np.ndarray) -> float:
        """Temperature of the momentum over T, its course being (iterations, 1), in the last part of each cycle: one if steps and
        noise of scores are small."""
        place = np.arange(len(kinetic)) * self.cycles / len(kinetic) % 1
        return float(np.mean(kinetic[place >= 1 - STAGE], dtype=float))

    def result(self, kept: Chain) -> Chain:
        return kept


class Averaging(NamedTuple):
    """The trajectory of SWAG: gradient descent with momentum, without noise of its own."""

    friction: float = FRICTION

    def check(self, n_iter: int) -> None:
        """Raises: ValueError: there are too few iterations for moments."""
        if LEVEL * n_iter < 2:
            raise ValueError(f"swag=True takes moments over the last half of the fit, and of {n_iter} iterations there are none")

    def steps(self, first: float, n_iter: int) -> AbstractSchedule:
        return Levelling(first, LAST * first, (1 - LEVEL) * n_iter)

    def at(self, n_iter: int, size: int) -> np.ndarray:
        length = int(LEVEL * n_iter)
        own = int(np.clip(min(WEIGHTS, length, KEPT // size), 2, None))
        return np.sort(n_iter - np.floor(np.arange(own) * length / own))

    def heat(self, kinetic: np.ndarray) -> float:
        """Of descent without noise of its own none is wanted."""
        return 0.0

    def result(self, kept: Chain) -> Swag:
        return Swag.of(kept)


def algorithm(walk: Cycles | Averaging, step: float, n_iter: int, size: int, log_noise: float | None) -> Collected:
    """The way of weights.

    Args:
        step: the first, h. size: weights. log_noise: of a regression, where the curvature was found that tells the step.
    """
    moves = Langevin(walk.steps(step, n_iter), walk.friction, isinstance(walk, Cycles), log_noise)
    return Collected(moves, walk.at(n_iter, size), without=("log_sigma",))


def chain_of(fit: Fit) -> Chain:
    """What a fit has left: of one that was cut short the draws that it had come to, or else where it ended."""
    made: Any = fit.algorithm
    kept = jax.tree.map(lambda leaf: leaf[0, : int(np.sum(np.asarray(made.at) <= fit.n_iter))], fit.left)
    finite = np.all([np.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(kept)], axis=0)
    if not finite.any():
        last = fit.params
        kept, finite = jax.tree.map(lambda leaf: np.asarray(leaf)[None], {name: last[name] for name in kept}), np.ones(1, bool)
    kept = jax.tree.map(lambda leaf: leaf[finite], kept)
    return Chain(kept.pop("mean"), kept)
