"""Sparse tables of counts in Parquet files of three columns: cell, gene and count, a row for each count that is not zero."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import scipy

from ..engine.share import ALONE, Share, together
from .entries import Entries, Long, long_table, read_entries

#: entries that are put in order together
BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledCounts:
    """Counts (n, p) in CSR form with the names of their n cells and p genes."""

    values: Any
    cells: pd.Index
    genes: pd.Index

    @property
    def shape(self) -> tuple[int, int]:
        """Of the counts."""
        return self.values.shape


@dataclasses.dataclass(frozen=True, eq=False)
class SparseParquet:
    """A long table of counts on disk, which is read when a fit, or `margaux.shard` over several processes, asks for it.

    Attributes:
        table: the file and its columns. cells, genes: names of all rows and columns, in order; None for those that are found.
    """

    table: Long
    cells: pd.Index | None
    genes: pd.Index | None

    def read(self) -> LabelledCounts:
        """All of it.

        Raises:
            ValueError: what is wrong in the file, with row group and row.
        """
        return self._read(ALONE)[0]

    def shared(self) -> tuple[LabelledCounts, Share]:
        """The cells of this process: those that begin in its row groups, which have about as many rows as the others'. What a row
        group has of a cell that began in another process's is sent to that process. All processes ask together.

        Raises:
            ValueError: as `read`, in every process. RuntimeError: another process has failed.
        """
        return self._read(Share((0,) * jax.process_count(), jax.process_index()))

    def _read(self, peers: Share) -> tuple[LabelledCounts, Share]:
        several = not peers.alone
        with together(several):
            own = read_entries(self.table, self.table.groups(peers.index, len(peers.sizes)), self.genes)
        genes = self._of_all_genes(own, peers)
        begun = _begun(own, peers)
        cells, places = self._placed(begun.names, begun.rows)
        firsts = places[np.cumsum(begun.counts)[:-1]]
        share = Share(tuple(int(size) for size in np.diff([0, *firsts, len(cells)])), peers.index)
        entries = _own_entries(own, peers, begun.continues)
        before = sum(begun.counts[: peers.index])
        mine = places[before:][: begun.counts[peers.index]] - share.first
        cells = cells[share.first :][: share.size]
        with together(several):
            values = self._table(entries, mine, cells, genes)
        return LabelledCounts(values, cells, genes), share

    def _of_all_genes(self, own: Entries, peers: Share) -> pd.Index:
        """Names of all genes, among which entries have their places from now on."""
        if self.genes is not None:
            return self.genes
        genes = pd.Index(sorted(set().union(*peers.told(own.genes))))
        new = genes.get_indexer(pd.Index(own.genes)).astype(own.places.dtype)
        for first in range(0, len(own.places), BLOCK):
            own.places[first : first + BLOCK] = new[own.places[first : first + BLOCK]]
        return genes

    def _placed(self, names: pd.Index, rows: np.ndarray) -> tuple[pd.Index, np.ndarray]:
        """All cells, and the places among them of those that have entries.

        Raises:
            ValueError: the rows of a cell are apart, or cells are not those that were given in their order.
        """
        table = self.table
        again = np.flatnonzero(names.duplicated())
        if len(again):
            at = int(again[0])
            before = int(np.flatnonzero(names[:at] == names[at])[0])
            raise ValueError(
                f'the cells are not sorted: "{names[at]}" begins in {table.place(int(rows[before]))} and again in '
                f"{table.place(int(rows[at]))}; sort the table by {table.cell!r}, so that the rows of a cell are together"
            )
        if self.cells is None:
            return names, np.arange(len(names))
        places = self.cells.get_indexer(names)
        if places.min() < 0:
            at = int(np.flatnonzero(places < 0)[0])
            where = table.place(int(rows[at]))
            raise ValueError(f'the cell "{names[at]}" in {where} is none of cells=; add it, or drop its rows')
        back = np.flatnonzero(np.diff(places) < 0)
        if len(back):
            at = int(back[0]) + 1
            raise ValueError(
                f'the cells are not sorted as in cells=: "{names[at]}" in {table.place(int(rows[at]))} comes after '
                f'"{names[at - 1]}"; sort one of them like the other'
            )
        return self.cells, places

    def _table(self, entries: Entries, mine: np.ndarray, cells: pd.Index, genes: pd.Index) -> Any:
        """Entries as CSR, a row for each of some cells, of which `mine` have entries, in the order of the genes.

        Raises:
            ValueError: a cell has a gene twice.
        """
        n = len(cells)
        lengths = np.zeros(n, np.int64)
        lengths[mine] = np.diff([*entries.starts, len(entries.counts)])
        ends = np.append(0, np.cumsum(lengths))
        # Of wide ends SciPy makes wide places, in a copy.
        ends = ends.astype(np.int32) if ends[-1] <= np.iinfo(np.int32).max else ends
        first = 0
        while first < n:
            last = max(int(np.searchsorted(ends, int(ends[first]) + BLOCK, "right")) - 1, first + 1)
            span = slice(ends[first], ends[last])
            parts = entries.counts[span].copy(), entries.places[span].copy(), ends[first : last + 1] - ends[first]
            rows = scipy.sparse.csr_array(parts, shape=(last - first, len(genes)))
            rows.sort_indices()
            same = np.flatnonzero(rows.indices[1:] == rows.indices[:-1]) + 1
            same = same[~np.isin(same, rows.indptr)]
            if len(same):
                row = first + int(np.searchsorted(rows.indptr, same[0], "right")) - 1
                gene = int(rows.indices[same[0]])
                both = ends[row] + np.flatnonzero(entries.places[ends[row] : ends[row + 1]] == gene)[:2]
                once, twice = (self.table.place(entries.first + int(at)) for at in both)
                raise ValueError(
                    f'the cell "{cells[row]}" has the gene "{genes[gene]}" twice, in {once} and {twice}; add them up'
                )
            entries.counts[span], entries.places[span] = rows.data, rows.indices
            first = last
        table = scipy.sparse.csr_array((entries.counts, entries.places, ends), shape=(n, len(genes)))
        if not table.data.all():
            table.eliminate_zeros()
        return table


def sparse_parquet(
    path: str | Path,
    *,
    cell: str | None = None,
    gene: str | None = None,
    count: str | None = None,
    cells: Sequence | None = None,
    genes: Sequence | None = None,
) -> SparseParquet:
    """Counts in a long Parquet table, a row for each that is not zero, for `margaux.PLNPCA` and `margaux.shard`.

    The rows of a cell are together, and cells in any order. Row groups are decoded one after the other into a sparse table; over
    several processes each decodes its own, so that every byte of the three columns is read once.

    Args:
        path: of the file. cell, gene, count: names of its columns; by default found by usual names, such as "barcode" or "umi".
        cells: names of all cells in the order of the file, where some have no counts; by default those that are found.
        genes: names of all genes, in the order in which they are wanted; by default those that are found, sorted.

    Raises:
        ImportError: pyarrow is not installed. FileNotFoundError, TypeError, ValueError: no such file, or columns that are not
            there or of another type. When it is read, ValueError: cells that are not sorted, a gene twice in a cell, what is no
            count, with row group and row, both from zero.

    >>> import tempfile, pandas as pd, margaux as mx
    >>> long = pd.DataFrame({"cell": ["a", "a", "b"], "gene": ["g2", "g1", "g2"], "count": [3, 1, 2]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     long.to_parquet(f"{folder}/counts.parquet", row_group_size=2)
    ...     table = mx.sparse_parquet(f"{folder}/counts.parquet").read()
    >>> table.values.toarray().tolist(), list(table.cells), list(table.genes)
    ([[1, 3], [0, 2]], ['a', 'b'], ['g1', 'g2'])
    """
    table = long_table(Path(path), cell, gene, count)
    return SparseParquet(table, _names(cells, "cells"), _names(genes, "genes"))


def _names(given: Sequence | None, what: str) -> pd.Index | None:
    """Raises: TypeError, ValueError: they are no names, or one comes twice."""
    if given is None:
        return None
    if isinstance(given, str):
        raise TypeError(f"{what}= are names of all {what}, got the text {given!r}; the name of a column goes to {what[:-1]}=")
    names = pd.Index(given)
    if not names.is_unique:
        raise ValueError(f'{what}= have "{names[names.duplicated()][0]}" more than once; make them unique')
    return names


class _Begun(NamedTuple):
    """Cells by the process in whose row groups they begin.

    Attributes:
        names, rows: of all of them in the order of the file, and where each begins. counts: of each process.
        continues: whether the first cell of each process has begun in the one before.
    """

    names: pd.Index
    rows: np.ndarray
    counts: list[int]
    continues: list[bool]


def _begun(own: Entries, peers: Share) -> _Begun:
    """Raises: ValueError: a process has rows of one cell alone, which began in another."""
    every = peers.told((own.cells, own.first + own.starts))
    continues = [process > 0 and every[process - 1][0][-1] == cells[0] for process, (cells, _) in enumerate(every)]
    for process, (cells, _) in enumerate(every):
        if len(cells) == continues[process]:
            raise ValueError(
                f'process {process} of {len(every)} would have no cell of its own, as one ("{cells[0]}") has all of its rows: '
                "start fewer processes"
            )
    parts = [(cells[continued:], rows[continued:]) for (cells, rows), continued in zip(every, continues, strict=True)]
    names = pd.Index([name for cells, _ in parts for name in cells])
    return _Begun(names, np.concatenate([rows for _, rows in parts]), [len(cells) for cells, _ in parts], continues)


def _own_entries(own: Entries, peers: Share, continues: list[bool]) -> Entries:
    """Entries of the cells that begin here: without those of the one before, with the next process's of the last."""
    if not any(continues):
        return own
    head = int(own.starts[1]) if continues[peers.index] else 0
    sent = peers.told((own.places[:head].copy(), own.counts[:head].copy()))
    starts = own.starts[1:] - head if head else own.starts
    places, counts = own.places[head:], own.counts[head:]
    following = peers.index + 1
    if following < len(sent) and len(sent[following][0]):
        places, counts = np.append(places, sent[following][0]), np.append(counts, sent[following][1])
    return Entries(own.first + head, places, counts, starts, own.cells[bool(head) :], own.genes)
