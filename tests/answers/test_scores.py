"""Scores and information of all units or of a sample, and the coordinates that they are taken in."""

# Stand-ins take the place of fits, rules and models: pyright sees other types.
# pyright: reportArgumentType=false

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special

import margaux as mx
from helpers import unmoved
from margaux.answers import scores as module
from margaux.answers.rules import Rule
from margaux.answers.scores import Coordinates, Evaluation, evaluate, subsample, symmetrised

N = 30


@pytest.fixture(scope="module")
def fit():
    return unmoved(N, mx.MCMC(mx.MALA(0.5)), n_iter=2)


RULE = Rule(mx.Quadrature(9), None, 1, 40)


def exact(fit, tau2=1.7, mu=0.1):
    """Scores, E[-Hessian] - E[gradient gradient'] of the units and log p, in (mu, log tau2)."""
    r, v = np.asarray(fit.data) - mu, 1 + tau2
    of_tau2 = -1 / (2 * v) + r**2 / (2 * v**2)
    scores = np.column_stack([r / v, tau2 * of_tau2])
    cross = tau2 * r / v**2
    curved = tau2**2 * (-1 / (2 * v**2) + r**2 / v**3) - tau2 * of_tau2
    observed = np.stack([np.stack([np.full(N, 1 / v), cross], axis=1), np.stack([cross, curved], axis=1)], axis=1)
    return scores, observed - scores[:, :, None] * scores[:, None], -0.5 * np.log(2 * np.pi * v) - r**2 / (2 * v)


@pytest.mark.parametrize("tau2", [1.7, 0.4])
def test_a_model_at_a_point_is_that_of_the_formulas(fit, tau2):
    found = evaluate(fit, RULE, {"mu": 0.1, "tau2": tau2}, [0])
    scores, complete, logs = exact(fit, tau2)
    np.testing.assert_allclose(found.u, [0.1, np.log(tau2)], atol=1e-9)
    np.testing.assert_allclose(found.scores[0], scores, atol=1e-8)
    np.testing.assert_allclose(found.logs[0], logs, atol=1e-9)
    np.testing.assert_allclose(found.gradient, scores.sum(axis=0), atol=1e-8)
    assert found.loglik == pytest.approx(logs.sum())
    np.testing.assert_allclose(found.complete[0], complete.sum(axis=0), rtol=1e-7)


def test_second_derivatives_of_very_many_units_are_scaled_up_from_a_sample(fit, monkeypatch):
    units = np.array([3, 5, 8, 20, 21])
    monkeypatch.setattr(module, "sample", lambda n: units)
    found = evaluate(fit, RULE, fit.params, [0, 1])
    _, complete, _ = exact(fit)
    np.testing.assert_allclose(found.complete[1], complete[units].sum(axis=0) * N / 5, rtol=1e-7)
    assert found.scores.shape == (2, N, 2) and found.complete.shape == (2, 2, 2)
    first = evaluate(fit, RULE, fit.params, [0], second=False)
    assert np.all(np.isnan(first.complete)) and first.complete.shape == (1, 2, 2)
    np.testing.assert_allclose(first.scores[0], found.scores[0])


def test_what_is_visited_is_one_set_of_draws_a_key(fit, monkeypatch):
    calls = []

    def each_unit(fit, f, estep, params, key, width, rows, units, summed):
        calls.append((key, width, rows, units is None, summed))
        n = N if units is None else len(units)
        out = {"score": np.full((n, 2), float(key))} | ({"complete": np.eye(2) * (key + 1)} if summed else {})
        return out, {"ess": np.arange(N) + 10.0 * key, "pareto": np.arange(N) - 0.1 * key} if units is None else {}

    monkeypatch.setattr(module, "each_unit", each_unit)
    rule = Rule(mx.ImportanceSampling(9), "rows", 3, 40)
    found = evaluate(fit, rule, fit.params, [1, 4])
    assert calls == [(1, 20 * 4, "rows", True, ("complete",)), (4, 20 * 4, "rows", True, ("complete",))]
    np.testing.assert_array_equal(found.scores[:, 0, 0], [1.0, 4.0])
    np.testing.assert_array_equal(found.complete, np.eye(2) * np.array([2, 5])[:, None, None])
    np.testing.assert_array_equal(found.ess, np.arange(N) + 10.0)  # the worst of both
    np.testing.assert_array_equal(found.pareto, np.arange(N) - 0.1)
    assert found.logs.shape == (2, N) and np.all(np.isnan(found.logs))
    calls.clear()
    evaluate(fit, rule, fit.params, [2], second=False)
    monkeypatch.setattr(module, "sample", lambda n: np.arange(3))
    evaluate(fit, rule, fit.params, [2])
    assert calls == [(2, 20 + 10 * 2, "rows", True, ()), (2, 20 + 10 * 2, "rows", True, ()),
                     (2, 20 * 4, "rows", False, ("complete",))]  # fmt: skip


