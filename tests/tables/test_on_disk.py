"""Parquet, zarr and HDF5 become memory maps of the same numbers."""

import json

import numpy as np
import pytest

import margaux as mx
from margaux.tables import on_disk as module

Y = np.random.default_rng(0).normal(size=(1000, 3))


@pytest.fixture
def table(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def write(name="units.parquet", **columns):
        path = tmp_path / name
        known = {"a": Y[:, 0], "b": Y[:, 1].astype(np.float32), "k": np.arange(1000), "yes": Y[:, 2] > 0}
        parquet.write_table(pa.table(known | columns), path, row_group_size=130)
        return path

    return write


def test_columns_of_a_parquet_file(table, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 77)
    path = table()
    whole = mx.on_disk(path, tmp_path / "whole")
    assert isinstance(whole, np.memmap) and whole.shape == (1000, 4) and whole.dtype == float and not whole.flags.writeable
    np.testing.assert_array_equal(whole[:, 0], Y[:, 0])
    np.testing.assert_array_equal(whole[:, 2], np.arange(1000))
    np.testing.assert_array_equal(whole[:, 3], Y[:, 2] > 0)
    parts = mx.on_disk(path, tmp_path / "parts", columns={"x": ["b", "a"], "k": "k"})
    assert parts["x"].shape == (1000, 2) and parts["k"].dtype == np.int64 and parts["k"].shape == (1000,)
    np.testing.assert_array_equal(parts["x"][:, 0], Y[:, 1].astype(np.float32))
    single = mx.on_disk(path, tmp_path / "single", columns=["b"], dtype="float32")
    assert single.dtype == np.float32 and single.shape == (1000, 1)


def test_a_copy_is_made_once_and_again_when_the_file_or_the_columns_change(table, tmp_path):
    path, folder = table(), tmp_path / "copy"
    first = mx.on_disk(path, folder, columns=["a"])
    stamp = (folder / "units_0.npy").stat().st_mtime_ns, (folder / "units_0.npy").stat().st_ino
    mx.on_disk(path, folder, columns=["a"])
    assert stamp == ((folder / "units_0.npy").stat().st_mtime_ns, (folder / "units_0.npy").stat().st_ino)
    other = mx.on_disk(path, folder, columns=["b"])
    np.testing.assert_array_equal(other[:, 0], Y[:, 1].astype(np.float32))
    np.testing.assert_array_equal(first[:, 0], Y[:, 0])  # the earlier map still has its file
    table(a=2 * Y[:, 0])
    np.testing.assert_array_equal(mx.on_disk(path, folder, columns=["a"])[:, 0], 2 * Y[:, 0])
    (folder / module.RECORD).write_text("{")
    np.testing.assert_array_equal(mx.on_disk(path, folder, columns=["a"])[:, 0], 2 * Y[:, 0])
    assert json.loads((folder / module.RECORD).read_text())["columns"] == [["a"]]


def test_what_is_no_table_of_numbers_is_refused(table, tmp_path, monkeypatch):
    gaps = [None if i == 500 else 1.0 for i in range(1000)]
    path = table(word=["x"] * 1000, gap=gaps)
    for columns, error, told in (
        (["nothing"], ValueError, "has no column 'nothing'; it has a, b"),
        (["word"], TypeError, "column 'word' of units.parquet is string; encode"),
        (["a", "gap"], ValueError, "column 'gap' of units.parquet is empty in row 500"),
        ([], ValueError, "columns= is empty"),
        (None, TypeError, "column 'word'"),
    ):
        with pytest.raises(error, match=told):
            mx.on_disk(path, tmp_path / "copy", columns=columns)
    assert not list((tmp_path / "copy").iterdir())  # nothing half done is left
    with pytest.raises(FileNotFoundError, match="there is no file"):
        mx.on_disk(tmp_path / "other.parquet", tmp_path / "copy")
    with pytest.raises(ValueError, match="has no rows"):
        empty = np.zeros(0)
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pa.table({"a": empty}), tmp_path / "empty.parquet")
        mx.on_disk(tmp_path / "empty.parquet", tmp_path / "copy")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(ValueError, match="GB free"):
        mx.on_disk(path, tmp_path / "copy", columns=["a"])


@pytest.mark.parametrize("kind", ["zarr", "hdf5", "array"])
def test_arrays_in_chunks_are_copied_and_are_refused_by_batches_as_they_are(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BYTES", 1000)
    if kind == "zarr":
        stored = pytest.importorskip("zarr").array(Y, chunks=(70, 2), store=str(tmp_path / "y.zarr"))
    elif kind == "hdf5":
        stored = pytest.importorskip("h5py").File(tmp_path / "y.h5", "w").create_dataset("y", data=Y, chunks=(90, 3))
    else:
        stored = Y
    units = mx.on_disk({"y": stored}, tmp_path / "copy")
    np.testing.assert_array_equal(units["y"], Y)

    class Normal(mx.AbstractModel):
        def log_joint(self, params, z, unit):
            return -0.5 * ((unit["y"] - z) ** 2).sum() - 0.5 * (z - params["mu"]) ** 2

        def init_latents(self, key, params, unit):
            return 0.0 * unit["y"][0]

    def fit(data, **settings):
        return mx.fit(
            Normal(), data, mx.soul(), mx.Quadrature(3), params={"mu": 0.0}, n_iter=5, polish=False, progress=False, **settings
        )

    batches = fit({"y": Y}, batch_size=10)
    np.testing.assert_array_equal(fit(units, batch_size=10).trace["params"], batches.trace["params"])
    if kind != "array":
        with pytest.raises(TypeError, match="copy it once by margaux.on_disk"):
            fit({"y": stored}, batch_size=10)
    np.testing.assert_array_equal(fit({"y": stored}).trace["params"], fit({"y": Y}).trace["params"])


def test_an_interrupted_copy_leaves_nothing_that_looks_whole(table, tmp_path, monkeypatch):
    path, folder = table(), tmp_path / "copy"
    parts = module._parts

    def stops(*args):
        for i, part in enumerate(parts(*args)):
            if i == 1:
                raise KeyboardInterrupt
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(module, "ROWS", 100)
        patch.setattr(module, "_parts", stops)
        with pytest.raises(KeyboardInterrupt):
            mx.on_disk(path, folder, columns=["a"])
    assert not list(folder.iterdir())
    np.testing.assert_array_equal(mx.on_disk(path, folder, columns=["a"])[:, 0], Y[:, 0])


def test_what_has_no_units_is_refused(tmp_path):
    with pytest.raises(TypeError, match="arrays with a leading axis"):
        mx.on_disk({"y": 3.0}, tmp_path)
    with pytest.raises(TypeError, match="columns= are those of a Parquet file"):
        mx.on_disk(Y, tmp_path, columns=["a"])
