"""The model that was asked for, around a fit that left effects without variance out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...algorithms.updates import Problem
from ...numerics.precision import precision
from ...problem.penalty import NoPenalty
from ...problem.space import as_space
from . import notes, specification
from .between_models import carried_over
from .model import MixedEffects
from .start import plausible

if TYPE_CHECKING:
    from ...answers.fit import Fit
    from .estimator import NLME


def whole(fitted: NLME) -> Fit:
    """The fit with every effect that was asked for, those whose variance was estimated as zero with a plausible one; as it is
    where there are none. Its estimate is a start, not a maximum. Classes that the data did not ask for stay out."""
    left = dict(fitted.model_.individual)
    asked = {name: dataclasses.replace(one, classes=left[name].classes) for name, one in specification.individual(fitted).items()}
    if not notes.dropped(asked, left):
        return fitted.result_
    blocks = specification.blocks(fitted, asked)
    model, units = specification.built(specification.outcome_of(fitted), blocks, fitted.data_, asked, fitted.priors)
    return with_model(fitted.result_, model, units, _restored(fitted.model_, model, units, fitted.result_.params))


def with_model(fit: Fit, model: MixedEffects, units: dict, params: dict) -> Fit:
    """The fit around another model of its subjects, at some parameters of that."""
    with precision(fit.dtype):
        units = jax.tree.map(lambda leaf: np.asarray(leaf, fit.dtype), units)
        problem = Problem(model, as_space(model.space(), params), NoPenalty(), len(units["mask"]))
    return dataclasses.replace(fit, params=params, problem=problem, data=units, rows=None, polished=None)


def _restored(source: MixedEffects, target: MixedEffects, units: dict, params: dict) -> dict[str, Any]:
    """Parameters of a smaller model as those of the whole."""
    lost = [j for j in target.varying if j not in source.varying]
    known = dataclasses.replace(target, varying=source.varying) if lost else target
    out = carried_over(source, known, params)
    shifts = np.concatenate([np.ravel(out.pop(name, ())) for name in ("delta", "drift")])
    out |= {"delta": shifts[: target.followed]} if target.followed else {}
    out |= {"drift": shifts[target.followed :]} if target.drifting else {}
    wide = plausible(target, units, out)
    for place, j in enumerate(target.independent):
        if target.random[j] not in source.random:
            out["omega2"][place] = wide["omega2"][place]
    if target.varying:
        own = dict(zip(source.varying, np.ravel(params.get("gamma2", ())), strict=True))
        out["gamma2"] = np.asarray([own.get(j, wide["gamma2"][place]) for place, j in enumerate(target.varying)])
    return out
