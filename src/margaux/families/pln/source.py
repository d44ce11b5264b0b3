"""Numbers and names of whatever holds counts, covariates and offsets: of one process, or of its share of the units of several."""

from __future__ import annotations

import dataclasses
import sys
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy

from ...engine.share import Shard, Share
from ...engine.stored import Rows
from ...tables.checks import is_number
from ...tables.sparse_parquet import LabelledCounts, SparseParquet
from .covariates import plain
from .disk import from_disk, on_disk, sparse_rows
from .offsets import given

if TYPE_CHECKING:
    from .kinds import CountsLike, Covariates

#: what may be given together
NAMES = ("counts", "covariates", "offsets")


@dataclasses.dataclass(frozen=True)
class Source:
    """Counts as an array or CSR, and what came with them; which of the units of all processes they are."""

    values: Any
    features: pd.Index
    units: pd.Index
    named: bool
    obs: pd.DataFrame | None
    share: Share


def given_to(counts: Any, covariates: Any, offsets: Any) -> tuple[Any, Any, Any, Share | None]:
    """Counts, covariates and offsets, out of the dictionary and the shards that they come in, and the share that they are, None
    of one process's.

    Raises:
        TypeError, ValueError: what is given twice, under another name, or as another share.
    """
    shares = [each.share for each in (counts, covariates, offsets) if isinstance(each, Shard)]
    if shares and not isinstance(counts, Shard):
        raise TypeError("covariates or offsets are of mx.shard and the counts are not; pass mx.shard(counts) too")
    if any(share != shares[0] for share in shares):
        told = " and ".join(str(share.size) for share in shares)
        raise ValueError(f"counts, covariates and offsets are shards of {told} units; shard tables with the same rows")
    counts, covariates, offsets = (each.data if isinstance(each, Shard) else each for each in (counts, covariates, offsets))
    if isinstance(counts, dict):
        lost = [name for name in counts if name not in NAMES]
        if lost or "counts" not in counts:
            raise ValueError(f"a dictionary has {', '.join(map(repr, NAMES))}, of which the first is needed; got {list(counts)}")
        for name, other in (("covariates", covariates), ("offsets", offsets)):
            if other is not None and name in counts:
                raise TypeError(f"{name} are given twice, in the dictionary and by {name}=; give them once")
        covariates, offsets = (counts.get(name, other) for name, other in (("covariates", covariates), ("offsets", offsets)))
        counts = counts["counts"]
    return counts, covariates, offsets, shares[0] if shares else None


def check_alike(source: Source, formula: str | None, *others: Any) -> None:
    """Raises: ValueError: processes have units of other features, or another formula, or covariates or offsets of other kinds."""
    names = len(source.features), zlib.crc32("\n".join(map(str, source.features)).encode())
    kinds = [other if isinstance(other, str) else type(other).__name__ for other in others]
    every = source.share.told({"features": names, "formulas": formula, "kinds of covariates or offsets": kinds})
    for name, value in every[0].items():
        other = next((process for process, one in enumerate(every) if one[name] != value), None)
        if other is not None:
            raise ValueError(
                f"{name} differ between processes 0 and {other}: every process makes the same call, on units with the same "
                "features in the same order"
            )


def source_of(counts: Any, share: Share | None = None) -> Source:
    """Numbers and names of whatever holds counts; units without names are numbered over all processes."""
    obs = features = units = None
    anndata: Any = sys.modules.get("anndata")
    whole, rows = _whole(counts)
    if anndata is not None and isinstance(whole, anndata.AnnData):
        obs, features, units = whole.obs.iloc[rows], whole.var_names, whole.obs_names[rows]
        if whole.X is None:
            raise ValueError('the AnnData has no .X; put the raw counts there, often those in .layers["counts"]')
        counts = _of_anndata(whole.X, rows)
    if isinstance(counts, SparseParquet):
        counts = counts.read()
    if isinstance(counts, LabelledCounts):
        features, units, counts = counts.genes, counts.cells, counts.values
    elif isinstance(counts, pd.DataFrame):
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
    share = Share((n,), 0) if share is None else share
    named = features is not None and not isinstance(features, pd.RangeIndex)
    return Source(
        values=_csr(counts) if scipy.sparse.issparse(counts) else counts,
        features=features if named and features is not None else pd.Index([f"y{j}" for j in range(p)]),
        units=pd.RangeIndex(share.first, share.first + n) if units is None else units,
        named=named,
        obs=obs,
        share=share,
    )


