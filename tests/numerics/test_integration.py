"""Differential equations: the order of the methods, against a general solver, closed forms and their derivatives."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from margaux.numerics import steps
from margaux.numerics.forward import transposable
from margaux.numerics.integration import Inputs, fixed_point, states_at
from margaux.numerics.steps import rodas, tsitouras

pytestmark = pytest.mark.usefixtures("double")

METHODS = {"rodas": (rodas, 4), "tsitouras": (tsitouras(), 5)}
NOTHING = Inputs(jnp.full(1, jnp.inf), jnp.full(1, jnp.inf), jnp.zeros((1, 2)), jnp.zeros((1, 2)))


def _driven(t, y, x=None):
    """Nonlinear, and with a clock of its own."""
    return (-y[0] * y[1] + jnp.sin(3 * t) * y[1], y[0] ** 2 - 0.5 * y[1] * t)


def _at(method, derivative, x, times, y0=(1.0, 0.5), inputs=NOTHING, added=None, **options):
    added = jnp.zeros((len(times), 2)) if added is None else added
    tight = {"rtol": 1e-8, "atol": jnp.full(2, 1e-10)} | options
    return states_at(derivative, lambda _: x, (0.0, jnp.asarray(y0)), jnp.asarray(times), added, inputs, method=method, **tight)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_has_its_order(name):
    method, order = METHODS[name]
    exact = solve_ivp(lambda t, y: np.asarray(_driven(t, y)), (0, 2), [1.0, 0.5], rtol=1e-12, atol=1e-13, method="DOP853").y[
        :, -1
    ]

    def wrong(count):
        def turn(k, y):
            return method(_driven, 2.0 * k / count, y, 2.0 / count)[0]

        found = jax.lax.fori_loop(0, count, turn, (jnp.asarray(1.0), jnp.asarray(0.5)))
        return np.abs(np.asarray(found) - exact).max()

    assert np.log2(wrong(40) / wrong(80)) == pytest.approx(order, abs=0.8)


def test_stages_in_turns_are_those_that_are_written_out(monkeypatch):
    """Of a stiff chain that depends on time: a step, its error, and their derivatives."""

    def slope(t, y):
        return tuple(jnp.sin(t) - 10.0**i * y[i] * (1 + y[i - 1] ** 2) for i in range(5))

    def stepped(y):
        after, wrong = rodas(slope, 0.3, tuple(y), 0.05)
        return jnp.stack(after + wrong)

    start = jnp.linspace(0.5, 1.5, 5)
    in_turns = stepped(start), jax.jacfwd(stepped)(start)
    monkeypatch.setattr(steps, "WRITTEN_OUT", 5)
    written_out = stepped(start), jax.jacfwd(stepped)(start)
    for one, other in zip(in_turns, written_out, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_rodas_is_l_stable():
    after, _ = rodas(lambda t, y: (-1e9 * y[0],), 0.0, (jnp.asarray(1.0),), 1.0)
    assert abs(float(after[0])) < 1e-7


@pytest.mark.parametrize("name", METHODS)
def test_states_are_those_of_a_general_solver(name):
    times = np.array([0.3, 1.0, 2.5, 4.0])
    found = np.asarray(_at(METHODS[name][0], _driven, None, times))
    term = diffrax.ODETerm(lambda t, y, args: jnp.stack(_driven(t, y)))
    other = diffrax.diffeqsolve(
        term, diffrax.Dopri8(), 0.0, 4.0, 0.01, jnp.array([1.0, 0.5]), saveat=diffrax.SaveAt(ts=jnp.asarray(times)),
        stepsize_controller=diffrax.PIDController(rtol=1e-11, atol=1e-12),
    )  # fmt: skip
    np.testing.assert_allclose(found, np.asarray(other.ys), rtol=2e-7)


def _chain(t, y, x):
    return (-x[0] * y[0], x[0] * y[0] - x[1] * y[1])


def _exact(x, t):
    return x[0] / (x[0] - x[1]) * (jnp.exp(-x[1] * t) - jnp.exp(-x[0] * t))


def test_derivatives_forwards_backwards_and_twice():
    times, x = jnp.array([0.5, 2.0, 6.0]), jnp.array([1.3, 0.4])

    def solved(x, times):
        return _at(rodas, _chain, x, times, (1.0, 0.0))[:, 1]

    curve = transposable(solved)
    of = {"value": lambda f: f, "forward": jax.jacfwd, "backward": jax.jacrev, "twice": jax.hessian}
    for name, derived in of.items():
        found = derived(lambda x: curve(x, times))(x)
        wanted = derived(lambda x: jax.vmap(lambda t: _exact(x, t))(times))(x)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-7, err_msg=name)


def test_inputs_are_at_once_or_last():
    """A bolus at 1 and an infusion from 2 to 5, and what counts at the moment itself."""
    inputs = Inputs(
        jnp.array([1.0, 2.0]), jnp.array([1.0, 5.0]), jnp.array([[0.0, 3.0], [0.0, 0.0]]), jnp.array([[0.0, 0.0], [0.0, 2.0]])
    )
    x, times = jnp.array([0.0, 0.7]), np.array([0.5, 1.0, 1.5, 3.0, 5.0, 8.0])
    for counted in (0.0, 3.0):
        added = jnp.zeros((6, 2)).at[1, 1].set(counted)
        found = np.asarray(_at(rodas, _chain, x, times, (0.0, 0.0), inputs, added))[:, 1]
        infused = 2 / 0.7 * (np.exp(-0.7 * np.maximum(times - 5, 0)) - np.exp(-0.7 * np.maximum(times - 2, 0)))
        wanted = np.where(times > 1, 3 * np.exp(-0.7 * (times - 1)), 0.0) + infused
        wanted[1] = counted
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


def test_units_of_different_lengths_and_rates_go_side_by_side():
    rates = jnp.array([[0.01, 0.1], [1.0, 0.4], [500.0, 30.0]])
    times = jnp.array([[1.0, 2.0, 2.0], [1.0, 5.0, 90.0], [0.01, 0.02, 0.5]])
    found = jax.vmap(lambda x, t: _at(rodas, _chain, x, t, (1.0, 0.0))[:, 1])(rates, times)
    wanted = jax.vmap(lambda x, t: jax.vmap(lambda t: _exact(x, t))(t))(rates, times)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-9)


def test_what_cannot_be_solved_is_not_a_number_and_does_not_spread():
    def explodes(t, y, x):
        return (x[0] * y[0] ** 2, -y[1])

    times = jnp.array([0.5, 2.0])
    values, slopes = (f(lambda x: transposable(lambda x, t: _at(rodas, explodes, x, t)[:, 0])(x, times)) for f in (
        lambda f: f(jnp.array([1.0])), lambda f: jax.jacrev(f)(jnp.array([1.0]))
    ))  # fmt: skip
    np.testing.assert_allclose(values[0], 2.0, rtol=1e-6)
    assert np.isnan(values[1]) and np.isfinite(np.asarray(slopes)).all()


def test_fixed_points_and_their_derivatives():
    def root(x):
        return fixed_point(lambda y: jnp.stack([jnp.cos(x[0] * y[0]), 0.5 * y[1] + x[1]]), jnp.zeros(2))

    x = jnp.array([0.9, 0.3])
    y = np.asarray(root(x))
    np.testing.assert_allclose(y, [np.cos(0.9 * y[0]), 0.6], rtol=1e-12)
    sine = np.sin(0.9 * y[0])
    np.testing.assert_allclose(jax.jacfwd(root)(x), [[-y[0] * sine / (1 + 0.9 * sine), 0], [0, 2]], rtol=1e-9, atol=1e-12)
    step = 1e-5
    numeric = [(jax.jacfwd(root)(x + step * e) - jax.jacfwd(root)(x - step * e)) / (2 * step) for e in jnp.eye(2)]
    np.testing.assert_allclose(jax.jacfwd(jax.jacfwd(root))(x), np.moveaxis(np.asarray(numeric), 0, -1), atol=1e-7)
    assert np.isnan(np.asarray(fixed_point(lambda y: y + 1.0, jnp.zeros(1)))).all()
