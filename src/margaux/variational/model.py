r"""Variational inference on the engine: a unit is a block of observations, and its latent the noise behind the weights.

MISSO (Karimi, Wai, Moulines and Li), example 2: minimise $-\mathrm{ELBO}(\theta) = -\sum_iE_q\log p(y_i\mid x_i, w) +
\mathrm{KL}[q\|p]$ with $w = \mu + \sigma z$, $z\sim N(0, I)$.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..model import AbstractModel
from .likelihoods import AbstractLikelihood
from .posterior import GaussianPosterior
from .priors import AbstractWeightPrior


class Variational(AbstractModel):
    r"""The integrand of the ELBO of a network, per observation: for each of B blocks $\frac Bn\sum_{i\in block}\log p(y_i\mid
    x_i, w) - \frac1nd(\theta)$, so that its mean over blocks is ELBO / n and a step means the same for every number of blocks.

    Args:
        network: (weights, x (b, ...)) -> outputs (b, o). A unit's data are "x" (b, ...), "y" (b,) and "weight" (b,), which is
            zero for padding.
        n: observations. n_blocks: B.
    """

    network: Callable[[PyTree, Any], Any] = eqx.field(static=True)
    likelihood: AbstractLikelihood
    prior: AbstractWeightPrior
    posterior: GaussianPosterior
    n: int = eqx.field(static=True)
    n_blocks: int = eqx.field(static=True)

    def log_joint(self, params, z, y):
        outputs = self.network(self.posterior.weights(params, z), y["x"])
        data = jnp.sum(y["weight"] * self.likelihood.log_prob(params, outputs, y["y"]))
        return self.n_blocks / self.n * data - self.prior.divergence(self.posterior, params, z) / self.n

    def init_latents(self, key, params, y):
        return jax.tree.map(jnp.zeros_like, params["mean"])

    def start(self, weights: PyTree, sigma: float) -> dict[str, PyTree]:
        """Parameters: "mean", "log_sigma", and those of the prior and of the likelihood."""
        return self.posterior.start(weights, sigma) | self.prior.start() | self.likelihood.start()


def blocks(x: np.ndarray, y: np.ndarray, n_blocks: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Observations in random order as `n_blocks` blocks of one size, the last padded with weight zero.

    Raises:
        ValueError: lengths differ, or there are more blocks than observations.

    >>> import numpy as np
    >>> parts = blocks(np.arange(5.0)[:, None], np.arange(5), 2)
    >>> parts["x"].shape, parts["weight"].tolist()
    ((2, 3, 1), [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    """
    n = len(x)
    if len(y) != n:
        raise ValueError(f"x has {n} observations and y {len(y)}; they must agree")
    if not 1 <= n_blocks <= n:
        raise ValueError(f"n_blocks must be between 1 and the {n} observations, got {n_blocks}")
    size = -(-n // n_blocks)
    order = np.random.default_rng(seed).permutation(n)
    # Blocks differ by one observation at most.
    sizes = np.full(n_blocks, n // n_blocks) + (np.arange(n_blocks) < n % n_blocks)
    starts = np.cumsum(sizes) - sizes
    ids = np.minimum(starts[:, None] + np.arange(size), n - 1)
    inside = np.arange(size) < sizes[:, None]
    return {"x": np.asarray(x)[order[ids]], "y": np.asarray(y)[order[ids]], "weight": inside.astype(float)}
