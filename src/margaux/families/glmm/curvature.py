"""Second derivatives of a mixed model in its effects, which its rows make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...numerics.structures import AbstractEliminated, Arrow
from ...problem.model import Params, Unit

if TYPE_CHECKING:
    from .factor import Factor
    from .model import Mixed


class Loaded(NamedTuple):
    """What the rows of a unit say of its effects.

    Attributes:
        weight: $-\\ell''$ of each (rows,). own: what its predictor is multiplied by in the effects of the eliminated factor
            (rows, k), of the group `code` (rows,). value, place: in the others (rows, c), and which of these `m` they are.
    """

    weight: Float[Array, " rows"]
    own: Float[Array, "rows k"]
    code: Array
    value: Float[Array, "rows c"]
    place: Array
    m: int


class ByPredictor(AbstractEliminated):
    r"""Second derivatives of a mixed model in its effects, $A^\top\mathrm{diag}(-\ell'')A + I$ with A the rows' own effects.

    The factor with most latents is eliminated.
    """

    model: Mixed
    params: Params
    y: Unit
    largest: Factor
    start: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    k: int = eqx.field(static=True)

    def __init__(self, model: Mixed, params: Params, y: Unit) -> None:
        self.model, self.params, self.y, self.largest = model, params, y, model.largest
        self.start = sum(factor.size for factor in model.in_order if factor.name < self.largest.name)
        self.groups, self.k = self.largest.groups, self.largest.k

    def rows(self, z: Array) -> Loaded:
        """How the predictor of each row is made of the effects, and what it knows of them."""
        model, params, y = self.model, self.params, self.y
        eta = model.predictor(params, model.by_factor(z), y)
        weight = -second(lambda e: model.log_rows(params, e, y), eta)
        places, values, m = [], [], 0
        for factor in model.in_order:
            if factor.name != self.largest.name:
                places.append(m + y["code"][factor.name][:, None] * factor.k + np.arange(factor.k))
                values.append(y["Z"][factor.name] @ factor.root(params))
                m += factor.size
        place, value = jnp.zeros((len(eta), 0), int), jnp.zeros((len(eta), 0), eta.dtype)
        if m:
            place, value = jnp.concatenate(places, axis=1), jnp.concatenate(values, axis=1)
        own = y["Z"][self.largest.name] @ self.largest.root(params)
        return Loaded(weight, own, y["code"][self.largest.name], value, place, m)

    def curvature(self, log_density: Any, z: Array) -> Arrow:
        return self.arrow(self.rows(z))

    def arrow(self, rows: Loaded) -> Arrow:
        """$A^\\top\\mathrm{diag}(w)A + I$."""
        weight, a, code, value, place, m = rows
        blocks = (
            jnp.zeros((self.groups, self.k, self.k), a.dtype).at[code].add(weight[:, None, None] * a[:, :, None] * a[:, None])
        )
        blocks = jnp.moveaxis(blocks, 0, 2) + jnp.eye(self.k, dtype=a.dtype)[:, :, None]
        edges, rest = jnp.zeros((self.k, self.groups, m), a.dtype), jnp.eye(m, dtype=a.dtype)
        if m:
            weighted = weight[:, None] * value
            for j in range(self.k):
                edges = edges.at[j, code[:, None], place].add(a[:, j, None] * weighted)
            rest = rest.at[place[:, :, None], place[:, None]].add(weighted[:, :, None] * value[:, None])
        return Arrow(blocks, edges, rest)

    def by_cells(self, rows: Loaded) -> tuple[Float[Array, "k k g"], Float[Array, "k cells"]]:
        """Blocks of the groups, and edges cell by cell (see `margaux.families.glmm.cells`)."""
        a, cells = rows.own, self.y["cells"]
        blocks = jnp.zeros((self.k, self.k, self.groups), a.dtype)
        blocks = blocks.at[:, :, rows.code].add(jnp.einsum("r,ra,rb->abr", rows.weight, a, a))
        products = jnp.einsum("r,ra,rc->arc", rows.weight, a, rows.value)
        edges = jnp.zeros((self.k, len(cells["group"])), a.dtype).at[:, cells["of"]].add(products)
        return blocks + jnp.eye(self.k, dtype=a.dtype)[:, :, None], edges


def second(function: Any, x: Array) -> Array:
    """Second derivatives of a function that acts entry by entry."""
    one = jnp.ones_like(x)

    def slope(x: Array) -> Array:
        return jax.jvp(function, (x,), (one,))[1]

    return jax.jvp(slope, (x,), (one,))[1]
