"""Entries of a long Parquet table of counts, a row for each that is not zero, decoded row group by row group."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

#: rows that are decoded at a time
ROWS = 1 << 20

#: usual names of the three columns
USUAL = {
    "cell": ("cell", "cells", "cell_id", "barcode", "obs", "unit"),
    "gene": ("gene", "genes", "gene_id", "feature", "feature_id", "var"),
    "count": ("count", "counts", "value", "umi", "umis", "umi_count"),
}


@dataclasses.dataclass(frozen=True)
class Long:
    """A long table in a file.

    Attributes:
        path: of the file. cell, gene, count: names of its columns. footer: what the file says of its row groups.
    """

    path: Path
    cell: str
    gene: str
    count: str
    footer: Any

    @property
    def ends(self) -> np.ndarray:
        """The row after the last one of each row group."""
        return np.cumsum([self.footer.row_group(group).num_rows for group in range(self.footer.num_row_groups)])

    def place(self, row: int) -> str:
        """Where a row of the file is, in words; both numbers are from zero."""
        ends = self.ends
        group = int(np.searchsorted(ends, row, "right"))
        return f"row {row - (int(ends[group - 1]) if group else 0)} of row group {group} in {self.path.name}"

    def groups(self, index: int, count: int) -> range:
        """Row groups of one of several processes: consecutive ones, with about as many rows in each.

        Raises:
            ValueError: there are fewer of them than processes.
        """
        filled = np.flatnonzero(np.diff(self.ends, prepend=0))
        if len(filled) < count:
            raise ValueError(
                f"{self.path.name} has {len(filled)} row groups, which {count} processes cannot share: write it with "
                "smaller ones (row_group_size=), or start fewer processes"
            )
        ends = self.ends[filled]
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count, "left") + 1
        # One at least for each process.
        cuts = np.maximum.accumulate(cuts - np.arange(1, count)) + np.arange(1, count)
        cuts = np.minimum(cuts, len(filled) - np.arange(count - 1, 0, -1))
        firsts = [0, *filled[cuts].tolist(), len(self.ends)]
        return range(firsts[index], firsts[index + 1])


@dataclasses.dataclass(frozen=True)
class Entries:
    """Entries in the order of the file; consecutive ones with the same cell are a run.

    Attributes:
        first: their first row in the file. places: of their genes among `genes`, (m,). counts: (m,).
        starts: of the runs, (r,). cells: of the runs, r names. genes: names.
    """

    first: int
    places: np.ndarray
    counts: np.ndarray
    starts: np.ndarray
    cells: list
    genes: list


def long_table(path: Path, cell: str | None, gene: str | None, count: str | None) -> Long:
    """A long table whose columns are named, or found by usual names; the file's footer is all that is read.

    Raises:
        ImportError: pyarrow is not installed. FileNotFoundError: there is no file. TypeError, ValueError: its columns are others.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError as problem:
        raise ImportError(f"{path.name} needs pyarrow; install it via: pip install 'margaux[parquet]'") from problem
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    footer = parquet.read_metadata(path)
    schema = footer.schema.to_arrow_schema()
    named = {"cell": cell, "gene": gene, "count": count}
    columns = {what: _column(schema.names, what, name, path) for what, name in named.items()}
    if len(set(columns.values())) < len(columns):
        raise ValueError(f"cell=, gene= and count= name the same column of {path.name}; there is one for each")
    for what, name in columns.items():
        _check_type(schema.field(name).type, what, name, path)
    if footer.num_rows == 0:
        raise ValueError(f"{path.name} has no rows; pass a table with a count at least")
    return Long(path, columns["cell"], columns["gene"], columns["count"], footer)


def _column(names: list[str], what: str, given: str | None, path: Path) -> str:
    shown = ", ".join(names[:20])
    if given is not None:
        if given not in names:
            raise ValueError(f"{path.name} has no column {given!r}; it has {shown}")
        return given
    usual = [name for name in names if name.lower() in USUAL[what]]
    if len(usual) != 1:
        found = "several columns" if usual else "no column"
        raise ValueError(f"{path.name} has {found} with a usual name of a {what}; it has {shown}: name one by {what}=")
    return usual[0]


def _check_type(kind: Any, what: str, name: str, path: Path) -> None:
    import pyarrow.types as types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    whole = types.is_integer(inner)
    fine = whole or (types.is_floating(inner) if what == "count" else types.is_string(inner) or types.is_large_string(inner))
    if not fine or (what == "count" and inner is not kind):
        wanted = "numbers" if what == "count" else "names or whole numbers"
        raise TypeError(f"column {name!r} of {path.name} is {kind}; a {what} column has {wanted}")


