"""Spaces of what mixed models estimate: numbers in units of their own, and thresholds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...problem.space import AbstractSpace


class Scaled(AbstractSpace):
    """All numbers (p,). Coordinates: in units of their own.

    Args:
        scale: the units (p,).
    """

    scale: Array | np.ndarray

    def project(self, x):
        return x

    def at_boundary(self, x, tol=1e-6):
        return jnp.zeros(x.shape, bool)

    def to_unconstrained(self, x):
        return x / jnp.asarray(self.scale, x.dtype)

    def from_unconstrained(self, u):
        return u * jnp.asarray(self.scale, u.dtype)


class Ordered(AbstractSpace):
    """Increasing numbers (m,). Coordinates: the first, and logarithms of the gaps."""

    def project(self, x):
        return jax.lax.cummax(x)

    def at_boundary(self, x, tol=1e-6):
        close = jnp.diff(x) <= tol
        return jnp.concatenate([jnp.zeros(1, bool), close])

    def to_unconstrained(self, x):
        return jnp.concatenate([x[:1], jnp.log(jnp.diff(x))])

    def from_unconstrained(self, u):
        return jnp.cumsum(jnp.concatenate([u[:1], jnp.exp(u[1:])]))
