"""Many functions climbed side by side: those of known maxima, and those that have none."""

import numpy as np
import pytest

from margaux.answers.ascents import Heights, climb, inverses, newton, pseudo_inverses


def banana(centre):
    """$-(a - x)^2 - 5(y - x^2)^2$, whose maximum is at (a, a^2)."""

    def at(u):
        x, y = u
        value = -((centre - x) ** 2) - 5 * (y - x**2) ** 2
        gradient = np.array([2 * (centre - x) + 20 * x * (y - x**2), -10 * (y - x**2)])
        hessian = np.array([[-2 + 20 * (y - 3 * x**2), 20 * x], [20 * x, -10.0]])
        return value, gradient, -hessian

    return at


def rising(u):
    """$-e^{-x} - y^2$, which rises towards infinity."""
    x, y = u
    return -np.exp(-x) - y**2, np.array([np.exp(-x), -2 * y]), np.diag([np.exp(-x), 2.0])


def undefined(u):
    return np.nan, np.full(2, np.nan), np.full((2, 2), np.nan)


def walled(u):
    """A parabola that is not defined beyond one: its maximum is at a half, and steps from afar overshoot."""
    x, y = u
    bad = np.nan if x > 1 else 0.0
    return -(np.exp(x) - x * np.exp(0.5)) - y**2 + bad, np.array([np.exp(0.5) - np.exp(x), -2 * y]), np.diag([np.exp(x), 2.0])


def climbed(functions, start, close=1e-8, most=100):
    told, kept = [], []

    def heights(u, which):
        parts = [functions[r](row) for r, row in zip(which, u, strict=True)]
        return Heights(*(np.array(part, float) for part in zip(*parts, strict=True)))

    u, n = np.array(start, float), len(start)
    here = Heights(np.zeros(n), np.zeros((n, 2)), np.zeros((n, 2, 2)))
    found = climb(heights, u, here, np.arange(n), close, most, told.append, lambda which, taken: kept.append((which, taken)))
    return u, here, found, told, kept


def test_each_ends_at_its_own_maximum():
    centres = [0.0, 1.0, -1.5, 2.0]
    u, here, (length, steps, stuck), told, _ = climbed([banana(a) for a in centres], [[-2.0, 3.0]] * 4)
    np.testing.assert_allclose(u, [[a, a * a] for a in centres], atol=1e-8)
    np.testing.assert_allclose(here.value, 0.0, atol=1e-14)
    assert (length < 1e-8).all() and not stuck.any() and (steps > 2).all() and told == sorted(told, reverse=True)


def test_others_change_nothing():
    together = climbed([banana(1.0), rising, banana(-1.5)], [[-2.0, 3.0], [0.0, 1.0], [3.0, 0.0]])[0]
    alone = climbed([banana(-1.5)], [[3.0, 0.0]])[0]
    np.testing.assert_allclose(together[2], alone[0], rtol=0, atol=1e-14)


def test_a_function_that_rises_to_infinity_is_left_and_one_that_is_not_defined_does_not_move():
    u, _, (length, steps, _), _, _ = climbed([rising, undefined, walled], [[0.0, 1.0], [1.0, 2.0], [-3.0, 1.0]])
    assert 10 < u[0, 0] < 20 and steps[0] < 30 and length[0] < 1e-3 and abs(u[0, 1]) < 1e-6
    assert np.isnan(length[1]) and u[1].tolist() == [1.0, 2.0]
    np.testing.assert_allclose(u[2], [0.5, 0.0], atol=1e-7)


def test_places_that_are_not_gone_to_are_not_kept():
    *_, kept = climbed([banana(1.0)], [[-2.0, 3.0]])
    assert any(not taken.all() for _, taken in kept) and kept[0][1].all()


def test_steps_are_held_to_their_regions():
    u, matrix = np.zeros((2, 2)), np.stack([np.diag([4.0, 1.0]), np.diag([4.0, -1.0])])
    here = Heights(np.zeros(2), np.array([[4.0, 2.0], [4.0, 2.0]]), matrix)
    steps = newton(here, u, np.array([100.0, 0.5]))
    np.testing.assert_allclose(steps.length, np.sqrt(8.0))
    np.testing.assert_allclose(steps.step[0], [1.0, 2.0])
    np.testing.assert_allclose(steps.taken, [np.sqrt(8.0), 0.5])
    np.testing.assert_allclose(steps.step[1], np.array([1.0, 2.0]) * 0.5 / np.sqrt(8.0))


def test_inverses_say_which_are_positive_definite():
    matrix = np.stack([np.array([[2.0, 1.0], [1.0, 3.0]]) * 1e8, np.diag([1.0, -1.0]), np.full((2, 2), np.nan), np.ones((2, 2))])
    found, positive = inverses(matrix)
    assert positive.tolist() == [True, False, False, False] and np.isnan(found[1:]).all()
    np.testing.assert_allclose(found[0] @ matrix[0], np.eye(2), atol=1e-12)
    np.testing.assert_allclose(pseudo_inverses(matrix)[0], found[0], rtol=1e-10)
    np.testing.assert_allclose(pseudo_inverses(matrix)[3], 0.25 * np.ones((2, 2)))


@pytest.mark.parametrize("most", [0, 3])
def test_no_more_steps_than_asked_for(most):
    _, _, (length, steps, _), _, _ = climbed([banana(1.0)], [[-2.0, 3.0]], most=most)
    assert steps.tolist() == [most] and length[0] > 1e-3
