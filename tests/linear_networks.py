"""Networks of one layer, whose answers are those of a regression, and data for networks."""

import equinox as eqx
import jax
import numpy as np


def linear(outputs, inputs=3):
    return eqx.nn.Linear(inputs, outputs, key=jax.random.key(0))


def regression(n=40, seed=0):
    """Three columns, two of them correlated, and y with noise 0.5."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    x[:, 1] += 0.8 * x[:, 0]
    return x, 0.7 + x @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=n)


def products(seed=0, n=90):
    """Two columns, and whether they have the same sign."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, np.where(x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=n) > 0, "same", "other")
