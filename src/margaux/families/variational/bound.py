r"""The ELBO of a fitted posterior with its Monte Carlo error: $E_q\log p(y\mid w) - \mathrm{KL}[q\|p]$.

By quadrature where an observation's outputs are one linear function of the weights, and so Gaussian; of few weights by scrambled
Sobol points in pairs z, -z, as independent replicates (Owen 1997); otherwise by pairs of draws of each block.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ...esteps import Noise
from ...numerics.compiling import compiled, is_large
from ...numerics.keys import key_of
from ...numerics.nets import sobol
from ...numerics.precision import settle
from .draws import moved
from .layers import Dense
from .likelihoods import AbstractLikelihood, Categorical
from .model import Variational, block_size, blocks, padded_size
from .networks import ModuleNetwork, Network, floating

#: nodes of Gauss-Hermite quadrature
NODES = 40
#: weights up to which Sobol points are used, replicates, and the largest and least number of pairs of points of each
FEW, REPLICATES, MOST, LEAST = 200, 8, 256, 16
#: numbers that all evaluations of a posterior of few weights may take
AFFORDABLE = 100_000_000
#: pairs of draws of all blocks together, at least, and of each block
PAIRS, EACH = 50, 2


class Bound(float):
    """An ELBO: a float with `.se`, its Monte Carlo error, and `.method`, how it was computed."""

    se: float
    method: str

    def __new__(cls, value: float, se: float, method: str) -> Bound:
        out = super().__new__(cls, value)
        out.se, out.method = float(se), method
        return out

    def __getnewargs__(self) -> tuple[float, float, str]:
        return float(self), self.se, self.method

    def __repr__(self) -> str:
        return f"{float(self):.4f} (se {self.se:.2g})"

    def times(self, factor: float, plus: float = 0.0) -> Bound:
        """The bound of something else: factor ELBO + plus."""
        return Bound(float(self) * factor + plus, self.se * abs(factor), self.method)


def bound(model: Variational, params: dict[str, PyTree], x: PyTree, y: np.ndarray, key: int, dtype: np.dtype) -> Bound:
    """The ELBO an observation: the mean of E_q log p(y | x, w), less the divergence over the observations of the fit, times the
    temperature of the model. What bounds the evidence is that of a model `at_one`.

    Args:
        params: as `Variational` has them. key: of the draws.
    """

    def as_array(leaf):
        return jnp.asarray(leaf, dtype if np.issubdtype(np.asarray(leaf).dtype, np.floating) else None)

    params, model = jax.tree.map(as_array, params), settle(model, dtype)
    n, size = len(y), sum(leaf.size for leaf in jax.tree.leaves(params["mean"]))
    fitted = float(model.n)
    scale = np.array([1 / n, 1 / fitted])
    if one_dimensional(model):
        expected = float(_by_quadrature(model, params, as_array(x), as_array(y), *map(as_array, _nodes())))
        divergence, error = _divergence(model, params, key, size)
        return Bound(expected / n - divergence / fitted, error / fitted, "quadrature")
    entries = max(n * size, sum(np.size(leaf) for leaf in jax.tree.leaves(x)), 1)
    pairs = min(MOST, 2 ** int(np.log2(max(AFFORDABLE // (2 * REPLICATES * entries), 1))))
    if size <= FEW and pairs >= LEAST:
        z = as_array(_sobol(size, pairs, key))
        parts = np.asarray(_at_draws(model, params, jax.tree.map(as_array, x), as_array(y), z), float) @ scale
        each = parts.reshape(REPLICATES, -1).mean(axis=1)
        return Bound(each.mean(), each.std(ddof=1) / np.sqrt(REPLICATES), "sobol")
    n_blocks = max(n * int(model.n_blocks) // int(model.n), 1)
    own = block_size(n, n_blocks, model.slices)
    alike = not is_large(params)
    data = blocks(x, y, n_blocks, 0, padded_size(own, model.slices) if alike else own)
    model = eqx.tree_at(lambda model: model.size, model, jnp.asarray(own) if alike else None, is_leaf=lambda leaf: leaf is None)
    count = max(-(-PAIRS // n_blocks), EACH)
    keys = jax.random.split(key_of(key), count)
    sums = np.asarray(_by_block(model, params, jax.tree.map(as_array, data), keys), float)
    divergence, error = _divergence(model, params, key, size)
    noise = np.sqrt(np.sum(sums.var(axis=1, ddof=1)) / count)
    return Bound(sums.mean(axis=1).sum() / n - divergence / fitted, np.hypot(noise / n, error / fitted), "pairs of draws")


def one_dimensional(model: Variational) -> bool:
    """Whether the log-likelihood of an observation depends on one Gaussian number alone."""
    return is_one_layer(model.network, model.likelihood)


def is_one_layer(network: Network, likelihood: AbstractLikelihood) -> bool:
    """Whether a network is one linear layer, of one output or of two classes."""
    layer = network.static if isinstance(network, ModuleNetwork) else None
    if not isinstance(layer, eqx.nn.Linear | Dense):
        return False
    outputs = layer.out_features if isinstance(layer, eqx.nn.Linear) else None
    return outputs in (1, "scalar") or (outputs == 2 and isinstance(likelihood, Categorical))


def at_one(model: Variational) -> Variational:
    """The model at temperature one, whose bound is one of the log evidence for every posterior, tempered ones too."""
    return eqx.tree_at(lambda model: model.temperature, model, np.asarray(1.0))


@compiled
def _by_quadrature(model: Any, params: dict[str, PyTree], x: Array, y: Array, nodes: Array, weights: Array) -> Array:
    """Of the sum over observations. Outputs are independent given x, as each has its own row of weights."""
    layer, sigma = model.network.module(params["mean"]), model.network.module(_broadcast(model, params))
    x = floating(x, params["mean"])
    mean = model.network.outputs(params["mean"], x)
    variance = x**2 @ (sigma.weight**2).T + (0.0 if layer.bias is None else sigma.bias**2)
    own = {name: value for name, value in model.natural(params).items() if name == "log_noise"}
    if mean.shape[1] == 2:
        # Two classes are told by the difference of their outputs alone.
        zero = jnp.zeros_like(mean[:, :1])
        mean, variance = jnp.hstack([zero, mean[:, 1:] - mean[:, :1]]), jnp.hstack([zero, variance.sum(axis=1, keepdims=True)])
    # Of no variance, as of the reference class or of inputs that are all zero, the root has no slope.
    sd = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)

    def at(node):
        return model.likelihood.log_prob(own, mean + sd * node, y)

    return jnp.sum(weights @ jax.vmap(at)(nodes))


def _nodes() -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return nodes, weights / weights.sum()


def _broadcast(model: Variational, params: dict[str, PyTree]) -> PyTree:
    return jax.tree.map(lambda s, m: jnp.broadcast_to(s, m.shape), model.posterior.sigma(params), params["mean"])


def _sobol(size: int, pairs: int, key: int) -> np.ndarray:
    """Standard normals (replicates * 2 pairs, size): each replicate its own scramble, its points and their mirror images."""
    points = [sobol(size, int(np.log2(pairs)), np.random.default_rng([key, r]).spawn(1)[0]) for r in range(REPLICATES)]
    z = scipy.special.ndtri(np.clip(points, 1e-12, 1 - 1e-12))
    return np.concatenate([z, -z], axis=1).reshape(-1, size)


@compiled
def _at_draws(model: Variational, params: dict[str, PyTree], x: PyTree, y: Array, z: Array) -> Array:
    """(draws, 2): the log-likelihood of all observations at each draw of the weights, and less the divergence."""
    natural, unravel = model.natural(params), ravel_pytree(params["mean"])[1]
    own, sigma = {name: value for name, value in natural.items() if name == "log_noise"}, _broadcast(model, params)

    def single(z: Array) -> Array:
        outputs = model.network.outputs(moved(params["mean"], sigma, unravel(z)), x)
        data = jnp.sum(model.likelihood.log_prob(own, outputs, y))
        return jnp.stack([data, -model.temperature * model.prior.divergence(model.posterior, natural, unravel(z))])

    return jax.lax.map(single, z)


@compiled(large=lambda model, params, *rest: is_large(params))
def _by_block(model: Variational, params: dict[str, PyTree], data: PyTree, keys: Array) -> Array:
    """(blocks, pairs): the log-likelihood of each block, averaged over each pair of draws."""

    def block(i: Array, unit: PyTree) -> tuple[Array, Array]:
        def single(key: Array) -> Array:
            z = Noise(1).noise(jax.random.fold_in(key, i), model.init_latents(key, params, unit))
            z = jax.tree.map(lambda leaf: leaf[0], z)
            # Random signs stay: the normals that they multiply are mirrored.
            mirrored = jax.tree.map(lambda leaf: -leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, z)
            return (model.log_likelihood(params, z, unit) + model.log_likelihood(params, mirrored, unit)) / 2

        return i + 1, jax.lax.map(single, keys)

    return jax.lax.scan(block, jnp.zeros((), jnp.int32), data)[1]


def _divergence(model: Variational, params: dict[str, PyTree], key: int, size: int) -> tuple[float, float]:
    """Temperature times KL of the posterior from the prior, and its error: by pairs of draws where it is not in closed form."""
    by_draws = model.prior.by_draws
    count = int(np.clip(10**7 // size, 10, 1000)) // 2 if by_draws else 1
    values = np.asarray(_divergences(model, params, jax.random.split(key_of(key), count)), float)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(count)) if by_draws else 0.0


@compiled
def _divergences(model: Variational, params: dict[str, PyTree], keys: Array) -> Array:
    def single(key: Array) -> Array:
        z = jax.tree.map(lambda leaf: leaf[0], Noise(1).noise(key, params["mean"]))

        def at(z):
            return model.temperature * model.prior.divergence(model.posterior, model.natural(params), z)

        return (at(z) + at(jax.tree.map(jnp.negative, z))) / 2

    return jax.lax.map(single, keys)
