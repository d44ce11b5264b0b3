"""What every estimator shares: settings, formulas, and the answers of its fit."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ..result import Fit


class AbstractEstimator(BaseEstimator):
    """An estimator around `margaux.fit`. Subclasses set `result_` in `fit` and may override `_natural`.

    After `fit`: `params_` and `stderr_` (name -> value, natural scale), `loglik_` with `loglik_se_`, `aic_`,
    `bic_`, `n_iter_`, `converged_`, `message_`, `result_` (the `margaux.Fit`), `summary()`, `conf_int()`.
    Standard errors and likelihoods are computed when first asked for.
    """

    result_: Fit
    n_observations_: int
    n_features_in_: int

    def _keep(self, fit: Fit) -> None:
        """Take a finished fit as this estimator's."""
        for name in ("stderr_", "loglik_"):
            self.__dict__.pop(name, None)
        self.result_ = fit
        self.params_ = {name: value.item() if np.ndim(value) == 0 else np.asarray(value) for name, value in fit.params.items()}
        self.n_iter_, self.converged_, self.message_ = fit.n_iter, fit.converged, fit.message

    @functools.cached_property
    def stderr_(self) -> dict[str, Any]:
        """Standard errors, shaped as `params_`; NaN where they are not to be trusted."""
        check_is_fitted(self, "result_")
        flat, out, at = self.result_.summary()["se"].to_numpy(), {}, 0
        for name in sorted(self.result_.params):
            value = self.result_.params[name]
            size = np.size(value)
            out[name] = flat[at] if np.ndim(value) == 0 else flat[at : at + size].reshape(np.shape(value))
            at += size
        return out

    @functools.cached_property
    def loglik_(self) -> Any:
        """Marginal log-likelihood, every constant included."""
        check_is_fitted(self, "result_")
        return self.result_.loglik()

    @property
    def loglik_se_(self) -> float:
        """Monte Carlo error of `loglik_`."""
        return self.loglik_.se

    @property
    def aic_(self) -> float:
        """Akaike's criterion."""
        return -2 * float(self.loglik_) + 2 * self.result_.n_params

    @property
    def bic_(self) -> float:
        """Schwarz's criterion, by the number of observations."""
        return -2 * float(self.loglik_) + float(np.log(self.n_observations_)) * self.result_.n_params

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Estimate, standard error, z, p and interval, one named row a scalar parameter."""
        check_is_fitted(self, "result_")
        return self.result_.summary(level)

    def conf_int(self, level: float = 0.95) -> pd.DataFrame:
        """Wald confidence intervals."""
        return self.summary(level).filter(["ci_low", "ci_high"])


def design(X: Any, y: Any) -> tuple[Any, Any, Any]:
    """Arrays from arrays, or from a formula and a frame: `fit("y ~ a + b", frame)` as well as `fit(X, y)`.

    Returns:
        X, y, and the formula's specification (None for arrays), which builds the design of new frames.
        The intercept is left out of X: estimators add their own.

    Raises:
        ValueError: the formula names unknown columns, or holds missing values.
    """
    if not isinstance(X, str):
        return X, y, None
    import formulaic
    from formulaic.errors import FormulaicError

    if not isinstance(y, pd.DataFrame):
        raise TypeError(f"after a formula pass the data frame it is about, got {type(y).__name__}")
    if "~" not in X:
        raise ValueError(f'the formula "{X}" has no outcome; write it as "y ~ a + b"')
    try:
        parts = formulaic.model_matrix(X, y, na_action="raise")
    except (FormulaicError, NameError, KeyError, ValueError) as error:
        known = ", ".join(map(str, y.columns))
        raise ValueError(f'cannot build "{X}" from columns {known}: {error}') from error
    frame = parts.rhs.drop(columns=["Intercept"], errors="ignore")
    outcome = parts.lhs
    if outcome.shape[1] != 1:
        raise ValueError(f'the outcome of "{X}" makes {outcome.shape[1]} columns; it must be one numeric column')
    return pd.DataFrame(frame), outcome.iloc[:, 0].to_numpy(), parts.rhs.model_spec


def new_design(spec: Any, X: Any) -> Any:
    """The design of new data, by the formula of the fit where there was one."""
    if spec is None:
        return X
    return pd.DataFrame(spec.get_model_matrix(X)).drop(columns=["Intercept"], errors="ignore")
