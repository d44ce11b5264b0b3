"""Modes that are followed from one iteration to the next."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.numerics.gaussian import find_mode, laplace

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
