"""Moments of latents of which a quadrature of few nodes gives others."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import margaux as mx
from helpers import normal

GRID = np.linspace(-40, 40, 400_001)


class Kinked(mx.AbstractModel):
    """y ~ N(z, 1), z of Laplace's law: a kink beside the mode."""

    scale: float

    def log_joint(self, params, z, y):
        return normal(y, z) - jnp.abs(z - params["mu"]) / self.scale - jnp.log(2 * self.scale)

    def init_latents(self, key, params, y):
        return 0.0 * y

    def exact(self, y):
        return -np.abs(GRID) / self.scale - (y - GRID) ** 2 / 2


class Tailed(Kinked):
    """The same with two degrees of freedom."""

    def log_joint(self, params, z, y):
        return normal(y, z) - 1.5 * jnp.log1p((z - params["mu"]) ** 2 / (2 * self.scale**2))

    def exact(self, y):
        return stats.t.logpdf(GRID, 2, 0, self.scale) - (y - GRID) ** 2 / 2


@pytest.mark.parametrize("model", [Kinked(0.1), Kinked(0.3), Kinked(1.0), Tailed(0.1), Tailed(0.3)])
def test_moments_are_those_of_a_fine_grid(model):
    y = np.concatenate([np.random.default_rng(0).normal(0, 1.5, 20), [2.05]])
    fit = mx.fit(model, y, mx.soul(), mx.Quadrature(5), params={"mu": 0.0}, n_iter=1, progress=False, throw=False)
    found = fit.at({"mu": 0.0}).latents()
    weights = [special.softmax(model.exact(own)) for own in y]
    mean = np.array([own @ GRID for own in weights])
    sd = np.sqrt([own @ GRID**2 for own in weights] - mean**2)
    np.testing.assert_allclose((found["mean"] - mean) / sd, 0, atol=0.03)
    np.testing.assert_allclose(found["sd"] / sd, 1, atol=0.03)
