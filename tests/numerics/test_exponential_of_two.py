"""Exponentials of one and two rows in closed form: against a hundred digits, and their derivatives against those of series."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_exponential import in_many_digits

from margaux.numerics.exponential import exponential
from margaux.numerics.exponential_of_two import exponential_of_two

INPUTS = ((0, 2), (1, 2))
EVERYWHERE = ((0, 0), (0, 1), (1, 0), (1, 1), *INPUTS)
ONE_WAY = ((0, 0), (1, 0), (1, 1), *INPUTS)

pytestmark = pytest.mark.usefixtures("double")


def filled(found):
    return jnp.stack([jnp.stack([found.get((i, j), jnp.zeros(())) for j in range(3)]) for i in range(2)])


def closed(matrix, places=EVERYWHERE):
    return filled(exponential_of_two({place: matrix[place] for place in places}, 2, driven=True))


def series(matrix, places=EVERYWHERE):
    return filled(exponential({place: matrix[place] for place in places}, 2, 3)[0])


def exactly(matrix):
    """Of a matrix (2, 3), by a row of zeros more."""
    return in_many_digits(np.vstack([matrix, np.zeros(3)]))[0][:2]


def compartments(rng):
    """Of rates from 1e-3 to 1e3."""
    k = np.exp(rng.normal(0, 2.5, 4))
    return np.array([[-k[0] - k[1], k[2], rng.random()], [k[1], -k[2] - k[3], rng.random()]])


def one_way(rng):
    matrix = compartments(rng)
    matrix[0, 1] = 0
    return matrix


def alike(rng):
    """Whose eigenvalues are apart by 1e-9 to 1 of themselves, or not at all."""
    k, apart, there, back = np.exp(rng.normal()), *10 ** rng.uniform(-18, 0, 3)
    return np.array([[-k, back * (rng.random() < 0.7), 1.0], [there, -k * (1 + apart), 2.0]])


def any_matrix(rng):
    return rng.normal(0, 2, (2, 3))


@pytest.mark.parametrize(("kind", "places"), [(compartments, EVERYWHERE), (one_way, ONE_WAY), (alike, EVERYWHERE)])
def test_every_number_of_compartments_is_exact_however_small(kind, places):
    rng, of = np.random.default_rng(0), jax.jit(lambda matrix: closed(matrix, places))
    for _ in range(100):
        matrix = kind(rng)
        found, exact = np.asarray(of(matrix)), exactly(matrix)
        seen = exact > 1e-250
        np.testing.assert_allclose(found[seen], exact[seen], rtol=1e-12)
        assert np.all(found[~seen] < 1e-249)


def test_rotations_and_growth():
    rng, of = np.random.default_rng(1), jax.jit(closed)
    turned = 0
    for _ in range(100):
        matrix = any_matrix(rng)
        turned += np.linalg.eigvals(matrix[:, :2]).imag[0] != 0
        exact = exactly(matrix)
        np.testing.assert_allclose(of(matrix), exact, rtol=1e-12, atol=1e-13 * np.abs(exact).max())
    assert turned > 10


@pytest.mark.parametrize(
    ("kind", "places"),
    [(compartments, EVERYWHERE), (one_way, ONE_WAY), (alike, EVERYWHERE), (alike, ONE_WAY), (any_matrix, EVERYWHERE)],
)
def test_derivatives_up_to_the_third(kind, places):
    def third(of):
        return jax.jit(jax.jacfwd(jax.jacfwd(jax.jacfwd(lambda matrix: of(matrix, places)))))

    rng, ours, theirs = np.random.default_rng(2), third(closed), third(series)
    for turn in range(40):
        matrix = kind(rng)
        if kind is not any_matrix:  # what is left of the fastest is nothing that a derivative shows
            matrix = matrix / max(np.abs(matrix).max() / 5, 1.0)
        if places == ONE_WAY:
            matrix[0, 1] = 0
            matrix[1, 1] = matrix[0, 0] if turn % 4 == 0 else matrix[1, 1]
        exact = np.asarray(theirs(matrix))
        np.testing.assert_allclose(ours(matrix), exact, rtol=0, atol=1e-10 * np.abs(exact).max())


def test_one_row_and_what_never_comes_back():
    one = exponential_of_two({(0, 0): jnp.asarray(-2.0), (0, 1): jnp.asarray(3.0)}, 1, driven=True)
    assert [float(one[0, j]) for j in (0, 1)] == pytest.approx([np.exp(-2.0), 1.5 * (1 - np.exp(-2.0))], rel=1e-15)
    gathered = exponential_of_two({(0, 1): jnp.asarray(3.0)}, 1, driven=True)
    assert [float(gathered[0, j]) for j in (0, 1)] == [1.0, 3.0]
    drained = exponential_of_two({(1, 0): jnp.asarray(3.0)}, 2, driven=False)
    np.testing.assert_array_equal(filled(drained), [[1.0, 0.0, 0.0], [3.0, 1.0, 0.0]])
    late = closed(np.array([[-800.0, 0.0, 0.0], [800.0, -1e-3, 0.0]]), ONE_WAY)
    np.testing.assert_allclose(late[1], [800 / (800 - 1e-3) * np.exp(-1e-3), np.exp(-1e-3), 0.0], rtol=1e-14)


def test_growth_of_all_kinds_with_an_input():
    rng, of = np.random.default_rng(3), jax.jit(lambda matrix: closed(matrix, ONE_WAY))
    for _ in range(100):
        a, d = rng.normal(0, 3, 2)
        matrix = np.array([[a, 0.0, 1.0], [rng.random(), a + 1e-9 * d if rng.random() < 0.3 else d, rng.random()]])
        np.testing.assert_allclose(of(matrix), exactly(matrix), rtol=1e-13)


def test_single_precision():
    rng, of = np.random.default_rng(4), jax.jit(closed)
    for kind in (compartments, alike):
        for _ in range(40):
            matrix = kind(rng).astype(np.float32)
            exact = exactly(matrix)
            seen = exact > 1e-30
            np.testing.assert_allclose(np.asarray(of(jnp.asarray(matrix)))[seen], exact[seen], rtol=2e-3)
