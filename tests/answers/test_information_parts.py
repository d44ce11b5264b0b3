"""Information of samples, errors of standard errors and what is said of weights, by matrices that are given."""

# Stand-ins take the place of fits, rules and models: pyright sees other types.
# pyright: reportArgumentType=false

from types import SimpleNamespace

import numpy as np
import pytest

import margaux as mx
from margaux.answers import information as module
from margaux.answers.information import Information, _delta, _invert, information, sampled, summary_table, wald_test
from margaux.answers.rules import SAMPLE, Rule
from margaux.answers.scores import Evaluation

MATRIX = np.array([[4.0, 1.0], [1.0, 9.0]])


def made(**given):
    inverse = np.linalg.inv(MATRIX)
    known = {
        "matrix": MATRIX,
        "covariance": inverse,
        "scores": np.ones((3, 2)),
        "newton": np.array([0.1, 0.2]),
        "message": "",
        "matrices": np.stack([MATRIX * 0.9, MATRIX * 1.1]),
        "replicates": inverse * [[[0.8]], [[1.3]]],
    }
    return Information(**(known | given))


def fit(n=3, estimate=(1.0, -2.0), **given):
    params = {"a": np.array(estimate[0]), "b": np.array(estimate[1])}
    known = dict(_model=lambda: SimpleNamespace(n=n), names=["a", "b"], params=params, message="Ended.", certificate="certified.")
    return SimpleNamespace(**(known | given))


def test_the_information_of_a_sample_is_scaled_up_to_all(monkeypatch):
    asked, info = [], made()
    monkeypatch.setattr(module, "subsample", lambda whole, size: asked.append(size) or fit(20))
    monkeypatch.setattr(module, "information", lambda some, method: asked.append((some._model().n, method)) or info)
    whole = sampled(fit(80), "opg")
    np.testing.assert_allclose(whole.matrix, 4 * info.matrix)
    np.testing.assert_allclose(whole.covariance, info.covariance / 4)
    np.testing.assert_allclose(whole.matrices, 4 * info.matrices)
    np.testing.assert_allclose(whole.replicates, info.replicates / 4)
    np.testing.assert_allclose(whole.se, info.se / 2)
    np.testing.assert_allclose(whole.newton, info.newton)  # which is an estimate of that of all as it is
    assert asked == [SAMPLE, (20, "opg")]


def test_standard_errors_have_those_of_the_spread_of_their_replicates():
    info = made()
    np.testing.assert_allclose(info.se, np.sqrt(np.diag(np.linalg.inv(MATRIX))))
    np.testing.assert_allclose(info.se_error, info.se * np.std(np.sqrt([0.8, 1.3]), ddof=1) / np.sqrt(2))
    one = made(replicates=info.replicates[:1], matrices=info.matrices[:1])
    np.testing.assert_array_equal(one.se_error, [0.0, 0.0])
    assert one.lowest[1] == 0.0


def test_the_lowest_eigenvalue_is_that_of_the_scaled_matrix():
    rho = 1 / 6
    assert made().lowest == pytest.approx((1 - rho, np.std([0.9, 1.1], ddof=1) / np.sqrt(2) * (1 - rho)))
    assert made(matrix=np.diag([0.0, -2.0])).lowest[0] == pytest.approx(-1.0)


def evaluated(matrix=MATRIX, ess=(50.0, 90.0, 70.0), n=3, replicates=1):
    scores = np.random.default_rng(0).normal(size=(replicates, n, 2)) * 0.3
    total = scores.sum(axis=0)
    own = np.einsum("rni,rnj->ij", scores, scores)
    squares = own if replicates == 1 else (total.T @ total - own) / (replicates * (replicates - 1))
    complete = np.broadcast_to(matrix - squares, (replicates, 2, 2))
    return Evaluation(np.zeros(2), scores, complete, np.zeros((replicates, n)), np.asarray(ess), np.zeros(n))


@pytest.fixture
def coordinates(monkeypatch):
    """Parameters that are exponentials of their coordinates, which may be on an edge."""
    state = SimpleNamespace(flags=np.zeros(2, bool), u=np.log([1.0, 2.0]), jacobian=np.diag([1.0, 2.0]))
    stub = SimpleNamespace(edges=lambda params: state.flags, to=lambda params: state.u, jacobian=lambda u: state.jacobian)
    monkeypatch.setattr(module, "Coordinates", lambda fit: stub)
    return state


def test_the_covariance_is_that_of_the_delta_method(coordinates):
    found = evaluated(replicates=3)
    info = information(fit(), evaluation=found)
    np.testing.assert_allclose(info.matrix, MATRIX)
    np.testing.assert_allclose(info.covariance, np.diag([1, 2]) @ np.linalg.inv(MATRIX) @ np.diag([1, 2]))
    np.testing.assert_allclose(info.newton, np.diag([1, 2]) @ np.linalg.solve(MATRIX, found.gradient))
    np.testing.assert_allclose(info.scores, found.scores.mean(axis=0))
    for one, each in zip(found.matrices, info.replicates, strict=True):
        np.testing.assert_allclose(each, np.diag([1, 2]) @ np.linalg.inv(one) @ np.diag([1, 2]))
    assert info.message == ""


@pytest.mark.parametrize(("ess", "message"), [
    ((20.0, 90.0, 70.0), ""), ((90.0, 19.9, np.nan), "the importance weights of unit 1 have an effective size of 19.9"),
])  # fmt: skip
def test_weights_of_few_draws_are_said(ess, message, coordinates):
    assert information(fit(), evaluation=evaluated(ess=ess)).message == message