def _whole(counts: Any) -> tuple[Any, slice]:
    """What holds counts, and which of its rows they are."""
    return (counts.stored, slice(counts.first, counts.last)) if isinstance(counts, Rows) else (counts, slice(None))


def _of_anndata(values: Any, rows: slice) -> Any:
    """Rows of what an AnnData has in .X: those alone are read of what lies on disk."""
    if hasattr(values, "to_memory"):
        return values.to_memory() if rows == slice(None) else sparse_rows(values, rows)
    if rows == slice(None):
        return values
    return Rows(values, rows.start, rows.stop) if on_disk(values) else values[rows]


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


def _check_aligned(index: pd.Index, source: Source, what: str) -> None:
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


def array_of_offsets(offsets: Any, source: Source) -> np.ndarray:
    n, p = source.values.shape
    if isinstance(offsets, (pd.Series, pd.DataFrame)):
        _check_aligned(offsets.index, source, "offsets")
    wide = isinstance(offsets, pd.DataFrame) and offsets.shape[1] == p > 1
    if wide and source.named and not isinstance(offsets.columns, pd.RangeIndex) and not offsets.columns.equals(source.features):
        raise ValueError("the columns of offsets are not those of counts in their order; use offsets[counts.columns]")
    return given(offsets, n, p, source.units, source.features)


def covariates_of(covariates: Covariates | None, source: Source, formula: str | None) -> Any:
    """What was given as covariates of the units of a table; of an AnnData, for a formula, the columns of .obs that it may name.

    Raises:
        ValueError: rows that are not those of the counts.
    """
    if covariates is None:
        if formula is None or source.obs is None:
            return None
        named = [source.share.alone or str(name) in formula for name in source.obs.columns]
        return source.obs.loc[:, named]
    if isinstance(covariates, (pd.Series, pd.DataFrame)):
        _check_aligned(covariates.index, source, "covariates")
    count = len(plain(covariates))
    if count != len(source.units):
        shared = "" if source.share.alone else ", so pass those of the units of this process, such as mx.shard(covariates)"
        raise ValueError(f"covariates have {count} rows and counts {len(source.units)}; they must agree{shared}")
    return covariates


def frame_of_all(covariates: Any, source: Source) -> pd.DataFrame:
    """Covariates of the units of all processes: they are few numbers a unit, and how they are coded depends on all of them."""
    share = source.share
    if share.alone:
        return plain(pd.DataFrame(index=range(len(source.units))) if covariates is None else covariates)
    parts = share.told(covariates if isinstance(covariates, pd.Series | pd.DataFrame | None) else np.asarray(covariates))
    if covariates is None:
        return pd.DataFrame(index=range(share.n))
    if not isinstance(parts[0], pd.Series | pd.DataFrame):
        return plain(np.concatenate(parts))
    frames = [part.to_frame("x0" if part.name is None else part.name) if isinstance(part, pd.Series) else part for part in parts]
    return plain(pd.concat(_with_all_levels(frames), ignore_index=True))


def _with_all_levels(frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Categories that have the levels of all frames, in the order in which they come."""
    out = [frame.copy(deep=False) for frame in frames]
    for name in out[0]:
        if not all(name in frame and isinstance(frame[name].dtype, pd.CategoricalDtype) for frame in out):
            continue
        levels = out[0][name].cat.categories
        for frame in out[1:]:
            levels = levels.append(frame[name].cat.categories.difference(levels, sort=False))
        for frame in out:
            frame[name] = frame[name].cat.set_categories(levels)
    return out


def own_frame(covariates: Any, source: Source) -> pd.DataFrame:
    """Covariates of the units of this process alone, to be coded as those of a fit were."""
    return plain(pd.DataFrame(index=range(len(source.units))) if covariates is None else covariates)
