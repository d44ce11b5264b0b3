"""Exponentials of small matrices against a hundred digits: to the last digits of every number, however small."""

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from margaux.numerics import exponential as module
from margaux.numerics.exponential import exponential, with_powers

SIZE = 3
EVERYWHERE = [(i, j) for i in range(SIZE) for j in range(SIZE)]


@jax.jit
def _exponentials(matrices):
    def of(matrix):
        found, less_one = exponential({place: matrix[place] for place in EVERYWHERE}, SIZE, SIZE)
        return jnp.stack([found[place] for place in EVERYWHERE]).reshape(SIZE, SIZE), jnp.stack(less_one)

    return jax.vmap(of)(matrices)


def compartments(rng, dtype):
    """Rates from 1e-4 to 1e4, every second matrix triangular."""
    out = []
    for turn in range(40):
        rates = np.exp(rng.normal(0, 3, (SIZE, SIZE)))
        rates = np.triu(rates, 1) if turn % 2 else rates - np.diag(np.diag(rates))
        out.append(rates.T - np.diag(rates.sum(axis=1) + np.exp(rng.normal(0, 3, SIZE))))
    return np.asarray(out, dtype)


def in_many_digits(matrix):
    """The exponential of a square matrix, and the diagonal of what it is more than one."""
    size = range(len(matrix))
    with localcontext() as context:
        context.prec = 120
        halvings = int(np.ceil(np.log2(np.abs(matrix).sum(axis=1).max() + 1))) + 5
        x = np.array([[Decimal(float(value)) for value in row] for row in matrix]) / Decimal(2) ** halvings
        one = np.array([[Decimal(int(i == j)) for j in size] for i in size])
        out = term = one
        for k in range(1, 40):
            term = term.dot(x) / k
            out = out + term
        for _ in range(halvings):
            out = out.dot(out)
        return out.astype(float), (out - one).astype(float).diagonal()


@pytest.mark.usefixtures("double")
def test_every_number_of_compartments_is_exact_and_so_is_what_is_left_of_the_diagonal():
    matrices = compartments(np.random.default_rng(0), float)
    assert np.abs(matrices).sum(axis=2).max() > 1e3
    found, less_one = map(np.asarray, _exponentials(matrices))
    exact, left = map(np.asarray, zip(*map(in_many_digits, matrices), strict=True))
    seen = exact > 1e-250
    assert np.all(found[~seen] < 1e-249) and np.sum(exact[seen] < 1e-20) > 10
    np.testing.assert_allclose(found[seen], exact[seen], rtol=1e-11)
    np.testing.assert_allclose(less_one, left, rtol=1e-11)


def test_single_precision_is_sane():
    matrices = compartments(np.random.default_rng(1), np.float32)
    found, _ = map(np.asarray, _exponentials(matrices))
    exact = np.asarray([in_many_digits(matrix)[0] for matrix in matrices])
    seen = exact > 1e-30
    np.testing.assert_allclose(found[seen], exact[seen], rtol=1e-3)


@pytest.mark.usefixtures("double")
def test_any_matrix_written_out_or_not(monkeypatch):
    """Rotations and growth, by products of whole matrices too, with their derivatives."""
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(SIZE, SIZE)) * 3

    def of(scale):
        found, less_one = exponential({place: scale * matrix[place] for place in EVERYWHERE}, SIZE, SIZE)
        return jnp.stack([found[place] for place in EVERYWHERE]), jnp.stack(less_one)

    for written in (module.WRITTEN, 0):
        monkeypatch.setattr(module, "WRITTEN", written)
        (found, less_one), (slope, _) = jax.jvp(of, (1.0,), (1.0,))
        wanted = expm(matrix)
        np.testing.assert_allclose(found.reshape(SIZE, SIZE), wanted, rtol=1e-11)
        np.testing.assert_allclose(less_one, np.diag(wanted) - 1, rtol=1e-11)
        np.testing.assert_allclose(slope.reshape(SIZE, SIZE), matrix @ wanted, rtol=1e-10, atol=1e-12)


def test_where_powers_go_and_what_is_too_large():
    assert with_powers([(0, 1), (1, 2)]) == ((0, 1), (0, 2), (1, 2))
    for bad in (1e30, np.nan, np.inf):
        found, less_one = exponential({(0, 0): jnp.asarray(-bad)}, 1, 1)
        assert np.isnan(found[0, 0]) and np.isnan(less_one[0])
