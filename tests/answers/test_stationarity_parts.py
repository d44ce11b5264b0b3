"""Stationarity from scores that are given: pooling, noise and error by formula, and the steps of its directions."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from margaux.algorithms.updates import Problem
from margaux.answers import stationarity as module
from margaux.answers.stationarity import Stationarity, _steepest, stationarity
from margaux.problem.space import as_space

N = 6


def fit(penalty=None, space=None, dtype=float):
    params = {"a": np.array(0.5), "b": np.array([1.0, -1.0])}
    problem = Problem(None, as_space(space, params), penalty or mx.NoPenalty(), N)
    return SimpleNamespace(_model=lambda: problem, params=params, names=["a", "b[0]", "b[1]"], dtype=np.dtype(dtype))


@pytest.fixture
def draws(monkeypatch):
    """Scores (R, n, 3) and log densities (R, n) by key; calls are kept."""
    rng = np.random.default_rng(0)
    state = SimpleNamespace(scores=rng.normal(0.3, 1.0, (40, N, 3)), logs=rng.normal(size=(40, N)), calls=[])

    def each_unit(fit, f, estep, params, key, width, rows):
        assert rows is None
        state.calls.append((key, width, estep, params))
        s = state.scores[key]
        return {"a": s[:, 0], "b": s[:, 1:]}, {} if state.logs is None else {"log_marginal": state.logs[key]}

    monkeypatch.setattr(module, "each_unit", each_unit)
    monkeypatch.setattr(module, "latent_size", lambda fit: 2)
    monkeypatch.setattr(module, "reference_estep", lambda fit, n_draws: ("reference", n_draws))
    return state


def by_numpy(scores, logs, reach):
    """Value, error and noise without constraints, from replicates weighted by their likelihoods."""
    share = np.exp(logs) / np.exp(logs).mean(axis=0)
    pooled = np.mean(share[..., None] * scores, axis=0)
    gradient = pooled.mean(axis=0)
    apart = np.mean(share[..., None] * (scores - pooled), axis=1)
    count = len(scores)
    value = np.linalg.norm(gradient)
    noise = np.hypot(np.sqrt(np.sum(apart**2) / (count - 1) / count), reach * np.sqrt(np.mean(np.sum(pooled**2, axis=1))))
    return gradient, value, np.sqrt(np.sum((apart @ gradient / value) ** 2) / (count - 1) / count), noise


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("reach", [None, 0.2])
def test_value_error_and_noise_are_those_of_replicates_pooled_by_likelihood(weighted, reach, draws):
    logs = draws.logs[8:12] if weighted else np.zeros((4, N))
    draws.logs = draws.logs if weighted else None
    found = stationarity(fit(), replicates=4, key=2, reach=reach)
    gradient, value, se, noise = by_numpy(draws.scores[8:12], logs, np.sqrt(np.finfo(float).eps) if reach is None else reach)
    assert (found.value, found.se, found.noise) == (pytest.approx(value), pytest.approx(se), pytest.approx(noise))
    np.testing.assert_allclose(np.r_[found.gradient["a"], found.gradient["b"]], gradient)
    np.testing.assert_allclose(np.r_[found.direction["a"], found.direction["b"]], gradient, rtol=1e-6)
    assert [call[:3] for call in draws.calls] == [(key, 500 * 5, ("reference", 500)) for key in range(8, 12)]


def test_draws_are_of_the_asked_number_estep_and_place(draws):
    stationarity(fit(), n_draws=30, replicates=2, estep="own", params={"a": 2, "b": [0, 1]})
    assert [call[:3] for call in draws.calls] == [(0, 150, "own"), (1, 150, "own")]
    assert draws.calls[0][3]["a"] == 2.0 and draws.calls[0][3]["b"][1].dtype == float
    draws.calls.clear()
    stationarity(fit())
    assert len(draws.calls) == 16


def test_an_exact_estep_is_asked_twice(draws):
    draws.scores[1:], draws.logs[1:] = draws.scores[0], draws.logs[0]
    found = stationarity(fit())
    assert len(draws.calls) == 2 and found.se == 0.0
    assert found.value == pytest.approx(np.linalg.norm(draws.scores[0].mean(axis=0)))


def test_reach_and_replicates_are_bounded(draws):
    for bad in ({"reach": 1.0}, {"reach": np.finfo(float).eps}, {"replicates": 1}):
        with pytest.raises(ValueError, match="reach|replicates"):
            stationarity(fit(), **bad)
    stationarity(fit(), replicates=2, reach=0.99)
    single = stationarity(fit(dtype=np.float32), replicates=2)
    reach = 8 * float(np.finfo(np.float32).eps)
    assert single.noise == pytest.approx(by_numpy(draws.scores[:2], draws.logs[:2], reach)[3], rel=1e-9)
    draws.scores[0, 3, 1] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        stationarity(fit())


@pytest.mark.parametrize(("value", "stationary"), [(0.29, True), (0.3, True), (0.31, False)])
def test_three_times_the_noise_is_zero(value, stationary):
    made = Stationarity(value, 0.02, 0.1, {}, {})
    assert made.stationary == stationary
    assert str(made) == f"g_- = {value:.3g} (se 0.02; 0.1 would be noise alone): " + (
        "not to be told from zero." if stationary else "not stationary.")  # fmt: skip


# -- directions -------------------------------------------------------------------------------------


def steps_by_numpy(x, v, reach, weight, high, n):
    """(prox(x + t v) - x) / t leaf by leaf, of an L1 penalty on both and an upper bound on the second."""
    prox = lambda a, t: np.sign(a) * np.maximum(np.abs(a) - t, 0.0)  # noqa: E731
    out = []
    for name in ("a", "b"):
        leaf, slope = np.atleast_1d(x[name]), np.atleast_1d(v[name])
        pull = np.linalg.norm(leaf - prox(leaf, reach * weight)) / (reach * n)
        speed = np.linalg.norm(slope) + pull
        t = reach * (1 + np.linalg.norm(leaf)) / (speed if speed > 0 else 1.0)
        landed = prox(leaf + t * slope, t * weight / n)
        landed = np.minimum(landed, high) if name == "b" else landed
        out.append((landed - leaf) / t)
    return np.concatenate(out)


@pytest.mark.parametrize("reach", [0.3, 0.05])
@pytest.mark.parametrize("n", [1, 5])
def test_each_leaf_goes_so_far_that_its_step_is_as_long_as_it_should_be(reach, n):
    x = {"a": np.array(0.5), "b": np.array([1.0, -0.2, 0.1])}
    with jax.enable_x64(True):
        problem = Problem(None, as_space({"a": mx.Real(), "b": mx.Box(high=1.1)}, x), mx.L1(0.4), n)
        ascents = np.array([[0.3, 2.0, -1.0, 0.1], [0.0, 0.0, 0.0, 0.0], [-3.0, 0.2, 0.0, -0.3]])
        found = _steepest(problem, jax.tree.map(jnp.asarray, x), jnp.asarray(ascents), jnp.asarray(reach))
        for v, got in zip(ascents, found, strict=True):
            np.testing.assert_allclose(got, steps_by_numpy(x, {"a": v[0], "b": v[1:]}, reach, 0.4, 1.1, n), atol=1e-12)


def test_a_point_that_rounding_has_moved_outside_is_put_back():
    x = {"a": np.array(0.0), "b": np.array([1.0 + 1e-9])}
    with jax.enable_x64(True):
        problem = Problem(None, as_space({"a": mx.Real(), "b": mx.Box(high=1.0)}, x), mx.NoPenalty(), 1)
        (found,) = _steepest(problem, jax.tree.map(jnp.asarray, x), jnp.array([[0.0, 2.0]]), jnp.asarray(1e-7))
        np.testing.assert_allclose(found, [0.0, 0.0], atol=1e-12)
