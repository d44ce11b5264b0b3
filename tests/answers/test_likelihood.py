"""Log-likelihoods follow the model, and their errors are true."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import margaux as mx
from helpers import MIXTURE_SPACE, MIXTURE_START, Mixture, gamma_poisson, mixture_em, normal, random_intercept, simulate_mixture
from margaux.answers.likelihood import loglik
from margaux.answers.posterior import UndefinedDensity
from margaux.answers.rules import best_rule
from margaux.numerics.sampling import pareto_shape, pooled


class Square(mx.AbstractModel):
    """y ~ N(z^2, exp(2 noise)), z ~ N(0, exp(2 spread)): two modes, and one where y is small."""

    def log_joint(self, params, z, y):
        return normal(y, z**2, jnp.exp(params["noise"])) + normal(z, 0.0, jnp.exp(params["spread"]))

    def init_latents(self, key, params, y):
        return jnp.ones((), y.dtype)

    @staticmethod
    def exact(y, params):
        grid = np.linspace(-15, 15, 60_001)
        prior = stats.norm.logpdf(grid, 0, np.exp(params["spread"]))
        return [special.logsumexp(stats.norm.logpdf(one, grid**2, np.exp(params["noise"])) + prior) + np.log(grid[1] - grid[0])
                for one in y]  # fmt: skip


class HeavyTails(mx.AbstractModel):
    """y ~ N(z, 1), z ~ t with two degrees of freedom: far from any Gaussian where y is an outlier."""

    def log_joint(self, params, z, y):
        return normal(y, z, 1.0) + jax.scipy.stats.t.logpdf(z - params["mu"], 2.0)

    def init_latents(self, key, params, y):
        return 0.0 * y

    @staticmethod
    def exact(y, params):
        def at(z, one):
            return stats.norm.pdf(one, z, 1.0) * stats.t.pdf(z - params["mu"], 2.0)

        # Beyond forty the normal density is zero, and within it no peak is overlooked.
        return [np.log(sum(integrate.quad(at, one + a, one + a + 5, args=(one,))[0] for a in range(-40, 40, 5))) for one in y]


class Bent(mx.AbstractModel):
    """y ~ N(b, 0.5) and b ~ N(a^2, 0.5), a ~ N(mu, 2): a crescent."""

    def log_joint(self, params, z, y):
        a, b = z
        return normal(y, b, 0.5) + normal(b, a**2, 0.5) + normal(a, params["mu"], 2.0)

    def init_latents(self, key, params, y):
        return jnp.stack([0.5 + 0.0 * y, y])

    @staticmethod
    def exact(y, params):
        grid = np.linspace(-20, 20, 80_001)  # b is integrated in closed form
        prior = stats.norm.logpdf(grid, params["mu"], 2.0)
        return [special.logsumexp(stats.norm.logpdf(one, grid**2, np.sqrt(0.5)) + prior) + np.log(grid[1] - grid[0])
                for one in y]  # fmt: skip


ILL_BEHAVED = {
    "square": (Square(), {"noise": -0.7, "spread": 0.5}, lambda rng: rng.normal(0, 2, 8) ** 2 + rng.normal(0, 0.5, 8)),
    "heavy": (HeavyTails(), {"mu": 0.3}, lambda rng: rng.standard_t(1.0, 8) * 3),
    "bent": (Bent(), {"mu": 0.5}, lambda rng: rng.normal(0.5, 2, 8) ** 2 + rng.normal(0, 0.7, 8)),
}


def at(model, data, params, **settings):
    """A fit that stays where it starts."""
    still = mx.soul(mx.Constant(1e-12), average=mx.LastIterate())
    return mx.fit(model, data, still, mx.MCMC(mx.MALA()), params=params, n_iter=1, polish=False, progress=False, **settings)


@pytest.mark.parametrize("name", ILL_BEHAVED)
def test_ill_behaved_posteriors_have_the_exact_likelihood(name):
    model, params, draw = ILL_BEHAVED[name]
    y = draw(np.random.default_rng(3))
    for method in ("auto", "importance"):
        found = loglik(at(model, y, params), method)
        truth = sum(model.exact(y, params))
        assert found.se < 0.02 and not found.message
        assert abs(float(found) - truth) < 4 * found.se + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ILL_BEHAVED)
def test_stated_errors_are_true(name):
    """Of 200 data sets 90 to 99.9% of the exact values lie within two stated errors (95.4 +- 1.5% if errors are Gaussian)."""
    model, params, draw = ILL_BEHAVED[name]
    z = []
    first = at(model, draw(np.random.default_rng(0)), params)
    for seed in range(200):
        y = draw(np.random.default_rng(seed))
        found = loglik(dataclasses.replace(first, data=y), "importance", n_draws=2000, first_key=1000 * seed)
        z.append((float(found) - sum(model.exact(y, params))) / found.se)
    inside = np.mean(np.abs(z) < 2)
    print(name, "within two errors:", inside, "largest", np.abs(z).max())
    assert 0.90 <= inside <= 0.999 and np.abs(z).max() < 6


def test_discrete_latents_are_enumerated_and_refuse_the_continuum():
    x = simulate_mixture(200, seed=4)
    _, exact = mixture_em(x)
    settings: Any = dict(params=MIXTURE_START, space=MIXTURE_SPACE, progress=False)
    fit = mx.fit(Mixture(), x, mx.mcem(mx.LastIterate()), mx.Exact(), n_iter=200, **settings)
    assert float(fit.loglik()) == pytest.approx(exact, abs=1e-5)
    assert fit.loglik().method == "enumeration" and fit.aic == pytest.approx(-2 * exact + 16, abs=1e-4)
    for estep in (mx.MCMC(mx.MALA()), mx.ImportanceSampling(), mx.Quadrature()):
        with pytest.raises(TypeError, match="margaux.Exact, which enumerates"):
            mx.fit(Mixture(), x, mx.soul(), estep, n_iter=10, **settings)
    for method in ("quadrature", "laplace", "student"):
        with pytest.raises(TypeError, match="enumerated"):
            fit.loglik(method)


def test_auto_is_quadrature_where_rules_agree():
    problem = gamma_poisson()
    fit = at(problem.model, problem.data, problem.mle, space=problem.space)
    found = loglik(fit)
    assert found.method == "quadrature" and abs(float(found) - problem.loglik) < max(3 * found.se, 1e-5)


class Fourfold(mx.AbstractModel):
    """Four independent latents and observations a unit."""

    one: Any

    def log_joint(self, params, z, y):
        return sum(self.one.log_joint(params, z[i], y[i]) for i in range(4))

    def init_latents(self, key, params, y):
        return jnp.stack([self.one.init_latents(key, params, y[i]) for i in range(4)])


class Reported(mx.AbstractModel):
    """y ~ Poisson(exp(z)), z ~ N(mu, 1.5)."""

    def log_joint(self, params, z, y):
        return y * z - jnp.exp(z) - jax.scipy.special.gammaln(y + 1) + normal(z, params["mu"], 1.5)

    def init_latents(self, key, params, y):
        return 0.0 * y

    @staticmethod
    def exact(y, params):
        grid = np.linspace(-25, 15, 80_001)
        prior = stats.norm.logpdf(grid, params["mu"], 1.5)
        return [special.logsumexp(stats.poisson.logpmf(one, np.exp(grid)) + prior) + np.log(grid[1] - grid[0]) for one in y]


@pytest.mark.parametrize("n, one, params", [(6, HeavyTails(), {"mu": 0.3}), (60, HeavyTails(), {"mu": 0.3}),
                                            (6, Reported(), {"mu": 0.2})])  # fmt: skip
def test_four_latents_by_quadrature_or_by_draws(n, one, params):
    rng = np.random.default_rng(1)
    y = 3 * rng.standard_t(5.0, (n, 4)) if isinstance(one, HeavyTails) else rng.poisson(np.exp(rng.normal(0, 1.6, (n, 4)))) * 1.0
    found = loglik(at(Fourfold(one), y, params))
    assert found.method in ("quadrature", "importance sampling") and found.se < 0.02 and not found.message
    assert abs(float(found) - sum(one.exact(y.ravel(), params))) < 3 * found.se


def test_more_modes_than_usual_are_searched_for_and_told():
    """Two crescents a unit have up to four modes; a frequency has more than are ever found."""

    class Crescents(mx.AbstractModel):
        def log_joint(self, params, z, y):
            return Bent().log_joint(params, z[:2], y[0]) + Bent().log_joint(params, z[2:], y[1])

        def init_latents(self, key, params, y):
            return jnp.concatenate([Bent().init_latents(key, params, one) for one in y])

    class Frequency(mx.AbstractModel):
        """y_t ~ N(cos(z t), 0.7), z ~ N(0, 6)."""

        def log_joint(self, params, z, y):
            return jnp.sum(normal(y, jnp.cos(z * jnp.arange(1.0, 6.0)), 0.7)) + normal(z, params["mu"], 6.0)

        def init_latents(self, key, params, y):
            return jnp.asarray(0.5)

    for seed in range(2):
        y = ILL_BEHAVED["bent"][2](np.random.default_rng(seed))
        y = np.concatenate([y, y[::-1] + 1]).reshape(-1, 2)
        fit = at(Crescents(), y, {"mu": 0.5})
        found, rule = loglik(fit), best_rule(fit)
        assert rule.modes is not None and rule.modes.max() == 4 and not found.message
        assert abs(float(found) - sum(Bent.exact(y.ravel(), {"mu": 0.5}))) < 4 * found.se
    z, t = np.random.default_rng(0).normal(0, 6, (8, 1)), np.arange(1, 6)
    fit = at(Frequency(), np.cos(z * t) + 0.7 * np.random.default_rng(1).normal(size=(8, 5)), {"mu": 0.0})
    assert "more modes than were found" in loglik(fit).message


def test_more_than_four_latents_are_sampled_from_a_mixture():
    class Effects(mx.AbstractModel):
        """y ~ N(Z z, I), z ~ N(mu, I) in five dimensions: a Gaussian marginal."""

        def log_joint(self, params, z, unit):
            return jnp.sum(normal(unit["y"], unit["x"] @ z, 1.0)) + jnp.sum(normal(z, params["mu"], 1.0))

        def init_latents(self, key, params, unit):
            return jnp.zeros(5)

    rng = np.random.default_rng(1)
    x = rng.normal(size=(20, 6, 5))
    y = np.einsum("nij,nj->ni", x, rng.normal(0.5, 1, (20, 5))) + rng.normal(size=(20, 6))
    exact = sum(stats.multivariate_normal.logpdf(b, a @ np.full(5, 0.5), a @ a.T + np.eye(6)) for a, b in zip(x, y, strict=True))
    fit = at(Effects(), {"x": x, "y": y}, {"mu": 0.5})
    found = loglik(fit)
    assert found.method == "importance sampling" and found.se < 0.02
    assert abs(float(found) - exact) < 4 * found.se
    rule = best_rule(fit)
    assert rule.modes is not None and rule.away is not None and np.all(rule.modes == 1) and np.max(rule.away) < 1e-3


def test_nan_is_a_failure_that_names_the_unit_and_minus_infinity_a_weight():
    problem = random_intercept()

    class Undefined(type(problem.model)):
        def log_joint(self, params, z, unit):
            return jnp.where(params["mu"] > 0.5, jnp.nan, super().log_joint(params, z, unit))

    class Truncated(type(problem.model)):
        def log_joint(self, params, z, unit):
            return jnp.where(z > 30.0, -jnp.inf, super().log_joint(params, z, unit))

    settings: Any = dict(params={"mu": 0.0, "tau2": 0.5}, space=problem.space, n_iter=150, progress=False)
    with pytest.raises(mx.FitError, match=r"NaN .*unit 0.*mu = 0\.[5-9]") as caught:
        mx.fit(Undefined(), problem.data, mx.soul(0.5), mx.Quadrature(5), **settings)
    assert caught.value.fit.result is mx.RESULTS.undefined and caught.value.fit.certificate.word == "failed"
    with pytest.raises(mx.FitError, match=r"NaN .*unit 0.*mu = 0\.[5-9]"):
        mx.fit(Undefined(), problem.data, mx.mcem(mx.LastIterate()), mx.Quadrature(5), polish=False, **settings)
    with pytest.raises(UndefinedDensity, match="unit 0"):
        loglik(at(Undefined(), problem.data, {"mu": 0.0, "tau2": 0.5}), params={"mu": 1.0, "tau2": 0.5})
    fit = mx.fit(Truncated(), problem.data, mx.soul(0.5), mx.Quadrature(5), **settings)
    assert fit.params["mu"] == pytest.approx(problem.mle["mu"], abs=1e-2 * problem.se["mu"])


def test_pareto_shapes_are_those_of_psis():
    array_stats = pytest.importorskip("arviz_stats.base").array_stats
    with jax.enable_x64(True):
        for shape in (0.1, 0.5, 1.0):
            log_w = np.log1p(stats.genpareto(shape).rvs(4000, random_state=3))
            assert float(pareto_shape(jnp.asarray(log_w))) == pytest.approx(float(array_stats.psislw(-log_w)[1]), abs=0.05)
        assert float(pareto_shape(jnp.zeros(1000))) == -np.inf


def test_pooled_is_the_log_of_a_mean():
    logs = np.log(np.array([[1.0, 4.0], [3.0, 4.0]]))
    value, error = pooled(logs)
    np.testing.assert_allclose(value, np.log([2.0, 4.0]))
    np.testing.assert_allclose(error, [np.std([1, 3], ddof=1) / 2 / np.sqrt(2), 0.0], atol=1e-15)


class Many(mx.AbstractModel):
    """y_j ~ N(z_j, 1), z_j ~ N(mu, 1): many latents of one unit."""

    def log_joint(self, params, z, y):
        return jnp.sum(normal(y, z, 1.0)) + jnp.sum(normal(z, params["mu"], 1.0))

    def init_latents(self, key, params, y):
        return 0.0 * y


def test_too_many_latents_for_a_dense_proposal_are_refused_at_once():
    y = mx.one_unit(np.random.default_rng(0).normal(size=300))
    fit = mx.fit(Many(), y, mx.soul(), mx.MCMC(mx.MALA(), n_steps=2), params={"mu": 0.0}, n_iter=20, polish=False, progress=False)
    with pytest.raises(TypeError, match=r'hopeless for 300 latents a unit.*method="annealed"'):
        fit.loglik()
