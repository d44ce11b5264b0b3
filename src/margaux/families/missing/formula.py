"""Covariates and outcome by a formula, holes kept."""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...tables.checks import check_category, is_number, level_codes, listed, numbers_of
from ...tables.faults import fault
from .discrete import asked

if TYPE_CHECKING:
    from collections.abc import Sequence


#: what a formula says that fills or marks holes on purpose
DELIBERATE = re.compile(r"(fill|is|not)(na|null|nan)\(|nan_to_num\(")


@dataclasses.dataclass(frozen=True)
class Columns:
    """Covariates as numbers; `made`: the columns of each covariate by its name."""

    x: np.ndarray
    names: list[str]
    gaussian: np.ndarray
    made: dict[str, list[int]]
    spec: Any = None


def of_formula(formula: str, frame: object, discrete: str | int | Sequence[str | int] | None = None) -> tuple[Columns, Any, str]:
    """Covariates, outcome and the outcome's name."""
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"after a formula pass the data frame it is about, got {type(frame).__name__}")
    if not formula.partition("~")[0].strip() or "~" not in formula:
        raise ValueError(f'the formula "{formula}" has no outcome; write it as "y ~ a + b"')
    return by_formula(formula, frame, discrete)


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """Objects that are numbers as floats, truth values as plain ones, no empty categories; rows counted from zero."""
    changed = {}
    for name in frame.columns[~frame.columns.duplicated(keep=False)]:
        values = pd.Series(frame[name]).reset_index(drop=True)
        if values.dtype == object and is_number(values):
            changed[name] = numbers_of(values, str(name))
        elif values.dtype == object and values.notna().all() and pd.api.types.infer_dtype(values) == "boolean":
            changed[name] = values.astype(bool)
        elif isinstance(values.dtype, pd.BooleanDtype):
            changed[name] = values.astype(object if values.isna().any() else bool)
        elif isinstance(values.dtype, pd.CategoricalDtype):
            changed[name] = values.cat.remove_unused_categories()
    frame = frame.reset_index(drop=True)
    return frame.assign(**{str(name): values for name, values in changed.items()}) if changed else frame


