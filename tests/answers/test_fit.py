"""What a Fit answers itself: how it ended, what it remembers, what it asks others for, and what it saves."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import margaux as mx
from margaux.algorithms.updates import Problem
from margaux.answers import certify, likelihood, polish
from margaux.answers import information as information_module
from margaux.answers.certificate import Certificate, Check
from margaux.answers.fit import POLISHED, UNSETTLED, Fit
from margaux.answers.likelihood import LogLikelihood
from margaux.engine import storage
from margaux.engine.outcome import RESULTS, Outcome
from margaux.problem.space import as_space

PARAMS = {"a": np.array([1.0, 2.0, 7.0]), "b": np.array([0.2, 0.8])}


def made(**given):
    space = as_space({"b": mx.Simplex()}, PARAMS)
    known = dict(params=PARAMS, last_params=PARAMS, run_params={k: v[None] for k, v in PARAMS.items()},
                 trace={"params": np.arange(10.0).reshape(2, 1, 5)}, result=RESULTS.successful, n_iter=2, timings={"run": 1.5},
                 description="a model", dtype=np.dtype(float), seed=9, averaged_from=1,
                 problem=Problem(None, space, mx.L1(0.5), 50))  # fmt: skip
    return Fit(**(known | given))


def test_fits_are_compared_by_identity():
    one, two = made(), made()
    assert one == one and one != two and len({one, two, one}) == 2


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("settled", [True, False])
def test_a_fit_has_converged_if_nothing_cut_it_short_and_it_settled(result, settled):
    regular = result in (RESULTS.successful, RESULTS.stopped, RESULTS.boundary)
    fit = made(result=result, settled=settled)
    assert fit.converged == (regular and settled)
    assert fit.message == (f"{result.value} {UNSETTLED}" if regular and not settled else result.value)
    assert made(result=result, settled=settled, note="Note.").message == f"{fit.message} Note."
    polished = dataclasses.replace(fit, polished=SimpleNamespace(converged=True))
    assert (POLISHED in polished.message) == (regular and not settled) and UNSETTLED not in polished.message
    assert dataclasses.replace(fit, polished=SimpleNamespace(converged=False)).message == fit.message


def test_an_outcome_becomes_a_fit_with_nothing_polished():
    outcome = Outcome(**{field.name: getattr(made(), field.name) for field in dataclasses.fields(Outcome)})
    fit = Fit.of(outcome)
    assert all(getattr(fit, field.name) is getattr(outcome, field.name) for field in dataclasses.fields(Outcome))
    assert fit.polished is None and fit.note == "" and fit._computed == {}


def test_what_was_computed_belongs_to_its_parameters():
    fit = made(polished="done")
    calls = []
    assert fit.remembered("x/1", lambda: calls.append(1) or "first") == fit.remembered("x/1", lambda: "other") == "first"
    fit.remembered("x/2", lambda: "second")
    assert calls == [1] and fit.known("x/") == "second" and fit.known("x/1") == "first" and fit.known("y") is None
    there = fit.at({"a": np.zeros(3), "b": PARAMS["b"]})
    assert there.known("x/") is None and there.polished is None and there.trace is fit.trace and not there.params["a"].any()
    assert "_computed" not in repr(fit) and repr(fit) == f"Fit(a model; 2 iterations; {fit.message})"


def test_a_fit_without_its_model_says_so():
    with pytest.raises(ValueError, match="pass model= and data= to margaux.load"):
        made(problem=None).loglik("exact")


def test_parameters_are_counted_in_their_unconstrained_coordinates(monkeypatch):
    fit = made()
    assert fit.names == ["a[0]", "a[1]", "a[2]", "b[0]", "b[1]"] and fit.n_params == 4
    monkeypatch.setattr(Fit, "loglik", lambda self: -100.0)
    assert fit.aic == 200.0 + 2 * 4 and fit.bic == pytest.approx(200.0 + np.log(50) * 4)


# -- what others are asked for ----------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """Whether the fit can be polished and what was found there; every call is kept."""
    state = SimpleNamespace(trouble=None, done=SimpleNamespace(evaluation="evaluation", rule="rule", likelihood=None), calls=[])

    def kept(name):
        return lambda fit, *args, **settings: state.calls.append((name, *args, settings)) or f"{name} {len(state.calls)}"

    monkeypatch.setattr(polish, "unpolishable", lambda fit: state.trouble)
    monkeypatch.setattr(certify, "examined", lambda fit: state.done)
    monkeypatch.setattr(information_module, "information", kept("information"))
    monkeypatch.setattr(information_module, "sampled", kept("sampled"))
    monkeypatch.setattr(likelihood, "loglik", kept("loglik"))
    return state


def test_the_information_of_the_polish_is_taken_over_and_remembered(asked):
    fit = made()
    assert fit.information() == fit.information() == fit.information("louis")
    assert asked.calls == [("information", {"method": "louis", "evaluation": "evaluation"})]
    assert fit.information("opg") != fit.information() and len(asked.calls) == 2
    asked.done = None
    made().information("opg")
    assert asked.calls[2] == ("sampled", "opg", {})


@pytest.mark.parametrize("given", [{"estep": "estep"}, {"n_draws": 7}, {}])
def test_information_by_other_means_is_not_remembered(given, asked):
    asked.trouble = None if given else "penalised"
    fit = made()
    assert fit.information("opg", **given) != fit.information("opg", **given)
    assert asked.calls[0] == ("information", {"method": "opg", "n_draws": None, "estep": None} | given) and fit._computed == {}


def test_the_likelihood_is_by_the_rule_of_the_polish_and_remembered(asked):
    fit = made()
    assert fit.loglik() == fit.loglik() == "loglik 1"
    assert asked.calls == [("loglik", {"method": "auto", "n_draws": None, "rule": "rule"})]
    assert fit.loglik("importance", 50) == fit.loglik("importance", 50) == "loglik 2" != fit.loglik("importance", 60)
    with pytest.raises(TypeError, match="pass an E-step as estep=, got ImportanceSampling"):
        fit.loglik(mx.ImportanceSampling(4))  # pyright: ignore[reportArgumentType]
    assert fit.loglik(params=PARAMS) != fit.loglik(params=PARAMS)
    assert asked.calls[-1] == ("loglik", {"method": "auto", "n_draws": None, "params": PARAMS})
    assert fit.loglik(tol=0.5) != fit.loglik(tol=0.5) and asked.calls[-1][1]["tol"] == 0.5
    for trouble, done in (("penalised", asked.done), (None, None)):
        asked.trouble, asked.done = trouble, done
        made().loglik()
        assert asked.calls[-1][1]["rule"] is None
    asked.trouble, asked.done = None, SimpleNamespace(rule="rule", likelihood="checked")
    assert made().loglik() == "checked" != made().loglik("importance")


# -- files and cards --------------------------------------------------------------------------------


def test_a_saved_fit_holds_what_is_needed_to_read_it(tmp_path):
    fit = made(settled=False, result=RESULTS.stopped)
    fit.save(tmp_path / "fit.npz")
    header, arrays = storage.read(tmp_path / "fit.npz")
    for name in ("n_iter", "timings", "description", "seed", "averaged_from", "settled"):
        assert header[name] == getattr(fit, name)
    assert (header["kind"], header["result"], header["dtype"]) == ("fit", "stopped", "float64")
    assert header["penalty"]["kind"] == "L1" and header["space"]["made"] is not None
    np.testing.assert_array_equal(arrays["trace/params"], fit.trace["params"])
    again = mx.load(tmp_path / "fit.npz")
    for mine, theirs in ((fit.params, again.params), (fit.last_params, again.last_params), (fit.run_params, again.run_params)):
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])
    assert again.result is RESULTS.stopped and not again.settled and again.problem is None and again.seed == 9
    again.save(tmp_path / "again.npz")
    assert "penalty" not in storage.read(tmp_path / "again.npz")[0]


def test_a_card_shows_what_is_known_and_computes_nothing(monkeypatch):
    fit = made()
    card = fit._card()
    assert card.count == 5 and card.figures == {"iterations": 2, "units": 50} and card.trusted and card.message == fit.message
    assert made(problem=None)._card().figures == {"iterations": 2} and not made(settled=False)._card().trusted
    fit.remembered("loglik/auto/None", lambda: LogLikelihood(np.array([-3.0]), 0.01))
    assert fit._card().figures["log-likelihood"] == "-3.0000 (se 0.01)"
    monkeypatch.setattr(Fit, "summary", lambda self: "summary")
    fit.remembered("certificate", lambda: Certificate((Check("a", 0.0, 0.0, 0.0, "careful", "Look."),)))
    card = fit._card()
    assert card.table == "summary" and not card.trusted and card.message == "careful: Look."
    certain = made()
    certain.remembered("certificate", lambda: Certificate(()))
    assert certain._card().trusted
