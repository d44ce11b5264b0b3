"""What a fit of a regression with missing covariates says of rows: predictions, conditional means, completed tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy

from ...numerics.compiling import compiled
from ...numerics.wald import wald_table
from .blocks import each
from .exact import moments
from .families import AbstractFamily
from .layout import Arranged
from .likelihood import Sample, log_densities
from .multinomial import Multinomial, given_observed_each
from .observed import Groups, Params, Rows, by_group, given_observed
from .table import Table

if TYPE_CHECKING:
    from jaxtyping import Array, PyTree

    from ...tables.kinds import Column


@compiled
def _shares(family: AbstractFamily | Multinomial, params: Params, sample: Sample, groups: Groups, outcome: bool) -> Any:
    _, after, before = log_densities(family, groups, params, sample)
    return sample.completions.gather(after if outcome else before)[1]  # type: ignore[union-attr]


def shares(family: AbstractFamily | Multinomial, params: Params, data: Arranged, outcome: bool) -> np.ndarray | None:
    """Probabilities of the completions given what is observed of their rows, with the outcome or without; None without any."""
    if data.completions is None:
        return None
    return np.asarray(_shares(family, params, Sample(data.rows, data.completions), data.groups, outcome))


@compiled
def _expected(family: AbstractFamily | Multinomial, params: Params, rows: Rows, groups: Groups) -> Any:
    def of(rows: Rows) -> Any:
        if isinstance(family, Multinomial):
            before, _ = given_observed_each(params, rows, groups)
            return family.mean(before.mean.T, jnp.moveaxis(before.root, 0, 2))
        found, _ = given_observed(params, rows, groups)
        return family.mean(found.mean, found.sd**2)

    return each(of, rows, groups)


@compiled
def _means(family: AbstractFamily | Multinomial, params: Params, rows: Rows, groups: Groups) -> Any:
    return each(lambda rows: moments(family, groups, params, rows)[0].x, rows, groups)


@compiled
def _given(params: Params, rows: Rows, groups: Groups) -> Any:
    return (given_observed if jnp.ndim(params["beta"]) == 1 else given_observed_each)(params, rows, groups)


@compiled
def _mode(family: Multinomial, y: Array, mean: Array, root: Array) -> Any:
    return family.mode(y, mean, root)[0]


@compiled
def _log_posterior(family: AbstractFamily, y: Array, mean: Array, sd: Array, grid: Array, scale: Array) -> Any:
    return family.log_density(y[:, None], mean[:, None] + sd[:, None] * grid, scale) - grid**2 / 2


def codes(y: Column, classes: np.ndarray | None) -> np.ndarray:
    """Numbers, or places among the classes.

    Raises:
        ValueError: a value that is none of them.
    """
    values = np.ravel(np.asarray(y))
    if classes is None:
        return values.astype(float)
    found = pd.Index(classes).get_indexer(pd.Index(values))
    if (found < 0).any():
        raise ValueError(f"y holds {values[found < 0][0]!r}, which is none of the classes {list(classes)}")
    return found.astype(float)


def coefficient_table(
    names: list[str], classes: np.ndarray | None, estimate: np.ndarray, errors: np.ndarray, level: float
) -> pd.DataFrame:
    """Estimate, standard error, z, p and interval of coefficients, (1 + p,), or (K - 1, 1 + p) with a row a class after the
    first, which is the reference."""
    index = coefficient_index(names, classes if np.ndim(estimate) == 2 else None)
    estimate, se = np.ravel(estimate), np.ravel(errors)
    return wald_table(estimate, np.where(se > 0, se, np.nan), level, index)


def coefficient_index(names: list[str], classes: np.ndarray | None) -> pd.Index:
    """Names of the coefficients, the intercept's first, of each class after the first where there are several predictors."""
    if classes is None:
        return pd.Index(["intercept", *names])
    rows = [f"{label}: {name}" for label in classes[1:] for name in ["intercept", *names]]
    return pd.Index(rows, name=f"against {classes[0]}")


