"""Long Parquet tables of counts become sparse ones, whole or by the row groups of several processes, and faults are named."""

import re
import threading

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import margaux as mx
from margaux.engine.share import Share
from margaux.tables import entries, sparse_parquet

pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

CELLS, GENES = [f"cell {i}" for i in (3, 1, 12, 2, 0, 7)], [f"g{j}" for j in (1, 10, 2, 3)]
DENSE = np.random.default_rng(0).poisson(0.9, (6, 4)) + np.eye(6, 4, dtype=int)


def long(dense=DENSE, cells=CELLS, genes=GENES, seed=0):
    """Rows of the counts that are not zero, cell by cell, the genes of each in any order."""
    rng = np.random.default_rng(seed)
    rows = [(i, j) for i in range(len(dense)) for j in rng.permutation(len(dense[0])) if dense[i, j]]
    i, j = np.array(rows).reshape(-1, 2).T
    return pd.DataFrame({"cell": np.array(cells)[i], "gene": np.array(genes)[j], "count": np.asarray(dense)[i, j]})


@pytest.fixture
def written(tmp_path):
    def write(frame, size=5, name="counts.parquet", **settings):
        frame.to_parquet(tmp_path / name, row_group_size=size, index=False, **settings)
        return tmp_path / name

    return write


def dense_of(found, cells=CELLS, genes=GENES):
    frame = pd.DataFrame(found.values.toarray(), found.cells, found.genes)
    assert found.values.has_canonical_format and found.values.data.all()
    return frame.loc[cells, genes].to_numpy()


