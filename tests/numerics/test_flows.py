"""One or two linear equations in closed form, against exponentials of matrices and their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

from margaux.numerics.flows import flow
from margaux.numerics.linear_systems import LinearSystem

pytestmark = pytest.mark.usefixtures("double")

#: matrices by what they are of
MATRICES = {
    "absorption": [[-1.3, 0.0], [1.3, -0.2]],
    "absorption as fast as elimination": [[-0.7, 0.0], [0.7, -0.7]],
    "nearly as fast": [[-0.7, 0.0], [0.7, -0.7007]],
    "two compartments": [[-1.2, 0.3], [0.9, -0.3]],
    "what only gathers": [[-1.3, 0.0], [1.3, 0.0]],
    "a constant rate": [[0.0, 0.0], [2.0, 0.0]],
    "waves": [[-0.1, 2.0], [-3.0, -0.2]],
    "growth": [[0.3, 0.1], [0.2, 0.1]],
    "absorbed at once, and gone slowly": [[-1e6, 0.0], [1e6, -1e-3]],
    "all but kept": [[-1.3, 0.0], [1.3, -1e-11]],
    "nothing": [[0.0, 0.0], [0.0, 0.0]],
}
Y, RATE = np.array([2.0, 0.5]), np.array([0.7, -0.3])


def _flowed(matrix, rate, time):
    entries = {(i, j): matrix[i, j] for i in range(2) for j in range(2)}
    return flow(LinearSystem(entries, jnp.zeros(2)), jnp.asarray(Y), jnp.asarray(rate))(time)


def _exact(matrix, rate, time, turned=None):
    """By the exponential of the matrix with the rates beside it, or its derivative in a direction."""
    whole = np.zeros((3, 3))
    whole[:2, :2], whole[:2, 2] = matrix, rate
    if turned is None:
        return (linalg.expm(whole * time) @ np.append(Y, 1.0))[:2]
    way = np.zeros((3, 3))
    way[:2, :2] = turned
    return (linalg.expm_frechet(whole * time, way * time, compute_expm=False) @ np.append(Y, 1.0))[:2]


@pytest.mark.parametrize("time", [0.0, 1e-4, 0.3, 2.0, 20.0, 900.0])
@pytest.mark.parametrize("name", MATRICES)
def test_two_equations(name, time):
    matrix = np.array(MATRICES[name])
    for rate in (np.zeros(2), RATE):
        exact = _exact(matrix, rate, time)
        np.testing.assert_allclose(_flowed(matrix, rate, time), exact, rtol=1e-7, atol=1e-15)


@pytest.mark.parametrize(
    "name", ["absorption", "absorption as fast as elimination", "nearly as fast", "two compartments", "waves"]
)
def test_their_derivatives(name):
    matrix = np.array(MATRICES[name])
    for turned in (np.array([[-1.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 0.0], [0.0, -1.0]])):
        found = jax.jvp(lambda m: _flowed(m, RATE, 1.7), (jnp.asarray(matrix),), (jnp.asarray(turned),))[1]
        np.testing.assert_allclose(found, _exact(matrix, RATE, 1.7, turned), rtol=1e-7, atol=1e-14)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("own", [-0.8, -1e-13, 0.0, 0.2])
def test_one_equation(own, rate):
    found = flow(LinearSystem({(0, 0): jnp.asarray(own)}, jnp.zeros(1)), jnp.asarray([2.0]), jnp.asarray([rate]))(3.0)
    added = rate * (3.0 if own == 0 else np.expm1(own * 3) / own)
    np.testing.assert_allclose(found, [2 * np.exp(own * 3) + added], rtol=1e-13)
