"""Functions of a matrix by its products, against the ones by its eigenvectors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.numerics.lanczos import spanned

pytestmark = pytest.mark.usefixtures("double")


def matrix(d, lowest=0.2, seed=0):
    rng = np.random.default_rng(seed)
    vectors = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return (vectors * np.linspace(lowest, 2.0, d)) @ vectors.T


@pytest.mark.parametrize("f", [np.log, lambda x: x**-0.5, lambda x: 1 / x])
def test_functions_of_a_matrix(f):
    a, v = matrix(200), np.random.default_rng(1).normal(size=200)
    values, vectors = np.linalg.eigh(a)
    exact = vectors @ (f(values) * (vectors.T @ v))
    found = spanned(lambda x: jnp.asarray(a) @ x, jnp.asarray(v), 40)
    g: Any = jnp.log if f is np.log else f
    np.testing.assert_allclose(found.applied(g), exact, atol=1e-8)
    assert float(found.quadratic(g)) == pytest.approx(v @ exact, rel=1e-12)


def test_what_is_spanned_early_is_all_there_is():
    a, v = np.diag([1.0, 1.0, 3.0, 3.0, 5.0]), np.ones(5)
    found = spanned(lambda x: jnp.asarray(a) @ x, jnp.asarray(v), 12)  # more than there are dimensions
    np.testing.assert_allclose(found.applied(jnp.log), np.log(np.diag(a)), atol=1e-12)
    zero = spanned(lambda x: jnp.asarray(a) @ x, jnp.zeros(5), 3)
    np.testing.assert_allclose(zero.applied(jnp.log), np.zeros(5))
    assert float(zero.quadratic(jnp.log)) == 0.0


def test_what_is_not_positive_definite_has_no_logarithm():
    a = np.diag([1.0, 2.0, -0.5])
    assert np.isnan(float(spanned(lambda x: jnp.asarray(a) @ x, jnp.ones(3), 3).quadratic(jnp.log)))


def test_it_can_be_mapped():
    a = jnp.asarray(matrix(30))
    v = np.random.default_rng(2).normal(size=(4, 30))
    both = jax.vmap(lambda v: spanned(lambda x: a @ x, v, 30).quadratic(jnp.log))(jnp.asarray(v))
    np.testing.assert_allclose(both, [spanned(lambda x: a @ x, jnp.asarray(one), 30).quadratic(jnp.log) for one in v], rtol=1e-10)
