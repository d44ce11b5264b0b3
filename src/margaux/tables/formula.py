"""Designs from formulas."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pandas as pd

from .faults import fault

#: names of columns with plus signs between them
_SUM = re.compile(r"\s*[^\W\d]\w*(\s*\+\s*[^\W\d]\w*)*\s*")


class Columns(NamedTuple):
    """What a formula that is a sum of numeric columns stands for, as a specification of formulaic would say it."""

    names: tuple[str, ...]

    def get_model_matrix(self, table: pd.DataFrame) -> pd.DataFrame:
        """An intercept, and its columns of a table. Raises: ValueError: one is not there, or is not numeric as it was."""
        for name in self.names:
            if name not in table.columns or not _numeric(table[name]):
                found = "no column" if name not in table.columns else f"of type {table[name].dtype}"
                raise ValueError(f"{name} is {found} in this table; it was a column of numbers in that of the fit")
        intercept = pd.Series(1.0, table.index, name="Intercept")
        return pd.concat([intercept, table[list(self.names)]], axis=1)


def sum_of_columns(formula: str, table: pd.DataFrame) -> Columns | None:
    """The columns of a formula that is but a sum of numeric ones, None for all others.

    It is read without formulaic, whose import is a twelfth of a fit whose programs are at hand.

    >>> sum_of_columns("age + weight", pd.DataFrame({"age": [40.0], "weight": [70.0]}))
    Columns(names=('age', 'weight'))
    """
    if not _SUM.fullmatch(formula):
        return None
    names = tuple(dict.fromkeys(part.strip() for part in formula.split("+")))
    plain = all(list(table.columns).count(name) == 1 and _numeric(table[name]) for name in names)
    return Columns(names) if plain else None


def _numeric(column: Any) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


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