def test_a_singular_matrix_gives_neither_errors_nor_a_step(coordinates):
    info = information(fit(), evaluation=evaluated(np.ones((2, 2)), ess=(5.0, 9.0, 7.0)))
    assert np.all(np.isnan(info.covariance)) and np.all(np.isnan(info.newton))
    assert info.message.startswith("the importance weights of unit 0") and "; the information is singular" in info.message
    assert info.message.endswith("no standard errors are given")


def test_on_an_edge_only_the_others_have_errors(coordinates):
    coordinates.flags = np.array([False, True])
    info = information(fit(), evaluation=evaluated())
    assert info.covariance[0, 0] == pytest.approx(1 / 4) and np.all(np.isnan(info.covariance[1]))
    assert np.all(np.isnan(info.covariance[:, 1])) and np.isfinite(info.newton[0]) and np.isnan(info.newton[1])
    assert info.message == "on the boundary, without standard error: b"
    coordinates.u = np.array([0.0, -np.inf])
    nothing = information(fit(), evaluation=evaluated())
    assert nothing.matrix.shape == (2, 2) and nothing.covariance.shape == (2, 2) and nothing.scores.shape == (3, 2)
    assert nothing.newton.shape == (2,) and nothing.matrices.shape == nothing.replicates.shape == (1, 2, 2)
    assert np.isnan(nothing.newton).all() and np.isnan(nothing.scores).all() and "on the boundary" in nothing.message


def test_a_coordinate_that_a_free_parameter_depends_on_stays():
    flags = np.array([False, True])
    inverse, _ = _invert(MATRIX, np.array([[1.0, 0.5], [0.0, 1.0]]), flags, ["a", "b"])
    np.testing.assert_allclose(inverse, np.linalg.inv(MATRIX))
    inverse, _ = _invert(MATRIX, np.array([[1.0, 0.0], [-1.0, 1.0]]), flags, ["a", "b"])
    np.testing.assert_allclose(inverse, np.diag([0.25, 0.0]))
    found = _delta(np.linalg.inv(MATRIX), np.array([[1.0, 0.5], [0.0, 1.0]]), flags)
    assert np.isnan(found).tolist() == [[False, True], [True, True]]
    assert found[0, 0] == pytest.approx(np.array([1, 0.5]) @ np.linalg.inv(MATRIX) @ np.array([1, 0.5]))


def test_expectations_are_by_the_best_rule_or_by_the_estep_that_is_given(coordinates, monkeypatch):
    calls = []

    def evaluate(fit, rule, params, keys, second):
        calls.append((rule, list(keys), second))
        return evaluated(replicates=len(keys))

    monkeypatch.setattr(module, "evaluate", evaluate)
    monkeypatch.setattr(module, "best_rule", lambda fit, n_draws: Rule(mx.Exact(n_draws), None, 4, 7))
    information(fit(), n_draws=30)
    assert calls[0][0].estep.n_draws == 30 and calls[0][1:] == ([0, 1, 2, 3], True)
    information(fit(), "opg", estep=mx.ImportanceSampling(60), rows="rows", replicates=2)
    rule = calls[1][0]
    assert (rule.rows, rule.replicates, rule.width) == ("rows", 2, 60) and calls[1][1:] == ([0, 1], False)
    information(fit(), "robust", estep=mx.Quadrature(5))
    information(fit(), estep=mx.ImportanceSampling(mx.Growth(64.0, 0.5)))
    assert [call[0].width for call in calls[2:]] == [1000, 1000] and calls[2][1:] == ([0], True)


# -- tables and tests -------------------------------------------------------------------------------


def with_information(message="", said="Ended."):
    return fit(information=lambda method: made(message=message), message=said)


def test_the_message_of_a_table_says_each_thing_once():
    table = summary_table(with_information("Odd."), 0.9)
    assert table.attrs["message"] == "certified; Ended; Odd."
    assert summary_table(with_information("Ended."), 0.9).attrs["message"] == "certified; Ended."
    np.testing.assert_allclose(table["estimate"], [1.0, -2.0])
    np.testing.assert_allclose(table["se_error"], made().se_error)


@pytest.mark.parametrize(("contrast", "r"), [
    ("b", [[0, 1]]), (["b", "a"], [[0, 1], [1, 0]]), (("a",), [[1, 0]]), ([0.5, 2.0], [[0.5, 2.0]]), ([[1, -1]], [[1, -1]]),
])  # fmt: skip
def test_a_contrast_is_a_name_several_or_a_matrix(contrast, r):
    found = wald_test(with_information(), contrast, 0.5)
    gap = np.array(r) @ [1.0, -2.0] - 0.5
    assert found.df == len(r)
    assert found.statistic == pytest.approx(gap @ np.linalg.inv(np.array(r) @ np.linalg.inv(MATRIX) @ np.array(r).T) @ gap)


def test_a_contrast_uses_only_the_parameters_that_it_names():
    missing = made(covariance=np.array([[0.5, np.nan], [np.nan, np.nan]]), message="on the boundary: b")
    there = fit(information=lambda method: missing)
    assert wald_test(there, "a").statistic == pytest.approx(2.0)
    with pytest.raises(ValueError, match="no usable variance: on the boundary: b"):
        wald_test(there, ["a", "b"])
    with pytest.raises(ValueError, match="3 columns, but there are 2 parameters"):
        wald_test(there, np.eye(3))
