"""Parameters of one mixed-effects model as those of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import classes, shaped

if TYPE_CHECKING:
    from .model import MixedEffects


def carried_over(source: MixedEffects, target: MixedEffects, params: dict) -> dict[str, Any]:
    """Parameters of one model as those of another with the same coefficients but other random effects."""
    values = np.concatenate([np.ravel(params.get(name, ())) for name in ("beta", "fixed")])
    shifts = np.concatenate([np.ravel(params.get(name, ())) for name in ("delta", "drift")])
    moved, shifted = np.zeros(len(values)), np.zeros(len(shifts))
    for j in range(len(source.names)):
        moved[target.coefficients(j)] = values[source.coefficients(j)]
        shifted[target.shifts(j)] = shifts[source.shifts(j)]
    variances = np.full(len(source.names), 1.0)
    matrix = np.diag(variances)
    matrix[np.ix_(source.random, source.random)] = source.covariances(params) if source.random else 0.0
    out: dict[str, Any] = {"beta": moved[: target.split]} if target.random else {}
    if target.split < len(target.owner):
        out["fixed"] = moved[target.split :]
    out |= {"delta": shifted[: target.followed]} if target.followed else {}
    out |= {"drift": shifted[target.followed :]} if target.drifting else {}
    random = np.asarray(target.random, int)
    if target.independent:
        own = random[target.independent]
        out["omega2"] = matrix[own, own]
    if target.blocks:
        out["omega"] = tuple(matrix[np.ix_(random[list(block)], random[list(block)])] for block in target.blocks)
    if target.varying:
        places = [source.varying.index(j) for j in target.varying]
        out["gamma2"] = np.asarray(params["gamma2"])[places]
    if target.shaped:
        out["shape"] = shaped.carried_over(source, target, params)
    out |= classes.carried_over(source, target, params)
    return out | ({"error": np.asarray(params["error"])} if "error" in params else {})
