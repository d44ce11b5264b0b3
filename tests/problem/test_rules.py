"""Penalties, coordinates of spaces, what theory says of schedules, and stopping rules: values worked out by hand."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from margaux.engine.callbacks import Progress, _figures
from margaux.problem.schedule import as_schedule, check_schedules, exponent
from margaux.problem.space import as_space, boundary_flags, validate

pytestmark = pytest.mark.usefixtures("double")


# -- penalties --------------------------------------------------------------------------------------

PARAMS = {"a": np.array([0.1, -2.0]), "b": np.array(3.0)}


@pytest.mark.parametrize(
    ("make", "value", "prox"),
    [
        (lambda on=None: mx.L1(0.5, on), lambda x: 0.5 * abs(x), lambda x: np.sign(x) * max(abs(x) - 0.1, 0)),
        (lambda on=None: mx.L2(0.5, on), lambda x: 0.25 * x**2, lambda x: x / 1.1),
        (
            lambda on=None: mx.ElasticNet(0.5, 2.0, on),
            lambda x: 0.5 * abs(x) + x**2,
            lambda x: np.sign(x) * max(abs(x) - 0.1, 0) / 1.4,
        ),
        (
            lambda on=None: mx.Huber(0.5, 0.4, on),
            lambda x: 0.5 * (x**2 / 0.8 if abs(x) <= 0.4 else abs(x) - 0.2),
            lambda x: x * 0.4 / 0.5 if abs(x) <= 0.5 else x - 0.1 * np.sign(x),
        ),
    ],
    ids=["l1", "l2", "elastic net", "huber"],
)
def test_values_and_proximal_maps(make, value, prox):
    params = jax.tree.map(jnp.asarray, PARAMS)
    assert float(make().value(params)) == pytest.approx(sum(value(x) for x in (0.1, -2.0, 3.0)))
    assert float(make("a").value(params)) == pytest.approx(value(0.1) + value(-2.0))
    moved = make(("b",)).prox(params, jnp.asarray(0.2))
    np.testing.assert_allclose(moved["b"], prox(3.0))
    np.testing.assert_array_equal(moved["a"], PARAMS["a"])
    np.testing.assert_allclose(make().prox(params, jnp.asarray(0.2))["a"], [prox(0.1), prox(-2.0)])
    with pytest.raises(ValueError, match=r'"c", which is no parameter; they are \[\'a\', \'b\'\]'):
        make("c").value(params)


@pytest.mark.parametrize(
    "make", [lambda: mx.L1(-1.0), lambda: mx.L2(-0.1), lambda: mx.ElasticNet(1.0, -1.0), lambda: mx.Huber(1.0, 0.0)]
)
def test_bad_penalties(make):
    with pytest.raises(ValueError, match="negative|positive"):
        make()
    assert float(mx.L1(0.0).value(PARAMS)) == 0.0


# -- spaces -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "x", "u"),
    [
        (mx.Box(-1.0, 3.0), 0.5, np.log(1.5 / 2.5)),
        (mx.Box(low=-1.0), 0.5, np.log(1.5)),
        (mx.Box(high=3.0), 0.5, -np.log(2.5)),
        (mx.Box(), 0.5, 0.5),
        (mx.Positive(), 0.5, np.log(0.5)),
        (mx.Ball(2.0, centre=[1.0, 0.0]), np.array([0.5, 0.4]), np.array([-0.25, 0.2]) / np.sqrt(1 - 0.0625 - 0.04)),
        (mx.Simplex(), np.array([0.2, 0.5, 0.3]), np.log([2 / 3, 5 / 3])),
        (mx.PositiveDefinite(), np.array([[4.0, 1.0], [1.0, 5.0]]), [np.log(2.0), 0.5, np.log(np.sqrt(4.75))]),
    ],
)
def test_coordinates(space, x, u):
    np.testing.assert_allclose(space.to_unconstrained(jnp.asarray(x)), u)
    np.testing.assert_allclose(space.from_unconstrained(jnp.asarray(u)), x)


def test_projections():
    np.testing.assert_allclose(mx.Box([0.0, -1.0], 2.0).project(jnp.array([-3.0, 5.0])), [0.0, 2.0])
    assert float(mx.Positive(0.1).project(jnp.asarray(-4.0))) == pytest.approx(0.1)
    np.testing.assert_allclose(mx.Ball(5.0, centre=[1.0, 0.0]).project(jnp.array([7.0, 8.0])), [4.0, 4.0])
    np.testing.assert_allclose(mx.Simplex().project(jnp.array([0.9, 0.6, -1.0])), [0.65, 0.35, 0.0])
    q = np.array([[1.0, 1.0], [-1.0, 1.0]]) / np.sqrt(2)
    bent = q @ np.diag([-2.0, 3.0]) @ q.T
    np.testing.assert_allclose(mx.PositiveDefinite(0.5).project(jnp.asarray(bent)), q @ np.diag([0.5, 3.0]) @ q.T)


@pytest.mark.parametrize(
    ("space", "inside", "edge"),
    [
        (mx.Box(0.0, 1e6), 1.5, 0.5),
        (mx.Box(0.0, 1e6), 1e6 - 1.5, 1e6 - 0.5),
        (mx.Box(low=2.0), 2.0 + 2e-6, 2.0 + 5e-7),
        (mx.Box(high=2.0), 2.0 - 2e-6, 2.0 - 5e-7),
        (mx.Positive(1e-3), 2.1e-3, 1.9e-3),
        (mx.Positive(1e-12), 2e-6, 5e-7),
        (mx.Ball(2.0), np.array([2.0 - 1e-5, 0.0]), np.array([0.0, 2.0 - 1e-6])),
        (mx.Simplex(), np.array([2e-6, 1.0]), np.array([5e-7, 1.0])),
        (mx.PositiveDefinite(1e-3), np.diag([2.1e-3, 1.0]), np.diag([1.9e-3, 1.0])),
        (mx.PositiveDefinite(), np.diag([2e-3, 1e3]), np.diag([5e-4, 1e3])),
        (mx.Real(), 0.0, None),
    ],
)
def test_edges_are_as_wide_as_they_say(space, inside, edge):
    assert not np.any(space.at_boundary(jnp.asarray(inside)))
    if edge is not None:
        assert np.any(space.at_boundary(jnp.asarray(edge)))


def test_spaces_by_name_and_what_does_not_fit():
    params = {"a": np.array([0.5, 1e-8]), "b": np.eye(2), "c": np.array(1.0)}
    space = as_space({"a": mx.Positive(), "b": mx.PositiveDefinite()}, params)
    np.testing.assert_array_equal(boundary_flags(space, params), [False, True, False, False, False, False, False])
    with pytest.raises(ValueError, match=r"parameter a = .* lies outside Positive; the nearest point inside is"):
        validate(space, params | {"a": np.array([0.5, -1.0])})
    validate(space, params | {"a": np.array([0.5, 1.0])})
    for bad, words in (
        ({"a": mx.PositiveDefinite()}, "needs a square matrix"),
        ({"c": mx.Simplex()}, "at least two entries"),
        ({"a": mx.Box(np.zeros(3), 1.0)}, r"bounds of shape \(3,\) do not fit"),
        ({"c": mx.Ball(1.0, np.zeros(2))}, "do not fit"),
        ({"b": mx.Box(np.zeros((3, 2)), 1.0)}, "do not fit"),
        ({"d": mx.Real()}, "d"),
    ):
        with pytest.raises(ValueError, match=words):
            as_space(bad, params)
    for good in ({"b": mx.Box(np.zeros(2), 1.0)}, {"a": mx.Simplex()}):
        as_space(good, params)
    for make in (lambda: mx.Box(1.0, 1.0), lambda: mx.Box(np.nan), lambda: mx.Positive(0.0), lambda: mx.Ball(0.0),
                 lambda: mx.PositiveDefinite(0.0)):  # fmt: skip
        with pytest.raises(ValueError, match="must be"):
            make()


# -- schedules --------------------------------------------------------------------------------------


def test_schedules_refuse_what_is_no_sequence_of_positive_numbers():
    loose: Any = mx
    for make, kind in (
        (lambda: mx.Constant(0.0), ValueError), (lambda: mx.Polynomial(-0.5, 0.5), ValueError),
        (lambda: mx.Polynomial(1.0, -0.1), ValueError), (lambda: mx.Polynomial(1.0, 0.5, offset=-1.0), ValueError),
        (lambda: mx.Growth(-1.0), ValueError), (lambda: mx.Growth(epoch=0), ValueError), (lambda: mx.Growth(cap=0.5), ValueError),
        (lambda: mx.Constant(np.inf), ValueError), (lambda: loose.Constant("1"), TypeError),
        (lambda: mx.Constant(True), TypeError),
        (lambda: as_schedule(0.0), ValueError), (lambda: as_schedule(np.inf), ValueError), (lambda: as_schedule("1"), TypeError),
        (lambda: as_schedule(True), TypeError), (lambda: as_schedule(1j), TypeError),
    ):  # fmt: skip
        with pytest.raises(kind):
            make()
    kept = mx.Polynomial(1.0, 0.0)
    assert as_schedule(kept) is kept and float(as_schedule(2)(5)) == 2.0
    assert float(mx.Growth(0.0, 0.0)(3)) == 1.0 and float(mx.Growth(1.0, 2.0, 2.0, 3)(7)) == 19.0
    assert float(mx.Growth(2.5, 0.0)(3)) == 3.0


def test_exponents():
    for schedule, a in ((mx.Constant(3.0), 0.0), (mx.Polynomial(2.0, 0.7, 5.0), 0.7), (mx.ConstantThenDecay(1.0, 50, 0.8), 0.8),
                        (mx.Growth(5.0, 2.0, 1.5, cap=10), -1.5), (mx.Growth(5.0, 0.0, 1.5), 0.0)):  # fmt: skip
        assert exponent(schedule) == pytest.approx(a, abs=1e-3)


def power(a):
    return mx.Polynomial(1.0, a)


@pytest.mark.parametrize(
    ("step", "size", "draws", "words"),
    [
        (power(1.2), None, None, r"decays like n\^-1.2, so its sum is finite"),
        (power(1.0), None, None, "Robbins-Monro conditions hold"),
        (power(0.6), None, 4, "Robbins-Monro conditions hold"),
        (power(0.5), None, None, r"decays like n\^-0.5: its squares do not sum"),
        (0.1, None, None, "is constant: its squares do not sum"),
        (power(0.9), power(0.3), None, "fixed-batch conditions hold"),
        (power(0.9), power(0.5), mx.Growth(1, 1.0, 1.0), "growing-batch conditions hold"),
        (power(0.9), power(0.3), mx.Growth(1, 1.0, 1.0), "fixed-batch conditions hold"),
        # One condition fails at a time: a + b / 2 > 1, a - b + c > 1, 2a - 2b > 1.
        (power(0.8), power(0.3), None, "Neither eq. 9 nor eq. 12"),
        (power(0.8), power(0.3), mx.Growth(1, 1.0, 2.0), "Neither"),
        (power(0.9), power(0.5), mx.Growth(1, 1.0, 0.6), "Neither"),
        (power(0.9), power(0.5), mx.Growth(1, 1.0, 0.7), "growing-batch"),
        (power(0.95), power(0.5), None, r"Neither .*delta ~ n\^-0.95, gamma ~ n\^-0.5, m ~ n\^0"),
        (power(0.8), 0.01, None, "Langevin step is constant"),
        (None, None, mx.Growth(1, 1.0, 2.5), r"grows like k\^2.5, so sum .* is finite"),
        (None, None, mx.Growth(1, 1.0, 2.0), r"grows like k\^2, so sum .* diverges"),
        (None, None, 5, r"grows like k\^0, so sum"),
    ],
)
def test_what_theory_says_of_schedules(step, size, draws, words):
    said = check_schedules(step, size, draws)
    assert re.search(words, said), said


# -- progress and stopping ---------------------------------------------------------------------------------------


def progress(params: Any, iteration: Any = None) -> Progress:
    trace = {} if params is None else {"params": np.asarray(params, float)}
    iteration = len(trace["params"]) if iteration is None else iteration
    return Progress(iteration, 1000, ["a"], {}, lambda path: None, lambda: np.zeros((1, 1)), lambda: trace)


def test_progress_shows_the_first_parameters_and_the_latest_figures():
    latest = {"log_joint": np.r_[np.zeros(50), np.full(100, 3.0)], "acceptance": np.array([0.1, 0.25]), "other": np.ones(2)}
    told = Progress(2, 9, list("abcde"), latest, lambda path: None, lambda: np.array([[1, 2, 3, 4, 5.0]] * 2), dict)
    assert _figures(told) == "a 1  b 2  c 3  d 4  log joint 3  acceptance 0.25"
    nameless = Progress(2, 9, [], {"log_marginal": np.array([[1.0], [-7.0]])}, lambda path: None, lambda: np.zeros(0), dict)
    assert _figures(nameless) == "log marginal -7"


def trace_with(shift, window=100, runs=2, scale=1.0):
    """Noise of unit SD in each half whose means differ by `shift`, in the last of the runs; anything before it."""
    half = window // 2
    noise = scale * np.tile([1.0, -1.0], half // 2)
    out = np.full((window + 40, runs, 1), 100.0)
    out[-window:, :, 0] = np.r_[noise, noise][:, None]
    out[-half:, -1, 0] += shift
    return out


def test_a_fit_stops_when_the_halves_of_the_window_agree():
    rule = mx.EarlyStopping(window=100, tolerance=0.1)
    assert rule(progress(trace_with(0.09))) and rule(progress(trace_with(-0.09)))
    assert not rule(progress(trace_with(0.11))) and not rule(progress(trace_with(-0.11)))
    assert mx.EarlyStopping(window=100, tolerance=0.2)(progress(trace_with(0.15)))
    assert not rule(progress(trace_with(0.0)[-99:])) and rule(progress(trace_with(0.0)[-100:]))
    assert not rule(progress(None, 500))


def test_a_trace_that_stands_still_stops_by_its_size():
    rule = mx.EarlyStopping(window=100, absolute=1e-3)
    for size in (0.0, 50.0):
        still = trace_with(0.0, scale=0.0) + size
        still[-50:] += 0.9e-3 * (1 + size) / (1 - 0.1 / 2)
        assert rule(progress(still))
        still[-50:] += 0.5e-3 * (1 + size)
        assert not rule(progress(still))


def test_a_floor_is_kept():
    calm = trace_with(0.0)
    assert mx.EarlyStopping(window=100, floor=140)(progress(calm))
    assert not mx.EarlyStopping(window=100, floor=141)(progress(calm))
    bad: Any
    for bad in ({"window": 9}, {"tolerance": 0.0}, {"absolute": -1.0}):
        with pytest.raises(ValueError):
            mx.EarlyStopping(**bad)
    mx.EarlyStopping(window=10, absolute=0.0)


def test_checkpoints_are_saved_at_the_end_and_when_they_are_due(tmp_path, monkeypatch):
    saved, now = [], [0.0]
    monkeypatch.setattr("margaux.engine.callbacks.time.monotonic", lambda: now[0])
    checkpoint = mx.Checkpoint(tmp_path / "file", seconds=30.0)
    for clock, iteration, due in ((29.0, 10, False), (30.0, 20, True), (59.0, 30, False), (60.0, 40, True), (61.0, 1000, True)):
        now[0], before = clock, len(saved)
        told = Progress(iteration, 1000, [], {}, saved.append, lambda: np.zeros(0), dict, ends=iteration == 1000)
        assert checkpoint(told) is False
        assert (len(saved) > before) == due
    assert saved[0] == tmp_path / "file"
    with pytest.raises(ValueError, match="seconds"):
        mx.Checkpoint("file", seconds=-1.0)
