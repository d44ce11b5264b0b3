r"""Estimated marginal means: predictions over a grid of the fixed effects' columns, averaged, and their differences."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.special
import scipy.stats

from ...numerics.wald import check_level, interval
from .model import fixed_effects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .estimator import GLMM
    from .formula import Design
    from .links import AbstractLink

ADJUSTMENTS = ("tukey", "holm", "bonferroni", "none")
#: rows of a grid at most
LARGEST = 100_000


def typical(design: Design, data: pd.DataFrame) -> dict[str, Any]:
    """Of each column of the fixed effects its levels, a list, or its mean."""
    recipe = design.fixed.recipe
    return {
        name: list(recipe.levels[name]) if name in recipe.levels else float(np.mean(np.asarray(data[name], float)))
        for name in recipe.used
    }


@dataclasses.dataclass(frozen=True)
class MarginalMeans:
    """Estimated marginal means.

    Attributes:
        frame: a row a combination of `by`: "link" with its standard error "se" and interval "ci_low", "ci_high"; "response", its
            inverse link, with "response_se" (delta method), "response_low" and "response_high".
        weights: (rows, p), the linear functions of the fixed effects that the means are. covariance: (rows, rows) of the means.
        link: its name. level: of the intervals.
    """

    frame: pd.DataFrame
    weights: np.ndarray
    covariance: np.ndarray
    link: str
    level: float

    def contrasts(self, adjust: str = "tukey", scale: str = "link") -> pd.DataFrame:
        r"""All pairwise differences, the later minus the earlier.

        Args:
            adjust: of the p values for their number: "tukey" (the studentised range of so many means, exact where they are
                independent and equally precise, else conservative: Hayter 1984), "holm", "bonferroni", "none".
            scale: "link", or "response" by the delta method.

        Returns:
            A frame with "estimate", "se", "z", "p" and the interval, adjusted for tukey and bonferroni, else not; of the scale
            of a logarithm or logit also "ratio", the exponential of the estimate.

        Raises:
            ValueError: unknown settings, or a single mean.
        """
        if adjust not in ADJUSTMENTS:
            raise ValueError(f"adjust must be one of {', '.join(ADJUSTMENTS)}, got {adjust!r}")
        if scale not in ("link", "response"):
            raise ValueError(f'scale must be "link" or "response", got {scale!r}')
        k = len(self.frame)
        if k < 2:
            raise ValueError("there is one mean, and nothing to compare it with; name other columns in by=")
        pairs = list(itertools.combinations(range(k), 2))
        mean, covariance = self.frame["link"].to_numpy(), self.covariance
        if scale == "response":
            slopes = (self.frame["response_se"] / self.frame["se"]).to_numpy()
            mean, covariance = self.frame["response"].to_numpy(), covariance * np.outer(slopes, slopes)
        select = np.zeros((len(pairs), k))
        for row, (i, j) in enumerate(pairs):
            select[row, i], select[row, j] = -1.0, 1.0
        estimate = select @ mean
        se = np.sqrt(np.maximum(np.einsum("ri,ij,rj->r", select, covariance, select), 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            z = estimate / se
        low, high = _contrast_interval(estimate, se, k, len(pairs), adjust, self.level)
        columns = {"estimate": estimate, "se": se, "z": z, "p": adjusted(z, k, adjust), "ci_low": low, "ci_high": high}
        if scale == "link" and self.link in ("log", "logit"):
            columns["ratio"] = np.exp(estimate)
        labels = [_label(value) for value in self.frame.index]
        return pd.DataFrame(columns, index=[f"{labels[j]} - {labels[i]}" for i, j in pairs])


def _label(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def adjusted(z: np.ndarray, k: int, adjust: str) -> np.ndarray:
    """Two-sided p values of differences between k means, for all of them together."""
    p = 2 * scipy.special.ndtr(-np.abs(z))
    if adjust == "tukey":
        return np.clip(scipy.stats.studentized_range.sf(np.sqrt(2) * np.abs(z), k, np.inf), 0.0, 1.0)
    if adjust == "bonferroni":
        return np.minimum(1.0, p * len(p))
    if adjust == "holm":
        order = np.argsort(p)
        steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
        out = np.empty_like(p)
        out[order] = np.minimum(1.0, steps)
        return out
    return p


def _contrast_interval(
    estimate: np.ndarray, se: np.ndarray, k: int, count: int, adjust: str, level: float
) -> tuple[np.ndarray, np.ndarray]:
    if adjust == "tukey":
        half = float(scipy.stats.studentized_range.ppf(level, k, np.inf)) / np.sqrt(2) * se
        return estimate - half, estimate + half
    return interval(estimate, se, 1 - (1 - level) / count if adjust == "bonferroni" else level)


def marginal_means(
    model: GLMM, by: str | list[str] | tuple[str, ...], at: Mapping[str, Any] | None, level: float
) -> MarginalMeans:
    r"""Means of the linear predictor for each combination of levels of some columns, all others averaged over.

    The grid has every level of each category, and every number at its mean unless `at` says otherwise (Searle, Speed and
    Milliken 1980). Over categories that are not in `by` means are taken with equal weights: with rows $x$ of the grid,
    $\bar x^\top\hat\beta$ with variance $\bar x^\top V\bar x$. The offset is its mean. Random effects are zero: on the scale of
    the response these are typical groups, not averages over them, and of responses with zeros of their own the part beyond
    those.

    Args:
        by: columns of the fixed effects. at: column -> value or values; those of several values join the grid.
        level: of the intervals.

    Raises:
        ValueError: a column that the fixed effects do not have, or a level that the fit does not have.

    References: Searle, Speed and Milliken, Am. Stat. 34 (1980), 216-221.
    """
    check_level(level)
    by = [by] if isinstance(by, str) else list(by)
    grid = _grid(model.typical_, by, dict(at or {}))
    design = model.design_
    X = design.fixed.new(grid)
    names = [name for name in grid.columns if name in by]
    groups = grid.groupby(names, sort=False, observed=True).ngroup().to_numpy()
    weights = np.zeros((groups.max() + 1, len(grid)))
    weights[groups, np.arange(len(grid))] = 1.0
    weights = (weights / weights.sum(axis=1, keepdims=True)) @ X
    V = model.cov_params().loc[design.names, design.names].to_numpy()
    covariance = weights @ V @ weights.T
    mean = weights @ np.asarray(fixed_effects(model.result_.params), float) + float(design.offset.mean())
    first = grid.groupby(names, sort=False, observed=True).head(1)
    index = (
        pd.Index(first[names[0]].tolist(), name=names[0])
        if len(names) == 1
        else pd.MultiIndex.from_frame(pd.DataFrame(first[names]))
    )
    se = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    low, high = interval(mean, se, level)
    frame = pd.DataFrame({"link": mean, "se": se, "ci_low": low, "ci_high": high}, index=index)
    link = _link(model)
    if link is not None:
        frame["response"], frame["response_se"] = link.mean_of(mean), np.abs(_slope(link, mean)) * se
        ends = np.sort(np.stack([link.mean_of(low), link.mean_of(high)]), axis=0)
        frame["response_low"], frame["response_high"] = ends
    return MarginalMeans(frame, weights, covariance, "" if link is None else link.name, level)


def _link(model: GLMM) -> AbstractLink | None:
    """Of the response's mean; None of categories."""
    response: Any = model.model_.response
    response = getattr(response, "response", response)
    return None if "thresholds" in response.dispersion else response.link


