"""The structure of second derivatives where none is declared: which latents hang together, and what follows from that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from .structures import AbstractFactor, AbstractStructure, Band, Dense, Eliminated

#: by how much less arithmetic than a dense factor a structure must take to be worth its while
WORTH = 4.0
#: gradients, or columns of second derivatives, that are taken together
TOGETHER = 64


class Probes:
    """Questions that a log density of flat latents z and whatever else is asked, by one program each.

    Attributes:
        dependent: which latents may have a second derivative together with some, at any values: what is not a number in one of
            them is none in all that its value goes into, also where it is multiplied by zero. curved: which have at z.
    """

    def __init__(self, log_density: Callable[..., Array]) -> None:
        slope = jax.grad(log_density)

        def dependent(places: Array, z: Array, *rest: Any) -> Array:
            return jnp.isnan(jax.vmap(lambda j: slope(z.at[j].set(jnp.nan), *rest))(places))

        def curved(places: Array, z: Array, *rest: Any) -> Array:
            _, product = jax.linearize(lambda z: slope(z, *rest), z)
            return jax.vmap(lambda j: product(jnp.zeros_like(z).at[j].set(1.0)))(places) != 0

        self.dependent, self.curved = jax.jit(dependent), jax.jit(curved)


def asked(question: Callable[..., Array], z: Float[Array, " d"], *rest: Any) -> Any:
    """The answers of one of `Probes` for all latents (d, d)."""
    d, parts = z.size, []
    for first in range(0, d, TOGETHER):
        places = np.arange(first, first + TOGETHER)
        found = np.asarray(question(jnp.asarray(np.minimum(places, d - 1)), z, *rest))[places < d]
        parts.append(scipy.sparse.csr_matrix(found))
    return joined(scipy.sparse.vstack(parts))


def joined(*patterns: Any) -> Any:
    """The sparse pattern (d, d) of pairs that are in one of some, either way around, and of each latent with itself."""
    total: Any = sum(abs(pattern.astype(float)) for pattern in patterns)
    out: Any = scipy.sparse.csr_matrix(total + total.T + scipy.sparse.eye(total.shape[0]))
    out.data[:] = 1
    out.sort_indices()
    return out


def structured(pattern: Any) -> AbstractStructure:
    """The structure with all pairs of a pattern that takes least arithmetic; dense where none takes much less."""
    d = pattern.shape[0]
    best: tuple[float, AbstractStructure] = d**3 / 3 / WORTH, Dense()
    for order in (np.arange(d), np.asarray(scipy.sparse.csgraph.reverse_cuthill_mckee(pattern, symmetric_mode=True))):
        place = np.argsort(order)
        i, j = pattern.nonzero()
        width = max(int(np.abs(place[i] - place[j]).max()), 1)
        best = min(best, (3.0 * d * width**2, in_order(order, Band(width))), key=lambda pair: pair[0])
    for k, groups in _apart(pattern).items():
        order, own = np.concatenate(groups), k * len(groups)
        rest = np.setdiff1d(np.arange(d), order)
        cost = own * len(rest) ** 2 + len(rest) ** 3 / 3 + own * k**2
        arranged = in_order(np.concatenate([order, rest]), Eliminated(0, len(groups), k))
        best = min(best, (float(cost), arranged), key=lambda pair: pair[0])
    return best[1]


def _apart(pattern: Any) -> dict[int, list[np.ndarray]]:
    """By size, many groups of so many latents of which no two hang together: those of few others first."""
    alike: dict[bytes, list[int]] = {}
    for i in range(pattern.shape[0]):  # latents that hang together with the same ones, and so with each other
        alike.setdefault(pattern.indices[pattern.indptr[i] : pattern.indptr[i + 1]].tobytes(), []).append(i)
    groups = sorted(alike.values(), key=lambda group: pattern.indptr[group[0] + 1] - pattern.indptr[group[0]])
    out: dict[int, list[np.ndarray]] = {}
    for k in {len(group) for group in groups}:
        free = np.ones(pattern.shape[0], bool)
        for group in groups:
            if len(group) == k and free[group[0]]:
                out.setdefault(k, []).append(np.array(group))
                free[pattern.indices[pattern.indptr[group[0]] : pattern.indptr[group[0] + 1]]] = False
    return out


def in_order(order: np.ndarray, structure: AbstractStructure) -> AbstractStructure:
    """A structure of latents once they are put into an order."""
    return structure if np.array_equal(order, np.arange(len(order))) else Reordered(order, structure)


class Reordered(AbstractStructure):
    """The structure that latents have in another order.

    Attributes:
        order: which latent comes first, second, ... place: of each latent in that order. inner: their structure there.
    """

    order: np.ndarray
    place: np.ndarray
    inner: AbstractStructure

    def __init__(self, order: np.ndarray, inner: AbstractStructure) -> None:
        self.order, self.place, self.inner = np.asarray(order, np.int32), np.argsort(order).astype(np.int32), inner

    def trouble(self, shapes):
        size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))
        return None if size == len(self.order) else f"an order of {len(self.order)} latents is none of {size}"

    def numbers(self, d):
        return self.inner.numbers(d)

    def curvature(self, log_density, z):
        return self.inner.curvature(lambda x: log_density(x[self.place]), z[self.order])

    def factor(self, curvature, damping):
        return ReorderedFactor(self.order, self.place, self.inner.factor(curvature, damping))


class ReorderedFactor(AbstractFactor):
    """Attributes: order, place, inner: see `Reordered`."""

    order: Array | np.ndarray
    place: Array | np.ndarray
    inner: AbstractFactor

    def solve(self, b):
        return self.inner.solve(b[self.order])[self.place]

    def log_det(self):
        return self.inner.log_det()

    def coloured(self, u):
        return self.inner.coloured(u[self.order])[self.place]

    def slope_of_log_det(self):
        return self.inner.slope_of_log_det()
