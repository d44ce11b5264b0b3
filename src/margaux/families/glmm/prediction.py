"""Predictions and simulations of a fitted mixed model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from ...numerics.precision import precision
from . import natural
from .model import fixed_effects

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .estimator import GLMM

KINDS = ("response", "link")


def predicted(
    model: GLMM,
    data: pd.DataFrame | None,
    re_form: str | None,
    kind: str,
    offset: str | ArrayLike | None,
    allow_new_levels: bool,
) -> np.ndarray:
    """The linear predictor, or the mean of the response, of the rows of the fit or of new ones.

    Args:
        re_form: None for the random effects given the data; "NA" for none, as of a group whose effects are zero.
        kind: "response" or "link". offset: of new rows, where that of the fit was an array.
        allow_new_levels: groups that the fit does not have get effects of zero instead of an error.

    Returns:
        (rows,). Of an ordinal response the mean number of the category, from zero on; of trials the probability of a success.

    Raises:
        ValueError: a group that the fit does not have, missing columns, unknown settings.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    conditional = _conditional(re_form)
    eta = predictor(model, data, conditional, offset, allow_new_levels)
    if kind == "link":
        return eta
    trials = model.design_.trials if data is None else None
    return mean_of(model, eta, None if trials is None else np.ones_like(eta))


def _conditional(re_form: str | None) -> bool:
    if re_form not in (None, "NA"):
        raise ValueError(f're_form must be None, for the random effects given the data, or "NA", for none, got {re_form!r}')
    return re_form is None


def predictor(
    model: GLMM, data: pd.DataFrame | None, conditional: bool, offset: Any = None, allow_new_levels: bool = False
) -> np.ndarray:
    """The linear predictor (rows,)."""
    design = model.design_
    rows: Any = design if data is None else design.new(data, offset=offset, random=conditional)
    eta = rows.X @ np.asarray(fixed_effects(model.result_.params), float) + rows.offset
    if not conditional:
        return eta
    for name, term in zip(model.layout_.names, rows.terms, strict=True):
        new = term.codes < 0
        if new.any() and not allow_new_levels:
            raise ValueError(
                f'row {int(np.flatnonzero(new)[0])} of the new data has a group of "{term.name}" that the fit does not have '
                f'({int(new.sum())} such rows); use allow_new_levels=True, or re_form="NA"'
            )
        means = model._effects[name][0]
        if term.Z.shape[1] != means.shape[1]:
            raise ValueError(f'the new data have places of "{term.name}" that the fit does not have; use re_form="NA"')
        eta = eta + np.where(new, 0.0, np.sum(term.Z * means[term.codes], axis=1))
    return eta


def mean_of(model: GLMM, eta: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
    """Of the response given the predictor."""
    response, dispersion = model.model_.response, model.result_.params["dispersion"]
    with precision(np.dtype(np.float64)):
        of = None if trials is None else jnp.asarray(trials)
        return np.asarray(response.mean(jnp.asarray(eta, float), dispersion, of))


def simulated(model: GLMM, n: int, re_form: str | None, random_state: int) -> pd.DataFrame:
    """New responses (rows, n) at the estimate.

    Args:
        re_form: "NA" draws new random effects, as for new groups; None keeps them at what the data say.

    Raises:
        ValueError: n is not positive, or re_form unknown.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    design, response = model.design_, model.model_.response
    dispersion, rng = model.result_.params["dispersion"], np.random.default_rng(random_state)
    held = predictor(model, None, True) if _conditional(re_form) else None
    fixed = predictor(model, None, False)
    out = {}
    for j in range(n):
        eta = fixed.copy() if held is None else held
        for factor, term in zip(model.model_.factors, design.terms, strict=True) if held is None else ():
            b = rng.normal(size=(len(term.labels), factor.k)) @ natural.root(factor, model.result_.params).T
            eta = eta + np.sum(term.Z * b[term.codes], axis=1)
        key = jax.random.key(int(rng.integers(2**31)))
        with precision(np.dtype(np.float64)):
            trials = None if design.trials is None else jnp.asarray(design.trials)
            out[f"sim_{j + 1}"] = np.asarray(response.simulate(key, jnp.asarray(eta), dispersion, trials))
    return pd.DataFrame(out)
