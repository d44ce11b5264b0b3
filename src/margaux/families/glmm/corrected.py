r"""The maximum of the exact likelihood of crossed factors, from that of Laplace's approximation.

Chord steps (Ortega and Rheinboldt 1970, section 7.1), $u\leftarrow u + I^{-1}\nabla\log p(y\mid u)$, with Laplace's information
$I$, which is near enough to the exact one; gradients alone are by weighted draws, the same ones at every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...answers.rules import laplace_rule
from ...answers.scores import Coordinates
from .elimination import weighed

if TYPE_CHECKING:
    from ...answers.fit import Fit

#: pairs of draws of a batch, batches of a step on the way, and those of its end, of which more are made until the error is small
PAIRS, FEW, ENOUGH, MOST = 64, 2, 4, 40
#: lengths in standard errors: of a step that ends the way, of an error that is small, and that steps are held to
CLOSE, SMALL, RADIUS = 0.02, 0.04, 1.0
#: steps at most
STEPS = 8


class Correction(NamedTuple):
    """What led from Laplace's estimate to the maximum of the exact likelihood.

    Attributes:
        moved: how far, in standard errors. left, error: the length of the next step, and its Monte Carlo error.
        even: the least share of draws that is effective.
    """

    moved: float
    left: float
    error: float
    even: float


def corrected(fit: Fit) -> tuple[Fit, Correction] | None:
    """A fit by Laplace's approximation at the maximum of the exact likelihood; None where there are no standard errors to step in
    units of, as at an edge."""
    matrix, coordinates = fit.information().matrix, Coordinates(fit)
    if not np.all(np.isfinite(matrix)) or np.linalg.eigvalsh(matrix)[0] <= 0 or np.isnan(fit.information().se).any():
        return None
    inverse, first = np.linalg.inv(matrix), coordinates.to(fit.params)
    u, even, batches = first, 1.0, FEW
    for count in range(STEPS + 1):
        step, error, share = _step(fit, coordinates, u, inverse, batches)
        even = min(even, share)
        length = float(np.sqrt(step @ matrix @ step))
        if not np.isfinite(length):
            return None
        if batches == ENOUGH and (length < CLOSE or count == STEPS):
            break
        u = u + step * min(1.0, RADIUS / max(length, 1e-300))
        if length < 5 * CLOSE:
            batches = ENOUGH
    moved = u - first
    return fit.at(coordinates.back(u)), Correction(float(np.sqrt(moved @ matrix @ moved)), length, error, even)


def _step(
    fit: Fit, coordinates: Coordinates, u: np.ndarray, inverse: np.ndarray, batches: int
) -> tuple[np.ndarray, float, float]:
    """A step, its Monte Carlo error in standard errors, and the least share of draws that is effective."""
    params = coordinates.back(u)
    mode, jacobian = laplace_rule(fit, params).rows["mean"][0], coordinates.jacobian(u)
    found = []
    while True:
        found.append(weighed(fit, params, mode, PAIRS, seed=1 + len(found)))
        if len(found) < batches:
            continue
        gradients = np.stack([one.gradient for one in found]) @ jacobian
        apart = gradients - gradients.mean(axis=0)
        error = float(np.sqrt(np.einsum("bi,ij,bj->", apart, inverse, apart) / (len(found) * (len(found) - 1))))
        if batches < ENOUGH or error < SMALL or len(found) == MOST:
            return inverse @ gradients.mean(axis=0), error, min(one.ess for one in found) / (2 * PAIRS)
