"""Profiles and slices by parts: intervals between points of the grid, quadratics, and the search along a surface."""

# Stand-ins take the place of fits, rules and models: pyright sees other types.
# pyright: reportArgumentType=false

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from margaux.answers import profile as module
from margaux.answers.likelihood import LogLikelihood
from margaux.answers.profile import CLOSE, PROMISE, End, _checked, _Constrained, _flat, _frame, _interval, _unflat, profile, slice
from margaux.answers.scores import Evaluation


def test_an_interval_is_interpolated_in_the_signed_root_of_the_fall():
    grid = np.array([-3.0, -1.0, 0.5, 1.0, 2.0, 4.0])
    # A parabola of curvature 4 about 0.8: the root is linear, so interpolation is exact.
    logs = 7.0 - 2 * (grid - 0.8) ** 2
    half = stats.norm.ppf(0.95) / 2
    np.testing.assert_allclose(_interval(grid, logs, 0.8, 7.0, 0.9), (0.8 - half, 0.8 + half))
    # A skew one: between the neighbours of the crossing.
    logs = np.array([-9.0, -3.0, -0.2, -0.1, -1.5, -6.0])
    low, high = _interval(grid, logs, 0.8, 0.0, 0.95)
    root, quantile = np.sqrt(-2 * logs), stats.norm.ppf(0.975)
    assert low == pytest.approx(0.5 - 1.5 * (quantile - root[2]) / (root[1] - root[2]))
    assert high == pytest.approx(2.0 + 2.0 * (quantile - root[4]) / (root[5] - root[4]))


def test_an_interval_between_the_estimate_and_the_first_point_begins_at_no_fall():
    grid = np.array([-1.0, 1.0, 3.0])
    low, high = _interval(grid, np.array([-8.0, -8.0, -30.0]), 0.0, 0.0, 0.95)
    assert (low, high) == pytest.approx((-stats.norm.ppf(0.975) / 4, stats.norm.ppf(0.975) / 4))
    exact = _interval(np.array([-2.0, 1.0, 5.0]), np.array([-50.0, -(stats.norm.ppf(0.975) ** 2) / 2, -50.0]), 0.0, 0.0, 0.95)
    assert exact[1] == pytest.approx(1.0)


def test_an_interval_that_the_grid_does_not_reach_is_not_a_number():
    grid, logs = np.array([-1.0, 1.0, 2.0]), np.array([-0.5, -0.5, -9.0])
    low, high = _interval(grid, logs, 0.0, 0.0, 0.95)
    assert np.isnan(low) and 1.0 < high < 2.0
    # Logs above the top, by their noise, are no fall; a point at the estimate is on no side.
    assert all(np.isnan(_interval(np.array([0.0, 1.0, 2.0]), np.array([-9.0, 0.3, 0.1]), 0.0, 0.0, 0.95)))


def logliks(values, errors):
    return [LogLikelihood(np.array([v]), e) for v, e in zip(values, errors, strict=True)]


def test_the_quadratic_of_a_frame_is_weighted_by_the_errors():
    grid = np.array([0.0, 1.0, 2.0, 4.0, 5.0])
    values, errors = -((grid - 1.5) ** 2) + np.array([0.1, -0.3, 0.2, 0.5, -1.0]), np.array([0.1, 0.2, 0.05, 0.4, 1.0])
    frame = _frame("a", grid, logliks(values, errors))
    quadratic = np.polyfit(grid, values, 2, w=1 / errors)
    np.testing.assert_allclose(frame.attrs["quadratic"], quadratic)
    assert frame.attrs["maximiser"] == pytest.approx(-quadratic[1] / 2 / quadratic[0])
    np.testing.assert_allclose(frame["mc_error"], errors)
    np.testing.assert_allclose(frame["loglik"], values)
    assert frame.index.name == "a" and list(frame.index) == list(grid)
    # Without an error, or where one is not known, all count the same.
    for other in (errors * [0, 1, 1, 1, 1], errors * [np.nan, 1, 1, 1, 1]):
        np.testing.assert_allclose(_frame("a", grid, logliks(values, other)).attrs["quadratic"], np.polyfit(grid, values, 2))
    tiny = _frame("a", grid, logliks(values, errors * 1e-12)).attrs["quadratic"]
    np.testing.assert_allclose(tiny, np.polyfit(grid, values, 2))


