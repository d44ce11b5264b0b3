"""The next chunk is read, and the rows of the last are written, while one runs: no bit changes, and nothing is lost."""

import threading

import jax
import numpy as np
import pytest

import margaux as mx
from helpers import random_intercept
from margaux.engine import batches, minibatch, rows
from margaux.engine.outcome import RESULTS
from margaux.engine.rows import HostRows, entries
from margaux.numerics.threads import Background, in_turn

PROBLEM = random_intercept(90, 3)
WALK = mx.MCMC(mx.MALA(0.5), n_steps=2)


@pytest.fixture(params=[1, 2], ids=["no thread", "thread"])
def threads(request, monkeypatch):
    monkeypatch.setenv("MARGAUX_THREADS", str(request.param))
    return request.param


def fit(algorithm=None, data=None, **settings):
    known = {"n_iter": 150, "batch_size": 6, "key": 2, "polish": False, "progress": False}
    return mx.fit(PROBLEM.model, PROBLEM.data if data is None else data, algorithm or mx.saga(0.1), WALK, params=PROBLEM.start,
                  space=PROBLEM.space, **(known | settings))  # fmt: skip


def same(one, other):
    np.testing.assert_array_equal(one.trace["params"], other.trace["params"])
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, one.rows), jax.tree.map(np.asarray, other.rows))


def names():
    return {thread.name for thread in threading.enumerate()}


CASES = {
    "reshuffled": {},
    "uniform": {"sampling": "uniform"},
    "runs": {"runs": 2, "sampling": "uniform"},
    "no rows": {"algorithm": mx.soul()},
    "refreshed": {"algorithm": mx.svrg(0.1)},
    "single": {"algorithm": mx.incremental_em(), "batch_size": 1},
    "all but one": {"batch_size": 89},
    "float32": {"dtype": "float32", "sampling": "uniform"},
}


@pytest.mark.parametrize(
    "case", ["uniform", *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != "uniform")]
)
def test_a_thread_changes_no_bit(case, tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "CHUNK_BYTES", 20_000)  # chunks of few iterations, which revisit each other's units
    monkeypatch.setenv("MARGAUX_THREADS", "1")
    alone = fit(**CASES[case])
    monkeypatch.setenv("MARGAUX_THREADS", "2")
    used = []
    monkeypatch.setattr(Background, "begin", lambda self, *args, begin=Background.begin: used.append(1) or begin(self, *args))
    for place in ("device", "host", tmp_path):
        same(fit(rows=place, **CASES[case]), alone)
    assert len(used) > 10 and not any("background" in name for name in names())


def test_rows_read_ahead_would_be_stale_but_for_those_put_in_place(monkeypatch):
    """So that the test above can fail: chunks do visit each other's units."""
    monkeypatch.setattr(batches, "CHUNK_BYTES", 20_000)
    monkeypatch.setenv("MARGAUX_THREADS", "2")
    right = fit(rows="host", sampling="uniform")
    monkeypatch.setattr(minibatch, "_renewed", lambda tree, *_: tree)
    assert np.any(fit(rows="host", sampling="uniform").trace["params"] != right.trace["params"])


@pytest.mark.parametrize("place", [pytest.param("device", marks=pytest.mark.slow), "folder"])
def test_continued_from_a_checkpoint_with_and_without_a_thread(place, threads, tmp_path, monkeypatch):
    where, average = tmp_path / "rows" if place == "folder" else place, mx.PolyakRuppert(75)
    straight = fit(rows=where, average=average)
    rows_then, path = jax.tree.map(np.array, straight.rows), mx.Checkpoint(tmp_path / "fit", seconds=0.0)
    fit(rows=where, n_iter=70, checkpoint=path, average=average)
    monkeypatch.setenv("MARGAUX_THREADS", str(3 - threads))
    again = fit(rows=where, checkpoint=path, average=average)
    np.testing.assert_array_equal(again.trace["params"], straight.trace["params"])
    jax.tree.map(np.testing.assert_array_equal, again.rows, rows_then)


class Interrupt(mx.AbstractCallback):
    def __call__(self, progress):
        if progress.iteration >= 60:
            raise KeyboardInterrupt
        return False

    def close(self):
        return None


def test_an_interrupt_keeps_the_rows_of_what_was_done(threads, tmp_path):
    ended = fit(rows=tmp_path, callbacks=[Interrupt()])
    assert ended.result is RESULTS.interrupted and 60 <= ended.n_iter < 150
    same(ended, fit(rows="host", n_iter=ended.n_iter))
    assert not any("background" in name for name in names())


