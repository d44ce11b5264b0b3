"""Outcomes given one linear predictor: their slopes, bounds and marginals against derivatives, dense sums and known forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from margaux.families.missing.families import FAMILIES

NAMES = ("logistic", "probit", "gaussian", "poisson")

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("name", NAMES)
def test_slopes_are_derivatives_of_the_log_density(name):
    family, eta = FAMILIES[name], jnp.linspace(-6.0, 5.0, 45)
    for y, scale in ((0.0, 0.7), (1.0, 1.9)) if name in ("logistic", "probit") else ((0.0, 0.7), (3.0, 1.9)):
        one = jax.grad(lambda u, y=y, scale=scale: family.log_density(jnp.asarray(y), u, jnp.asarray(scale)))
        first, second = family.slopes(jnp.asarray(y), eta, jnp.asarray(scale))
        expected = jax.jit(jax.vmap(lambda u, one=one: jnp.stack([one(u), jax.grad(one)(u)])))(eta)
        np.testing.assert_allclose(first, expected[:, 0], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(second, expected[:, 1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("largest", [False, True], ids=["tight", "largest"])
@pytest.mark.parametrize("name", ["logistic", "probit", "gaussian"])
def test_bounds_majorise(name, largest):
    rng, family = np.random.default_rng(4), FAMILIES[name]
    eta, there = rng.normal(0, 4, 20_000), rng.normal(0, 4, 20_000)
    eta[:2000] *= 1e-3
    there[5000:7000] = -eta[5000:7000]
    eta, there, y = jnp.asarray(eta), jnp.asarray(there), jnp.asarray(rng.integers(0, 2, 20_000).astype(float))
    scale = jnp.asarray(0.6)
    first, second = family.slopes(y, eta, scale)
    h = (family.largest_bound if largest else family.bound)(y, eta, scale)
    bound = family.log_density(y, eta, scale) + first * (there - eta) - h * (there - eta) ** 2 / 2
    assert np.max(bound - family.log_density(y, there, scale)) < 1e-8
    assert np.min(h + second) > -1e-9
    if name == "logistic" and not largest:
        # Tight: it touches on the other side too.
        touch = family.log_density(y, -eta, scale) - family.log_density(y, eta, scale) + 2 * eta * first + 2 * h * eta**2
        assert np.abs(touch).max() < 1e-8


@pytest.mark.parametrize("name", NAMES)
def test_marginals_integrate_the_predictor_out(name):
    family, scale = FAMILIES[name], jnp.asarray(0.7)
    y, mean, variance = (jnp.asarray(np.ravel(a)) for a in np.meshgrid([0.0, 1.0], [-2.0, -0.3, 1.4], [1e-12, 0.01, 0.5, 2.0]))
    marginal = jax.jit(family.marginal)
    value, first, second = marginal(y, mean, variance, scale)
    node, weight = np.polynomial.hermite_e.hermegauss(200)
    eta = np.asarray(mean)[:, None] + np.sqrt(variance)[:, None] * node
    density = np.exp(family.log_density(y[:, None], jnp.asarray(eta), scale))
    np.testing.assert_allclose(value, np.log(density @ weight / weight.sum()), atol=1e-7)
    h = 1e-4
    (up, up1, _), (down, down1, _) = (marginal(y, mean + s, variance, scale) for s in (h, -h))
    np.testing.assert_allclose(first, (up - down) / (2 * h), atol=1e-6)
    # The rule's error shows first where the integrand is least Gaussian: no event, a wide predictor.
    np.testing.assert_allclose(second, (up1 - down1) / (2 * h), atol=1e-5)
    expected = jax.jit(family.mean)(mean, variance)
    plain = {"logistic": special.expit, "probit": special.ndtr, "gaussian": lambda u: u, "poisson": np.exp}[name]
    np.testing.assert_allclose(expected, plain(eta) @ weight / weight.sum(), rtol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_the_marginal_of_a_known_predictor_is_the_density(name):
    family, mean = FAMILIES[name], jnp.linspace(-3.0, 2.0, 11)
    y, scale = jnp.asarray(np.arange(11) % 2.0), jnp.asarray(0.7)
    value, *slopes = family.marginal(y, mean, jnp.zeros(11), scale)
    np.testing.assert_allclose(value, family.log_density(y, mean, scale), atol=1e-12)
    np.testing.assert_allclose(slopes, family.slopes(y, mean, scale), atol=1e-12)


def test_probit_slopes_hold_far_out():
    x = np.concatenate([np.linspace(6, 29, 12), np.linspace(31, 200, 12), [1e4, 1e8]])
    gap = np.zeros_like(x)
    for j in range(400, 0, -1):  # the Mills ratio is x + 1 / (x + 2 / (x + 3 / ...))
        gap = j / (x + gap)
    for y, sign in ((1.0, -1.0), (0.0, 1.0)):
        first, second = FAMILIES["probit"].slopes(jnp.asarray(y), jnp.asarray(sign * x), jnp.asarray(1.0))
        np.testing.assert_allclose(first, -sign * (x + gap), rtol=1e-8)
        np.testing.assert_allclose(second, -(x + gap) * gap, rtol=1e-5)
