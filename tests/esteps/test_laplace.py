"""`mx.Laplace`: its objective and derivatives, thousands of latents by their structure, and draws that correct it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.special import gammaln
from jax.scipy.stats import norm
from scipy import special, stats

import margaux as mx
from helpers import logistic_normal, random_intercept
from margaux.answers.marginals import log_likelihoods
from margaux.answers.rules import laplace_rule
from margaux.numerics.precision import precision
from margaux.problem.model import AbstractConcave


def climb(model, data, estep, params, algorithm=None, n_iter=40, **more):
    settings: Any = {"polish": False, "progress": False} | more
    return mx.fit(model, data, algorithm or mx.newton(), estep, params=params, n_iter=n_iter, **settings)


class Counts(mx.AbstractModel):
    """Poisson counts with a random intercept and slope."""

    def log_joint(self, params, z, u):
        root = jnp.array([[1.0, 0.0], [params["tilt"], 1.0]]) * jnp.exp(params["spread"])
        b = root @ z
        eta = params["mu"] + b[0] + b[1] * u["x"]
        return jnp.sum(u["y"] * eta - jnp.exp(eta) - gammaln(u["y"] + 1)) + jnp.sum(norm.logpdf(z))

    def init_latents(self, key, params, u):
        return jnp.zeros(2, u["y"].dtype)


def counts(n=12, rows=5):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, rows))
    eta = 0.5 + 0.8 * rng.normal(size=(n, 1)) + 0.4 * rng.normal(size=(n, 1)) * x
    return {"y": rng.poisson(np.exp(eta)).astype(float), "x": x}


@pytest.mark.parametrize("correct", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_derivatives_of_the_objective(correct):
    """Against differences of values whose modes are found anew at each place."""
    data, model, estep = counts(), Counts(), mx.Laplace(correct=correct, n_draws=16)
    with precision(np.dtype("float64")):
        flat, back = ravel_pytree({"mu": 0.3, "spread": -0.5, "tilt": 0.2})
        batch = jax.tree.map(jnp.asarray, data)
        shape = jax.eval_shape(model.init_latents, jax.random.key(0), back(flat), jax.tree.map(lambda leaf: leaf[0], batch))
        noise = jax.vmap(lambda key: estep.noise(key, shape))(jax.random.split(jax.random.key(1), 12))

        @jax.jit
        def rows_at(u):
            return jax.vmap(lambda y: estep.init(jax.random.key(0), model, back(u), y))(batch)

        def value(u, rows):
            return jnp.sum(estep.log_marginals(noise, model, back(u), rows, batch))

        gradient = jax.jit(jax.grad(value))
        rows, h = rows_at(flat), 1e-5
        found, bent = gradient(flat, rows), jax.jit(jax.hessian(value))(flat, rows)
        for i in range(3):
            e = h * jnp.eye(3)[i]
            there, before = ((u, rows_at(u)) for u in (flat + e, flat - e))
            assert float(found[i]) == pytest.approx(float(value(*there) - value(*before)) / (2 * h), rel=1e-7)
            np.testing.assert_allclose(bent[i], (gradient(*there) - gradient(*before)) / (2 * h), rtol=1e-6, atol=1e-7)


def test_it_is_exact_where_posteriors_are_gaussian():
    problem = random_intercept()
    for algorithm in (mx.newton(), mx.lbfgs()):
        fit = climb(problem.model, problem.data, mx.Laplace(), problem.start, algorithm, space=problem.space)
        assert fit.result is mx.RESULTS.stopped
        for name, truth in problem.mle.items():
            assert abs(fit.params[name] - truth) < 1e-3 * problem.se[name]
        assert float(fit.trace["log_marginal"][-1, 0]) == pytest.approx(problem.loglik, abs=1e-6)


def test_sizes_of_coordinates_save_iterations():
    problem = random_intercept()
    counts, log_scale = [], problem.se["tau2"] / problem.mle["tau2"]
    for sizes in (None, {"mu": np.asarray(problem.se["mu"]), "tau2": np.asarray(log_scale)}):
        fit = climb(problem.model, problem.data, mx.Laplace(), problem.start, mx.lbfgs(sizes=sizes), space=problem.space)
        assert fit.result is mx.RESULTS.stopped
        assert all(abs(fit.params[name] - truth) < 1e-3 * problem.se[name] for name, truth in problem.mle.items())
        counts.append(fit.n_iter)
    assert counts[1] < counts[0]
    for sizes, sentence in (({"mu": 1.0}, "sizes holds 1 numbers"), ({"mu": -1.0}, "must be positive")):
        with pytest.raises(ValueError, match=sentence):
            climb(problem.model, problem.data, mx.Laplace(), problem.start, mx.lbfgs(sizes=sizes), space=problem.space)


class OneMode(Counts, AbstractConcave):
    """The same, which says that its posteriors have one mode each."""

    @property
    def concave(self):
        return True


def test_modes_are_followed_from_the_fit_s_own_where_there_is_one():
    start = {"mu": jnp.asarray(0.3), "spread": jnp.asarray(-0.5), "tilt": jnp.asarray(0.0)}
    fits = [climb(model, counts(), mx.Laplace(), start) for model in (Counts(), OneMode())]
    anew, near = (laplace_rule(fit) for fit in fits)
    np.testing.assert_allclose(near.rows["mean"], anew.rows["mean"], atol=1e-6)
    values = log_likelihoods(fits[1], mx.Laplace(), fits[1].params, near.rows)
    assert values.sum() == pytest.approx(float(fits[0].trace["log_marginal"][-1, 0]), abs=1e-6)


def test_weighted_draws_correct_its_bias():
    problem = logistic_normal()
    plain, mended = (climb(problem.model, problem.data, e, problem.start, space=problem.space) for e in (
        mx.Laplace(), mx.Laplace(correct=True, n_draws=4096)))  # fmt: skip
    far = [max(abs(f.params[n] - problem.mle[n]) / problem.se[n] for n in problem.mle) for f in (plain, mended)]
    assert far[0] > 0.1 and far[1] < 0.02


class Level(mx.AbstractModel):
    """A random walk seen with noise: Gaussian, so that Kalman's filter is an oracle."""

    def log_joint(self, params, z, u):
        steps = norm.logpdf(z[1:], z[:-1], jnp.exp(params["walk"]))
        return jnp.sum(norm.logpdf(u["y"], z, jnp.exp(params["noise"]))) + norm.logpdf(z[0], 0, 3.0) + jnp.sum(steps)

    def init_latents(self, key, params, u):
        return 0.0 * u["y"]


