"""PLN-PCA over several processes is that of one, and what is wrong with the counts of one is said by all."""

import importlib.util
import time

import count_faults
import counts
import jax
import numpy as np
import pandas as pd
import pytest
from test_processes import launched

from margaux.engine.share import Share
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design, Sweeps
from margaux.families.pln.start import by_log_counts

FEW = ("auto",)


def of_processes(processes, sizes, folder, names):
    done = launched(processes, counts.__file__, folder / "found", sizes, *names)
    assert done.returncode == 0, done.stderr[-2000:]
    every = [dict(np.load(folder / f"found.{process}.npz")) for process in range(processes)]
    for other in every[1:]:
        for name, value in every[0].items():
            if not name.startswith("own "):
                np.testing.assert_array_equal(other[name], value, err_msg=name)
    return every


def same(every, names):
    for name in names:
        model = counts.fitted(name, lambda data: data)
        of_all, own = counts.answered(model)
        single = model.loadings_.dtype == np.float32
        for key, value in (of_all | {f"all {key}": value for key, value in own.items()}).items():
            found = every[0][f"{name}/{key}"]
            if value.dtype.kind == "U":
                assert single or str(found) == str(value), key
                continue
            # Estimates to ten digits; what is computed at them loses one or two.
            relative, absolute = (2e-3, 2e-3) if single else (1e-9, 1e-10)
            np.testing.assert_allclose(found, value, relative, absolute, err_msg=f"{name} {key}")
            if key in ("coef", "loadings") and not single:
                np.testing.assert_allclose(found, value, rtol=0, atol=1e-10 * np.max(np.abs(value)), err_msg=f"{name} {key}")
        for key in own:
            parts = [one[f"own {name}/{key}"] for one in every]
            np.testing.assert_array_equal(np.concatenate(parts), every[0][f"{name}/all {key}"])


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path):
    same(of_processes(2, "even", tmp_path, FEW), FEW)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "sizes"), [(2, "even"), (3, "40,1,20"), (2, "5,56")])
def test_every_kind_of_fit_is_the_same_over_processes(processes, sizes, tmp_path):
    names = tuple(counts.parts())
    same(of_processes(processes, sizes, tmp_path, names), names)


def test_a_sweep_has_one_sum_over_the_processes_whose_size_is_not_that_of_the_cells(monkeypatch):
    sent, sizes = [], []

    def summed(self, tree):
        sent.append(sum(np.size(leaf) for leaf in jax.tree.leaves(tree)))
        return tree

    monkeypatch.setattr(Share, "alone", False)  # as if there were others, whose sums are zero
    monkeypatch.setattr(Share, "summed", summed)
    monkeypatch.setattr(Share, "joined", lambda self, own: own)
    for n in (40, 80):
        table, _, offset = counts.table(n)
        design = Design(Counts(table), np.ones((n, 1)), offset[:, None])
        with jax.enable_x64(True):
            sweeps = Sweeps(design, np.dtype(float), tol=1e-300, relative=0)
            run = sweeps.begin(*by_log_counts(design, 2))
            before = len(sent)
            made = sweeps.on(run, 5).sweeps
        assert made == 5 and len(sent) - before == 5
        sizes.append(set(sent[before:]))
    assert sizes[0] == sizes[1] and len(sizes[0]) == 1


REFUSED = {
    "nan": 'process 1 gave up: ValueError: counts hold nan at unit "40", feature "y3"',
    "negative": 'process 1 gave up: ValueError: counts hold -2 at unit "60", feature "y1"',
    "offsets": 'process 1 gave up: ValueError: offsets hold inf at unit "55"',
    "features": "features differ between processes 0 and 1",
    "settings": "settings of the fit differ between processes 0 and 1",
    "covariate": 'the covariate "depth" is missing at unit "50"',
    "rows": "covariates have 61 rows and counts 30; they must agree, so pass those of the units of this process",
    "unshared": "covariates or offsets are of mx.shard and the counts are not",
    "GMPR": 'offsets="GMPR" compare every unit with every other',
}


@pytest.mark.parametrize("what", [name if name == "nan" else pytest.param(name, marks=pytest.mark.slow) for name in REFUSED])
def test_what_is_wrong_in_one_process_is_said_by_all(what, tmp_path):
    done = launched(2, count_faults.__file__, tmp_path, what, timeout=120)
    assert done.returncode == 1 and REFUSED[what] in done.stderr, done.stderr[-2000:]
    assert done.stderr.count("Traceback") == 2  # nothing hangs, and no process is ended by another


@pytest.mark.slow
def test_a_killed_process_ends_the_others(tmp_path):
    began = time.monotonic()
    done = launched(2, count_faults.__file__, tmp_path, "killed", timeout=120)
    assert done.returncode == 128 + 9 and time.monotonic() - began < 90
    assert "process 1 was killed by signal 9" in done.stderr


def written(kind, folder):
    table, frame, _ = counts.table()
    y = table.toarray().astype(np.int32)
    if kind == "memmap":
        np.save(folder / "counts.npy", y)
    elif kind == "zarr":
        import zarr

        zarr.create_array(str(folder / "counts.zarr"), data=y, chunks=(7, 12))
    elif kind == "hdf5":
        import h5py

        with h5py.File(folder / "counts.h5", "w") as file:
            file.create_dataset("counts", data=y, chunks=(7, 12))
    else:
        import anndata

        # Files hold texts as objects.
        site = pd.Categorical(list(frame.site), categories=pd.Index(frame.site.cat.categories, dtype=object))
        obs = frame.assign(site=site).set_axis(pd.Index([f"cell {i}" for i in range(len(frame))], dtype=object))
        var = pd.DataFrame(index=pd.Index([f"gene {j}" for j in range(y.shape[1])], dtype=object))
        values = {"dense": y.astype(np.float32), "sparse": table.astype(np.float32), "columns": table.astype(np.float32).tocsc()}
        anndata.AnnData(values[kind], obs, var).write_h5ad(folder / f"{kind}.h5ad")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["memmap", "zarr", "hdf5", "dense", "sparse", "columns"])
def test_tables_on_disk_are_read_by_shares(kind, tmp_path):
    needed = {"memmap": "numpy", "zarr": "zarr", "hdf5": "h5py"}.get(kind, "anndata")
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    written(kind, tmp_path)
    done = launched(2, count_faults.__file__, tmp_path, f"stored as {kind}")
    if kind == "columns":
        assert done.returncode == 1 and "the counts are stored by columns (CSC)" in done.stderr
        return
    assert done.returncode == 0, done.stderr[-2000:]
    stored = "csr_array" if kind == "sparse" else "ndarray"  # few of these entries are zero
    assert f"process 0 has {stored} of (30, 12)" in done.stdout and f"process 1 has {stored} of (31, 12)" in done.stdout
    data, given = count_faults.opened(tmp_path, kind)
    model = count_faults.mx.PLNPCA(rank=2, n_starts=1, method="variational", verbose=False).fit(data, **given)
    every = [dict(np.load(tmp_path / f"{kind}.{process}.npz")) for process in range(2)]
    for found in every:
        for name in ("coef", "loadings", "scores"):
            np.testing.assert_allclose(found[name], getattr(model, f"{name}_"), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(found["again"], model.transform(data), rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(found["score"], model.score(data), rtol=1e-11)
