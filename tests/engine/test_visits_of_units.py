"""Which units iterations visit: slices of permutations, or draws without replacement."""

import jax
import numpy as np
import pytest

from margaux.engine.batches import visits

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


@pytest.mark.parametrize("reshuffled", [True, False])
def test_units_depend_on_the_iteration_alone_not_on_where_a_chunk_began(reshuffled):
    whole = visits(KEYS, 20, 3, 1, 30, 32, reshuffled)
    for first, count in ((1, 5), (2, 4), (6, 7), (7, 6), (13, 18)):
        np.testing.assert_array_equal(visits(KEYS, 20, 3, first, count, 32, reshuffled), whole[:, first - 1 : first - 1 + count])


@pytest.mark.parametrize(("n", "b"), [(12, 4), (2000, 3)])
def test_uniform_draws_differ_within_an_iteration_and_do_not_wait_for_an_epoch(n, b):
    ids = visits(KEYS, n, b, 1, 300, 512, False)
    assert all(len(set(row)) == b for run in ids.tolist() for row in run)
    # Independent iterations: with 4 of 12, the three of an epoch leave nobody out once in 35,000.
    if n == 12:
        full = [len(set(run[t : t + 3].ravel().tolist())) == n for run in ids for t in range(0, 300, 3)]
        assert np.mean(full) < 0.05
        assert abs(np.bincount(ids.ravel(), minlength=n) / ids.size - 1 / n).max() < 0.015
