"""A fit ends at the maximum, and its certificate says so; or says that it does not."""

# Fits that are polished have the record of it.
# pyright: reportOptionalMemberAccess=false

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln as special_gammaln
from scipy import optimize, special
from test_likelihood import Many, Square

import margaux as mx
from helpers import gamma_poisson, logistic_normal, normal, random_intercept
from margaux.answers.polish import polish

PROBLEMS = {"random_intercept": random_intercept, "gamma_poisson": gamma_poisson, "logistic_normal": logistic_normal}


def short(problem, n_iter=60, **settings):
    """Too short to arrive."""
    return mx.fit(problem.model, problem.data, mx.soul(0.5), mx.MCMC(mx.ULA(0.3), n_steps=2), params=problem.start,
                  space=problem.space, n_iter=n_iter, progress=False, **settings)  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_short_fit_ends_at_the_exact_maximum(name):
    problem = PROBLEMS[name]()
    raw, fit = short(problem, polish=False), short(problem)
    away = lambda f: max(abs(f.params[n] - problem.mle[n]) / problem.se[n] for n in problem.mle)  # noqa: E731
    assert away(raw) > 0.2 and away(fit) < 0.01
    assert fit.polished.converged and fit.polished.length < 0.03 and fit.polished.moved == pytest.approx(away(raw), rel=2)
    assert fit.certificate.word == "certified", str(fit.certificate)
    assert raw.certificate.word != "certified"
    summary = fit.summary()
    np.testing.assert_allclose(summary["se"], [problem.se[n] for n in fit.names], rtol=5e-3)
    assert summary.attrs["message"].startswith("certified: ")
    assert float(fit.loglik()) == pytest.approx(problem.loglik, abs=1e-3)


def test_two_modes_end_at_the_exact_maximum():
    rng = np.random.default_rng(0)
    y = rng.normal(0, 2, 50) ** 2 + rng.normal(0, 0.5, 50)
    fit = mx.fit(Square(), y, mx.soul(0.1), mx.Quadrature(21), params={"noise": -0.5, "spread": 0.5}, n_iter=100, progress=False)
    exact = optimize.minimize(lambda v: -sum(Square.exact(y, {"noise": v[0], "spread": v[1]})), [-0.5, 0.5], method="BFGS")
    se = np.sqrt(np.diag(exact.hess_inv))
    np.testing.assert_allclose([fit.params["noise"], fit.params["spread"]], exact.x, atol=0.1 * se.min())
    assert abs(float(fit.loglik()) + exact.fun) < 0.02
    assert "modes" in fit.certificate and fit.certificate["modes"].figure > 20


@pytest.mark.slow
def test_a_variance_that_had_collapsed_is_found_again():
    problem = logistic_normal()

    class Logged(type(problem.model)):
        """The same with the log of the variance, which has no edge."""

        def log_joint(self, params, z, unit):
            return super().log_joint({"mu": params["mu"], "tau2": jnp.exp(params["log_tau2"])}, z, unit)

        def init_latents(self, key, params, unit):
            return params["mu"]

    still = mx.soul(mx.Constant(1e-12), average=mx.LastIterate())
    fit = mx.fit(Logged(), problem.data, still, mx.Quadrature(9), params={"mu": 0.0, "log_tau2": -40.0}, n_iter=2, progress=False)
    assert fit.params["log_tau2"] == pytest.approx(np.log(problem.mle["tau2"]), abs=1e-3)
    assert fit.certificate.word == "certified"


def test_a_flat_likelihood_is_said():
    rng = np.random.default_rng(2)  # less spread between groups than chance would give: the variance is zero
    units = {"y": rng.normal(0.0, 0.7, (30, 4)), "mask": np.ones((30, 4))}
    problem = random_intercept()

    class Logged(type(problem.model)):
        def log_joint(self, params, z, unit):
            return super().log_joint({"mu": params["mu"], "tau2": jnp.exp(params["log_tau2"])}, z, unit)

        def init_latents(self, key, params, unit):
            return params["mu"]

    fit = mx.fit(
        Logged(), units, mx.soul(0.3), mx.Quadrature(9), params={"mu": 0.0, "log_tau2": -1.0}, n_iter=200, progress=False
    )
    assert fit.certificate.word == "careful" and fit.certificate["shape"].level == "careful"
    assert "flat along log_tau2" in str(fit.certificate)


def test_runs_in_different_modes_are_compared():
    class Folded(mx.AbstractModel):
        """y ~ N(a^2 + z / 3 + .4 a, 1), z ~ N(0, 1): two maxima in a, one lower."""

        def log_joint(self, params, z, y):
            return normal(y, params["a"] ** 2 + 0.4 * params["a"] + z / 3, 1.0) + normal(z, 0.0, 1.0)

        def init_latents(self, key, params, y):
            return 0.0 * y

    y = np.random.default_rng(0).normal(4.0, 1.0, 40)
    fit = mx.fit(Folded(), y, mx.soul(mx.Polynomial(0.3, 0.6)), mx.Quadrature(9), params={"a": 1.0},
                 runs=[{"a": 1.0}, {"a": -1.0}], n_iter=400, progress=False)  # fmt: skip
    roots = np.roots([1, 0.4, -y.mean()])
    assert min(abs(fit.params["a"] - roots)) < 1e-3  # not the mean of the two, which is no maximum


