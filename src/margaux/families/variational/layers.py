"""Layers of networks on images (c, h, w, ...): channels first, and observations on any trailing axes.

With the observations last a shift of an image copies whole rows, and a convolution is one product of matrices.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree


class AbstractStacked(eqx.Module):
    """A network that takes observations on trailing axes, all at once: x (..., b) to outputs (o, b)."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, ...]) -> Float[Array, "o ..."]:
        """Outputs of one observation, or of those on the trailing axes."""


def over_observations(function: Callable[..., Array], stacked: bool, *trees: PyTree) -> Array:
    """A function of one observation for each on the leading axis of the trees; of all at once if it is `stacked`."""
    if not stacked:
        return jax.vmap(function)(*trees)
    last = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), trees)
    return jnp.moveaxis(function(*last), -1, 0)


class Dense(eqx.Module):
    r"""Linear layer of x (i, ...).

    Args:
        inputs, outputs: i and o. key: of the start, uniform within $\pm i^{-1/2}$.
    """

    weight: Float[Array, "o i"]
    bias: Float[Array, " o"]

    def __init__(self, inputs: int, outputs: int, *, key: PRNGKeyArray) -> None:
        self.weight, self.bias = _start(key, (outputs, inputs), outputs, inputs)

    def __call__(self, x: Float[Array, "i ..."], *, key: Any = None) -> Float[Array, "o ..."]:
        out = jnp.tensordot(self.weight, x, 1)
        return out + over_channels(self.bias, out)


class Convolution(eqx.Module):
    r"""Two-dimensional convolution of images (c, h, w, ...).

    On a CPU a matrix (out, k k c) times the patches (k k c, h' w' ...), several times faster than the convolution of XLA, which
    accelerators use. Rows of the weight are in the order (column of the kernel, row, channel).

    Args:
        in_channels, out_channels: c and its successor. kernel: k. stride, padding: zeros around. use_bias: add one a channel.
        key: of the start, uniform within $\pm(kkc)^{-1/2}$.
    """

    weight: Float[Array, "kkc o"]
    bias: Float[Array, " o"] | None
    in_channels: int = eqx.field(static=True)
    out_channels: int = eqx.field(static=True)
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)
    padding: int = eqx.field(static=True)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        use_bias: bool = True,
        *,
        key: PRNGKeyArray,
    ) -> None:
        self.in_channels, self.out_channels, self.kernel = in_channels, out_channels, kernel
        self.stride, self.padding = stride, padding
        size = kernel * kernel * in_channels
        self.weight, bias = _start(key, (size, out_channels), out_channels, size)
        self.bias = bias if use_bias else None

    def __call__(self, x: Float[Array, "c h w ..."], *, key: Any = None) -> Float[Array, "o h2 w2 ..."]:
        out = self._by_patches(x) if jax.default_backend() == "cpu" else self._by_library(x)
        return out if self.bias is None else out + over_channels(self.bias, out)

    def _by_patches(self, x: Array) -> Array:
        p, k, s, rest = self.padding, self.kernel, self.stride, x.shape[3:]
        x = jnp.pad(x, ((0, 0), (p, p), (p, p)) + ((0, 0),) * len(rest))
        h, w = (x.shape[1] - k) // s + 1, (x.shape[2] - k) // s + 1
        rows = jnp.concatenate([x[:, i : i + s * (h - 1) + 1 : s] for i in range(k)])
        patches = jnp.concatenate([rows[:, :, j : j + s * (w - 1) + 1 : s] for j in range(k)])
        return (self.weight.T @ patches.reshape(len(self.weight), -1)).reshape((self.out_channels, h, w, *rest))

    def _by_library(self, x: Array) -> Array:
        p = self.padding
        kernel = self.weight.reshape(self.kernel, self.kernel, self.in_channels, self.out_channels)
        out = jax.lax.conv_general_dilated(
            x.reshape(x.shape[:3] + (-1,)),
            kernel,
            (self.stride,) * 2,
            ((p, p), (p, p)),
            dimension_numbers=("CHWN", "WHIO", "CHWN"),
        )
        return out.reshape(out.shape[:3] + x.shape[3:])


def max_pool(x: Float[Array, "c h w ..."]) -> Float[Array, "c h2 w2 ..."]:
    """The largest of each 2 x 2 square; h and w are even."""
    c, h, w = x.shape[:3]
    squares = x.reshape((c, h // 2, 2, w // 2, 2) + x.shape[3:])
    pairs = jnp.maximum(squares[:, :, 0], squares[:, :, 1])
    return jnp.maximum(pairs[:, :, :, 0], pairs[:, :, :, 1])


class GroupNorm(eqx.Module):
    """Wu and He (2018): standardises groups of channels of each image (c, h, w, ...), then scales and shifts each channel.

    Args:
        groups: of them. channels: c, which they divide.
    """

    weight: Float[Array, " c"]
    bias: Float[Array, " c"]
    groups: int = eqx.field(static=True)

    def __init__(self, groups: int, channels: int) -> None:
        if channels % groups:
            raise ValueError(f"{groups} groups do not divide {channels} channels")
        self.weight, self.bias, self.groups = jnp.ones(channels), jnp.zeros(channels), groups

    def __call__(self, x: Float[Array, "c h w ..."], *, key: Any = None) -> Float[Array, "c h w ..."]:
        parts = x.reshape((self.groups, -1) + x.shape[3:])
        mean = jnp.mean(parts, axis=1, keepdims=True)
        variance = jnp.var(parts, axis=1, keepdims=True)
        standard = ((parts - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
        return standard * over_channels(self.weight, x) + over_channels(self.bias, x)


def over_channels(values: Array, x: Array) -> Array:
    """One value a channel (c,), or one a channel of each observation (c, b), shaped to broadcast to x (c, ...) or (c, ..., b)."""
    return values.reshape(values.shape[:1] + (1,) * (x.ndim - values.ndim) + values.shape[1:])


def _start(key: PRNGKeyArray, shape: tuple[int, ...], outputs: int, inputs: int) -> tuple[Array, Array]:
    """A weight and a bias, uniform."""
    of_weight, of_bias = jax.random.split(key)
    bound = inputs**-0.5
    weight = jax.random.uniform(of_weight, shape, minval=-bound, maxval=bound)
    return weight, jax.random.uniform(of_bias, (outputs,), minval=-bound, maxval=bound)
