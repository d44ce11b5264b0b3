"""Proposals for units, made in blocks: what searches find of their modes, and trial draws of their moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from ..esteps import AbstractEStep, ImportanceSampling, ModeMixture, Quadrature
from ..esteps.elsewhere import TOLD
from ..esteps.mcmc import lacks_prior
from ..numerics.compiling import compiled, is_short
from ..numerics.keys import key_of
from ..numerics.ladder import rung
from ..numerics.precision import default_dtype, precision, settle
from ..numerics.threads import side_by_side
from ..problem.model import AbstractConcave, AbstractModel, costly
from .posterior import ALIKE, FEW, alike, as_numpy, latent_size, most_at_once, of_all, ours

if TYPE_CHECKING:
    from .fit import Fit


#: units whose proposals are made at once: a search lasts as long as that of the slowest
SEARCHED = 64
#: second derivatives of all units up to which they are few
FEW_DERIVATIVES = 600
#: places from which a unit may be given to be searched: its modes, and what speaks of others (see `margaux.answers.hidden`)
STARTS = ModeMixture.n_modes + TOLD


def proposals(fit: Fit, estep: AbstractEStep, params: PyTree = None, units: np.ndarray | None = None, key: int = 0) -> PyTree:
    """The E-step's rows (n, ...) at the estimate (or at `params`): proposals that several calls of `each_unit` can share.

    Those of other units than the given ones repeat the last of them.
    """
    n = fit._model().n
    made = rows_of(fit, estep, np.arange(n) if units is None else np.asarray(units), params, key)
    if units is None:
        return made
    place = np.full(n, len(units) - 1)
    place[units] = np.arange(len(units))
    return jax.tree.map(lambda leaf: leaf[place], made)


def rows_of(
    fit: Fit, estep: AbstractEStep, units: np.ndarray, params: PyTree = None, key: int = 0, starts: np.ndarray | None = None
) -> PyTree:
    """The E-step's rows (m, ...) of m units, of which one may be there several times.

    Args:
        starts: of a `ModeMixture`, of each unit (m, p, d); see there.
    """
    dtype, problem, share = default_dtype(None), fit._model(), fit.share
    if (trouble := lacks_prior(problem.model, estep)) is not None:
        raise TypeError(trouble)
    chosen, before = ours(share, units)
    if starts is None:
        starts = _nowhere(problem.model, estep, latent_size(fit), len(chosen))
    elif share is not None:
        starts = starts[np.resize(np.flatnonzero(share.owners(units) == share.index), len(chosen))]
    if (order := alike(problem.model, fit.data, chosen, before)) is not None:
        chosen, starts = chosen[order], None if starts is None else starts[order]
    size = min(lanes(problem.n), most_at_once(problem.model) if len(chosen) > ALIKE else ALIKE)
    few = _few(problem.n, latent_size(fit))
    with precision(dtype):
        at = as_numpy(fit.params if params is None else params, dtype)
        model, estep = settle((problem.model, estep.for_rows()), dtype)

        def visit(first: int) -> PyTree:
            # Filled up by the first ones again: units are compared with those beside them.
            turn = np.arange(first, first + size) % len(chosen)
            ids, own = chosen[turn], None if starts is None else np.asarray(starts[turn], dtype)
            made = _proposals(model, estep, at, as_numpy(fit.data, dtype, ids - before), key_of(key), own, few)
            return jax.tree.map(lambda leaf: np.asarray(leaf)[: len(chosen) - first], made)

        parts = side_by_side(visit, range(0, len(chosen), size), dtype, None if latent_size(fit) <= FEW else 1)
    made = jax.tree.map(lambda *leaf: np.concatenate(leaf), *parts)
    made = made if order is None else jax.tree.map(lambda leaf: leaf[np.argsort(order)], made)
    return made if share is None else of_all(share, units, made, {}, {})[0]


def lanes(n: int) -> int:
    """Units of n whose proposals are made at once."""
    return rung(min(n, SEARCHED))


def _nowhere(model: AbstractModel, estep: AbstractEStep, d: int, count: int) -> np.ndarray | None:
    """Starts of `count` units that are none: one program searches from given ones as well (see `margaux.answers.hidden`)."""
    mixture = estep.proposal if isinstance(estep, ImportanceSampling) else None
    plain = isinstance(mixture, ModeMixture) and mixture.n_modes == ModeMixture.n_modes and not costly(model)
    return np.full((count, STARTS, d), np.nan) if plain else None


def proposals_ahead(model: AbstractModel, params: PyTree, data: PyTree, size: int) -> None:
    """Have the program of the proposals that a polish begins with compiled while a fit goes on, of `size` latents a unit."""
    dtype, n = default_dtype(None), jax.tree.leaves(data)[0].shape[0]
    with precision(dtype):
        block = as_numpy(data, dtype, np.zeros(min(lanes(n), most_at_once(model)), int))
        concave = isinstance(model, AbstractConcave) and model.concave
        rule = Quadrature(1) if concave else ImportanceSampling(2, ModeMixture())
        starts = _nowhere(model, rule, size, len(jax.tree.leaves(block)[0]))
        model, estep = settle((model, rule.for_rows()), dtype)
        _proposals.ahead(model, estep, as_numpy(params, dtype), block, key_of(0), starts, _few(n, size))


def _few(n: int, d: int) -> bool:
    """Whether n units of d latents are searched in less time than it takes to optimise what does so."""
    return n * d**2 <= FEW_DERIVATIVES


def _short(model: AbstractModel, estep: AbstractEStep, params: PyTree, data: PyTree, key: Any, starts: Any, few: bool) -> bool:
    return (few or is_short(data)) and not costly(model)


@compiled(small=_short)
def _proposals(model, estep, params, data, key, starts, few):
    def row(y, own):
        here = estep if own is None else eqx.tree_at(lambda e: e.proposal.starts, estep, own, is_leaf=lambda leaf: leaf is None)
        return here.init(key, model, params, y)

    return estep.compared(model, params, jax.vmap(row)(data, starts), data)