def test_polish_is_repeatable_and_can_be_asked_for_later():
    problem = logistic_normal()
    raw = short(problem, polish=False)
    first, second = polish(raw)[0], polish(raw)[0]
    assert all(first[n] == second[n] for n in first)
    later = dataclasses.replace(raw, params=first)
    assert later.certificate.word == "certified"


def test_a_replaced_estimate_forgets_its_answers():
    problem = random_intercept()
    fit = short(problem)
    before = float(fit.loglik())
    moved = dataclasses.replace(fit, params=fit.params | {"mu": fit.params["mu"] + 1.0}, polished=None)
    assert float(moved.loglik()) < before - 5
    assert moved.certificate.word == "failed" and "standard errors away" in str(moved.certificate)


def test_standard_errors_carry_monte_carlo_errors():
    y = np.random.default_rng(3).normal(1.0, 1.4, 30)
    fit = mx.fit(Many(), mx.one_unit(y), mx.soul(), mx.MCMC(mx.MALA(), n_steps=5), params={"mu": 0.0}, n_iter=200, progress=False)
    summary = fit.summary()
    assert fit.params["mu"] == pytest.approx(y.mean(), abs=(0.03 + 3 * fit.polished.error) * np.sqrt(2 / 30))
    assert abs(summary.loc["mu", "se"] - np.sqrt(2 / 30)) < 4 * summary.loc["mu", "se_error"] + 1e-3
    assert 0 < summary.loc["mu", "se_error"] < 0.05 * np.sqrt(2 / 30)


def test_diagnostics_are_the_certificate():
    fit = short(random_intercept())
    frame = fit.diagnostics()
    assert list(frame.index) == [check.name for check in fit.certificate.checks]
    assert {"figure", "error", "threshold", "ok", "verdict"} == set(frame.columns)


class LogGamma(mx.AbstractModel):
    """Counts with a Gamma rate, whose logarithm has an exponential tail where the counts are zero."""

    def log_joint(self, params, z, y):
        a, b = jnp.exp(params["log_shape"]), jnp.exp(params["log_rate"])
        prior = a * jnp.log(b) - special_gammaln(a) + a * z - b * jnp.exp(z)
        return jnp.sum(y * z - jnp.exp(z) - special_gammaln(y + 1)) + prior

    def init_latents(self, key, params, y):
        return jnp.log(jnp.mean(y) + 0.5)


def negative_binomial(y):
    """Minus the log-likelihood of (log rate, log shape)."""
    total, m = y.sum(axis=1), y.shape[1]

    def value(theta):
        b, a = np.exp(theta)
        each = a * np.log(b) - special.gammaln(a) + special.gammaln(a + total) - (a + total) * np.log(b + m)
        return -np.sum(each) + np.sum(special.gammaln(y + 1))

    return value


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "rate", "seed"), [(5.0, 16.0, 0), (1.5, 12.0, 1), (1.5, 12.0, 2)])
def test_exponential_tails_are_certified_where_the_errors_are_true(shape, rate, seed):
    """A quadrature made at another place, or too coarse for the tail, had standard errors a fifth off, and agreed on the rest."""
    rng = np.random.default_rng(seed)
    y = rng.poisson(rng.gamma(shape, 1 / rate, (80, 1)), (80, 4)).astype(float)
    value = negative_binomial(y)
    exact = optimize.minimize(value, np.log([rate, shape]), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10})
    h = 1e-3 * np.eye(2)
    hessian = [[(value(exact.x + a + b) - value(exact.x + a - b) - value(exact.x - a + b) + value(exact.x - a - b)) / 4e-6
                for a in h] for b in h]  # fmt: skip
    se = np.sqrt(np.diag(np.linalg.inv(hessian)))
    fit = mx.fit(LogGamma(), y, mx.soul(), mx.MCMC(mx.MALA(), n_steps=3), params={"log_rate": 2.0, "log_shape": 1.0},
                 n_iter=300, progress=False, throw=False)  # fmt: skip
    found = np.array([fit.params["log_rate"], fit.params["log_shape"]])
    off = np.abs(fit.summary()["se"].to_numpy() / se[[fit.names.index(n) for n in ("log_rate", "log_shape")]] - 1)
    right = np.all(np.abs(found - exact.x) < 0.25 * se) and np.all(off < 0.1)
    assert right or fit.certificate.word != "certified", (found, exact.x, se, str(fit.certificate))
    if seed == 0:
        assert abs(fit.loglik() + exact.fun) < 0.05
