"""Successors of SOUL: exact maxima, evidence, and steps against their formulas."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

from margaux.reproduce import successors
from margaux.reproduce._successors import _bet, _no_bets, _stein, evidence


def test_the_hierarchy_s_maximum_is_found_by_all():
    """Errors of five runs of 500 steps from a start at ten; the particle methods of first order are still on their way by their
    own steps, 0.01 of a unit of time."""
    problem = successors.problems()["hierarchy"]
    found: Any = successors.errors(problem, 5)
    assert list(found.index) == ["PGD", "PQN", "PMGD", "IPLA", "KIPLMC", "CoinEM", "SOUL, same steps", "SOUL"]
    assert found.loc["SOUL", "rmse"] < 0.02  # the standard error is 0.14
    for name in ("PGD", "PMGD", "IPLA", "SOUL, same steps"):
        assert found.loc[name, "rmse_last"] < 0.15, name
    assert (found["rmse_last"] < 1.0).all()  # of 8.9 at the start


def test_a_bet_is_the_formula_of_coins():
    x, outcomes = np.array([1.0, -2.0]), [np.array([0.5, -1.0]), np.array([2.0, 0.5]), np.array([-1.0, 0.25])]
    bets, here = _no_bets(jnp.asarray(x)), jnp.asarray(x)
    total, size, largest, won, own = 0.0, 0.0, 0.0, 0.0, x
    for c in outcomes:
        here, bets = _bet(here, jnp.asarray(c), bets)
        won = np.maximum(won + c * (own - x), 0)
        total, size, largest = total + c, size + abs(c), np.maximum(largest, abs(c))
        own = x + total / (size + largest) * (1 + won / largest)
        np.testing.assert_allclose(here, own, rtol=1e-6)


def test_stein_s_direction_is_the_double_sum():
    rng = np.random.default_rng(0)
    x, slopes = rng.normal(size=(6, 3)), rng.normal(size=(6, 3))
    apart = np.sum((x[:, None] - x) ** 2, axis=2)
    width = np.median(apart) / np.log(7)
    expected = np.zeros_like(x)
    for i in range(6):
        for j in range(6):
            k = np.exp(-apart[i, j] / width)
            expected[i] += (k * slopes[j] + k * 2 / width * (x[i] - x[j])) / 6
    with jax.enable_x64(True):
        np.testing.assert_allclose(_stein(jnp.asarray(x), jnp.asarray(slopes)), expected, rtol=1e-10)


@pytest.mark.parametrize("h", [0.02, 0.2])
def test_jarzynski_s_weights_are_unbiased_at_any_step(h):
    """y ~ N(x, 1), x ~ N(theta, 1): the evidence is N(y; theta, 2), theta held; over 40 runs."""
    y = 1.5
    with jax.enable_x64(True):
        one = jax.jit(jax.vmap(lambda key: evidence(
            lambda theta, x: jnp.sum(norm.logpdf(x, theta, 1.0)), lambda x: jnp.sum(norm.logpdf(y, x, 1.0)),
            lambda key, theta: theta + jax.random.normal(key, (1,)), 0.3, key, 200, 100, 50, h, 0.0,
        )[1]))  # fmt: skip
        ratio = np.exp(np.asarray(one(jax.random.split(jax.random.key(0), 40))) - norm.logpdf(y, 0.3, 2**0.5))
    assert abs(ratio.mean() - 1) < 4 * ratio.std(ddof=1) / 40**0.5 and ratio.std() < 0.2
