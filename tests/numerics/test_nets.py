"""Sobol nets are SciPy's, point for point."""

import numpy as np
import pytest
from scipy.stats import qmc

from margaux.numerics import nets


@pytest.mark.parametrize("size", [1, 2, 7, 40])
@pytest.mark.parametrize("power", [0, 1, 9])
def test_the_points_of_scipy(size, power):
    own = nets.sobol(size, power, np.random.default_rng([3, size]).spawn(1)[0])
    np.testing.assert_array_equal(own, qmc.Sobol(size, rng=np.random.default_rng([3, size])).random_base2(power))


def test_scipy_is_asked_where_its_direction_numbers_lie_elsewhere(monkeypatch):
    monkeypatch.setattr(nets, "_directions", lambda size: None)
    points = nets.sobol(3, 4, np.random.default_rng(0))
    assert points.shape == (16, 3)
    assert np.all(np.sort(np.floor(16 * points), axis=0) == np.arange(16)[:, None])
