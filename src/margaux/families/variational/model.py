r"""Variational inference on the engine: a unit is a block of observations, and its latent the noise behind the weights.

MISSO (Karimi, Wai, Moulines and Li), example 2: minimise $-\mathrm{ELBO}(\theta) = -\sum_iE_q\log p(y_i\mid x_i, w) +
\mathrm{KL}[q\|p]$ with $w = \mu + \sigma z$, $z\sim N(0, I)$.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ...numerics.ladder import rung
from ...problem.model import AbstractModel
from .draws import AbstractDraws, Shared
from .likelihoods import AbstractLikelihood
from .networks import Network
from .posterior import GaussianPosterior
from .priors import AbstractWeightPrior
from .slices import sum_of_slices


def number(value: Any) -> np.ndarray:
    """One that programs take as an array, and that the precision of a fit applies to."""
    return np.asarray(float(value))


#: logarithms of scales that are estimated besides the posterior's
SCALES = ("log_noise", "log_scale")


class Variational(AbstractModel):
    r"""The integrand of the ELBO of a network, per observation: for each of B blocks $\frac Bn\sum_{i\in block}\log p(y_i\mid
    x_i, w) - \frac Tnd(\theta)$, so that its mean over blocks is ELBO / n and a step means the same for every number of blocks.

    Args:
        network: of one batch of observations. A unit's data are "x" (b, ...), "y" (b,) and "weight" (b,), zero for padding.
        n: observations. n_blocks: B. draws: how those of a block's observations are related.
        slices: parts of a block whose activations are held together; they divide its observations.
        size: observations of the largest block, where blocks were padded from it to a size of the ladder (see `blocks`).
            Like n and B it is traced: data of a similar size find the same programs.
        temperature: T, which weighs the divergence; traced as well. At one the maximum is that of the ELBO.
    """

    network: Network
    likelihood: AbstractLikelihood
    prior: AbstractWeightPrior
    posterior: GaussianPosterior
    n: Any = eqx.field(converter=number)
    n_blocks: Any = eqx.field(converter=number)
    draws: AbstractDraws = Shared()
    slices: int = eqx.field(static=True, default=1)
    size: Array | np.ndarray | None = None
    temperature: Any = eqx.field(converter=number, default=1.0)

    def log_joint(self, params, z, y):
        z = self._latents(z)
        data = self._data_term(params, z, y)
        params, noise = self.natural(params), self.draws.weights(z)
        return self.n_blocks / self.n * data - self.temperature * self.prior.divergence(self.posterior, params, noise) / self.n

    def _latents(self, z: PyTree) -> PyTree:
        """As they would be drawn for blocks that are not padded."""
        return z if self.size is None else self.draws.of_size(z, self.size)

    def log_likelihood(self, params: dict[str, PyTree], z: PyTree, y: PyTree) -> Array:
        """Sum over the observations of a block, in one draw."""
        return self._data_term(params, self._latents(z), y)

    def _data_term(self, params: dict[str, PyTree], z: PyTree, y: PyTree) -> Array:
        own = {name: value for name, value in self.natural(params).items() if name == "log_noise"}
        shared, rows = self.draws.split(z)

        def part(moving: PyTree, shared: PyTree, rows: PyTree) -> Array:
            mean, sigma, own = moving
            z, y = self.draws.joined(shared, rows[0]), rows[1]
            outputs = self.draws.outputs(self.network, mean, sigma, z, y["x"])
            return jnp.sum(y["weight"] * self.likelihood.log_prob(own, outputs, y["y"]))

        total = sum_of_slices(part, self.slices)
        return total((params["mean"], self.posterior.sigma(params), own), shared, (rows, y))

    def natural(self, params: dict[str, PyTree]) -> dict[str, PyTree]:
        """The parameters with the logarithms of the noise and of the prior's scale, which like those of the posterior's
        deviations are in units that one step size suits."""
        return {name: params[name] * self.unit(name, params["mean"]) if name in SCALES else params[name] for name in params}

    def unit(self, name: str, weights: PyTree) -> Any:
        """kappa, of as many observations or weights as share the scale."""
        shared = self.n if name == "log_noise" else sum(np.size(leaf) for leaf in jax.tree.leaves(weights))
        return self.posterior.unit(shared)

    def init_latents(self, key, params, y):
        return self.draws.latents(self.network, params["mean"], y["weight"].shape[0])

    def start(self, weights: PyTree, sigma: float) -> dict[str, PyTree]:
        """Parameters: "mean", "log_sigma", and those of the prior and of the likelihood."""
        own = self.prior.start() | self.likelihood.start()
        scaled = {name: value / np.asarray(self.unit(name, weights)) for name, value in own.items()}
        return self.posterior.start(weights, sigma) | scaled


def padded_size(size: int, multiple: int) -> int:
    """The least size of the ladder that is a multiple of a number, and no smaller."""
    return multiple * rung(-(-size // multiple))


def block_size(n: int, n_blocks: int, multiple: int = 1) -> int:
    """Observations of the largest of the blocks, up to a multiple of a number."""
    size = -(-n // n_blocks)
    return -(-size // multiple) * multiple


def blocks(x: PyTree, y: np.ndarray, n_blocks: int, seed: int = 0, size: int | None = None) -> dict[str, PyTree]:
    """Observations in random order as `n_blocks` blocks of one size, the last padded with weight zero.

    Args:
        x: a pytree of arrays with a row an observation. size: rows of a block, by padding; by default as many as needed.

    Raises:
        ValueError: lengths differ, or there are more blocks than observations.

    >>> import numpy as np
    >>> parts = blocks(np.arange(5.0)[:, None], np.arange(5), 2)
    >>> parts["x"].shape, parts["weight"].tolist()
    ((2, 3, 1), [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    """
    n = len(y)
    for leaf in jax.tree.leaves(x):
        if len(leaf) != n:
            raise ValueError(f"x has {len(leaf)} observations and y {n}; they must agree")
    if not 1 <= n_blocks <= n:
        raise ValueError(f"n_blocks must be between 1 and the {n} observations, got {n_blocks}")
    size = block_size(n, n_blocks) if size is None else size
    order = np.random.default_rng(seed).permutation(n)
    # Blocks differ by one observation at most.
    sizes = np.full(n_blocks, n // n_blocks) + (np.arange(n_blocks) < n % n_blocks)
    starts = np.cumsum(sizes) - sizes
    ids = np.minimum(starts[:, None] + np.arange(size), n - 1)
    inside = np.arange(size) < sizes[:, None]

    def placed(leaf):
        return np.asarray(leaf)[order[ids]]

    return {"x": jax.tree.map(placed, x), "y": placed(y), "weight": inside.astype(float)}
