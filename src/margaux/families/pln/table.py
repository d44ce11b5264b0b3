"""From a table of counts with covariates and offsets to what fits read: checked, coded, without features that have no counts.

A unit without counts is data. It is left out only where its offset would be computed from its counts, as it then has none.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy

from ...tables.checks import is_number, listed
from .checks import check_counts, check_design, check_names
from .counts import Counts
from .covariates import Spec, coded, coded_like, plain
from .disk import from_disk, on_disk
from .offsets import ByName, from_counts, given
from .separation import diverging

if TYPE_CHECKING:
    from .kinds import CountsLike, Covariates, Offsets


@dataclasses.dataclass(frozen=True)
class Table:
    """Counts, covariates and offsets of a fit, checked; n units that have an offset and p features that have counts.

    Attributes:
        counts: (n, p). x: (n, k), with the intercept first unless the formula leaves it out. offset: (n, 1) or (n, p).
        features, units, covariate_names: names of the p columns, n rows and k covariates.
        diverging: (k, p), coefficients without finite estimate (see `margaux.families.pln.separation`).
        kept_rows, kept_columns: masks over rows and columns given. all_features: names of the columns; `named`: not made up.
        spec: what codes new covariates. rule: what computes new offsets, None where they were given as an array.
    """

    counts: Counts
    x: np.ndarray
    offset: np.ndarray
    features: pd.Index
    units: pd.Index
    covariate_names: list[str]
    diverging: np.ndarray
    kept_rows: np.ndarray
    kept_columns: np.ndarray
    all_features: pd.Index
    named: bool
    spec: Spec
    rule: ByName | None


@dataclasses.dataclass(frozen=True)
class _Given:
    """Counts as an array or CSR, and what came with them."""

    values: Any
    features: pd.Index
    units: pd.Index
    named: bool
    obs: pd.DataFrame | None


def read(counts: CountsLike, covariates: Covariates | None = None, formula: str | None = None, offsets: Any = None) -> Table:
    """A table of counts, a row a unit and a column a feature, checked and coded.

    Args:
        counts: (n, p) whole numbers: an array or what NumPy makes one of (a list), a data frame, a SciPy sparse matrix, which
            stays sparse, a memory map, a zarr array or an HDF5 dataset, or an AnnData in memory or backed (its .X, .obs and
            .var_names). What lies on disk is read a block of rows at a time: see `from_disk`.
        covariates: (n,) or (n, k), an array or a data frame without intercept; text and categories become dummies.
        formula: such as "~ site + depth", about the columns of `covariates` or of an AnnData's .obs.
        offsets: logs of size factors, (n,), (n, 1) or (n, p), or a name (see `margaux.families.pln.offsets`); zeros unless given.

    Warns:
        UserWarning: features without counts are left out, or units without counts whose offset is computed from them.

    Raises:
        TypeError, ValueError: what is wrong, with unit, feature or covariate.

    Examples:
        >>> import pandas as pd
        >>> counts = pd.DataFrame({"oak": [3, 0, 2, 5], "ash": [0, 1, 4, 1]}, index=["a", "b", "c", "d"])
        >>> site = pd.DataFrame({"site": ["N", "S", "N", "S"]}, index=counts.index)
        >>> table = read(counts, site, "~ site", offsets="total")
        >>> table.covariate_names, table.x.tolist()
        (['Intercept', 'site[T.S]'], [[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
        >>> np.exp(table.offset).ravel().round(6).tolist()
        [3.0, 1.0, 6.0, 6.0]
    """
    source = _counts(counts)
    check_names(source.features)
    check_counts(source.values, source.features, source.units)
    whole = Counts(source.values)
    columns = whole.column_sums() > 0
    if not columns.any():
        raise ValueError("every count is zero; there is nothing to fit")
    rows = whole.row_sums() > 0 if from_counts(offsets) else np.ones(whole.n, bool)
    frame = _frame(covariates, source, formula is not None)
    _warn_left_out(source, rows, columns, offsets)
    x, names, spec = coded(formula, frame.loc[rows], source.units[rows])
    array = None if offsets is None or isinstance(offsets, str) else _array_of_offsets(offsets, source)
    kept, units = Counts(_with_counts(source.values, rows, columns)), source.units[rows]
    check_design(x, names, units)
    rule = None if array is not None else ByName("none" if offsets is None else offsets, kept, units)
    return Table(
        counts=kept,
        x=x,
        offset=_subset_of_offsets(array, rows, columns) if rule is None else rule.fitted,
        features=source.features[columns],
        units=units,
        covariate_names=names,
        diverging=diverging(kept, x),
        kept_rows=rows,
        kept_columns=columns,
        all_features=source.features,
        named=source.named,
        spec=spec,
        rule=rule,
    )


def like(table: Table, counts: CountsLike, covariates: Covariates | None = None, offsets: Offsets | None = None) -> Table:
    """Counts of new units with the features, the coding and the offsets of a fit.

    Args:
        table: of the fit. counts: (m, p) of all the features that the fit was given, found by name where both have names.
        covariates: as in the fit; of an AnnData, its .obs if they are not given.
        offsets: as an array; unless given, by the fit's name.

    Raises:
        TypeError, ValueError: what is wrong, with unit, feature or covariate.

    Examples:
        >>> table = read([[1, 2], [3, 1], [2, 2]], offsets="TSS")
        >>> new = like(table, [[10, 2]])
        >>> new.counts.values.tolist(), new.x.tolist(), new.offset.round(3).tolist()
        ([[10, 2]], [[1.0]], [[1.195]])
    """
    source = _counts(counts)
    check_counts(source.values, source.features, source.units)
    columns = _places(source, table)
    frame = _frame(covariates, source, table.spec.columns is None)
    if covariates is None and source.obs is None and table.covariate_names != ["Intercept"]:
        raise ValueError(f"the fit had covariates ({listed(table.covariate_names)}); pass those of the new units by covariates=")
    x = coded_like(table.spec, frame, source.units)
    if isinstance(offsets, str):
        raise TypeError(
            "new units have the offsets that the fit computed by name, or an array; leave offsets out or pass an array"
        )
    if offsets is None and table.rule is None:
        raise ValueError("the fit had offsets in an array, so new units need theirs; pass offsets")
    array = None if offsets is None else _array_of_offsets(offsets, source)
    whole = Counts(_subset(source.values, np.ones(len(x), bool), columns))
    rule = table.rule if array is None else None
    rows = whole.row_sums() > 0 if rule is not None and from_counts(rule.name) else np.ones(whole.n, bool)
    if not rows.any():
        raise ValueError(
            f"no new unit has counts of the features in the fit, and {_from(rule)} needs some; pass offsets as an array"
        )
    _warn_left_out(source, rows, np.ones(len(source.features), bool), None if rule is None else rule.name)
    kept, units = Counts(whole.values if rows.all() else whole.values[rows]), source.units[rows]
    offset = _subset_of_offsets(array, rows, columns) if rule is None else rule.of(kept, units)
    return dataclasses.replace(table, counts=kept, x=x[rows], offset=offset, units=units, kept_rows=rows)


def design(table: Table, covariates: Covariates) -> np.ndarray:
    """Covariates (m, k) of new units without counts, coded as in the fit.

    Examples:
        >>> table = read([[1, 2], [3, 1], [2, 2], [4, 1]], covariates=[0.1, 0.7, 0.2, 0.3])
        >>> design(table, [0.5, 1.0]).tolist()
        [[1.0, 0.5], [1.0, 1.0]]
    """
    frame = plain(covariates)
    return coded_like(table.spec, frame, pd.RangeIndex(len(frame)))


def diverging_message(table: Table) -> str | None:
    """A sentence that names coefficients without finite estimate, None where there are none.

    Examples:
        >>> diverging_message(read([[1, 0], [3, 0], [2, 2], [4, 1]], covariates=[1, 1, 0, 0]))
        '1 feature has counts at one end of a covariate or in some levels only, and no finite estimate there: y1 (x0)'
    """
    features = np.flatnonzero(table.diverging.any(axis=0))
    if not features.size:
        return None
    shown = [
        f"{table.features[f]} ({', '.join(table.covariate_names[j] for j in np.flatnonzero(table.diverging[:, f])[:3])})"
        for f in features[:5]
    ]
    more = ", ..." if features.size > 5 else ""
    subject = "feature has" if features.size == 1 else "features have"
    return (
        f"{features.size} {subject} counts at one end of a covariate or in some levels only, and no finite estimate there: "
        f"{', '.join(shown)}{more}"
    )


def _counts(counts: Any) -> _Given:
    """Numbers and names of whatever holds counts."""
    obs = features = units = None
    anndata: Any = sys.modules.get("anndata")
    if anndata is not None and isinstance(counts, anndata.AnnData):
        obs, features, units = counts.obs, counts.var_names, counts.obs_names
        counts = counts.X
        if counts is None:
            raise ValueError('the AnnData has no .X; put the raw counts there, often those in .layers["counts"]')
        counts = counts.to_memory() if hasattr(counts, "to_memory") else counts
    if isinstance(counts, pd.DataFrame):
        features, units = counts.columns, counts.index
        counts = _of_frame(counts)
    elif on_disk(counts):
        counts = from_disk(counts)
    elif not scipy.sparse.issparse(counts):
        counts = _of_array(counts)
    if counts.dtype.kind not in "buif":
        raise TypeError(f"counts must be whole numbers, got {counts.dtype}")
    if counts.ndim != 2:
        raise ValueError(f"counts must be a table, a row a unit and a column a feature, got shape {counts.shape}")
    if counts.dtype == bool:
        counts = counts.astype(np.uint8)
    elif counts.dtype == np.float16:
        counts = counts.astype(np.float32)
    n, p = counts.shape
    named = features is not None and not isinstance(features, pd.RangeIndex)
    return _Given(
        values=_csr(counts) if scipy.sparse.issparse(counts) else counts,
        features=features if named and features is not None else pd.Index([f"y{j}" for j in range(p)]),
        units=pd.RangeIndex(n) if units is None else units,
        named=named,
        obs=obs,
    )


def _of_frame(frame: pd.DataFrame) -> Any:
    if len(frame.columns) and all(isinstance(dtype, pd.SparseDtype) for dtype in frame.dtypes):
        return frame.sparse.to_coo()
    for place, (name, dtype) in enumerate(frame.dtypes.items()):
        column = frame.iloc[:, place]
        if not pd.api.types.is_numeric_dtype(dtype) and not is_number(column):
            seen = np.flatnonzero(column.notna())
            stray = next((i for i in seen if not isinstance(column.iloc[i], (int, float, np.number))), 0)
            raise TypeError(
                f'counts hold {column.iloc[stray]!r} at unit "{frame.index[stray]}", feature "{name}"; '
                "make names of units the index, and drop columns that are no counts"
            )
        if dtype.kind == "c":
            raise TypeError(f'the column "{name}" is complex; counts are whole numbers')
    alike = frame.dtypes.nunique() == 1 and isinstance(frame.dtypes.iloc[0], np.dtype) and frame.dtypes.iloc[0].kind in "buif"
    return frame.to_numpy() if alike else frame.to_numpy(float, na_value=np.nan)


def _of_array(counts: CountsLike) -> np.ndarray:
    if isinstance(counts, np.ma.MaskedArray):
        counts = np.ma.filled(counts.astype(float), np.nan)
    try:
        values = np.asarray(counts)
    except ValueError:
        raise ValueError("the rows of counts differ in length; give as many counts to each unit") from None
    return _of_frame(pd.DataFrame(values)) if values.dtype.kind in "OUS" and values.ndim == 2 else values


def _csr(counts: CountsLike) -> Any:
    """A CSR array without duplicates, stored zeros and disorder; what was given is left as it is."""
    table = scipy.sparse.csr_array(counts)
    if not table.has_canonical_format or not table.data.all():
        table = table.copy()
        table.sum_duplicates()
        table.eliminate_zeros()
    return table


def _with_counts(values: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    """Rows and columns that have counts, by masks; a sparse table stores nothing of the others, so its entries are shared."""
    if not scipy.sparse.issparse(values):
        return _subset(values, rows, columns)
    if rows.all() and columns.all():
        return values
    places = (np.cumsum(columns) - 1).astype(values.indices.dtype)
    indices = values.indices if columns.all() else places[values.indices]
    starts = values.indptr[np.append(True, rows)]
    return scipy.sparse.csr_array((values.data, indices, starts), shape=(int(rows.sum()), int(columns.sum())))


def _subset(values: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    """Rows by a mask, columns by a mask or by their places."""
    values = values if rows.all() else values[rows]
    every = columns.all() if columns.dtype == bool else np.array_equal(columns, np.arange(values.shape[1]))
    return values if every else values[:, columns]


def _subset_of_offsets(array: Any, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return array[rows] if array.shape[1] == 1 else array[rows][:, columns]


def _warn_left_out(source: _Given, rows: np.ndarray, columns: np.ndarray, offsets: Offsets | None) -> None:
    """What is left out, and what that does to the answers."""

    def those(kept: np.ndarray, names: pd.Index, what: str) -> str:
        count = int((~kept).sum())
        return f"{count} {what}{'' if count == 1 else 's'} without counts ({listed(names[~kept])})"

    told = []
    if not columns.all():
        told.append(f"{those(columns, source.features, 'feature')}: the estimate of its mean is zero, which adds nothing")
    if not rows.all():
        told.append(
            f'{those(rows, source.units, "unit")}: offsets="{offsets}" computes none for them. What is said then holds for units '
            "that have counts, and rates of all units are lower; give offsets as an array, or none, to keep them"
        )
    if told:
        warnings.warn(f"left out: {'; and '.join(told)}", stacklevel=3)


def _from(rule: ByName | None) -> str:
    return "" if rule is None else f'offsets="{rule.name}"'


def _check_aligned(index: pd.Index, source: _Given, what: str) -> None:
    """Labels of rows, where both sides have some, are the same in the same order."""
    if len(index) != len(source.units) or index.equals(source.units):
        return
    numbered = isinstance(index, pd.RangeIndex) or isinstance(source.units, pd.RangeIndex)
    if numbered and not index.sort_values().equals(source.units.sort_values()):
        return
    place = int(np.flatnonzero(index.to_numpy(object) != source.units.to_numpy(object))[0])
    raise ValueError(
        f'row {place} is "{source.units[place]}" in counts and "{index[place]}" in {what}; put them in one order with '
        f"{what} = {what}.loc[counts.index]"
    )


def _array_of_offsets(offsets: Any, source: _Given) -> np.ndarray:
    n, p = source.values.shape
    if isinstance(offsets, (pd.Series, pd.DataFrame)):
        _check_aligned(offsets.index, source, "offsets")
    wide = isinstance(offsets, pd.DataFrame) and offsets.shape[1] == p > 1
    if wide and source.named and not isinstance(offsets.columns, pd.RangeIndex) and not offsets.columns.equals(source.features):
        raise ValueError("the columns of offsets are not those of counts in their order; use offsets[counts.columns]")
    return given(offsets, n, p, source.units, source.features)


def _places(source: _Given, table: Table) -> np.ndarray:
    """Columns of new counts that hold the features of the fit: by name where both have names."""
    if not (source.named and table.named):
        if len(source.features) != len(table.all_features):
            raise ValueError(
                f"the new counts have {len(source.features)} features and the fit was given {len(table.all_features)}; "
                "give the same, in the same order"
            )
        return np.flatnonzero(table.kept_columns)
    check_names(source.features)
    places = source.features.get_indexer(table.features)
    lost, extra = table.features[places < 0], source.features.difference(table.all_features, sort=False)
    if len(lost) or len(extra):
        what = f"lack {len(lost)} of its features" if len(lost) else f"have {len(extra)} features that it had not"
        raise ValueError(f"the new counts {what} ({listed(lost if len(lost) else extra)}); give the features of the fit")
    return places


def _frame(covariates: Covariates | None, source: _Given, by_formula: bool) -> pd.DataFrame:
    """Covariates of the units of a table; of an AnnData, .obs for a formula."""
    if covariates is None:
        own = source.obs if by_formula else None
        return plain(pd.DataFrame(index=range(len(source.units))) if own is None else own)
    if isinstance(covariates, (pd.Series, pd.DataFrame)):
        _check_aligned(covariates.index, source, "covariates")
    frame = plain(covariates)
    if len(frame) != len(source.units):
        raise ValueError(f"covariates have {len(frame)} rows and counts {len(source.units)}; they must agree")
    return frame
