"""Which units a process has, and what is not asked of it alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import margaux as mx
from helpers import random_intercept
from margaux.answers.arviz import of_fit
from margaux.engine.part import Part, _counts
from margaux.engine.share import FEW, Share


def test_units_are_numbered_over_processes():
    share = Share((3, 5, 2), 1)
    assert (share.n, share.size, share.first) == (10, 5, 3)
    np.testing.assert_array_equal(share.owners(np.arange(10)), [0, 0, 0, 1, 1, 1, 1, 1, 2, 2])


@pytest.mark.parametrize("index", [0, 1, 2])
def test_parts_of_a_batch_are_those_of_each_process_and_spare_places_differ(index):
    share = Share((3, 5, 2), index)
    ids = np.stack([np.random.default_rng(seed).permutation(10)[:6] for seed in range(4)])[None]
    part = Part(share, 6)
    own = part.own(ids)
    mine = own < share.size
    assert own.shape == (1, 4, part.b) and len(np.unique(own[~mine])) == np.sum(~mine)
    for batch, kept, real in zip(ids[0], own[0], mine[0], strict=True):
        assert kept[real].tolist() == [i - share.first for i in batch if share.owners(i) == index]
    assert np.all(part.names(own)[~mine] == share.n)


def test_a_part_is_spread_over_processes_and_taken_back_without_a_copy():
    part = Part(Share((10,), 0), 6)
    tree = {"x": jnp.arange(24.0).reshape(2, 3, 4), "key": jax.random.split(jax.random.key(0), (2, 3, 4))}
    spread = part.spread(tree, 2)
    assert spread["x"].sharding.spec == spread["key"].sharding.spec == PartitionSpec(None, None, "units")
    back = part.local(spread)
    assert back["x"].unsafe_buffer_pointer() == tree["x"].unsafe_buffer_pointer()
    np.testing.assert_array_equal(back["x"], tree["x"])
    np.testing.assert_array_equal(jax.random.key_data(back["key"]), jax.random.key_data(tree["key"]))


@pytest.mark.parametrize("processes", [3, FEW, FEW + 1])
def test_units_of_batches_are_counted_by_process_whatever_their_number(processes):
    share = Share(tuple(range(1, processes + 1)), 0)
    ids = np.stack([np.random.default_rng(seed).permutation(share.n)[:5] for seed in range(7)])
    owners = share.owners(ids)
    np.testing.assert_array_equal(owners, np.searchsorted(np.cumsum(share.sizes), ids, side="right"))
    expected = [[list(row).count(process) for process in range(processes)] for row in owners]
    np.testing.assert_array_equal(_counts(owners, processes), expected)


def test_what_would_see_the_units_of_one_process_is_refused():
    problem = random_intercept(20, 3)
    fit = mx.fit(problem.model, problem.data, mx.saem(), mx.MCMC(), params=problem.start, space=problem.space, n_iter=5,
                 polish=False, progress=False)  # fmt: skip
    shared = dataclasses.replace(fit, share=Share((20, 20), 0))
    for ask in (lambda: shared.draws(5), lambda: of_fit(shared, 5, 0), lambda: shared.loglik("student")):
        with pytest.raises(TypeError, match="would see the 20 units of this one alone, of 40"):
            ask()