def parameter_names(table: Table, params: PyTree) -> list[str]:
    """Of every free parameter in the units of the data: coefficients, then the covariates' part."""
    own = [name for name, kept in zip(table.names, table.gaussian, strict=True) if kept]
    out = list(coefficient_index(table.names, table.classes if np.ndim(params["coef"]) == 2 else None))
    many = np.ndim(params["mean"]) == 2
    out += [f"mean {name}" + (f"[{k}]" if many else "") for k in range(len(np.atleast_2d(params["mean"]))) for name in own]
    out += [f"cov {own[i]}, {own[j]}" if i != j else f"var {own[i]}" for i in range(len(own)) for j in range(i + 1)]
    out += [f"cells[{k}, {j}]" for k, j in np.ndindex(np.shape(params["cells"]))] if "cells" in params else []
    return out + (["residual variance"] if "scale" in params else [])


def expected_outcome(family: AbstractFamily | Multinomial, params: Params, data: Arranged) -> np.ndarray:
    """E[y | x_o], averaged over what is missing, (n,); of a multinomial family P(y | x_o), (n, K)."""
    long = data.padded()
    found = long.restored(_expected(family, data.wide(params), long.rows, long.groups))
    return data.totals(found, shares(family, params, data, False))


def conditional_mean(
    family: AbstractFamily | Multinomial, params: Params, data: Arranged, scores: Any, outcome: bool
) -> tuple[np.ndarray, np.ndarray]:
    """E[x | x_o, y], or E[x | x_o] without the outcome: Gaussian columns (n, p), and those of discrete covariates (n, s), with
    their values `scores` (C, s) in the cells."""
    share, wide = shares(family, params, data, outcome), data.wide(params)
    if not outcome:
        # With a coefficient of zero the outcome says nothing.
        wide = wide | {"beta": np.zeros_like(wide["beta"])}
    long = data.padded()
    x = data.totals(long.restored(_means(family, wide, long.rows, long.groups)), share)
    if data.completions is None:
        return x, np.zeros((len(x), 0))
    return x, data.totals(scores[data.completions.cell], share)


