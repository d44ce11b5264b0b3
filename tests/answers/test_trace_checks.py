"""What is said of traces, runs, schedules and weights, at values on either side of every threshold."""

# Stand-ins take the place of fits, rules and models: pyright sees other types.
# pyright: reportArgumentType=false

from types import SimpleNamespace

import numpy as np
import pytest

import margaux as mx
from margaux.answers import diagnostics as module
from margaux.answers.certificate import Certificate, Check
from margaux.answers.diagnostics import diagnostics, schedules, trace_checks


def fit(params=None, names=("a", "b"), averaged_from=0, se=(1.0, 1.0), estep=None, n_iter=100, **figures):
    trace = figures | ({} if params is None else {"params": params})
    information = SimpleNamespace(se=np.array(se))
    return SimpleNamespace(trace=trace, names=list(names), averaged_from=averaged_from, n_iter=n_iter,
                           estep=estep or mx.Quadrature(3), algorithm=mx.soul(), dtype=np.dtype(float),
                           information=lambda: information)  # fmt: skip


def checks(fit, done=None):
    return {check.name: check for check in trace_checks(fit, done)}


@pytest.fixture
def figures(monkeypatch):
    """The drift, its z and the R-hat of each parameter, whatever the trace."""
    state = SimpleNamespace(moved=np.array([[0.5, 0.5]]), z=np.array([[1.0, 1.0]]), r=np.array([1.0, 1.0]), seen=[])
    monkeypatch.setattr(module, "drift", lambda tail: (state.seen.append(tail.copy()), (state.moved, state.z))[1])
    monkeypatch.setattr(module, "rhat", lambda tail: state.r)
    return state


@pytest.mark.parametrize(("length", "looked"), [(29, False), (30, True)])
def test_a_trace_is_looked_at_after_the_burn_in_if_that_is_long_enough(length, looked, figures):
    params = np.arange(2.0 * (length + 5)).reshape(length + 5, 1, 2)
    found = checks(fit(params, averaged_from=5))
    assert ("stationarity" in found) == looked and "rhat" not in found
    if looked:
        np.testing.assert_array_equal(figures.seen[0], params[5:])
    assert checks(fit()) == {}


@pytest.mark.parametrize(("z", "moved", "known", "level", "says"), [
    ([1.0, 4.9], [9.0, 9.0], False, "pass", "no trend"),
    ([1.0, 5.0], [9.0, 9.0], False, "careful", "The trace of b still drifts: run longer."),
    ([6.0, 5.5], [9.0, 9.0], False, "careful", "The trace of a still drifts"),
    # A tenth of a standard error (of one and two) is of no matter, where they are known.
    ([6.0, 5.5], [0.1, 9.0], True, "careful", "The trace of b"),
    ([6.0, 5.5], [0.1, 0.2], True, "pass", "drift by less than a tenth of a standard error"),
    ([6.0, 5.5], [0.11, 0.2], True, "careful", "The trace of a"),
    ([6.0, 5.5], [0.1, 0.2], False, "careful", "The trace of a"),
])  # fmt: skip
def test_a_drift_counts_if_it_is_sure_and_not_small(z, moved, known, level, says, figures):
    figures.z, figures.moved = np.array([z]), np.array([moved])
    check = checks(fit(np.zeros((40, 1, 2)), se=(1.0, 2.0)), "done" if known else None)["stationarity"]
    assert (check.figure, check.threshold, check.level) == (max(z), 5.0, level) and says in check.sentence


def test_of_several_runs_the_worst_counts_and_parameters_without_names_have_numbers(figures):
    figures.z, figures.moved = np.array([[1.0, 7.0], [6.0, 1.0]]), np.full((2, 2), 9.0)
    check = checks(fit(np.zeros((40, 2, 2)), names=["a"]))["stationarity"]
    assert check.figure == 7.0 and "The trace of parameter 1 still drifts" in check.sentence
    # Errors of other parameters than those that are traced say nothing.
    figures.moved = np.zeros((2, 2))
    assert checks(fit(np.zeros((40, 2, 2)), se=(1.0,)), "done")["stationarity"].level == "careful"


