"""What every estimator answers once it is fitted. Free of scikit-learn, whose import takes longer than most fits."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..showing.cards import Card, Shown, flat_table
from ..showing.parts import check_fitted
from . import keeping
from .certificate import Certificate
from .fit import Fit


class Answering(Shown):
    """What any estimator answers in the same way, by its `certificate_`."""

    certificate_: Certificate

    def diagnostics(self) -> pd.DataFrame:
        """What was looked at, a row a check: figure, Monte Carlo error, threshold, level and a sentence."""
        check_fitted(self)
        return self.certificate_.table()

    def save(self, path: str | Path) -> None:
        """Save the fitted estimator, data included; `margaux.load` reads it back.

        Raises:
            ValueError: something in it cannot be saved. OSError: the file cannot be written.
        """
        check_fitted(self)
        keeping.write(self, path)


class Fitted(Answering):
    """The answers of an estimator around `margaux.fit`, whose `fit` calls `_keep`.

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
            vars(self).pop(name, None)
        self.result_ = fit
        self.params_ = {name: value.item() if np.ndim(value) == 0 else np.asarray(value) for name, value in fit.params.items()}
        self.n_iter_, self.converged_, self.message_ = fit.n_iter, fit.converged, fit.message

    def _card(self) -> Card | None:
        if not hasattr(self, "result_"):
            return None
        table, count = flat_table(self.params_)
        if self._costs_nothing("summary"):
            table = self.summary()
            count = len(table)
        figures: dict[str, Any] = {"observations": self.n_observations_, "iterations": self.n_iter_}
        figures |= {"log-likelihood": repr(self.loglik_)} if self._costs_nothing("loglik") else {}
        return Card(type(self).__name__, self.message_, self.converged_, table, count, figures)

    def _costs_nothing(self, answer: str) -> bool:
        """Whether the "summary" or the "loglik" is there already."""
        return "loglik_" in self.__dict__ if answer == "loglik" else self.result_.known("certificate") is not None

    @property
    def certificate_(self) -> Certificate:  # type: ignore[override]
        """Whether this is the maximum, and its errors true: see `margaux.Fit.certificate`. Computed when first asked for."""
        check_fitted(self)
        return self.result_.certificate

    @property
    def plot(self) -> Any:
        """Figures of the fit: see `margaux.answers.plots.FitPlots`."""
        check_fitted(self)
        return self.result_.plot

    @functools.cached_property
    def stderr_(self) -> dict[str, Any]:
        """Standard errors, shaped as `params_`; NaN where they are not to be trusted."""
        check_fitted(self)
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
        check_fitted(self)
        return self.result_.loglik()

    @property
    def loglik_se_(self) -> float:
        """Monte Carlo error of `loglik_`."""
        return self.loglik_.se

    @property
    def n_params_(self) -> int:
        """Free scalar parameters."""
        return self.result_.n_params

    @property
    def aic_(self) -> float:
        """Akaike's criterion."""
        return -2 * float(self.loglik_) + 2 * self.n_params_

    @property
    def bic_(self) -> float:
        """Schwarz's criterion, by the number of observations."""
        return -2 * float(self.loglik_) + float(np.log(self.n_observations_)) * self.n_params_

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Estimate, standard error, z, p and interval, one named row a scalar parameter."""
        check_fitted(self)
        return self.result_.summary(level)

    def conf_int(self, level: float = 0.95) -> pd.DataFrame:
        """Wald confidence intervals."""
        return self.summary(level).filter(["ci_low", "ci_high"])

    def cov_params(self) -> pd.DataFrame:
        """Covariance of the estimates, with the names of `summary` both ways; NaN where it is not to be trusted."""
        check_fitted(self)
        return self.result_.cov_params()


class Parameters:
    """scikit-learn's protocol of settings (`get_params`, `set_params`, and so `clone`), without scikit-learn."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Settings by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **settings: Any) -> Any:
        """Change settings; returns the estimator.

        Raises:
            ValueError: a name that is no setting.
        """
        known = self.get_params()
        for name, value in settings.items():
            if name not in known:
                raise ValueError(f"{type(self).__name__} has no setting {name!r}; they are {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: one.default for name, one in inspect.signature(type(self)).parameters.items()}
        changed = (f"{name}={value!r}" for name, value in self.get_params().items() if value is not defaults[name])
        return f"{type(self).__name__}({', '.join(changed)})"
