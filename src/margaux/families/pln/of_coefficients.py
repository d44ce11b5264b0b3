"""What `PLNPCA` says of its coefficients."""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np
import pandas as pd

from ...numerics.precision import precision
from ...numerics.wald import check_level
from ...showing.parts import check_fitted
from . import frames
from .inference import Kind, default_covariance, standard_errors
from .table import Table


class OfCoefficients:
    """Standard errors, covariances, summaries and intervals."""

    coef_: np.ndarray
    loadings_: np.ndarray
    table_: Table
    _design: Any
    _double: Any

    @property
    def params_(self) -> dict[str, np.ndarray]:
        """`coef_` and `loadings_` by name."""
        check_fitted(self)
        return {"coef": self.coef_, "loadings": self.loadings_}

    @property
    def stderr_(self) -> dict[str, np.ndarray]:
        """Standard errors, shaped as `params_`: see `margaux.families.pln.inference`. Loadings, known up to a rotation, have
        none."""
        return {"coef": self._own_errors, "loadings": np.full_like(self.loadings_, np.nan, float)}

    @functools.cached_property
    def _own_errors(self) -> np.ndarray:
        return self._errors(None)

    def _errors(self, kind: Kind | None) -> np.ndarray:
        check_fitted(self)
        design, size = self._design(self.table_), self._sizes()
        with precision(np.dtype(float)):
            loadings, posterior = self._double()
            scaled = loadings._replace(B=np.asarray(loadings.B) * size[:, None])
            infinite = self.table_.diverging
            errors = (
                standard_errors(design._replace(x=design.x / size), scaled, posterior, kind, infinite=infinite) / size[:, None]
            )
        return np.where(infinite, np.nan, errors)

    def _sizes(self) -> np.ndarray:
        """Root mean squares of the covariates over all units."""
        share = self.table_.counts.share
        return np.sqrt(share.summed(np.sum(self.table_.x**2, axis=0)) / share.n)

    def _covariance(self, kind: Kind | None) -> np.ndarray:
        """Of the coefficients, (kp, kp); NaN of those that are infinite."""
        design, size = self._design(self.table_), self._sizes()
        with precision(np.dtype(float)):
            loadings, posterior = self._double()
            scaled = loadings._replace(B=np.asarray(loadings.B) * size[:, None])
            found = default_covariance(design._replace(x=design.x / size), scaled, posterior, kind, self.table_.diverging)
        scale = np.where(self.table_.diverging, np.nan, 1 / size[:, None]).ravel()
        return found * np.outer(scale, scale)

    def cov_params(self, errors: Literal["model", "robust"] = "model") -> pd.DataFrame:
        """Covariance of the coefficients, with the rows of `summary` both ways.

        Raises:
            ValueError: of too many coefficients for a matrix: see `margaux.families.pln.inference`.
        """
        check_fitted(self)
        matrix = self._covariance("robust" if errors == "robust" else None)
        index = self.summary().index
        return pd.DataFrame(matrix, index=index, columns=index)

    def summary(self, level: float = 0.95, errors: Literal["model", "robust"] = "model") -> pd.DataFrame:
        """Coefficients: estimate, standard error, z, p and interval, a row a covariate and feature.

        Args:
            errors: "model", or "robust" for the sandwich, which holds where counts are not Poisson given the latents.

        Raises:
            ValueError: another name of errors, or the sandwich of too many coefficients.
        """
        check_fitted(self)
        check_level(level)
        if errors not in ("model", "robust"):
            raise ValueError(f'errors must be "model" or "robust", not {errors!r}')
        return frames.coefficients(
            self.table_, self.coef_, self._own_errors if errors == "model" else self._errors("robust"), level
        )

    def conf_int(self, level: float = 0.95, errors: Literal["model", "robust"] = "model") -> pd.DataFrame:
        """Wald confidence intervals of the coefficients."""
        return self.summary(level, errors).filter(["ci_low", "ci_high"])
