"""Intervals and t tests of the parameters of a nonlinear mixed-effects model, each on the scale that it is normal on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy

from ...numerics.precision import precision
from ...numerics.wald import check_level
from . import classes, shaped
from .answers import engine_names
from .individual import Individual, LogitNormal, LogNormal, Normal
from .outcomes import PRESENT

if TYPE_CHECKING:
    from .estimator import NLME


def scales(fitted: NLME) -> dict[str, Individual]:
    """The distribution whose Gaussian scale a parameter's interval is taken on."""
    out: dict[str, Individual] = {}
    individual = dict(fitted.model_.individual)
    for name in fitted.params_:
        positive = name.startswith(("omega2_", "gamma2_")) or name in fitted.model_.outcome.error_names
        out[name] = individual.get(name, LogNormal() if positive else Normal())
    return out | shaped.scales(fitted) | dict.fromkeys(classes.share_names(fitted.model_), LogitNormal())


def with_intervals(fitted: NLME, frame: pd.DataFrame, level: float) -> pd.DataFrame:
    """See `NLME.summary`."""
    check_level(level)
    out = frame.copy()
    df = degrees_of_freedom(fitted)
    out["t"] = out["estimate"] / out["se"]
    # No variance is negative: zero is the edge of its space, where t has no t distribution. See `lr_test`. Without a share a
    # class has no shift, and without a shift no share.
    edges = {*shaped.scales(fitted), *classes.names(fitted.model_)}
    out.loc[[name.startswith(("omega2_", "gamma2_")) or name in edges for name in out.index], "t"] = np.nan
    out["p"] = 2 * scipy.special.stdtr(df, -np.abs(out["t"].to_numpy()))
    ends = []
    halves = scipy.special.stdtrit(df, 0.5 + level / 2)
    with precision(np.dtype(np.float64)):
        for (_, row), one, half in zip(out.iterrows(), scales(fitted).values(), halves, strict=True):
            if not np.isfinite(row["se"]):
                ends.append((np.nan, np.nan))
                continue
            phi = float(one.gaussian(row["estimate"]))
            reach = half * row["se"] / one.slope(phi)
            ends.append(tuple(float(one.values(phi + sign * reach)) for sign in (-1, 1)))
    out["ci_low"], out["ci_high"] = np.asarray(ends).T
    out.attrs["message"] = frame.attrs["message"]
    return out


def degrees_of_freedom(fitted: NLME) -> np.ndarray:
    """Of Student's t: subjects less one for variances and covariances of random effects, and for classes; for the rest
    observations less subjects less parameters, the within-subject degrees of freedom (Pinheiro and Bates 2000, section 2.4.2).
    Of variances between occasions, occasions less subjects, and less such coefficients for those of covariates that change
    between them."""
    own = {*shaped.names(fitted.model_), *classes.names(fitted.model_)}
    between = [name.startswith(("omega2_", "cov_")) or name in own for name in fitted.params_]
    within = max(fitted.n_observations_ - fitted.n_subjects_ - fitted.n_params_, 1)
    out = np.where(between, max(fitted.n_subjects_ - 1, 1), within).astype(float)
    more = int(np.sum(fitted.data_.units.get(PRESENT, 0))) - fitted.n_subjects_
    out = np.where([name.startswith("gamma2_") for name in fitted.params_], max(more, 1), out)
    model = fitted.model_
    followed = [name for place, name in engine_names(model, fitted._design.labels).items() if place.startswith("delta")]
    return np.where([name in followed for name in fitted.params_], max(more - len(followed), 1), out)
