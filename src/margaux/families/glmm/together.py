"""The likelihoods of many responses of one design: each with parameters of its own, evaluated block by block by one program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ...algorithms.base import Visit
from ...algorithms.objective import curvature
from ...algorithms.updates import Problem
from ...answers.ascents import Heights
from ...esteps import Laplace, Quadrature
from ...numerics.arrays import resized
from ...numerics.compiling import compiled
from ...numerics.keys import key_of
from ...numerics.ladder import rung
from ...numerics.precision import precision
from ...numerics.threads import side_by_side
from ...problem.penalty import NoPenalty
from ...problem.space import as_space
from . import natural
from .model import Mixed

if TYPE_CHECKING:
    from ...esteps import AbstractEStep
    from .base import AbstractResponse
    from .layout import Layout

#: numbers that a block of responses may hold, so that it stays in a core's cache; and responses in it
BLOCK_NUMBERS, MOST = 300_000, 4096


class Together:
    """R responses that share fixed effects, random terms and the programs that evaluate them.

    Args:
        columns: what each row has of its own, by name as in a unit: y, and perhaps trials, offset and weight, (R, N) each.
        starts: parameters of the responses (R, ...). scale, sizes: the units of their coordinates, see `Start` (R, ...).

    Attributes:
        u: where the responses begin, (R, k).
    """

    def __init__(
        self,
        response: AbstractResponse,
        layout: Layout,
        columns: dict[str, np.ndarray],
        starts: dict[str, Any],
        scale: Float[np.ndarray, "R p"],
        sizes: dict[str, Float[np.ndarray, "R k"]],
        dtype: np.dtype,
    ) -> None:
        self.dtype, self.count = dtype, len(scale)
        self.model = Mixed(response, layout.factors, np.ones(scale.shape[1]))
        self.there = layout.rows >= 0
        self.at = np.where(self.there, layout.rows, layout.rows[:, :1])
        self.columns = columns
        with precision(dtype):
            self.shared = self._put({name: leaf for name, leaf in layout.units.items() if name not in columns and name != "base"})
        self.units = {"scale": scale, "sizes": sizes}
        self.template = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:]), starts)
        # Numbers a response holds for each point that its latents are integrated over, and as many beside these.
        self.numbers = self.there.size * (2 + layout.width)
        self.rows: dict[str, np.ndarray] = {}
        self.tried: dict[str, np.ndarray] = {}
        self.u = self._by_block(lambda which: _coordinates(self.model, *self._given(which, starts)), 1)[0]

    def begin(self, estep: AbstractEStep, u: Float[np.ndarray, "m k"], which: Int[np.ndarray, " m"]) -> None:
        """Finds the modes of some responses' latents at coordinates of each, wherever they are."""
        found = self._by_block(lambda part: jax.tree.leaves(self._began(estep, u, which, part)), 10, np.arange(len(which)))
        names = ["mean"] if isinstance(estep, Laplace) else ["cholesky", "mean"]
        if list(self.rows) != names:
            self.rows = {
                name: np.zeros((self.count, *leaf.shape[1:]), leaf.dtype) for name, leaf in zip(names, found, strict=True)
            }
        for name, leaf in zip(names, found, strict=True):
            self.rows[name][which] = leaf

    def heights(self, estep: AbstractEStep, u: Float[np.ndarray, "m k"], which: Int[np.ndarray, " m"]) -> Heights:
        """Log-likelihoods, scores and information of some responses at coordinates of each."""
        *found, self.tried = self._visited(_heights, estep, u, which, u.shape[1])
        return Heights(*found)

    def keep(self, which: Int[np.ndarray, " m"], taken: Bool[np.ndarray, " m"]) -> None:
        """Lets modes be followed from where the last `heights` found them: not from places that are not gone to, where they may
        have been lost."""
        for name, leaf in self.tried.items():
            self.rows[name][which[taken]] = leaf[taken]

    def values(self, estep: AbstractEStep, u: Float[np.ndarray, "m k"], which: Int[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """Log-likelihoods alone."""
        return self._visited(_values, estep, u, which, 1)[0]  # type: ignore[return-value]

    def natural(self, u: Float[np.ndarray, "R k"]) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Parameters as users know them (R, q), their derivatives in the coordinates (R, q, k), and covariances by factor."""

        def block(which: np.ndarray) -> list[Any]:
            return jax.tree.leaves(_natural(self.model, *self._given(which, u)))

        values, jacobian, *covariances = self._by_block(block, 1)
        names = sorted(factor.name for factor in self.model.factors)
        return values, jacobian, dict(zip(names, covariances, strict=True))

    def _began(self, estep: AbstractEStep, u: np.ndarray, which: np.ndarray, part: np.ndarray) -> PyTree:
        some = which[part]
        return _begun(self.model, estep, *self._given(some, u, part), self.shared, self._own(some))

    def _visited(self, program: Any, estep: AbstractEStep, u: np.ndarray, which: np.ndarray, k: int) -> list[Any]:
        """What a program says of some responses, and the rows that it ended with."""
        points = estep.n_nodes**self.model_width if isinstance(estep, Quadrature) else 20
        places = np.arange(len(which))

        def block(part: np.ndarray) -> list[Any]:
            some = which[part]
            rows = self._put({name: leaf[some] for name, leaf in self.rows.items()})
            found, rows = program(self.model, estep, *self._given(some, u, part), self.shared, self._own(some), rows)
            return [*found, *(rows[name] for name in self.rows)]

        found = self._by_block(block, points * (2 + k) // 3, places)
        return [*found[: -len(self.rows)], dict(zip(self.rows, found[-len(self.rows) :], strict=True))]

    @property
    def model_width(self) -> int:
        """Latents of a unit."""
        return sum(factor.size for factor in self.model.factors)

    def _given(self, which: np.ndarray, tree: PyTree, part: np.ndarray | None = None) -> tuple[PyTree, PyTree, PyTree]:
        """The units of some responses' coordinates, a template of parameters, and what is given of these responses."""
        own = jax.tree.map(lambda leaf: leaf[which if part is None else part], tree)
        return self._put(jax.tree.map(lambda leaf: leaf[which], self.units)), self._put(self.template), self._put(own)

    def _own(self, which: np.ndarray) -> dict[str, Array]:
        """The columns of some responses, by unit."""
        own = {name: column[which][:, self.at] for name, column in self.columns.items()}
        if "weight" in own:
            own["weight"] = np.where(self.there, own["weight"], 0.0)
        return self._put(own)

    def _put(self, tree: PyTree) -> PyTree:
        """On the device, in this precision."""

        def one(leaf: Any) -> Any:
            kind = self.dtype if np.issubdtype(np.asarray(leaf).dtype, np.floating) else None
            return jax.device_put(np.asarray(leaf, kind))

        return jax.tree.map(one, tree)

    def _by_block(self, function: Any, points: int, members: np.ndarray | None = None) -> list[np.ndarray]:
        """The arrays that a function of some responses gives, for all of them."""
        members = np.arange(self.count) if members is None else members

        def visit(part: tuple[np.ndarray, int]) -> list[np.ndarray]:
            some, kept = part
            return [np.asarray(leaf)[:kept] for leaf in function(some)]

        with precision(self.dtype):
            parts = side_by_side(visit, list(self._blocks(members, points)), self.dtype)
        return [np.concatenate([part[i] for part in parts]) for i in range(len(parts[0]))]

    def _blocks(self, members: np.ndarray, points: int) -> Iterator[tuple[np.ndarray, int]]:
        """Members in parts of one size, the last one filled up, and how many of each part count."""
        size = rung(int(np.clip(BLOCK_NUMBERS // (self.numbers * max(points, 1)), 1, min(self.count, MOST))))
        for first in range(0, len(members), size):
            cut = members[first : first + size]
            yield resized(cut, size), len(cut)


def _one(model: Mixed, units: PyTree, template: PyTree) -> tuple[Mixed, Any, Any]:
    """A response's model and space in units of its own, and how its coordinates are read."""
    own = Mixed(model.response, model.factors, units["scale"])
    space = as_space(own.space(units["sizes"]), template)
    back = ravel_pytree(jax.tree.map(jnp.zeros_like, jax.eval_shape(space.to_unconstrained, template)))[1]
    return own, space, back


@compiled
def _coordinates(model, units, template, starts):
    def one(units, start):
        return ravel_pytree(_one(model, units, template)[1].to_unconstrained(start))[0]

    return [jax.vmap(one)(units, starts)]


def _completed(model: Mixed, shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Units with all their columns."""
    batch = shared | own
    return batch | {"base": model.response.log_base(batch["y"], batch.get("trials"))}


@compiled
def _begun(model, estep, units, template, u, shared, own):
    def one(units, u, own):
        mine, space, back = _one(model, units, template)
        params, batch = space.from_unconstrained(back(u)), _completed(model, shared, own)
        return jax.vmap(lambda y: estep.init(key_of(0), mine, params, y))(batch)

    return jax.vmap(one)(units, u, own)


@compiled
def _heights(model, estep, units, template, u, shared, own, rows):
    def one(units, u, own, rows):
        mine, space, back = _one(model, units, template)
        batch = _completed(model, shared, own)
        problem = Problem(mine, space, NoPenalty(), len(batch["y"]))
        noise = jnp.zeros((len(batch["y"]), 1)) if isinstance(estep, Laplace) else ()
        visit = Visit((rows, ()), batch, noise, key_of(0), jnp.ones((), int))
        to = lambda u: space.from_unconstrained(back(u))  # noqa: E731
        (scores, information), rows, info = curvature(problem, estep, visit, to(u), u, to)
        return (jnp.sum(info["log_marginal"]), jnp.sum(scores, axis=0), information), rows

    return jax.vmap(one)(units, u, own, rows)


@compiled
def _values(model, estep, units, template, u, shared, own, rows):
    def one(units, u, own, rows):
        mine, space, back = _one(model, units, template)
        params, batch = space.from_unconstrained(back(u)), _completed(model, shared, own)
        if isinstance(estep, Laplace):
            rows = estep.followed(mine, params, rows, batch)
            noise = jnp.zeros((len(batch["y"]), 1))
            return (jnp.sum(estep.log_marginals(noise, mine, params, rows, batch)),), rows
        _, rows, info = estep.expect(lambda z, w: (), (), mine, params, rows, batch, 1)
        return (jnp.sum(info["log_marginal"]),), rows

    return jax.vmap(one)(units, u, own, rows)


@compiled
def _natural(model, units, template, u):
    def one(units, u):
        mine, space, back = _one(model, units, template)

        def values(u):
            return natural.values(mine, space.from_unconstrained(back(u)))

        params = space.from_unconstrained(back(u))
        roots = {factor.name: factor.root(params) for factor in mine.factors}
        return values(u), jax.jacfwd(values)(u), {name: root @ root.T for name, root in roots.items()}

    values, jacobian, covariances = jax.vmap(one)(units, u)
    return values, jacobian, covariances