def test_where_the_quadratic_has_no_top_the_best_point_is_the_maximiser():
    grid = np.array([0.0, 1.0, 2.0])
    assert _frame("a", grid, logliks([3.0, 1.0, 2.0], [0.0] * 3)).attrs["maximiser"] == 0.0
    assert _frame("a", grid, logliks([1.0, 1.0, 4.0], [0.0] * 3)).attrs["maximiser"] == 2.0


def test_names_and_grids_are_checked():
    fit = SimpleNamespace(names=["a", "b"])
    j, values = _checked(fit, "b", [3, 1, 2, 1])
    assert j == 1 and values.dtype == float and values.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="no parameter 'c'"):
        _checked(fit, "c", [1, 2, 3])
    with pytest.raises(ValueError, match="at least three different values of a, got 2"):
        _checked(fit, "a", [1, 2, 2])


def test_parameters_are_flattened_and_put_together_again():
    params = {"a": np.array(1.0), "b": np.arange(6.0).reshape(2, 3), "c": np.array([7.0, 8.0])}
    flat = _flat(params)
    np.testing.assert_array_equal(flat, [1, 0, 1, 2, 3, 4, 5, 7, 8])
    back = _unflat(params, flat + 1)
    assert all(np.array_equal(back[name], params[name] + 1) and back[name].shape == params[name].shape for name in params)


# -- the search along a surface ---------------------------------------------------------------------

MATRIX = np.array([[3.0, 1.0, 0.5], [1.0, 2.0, -0.4], [0.5, -0.4, 1.5]])
TOP = np.array([0.4, -0.3, 0.2])


class Surface(_Constrained):
    """A parabola in three coordinates, one of which is the log of the parameter."""

    def __init__(self, j=0, top=TOP, matrix=MATRIX):
        self.fit, self.j, self.name, self.top, self.curve, self.seen = SimpleNamespace(), j, "a", top, matrix, []
        self.coordinates = SimpleNamespace(
            to=lambda params: np.array([np.log(params["a"][0]), *params["a"][1:]]),
            back=lambda u: {"a": np.array([np.exp(u[0]), *u[1:]])},
            jacobian=lambda u: np.diag([np.exp(u[0]), *np.ones(len(u) - 1)]),
        )

    def _evaluated(self, u, rule):
        self.seen.append(u)
        gap = u - self.top
        gradient = -self.curve @ gap
        score = gradient[None, None]
        complete = (self.curve - np.outer(gradient, gradient))[None]
        return Evaluation(u, score, complete, np.array([[-gap @ self.curve @ gap / 2]]), np.ones(1), np.ones(1))


def params(u):
    return {"a": np.array([np.exp(u[0]), *u[1:]])}


def test_the_maximum_over_the_others_is_that_of_linear_algebra(monkeypatch):
    monkeypatch.setattr(module, "best_rule", lambda fit, params: None)
    search = Surface()
    found, away, loglik = search.maximum(params(TOP), 2.0)
    gap = np.log(2.0) - TOP[0]
    others = TOP[1:] - np.linalg.solve(MATRIX[1:, 1:], MATRIX[1:, 0]) * gap
    np.testing.assert_allclose(found["a"], [2.0, *others], rtol=1e-9)
    assert away < CLOSE
    # Far away steps are no longer than the region, and there are several.
    search = Surface()
    far, *_ = search.maximum({"a": np.array([2.0, 9.0, -8.0])}, 2.0)
    np.testing.assert_allclose(far["a"], [2.0, *others], rtol=1e-2, atol=2e-2)
    moves = [(b - a) @ MATRIX @ (b - a) for a, b in zip(search.seen, search.seen[1:], strict=False)]
    assert max(moves) == pytest.approx(1.5**2) and len(moves) > 5
    # Where the maximum is clearly below a level, the first step is enough to know.
    for level, short in [(loglik + 50.0, True), (loglik + 1.01, False), (loglik - 1.0, False)]:
        search = Surface()
        end = search.maximum({"a": np.array([2.0, 3.0, -2.0])}, 2.0, level)
        assert (len(search.seen) < 4) == short == (end.away > CLOSE) and end.below(level) == (level > loglik + 1)
        assert end.loglik + PROMISE * end.away**2 / 2 >= loglik - 1e-9


