"""The design of individual parameters: an intercept each, and the columns of covariates, of subjects and of occasions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...tables.faults import fault
from ...tables.formula import sum_of_columns
from .outcomes import PRESENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .data import LongData
    from .individual import Individual


class Design:
    """Design of the individual parameters: an intercept each, and the columns of its covariate formula.

    A column that changes between the occasions of some subject is one of occasions; all others are of subjects.

    Attributes:
        owner: the parameter of each coefficient of subjects; those of random parameters come first. shifted: of each coefficient
            of occasions; those of parameters that vary between occasions come first. labels: of both, one after the other: ""
            for an intercept, else the covariate's name.
    """

    def __init__(self, individual: Mapping[str, Individual], data: LongData) -> None:
        self._specs: dict[str, Any] = {}
        self._columns_read: dict[str, list[str]] = {}
        self._names, self._formulas = list(individual), {n: one.covariates for n, one in individual.items() if one.covariates}
        rows = {}
        for name, formula in self._formulas.items():
            between = changes(formula, data)
            check_covariates(formula, data, between)
            self._columns_read[name] = _read(formula, data)
            rows[name] = occasions(data) if between else data.subjects
            self._specs[name] = formula_of(formula, rows[name], name)
        parts: list[tuple[int, str]] = []
        changing: list[tuple[int, str, bool]] = []
        for random in (True, False):
            for j, (name, one) in enumerate(individual.items()):
                if one.random != random:
                    continue
                parts.append((j, ""))
                for column, values in self._columns(name, rows[name]).items() if name in rows else ():
                    if _varies(values, rows[name][data.roles["id"]].to_numpy()).any():
                        changing.append((j, column, one.occasion))
                    else:
                        parts.append((j, column))
        changing.sort(key=lambda part: not part[2])
        self.owner, self.shifted = tuple(j for j, _ in parts), tuple(j for j, _, _ in changing)
        self.labels = [label for _, label in parts] + [label for _, label, _ in changing]
        for j, name in enumerate(self._names):
            at = rows.get(name, data.subjects)
            own = self._matrix(at, [k for k, o in enumerate(self.owner + self.shifted) if o == j])
            if np.linalg.matrix_rank(own) < own.shape[1]:
                raise ValueError(
                    f"the covariates {individual[name].covariates!r} of {name} are constant over subjects or linearly "
                    "dependent; drop one"
                )

    def _columns(self, name: str, rows: pd.DataFrame) -> dict[str, np.ndarray]:
        spec = self._specs.get(name)
        if spec is None:
            return {}
        table = pd.DataFrame(spec.get_model_matrix(rows)).drop(columns=["Intercept"], errors="ignore")
        return {str(column): table[column].to_numpy(float) for column in table.columns}

    def _matrix(self, rows: pd.DataFrame, which: list[int]) -> np.ndarray:
        """Columns of some coefficients for these rows."""
        columns = {name: self._columns(name, rows) for name in self._names}
        ones, every = np.ones(len(rows)), self.owner + self.shifted
        values = [columns[self._names[every[k]]][self.labels[k]] if self.labels[k] else ones for k in which]
        return np.stack(values, axis=1) if values else np.zeros((len(rows), 0))

    def matrix(self, data: LongData) -> np.ndarray:
        """(n, P), and behind it, flat, the (K, q) covariates of occasions, zero of those that a subject does not have."""
        first = self._matrix(data.subjects, list(range(len(self.owner))))
        if not self.shifted:
            return first
        known = data.occasions
        out = np.zeros((*data.units[PRESENT].shape, len(self.shifted)))
        out[known["subject"], known["place"]] = self._matrix(occasions(data), list(range(len(self.owner), len(self.labels))))
        return np.concatenate([first, out.reshape(len(out), -1)], axis=1)

    def on_one_occasion(self, subjects: pd.DataFrame) -> np.ndarray:
        """(n, P + q), the same of subjects with one occasion each, a row a subject."""
        return self._matrix(subjects, list(range(len(self.labels))))

    def check(self, data: LongData) -> None:
        """Raises: ValueError: a covariate of other data is not there, or changes where that of the fit did not."""
        for name, formula in self._formulas.items():
            between = any(self._names[j] == name for j in self.shifted)
            if lost := [column for column in self._columns_read[name] if column not in data.frame.columns]:
                raise ValueError(f"{name} depends on the covariate {lost[0]}, which is no column of the data; add it")
            check_covariates(formula, data, between)
            if not between:
                continue
            rows, codes = occasions(data), data.occasions["subject"].to_numpy()
            for column, values in self._columns(name, rows).items():
                own = [label for j, label in zip(self.owner, self.labels, strict=False) if self._names[j] == name]
                varies = _varies(values, codes)
                if column in own and varies.any():
                    at = int(np.flatnonzero(varies)[0])
                    where = f"subject {data.labels[codes[at]]}, row {rows.index[at]}"
                    raise ValueError(
                        f"the covariate {column} of {name} changes between a subject's occasions ({where}), as it did "
                        "in none of those that were fitted: its effect was estimated between subjects"
                    )


def occasions(data: LongData) -> pd.DataFrame:
    """A row of each occasion of a subject."""
    return data.rows(data.occasions.index)


def changes(formula: str, data: LongData) -> bool:
    """Whether a covariate of a formula changes between the occasions of a subject, where rows have occasions."""
    if "occ" not in data.roles:
        return False
    rows, codes = occasions(data), data.occasions["subject"].to_numpy()
    return any(
        _varies(data.frame[column], data.codes).any() or _varies(rows[column], codes).any() for column in _read(formula, data)
    )


def _varies(values: Any, groups: Any) -> np.ndarray:
    """Which rows differ from the first one of their group."""
    own, codes = np.asarray(values), pd.factorize(groups)[0]
    first = np.flatnonzero(~pd.Series(codes).duplicated().to_numpy())
    return own != own[first][codes]


def _read(formula: str, data: LongData) -> list[str]:
    """The columns that a formula reads."""
    if plain := sum_of_columns(formula, data.frame):
        return sorted(plain.names)
    import formulaic

    parse: Any = formulaic.Formula
    return [column for column in sorted(parse(formula).required_variables) if column in data.frame.columns]


def check_covariates(formula: str, data: LongData, within_occasions: bool) -> None:
    """Raises: ValueError: a covariate is missing, or changes within a subject (or an occasion, where it may between them)."""
    for column in _read(formula, data):
        values = data.frame[column]
        missing = values.isna().to_numpy()
        if missing.any():
            raise ValueError(f"the covariate {column} is missing ({data.where(int(np.flatnonzero(missing)[0]))})")
        if within_occasions and (lost := occasions(data)[column].isna().to_numpy()).any():
            first = data.occasions[lost].iloc[:1]
            at = f"subject {data.labels[first['subject'].iloc[0]]}, row {first.index[0]}"
            raise ValueError(f"the covariate {column} is missing ({at}), of an occasion that has doses and no observation")
        varies = _varies(values, data.codes)
        if not varies.any():
            continue
        where = data.where(int(np.flatnonzero(varies)[0]))
        if not within_occasions:
            raise ValueError(
                f"the covariate {column} varies within a subject ({where}); covariates of individual parameters are constant, "
                'or change between occasions, which fit(..., occ="OCC") names; others belong into the structural function'
            )
        varies = _varies(values, data.frame.groupby([data.codes, data.roles["occ"]]).ngroup().to_numpy())
        if varies.any():
            at = int(np.flatnonzero(varies)[0])
            occasion = f"{data.roles['occ']} = {data.frame[data.roles['occ']].iloc[at]}"
            raise ValueError(
                f"the covariate {column} varies within an occasion ({data.where(at)}, {occasion}); covariates of individual "
                "parameters may change between occasions, others belong into the structural function"
            )


def formula_of(formula: str, rows: pd.DataFrame, name: str) -> Any:
    """The specification of a formula, which makes its columns of any table. Raises: ValueError: it cannot be built."""
    if plain := sum_of_columns(formula, rows):
        return plain
    import formulaic
    from formulaic.errors import FormulaicError

    try:
        return formulaic.model_matrix(formula, rows, na_action="raise").model_spec
    except (FormulaicError, NameError, KeyError, ValueError, SyntaxError) as error:
        known = ", ".join(map(str, rows.columns))
        told = f"cannot build the covariates {formula!r} of {name} from columns {known}: {fault(formula, error)}"
        raise ValueError(told) from error
