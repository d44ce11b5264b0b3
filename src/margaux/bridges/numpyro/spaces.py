"""The space of a `param` site, from its constraint."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ...problem.space import AbstractSpace, Box, Positive, PositiveDefinite, Real, Simplex

#: how far projections stay from an edge that a constraint leaves out
INSIDE = 1e-10


class Triangular(AbstractSpace):
    """Lower Cholesky factors: a positive diagonal, of at least `floor`, and with `unit_rows` rows of length one (factors of
    correlation matrices). Coordinates: those of NumPyro."""

    unit_rows: bool = eqx.field(static=True)
    floor: Any = eqx.field(converter=lambda x: np.asarray(float(x)), default=INSIDE)

    def _bijection(self) -> Any:
        from numpyro.distributions import biject_to, constraints

        return biject_to(constraints.corr_cholesky if self.unit_rows else constraints.lower_cholesky)

    def project(self, x):
        eye = jnp.eye(x.shape[-1], dtype=bool)
        x = jnp.where(eye, jnp.maximum(x, jnp.asarray(self.floor, x.dtype)), jnp.tril(x))
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True) if self.unit_rows else x

    def at_boundary(self, x, tol=1e-6):
        eye = jnp.eye(x.shape[-1], dtype=bool)
        return eye & (x <= jnp.maximum(2 * jnp.asarray(self.floor, x.dtype), tol))

    def to_unconstrained(self, x):
        return self._bijection().inv(x)

    def from_unconstrained(self, u):
        return self._bijection()(u)


def space_of(name: str, constraint: Any, value: Any) -> AbstractSpace:
    """The margaux space of a constraint.

    Raises:
        ValueError: a constraint that has no projection here.
    """
    from numpyro.distributions import constraints as c

    while isinstance(constraint, c.independent):
        constraint = constraint.base_constraint

    def kind(*ones):
        return isinstance(constraint, tuple(one if isinstance(one, type) else type(one) for one in ones))

    if kind(c.real, c.real_vector, c.real_matrix):
        return Real()
    if kind(c.nonnegative):
        return Box(low=0.0)
    if kind(c.positive, c.softplus_positive):
        return Positive()
    if kind(c.greater_than, c.greater_than_eq):
        edge = np.asarray(constraint.lower_bound, float)
        return Box(low=edge if kind(c.greater_than_eq) else edge + INSIDE)
    if kind(c.less_than, c.less_than_eq):
        edge = np.asarray(constraint.upper_bound, float)
        return Box(high=edge if kind(c.less_than_eq) else edge - INSIDE)
    if kind(c.interval):
        low, high = np.asarray(constraint.lower_bound, float), np.asarray(constraint.upper_bound, float)
        margin = INSIDE * (high - low) if kind(c.open_interval) else 0.0
        return Box(low + margin, high - margin)
    if kind(c.simplex):
        return Simplex()
    if kind(c.positive_definite, c.positive_semidefinite) and np.ndim(value) == 2:
        return PositiveDefinite()
    if type(constraint) in (type(c.lower_cholesky), type(c.softplus_lower_cholesky)):
        return Triangular(unit_rows=False)
    if kind(c.corr_cholesky):
        return Triangular(unit_rows=True)
    told = type(constraint).__name__.strip("_")
    raise ValueError(
        f'param site "{name}" has the constraint {told}, which has no projection here; make it a param without constraint and '
        "transform it in the model: numpyro.distributions.biject_to(constraint)(numpyro.param(...))"
    )
