"""`mx.newton`: to the exact maximum in a few iterations, from far away, and its refusals."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import margaux as mx
from helpers import gamma_poisson, logistic_normal, random_intercept
from margaux import algorithms
from margaux.algorithms.newton import Newton, _Point, _step


def run(problem, estep, n_iter=30, **settings):
    settings = {"params": problem.start, "polish": False, "progress": False} | settings
    return mx.fit(problem.model, problem.data, mx.newton(), estep, space=problem.space, n_iter=n_iter, **settings)


@pytest.mark.parametrize("make, nodes", [(random_intercept, 9), (gamma_poisson, 41), (logistic_normal, 21)])
@pytest.mark.parametrize("factor", [1.0, 1 / 3, 3.0])
def test_the_exact_maximum_in_a_few_steps(make, nodes, factor):
    problem = make()
    fit = run(problem, mx.Quadrature(nodes), params={name: factor * value for name, value in problem.start.items()})
    assert fit.result is mx.RESULTS.stopped
    lengths = fit.trace["newton"][:, 0]
    assert np.argmax(lengths < 1e-4) < 15
    best = run(problem, mx.Quadrature(2 * nodes + 1)).params  # the tables of the exact answers end at 1e-4 standard errors
    for name, truth in problem.mle.items():
        assert abs(fit.params[name] - best[name]) < 1e-4 * problem.se[name]
        assert abs(fit.params[name] - truth) < 1e-3 * problem.se[name]
    assert fit.trace["log_marginal"][-1, 0] == pytest.approx(problem.loglik, abs=1e-3)


def test_several_runs_each_reach_it():
    problem = random_intercept()
    fit = run(problem, mx.Quadrature(9), runs=4, spread=1.0)
    for name, truth in problem.mle.items():
        np.testing.assert_allclose(fit.run_params[name], truth, atol=1e-3 * problem.se[name])


def test_single_precision_ends_where_it_can_tell_no_more():
    problem = random_intercept()
    fit = run(problem, mx.Quadrature(9), dtype="float32")
    assert fit.result is mx.RESULTS.stopped
    for name, truth in problem.mle.items():
        assert abs(fit.params[name] - truth) < 0.01 * problem.se[name]


def test_draws_keep_their_noise():
    problem = logistic_normal()
    fit, other = (run(problem, mx.ImportanceSampling(n, quasi=True), key=2) for n in (256, 4096))
    assert fit.result is mx.RESULTS.stopped and fit.trace["newton"][-1, 0] < 1e-6
    for name, truth in problem.mle.items():
        gaps = [abs(one.params[name] - truth) / problem.se[name] for one in (fit, other)]
        assert gaps[0] < 0.1 and gaps[1] < 0.02


def test_the_polish_adds_nothing():
    problem = random_intercept()
    fit = run(problem, mx.Quadrature(15), polish=None)
    assert fit.polished is not None and fit.polished.moved < 1e-6 and fit.certificate.word == "certified"


class Shifted(mx.AbstractModel):
    """y_i ~ N(z_i + a, 1), z_i ~ N(0, 1): the mean is the maximum."""

    def log_joint(self, params, z, y):
        return norm.logpdf(y, z + params["a"]) + norm.logpdf(z)

    def init_latents(self, key, params, y):
        return 0.0 * y


def test_a_ridge_penalty_shrinks():
    y = np.array([1.0, 2.0, 6.0])
    fit = mx.fit(Shifted(), y, mx.newton(), mx.Quadrature(7), params={"a": 0.0}, penalty=mx.L2(0.8), n_iter=20, progress=False)
    assert float(fit.params["a"]) == pytest.approx(np.sum(y) / 2 / (len(y) / 2 + 0.8), abs=1e-9)


@pytest.mark.parametrize("settings, error, said", [
    ({"penalty": mx.L1(0.1)}, TypeError, "kink"),
    ({"batch_size": 2}, ValueError, "leave batch_size out"),
    ({"estep": mx.MCMC()}, TypeError, "MCMC gives no likelihood"),
    ({"params": {"a": 0.0, "b": np.zeros(100)}}, ValueError, "in 101 parameters, and at most 100"),
])  # fmt: skip
def test_refusals(settings, error, said):
    given = {"params": {"a": 0.0}, "n_iter": 5, "progress": False} | settings
    with pytest.raises(error, match=said):
        mx.fit(Shifted(), np.arange(4.0), mx.newton(), given.pop("estep", mx.Quadrature(5)), **given)
    with pytest.raises(ValueError, match="radius must be positive"):
        mx.newton(radius=0.0)


def test_too_few_iterations_are_said():
    problem = random_intercept()
    assert run(problem, mx.Quadrature(9), n_iter=2).result is mx.RESULTS.max_iterations


def test_where_the_information_is_indefinite_steps_lead_up_all_the_same():
    zero, matrix, gradient = jnp.zeros(()), jnp.array([[1.0, 2.0], [2.0, 1.0]]), jnp.array([0.1, -0.3])
    step, promised, _, length = _step(_Point(jnp.zeros(2), zero, gradient, matrix, jnp.ones(()), zero, zero, zero))
    values, vectors = np.linalg.eigh(matrix)
    np.testing.assert_allclose(step, vectors @ ((vectors.T @ gradient) / np.abs(values)), rtol=1e-6)
    assert values[0] < 0 and float(step @ gradient) > 0 and float(promised) == pytest.approx(float(length) ** 2 / 2)


def test_a_step_is_held_to_its_region():
    matrix, gradient = np.diag([4.0, 1.0]), np.array([8.0, 1.0])
    zero = jnp.zeros(())
    for radius, share in [(100.0, 1.0), (1.0, 1 / np.sqrt(17))]:
        at = _Point(jnp.zeros(2), zero, jnp.asarray(gradient), jnp.asarray(matrix), jnp.asarray(radius), zero, zero, zero)
        step, promised, tried, length = _step(at)
        np.testing.assert_allclose(step, share * np.array([2.0, 1.0]))
        rise = gradient @ np.asarray(step) - np.asarray(step) @ matrix @ np.asarray(step) / 2
        assert float(length) == pytest.approx(np.sqrt(17)) and float(promised) == pytest.approx(rise)
        assert float(tried) == pytest.approx(min(radius, np.sqrt(17)))
    far = _step(at._replace(matrix=jnp.asarray(1e-4 * matrix), radius=jnp.asarray(1e9)))[0]
    assert float(np.abs(far).max()) == pytest.approx(2.0)  # a coordinate moves by two, beside its own size


def test_its_class_is_public():
    assert isinstance(mx.newton(), Newton) and algorithms.Newton is Newton
