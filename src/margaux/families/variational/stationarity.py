r"""How far a posterior of many weights is from where its ELBO is stationary, by scores alone.

With F the tempered ELBO an observation, Newton's step of a mean is $\sigma_j^2\,\frac nT\,\partial_{\mu_j}F$ by the curvature
$T/(n\sigma_j^2)$ that a stationary posterior has, and a standard deviation is too large by the share
$-\tfrac12\frac nT\,\partial_{\log\sigma_j}F$. Scores are noisy, and there are many: the mean square of the steps is that of
products of different draws, which is unbiased, and its error is by leaving out one draw after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ...esteps import Noise
from ...numerics.compiling import compiled, is_large
from ...numerics.keys import key_of
from ...numerics.precision import precision, settle
from .model import Variational, blocks

#: pairs of draws
PAIRS = 16
#: numbers of weights times observations that are passed through, and of scores that are held
AFFORDABLE, HELD = 20_000_000_000, 50_000_000


class Stationarity(NamedTuple):
    """From a posterior to where its ELBO is stationary.

    Attributes:
        means: root mean square of Newton's steps of the means, in their standard deviations. spread: the share by which standard
            deviations are too large, or below zero too small, on average. Both with Monte Carlo errors.
    """

    means: tuple[float, float]
    spread: tuple[float, float]


def stationarity(
    model: Variational, params: dict[str, PyTree], x: PyTree, y: np.ndarray, dtype: np.dtype, key: int = 3
) -> Stationarity | None:
    """None where weights share standard deviations, or it would take too long."""
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(params["mean"]))
    if model.posterior.spread != "weight" or 2 * PAIRS * size * len(y) > AFFORDABLE or PAIRS * size > HELD:
        return None
    with precision(dtype):

        def placed(leaf):
            leaf = np.asarray(leaf)
            return jnp.asarray(leaf, dtype if np.issubdtype(leaf.dtype, np.floating) else None)

        whole = eqx.tree_at(lambda model: model.size, settle(model, dtype), None, is_leaf=lambda leaf: leaf is None)
        size_of_block = -(-len(y) // int(model.n_blocks))
        data = blocks(x, y, int(model.n_blocks), 0, -(-size_of_block // model.slices) * model.slices)
        steps, shares = _steps(
            whole, jax.tree.map(placed, params), jax.tree.map(placed, data), jax.random.split(key_of(key), PAIRS)
        )
    products = np.asarray(steps, float) @ np.asarray(steps, float).T / size
    shares = np.asarray(shares, float)

    def root(products: np.ndarray) -> float:
        count = len(products)
        return float(np.sqrt(max((products.sum() - np.trace(products)) / (count * (count - 1)), 0.0)))

    less = [root(np.delete(np.delete(products, r, axis=0), r, axis=1)) for r in range(PAIRS)]
    error = float(np.sqrt((PAIRS - 1) * np.var(less)))
    return Stationarity((root(products), error), (float(shares.mean()), float(shares.std(ddof=1) / np.sqrt(PAIRS))))


@compiled(large=lambda model, params, *rest: is_large(params))
def _steps(model: Variational, params: dict[str, PyTree], data: PyTree, keys: Array) -> tuple[Array, Array]:
    """Of each pair of draws, Newton's steps of the means (pairs, P), and how much too large the deviations are (pairs,)."""
    sigma, kappa = model.posterior.sigma(params), model.posterior.stretches(params)
    scale = model.n / model.temperature

    def objective(params, unit, key):
        z = jax.tree.map(lambda leaf: leaf[0], Noise(1).noise(key, model.init_latents(key, params, unit)))
        # Random signs stay: the normals that they multiply are mirrored.
        mirrored = jax.tree.map(lambda leaf: -leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, z)
        return (model.log_joint(params, z, unit) + model.log_joint(params, mirrored, unit)) / 2

    def pair(key):
        own = jax.random.split(key, jax.tree.leaves(data)[0].shape[0])

        def add(total, one):
            return jax.tree.map(jnp.add, total, jax.grad(objective)(params, *one)), None

        score = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (data, own))[0]
        score = jax.tree.map(lambda leaf: leaf / len(own), score)
        steps = jax.tree.map(lambda g, s: jnp.ravel(scale * s * g), score["mean"], sigma)
        shares = jax.tree.map(lambda g, unit: jnp.ravel(-scale * g / unit / 2), score["log_sigma"], kappa)
        return jnp.concatenate(jax.tree.leaves(steps)), jnp.mean(jnp.concatenate(jax.tree.leaves(shares)))

    return jax.lax.map(pair, keys)
