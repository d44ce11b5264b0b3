"""Where the fits of many responses begin: regressions without random effects, all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .fitting import beside
from .starts import coefficients

if TYPE_CHECKING:
    from .base import AbstractResponse
    from .layout import Layout
    from .many_outcomes import Outcomes

#: numbers of responses and rows that are regressed together
TOGETHER = 2_000_000


def started(outcomes: Outcomes, response: AbstractResponse, layout: Layout) -> tuple[dict[str, Any], np.ndarray, dict[str, Any]]:
    """Parameters, sizes of fixed effects that matter (R, p), and moderate spreads of effects, of those that can be fitted: see
    `Start`."""
    design, fitted = outcomes.design, outcomes.fitted
    size = max(TOGETHER // len(design.y), 1)
    found = []
    for first in range(0, len(fitted), size):
        some = fitted[first : first + size]
        for r, beta in zip(some.tolist(), _regressed(outcomes, response, some), strict=True):
            found.append(beside(beta, outcomes.of(r), response, layout))
    params, sizes = (
        jax.tree.map(lambda *leaf: np.stack(leaf), *part) for part in ([s.params for s in found], [s.sizes for s in found])
    )
    return params, np.stack([start.scale for start in found]), sizes


def _regressed(outcomes: Outcomes, response: AbstractResponse, some: np.ndarray) -> np.ndarray:
    """Coefficients (m, p)."""
    design, columns = outcomes.design, outcomes.columns
    trials = columns.get("trials")
    crude = [response.crude(columns["y"][r], design.trials if trials is None else trials[r]) for r in some.tolist()]
    together = crude[0]._replace(
        target=np.stack([one.target for one in crude]),
        begin=np.stack([one.begin for one in crude]),
        weights=np.stack([one.weights for one in crude]),
    )
    offset = columns["offset"][some] if "offset" in columns else design.offset
    weights = columns["weight"][some] if "weight" in columns else design.weights
    return coefficients(together, design.X, offset, weights)
