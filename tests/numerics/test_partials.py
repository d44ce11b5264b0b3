"""Derivatives by partial derivatives are those by any other means, and computed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.numerics.partials import by_partials


def _curve(x, data):
    """Of two numbers, with a loop, a gather and whole numbers among the data."""
    time, place = data

    def turn(state, here):
        return state * jnp.exp(-x[0] * here) + x[1] ** 2, state

    _, states = jax.lax.scan(turn, jnp.zeros_like(x[0]), jnp.arange(1.0, 5.0, dtype=x.dtype))
    return states[place] * jnp.sin(x[0] * time)


DATA = jnp.linspace(0.1, 1.0, 6), jnp.arange(6) % 4


def _total(curve):
    def total(theta, data):
        x = jnp.stack([jnp.exp(theta[0] + 0.3 * theta[1]), theta[2] * theta[0]])
        rows = jax.vmap(lambda time, place: curve(x, (time, place)))(*data)
        return jnp.sum(rows**2) + jnp.sum(rows) * theta[3]

    return total


THETA = jnp.array([0.3, -0.4, 0.7, 1.1])


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(
    "derivative",
    [jax.grad, jax.jacfwd, jax.hessian, lambda f: jax.jacfwd(jax.jacfwd(f)), lambda f: jax.jacrev(jax.jacrev(f)),
     lambda f: jax.jacfwd(jax.hessian(f))],
    ids=["reverse", "forward", "forward over reverse", "forward twice", "reverse twice", "third"],
)  # fmt: skip
def test_all_derivatives(derivative, staged, double):
    mine, plain = _total(by_partials(_curve)), _total(_curve)
    if staged:
        mine = jax.jit(mine)
    found, wanted = (derivative(f)(jnp.asarray(THETA, float), _as(float)) for f in (mine, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)


def test_data_have_derivatives_too(double):
    time, place = _as(float)

    def of_time(curve):
        return lambda t, theta: _total(curve)(theta, (t, place))

    for derivative in (jax.grad, jax.jacfwd, lambda f: jax.jacfwd(jax.grad(f), argnums=1)):
        mine, plain = (derivative(of_time(curve))(time, jnp.asarray(THETA, float)) for curve in (by_partials(_curve), _curve))
        np.testing.assert_allclose(mine, plain, rtol=1e-11, atol=1e-12)


def test_a_loop_of_units(double):
    """Mapped, and differentiated within a loop whose body is staged before."""
    theta = jnp.asarray(THETA, float) + 0.1 * jnp.arange(3.0)[:, None]

    def ascent(curve):
        def turn(_, at):
            return at + 0.01 * jax.grad(_total(curve))(at, _as(float))

        return jax.vmap(lambda at: jax.lax.fori_loop(0, 5, turn, at))(theta)

    np.testing.assert_allclose(ascent(by_partials(_curve)), ascent(_curve), rtol=1e-12)


def test_whatever_the_number_of_directions():
    """No exponential or sine is taken once a direction."""

    def slow(x, t):
        return jnp.exp(-x[0] * t) + jnp.sin(x[0] * t)

    def shapes(curve):
        def rows(theta):
            x = jnp.sum(theta)[None]
            return jax.vmap(lambda t: curve(x, t))(jnp.arange(7.0))

        text = str(jax.make_jaxpr(jax.jacfwd(rows))(jnp.ones(5)))
        return [line for line in text.splitlines() if " exp " in line or " sin " in line or " cos " in line]

    assert shapes(by_partials(slow)) and not any("[5" in line for line in shapes(by_partials(slow)))


def _as(dtype):
    return jnp.asarray(DATA[0], dtype), DATA[1]
