"""What a regression with missing covariates gives to ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from ...answers.arviz import about_estimator
from ...numerics.keys import key_of
from ...numerics.precision import precision
from ...showing.arviz import Parts
from ...showing.parts import check_fitted

if TYPE_CHECKING:
    from .estimator import MissingGLM


def arviz_parts(fitted: MissingGLM, n_draws: int, key: int) -> Parts:
    """Missing entries of the covariates, drawn exactly and independently.

    The log-likelihood is that of the rows with holes: the outcome of the others depends on no latent.
    """
    check_fitted(fitted)
    table, params = fitted.table_, fitted.params_
    row, column = np.nonzero(np.isnan(table.x))
    if not len(row):
        raise ValueError("the covariates have no missing entry: the model has no latent to draw")
    filled, open_rows = fitted.impute(n_draws, key), np.unique(row)
    family, classes = fitted._family(), table.classes
    slopes = np.atleast_2d(params["coef"])
    eta = filled @ slopes.T + np.ravel(params["intercept"])
    eta = np.moveaxis(eta, -1, 0) if np.ndim(params["coef"]) == 2 else eta[..., 0] + table.offset
    scale = () if np.ndim(params["coef"]) == 2 else (params.get("scale", 1.0),)

    def density() -> dict[str, np.ndarray]:
        with precision(np.dtype(float)):
            y = jnp.broadcast_to(jnp.asarray(table.y), filled.shape[:2])
            return {"y": np.asarray(family.log_density(y, jnp.asarray(eta), *scale))[None][:, :, open_rows]}

    def predictive() -> dict[str, np.ndarray]:
        with precision(np.dtype(float)):
            return {"y": np.asarray(family.simulate(key_of(key), jnp.asarray(eta), *scale))[None]}

    names = [f"{table.names[k]}[{i}]" for i, k in zip(row, column, strict=True)]
    return Parts(
        {"x_missing": filled[None][:, :, row, column]},
        "independent draws of the exact posterior, one chain",
        dims={"x_missing": ["entry"], "y": ["row"], "X": ["row", "column"]},
        coords={"entry": names, "column": np.asarray(table.names, str)},
        beside={"entry_row": ("entry", row), "entry_column": ("entry", np.asarray(table.names, str)[column])},
        observed={"y": np.asarray(table.y)},
        constant={"X": np.asarray(table.x, float)},
        size=len(open_rows),
        log_likelihood=density,
        predictive=predictive,
        varying={"row": open_rows},
        attrs=about_estimator(fitted) | ({} if classes is None else {"classes": [str(one) for one in classes]}),
    )
