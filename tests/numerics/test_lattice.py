"""The lattice of quasi-Monte-Carlo points: its steps, its shift, and how evenly it fills the cube."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from margaux.numerics.gaussian import lattice, lattice_steps, normals


@pytest.mark.parametrize("d", [1, 2, 5])
def test_steps_are_powers_of_the_root_of_their_equation(d):
    steps = lattice_steps(d)
    root = 1 / steps[0]
    assert root ** (d + 1) == pytest.approx(root + 1) and root > 1
    np.testing.assert_allclose(steps, root ** -np.arange(1.0, d + 1))


def test_points_are_multiples_of_the_steps_modulo_one_from_their_shift():
    shift = np.array([0.3, 0.9])
    points = lattice(shift, 7)
    wanted = [(shift + j * lattice_steps(2)) - np.floor(shift + j * lattice_steps(2)) for j in range(1, 8)]
    np.testing.assert_allclose(points, wanted)
    assert points.min() >= 0 and points.max() < 1


def test_a_lattice_fills_the_cube_more_evenly_than_chance():
    points = lattice(np.array([0.5, 0.25]), 1000)
    chance = np.random.default_rng(0).random((1000, 2))
    assert stats.qmc.discrepancy(points) < 0.1 * stats.qmc.discrepancy(chance)


def test_normals_are_the_quantiles_of_a_lattice():
    with jax.enable_x64(True):
        key = jax.random.key(4)
        shift = np.asarray(jax.random.uniform(key, (3,), jnp.dtype(float)))
        found = normals(key, 20, 3, jnp.dtype(float), True)
        np.testing.assert_allclose(found, stats.norm.ppf(lattice(shift, 20)), rtol=1e-7)
        np.testing.assert_array_equal(
            normals(key, 20, 3, jnp.dtype(float), False), jax.random.normal(key, (20, 3), jnp.dtype(float))
        )
