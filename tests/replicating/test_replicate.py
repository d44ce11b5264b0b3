"""`mx.replicate`: the same numbers on every backend, folders that go on, and what fails."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.scipy.stats import norm

import margaux as mx
from margaux.replicating import engine, keeping, study
from margaux.replicating.identity import code_of, name_of
from margaux.replicating.work import generator


def draws(index, rng):
    return {"index": index, "x": rng.normal()}


def called(folder):
    """A function that notes its calls in files, and what reads them."""
    folder.mkdir()

    def function(index, rng):
        (folder / f"{index}-{time.time_ns()}").touch()
        return rng.normal()

    return function, lambda: sorted(int(path.name.split("-")[0]) for path in folder.iterdir())


SEQUENTIAL = partial(mx.replicate, backend="sequential", progress=False)
LOKY = partial(mx.replicate, backend="loky", n_jobs=2, progress=False)


@pytest.mark.parametrize(
    "backend, n_jobs",
    [("sequential", None), ("threading", 2), ("loky", 2), *(pytest.param("loky", n, marks=pytest.mark.slow) for n in (1, 9))],
)
def test_a_replicate_is_the_same_everywhere(backend, n_jobs):
    out = mx.replicate(draws, 6, backend=backend, n_jobs=n_jobs, seed=3, progress=False)
    wanted = [{"index": i, "x": np.random.default_rng(np.random.SeedSequence(3, spawn_key=(i,))).normal()} for i in range(6)]
    assert out.results == wanted
    assert len({one["x"] for one in out.results}) == 6
    assert out.errors == {} and out.missing == () and out.done == [*range(6)]


def test_the_order_does_not_count():
    def slow_first(index, rng):
        time.sleep(0.3 if index == 0 else 0.0)
        return rng.normal()

    assert LOKY(slow_first, 5).results == [generator(0, i).normal() for i in range(5)]
    assert LOKY(slow_first, 5, seed=1).results == [generator(1, i).normal() for i in range(5)]


def test_results_come_as_they_are_done(tmp_path):
    """While the first replicate waits for the file of the last, that of the last is written."""

    def waits(index, rng):
        end = time.monotonic() + 20
        while index == 0 and not (tmp_path / "000003.replicate").exists() and time.monotonic() < end:
            time.sleep(0.02)
        return (tmp_path / "000003.replicate").exists()

    assert LOKY(waits, 4, checkpoint=tmp_path).results[0] is True


def test_a_finished_study_runs_nothing_and_a_longer_one_what_is_missing(tmp_path):
    function, calls = called(tmp_path / "calls")
    first = SEQUENTIAL(function, 4, checkpoint=tmp_path / "study")
    assert calls() == [0, 1, 2, 3]
    assert SEQUENTIAL(function, 4, checkpoint=tmp_path / "study").results == first.results
    assert calls() == [0, 1, 2, 3]
    assert SEQUENTIAL(function, 3, checkpoint=tmp_path / "study").results == first.results[:3]
    longer = LOKY(function, 6, checkpoint=tmp_path / "study")
    assert calls() == [0, 1, 2, 3, 4, 5]
    assert longer.results == SEQUENTIAL(function, 6).results


def test_an_interrupted_study_keeps_what_is_done(tmp_path):
    runs = threading.Event()

    def stops(index, rng, runs=None):
        if index == 2 and not (tmp_path / "again").exists():
            raise KeyboardInterrupt
        return rng.normal()

    assert not runs.is_set()
    with pytest.warns(UserWarning, match="2 of 4 replicates have not run; the same call goes on from"):
        out = SEQUENTIAL(stops, 4, checkpoint=tmp_path / "study")
    assert out.missing == (2, 3) and out.done == [0, 1] and repr(out).startswith("4 replicates, 2 not run:")
    with pytest.raises(KeyboardInterrupt):
        SEQUENTIAL(stops, 4, throw=True)
    (tmp_path / "again").touch()
    assert SEQUENTIAL(stops, 4, checkpoint=tmp_path / "study").results == [generator(0, i).normal() for i in range(4)]


SCRIPT = """
import signal, sys, time
import margaux as mx

def slow(index, rng):
    time.sleep(0.0 if index < 2 else 600.0)
    return rng.normal()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background of a shell ignores it
    out = mx.replicate(slow, 6, n_jobs=2, checkpoint=sys.argv[1], progress=False)
    print(out.done, out.missing)
