"""Spaces, penalties and schedules: the properties that define them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

import margaux as mx

SPACES = {
    "real": (mx.Real(), (3,)),
    "box": (mx.Box(-1.0, 2.0), (3,)),
    "half line": (mx.Box(low=0.5), (3,)),
    "lower half line": (mx.Box(high=0.5), (3,)),
    "positive": (mx.Positive(1e-3), (3,)),
    "ball": (mx.Ball(1.5, centre=[0.1, 0.2, 0.3]), (3,)),
    "simplex": (mx.Simplex(), (4,)),
    "positive definite": (mx.PositiveDefinite(1e-3), (3, 3)),
}
INTERIOR = {"half line": np.full(3, 0.8), "positive definite": np.eye(3) + 0.3}


@pytest.mark.parametrize("name", SPACES)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_spaces(name, seed):
    space, shape = SPACES[name]
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        x = jnp.asarray(3 * rng.normal(size=shape))
        p = space.project(x)
        np.testing.assert_allclose(space.project(p), p, atol=1e-12)
        # A projection makes an obtuse angle with every point of a convex set.
        inside = space.project(jnp.asarray(3 * rng.normal(size=shape)))
        target = (x + x.T) / 2 if len(shape) == 2 else x
        assert float(jnp.sum((target - p) * (inside - p))) <= 1e-9
        u = space.to_unconstrained(jnp.asarray(INTERIOR.get(name, np.full(shape, 0.25))))
        u = u + 0.1 * rng.normal(size=np.shape(u))
        y = space.from_unconstrained(u)
        np.testing.assert_allclose(space.project(y), y, atol=1e-9)
        np.testing.assert_allclose(space.to_unconstrained(y), u, atol=1e-6)
        assert not bool(jnp.any(space.at_boundary(y)))
    single = space.project(jnp.zeros(shape, jnp.float32) + 0.1)
    assert single.dtype == jnp.float32


def test_boundaries_are_seen():
    assert bool(mx.Box(0.0, 1.0).at_boundary(jnp.asarray(1.0)))
    assert bool(mx.Positive(1e-3).at_boundary(jnp.asarray(1e-3)))
    assert bool(jnp.all(mx.Ball(1.0).at_boundary(jnp.asarray([1.0, 0.0]))))
    assert mx.Simplex().at_boundary(jnp.asarray([0.0, 1.0])).tolist() == [True, False]
    assert bool(jnp.all(mx.PositiveDefinite().at_boundary(jnp.asarray([[1.0, 1.0], [1.0, 1.0]]))))


PENALTIES = [mx.L1(0.7), mx.L2(0.7), mx.ElasticNet(0.5, 0.3), mx.Huber(0.7, 0.2)]


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: type(p).__name__)
@given(x=st.floats(-3, 3), step=st.floats(0.05, 4))
@settings(max_examples=20, deadline=None)
def test_prox_is_the_minimiser(penalty, x, step):
    with jax.enable_x64(True):
        found = float(penalty.prox({"a": jnp.asarray(x)}, jnp.asarray(step))["a"])
        objective = lambda v: float(penalty.value({"a": jnp.asarray(v)})) + (v - x) ** 2 / (2 * step)  # noqa: E731
        best: Any = optimize.minimize_scalar(objective, bounds=(-4, 4), method="bounded", options={"xatol": 1e-10})
        assert objective(found) <= best.fun + 1e-8


def test_penalties_on_some_parameters():
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    out = mx.L1(0.5, on="a").prox(params, jnp.asarray(1.0))
    np.testing.assert_allclose(out["a"], 0.5)
    np.testing.assert_allclose(out["b"], 1.0)


def test_schedules():
    assert float(mx.Constant(2.0)(7)) == 2.0
    assert float(mx.Polynomial(3.0, 1.0, offset=2.0)(1)) == pytest.approx(1.0)
    gain = mx.ConstantThenDecay(1.0, 3, 0.5)
    np.testing.assert_allclose([float(gain(k)) for k in (1, 3, 4, 5, 7)], [1, 1, 1, 2**-0.5, 0.5], rtol=1e-6)
    growth = mx.Growth(10, 1.0, 2.0, epoch=5, cap=30)
    assert [int(growth(k)) for k in (1, 5, 6, 11, 50)] == [11, 11, 14, 19, 30]


def test_changing_a_schedule_compiles_nothing():
    traced = 0

    @eqx.filter_jit
    def value(schedule, k):
        nonlocal traced
        traced += 1
        return schedule(k)

    move = lambda s: jax.tree.map(jnp.asarray, s)  # noqa: E731
    value(move(mx.Polynomial(1.0, 0.5)), jnp.asarray(1))
    value(move(mx.Polynomial(2.0, 0.7, 1.0)), jnp.asarray(9))
    assert traced == 1
