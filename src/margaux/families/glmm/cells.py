"""Crossed factors with thousands of levels, of which few meet: only cells that hold rows are ever written down.

A cell is a group of the eliminated factor together with one of the others' effects. Eliminating the groups couples the effects
of any two cells of a group, so that what is left is a sum over pairs of cells, and so are all products with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...numerics.elimination import inverted
from ...numerics.structures import AbstractFactor, DenseFactor
from .curvature import ByPredictor
from .products import MANY, meetings_of

if TYPE_CHECKING:
    from ...problem.model import Params, Unit
    from .factor import Factor
    from .model import Mixed

#: how many products of the dense elimination one pair of cells costs
PAIR = 100


def cells_of(factors: tuple[Factor, ...], code: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """The cells of one unit's rows, or None where dense edges cost less.

    Args:
        code: of each factor the group of each row (rows,).

    Returns:
        "of" (rows, c): the cell of each of the c other effects that a row has. "group", "place" (C,): of each cell, in order of
        groups. "first", "second" (P,): all pairs of cells of a group, each cell with itself too; or, of more than `MANY` other
        effects, what `meetings_of` says of them.
    """
    in_order = sorted(factors, key=lambda factor: factor.name)
    largest = max(in_order, key=lambda factor: factor.size)
    places, m = [], 0
    for factor in in_order:
        if factor.name != largest.name:
            places.append(m + code[factor.name].astype(np.int64)[:, None] * factor.k + np.arange(factor.k))
            m += factor.size
    if not places:
        return None
    place = np.concatenate(places, axis=1)
    of_rows = code[largest.name].astype(np.int64)[:, None] * m + place
    cells, of = np.unique(of_rows, return_inverse=True)
    group, place = np.divmod(cells, m)
    out = {"of": of.reshape(of_rows.shape), "group": group, "place": place}
    if m > MANY:
        return {name: value.astype(np.int32) for name, value in (out | meetings_of(of_rows % m)).items()}
    counts = np.bincount(group, minlength=largest.groups)
    if PAIR * np.sum(counts * (counts + 1) // 2) > largest.groups * m**2:
        return None
    behind = np.cumsum(counts)[group] - np.arange(len(cells))
    first = np.repeat(np.arange(len(cells)), behind)
    second = first + np.arange(len(first)) - np.repeat(np.cumsum(behind) - behind, behind)
    return {name: value.astype(np.int32) for name, value in (out | {"first": first, "second": second}).items()}


class Sparse(NamedTuple):
    """As `margaux.numerics.structures.Arrow`, with the edges of cells alone."""

    blocks: Float[Array, "k k g"]
    edges: Float[Array, "k cells"]
    rest: Float[Array, "m m"]


class ByCells(ByPredictor):
    """The same second derivatives, whose edges are written cell by cell."""

    costly: ClassVar[bool] = True

    def __init__(self, model: Mixed, params: Params, y: Unit) -> None:
        super().__init__(model, params, y)

    def numbers(self, d):
        own = self.groups * self.k
        return own * self.k + self.k * np.shape(self.y["cells"]["group"])[-1] + (d - own) ** 2

    def arrow(self, rows: Any) -> Any:
        weight, a, _, value, place, m = rows
        blocks, edges = self.by_cells(rows)
        weighted = weight[:, None] * value
        rest = jnp.eye(m, dtype=a.dtype)
        rest = rest.at[place[:, :, None], place[:, None]].add(weighted[:, :, None] * value[:, None])
        return Sparse(blocks, edges, rest)

    def factor(self, curvature: Any, damping: Any) -> AbstractFactor:
        blocks, edges, rest = curvature
        cells = self.y["cells"]
        inverse, log_det = inverted(blocks + damping * jnp.eye(self.k, dtype=blocks.dtype)[:, :, None])
        weighted = jnp.einsum("abc,bc->ac", inverse[:, :, cells["group"]], edges)
        of_pairs = jnp.sum(edges[:, cells["first"]] * weighted[:, cells["second"]], axis=0)
        upper = jnp.zeros_like(rest).at[cells["place"][cells["first"]], cells["place"][cells["second"]]].add(of_pairs)
        left = rest + damping * jnp.eye(len(rest), dtype=rest.dtype) - upper - upper.T + jnp.diag(jnp.diagonal(upper))
        return CellsFactor(self, inverse, log_det, weighted, DenseFactor(jnp.linalg.cholesky(left)))


class CellsFactor(AbstractFactor):
    """Attributes: inverse, log_dets: of the groups. weighted: edges by these inverses. left: of the effects that are left."""

    of: ByCells
    inverse: Float[Array, "k k g"]
    log_dets: Float[Array, " g"]
    weighted: Float[Array, "k cells"]
    left: DenseFactor

    def _to_rest(self, own: Float[Array, "k g"]) -> Float[Array, " m"]:
        cells = self.of.y["cells"]
        products = jnp.sum(self.weighted * own[:, cells["group"]], axis=0)
        return jnp.zeros(len(self.left.root), own.dtype).at[cells["place"]].add(products)

    def _to_groups(self, rest: Float[Array, " m"]) -> Float[Array, "k g"]:
        cells = self.of.y["cells"]
        return jnp.zeros(self.inverse.shape[1:], rest.dtype).at[:, cells["group"]].add(self.weighted * rest[cells["place"]])

    def solve(self, b):
        own, rest = self.of._apart(b)
        x = self.left.solve(rest - self._to_rest(own))
        return self.of._together(jnp.einsum("abg,bg->ag", self.inverse, own) - self._to_groups(x), x)

    def log_det(self):
        return jnp.sum(self.log_dets) + self.left.log_det()

    def coloured(self, u):
        own, rest = self.of._apart(u)
        x = self.left.coloured(rest)
        roots = jnp.linalg.cholesky(jnp.moveaxis(self.inverse, 2, 0))
        return self.of._together(jnp.einsum("gab,bg->ag", roots, own) - self._to_groups(x), x)

    def slope_of_log_det(self):
        cells, rest = self.of.y["cells"], self.left.slope_of_log_det()
        first, second = cells["first"], cells["second"]
        of_pairs = rest[cells["place"][first], cells["place"][second]]
        mirrored = jnp.where(first == second, 0.0, of_pairs)
        beside = jnp.zeros_like(self.weighted).at[:, second].add(self.weighted[:, first] * of_pairs)
        beside = beside.at[:, first].add(self.weighted[:, second] * mirrored)
        blocks = self.inverse.at[:, :, cells["group"]].add(jnp.einsum("ac,bc->abc", beside, self.weighted))
        return Sparse(blocks, -2 * beside, rest)
