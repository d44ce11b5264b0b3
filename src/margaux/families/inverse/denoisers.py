r"""Denoisers of priors in closed form: $D_\epsilon(z) = E[x\mid z]$, $z = x + N(0,\epsilon I)$."""

from __future__ import annotations

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class GaussianDenoiser(eqx.Module):
    r"""Of $x\sim N(\mu, V)$: $D(z) = \mu + V(V+\epsilon I)^{-1}(z-\mu)$.

    Args:
        mean: $\mu$, a number or shaped as x. variance: V, a number, variances shaped as x, or a (d, d) matrix over its entries.
        eps: $\epsilon$.

    Raises:
        ValueError: eps is not positive, or a variance is negative.

    >>> import jax.numpy as jnp
    >>> GaussianDenoiser(0.0, 1.0, eps=0.25)(jnp.array([1.0, -2.0])).tolist()
    [0.800000011920929, -1.600000023841858]
    """

    mean: Array | np.ndarray
    gain: Array | np.ndarray
    lipschitz: float = eqx.field(static=True)

    def __init__(self, mean: ArrayLike, variance: ArrayLike, eps: float) -> None:
        self.mean, variance = np.asarray(mean, float), np.asarray(variance, float)
        full = variance.ndim == 2 and variance.shape == (self.mean.size, self.mean.size)
        lowest = np.linalg.eigvalsh(variance)[0] if full else variance.min()
        if not eps > 0:
            raise ValueError(f"eps must be positive, got {eps!r}")
        if not lowest >= 0:
            raise ValueError(f"variance must have no negative values or eigenvalues; the lowest is {lowest:.3g}")
        noisy = variance + eps * np.eye(len(variance)) if full else variance + eps
        self.gain = np.linalg.solve(noisy, variance) if full else variance / noisy
        self.lipschitz = float(eps / (eps + lowest))

    def __call__(self, z: Array) -> Array:
        mean, gain = jnp.asarray(self.mean, z.dtype), jnp.asarray(self.gain, z.dtype)
        away = z - mean
        if gain.shape == (z.size, z.size) and z.size > 1:
            return mean + (gain @ jnp.ravel(away)).reshape(z.shape)
        return mean + gain * away


class MixtureDenoiser(eqx.Module):
    r"""Of a mixture $\sum_k w_k N(\mu_k, v_k I)$: the mean of $\mu_k + \frac{v_k}{v_k+\epsilon}(z-\mu_k)$ over classes given z.

    Args:
        shares: w (K,). means: $\mu$, (K, ...) with the shape of x. variances: v (K,). eps: $\epsilon$.

    Raises:
        ValueError: shapes that do not fit, shares that do not sum to one, or variances or an eps that are not positive.

    >>> import jax.numpy as jnp
    >>> MixtureDenoiser([0.5, 0.5], [[-1.0], [1.0]], [0.01, 0.01], eps=0.01)(jnp.array([0.8])).round(2).tolist()
    [0.8999999761581421]
    """

    shares: Array | np.ndarray
    means: Array | np.ndarray
    variances: Array | np.ndarray
    eps: Array | np.ndarray

    def __init__(self, shares: ArrayLike, means: ArrayLike, variances: ArrayLike, eps: float) -> None:
        self.shares, self.means = np.asarray(shares, float), np.asarray(means, float)
        self.variances, self.eps = np.asarray(variances, float), np.asarray(eps, float)
        if self.shares.ndim != 1 or self.variances.shape != self.shares.shape or self.means.shape[:1] != self.shares.shape:
            raise ValueError(
                f"shares {self.shares.shape}, means {self.means.shape} and variances {self.variances.shape} must have an entry "
                "a class"
            )
        if not (np.all(self.shares > 0) and abs(self.shares.sum() - 1) < 1e-8):
            raise ValueError(f"shares must be positive and sum to one, got {self.shares}")
        if not (np.all(self.variances > 0) and self.eps > 0):
            raise ValueError(f"variances and eps must be positive, got {self.variances} and {eps!r}")

    def __call__(self, z: Array) -> Array:
        shares, means, variances, eps = (
            jnp.asarray(part, z.dtype) for part in (self.shares, self.means, self.variances, self.eps)
        )
        away = (z - means).reshape(len(shares), -1)
        noisy = variances + eps
        logs = jnp.log(shares) - jnp.sum(away**2, axis=1) / (2 * noisy) - z.size / 2 * jnp.log(noisy)
        centres = means.reshape(len(shares), -1) + (variances / noisy)[:, None] * away
        return (jax.nn.softmax(logs) @ centres).reshape(z.shape)
