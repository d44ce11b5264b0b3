"""What is said of a Laplace approximation of a network: whether its mode was found, and how its scales were chosen.

A scale at its bound is what was asked for, and nothing would change it: a fit that ends there has converged, and its certificate
says "careful". One whose mode or scales would still move, or whose evidence fell, has not converged.
"""

from __future__ import annotations

import numpy as np

from ...answers.certificate import Check
from .approximation import Found

#: how much higher the log posterior may be than where the mode was taken
NEAR = 0.05
NAMES = {"full": "in full", "kronecker": "by Kronecker factors of its layers", "diagonal": "by its diagonal"}
UNSETTLED = "The scales of the prior and the noise still changed from one mode to the next."
SETTLED, ONCE = "The scales of the prior and the noise have settled.", "The scales were chosen once, at the end of the training."
FELL = "The log evidence fell by {:.2g} at the scales that were to raise it, and the best are kept."
HELD = "The layers before the last are too large for the evidence, and were trained with the noise and prior of the start."


def converged(found: Found) -> bool:
    """Whether mode and scales would stay where they are."""
    return bool(found.away < NEAR and found.settled is not False)


def checks_of(found: Found, unseen: bool = False) -> tuple[Check, ...]:
    """Of mode and scales.

    Args:
        unseen: whether layers are held whose weights no evidence was of.
    """
    held = (Check("layers", np.nan, np.nan, np.nan, "careful", HELD),) if unseen else ()
    return (_of_mode(found.away), _of_scales(found), *held)


def _of_mode(away: float) -> Check:
    if away < NEAR:
        return Check("mode", away, np.nan, NEAR, "pass", "The mode was found.")
    said = f"The log posterior is about {away:.2g} higher elsewhere than where the mode was taken: raise epochs=."
    return Check("mode", away, np.nan, NEAR, "careful", said)


def _of_scales(found: Found) -> Check:
    unsettled = [FELL.format(found.fell) if found.fell else UNSETTLED] if found.settled is False else []
    if said := [*unsettled, *found.said]:
        return Check("scales", np.nan, np.nan, np.nan, "careful", " ".join(said))
    return Check("scales", np.nan, np.nan, np.nan, "pass", ONCE if found.settled is None else SETTLED)
