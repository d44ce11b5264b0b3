"""A small convolutional denoiser whose residual has a known Lipschitz constant, trained on images at hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from ...engine.validate import whole
from ...kernels.plug_and_play import positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

#: side of a filter, and frequencies a side where norms are followed in training and taken at its end
SIDE, COARSE, FINE = 3, 8, 64


class ConvolutionalDenoiser(eqx.Module):
    r"""$D(z) = z + R(z)$ of grey images (height, width), R layers of 3 x 3 convolutions with ReLUs between them.

    R is computed in single precision, whatever the type of z: convolutions in double take many times as long on a CPU.

    Attributes:
        filters: (3, 3, in, out) of each layer. biases: (out,). eps: variance of the noise that it removes.
        lipschitz: a bound of R's Lipschitz constant, the product of the norms of its convolutions (Ryu et al. 2019; Sedghi, Gupta
            and Long 2019).
    """

    filters: tuple[Array | np.ndarray, ...]
    biases: tuple[Array | np.ndarray, ...]
    eps: float = eqx.field(static=True)

    def __call__(self, z: Float[Array, "height width"]) -> Float[Array, "height width"]:
        return z + _layers(self.filters, self.biases, z[None].astype(jnp.float32))[0].astype(z.dtype)

    @property
    def lipschitz(self) -> float:
        return math.prod(convolution_norm(kernel) for kernel in self.filters)


def train(
    images: Sequence[ArrayLike],
    eps: float,
    *,
    lipschitz: float | None = 1.0,
    width: int = 32,
    depth: int = 5,
    n_iter: int = 1000,
    batch_size: int = 16,
    patch: int = 40,
    step_size: float = 2e-3,
    random_state: int = 0,
) -> ConvolutionalDenoiser:
    r"""A denoiser of noise $N(0, \epsilon I)$, by least squares on random patches, which are turned and mirrored.

    The filters of a layer are divided by the norm of its convolution, so that the residual's Lipschitz constant is at most
    `lipschitz` on images of any size; that of the mean of a log-concave prior is at most one.

    Args:
        images: grey, (height, width) of any sizes, in the units in which the denoiser is to be used. eps: $\epsilon$.
        lipschitz: bound of the residual's constant; None for filters that are free, of which the bound that the denoiser tells
            may be far above the constant. width, depth: channels and layers.
        n_iter, batch_size, patch, step_size: of Adam, its step falling to zero along a cosine.

    Raises:
        ValueError: no images, images smaller than a patch or not finite, settings that are not positive, or a loss that is not
            finite in the end. TypeError: settings that are no whole numbers.
    """
    width, depth, n_iter = whole("width", width, 1), whole("depth", depth, 2), whole("n_iter", n_iter, 1)
    batch_size, patch = whole("batch_size", batch_size, 1), whole("patch", patch, 1)
    random_state = whole("random_state", random_state, 0)
    eps, step_size = float(positive("eps", eps)), float(positive("step_size", step_size))
    most = None if lipschitz is None else float(positive("lipschitz", lipschitz)) ** (1 / depth)
    pictures = [np.asarray(image, np.float32) for image in images]
    _check(pictures, patch)
    rng = np.random.default_rng(random_state)
    free = _start(rng, width, depth)
    optimiser = optax.adam(optax.cosine_decay_schedule(step_size, n_iter))
    state, losses = optimiser.init(free), []
    vectors = [np.ones((COARSE * COARSE, kernel.shape[2]), np.complex64) for kernel in free["filters"]]
    # Step by step from the host: in a compiled loop XLA's convolutions take ten times as long on a CPU.
    for _ in range(n_iter):
        clean = _patches(rng, pictures, batch_size, patch)
        noise = rng.normal(scale=math.sqrt(eps), size=clean.shape).astype(np.float32)
        free, state, vectors, loss = _step(free, state, vectors, clean, noise, most, optimiser)
        losses.append(loss)
    if not np.all(np.isfinite(losses[-10:])):
        raise ValueError("the loss is not finite: lower step_size, or scale the images to values of order one")
    filters = [np.asarray(kernel, float) for kernel in free["filters"]]
    biases = tuple(np.asarray(bias, float) for bias in free["biases"])
    if most is not None:
        filters = [kernel * (most / convolution_norm(kernel)) for kernel in filters]
    return ConvolutionalDenoiser(tuple(filters), biases, eps)


def convolution_norm(kernel: ArrayLike) -> float:
    """A bound of the spectral norm of a convolution with a kernel (3, 3, in, out) and zeros beyond the edge.

    It is at most the supremum over frequencies of the norm of the kernel's transform, an (in, out) matrix: that of the
    convolution on the whole plane. On a grid of N frequencies a side, a trigonometric polynomial of degree n a side is at least
    $\\cos(\\pi n/N)^2$ of its supremum somewhere.

    >>> round(convolution_norm(np.ones((3, 3, 1, 1)) / 9), 2)
    1.0
    """
    transform = np.fft.fft2(np.asarray(kernel, float), (FINE, FINE), axes=(0, 1))
    top = np.linalg.norm(transform.reshape(-1, *transform.shape[2:]), ord=2, axis=(1, 2)).max()
    return float(top / math.cos(math.pi * (SIDE // 2) / FINE) ** 2)


def _layers(filters: Sequence[Any], biases: Sequence[Any], images: Array) -> Array:
    """R of images (b, height, width)."""
    h = images[..., None]
    for i, (kernel, bias) in enumerate(zip(filters, biases, strict=True)):
        kernel, bias = jnp.asarray(kernel, h.dtype), jnp.asarray(bias, h.dtype)
        # Channels last: several times faster on a CPU.
        h = jax.lax.conv_general_dilated(h, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias
        h = jax.nn.relu(h) if i < len(filters) - 1 else h
    return h[..., 0]


def _start(rng: np.random.Generator, width: int, depth: int) -> dict[str, list[np.ndarray]]:
    channels = [1, *[width] * (depth - 1), 1]
    sizes = list(zip(channels[:-1], channels[1:], strict=True))
    filters = [rng.normal(size=(SIDE, SIDE, a, b)) * math.sqrt(2 / (SIDE**2 * a)) for a, b in sizes]
    return {
        "filters": [kernel.astype(np.float32) for kernel in filters],
        "biases": [np.zeros(b, np.float32) for _, b in sizes],
    }


def _patches(rng: np.random.Generator, images: list[np.ndarray], count: int, side: int) -> Float[np.ndarray, "b side side"]:
    """Random ones, turned and mirrored, all as likely."""
    places = np.array([(image.shape[0] - side + 1) * (image.shape[1] - side + 1) for image in images])
    out = np.empty((count, side, side), np.float32)
    for piece, i in zip(out, rng.choice(len(images), count, p=places / places.sum()), strict=True):
        row, column = (rng.integers(size - side + 1) for size in images[i].shape)
        cut = np.rot90(images[i][row : row + side, column : column + side], int(rng.integers(4)))
        piece[:] = cut.T if rng.integers(2) else cut
    return out


@eqx.filter_jit
def _step(
    free: Any,
    state: Any,
    vectors: Any,
    clean: Any,
    noise: Any,
    most: float | None,
    optimiser: optax.GradientTransformation,
) -> tuple[Any, Any, Any, Array]:
    """One of the optimiser, on the squared error in units of the noise's."""

    def loss(free):
        filters, found = free["filters"], vectors
        if most is not None:
            norms, found = zip(*map(_norm_followed, filters, vectors), strict=True)
            filters = [kernel * (most / norm) for kernel, norm in zip(filters, norms, strict=True)]
        left = _layers(filters, free["biases"], clean + noise) + noise
        return jnp.mean(left**2) / jnp.mean(noise**2), list(found)

    (value, found), gradient = jax.value_and_grad(loss, has_aux=True)(free)
    updates, state = optimiser.update(gradient, state)
    return optax.apply_updates(free, updates), state, found, value


def _norm_followed(kernel: Array, vectors: Array) -> tuple[Array, Array]:
    """The largest norm over a grid of frequencies, by a step of power iteration at each from the vectors found before."""
    transform = jnp.fft.fft2(kernel, (COARSE, COARSE), axes=(0, 1)).reshape(-1, *kernel.shape[2:])
    fixed = jax.lax.stop_gradient(transform)
    left = _unit(jnp.einsum("fio,fi->fo", fixed.conj(), vectors))
    right = _unit(jnp.einsum("fio,fo->fi", fixed, left))
    return jnp.max(jnp.real(jnp.einsum("fi,fio,fo->f", right.conj(), transform, left))), right


def _unit(vectors: Array) -> Array:
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-20)


def _check(images: list[np.ndarray], patch: int) -> None:
    if not images:
        raise ValueError("there are no images to train on")
    for i, image in enumerate(images):
        if image.ndim != 2 or min(image.shape) < patch:
            raise ValueError(
                f"image {i} has shape {image.shape}; it must be grey, (height, width), with sides of at least {patch}"
            )
        if not np.all(np.isfinite(image)):
            raise ValueError(f"image {i} holds {int(np.sum(~np.isfinite(image)))} values that are not finite")
