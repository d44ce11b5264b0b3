"""Whether differential equations have solutions where subjects' posteriors lie: what has none counts as impossible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...answers.certificate import Check
from ...numerics.compiling import compiled
from ...numerics.precision import precision
from .answers import rule_of

if TYPE_CHECKING:
    from jaxtyping import Array

    from .estimator import NLME


NAN = float("nan")
#: standard deviations to either side of a posterior's centre that are looked at
REACH = 3.0


def check(fitted: NLME) -> Check | None:
    """Of predictions at the centres of posteriors and three standard deviations away along each axis; None for closed forms."""
    if not fitted.model_.costly:
        return None
    rows = rule_of(fitted).rows
    if rows is None:  # chains have no axes
        return None
    n, size = len(fitted.data_.labels), np.shape(rows["mean"])[-1]
    mean = np.reshape(rows["mean"], (n, -1, size))[:, 0]
    axes = np.moveaxis(np.reshape(rows["cholesky"], (n, -1, size, size))[:, 0], 2, 1)
    places = np.concatenate([mean[:, None], mean[:, None] + REACH * axes, mean[:, None] - REACH * axes], axis=1)
    with precision(fitted.result_.dtype):
        units = fitted._units(fitted.data_)
        predicted = np.asarray(_predictions(fitted.model_, fitted.result_.params, jnp.asarray(places, float), units))
    without = np.any(~np.isfinite(predicted) & (fitted.data_.units["mask"] > 0)[:, None], axis=2).any(axis=1)
    share = float(np.mean(without))
    if not without.any():
        return Check("solutions", share, NAN, 0.0, "pass", "The differential equations have solutions around every subject.")
    first = fitted.data_.labels[int(without.argmax())]
    sentence = (
        f"Within three posterior standard deviations of {int(without.sum())} of {n} subjects (the first: {first}) the "
        "differential equations have no solution, in so many steps or at all, which counts as impossible there: raise "
        "ode(max_steps=...), or take stiff=True, and see whether the answers stay."
    )
    return Check("solutions", share, NAN, 0.0, "careful", sentence)


@compiled
def _predictions(model: Any, params: dict, places: Array, units: dict) -> Array:
    def unit(z: Array, y: dict) -> Array:
        return jax.vmap(lambda z: model.outcome.prediction(model.psi(params, z, y["design"]), y["rows"]))(z)

    return jax.vmap(unit)(places, units)
