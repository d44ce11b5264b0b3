"""What is said of the visits of mini-batches, by figures that are given; autocorrelation times against NumPy."""

# Stand-ins take the place of fits, rules and models: pyright sees other types.
# pyright: reportArgumentType=false

from types import SimpleNamespace

import numpy as np
import pytest

import margaux as mx
from margaux.answers import visits as module
from margaux.answers.rules import Rule
from margaux.answers.scores import Evaluation
from margaux.answers.visits import _made, _newton, _pooled, _remembers, autocorrelation_time, visits


def fit(n=100, names=("a", "b"), **given):
    return SimpleNamespace(_model=lambda: SimpleNamespace(n=n), names=list(names), params=None, **given)


@pytest.fixture
def figures(monkeypatch):
    """The step of the subsample, its error, and an autocorrelation time."""
    state = SimpleNamespace(step=0.5, error=0.1, time=2.0, remembers=True, asked=[])
    monkeypatch.setattr(module, "subsample", lambda fit, size, key: state.asked.append((size, key)) or fit)
    monkeypatch.setattr(module, "_newton", lambda some, fit: (state.step, state.error, "a"))
    monkeypatch.setattr(module, "_remembers", lambda fit: state.remembers)
    monkeypatch.setattr(module, "autocorrelation_time", lambda some, key: state.time)
    return state


@pytest.mark.parametrize(("step", "error", "made", "level", "says"), [
    (0.5, 0.1, 100, "pass", "often enough"),
    (0.54, 0.1, 100, "pass", "often enough"),
    (0.56, 0.1, 100, "careful", "By 100 units at random the maximum is 0.56 standard errors away in a, +- 0.1: run longer."),
    (0.56, 0.1, 40, "careful", ": run longer."),
    (0.56, 0.1, 39, "careful", "each unit's chain has made 39 transitions, and forgets its start in about 40: visit them"),
    (1.29, 0.1, 100, "careful", "run longer"),
    (1.31, 0.1, 100, "failed", "run longer"),
    (1.31, 0.1, 39, "failed", "visit them more often"),
    (0.1, 0.1, 39, "careful", "Each unit's chain has made 39 transitions, and forgets its start in about 40: visit them more"),
    (0.625, 0.125, 100, "pass", "often"),
    (1.375, 0.125, 100, "careful", "run longer"),
    (0.1, 0.1, 40, "pass", "often enough, as far as a sample tells: by 100 units"),
])  # fmt: skip
def test_a_step_beyond_its_error_and_chains_that_remember_their_start_are_told(step, error, made, level, says, figures):
    figures.step, figures.error = step, error
    check = visits(fit(), size=50, key=3, transitions=made)
    assert (check.name, check.level, check.figure, check.error, check.threshold) == ("visits", level, step, error, 0.25)
    assert says in check.sentence and figures.asked == [(50, 3)]


def test_an_estep_without_memory_is_not_held_to_its_transitions(figures):
    figures.remembers = False
    assert visits(fit(), transitions=1).level == "pass" and figures.asked == [(module.UNITS, 0)]


@pytest.mark.parametrize("replicates", [1, 3])
def test_the_step_of_a_subsample_is_in_standard_errors_of_all(replicates, monkeypatch):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(replicates, 40, 2)) * [1.0, 3.0] + [0.2, -0.1]
    complete = np.array([[30.0, 5.0], [5.0, 200.0]])
    found = Evaluation(np.zeros(2), scores, np.broadcast_to(complete, (replicates, 2, 2)), np.zeros((replicates, 40)),
                       np.ones(40), np.ones(40))  # fmt: skip
    keys = []
    monkeypatch.setattr(module, "best_rule", lambda some: Rule(mx.Quadrature(5), None, replicates, 1))
    monkeypatch.setattr(module, "evaluate", lambda some, rule, params, given: (keys.extend(given), found)[1])
    step, error, name = _newton(fit(40), fit(160))
    inverse = np.linalg.inv(found.matrix)
    se = np.sqrt(np.diag(inverse) * 40 / 160)
    mean = scores.mean(axis=0)
    steps = np.abs(inverse @ mean.sum(axis=0)) / se
    errors = np.sqrt(np.diag(inverse @ (0.75 * 40 * np.cov(mean.T)) @ inverse)) / se
    if replicates > 1:
        by_set = np.stack([inverse @ s.sum(axis=0) for s in scores])
        errors = np.hypot(errors, by_set.std(axis=0, ddof=1) / np.sqrt(3) / se)
    j = int(np.argmax(steps - 3 * errors))
    assert (step, error, name) == (pytest.approx(steps[j]), pytest.approx(errors[j]), "ab"[j])
    assert keys == list(range(replicates))
    assert _newton(fit(40), fit(160, names="abc"))[2] == f"coordinate {j}"


