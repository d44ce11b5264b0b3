"""Tables whose rows are large: where they live, how they are saved, and what they cost."""

import dataclasses
import os
import subprocess
import sys
import textwrap
import zipfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from helpers import random_intercept
from margaux.engine import loop, storage
from margaux.engine.batches import buffer_capacity, chunk_size
from margaux.engine.callbacks import Progress, ProgressBar, _figures
from margaux.engine.job import Job
from margaux.engine.rows import DeviceRows, HostRows, empty_rows, parts
from margaux.engine.settings import FitSettings
from margaux.numerics.precision import precision

PROBLEM = random_intercept()
WALK = mx.MCMC(mx.RandomWalk(1.0), n_steps=2)


class Location(mx.AbstractModel):
    """y ~ N(w + z, I), z ~ N(0, I): as many parameters as a test wants."""

    def log_joint(self, params, z, y):
        return -0.5 * jnp.sum((y - params["w"] - z) ** 2) - 0.5 * jnp.sum(z**2)

    def init_latents(self, key, params, y):
        return jnp.zeros(1, params["w"].dtype)


def fit(algorithm, estep=WALK, **kw):
    settings: dict[str, Any] = {"n_iter": 60, "batch_size": 6, "progress": False, **kw}
    return mx.fit(
        PROBLEM.model, PROBLEM.data, algorithm, estep, params=PROBLEM.start, space=PROBLEM.space, **settings, polish=False
    )


def located(d, n, algorithm=None, **kw):
    """A table of n rows of d floats."""
    y = np.random.default_rng(0).normal(size=(n, 1))
    settings: dict[str, Any] = {"params": {"w": np.zeros(d)}, "batch_size": 1, "n_iter": 3 * n, "progress": False, **kw}
    return mx.fit(Location(), y, algorithm or mx.misso(lipschitz=2.0), mx.Noise(1), **settings, polish=False)


def job(algorithm, d, n, n_iter, dtype):
    """A fit whose rows and state can be looked at. Uniform draws are made for a whole chunk at once."""
    y = np.random.default_rng(0).normal(5.0, 1.0, size=(n, d))
    asked = FitSettings(params={"w": np.zeros(d)}, n_iter=n_iter, dtype=np.dtype(dtype), batch_size=1, sampling="uniform")
    return Job(Location(), y, algorithm, mx.Noise(1), asked)


# -- where rows live --------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling, runs", [("uniform", 2), ("reshuffled", None)])
def test_rows_in_a_folder_give_the_same_fit(sampling, runs, tmp_path):
    at = {place: fit(mx.incremental_em(), sampling=sampling, runs=runs, rows=place) for place in ("device", "host", tmp_path)}
    for place in ("host", tmp_path):
        np.testing.assert_array_equal(at[place].trace["params"], at["device"].trace["params"])
        jax.tree.map(np.testing.assert_array_equal, at[place].rows, at["device"].rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"rows_{i}.npy" for i in range(len(list(tmp_path.iterdir())))]
    own = np.load(tmp_path / "rows_0.npy")  # the E-step's rows come first
    np.testing.assert_array_equal(own.ravel(), jax.tree.leaves(at["device"].rows)[0].ravel())


def test_an_anchor_refreshed_in_a_folder(tmp_path):
    device, folder = (fit(mx.svrg(0.2), rows=rows, batch_size=5) for rows in ("device", tmp_path / "new" / "folder"))
    np.testing.assert_array_equal(device.trace["params"], folder.trace["params"])


@pytest.mark.parametrize("sampling", [pytest.param("uniform", marks=pytest.mark.slow), "reshuffled"])
def test_rows_too_large_for_a_buffer_or_for_a_chunk(sampling, tmp_path, monkeypatch):
    """No buffer of repeated units, then one iteration a chunk, then both with rows in files: the same numbers."""
    run = lambda **kw: located(30, 7, sampling=sampling, n_iter=40, dtype="float32", **kw)  # noqa: E731
    ample = run()
    monkeypatch.setattr("margaux.engine.batches.BUFFER_BYTES", 100)  # of rows of 120 bytes
    single = run()
    np.testing.assert_array_equal(ample.trace["params"], single.trace["params"])
    monkeypatch.setattr("margaux.engine.batches.CHUNK_BYTES", 1)
    alone, folder = run(), run(rows=tmp_path)
    np.testing.assert_allclose(ample.trace["params"], alone.trace["params"], rtol=1e-6)
    np.testing.assert_array_equal(alone.trace["params"], folder.trace["params"])