def kalman(y, walk, noise):
    mean, variance, total = 0.0, 9.0, 0.0
    for t, seen in enumerate(y):
        variance += np.exp(2 * walk) if t else 0.0
        total += stats.norm.logpdf(seen, mean, np.sqrt(variance + np.exp(2 * noise)))
        gain = variance / (variance + np.exp(2 * noise))
        mean, variance = mean + gain * (seen - mean), (1 - gain) * variance
    return total


def test_a_thousand_states_in_time_against_kalman():
    rng = np.random.default_rng(5)
    y = np.cumsum(0.3 * rng.normal(size=1000)) + rng.normal(size=1000)
    fit = climb(Level(), mx.one_unit({"y": y}), mx.Laplace(mx.Band(1)), {"walk": 0.0, "noise": 0.5})
    assert fit.result is mx.RESULTS.stopped
    at = {name: float(value) for name, value in fit.params.items()}
    assert float(fit.trace["log_marginal"][-1, 0]) == pytest.approx(kalman(y, **at), abs=1e-6)
    for name in at:
        for shift in (-1e-3, 1e-3):
            assert kalman(y, **(at | {name: at[name] + shift})) < kalman(y, **at)


class Volatility(mx.AbstractModel, mx.AbstractStructured):
    """y_t ~ N(0, e^{z_t}), z an autoregression."""

    def structure(self, params, y):
        return mx.Band(1)

    def log_joint(self, params, z, u):
        phi, s = jnp.tanh(params["pull"]), jnp.exp(params["spread"])
        start = norm.logpdf(z[0], params["mu"], s / jnp.sqrt(1 - phi**2))
        steps = norm.logpdf(z[1:], params["mu"] + phi * (z[:-1] - params["mu"]), s)
        return jnp.sum(norm.logpdf(u["y"], 0.0, jnp.exp(z / 2))) + start + jnp.sum(steps)

    def init_latents(self, key, params, u):
        return jnp.full_like(u["y"], params["mu"])


def grid_filter(y, mu, pull, spread, points=401):
    phi, s = np.tanh(pull), np.exp(spread)
    sd = s / np.sqrt(1 - phi**2)
    z, h = np.linspace(mu - 7 * sd, mu + 7 * sd, points, retstep=True)
    move = stats.norm.pdf(z[:, None], mu + phi * (z[None] - mu), s) * h
    belief, total = stats.norm.pdf(z, mu, sd) * h, 0.0
    for t, seen in enumerate(y):
        belief = (move @ belief if t else belief) * stats.norm.pdf(seen, 0, np.exp(z / 2))
        total += np.log(belief.sum())
        belief /= belief.sum()
    return total