def test_a_single_coordinate_has_a_step_as_well(monkeypatch):
    scores = np.random.default_rng(1).normal(size=(1, 30, 1)) + 0.5
    found = Evaluation(np.zeros(1), scores, np.full((1, 1, 1), 20.0), np.zeros((1, 30)), np.ones(30), np.ones(30))
    monkeypatch.setattr(module, "best_rule", lambda some: Rule(mx.Quadrature(5), None, 1, 1))
    monkeypatch.setattr(module, "evaluate", lambda *_: found)
    step, error, name = _newton(fit(30, names="a"), fit(60, names="a"))
    matrix = 20.0 + np.sum(scores**2)
    assert step == pytest.approx(abs(scores.sum()) / matrix / np.sqrt(0.5 / matrix)) and name == "a"
    assert error == pytest.approx(np.sqrt(0.5 * 30 * scores.var(ddof=1)) / matrix / np.sqrt(0.5 / matrix))


def test_transitions_are_those_that_rows_have_counted_or_of_full_batches():
    chains = mx.MCMC(mx.MALA(), n_steps=3, burn_in=2, warm_up=50)
    counted = fit(rows={"n_transitions": np.array([[4, 6, 90]])}, estep=chains, n_iter=10)
    assert _made(counted, None) == 5.0 and _made(counted, 7) == 7.0
    assert _made(fit(rows={}, estep=chains, n_iter=10), None) == 10 * 5 + 50
    growing = mx.MCMC(mx.MALA(), n_steps=mx.Growth(4.0, 0.5), burn_in=1)
    assert _made(fit(rows={}, estep=growing, n_iter=25), None) == pytest.approx(25 * (float(mx.Growth(4.0, 0.5)(25)) + 1))


def test_chains_that_start_anew_every_time_remember_nothing():
    warm, cold = mx.MCMC(mx.MALA()), mx.MCMC(mx.MALA(), warm_start=False)
    assert _remembers(fit(estep=warm, rows={})) and not _remembers(fit(estep=warm, rows=None))
    assert not _remembers(fit(estep=cold, rows={})) and not _remembers(fit(estep=mx.Quadrature(3), rows={}))


def time_by_numpy(series):
    """Geyer's sum of pairs of autocovariances that pool the chains, largest over coordinates."""
    series = series - series.mean(axis=0)
    length, times = len(series), []
    for each in np.moveaxis(series, 2, 0):
        gamma = np.array([np.mean(np.sum(each[: length - t] * each[t:], axis=0)) / length for t in range(length)])
        rho, total = gamma / gamma[0], 0.0
        for t in range(0, length // 2 * 2, 2):
            if rho[t] + rho[t + 1] <= 0:
                break
            total += rho[t] + rho[t + 1]
        times.append(2 * total - 1)
    return max(times)


@pytest.mark.parametrize("length", [60, 61])
def test_times_are_sums_of_positive_pairs(length):
    rng = np.random.default_rng(length)
    series = np.cumsum(rng.normal(size=(length, 5, 3)), axis=0) * 0.3 + rng.normal(size=(length, 5, 3)) + 10.0
    assert _pooled(series) == pytest.approx(time_by_numpy(series))
    assert _pooled(np.ones((10, 2, 1))) == pytest.approx(-1.0)


def test_the_time_is_the_largest_over_coordinates_and_their_squares(monkeypatch):
    rng = np.random.default_rng(0)
    z = {"a": rng.normal(size=(40, 2, 6)), "b": np.cumsum(rng.normal(size=(40, 2, 6, 70)), axis=0)}
    z["b"][..., ::2] = rng.normal(size=(40, 2, 6, 35))
    asked = []
    monkeypatch.setattr(module, "subsample", lambda fit, size, key: asked.append((size, key)) or fit)
    monkeypatch.setattr(module, "continued", lambda some, length, key: (asked.append((length, key)), (z, None))[1])
    flat = np.concatenate([z["a"].reshape(40, 12, 1), z["b"].reshape(40, 12, 70)], axis=2)
    chosen = np.random.default_rng(5).permutation(71)[:50]
    centred = flat[:, :, chosen] - flat[:, :, chosen].mean(axis=0)
    found = autocorrelation_time(fit(), key=5, length=40)
    assert found == pytest.approx(max(time_by_numpy(centred), time_by_numpy(centred**2)))
    assert asked == [(module.CHAINS, 6), (40, 5)]
    # Signs that change at random, and sizes that do not: the squares are slow.
    sizes = np.repeat(np.array([1.0, 2.0, 1.0, 2.0]), 10)[:, None, None] * rng.choice([-1, 1], (40, 60, 1))
    z = sizes[:, None]
    centred = sizes - sizes.mean(axis=0)
    found = autocorrelation_time(fit(), length=40)
    assert found == pytest.approx(time_by_numpy(centred**2)) and found > 2 * time_by_numpy(centred)
