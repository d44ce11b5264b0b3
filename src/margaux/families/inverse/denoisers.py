r"""Denoisers of priors in closed form: $D_\epsilon(z) = E[x\mid z]$, $z = x + N(0,\epsilon I)$, with `eps` an attribute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...kernels.plug_and_play import positive

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: rounding of a covariance, in units of its largest entry
SYMMETRIC = 1e-10


class GaussianDenoiser(eqx.Module):
    r"""Of $x\sim N(\mu, V)$: $D(z) = \mu + V(V+\epsilon I)^{-1}(z-\mu)$.

    Args:
        mean: $\mu$, a number or shaped as x.
        variance: V, a number, variances shaped as x, or a symmetric (d, d) matrix over its entries. Beside a mean that is a
            number a square is that matrix; variances of a square image want a mean of its shape.
        eps: $\epsilon$.

    Attributes:
        lipschitz: the residual's Lipschitz constant, $\epsilon$ over $\epsilon$ plus the lowest variance or eigenvalue.

    Raises:
        ValueError: eps is not positive, a variance is negative or a matrix of them not symmetric, values are not finite, or
            shapes do not fit; when it is called, z of another shape.

    >>> import jax.numpy as jnp
    >>> GaussianDenoiser(0.0, 1.0, eps=0.25)(jnp.array([1.0, -2.0])).tolist()
    [0.800000011920929, -1.600000023841858]
    """

    mean: Array | np.ndarray
    gain: Array | np.ndarray
    eps: float = eqx.field(static=True)
    lipschitz: float = eqx.field(static=True)
    full: bool = eqx.field(static=True)

    def __init__(self, mean: ArrayLike, variance: ArrayLike, eps: float) -> None:
        mean, variance = _finite("mean", mean), _finite("variance", variance)
        self.eps = float(positive("eps", eps))
        self.full = variance.ndim == 2 and variance.shape[0] == variance.shape[1] and mean.size in (1, len(variance))
        if not self.full and 1 not in (mean.size, variance.size) and mean.shape != variance.shape:
            raise ValueError(
                f"mean has shape {mean.shape}, variance {variance.shape}: each is a number or shaped as x, and variance may be a "
                f"matrix, here of shape {(mean.size, mean.size)}"
            )
        lowest = _lowest(variance) if self.full else float(variance.min())
        if not lowest >= 0:
            raise ValueError(f"variance must have no negative values or eigenvalues; the lowest is {lowest:.3g}")
        noisy = variance + self.eps * (np.eye(len(variance)) if self.full else 1.0)
        self.gain = np.linalg.solve(noisy, variance) if self.full else variance / noisy
        self.mean = mean
        self.lipschitz = self.eps / (self.eps + lowest)

    def __call__(self, z: Array) -> Array:
        mean, gain = jnp.asarray(self.mean, z.dtype), jnp.asarray(self.gain, z.dtype)
        shapes = [mean.shape] if self.full else [mean.shape, gain.shape]
        if any(math.prod(shape) > 1 and shape != z.shape for shape in shapes) or (self.full and len(gain) != z.size):
            x = f"(of {len(gain)} entries)" if self.full and mean.size == 1 else max(shapes, key=math.prod)
            raise ValueError(f"the denoiser is of x shaped {x}, and z has shape {z.shape}")
        mean = mean.reshape(()) if mean.size == 1 else mean
        if self.full:
            return mean + (gain @ jnp.ravel(z - mean)).reshape(z.shape)
        return mean + (gain.reshape(()) if gain.size == 1 else gain) * (z - mean)


class MixtureDenoiser(eqx.Module):
    r"""Of a mixture $\sum_k w_k N(\mu_k, v_k I)$: the mean of $\mu_k + \frac{v_k}{v_k+\epsilon}(z-\mu_k)$ over classes given z.

    Args:
        shares: w (K,). means: $\mu$, (K, ...) with the shape of x. variances: v (K,). eps: $\epsilon$.

    Raises:
        ValueError: shapes that do not fit, shares that do not sum to one, variances or an eps that are not positive, or values
            that are not finite; when it is called, z of another shape.

    >>> import jax.numpy as jnp
    >>> MixtureDenoiser([0.5, 0.5], [[-1.0], [1.0]], [0.01, 0.01], eps=0.01)(jnp.array([0.8])).round(2).tolist()
    [0.8999999761581421]
    """

    shares: Array | np.ndarray
    means: Array | np.ndarray
    variances: Array | np.ndarray
    eps: float = eqx.field(static=True)

    def __init__(self, shares: ArrayLike, means: ArrayLike, variances: ArrayLike, eps: float) -> None:
        self.shares, self.means = _finite("shares", shares), _finite("means", means)
        self.variances, self.eps = _finite("variances", variances), float(positive("eps", eps))
        if self.shares.ndim != 1 or self.variances.shape != self.shares.shape or self.means.shape[:1] != self.shares.shape:
            raise ValueError(
                f"shares {self.shares.shape}, means {self.means.shape} and variances {self.variances.shape} must have an entry "
                "a class"
            )
        if not (np.all(self.shares > 0) and abs(self.shares.sum() - 1) < 1e-8):
            raise ValueError(f"shares must be positive and sum to one, got {self.shares}")
        if not np.all(self.variances > 0):
            raise ValueError(f"variances must be positive, got {self.variances}")

    def __call__(self, z: Array) -> Array:
        if z.shape != self.means.shape[1:]:
            raise ValueError(f"the denoiser is of x shaped {self.means.shape[1:]}, and z has shape {z.shape}")
        shares, means, variances = (jnp.asarray(part, z.dtype) for part in (self.shares, self.means, self.variances))
        away = (z - means).reshape(len(shares), -1)
        noisy = variances + self.eps
        logs = jnp.log(shares) - jnp.sum(away**2, axis=1) / (2 * noisy) - z.size / 2 * jnp.log(noisy)
        centres = means.reshape(len(shares), -1) + (variances / noisy)[:, None] * away
        return (jax.nn.softmax(logs) @ centres).reshape(z.shape)


def _finite(name: str, values: ArrayLike) -> np.ndarray:
    made = np.asarray(values, float)
    if made.size == 0 or not np.all(np.isfinite(made)):
        raise ValueError(f"{name} must hold finite numbers, got {made}")
    return made


def _lowest(variance: np.ndarray) -> float:
    """The lowest eigenvalue of a covariance, zero where it is rounding."""
    top = np.abs(variance).max()
    if np.abs(variance - variance.T).max() > SYMMETRIC * top:
        i, j = np.unravel_index(np.argmax(np.abs(variance - variance.T)), variance.shape)
        raise ValueError(
            f"variance is a matrix that is not symmetric, {variance[i, j]:.6g} at [{i}, {j}] and {variance[j, i]:.6g} at "
            f"[{j}, {i}]; variances of a square image want a mean of its shape"
        )
    lowest = float(np.linalg.eigvalsh(variance)[0])
    return 0.0 if -len(variance) * SYMMETRIC * top <= lowest < 0 else lowest
