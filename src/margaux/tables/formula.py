"""Designs from formulas."""

from __future__ import annotations

from typing import Any

import pandas as pd

from .faults import fault


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
        raise ValueError(f'cannot build "{X}" from columns {known}: {fault(X, error)}') from error
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
