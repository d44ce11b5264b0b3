"""The polish's search on log-likelihoods that are formulas: how it steps, stops, and looks around."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from margaux.answers import search as module
from margaux.answers.posterior import UndefinedDensity
from margaux.answers.rules import Rule
from margaux.answers.scores import Evaluation
from margaux.answers.search import CLOSE, MOVED, PATIENCE, RADIUS, Search
from margaux.answers.steps import FLAT, spread
from margaux.esteps import Exact, ImportanceSampling, Quadrature


def parabola(curvature, top):
    """log p, its gradient and its information."""
    curvature, top = np.atleast_2d(curvature), np.asarray(top, float)
    return lambda u: (-(u - top) @ curvature @ (u - top) / 2, -curvature @ (u - top), curvature)


class Toy(Search):
    """A search in plain coordinates; `replicates` sets of draws that shift the gradient by as much as they are told."""

    def __init__(self, f, start, n=10_000, replicates=1, shift=(0.0,), estep=None, rows=(), wall=np.inf):
        self.f, self.n, self.wall, self.shift = f, n, wall, shift
        self.rule = Rule(estep or Exact(), rows, replicates, 1)
        self.fit = SimpleNamespace(_model=lambda: SimpleNamespace(n=n, model=None))
        self.coordinates = SimpleNamespace(back=lambda u: u)
        self.params = self.first = np.asarray(start, float)
        self.steps, self.since, self.thorough, self.rules, self.asked = [], 0.0, True, [], []
        self.anew()
        self.at = self.evaluated(self.params)
        self.free = np.ones(self.first.size, bool)

    def evaluated(self, params, keys=None):
        keys = self.scouts if keys is None else keys
        self.asked.append((np.array(params), keys))
        if params[0] > self.wall:
            raise UndefinedDensity(0, {"u": np.zeros(1)})
        value, gradient, matrix = self.f(params)
        scores = np.stack([(gradient + (self.shift[r] if self.shift else 0.0))[None] for r in keys])
        total, own = scores.sum(axis=0), np.einsum("rni,rnj->ij", scores, scores)
        squares = own if len(keys) == 1 else (total.T @ total - own) / (len(keys) * (len(keys) - 1))
        complete = np.broadcast_to(matrix - squares, (len(keys), *matrix.shape))
        return Evaluation(params, scores, complete, np.full((len(keys), 1), value), np.ones(1), np.ones(1))

    def rule_at(self, params, nearby=False):
        self.rules.append(np.array(params))
        return self.rule

    def value(self, params, rule):
        return float(self.f(params)[0]), 0.0


def test_a_parabola_is_climbed_in_one_step():
    search = Toy(parabola([[4.0, 1.0], [1.0, 2.0]], [0.3, -0.2]), [0.0, 0.0])
    search.climb(50)
    np.testing.assert_allclose(search.params, [0.3, -0.2], atol=1e-12)
    length = np.sqrt(2 * -parabola([[4.0, 1.0], [1.0, 2.0]], [0.3, -0.2])(np.zeros(2))[0])
    assert [s[1] for s in search.steps] == pytest.approx([length, 0.0])
    assert search.steps[0][0] == pytest.approx(-(length**2) / 2) and search.at.loglik == pytest.approx(0.0)
    assert search.since == pytest.approx(length / 100)


def test_a_region_that_holds_steps_back_doubles_where_they_rise_as_promised():
    search = Toy(parabola([[100.0]], [2.0]), [0.0])  # twenty standard errors away
    search.climb(50)
    # After steps of RADIUS, and twice and four times as long, the rest.
    assert [s[1] for s in search.steps] == pytest.approx([20, 20 - RADIUS, 20 - 3 * RADIUS, 20 - 7 * RADIUS, 0.0])


def test_steps_beyond_what_is_defined_are_shortened():
    search = Toy(parabola([[100.0]], [0.2]), [0.0], wall=0.12)
    search.climb(6)
    assert 0.08 < search.params[0] <= 0.12
    tried = [float(p[0]) for p, _ in search.asked[1:]]
    # The first is as long as the region; the next a quarter of it; and so from there.
    assert tried[0] == pytest.approx(RADIUS / 10) and tried[1] == pytest.approx(RADIUS / 40)
    assert search.tried(np.array([1.0]), range(1)) is None and search.tried(np.array([0.1]), range(1)) is not None


def test_steps_that_do_not_rise_are_refused():
    def cliff(u):
        """A parabola on paper that falls in truth beyond a tenth."""
        return (-50 * (u[0] - 0.1) ** 2 if u[0] < 0.1 else -(u[0] - 0.1) * 1e4), -100 * (u - 0.12), np.array([[100.0]])

    search = Toy(cliff, [0.0])
    search.climb(50)
    assert search.params[0] <= 0.1 and search.at.loglik >= -0.5
    # It ends when the region has become smaller than 1e-4.
    assert len(search.steps) < 50


def test_the_number_of_steps_is_bounded_unless_they_lead_up():
    def slow(u):
        return float(u[0]) * 1e-3, np.array([1e-3]), np.array([[1e-4]])

    search = Toy(slow, [0.0])
    search.climb(5)
    assert len(search.steps) == 5

    def steep(u):
        return float(u[0]), np.array([1.0]), np.array([[1.0]])

    search = Toy(steep, [0.0])
    search.climb(12)
    assert len(search.steps) == PATIENCE * 12
    # Ten steps must raise it by one: 0.11 each do so, 0.09 do not.
    for rise, steps in ((0.11, PATIENCE * 12), (0.09, 12)):
        search = Toy(lambda u, r=rise: (float(u[0]), np.array([1.0]), np.array([[1 / r]])), [0.0])
        search.climb(12)
        assert len(search.steps) == steps
    search.climb(0)
    assert len(search.steps) == 12


@pytest.mark.parametrize(("length", "steps"), [(0.9 * CLOSE / 3, 1), (1.1 * CLOSE / 3, 2)])
def test_a_step_shorter_than_a_third_of_what_is_close_ends_it(length, steps):
    search = Toy(parabola([[1.0]], [length]), [0.0])
    search.climb(50)
    assert len(search.steps) == steps


def test_a_length_that_is_not_a_number_ends_it():
    search = Toy(lambda u: (0.0, np.array([np.nan]), np.eye(1)), [0.0])
    search.climb(50)
    assert len(search.steps) == 1 and search.params[0] == 0.0


@pytest.mark.parametrize(("n", "rows", "estep", "made"), [
    (81, (), Quadrature(5), 1), (120, (), Quadrature(5), 0), (81, None, Quadrature(5), 0), (81, (), Exact(5), 0),
])  # fmt: skip
def test_proposals_are_made_anew_where_parameters_have_moved(n, rows, estep, made):
    # 1.4 standard errors of all are 1.4 / 9 = 0.156 of one unit, or 0.128 of 120 units.
    search = Toy(parabola([[1.0]], [1.4]), [0.0], n=n, rows=rows, estep=estep, replicates=2 if isinstance(estep, Exact) else 1,
                 shift=(0.0, 0.0))  # fmt: skip
    search.climb(50)
    assert len(search.rules) == made and search.params[0] == pytest.approx(1.4)
    assert (search.since == 0.0) == bool(made) and MOVED == 0.15


def test_few_sets_of_draws_lead_and_all_of_them_tell_where_it_ends():
    search = Toy(parabola([[1.0]], [0.0]), [0.5], replicates=4, shift=(0.0, 0.2, 0.4, 1.0))
    assert list(search.scouts) == [0, 1] and list(Toy(parabola([[1.0]], [0.0]), [0.5]).scouts) == [0]
    search.climb(50)
    assert search.params[0] == pytest.approx(0.1)  # by the mean of two
    count = len(search.steps)
    search.all_draws(False)
    assert search.params[0] == pytest.approx(0.1) and len(search.steps) == count
    np.testing.assert_allclose(search.at.gradient, np.mean([-0.1, 0.1, 0.3, 0.9]))  # by the mean of all


def test_all_draws_move_at_most_two_steps_and_only_up():
    def four(top):
        return lambda u: (-((u[0] - top) ** 2) / 2, -(u - top), np.eye(1))

    still = Toy(four(0.3), [0.0], replicates=3, shift=(0.0, 0.0, 0.0))
    still.all_draws(False)
    assert still.params[0] == 0.0 and len(still.at.scores) == 3 and still.steps == []
    moving = Toy(four(0.3), [0.0], replicates=3, shift=(0.0, 0.0, 0.0))
    moving.all_draws(True)
    assert moving.params[0] == pytest.approx(0.3) and [s[1] for s in moving.steps] == pytest.approx([0.3])
    assert moving.at.loglik == pytest.approx(0.0)
    far = Toy(four(1.6), [0.0], replicates=3, shift=(0.0, 0.0, 0.0))
    far.all_draws(True)
    assert far.params[0] == 0.0 and far.steps == []  # that is for few sets to climb
    lying = Toy(lambda u: (-float(u[0]), np.array([0.3]), np.eye(1)), [0.0], replicates=3, shift=(0.0, 0.0, 0.0))
    lying.all_draws(True)
    assert lying.params[0] == 0.0 and len(lying.steps) == 1
    halves = Toy(lambda u: (float(u[0]), np.array([0.3]), np.eye(1)), [0.0], replicates=3, shift=(0.0, 0.0, 0.0))
    halves.all_draws(True)
    assert halves.params[0] == pytest.approx(0.6) and len(halves.steps) == 2
    few = Toy(four(0.3), [0.0], replicates=2, shift=(0.0, 0.0))
    few.all_draws(True)
    assert few.params[0] == 0.0 and len(few.asked) == 1


def test_matrices_are_compared_in_units_of_the_information():
    free, one = np.ones(2, bool), np.array([[4.0, 0.0], [0.0, 100.0]])
    assert spread(one, np.array([[[4.0, 2.0], [2.0, 100.0]]]), free) == pytest.approx(0.1)
    assert spread(one, np.array([[[4.0, 0.0], [0.0, 50.0]]]), free) == pytest.approx(0.5)
    assert spread(one, np.array([[[4.0, 0.0], [0.0, 50.0]]]), np.array([True, False])) == 0.0
    assert np.isnan(spread(one, np.full((1, 2, 2), np.nan), free))
    nearly = np.array([[1.0, 1.0], [1.0, 1.0 + 1e-12]])  # next to nothing is known of the difference
    assert spread(nearly, np.array([[[1.0, 1.0], [1.0, 1.0 + 1e-6]]]), free) < 0.01


# -- around -----------------------------------------------------------------------------------------


def test_falls_of_a_parabola_are_a_half_on_either_side():
    search = Toy(parabola([[4.0, 1.5], [1.5, 2.0]], [0.3, -0.2]), [0.3, -0.2])
    drops, higher = search.around()
    np.testing.assert_allclose(drops, 0.5)
    assert higher is None and search.rules == []


def test_places_that_are_looked_at_are_a_standard_error_away_the_others_following():
    seen = []
    f = parabola([[400.0, 150.0], [150.0, 200.0]], [0.0, 0.0])
    search = Toy(f, [0.0, 0.0])
    search.value = lambda params, rule: (seen.append(np.array(params)), (float(f(params)[0]), 0.0))[1]
    search.around()
    covariance = np.linalg.inv([[400.0, 150.0], [150.0, 200.0]])
    wanted = [np.zeros(2), *(s * covariance[:, j] / np.sqrt(covariance[j, j]) for j in range(2) for s in (-1, 1))]
    np.testing.assert_allclose(seen, wanted, atol=1e-12)


def test_the_highest_place_that_is_found_is_handed_back():
    def bumps(u):
        """A parabola with higher ground a standard error to the right of the second coordinate, and some to the left."""
        more = 0.8 * (u[1] > 0.05) + 0.9 * (u[0] > 0.05) + 0.52 * (u[0] < -0.05)
        return -200 * float(u @ u) / 2 + more, -200 * u, 200 * np.eye(2)

    search = Toy(bumps, [0.0, 0.0])
    drops, higher = search.around()
    np.testing.assert_allclose(drops, [[-0.02, -0.4], [0.5, -0.3]], atol=1e-9)
    np.testing.assert_allclose(higher, [np.sqrt(1 / 200), 0.0])
    # A rise of less than 0.02 is none.
    low = Toy(lambda u: (-200 * float(u @ u) / 2 + 0.515 * (u[0] > 0), -200 * u, 200 * np.eye(1)), [0.0])
    drops, higher = low.around()
    assert drops[0, 1] == pytest.approx(-0.015) and higher is None


def test_held_coordinates_and_too_many_are_not_looked_at():
    search = Toy(parabola(np.diag([4.0, 2.0]), [0.0, 0.0]), [0.0, 0.0])
    search.free = np.array([False, True])
    drops, _ = search.around()
    assert np.all(np.isnan(drops[0])) and drops[1] == pytest.approx([0.5, 0.5])
    for size, looked in ((12, True), (13, False)):
        many = Toy(parabola(np.eye(size), np.zeros(size)), np.zeros(size))
        assert bool(np.all(np.isfinite(many.around()[0]))) == looked
    search.free = np.zeros(2, bool)
    assert np.all(np.isnan(search.around()[0]))
    none = Toy(parabola([[1.0]], [0.0]), [0.0], replicates=2, shift=(0.0, 0.0))  # draws of an exact posterior: no likelihood
    assert np.all(np.isnan(none.around()[0]))
    broken = Toy(lambda u: (0.0, np.zeros(1), np.array([[np.inf]])), [0.0])
    assert np.all(np.isnan(broken.around()[0]))


def test_a_flat_coordinate_is_looked_at_far_away_and_at_zero_with_proposals_of_its_own():
    def collapsed(u):
        """Flat about -40, as the log of a variance that had vanished; a maximum at zero."""
        return float(np.exp(-(u[0] ** 2) / 8)) * 3, np.zeros(1), np.array([[1e-30]])

    search = Toy(collapsed, [-40.0])
    drops, higher = search.around()
    np.testing.assert_allclose(drops, 0.0, atol=1e-12)
    np.testing.assert_allclose(higher, [0.0])
    np.testing.assert_allclose(np.ravel(search.rules), [-40 - FLAT, -40 + FLAT, 0.0])
    near = Toy(lambda u: (0.0, np.zeros(1), np.array([[1e-30]])), [-4.0])
    near.around()
    np.testing.assert_allclose(np.ravel(near.rules), [-4 - FLAT, -4 + FLAT])
    # Negative curvature says nothing of how far to look, either.
    negative = Toy(lambda u: (0.0, np.zeros(2), np.diag([-1.0, 400.0])), [0.0, 0.0])
    negative.around()
    np.testing.assert_allclose(negative.rules[:2], [[-FLAT, 0.0], [FLAT, 0.0]])


def test_proposals_are_made_anew_where_a_fall_far_away_is_not_that_of_a_parabola():
    def bent(fall):
        return lambda u: (-fall * float(u[0]) ** 2 * 4, np.zeros(1), np.array([[4.0]]))

    # Half a unit is far: a fall between 0.35 and 0.65 is believed.
    for fall, made in ((0.36, 0), (0.64, 0), (0.34, 2), (0.66, 2)):
        search = Toy(bent(fall), [0.0])
        drops, _ = search.around()
        assert len(search.rules) == made and drops[0] == pytest.approx([fall, fall])
    # A tenth is near, unless the units are so few that the parameters of each are moved by much.
    for n, made in ((10_000, 0), (45, 0), (44, 2)):
        search = Toy(lambda u: (-90 * float(u[0]) ** 2, np.zeros(1), np.array([[100.0]])), [0.0], n=n)
        search.around()
        assert len(search.rules) == made


def test_a_curvature_of_rounding_errors_is_found_out_and_looked_past():
    """Flat about -40, but curved as the information says; a maximum at zero."""
    search = Toy(lambda u: (float(np.exp(-(u[0] ** 2) / 8)) * 3, np.zeros(1), np.array([[1e10]])), [-40.0])
    drops, higher = search.around()
    np.testing.assert_allclose(higher, [0.0])
    np.testing.assert_allclose(np.ravel(search.rules)[-3:], [-40 - FLAT, -40 + FLAT, 0.0])


def test_a_wild_fall_nearby_is_that_of_proposals_made_for_elsewhere():
    class Held(Toy):
        """Proposals serve where they were made, and nowhere else."""

        made = 0.0

        def rule_at(self, params, nearby=False):
            self.made = float(params[0])
            return super().rule_at(params, nearby)

        def value(self, params, rule):
            return super().value(params, rule)[0] - 1e15 * (float(params[0]) != self.made), 0.0

    search = Held(parabola([[1e4]], [0.0]), [0.0])
    assert search.around()[0][0] == pytest.approx([0.5, 0.5]) and len(search.rules) == 2


@pytest.mark.parametrize(("error", "found"), [(0.05, True), (0.12, False)])
def test_a_rise_that_may_be_noise_is_none(error, found):
    search = Toy(lambda u: (0.4 * float(u[0] > 0), np.zeros(1), np.array([[4.0]])), [0.0])
    search.value = lambda params, rule: (float(search.f(params)[0]), error)
    assert (search.around()[1] is not None) == found  # three errors of a difference are 4.2 errors


def test_likelihoods_that_are_compared_have_the_error_of_two_sets(monkeypatch):
    logs = {0: np.array([1.0, 2.0]), 1: np.array([1.3, 2.4]), 2: np.array([99.0, 99.0])}
    monkeypatch.setattr(module, "_logs", lambda fit, rule, params, key: logs[key])
    search = Toy(parabola([[1.0]], [0.0]), [0.0], replicates=4, shift=(0.0,) * 4)
    value, error = Search.value(search, None, search.rule)
    assert value == pytest.approx(np.sum(np.log((np.exp(logs[0]) + np.exp(logs[1])) / 2)))
    assert error == pytest.approx(np.sqrt(0.3**2 + 0.4**2) / 2)
    assert Search.value(search, None, Rule(Exact(), None, 1, 1)) == (3.0, 0.0)

    def undefined(*_):
        raise UndefinedDensity(0, {"u": np.zeros(1)})

    monkeypatch.setattr(module, "_logs", undefined)
    assert Search.value(search, None, search.rule) == (-np.inf, 0.0)


@pytest.mark.parametrize(("value", "error", "anew"), [(0.58, 0.01, 0), (0.58, 0.03, 2), (0.42, 0.03, 2), (0.7, 0.0, 2)])
def test_a_fall_by_proposals_of_elsewhere_counts_where_it_is_a_parabolas_beyond_its_error(value, error, anew):
    # .08 from a half: within .15 less three errors of .01, but not less three of .03.
    search = Toy(parabola([[1.0]], [0.0]), [0.0], n=10, estep=Quadrature(5))
    search.value = lambda params, rule: (-value if params[0] else 0.0, error)
    search.around()
    assert len(search.rules) == anew


@pytest.mark.parametrize(("estep", "modes", "kept"), [
    (Quadrature(3, held=True), [1, 1], module.NEARBY),
    (Quadrature(3, held=True), None, module.NEARBY),
    (Quadrature(3, held=True), [1, 2], "as it is"),
    (ImportanceSampling(4), [1, 1], module.SAME),
    (ImportanceSampling(4), [1, 2], None),
])  # fmt: skip
def test_a_look_nearby_loses_no_mode(estep, modes, kept, monkeypatch):
    """One search, which does where there is one mode, would find one of several."""
    monkeypatch.setattr(module, "best_rule", lambda fit, params, level, proposal: proposal)
    search: Any = object.__new__(Search)
    search.fit, search.n = SimpleNamespace(_model=lambda: SimpleNamespace(model=None)), 1
    search.anew()
    search.rule = Rule(estep, None, 1, 10, None if modes is None else np.array(modes))
    assert search.rule_at({}, nearby=True) is (search.rule if kept == "as it is" else kept)
    assert search.rule_at({}) is None
