"""The units of many data sets of one model in a row, each evaluated at the parameters of its data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ..engine.validate import check_data
from ..esteps import ModeMixture, Quadrature
from ..esteps.base import flat_target
from ..esteps.held import PIECES, held
from ..numerics.arrays import resized, taken
from ..numerics.compiling import compiled
from ..numerics.gaussian import laplace
from ..numerics.keys import key_of
from ..numerics.ladder import rung
from ..numerics.precision import settle
from ..numerics.threads import side_by_side
from ..problem.model import for_searches
from ..problem.space import AbstractSpace
from .ascents import Heights
from .posterior import AT_ONCE, BLOCK_NUMBERS, MOST
from .scores import frozen, louis, symmetrised

#: members of a block from which on it is so many times smaller where no more than that are left
LARGE, FEWER = 256, 16


class Flock:
    """The units of R data sets.

    Attributes:
        count: R. units: data of all units, each once. own, sets, weights: of each member (unit, data set), which they are and how
            often it counts. level: the rule of each member, among those of `at`. rows: the quadrature's, of each member, which
            follow its mode. tried: those that the last `at` found, and of which members; see `keep`.
    """

    #: the model, the space of its parameters, and any parameters of it; and latents of a unit; see `begin`
    parts: tuple[Any, AbstractSpace, PyTree]
    size: int

    def __init__(self, data: Sequence[PyTree] | PyTree, weights: Any, dtype: np.dtype) -> None:
        """Raises: TypeError, ValueError: what is wrong with the data, and in which set."""
        if weights is None:
            self.units, sizes = _joined(data)
            self.count, self.own = len(sizes), np.arange(sum(sizes))
            self.sets, self.weights = np.repeat(np.arange(self.count), sizes), np.ones(sum(sizes))
        else:
            n = check_data(data)
            table = _checked(weights, n)
            self.units, self.count = data, len(table)
            self.sets, self.own = np.nonzero(table)
            self.weights = table[self.sets, self.own]
        self.dtype, self.rows, self.level = dtype, None, np.zeros(len(self.own), int)
        self.tried: tuple[PyTree, np.ndarray] = (), np.zeros(0, int)

    def first(self) -> PyTree:
        """Data of one unit."""
        return jax.tree.map(lambda leaf: leaf[0], self._some(np.zeros(1, int)))

    def begin(self, model: Any, space: AbstractSpace, template: PyTree, rule: Any, size: int, u: np.ndarray) -> None:
        """Of a model of `size` latents, with the rows of a quadrature at the data sets' coordinates (R, k)."""
        self.parts, self.size = (model, space, template), size
        if isinstance(rule, Quadrature):
            parts = [_rows(*self.parts, rule, u[self.sets[at]], self._some(at)) for at, _ in self._blocks(1)]
            kept = [kept for _, kept in self._blocks(1)]
            cut = [jax.tree.map(lambda leaf, k=k: np.asarray(leaf)[:k], part) for part, k in zip(parts, kept, strict=True)]
            self.rows = jax.tree.map(lambda *leaf: np.concatenate(leaf), *cut)

    def at(self, rules: Sequence[Any], u: np.ndarray, which: np.ndarray) -> Heights:
        """Of the data sets `which` at u (m, k): log-likelihoods, scores and Louis' information, each member by its own rule."""
        f, k = louis(frozen(self.parts[1]), True), u.shape[1]
        all_of_them = np.isin(self.sets, which)
        ruled = [(rule, np.flatnonzero(all_of_them & (self.level == level))) for level, rule in enumerate(rules)]
        ruled = [(rule, members) for rule, members in ruled if len(members)]
        parts = [self._visited(rule, members, u, which, f, 2 + k) for rule, members in ruled]
        found, rows = jax.tree.map(lambda *leaf: np.concatenate(leaf), *parts)
        members = np.concatenate([members for _, members in ruled])
        self.tried = rows, members
        w, sets, scores = self.weights[members], self.sets[members], found["score"]
        value = np.bincount(sets, w * found["log_marginal"], self.count)
        each = w[:, None, None] * (found["complete"] + scores[:, :, None] * scores[:, None, :])
        gradient, matrix = np.zeros((self.count, k)), np.zeros((self.count, k, k))
        np.add.at(gradient, sets, w[:, None] * scores)
        np.add.at(matrix, sets, each)
        return Heights(value, gradient, symmetrised(matrix)).of(which)

    def keep(self, which: np.ndarray, taken: np.ndarray) -> None:
        """Lets modes be followed from where the last `at` found them, in data sets that have gone there: elsewhere they may have
        been lost."""
        rows, members = self.tried
        there = np.isin(self.sets[members], which[taken])
        for leaf, new in zip(jax.tree.leaves(self.rows), jax.tree.leaves(rows), strict=True):
            leaf[members[there]] = new[there]

    def logs(self, rule: Any, u: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Log-likelihoods (R,) of the data sets `which` at u (m, k), zero of others."""
        members = np.flatnonzero(np.isin(self.sets, which))
        return self.summed(self.each(rule, members, u, which), members)

    def each(self, rule: Any, members: np.ndarray, u: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Log marginal likelihoods of some members of the data sets `which` at u (m, k)."""
        return self._visited(rule, members, u, which, _nothing)[0]["log_marginal"]

    def summed(self, values: np.ndarray, members: np.ndarray) -> np.ndarray:
        """Over the members of each data set, as often as they count: (..., members) -> (..., R)."""
        out = np.zeros((self.count, *values.shape[:-1]))
        np.add.at(out, self.sets[members], np.moveaxis(self.weights[members] * values, -1, 0))
        return np.moveaxis(out, 0, -1)

    def modes(self, u: np.ndarray, most: int) -> int:
        """The most modes that the posterior of a unit is found to have, of some chosen at random, at u (R, k)."""
        count = len(self.own)
        some = np.arange(count) if count <= most else np.sort(np.random.default_rng(count).choice(count, most, replace=False))
        members = resized(some, rung(len(some)))
        found = _modes(*self.parts, u[self.sets[members]], self._some(members))
        return int(np.max(np.asarray(found)))

    def _visited(
        self, rule: Any, members: np.ndarray, u: np.ndarray, which: np.ndarray, f: Callable[..., Any], times: int = 2
    ) -> tuple[dict[str, np.ndarray], PyTree]:
        """Figures and rows of some members of the data sets `which`, at u (m, k) of these. Args: times: halves of what a rule
        holds of a unit that f holds."""
        place = np.zeros(self.count, int)
        place[which] = np.arange(len(which))
        steps, width = None, 100 * times // 2
        if isinstance(rule, Quadrature):
            # Piece by piece, so that grids of any size find one program.
            steps, width = rule.n_newton, AT_ONCE * PIECES[self.size][0] * (self.size + 2) * times // 2
            rule = settle(held(rule, self.size), self.dtype)

        def visit(part: tuple[np.ndarray, int]) -> tuple[dict[str, np.ndarray], PyTree]:
            at, kept = part
            rows = None if self.rows is None else jax.tree.map(lambda leaf: leaf[at], self.rows)
            found, rows = _block(*self.parts, rule, steps, u[place[self.sets[at]]], rows, self._some(at), f)
            cut = jax.tree.map(lambda leaf: np.asarray(leaf)[:kept], rows)
            return {name: np.asarray(leaf, float)[:kept] for name, leaf in found.items()}, cut

        parts = side_by_side(visit, self._blocks(width, members), self.dtype)
        return jax.tree.map(lambda *leaf: np.concatenate(leaf), *parts)

    def _blocks(self, width: int, members: np.ndarray | None = None) -> list[tuple[np.ndarray, int]]:
        """Members in parts of one size, the last one repeated, and how many of each part count. However few there are, sizes are
        those of all, so that programs are few."""
        everyone = len(self.own)
        members = np.arange(everyone) if members is None else members
        size = int(np.clip(BLOCK_NUMBERS // width, 1, min(everyone, MOST)))
        size = rung(size // FEWER if size > LARGE and len(members) <= size // FEWER else size)
        cuts = [members[first : first + size] for first in range(0, len(members), size)]
        return [(resized(cut, size), len(cut)) for cut in cuts]

    def _some(self, members: np.ndarray) -> PyTree:
        def one(leaf):
            part = np.asarray(taken(leaf, self.own[members]))
            return part.astype(self.dtype) if np.issubdtype(part.dtype, np.floating) else part

        return jax.tree.map(one, self.units)


def _joined(data: Any) -> tuple[PyTree, list[int]]:
    if not isinstance(data, list | tuple) or not data:
        raise TypeError("data must be a list of data sets, or one data set with weights= (R, n)")
    sizes = []
    for r, one in enumerate(data):
        try:
            sizes.append(check_data(one))
        except (TypeError, ValueError) as error:
            raise type(error)(f"data set {r}: {error}") from error
        same = jax.tree.structure(one) == jax.tree.structure(data[0])
        shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(each)] for each in (data[0], one)]
        if not same or shapes[0] != shapes[1]:
            raise ValueError(
                f"the units of data set {r} differ from those of the first in names or shapes ({shapes[1]}, {shapes[0]}); pad "
                "them alike, with a mask (see mx.pad_ragged)"
            )
    return jax.tree.map(lambda *leaf: np.concatenate([np.asarray(part) for part in leaf]), *data), sizes


def _checked(weights: Any, n: int) -> np.ndarray:
    table = np.asarray(weights, float)
    if table.ndim != 2 or table.shape[1] != n:
        raise ValueError(f"weights must have a row a replicate and a column for each of the {n} units, got shape {table.shape}")
    if not np.all(np.isfinite(table)) or np.any(table < 0):
        raise ValueError("weights must be finite and not negative")
    empty = np.flatnonzero(table.sum(axis=1) == 0)
    if empty.size:
        raise ValueError(f"replicate {int(empty[0])} has no unit: all its weights are zero")
    return table


def _nothing(model: Any, params: PyTree, z: PyTree, w: Array, batch: PyTree) -> dict[str, Array]:
    return {}


def _params(space: AbstractSpace, template: PyTree, u: Array) -> PyTree:
    back = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(space.to_unconstrained, template)))[1]
    return space.from_unconstrained(back(u))


@compiled
def _rows(model, space, template, rule, u, data):
    return jax.vmap(lambda u, y: rule.init(key_of(0), model, _params(space, template, u), y))(u, data)


@compiled
def _modes(model, space, template, u, data):
    def unit(u, y):
        return ModeMixture().init(key_of(0), model, _params(space, template, u), y)["modes"]

    return jax.vmap(unit)(u, data)


@compiled
def _block(model, space, template, rule, steps, u, rows, data, f):
    def unit(u, row, y):
        params = _params(space, template, u)
        if steps is not None:
            target, _ = flat_target(for_searches(model), params, y)
            row = dict(zip(("mean", "cholesky"), laplace(target, row["mean"], steps), strict=True))
        row, batch = (jax.tree.map(lambda leaf: leaf[None], tree) for tree in (row, y))
        found, row, info = rule.expect(lambda z, w: f(model, params, z, w, batch), (), model, params, row, batch, 1)
        return found | {"log_marginal": jnp.sum(info["log_marginal"])}, jax.tree.map(lambda leaf: leaf[0], row)

    return jax.vmap(unit)(u, () if rows is None else rows, data)
