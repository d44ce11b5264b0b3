"""A mixed model whose largest factor is integrated out: what is left to sum over are the few effects that its groups share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ...problem.model import AbstractDifferentiated, AbstractModel, differentiated, leading, mapped
from .derivatives import by_predictor, loadings, two_of_prior
from .inner import Inner, integrated, members
from .layout import Layout
from .model import Mixed
from .priors import Prior

if TYPE_CHECKING:
    from ...answers.fit import Fit

#: nodes a dimension of the inner sums by the number of effects a group, and of outer ones by the number that groups share
INNER = {1: 11, 2: 9}
OUTER = {1: 15, 2: 11}
#: points of both over all rows, at most
POINTS = 100_000_000


class Integrated(AbstractModel, AbstractDifferentiated):
    r"""$p(y_i, v\mid\theta) = p(v)\prod_g\int p(y_g\mid u_g, v)p(u_g)\,du_g$, v the effects of all factors but the largest.

    A unit has "members" (groups, most) beside what `Mixed` asks for: the rows of each group, their number in padding.
    """

    full: Mixed
    n_nodes: int = eqx.field(static=True)

    def init_latents(self, key, params, y):
        latents = self.full.init_latents(key, params, y)
        return {name: leaf for name, leaf in latents.items() if name != self.full.largest.name}

    def log_joint(self, params, z, y):
        prior = sum(jnp.sum(v**2) + v.size * jnp.log(2 * jnp.pi) for v in z.values())
        return jnp.sum(self._inner(params, z, y).logs) - prior / 2 + self.log_prior(params)

    @property
    def prior(self) -> Prior | None:
        """Of the parameters."""
        return self.full.prior

    def log_prior(self, params: Any) -> Any:
        """As of `Mixed`."""
        return self.full.log_prior(params)

    def moments(self, params: Any, z: dict[str, Array], y: Any) -> dict[str, tuple[Array, Array]]:
        """As of `Mixed`; of the largest factor those given the others."""
        out = {one.name: _plain(z[one.name] @ one.root(params).T) for one in self.full.factors if one.name in z}
        largest, found = self.full.largest, self._inner(params, z, y)
        root = largest.root(params)
        out[largest.name] = found.mean.T @ root.T, jnp.einsum("ik,klg,il->gi", root, found.second, root)
        return out

    def derivatives(self, params, z, w, batch):
        if any(one.structure not in ("us", "diag") for one in self.full.factors):
            flat, back = ravel_pytree(params)
            return differentiated(self, back, flat, z, w, batch)

        def of_unit(z_i: Any, w_i: Array, y: Any) -> tuple[Array, Array]:
            # One after the other: each has the rows of all its groups at all their nodes in hand.
            each, hessians = jax.lax.map(lambda z_ij: self._of_draw(params, z_ij, y), z_i)
            return each, jnp.einsum("m,mpq->pq", w_i, hessians)

        turned = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), (z, w))
        each, hessians = mapped(of_unit, leading(batch))(*turned, batch)
        return jnp.moveaxis(each, 0, 1), jnp.sum(hessians, axis=0)

    def _of_draw(self, params: Any, z: dict[str, Array], y: Any) -> tuple[Float[Array, " p"], Float[Array, "p p"]]:
        """Score and Hessian of the log joint of one draw: Fisher's and Louis' identities, group by group."""
        found, largest = self._inner(params, z, y), self.full.largest
        of_rows = {name: leaf for name, leaf in y.items() if name != "members"}
        at_row = jnp.where(y["members"] < len(y["y"]), y["members"], 0)

        def loaded(own: Array) -> Array:
            A = loadings(self.full, {**z, largest.name: own.T}, of_rows)
            return A[at_row]

        A = jax.vmap(loaded)(found.own)
        rows = found.rows | {"X": y["X"][at_row]}
        scores, hessian = by_predictor(self.full, params, found.eta, A, found.share, rows)
        mean = jnp.einsum("mg,mgp->gp", found.share, scores)
        spread = jnp.einsum("mg,mgp,mgq->pq", found.share, scores, scores) - mean.T @ mean
        of_prior, twice_prior = two_of_prior(self.full, params)
        return jnp.sum(mean, axis=0) + of_prior, hessian + spread + twice_prior

    def _inner(self, params: Any, z: dict[str, Array], y: Any) -> Inner:
        largest = self.full.largest
        start = jnp.zeros((largest.k, largest.groups), y["y"].dtype)
        return integrated(self.full, params, y, z, start, y["members"], self.n_nodes)


def _plain(b: Array) -> tuple[Array, Array]:
    return b, b**2


def can_integrate(model: Mixed, layout: Layout) -> bool:
    """Whether the largest factor can be summed over group by group, and the others by a quadrature of few dimensions."""
    shared, k = layout.width - model.largest.size, model.largest.k
    if len(layout.factors) == 1 or k not in INNER or shared not in OUTER:
        return False
    return layout.rows.size * INNER[k] ** k * OUTER[shared] ** shared <= POINTS


def reduced(model: Mixed, layout: Layout) -> tuple[Integrated, dict[str, Any], int]:
    """The model, its units, and nodes of the outer quadrature."""
    largest = model.largest
    code, there = layout.units["code"][largest.name], layout.rows >= 0
    each = [members(code[i], there[i], largest.groups) for i in range(len(code))]
    most, rows = max(one.shape[1] for one in each), layout.rows.shape[1]
    padded = np.stack([np.pad(one, ((0, 0), (0, most - one.shape[1])), constant_values=rows) for one in each])
    units = layout.units | {"members": padded.astype(np.int32)}
    return Integrated(model, INNER[largest.k]), units, OUTER[layout.width - largest.size]


def with_all_effects(fit: Fit) -> Fit:
    """The fit with all effects as latents, to draw them; itself where they are."""
    problem = fit._model()
    model: Any = problem.model
    if not isinstance(model, Integrated):
        return fit
    return dataclasses.replace(fit, problem=dataclasses.replace(problem, model=model.full), estep=None, rows=None, polished=None)
