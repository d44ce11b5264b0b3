"""SAEM with a numerical M-step, by arithmetic: annealed variances, Newton's step, and what is kept from step to step."""

# Stand-ins take the place of fits and rules: pyright sees other types.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from margaux.algorithms.base import Visit
from margaux.algorithms.curved import LOOSE, SAEM, AbstractCurvedFamily, _no_faster
from margaux.algorithms.updates import Problem
from margaux.problem.space import as_space

pytestmark = pytest.mark.usefixtures("double")


def test_variances_fall_no_faster_than_by_a_share():
    new, old = np.array([1.0, 0.2, 3.0]), np.array([1.5, 1.5, 1.5])
    np.testing.assert_allclose(_no_faster(jnp.asarray(new), jnp.asarray(old), 0.5), [1.0, 0.75, 3.0])
    np.testing.assert_allclose(_no_faster(jnp.asarray(new), jnp.asarray(old), 0.0), new)
    assert float(_no_faster(jnp.asarray(0.2), jnp.asarray(1.5), 0.5)) == 0.75


def test_a_matrix_is_stretched_and_its_correlations_are_loosened():
    sizes = np.array([2.0, 0.5])
    new = np.array([[1.0, 0.8], [0.8, 1.0]]) * np.outer(sizes, sizes)
    old = np.diag([4.0, 4.0])
    np.testing.assert_allclose(_no_faster(jnp.asarray(new), jnp.asarray(old), 0.0), new)
    stretched = np.array([[1.0, 0.8], [0.8, 1.0]]) * np.outer([2.0, 1.0], [2.0, 1.0])
    np.testing.assert_allclose(_no_faster(jnp.asarray(new), jnp.asarray(old), 0.25), stretched)
    tight = np.array([[1.0, 0.98], [0.98, 1.0]])
    loose = np.array([[1.98 + LOOSE, 1.98 - LOOSE], [1.98 - LOOSE, 1.98 + LOOSE]]) / 2
    np.testing.assert_allclose(_no_faster(jnp.asarray(tight), jnp.eye(2), 0.5), loose)
    np.testing.assert_allclose(_no_faster(jnp.asarray(tight), jnp.eye(2), 0.0), tight)


class Curve(AbstractCurvedFamily):
    """y ~ N(exp(rate) + z, 1), z ~ N(0, omega), with a rate that has no closed M-step, bounded below."""

    with_rate: bool = True

    @property
    def numerical(self):
        return ("rate",) if self.with_rate else ()

    @property
    def variances(self):
        return ("omega",)

    def log_joint(self, params, z, y):
        return -((y - jnp.exp(params["rate"]) - z) ** 2) / 2 - z**2 / (2 * params["omega"][0]) - jnp.log(params["omega"][0]) / 2

    def init_latents(self, key, params, y):
        return 0.0 * y

    def suffstats(self, params, z, y):
        return {"z2": z**2}

    def m_step(self, mean_stats, params):
        return params | {"omega": mean_stats["z2"][None]}


Y, Z, W = np.array([1.0, 3.0]), np.array([[0.5, 0.2], [-0.1, 1.4]]), np.array([[0.25, 0.5], [0.75, 0.5]])


def stepped(model, k, state, params, gain=0.4, anneal=0.9, until=3):
    """One step with two weighted draws of two units."""
    algorithm = SAEM(gain=mx.Constant(gain), anneal=np.asarray(anneal), anneal_until=np.asarray(until), average=mx.LastIterate())
    problem = Problem(model, as_space(None, params), mx.NoPenalty(), 2)

    def expect(f, noise, model, params, rows, batch, k):
        return f(jnp.asarray(Z), jnp.asarray(W)), "kept", {"ess": 6.0}

    params = jax.tree.map(jnp.asarray, params)
    visit = Visit(("rows", "own"), jnp.asarray(Y), None, None, jnp.int32(k))
    return algorithm.step(problem, SimpleNamespace(expect=expect), params, state, visit)


def complete(rate):
    """Score and information a unit of the complete likelihood in the rate."""
    gap = Y - np.exp(rate) - Z
    score = np.sum(W * gap * np.exp(rate)) / 2
    return score, np.sum(W * (np.exp(2 * rate) - gap * np.exp(rate))) / 2


def first(model, params):
    algorithm = SAEM(gain=mx.Constant(0.4), anneal=np.asarray(0.9), anneal_until=np.asarray(3), average=mx.LastIterate())
    problem = Problem(model, as_space(None, params), mx.NoPenalty(), 2)
    unit = {"z2": jax.ShapeDtypeStruct((), jnp.float64)}
    return algorithm.init(problem, jax.tree.map(jnp.asarray, params), unit)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_a_step_is_newtons_for_one_group_and_closed_for_the_other(k):
    params = {"omega": np.array([2.0]), "rate": np.array(0.3)}
    state = first(Curve(), params)
    assert state["information"].shape == (1, 1)
    before = 7.0
    memory = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1.1), state["memory"])
    new, after, rows, info = stepped(Curve(), k, {"memory": memory, "information": jnp.full((1, 1), before)}, params)
    gain = 1.0 if k == 1 else 0.4
    score, curvature = complete(0.3)
    information = before + gain * (curvature - before)
    move = np.clip(score / abs(information), -1.3, 1.3)
    assert float(after["information"][0, 0]) == pytest.approx(information)
    assert float(new["rate"]) == pytest.approx(0.3 + gain * move)
    z2 = np.sum(W * Z**2) / 2
    mean = z2 if k == 1 else 1.1 + 0.4 * (z2 - 1.1)
    slow = 0.9 * 2.0 if k <= 3 else 0.0
    np.testing.assert_allclose(new["omega"], [max(mean, slow)])
    assert rows == ("kept", "own") and info == {"ess": 3.0}


def test_without_a_numerical_group_there_is_no_newton_step():
    params = {"omega": np.array([2.0]), "rate": np.array(0.3)}
    state = first(Curve(False), params)
    new, after, _, _ = stepped(Curve(False), 9, state, params)
    assert after["information"].shape == (0, 0) and float(new["rate"]) == 0.3


def test_a_step_is_no_longer_than_one_and_the_size_of_the_parameter():
    params = {"omega": np.array([2.0]), "rate": np.array(-0.2)}
    state = first(Curve(), params)
    new, _, _, _ = stepped(Curve(), 1, state, params)
    score, curvature = complete(-0.2)
    assert abs(score / curvature) > 1.2 and float(new["rate"]) == pytest.approx(-0.2 + 1.2 * np.sign(score))


def test_the_statistics_of_a_unit_are_weighted_over_its_draws():
    algorithm = SAEM(gain=mx.Constant(0.4), anneal=np.asarray(0.9), anneal_until=np.asarray(3), average=mx.LastIterate())
    params = {"omega": np.array([2.0]), "rate": np.array(0.3)}
    problem = Problem(Curve(), as_space(None, params), mx.NoPenalty(), 2)
    found = algorithm.statistics(problem, params, jnp.asarray(Z), jnp.asarray(W), jnp.asarray(Y))
    np.testing.assert_allclose(found["z2"], np.sum(W * Z**2, axis=0))
    assert algorithm.requires(problem) is None
    other = Problem(object(), problem.space, problem.penalty, 2)
    assert "does not inherit from AbstractCurvedFamily" in algorithm.requires(other)
