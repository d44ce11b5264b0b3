"""Information matrices, standard errors and Wald tests."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy
from jax.flatten_util import ravel_pytree

from ..esteps import AbstractEStep
from ..model import log_joints
from ..naming import default_dtype, precision
from ..space import boundary_flags
from .posterior import each_unit, reference_estep


@dataclasses.dataclass(frozen=True)
class Information:
    """Information about the parameters.

    Attributes:
        matrix: of the unconstrained coordinates (k, k). covariance: of the parameters (p, p), by the delta
            method; NaN where it is not to be trusted. scores: per unit (n, k), of the unconstrained coordinates.
        newton: what Newton's step by the scores would add to the parameters (p,), to first order; NaN as the covariance.
        matrices, replicates: the matrix (R, k, k) and covariance (R, p, p) from independent draws each, for
            their Monte Carlo error.
        message: "" or what is wrong.
    """

    matrix: np.ndarray
    covariance: np.ndarray
    scores: np.ndarray
    newton: np.ndarray
    message: str
    matrices: np.ndarray
    replicates: np.ndarray


@functools.lru_cache(maxsize=32)
def _louis(space_structure: Any, second: bool) -> Any:
    """f of `each_unit`: a unit's score, and E[-Hessian] - E[gradient gradient^T], in unconstrained coordinates.

    Cached, so that fits over the same kind of space share a compilation.
    """
    leaves, treedef = space_structure
    space = jax.tree.unflatten(treedef, [np.asarray(value).reshape(shape) for value, shape in leaves])

    def f(model, params, z, w, batch):
        u, back = ravel_pytree(space.to_unconstrained(params))
        value = lambda u: log_joints(model, space.from_unconstrained(back(u)), z, batch)[:, 0]  # noqa: E731
        gradients = jax.jacfwd(value)(u)
        out = {"score": w[:, 0] @ gradients}
        if second:
            hessian = jax.hessian(lambda u: w[:, 0] @ value(u))(u)
            out["complete"] = -hessian - (gradients * w).T @ gradients
        return out

    return f


def _frozen(space: Any) -> Any:
    leaves, treedef = jax.tree.flatten(space)
    return tuple((tuple(np.ravel(np.asarray(leaf)).tolist()), np.shape(leaf)) for leaf in leaves), treedef


def information(
    fit: Any,
    method: str = "louis",
    n_draws: int = 2000,
    estep: AbstractEStep | None = None,
    replicates: int = 1,
    rows: Any = None,
) -> Information:
    r"""Observed information at the estimate.

    "louis": $I = \sum_i E[-\nabla^2\ell_i] - E[\nabla\ell_i\nabla\ell_i^T] + s_i s_i^T$ with
    $s_i = E[\nabla\ell_i]$ (Louis 1982); "opg": $\sum_i s_is_i^T$ minus its mean; "sandwich":
    $I_L\,(\sum_i s_is_i^T)^{-1} I_L$. Expectations are taken by `reference_estep` unless `estep` is given, and
    averaged over `replicates` of independent draws; `rows` are the E-step's, from `proposals`.

    Raises:
        ValueError: unknown method, or one that needs several units.
    """
    if method not in ("louis", "opg", "sandwich"):
        raise ValueError(f'method must be "louis", "opg" or "sandwich", got {method!r}')
    problem = fit._model()
    if method != "louis" and problem.n <= len(fit.names):
        raise ValueError(f'"{method}" needs more units ({problem.n}) than parameters ({len(fit.names)}); use method="louis"')
    estep = reference_estep(fit, n_draws) if estep is None else estep
    dtype = default_dtype(None)
    with precision(dtype):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), fit.params)
        flags = np.asarray(boundary_flags(problem.space, params))
        interior = problem.space.project(params)
        u, unravel = ravel_pytree(problem.space.to_unconstrained(interior))
        jacobian = jax.jacobian(lambda v: ravel_pytree(problem.space.from_unconstrained(unravel(v)))[0])(u)
        jacobian = np.asarray(jacobian, float)
    needs_hessian = method != "opg"
    if not np.all(np.isfinite(u)):
        k = u.size
        message = "the estimate is on the boundary of its space; the information does not exist there"
        nan = np.full((k, k), np.nan)
        covariance = np.full((flags.size, flags.size), np.nan)
        scores = np.full((problem.n, k), np.nan)
        return Information(nan, covariance, scores, covariance[0], message, nan[None], covariance[None])
    integrand = _louis(_frozen(problem.space), needs_hessian)
    width = getattr(estep, "n_draws", 1000) * (u.size + 2)
    width = width if isinstance(width, int) else 4_000_000
    parts = [each_unit(fit, integrand, estep, width=width, key=r, rows=rows) for r in range(replicates)]
    matrices, scores = [], np.mean([np.asarray(out["score"], float) for out, _ in parts], axis=0)
    for out, _ in parts:
        own = np.asarray(out["score"], float)
        outer = own.T @ own
        if not needs_hessian:
            matrix = outer - np.outer(own.mean(0), own.sum(0))
        else:
            matrix = np.asarray(out["complete"], float).sum(axis=0) + outer
        if method == "sandwich":
            matrix = matrix @ np.linalg.solve(outer, matrix)
        matrices.append((matrix + matrix.T) / 2)
    message, info = "", parts[0][1]
    if "ess" in info and info["ess"].min() < 20:
        message = (
            f"the importance weights of unit {int(info['ess'].argmin())} have an effective size of {info['ess'].min():.1f}; "
        )
    matrix = np.mean(matrices, axis=0)
    inverse, trouble = _invert(matrix, jacobian, flags, fit.names)
    covariance, newton = _delta(inverse, jacobian, flags), jacobian @ inverse @ scores.sum(axis=0)
    newton[np.isnan(np.diagonal(covariance))] = np.nan
    each = np.stack([_delta(_invert(m, jacobian, flags, fit.names)[0], jacobian, flags) for m in matrices])
    return Information(matrix, covariance, scores, newton, (message + trouble).strip("; "), np.stack(matrices), each)


def _delta(inverse: np.ndarray, jacobian: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """Covariance of the parameters; NaN on the boundary."""
    return np.where(flags[:, None] | flags, np.nan, jacobian @ inverse @ jacobian.T)


def _invert(matrix: np.ndarray, jacobian: np.ndarray, flags: np.ndarray, names: list[str]) -> tuple[np.ndarray, str]:
    """Inverse over the coordinates off the boundary (zero on it; NaN where it is not to be trusted), and what is wrong."""
    message = ""
    free = np.ones(matrix.shape[0], bool)
    if flags.any():
        edge = [name for name, flag in zip(names, flags, strict=True) if flag]
        message = f"on the boundary, without standard error: {', '.join(edge)}; "
        # A coordinate is dropped when only boundary parameters depend on it.
        free = np.abs(jacobian[~flags]).sum(axis=0) > 0 if (~flags).any() else ~free
    inverse = np.full_like(matrix, np.nan)
    if not free.any():
        return inverse, message
    block = matrix[np.ix_(free, free)]
    scale = np.sqrt(np.abs(np.diagonal(block)))
    values = np.linalg.eigvalsh(block / np.outer(scale, scale)) if np.all(scale > 0) else np.array([0.0])
    if not np.all(np.isfinite(values)) or values[0] <= 1e-9 * max(values[-1], 1e-300):
        return inverse, message + (
            f"the information is singular or indefinite (scaled eigenvalues {values[0]:.2g} to {values[-1]:.2g}): "
            "the fit is not at a maximum, or parameters are not identified; no standard errors are given"
        )
    inverse[:] = 0
    inverse[np.ix_(free, free)] = np.linalg.inv(block)
    return inverse, message


def wald_table(fit: Any, level: float = 0.95, method: str = "louis") -> pd.DataFrame:
    """See `Fit.summary`."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    info = fit.information(method)
    estimate = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(fit.params)]).astype(float)
    se = np.sqrt(np.diagonal(info.covariance))
    z = estimate / se
    half = scipy.special.ndtri(0.5 + level / 2) * se
    frame = pd.DataFrame(
        {
            "estimate": estimate,
            "se": se,
            "z": z,
            "p": 2 * scipy.special.ndtr(-np.abs(z)),
            "ci_low": estimate - half,
            "ci_high": estimate + half,
        },
        index=fit.names,
    )
    frame.attrs["message"] = "; ".join(part.rstrip(".") for part in (fit.message, info.message) if part) + "."
    return frame


