"""Densities of multivariate normals (and Student's) whose rows share a factor, by the factor's inverse.

NumPyro whitens all rows by one triangular solve with as many right sides. From some hundred of them XLA on CPU hands each solve
to several threads of BLAS, itself in several threads: a hundred times slower, and now and then it never returns. A product with
the inverse has no such trouble, nor has its gradient.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln
from jaxtyping import Array

#: dimensions up to which the inverse, of d^3 operations, is no burden
MOST = 100


def by_inverse(fn: Any) -> Any:
    """The same distribution, whose density is worked out by the inverse of its factor."""
    for kind in _kinds():
        if type(fn) is kind.__base__ and fn.event_shape[-1] <= MOST:
            out = copy.copy(fn)
            out.__class__ = kind
            return out
    base = getattr(fn, "base_dist", None)
    changed = None if base is None else by_inverse(base)
    if changed is base:
        return fn
    out = copy.copy(fn)
    out.base_dist = changed
    return out


@functools.cache
def _kinds() -> tuple[Any, ...]:
    """Made when first asked for, as NumPyro may not be there."""
    from numpyro.distributions import MultivariateNormal, MultivariateStudentT

    class Normal(MultivariateNormal):
        def log_prob(self: Any, value: Any) -> Array:
            distance, log_det = _distance(self.scale_tril, value - self.loc)
            return -(distance + self.event_shape[-1] * jnp.log(2 * jnp.pi)) / 2 - log_det

    class StudentT(MultivariateStudentT):
        def log_prob(self: Any, value: Any) -> Array:
            distance, log_det = _distance(self.scale_tril, value - self.loc)
            d, df = self.event_shape[-1], self.df
            constant = gammaln((df + d) / 2) - gammaln(df / 2) - d / 2 * jnp.log(df * jnp.pi)
            return constant - (df + d) / 2 * jnp.log1p(distance / df) - log_det

    return Normal, StudentT


def _distance(factor: Any, x: Any) -> tuple[Array, Array]:
    """Squared length of L^-1 x, and log |L|, of factors (..., d, d) and rows (..., d)."""
    factor, d = jnp.asarray(factor), factor.shape[-1]
    inverse = solve_triangular(factor, jnp.broadcast_to(jnp.eye(d, dtype=factor.dtype), factor.shape), lower=True)
    if factor.size == d * d:
        white = x @ inverse.reshape(d, d).T
    else:
        white = jnp.sum(inverse * x[..., None, :], axis=-1)
    return jnp.sum(white**2, axis=-1), jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
