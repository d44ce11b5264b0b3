"""Networks by name: tanh, on one observation, LeNet-5 and ResNet-18, on images of 32 x 32 pixels stacked on trailing axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ...numerics.compiling import compiled
from ...numerics.keys import key_of
from .layers import AbstractStacked, Convolution, Dense, GroupNorm, max_pool


class Perceptron(eqx.Module):
    """Hidden layers of tanh (or ReLU) units, on observations of any shape, flattened.

    Args:
        inputs: numbers an observation. hidden: units a layer. outputs: of the last, linear layer. activation: "tanh" or "relu".
    """

    layers: list[eqx.nn.Linear]
    activation: str = eqx.field(static=True)

    def __init__(
        self, inputs: int, hidden: tuple[int, ...], outputs: int, activation: str = "tanh", *, key: PRNGKeyArray
    ) -> None:
        sizes = [inputs, *hidden, outputs]
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = [eqx.nn.Linear(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True)]
        self.activation = activation

    def __call__(self, x: Float[Array, " ..."]) -> Float[Array, " o"]:
        x, act = jnp.ravel(x), {"tanh": jnp.tanh, "relu": jax.nn.relu}[self.activation]
        for layer in self.layers[:-1]:
            x = act(layer(x))
        return self.layers[-1](x)


class LeNet5(AbstractStacked):
    """LeCun, Bottou, Bengio and Haffner (1998), with ReLU and max-pooling: 61,706 weights for ten classes.

    Images of 28 x 28 pixels (padded by two zeros each side) or of 32 x 32; MISSO's table 2, with width 16 in the second
    convolution.
    """

    convolutions: list[Convolution]
    dense: list[Dense]

    def __init__(self, outputs: int = 10, channels: int = 1, size: int = 28, *, key: PRNGKeyArray) -> None:
        if size not in (28, 32):
            raise ValueError(f"LeNet-5 is for images of 28 x 28 or 32 x 32 pixels, got {size} x {size}")
        keys = jax.random.split(key, 5)
        self.convolutions = [
            Convolution(channels, 6, kernel=5, padding=(32 - size) // 2, key=keys[0]),
            Convolution(6, 16, kernel=5, key=keys[1]),
        ]
        sizes = (400, 120, 84, outputs)
        self.dense = [Dense(a, b, key=k) for a, b, k in zip(sizes[:-1], sizes[1:], keys[2:], strict=True)]

    def __call__(self, x: Float[Array, "h w c ..."]) -> Float[Array, "o ..."]:
        x = jnp.moveaxis(x, 2, 0)
        for convolution in self.convolutions:
            x = jax.nn.relu(max_pool(convolution(x)))
        x = x.reshape((-1,) + x.shape[3:])
        for layer in self.dense[:-1]:
            x = jax.nn.relu(layer(x))
        return self.dense[-1](x)


class _Block(eqx.Module):
    """Two 3 x 3 convolutions and a way round them."""

    first: Convolution
    second: Convolution
    norms: list[GroupNorm]
    around: Convolution | None

    def __init__(self, before: int, width: int, stride: int, groups: int, key: PRNGKeyArray) -> None:
        keys = jax.random.split(key, 3)

        def conv(a, k, s, key):
            return Convolution(a, width, k, s, k // 2, use_bias=False, key=key)

        self.first, self.second = conv(before, 3, stride, keys[0]), conv(width, 3, 1, keys[1])
        same = before == width and stride == 1
        self.norms = [GroupNorm(groups, width) for _ in range(2 if same else 3)]
        self.around = None if same else conv(before, 1, stride, keys[2])

    def __call__(self, x: Array) -> Array:
        out = jax.nn.relu(self.norms[0](self.first(x)))
        out = self.norms[1](self.second(out))
        return jax.nn.relu(out + (x if self.around is None else self.norms[2](self.around(x))))


class ResNet18(AbstractStacked):
    """He, Zhang, Ren and Sun (2016), for images of 32 x 32 pixels: a 3 x 3 stem without pooling, and GroupNorm (batch
    statistics would couple the observations). 11.2 million weights.
    """

    stem: Convolution
    norm: GroupNorm
    blocks: list[_Block]
    dense: Dense

    def __init__(
        self,
        outputs: int = 10,
        channels: int = 3,
        widths: tuple[int, ...] = (64, 128, 256, 512),
        groups: int = 8,
        *,
        key: PRNGKeyArray,
    ) -> None:
        keys = iter(jax.random.split(key, 2 + 2 * len(widths)))
        self.stem = Convolution(channels, widths[0], 3, padding=1, use_bias=False, key=next(keys))
        self.norm = GroupNorm(groups, widths[0])
        self.blocks, before = [], widths[0]
        for i, width in enumerate(widths):
            for stride in (1 if i == 0 else 2, 1):
                self.blocks.append(_Block(before, width, stride, groups, next(keys)))
                before = width
        self.dense = Dense(before, outputs, key=next(keys))

    def __call__(self, x: Float[Array, "h w c ..."]) -> Float[Array, "o ..."]:
        x = jax.nn.relu(self.norm(self.stem(jnp.moveaxis(x, 2, 0))))
        for block in self.blocks:
            x = block(x)
        return self.dense(jnp.mean(x, axis=(1, 2)))


def named(name: str, shape: tuple[int, ...], outputs: int, seed: int = 0) -> Perceptron | LeNet5 | ResNet18:
    """A network for observations of a shape: "tanh" (100 hidden units), "relu", "lenet5" or "resnet18".

    Raises:
        ValueError: an unknown name, or observations of another shape than the network is for.
    """
    if name in ("tanh", "relu"):
        return _started(Perceptron, name == "relu", key_of(seed), int(np.prod(shape)), (100,), outputs, name)
    if name not in ("lenet5", "resnet18"):
        raise ValueError(f'network must be "tanh", "relu", "lenet5", "resnet18", an equinox module or a callable; got {name!r}')
    if len(shape) != 3 or shape[0] != shape[1]:
        raise ValueError(
            f"{name} is for square images of shape (height, width, channels), and an observation has shape {shape}; reshape X to "
            '(n, height, width, channels), or use network="tanh"'
        )
    if name == "lenet5":
        return _started(LeNet5, True, key_of(seed), outputs, shape[2], shape[0])
    if shape[0] < 8:
        raise ValueError(f"resnet18 is for images of 32 x 32 pixels, got {shape[0]} x {shape[1]}")
    return _started(ResNet18, True, key_of(seed), outputs, shape[2])


@compiled
def _started(kind: Callable[..., Any], he: bool, key: PRNGKeyArray, *args: Any) -> Any:
    """A network at its starting weights, by one program: operation by operation it takes a second."""
    made = kind(*args, key=key)
    return he_started(made) if he else made


def he_started(network: Any) -> Any:
    r"""A network of ReLU units whose layers begin as He, Zhang, Ren and Sun (2015) have it: uniform weights of variance
    2 / inputs, and no biases. With smaller ones the noise of the posterior hides the signal, and a fit begins on a plateau."""

    def started(layer: Any) -> Any:
        if not isinstance(layer, Dense | Convolution):
            return layer
        layer = eqx.tree_at(lambda part: part.weight, layer, layer.weight * 6**0.5)
        return layer if layer.bias is None else eqx.tree_at(lambda part: part.bias, layer, jnp.zeros_like(layer.bias))

    return jax.tree.map(started, network, is_leaf=lambda part: isinstance(part, Dense | Convolution))