def draw_completed(
    family: AbstractFamily | Multinomial, params: Params, data: Arranged, draws: int, key: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Independent draws of the table given everything observed: Gaussian columns (draws, n, p), and the cells (draws, n) where
    covariates are discrete."""
    rng = np.random.default_rng(key)
    rows, groups = data.rows, data.groups
    wide, share = data.wide(params), shares(family, params, data, True)
    found, known = _given(wide, rows, groups)
    given: Any = _classes_given_outcome if isinstance(family, Multinomial) else _predictors_given_outcome
    z = given(family, wide, rows, found, draws, rng)
    mean = np.asarray(rows.c @ wide["mean"])
    filled = np.where(rows.observed > 0, rows.x, 0.0)
    out = np.broadcast_to(filled, (draws, *filled.shape)).copy()
    for part, places, span in by_group(known, groups, rows):
        if not places.shape[1]:
            continue
        shift, along = np.asarray(part.shift).T, np.asarray(part.along)
        values, vectors = np.linalg.eigh(np.moveaxis(np.asarray(part.inverse), 2, 0))
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        noise = np.einsum("bij,dbj->dbi", root, rng.normal(size=(draws, *shift.shape)))
        here = np.arange(span.start, span.stop)
        padded = np.concatenate([mean[span], np.zeros((len(here), 1))], axis=1)
        xi = np.take_along_axis(padded, np.asarray(places), axis=1) - shift
        drawn = xi + np.einsum("mjb,dbj->dbm", along.reshape(len(along), -1, len(xi)), z[:, span]) + noise
        row, slot = np.nonzero(np.asarray(places) < filled.shape[1])
        out[:, here[row], np.asarray(places)[row, slot]] = drawn[:, row, slot]
    if data.completions is None or share is None:
        back = np.empty_like(out)
        back[:, data.owner] = out
        return back, None
    chosen = _one_each(data.owner, share, draws, rng)
    return np.take_along_axis(out, chosen[:, :, None], axis=1), np.asarray(data.completions.cell)[chosen]


def _one_each(owner: np.ndarray, share: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Of each row one of its completions by their shares, (draws, n)."""
    order = np.argsort(owner, kind="stable")
    firsts = np.flatnonzero(np.diff(owner[order], prepend=-1))
    total = np.cumsum(share[order])
    below = np.concatenate([[0.0], total])[firsts]
    wanted = below + rng.random((draws, len(firsts))) * (np.append(below[1:], total[-1]) - below)
    last = np.append(firsts[1:], len(owner)) - 1
    return order[np.clip(np.searchsorted(total, wanted, side="right"), firsts, last)]


def _predictors_given_outcome(
    family: AbstractFamily, params: Params, rows: Rows, found: Any, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draws of the whitened predictor z given y, (draws, n, 1), by inverting its distribution function on a grid."""
    grid = np.linspace(-9.0, 9.0, 721)
    scale = np.asarray(params.get("scale", 1.0))
    log_density = np.asarray(_log_posterior(family, rows.y, found.mean, found.sd, grid, scale))
    weight = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    steps = np.cumsum((weight[:, 1:] + weight[:, :-1]) / 2, axis=1)
    share = np.concatenate([np.zeros((len(steps), 1)), steps / steps[:, -1:]], axis=1)
    uniforms = rng.random((len(steps), draws))
    return np.stack([np.interp(u, cdf, grid) for u, cdf in zip(uniforms, share, strict=True)], axis=1)[..., None]


def _classes_given_outcome(
    family: Multinomial, params: Params, rows: Rows, found: Any, draws: int, rng: np.random.Generator
) -> np.ndarray:
    r"""Draws of z given y, (draws, n, j), by rejection from N(mode, I).

    With f = log p(y | m + Lz), concave, whose gradient at the mode is the mode itself, f(z) is at most
    f(mode) + mode'(z - mode): the ratio of the two densities is highest at the mode.
    """
    mean, root = (np.asarray(part) for part in (found.mean, found.root))
    mode = np.asarray(_mode(family, rows.y, mean.T, np.moveaxis(root, 0, 2))).T
    chosen = np.asarray(rows.y, int)[:, None] == np.arange(1, family.n_classes)

    def log_density(row: np.ndarray, z: np.ndarray) -> np.ndarray:
        eta = mean[row] + np.einsum("bjl,bl->bj", root[row], z)
        whole = np.concatenate([np.zeros((len(eta), 1)), eta], axis=1)
        return np.sum(chosen[row] * eta, axis=1) - scipy.special.logsumexp(whole, axis=1)

    out = np.empty((draws, *mode.shape))
    draw, row = (part.ravel() for part in np.indices((draws, len(mode))))
    top = log_density(np.arange(len(mode)), mode)
    while len(row):
        gap = rng.normal(size=(len(row), mode.shape[1]))
        tried = mode[row] + gap
        taken = np.log(rng.random(len(row))) < log_density(row, tried) - top[row] - np.sum(mode[row] * gap, axis=1)
        out[draw[taken], row[taken]] = tried[taken]
        draw, row = draw[~taken], row[~taken]
    return out


def score(classes: np.ndarray | None, predicted: np.ndarray, y: Column, weights: Any) -> float:
    """Accuracy where there are classes, otherwise R^2."""
    truth = np.ravel(np.asarray(y))
    if classes is not None:
        return float(np.average(predicted == truth, weights=weights))
    around = np.average((truth - np.average(truth, weights=weights)) ** 2, weights=weights)
    return float(1 - np.average((truth - predicted) ** 2, weights=weights) / around)
