"""The variance of a free flight where its formula cancels: a series that joins it smoothly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from margaux.kernels.underdamped import _flight


@pytest.mark.parametrize("a", [0.049, 0.0499, 0.0501, 0.06])
@pytest.mark.parametrize("friction", [0.5, 3.0])
def test_the_series_joins_the_formula(a, friction):
    with jax.enable_x64(True):
        parts = [_flight(jnp.zeros(()), jnp.asarray(e), jnp.asarray(a / friction), jnp.asarray(friction)) for e in np.eye(2)]
        moved = [float(move) for move, _ in parts]
        wanted = (2 * a - 3 + 4 * np.exp(-a) - np.exp(-2 * a)) / friction**2
        assert np.sum(np.square(moved)) == pytest.approx(wanted, rel=5e-7)
        assert [float(new) for _, new in parts] == pytest.approx([np.sqrt(1 - np.exp(-2 * a)), 0.0])
        assert moved[0] * float(parts[0][1]) == pytest.approx((1 - np.exp(-a)) ** 2 / friction)


@pytest.mark.parametrize("a", [1e-6, 1e-4, 1e-3])
def test_a_short_flight_is_that_of_its_leading_terms(a):
    """Where the formula would have no digit left."""
    with jax.enable_x64(True):
        moves = [float(_flight(jnp.zeros(()), jnp.asarray(e), jnp.asarray(a), jnp.asarray(1.0))[0]) for e in np.eye(2)]
        assert np.sum(np.square(moves)) == pytest.approx(2 * a**3 / 3 - a**4 / 2 + 7 * a**5 / 30, rel=1e-9, abs=0)
