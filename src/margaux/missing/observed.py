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
        places, own = rows.places[first : first + count, :width], pushed[first : first + count]
        found = conditionals(precision, slopes, own, places)
        beta = jnp.append(slopes, 0.0)[places.T]
        variance = jnp.sum(beta * found.along, axis=0)
        sd = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
        unit = found.along / jnp.where(sd > 0, sd, 1.0)
        known.append(found._replace(along=unit, inverse=found.inverse - unit[:, None] * unit[None]))
        square = jnp.sum(found.shift * at_places(own, places), axis=0)
        sums.append((sd, jnp.sum(beta * found.shift, axis=0), square - found.log_det))
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


def completed(params: Params, rows: Rows, known: list[Conditional], groups: Groups, z: Array) -> Float[Array, "b p"]:
    """E[x | x_o, z] of each row."""
    p = rows.x.shape[1]
    parts = [in_rows(found.along * z[span] - found.shift, places, p) for found, places, span in by_group(known, groups, rows)]
    return rows.x + (1 - rows.observed) * (rows.c @ params["mean"]) + jnp.concatenate(parts)


def spread(rows: Rows, known: list[Conditional], groups: Groups, weights: Array, along: Array) -> Float[Array, "p p"]:
    r"""$\sum_i w_i Cov(x_i\mid x_{i,o}, z_i) + a_i u_iu_i^\top$ in its places, u the `along` of a row and a the last argument."""
    p = rows.x.shape[1]
    out = jnp.zeros((p + 1) ** 2, weights.dtype)
    for found, places, span in by_group(known, groups, rows):
        if places.shape[1]:
            at = places.T
            part = weights[span] * found.inverse + along[span] * found.along[:, None] * found.along[None]
            out = out.at[at[:, None] * (p + 1) + at[None]].add(part)
    return out.reshape(p + 1, p + 1)[:p, :p]
