"""`mx.replicate` where workers are killed."""

import os
import signal
import time
from functools import partial

import pytest

import margaux as mx
from margaux.replicating import engine
from margaux.replicating.work import generator

LOKY = partial(mx.replicate, backend="loky", n_jobs=2, progress=False)


def draws(index, rng):
    return rng.normal()


def test_a_worker_that_is_killed_once(tmp_path):
    def dies(index, rng):
        if index == 2 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rng.normal()

    assert LOKY(dies, 6).results == [generator(0, i).normal() for i in range(6)]
    assert (tmp_path / "died").exists()


def test_a_replicate_that_always_kills_its_worker(tmp_path):
    def dies(index, rng):
        if index in (1, 4):
            (tmp_path / f"{index}-{time.time_ns()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rng.normal()

    with pytest.warns(RuntimeWarning, match="2 of 6 replicates failed: 1, 4; the first of them: its worker process died twice"):
        out = LOKY(dies, 6)
    assert [i for i in range(6) if out.results[i] == generator(0, i).normal()] == [0, 2, 3, 5]
    assert set(out.errors.values()) == {engine.DIED}
    assert all(1 <= len(list(tmp_path.glob(f"{i}-*"))) <= 2 for i in (1, 4))


def test_what_killed_its_worker_never_runs_in_this_process():
    work = engine.Work.of(draws, 0, shipped=True)._replace(elsewhere=True)
    one = engine.outcome(work, 0)
    assert one.pickled is None and "no other process" in one.error
