"""Estimates and their standard errors as a table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import scipy.special
from jaxtyping import Float


def check_level(level: float) -> None:
    """Raises: ValueError: not strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95, got {level}")


def interval(centre: np.ndarray, se: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the Gaussian interval that holds `level`."""
    check_level(level)
    half = scipy.special.ndtri(0.5 + level / 2) * se
    return centre - half, centre + half


def wald_table(
    estimate: Float[np.ndarray, " d"],
    se: Float[np.ndarray, " d"],
    level: float,
    index: list[str] | pd.Index,
    se_error: Float[np.ndarray, " d"] | None = None,
) -> pd.DataFrame:
    """Estimate, standard error (and its Monte Carlo error), z, two-sided p and interval, a row a parameter.

    Raises:
        ValueError: a level that is no probability.
    """
    low, high = interval(estimate, se, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = estimate / se
    columns = {"estimate": estimate, "se": se}
    columns |= {} if se_error is None else {"se_error": se_error}
    columns |= {"z": z, "p": 2 * scipy.special.ndtr(-np.abs(z)), "ci_low": low, "ci_high": high}
    return pd.DataFrame(columns, index=index)
