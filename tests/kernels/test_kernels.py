"""Kernels keep their target; E-steps give exact expectations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from helpers import gamma_poisson, logistic_normal, random_intercept


def moments(kernel, n_steps=4000, problem=None, chains=4):
    """Posterior mean and SD of the first units' latents at the exact MLE, by long chains."""
    problem = problem or gamma_poisson()
    fit = mx.fit(problem.model, problem.data, mx.soul(mx.Polynomial(1e-9, 0.6), mx.LastIterate()), mx.Quadrature(40),
                 params={n: float(v) for n, v in problem.mle.items()}, n_iter=1, polish=False, progress=False)  # fmt: skip
    truth = fit.latents()
    estep = mx.MCMC(kernel, n_steps=n_steps, n_chains=chains, burn_in=500)
    return truth, fit.latents(estep=estep)


KERNELS = {
    "mala": lambda: mx.MALA(0.3),
    "mala, preconditioned": lambda: mx.MALA(0.3, preconditioner=np.array([0.5])),
    "random walk": lambda: mx.RandomWalk(1.0),
    "independence": lambda: mx.IndependenceMH(inflation=1.5),
    "hmc": lambda: mx.BlackJAX("hmc", 0.4, num_integration_steps=3),
    "nuts": lambda: mx.BlackJAX("nuts", 0.5),
}


@pytest.mark.parametrize("name", KERNELS)
def test_adjusted_kernels_keep_a_skewed_target(name):
    steps = 600 if name == "nuts" else 3000
    truth, found = moments(KERNELS[name](), steps)
    # 60 units: the mean error over units is far below one unit's Monte Carlo error.
    gap = (found["mean"] - truth["mean"]) / truth["sd"]
    assert abs(gap.mean()) < 0.02 and np.abs(gap).max() < 0.25
    assert np.abs(found["sd"] / truth["sd"] - 1).mean() < 0.06


def test_ula_is_biased_by_its_step_as_theory_says():
    """On a Gaussian target of precision P, ULA's variance is 1 / (P (1 - gamma P / 2))."""
    problem = random_intercept()
    gamma = 0.15
    _, found = moments(mx.ULA(gamma), 20_000, problem)
    precision = 1 / problem.mle["tau2"] + problem.data["mask"].sum(1)
    expected = (precision * (1 - gamma * precision / 2)) ** -0.5
    assert np.abs(found["sd"] / expected - 1).max() < 0.05


def test_acceptance_is_adapted_unit_by_unit_to_its_target():
    problem = gamma_poisson()
    fit = mx.fit(problem.model, problem.data, mx.saem(), mx.MCMC(mx.RandomWalk(30.0), n_steps=4), params=problem.start,
                 space=problem.space, n_iter=800, polish=False, progress=False)  # fmt: skip
    assert fit.trace["acceptance"][-200:].mean() == pytest.approx(0.35, abs=0.03)
    assert np.ptp(fit.rows["log_scale"]) > 0


def score_at(estep, problem, runs=200, seed=0):
    """One gradient step of size one from the start: mean and SD over runs."""
    fit = mx.fit(problem.model, problem.data, mx.soul(1.0, mx.LastIterate()), estep, params=problem.start, n_iter=1,
                 runs=runs, spread=0.0, key=seed, polish=False, progress=False)  # fmt: skip
    return {name: (v.mean(), v.std(ddof=1) / np.sqrt(runs)) for name, v in fit.run_params.items()}


@pytest.mark.parametrize(
    "estep",
    [
        mx.ImportanceSampling(256),
        mx.ImportanceSampling(256, quasi=True),
        mx.ImportanceSampling(256, control_variate=False),
        mx.ImportanceSampling(256, proposal="adapted"),
        mx.ImportanceSampling(mx.Growth(256, 0.0, 1.0)),
        mx.MCMC(mx.IndependenceMH(), n_steps=40, burn_in=10, warm_start=False),
        pytest.param(mx.MCMC(mx.MALA(0.4), n_steps=mx.Growth(60, 0.0, 1.0), warm_up=2000), marks=pytest.mark.slow),
        mx.MCMC(mx.RandomWalk(1.0), n_steps=60, thin=3, n_chains=2, warm_up=100),
    ],
    ids=["plain", "quasi", "no control", "adapted", "growing", "restarted", "growing chain", "thinned"],
)
def test_scores_are_exact_in_every_mode(estep):
    problem = logistic_normal()
    truth = score_at(mx.Quadrature(40), problem, runs=2)
    for name, (mean, error) in score_at(estep, problem).items():
        # Self-normalised weights are biased by O(1 / n_draws), a few 1e-5 here.
        assert abs(mean - truth[name][0]) < 4 * error + 3e-4


def test_noise_estep_is_variational_inference():
    """ELBO of a Gaussian mean with a Gaussian posterior: its optimum is the exact posterior."""
    y = np.random.default_rng(0).normal(1.5, 1.0, 30)

    class Mean(mx.AbstractModel):
        def log_joint(self, params, z, y):
            w = params["mu"] + jnp.exp(params["log_sd"]) * z
            prior = -(params["mu"] ** 2 + jnp.exp(2 * params["log_sd"])) / 2 + params["log_sd"]  # -KL to N(0, 1), but a constant
            return -0.5 * (y - w) ** 2 + prior / 30

        def init_latents(self, key, params, y):
            return jnp.zeros((), y.dtype)

    fit = mx.fit(Mean(), y, mx.soul(mx.Polynomial(1.5, 0.55)), mx.Noise(4, antithetic=True), params={"mu": 0.0, "log_sd": 0.0},
                 n_iter=8000, polish=False, progress=False)  # fmt: skip
    assert fit.params["mu"] == pytest.approx(y.sum() / 31, abs=0.01)
    assert fit.params["log_sd"] == pytest.approx(-0.5 * np.log(31), abs=0.03)
    with pytest.raises(ValueError, match="variational"):
        fit.summary()


def test_optax_optimisers_and_penalties():
    import optax

    problem = random_intercept()
    fit = mx.fit(problem.model, problem.data, mx.soul(optax.adam(0.02)), mx.Quadrature(9), params=problem.start,
                 space=problem.space, n_iter=3000, polish=False, progress=False)  # fmt: skip
    assert abs(fit.params["mu"] - problem.mle["mu"]) < 0.02 * problem.se["mu"]
    strong = mx.fit(problem.model, problem.data, mx.soul(0.3, mx.LastIterate()), mx.Quadrature(9), params=problem.start,
                    space=problem.space, penalty=mx.L1(1e4, on="mu"), n_iter=300, polish=False, progress=False)  # fmt: skip
    assert strong.params["mu"] == 0.0 and strong.params["tau2"] > 0.1


def test_keys_may_be_given_in_any_form():
    problem = random_intercept()
    fits = [mx.fit(problem.model, problem.data, mx.saem(), mx.Exact(), params=problem.start, space=problem.space, n_iter=5,
                   key=key, polish=False, progress=False) for key in (3, jax.random.key(3), jax.random.PRNGKey(3))]  # fmt: skip
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].trace["params"], other.trace["params"])