def _closed(frame: pd.DataFrame, names: list[str]) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Categorical columns of these names without their holes, any category in their place, and where those were."""
    holes = {}
    for name in names:
        values = frame[name] if name in frame.columns else None
        if isinstance(values, pd.Series) and values.isna().any() and values.notna().any() and not is_number(values):
            holes[name] = values.isna().to_numpy()
            frame = frame.assign(**{name: values.where(~holes[name], values.dropna().iloc[0])})
    return frame, holes


def by_formula(source: Any, frame: Any, discrete: str | int | Sequence[str | int] | None = None) -> tuple[Columns, Any, str]:
    """Covariates, outcome and its name by a formula, or covariates by the specification of an earlier one."""
    from formulaic.errors import FormulaicError
    from formulaic.materializers import FormulaMaterializer

    first = isinstance(source, str)
    shown = source if first else f"{source.formula}"
    asked_for = [discrete] if isinstance(discrete, (str, int)) else discrete or ()
    frame, holes = _closed(_tidy(frame), [name for name in asked_for if isinstance(name, str)])
    frame = _tidy(frame) if holes else frame
    known = None if first else {str(factor): state.levels for factor, state in source.factor_contrasts.items()}
    # The materializer keeps the evaluated factors; only columns, np and formulaic's own functions can be named.
    maker: Any = FormulaMaterializer.for_data(frame)(frame, context={"np": np})
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they are about `_check_factors` refuses, with its row
            parts: Any = maker.get_model_matrix(source, **({"na_action": "ignore"} if first else {}))
    except (FormulaicError, NameError, KeyError, ValueError, TypeError, SyntaxError) as error:
        outcome = shown.partition("~")[0].strip() if first else ""
        _check_factors(maker.factor_cache, [name for name in maker.factor_cache if name != outcome], frame, known)
        raise ValueError(f'cannot build "{shown}" from columns {listed(frame.columns)}: {fault(shown, error)}') from error
    right = parts.rhs if first else parts
    if isinstance(right, tuple):
        raise ValueError(f'the formula "{shown}" has several right-hand sides; join them with +')
    spec = right.model_spec
    _check_factors(maker.factor_cache, [str(factor) for factor in spec.factors], frame, known)
    for factor, state in spec.factor_contrasts.items():
        level_codes(pd.Series(maker.factor_cache[str(factor)].values.__wrapped__), state.levels, str(factor))
    table = pd.DataFrame(right).drop(columns=["Intercept"], errors="ignore")
    names = list(map(str, table.columns))
    dummies, parents = set(), {}
    for part in spec.structure:
        factors = [maker.factor_cache[str(factor)] for factor in part.term.factors]
        if all(_is_category(factor) or np.asarray(factor.values).dtype == bool for factor in factors):
            dummies.update(part.columns)
        for variable in sorted({str(variable) for factor in factors for variable in factor.variables or ()}):
            parents.setdefault(variable, []).extend(part.columns)
    x = table.to_numpy(float, na_value=np.nan)
    made = {name: [names.index(column) for column in of] for name, of in parents.items() if name in frame.columns and of}
    for name, hole in holes.items():
        x[np.ix_(hole, np.array(made.get(name, []), int))] = np.nan
    columns = Columns(x, names, np.array([name not in dummies for name in names], bool), made, spec)
    if not first:
        return columns, None, ""
    chosen = asked(discrete, list(made))
    for variable, made in parents.items():
        if len(made) > 1 and variable not in chosen and variable in frame.columns and frame[variable].isna().any():
            warnings.warn(
                f'"{variable}" has missing values and makes {len(made)} columns ({listed(made)}), each of which is modelled '
                "as a covariate of its own",
                stacklevel=4,
            )
            break
    terms = list(parts.lhs.model_spec.terms)
    factor = maker.factor_cache[str(terms[0].factors[0])] if len(terms) == 1 and len(terms[0].factors) == 1 else None
    if factor is None or np.ndim(factor.values.__wrapped__) != 1:
        raise ValueError(f'the outcome of "{shown}" makes {parts.lhs.shape[1]} columns; it must be one column')
    return columns, factor.values.__wrapped__, str(terms[0])


def _is_category(factor: Any) -> bool:
    return factor.metadata.kind.value == "categorical"


def _check_factors(cache: dict, names: list[str], frame: Any, known: dict | None) -> None:
    """No holes in categorical factors, none that a transformation makes or fills, and factors of the kind of the fit."""
    for name in sorted(names):
        factor = cache[name]
        values = factor.values.__wrapped__
        if np.ndim(values) == 0 or len(values) != len(frame):
            continue
        sources = sorted(str(variable) for variable in factor.variables or () if str(variable) in frame.columns)
        if known is not None and _is_category(factor) != (name in known):
            was = "categories" if name in known else "numbers"
            raise TypeError(f'column "{name}" held {was} in the fit, and other values in the new rows; code it in the same way')
        if _is_category(factor):
            values = pd.Series(values).reset_index(drop=True)
            check_category(values, sources[0] if len(sources) == 1 else name)
            if known is None and values.nunique() < 2:
                raise ValueError(f'column "{name}" is the same in every row ({values.iloc[0]}); drop it')
        elif np.asarray(values).dtype.kind in "mMcOU":
            numbers_of(pd.Series(values), f'column "{name}"')
        holes = pd.isna(np.asarray(pd.DataFrame(values))).any(axis=1)
        missing = frame[sources].isna().any(axis=1).to_numpy()
        made = np.flatnonzero(holes & ~missing)
        if made.size:
            raise ValueError(
                f'"{name}" is not a number at row {made[0]} ({made.size} in all), though {listed(sources)} is not missing '
                "there; transform the column in the frame, and make NaN there what is to count as missing"
            )
        filled = np.flatnonzero(missing & ~holes)
        if filled.size and not DELIBERATE.search(name):
            raise ValueError(
                f'"{name}" has a value at row {filled[0]} ({filled.size} in all), though {listed(sources)} is missing there; '
                "compute the column in the frame, with NaN where it is missing"
            )