@dataclasses.dataclass(frozen=True)
class WaldTest:
    """A Wald chi-squared test."""

    statistic: float
    df: int
    p: float


def wald_test(fit: Any, contrast: Any, value: Any = 0.0, method: str = "louis") -> WaldTest:
    r"""$(R\hat\theta - r)^T(R V R^T)^{-1}(R\hat\theta - r)$: see `Fit.wald_test`.

    Raises:
        ValueError: an unknown name, a matrix of another width, or a contrast without variance.
    """
    names = fit.names
    if isinstance(contrast, str) or (isinstance(contrast, list | tuple) and all(isinstance(c, str) for c in contrast)):
        wanted = [contrast] if isinstance(contrast, str) else list(contrast)
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise ValueError(f'no parameter is called "{unknown[0]}"; they are {names}')
        r = np.eye(len(names))[[names.index(name) for name in wanted]]
    else:
        r = np.atleast_2d(np.asarray(contrast, float))
        if r.shape[1] != len(names):
            raise ValueError(f"the contrast has {r.shape[1]} columns, but there are {len(names)} parameters: {names}")
    estimate = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(fit.params)]).astype(float)
    gap = r @ estimate - value
    covariance = fit.information(method).covariance
    used = np.abs(r).sum(axis=0) > 0
    variance = r[:, used] @ covariance[np.ix_(used, used)] @ r[:, used].T
    if not np.all(np.isfinite(variance)) or np.linalg.matrix_rank(variance) < r.shape[0]:
        why = fit.information(method).message or "the rows of the contrast are linearly dependent"
        raise ValueError(f"this contrast has no usable variance: {why}")
    statistic = float(gap @ np.linalg.solve(variance, gap))
    return WaldTest(statistic, r.shape[0], float(scipy.special.chdtrc(r.shape[0], statistic)))