def opened(table: Long) -> Any:
    """The file, of which decoding reads the three columns of a row group and nothing else."""
    import pyarrow.parquet as parquet
    import pyarrow.types as types

    schema = table.footer.schema.to_arrow_schema()
    # Names are decoded to codes, each name once.
    coded = [name for name in (table.cell, table.gene) if types.is_string(schema.field(name).type)]
    return parquet.ParquetFile(table.path, metadata=table.footer, read_dictionary=coded, pre_buffer=False, buffer_size=1 << 20)


def read_entries(table: Long, groups: range, genes: pd.Index | None) -> Entries:
    """Entries of consecutive row groups.

    Args:
        genes: all that there may be, unless those that are found are all.

    Raises:
        ValueError: an entry is empty, of another gene, or holds no count, with its row and row group.
    """
    ends = table.ends
    first = int(ends[groups.start - 1]) if groups.start else 0
    m = int(ends[groups.stop - 1]) - first
    places, counts = np.empty(m, np.int32), np.empty(m, np.int32)
    known = {} if genes is None else {name: place for place, name in enumerate(genes.tolist())}
    starts, cells, done = [], [], 0
    with opened(table) as file:
        for group in groups:
            for batch in file.iter_batches(ROWS, row_groups=[group], columns=[table.cell, table.gene, table.count]):
                if not len(batch):
                    continue
                row, span = first + done, slice(done, done + len(batch))
                counts[span] = _counts(batch.column(table.count), table, row)
                codes, names = _coded(batch.column(table.gene), table, table.gene, row)
                places[span] = _places(codes, names, known, genes is None, table, row)
                codes, names = _coded(batch.column(table.cell), table, table.cell, row)
                begins = np.append(0, np.flatnonzero(np.diff(codes)) + 1)
                of_runs = [names[code] for code in codes[begins].tolist()]
                continued = bool(cells) and of_runs[0] == cells[-1]
                starts.append(begins[continued:] + done)
                cells += of_runs[continued:]
                done += len(batch)
    return Entries(first, places, counts, np.concatenate(starts), cells, list(known))


def _coded(column: Any, table: Long, name: str, row: int) -> tuple[np.ndarray, list]:
    """Codes of a column's entries, and the names that they stand for."""
    import pyarrow.types as types

    _check_filled(column, table, name, row)
    column = column if types.is_dictionary(column.type) else column.dictionary_encode()
    return column.indices.to_numpy(zero_copy_only=False), column.dictionary.to_pylist()


def _places(codes: np.ndarray, names: list, known: dict, grows: bool, table: Long, row: int) -> np.ndarray:
    """Places of genes among those that are known, to which new ones are added if it `grows`."""
    of_codes = np.full(len(names), -1, np.int32)
    # A file's dictionary may have names that no entry has.
    for code in np.flatnonzero(np.bincount(codes, minlength=len(names))).tolist():
        of_codes[code] = known.setdefault(names[code], len(known)) if grows else known.get(names[code], -1)
    places = of_codes[codes]
    if not grows and places.min() < 0:
        at = int(np.flatnonzero(places < 0)[0])
        raise ValueError(f'the gene "{names[codes[at]]}" in {table.place(row + at)} is none of genes=; add it, or drop its rows')
    return places


def _counts(column: Any, table: Long, row: int) -> np.ndarray:
    _check_filled(column, table, table.count, row)
    values = column.to_numpy(zero_copy_only=False)
    low, high, most = values.min().item(), values.max().item(), np.iinfo(np.int32).max
    # NaN fails both comparisons.
    if low >= 0 and high <= most and (values.dtype.kind != "f" or np.array_equal(values, np.trunc(values))):
        return values
    wide = values.astype(float)
    at = int(np.flatnonzero(~((wide >= 0) & (wide <= most)) | (wide != np.trunc(wide)))[0])
    raise ValueError(
        f"{table.place(row + at)} has a count of {wide[at]:g}; counts are whole numbers from zero to {most}: if they were "
        "normalised, pass the raw ones and what they were divided by as offsets"
    )


def _check_filled(column: Any, table: Long, name: str, row: int) -> None:
    if column.null_count:
        at = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"column {name!r} is empty in {table.place(row + at)}; fill it, or drop the row")
