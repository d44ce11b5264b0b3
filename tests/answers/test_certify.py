"""The levels of a certificate on either side of every threshold."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import margaux as mx
from margaux.answers import certify as module
from margaux.answers.certificate import Check
from margaux.answers.certify import (
    _chains,
    _ended,
    _gradient,
    _information,
    _likelihoods,
    _of_no_matter,
    _second,
    _shape,
    _unpolished,
    _very_large,
    _weights,
    certify,
    examined,
)
from margaux.answers.likelihood import LogLikelihood
from margaux.answers.posterior import UndefinedDensity
from margaux.answers.rules import Rule
from margaux.engine.outcome import RESULTS
from margaux.esteps import ModeMixture

NAN = float("nan")


class Fit:
    """As much of a fit as its certificate looks at."""

    def __init__(self, **given):
        self.result, self.problem, self.polished, self.converged = RESULTS.successful, "there", None, True
        self.message, self.names, self.estep, self.batch_size = "Ended.", ["a", "b"], mx.Quadrature(5), None
        self.info, self.data = information(), np.zeros((0, 1))
        self.__dict__.update(given)
        self.computed = {}

    def information(self):
        return self.info

    def remembered(self, name, compute):
        if name not in self.computed:
            self.computed[name] = compute()
        return self.computed[name]

    def _model(self):
        return SimpleNamespace(n=getattr(self, "n", 1000))

    def loglik(self):
        return self.likelihood

    def stationarity(self):
        return self.found


def information(**given):
    known = dict(matrix=np.eye(2), lowest=(0.5, 0.01), se=np.array([1.0, 2.0]), se_error=np.zeros(2), message="",
                 newton=np.array([0.1, 0.1]))  # fmt: skip
    return SimpleNamespace(**(known | given))


def polish(**given):
    known = dict(length=0.0, error=0.0, converged=True, drops=np.full((2, 2), 0.5), rule=Rule(mx.Quadrature(5), None, 1, 1))
    return SimpleNamespace(**(known | given))


# -- the end, the gradient and the information ------------------------------------------------------


@pytest.mark.parametrize(("result", "converged", "polished", "level"), [
    (RESULTS.successful, True, None, "pass"), (RESULTS.successful, False, None, "careful"),
    (RESULTS.successful, False, "polished", "pass"), (RESULTS.boundary, True, None, "careful"),
    (RESULTS.interrupted, True, "polished", "careful"), (RESULTS.diverged, True, None, "failed"),
    (RESULTS.max_iterations, False, None, "careful"),
])  # fmt: skip
def test_the_end_of_a_fit_is_a_check(result, converged, polished, level):
    check = _ended(Fit(result=result, converged=converged, polished=polished))
    assert (check.name, check.level, check.sentence) == ("result", level, "Ended.")


@pytest.mark.parametrize(("length", "error", "converged", "level", "says"), [
    (0.0, 0.0, True, "pass", "is zero"),
    (0.19, 0.004, True, "pass", "is zero"),
    (0.19, 0.006, True, "careful", "cannot be told"),
    (0.2, 0.0, True, "careful", "standard errors away"),
    (0.099, 0.0, False, "pass", "is zero"),
    (0.1, 0.0, False, "careful", "cannot be told"),
    (0.15, 0.0, False, "careful", "cannot be told"),
    (0.5, 0.16, True, "careful", "cannot be told"),
    (0.5, 0.14, True, "careful", "0.5 standard errors away, most of it in b"),
    (1.0, 0.0, True, "careful", "1 standard errors away"),
    (1.01, 0.0, True, "failed", "1 standard errors away"),
    (1.4, 0.7, False, "careful", "cannot be told"),
    (NAN, 0.0, True, "failed", "not finite"),
])  # fmt: skip
def test_the_gradient_is_judged_with_two_of_its_errors(length, error, converged, level, says):
    fit = Fit(info=information(newton=np.array([0.3, -0.9])))
    check = _gradient(fit, polish(length=length, error=error, converged=converged))
    assert (check.name, check.level, check.threshold) == ("gradient", level, 0.2) and says in check.sentence
    if np.isfinite(length):
        assert (check.figure, check.error) == (length, error)


def test_the_parameter_that_is_furthest_off_is_named_where_that_is_known():
    away = polish(length=0.8)
    assert "in a:" in _gradient(Fit(info=information(newton=np.array([0.6, -0.9]))), away).sentence
    assert "in b:" in _gradient(Fit(info=information(newton=np.array([np.nan, -0.9]))), away).sentence
    assert "most" not in _gradient(Fit(info=information(newton=np.full(2, np.nan))), away).sentence


@pytest.mark.parametrize(("given", "level", "says"), [
    ({}, "pass", "positive definite"),
    ({"matrix": np.array([[1.0, np.nan], [np.nan, 1.0]]), "message": "no"}, "careful", "Standard errors are missing: no."),
    ({"message": "odd"}, "careful", "Standard errors: odd."),
    ({"se_error": np.array([0.049, 0.098])}, "pass", "positive definite"),
    ({"se_error": np.array([0.0, 0.104])}, "careful", "up to 5%"),
    ({"se_error": np.array([np.nan, 0.0])}, "careful", "some draws alone give none"),
])  # fmt: skip
def test_an_information_that_is_not_to_be_used_is_told(given, level, says):
    check = _information(Fit(info=information(**given)))
    assert (check.name, check.level, check.threshold) == ("information", level, 0.0) and says in check.sentence
    if "matrix" not in given:
        assert (check.figure, check.error) == (0.5, 0.01)


# -- the shape --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fall", "level", "says"), [
    (-0.5, "failed", "higher by 0.5 elsewhere along the second"), (-0.021, "failed", "higher"), (-0.019, "careful", "flat along"),
    (0.019, "careful", "flat along the second"), (0.021, "careful", "far from a parabola along the second"),
    (0.199, "careful", "far from a parabola"), (0.2, "pass", "falls on either side"),
])  # fmt: skip
def test_the_least_fall_of_any_parameter_is_what_counts(fall, level, says, monkeypatch):
    monkeypatch.setattr(module, "_coordinate", lambda fit, j: ("the first", "the second", "the third")[j])
    drops = np.array([[0.5, 0.4], [fall, 0.6], [np.nan, -9.0]])
    (check,) = _shape(Fit(), polish(drops=drops))
    assert (check.name, check.level, check.figure, check.threshold) == ("shape", level, fall, 0.2) and says in check.sentence
    assert _shape(Fit(), polish(drops=drops[2:])) == []


def test_a_coordinate_is_called_by_the_parameter_that_it_moves_most(monkeypatch):
    from margaux.answers import scores

    jacobian = np.array([[0.5, np.nan], [-2.0, np.nan]])
    stub = SimpleNamespace(jacobian=lambda u: jacobian, to=lambda params: None)
    monkeypatch.setattr(scores, "Coordinates", lambda fit: stub)
    assert module._coordinate(Fit(params=None), 0) == "b" and module._coordinate(Fit(params=None), 1) == "a parameter"


# -- weights and likelihoods ------------------------------------------------------------------------


def weighed(ess, pareto, modes=None, n_draws=200):
    rule = Rule(mx.ImportanceSampling(n_draws, ModeMixture()), None, 4, 1, modes)
    return polish(rule=rule, evaluation=SimpleNamespace(ess=np.asarray(ess, float), pareto=np.asarray(pareto, float)))


@pytest.mark.parametrize(("ess", "pareto", "level"), [
    ([150, 20, np.nan], [0.1, 0.1, 0.1], "pass"),
    ([150, 19.9, np.nan], [0.1, 0.1, 0.1], "careful"),
    # Of a hundred units two may be uneven, three may not.
    ([30] * 2 + [150] * 98, [0.8] * 100, "pass"),
    ([30] * 3 + [150] * 97, [0.8] * 100, "careful"),
    ([30] * 3 + [150] * 97, [0.69] * 100, "pass"),
    ([41] * 3 + [150] * 97, [0.8] * 100, "pass"),
    ([39] * 3 + [150] * 97, [0.8] * 100, "careful"),
])  # fmt: skip
def test_weights_are_even_or_few_units_are_not(ess, pareto, level):
    (check,) = _weights(weighed(ess, pareto))
    worst = int(np.nanargmin(ess))
    assert (check.name, check.figure, check.threshold, check.level) == ("weights", ess[worst], 20.0, level)
    assert level == "pass" or f"of unit {worst} have an effective size of {ess[worst]:.1f} of 200 draws" in check.sentence


def test_units_of_several_modes_are_counted():
    even, several = _weights(weighed([100, 100, 100], [0.1] * 3, np.array([1, 2, 3])))
    assert even.level == several.level == "pass" and several.name == "modes" and several.figure == 2.0
    assert len(_weights(weighed([100, 100], [0.1] * 2, np.array([1, 1])))) == 1
    done = weighed([100, 100, 100], [0.1] * 3, np.array([1, 2, 3]))
    done.rule = dataclasses.replace(done.rule, unseen=np.array([0.0, 0.0, 1.0]))
    assert _weights(done)[1].level == "careful" and "There are more in 1 of them" in _weights(done)[1].sentence
    assert _weights(polish()) == []


def likelihood(value, se, message=""):
    return LogLikelihood(np.array([float(value)]), se, "quadrature", message)


@pytest.mark.parametrize(("se", "message", "level"), [
    (0.1, "", "pass"), (0.101, "", "careful"), (NAN, "", "careful"), (0.0, "odd", "careful"),
])  # fmt: skip
def test_a_likelihood_is_as_good_as_its_error(se, message, level, monkeypatch):
    monkeypatch.setattr(module, "_second", lambda fit, rule: None)
    (check,) = _likelihoods(Fit(likelihood=likelihood(-7.25, se, message)), polish())
    assert (check.name, check.figure, check.threshold, check.level) == ("likelihood", -7.25, 0.1, level)
    assert "-7.250 by quadrature" in check.sentence and check.sentence.endswith("; odd." if message else ".")


@pytest.mark.parametrize(("gap", "first", "second", "level"), [
    (0.049, 0.0, 0.0, "pass"), (0.051, 0.0, 0.0, "careful"), (0.19, 0.03, 0.04, "pass"), (0.21, 0.03, 0.04, "careful"),
    (-0.19, 0.03, 0.04, "pass"), (-0.21, 0.03, 0.04, "careful"),
])  # fmt: skip
def test_two_likelihoods_agree_within_three_errors_and_a_little(gap, first, second, level, monkeypatch):
    monkeypatch.setattr(module, "_second", lambda fit, rule: (np.arange(1), likelihood(-7.0 + gap, second)))
    one, two = _likelihoods(Fit(likelihood=likelihood(-7.0, first)), polish())
    assert (one.name, two.name, two.level, two.threshold) == ("likelihood", "likelihoods", level, 0.05)
    assert two.figure == pytest.approx(abs(gap)) and two.error == pytest.approx(np.hypot(first, second))
    assert ("agree" in two.sentence) == (level == "pass") and ("differ by" in two.sentence) == (level != "pass")


def test_an_enumeration_needs_no_second_likelihood_and_chains_give_none():
    fit = Fit(likelihood=likelihood(-7.0, 0.0))
    assert len(_likelihoods(fit, polish(rule=Rule(mx.Exact(), None, 1, 1)))) == 1 and fit.computed == {}
    assert _likelihoods(fit, polish(rule=Rule(mx.Exact(100), None, 4, 1))) == []
    assert _second(fit, Rule(mx.MCMC(mx.MALA()), None, 4, 1)) is None


def test_of_many_units_some_are_compared_with_themselves(monkeypatch):
    value = LogLikelihood(-np.arange(100.0), 0.2, "quadrature", "")
    monkeypatch.setattr(module, "_second", lambda fit, rule: (np.array([3, 7, 20, 30]), likelihood(-60.3, 0.1)))
    two = _likelihoods(Fit(likelihood=value), polish())[1]
    assert two.figure == pytest.approx(0.3) and two.error == pytest.approx(np.hypot(0.04, 0.1)) and "of 4 units" in two.sentence


@pytest.mark.parametrize(("n", "draws"), [(1000, 100), (400, 223), (30, 2000), (50_000, 100)])
def test_the_second_likelihood_shares_no_draws_with_the_first(n, draws, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "proposals", lambda fit, estep, units, key: ("rows", estep.n_draws, key, units))
    monkeypatch.setattr(module, "loglik", lambda fit, **settings: calls.append(settings))
    _second(Fit(n=n), Rule(mx.Quadrature(5), None, 1, 1))
    (call,) = calls
    assert call["estep"].n_draws == draws and call["estep"].quasi and isinstance(call["estep"].proposal, ModeMixture)
    assert call["rows"][:3] == ("rows", draws, 7) and call["replicates"] == 3 and call["first_key"] == 100
    some = call["units"]
    assert len(set(some.tolist())) == min(n, 5000) and 0 <= some.min() and some.max() < n and np.all(np.diff(some) > 0)
    assert call["rows"][3] is (some if n > 5000 else None)
    _second(Fit(n=n, data=np.broadcast_to(0.0, (n, 10_000))), Rule(mx.Quadrature(5), None, 1, 1))
    assert calls.pop()["estep"].n_draws == max(100, min(draws, 4000 // min(n, 5000)))  # of large units fewer
    own = mx.ImportanceSampling(77, ModeMixture())
    _second(Fit(n=n), Rule(own, None, 4, 1))
    assert calls[1]["estep"] is own and calls[1]["rows"][1] == 77


# -- those that are not polished --------------------------------------------------------------------


def test_what_was_not_polished_is_judged_by_its_stationarity():
    found = SimpleNamespace(value=0.3, se=0.1, noise=0.2, stationary=True)
    for stationary, level in ((True, "pass"), (False, "careful")):
        found.stationary = stationary
        (check,) = _unpolished(Fit(found=found), "the objective is penalised")
        assert (check.name, check.level, check.figure, check.error) == ("stationarity", level, 0.3, 0.1)
        assert check.threshold == pytest.approx(0.6)
    (check,) = _unpolished(Fit(), "there are many")
    assert check.name == "gradient" and check.level == "careful" and "not verified: there are many." in check.sentence
    assert _unpolished(Fit(estep=None), "there are many") == [check]
    assert _unpolished(Fit(estep=mx.Noise(4)), "the objective is a variational bound") == []


def test_a_check_that_is_of_no_matter_passes_and_says_so():
    good, bad = Check("a", 1.0, 0.1, 2.0, "pass", "Well."), Check("a", 1.0, 0.1, 2.0, "failed", "Not well.")
    assert _of_no_matter(good) is good
    assert _of_no_matter(bad) == bad._replace(level="pass", sentence="Not well (no matter: the maximum has been found since).")


def test_chains_of_mini_batches_are_looked_at(monkeypatch):
    monkeypatch.setattr(module, "visits", lambda fit: "visits")
    chains = mx.MCMC(mx.MALA())
    assert _chains(Fit(batch_size=10, estep=chains)) == ["visits"]
    assert _chains(Fit(estep=chains)) == _chains(Fit(batch_size=10)) == []
    assert _very_large(Fit(batch_size=10, estep=chains))[0] == "visits"
    size = _very_large(Fit(n=70_000))[-1]
    assert size.name == "size" and size.figure == 70_000.0 and size.level == "careful"


def test_a_fit_that_was_not_polished_is_looked_at_once_if_that_is_affordable(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "polish", lambda fit, most: (calls.append(most), "looked at"))
    monkeypatch.setattr(module, "affordable", lambda fit: fit.n < 50)
    small = Fit(n=10)
    assert examined(small) == examined(small) == "looked at" and calls == [0]
    assert examined(Fit(n=100)) is None and examined(Fit(n=100, polished="done")) == "done" and calls == [0]


# -- the whole --------------------------------------------------------------------------------------


@pytest.fixture
def parts(monkeypatch):
    """Every part of a certificate replaced by a check of its own."""
    state = SimpleNamespace(done=polish(), gradient="pass", trouble=None, error=None)

    def check(name, level="careful"):
        return Check(name, NAN, NAN, NAN, level, f"{name}.")

    def shape(fit, done):
        if state.error:
            raise state.error
        return [check("shape", "pass")]

    for name, part in {
        "unpolishable": lambda fit: state.trouble,
        "examined": lambda fit: state.done,
        "trace_checks": lambda fit, done: [check("trace" if done is None else "trace of a polished one")],
        "_gradient": lambda fit, done: check("gradient", state.gradient),
        "_information": lambda fit: check("information", "pass"),
        "_shape": shape,
        "_weights": lambda done: [check("weights", "pass")],
        "_likelihoods": lambda fit, done: [check("likelihood", "pass")],
        "_unpolished": lambda fit, trouble: [check(trouble)],
        "_very_large": lambda fit: [check("size")],
        "_chains": lambda fit: [check("visits")],
        "kernel_bias": lambda fit: None if fit.estep is None else check("bias"),
    }.items():
        monkeypatch.setattr(module, name, part)
    return state


def levels(fit):
    return {check.name: check.level for check in certify(fit).checks}


USUAL = {"gradient": "pass", "information": "pass", "shape": "pass", "weights": "pass", "likelihood": "pass"}


def test_where_the_maximum_was_found_it_is_of_no_matter_how_the_chains_behaved(parts):
    unsettled = Fit(converged=False)
    found = certify(unsettled)
    assert found.word == "certified" and [check.name for check in found.checks] == ["result", *USUAL, "trace of a polished one"]
    assert "no matter" in found["result"].sentence and "no matter" in found["trace of a polished one"].sentence
    # Of an edge it is said all the same.
    assert levels(Fit(result=RESULTS.boundary)) == {"result": "careful", **USUAL, "trace of a polished one": "pass"}


def test_where_it_was_not_found_the_chains_are_looked_at(parts):
    parts.gradient = "careful"
    wanted = {"result": "pass", **USUAL, "gradient": "careful", "trace of a polished one": "careful", "bias": "careful",
              "visits": "careful"}  # fmt: skip
    assert levels(Fit()) == wanted
    assert levels(Fit(estep=None)) == {name: level for name, level in wanted.items() if name != "bias"}
    # So they are where it was found by chains, which share the bias of the fit's own.
    parts.gradient, parts.done = "pass", polish(rule=Rule(mx.MCMC(mx.MALA()), None, 4, 1))
    assert levels(Fit()) == wanted | {"gradient": "pass"}


def test_fits_that_cannot_be_looked_at_say_why(parts):
    assert levels(Fit(result=RESULTS.diverged)) == {"result": "failed"}
    assert levels(Fit(problem=None)) == {"result": "pass", "model": "careful", "trace": "careful"}
    parts.trouble = "penalised"
    assert levels(Fit()) == {"result": "pass", "trace": "careful", "penalised": "careful"}
    parts.trouble, parts.done = None, None
    assert levels(Fit()) == {"result": "pass", "trace": "careful", "size": "careful"}
    parts.done, parts.error = polish(), UndefinedDensity(4, {"a": np.zeros(1)})
    assert levels(Fit()) == {"result": "pass", "density": "failed"}
