"""Grids of units of their own size, and grids shared out among lanes, beside whole ones."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import dataclasses

import numpy as np
import pytest
from test_posterior_parts import Gaussian, N, Slow, both, fit  # noqa: F401

import margaux as mx
from margaux.answers import posterior
from margaux.answers.posterior import UndefinedDensity, each_unit
from margaux.answers.rules import Rule, with_levels
from margaux.answers.search import of_most
from margaux.answers.spans import merged, shared_out
from margaux.answers.steps import lengths
from margaux.esteps.held import held

GRID = mx.Quadrature(61, held=True)


@pytest.fixture
def slow(fit):  # noqa: F811
    return dataclasses.replace(fit, problem=dataclasses.replace(fit.problem, model=Slow()))


def rows(n=N, shift=0.7):
    """Off the posterior, so that the number of nodes matters."""
    return {"mean": np.linspace(0, 2, n)[:, None] + shift, "cholesky": np.full((n, 1, 1), 1.3)}


def mixture(fit):  # noqa: F811
    """Of two Gaussians for every other unit."""
    plain = rows()
    two = np.where(np.arange(N) % 2, -0.7, -np.inf)
    return {
        "mean": np.stack([plain["mean"], plain["mean"] + 1.0], axis=1),
        "cholesky": np.stack([plain["cholesky"]] * 2, axis=1),
        "log_share": np.stack([np.where(np.arange(N) % 2, -0.7, 0.0), two], axis=1),
    }


@pytest.mark.parametrize("units", [[3], [3, 6], [9, 2, 7, 0], list(range(N))])
@pytest.mark.parametrize("several", [False, True])
def test_points_shared_out_among_lanes_sum_to_the_whole(units, several, fit, slow):  # noqa: F811
    own = mixture(fit) if several else rows()
    settings = dict(params={"mu": 0.3}, rows=own, units=np.array(units), summed=("all",))
    whole, figures = each_unit(fit, both, GRID, **settings)
    found, told = each_unit(slow, both, GRID, **settings)
    np.testing.assert_allclose(told["log_marginal"], figures["log_marginal"], rtol=1e-12)
    for name in ("one", "all"):
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-11)


def test_lanes_are_as_many_as_are_visited_at_once():
    grid = held(GRID, 1)  # six pieces of eleven nodes
    assert int(grid.pieces) == 6
    for count, parts in ((1, 6), (2, 4), (3, 2), (5, 1), (20, 1)):
        lanes = shared_out(grid, rows(), np.arange(count) % N, 8)
        assert lanes.parts == parts and len(lanes.units) == count * parts
        spans = lanes.span.reshape(count, parts, 2)
        assert np.all(spans[:, 0, 0] == 0) and np.all(spans[:, -1, 1] == 6) and np.all(spans[:, 1:, 0] == spans[:, :-1, 1])
        assert np.ptp(spans[..., 1] - spans[..., 0]) <= 1
    two = {"mean": np.zeros((2, 2, 1)), "log_share": np.array([[0.0, -np.inf], [-0.7, -0.7]])}
    np.testing.assert_array_equal(shared_out(grid, two, np.arange(2), 1).span, [[0, 6], [0, 12]])


def test_few_units_are_visited_in_one_block(slow, monkeypatch):
    spans = []
    block = posterior._block
    monkeypatch.setattr(posterior, "_block", lambda *args: (spans.append(args[3]["span"]), block(*args))[1])
    each_unit(slow, both, GRID, rows=rows(), units=np.array([4]))
    assert len(spans) == 1 and np.sum(np.diff(spans[0][:6])) == 6


def test_units_have_grids_of_their_own(fit, slow):  # noqa: F811
    levels = np.where(np.arange(N) % 3, 0, np.arange(N) % 2 + 1)
    grids = ((9, 13, None), (31, 45, 5.5))
    rule = with_levels(Rule(mx.Quadrature(5, held=True), rows(), 1, 15, finer=7), levels, grids)
    for estep, nodes in ((rule.estep, [(5, None), (9, None), (31, 5.5)]), (rule.finely(1.4), [(7, None), (13, None), (45, 5.5)])):
        for target in (fit, slow):
            found, figures = each_unit(target, both, estep, rows=rule.rows, summed=("all",))
            total = np.zeros(2)
            for level, (count, reach) in enumerate(nodes):
                grid = mx.Quadrature(count, held=True, reach=reach, widening=float(estep.widening))
                some = np.flatnonzero(levels == level)
                own, told = each_unit(fit, both, grid, rows=rows(), units=some, summed=("all",))
                np.testing.assert_allclose(found["one"][some], own["one"], rtol=1e-11)
                np.testing.assert_allclose(figures["log_marginal"][some], told["log_marginal"], rtol=1e-12)
                total += own["all"]
            np.testing.assert_allclose(found["all"], total, rtol=1e-11)
    some = np.array([9, 1, 0])
    np.testing.assert_allclose(each_unit(slow, both, estep, rows=rule.rows, units=some)[0]["one"], found["one"][some], rtol=1e-11)


def test_where_a_density_is_undefined_is_said_of_the_unit_itself(slow):
    rule = with_levels(Rule(mx.Quadrature(5, held=True), rows(), 1, 15, finer=7), np.arange(N) % 2, ((9, 13, None),))
    with pytest.raises(UndefinedDensity, match="unit 6 "):
        each_unit(slow, both, rule.estep, params={"mu": 41.0}, rows=rule.rows)


def test_parts_without_weight_have_no_say():
    logs = np.array([0.0, -np.inf, -np.inf, -np.inf, -1.0, 2.0])
    value, whole = merged({"a": np.array([3.0, np.nan, np.nan, np.nan, 1.0, 2.0])}, logs, 2)
    with np.errstate(all="raise"):
        np.testing.assert_allclose(whole, [0.0, -np.inf, np.log(np.exp(-1) + np.exp(2))])
    share = 1 / (1 + np.exp(3))
    np.testing.assert_allclose(value["a"], [3.0, 0.0, share + 2 * (1 - share)])


def test_those_of_most_are_as_few_as_leave_no_more_than_allowed():
    off = np.array([0.1, -5.0, 0.2, 3.0])
    for slack, units in ((10.0, []), (3.5, [1]), (0.3, [1, 3]), (0.1, [1, 3, 2]), (0.0, [1, 3, 2, 0])):
        assert of_most(np.abs(off), lambda some: np.abs(off[some]).sum(), slack + 1e-12).tolist() == units
    # Errors may cancel, and what is infinite or no number goes first.
    assert of_most(np.abs(off), lambda some: abs(off[some].sum()), 1.75).tolist() == []
    odd = np.array([0.0, np.nan, np.inf])
    assert sorted(of_most(odd, lambda some: odd[some].sum(), 1.0).tolist()) == [1, 2]


def test_lengths_of_steps_are_in_standard_errors():
    matrix = np.diag([4.0, 9.0, 1.0])
    free = np.array([True, True, False])
    np.testing.assert_allclose(lengths(np.array([[2.0, 0.0], [0.0, 3.0], [2.0, 3.0]]), matrix, free), [1.0, 1.0, np.sqrt(2)])
    assert np.all(np.isinf(lengths(np.ones((2, 2)), np.full((3, 3), np.nan), free)))
    assert lengths(np.ones((2, 0)), matrix, np.zeros(3, bool)).tolist() == [0.0, 0.0]
