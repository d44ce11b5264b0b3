"""Covariates of units as columns of a design, by a formula or as they are."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...tables.checks import check_category, is_number, level_codes, listed, numbers_of
from ...tables.faults import fault
from .checks import check_finite

if TYPE_CHECKING:
    from .kinds import Covariates


@dataclasses.dataclass(frozen=True)
class Spec:
    """How covariates are coded.

    Attributes:
        design: formulaic's specification, None of an intercept alone. columns: names of the covariates, None where there was a
            formula.
    """

    design: Any
    columns: list[str] | None


def plain(covariates: Covariates) -> pd.DataFrame:
    """Covariates as a data frame with names that are text, rows counted from zero, and numbers where there are numbers."""
    if isinstance(covariates, pd.Series):
        covariates = covariates.to_frame("x0" if covariates.name is None else covariates.name)
    elif not isinstance(covariates, pd.DataFrame):
        values = np.asarray(covariates)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2:
            raise ValueError(f"covariates must be a table, a row a unit, got shape {values.shape}")
        if values.dtype.kind in "USO":
            values = pd.DataFrame(values).infer_objects()
        covariates = pd.DataFrame(values)
    frame = covariates.reset_index(drop=True)
    frame.columns = [f"x{name}" if isinstance(name, (int, np.integer)) else str(name) for name in frame.columns]
    twice = [name for name in frame if list(frame).count(name) > 1]
    if twice:
        raise ValueError(f'two covariates are called "{twice[0]}"; rename one')
    changed = {}
    for name in map(str, frame):
        values = pd.Series(frame[name])
        if values.dtype == object and is_number(values):
            changed[name] = numbers_of(values, f'the covariate "{name}"')
        elif isinstance(values.dtype, pd.BooleanDtype) and not values.isna().any():
            changed[name] = values.astype(bool)
        elif isinstance(values.dtype, pd.CategoricalDtype):
            changed[name] = values.cat.remove_unused_categories()
    return frame.assign(**changed) if changed else frame


def coded(formula: str | None, frame: pd.DataFrame, units: pd.Index) -> tuple[np.ndarray, list[str], Spec]:
    """Columns (n, k), their names, and what codes new rows; without formula, an intercept and every column of the frame."""
    columns = None if formula is not None else list(frame.columns)
    if columns == []:  # formulaic takes .15 s to import
        return np.ones((len(frame), 1)), ["Intercept"], Spec(None, [])
    if columns is not None:
        frame = frame.set_axis(_inner(columns), axis=1)
        formula = " + ".join(["~ 1", *frame.columns])
    assert formula is not None
    matrix = _matrix(_parsed(formula), formula, frame, units, columns)
    for factor, state in matrix.model_spec.factor_contrasts.items():
        if len(state.levels) < 2:
            raise ValueError(f'the covariate "{_outer(str(factor), columns)}" is {listed(state.levels)} in every unit; drop it')
    return matrix.to_numpy(float), _labels(matrix, columns), Spec(matrix.model_spec, columns)


def coded_like(spec: Spec, frame: pd.DataFrame, units: pd.Index) -> np.ndarray:
    """Columns of new rows (m, k)."""
    if spec.columns is not None:
        lost = [name for name in spec.columns if name not in frame.columns]
        extra = [name for name in frame.columns if name not in spec.columns]
        if lost or extra:
            what = f'no covariate "{lost[0]}"' if lost else f'a covariate "{extra[0]}" that the fit had not'
            raise ValueError(f"the new units have {what}; give those of the fit: {listed(spec.columns) or 'none'}")
        if spec.design is None:
            return np.ones((len(frame), 1))
        frame = pd.DataFrame(frame[spec.columns]).set_axis(_inner(spec.columns), axis=1)
    matrix = _matrix(spec.design, str(spec.design.formula), frame, units, spec.columns)
    x = matrix.to_numpy(float)
    check_finite(x, _labels(matrix, spec.columns), units)
    return x


def _inner(columns: list[str]) -> list[str]:
    """Names that any formula can hold."""
    return [f"v{j}" for j in range(len(columns))]


def _outer(name: str, columns: list[str] | None) -> str:
    """The name for a reader: v1[T.b] as site[T.b]."""
    head, bracket, rest = name.partition("[")
    return name if columns is None or head in ("Intercept", "1") else f"{columns[int(head[1:])]}{bracket}{rest}"


def _labels(matrix: Any, columns: list[str] | None) -> list[str]:
    return [_outer(str(name), columns) for name in matrix.columns]


def _parsed(formula: str) -> Any:
    """A formula of covariates alone."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    parse: Any = Formula
    left, tilde, right = formula.partition("~")
    try:
        out = parse(formula)
    except (FormulaicError, SyntaxError) as error:
        raise ValueError(f'cannot read the formula "{formula}": {fault(formula, error)}') from error
    if tilde and left.strip():
        raise ValueError(f'the formula "{formula}" is about covariates alone, so nothing goes before ~; write "~{right}"')
    return out


def _matrix(source: Any, shown: str, frame: pd.DataFrame, units: pd.Index, columns: list[str] | None) -> Any:
    """The design by a formula, or by the specification of an earlier one with its kinds and levels."""
    from formulaic import ModelSpec
    from formulaic.errors import FormulaicError
    from formulaic.materializers import FormulaMaterializer

    for name in sorted(map(str, source.required_variables)):
        if name in frame.columns:
            _check_complete(pd.Series(frame[name]), _outer(name, columns), units)
    # The materializer keeps the evaluated factors; only columns and np can be named.
    maker: Any = FormulaMaterializer.for_data(frame)(frame, context={"np": np})
    again = isinstance(source, ModelSpec)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they are about is refused below, with its unit
            matrix = maker.get_model_matrix(source, **({} if again else {"na_action": "ignore"}))
    except (FormulaicError, NameError, KeyError, ValueError, TypeError, SyntaxError) as error:
        if again:
            _check_factors(maker.factor_cache, source, columns)
        hint = "; offsets have an argument of their own" if "offset(" in shown else ""
        known = listed(frame.columns) or "(none)"
        raise ValueError(f'cannot build "{shown}" from covariates {known}: {fault(shown, error)}{hint}') from error
    if not isinstance(matrix, pd.DataFrame):
        raise ValueError(f'the formula "{shown}" has several parts; join them with +')
    if again:
        _check_factors(maker.factor_cache, source, columns)
    return matrix


def _check_factors(cache: dict, spec: Any, columns: list[str] | None) -> None:
    """Factors of the kind of the fit, and no level that the fit had not."""
    levels = {str(factor): state.levels for factor, state in spec.factor_contrasts.items()}
    for factor, evaluated in cache.items():
        name, values = _outer(factor, columns), evaluated.values.__wrapped__
        if np.ndim(values) == 0:
            continue
        if (evaluated.metadata.kind.value == "categorical") != (factor in levels):
            was = "categories" if factor in levels else "numbers"
            raise TypeError(f'the covariate "{name}" held {was} in the fit, and other values in the new units; code it alike')
        if factor in levels:
            level_codes(pd.Series(values), levels[factor], name)


def _check_complete(values: pd.Series, name: str, units: pd.Index) -> None:
    missing = np.flatnonzero(values.isna())
    if missing.size:
        raise ValueError(
            f'the covariate "{name}" is missing at unit "{units[missing[0]]}" ({missing.size} such in all); '
            "drop these units, or fill it in"
        )
    if values.dtype.kind in "mMc":
        numbers_of(values, f'the covariate "{name}"')
    elif not pd.api.types.is_numeric_dtype(values):
        check_category(values, name)