@pytest.mark.slow
def test_stochastic_volatility_against_a_grid():
    rng = np.random.default_rng(6)
    z = [-1.0]
    for _ in range(199):
        z.append(-1.0 + 0.9 * (z[-1] + 1.0) + 0.4 * rng.normal())
    y = np.exp(np.array(z) / 2) * rng.normal(size=200)
    at = {"mu": -1.0, "pull": np.arctanh(0.9), "spread": np.log(0.4)}
    exact = grid_filter(y, **at)
    nothing = {"n_iter": 1, "throw": False}
    values = []
    for seed in range(8):
        corrected = mx.Laplace(correct=True, n_draws=2048)
        fit = climb(Volatility(), mx.one_unit({"y": y}), corrected, at, key=seed, **nothing)
        values.append(float(fit.trace["log_marginal"][0, 0]))
    plain = float(climb(Volatility(), mx.one_unit({"y": y}), mx.Laplace(), at, **nothing).trace["log_marginal"][0, 0])
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    assert error < 0.05 and abs(np.mean(values) - exact) < 4 * error + np.var(values)
    assert 0.01 < abs(plain - exact) < 2.0


class Crossed(mx.AbstractModel):
    """Answers of persons to items, both with effects."""

    def log_joint(self, params, z, u):
        eta = params["mu"] + jnp.exp(params["person"]) * z["person"][u["person"]] + jnp.exp(params["item"]) * z["item"][u["item"]]
        return jnp.sum(u["y"] * eta - jnp.logaddexp(0.0, eta)) + sum(jnp.sum(norm.logpdf(z[name])) for name in ("item", "person"))

    def init_latents(self, key, params, u):
        return {"person": jnp.zeros(30, u["y"].dtype), "item": jnp.zeros(6, u["y"].dtype)}


@pytest.mark.slow
def test_crossed_effects_by_elimination_are_those_of_a_dense_factor():
    rng = np.random.default_rng(7)
    person, item = np.repeat(np.arange(30), 6), np.tile(np.arange(6), 30)
    eta = 0.3 + rng.normal(size=30)[person] + 0.7 * rng.normal(size=6)[item]
    data = mx.one_unit({"y": (rng.random(180) < special.expit(eta)).astype(float), "person": person, "item": item})
    start = {"mu": 0.0, "person": 0.0, "item": 0.0}
    fits = [climb(Crossed(), data, mx.Laplace(s), start) for s in (None, mx.Blocks("person"), mx.Blocks("item"))]
    for other in fits[1:]:
        for name in start:
            assert float(other.params[name]) == pytest.approx(float(fits[0].params[name]), abs=1e-7)
        np.testing.assert_allclose(other.trace["log_marginal"][-1], fits[0].trace["log_marginal"][-1], atol=1e-9)


@pytest.mark.parametrize("settings, error, said", [
    ({"structure": "band"}, TypeError, "structure must be margaux.Band"),
    ({"n_draws": 3}, ValueError, "come in pairs"),
    ({"n_newton": 0}, ValueError, "n_newton must be at least 1"),
])  # fmt: skip
def test_settings_refused(settings: Any, error, said):
    with pytest.raises(error, match=said):
        mx.Laplace(**settings)


def test_a_structure_the_latents_do_not_have():
    with pytest.raises(TypeError, match='no groups "person" among the latents'):
        climb(Counts(), counts(), mx.Laplace(mx.Blocks("person")), {"mu": 0.0, "spread": 0.0, "tilt": 0.0})
    with pytest.raises(ValueError, match="memory must be at least 1"):
        mx.lbfgs(memory=0)


class Runaway(mx.AbstractModel):
    """Latents by the hundred whose density rises towards infinity: there is no mode to approximate them around."""

    def log_joint(self, params, z, y):
        return jnp.sum(jnp.log1p(jnp.exp(-z) * 0 + jnp.log1p(z**2))) - (params["mu"] - y[0]) ** 2

    def init_latents(self, key, params, y):
        return jnp.ones(201, y.dtype)


def test_a_mode_that_is_not_found_fails_the_certificate():
    fit = climb(Runaway(), np.ones((1, 2)), mx.Laplace(mx.Band(1)), {"mu": 0.5}, n_iter=3, throw=False)
    assert fit.certificate.word == "failed"
