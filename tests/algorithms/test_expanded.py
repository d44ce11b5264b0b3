"""SOUL in the expanded model, beside exact maxima where the latents are many and the data few."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import margaux as mx


class Means(mx.AbstractModel):
    """y_j = z_j + noise, z_j ~ N(0, e^2a), all in one unit."""

    noise: float = 5.0

    def log_joint(self, params, z, y):
        prior = -0.5 * jnp.sum(z**2) * jnp.exp(-2 * params["a"]) - z.size * params["a"]
        return prior - 0.5 * jnp.sum((y - z) ** 2) / self.noise**2

    def init_latents(self, key, params, y):
        return jnp.zeros_like(y)


class TwoLayers(Means):
    """Two arrays of latents, each with a scale of its own."""

    def log_joint(self, params, z, y):
        return sum(super(TwoLayers, self).log_joint({"a": params[name]}, z[name], y[name]) for name in ("a", "b"))

    def init_latents(self, key, params, y):
        return {name: jnp.zeros_like(leaf) for name, leaf in y.items()}


class Intercepts(mx.AbstractModel):
    """Binary observations with a random intercept, many units."""

    def log_joint(self, params, z, y):
        eta = params["mu"] + z
        return jnp.sum(y * eta - jnp.logaddexp(0.0, eta)) - 0.5 * z**2 * jnp.exp(-2 * params["a"]) - params["a"]

    def init_latents(self, key, params, y):
        return jnp.zeros((), y.dtype)


def _means(noise, seed=0, d=2000, sd=1.0):
    rng = np.random.default_rng(seed)
    y = sd * rng.normal(size=d) + noise * rng.normal(size=d)
    found: Any = minimize_scalar(
        lambda a: -norm.logpdf(y, 0, np.sqrt(np.exp(2 * a) + noise**2)).sum(), bounds=(-6, 4), method="bounded"
    )
    return y, float(found.x)


def _fitted(model, data, start, expanded, n_iter=400, seed=0, estep=None):
    estep = mx.MCMC(n_chains=10) if estep is None else estep
    return mx.fit(
        model, data, mx.soul(expanded=expanded), estep, params=start, n_iter=n_iter, key=seed, polish=False, progress=False
    )


def _se(noise, a, d):
    """Of a: the variance of y is e^2a + noise^2."""
    return (np.exp(2 * a) + noise**2) / np.exp(2 * a) / np.sqrt(2 * d)


@pytest.mark.parametrize("start", [1.5, pytest.param(-1.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("noise", [0.2, 1.0, 2.0])
def test_the_scale_of_a_prior_is_that_of_the_exact_likelihood(noise, start):
    y, exact = _means(noise)
    fit = _fitted(Means(noise), mx.one_unit(y), {"a": start}, expanded=True)
    assert abs(float(fit.params["a"]) - exact) < 0.5 * _se(noise, exact, len(y))


@pytest.mark.slow
def test_it_gets_there_where_the_complete_data_would_not_let_it():
    y, exact = _means(5.0, sd=2.0, d=4000)
    data, start, se = mx.one_unit(y), {"a": 0.0}, _se(5.0, exact, len(y))
    near = float(_fitted(Means(5.0), data, start, expanded=True).params["a"])
    far = float(_fitted(Means(5.0), data, start, expanded=False).params["a"])
    assert abs(near - exact) < 0.7 * se and abs(far - exact) > 3 * se


def test_each_array_of_latents_has_a_scale_of_its_own():
    (one, first), (two, second) = _means(1.0, sd=0.5, seed=1), _means(1.0, sd=2.0, seed=2, d=500)
    fit = _fitted(TwoLayers(1.0), mx.one_unit({"a": one, "b": two}), {"a": 1.0, "b": -1.0}, expanded=True)
    assert abs(float(fit.params["a"]) - first) < 0.5 * _se(1.0, first, len(one))
    assert abs(float(fit.params["b"]) - second) < 0.5 * _se(1.0, second, len(two))


def test_of_many_units_it_ends_where_the_likelihood_by_quadrature_does():
    rng = np.random.default_rng(3)
    y = (rng.random((300, 5)) < 1 / (1 + np.exp(-(0.4 + 1.2 * rng.normal(size=(300, 1)))))).astype(float)
    start = {"mu": -1.0, "a": 1.0}
    exact = mx.fit(Intercepts(), y, mx.newton(), mx.Quadrature(15), params=start, n_iter=20, progress=False)
    fit = _fitted(Intercepts(), y, start, expanded=True, n_iter=2000, estep=mx.MCMC())
    se: Any = exact.summary()["se"].to_dict()
    for name in start:
        assert abs(float(fit.params[name]) - float(exact.params[name])) < 0.3 * float(se[name])


@pytest.mark.parametrize(
    ("algorithm", "estep", "settings", "told"),
    [
        (lambda: mx.soul(0.1, expanded=True), mx.MCMC(), {}, "finds its own step"),
        (lambda: mx.soul(expanded=True), mx.MCMC(), {"batch_size": 10}, "needs all units"),
        (lambda: mx.soul(expanded=True), mx.Quadrature(5), {}, "use margaux.MCMC"),
        (lambda: mx.soul(expanded=True), mx.MCMC(), {"penalty": mx.L2(0.1)}, "leave expanded out"),
    ],
)
def test_what_it_is_not_for_is_refused(algorithm, estep, settings, told):
    y = np.zeros((20, 3))
    y[::2] = 1.0
    with pytest.raises((ValueError, TypeError), match=told):
        mx.fit(Intercepts(), y, algorithm(), estep, params={"mu": 0.0, "a": 0.0}, n_iter=5, progress=False, **settings)


class Levels(mx.AbstractModel):
    """y_j ~ N(z_j, noise^2), z_j ~ N(mu, e^2a), all in one unit."""

    noise: float

    def log_joint(self, params, z, y):
        prior = -0.5 * jnp.sum((z - params["mu"]) ** 2) * jnp.exp(-2 * params["a"]) - z.size * params["a"]
        return prior - 0.5 * jnp.sum((y - z) ** 2) / self.noise**2

    def init_latents(self, key, params, y):
        return params["mu"] + 0.0 * y


class Rates(mx.AbstractModel):
    """y_j ~ Poisson(z_j), z_j exponential with the rate e^a: what chains may not leave is z > 0."""

    def log_joint(self, params, z, y):
        inside = jnp.where(z > 0, z, 1.0)
        each = params["a"] - (jnp.exp(params["a"]) + 1) * inside + y * jnp.log(inside)
        return jnp.where(jnp.all(z > 0), jnp.sum(each), -jnp.inf)

    def init_latents(self, key, params, y):
        return jnp.ones_like(y)


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_models_of_many_latents_are_expanded_by_themselves(noise):
    """From starts ten standard deviations off, up to 112 standard errors away where nothing is expanded."""
    y = 5 + np.random.default_rng(0).normal(size=500) * (1 + noise**2) ** 0.5
    total = y.var()
    within = total - noise**2
    for start in ({"mu": 0.0, "a": 1.1}, {"mu": 15.0, "a": -1.1}):
        fit = _fitted(Levels(noise), mx.one_unit(y), start, None, n_iter=1000, estep=mx.MCMC(n_chains=5))
        assert abs(fit.params["mu"] - y.mean()) < 0.02 * np.sqrt(total / 500)
        assert abs(fit.params["a"] - np.log(within) / 2) < 0.2 * total / within / 1000**0.5


def test_latents_that_are_positive_stay_so():
    rng = np.random.default_rng(0)
    y = rng.poisson(rng.exponential(2.0, 300)).astype(float)
    fit = _fitted(Rates(), mx.one_unit(y), {"a": 1.0}, None, n_iter=400, estep=mx.MCMC(n_chains=5))
    assert float(fit.params["a"]) == pytest.approx(-np.log(y.mean()), abs=0.005)  # the standard error is 0.07


def test_few_latents_and_many_units_are_not_expanded():
    y = np.random.default_rng(0).normal(size=150)
    few = [_fitted(Means(1.0), mx.one_unit(y), {"a": 0.0}, expanded, n_iter=20) for expanded in (None, False, True)]
    assert float(few[0].params["a"]) == float(few[1].params["a"]) != float(few[2].params["a"])
    many = [_fitted(Intercepts(), np.ones((300, 4)), {"mu": 0.0, "a": 0.0}, expanded, n_iter=5) for expanded in (None, False)]
    assert float(many[0].params["a"]) == float(many[1].params["a"])