def test_a_buffer_of_one_row(monkeypatch):
    ample = located(30, 7, sampling="uniform", n_iter=40)
    monkeypatch.setattr("margaux.engine.batches.BUFFER_BYTES", 240)
    np.testing.assert_array_equal(located(30, 7, sampling="uniform", n_iter=40).trace["params"], ample.trace["params"])


def test_how_much_a_chunk_holds():
    rows = lambda n, d: (np.broadcast_to(np.float32(0), (n, d)),)  # noqa: E731
    data = np.zeros((430, 4), np.float32)
    lenet, resnet, small = rows(430, 61_707), rows(50, 11_000_000), rows(430, 8)
    assert [buffer_capacity(r, len(r[0]), 1) for r in (lenet, resnet, small)] == [0, 0, 430]
    assert chunk_size(data, lenet, 430, 1, 1, 0, True) == 128
    assert chunk_size(data[:50], resnet, 50, 1, 1, 0, True) == 1
    # A process that has half of each batch runs twice as many iterations.
    assert [chunk_size(data, lenet, 430, 2, 1, 0, True, held) for held in (1.0, 0.5)] == [64, 128]


@pytest.mark.parametrize("d, most", [(30, 16), (400, 1)])
def test_a_pass_counts_bytes_of_rows(d, most, monkeypatch):
    """Of 4096 bytes there are 16 units of 30 doubles and as many of data, at most, and one of 400."""
    seen, units = [], Job.units
    monkeypatch.setattr("margaux.engine.passes.PART_BYTES", 1 << 12)
    monkeypatch.setattr(Job, "units", lambda self, ids, first=False: seen.append(len(ids)) or units(self, ids, first))
    one = job(mx.sag(0.1), d, 41, 1, "float64")
    one.raw_data = one.raw_data[:, :1]
    with precision(one.dtype):
        one.prepare()
    assert max(seen) == min(most, 14) and sum(seen) >= 2 * 41  # three parts of 14, in two passes


def test_parts_of_units_change_nothing(monkeypatch):
    whole = fit(mx.incremental_em(), runs=2)
    monkeypatch.setattr("margaux.engine.passes.MOST", 7)
    np.testing.assert_allclose(fit(mx.incremental_em(), runs=2).trace["params"], whole.trace["params"], rtol=1e-12)


@pytest.mark.parametrize("rows, error, told", [
    ("disk", ValueError, "rows must be"),
    (3, TypeError, "rows must be"),
    (None, TypeError, "rows must be"),
    ("file", ValueError, "rows cannot be kept in the folder"),
    ("full", ValueError, "pass a folder on a larger disk"),
])  # fmt: skip
def test_folders_refused_before_compilation(rows, error, told, tmp_path, monkeypatch):
    if rows == "file":
        rows = tmp_path / "file" / "inside"
        rows.parent.write_text("in the way")
    if rows == "full":
        rows = tmp_path
        monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    before = [program.programs() for program in (loop.init_rows, loop.first_state, loop.visit_all, loop.batch_chunk)]
    with pytest.raises(error, match=told):
        fit(mx.incremental_em(), rows=rows)
    assert before == [program.programs() for program in (loop.init_rows, loop.first_state, loop.visit_all, loop.batch_chunk)]
    assert not os.path.exists("disk")


def test_an_earlier_fit_keeps_its_rows_when_the_folder_is_used_again(tmp_path):
    first = fit(mx.incremental_em(), rows=tmp_path)
    before = jax.tree.map(np.copy, first.rows)
    second = fit(mx.incremental_em(), rows=tmp_path, key=1, n_iter=30)
    jax.tree.map(np.testing.assert_array_equal, first.rows, before)
    assert any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (before, second.rows)), strict=True))


@pytest.mark.parametrize("place", ["device", "host", "folder"])
def test_stores_give_back_what_was_put(place, tmp_path):
    struct = {"a": jax.ShapeDtypeStruct((3,), np.dtype("float32")), "b": jax.ShapeDtypeStruct((), np.dtype("int32"))}
    store = empty_rows(struct, 5, tmp_path if place == "folder" else place)
    assert isinstance(store, DeviceRows if place == "device" else HostRows)
    truth = {"a": np.zeros((5, 3), np.float32), "b": np.zeros(5, np.int32)}
    rng = np.random.default_rng(0)
    for ids in (np.array([4, 1]), np.array([[0, 5], [3, 5]]), np.array([5, 5, 2])):  # 5 is nowhere
        new = {"a": rng.normal(size=(*ids.shape, 3)).astype(np.float32), "b": rng.integers(0, 9, ids.shape, np.int32)}
        held = store.take(np.array([[1, 2]]))
        expected = jax.tree.map(lambda leaf: leaf[[[1, 2]]].copy(), truth)
        store = store.put(ids, jax.tree.map(jnp.asarray, new))
        jax.tree.map(np.testing.assert_array_equal, held, expected)  # what was taken is a copy
        for name, leaf in truth.items():
            leaf[ids[ids < 5]] = new[name][ids < 5]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, store.tree), truth)


