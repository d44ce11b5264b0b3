"""From information matrices to tables of estimates: against SciPy, and where there is no inverse."""

import numpy as np
import pytest
import scipy.stats

from margaux.numerics.inverse import absolute, guarded, within
from margaux.numerics.wald import interval, wald_table


def information(d, seed=0):
    root = np.random.default_rng(seed).normal(size=(d, d))
    return root @ root.T + np.eye(d)


def test_an_information_is_inverted_over_its_free_coordinates_whatever_their_units():
    matrix, units = information(5), np.logspace(-6, 6, 5)
    free = np.array([True, False, True, True, True])
    inverse, trouble = guarded(matrix * np.outer(units, units), free)
    assert trouble == ""
    wanted = np.linalg.inv(matrix[np.ix_(free, free)]) / np.outer(units[free], units[free])
    np.testing.assert_allclose(inverse[np.ix_(free, free)], wanted, rtol=1e-9)
    assert not inverse[1].any() and not inverse[:, 1].any()


@pytest.mark.parametrize(
    "matrix",
    [
        np.diag([1.0, -1.0]),
        np.diag([1.0, 0.0]),
        np.array([[1.0, np.nan], [np.nan, 1.0]]),
        np.ones((3, 3)) + 1e-12 * np.eye(3),
    ],
)
def test_a_matrix_without_an_inverse_is_told(matrix):
    inverse, trouble = guarded(matrix)
    assert np.isnan(inverse).all() and trouble.startswith("the information is singular or indefinite")


def test_curvatures_of_either_sign_are_taken_by_their_size():
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    found = absolute(turn @ np.diag([4.0, -2.0, 1.0]) @ turn.T)
    np.testing.assert_allclose(found, turn @ np.diag([0.25, 0.5, 1.0]) @ turn.T, atol=1e-12)
    assert np.isnan(absolute(np.array([[np.nan]]))).all()


def test_within_a_basis_nothing_moves_across_it():
    matrix = information(4)
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(4, 2)))[0]
    covariance = within(matrix, basis)
    across = np.eye(4) - basis @ basis.T
    np.testing.assert_allclose(across @ covariance, 0.0, atol=1e-12)
    np.testing.assert_allclose(basis.T @ covariance @ basis @ (basis.T @ matrix @ basis), np.eye(2), atol=1e-10)


def test_a_table_is_that_of_the_normal_law():
    estimate, se = np.array([1.0, -2.0, 0.5]), np.array([0.5, 0.25, np.nan])
    table = wald_table(estimate, se, 0.9, list("abc"), se_error=0.01 * se)
    assert list(table) == ["estimate", "se", "se_error", "z", "p", "ci_low", "ci_high"]
    np.testing.assert_allclose(table["p"], 2 * scipy.stats.norm.sf(np.abs(estimate / se)))
    np.testing.assert_allclose(table[["ci_low", "ci_high"]].to_numpy().T, scipy.stats.norm.interval(0.9, estimate, se))
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        interval(estimate, se, 95)
