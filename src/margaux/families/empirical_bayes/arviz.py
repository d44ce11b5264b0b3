"""What an empirical-Bayes regression gives to ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...answers.arviz import of_rows, renamed
from ...showing.arviz import Parts
from ...showing.parts import check_fitted

if TYPE_CHECKING:
    from .estimator import EmpiricalBayesLogistic


def arviz_parts(fitted: EmpiricalBayesLogistic, n_draws: int, key: int) -> Parts:
    """Coefficients of an empirical-Bayes regression."""
    check_fitted(fitted)
    own = getattr(fitted, "feature_names_in_", [f"x{j}" for j in range(fitted.n_features_in_)])
    names = (["intercept"] if fitted.fit_intercept else []) + [str(name) for name in own]
    parts = of_rows(fitted, n_draws, key, "x")
    return renamed(parts, "coefficients", ["coefficient"], {"coefficient": names}, {"x": ["row", "coefficient"]})
