r"""How the draws of weights of one block's observations are related: the variance of the score depends on it.

All but `Shared` give each observation its own draw, and so a score whose noise falls with the size of the block.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ...numerics.compiling import is_large
from .architectures import Perceptron
from .layers import Convolution, Dense, over_channels, over_observations
from .networks import ModuleNetwork, Network, floating
from .priors import AbstractWeightPrior

if TYPE_CHECKING:
    import numpy as np


#: layers that are linear in their weights, whose draws need not be shared
Linear = eqx.nn.Linear | Dense | eqx.nn.Conv | Convolution


class AbstractDraws(eqx.Module):
    """Latents of a block, and outputs of its observations given them.

    Latents are floats, for standard normals, and int8, for random signs.
    """

    def requires(self, network: Network) -> str | None:
        """Why the network cannot be served, or None."""
        return None

    @abc.abstractmethod
    def latents(self, network: Network, mean: PyTree, b: int) -> PyTree:
        """Zeros in the shape of the latents of b observations."""

    @abc.abstractmethod
    def outputs(self, network: Network, mean: PyTree, sigma: PyTree, z: PyTree, x: Array) -> Array:
        """Outputs (b, o) of observations (b, ...) at weights of mean and standard deviation, in the draw of z."""

    @property
    def of_weights(self) -> bool:
        """Whether `weights` has a draw of all weights."""
        return True

    @abc.abstractmethod
    def weights(self, z: PyTree) -> PyTree:
        """Standard normals of one draw of the weights."""

    def split(self, z: PyTree) -> tuple[PyTree, PyTree]:
        """Latents that all observations share, and those with a row an observation."""
        return z, ()

    def joined(self, shared: PyTree, rows: PyTree) -> PyTree:
        """The inverse of `split`."""
        return shared

    def of_size(self, z: PyTree, size: Array | np.ndarray) -> PyTree:
        """Latents drawn for b observations, with those of the first `size` <= b as a draw for `size` alone has them.

        All numbers of one type are drawn as one sequence, leaf after leaf (see `margaux.Noise`), whose beginning does not depend
        on its length: each leaf is read from where it would be. What the other observations get is drawn as well, and unused.
        """
        shared, rows = self.split(z)
        by_row = jax.tree.leaves(self.joined(jax.tree.map(lambda _: False, shared), jax.tree.map(lambda _: True, rows)))
        leaves, structure = jax.tree.flatten(z)
        size = jnp.asarray(size, jnp.int32)
        for dtype in {leaf.dtype for leaf, own in zip(leaves, by_row, strict=True) if own}:
            places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
            flat, start = jnp.concatenate([jnp.ravel(leaves[i]) for i in places]), jnp.zeros((), jnp.int32)
            for i in places:
                leaf = leaves[i]
                leaves[i] = jax.lax.dynamic_slice(flat, (start,), (leaf.size,)).reshape(leaf.shape)
                start = start + (leaf.size // len(leaf) * size if by_row[i] else leaf.size)
        return jax.tree.unflatten(structure, leaves)


class Shared(AbstractDraws):
    """One draw of the weights for all observations of the block."""

    def latents(self, network, mean, b):
        return jax.tree.map(jnp.zeros_like, mean)

    def outputs(self, network, mean, sigma, z, x):
        return network.outputs(moved(mean, sigma, z), x)

    def weights(self, z):
        return z


class PerObservation(AbstractDraws):
    """A draw of all weights for each observation: b times the work and memory, for small networks and for checks."""

    def latents(self, network, mean, b):
        return jax.tree.map(lambda leaf: jnp.zeros((b,) + leaf.shape, leaf.dtype), mean)

    def outputs(self, network, mean, sigma, z, x):
        return jax.vmap(lambda z, x: network.single(moved(mean, sigma, z), x))(z, x)

    def weights(self, z):
        return jax.tree.map(lambda leaf: leaf[0], z)

    def split(self, z):
        return (), z

    def joined(self, shared, rows):
        return rows


class AbstractByLayer(AbstractDraws):
    """Draws that the linear layers of an equinox module turn into one of their own for each observation."""

    @abc.abstractmethod
    def rows(self, layer: Any, b: int, dtype: np.dtype) -> PyTree:
        """Zeros in the shape of what b observations have of their own in a layer; None where the draw is shared."""

    @abc.abstractmethod
    def layer(self, mean: PyTree, sigma: PyTree, z: PyTree, row: PyTree) -> Any:
        """The layer of one observation, from those of means, standard deviations and shared normals."""

    def requires(self, network):
        if not isinstance(network, ModuleNetwork):
            return (
                f"{type(self).__name__} draws need to know the layers of the network; pass an equinox module of eqx.nn.Linear, "
                'eqx.nn.Conv2d or margaux\'s Convolution, or use draws="shared"'
            )
        return None

    def latents(self, network: Any, mean, b):
        dtype = jnp.result_type(*jax.tree.leaves(mean))
        rows = [self.rows(layer, b, dtype) for layer in layers(network.module(mean))]
        return {"weights": jax.tree.map(jnp.zeros_like, mean), "rows": rows}

    def outputs(self, network: Any, mean, sigma, z, x):
        def network_of(tree):
            return eqx.combine(tree, network.static)

        parts = network_of(mean), network_of(sigma), network_of(z["weights"])

        def single(rows, x):
            ordered = iter(rows)

            def part(mean, sigma, z):
                if not is_linear(mean):
                    return moved(mean, sigma, z) if eqx.is_inexact_array(mean) else mean
                return self.layer(mean, sigma, z, next(ordered))

            return jax.tree.map(part, *parts, is_leaf=is_linear)(x)

        out = over_observations(single, network.stacked, z["rows"], floating(x, mean))
        return out[:, None] if out.ndim == 1 else out

    def weights(self, z):
        return z["weights"]

    def split(self, z):
        return z["weights"], z["rows"]

    def joined(self, shared, rows):
        return {"weights": shared, "rows": rows}


class Flipout(AbstractByLayer):
    r"""The shared draw with random signs: $w_i = \mu + \sigma z\circ r_is_i^\top$ of each observation i and layer.

    Wen, Vicol, Ba, Tran and Grosse (2018), eq. 3. Signs are the channels' in a convolution. Weights outside linear layers
    share their draw.
    """

    def rows(self, layer, b, dtype):
        into, out = channels(layer)
        # A single input needs no sign: those of the outputs make up for it.
        return jnp.zeros((b, into), jnp.int8) if into > 1 else None, jnp.zeros((b, out), jnp.int8)

    def layer(self, mean, sigma, z, row):
        return _Flipped(mean, moved_layer(None, sigma, z), *row)


class LocalReparameterisation(AbstractByLayer):
    r"""Dense layers draw their outputs, $N(\mu^\top x, (\sigma^2)^\top x^2)$; the weights of all others are shared draws.

    Kingma, Salimans and Welling (2015), eq. 6. The outputs of one convolution at several places share their weights, and are
    not independent: drawing them so would be biased, and is not offered. It would be as biased for a dense layer that the network
    applies to several parts of one observation (tokens, say), which cannot be seen from here: use Flipout there.
    """

    def rows(self, layer, b, dtype):
        return jnp.zeros((b, channels(layer)[1]), dtype) if isinstance(layer, eqx.nn.Linear | Dense) else None

    def latents(self, network, mean, b):
        z = super().latents(network, mean, b)

        # Dense layers have no draw of weights.
        def without(part):
            return jax.tree.map(lambda _: jnp.zeros(0), part) if isinstance(part, eqx.nn.Linear | Dense) else part

        return z | {"weights": jax.tree.map(without, z["weights"], is_leaf=is_linear)}

    def layer(self, mean, sigma, z, row):
        return moved_layer(mean, sigma, z) if row is None else _Sampled(mean, sigma, row)

    @property
    def of_weights(self):
        return False


class _Flipped(eqx.Module):
    mean: PyTree
    shift: PyTree
    into: Array | None
    out: Array

    def __call__(self, x, *, key=None):
        shift = self.shift(x if self.into is None else x * over_channels(self.into.astype(x.dtype), x))
        return self.mean(x) + shift * over_channels(self.out.astype(x.dtype), shift)


class _Sampled(eqx.Module):
    mean: PyTree
    sigma: PyTree
    z: Array

    def __call__(self, x, *, key=None):
        variance = _of_squares(self.sigma.weight, x)
        if self.mean.bias is not None:
            variance = variance + over_channels(self.sigma.bias**2, x)
        return self.mean(x) + jnp.sqrt(variance + jnp.finfo(x.dtype).tiny) * self.z


def _of_squares(sigma: Array, x: Array) -> Array:
    return sigma**2 @ x**2 if sigma.ndim else sigma**2 * jnp.sum(x**2, axis=0)


def is_linear(part: object) -> bool:
    """Whether it is a layer that is linear in its weights."""
    return isinstance(part, Linear)


def layers(module: Any) -> list[Any]:
    """Linear layers of a module, in the order of its tree."""
    return [part for part in jax.tree.leaves(module, is_leaf=is_linear) if is_linear(part)]


def channels(layer: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    if isinstance(layer, eqx.nn.Linear | Dense):
        return layer.weight.shape[1], layer.weight.shape[0]
    return layer.in_channels, layer.out_channels


def moved(mean: PyTree, sigma: PyTree, z: PyTree) -> PyTree:
    """mu + sigma z."""
    return jax.tree.map(lambda m, s, e: m + s * e, mean, sigma, z)


def moved_layer(mean: PyTree, sigma: PyTree, z: PyTree) -> Any:
    """A layer at mu + sigma z, or at sigma z without means."""

    def arrays(layer):
        return eqx.partition(layer, eqx.is_inexact_array)

    noise, static = arrays(z)
    shift = jax.tree.map(jnp.multiply, arrays(sigma)[0], noise)
    return eqx.combine(shift if mean is None else jax.tree.map(jnp.add, arrays(mean)[0], shift), static)


DRAWS = {"shared": Shared(), "flipout": Flipout(), "local": LocalReparameterisation(), "observation": PerObservation()}


def as_draws(draws: str) -> AbstractDraws:
    """By name.

    Raises:
        ValueError: an unknown one.
    """
    if draws not in DRAWS:
        raise ValueError(f"draws must be one of {', '.join(map(repr, DRAWS))}; got {draws!r}")
    return DRAWS[draws]


def default_draws(network: Network, weights: PyTree, prior: AbstractWeightPrior) -> AbstractDraws:
    """Local reparameterisation for networks of ours whose weights are mostly in dense layers, where the prior allows it: it
    costs and varies least, of perceptrons where weights are many. Otherwise Flipout, and shared draws where the layers are not
    known."""
    if not isinstance(network, ModuleNetwork):
        return Shared()

    def size(tree):
        return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)))

    # An eqx.nn.Linear of another module may be applied to several parts of one observation. Of few weights Flipout costs as much.
    once = (Dense, eqx.nn.Linear) if isinstance(network.static, Perceptron) and is_large(weights) else Dense
    inside = sum(size(layer) for layer in layers(network.module(weights)) if isinstance(layer, once))
    return LocalReparameterisation() if inside > size(weights) / 2 and not prior.by_draws else Flipout()