def _slope(link: AbstractLink, eta: np.ndarray) -> np.ndarray:
    r"""$d\mu/d\eta$."""
    step = 1e-5 * np.maximum(1.0, np.abs(eta))
    return (link.mean_of(eta + step) - link.mean_of(eta - step)) / (2 * step)


def _grid(known: dict[str, Any], by: list[str], at: dict[str, Any]) -> pd.DataFrame:
    unknown = [name for name in (*by, *at) if name not in known]
    if unknown or not by:
        what = f'"{unknown[0]}" is no column of the fixed effects' if unknown else "by= names no column"
        raise ValueError(f"{what}; " + (f"they are {', '.join(known)}" if known else "the formula has none"))
    values = {name: list(value) if isinstance(value, list) else [value] for name, value in known.items()}
    for name, chosen in at.items():
        values[name] = [chosen] if isinstance(chosen, str) or np.ndim(chosen) == 0 else list(chosen)
    size = int(np.prod([len(one) for one in values.values()]))
    if size > LARGEST:
        raise ValueError(f"the grid has {size:,} rows, and at most {LARGEST:,}; hold columns at a value by at=")
    order = [*by, *(name for name in values if name not in by)]
    rows = list(itertools.product(*(values[name] for name in order)))
    return pd.DataFrame(rows, columns=order)
