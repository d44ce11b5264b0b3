"""What a fit of a regression with missing covariates says of rows: predictions, conditional means, completed tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiling import compiled
from .exact import moments
from .families import AbstractFamily
from .observed import Groups, Params, Rows, arrange, by_group, given_observed


@compiled
def predictors(params: Params, rows: Rows, groups: Groups) -> tuple[Any, Any]:
    """Mean and variance of the linear predictor given the observed covariates, (b,) each."""
    found, _ = given_observed(params, rows, groups)
    return found.mean, found.sd**2


@compiled
def _means(family: AbstractFamily, params: Params, rows: Rows, groups: Groups) -> Any:
    return moments(family, groups, params, rows)[0].x


@compiled
def _expected(family: AbstractFamily, mean: Any, variance: Any) -> Any:
    return family.mean(mean, variance)


@compiled
def _given(params: Params, rows: Rows, groups: Groups) -> Any:
    return given_observed(params, rows, groups)


@compiled
def _log_posterior(family: AbstractFamily, y: Any, mean: Any, sd: Any, grid: Any, scale: Any) -> Any:
    return family.log_density(y[:, None], mean[:, None] + sd[:, None] * grid, scale) - grid**2 / 2


def new_rows(x: np.ndarray, c: np.ndarray, y: np.ndarray | None, offset: np.ndarray) -> tuple[Rows, Groups, np.ndarray]:
    """Rows of a new table; the outcome is of no account where it is None."""
    n = len(x)
    return arrange(x, c, np.zeros(n) if y is None else y, np.ones(n), offset)


def expected_outcome(family: AbstractFamily, params: Params, x: np.ndarray, c: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """E[y | x_o], averaged over what is missing, (n,)."""
    rows, groups, order = new_rows(x, c, None, offset)
    out = np.empty(len(x))
    out[order] = np.asarray(_expected(family, *predictors(params, rows, groups)))
    return out


def conditional_mean(family: AbstractFamily, params: Params, x: np.ndarray, c: np.ndarray, y: np.ndarray | None,
                     offset: np.ndarray) -> np.ndarray:  # fmt: skip
    """E[x | x_o, y], or E[x | x_o] without y, (n, p)."""
    rows, groups, order = new_rows(x, c, y, offset)
    if y is None:
        # With a coefficient of zero the outcome says nothing.
        params = params | {"beta": np.zeros_like(params["beta"])}
    out = np.empty_like(x)
    out[order] = np.asarray(_means(family, params, rows, groups))
    return out


def draw_completed(family: AbstractFamily, params: Params, x: np.ndarray, c: np.ndarray, y: np.ndarray, offset: np.ndarray,
                   draws: int, seed: int) -> np.ndarray:  # fmt: skip
    """Independent draws of the table given everything observed, (draws, n, p)."""
    rng = np.random.default_rng(seed)
    rows, groups, order = new_rows(x, c, y, offset)
    found, known = _given(params, rows, groups)
    z = _predictors_given_outcome(family, params, rows, found, draws, rng)
    mean = np.asarray(rows.c @ params["mean"])
    filled = np.where(rows.observed > 0, rows.x, 0.0)
    out = np.broadcast_to(filled, (draws, *x.shape)).copy()
    for part, places, span in by_group(known, groups, rows):
        if not places.shape[1]:
            continue
        shift, along = np.asarray(part.shift).T, np.asarray(part.along).T
        values, vectors = np.linalg.eigh(np.moveaxis(np.asarray(part.inverse), 2, 0))
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        noise = np.einsum("bij,dbj->dbi", root, rng.normal(size=(draws, *shift.shape)))
        here = np.arange(span.start, span.stop)
        padded = np.concatenate([mean[span], np.zeros((len(here), 1))], axis=1)
        xi = np.take_along_axis(padded, np.asarray(places), axis=1) - shift
        drawn = xi + along * z[:, span, None] + noise
        row, slot = np.nonzero(np.asarray(places) < x.shape[1])
        out[:, here[row], np.asarray(places)[row, slot]] = drawn[:, row, slot]
    back = np.empty_like(out)
    back[:, order] = out
    return back


def _predictors_given_outcome(family: AbstractFamily, params: Params, rows: Rows, found: Any, draws: int, rng: Any) -> np.ndarray:
    """Draws of the whitened predictor z given y, (draws, n), by inverting its distribution function on a grid."""
    grid = np.linspace(-9.0, 9.0, 721)
    scale = np.asarray(params.get("scale", 1.0))
    log_density = np.asarray(_log_posterior(family, rows.y, found.mean, found.sd, grid, scale))
    weight = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    steps = np.cumsum((weight[:, 1:] + weight[:, :-1]) / 2, axis=1)
    share = np.concatenate([np.zeros((len(steps), 1)), steps / steps[:, -1:]], axis=1)
    uniforms = rng.random((len(steps), draws))
    return np.stack([np.interp(u, cdf, grid) for u, cdf in zip(uniforms, share, strict=True)], axis=1)


def score(classes: Any, predicted: np.ndarray, y: Any, weights: Any) -> float:
    """Accuracy where there are classes, otherwise R^2."""
    truth = np.ravel(np.asarray(y))
    if classes is not None:
        return float(np.average(predicted == truth, weights=weights))
    around = np.average((truth - np.average(truth, weights=weights)) ** 2, weights=weights)
    return float(1 - np.average((truth - predicted) ** 2, weights=weights) / around)
