"""Networks: functions of weights, from equinox modules or from any callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .layers import AbstractStacked, over_observations


class Network(eqx.Module):
    """A function of weights and of a batch of observations.

    Args:
        function: (weights, x (b, ...)) -> outputs (b, o), or (b,) for one output.
    """

    function: Callable[[PyTree, Array], Array]

    def outputs(self, weights: PyTree, x: Array) -> Array:
        """Outputs (b, o) of observations (b, ...)."""
        return _two_axes(self.function(weights, floating(x, weights)))

    def single(self, weights: PyTree, x: Array) -> Array:
        """Outputs (o,) of one observation."""
        return self.outputs(weights, jax.tree.map(lambda leaf: leaf[None], x))[0]


class ModuleNetwork(Network):
    """An equinox module, whose floating-point arrays are the weights, called on one observation at a time.

    Args:
        module: what is not a weight of it is kept.

    Raises:
        ValueError: layers with batch statistics or with noise of their own.
    """

    function: Callable[..., Any] | None
    static: PyTree

    def __init__(self, module: eqx.Module) -> None:
        check_module(module)
        self.static = eqx.filter(module, eqx.is_inexact_array, inverse=True)
        self.function = None

    def outputs(self, weights, x):
        return _two_axes(over_observations(self.module(weights), self.stacked, floating(x, weights)))

    @property
    def stacked(self) -> bool:
        """Whether the module takes many observations at once."""
        return isinstance(self.static, AbstractStacked)

    def module(self, weights: PyTree) -> Any:
        """The module with these weights."""
        return eqx.combine(weights, self.static)


def as_network(network: Any, weights: PyTree = None) -> tuple[Network, PyTree]:
    """A network and its weights: of an equinox module, or of a callable (weights, x) with `weights` given.

    Raises:
        TypeError: neither. ValueError: no weights, or layers that are refused.
    """
    _check_flax(network)
    if isinstance(network, eqx.Module) and weights is None:
        made: Network = ModuleNetwork(network)
        weights = eqx.filter(network, eqx.is_inexact_array)
    elif callable(network) and weights is not None:
        function: Callable[..., Any] = network
        made = Network(function)
    else:
        raise TypeError(
            "network must be an equinox module, or a callable (weights, x) together with weights=, its starting weights; got "
            f"{type(network).__name__}" + ("" if weights is None else " and weights")
        )
    leaves = jax.tree.leaves(weights)
    if not leaves or not all(np.issubdtype(np.asarray(leaf).dtype, np.floating) for leaf in leaves):
        raise ValueError("the weights of a network must be a pytree of floating-point arrays, with one at least")
    for path, leaf in jax.tree_util.tree_flatten_with_path(weights)[0]:
        if not np.all(np.isfinite(leaf)):
            raise ValueError(f"the starting weights{jax.tree_util.keystr(path)} are not finite; initialise them again")
    return made, jax.tree.map(np.asarray, weights)


#: how a module of each of Flax's interfaces is turned into a function of its weights
_FLAX = {
    "flax.linen": 'network=lambda w, x: module.apply({"params": w}, x), weights=module.init(key, x)["params"]',
    "flax.nnx": "graph, w = nnx.split(module, nnx.Param), then network=lambda w, x: nnx.merge(graph, w)(x), weights=w",
}


def _check_flax(network: Any) -> None:
    """Raises: TypeError: a Flax module, whose weights are not its own or not a pytree of arrays."""
    # By the names of its classes, so that Flax need not be there.
    homes = [base.__module__ for base in type(network).__mro__]
    for interface, recipe in _FLAX.items():
        if any(home == interface or home.startswith(interface + ".") for home in homes):
            name = type(network).__name__
            raise TypeError(f"network is a module of {interface} ({name}), which is no function of its weights; pass {recipe}")


def check_module(module: eqx.Module) -> None:
    """Raises: ValueError: layers that couple observations, or draw noise themselves."""
    for layer in jax.tree.leaves(module, is_leaf=lambda x: isinstance(x, eqx.nn.StatefulLayer | eqx.nn.Dropout)):
        if isinstance(layer, eqx.nn.StatefulLayer) and layer.is_stateful():
            raise ValueError(
                f"the network has a {type(layer).__name__} layer, whose batch statistics couple the observations: the ELBO is "
                "then no sum over them; use eqx.nn.GroupNorm or LayerNorm in its place"
            )
        if isinstance(layer, eqx.nn.Dropout) and not layer.inference:
            raise ValueError(
                "the network has a Dropout layer, which draws noise of its own; the posterior of the weights takes its place: "
                "leave it out, or pass eqx.nn.inference_mode(network)"
            )


def floating(x: PyTree, weights: PyTree) -> PyTree:
    """Observations in the precision of the weights; pixels (uint8) divided by 255. Other integers stay what they are."""
    dtype = jnp.result_type(*jax.tree.leaves(weights))

    def one(leaf: Array) -> Array:
        if leaf.dtype == jnp.uint8:
            return leaf.astype(dtype) / 255
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(one, x)


def _two_axes(outputs: Array) -> Array:
    return outputs[:, None] if outputs.ndim == 1 else outputs
