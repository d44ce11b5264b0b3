"""Parts of some work side by side: the same answers in the same order, the first on the thread that asks."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.numerics import threads as module
from margaux.numerics.threads import side_by_side, threads, usable_cores

FLOAT64, FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)


def seen(part):
    return part, threading.get_ident(), jnp.zeros(2, float).dtype


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_all_parts_in_order(count, monkeypatch):
    monkeypatch.setattr(module, "threads", lambda: 3)
    assert [part for part, *_ in side_by_side(seen, range(count), FLOAT64)] == list(range(count))


def test_the_first_is_visited_here_and_others_on_threads_of_the_same_precision(monkeypatch):
    monkeypatch.setattr(module, "threads", lambda: 3)
    barrier = threading.Barrier(2, timeout=10)  # passed only by two at a time

    def meeting(part):
        if part:
            barrier.wait()
        return seen(part)

    with jax.enable_x64(True):
        found = side_by_side(meeting, range(5), FLOAT64)
    assert found[0][1] == threading.get_ident() and all(place != found[0][1] for _, place, _ in found[1:])
    assert {dtype for _, _, dtype in found} == {FLOAT64}
    assert {dtype for _, _, dtype in side_by_side(seen, range(5), FLOAT32)} == {FLOAT32}


@pytest.mark.parametrize("why", ["threads", "most", "debug", "device", "parts"])
def test_one_thread_where_others_would_not_know_what_this_one_does(why, monkeypatch):
    monkeypatch.setattr(module, "threads", lambda: 1 if why == "threads" else 4)
    parts = range(2 if why == "parts" else 6)
    with jax.debug_nans(why == "debug"), jax.default_device(jax.devices("cpu")[0] if why == "device" else None):
        found = side_by_side(seen, parts, FLOAT32, 1 if why == "most" else None)
    assert {place for _, place, _ in found} == {threading.get_ident()}


def test_what_a_part_raises_is_raised(monkeypatch):
    monkeypatch.setattr(module, "threads", lambda: 3)
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda part: 1 / (part - 3), range(6), FLOAT32)


def test_how_many(monkeypatch):
    monkeypatch.setenv("MARGAUX_THREADS", "5")
    assert threads() == 5
    monkeypatch.delenv("MARGAUX_THREADS")
    assert threads() == usable_cores() >= 1
