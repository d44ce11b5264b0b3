"""What a polish decides: whether it is made, where from, which parameters move, and what is said of its end."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import margaux as mx
from margaux.answers import polish as module
from margaux.answers.polish import _best_run, _polished, affordable, polished, unpolishable
from margaux.answers.posterior import UndefinedDensity, where_undefined
from margaux.answers.rules import Rule
from margaux.answers.scores import Evaluation
from margaux.answers.search import Search
from margaux.engine.outcome import RESULTS


@dataclasses.dataclass(frozen=True)
class Stub:
    """A fit as far as the polish looks at it."""

    params: dict
    result: RESULTS = RESULTS.successful
    trace: dict = dataclasses.field(default_factory=dict)
    run_params: dict = dataclasses.field(default_factory=dict)
    averaged_from: int = 0
    estep: object = None
    penalty: object = dataclasses.field(default_factory=mx.NoPenalty)
    n: int = 10
    names: tuple = ("a",)
    note: str = ""
    polished: object = None
    model: object = None

    def _model(self):
        return SimpleNamespace(n=self.n, penalty=self.penalty, model=self.model)

    def at(self, params):
        return dataclasses.replace(self, params=params)


FIT = Stub({"a": 0.0})


class Own(mx.Exact):
    """An E-step of the library counts as such."""


@pytest.mark.parametrize(("changes", "why"), [
    ({}, None),
    ({"estep": mx.Noise(4)}, "variational bound"),
    ({"estep": SimpleNamespace(averages_objective=False)}, "one of your own"),
    ({"estep": mx.MCMC(mx.MALA())}, None),
    ({"estep": mx.Quadrature(3)}, None),
    ({"estep": mx.ImportanceSampling(4)}, None),
    ({"estep": Own()}, None),
    ({"penalty": mx.L1(0.1)}, "penalised"),
    ({"names": tuple("a" * 100)}, None),
    ({"names": tuple("a" * 101)}, "more than 100 parameters"),
])  # fmt: skip
def test_what_cannot_be_polished(changes, why):
    found = unpolishable(dataclasses.replace(FIT, **changes))
    assert found is None if why is None else why in found


@pytest.mark.parametrize(("n", "size", "yes"), [
    (20_000, 9, True), (20_001, 9, False), (20_001, 1, True), (50_000_000 // 31, 1, True), (50_000_000 // 31 + 1, 1, False),
    (50_000_000 // 21**2, 2, True), (50_000_000 // 21**2 + 1, 2, False), (20_001, 3, True), (30_000, 3, False),
])  # fmt: skip
def test_a_polish_is_affordable_for_few_units_or_few_points(n, size, yes, monkeypatch):
    monkeypatch.setattr(module, "latent_size", lambda fit: size)
    assert affordable(dataclasses.replace(FIT, n=n)) == yes


# -- polished ---------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch):
    """What `polished` finds in place of a polish; the edges are at zero."""
    state = SimpleNamespace(affordable=True, estep=mx.Quadrature(3), to={"a": 1.0}, polishes=0, error=None)

    def polish(fit, rule):
        state.polishes += 1
        if state.error is not None:
            raise state.error
        return state.to, f"polished by {type(rule.estep).__name__}"

    monkeypatch.setattr(module, "affordable", lambda fit: state.affordable)
    monkeypatch.setattr(module, "_best_run", lambda fit: dataclasses.replace(fit, note="best"))
    monkeypatch.setattr(module, "best_rule", lambda fit: Rule(state.estep, None, 1, 1))
    monkeypatch.setattr(module, "polish", polish)
    monkeypatch.setattr(module, "Coordinates", lambda fit: SimpleNamespace(edges=lambda params: np.array([params["a"] == 0.0])))
    return state


@pytest.mark.parametrize(("changes", "wanted", "count"), [
    ({}, None, 1), ({}, True, 1), ({}, False, 0),
    ({"result": RESULTS.max_iterations}, None, 1), ({"result": RESULTS.interrupted}, True, 0),
    ({"result": RESULTS.stuck}, True, 0), ({"penalty": mx.L1(0.1)}, True, 0),
])  # fmt: skip
def test_a_polish_is_made_where_it_is_wanted_and_can_be(changes, wanted, count, made):
    fit = polished(dataclasses.replace(FIT, **changes), wanted)
    assert made.polishes == count
    assert (fit.polished, fit.note) == (("polished by Quadrature", "best") if count else (None, ""))
    assert fit.params == ({"a": 1.0} if count else {"a": 0.0})


def test_a_polish_that_takes_long_or_is_by_chains_is_made_only_if_it_is_asked_for(made):
    made.affordable = False
    assert polished(FIT) is FIT and made.polishes == 0
    assert polished(FIT, True).polished and made.polishes == 1
    made.affordable, made.estep = True, mx.MCMC(mx.MALA())
    best = polished(FIT)
    assert best.note == "best" and best.polished is None and made.polishes == 1
    assert polished(FIT, True).polished == "polished by MCMC"


@pytest.mark.parametrize(("result", "start", "end", "wanted"), [
    (RESULTS.successful, 1.0, 2.0, RESULTS.successful),
    (RESULTS.max_iterations, 1.0, 2.0, RESULTS.max_iterations),
    (RESULTS.successful, 1.0, 0.0, RESULTS.boundary),
    (RESULTS.boundary, 0.0, 2.0, RESULTS.successful),  # the edge was left
    (RESULTS.boundary, 0.0, 0.0, RESULTS.boundary),
    (RESULTS.boundary, 1.0, 2.0, RESULTS.boundary),  # of the mean of the runs, not of the estimate
])  # fmt: skip
def test_the_result_says_whether_the_polished_estimate_is_on_an_edge(result, start, end, wanted, made):
    made.to = {"a": end}
    assert polished(dataclasses.replace(FIT, params={"a": start}, result=result)).result is wanted


def test_a_density_that_is_undefined_ends_it(made, monkeypatch):
    made.error = UndefinedDensity(3, {"a": np.array(0.5)})
    fit = polished(FIT)
    assert fit.result is RESULTS.undefined and "unit 3" in fit.note and fit.polished is None
    monkeypatch.setattr(module, "where_undefined", lambda fit: "there")
    assert polished(dataclasses.replace(FIT, result=RESULTS.undefined)).note == "there" and made.polishes == 1


def test_where_a_density_is_undefined_is_looked_for_at_the_last_good_iterate(monkeypatch):
    params = {"a": np.zeros(2), "b": np.zeros((1, 3))}
    logs = np.zeros((6, 2))
    logs[4, 1] = np.nan
    fit = Stub(params, trace={"log_marginal": logs, "params": np.arange(60.0).reshape(6, 2, 5)})
    seen = []

    def each_unit(fit, f, estep, params):
        seen.append(params)
        if len(seen) == bad:
            raise UndefinedDensity(7, params)

    monkeypatch.setattr("margaux.answers.posterior.each_unit", each_unit)
    bad = 1
    assert "unit 7" in where_undefined(fit) and len(seen) == 1
    np.testing.assert_array_equal(seen[0]["a"], [30.0, 31.0])  # of the iteration before
    np.testing.assert_array_equal(seen[0]["b"], [[32.0, 33.0, 34.0]])
    bad = 3
    assert "unit 7" in where_undefined(fit) and seen[2] is params  # at the estimate, where it was not met there
    seen.clear()
    bad, logs[0, 0] = 9, np.nan
    assert where_undefined(fit) == "" and len(seen) == 1 and seen[0] is params


# -- runs that disagree -----------------------------------------------------------------------------


def runs(values, noise=0.0, length=200, n=3):
    """A fit of several runs with estimates at the given values, whose traces move about by some noise."""
    trace = np.random.default_rng(0).normal(size=(length, len(values), 1)) * noise + np.reshape(values, (1, -1, 1))
    return Stub({"a": np.mean(values)}, run_params={"a": np.array(values)}, trace={"params": trace}, averaged_from=50)


def likelihoods(monkeypatch, by):
    """log p by the parameter's value; a call's settings are kept."""
    calls = []

    def loglik(fit, params, tol, n_draws):
        calls.append((float(params["a"]), tol, n_draws))
        value = by(float(params["a"]))
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr(module, "loglik", loglik)
    return calls


def test_runs_that_agree_are_averaged(monkeypatch):
    calls = likelihoods(monkeypatch, lambda a: -a)
    for fit in (
        runs([1.0]),
        runs([1.0, 1.5], noise=0.1),
        runs([1.0, 1.0 + 1e-6]),
        dataclasses.replace(runs([1.0, 9.0]), trace={}),
    ):
        assert _best_run(fit) is fit
    assert calls == []
    # Six standard deviations of the trace apart, but not seven.
    assert _best_run(runs([1.0, 1.68], noise=0.1)).params["a"] == 1.0 and len(calls) == 3
    # Of a short trace the spread says nothing, nor does what is before the average.
    assert _best_run(runs([1.0, 1.5], noise=0.1, length=30)).params["a"] == 1.0
    early = runs([1.0, 1.5])
    early.trace["params"][:50] += np.random.default_rng(1).normal(size=(50, 2, 1))
    assert _best_run(early).params["a"] == 1.0


def test_the_best_of_runs_that_disagree_is_by_likelihood(monkeypatch):
    calls = likelihoods(monkeypatch, lambda a: -abs(a - 3.1))
    fit = runs([1.0, 3.0, 8.0])
    assert _best_run(fit).params["a"] == 3.0 and [a for a, *_ in calls] == [4.0, 1.0, 3.0, 8.0]
    assert calls[0][1] == np.inf and calls[0][2] == 2000
    likelihoods(monkeypatch, lambda a: -abs(a - 4.0))
    assert _best_run(fit) is fit  # their mean
    likelihoods(monkeypatch, lambda a: -abs(a - 8.0))
    assert _best_run(fit).params["a"] == 8.0
    likelihoods(monkeypatch, lambda a: TypeError() if a == 8.0 else UndefinedDensity(0, {"a": np.zeros(1)}) if a == 1.0 else -a)
    assert _best_run(fit).params["a"] == 3.0
    calls = likelihoods(monkeypatch, lambda a: a)
    assert _best_run(runs(np.arange(12.0))).params["a"] == 7.0 and len(calls) == 9  # eight of them are compared


# -- which coordinates are free ---------------------------------------------------------------------


def free(first, edges, step, jacobian=None, low=0.0):
    """Of a search whose space is bounded below and whose Newton step is given."""
    search = object.__new__(Search)
    k = len(first)
    search.first, search.params = np.asarray(first, float), {"a": np.maximum(np.asarray(first, float), low)}
    search.coordinates = SimpleNamespace(
        edges=lambda params: np.asarray(edges),
        jacobian=lambda u: np.eye(k) if jacobian is None else np.asarray(jacobian, float),
        projected=lambda flat: np.maximum(flat, low),
    )
    scores = np.asarray(step, float)[None, None]
    complete = np.eye(k)[None] - scores[0].T @ scores[0]
    search.at = Evaluation(search.first, scores, complete, np.zeros((1, 1)), np.ones(1), np.ones(1))
    return search._free().tolist()


def test_a_parameter_stays_on_its_edge_if_the_likelihood_presses_it_there():
    assert free([1.0, 2.0], [False, False], [-0.1, -0.1]) == [True, True]
    assert free([0.0, 2.0], [True, False], [-0.1, -0.1]) == [False, True]
    assert free([0.0, 2.0], [True, False], [0.1, -0.1]) == [True, True]
    assert free([0.0, 0.0], [True, True], [-0.1, -0.1]) == [False, False]
    assert free([0.0, -np.inf], [True, True], [0.1, 0.1]) == [True, False]
    # A coordinate that moves a free parameter as well is free.
    assert free([0.0, 2.0], [True, False], [-0.1, -0.1], [[1.0, 0.0], [-0.5, 1.0]]) == [True, True]


# -- the whole --------------------------------------------------------------------------------------


class Steps(Search):
    """A search on a parabola of one parameter that tells what is asked of it."""

    def __init__(self, fit, rule):
        self.fit, self.rule, self.n, self.told = fit, rule, 100, fit.told
        self.params, self.first, self.free = np.array([0.5]), np.array([0.5]), np.array([True])
        self.steps, self.curvature, self.find = [], fit.curvature, list(fit.find)
        self.held_to_others = None
        self.go(self.params)
        self.told.clear()

    def go(self, params):
        self.told.append("go")
        self.params = np.asarray(params)
        apart = self.fit.spread * np.array([-1.0, 1.0]) if self.fit.spread else np.zeros(1)
        score = np.reshape(-4.0 * self.params[0] + apart, (-1, 1, 1))
        complete = np.full(score.shape, self.curvature - score[0, 0, 0] * score[-1, 0, 0])
        logs = np.full(score.shape[:2], -2.0 * self.params[0] ** 2)
        self.at = Evaluation(self.params, score, complete, logs, np.ones(1), np.ones(1))

    def climb(self, most):
        self.told.append(f"climb {most}")

    def look_closer(self, most):
        self.told.append(f"closer {most}")

    def all_draws(self, moving):
        self.told.append(f"all {moving}")

    def around(self):
        self.told.append("around")
        return np.array([[0.5, 0.4]]), self.find.pop(0) if self.find else None


def whole(monkeypatch, most, curvature=4.0, find=(), spread=0.0):
    monkeypatch.setattr(module, "Search", Steps)
    fit = SimpleNamespace(curvature=curvature, find=find, told=[], spread=spread)
    params, done = _polished(fit, Rule(mx.Exact(), None, 1, 1), most)
    return params, done, fit.told


def test_higher_ground_is_gone_to(monkeypatch):
    params, done, told = whole(monkeypatch, 7, find=[np.array([0.0])])
    first = ["climb 7", "closer 7", "all True", "around"]
    assert told == [*first, "go", *first] and params[0] == 0.0
    assert done.converged and done.length == 0.0 and done.moved == pytest.approx(1.0) and done.error == 0.0
    assert done.steps == ((0.0, 0.0),) and done.seconds > 0
    np.testing.assert_array_equal(done.drops, [[0.5, 0.4]])
    assert "go" in whole(monkeypatch, 1, find=[np.array([0.0])])[2]
    # From there to the next, but not for ever.
    assert whole(monkeypatch, 7, find=[np.array([0.2]), np.array([0.0])])[2] == [*first, "go", *first, "go", *first]
    assert whole(monkeypatch, 7, find=[np.array([0.2])] * 9)[2].count("around") == 4
    params, done, told = whole(monkeypatch, 0, find=[np.array([0.0])])
    assert told == ["climb 0", "closer 0", "all False", "around"] and params[0] == 0.5


@pytest.mark.parametrize(("at", "curvature", "converged", "length", "moved"), [
    (0.0149, 4.0, True, 0.0298, 0.9702), (0.0151, 4.0, False, 0.0302, 0.9698), (0.0, -4.0, False, 0.0, np.nan),
    (0.0, 0.0, False, 0.0, np.nan), (0.0, np.nan, False, np.nan, np.nan),
])  # fmt: skip
def test_a_polish_has_converged_by_the_length_of_the_last_step_and_a_positive_information(
    at, curvature, converged, length, moved, monkeypatch
):
    _, done, _ = whole(monkeypatch, 5, curvature, [np.array([at])])
    assert done.converged == converged and done.length == pytest.approx(length, nan_ok=True)
    assert done.moved == pytest.approx(moved, nan_ok=True)


@pytest.mark.parametrize(("at", "converged"), [(0.0229, True), (0.0231, False)])
def test_a_last_step_may_be_longer_by_two_of_its_errors(at, converged, monkeypatch):
    """0.046 standard errors: what is close, and twice 0.008."""
    _, done, _ = whole(monkeypatch, 5, 4.0, [np.array([at])], spread=0.016)
    assert done.error == pytest.approx(0.008) and done.length == pytest.approx(2 * at) and done.converged == converged
