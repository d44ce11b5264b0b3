"""About what standard errors will be, before anything is fitted: what steps of a search are measured in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.compiling import compiled
from ...numerics.precision import default_dtype, precision, settle
from .curvature import second

if TYPE_CHECKING:
    from .fitting import Start
    from .layout import Layout
    from .model import Mixed

#: curvature of a row, at least, as a share of the mean
LEAST = 0.01


def crude_errors(model: Mixed, layout: Layout, start: Start) -> dict[str, Any]:
    r"""Of the coordinates of one unit's parameters, a tree like these.

    Of a fixed effect, of a regression that holds the effects of each factor f for independent errors of its rows' groups,
    $(\sum_i w_ix_{ij}^2 + \sum_f s_f^2\sum_g(\sum_{i\in g}w_ix_{ij}z_i)^2)^{1/2}/\sum_iw_ix_{ij}^2$, w the curvature of rows; of
    logarithms of standard deviations $(2q)^{-1/2}$ of q groups.
    """
    dtype = default_dtype(None)
    with precision(dtype):
        one = jax.tree.map(lambda leaf: np.asarray(leaf[0]), {key: leaf for key, leaf in layout.units.items() if key != "cells"})
        given, params, y = settle((model, jax.tree.map(np.asarray, start.params), one), dtype)
        w = np.abs(np.nan_to_num(np.asarray(_curvatures(given, params, y), float), posinf=0.0, neginf=0.0))
    # No row counts for nothing: a coordinate that only such rows know would take a step without end.
    w = np.maximum(w, LEAST * w.mean()) if w.any() else np.ones_like(w)
    out: dict[str, Any] = {}
    if np.size(model.scale):
        known = w @ one["X"] ** 2
        variance = known.copy()
        for factor in layout.factors:
            code, rows = one["code"][factor.name], w[:, None] * one["X"]
            spread = np.mean(start.sizes[factor.name]) * np.sqrt(np.sum(one["Z"][factor.name] ** 2, axis=1))
            for j in range(rows.shape[1]):
                sums = np.bincount(code, rows[:, j] * spread, minlength=factor.groups)
                variance[j] += sums @ sums
        out["beta"] = np.sqrt(variance) / known / model.scale
    out["dispersion"] = jax.tree.map(lambda leaf: np.full(np.shape(leaf), 1 / np.sqrt(len(w))), start.params["dispersion"])
    groups = {factor.name: factor.groups for factor in layout.factors}
    for name in start.params.keys() - {"beta", "dispersion"}:
        own = start.params[name]
        out[name] = {key: np.full(np.shape(leaf), 1 / np.sqrt(2 * groups[key])) for key, leaf in own.items()}
    return out


@compiled
def _curvatures(model, params, y):
    beta = params.get("beta")
    eta = y["offset"] + (0.0 if beta is None else y["X"] @ beta) + jnp.zeros_like(y["y"])
    return -second(lambda e: model.log_rows(params, e, y), eta)
