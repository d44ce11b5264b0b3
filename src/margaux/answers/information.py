"""Information matrices, standard errors and Wald tests."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import numpy as np
import pandas as pd
import scipy

from ..esteps import AbstractEStep
from ..numerics.inverse import guarded
from ..numerics.wald import check_level, wald_table
from .rules import SAMPLE, Rule, best_rule
from .scores import Coordinates, Evaluation, evaluate, subsample, symmetrised

if TYPE_CHECKING:
    from jaxtyping import PyTree
    from numpy.typing import ArrayLike

    from .fit import Fit


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

    @property
    def se(self) -> np.ndarray:
        """Standard errors of the parameters (p,)."""
        with np.errstate(invalid="ignore"):
            return np.sqrt(np.diagonal(self.covariance))

    @property
    def se_error(self) -> np.ndarray:
        """Monte Carlo errors of the standard errors (p,): zero where they are exact."""
        count = len(self.replicates)
        if count == 1:
            return 0.0 * self.se
        with np.errstate(invalid="ignore"):
            each = np.sqrt(np.diagonal(self.replicates, axis1=1, axis2=2))
        return each.std(axis=0, ddof=1) / np.sqrt(count)

    @property
    def lowest(self) -> tuple[float, float]:
        """The lowest eigenvalue of the matrix scaled to a unit diagonal, and its Monte Carlo error."""
        scale = np.sqrt(np.abs(np.diagonal(self.matrix)))
        scale = np.where(scale > 0, scale, 1.0)
        one, *each = (np.linalg.eigvalsh(m / np.outer(scale, scale))[0] for m in (self.matrix, *self.matrices))
        return float(one), float(np.std(each, ddof=1) / np.sqrt(len(each))) if len(each) > 1 else 0.0


def information(
    fit: Fit,
    method: str = "louis",
    n_draws: int | None = None,
    estep: AbstractEStep | None = None,
    replicates: int = 1,
    rows: PyTree = None,
    evaluation: Evaluation | None = None,
) -> Information:
    r"""Observed information at the estimate.

    "louis": $I = \sum_i E[-\nabla^2\ell_i] - E[\nabla\ell_i\nabla\ell_i^T] + s_i s_i^T$ with
    $s_i = E[\nabla\ell_i]$ (Louis 1982); "opg": $\sum_i s_is_i^T$ minus its mean; "sandwich" (or "robust"):
    $I_L\,(\sum_i s_is_i^T)^{-1} I_L$. Expectations are taken by `best_rule` unless `estep` is given, and
    averaged over `replicates` of independent draws; `rows` are the E-step's, from `proposals`. `evaluation` has them already.

    Raises:
        ValueError: unknown method, or one that needs several units.
    """
    method = "sandwich" if method == "robust" else method
    if method not in ("louis", "opg", "sandwich"):
        raise ValueError(f'method must be "louis", "opg" or "sandwich" ("robust"), got {method!r}')
    problem, coordinates = fit._model(), Coordinates(fit)
    if method != "louis" and problem.n <= len(fit.names):
        raise ValueError(f'"{method}" needs more units ({problem.n}) than parameters ({len(fit.names)}); use method="louis"')
    flags, u = coordinates.edges(fit.params), coordinates.to(fit.params)
    if not np.all(np.isfinite(u)):
        k = u.size
        message = "the estimate is on the boundary of its space; the information does not exist there"
        nan = np.full((k, k), np.nan)
        covariance = np.full((flags.size, flags.size), np.nan)
        scores = np.full((problem.n, k), np.nan)
        return Information(nan, covariance, scores, covariance[0], message, nan[None], covariance[None])
    if evaluation is None:
        if estep is None:
            rule = best_rule(fit, n_draws=n_draws)
        else:
            width = getattr(estep, "n_draws", 1000)
            rule = Rule(estep, rows, replicates, width if isinstance(width, int) else 1000)
        evaluation = evaluate(fit, rule, fit.params, range(rule.replicates), second=method != "opg")
    jacobian, scores = coordinates.jacobian(u), evaluation.scores.mean(axis=0)

    def by(method: str, louis: np.ndarray, scores: np.ndarray) -> np.ndarray:
        if method == "louis":
            return louis
        outer = scores.T @ scores
        if method == "opg":
            return outer - np.outer(scores.mean(axis=0), scores.sum(axis=0))
        return symmetrised(louis @ np.linalg.solve(outer, louis))

    matrix = by(method, evaluation.matrix, scores)
    matrices = np.stack([by(method, m, s) for m, s in zip(evaluation.matrices, evaluation.scores, strict=True)])
    message, ess = "", evaluation.ess
    if np.any(ess < 20):
        message = f"the importance weights of unit {int(np.nanargmin(ess))} have an effective size of {np.nanmin(ess):.1f}; "
    inverse, trouble = _invert(matrix, jacobian, flags, fit.names)
    covariance, newton = _delta(inverse, jacobian, flags), jacobian @ inverse @ scores.sum(axis=0)
    newton[np.isnan(np.diagonal(covariance))] = np.nan
    each = np.stack([_delta(_invert(m, jacobian, flags, fit.names)[0], jacobian, flags) for m in matrices])
    return Information(matrix, covariance, scores, newton, (message + trouble).strip("; "), matrices, each)


def sampled(fit: Fit, method: str = "louis") -> Information:
    """The information of a fit of very many units, scaled up from a random sample of them."""
    some = subsample(fit, SAMPLE)
    share = some._model().n / fit._model().n
    info = information(some, method)
    return dataclasses.replace(
        info,
        matrix=info.matrix / share,
        covariance=info.covariance * share,
        matrices=info.matrices / share,
        replicates=info.replicates * share,
    )


def _delta(inverse: np.ndarray, jacobian: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """Covariance of the parameters; NaN on the boundary, and of those that no coordinate moves."""
    without = flags | ~np.any(jacobian != 0, axis=1)
    return np.where(without[:, None] | without, np.nan, jacobian @ inverse @ jacobian.T)


def _invert(matrix: np.ndarray, jacobian: np.ndarray, flags: np.ndarray, names: list[str]) -> tuple[np.ndarray, str]:
    """Inverse over the coordinates off the boundary (zero on it; NaN where it is not to be trusted), and what is wrong."""
    message = ""
    free = np.ones(matrix.shape[0], bool)
    if flags.any():
        edge = [name for name, flag in zip(names, flags, strict=True) if flag]
        message = f"on the boundary, without standard error: {', '.join(edge)}; "
        # A coordinate is dropped when only boundary parameters depend on it.
        free = np.abs(jacobian[~flags]).sum(axis=0) > 0 if (~flags).any() else ~free
    if not free.any():
        return np.full_like(matrix, np.nan), message
    inverse, trouble = guarded(matrix, free)
    if trouble:
        message += f"{trouble}: the fit is not at a maximum, or parameters are not identified; no standard errors are given"
    return inverse, message


def summary_table(fit: Fit, level: float = 0.95, method: str = "louis") -> pd.DataFrame:
    """See `Fit.summary`."""
    check_level(level)
    info = fit.information(method)
    estimate = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(fit.params)]).astype(float)
    frame = wald_table(estimate, info.se, level, fit.names, info.se_error)
    parts = (str(fit.certificate), fit.message, info.message)
    frame.attrs["message"] = "; ".join(dict.fromkeys(part.rstrip(".") for part in parts if part)) + "."
    return frame


@dataclasses.dataclass(frozen=True)
class WaldTest:
    """A Wald chi-squared test."""

    statistic: float
    df: int
    p: float


def wald_test(fit: Fit, contrast: str | list[str] | np.ndarray, value: ArrayLike = 0.0, method: str = "louis") -> WaldTest:
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
    gap = r @ estimate - np.asarray(value)
    covariance = fit.information(method).covariance
    used = np.abs(r).sum(axis=0) > 0
    variance = r[:, used] @ covariance[np.ix_(used, used)] @ r[:, used].T
    if not np.all(np.isfinite(variance)) or np.linalg.matrix_rank(variance) < r.shape[0]:
        why = fit.information(method).message or "the rows of the contrast are linearly dependent"
        raise ValueError(f"this contrast has no usable variance: {why}")
    statistic = float(gap @ np.linalg.solve(variance, gap))
    return WaldTest(statistic, r.shape[0], float(scipy.special.chdtrc(r.shape[0], statistic)))
