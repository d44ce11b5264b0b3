"""From a table of counts with covariates and offsets to what fits read: checked, coded, without features that have no counts.

A unit without counts is data. It is left out only where its offset would be computed from its counts, as it then has none.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy

from ...engine.share import Shard, together
from ...tables.checks import listed
from .checks import check_counts, check_design, check_names
from .counts import Counts
from .covariates import Spec, coded, coded_like, plain
from .offsets import ByName, from_counts
from .separation import diverging
from .source import (
    Source,
    array_of_offsets,
    check_alike,
    covariates_of,
    frame_of_all,
    given_to,
    own_frame,
    source_of,
)

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


def read(counts: CountsLike, covariates: Covariates | None = None, formula: str | None = None, offsets: Any = None) -> Table:
    """A table of counts, a row a unit and a column a feature, checked and coded.

    Args:
        counts: (n, p) whole numbers: an array or what NumPy makes one of (a list), a data frame, a SciPy sparse matrix, which
            stays sparse, a memory map, a zarr array or an HDF5 dataset, a `margaux.sparse_parquet`, or an AnnData in memory or
            backed (its .X, .obs and .var_names). What lies on disk is read a block of rows at a time: see `from_disk`. Or a
            dictionary of counts, covariates and offsets by these names. Of a fit over several processes, what `margaux.shard`
            makes of it.
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
    several = any(isinstance(each, Shard) for each in (counts, covariates, offsets))
    with together(several):
        counts, covariates, offsets, share = given_to(counts, covariates, offsets)
        source = source_of(counts, share)
        check_names(source.features)
        check_counts(source.values, source.features, source.units)
        own = covariates_of(covariates, source, formula)
        array = None if offsets is None or isinstance(offsets, str) else array_of_offsets(offsets, source)
    check_alike(source, formula, own, offsets)
    whole = Counts(source.values, source.share)
    columns = whole.column_sums() > 0
    if not columns.any():
        raise ValueError("every count is zero; there is nothing to fit")
    rows = whole.row_sums() > 0 if from_counts(offsets) else np.ones(whole.n, bool)
    with together(several):
        _check_some(rows, source, offsets)
    _warn_left_out(source, rows, columns, offsets)
    units = source.units[rows]
    kept = Counts(_with_counts(source.values, rows, columns), source.share.some(int(rows.sum())))
    x, names, spec = _coded_over_all(own, source, formula, rows)
    x = x[kept.share.first :][: kept.n]
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


def _coded_over_all(own: Any, source: Source, formula: str | None, rows: np.ndarray) -> tuple[np.ndarray, list[str], Spec]:
    """Columns of the units of all processes that are kept, their names, and what codes new rows."""
    share = source.share
    units, kept = source.units, np.asarray(share.joined(rows))
    if not share.alone:
        first, *others = share.told(units)
        units = first.append(others)
    x, names, spec = coded(formula, frame_of_all(own, source).loc[kept], units[kept])
    check_design(x, names, units[kept])
    return x, names, spec


def _check_some(rows: np.ndarray, source: Source, offsets: Any) -> None:
    if not rows.any():
        raise ValueError(
            f'no unit of a process has counts ("{source.units[0]}" and others), and offsets="{offsets}" needs some; '
            "share the units in another order, or give offsets as an array"
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
    counts, covariates, offsets, share = given_to(counts, covariates, offsets)
    with together(share is not None):
        found = _like(table, source_of(counts, share), covariates, offsets)
    if share is None:
        return found
    return dataclasses.replace(found, counts=Counts(found.counts.values, share.some(found.counts.n)))


def _like(table: Table, source: Source, covariates: Covariates | None, offsets: Offsets | None) -> Table:
    check_counts(source.values, source.features, source.units)
    columns = _places(source, table)
    formula = str(table.spec.design.formula) if table.spec.columns is None else None
    frame = own_frame(covariates_of(covariates, source, formula), source)
    if covariates is None and source.obs is None and table.covariate_names != ["Intercept"]:
        raise ValueError(f"the fit had covariates ({listed(table.covariate_names)}); pass those of the new units by covariates=")
    x = coded_like(table.spec, frame, source.units)
    if isinstance(offsets, str):
        raise TypeError(
            "new units have the offsets that the fit computed by name, or an array; leave offsets out or pass an array"
        )
    if offsets is None and table.rule is None:
        raise ValueError("the fit had offsets in an array, so new units need theirs; pass offsets")
    array = None if offsets is None else array_of_offsets(offsets, source)
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


def _warn_left_out(source: Source, rows: np.ndarray, columns: np.ndarray, offsets: Offsets | None) -> None:
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


def _places(source: Source, table: Table) -> np.ndarray:
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
