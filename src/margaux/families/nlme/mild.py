"""Which differential equations are mild: solved by explicit steps, a tenth of the cost of implicit ones, in not many more."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...numerics.compiling import compiled
from .dosing import administered
from .dynamics import Dynamics
from .outcomes import DOSES
from .start import SOME, some_subjects, with_empty_subjects

if TYPE_CHECKING:
    from .model import MixedEffects


#: explicit steps that mild equations take at most, for each row and dose of a subject, and more
STEPS, MORE = 20, 500


def with_steps(outcome: Any, model: MixedEffects, units: dict) -> Any:
    """The outcome with the method that its differential equations are solved by, where it is left open.

    Explicit ones, where these solve the equations of some subjects at the starting values in few steps: their number is bound by
    the largest rate times the time there is, and not by the error. Where a parameter has no starting value it is not known
    what its rates are.

    Args:
        model, units: of this outcome.
    """
    dynamics = administered(outcome)
    if not isinstance(dynamics, Dynamics) or dynamics.stiff is not None or not np.all(np.isfinite(model.typical)):
        return outcome
    if importlib.util.find_spec("diffrax") is None or dynamics.linearity(tuple(sorted(model.names)), float) is not None:
        return outcome
    by_explicit = dataclasses.replace(dynamics, stiff=False)
    own = with_empty_subjects(some_subjects(units, 0, SOME))
    events = own["mask"].shape[1] + (2 * own["rows"][DOSES]["time"].shape[1] if DOSES in own["rows"] else 0)
    tried = _by(model.outcome, dataclasses.replace(by_explicit, max_steps=STEPS * events + MORE))
    psi = dict(zip(model.names, model.typical, strict=True))
    solved = np.asarray(_predicted(dataclasses.replace(model, outcome=tried), psi, own["rows"]))
    return _by(outcome, by_explicit) if np.all(np.isfinite(solved[own["mask"] > 0])) else outcome


def _by(outcome: Any, dynamics: Dynamics) -> Any:
    return dataclasses.replace(outcome, structural=dataclasses.replace(outcome.structural, function=dynamics))


@compiled
def _predicted(model: MixedEffects, psi: dict, rows: dict) -> jax.Array:
    return jax.vmap(lambda row: model.outcome.prediction(psi, row))(rows)