def test_a_likelihood_is_the_mean_over_sets_unit_by_unit():
    logs = np.array([[-1.0, -2.0], [-3.0, -2.5]])
    made = Evaluation(np.zeros(1), np.zeros((2, 2, 1)), np.zeros((2, 1, 1)), logs, np.ones(2), np.ones(2))
    assert made.loglik == pytest.approx(np.sum(special.logsumexp(logs, axis=0) - np.log(2)))
    assert made._replace(logs=logs[:1]).loglik == -3.0


def test_matrices_are_made_symmetric():
    matrices = np.random.default_rng(0).normal(size=(2, 3, 3))
    np.testing.assert_allclose(symmetrised(matrices), [(m + m.T) / 2 for m in matrices])
    scores = np.random.default_rng(1).normal(size=(1, 4, 3))
    one = Evaluation(np.zeros(3), scores, matrices[:1], np.zeros((1, 4)), np.ones(4), np.ones(4))
    np.testing.assert_allclose(one.matrix, symmetrised(matrices[0]) + scores[0].T @ scores[0])


# -- coordinates ------------------------------------------------------------------------------------


@pytest.fixture
def coordinates():
    params = {"a": np.array([0.5, 2.0], np.float32), "b": np.array([0.2, 0.3, 0.5])}
    problem = SimpleNamespace(space=as_space({"a": mx.Positive(0.1), "b": mx.Simplex()}, params))
    return params, Coordinates(SimpleNamespace(_model=lambda: problem, params=params))


def as_space(space, params):
    from margaux.problem.space import as_space as made

    return made(space, params)


def test_coordinates_lead_there_and_back_in_double_precision(coordinates):
    params, there = coordinates
    u = there.to(params)
    assert u.dtype == float and u.shape == (4,)
    np.testing.assert_allclose(u[:2], np.log([0.5, 2.0]), rtol=1e-6)
    back = there.back(u)
    assert back["a"].dtype == back["b"].dtype == float
    np.testing.assert_allclose(back["a"], params["a"], rtol=1e-6)
    np.testing.assert_allclose(back["b"], params["b"])
    assert not np.all(np.isfinite(there.to(params | {"b": np.array([0.0, 0.5, 0.5])})))


def test_the_jacobian_is_that_of_differences(coordinates):
    params, there = coordinates
    u = there.to(params)
    flat = lambda u: np.concatenate([there.back(u)["a"], there.back(u)["b"]])  # noqa: E731
    wanted = np.stack([(flat(u + h) - flat(u - h)) / 2e-5 for h in 1e-5 * np.eye(4)], axis=1)
    np.testing.assert_allclose(there.jacobian(u), wanted, atol=1e-9)


def test_points_outside_are_projected_and_edges_are_found(coordinates):
    params, there = coordinates
    np.testing.assert_allclose(there.projected(np.array([-1.0, 3.0, 0.7, 0.7, -0.9])), [0.1, 3.0, 0.5, 0.5, 0.0], atol=1e-12)
    assert not there.edges(params).any()
    on = {"a": np.array([2.0, 0.1]), "b": np.array([0.0, 0.5, 0.5])}
    assert there.edges(on).tolist() == [False, True, True, False, False]


# -- samples of units -------------------------------------------------------------------------------


def test_a_fit_of_some_units_has_their_data_and_chains(fit):
    assert subsample(fit, N) is fit
    some = subsample(fit, 12, key=5)
    ids = np.sort(np.random.default_rng(5).choice(N, 12, replace=False))
    np.testing.assert_array_equal(some.data, np.asarray(fit.data)[ids])
    np.testing.assert_array_equal(some.rows["z"], np.asarray(fit.rows["z"])[:, ids])
    assert some._model().n == 12 and fit._model().n == N and some.params is fit.params and some.polished is None
    np.testing.assert_array_equal(subsample(fit, 12).data, subsample(fit, 12, key=0).data)
    import dataclasses

    assert subsample(dataclasses.replace(fit, rows=None), 12).rows is None