"""


def test_ctrl_c_ends_a_pool_of_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    there = tmp_path / "study"
    with subprocess.Popen([sys.executable, script, there], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        end = time.monotonic() + 60
        while len(list(there.glob("*.replicate"))) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        try:
            out, told = running.communicate(timeout=60)
        finally:
            running.kill()
    assert out == "[0, 1] (2, 3, 4, 5)\n"
    assert "interrupted: 4 of 6" in told and "have been cancelled" not in told


def test_another_study_is_refused(tmp_path):
    scale, words = 2.0, {"a": np.zeros(3)}

    def function(index, rng):
        return scale * rng.normal() + words["a"].sum()

    SEQUENTIAL(function, 2, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"of another study: the seed is 0 there and 1 here. For this one, pass another folder"):
        SEQUENTIAL(function, 2, checkpoint=tmp_path, seed=1)
    with pytest.raises(ValueError, match=r"the function is .*function there and .*draws here; the function's code"):
        SEQUENTIAL(draws, 2, checkpoint=tmp_path)
    scale = 3.0
    with pytest.raises(ValueError, match="study: the function's code, or a value that it reads, is another"):
        SEQUENTIAL(function, 2, checkpoint=tmp_path)
    scale = 2.0
    words["a"][1] = 1.0
    with pytest.raises(ValueError, match="or a value that it reads, is another"):
        SEQUENTIAL(function, 2, checkpoint=tmp_path)


@pytest.mark.parametrize("damage", [b"", b"margaux replicate 1\n", "cut", "flipped"])
def test_a_damaged_file_is_run_again(tmp_path, damage):
    function, calls = called(tmp_path / "calls")
    first = SEQUENTIAL(function, 3, checkpoint=tmp_path / "study")
    path = tmp_path / "study" / "000001.replicate"
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[:-1], "flipped": whole[:-1] + bytes([whole[-1] ^ 1])}.get(damage, damage))
    with pytest.warns(UserWarning, match="damaged files of replicates 1 in"):
        again = SEQUENTIAL(function, 3, checkpoint=tmp_path / "study")
    assert again.results == first.results and calls() == [0, 1, 1, 2] and path.read_bytes() == whole


def test_a_folder_without_its_signature_is_refused(tmp_path):
    SEQUENTIAL(draws, 1, checkpoint=tmp_path)
    assert json.loads((tmp_path / "study.json").read_text())["function"] == name_of(draws)
    assert not list(tmp_path.glob("*.part"))
    for content in (None, "{", "{}", "[]"):
        (tmp_path / "study.json").unlink(missing_ok=True)
        if content is not None:
            (tmp_path / "study.json").write_text(content)
        with pytest.raises(ValueError, match=r"no readable study.json that says of which study; pass another folder, or delete"):
            SEQUENTIAL(draws, 1, checkpoint=tmp_path)


def test_a_full_disk_does_not_end_the_study(tmp_path, monkeypatch):
    write = keeping._write

    def full(path, content):
        if path.suffix == keeping.SUFFIX:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(keeping, "_write", full)
    with pytest.warns(UserWarning, match="replicate 0 cannot be kept in .*: No space left on device") as told:
        assert SEQUENTIAL(draws, 3, checkpoint=tmp_path).done == [0, 1, 2]
    assert len(told) == 1


@pytest.mark.parametrize("call", [SEQUENTIAL, LOKY])
def test_what_raises_loses_nothing_else(call, tmp_path):
    def raises(index, rng):
        if index == 1:
            raise ArithmeticError("odd")
        return {"exit": sys.exit, "lock": threading.Lock}.get({2: "exit", 3: "lock"}.get(index, ""), float)()

    with pytest.warns(RuntimeWarning, match="3 of 5 replicates failed: 1, 2, 3; the first of them: ArithmeticError: odd"):
        out = call(raises, 5, checkpoint=tmp_path)
    assert out.results == [0.0, None, None, None, 0.0] and out.done == [0, 4]
    assert "in raises" in out.errors[1] and "SystemExit" in out.errors[2]
    assert out.errors[3].startswith("its result, a lock, cannot be pickled")
    assert repr(out).startswith("5 replicates, 3 failed:")
    assert len(list(tmp_path.glob("*.replicate"))) == 2
    with pytest.raises(mx.ReplicateError, match="3 of 5 replicates failed: 1, 2, 3") as caught:
        call(raises, 5, throw=True)
    assert caught.value.replicates.results == out.results


def test_lambdas_closures_partials_objects_and_what_they_hold():
    table, numbers = pd.DataFrame({"a": [1.0, 2.0]}), jnp.arange(3.0)

    class Sum:
        def __call__(self, index, rng):
            return float(numbers.sum() + table["a"].sum() + index)

    assert LOKY(lambda index, rng: index**2, 3).results == [0, 1, 4]
    assert LOKY(Sum(), 3).results == [6.0, 7.0, 8.0]
    assert LOKY(partial(lambda index, rng, add: index + add, add=1), 2).results == [1, 2]


def test_a_large_closure_is_no_memmap_and_is_unpacked_once():
    large = np.ones(400_000)

    def function(index, rng):
        large[index] = 0.0  # a memmap could not be written
        return type(large).__name__, id(large)

    assert {kind for kind, _ in LOKY(function, 4).results} == {"ndarray"}
    assert len({place for _, place in LOKY(function, 6).results}) <= 2


def test_workers_have_one_thread_and_the_precision_of_the_caller(double):
    def settings(index, rng):
        return os.environ["MARGAUX_THREADS"], os.environ["OMP_NUM_THREADS"], str(jnp.zeros(1).dtype)

    assert LOKY(settings, 2).results == [("1", "1", "float64")] * 2
    kind = partial(lambda index, rng: str(jnp.zeros(1).dtype))
    assert mx.replicate(kind, 2, backend="threading", n_jobs=2, progress=False).results == ["float64"] * 2


def test_nested_within_a_worker():
    def nested(index, rng):
        inner = mx.replicate(lambda i, rng: (i, os.getpid()), 2, seed=index, progress=False)
        return [i for i, _ in inner.results], {pid for _, pid in inner.results} == {os.getpid()}

    assert LOKY(nested, 2).results == [([0, 1], True)] * 2


@pytest.mark.parametrize("result, columns", [
    (1.5, ["value"]),
    ({"a": 1, "b": {"c": 2.0, "d": np.zeros(2)}}, ["a", "b.c", "b.d[0]", "b.d[1]"]),
    (pd.Series({"u": 1.0, "v": 2.0}), ["u", "v"]),
    (np.ones((1, 2)), ["value[0,0]", "value[0,1]"]),
    ({"a": jnp.float32(1.0), "word": "certified", "b": None}, ["a", "word", "b"]),
])  # fmt: skip
def test_tables(result, columns):
    table = mx.Replicates([None, result, result], {0: "failed"}, 0).table
    assert [*table.columns] == columns and [*table.index] == [1, 2] and table.index.name == "replicate"


def test_a_table_of_what_has_no_columns():
    with pytest.raises(TypeError, match="not of a object; see .results"):
        _ = mx.Replicates([object()], {}, 0).table
    assert mx.Replicates([None], {0: ""}, 0).table.shape == (0, 0)


def test_summaries():
    out = mx.Replicates([{"x": float(i), "word": "w"} for i in range(101)], {}, 0).summary(level=0.9)
    assert out.index.tolist() == ["x"]
    assert out.loc["x"].to_dict() == pytest.approx(
        {"n": 101, "mean": 50, "sd": np.arange(101).std(ddof=1), "lower": 5, "upper": 95}
    )
    with pytest.raises(ValueError, match="between 0 and 1"):
        mx.Replicates([1.0], {}, 0).summary(level=95)


def test_bad_input(tmp_path):
    for n in (0, -1):
        with pytest.raises(ValueError, match=f"n must be a positive integer, got {n}"):
            mx.replicate(draws, n)
    for odd in (2.0, "3", None, True):
        with pytest.raises(TypeError, match="n must be a positive integer, got"):
            mx.replicate(draws, odd)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed must be an integer that is not negative"):
        mx.replicate(draws, 1, seed=-1)
    with pytest.raises(ValueError, match="n_jobs must be a number of workers"):
        mx.replicate(draws, 1, n_jobs=0)
    with pytest.raises(TypeError, match=r"got 3, which is no function"):
        mx.replicate(3, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"replicate calls lone\(index, rng\), and lone\(index\) does not take that: too many"):

        def lone(index): ...

        mx.replicate(lone, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="backend must be one of loky, threading, sequential, dask, ray, got 'mpi'"):
        mx.replicate(draws, 1, backend="mpi")  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file; pass the path of a folder"):
        mx.replicate(draws, 1, checkpoint=tmp_path / "file")
    with pytest.raises(ValueError, match="no replicates can be kept in .*; pass another folder"):
        mx.replicate(draws, 1, checkpoint=tmp_path / "file" / "below")
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot be sent to other processes .*backend='threading'"):
        LOKY(lambda index, rng: lock.locked(), 2)
    assert mx.replicate(lambda index, rng: lock.locked(), 2, backend="threading", progress=False).results == [False, False]


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_backend_that_is_not_installed(backend, monkeypatch):
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf"needs the package .*: pip install 'margaux\[{backend}\]'"):
        mx.replicate(draws, 1, backend=backend)


def test_a_line_of_progress_after_a_while(monkeypatch):
    shown = []

    class Line:
        def __init__(self, title, total):
            shown.append((title, total))

        def update(self, done, figures):
            shown.append((done, figures))

        def close(self):
            shown.append("closed")

    monkeypatch.setattr(study, "Line", Line)
    mx.replicate(draws, 2, backend="sequential")
    assert shown == []
    monkeypatch.setattr(study, "DELAY", 0.0)
    SEQUENTIAL(draws, 2)
    assert shown == []
    with pytest.warns(RuntimeWarning):
        mx.replicate(lambda index, rng: 1 / index, 2, backend="sequential")
    assert shown == [("replicates", 2), (1, "1 failed"), (2, "1 failed"), "closed"]


@pytest.mark.slow
def test_codes_are_the_same_in_another_process(tmp_path):
    script = tmp_path / "codes.py"
    script.write_text(
        "import os\nimport numpy as np, pandas as pd\nfrom margaux.replicating.identity import code_of\n"
        "table, kinds, made = pd.DataFrame({'a': [1]}), {'x', 'y', 'z'}, object()\n"
        "def f(index, rng):\n    return np.sum(table['a']), pd.concat, kinds, made, os.getpid()\n"
        "print(code_of(f))\n"
    )
    run = [subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert run[0] == run[1]
    for was, now in (("[1]", "[2]"), ("'z'", "'w'"), ("np.sum", "np.max"), ("pd.concat", "pd.merge")):
        changed = tmp_path / "changed.py"
        changed.write_text(script.read_text().replace(was, now))
        assert subprocess.run([sys.executable, changed], capture_output=True, text=True, check=True).stdout != run[0], was


def test_importing_margaux_imports_no_backend():
    code = "import sys, margaux; margaux.replicate; print([m for m in ('joblib', 'dask', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Mean(mx.AbstractModel):
    def log_joint(self, params, z, y):
        return jnp.sum(norm.logpdf(y, z)) + norm.logpdf(z, params["mu"])

    def init_latents(self, key, params, y):
        return jnp.mean(y)


def fitted(y):
    algorithm = mx.soul(step=1.0, average=mx.LastIterate())
    return mx.fit(Mean(), y, algorithm, mx.Quadrature(7), params={"mu": 0.0}, n_iter=40, progress=False)


@pytest.mark.slow
def test_a_parametric_bootstrap_of_a_fit(tmp_path):
    fit = fitted(np.random.default_rng(1).normal(1.0, 1.0, (30, 2)))

    def again(index, rng):
        y = rng.normal(rng.normal(fit.params["mu"], 1.0, (30, 1)), 1.0, (30, 2))
        return {**fitted(y).params, "mean": y.mean()}

    out = LOKY(again, 6, checkpoint=tmp_path)
    # With unit variances the estimate is the mean of all observations.
    np.testing.assert_allclose(out.table["mu"], out.table["mean"], atol=1e-5)
    assert 0.5 < out.table["mu"].std() / np.sqrt(1.5 / 30) < 2.0
    # The fit is made anew, as a script does that is started again: other seconds, the same study.
    fit = fitted(np.random.default_rng(1).normal(1.0, 1.0, (30, 2)))
    assert mx.replicate(again, 6, checkpoint=tmp_path, progress=False).results == out.results
    assert code_of(again) != code_of(fitted)
