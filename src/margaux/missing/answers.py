"""What a fit of a regression with missing covariates says of rows: predictions, conditional means, completed tables."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy

from ..compiling import compiled
from .exact import moments
from .families import AbstractFamily
from .multinomial import Multinomial, given_observed_each
from .observed import Groups, Params, Rows, arrange, by_group, given_observed


@compiled
def predictors(params: Params, rows: Rows, groups: Groups) -> tuple[Any, Any]:
    """Mean and variance of the linear predictor given the observed covariates, (b,) each."""
    found, _ = given_observed(params, rows, groups)
    return found.mean, found.sd**2


@compiled
def _class_probabilities(family: Multinomial, params: Params, rows: Rows, groups: Groups) -> Any:
    before, _ = given_observed_each(params, rows, groups)
    return family.mean(before.mean.T, jnp.moveaxis(before.root, 0, 2))


@compiled
def _means(family: Any, params: Params, rows: Rows, groups: Groups) -> Any:
    return moments(family, groups, params, rows)[0].x


@compiled
def _expected(family: AbstractFamily, mean: Any, variance: Any) -> Any:
    return family.mean(mean, variance)


@compiled
def _given(params: Params, rows: Rows, groups: Groups) -> Any:
    return (given_observed if jnp.ndim(params["beta"]) == 1 else given_observed_each)(params, rows, groups)


@compiled
def _mode(family: Multinomial, y: Any, mean: Any, root: Any) -> Any:
    return family.mode(y, mean, root)[0]


@compiled
def _log_posterior(family: AbstractFamily, y: Any, mean: Any, sd: Any, grid: Any, scale: Any) -> Any:
    return family.log_density(y[:, None], mean[:, None] + sd[:, None] * grid, scale) - grid**2 / 2


def codes(y: Any, classes: np.ndarray | None) -> np.ndarray:
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


def coefficient_table(names: list[str], classes: np.ndarray | None, estimate: np.ndarray, errors: np.ndarray,
                      level: float) -> pd.DataFrame:  # fmt: skip
    """Estimate, standard error, z, p and interval of coefficients, (1 + p,), or (K - 1, 1 + p) with a row a class after the
    first, which is the reference."""
    index = pd.Index(["intercept", *names])
    if np.ndim(estimate) == 2 and classes is not None:
        rows = [f"{label}: {name}" for label in classes[1:] for name in index]
        index = pd.Index(rows, name=f"against {classes[0]}")
    estimate, se = np.ravel(estimate), np.ravel(errors)
    se = np.where(se > 0, se, np.nan)
    z = estimate / se
    half = scipy.special.ndtri(0.5 + level / 2) * se
    out = {"estimate": estimate, "se": se, "z": z, "p": 2 * scipy.special.ndtr(-np.abs(z)),
           "ci_low": estimate - half, "ci_high": estimate + half}  # fmt: skip
    return pd.DataFrame(out, index=index)


def beta_positions(gaussian: np.ndarray) -> np.ndarray:
    """Where the coefficients of the intercept and the table's columns, (1 + p,), stand in beta: fixed columns come first."""
    k = int(np.sum(~gaussian)) + 1
    own = np.where(gaussian, k + np.cumsum(gaussian) - 1, np.cumsum(~gaussian))
    return np.concatenate([[0], own])


def new_rows(x: np.ndarray, c: np.ndarray, y: np.ndarray | None, offset: np.ndarray) -> tuple[Rows, Groups, np.ndarray]:
    """Rows of a new table; the outcome is of no account where it is None."""
    n = len(x)
    return arrange(x, c, np.zeros(n) if y is None else y, np.ones(n), offset)


def expected_outcome(family: Any, params: Params, x: np.ndarray, c: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """E[y | x_o], averaged over what is missing, (n,); of a multinomial family P(y | x_o), (n, K)."""
    rows, groups, order = new_rows(x, c, None, offset)
    if isinstance(family, Multinomial):
        found = np.asarray(_class_probabilities(family, params, rows, groups))
    else:
        found = np.asarray(_expected(family, *predictors(params, rows, groups)))
    out = np.empty_like(found)
    out[order] = found
    return out


def conditional_mean(family: Any, params: Params, x: np.ndarray, c: np.ndarray, y: np.ndarray | None,
                     offset: np.ndarray) -> np.ndarray:  # fmt: skip
    """E[x | x_o, y], or E[x | x_o] without y, (n, p)."""
    rows, groups, order = new_rows(x, c, y, offset)
    if y is None:
        # With a coefficient of zero the outcome says nothing.
        params = params | {"beta": np.zeros_like(params["beta"])}
    out = np.empty_like(x)
    out[order] = np.asarray(_means(family, params, rows, groups))
    return out


def draw_completed(family: Any, params: Params, x: np.ndarray, c: np.ndarray, y: np.ndarray, offset: np.ndarray,
                   draws: int, seed: int) -> np.ndarray:  # fmt: skip
    """Independent draws of the table given everything observed, (draws, n, p)."""
    rng = np.random.default_rng(seed)
    rows, groups, order = new_rows(x, c, y, offset)
    found, known = _given(params, rows, groups)
    given: Any = _classes_given_outcome if isinstance(family, Multinomial) else _predictors_given_outcome
    z = given(family, params, rows, found, draws, rng)
    mean = np.asarray(rows.c @ params["mean"])
    filled = np.where(rows.observed > 0, rows.x, 0.0)
    out = np.broadcast_to(filled, (draws, *x.shape)).copy()
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
        row, slot = np.nonzero(np.asarray(places) < x.shape[1])
        out[:, here[row], np.asarray(places)[row, slot]] = drawn[:, row, slot]
    back = np.empty_like(out)
    back[:, order] = out
    return back


def _predictors_given_outcome(family: AbstractFamily, params: Params, rows: Rows, found: Any, draws: int, rng: Any) -> np.ndarray:
    """Draws of the whitened predictor z given y, (draws, n, 1), by inverting its distribution function on a grid."""
    grid = np.linspace(-9.0, 9.0, 721)
    scale = np.asarray(params.get("scale", 1.0))
    log_density = np.asarray(_log_posterior(family, rows.y, found.mean, found.sd, grid, scale))
    weight = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    steps = np.cumsum((weight[:, 1:] + weight[:, :-1]) / 2, axis=1)
    share = np.concatenate([np.zeros((len(steps), 1)), steps / steps[:, -1:]], axis=1)
    uniforms = rng.random((len(steps), draws))
    return np.stack([np.interp(u, cdf, grid) for u, cdf in zip(uniforms, share, strict=True)], axis=1)[..., None]


def _classes_given_outcome(family: Multinomial, params: Params, rows: Rows, found: Any, draws: int, rng: Any) -> np.ndarray:
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


def score(classes: Any, predicted: np.ndarray, y: Any, weights: Any) -> float:
    """Accuracy where there are classes, otherwise R^2."""
    truth = np.ravel(np.asarray(y))
    if classes is not None:
        return float(np.average(predicted == truth, weights=weights))
    around = np.average((truth - np.average(truth, weights=weights)) ** 2, weights=weights)
    return float(1 - np.average((truth - predicted) ** 2, weights=weights) / around)