@pytest.mark.parametrize(("r", "known", "level", "says"), [
    ([1.0, 1.09], False, "pass", "The runs agree."),
    ([1.0, 1.1], False, "careful", "The runs disagree on b"),
    ([1.3, 1.2], True, "careful", "The runs disagree on b"),
    ([1.3, 1.0], True, "pass", "agree to a tenth of a standard error"),
])  # fmt: skip
def test_runs_are_compared(r, known, level, says, figures):
    figures.r = np.array(r)
    params = np.zeros((40, 3, 2))
    params[:, 2] = [0.125, 0.3]  # apart by a tenth of the one standard error, and by more of the other
    check = checks(fit(params, se=(1.25, 2.0)), "done" if known else None)["rhat"]
    assert (check.figure, check.threshold, check.level) == (max(r), 1.1, level) and says in check.sentence


@pytest.mark.parametrize(("rate", "level"), [(0.051, "pass"), (0.05, "careful")])
def test_acceptance_is_that_of_the_second_half(rate, level):
    acceptance = np.where(np.arange(100) < 50, 0.9, rate)[:, None]
    check = checks(fit(acceptance=acceptance))["acceptance"]
    assert check.figure == pytest.approx(rate) and (check.threshold, check.level) == (0.05, level)
    assert ("lower the kernel" in check.sentence) == (level == "careful")
    assert checks(fit(acceptance=np.array([[0.2], [0.4]]), n_iter=1))["acceptance"].figure == 0.4
    assert np.isnan(check.error)


@pytest.mark.parametrize(("size", "level"), [(5.1, "pass"), (5.0, "careful")])
def test_effective_sizes_are_looked_at_of_importance_sampling(size, level):
    ess = np.where(np.arange(100) < 50, 90.0, size)[:, None]
    check = checks(fit(ess=ess, estep=mx.ImportanceSampling(20)))["ess"]
    assert check.figure == pytest.approx(size) and (check.threshold, check.level) == (5.0, level)
    assert ("uneven" in check.sentence) == (level == "careful")
    assert checks(fit(ess=np.array([[7.0], [9.0]]), estep=mx.ImportanceSampling(20), n_iter=1))["ess"].figure == 9.0
    assert checks(fit(ess=ess)) == {}


@pytest.mark.parametrize(("said", "level"), [
    ("The conditions hold.", "pass"), ("so its sum is finite: it may stop short", "careful"), ("no theorem covers it", "careful"),
])  # fmt: skip
def test_schedules_that_no_theorem_covers_are_told(said, level, monkeypatch):
    monkeypatch.setattr(module, "schedules", lambda fit: said)
    check = checks(fit())["schedules"]
    assert (check.level, check.sentence) == (level, said) and np.isnan([check.figure, check.error, check.threshold]).all()


def test_theory_says_something_of_gradient_steps_along_chains():
    chains, step = mx.MCMC(mx.ULA(0.1), n_steps=2), mx.Polynomial(1.0, 0.8)
    one = fit(estep=chains)
    one.algorithm = mx.soul(step)
    assert "Langevin step is constant" in schedules(one)
    one.estep = mx.MCMC(mx.MALA(0.1), n_steps=2)
    assert "Robbins-Monro conditions hold" in schedules(one)
    for other in (mx.saem(), mx.mcem()):
        one.algorithm = other
        assert schedules(one) == ""
    assert schedules(fit()) == ""


def test_the_frame_of_a_certificate_has_a_row_a_check():
    good, bad = Check("a", 1.0, 0.1, 2.0, "pass", "Well."), Check("b", 3.0, 0.2, 2.5, "careful", "Not well.")
    frame = diagnostics(SimpleNamespace(certificate=Certificate((good, bad))))
    assert (
        frame.index.name == "check"
        and frame["ok"].tolist() == [True, False]
        and frame["verdict"].tolist() == ["Well.", "Not well."]
    )
    assert frame[["figure", "error", "threshold"]].to_numpy().tolist() == [[1.0, 0.1, 2.0], [3.0, 0.2, 2.5]]
