"""Where the fits of many responses begin: regressions without random effects, all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .fitting import is_measured, moderate, sensible, unit_of
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
    beta = np.concatenate([_regressed(outcomes, response, fitted[first : first + size]) for first in range(0, len(fitted), size)])
    # Looked up once: equinox makes a method anew each time that it is named.
    dispersion_of = response.start_dispersion
    found = []
    for r, own in zip(fitted.tolist(), beta, strict=True):
        offset = outcomes.columns["offset"][r] if "offset" in outcomes.columns else design.offset
        found.append(dispersion_of(outcomes.columns["y"][r], design.X @ own + offset, outcomes.trials(r)))
    dispersion = {name: np.stack([np.asarray(one[name], float) for one in found]) for name in found[0]}
    units = np.array([unit_of(response, one) for one in found]) if is_measured(response) else np.ones(len(found))
    each = {unit: moderate(design, layout, unit) for unit in np.unique(units).tolist()}
    effects, sizes = jax.tree.map(lambda *leaf: np.stack(leaf), *(each[unit] for unit in units.tolist()))
    return {"beta": beta, "dispersion": dispersion} | effects, units[:, None] * sensible(design), sizes


def _regressed(outcomes: Outcomes, response: AbstractResponse, some: np.ndarray) -> np.ndarray:
    """Coefficients (m, p)."""
    design, columns = outcomes.design, outcomes.columns
    first_look = response.crude
    crude = [first_look(columns["y"][r], outcomes.trials(r)) for r in some.tolist()]
    together = crude[0]._replace(
        target=np.stack([one.target for one in crude]),
        begin=np.stack([one.begin for one in crude]),
        weights=np.stack([one.weights for one in crude]),
    )
    offset = columns["offset"][some] if "offset" in columns else design.offset
    weights = columns["weight"][some] if "weight" in columns else design.weights
    return coefficients(together, design.X, offset, weights)
