"""What is to be said of a fit besides how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import bounds, classes, flipflop, membership
from .shaped import lost_shapes, note_of_shapes

if TYPE_CHECKING:
    from .estimator import NLME
    from .individual import Individual


def notes(fitted: NLME) -> list[str]:
    """Parameters of the same curve, at a bound, of tails and of classes, in words."""
    every = flipflop.note(fitted.structural, fitted.params_), bounds.note(fitted), note_of_shapes(fitted), membership.note(fitted)
    return [note for note in every if note]


def dropped(asked: Mapping[str, Individual], left: Mapping[str, Individual]) -> tuple[str, ...]:
    """Names, as in `params_`, of what was asked for and is not in the final model: variances that were estimated as zero, tails
    that are normal, classes that nobody is of."""
    out = [f"omega2_{name}" for name, one in asked.items() if one.random and not left[name].random]
    out += lost_shapes(asked.items(), left) + classes.lost(asked.items(), left)
    return tuple(out + [f"gamma2_{name}" for name, one in asked.items() if one.occasion and not left[name].occasion])
