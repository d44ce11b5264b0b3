"""Memories, updates, averages and what composes them, one step at a time against NumPy."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import margaux as mx
from helpers import normal
from margaux.algorithms.average import LinearlyWeighted, include, start
from margaux.algorithms.base import Algorithm
from margaux.algorithms.memory import Anchor, NoMemory, RobbinsMonro, Saga, Table
from margaux.algorithms.recipes import describe
from margaux.algorithms.scaled import ScaledAscent, newton_step
from margaux.algorithms.statistics import Score, SurrogateMinimiser
from margaux.algorithms.updates import Ascent, Mean, MStep, Optax, Problem, is_optimiser
from margaux.problem.penalty import NoPenalty
from margaux.problem.schedule import as_schedule
from margaux.problem.space import as_space

N = 5

pytestmark = pytest.mark.usefixtures("double")


class Gaussian(mx.AbstractExponentialFamily, mx.AbstractConjugate):
    """y_i ~ N(z_i, 1), z_i ~ N(mu, 1); two copies of mu, to have an array."""

    def log_joint(self, params, z, y):
        return normal(y, z) + jnp.sum(normal(z, params["mu"]))

    def init_latents(self, key, params, y):
        return 0.0 * y

    def sample_posterior(self, key, params, y):
        return (y + jnp.mean(params["mu"])) / 2

    def suffstats(self, z, y):
        return {"z": jnp.stack([z, 2 * z])}

    def m_step(self, s):
        return {"mu": s["z"]}


class Wide(Gaussian):
    """Twelve copies."""

    def suffstats(self, z, y):
        return {"z": jnp.full(12, z)}


def problem(space=None, penalty=None, n=N):
    params = {"mu": jnp.zeros(2)}
    return Problem(Gaussian(), as_space(space, params), penalty or NoPenalty(), n)


# -- memories ---------------------------------------------------------------------------------------


def run(memory, table, batches, sums, weights=None):
    """Means that a memory estimates while batches of a table of scalars are replaced, from a first full pass."""
    rows, state = table.copy(), memory.init(jax.ShapeDtypeStruct((), float))
    if memory.has_rows:
        state = state | {"total": jnp.asarray(rows.sum()), "lost": jnp.zeros(())}
    means = []
    for k, (ids, new) in enumerate(zip(batches, sums, strict=True), start=1):
        given = jnp.asarray(new) if memory.has_rows else jnp.asarray(new).sum()
        local, kept = memory.contribution(jnp.asarray(rows[ids]), given)
        mean, state = memory.combine(state, local, len(table), len(ids), jnp.asarray(k))
        if memory.has_rows:
            rows[ids] = kept
        means.append(float(mean))
    return np.array(means), rows


TABLE = np.array([1.0, -2.0, 4.0, 0.5, 3.0])
BATCHES = [[0, 3], [1, 2], [4, 0]]
NEW = [np.array([2.0, 5.0]), np.array([-1.0, 1.5]), np.array([7.0, 0.25])]


def test_no_memory_is_the_mean_of_the_batch():
    found, _ = run(NoMemory(), TABLE, BATCHES, NEW)
    np.testing.assert_allclose(found, [s.mean() for s in NEW])


def test_robbins_monro_starts_from_the_first_batch_whatever_the_gain():
    gain = mx.Polynomial(0.5, 0.3)
    expected = [NEW[0].mean()]
    for k in (2, 3):
        expected.append(expected[-1] + 0.5 * k**-0.3 * (NEW[k - 1].mean() - expected[-1]))
    np.testing.assert_allclose(run(RobbinsMonro(gain), TABLE, BATCHES, NEW)[0], expected)


def test_a_table_is_the_mean_of_all_rows_with_the_new_ones():
    rows, expected = TABLE.copy(), []
    for ids, new in zip(BATCHES, NEW, strict=True):
        rows[ids] = new
        expected.append(rows.mean())
    found, kept = run(Table(), TABLE, BATCHES, NEW)
    np.testing.assert_allclose(found, expected)
    np.testing.assert_array_equal(kept, rows)


@pytest.mark.parametrize("weight", [1.0, mx.Polynomial(0.8, 0.5), None])
@pytest.mark.parametrize("memory", [Saga, Anchor])
def test_saga_and_svrg_correct_the_mean_of_the_table_by_the_batch(memory, weight):
    rows, expected, s = TABLE.copy(), [], TABLE.mean()
    for k, (ids, new) in enumerate(zip(BATCHES, NEW, strict=True), start=1):
        rho = min(1.0, 2 / N ** (2 / 3)) if weight is None else float(as_schedule(weight)(k))
        direction = np.mean(new - rows[ids]) + rows.mean()
        s = (1 - rho) * s + rho * direction
        expected.append(s)
        if memory is Saga:
            rows[ids] = new
    found, kept = run(memory(None if weight is None else as_schedule(weight)), TABLE, BATCHES, NEW)
    np.testing.assert_allclose(found, expected)
    np.testing.assert_array_equal(kept, rows)


def test_the_weight_by_default_is_at_most_one():
    memory = Saga(None)
    state = {"total": jnp.asarray(6.0), "lost": jnp.asarray(0.0), "mean": jnp.asarray(99.0)}
    mean, _ = memory.combine(state, (jnp.asarray(3.0), jnp.asarray(0.0)), 3, 3, jnp.asarray(2))
    assert float(mean) == pytest.approx(2.0 + 1.0)


@pytest.mark.parametrize("first", [1e8, 1.0])
def test_a_total_in_single_precision_loses_nothing(first):
    """The lost part of every addition is kept, whichever of the two numbers is the larger."""
    rng = np.random.default_rng(0)
    rows = np.r_[first, rng.normal(size=40)].astype(np.float32)
    memory = Table()
    state = {"total": jnp.asarray(rows.astype(float).sum(), jnp.float32), "lost": jnp.zeros((), jnp.float32)}
    state["lost"] = jnp.asarray(rows.astype(float).sum() - float(state["total"]), jnp.float32)
    for k in range(200):
        j = int(rng.integers(41))
        new = np.float32(rng.normal() * 10.0 ** rng.integers(-3, 9))
        local, _ = memory.contribution(jnp.asarray(rows[j : j + 1]), jnp.asarray([new]))
        _, state = memory.combine(state, local, 41, 1, jnp.asarray(k))
        rows[j] = new
    # Numbers of 1e9 round by 60 in single precision, two hundred times; what is lost, of that size, by 6e-6 a time.
    assert float(state["total"]) + float(state["lost"]) == pytest.approx(rows.astype(float).sum(), abs=0.01)


# -- updates ----------------------------------------------------------------------------------------


def test_ascent_moves_by_the_step_then_shrinks_then_projects():
    where, s = {"mu": jnp.array([0.5, -0.2])}, {"mu": jnp.array([4.0, 0.3])}
    step = mx.Polynomial(0.5, 1.0)
    update = Ascent(step)
    moved, state = update(problem({"mu": mx.Box(high=1.0)}, mx.L1(0.6)), where, s, update.init(where), jnp.asarray(2))
    delta = 0.25
    free = np.array([0.5, -0.2]) + delta * np.array([4.0, 0.3])
    shrunk = np.sign(free) * np.maximum(np.abs(free) - delta * 0.6 / N, 0)
    np.testing.assert_allclose(moved["mu"], np.minimum(shrunk, 1.0))
    assert state == ()


def test_optax_descends_along_minus_the_score():
    where, s = {"mu": jnp.array([0.5, -0.2])}, {"mu": jnp.array([4.0, 0.3])}
    optimiser = optax.sgd(0.1, momentum=0.9)
    update = Optax(optimiser, as_schedule(0.7))
    state = update.init(where)
    one, state = update(problem(penalty=mx.L2(3.0)), where, s, state, jnp.asarray(1))
    shrink = 1 / (1 + 0.7 * 3.0 / N)
    np.testing.assert_allclose(one["mu"], shrink * (np.array([0.5, -0.2]) + 0.1 * np.array([4.0, 0.3])))
    two, _ = update(problem(penalty=mx.L2(3.0)), one, s, state, jnp.asarray(2))
    np.testing.assert_allclose(two["mu"], shrink * (one["mu"] + 0.1 * 1.9 * np.array([4.0, 0.3])))
    assert is_optimiser(optimiser) and not is_optimiser(0.1)


def test_the_m_step_is_projected_and_refuses_a_penalty():
    where = {"mu": jnp.zeros(2, jnp.float32)}
    out, _ = MStep()(problem({"mu": mx.Box(low=0.0)}), where, {"z": jnp.array([2.0, -1.0])}, (), jnp.asarray(1))
    np.testing.assert_array_equal(out["mu"], [2.0, 0.0])
    assert out["mu"].dtype == jnp.float32
    assert MStep().requires(problem()) is None and "L1" in (MStep().requires(problem(penalty=mx.L1(1.0))) or "")


def test_the_mean_of_surrogates_lands_with_a_step_of_one_over_their_curvature():
    out, _ = Mean(np.asarray(4.0))(problem(penalty=mx.L1(10.0)), {}, {"mu": jnp.array([2.0, -0.1])}, (), jnp.asarray(1))
    np.testing.assert_allclose(out["mu"], [2.0 - 10.0 / N / 4, 0.0])


# -- averages ---------------------------------------------------------------------------------------

ITERATES = np.array([5.0, 3.0, -1.0, 2.0, 8.0, 0.5])


@pytest.mark.parametrize(
    ("average", "weights"),
    [
        (mx.LastIterate(), [0, 0, 0, 0, 0, 1]),
        (mx.PolyakRuppert(2), [0, 0, 1, 1, 1, 1]),
        (LinearlyWeighted(2), [0, 0, 1, 2, 3, 4]),
        (mx.StepWeighted(mx.Polynomial(3.0, 1.0), 3), [0, 0, 0, 1 / 4, 1 / 5, 1 / 6]),
    ],
    ids=lambda a: type(a).__name__,
)
def test_averages_are_weighted_means_after_the_burn_in(average, weights):
    state = start(average, {"a": jnp.asarray(100.0)})
    for k, value in enumerate(ITERATES, start=1):
        state = include(average, state, {"a": jnp.asarray(value)}, jnp.asarray(k), jnp.asarray(average.burn_in))
        if k <= average.burn_in:
            assert float(state[1]["a"]) == value
    assert float(state[1]["a"]) == pytest.approx(np.average(ITERATES, weights=weights))


def test_a_burn_in_is_not_negative():
    for make in (mx.PolyakRuppert, LinearlyWeighted, lambda b: mx.StepWeighted(1.0, b)):
        with pytest.raises(ValueError, match="burn_in"):
            make(-1)
        make(0)


# -- algorithms -------------------------------------------------------------------------------------


def iterate(algorithm, n_iter, y=TABLE, penalty=None, space=None, batch_size=None, model=None, size=2, **settings):
    """The trace of mu[0] of an exact fit."""
    estep = mx.Quadrature(7)
    settings |= {"space": space, "penalty": penalty, "batch_size": batch_size, "progress": False, "throw": False, "polish": False}
    start = {"mu": np.full(size, 0.3)}
    out = mx.fit(model or Gaussian(), y, algorithm, estep, params=start, n_iter=n_iter, dtype=float, **settings)
    return np.asarray(out.trace["params"])[:, 0, 0], out


def test_quadratic_surrogates_take_gradient_steps_of_one_over_their_curvature():
    """A full batch of MISSO is a gradient step; E[d log p / d mu_1 | y], with the other mean equal to it, is (y - mu) / 3."""
    lipschitz = 2.5
    trace, _ = iterate(mx.misso(lipschitz), 3)
    mu: list[Any] = [0.3]
    for _ in range(3):
        mu.append(mu[-1] + np.mean((TABLE - mu[-1]) / 3) / lipschitz)
    np.testing.assert_allclose(trace, mu[1:], rtol=1e-9)
    for curvature in (0.0, -1.0):
        with pytest.raises(ValueError, match="lipschitz must be positive"):
            mx.misso(curvature)
    with pytest.raises(ValueError, match="first_pass=False"):
        mx.misso(first_pass=False)


@pytest.mark.parametrize("first_pass", [True, False])
def test_sag_without_a_first_pass_starts_from_scores_of_zero(first_pass):
    trace, _ = iterate(mx.sag(0.5, mx.LastIterate(), first_pass), 1, batch_size=1, key=3)
    scores = (TABLE - 0.3) / 3
    expected = [0.3 + 0.5 * scores.mean()] * N if first_pass else 0.3 + 0.5 * scores / N
    assert np.min(np.abs(trace[0] - expected)) < 1e-9


def test_statistics_of_a_unit_and_of_the_batch_agree():
    z, w = jnp.asarray([[0.1, -0.4, 2.0], [1.0, 0.0, 0.5]]), jnp.asarray([[0.3, 0.5, 0.9], [0.7, 0.5, 0.1]])
    y, params = jnp.asarray(TABLE[:3]), {"mu": jnp.array([0.3, -0.1])}
    expected = np.stack([np.sum(np.asarray(w * (z - m)), axis=0) for m in (0.3, -0.1)], axis=1)
    each, total = (getattr(Score(), name)(Gaussian(), params, z, w, y)["mu"] for name in ("per_unit", "total"))
    np.testing.assert_allclose(each, expected)
    np.testing.assert_allclose(total, expected.sum(axis=0))
    anchors, anchor = (
        getattr(SurrogateMinimiser(np.asarray(2.0)), name)(Gaussian(), params, z, w, y)["mu"] for name in ("per_unit", "total")
    )
    np.testing.assert_allclose(anchors, np.array([0.3, -0.1]) + expected / 2)
    np.testing.assert_allclose(anchor, anchors.sum(axis=0))
    np.testing.assert_array_equal(SurrogateMinimiser(np.asarray(2.0)).at_rest(params)["mu"], params["mu"])
    assert not np.any(Score().at_rest(params)["mu"])


def test_online_em_waits_for_twice_as_many_units_as_parameters_and_twenty_at_least():
    y = np.random.default_rng(0).normal(size=60)
    trace, _ = iterate(mx.online_em(), 16, y, batch_size=3)
    moved = np.flatnonzero(trace != 0.3)[0] + 1
    assert moved == 7  # 21 units are the first 20 or more
    few, _ = iterate(mx.online_em(), 6, y[:9], batch_size=3)
    assert np.flatnonzero(few != 0.3)[0] + 1 == 3  # all nine of nine
    assert iterate(mx.saem(), 2, y, batch_size=3)[0][0] != 0.3
    wide, _ = iterate(mx.online_em(), 10, y, batch_size=3, model=Wide(), size=12)
    assert np.flatnonzero(wide != 0.3)[0] + 1 == 8  # 24 units for twelve parameters


def test_recipes_say_what_they_are_made_of():
    recipes: Any = mx

    def parts(algorithm):
        kinds = tuple(
            type(part).__name__ for part in (algorithm.statistic, algorithm.memory, algorithm.update, algorithm.average)
        )
        return kinds, algorithm.refresh_epochs, algorithm.held, algorithm.first_pass, algorithm.sampling

    score = ("Score", "NoMemory", "Ascent")
    assert parts(recipes.soul(0.1)) == ((*score, "StepWeighted"), None, False, True, "reshuffled")
    assert parts(recipes.isgd(0.1)) == parts(recipes.aisgd(0.1)) == ((*score, "PolyakRuppert"), None, False, True, "reshuffled")
    assert parts(recipes.soul(optax.adam(0.1)))[0] == ("Score", "NoMemory", "Optax", "PolyakRuppert")
    assert float(recipes.soul(optax.adam(0.1)).update.step(3)) == 1.0
    statistics = "SufficientStatistics"
    assert parts(recipes.saem())[0] == (statistics, "RobbinsMonro", "MStep", "LastIterate")
    assert parts(recipes.online_em()) == ((statistics, "RobbinsMonro", "MStep", "PolyakRuppert"), None, True, True, "reshuffled")
    assert parts(recipes.mcem())[0] == (statistics, "NoMemory", "MStep", "PolyakRuppert")
    assert parts(recipes.misso())[0] == parts(recipes.miso())[0] == (statistics, "Table", "MStep", "LastIterate")
    assert parts(recipes.misso(1.0, first_pass=False))[::3] == (("SurrogateMinimiser", "Table", "Mean", "PolyakRuppert"), False)
    assert parts(recipes.miso(1.0))[0][-1] == "LastIterate"
    assert parts(recipes.sag(0.1))[0] == ("Score", "Table", "Ascent", "PolyakRuppert")
    assert parts(recipes.saga()) == (("Score", "Saga", "Ascent", "PolyakRuppert"), None, False, True, "reshuffled")
    assert parts(recipes.saga(of="suffstats")) == ((statistics, "Saga", "MStep", "LastIterate"), None, False, True, "uniform")
    assert parts(recipes.svrg(refresh_epochs=3)) == (("Score", "Anchor", "Ascent", "PolyakRuppert"), 3, False, True, "reshuffled")
    assert parts(recipes.svrg(of="suffstats"))[1] == 1
    gain = [float(recipes.saem().memory.step(k)) for k in (1, 100, 101, 102, 116)]
    np.testing.assert_allclose(gain, [1, 1, 1, 2**-0.8, 16**-0.8])
    np.testing.assert_allclose([float(recipes.soul().gain(k)) for k in (1, 32)], [1, 1 / 8])
    np.testing.assert_allclose(float(recipes.online_em().memory.step(32)), 1 / 8)
    assert float(recipes.saga().memory.weight(5)) == float(recipes.svrg().memory.weight(5)) == 1.0
    assert recipes.saga(of="suffstats").memory.weight is None
    assert float(recipes.saga(0.4).update.step(3)) == pytest.approx(0.4) and float(
        recipes.svrg().update.step(1)
    ) == pytest.approx(0.1)
    for make in (lambda: recipes.svrg(refresh_epochs=0), lambda: recipes.saga(of="nothing")):
        with pytest.raises(ValueError):
            make()
    assert describe(recipes.saem(), recipes.Exact(), Gaussian()) == "Gaussian: SufficientStatistics x RobbinsMonro x MStep, Exact"
    assert describe(recipes.soul(), recipes.Quadrature(), Gaussian()) == "Gaussian: ScaledAscent, Quadrature"
    particles = [recipes.pgd(0.1), recipes.ipla(0.1), recipes.slow_fast(0.1, 50.0)]
    assert [p.noise for p in particles] == ["none", "per particle", "fixed"]
    assert float(particles[2].temperature) == pytest.approx(1 / 50)


# -- scaled ascent ----------------------------------------------------------------------------------


def test_newton_step_takes_eigenvalues_by_their_modulus_and_bounds_them_below():
    q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    values, s = np.array([4.0, -0.5, 1e-9]), np.array([1.0, -2.0, 0.3])
    found, largest = newton_step(jnp.asarray(q * values @ q.T), jnp.asarray(s))
    np.testing.assert_allclose(found, q @ ((q.T @ s) / np.array([4.0, 0.5, 4e-6])), rtol=1e-6)
    assert largest == pytest.approx(4.0)
    assert np.all(np.isfinite(newton_step(jnp.zeros((2, 2)), jnp.zeros(2))[0]))


@pytest.mark.parametrize("size", [2, 40], ids=["matrix", "largest eigenvalue"])
def test_scaled_ascent_is_the_em_gradient_algorithm(size):
    """With exact expectations: mu + gain J^-1 s, J the complete information (one a unit), s = (y - mu) / (1 + size)."""
    algorithm = ScaledAscent(gain=as_schedule(0.8), average=mx.LastIterate())
    trace, _ = iterate(algorithm, 3, size=size)
    mu: list[Any] = [0.3]
    for _ in range(3):
        mu.append(mu[-1] + 0.8 * np.mean((TABLE - mu[-1]) / (1 + size)))
    np.testing.assert_allclose(trace, mu[1:], rtol=1e-9)


def test_scaled_ascent_takes_no_step_beyond_one_plus_the_size_and_works_in_free_coordinates():
    algorithm = ScaledAscent(gain=as_schedule(1.0), average=mx.LastIterate())
    far, _ = iterate(algorithm, 1, TABLE + 1000)
    assert far[0] == pytest.approx(0.3 + 1.3)
    positive, _ = iterate(algorithm, 1, TABLE, space=mx.Positive())
    # In u = log mu: the score is mu (y - mu) / 3, the complete information mu^2 - mu E[z - mu], a coordinate and unit.
    slope = np.mean((TABLE - 0.3) / 3)
    u = np.log(0.3) + np.clip(0.3 * slope / abs(0.09 - 0.3 * slope), -(1 - np.log(0.3)), 1 - np.log(0.3))
    assert positive[0] == pytest.approx(np.exp(u), rel=1e-8)


def test_scaled_ascent_with_a_penalty_steps_by_the_largest_eigenvalue():
    algorithm = ScaledAscent(gain=as_schedule(0.5), average=mx.LastIterate())
    trace, _ = iterate(algorithm, 1, penalty=mx.L1(0.7))
    free = 0.3 + 0.5 * np.mean((TABLE - 0.3) / 3)
    assert trace[0] == pytest.approx(np.sign(free) * max(abs(free) - 0.5 * 0.7 / N, 0), rel=1e-9)


def test_an_algorithm_of_rows_needs_a_statistic_that_can_rest():
    algorithm = eqx.tree_at(lambda a: a.average, mx.incremental_em(), mx.LastIterate())
    kind: Any = Algorithm
    hasty = kind(algorithm.statistic, algorithm.memory, algorithm.update, algorithm.average, None, False, False)
    assert "first full pass" in (hasty.requires(problem()) or "") and algorithm.requires(problem()) is None
