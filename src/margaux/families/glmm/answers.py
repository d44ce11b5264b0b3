"""Answers of a fitted mixed model beyond its tables: residuals, tests, intervals, shares of variance, marginal means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...answers.fitted import Fitted
from ...showing.parts import check_fitted
from . import comparison, explained, goodness
from .intervals import BOOTSTRAP, conf_int
from .marginal_means import MarginalMeans, marginal_means
from .residuals import SIMULATIONS, residuals

if TYPE_CHECKING:
    from .estimator import GLMM


class Answers(Fitted):
    """What `margaux.GLMM` answers, each by a module of its own."""

    random_state: int

    def residuals(
        self,
        kind: str = "quantile",
        *,
        re_form: str | None = None,
        n_simulations: int = SIMULATIONS,
        random_state: int | None = None,
    ) -> np.ndarray:
        """Residuals (rows,): see `margaux.families.glmm.residuals.residuals`."""
        return residuals(_fitted(self), kind, re_form, n_simulations, self._seed(random_state))

    def check_residuals(self, n_simulations: int = SIMULATIONS, *, random_state: int | None = None) -> pd.DataFrame:
        """Tests of uniformity, dispersion, zeros and outliers: see `margaux.families.glmm.goodness.check_residuals`."""
        return goodness.check_residuals(_fitted(self), n_simulations, self._seed(random_state))

    def anova(self, *others: Any, n_boot: int | None = None, random_state: int | None = None) -> pd.DataFrame:
        """Likelihood-ratio tests of nested models, boundary mixtures and bootstraps included: see
        `margaux.families.glmm.comparison.anova`."""
        models = [_fitted(model) for model in (self, *others)]
        return comparison.anova(models, n_boot, self._seed(random_state))

    def conf_int(  # type: ignore[override]
        self,
        level: float = 0.95,
        *,
        method: str = "wald",
        parameters: str | list[str] | None = None,
        n_boot: int = BOOTSTRAP,
        random_state: int | None = None,
    ) -> pd.DataFrame:
        """Confidence intervals, Wald's, by profiles or by bootstrap: see `margaux.families.glmm.intervals.conf_int`."""
        return conf_int(_fitted(self), method, level, parameters, n_boot, self._seed(random_state))

    def r2(self) -> pd.DataFrame:
        """Marginal and conditional R squared: see `margaux.families.glmm.explained.r2`."""
        return explained.r2(_fitted(self))

    def icc(self) -> pd.DataFrame:
        """Adjusted and conditional intraclass correlation: see `margaux.families.glmm.explained.icc`."""
        return explained.icc(_fitted(self))

    def marginal_means(
        self, by: str | list[str] | tuple[str, ...], *, at: Mapping[str, Any] | None = None, level: float = 0.95
    ) -> MarginalMeans:
        """Estimated marginal means and their contrasts: see `margaux.families.glmm.marginal_means.marginal_means`."""
        return marginal_means(_fitted(self), by, at, level)

    def _seed(self, random_state: int | None) -> int:
        return self.random_state if random_state is None else random_state


def _fitted(model: Any) -> GLMM:
    if not isinstance(model, Answers):
        raise TypeError(f"this needs a fitted margaux.GLMM, got {type(model).__name__}")
    check_fitted(model)
    found: Any = model
    return found