@pytest.mark.parametrize("error", [OSError("the disk is gone"), MemoryError("none left"), KeyError("odd")], ids=repr)
def test_errors_of_the_thread_are_raised_as_they_are(error, threads, monkeypatch):
    calls, original = [], batches.visits

    def failing(*args):
        calls.append(threading.current_thread().name)
        if len(calls) == 3:
            raise error
        return original(*args)

    monkeypatch.setattr(minibatch, "visits", failing)
    with pytest.raises(type(error)) as told:
        fit()
    assert told.value is error and not any("background" in name for name in names())
    assert ("margaux-background" in calls[-1]) == (threads == 2)


def test_rows_that_cannot_be_written_end_the_fit(threads, tmp_path, monkeypatch):
    written, original = [], HostRows.put

    def failing(self, ids, new):
        if np.ndim(ids) == 3:  # those of a chunk, not of a pass
            written.append(ids)
            if len(written) == 2:
                raise OSError("the disk is full")
        return original(self, ids, new)

    monkeypatch.setattr(HostRows, "put", failing)
    with pytest.raises(OSError, match="the disk is full"):
        fit(rows=tmp_path)
    assert len(written) <= 3


def test_seconds_of_waiting_are_told(threads):
    timings = fit(n_iter=300).timings
    assert set(timings) == {"compile", "run", "wait"} and 0 < timings["wait"] < timings["run"] + timings["wait"]


# -- what is read of files --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["int", "float"])
def test_entries_of_a_file_are_read_in_spans(kind, tmp_path, monkeypatch):
    values = np.arange(600.0).reshape(200, 3).astype(np.int32 if kind == "int" else np.float32)
    np.save(tmp_path / "units.npy", values)
    mapped = np.load(tmp_path / "units.npy", mmap_mode="r")
    ids = np.random.default_rng(0).integers(0, 200, (7, 2, 5))
    seen, release = [], rows.release
    monkeypatch.setattr(rows, "release", lambda leaf: seen.append(1) or release(leaf))
    for bytes_at_once, spans in ((1 << 20, 1), (240, 10)):
        monkeypatch.setattr(rows, "SPAN_BYTES", bytes_at_once)
        for dtype in (None, np.dtype(np.float64)):
            seen.clear()
            found = entries(mapped, ids, dtype, length=5)
            assert found.dtype == (dtype or values.dtype) and found.ctypes.data % 64 == 0 and len(seen) == spans
            np.testing.assert_array_equal(found[:5], values[ids[:5]])
            assert not found[5:].any()


def test_what_was_written_to_a_private_map_stays(tmp_path):
    np.save(tmp_path / "units.npy", np.zeros((5000, 3)))
    private = np.load(tmp_path / "units.npy", mmap_mode="c")
    private[:] = 7.0
    rows.release(private)
    assert np.all(private == 7.0)


def test_a_file_gives_the_fit_of_the_array(threads, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "SPAN_BYTES", 256)
    mapped = {}
    for name, leaf in PROBLEM.data.items():
        np.save(tmp_path / f"{name}.npy", leaf)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    same(fit(data=mapped), fit())


# -- passes on several threads ----------------------------------------------------------------------


def test_passes_side_by_side_give_the_same_bits(monkeypatch, tmp_path):
    monkeypatch.setattr("margaux.engine.passes.MOST", 7)
    found = []
    for count in (1, 4):
        monkeypatch.setenv("MARGAUX_THREADS", str(count))
        for place in ("device", tmp_path / str(count)):
            found.append(fit(mx.svrg(0.1), rows=place, n_iter=20))
    for other in found[1:]:
        same(other, found[0])


@pytest.mark.parametrize("count", [1, 3])
def test_parts_come_in_their_order_and_few_are_under_way(count, monkeypatch):
    monkeypatch.setenv("MARGAUX_THREADS", str(count))
    asked = []

    def parts():
        for i in range(40):
            asked.append(i)
            yield i

    for i, square in enumerate(in_turn(lambda i: i * i, parts(), np.dtype(float))):
        assert square == i * i and len(asked) <= i + 1 + 2 * count
    assert list(in_turn(lambda i: i, [], np.dtype(float))) == []

    def fails(i):
        if i == 5:
            raise ValueError("part 5")
        return i

    with pytest.raises(ValueError, match="part 5"):
        list(in_turn(fails, range(40), np.dtype(float)))
