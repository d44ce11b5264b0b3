"""Random effects given the data: conditional means and standard deviations of a fitted mixed model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from ...answers.posterior import each_unit
from ...answers.rules import Rule
from ...esteps import Laplace
from ...numerics.compiling import compiled
from ...numerics.precision import default_dtype, precision, settle
from ...problem.model import leading, mapped
from .products import ProductsFactor

if TYPE_CHECKING:
    from ...answers.fit import Fit
    from .formula import Design
    from .layout import Layout

#: solves with a factor that are made together
TOGETHER = 64


def effects_of(fit: Fit, rule: Rule, layout: Layout) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Means and standard deviations of each term's effects, (groups of the design, k): given the data, at the estimate.

    By the rule of the fit's likelihood; of Laplace's approximation they are the modes, and the diagonal of the inverse curvature.
    """
    if isinstance(rule.estep, Laplace):
        moments = _of_modes(fit, rule)
    else:
        moments, _ = each_unit(fit, _averaged, rule.estep, width=rule.width, rows=rule.rows)
    out = {}
    for name, groups in layout.groups.items():
        mean, square = (np.asarray(part, float) for part in moments[name])
        there = groups >= 0
        at, k = groups[there], mean.shape[-1]
        found = np.zeros((groups.max() + 1, k)), np.zeros((groups.max() + 1, k))
        found[0][at] = mean[there]
        found[1][at] = np.sqrt(np.maximum(square[there] - mean[there] ** 2, 0.0))
        out[name] = found
    return out


def _averaged(model: Any, params: Any, z: Any, w: Any, batch: Any) -> Any:
    """E[b] and E[b^2] of one unit's effects."""
    unit = jax.tree.map(lambda leaf: leaf[0], batch)
    each = mapped(lambda z_j: model.moments(params, jax.tree.map(lambda leaf: leaf[0], z_j), unit), leading(z))(z)
    return jax.tree.map(lambda leaf: jnp.einsum("m,mgk->gk", w[:, 0], leaf), each)


def _of_modes(fit: Fit, rule: Rule) -> Any:
    dtype = default_dtype(None)
    with precision(dtype):
        at = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), fit.params)
        model, data = settle((fit._model().model, jax.tree.map(np.asarray, fit.data)), dtype)
        return jax.tree.map(np.asarray, _approximate(model, at, data, rule.rows["mean"]))


@compiled
def _approximate(model, params, data, modes):
    def unit(y, mode):
        structure = model.structure(params, y)
        factor = structure.factor(structure.curvature(None, mode), 0.0)
        size, out, start = mode.size, {}, 0
        known = factor.blocks_of_inverse() if isinstance(factor, ProductsFactor) else None
        for one in model.in_order:
            root = one.root(params)
            b = model.by_factor(mode)[one.name] @ root.T
            if known is not None:
                variance = jnp.einsum("ij,gjk,ik->gi", root, known[one.name], root)
                out[one.name] = b, variance + b**2
                continue

            def spread(at, k=one.k, root=root):
                # One group's effects b = root u: the diagonal of root C root', C the group's block of the inverse.
                seeds = jnp.zeros((k, size), mode.dtype).at[jnp.arange(k), at + jnp.arange(k)].set(1.0)
                block = jax.vmap(lambda e: jax.lax.dynamic_slice(factor.solve(e), (at,), (k,)))(seeds)
                return jnp.einsum("ij,jk,ik->i", root, block, root)

            places = start + one.k * jnp.arange(one.groups)
            variance = jax.lax.map(spread, places, batch_size=min(TOGETHER, one.groups))
            out[one.name] = b, variance + b**2
            start += one.size
        return out

    return mapped(unit, leading(data))(data, modes)


def frames(found: dict[str, tuple[np.ndarray, np.ndarray]], design: Design, names: tuple[str, ...]) -> dict[str, pd.DataFrame]:
    """A frame a term: a row a group and effect, with its estimate and standard error."""
    out = {}
    for name, term in zip(names, design.terms, strict=True):
        mean, sd = found[name]
        index = pd.MultiIndex.from_product([term.labels, term.columns], names=[term.name, "effect"])
        out[name] = pd.DataFrame({"estimate": mean.ravel(), "se": sd.ravel()}, index=index)
    return out
