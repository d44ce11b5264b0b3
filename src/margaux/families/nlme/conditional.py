"""Conditional weighted residuals: of the model linearised at the conditional modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...numerics.compiling import compiled
from ...numerics.precision import precision
from . import answers
from .censoring import CENSORED
from .residuals import check_continuous

if TYPE_CHECKING:
    from jaxtyping import Array

    from .estimator import NLME


@compiled
def _residuals(model: Any, params: dict, modes: Array, units: dict, kept: Array) -> Any:
    r"""$(GRR^\top G^\top+\Sigma)^{-1/2}(y - f + G(\hat z - m))$ of each subject, with z ~ N(m, RR^T) and the symmetric root."""

    def unit(mode, y, kept):
        outcome, error = model.outcome, model.outcome.error.at(y["rows"])

        def prediction(z):
            return outcome.prediction(model.psi(params, z, y["design"]), y["rows"])

        def curve(z):
            return error.transformed(prediction(z))

        slope = jnp.where(kept[:, None], jax.jacfwd(curve)(mode), 0.0)
        centre, root = model.population(params, y)
        gap = jnp.where(kept, error.transformed(y["rows"]["y"]) - curve(mode), 0.0) + slope @ (mode - centre)
        both = kept[:, None] & kept[None]
        own = outcome.of_subject(params["error"], model.psi(params, mode, y["design"]))
        residual = jnp.where(both, error.covariance(own, prediction(mode)), jnp.eye(len(kept)))
        spread = slope @ root
        values, vectors = jnp.linalg.eigh(spread @ spread.T + residual)
        return vectors @ ((vectors.T @ gap) / jnp.sqrt(jnp.maximum(values, 1e-12 * values[-1])))

    return jax.vmap(unit)(modes, units, kept)


def conditional_residuals(fitted: NLME) -> np.ndarray:
    r"""CWRES of each observation, in the order of the data; NaN where y is a limit, which takes no part in those of its subject.

    Reference: Hooker, Staatz and Karlsson, Pharm. Res. 24 (2007), 2187-2197; errors as at the individual prediction.

    Raises:
        ValueError: the outcome is not continuous.
    """
    check_continuous(fitted, "conditional weighted residuals")
    data = fitted.data_
    kept = data.units["mask"] > 0
    if data.censored:
        kept = kept & (data.units["rows"][CENSORED] == 0)
    with precision(fitted.result_.dtype):
        modes = jnp.asarray(answers.modes(fitted))
        found = _residuals(fitted.model_, fitted.result_.params, modes, fitted._units(data), jnp.asarray(kept))
    flat = data.flat(np.where(kept, np.asarray(found, float), np.nan))
    return flat[np.argsort(data.frame.index.to_numpy(), kind="stable")]
