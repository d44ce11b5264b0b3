r"""Crossed factors of which even what elimination leaves is too large to factorise: it is never written down, only multiplied by.

With S what is left of the second derivatives and D its diagonal, $S = D^{1/2}S'D^{1/2}$: equations are solved by conjugate
gradients, $\log|S| = \log|D| + \mathrm{tr}\log S'$ and its derivatives by probes of random signs (Hutchinson 1990; Ubaru, Chen
and Saad 2017) beside the few directions of least eigenvalues (Meyer, Musco, Musco and Woodruff 2021), and draws have the
covariance $S^{-1}$ by $S'^{-1/2}$. Probes are the same at all parameters, so that all of it is one function of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float

from ...numerics.elimination import inverted
from ...numerics.keys import key_of
from ...numerics.lanczos import spanned
from ...numerics.structures import AbstractFactor
from .curvature import ByPredictor

if TYPE_CHECKING:
    from ...problem.model import Params, Unit
    from .model import Mixed

#: effects that are left from which on they are only multiplied by
MANY = 5000
#: directions that are looked at by themselves; probes of a determinant, and of standard deviations of effects; products with each
LEAST, PROBES, MORE, STEPS = 4, 32, 256, 40
#: numbers that the probes worked on together may hold
NUMBERS = 4_000_000
#: relative error at which conjugate gradients end, and steps of them at most
TOLERANCE, MOST = 1e-11, 1000


class Products(NamedTuple):
    """Attributes: blocks: of groups. edges: of cells. diagonal: of the other effects; beside: of pairs that meet in rows."""

    blocks: Float[Array, "k k g"]
    edges: Float[Array, "k cells"]
    diagonal: Float[Array, " m"]
    beside: Float[Array, " pairs"]


def meetings_of(place: np.ndarray) -> dict[str, np.ndarray]:
    """Pairs of other effects (rows, c) that rows have together: "met" (rows, c (c - 1) / 2), which of the pairs "one", "two" each
    is; and the "seed" of probes."""
    i, j = np.triu_indices(place.shape[1], 1)
    low, high = np.minimum(place[:, i], place[:, j]), np.maximum(place[:, i], place[:, j])
    size = int(place.max(initial=0)) + 1
    pairs, met = np.unique(low * size + high, return_inverse=True)
    one, two = np.divmod(pairs, size)
    return {"met": met.reshape(low.shape), "one": one, "two": two, "seed": np.zeros(())}


class ByProducts(ByPredictor):
    """The same second derivatives, cell by cell and pair by pair."""

    costly: ClassVar[bool] = True
    estimated: ClassVar[bool] = True

    def __init__(self, model: Mixed, params: Params, y: Unit) -> None:
        super().__init__(model, params, y)

    def numbers(self, d):
        cells, own = self.y["cells"], self.groups * self.k
        return own * self.k + self.k * np.shape(cells["group"])[-1] + np.shape(cells["one"])[-1] + (PROBES + STEPS) * (d - own)

    def arrow(self, rows: Any) -> Any:
        weight, a, _, value, place, m = rows
        blocks, edges = self.by_cells(rows)
        weighted, cells = weight[:, None] * value, self.y["cells"]
        diagonal = jnp.ones(m, a.dtype).at[place].add(weighted * value)
        i, j = np.triu_indices(place.shape[1], 1)
        beside = jnp.zeros(len(cells["one"]), a.dtype).at[cells["met"]].add(weighted[:, i] * value[:, j])
        return Products(blocks, edges, diagonal, beside)

    def factor(self, curvature: Any, damping: Any) -> AbstractFactor:
        blocks, edges, diagonal, beside = curvature
        cells = self.y["cells"]
        inverse, log_dets = inverted(blocks + damping * jnp.eye(self.k, dtype=blocks.dtype)[:, :, None])
        weighted = jnp.einsum("abc,bc->ac", inverse[:, :, cells["group"]], edges)
        diagonal = diagonal + damping
        left = diagonal.at[cells["place"]].add(-jnp.sum(edges * weighted, axis=0))
        return ProductsFactor(self, inverse, log_dets, edges, weighted, diagonal, beside, left)


class ProductsFactor(AbstractFactor):
    """Attributes:
    inverse, log_dets: of the groups. edges, weighted: of the cells, and by these inverses. diagonal, beside: of the other
        effects before the groups are eliminated. left: the diagonal once they are.
    """

    of: ByProducts
    inverse: Float[Array, "k k g"]
    log_dets: Float[Array, " g"]
    edges: Float[Array, "k cells"]
    weighted: Float[Array, "k cells"]
    diagonal: Float[Array, " m"]
    beside: Float[Array, " pairs"]
    left: Float[Array, " m"]

    @property
    def _root(self) -> Float[Array, " m"]:
        """$D^{-1/2}$."""
        return 1 / jnp.sqrt(self.left)

    def _of_groups(self, values: Float[Array, "k cells"], rest: Float[Array, " m"]) -> Float[Array, "k g"]:
        cells = self.of.y["cells"]
        products = values * rest[cells["place"]]
        return jnp.zeros(self.inverse.shape[1:], rest.dtype).at[:, cells["group"]].add(products, indices_are_sorted=True)

    def _to_rest(self, values: Float[Array, "k cells"], own: Float[Array, "k g"]) -> Float[Array, " m"]:
        cells = self.of.y["cells"]
        products = jnp.sum(values * own[:, cells["group"]], axis=0)
        return jnp.zeros_like(self.left).at[cells["place"]].add(products)

    def _product(self, x: Float[Array, " m"]) -> Float[Array, " m"]:
        """S' x."""
        cells, y = self.of.y["cells"], self._root * x
        met = jnp.zeros_like(y).at[cells["one"]].add(self.beside * y[cells["two"]])
        met = met.at[cells["two"]].add(self.beside * y[cells["one"]])
        return self._root * (self.diagonal * y + met - self._to_rest(self.edges, self._of_groups(self.weighted, y)))

    def _solved(self, b: Float[Array, " m"]) -> Float[Array, " m"]:
        """$S'^{-1}b$."""
        return cg(self._product, b, tol=TOLERANCE, maxiter=MOST)[0]

    @property
    def _together(self) -> int:
        """Probes that are worked on at a time."""
        return int(np.clip(NUMBERS // max(self.edges.size + self.beside.size, STEPS * self.left.size), 1, PROBES))

    def _probes(self, count: int) -> tuple[Float[Array, "l m"], Float[Array, "p m"]]:
        """Directions that the data tell least of, as of a constant that moves from one factor to another; and random signs with
        nothing of these. The identity is the sum of the squares of the ones and the mean of those of the others.
        """
        key = jax.random.fold_in(key_of(0), self.of.y["cells"]["seed"])
        signs = jax.random.rademacher(key, (count, self.left.size), self.left.dtype)
        found = spanned(self._product, jnp.sqrt(self.left), STEPS)
        least = found.vectors[:, :LEAST].T @ found.basis
        return least, signs - (signs @ least.T) @ least

    def solve(self, b):
        own, rest = self.of._apart(b)
        x = self._root * self._solved(self._root * (rest - self._to_rest(self.weighted, own)))
        return self.of._together(jnp.einsum("abg,bg->ag", self.inverse, own) - self._of_groups(self.weighted, x), x)

    def log_dets_by_probe(self) -> Float[Array, " p"]:
        """What each probe makes of the log-determinant, whose mean it is."""
        least, signs = self._probes(PROBES)

        def one(z: Array) -> Array:
            return spanned(self._product, z, STEPS).quadratic(jnp.log)

        known = jnp.sum(self.log_dets) + jnp.sum(jnp.log(self.left)) + jnp.sum(jax.vmap(one)(least))
        return known + jax.lax.map(one, signs, batch_size=self._together)

    def log_det(self):
        return jnp.mean(self.log_dets_by_probe())

    def log_det_error(self):
        return jnp.std(self.log_dets_by_probe(), ddof=1) / np.sqrt(PROBES)

    def coloured(self, u):
        own, rest = self.of._apart(u)
        x = self._root * spanned(self._product, rest, STEPS).applied(lambda values: values**-0.5)
        roots = jnp.linalg.cholesky(jnp.moveaxis(self.inverse, 2, 0))
        return self.of._together(jnp.einsum("gab,bg->ag", roots, own) - self._of_groups(self.weighted, x), x)

    def blocks_of_inverse(self) -> dict[str, Float[Array, "g k k"]]:
        """By factor: of each group the block of its effects, by probes."""
        cells, slope = self.of.y["cells"], self._slope(MORE)
        out, first = {}, 0
        for factor in self.of.model.in_order:
            k, groups = factor.k, factor.groups
            if factor.name == self.of.largest.name:
                out[factor.name] = jnp.moveaxis(slope.blocks, 2, 0)
                continue
            blocks = jax.vmap(jnp.diag)(slope.diagonal[first : first + factor.size].reshape(groups, k))
            # Of pairs, each of which stands for two entries, those of one group's own effects.
            one, two = cells["one"] - first, cells["two"] - first
            own = jnp.where((one >= 0) & (two < factor.size) & (one // k == two // k), one // k, groups)
            for i, j in ((one % k, two % k), (two % k, one % k)):
                blocks = blocks.at[own, i, j].add(slope.beside / 2, mode="drop")
            out[factor.name], first = blocks, first + factor.size
        return out

    def slope_of_log_det(self):
        return self._slope(PROBES)

    def _slope(self, count: int) -> Products:
        """By so many probes."""
        cells = self.of.y["cells"]

        def one(z: Array) -> Products:
            # u v' has the mean S^{-1}, and is its own transpose's equal there.
            u, v = self._root * self._solved(z), self._root * z
            a, c = self._of_groups(self.weighted, u), self._of_groups(self.weighted, v)
            blocks = (a[:, None] * c[None] + c[:, None] * a[None]) / 2
            edges = -(c[:, cells["group"]] * u[cells["place"]] + a[:, cells["group"]] * v[cells["place"]])
            beside = u[cells["one"]] * v[cells["two"]] + v[cells["one"]] * u[cells["two"]]
            return Products(blocks, edges, u * v, beside)

        def add(i: Array, mean: Products) -> Products:
            some = jax.lax.dynamic_slice_in_dim(signs, i * together, together)
            return jax.tree.map(lambda old, new: old + jnp.sum(new, axis=0) / count, mean, jax.vmap(one)(some))

        (least, signs), together = self._probes(count), math.gcd(self._together, count)
        known = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), jax.vmap(one)(least))
        mean = jax.lax.fori_loop(0, count // together, add, known)
        return mean._replace(blocks=self.inverse + mean.blocks)
