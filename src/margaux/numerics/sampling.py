"""Self-normalised weights: what they average to, how even they are, and how far the average may be trusted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Scalar

#: Pareto shapes from which on the error of an average of weights is itself not to be trusted (Vehtari et al. 2024, section 3.2)
HEAVY = 0.7
#: times the mean, beyond which weights are a tail, and the share of all weight that one must have for its shape to matter
LEVEL, SHARE = 3.0, 0.01


def effective_size(w: Float[Array, "m ..."]) -> Float[Array, ...]:
    r"""$1/\sum_j w_j^2$ of weights that sum to one over the leading axis (Kong 1992)."""
    return 1.0 / jnp.sum(w**2, axis=0)


def pareto_shape(log_w: Float[Array, " m"]) -> Scalar:
    r"""Shape $\hat k$ of the generalised Pareto distribution of the largest weights: under 0.5 their variance is finite.

    Of the $\min(m/5, 3\sqrt m)$ largest, by the empirical Bayes estimate of Zhang and Stephens (2009) drawn towards a half
    as by ten more weights (Vehtari, Simpson, Gelman, Yao and Gabry 2024, appendix C). Weights have
    the shape minus infinity if those beyond three times the mean are less than a hundredth of the whole: a few beside many that
    are all but equal would look like a heavy tail, and matter little.
    """
    count = _of_largest(log_w.shape[0])
    if count < 5:
        return jnp.full((), jnp.inf, log_w.dtype)
    # Which are the largest is found in single precision, where it takes a tenth of the time of sorting all in double.
    log_w = log_w - jnp.max(log_w)
    largest = jax.lax.top_k(log_w.astype(jnp.float32), count + 1)[1]
    w = jnp.exp(jnp.sort(log_w[largest]))
    return jnp.where(_level(jnp.exp(log_w), jnp), -jnp.inf, _of_tail(w[1:] - w[0], jnp))


def pareto_shapes(log_w: Float[np.ndarray, "n m"]) -> Float[np.ndarray, " n"]:
    """`pareto_shape` of each row, by NumPy."""
    count = _of_largest(log_w.shape[1])
    if count < 5:
        return np.full(len(log_w), np.inf)
    largest = np.sort(np.partition(log_w, -count - 1, axis=1)[:, -count - 1 :], axis=1)
    w = np.exp(largest - largest[:, -1:])
    level = _level(np.exp(log_w - largest[:, -1:]), np)
    parts = np.array_split(w[:, 1:] - w[:, :1], max(len(w) // 128, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(level, -np.inf, np.concatenate([_of_tail(part, np) for part in parts]))


def _level(w: Any, xp: Any) -> Any:
    """Whether no weights of (..., m) are a tail that matters."""
    return xp.sum(xp.where(w > LEVEL * xp.mean(w, axis=-1, keepdims=True), w, 0), axis=-1) < SHARE * xp.sum(w, axis=-1)


def _of_largest(m: int) -> int:
    return int(min(m // 5, np.ceil(3 * np.sqrt(m))))


def _of_tail(tail: Any, xp: Any) -> Any:
    """Shapes of sorted excesses over the least of the largest weights (..., count); by `jax.numpy` or NumPy."""
    count, dtype = tail.shape[-1], tail.dtype
    even = tail[..., -1] <= 1e-10
    x = xp.where(even[..., None], xp.arange(1.0, count + 1, dtype=dtype), tail)
    places = 30 + int(np.sqrt(count))
    quarter = xp.maximum(x[..., int(count / 4 + 0.5) - 1], np.finfo(dtype).tiny * 1e10)
    steps = xp.asarray(1 - np.sqrt(places / (np.arange(1, places + 1) - 0.5)), dtype)
    b = 1 / x[..., -1:] + steps / (3 * quarter[..., None])
    shapes = xp.mean(xp.log1p(-b[..., None] * x[..., None, :]), axis=-1)
    fit = count * (xp.log(-b / shapes) - shapes - 1)
    fit = xp.where(xp.isnan(fit), -np.inf, fit)
    weight = xp.exp(fit - xp.max(fit, axis=-1, keepdims=True))
    b = xp.sum(b * weight, axis=-1, keepdims=True) / xp.sum(weight, axis=-1, keepdims=True)
    return xp.where(even, -np.inf, (count * xp.mean(xp.log1p(-b * x), axis=-1) + 5) / (count + 10))


def pooled(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Log of the mean of replicates of an estimate of exp (R, n), and its error by the delta method.

    $\log\bar p$ with $\mathrm{se} = s_p/(\bar p\sqrt R)$: estimates of a likelihood average, those of its logarithm do not.
    """
    logs = np.asarray(logs, float)
    top = logs.max(axis=0)
    with np.errstate(invalid="ignore"):
        ratios = np.exp(logs - np.where(np.isfinite(top), top, 0.0))
        mean = ratios.mean(axis=0)
        relative = ratios.std(axis=0, ddof=1) / mean / np.sqrt(len(logs))
    return np.where(np.isfinite(top), top + np.log(np.where(mean > 0, mean, 1.0)), top), relative
