"""Parameter spaces: projection onto them, and smooth coordinates without constraints."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PyTree

from ..numerics.compiling import compiled
from ..numerics.naming import path_name

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class AbstractSpace(eqx.Module):
    """A closed set of parameters."""

    @abc.abstractmethod
    def project(self, x: PyTree) -> PyTree:
        """The nearest point of the space."""

    @abc.abstractmethod
    def at_boundary(self, x: PyTree, tol: float = 1e-6) -> PyTree:
        """True, entry by entry, where a constraint is active."""

    @abc.abstractmethod
    def to_unconstrained(self, x: PyTree) -> PyTree:
        """Smooth coordinates of the interior, free in R^k."""

    @abc.abstractmethod
    def from_unconstrained(self, u: PyTree) -> PyTree:
        """Inverse of `to_unconstrained`."""


class Real(AbstractSpace):
    """All of R^k."""

    def project(self, x):
        return x

    def at_boundary(self, x, tol=1e-6):
        return jnp.zeros(jnp.shape(x), bool)

    def to_unconstrained(self, x):
        return x

    def from_unconstrained(self, u):
        return u


class Box(AbstractSpace):
    """low <= x <= high, entry by entry; either may be infinite. Coordinates: logit, log or identity."""

    low: Array | np.ndarray
    high: Array | np.ndarray

    def __init__(self, low: ArrayLike = -np.inf, high: ArrayLike = np.inf) -> None:
        self.low, self.high = np.asarray(low, float), np.asarray(high, float)
        if np.any(self.low >= self.high) or np.any(np.isnan(self.low) | np.isnan(self.high)):
            raise ValueError(f"low must be below high everywhere, got low = {low}, high = {high}")

    def _ends(self, x):
        return jnp.asarray(self.low, x.dtype), jnp.asarray(self.high, x.dtype)

    def project(self, x):
        return jnp.clip(x, *self._ends(x))

    def at_boundary(self, x, tol=1e-6):
        low, high = self._ends(x)
        scale = jnp.where(jnp.isfinite(high - low), high - low, 1.0)
        return (x - low <= tol * scale) | (high - x <= tol * scale)

    def to_unconstrained(self, x):
        low, high = self._ends(x)
        below, above = jnp.isfinite(low), jnp.isfinite(high)
        a, b = jnp.where(below, x - low, 1.0), jnp.where(above, high - x, 1.0)
        return jnp.where(below | above, jnp.log(a) - jnp.log(b), x)

    def from_unconstrained(self, u):
        low, high = self._ends(u)
        below, above = jnp.isfinite(low), jnp.isfinite(high)
        floor, ceiling = jnp.where(below, low, 0.0), jnp.where(above, high, 0.0)
        both = floor + (ceiling - floor) * jax.nn.sigmoid(u)
        one = jnp.where(below, floor + jnp.exp(jnp.where(below, u, 0.0)), ceiling - jnp.exp(jnp.where(above, -u, 0.0)))
        return jnp.where(below & above, both, jnp.where(below | above, one, u))


class Positive(AbstractSpace):
    """x >= floor > 0, entry by entry. Coordinates: the logarithm.

    Args:
        floor: the smallest value a projection gives.
    """

    floor: Array | np.ndarray

    def __init__(self, floor: float = 1e-10) -> None:
        if not floor > 0:
            raise ValueError(f"floor must be positive, got {floor}")
        self.floor = np.asarray(float(floor))

    def project(self, x):
        return jnp.maximum(x, jnp.asarray(self.floor, x.dtype))

    def at_boundary(self, x, tol=1e-6):
        return x <= jnp.maximum(jnp.asarray(self.floor, x.dtype) * 2, tol)

    def to_unconstrained(self, x):
        return jnp.log(x)

    def from_unconstrained(self, u):
        return jnp.exp(u)


class Ball(AbstractSpace):
    r"""$|x - c| \le r$, one ball for the whole array. Coordinates: $v = w/\sqrt{1-|w|^2}$ of $w = (x-c)/r$."""

    radius: Array | np.ndarray
    centre: Array | np.ndarray

    def __init__(self, radius: float, centre: ArrayLike = 0.0) -> None:
        if not radius > 0:
            raise ValueError(f"radius must be positive, got {radius}")
        self.radius, self.centre = np.asarray(float(radius)), np.asarray(centre, float)

    def _scaled(self, x):
        return (x - jnp.asarray(self.centre, x.dtype)) / jnp.asarray(self.radius, x.dtype)

    def project(self, x):
        w = self._scaled(x)
        norm = jnp.sqrt(jnp.maximum(jnp.sum(w**2), jnp.finfo(w.dtype).tiny))
        inside = jnp.asarray(self.centre, x.dtype) + w / norm * jnp.asarray(self.radius, x.dtype)
        return jnp.where(norm > 1, inside, x)

    def at_boundary(self, x, tol=1e-6):
        return jnp.full(jnp.shape(x), jnp.sum(self._scaled(x) ** 2) >= (1 - tol) ** 2)

    def to_unconstrained(self, x):
        w = self._scaled(x)
        return w / jnp.sqrt(1 - jnp.sum(w**2))

    def from_unconstrained(self, u):
        w = u / jnp.sqrt(1 + jnp.sum(u**2))
        return jnp.asarray(self.centre, u.dtype) + jnp.asarray(self.radius, u.dtype) * w


class Simplex(AbstractSpace):
    """Non-negative entries that sum to one along the last axis. Coordinates: log ratios to the last entry."""

    def project(self, x):
        ordered = -jnp.sort(-x, axis=-1)
        excess = jnp.cumsum(ordered, axis=-1) - 1
        count = jnp.sum(ordered - excess / jnp.arange(1, x.shape[-1] + 1) > 0, axis=-1, keepdims=True)
        return jnp.maximum(x - jnp.take_along_axis(excess, count - 1, axis=-1) / count, 0)

    def at_boundary(self, x, tol=1e-6):
        return x <= tol

    def to_unconstrained(self, x):
        return jnp.log(x[..., :-1]) - jnp.log(x[..., -1:])

    def from_unconstrained(self, u):
        return jax.nn.softmax(jnp.concatenate([u, jnp.zeros(u.shape[:-1] + (1,), u.dtype)], axis=-1), axis=-1)


class PositiveDefinite(AbstractSpace):
    """Symmetric (d, d) matrices with eigenvalues of at least `floor`. Coordinates: the log-Cholesky vector."""

    floor: Array | np.ndarray

    def __init__(self, floor: float = 1e-10) -> None:
        if not floor > 0:
            raise ValueError(f"floor must be positive, got {floor}")
        self.floor = np.asarray(float(floor))

    def project(self, x):
        values, vectors = jnp.linalg.eigh((x + x.T) / 2)
        return (vectors * jnp.maximum(values, jnp.asarray(self.floor, x.dtype))) @ vectors.T

    def at_boundary(self, x, tol=1e-6):
        values = jnp.linalg.eigvalsh((x + x.T) / 2)
        return jnp.full(x.shape, values[0] <= jnp.maximum(2 * jnp.asarray(self.floor, x.dtype), tol * values[-1]))

    def to_unconstrained(self, x):
        factor = jnp.linalg.cholesky((x + x.T) / 2)
        d = x.shape[0]
        logged = jnp.where(jnp.eye(d, dtype=bool), jnp.log(jnp.where(jnp.eye(d, dtype=bool), factor, 1.0)), factor)
        return logged[jnp.tril_indices(d)]

    def from_unconstrained(self, u):
        d = int((np.sqrt(8 * u.shape[0] + 1) - 1) / 2)
        logged = jnp.zeros((d, d), u.dtype).at[jnp.tril_indices(d)].set(u)
        factor = jnp.where(jnp.eye(d, dtype=bool), jnp.exp(jnp.where(jnp.eye(d, dtype=bool), logged, 0.0)), logged)
        return factor @ factor.T


class Product(AbstractSpace):
    """A space for each leaf (or branch) of a pytree of parameters: a pytree prefix of spaces."""

    spaces: Any

    def _each(self, method: str, x: PyTree, *args: Any) -> PyTree:
        def call(space, branch):
            return jax.tree.map(lambda leaf: getattr(space, method)(jnp.asarray(leaf), *args), branch)

        return jax.tree.map(call, self.spaces, x, is_leaf=_is_space)

    def project(self, x):
        return self._each("project", x)

    def at_boundary(self, x, tol=1e-6):
        return self._each("at_boundary", x, tol)

    def to_unconstrained(self, x):
        return self._each("to_unconstrained", x)

    def from_unconstrained(self, u):
        return self._each("from_unconstrained", u)


def _is_space(x: object) -> bool:
    return isinstance(x, AbstractSpace)


def as_space(space: AbstractSpace | PyTree, params: PyTree) -> AbstractSpace:
    """A `Product` over the parameters from None (all real), one space for every leaf, or a pytree prefix of spaces.

    A dict may leave out names, which are then real.

    Raises:
        TypeError, ValueError: not a space, or a name or shape that the parameters do not have.
    """
    if isinstance(space, Product):
        return space
    if space is None:
        space = Real()
    if isinstance(space, dict) and isinstance(params, dict):
        unknown = [name for name in space if name not in params]
        if unknown:
            raise ValueError(f'space is given for "{unknown[0]}", which is no parameter; they are {list(params)}')
        space = {name: space.get(name, Real()) for name in params}
    for leaf in jax.tree.leaves(space, is_leaf=_is_space):
        if not _is_space(leaf):
            raise TypeError(f"space must be made of margaux spaces such as mx.Positive(), got {leaf!r}")
    try:
        product = Product(space)
        jax.tree.map(lambda s, branch: None, space, params, is_leaf=_is_space)
    except ValueError as error:
        raise ValueError(f"space does not match the structure of params: {error}") from error
    for path, (one, leaf) in _pairs(product, params):
        shape = np.shape(leaf)
        if isinstance(one, PositiveDefinite) and (len(shape) != 2 or shape[0] != shape[1]):
            raise ValueError(f"parameter {path} has shape {shape}; PositiveDefinite needs a square matrix")
        if isinstance(one, Simplex) and (len(shape) == 0 or shape[-1] < 2):
            raise ValueError(f"parameter {path} has shape {shape}; Simplex needs at least two entries")
        if isinstance(one, Box | Ball):
            extra = np.broadcast_shapes(np.shape(one.low), np.shape(one.high)) if isinstance(one, Box) else np.shape(one.centre)
            fits = all(a in (1, b) for a, b in zip(extra[::-1], shape[::-1], strict=False))
            if len(extra) > len(shape) or not fits:
                raise ValueError(f"parameter {path} has shape {shape}, which bounds of shape {extra} do not fit")
    return product


def _pairs(product: Product, params: PyTree) -> list[tuple[str, tuple[AbstractSpace, Any]]]:
    paired = jax.tree.map(
        lambda s, branch: jax.tree.map(lambda leaf: (s, leaf), branch), product.spaces, params, is_leaf=_is_space
    )

    def is_pair(x):
        return isinstance(x, tuple) and len(x) == 2 and _is_space(x[0])

    return [(path_name(p) or "theta", pair) for p, pair in jax.tree_util.tree_flatten_with_path(paired, is_leaf=is_pair)[0]]


def validate(space: AbstractSpace, params: PyTree) -> None:
    """Refuse starting parameters outside their space, with the nearest point as the mend.

    Raises:
        ValueError: which parameter, its value, and the projection.
    """
    if not isinstance(space, Product):
        return
    near = jax.tree.leaves(point(space, params).projected)
    for (path, (one, leaf)), nearest in zip(_pairs(space, params), near, strict=True):
        value = np.asarray(leaf)
        if not np.allclose(value, nearest, rtol=1e-5, atol=1e-6):
            raise ValueError(
                f"parameter {path} = {value} lies outside {type(one).__name__}; the nearest point inside is {nearest}"
            )


class Point(NamedTuple):
    """Parameters in their space.

    Attributes:
        projected: the nearest inside. edges: `at_boundary` of each, flat (p,). coordinates: unconstrained ones of the projection,
            flat (k,), infinite on an edge.
    """

    projected: PyTree
    edges: Any
    coordinates: Any


def point(space: AbstractSpace, params: PyTree) -> Point:
    """All that is asked of parameters, in NumPy and by one program: several small ones would take longer to compile. To be
    called in the precision of the parameters."""
    if _everywhere(space):
        flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
        return Point(jax.tree.map(np.asarray, params), np.zeros(flat.size, bool), flat)
    return jax.tree.map(np.asarray, _point(space, jax.tree.map(np.asarray, params)))


def moved_to(space: AbstractSpace, template: PyTree, u: np.ndarray) -> tuple[PyTree, np.ndarray]:
    """Parameters at unconstrained coordinates, and their derivatives (p, k); `template` are any parameters of the space."""
    if not _everywhere(space):
        return jax.tree.map(np.asarray, _moved_to(space, template, u))
    leaves, structure = jax.tree.flatten(template)
    parts = np.split(u, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    shaped = [part.reshape(np.shape(leaf)).astype(np.result_type(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    return structure.unflatten(shaped), np.eye(u.size, dtype=u.dtype)


def _everywhere(space: AbstractSpace) -> bool:
    """Whether it is all of R^k, whose coordinates need no program."""
    spaces = space.spaces if isinstance(space, Product) else space
    return all(type(leaf) is Real for leaf in jax.tree.leaves(spaces, is_leaf=_is_space))


def boundary_flags(space: AbstractSpace, params: PyTree) -> Bool[np.ndarray, " p"]:
    """`at_boundary` as one flat vector in the order of the parameters."""
    return point(space, params).edges


@compiled(small=True)
def _point(space: AbstractSpace, params: PyTree) -> Point:
    inside, edges = space.project(params), space.at_boundary(params)
    flat = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(edges)])
    return Point(inside, flat, ravel_pytree(space.to_unconstrained(inside))[0])


@compiled(small=True)
def _moved_to(space: AbstractSpace, template: PyTree, u: Array) -> tuple[PyTree, Array]:
    back = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(space.to_unconstrained, template)))[1]

    def flat(v):
        params = space.from_unconstrained(back(v))
        return ravel_pytree(params)[0], params

    jacobian, params = jax.jacobian(flat, has_aux=True)(u)
    return params, jacobian
