"""Jobs of unequal length in lanes, and derivatives of what is so mapped."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.numerics.forward import pushed, transposable
from margaux.numerics.lanes import LANES, Work, done


class _Lane(NamedTuple):
    x: Any
    left: Any
    legs: Any
    halted: Any
    over: Any


# Logistic growth in legs: job (x, steps of a leg, legs), of which some have many and some none.
def _step(job, lane):
    x = lane.x + 0.1 * job[0] * lane.x * (1 - lane.x)
    return lane._replace(x=x, left=lane.left - 1, halted=lane.left == 1)


def _onwards(job, lane):
    _, steps, legs = job
    ends = lane.legs == legs
    return lane._replace(left=jnp.asarray(steps), legs=lane.legs + 1, halted=ends, over=ends)


WORK = Work(
    lambda job: _Lane(0.1 + 0 * job[0], jnp.asarray(0), jnp.asarray(0), jnp.asarray(True), jnp.asarray(False)),
    _step, _onwards, lambda lane: (lane.x, lane.legs - 1),
)  # fmt: skip


def _grown(rate, job, lanes=True):
    return done(WORK, (rate, *job), lanes)


def _by_hand(rate, steps, legs):
    x, slope = 0.1, 0.0
    for _ in range(steps * legs):
        slope = slope + 0.1 * x * (1 - x) + 0.1 * rate * slope * (1 - 2 * x)
        x = x + 0.1 * rate * x * (1 - x)
    return x, slope


def _jobs(count, seed=0):
    rng = np.random.default_rng(seed)
    legs = rng.integers(0, 4, count)
    legs[rng.integers(0, count)] = 60  # one takes much longer than all
    return rng.uniform(0.5, 2.0, count), rng.integers(1, 9, count), legs


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize("count", [1, 2, LANES - 1, LANES, LANES + 1, 5 * LANES + 3])
def test_each_job_is_done_as_if_it_were_alone(count, lanes):
    rate, steps, legs = _jobs(count)
    every = jax.jit(jax.vmap(lambda rate, job: _grown(rate, job, lanes)))
    found, counted = every(jnp.asarray(rate), (jnp.asarray(steps), jnp.asarray(legs)))
    np.testing.assert_allclose(found, [_by_hand(*job)[0] for job in zip(rate, steps, legs, strict=True)], rtol=2e-5)
    np.testing.assert_array_equal(counted, legs)


@pytest.mark.parametrize("of_rate, of_job", [(0, 0), (0, None), (None, 0)])
def test_maps_within_maps_are_one(of_rate, of_job):
    rate, steps, legs = (jnp.asarray(leaf).reshape(7, 6) for leaf in _jobs(42))
    inner = jax.vmap(_grown, (of_rate, 0))
    one = rate if of_rate == 0 else rate[:, 0]
    job = (steps, legs) if of_job == 0 else (steps[0], legs[0])
    found, _ = jax.jit(jax.vmap(inner, (0, of_job)))(one, job)
    whole = jnp.broadcast_to(one if of_rate == 0 else one[:, None], (7, 6))
    each = np.vectorize(lambda *job: _by_hand(*job)[0])(whole, np.asarray(job[0]), np.asarray(job[1]))
    np.testing.assert_allclose(found, each, rtol=2e-5)


def test_what_is_mapped_by_nothing_is_done_once():
    found, _ = jax.vmap(lambda _: _grown(jnp.asarray(1.0), (3, 2)))(jnp.arange(4))
    np.testing.assert_allclose(found, np.full(4, _by_hand(1.0, 3, 2)[0]), rtol=1e-6)


def test_directions_are_pushed_through_lanes_whatever_is_mapped():
    rate, steps, legs = _jobs(3 * LANES)
    slopes = np.array([_by_hand(*job)[1] for job in zip(rate, steps, legs, strict=True)])
    job = jnp.asarray(steps), jnp.asarray(legs)

    def of(rate, directions, job):
        return pushed(lambda rate, job: _grown(rate, job)[0])(rate, directions, job)[1]

    along = jnp.asarray([1.0, -2.0])
    expected = slopes[:, None] * np.asarray(along)
    np.testing.assert_allclose(jax.vmap(of, (0, None, 0))(jnp.asarray(rate), along, job), expected, rtol=1e-4, atol=1e-6)
    # Directions mapped within, of one job each; and both together.
    each = jax.vmap(lambda rate, job: jax.vmap(lambda one: of(rate, one[None], job)[0])(along))
    np.testing.assert_allclose(each(jnp.asarray(rate), job), expected, rtol=1e-4, atol=1e-6)
    both = jnp.linspace(-1.0, 1.0, len(rate))[:, None]
    np.testing.assert_allclose(
        jax.vmap(of)(jnp.asarray(rate), both, job), slopes[:, None] * np.asarray(both), rtol=1e-4, atol=1e-6
    )


def test_curvatures_through_lanes_are_those_of_one_job_after_the_other():
    rate, steps, legs = _jobs(2 * LANES, 1)
    job = jnp.asarray(steps), jnp.asarray(legs)
    curve = transposable(lambda x, job: _grown(x[0] * x[1], job)[0])

    def value(x, job):
        return jnp.sin(curve(x, job)) * x[1]

    x = jnp.stack([jnp.asarray(rate), jnp.linspace(0.5, 1.5, len(rate))], axis=1)
    for derivative in (jax.grad, jax.hessian):
        together = jax.jit(jax.vmap(derivative(value)))(x, job)
        alone = jax.jit(derivative(value))
        apart = [alone(x[i], (job[0][i], job[1][i])) for i in range(len(rate))]
        np.testing.assert_allclose(together, np.stack(apart), rtol=1e-3, atol=1e-5)
    # An oracle without lanes: differences of the values.
    h = 1e-2
    for i in (0, 5, 9):
        point = np.asarray(x[i])
        step = np.array([0.0, h])
        own = int(steps[i]), int(legs[i])
        values = [np.sin(_by_hand(p[0] * p[1], *own)[0]) * p[1] for p in (point + step, point, point - step)]
        second = (values[0] - 2 * values[1] + values[2]) / h**2
        np.testing.assert_allclose(jax.hessian(value)(x[i], own)[1, 1], second, rtol=0.02, atol=1e-3)
