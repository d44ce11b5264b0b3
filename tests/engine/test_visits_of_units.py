"""Which units iterations visit: slices of permutations, or draws without replacement."""

import jax
import numpy as np
import pytest

from margaux.engine import batches
from margaux.engine.batches import drawn_by, plan_chunk, same_epoch, visits
from margaux.engine.part import Part
from margaux.engine.permutation import images
from margaux.engine.share import Share
from margaux.numerics.arrays import as_array

KEYS = jax.random.split(jax.random.key(3), 2)


@pytest.mark.parametrize(("n", "b"), [(12, 4), (13, 4), (9, 9)])
def test_reshuffled_epochs_visit_every_unit_once_but_for_the_last_few(n, b):
    per_epoch = n // b
    ids = visits(KEYS, n, b, 1, 3 * per_epoch, 3 * per_epoch, True).reshape(2, 3, per_epoch * b)
    for run in ids:
        for epoch in run:
            assert len(set(epoch.tolist())) == per_epoch * b and epoch.min() >= 0 and epoch.max() < n
    # Orders differ between epochs, and between runs.
    assert len({tuple(epoch.tolist()) for run in ids for epoch in run}) == 6


@pytest.mark.parametrize("n", [20, 100_001])
@pytest.mark.parametrize("reshuffled", [True, False])
def test_units_depend_on_the_iteration_alone_not_on_where_a_chunk_began(n, reshuffled):
    whole = visits(KEYS, n, 3, 1, 30, 32, reshuffled)
    for first, count in ((1, 5), (2, 4), (6, 7), (7, 6), (13, 18)):
        np.testing.assert_array_equal(visits(KEYS, n, 3, first, count, 32, reshuffled), whole[:, first - 1 : first - 1 + count])


@pytest.mark.parametrize(("n", "b"), [(12, 4), (2000, 3)])
def test_uniform_draws_differ_within_an_iteration_and_do_not_wait_for_an_epoch(n, b):
    ids = visits(KEYS, n, b, 1, 300, 512, False)
    assert all(len(set(row)) == b for run in ids.tolist() for row in run)
    # Independent iterations: with 4 of 12, the three of an epoch leave nobody out once in 35,000.
    if n == 12:
        full = [len(set(run[t : t + 3].ravel().tolist())) == n for run in ids for t in range(0, 300, 3)]
        assert np.mean(full) < 0.05
        assert abs(np.bincount(ids.ravel(), minlength=n) / ids.size - 1 / n).max() < 0.015


# -- of many units ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [100_001, 262_144, 300_000])
def test_a_keyed_permutation_has_every_unit_once(n):
    places = np.arange(n, dtype=np.int32)[None]
    found = np.asarray(images(KEYS, np.array([4], np.int32), places, as_array(1), n))
    assert found.shape == (2, 1, n)
    for run in found[:, 0]:
        np.testing.assert_array_equal(np.sort(run), places[0])
        # Neighbours and places have nothing to do with where they go: correlations are normal, of variance 1 / n.
        assert abs(np.corrcoef(run[1:], run[:-1])[0, 1]) * n**0.5 < 4 and abs(np.corrcoef(run, places[0])[0, 1]) * n**0.5 < 4
    assert np.mean(found[0] == found[1]) < 1e-3


def test_keyed_draws_reach_the_last_number_of_32_bits():
    n = 2**31 - 1
    places = np.array([[0, 1, n - 2, n - 1]], np.int32)
    found = np.asarray(images(KEYS, np.array([1], np.int32), places, as_array(1), n))
    assert found.min() >= 0 and found.max() < n and len(np.unique(found)) == 8


def test_batch_means_of_keyed_draws_vary_as_those_without_replacement():
    """Of n units a batch of b has a mean of variance (1 - (b - 1) / (n - 1)) / b times theirs; here of 4,000 batches, 5 sd."""
    n, b, count = 100_003, 2_000, 2_000
    values = np.random.default_rng(0).normal(size=n)
    for reshuffled in (True, False):
        ids = visits(KEYS, n, b, 1, count, count, reshuffled)
        assert all(len(np.unique(row)) == b for row in ids[0, :20])
        means = values[ids].mean(axis=-1).ravel()
        expected = values.var() / b * (1 - (b - 1) / (n - 1))
        assert abs(means.var() / expected - 1) < 5 * (2 / len(means)) ** 0.5 and abs(means.mean() - values.mean()) < 1e-3
        # Each unit is as often drawn as the others: counts are those of a binomial.
        counts = np.bincount(ids.ravel(), minlength=n)
        share = count * 2 * b / n
        assert abs(counts.var() / (share * (1 - b / n)) - 1) < 0.05 or reshuffled and counts.var() < share


@pytest.mark.parametrize("reshuffled", [True, False])
def test_ids_of_many_units_depend_on_the_iteration_alone(reshuffled):
    n, b = 100_001, 30_000  # three iterations an epoch
    whole = visits(KEYS, n, b, 1, 12, 12, reshuffled)
    for first, count in ((1, 2), (3, 2), (4, 6), (11, 2)):
        np.testing.assert_array_equal(visits(KEYS, n, b, first, count, 6, reshuffled), whole[:, first - 1 : first - 1 + count])
    for epoch in range(4) if reshuffled else ():
        assert len(np.unique(whole[0, 3 * epoch : 3 * epoch + 3])) == 3 * b


def test_fits_of_few_units_draw_what_they_always_drew(monkeypatch):
    assert (
        batches.WRITTEN_OUT == 100_000
        and drawn_by(100_000, True) == "reshuffled"
        and drawn_by(100_001, False) == "uniform, keyed"
    )
    monkeypatch.setattr(batches, "images", None)  # not called
    ids = visits(KEYS, 100_000, 40_000, 2, 1, 1, True)[1, 0]
    order = jax.random.permutation(jax.random.fold_in(KEYS[1], 0), np.arange(100_000, dtype=np.int32))
    np.testing.assert_array_equal(ids, order[40_000:80_000])


def test_no_unit_repeats_within_an_epoch_alone():
    assert same_epoch(1, 4, 4) and not same_epoch(4, 5, 4) and same_epoch(5, 8, 4) and not same_epoch(1, 9, 4)


def test_processes_agree_on_how_far_a_chunk_may_go():
    share, capacity = Share((7, 1, 12), 0), 3
    ids = np.stack([np.random.default_rng(seed).permutation(20)[:6] for seed in range(12)])[None]
    reach = Part(share, 6).reach(ids, capacity)
    lengths = []
    for index in range(3):
        own = Part(Share(share.sizes, index), 6).own(ids)
        lengths.append(plan_chunk(own[0], capacity)[0])
    assert reach == min(lengths) < 12
    assert Part(share, 6).reach(ids, 100) == 12