def over_processes(table, count) -> list:
    """What each of some processes reads, which here are threads that tell each other what they say."""
    barrier, said, found, failed = threading.Barrier(count), [None] * count, [None] * count, [None] * count

    class Peers(Share):
        def told(self, thing):
            said[self.index] = thing
            barrier.wait(20)
            every = list(said)
            barrier.wait(20)
            return every

    def read(index):
        try:
            found[index] = table._read(Peers((0,) * count, index))
        except Exception as error:
            failed[index] = error
            barrier.abort()

    threads = [threading.Thread(target=read, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [error for error in failed if error is not None and not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise errors[0]
    return found


@pytest.fixture
def threads_alone(monkeypatch):
    """Threads have no errors of their own to tell each other."""
    import contextlib

    monkeypatch.setattr(sparse_parquet, "together", lambda several: contextlib.nullcontext())


@pytest.mark.parametrize("size", [1, 2, 5, 100])
@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_a_table_is_read_whatever_its_row_groups(written, monkeypatch, size, rows):
    monkeypatch.setattr(entries, "ROWS", rows)
    monkeypatch.setattr(sparse_parquet, "BLOCK", rows)
    found = mx.sparse_parquet(written(long(), size)).read()
    assert list(found.cells) == CELLS and list(found.genes) == sorted(GENES)
    np.testing.assert_array_equal(dense_of(found), DENSE)


KINDS = {
    "categories": lambda frame: frame.astype({"cell": "category", "gene": pd.CategoricalDtype([*GENES, "never seen"])}),
    "floats": lambda frame: frame.astype({"count": np.float32}),
    "half": lambda frame: frame.astype({"count": np.float16}),
    "bytes": lambda frame: frame.astype({"count": np.uint8}),
    "wide": lambda frame: frame.astype({"count": np.uint64}),
    "zeros": lambda frame: pd.concat([frame, pd.DataFrame({"cell": ["cell 7"], "gene": ["g9"], "count": [0]})]),
    "more": lambda frame: frame.assign(batch="b", weight=0.5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_of_column_is_read_alike(written, kind):
    found = mx.sparse_parquet(written(KINDS[kind](long()))).read()
    np.testing.assert_array_equal(dense_of(found), DENSE)
    assert list(found.genes) == sorted([*GENES, "g9"] if kind == "zeros" else GENES)


def test_whole_numbers_are_names_too(written):
    cells, genes = [30, 4, 5, 11, 2, 0], [7, 3, 100, 20]
    table = mx.sparse_parquet(written(long(cells=cells, genes=genes)), genes=range(101))
    found = table.read()
    assert list(found.cells) == cells and found.shape == (6, 101)
    np.testing.assert_array_equal(dense_of(found, cells, genes), DENSE)
    assert found.values.nnz == np.count_nonzero(DENSE)


def test_columns_have_any_names_when_they_are_given(written):
    frame = long().rename(columns={"cell": "Barcode", "gene": "feature_id", "count": "UMI"})
    np.testing.assert_array_equal(dense_of(mx.sparse_parquet(written(frame)).read()), DENSE)
    path = written(frame.rename(columns={"Barcode": "x", "feature_id": "y", "UMI": "z"}))
    np.testing.assert_array_equal(dense_of(mx.sparse_parquet(path, cell="x", gene="y", count="z").read()), DENSE)


def test_cells_and_genes_without_counts_have_their_places(written):
    cells, genes = ["a", *CELLS[:2], "b", "c", *CELLS[2:], "d"], ["g0", *GENES]
    found = mx.sparse_parquet(written(long()), cells=cells, genes=genes).read()
    assert list(found.cells) == cells and list(found.genes) == genes
    expected = pd.DataFrame(0, cells, genes)
    expected.loc[CELLS, GENES] = DENSE
    np.testing.assert_array_equal(found.values.toarray(), expected)


@pytest.mark.usefixtures("threads_alone")
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("given", [False, True])
def test_processes_have_the_cells_that_begin_in_their_row_groups(written, count, given):
    cells = ["a", *CELLS[:3], "b", *CELLS[3:], "c"] if given else CELLS
    table = mx.sparse_parquet(written(long(), 2), cells=cells if given else None)
    whole = table.read()
    parts = over_processes(table, count)
    sizes = parts[0][1].sizes
    assert sum(sizes) == len(cells) and len(sizes) == count and min(sizes) > 0
    for index, (found, share) in enumerate(parts):
        assert share.sizes == sizes and share.index == index and list(found.genes) == sorted(GENES)
        own = slice(share.first, share.first + share.size)
        assert list(found.cells) == cells[own]
        np.testing.assert_array_equal(found.values.toarray(), whole.values.toarray()[own])


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_table_is_the_same_over_any_row_groups_and_processes(tmp_path_factory, data):
    n, p = data.draw(st.integers(4, 12)), data.draw(st.integers(1, 5))
    count, seed = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 1000))
    dense = np.random.default_rng(seed).poisson(0.7, (n, p))
    dense[:, 0] += 1
    frame = long(dense, [f"c{i}" for i in range(n)], [f"g{j}" for j in range(p)], seed)
    path = tmp_path_factory.mktemp("any") / "counts.parquet"
    frame.to_parquet(path, row_group_size=data.draw(st.integers(1, max(len(frame) // (2 * count), 1))))
    table = mx.sparse_parquet(path)
    patched = pytest.MonkeyPatch()
    with patched.context() as patch:
        import contextlib

        patch.setattr(sparse_parquet, "together", lambda several: contextlib.nullcontext())
        patch.setattr(sparse_parquet, "BLOCK", data.draw(st.integers(1, 20)))
        try:
            parts = over_processes(table, count)
        except ValueError as error:
            assert count > 1 and "would have no cell of its own" in str(error)
            return
    found = np.concatenate([part.values.toarray() for part, _ in parts])
    kept = dense.any(axis=0)
    np.testing.assert_array_equal(found, dense[:, kept])
    assert [name for part, _ in parts for name in part.cells] == [f"c{i}" for i in range(n)]


def altered(at, **values):
    frame = long().astype({"count": float})
    for name, value in values.items():
        frame.loc[at, name] = value
    return frame


def again(last):
    """The first row after another one."""
    frame = long()
    return pd.concat([frame[: last + 1], frame[:1], frame[last + 1 :]])


FAULTS = {
    "negative": (altered(7, count=-2), "row 2 of row group 1 in counts.parquet has a count of -2"),
    "fraction": (altered(4, count=1.5), "row 4 of row group 0 in counts.parquet has a count of 1.5"),
    "infinite": (altered(5, count=np.inf), "row 0 of row group 1 in counts.parquet has a count of inf"),
    "large": (altered(5, count=2.0**31), "has a count of 2.14748e+09"),
    "no cell": (altered(11, cell=None), "column 'cell' is empty in row 1 of row group 2 in counts.parquet"),
    "no gene": (altered(0, gene=None), "column 'gene' is empty in row 0 of row group 0"),
    "no count": (altered(6, count=None), "column 'count' is empty in row 1 of row group 1"),
    "apart": (again(len(long()) - 1), 'not sorted: "cell 3" begins in row 0 of row group 0 in counts.parquet and again in row '),
    "twice": (again(0), f'the cell "cell 3" has the gene "{long().gene[0]}" twice, in row 0 of row group 0'),
}


@pytest.mark.parametrize("what", FAULTS)
def test_faults_are_told_with_row_group_and_row(written, what):
    frame, message = FAULTS[what]
    with pytest.raises(ValueError, match=re.escape(message)):
        mx.sparse_parquet(written(frame)).read()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_gene_twice_in_a_cell_is_found_across_row_groups(written, size):
    frame = long()
    last = int(np.flatnonzero(frame.cell == "cell 12")[-1])
    first = int(np.flatnonzero(frame.cell == "cell 12")[0])
    frame = pd.concat([frame[: last + 1], frame[first : first + 1], frame[last + 1 :]])
    where = [f"row {row % size} of row group {row // size} in counts.parquet" for row in (first, last + 1)]
    message = f'the cell "cell 12" has the gene "{frame.gene.iloc[first]}" twice, in {where[0]} and {where[1]}'
    with pytest.raises(ValueError, match=re.escape(message)):
        mx.sparse_parquet(written(frame, size)).read()


@pytest.mark.usefixtures("threads_alone")
def test_faults_that_lie_between_processes_are_found(written):
    cells = ["a"] * 3 + ["b"] * 3 + ["c"] * 2
    genes = ["x", "y", "z", "x", "y", "x", "x", "y"]
    frame = pd.DataFrame({"cell": cells, "gene": genes, "count": 1})
    with pytest.raises(ValueError, match=r'"b" has the gene "x" twice, in row 3 of row group 0 .* and row 1 of row group 1'):
        over_processes(mx.sparse_parquet(written(frame, 4)), 2)
    frame = pd.DataFrame({"cell": ["a", "b", "c", "a"], "gene": "x", "count": 1})
    with pytest.raises(ValueError, match='"a" begins in row 0 of row group 0 .* and again in row 1 of row group 1'):
        over_processes(mx.sparse_parquet(written(frame, 2)), 2)
    frame = pd.DataFrame({"cell": ["a", "b", "b", "b"], "gene": ["x", "x", "y", "z"], "count": 1})
    with pytest.raises(ValueError, match=r'process 1 of 2 would have no cell of its own, as one \("b"\)'):
        over_processes(mx.sparse_parquet(written(frame, 2)), 2)
    with pytest.raises(ValueError, match="has 1 row groups, which 2 processes cannot share"):
        over_processes(mx.sparse_parquet(written(frame)), 2)


def test_tables_that_are_none_are_refused(written, tmp_path):
    path = written(long())
    with pytest.raises(FileNotFoundError, match="there is no file"):
        mx.sparse_parquet(tmp_path / "nothing.parquet")
    with pytest.raises(ValueError, match="has no column 'cells'; it has cell, gene, count"):
        mx.sparse_parquet(path, cell="cells")
    with pytest.raises(ValueError, match="has no column with a usual name of a gene; it has .*: name one by gene="):
        mx.sparse_parquet(written(long().rename(columns={"gene": "name"})))
    with pytest.raises(ValueError, match="has several columns with a usual name of a count"):
        mx.sparse_parquet(written(long().assign(value=1)))
    with pytest.raises(ValueError, match="name the same column"):
        mx.sparse_parquet(written(long()), cell="gene")
    with pytest.raises(TypeError, match="column 'count' of .* is .*string; a count column has numbers"):
        mx.sparse_parquet(written(long().astype({"count": str}), name="words.parquet"))
    with pytest.raises(TypeError, match="column 'cell' of .* is double; a cell column has names or whole numbers"):
        mx.sparse_parquet(written(long(cells=np.arange(6) / 2), name="floats.parquet"))
    with pytest.raises(ValueError, match="has no rows"):
        mx.sparse_parquet(written(long()[:0], name="none.parquet"))
    path = written(long())
    with pytest.raises(ValueError, match='the gene "g2" in row . of row group . in counts.parquet is none of genes='):
        mx.sparse_parquet(path, genes=["g1", "g3", "g10"]).read()
    with pytest.raises(ValueError, match='the cell "cell 3" in row 0 of row group 0 in counts.parquet is none of cells='):
        mx.sparse_parquet(path, cells=CELLS[1:]).read()
    with pytest.raises(ValueError, match=r'not sorted as in cells=: "cell 1" in row .* comes after "cell 3"'):
        mx.sparse_parquet(path, cells=sorted(CELLS)).read()
    with pytest.raises(ValueError, match='genes= have "g1" more than once'):
        mx.sparse_parquet(path, genes=["g1", "g1"])
    with pytest.raises(TypeError, match="cells= are names of all cells, got the text 'cell'"):
        mx.sparse_parquet(path, cells="cell")


def test_a_fit_of_counts_is_that_of_the_dense_table(written):
    rng = np.random.default_rng(1)
    dense = rng.poisson(np.exp(rng.normal(size=(30, 1)) @ rng.normal(size=(1, 5))))
    dense[:, 0] += 1
    cells, genes = [f"c{i}" for i in range(30)], list("vwxyz")
    table = mx.sparse_parquet(written(long(dense, cells, genes), 17))
    given = {"covariates": pd.DataFrame({"x": rng.normal(size=30)}, cells), "offsets": "TSS"}
    one, other = (
        mx.PLNPCA(rank=1, n_starts=1, method="variational", verbose=False).fit(counts, **given)
        for counts in (table, pd.DataFrame(dense, cells, genes))
    )
    assert list(one.table_.features) == genes and list(one.table_.units) == cells
    for name in ("coef_", "loadings_", "scores_"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-10, atol=1e-10)
    frame, given = pd.DataFrame(dense, cells, genes), {"covariates": given["covariates"]}
    np.testing.assert_allclose(one.transform(table, **given), other.transform(frame, **given), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(one.score({"counts": table, **given}), other.score(frame, **given), rtol=1e-10)
