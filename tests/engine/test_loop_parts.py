"""The compiled loop by parts: noise by key, iteration and unit, blocks of it, the loop's bookkeeping, and a pass over units."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false, reportCallIssue=false

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from helpers import random_intercept
from margaux.algorithms.base import Visit
from margaux.algorithms.updates import Problem
from margaux.engine import loop
from margaux.engine.loop import (
    INIT,
    TRACED,
    Carry,
    Settings,
    _as_runs,
    _at,
    _block_size,
    _lone,
    _loop,
    draw_noise,
    first_state,
    init_rows,
    latent_struct,
    one_iteration,
    statistic_struct,
    visit_all,
)
from margaux.numerics.arrays import as_array
from margaux.numerics.precision import settle
from margaux.problem.space import as_space

INTERCEPT = random_intercept()

pytestmark = pytest.mark.usefixtures("double")


class Pair(mx.AbstractModel):
    """Two latents, of which one is a vector."""

    def log_joint(self, params, z, y):
        return -jnp.sum((z["a"] - y["x"] - params["m"]) ** 2) - z["b"] ** 2

    def init_latents(self, key, params, y):
        return {"a": 0.0 * y["x"], "b": jnp.zeros(())}


def settings(model=None, algorithm=None, estep=None, params=None, n=4, average=None, burn_in=0):
    params = {"m": np.array(0.5)} if params is None else params
    made = settle(
        (algorithm or mx.soul(), estep or mx.MCMC(mx.RandomWalk(1.0), n_steps=1), average or mx.LastIterate()), np.dtype(float)
    )
    problem = Problem(model or Pair(), as_space(None, params), mx.NoPenalty(), n)
    return Settings(problem, *made, as_array(burn_in))


DATA = {"x": np.arange(12.0).reshape(4, 3)}


def test_latents_and_statistics_have_the_shapes_of_one_unit():
    one = settings()
    struct = latent_struct(one.problem, {"m": jnp.asarray(0.5)}, DATA)
    assert struct["a"].shape == (3,) and struct["b"].shape == ()
    statistic = statistic_struct(one, {"m": jnp.asarray(0.5)}, DATA)
    assert [leaf.shape for leaf in jax.tree.leaves(statistic)] == [()]  # the score of one parameter
    intercept = settings(INTERCEPT.model, mx.saem(), params=INTERCEPT.start)
    statistic = statistic_struct(intercept, jax.tree.map(jnp.asarray, INTERCEPT.start), INTERCEPT.data)
    assert all(leaf.shape == () and leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(statistic))


def test_noise_depends_on_key_iteration_and_unit_alone():
    one = settings()
    struct = latent_struct(one.problem, {"m": jnp.asarray(0.5)}, DATA)
    keys = jax.random.split(jax.random.key(3), 2)
    ks, ids = jnp.array([7, 9, 11]), jnp.array([5, 2])
    drawn = draw_noise(one, keys[None, :, None], struct, ks[:, None, None], ids)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape), struct)
    leaves = jax.tree.leaves(drawn)
    for t, r, i in np.ndindex(3, 2, 2):
        key = jax.random.fold_in(jax.random.fold_in(keys[r], ks[t]), ids[i])
        for whole, lone in zip(leaves, jax.tree.leaves(one.estep.noise(key, zeros)), strict=True):
            pair = [whole[t, r, i], lone]
            if jnp.issubdtype(lone.dtype, jax.dtypes.prng_key):
                pair = [jax.random.key_data(leaf) for leaf in pair]
            np.testing.assert_array_equal(*pair)


@pytest.mark.parametrize(("b", "runs", "total", "size"), [
    (1, 1, 1000, 128), (1, 1, 50, 50), (256, 1, 1000, 32), (256, 2, 1000, 16), (512, 2, 1000, 8),
    (513, 2, 1000, 1), (512, 4, 1000, 1),
])  # fmt: skip
def test_noise_is_drawn_for_as_many_iterations_as_its_memory_allows(b, runs, total, size, monkeypatch):
    # Sixteen numbers of eight bytes a unit, and a mebibyte.
    monkeypatch.setattr(loop, "draw_noise", lambda *_: {"e": jnp.zeros((4, 3)), "u": jnp.zeros(4)})
    assert _block_size(None, None, b, total, runs) == size


def test_noise_that_is_nothing_is_drawn_for_a_whole_block(monkeypatch):
    monkeypatch.setattr(loop, "draw_noise", lambda *_: ())
    assert _block_size(None, None, 10, 1000, 1) == 128 and _block_size(None, None, 10, 7, 1) == 7


@pytest.mark.parametrize(("length", "total", "block"), [(1, 1, 1), (7, 10, 1), (7, 10, 3), (10, 10, 4), (6, 12, 3), (2, 10, 5)])
def test_a_loop_runs_every_iteration_once_with_its_own_noise(length, total, block):
    seen = []

    def noise_of(offset):
        return {"e": 100.0 * (offset + jnp.arange(block))}

    def iteration(carry, k, t, noise):
        return carry * 2 + noise["e"], {"k": k, "t": t, "e": noise["e"], "carry": jnp.stack([carry, carry])}

    run = jax.jit(lambda carry, length: _loop(carry, jnp.int32(5), length, total, block, noise_of, iteration))
    carry, ys = run(jnp.float64(1.0), jnp.int32(length))
    value = 1.0
    for t in range(length):
        seen.append(value)
        value = value * 2 + 100.0 * t
    assert float(carry) == value
    np.testing.assert_array_equal(ys["k"][:length], 5 + np.arange(length))
    np.testing.assert_array_equal(ys["t"][:length], np.arange(length))
    np.testing.assert_array_equal(ys["e"][:length], 100.0 * np.arange(length))
    np.testing.assert_array_equal(ys["carry"][:length], np.stack([seen, seen], axis=1))
    assert ys["carry"].shape == (total, 2) and not np.any(ys["k"][length:])


def test_runs_are_taken_apart_and_put_back():
    tree = {"a": jnp.arange(6.0).reshape(1, 6), "b": jnp.ones((1, 2, 3))}
    np.testing.assert_array_equal(_lone(tree)["a"], np.arange(6.0))
    assert _as_runs(_lone(tree))["b"].shape == (1, 2, 3) and _as_runs(_lone(tree), 1)["b"].shape == (2, 1, 3)
    second = {"a": jnp.arange(6.0).reshape(2, 3)}
    np.testing.assert_array_equal(_lone(second, 1)["a"], [0.0, 3.0])
    np.testing.assert_array_equal(_at(second, jnp.int32(1))["a"], [3.0, 4.0, 5.0])
    np.testing.assert_array_equal(_lone({"a": jnp.array([[7.0], [8.0]])})["a"], [7.0])


class Walk(mx.AbstractModel):
    """As many parameters as are asked for, which a step moves to one, two, three and so on."""

    def log_joint(self, params, z, y):
        return jnp.sum(params["m"]) * z

    def init_latents(self, key, params, y):
        return jnp.ones(())


@pytest.mark.parametrize("count", [TRACED, TRACED + 1])
def test_the_trace_has_the_parameters_or_the_norm_of_very_many(count):
    stub = SimpleNamespace(
        step=lambda problem, estep, params, state, visit: ({"m": params["m"] + 2.0}, "state", "rows", {"ess": 3.0})
    )
    average = mx.PolyakRuppert(2)
    one = SimpleNamespace(algorithm=stub, problem=None, estep=None, average=average, burn_in=jnp.asarray(2))
    params = {"m": jnp.full(count, 1.0)}
    started = loop.averaging.start(average, params)
    visit = Visit(None, None, None, None, jnp.int32(3))
    moved, state, kept, rows, trace = one_iteration(one, Carry(params, None, started, None), visit)
    np.testing.assert_array_equal(moved["m"], np.full(count, 3.0))
    assert (state, rows, trace["ess"]) == ("state", "rows", 3.0)
    if count == TRACED:
        np.testing.assert_array_equal(trace["params"], np.full(count, 3.0))
        assert "norm" not in trace
    else:
        np.testing.assert_allclose(trace["norm"], [3.0 * np.sqrt(count)])
        assert "params" not in trace
    np.testing.assert_array_equal(kept[1]["m"], moved["m"])  # the first after the burn-in


def test_rows_of_units_start_by_their_own_keys():
    one = settings(estep=mx.MCMC(mx.RandomWalk(1.0), n_chains=2))
    key, params = jax.random.key(2), {"m": jnp.asarray(0.5)}
    data = {"x": jnp.asarray(DATA["x"])}
    rows = init_rows(one, key, params, data, np.array([4, 5, 6, 7]))
    for i in range(4):
        own = jax.random.fold_in(jax.random.fold_in(key, INIT), 4 + i)
        lone = one.estep.init(own, one.problem.model, params, {"x": data["x"][i]})
        for whole, part in zip(jax.tree.leaves(rows), jax.tree.leaves(lone), strict=True):
            if not jnp.issubdtype(part.dtype, jax.dtypes.prng_key):
                np.testing.assert_allclose(whole[i], part)


def test_states_before_the_first_iteration_are_those_of_the_algorithm_and_the_average():
    one = settings(average=mx.PolyakRuppert(5))
    unit = statistic_struct(one, {"m": jnp.asarray(0.5)}, DATA)
    state, average = first_state(one, {"m": jnp.asarray(0.5)}, unit)
    wanted = one.algorithm.init(one.problem, {"m": jnp.asarray(0.5)}, unit)
    assert jax.tree.structure(state) == jax.tree.structure(wanted)
    assert float(average[1]["m"]) == 0.5


def test_a_pass_sums_the_statistics_of_units_and_counts_each_once():
    with jax.enable_x64(True):
        one = settings(INTERCEPT.model, mx.saem(), mx.Quadrature(15), INTERCEPT.start, n=40)
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), INTERCEPT.start)
        ids = np.array([2, 5, 9, 30, 30, 30])
        data = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[ids], float), INTERCEPT.data)
        rows = init_rows(one, jax.random.key(0), params, data, ids)
        (_, each), total = visit_all(one, jax.random.key(0), params, rows, data, jnp.asarray(ids), jnp.int32(0))
        y, mask = (np.asarray(INTERCEPT.data[name])[ids] for name in ("y", "mask"))
        precision = 1 / params["tau2"] + mask.sum(axis=1)
        mean = (params["mu"] / params["tau2"] + (mask * y).sum(axis=1)) / precision
        np.testing.assert_allclose(each["z"], mean, rtol=1e-6)
        np.testing.assert_allclose(each["z2"], mean**2 + 1 / precision, rtol=1e-6)
        np.testing.assert_allclose(total["z"], mean[:4].sum(), rtol=1e-6)


@pytest.mark.parametrize("given", [{}, {"runs": 2}, {"batch_size": 6}, {"batch_size": 6, "runs": 2}], ids=str)
def test_blocks_of_noise_change_nothing(given, monkeypatch):
    """Nor does it matter how many iterations a chunk has."""

    def trace(block):
        monkeypatch.setattr(loop, "BLOCK", block)

        class Own(type(INTERCEPT.model)):
            """A class of its own is compiled anew."""

        return mx.fit(Own(), INTERCEPT.data, mx.soul(), mx.MCMC(mx.RandomWalk(1.0), n_steps=1), params=INTERCEPT.start, n_iter=50,
                      space=INTERCEPT.space, polish=False, progress=False, **given).trace["params"]  # fmt: skip

    many = trace(8)
    np.testing.assert_allclose(trace(50), many, rtol=1e-12)
    assert np.all(np.any(np.diff(many, axis=0) != 0, axis=2))
