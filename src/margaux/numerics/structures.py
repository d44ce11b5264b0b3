"""Second derivatives of log densities of many variables, of which most are zero: read by few products, and factorised."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from . import triangular
from .elimination import inverted

LogDensity = Callable[[Float[Array, " d"]], Scalar]

#: products with the second derivatives that are taken together
TOGETHER = 64


class AbstractFactor(eqx.Module):
    """A positive definite matrix of order d, factorised; NaN where it is not positive definite."""

    @abc.abstractmethod
    def solve(self, b: Float[Array, " d"]) -> Float[Array, " d"]:
        """The product of the inverse and b."""

    @abc.abstractmethod
    def log_det(self) -> Scalar:
        """Of the matrix."""

    @abc.abstractmethod
    def coloured(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """A vector whose covariance is the inverse, from one of independent variables with variance one."""

    def log_det_error(self) -> Scalar | float:
        """Standard error of `log_det`, where it is an estimate."""
        return 0.0

    @abc.abstractmethod
    def slope_of_log_det(self) -> PyTree:
        """The derivative of `log_det` in the entries that the matrix is given by: the inverse's own, twice where one entry
        stands for two of the matrix."""


class AbstractStructure(eqx.Module):
    """Which second derivatives of a log density may differ from zero."""

    #: whether to factorise costs more than many products do: modes are then followed by the factor of an earlier place
    costly: ClassVar[bool] = False
    #: whether determinants are estimated, with an error
    estimated: ClassVar[bool] = False

    @abc.abstractmethod
    def trouble(self, shapes: PyTree) -> str | None:
        """Why latents of these shapes cannot have it, or None."""

    def ready(self, shapes: PyTree) -> AbstractStructure:
        """The structure of flat latents, given the shapes that they have."""
        return self

    @abc.abstractmethod
    def numbers(self, d: int) -> int:
        """That the second derivatives of d flat latents are."""

    @abc.abstractmethod
    def curvature(self, log_density: LogDensity, z: Float[Array, " d"]) -> PyTree:
        r"""$-\nabla^2$ at z, its entries that may differ from zero."""

    @abc.abstractmethod
    def factor(self, curvature: PyTree, damping: Scalar | float) -> AbstractFactor:
        """Of the matrix with `damping` added to its diagonal."""


def second_product(log_density: LogDensity, z: Array) -> Callable[[Array], Array]:
    """$v -> -\\nabla^2 v$."""
    _, tangent = jax.linearize(jax.grad(log_density), z)
    return lambda v: -tangent(v)


# -- dense ------------------------------------------------------------------------------------------


class Dense(AbstractStructure):
    """Any two latents may depend on each other given the data."""

    def trouble(self, shapes):
        return None

    def numbers(self, d):
        return d**2

    def curvature(self, log_density, z):
        return jax.vmap(second_product(log_density, z))(jnp.eye(z.size, dtype=z.dtype))

    def factor(self, curvature, damping):
        return DenseFactor(triangular.cholesky(curvature + damping * jnp.eye(len(curvature), dtype=curvature.dtype)))


class DenseFactor(AbstractFactor):
    """Attributes: root: lower Cholesky factor."""

    root: Float[Array, "d d"]

    def solve(self, b):
        return triangular.solve_transposed(self.root, triangular.solve(self.root, b))

    def log_det(self):
        return 2 * jnp.sum(jnp.log(jnp.diagonal(self.root)))

    def coloured(self, u):
        return triangular.solve_transposed(self.root, u)

    def slope_of_log_det(self):
        return triangular.inverse(self.root)


# -- along a line -----------------------------------------------------------------------------------


class Band(AbstractStructure):
    """Latents in an order, of which none depends on those more than `width` places away given the ones between and the data:
    states in time. A state of k numbers that depends on the one before has the width 2k - 1.

    Args:
        width: how many to either side, at least 1.
    """

    width: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"the width of a band must be at least 1, got {self.width}")

    def trouble(self, shapes):
        return None

    def numbers(self, d):
        return 2 * d * self.width

    def curvature(self, log_density, z):
        # Columns 2w + 1 apart share no row: a product tells them all at once (Curtis, Powell and Reid 1974).
        d, w = z.size, self.width
        colours = 2 * w + 1
        seeds = (np.arange(d)[None] % colours == np.arange(colours)[:, None]).astype(z.dtype)
        products = jax.vmap(second_product(log_density, z))(jnp.asarray(seeds))
        # In blocks of w: on the diagonal, and of each with the one before.
        blocks = -(-d // w)
        i = np.arange(blocks * w).reshape(blocks, w)[:, :, None]
        found = []
        for back in (0, 1):
            j = i.transpose(0, 2, 1) - back * w
            there = (i < d) & (j >= 0) & (j < d) & (np.abs(i - j) <= w)
            values = products[j % colours, np.minimum(i, d - 1)]
            found.append(jnp.where(there, values, (i == j).astype(z.dtype)))
        return *found, jnp.asarray(i[:, :, 0] < d, z.dtype)

    def factor(self, curvature, damping):
        diagonal, before, there = curvature
        w = diagonal.shape[-1]
        damped = diagonal + damping * there[:, :, None] * jnp.eye(w, dtype=diagonal.dtype)

        def step(root: Array, both: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            here, back = both
            coupling = triangular.solve(root, back.T).T
            root = triangular.cholesky(here - coupling @ coupling.T)
            return root, (root, coupling)

        _, (roots, couplings) = jax.lax.scan(step, jnp.eye(w, dtype=diagonal.dtype), (damped, before))
        return BandFactor(roots, couplings)


class BandFactor(AbstractFactor):
    """Attributes: roots: lower Cholesky factors on the diagonal, and couplings: of each block with the one before."""

    roots: Float[Array, "t w w"]
    couplings: Float[Array, "t w w"]

    def _blocks(self, b: Array) -> Array:
        t, w, _ = self.roots.shape
        return jnp.pad(b, (0, t * w - b.size)).reshape(t, w)

    def solve(self, b):
        def forward(x: Array, both: Any) -> tuple[Array, Array]:
            root, coupling, right = both
            x = triangular.solve(root, right - coupling @ x)
            return x, x

        _, x = jax.lax.scan(forward, jnp.zeros_like(self.roots[0, 0]), (self.roots, self.couplings, self._blocks(b)))
        return self._backward(x)[: b.size]

    def _backward(self, u: Array) -> Array:
        def backward(pulled: Array, both: Any) -> tuple[Array, Array]:
            root, coupling, right = both
            x = triangular.solve_transposed(root, right - pulled)
            return coupling.T @ x, x

        _, x = jax.lax.scan(backward, jnp.zeros_like(u[0]), (self.roots, self.couplings, u), reverse=True)
        return x.reshape(-1)

    def log_det(self):
        return 2 * jnp.sum(jnp.log(jnp.diagonal(self.roots, axis1=1, axis2=2)))

    def coloured(self, u):
        return self._backward(self._blocks(u))[: u.size]

    def slope_of_log_det(self):
        # The inverse on the diagonal and beside it, from its end back (Takahashi, Fagan and Chin 1973).
        def backward(next_one: tuple[Array, Array], both: tuple[Array, Array]) -> tuple[Any, tuple[Array, Array]]:
            (below, next_coupling), (root, coupling) = next_one, both
            pulled = triangular.solve_transposed(root, next_coupling.T)
            here = triangular.inverse(root) + pulled @ below @ pulled.T
            return (here, coupling), (here, -below @ pulled.T)

        nothing = jnp.zeros_like(self.roots[0])
        _, (diagonal, after) = jax.lax.scan(backward, (nothing, nothing), (self.roots, self.couplings), reverse=True)
        before = jnp.concatenate([nothing[None], after[:-1]])
        return diagonal, 2 * before, jnp.zeros(diagonal.shape[:2], diagonal.dtype)


# -- groups -----------------------------------------------------------------------------------------


class Arrow(NamedTuple):
    """Attributes: blocks: of each group, the groups last. edges: of groups with the rest. rest: of the rest with itself."""

    blocks: Float[Array, "k k g"]
    edges: Float[Array, "k g m"]
    rest: Float[Array, "m m"]


class Blocks(AbstractStructure):
    """Latents {name: ...} of which one leaf holds groups on its leading axis that are independent of each other given the rest
    and the data: the larger one of two crossed effects, or effects nested in others. They are eliminated; what is left is dense.

    Args:
        eliminated: the name of the leaf.
    """

    eliminated: str = eqx.field(static=True)

    def trouble(self, shapes):
        if not isinstance(shapes, dict) or self.eliminated not in shapes or shapes[self.eliminated].ndim < 1:
            have = ", ".join(map(str, sorted(shapes))) if isinstance(shapes, dict) else "an array without names"
            return f'there are no groups "{self.eliminated}" among the latents, which are {have}; make them a dict of arrays'
        return None

    def ready(self, shapes):
        before = sum(int(np.prod(shapes[name].shape)) for name in sorted(shapes) if name < self.eliminated)
        groups = shapes[self.eliminated].shape[0]
        return Eliminated(before, groups, int(np.prod(shapes[self.eliminated].shape)) // groups)

    def numbers(self, d):
        raise TypeError("groups have a place once the latents are known: see `ready`")

    def curvature(self, log_density, z):
        raise TypeError("groups have a place once the latents are known: see `ready`")

    def factor(self, curvature, damping):
        raise TypeError("groups have a place once the latents are known: see `ready`")


class AbstractEliminated(AbstractStructure):
    """As `Blocks`, of flat latents: `groups` of k numbers each from place `start` on. Its second derivatives are an `Arrow`."""

    start: eqx.AbstractVar[int]
    groups: eqx.AbstractVar[int]
    k: eqx.AbstractVar[int]

    def trouble(self, shapes):
        return None

    def numbers(self, d):
        own = self.groups * self.k
        return own * self.k + own * (d - own) + (d - own) ** 2

    def _apart(self, v: Array) -> tuple[Array, Array]:
        """Of the groups (k, groups), and of the rest (m,)."""
        end = self.start + self.groups * self.k
        return v[self.start : end].reshape(self.groups, self.k).T, jnp.concatenate([v[: self.start], v[end:]])

    def _together(self, own: Array, rest: Array) -> Array:
        return jnp.concatenate([rest[: self.start], own.T.reshape(-1), rest[self.start :]])

    def factor(self, curvature, damping):
        blocks, edges, rest = curvature
        k, groups, m = edges.shape
        inverse, log_det = inverted(blocks + damping * jnp.eye(k, dtype=blocks.dtype)[:, :, None])
        weighted = jnp.einsum("abg,bgm->agm", inverse, edges)
        left = rest + damping * jnp.eye(m, dtype=rest.dtype)
        left = left - jnp.tensordot(edges, weighted, axes=((0, 1), (0, 1)))
        return EliminatedFactor(self, inverse, log_det, edges, weighted, triangular.cholesky((left + left.T) / 2))


class Eliminated(AbstractEliminated):
    """One that reads second derivatives by products with them, as many as k and the rest have latents."""

    start: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    k: int = eqx.field(static=True)

    def curvature(self, log_density, z):
        product = second_product(log_density, z)
        m = z.size - self.groups * self.k
        zero, one = jnp.zeros((self.k, self.groups), z.dtype), jnp.eye(self.k, dtype=z.dtype)

        def of_groups(e: Array) -> Array:
            return self._apart(product(self._together(zero + e[:, None], jnp.zeros(m, z.dtype))))[0]

        def of_rest(e: Array) -> tuple[Array, Array]:
            return self._apart(product(self._together(zero, e)))

        blocks = jnp.moveaxis(jax.vmap(of_groups)(one), 0, 1)
        if m == 0:
            return Arrow(blocks, zero[:, :, None][:, :, :0], jnp.zeros((0, 0), z.dtype))
        edges, rest = jax.lax.map(of_rest, jnp.eye(m, dtype=z.dtype), batch_size=TOGETHER)
        return Arrow(blocks, jnp.moveaxis(edges, 0, 2), rest)


class EliminatedFactor(AbstractFactor):
    """Attributes: inverse, log_dets: of the groups. edges, weighted: and by these inverses. root: of what is left."""

    of: AbstractEliminated
    inverse: Float[Array, "k k g"]
    log_dets: Float[Array, " g"]
    edges: Float[Array, "k g m"]
    weighted: Float[Array, "k g m"]
    root: Float[Array, "m m"]

    def solve(self, b):
        own, rest = self.of._apart(b)
        x = triangular.solve_transposed(
            self.root, triangular.solve(self.root, rest - jnp.einsum("agm,ag->m", self.weighted, own))
        )
        return self.of._together(jnp.einsum("abg,bg->ag", self.inverse, own) - self.weighted @ x, x)

    def log_det(self):
        return jnp.sum(self.log_dets) + 2 * jnp.sum(jnp.log(jnp.diagonal(self.root)))

    def coloured(self, u):
        own, rest = self.of._apart(u)
        x = triangular.solve_transposed(self.root, rest)
        roots = jnp.linalg.cholesky(jnp.moveaxis(self.inverse, 2, 0))
        return self.of._together(jnp.einsum("gab,bg->ag", roots, own) - self.weighted @ x, x)

    def slope_of_log_det(self):
        rest = triangular.inverse(self.root)
        beside = self.weighted @ rest
        return Arrow(self.inverse + jnp.einsum("agm,bgm->abg", beside, self.weighted), -2 * beside, rest)