def test_a_step_that_falls_is_shortened(monkeypatch):
    monkeypatch.setattr(module, "best_rule", lambda fit, params: None)

    class Bent(Surface):
        """Its curvature is told four times too small: whole steps go too far."""

        def _evaluated(self, u, rule):
            here = super()._evaluated(u, rule)
            return here._replace(complete=here.complete - 0.75 * self.curve)

    search = Bent()
    found, *_ = search.maximum({"a": np.array([2.0, 1.5, -0.5])}, 2.0)
    logs = [Surface._evaluated(search, u, None).loglik for u in list(search.seen)]
    assert logs[-1] > logs[0] and found["a"][0] == pytest.approx(2.0)


def test_newtons_step_along_a_surface_stays_on_it():
    search = Surface(j=1)
    here = search._evaluated(np.zeros(3), None)
    step, length = search._newton(here)
    part, slope = MATRIX[np.ix_([0, 2], [0, 2])], here.gradient[[0, 2]]
    np.testing.assert_allclose(step[[0, 2]], np.linalg.solve(part, slope))
    assert step[1] == pytest.approx(0.0, abs=1e-14) and length == pytest.approx(np.sqrt(slope @ np.linalg.solve(part, slope)))
    alone = Surface(top=TOP[:1], matrix=MATRIX[:1, :1])
    step, length = alone._newton(alone._evaluated(np.zeros(1), None))
    assert step.tolist() == [0.0] and np.isnan(length)
    # Where it is indefinite, along the absolute values of its eigenvalues.
    saddle = Surface(j=0, matrix=np.diag([1.0, 2.0, -3.0]), top=np.ones(3))
    step, _ = saddle._newton(saddle._evaluated(np.zeros(3), None))
    np.testing.assert_allclose(step, [0.0, 1.0, -1.0], atol=1e-12)
    flat = Surface(j=0, matrix=np.diag([1.0, 2.0, 0.0]), top=np.ones(3))
    here = flat._evaluated(np.zeros(3), None)._replace(scores=np.array([[[0.0, 0.0, 1e-8]]]))
    step, length = flat._newton(here._replace(complete=np.diag([1.0, 2.0, 0.0])[None]))
    assert step[2] == pytest.approx(1e-8 / 2e-8, rel=1e-3) and length == pytest.approx(1e-8 / np.sqrt(2e-8), rel=1e-3)


def test_the_point_of_a_surface_is_found_by_steps_of_two_at_most():
    search, tried = Surface(), []
    back = search.coordinates.back
    search.coordinates.back = lambda u: (tried.append(u[0]), back(u))[1]
    u = search._onto(np.array([0.0, 0.5, 0.5]), 1e3)
    np.testing.assert_allclose(u, [np.log(1e3), 0.5, 0.5], rtol=1e-10)
    assert tried[1] == pytest.approx(2.0)
    assert search._onto(u, 1e3) is u
    with pytest.raises(ValueError, match="a = -1 lies outside its space"):
        search._onto(u, -1.0)


# -- the whole --------------------------------------------------------------------------------------


class Fit:
    names = ["a", "b"]
    params = {"a": np.array(1.0), "b": np.array(0.5)}


