"""Rows of a table with holes, and what their observed entries say of the rest at given parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .conditional import Conditional, at_places, conditionals, group_rows, in_rows

#: parameters by name: "beta" (k + p,), "mean" (k, p), "covariance" (p, p), and "scale" of a linear model
Params = dict[str, Any]
#: (rows, most missing entries) of successive groups
Groups = tuple[tuple[int, int], ...]


class Rows(NamedTuple):
    """Data in order of the number of missing entries.

    x (n, p) has zeros where nothing is observed; c (n, k) holds the intercept and covariates that are always observed.
    """

    x: Float[Array, "n p"]
    observed: Float[Array, "n p"]
    places: Int[Array, "n M"]
    c: Float[Array, "n k"]
    y: Float[Array, " n"]
    weights: Float[Array, " n"]
    offset: Float[Array, " n"]


def arrange(
    x: np.ndarray, c: np.ndarray, y: np.ndarray, weights: np.ndarray, offset: np.ndarray
) -> tuple[Rows, Groups, np.ndarray]:
    """Rows in order of missingness from a table with NaN; the groups; and the order."""
    missing = np.isnan(x)
    order, places, groups = group_rows(missing)
    x = np.where(missing, 0.0, x)
    parts: Any = (x[order], (~missing)[order].astype(float), places, c[order], y[order], weights[order], offset[order])
    return Rows(*parts), groups, order


class Predictor(eqx.Module):
    r"""What the observed entries say of each row: $\eta\sim N(m, v)$ (sd is $\sqrt v$), and $\log p(x_o)$."""

    mean: Float[Array, " b"]
    sd: Float[Array, " b"]
    log_x: Float[Array, " b"]


def given_observed(params: Params, rows: Rows, groups: Groups) -> tuple[Predictor, list[Conditional]]:
    r"""The predictors, and $x_m\mid\eta\sim N(\xi + tz/\sqrt v,\ A^{-1}-tt^\top/v)$ with $z=(\eta-m)/\sqrt v$: in the
    `Conditional` of each group `along` is $t/\sqrt v$, $t=A^{-1}\beta_m$, and `inverse` that covariance."""
    k = rows.c.shape[1]
    precision = jnp.linalg.inv(params["covariance"])
    slopes = params["beta"][k:]
    mean = rows.c @ params["mean"]
    gap = rows.observed * (rows.x - mean)
    pushed = gap @ precision
    known, sums = [], []
    first = 0
    for count, width in groups:
        places, part = rows.places[first : first + count, :width], pushed[first : first + count]
        conditional = conditionals(precision, slopes, part, places)
        beta = jnp.append(slopes, 0.0)[places.T]
        variance = jnp.sum(beta * conditional.along, axis=0)
        sd = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
        unit = conditional.along / jnp.where(sd > 0, sd, 1.0)
        known.append(conditional._replace(along=unit, inverse=conditional.inverse - unit[:, None] * unit[None]))
        square = jnp.sum(conditional.shift * at_places(part, places), axis=0)
        sums.append((sd, jnp.sum(beta * conditional.shift, axis=0), square - conditional.log_det))
        first += count
    sd, shift, rest = (jnp.concatenate(each) for each in zip(*sums, strict=True))
    log_x = jnp.linalg.slogdet(precision)[1] - jnp.sum(gap * pushed, axis=1) + rest
    log_x = (log_x - jnp.sum(rows.observed, axis=1) * jnp.log(2 * jnp.pi)) / 2
    filled = rows.x + (1 - rows.observed) * mean
    predictor = rows.c @ params["beta"][:k] + filled @ slopes + rows.offset - shift
    return Predictor(predictor, sd, log_x), known


def by_group(known: list[Conditional], groups: Groups, rows: Rows) -> Iterator[tuple[Conditional, Array, slice]]:
    """Conditional, places and span of each group."""
    first = 0
    for found, (count, width) in zip(known, groups, strict=True):
        yield found, rows.places[first : first + count, :width], slice(first, first + count)
        first += count


def filled(
    params: Params, rows: Rows, known: list[Conditional], groups: Groups
) -> tuple[Float[Array, "b p"], Float[Array, "b p"]]:
    """E[x | x_o, z] of each row at z = 0, and how it changes with z."""
    p = rows.x.shape[1]
    parts = [jnp.stack([-found.shift, found.along]) for found in known]
    placed = [in_rows(part, places, p) for part, (_, places, _) in zip(parts, by_group(known, groups, rows), strict=True)]
    rest, along = jnp.concatenate(placed, axis=1)
    return rows.x + (1 - rows.observed) * (rows.c @ params["mean"]) + rest, along


def spread(rows: Rows, known: list[Conditional], groups: Groups, weights: Array, along: Array) -> Float[Array, " t"]:
    r"""$\sum_i w_i Cov(x_i\mid x_{i,o}, z_i) + a_i u_iu_i^\top$ in its places, u the `along` of a row and a the last argument;
    the lower triangle, row by row (see `symmetric`)."""
    p = rows.x.shape[1]
    out = jnp.zeros((p + 1) * (p + 2) // 2, weights.dtype)
    for found, places, span in by_group(known, groups, rows):
        if places.shape[1]:
            at, part = _lower(found, places, weights[span], along[span])
            out = out.at[at].add(part)
    return out[: p * (p + 1) // 2]


def spreads(rows: Rows, known: list[Conditional], groups: Groups, weights: Array, along: Array) -> Float[Array, "b t"]:
    """The same of each row by itself."""
    p = rows.x.shape[1]
    parts = []
    for found, places, span in by_group(known, groups, rows):
        out = jnp.zeros((len(places), (p + 1) * (p + 2) // 2), weights.dtype)
        if places.shape[1]:
            at, part = _lower(found, places, weights[span], along[span])
            out = out.at[jnp.arange(len(places)), at].set(part)
        parts.append(out[:, : p * (p + 1) // 2])
    return jnp.concatenate(parts)


def _lower(found: Conditional, places: Array, weights: Array, along: Array) -> tuple[Array, Array]:
    """Where the lower triangle of each row goes, and what, (t, b). Places rise, so that it goes into the lower triangle."""
    j, k = np.tril_indices(places.shape[1])
    at = places.T
    part = weights * found.inverse[j, k] + along * found.along[j] * found.along[k]
    return at[j] * (at[j] + 1) // 2 + at[k], part
