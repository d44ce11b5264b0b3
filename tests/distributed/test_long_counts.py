"""PLN-PCA of a long Parquet table: the fit of the dense one, in one process and several, of which each reads its row groups."""

import long_counts
import numpy as np
import pandas as pd
import pytest
from test_processes import launched

import margaux as mx

parquet = pytest.importorskip("pyarrow.parquet")

SIZE = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("long")
    long_counts.long().to_parquet(out / "counts.parquet", row_group_size=SIZE, index=False)
    frame = long_counts.long()
    frame.iloc[-1, 2] = -4
    frame.to_parquet(out / "negative.parquet", row_group_size=SIZE, index=False)
    frame = long_counts.long()
    pd.concat([frame, frame[:1]]).to_parquet(out / "apart.parquet", row_group_size=SIZE, index=False)
    return out


@pytest.fixture(scope="module")
def of_dense():
    cells, genes = long_counts.named()
    return long_counts.fitted(pd.DataFrame(long_counts.counts.table()[0].toarray(), cells, genes))


def columns(path):
    """The spans of the file in which the columns of use lie."""
    footer, out = parquet.read_metadata(path), []
    for group in range(footer.num_row_groups):
        for place in range(3):
            column = footer.row_group(group).column(place)
            assert column.path_in_schema in ("barcode", "gene", "umi")
            first = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
            out.append((first, first + column.total_compressed_size))
    return out


def check_read_once(spans, path):
    """Every byte of the columns of use once, and no other."""
    times = np.zeros(path.stat().st_size, int)
    for first, last in spans:
        times[first:last] += 1
    wanted = np.zeros_like(times)
    for first, last in columns(path):
        wanted[first:last] = 1
    assert wanted.sum() > 1000
    np.testing.assert_array_equal(times, wanted)


def check_same(found, model):
    for name in ("coef", "loadings", "scores"):
        value = getattr(model, f"{name}_")
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-10 * np.max(np.abs(value)), err_msg=name)
    np.testing.assert_allclose(found["loglik"], float(model.loglik_), rtol=1e-10)


def test_one_process_finds_what_the_dense_table_gives_and_reads_nothing_twice(folder, of_dense, monkeypatch):
    spans, whole = [], parquet.ParquetFile
    monkeypatch.setattr(parquet, "ParquetFile", whole)  # put back after the next line
    long_counts.watch(spans)
    model = long_counts.fitted(mx.sparse_parquet(folder / "counts.parquet"))
    check_same({name: getattr(model, f"{name}_") for name in ("coef", "loadings", "scores", "loglik")}, of_dense)
    assert type(model.table_.counts.values).__name__ == "csr_array"
    check_read_once(spans, folder / "counts.parquet")


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_processes_find_the_same_and_read_their_row_groups(folder, of_dense, processes):
    done = launched(processes, long_counts.__file__, folder, "counts")
    assert done.returncode == 0, done.stderr[-2000:]
    every = [np.load(folder / f"found.{process}.npz") for process in range(processes)]
    for found in every:
        check_same(found, of_dense)
        assert found["units"].tolist() == list(long_counts.named()[0])
        assert found["sizes"].sum() == long_counts.counts.N and found["sizes"].min() > 0
        # Each has read about its part of the file.
        assert 0.5 < np.diff(found["spans"]).sum() / sum(np.diff(each["spans"]).sum() for each in every) * processes < 1.5
    assert sum(found["stored"] for found in every) == long_counts.counts.table()[0].nnz
    check_read_once([span for found in every for span in found["spans"]], folder / "counts.parquet")


@pytest.mark.slow
@pytest.mark.parametrize(("what", "message"), [
    ("negative", "process 1 gave up: ValueError: row "),
    ("apart", 'the cells are not sorted: "cell 0" begins in row 0 of row group 0 in apart.parquet and again in row '),
])  # fmt: skip
def test_what_is_wrong_in_the_row_groups_of_one_process_is_said_by_all(folder, what, message):
    done = launched(2, long_counts.__file__, folder, what, timeout=120)
    assert done.returncode == 1 and message in done.stderr, done.stderr[-2000:]
    assert done.stderr.count("Traceback") == 2


def test_what_is_shared_beside_a_table_has_its_cells(folder):
    table = mx.sparse_parquet(folder / "counts.parquet")
    assert mx.shard(table) is table  # of one process
    with pytest.raises(TypeError, match="several sparse Parquet tables"):
        mx.distributed._by_row_groups({"counts": table, "offsets": table}, table, table)
    with pytest.raises(ValueError, match="has 61 cells and what comes with it 60 rows"):
        mx.distributed._by_row_groups({"counts": table, "covariates": np.zeros(60)}, table)