@pytest.fixture
def parts(monkeypatch):
    """log p = -(a - 1)^2 - (b - a / 2)^2, and a search that says where it started."""
    state = SimpleNamespace(starts=[], calls=[])

    class Search:
        def __init__(self, fit, j, name):
            self.j = j

        def maximum(self, params, value):
            state.starts.append((float(params["a"]), value))
            return End({"a": np.array(value), "b": np.array(value / 2)}, 0.001 * value, 0.0)

    def loglik(fit, params=None, **settings):
        state.calls.append(settings)
        here = Fit.params if params is None else params
        value = -((float(here["a"]) - 1) ** 2) - (float(here["b"]) - float(here["a"]) / 2) ** 2
        return LogLikelihood(np.array([value]), 0.0)

    monkeypatch.setattr(module, "_Constrained", Search)
    monkeypatch.setattr(module, "loglik", loglik)
    identity = SimpleNamespace(to=lambda params: _flat(params), jacobian=lambda u: np.eye(2))
    identity.back = lambda u: {"a": np.maximum(u[0], 0.0), "b": u[1]}
    monkeypatch.setattr(module, "Coordinates", lambda fit: identity)
    return state


def test_each_maximum_of_a_profile_is_the_start_of_the_next_one_outwards(parts):
    frame = profile(Fit(), "a", [3.0, 0.0, 1.0, 0.5, 2.0], method="exact", n_draws=9, level=0.8)
    assert parts.starts == [(1.0, 1.0), (1.0, 2.0), (2.0, 3.0), (1.0, 0.5), (0.5, 0.0)]
    np.testing.assert_allclose(frame["loglik"], -((np.array([0, 0.5, 1, 2, 3]) - 1) ** 2))
    np.testing.assert_allclose(frame["away"], [0, 0.0005, 0.001, 0.002, 0.003])
    np.testing.assert_allclose(frame["b"], np.array([0, 0.5, 1, 2, 3]) / 2)
    half = stats.norm.ppf(0.9) / np.sqrt(2)
    np.testing.assert_allclose(frame.attrs["interval"], (1 - half, 1 + half))
    assert len(parts.calls) == 6 and all(call == {"method": "exact", "n_draws": 9} for call in parts.calls)
    with pytest.raises(ValueError, match="level"):
        profile(Fit(), "a", [0.0, 1.0, 2.0], level=1.0)


def test_a_slice_holds_the_others_and_refuses_what_lies_outside(parts):
    frame = slice(Fit(), "a", [0.0, 1.0, 2.0], method="exact", n_draws=9)
    np.testing.assert_allclose(frame["loglik"], [-1.25, 0.0, -1.25])
    assert frame.attrs["maximiser"] == pytest.approx(1.0) and isinstance(frame, pd.DataFrame)
    np.testing.assert_allclose(slice(Fit(), "b", [0.0, 1.0, 2.0])["loglik"], [-0.25, -0.25, -2.25])
    with pytest.raises(ValueError, match="a = -1 lies outside its space where the other parameters are held"):
        slice(Fit(), "a", [-1.0, 1.0, 2.0])


def test_the_mirror_entry_of_a_symmetric_matrix_moves_along(parts, monkeypatch):
    # b is tied to a; neither depends on the second coordinate.
    tied = SimpleNamespace(to=lambda params: _flat(params), back=lambda u: {"a": u[0], "b": u[1]})
    tied.jacobian = lambda u: np.array([[1.0, 0.0], [1.0, 0.0]])
    monkeypatch.setattr(module, "Coordinates", lambda fit: tied)
    values = np.array([0.0, 1.0, 2.0])
    np.testing.assert_allclose(slice(Fit(), "a", values)["loglik"], -((values - 1) ** 2) - (values / 2) ** 2)
    tied.jacobian = lambda u: np.zeros((2, 2))  # without any movement nothing is tied
    np.testing.assert_allclose(slice(Fit(), "a", values)["loglik"], -((values - 1) ** 2) - (0.5 - values / 2) ** 2)
