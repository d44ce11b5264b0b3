"""Modes that are followed from one iteration to the next."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.numerics.gaussian import find_mode, find_modes, laplace

pytestmark = pytest.mark.usefixtures("double")


def flat_far_away(x):
    """Newton's steps from afar are a thousand times too long: it takes five times as much damping, and as much again."""
    return -jnp.sum(jnp.sqrt(1 + 100 * (x - jnp.arange(x.size)) ** 2))


@pytest.mark.parametrize("size", [1, 2])
def test_a_mode_is_not_stuck_where_few_steps_do_not_lead_away(size):
    start = jnp.full(size, 3.3)
    at, values = start, [flat_far_away(start)]
    for _ in range(12):
        at, root = laplace(flat_far_away, at, 3)
        values.append(flat_far_away(at))
    assert values[1] > values[0]
    np.testing.assert_allclose(at, np.arange(size), atol=1e-6)
    np.testing.assert_allclose(root, np.eye(size) / 10, atol=1e-6)
    np.testing.assert_allclose(find_mode(flat_far_away, start).at, np.arange(size), atol=1e-4)


def test_one_that_is_stuck_among_many_changes_no_other():
    starts = jnp.array([[0.01, 1.01], [3.3, 3.3]])
    both = jax.vmap(lambda start: laplace(flat_far_away, start, 3))(starts)
    alone = laplace(flat_far_away, starts[0], 3)
    for one, many in zip(alone, both, strict=True):
        np.testing.assert_array_equal(one, many[0])


def test_a_mode_stays_where_it_is():
    at, _ = laplace(flat_far_away, jnp.arange(2.0), 3)
    np.testing.assert_array_equal(at, np.arange(2.0))


@pytest.mark.parametrize("d", [1, 2, 4])
def test_distinct_modes_have_the_masses_of_their_gaussians(d):
    """Two peaks of scales .5 and .2, six apart: the first search ends at one of them, the second at the other."""
    places, weights, scales = np.array([np.zeros(d), np.full(d, 6.0)]), np.array([0.3, 0.7]), np.array([0.5, 0.2])

    def target(x):
        logs = [jnp.sum(jax.scipy.stats.norm.logpdf(x, at, scale)) for at, scale in zip(places, scales, strict=True)]
        return jax.nn.logsumexp(jnp.stack(logs), b=weights)

    def place(i, first, step):
        # From there only hopeless starts: where the density is minus infinity, or not a number.
        return jnp.where(i == 0, jnp.full(d, 0.3), jnp.where(i == 1, first + 6.1, jnp.where(i == 2, 1e200, jnp.nan)))

    found, masses, unseen = jax.jit(lambda e: find_modes(target, place, e, 5, 3))(jnp.ones(d))
    np.testing.assert_allclose(found.at[:2], places, atol=1e-6)
    np.testing.assert_allclose(np.exp(masses), [0.3, 0.7, 0.0], atol=1e-6)
    np.testing.assert_allclose(found.root[:2], scales[:, None, None] * np.eye(d), atol=1e-6)
    assert unseen == pytest.approx(2 / 5)  # each was found once


def test_searches_go_on_until_each_of_several_modes_was_found_often():
    """Five peaks, of which the first three searches find three."""
    places = jnp.array([0.0, 6.0, 12.0, 18.0, 24.0])

    def target(x):
        return jax.nn.logsumexp(-((x[0] - places) ** 2) / 0.02)

    def found(k, most):
        return jax.jit(lambda e: find_modes(target, lambda i, first, root: places[i % 5][None] + 0.05, e, 3, k, most))(
            jnp.ones(1)
        )

    modes, masses, unseen = found(8, 60)
    assert np.sum(masses > -np.inf) == 5 and unseen == 0
    np.testing.assert_allclose(np.sort(modes.at[:5, 0]), places, atol=1e-4)
    assert found(8, 0)[2] == 1.0 and np.sum(found(8, 0)[1] > -np.inf) == 3
    assert found(4, 60)[2] == 1.0  # there is one more than slots
    heights = jnp.array([0.0, 0.0, -40.0, -50.0, -60.0])  # and where three of the five do not count, two slots do

    def uneven(x):
        return jax.nn.logsumexp(heights - (x[0] - places) ** 2 / 0.02)

    low = jax.jit(lambda e: find_modes(uneven, lambda i, first, root: places[i % 5][None], e, 25, 2))(jnp.ones(1))
    np.testing.assert_allclose(np.sort(low[0].at[:, 0]), [0.0, 6.0], atol=1e-4)
    assert low[2] == 0
    single = jax.jit(lambda e: find_modes(lambda x: -x @ x, lambda i, first, root: first + i, e, 3, 2, 60))(jnp.ones(2))
    assert single[2] == 0 and np.sum(single[1] > -np.inf) == 1


@pytest.mark.parametrize("d", [1, 2, 4])
def test_starts_are_told_the_curvature_where_the_first_ended(d):
    curvature = np.diag(10.0 ** np.arange(d)) + 0.4 * (1 - np.eye(d))
    steps = []

    def place(i, first, root):
        jax.debug.callback(lambda i, root: steps.append((int(i), np.asarray(root))), i, root)
        return jnp.zeros(d) + i

    jax.jit(lambda e: find_modes(lambda x: -x @ curvature @ x / 2, place, e, 3, 2))(jnp.ones(d))[1].block_until_ready()
    jax.effects_barrier()
    for root in [root for i, root in steps if i > 0]:
        np.testing.assert_allclose(root @ root.T, curvature, rtol=1e-6)