# -- saved and continued ----------------------------------------------------------------------------


@dataclasses.dataclass
class Stop(mx.AbstractCallback):
    at: int

    def __call__(self, progress):
        return progress.iteration >= self.at

    def close(self):
        pass


@pytest.mark.parametrize("algorithm, rows", [(lambda: mx.misso(lipschitz=2.0), "folder"), (lambda: mx.saga(0.1), "device")])
def test_continued_in_the_middle_of_an_epoch(algorithm, rows, tmp_path, monkeypatch):
    """Seven blocks in random order: stopped after 2 epochs and 3 blocks, and again 2 blocks on."""
    folder = tmp_path / "rows"
    path, place = tmp_path / "fit.ckpt", folder if rows == "folder" else rows
    go = lambda **kw: located(4, 7, algorithm(), sampling="reshuffled", n_iter=40, rows=place, **kw)  # noqa: E731
    straight = go()
    tables = [np.load(file) for file in sorted(folder.glob("*"))]
    for stop in (17, 19):
        # A chunk ends here; nothing else is refreshed.
        with monkeypatch.context() as patch:
            patch.setattr(Job, "_until_pause", lambda self, done=0, stop=stop: stop - self.k - done)
            held = go(checkpoint=mx.Checkpoint(path, seconds=0), stop=Stop(stop))
        assert held.n_iter == stop and stop % 7
    for file in folder.glob("*"):
        file.write_bytes(b"lost")  # files are filled from the checkpoint
    resumed = go(checkpoint=path)
    np.testing.assert_array_equal(resumed.trace["params"], straight.trace["params"])
    np.testing.assert_array_equal(resumed.params["w"], straight.params["w"])
    assert len(tables) == (1 if rows == "folder" else 0)
    for file, table in zip(sorted(folder.glob("*")), tables, strict=True):
        np.testing.assert_array_equal(np.load(file), table)


@pytest.mark.parametrize("where", ["device", "host", "memmap"])
def test_arrays_are_saved_and_read_in_parts(where, tmp_path, monkeypatch):
    monkeypatch.setattr("margaux.engine.rows.PART_BYTES", 64)
    monkeypatch.setattr("margaux.engine.storage.PART_BYTES", 64)
    values = np.random.default_rng(0).normal(size=(11, 5)).astype(np.float32)
    leaf = jnp.asarray(values) if where == "device" else values
    if where == "memmap":
        leaf = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, values.shape)
        leaf[:] = values
    assert max(part.nbytes for part in parts(leaf)) <= 64 and sum(len(part) for part in parts(leaf)) == 11
    storage.write(tmp_path / "file", {"kind": "test"}, {"rows/0": leaf, "one": np.float64(3.0), "none": np.zeros((0, 3))})
    header, small = storage.read(tmp_path / "file", without="rows/")
    assert header["kind"] == "test" and set(small) == {"one", "none"} and small["one"] == 3.0 and small["none"].shape == (0, 3)
    np.testing.assert_array_equal(storage.read(tmp_path / "file")[1]["rows/0"], values)
    back = np.full_like(values, np.nan)
    for ids, part in storage.read_parts(tmp_path / "file", "rows/0", values):
        back[ids] = part
    np.testing.assert_array_equal(back, values)
    for name, template in (("rows/1", values), ("rows/0", values[:10]), ("rows/0", values.astype(float))):
        with pytest.raises(ValueError, match="the file holds"):
            next(storage.read_parts(tmp_path / "file", name, template))


def test_a_damaged_table_is_refused(tmp_path):
    path = tmp_path / "fit.ckpt"
    go = lambda: located(500, 7, checkpoint=path, n_iter=14)  # noqa: E731
    go()
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("rows/0.npy").header_offset + 2000
    content = bytearray(path.read_bytes())
    content[at] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        go()


# -- the running total ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", [lambda: mx.misso(lipschitz=2.0), lambda: mx.sag(0.1)], ids=["misso", "sag"])
def test_the_running_total_is_the_sum_of_the_columns(algorithm, dtype):
    """After 1e5 exchanges, to 1e-6 of the column's scale; two rows, where an error of the total weighs most."""
    one = job(algorithm(), 3, 2, 100_000, dtype)
    with precision(one.dtype):
        one.prepare()
        one.run([], None)
        table, state = np.asarray(one.chunks.store.tree[1]["w"], float), one.chunks.carry.state["memory"]
        total = sum(np.asarray(state[name]["w"], float) for name in ("total", "lost"))
    assert one.k == 100_000 and np.ptp(table, axis=0).min() > 0
    np.testing.assert_array_less(np.abs(total / 2 - table.mean(axis=0)) / np.abs(table).max(axis=0), 1e-6)


