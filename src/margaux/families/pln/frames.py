"""Answers of a fit of PLN-PCA as data frames with the names of its units, features and covariates."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from ...numerics.wald import wald_table
from .importance import Marginal
from .table import Table

#: what importance sampling finds of each unit
QUALITY = ("loglik", "error", "draws", "ess", "pareto", "kl_from_proposal", "kl_from_conditional")


def components(q: int) -> list[str]:
    """Names of the q components.

    >>> components(2)
    ['PC1', 'PC2']
    """
    return [f"PC{j + 1}" for j in range(q)]


def coefficients(
    table: Table, estimate: Float[np.ndarray, "k p"], errors: Float[np.ndarray, "k p"], level: float
) -> pd.DataFrame:
    """Estimate, standard error, z, p and interval, a row a covariate and feature.

    Raises:
        ValueError: the level is no probability.
    """
    index = pd.MultiIndex.from_product([table.covariate_names, table.features], names=["covariate", "feature"])
    return wald_table(estimate.ravel().astype(float), errors.ravel(), level, index)


def by_feature(table: Table, values: Float[np.ndarray, "p c"], columns: pd.Index | list[str] | None = None) -> pd.DataFrame:
    """A row a feature, and a column a component unless others are named."""
    columns = pd.Index(components(values.shape[1])) if columns is None else columns
    return pd.DataFrame(values, index=table.features, columns=columns)


def by_unit(table: Table, values: Float[np.ndarray, "n q"]) -> pd.DataFrame:
    """A row a unit and a column a component."""
    return pd.DataFrame(values, index=table.units, columns=pd.Index(components(values.shape[1])))


def quality(units: pd.Index, found: Marginal) -> pd.DataFrame:
    """What importance sampling says of each unit: a row a unit."""
    return pd.DataFrame({name: getattr(found, name) for name in QUALITY}, index=units)


def everywhere(kept: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Rows of the units that have an offset among all, NaN for the others."""
    out = np.full((len(kept), *values.shape[1:]), np.nan, values.dtype)
    out[kept] = values
    return out
