"""Newton's step of the polish, its noise and the rises it is judged by, against arithmetic."""

import numpy as np
import pytest

from margaux.answers.scores import Evaluation
from margaux.answers.search import _mean, rise
from margaux.answers.steps import LEAP, newton, noise


def evaluation(scores, matrix, logs=None, u=None):
    """Of one unit a row of scores (R, n, k), with the given Louis information."""
    scores = np.asarray(scores, float)
    count, n, k = scores.shape
    total = scores.sum(axis=0)
    own = np.einsum("rni,rnj->ij", scores, scores)
    squares = own if count == 1 else (total.T @ total - own) / (count * (count - 1))
    complete = np.broadcast_to(np.asarray(matrix, float) - squares, (count, k, k))
    logs = np.full((count, n), np.nan) if logs is None else np.asarray(logs, float)
    return Evaluation(np.zeros(k) if u is None else np.asarray(u, float), scores, complete, logs, np.ones(n), np.ones(n))


MATRIX = np.array([[4.0, 1.0, 0.0], [1.0, 9.0, 0.5], [0.0, 0.5, 1.0]])
FREE = np.ones(3, bool)


def test_a_short_step_is_newtons_and_promises_half_its_squared_length():
    score = np.array([0.5, -0.8, 0.2])
    step, length, gain = newton(evaluation(score[None, None], MATRIX), FREE, 1.5)
    np.testing.assert_allclose(step, np.linalg.solve(MATRIX, score))
    assert length == pytest.approx(np.sqrt(score @ np.linalg.solve(MATRIX, score)))
    assert gain == pytest.approx(length**2 / 2)


def test_a_long_step_is_held_to_the_region_in_the_metric_of_the_information():
    score = np.array([5.0, -8.0, 0.2])
    step, length, gain = newton(evaluation(score[None, None], MATRIX), FREE, 0.5)
    whole = np.linalg.solve(MATRIX, score)
    np.testing.assert_allclose(step, whole * 0.5 / length)
    assert np.sqrt(step @ MATRIX @ step) == pytest.approx(0.5)
    assert length == pytest.approx(np.sqrt(score @ whole))
    assert gain == pytest.approx(score @ step - step @ MATRIX @ step / 2)


def test_what_is_not_free_stays():
    score, free = np.array([0.5, -0.8, 0.2]), np.array([True, False, True])
    step, length, gain = newton(evaluation(score[None, None], MATRIX), free, 1.5)
    part = MATRIX[np.ix_(free, free)]
    np.testing.assert_allclose(step[free], np.linalg.solve(part, score[free]))
    assert step[1] == 0.0 and length == pytest.approx(np.sqrt(score[free] @ np.linalg.solve(part, score[free])))
    step, length, gain = newton(evaluation(score[None, None], MATRIX), np.zeros(3, bool), 1.5)
    assert not step.any() and step.shape == (3,) and length == 0.0 and gain == 0.0


def test_where_the_information_is_indefinite_the_step_still_leads_up():
    indefinite = np.array([[2.0, 0.0], [0.0, -3.0]])
    step, length, _ = newton(evaluation([[[0.4, 0.6]]], indefinite), np.ones(2, bool), 1.5)
    np.testing.assert_allclose(step, [0.2, 0.2])
    assert length == pytest.approx(np.sqrt(0.4**2 / 2 + 0.6**2 / 3))


def test_a_leap_is_cut_to_a_factor_of_seven_and_promises_less():
    flat = np.diag([1e-4, 1.0])
    score = np.array([1e-3, 0.1])
    step, length, gain = newton(evaluation(score[None, None], flat), np.ones(2, bool), 1.5)
    np.testing.assert_allclose(step, np.array([10.0, 0.1]) * LEAP / 10)
    assert length == pytest.approx(np.sqrt(1e-6 / 1e-4 + 0.01))
    assert gain == pytest.approx(score @ step - step @ flat @ step / 2)


def test_curvature_has_a_floor_that_means_the_same_for_every_coordinate():
    # A correlation of one: the floor is 1e-8 of the common scale.
    units = np.array([1.0, 1e3])
    step, length, _ = newton(evaluation((units * [1e-5, -1e-5])[None, None], np.outer(units, units)), np.ones(2, bool), 1.5)
    assert length == pytest.approx(np.sqrt(2e-10 / 1e-8), rel=1e-3)
    np.testing.assert_allclose(step * units, [LEAP, -LEAP], rtol=1e-6)


@pytest.mark.parametrize("broken", ["matrix", "score"])
def test_a_step_that_is_not_a_number_is_none(broken):
    score = np.array([np.nan if broken == "score" else 0.5, 1.0])
    matrix = np.array([[np.nan if broken == "matrix" else 1.0, 0.0], [0.0, 1.0]])
    here = Evaluation(np.zeros(2), score[None, None], matrix[None], np.zeros((1, 1)), np.ones(1), np.ones(1))
    step, length, gain = newton(here, np.ones(2, bool), 1.5)
    assert not step.any() and np.isnan(length) and gain == 0.0
    assert newton(here, np.array([False, True]), 1.5)[1] > 0  # of a coordinate that is held it is of no matter


def test_the_noise_is_the_spread_of_the_steps_by_single_sets_of_draws():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4, 6, 3))
    free = np.array([True, True, False])
    part = MATRIX[:2, :2]
    totals = scores.sum(axis=1)[:, :2]
    apart = totals - totals.mean(axis=0)
    lengths = [a @ np.linalg.solve(part, a) for a in apart]
    assert noise(evaluation(scores, MATRIX), free) == pytest.approx(np.sqrt(np.sum(lengths) / 12))
    assert noise(evaluation(scores[:1], MATRIX), free) == 0.0
    assert noise(evaluation(scores, MATRIX), np.zeros(3, bool)) == 0.0
    assert noise(evaluation(scores, -MATRIX), free) == 0.0


def test_the_mean_of_densities_is_taken_unit_by_unit():
    logs = np.array([[-700.0, 1.0], [-701.0, 2.0], [-699.0, 0.5]])
    np.testing.assert_allclose(
        _mean(logs), [-700 + np.log(np.mean(np.exp([0.0, -1.0, 1.0]))), np.log(np.mean(np.exp([1, 2, 0.5])))]
    )


def test_rises_are_of_likelihoods_or_of_the_slope_at_both_ends():
    score = np.ones((1, 2, 2))
    here = evaluation(score, np.eye(2), [[1.0, 2.0]], [0.0, 0.0])
    there = evaluation(0.5 * score, np.eye(2), [[2.0, 2.5]], [0.3, 0.1])
    assert rise(here, there) == pytest.approx(1.5)
    two = [evaluation(np.ones((2, 1, 1)), np.eye(1), logs, [0.0]) for logs in ([[0.0], [1.0]], [[1.0], [3.0]])]
    assert rise(*two) == pytest.approx(np.log((np.e + np.e**3) / (1 + np.e)))
    unknown = evaluation(score, np.eye(2), None, [0.0, 0.0])
    assert rise(unknown, evaluation(0.5 * score, np.eye(2), None, [0.3, 0.1])) == pytest.approx((2 + 1) * 0.4 / 2)