def test_the_first_total_of_many_rows():
    one = job(mx.sag(0.1), 3, 100_000, 1, "float32")
    with precision(one.dtype):
        one.prepare()
        table, total = (
            np.asarray(one.chunks.store.tree[1]["w"], float),
            np.asarray(one.chunks.carry.state["memory"]["total"]["w"], float),
        )
    np.testing.assert_array_less(np.abs(total / 1e5 - table.mean(axis=0)) / np.abs(table.mean(axis=0)), 1e-6)


# -- what callbacks see -----------------------------------------------------------------------------


@dataclasses.dataclass
class Watch(mx.AbstractCallback):
    seen: list

    def __call__(self, progress):
        figures = {name: values.copy() for name, values in progress.latest.items()}
        self.seen.append((progress.names, _figures(progress), figures, progress.iteration, "params" in vars(progress)))
        if len(self.seen) == 3:
            self.seen.append((progress.params.copy(), {name: len(values) for name, values in progress.trace.items()}))
        return False

    def close(self):
        pass


def test_large_vectors_are_neither_named_nor_shown():
    few, many = Watch([]), Watch([])
    small = located(512, 4, n_iter=200, callbacks=[few])
    located(513, 4, n_iter=200, callbacks=[many])
    assert few.seen[0][0] is few.seen[1][0] and few.seen[0][0] == small.names and "w[0]" in few.seen[0][1]
    names, figures, latest, iteration, read = many.seen[0]
    assert names == [] and "w[" not in figures and not read and "norm" in latest and len(latest["norm"]) == iteration
    flat, lengths = many.seen[3]
    assert flat.shape == (1, 513) and set(lengths.values()) == {many.seen[2][3]}


def test_the_bar_shows_the_mean_log_joint(capsys):
    figures = {"log_joint": np.linspace(-3.0, -1.0, 200)[:, None], "acceptance": np.full((200, 1), 0.5)}
    progress = Progress(200, 400, [], figures, lambda path: None, lambda: pytest.fail("read"), lambda: figures)
    expected = figures["log_joint"][-100:].mean()
    assert _figures(progress) == f"log joint {expected:.4g}  acceptance 0.5"
    bar = ProgressBar("title", delay=0.0)
    assert bar(progress) is False
    bar.close()


def test_the_last_finite_values_are_kept_after_divergence():
    kept = Watch([])
    with pytest.raises(mx.FitError) as caught:
        located(3, 4, mx.sag(50.0), n_iter=3000, callbacks=[kept])
    out = caught.value.fit
    assert out.result.name == "diverged" and np.isfinite(out.params["w"]).all() and np.isfinite(out.last_params["w"]).all()
    ends = [entry[3] for entry in kept.seen if len(entry) == 5]
    np.testing.assert_array_equal(out.last_params["w"], out.trace["params"][ends[-1] - 1, 0])


# -- memory -----------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system tells no peak of memory")
@pytest.mark.slow
@pytest.mark.parametrize(
    "rows, saved", [("device", False), ("device", True), ("host", False), ("folder", False), ("folder", True)]
)
def test_peak_memory(rows, saved, tmp_path):
    """25 rows of nine million floats: 16 vectors, and the table if it is in memory, besides what Python and JAX take.

    The fit is saved as it ends, and then read by one that goes on.
    """
    size, n = 9_000_000, 25
    place, path = str(tmp_path / "rows") if rows == "folder" else rows, str(tmp_path / "fit.ckpt") if saved else None
    script = textwrap.dedent(f"""
        from pathlib import Path
        import jax, jax.numpy as jnp, numpy as np
        from test_rows import located
        jax.jit(lambda x: x + 1)(jnp.ones(3))
        peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
        base = peak()
        for _ in range({1 + saved}):
            located({size}, {n}, n_iter={n + 3}, dtype="float32", rows={place!r}, checkpoint={path!r},
                    params={{"w": np.zeros({size}, np.float32)}})
        print((peak() - base) * 1024 / {4 * size})
    """)
    folders = os.pathsep.join([os.path.dirname(os.path.dirname(__file__)), *sys.path])
    spent = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": folders}, check=False
    )
    assert spent.returncode == 0, spent.stderr
    print(rows, saved, spent.stdout)
    assert float(spent.stdout) < 16 + (0 if rows == "folder" else n)
