"""Fixed effects that have run into a bound of their distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .individual import Bounded

if TYPE_CHECKING:
    from .estimator import NLME

#: share of the range that is no distance from its end
NEXT_TO = 1e-6


def reached(fitted: NLME) -> dict[str, float]:
    """Parameters that are the same in all subjects, without covariates, whose estimate is next to a bound; and that bound.

    There the likelihood rises towards the bound, which is the estimate, and on the logit scale it is flat.
    """
    out = {}
    for name, one in fitted.model_.individual:
        changes = one.random or one.occasion or one.covariates
        if not isinstance(one, Bounded) or changes or name in fitted.held_:
            continue
        share = (fitted.params_[name] - one.low) / (one.high - one.low)
        if min(share, 1 - share) < NEXT_TO:
            out[name] = one.low if share < NEXT_TO else one.high
    return out


def note(fitted: NLME) -> str:
    """Which they are, in words; "" if there are none."""
    told = ", ".join(f"{name} = {bound:g}" for name, bound in reached(fitted).items())
    if not told:
        return ""
    return f"{told} at a bound of its distribution: it has no standard error, and those of the others take it as given"


def moving(fitted: NLME, jacobian: np.ndarray, names: dict[str, str]) -> np.ndarray:
    """Which unconstrained coordinates are of other parameters, (k,).

    Args:
        jacobian: of the flat parameters in the coordinates (p, k). names: of the engine's parameters in `params_`.
    """
    still = [names.get(place) in reached(fitted) for place in fitted.result_.names]
    return ~np.any(jacobian[still] != 0, axis=0)
