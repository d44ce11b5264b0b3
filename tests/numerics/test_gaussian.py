"""Modes and roots of curvatures, against NumPy's own linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.numerics.gaussian import find_mode, laplace

RNG = np.random.default_rng(0)


def matrix(values):
    q, _ = np.linalg.qr(RNG.normal(size=(len(values), len(values))))
    return q * values @ q.T


def search(curvature, centre):
    with jax.enable_x64(True):
        found = jax.jit(lambda start: find_mode(lambda z: -0.5 * (z - centre) @ curvature @ (z - centre), start))
        return jax.tree.map(np.asarray, found(np.zeros(len(centre))))


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_the_root_of_a_gaussian_is_the_factor_of_its_covariance(d):
    curvature, centre = matrix(10.0 ** RNG.uniform(-2, 2, d)), RNG.normal(size=d)
    mode = search(curvature, centre)
    np.testing.assert_allclose(mode.at, centre, atol=1e-8)
    np.testing.assert_allclose(mode.root, np.linalg.cholesky(np.linalg.inv(curvature)), rtol=1e-7, atol=1e-10)
    assert mode.away < 1e-4


@pytest.mark.parametrize("values", [[-1.0, 4.0], [-3.0, -0.1], [-2.0, 0.5, 5.0]])
def test_directions_without_curvature_are_held_to_a_unit_scale(values):
    curvature = matrix(np.array(values))
    with jax.enable_x64(True):
        quadratic = jax.jit(lambda start: laplace(lambda z: -0.5 * z @ curvature @ z, start, 1))
        root = np.asarray(quadratic(np.zeros(len(values)))[1])
    each, vectors = np.linalg.eigh(curvature)
    expected = (vectors / np.where(each > 1e-8, each, 1.0)) @ vectors.T
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-6, atol=1e-6)
    assert np.all(np.triu(root, 1) == 0) and np.all(np.diagonal(root) > 0)


def test_a_saddle_is_no_mode():
    mode = search(np.diag([1.0, -1.0]), np.zeros(2))
    assert not np.isfinite(mode.away)


def test_a_search_from_a_region_without_curvature_ends_at_a_mode():
    with jax.enable_x64(True):
        mode = jax.jit(lambda start: find_mode(lambda z: -jnp.sum(jnp.log1p((z - 1.0) ** 2)), start))(np.array([40.0, -3.0]))
    np.testing.assert_allclose(mode.at, 1.0, atol=1e-4)
