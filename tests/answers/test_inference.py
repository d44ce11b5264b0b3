"""Standard errors, tests, likelihoods and diagnostics against exact answers."""

import jax.numpy as jnp
import numpy as np
import pytest

import margaux as mx
from helpers import (
    MIXTURE_SPACE,
    MIXTURE_START,
    Mixture,
    gamma_poisson,
    intercept_negative_loglik,
    logistic_normal,
    mixture_em,
    normal,
    random_intercept,
    simulate_intercepts,
    simulate_mixture,
)
from margaux.answers.diagnostics import rhat

PROBLEMS = {"random_intercept": random_intercept, "gamma_poisson": gamma_poisson, "logistic_normal": logistic_normal}


def at_mle(problem, n_iter=3000, estep=None):
    """A deterministic fit to the maximum: EM with quadrature."""
    return mx.fit(problem.model, problem.data, mx.mcem(mx.LastIterate()), estep or mx.Quadrature(25), params=problem.start,
                  space=problem.space, n_iter=n_iter, polish=False, progress=False)  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_quadrature_em_and_louis_are_exact(name):
    problem = PROBLEMS[name]()
    fit = at_mle(problem)
    summary = fit.summary()
    for parameter, truth in problem.mle.items():
        assert abs(summary.loc[parameter, "estimate"] - truth) < 1e-3 * problem.se[parameter]
        assert summary.loc[parameter, "se"] == pytest.approx(problem.se[parameter], rel=2e-3)
    assert float(fit.loglik("quadrature")) == pytest.approx(problem.loglik, abs=1e-4)
    importance = fit.loglik("importance")
    assert abs(float(importance) - problem.loglik) < 4 * importance.se + 1e-4
    assert importance.se < 0.1
    assert fit.aic == pytest.approx(-2 * problem.loglik + 4, abs=1e-3)
    assert bool(np.all(fit.diagnostics()["ok"])), fit.diagnostics().to_string()


@pytest.mark.parametrize(
    "estep",
    [mx.ImportanceSampling(2000, quasi=True), mx.Exact(4000), mx.MCMC(mx.MALA(0.5), n_steps=4000, n_chains=2)],
    ids=["importance", "exact", "mcmc"],
)
def test_standard_errors_by_any_estep(estep):
    problem = random_intercept()
    fit = at_mle(problem, 500)
    info = fit.information(estep=estep)
    se = np.sqrt(np.diagonal(info.covariance))
    np.testing.assert_allclose(se, [problem.se[name] for name in fit.names], rtol=0.02)


@pytest.mark.slow
def test_opg_and_sandwich_are_near_at_a_correct_model():
    problem = random_intercept(400, seed=8)
    fit = at_mle(problem, 500)
    for method in ("opg", "sandwich"):
        se = fit.summary(method=method)["se"].to_numpy()
        # Their relative error is of order 1 / sqrt(n): 15% is about three standard deviations here.
        np.testing.assert_allclose(se, [problem.se[name] for name in fit.names], rtol=0.15)


def test_wald_tests_and_names():
    problem = random_intercept()
    fit = at_mle(problem, 500)
    one = fit.wald_test("mu")
    assert one.statistic == pytest.approx(fit.summary().loc["mu", "z"] ** 2)
    both = fit.wald_test(["mu", "tau2"], [problem.mle["mu"], problem.mle["tau2"]])
    assert both.df == 2 and both.p > 0.999
    assert fit.wald_test(np.array([[1.0, -1.0]])).df == 1
    assert list(fit.cov_params().index) == list(fit.cov_params().columns) == ["mu", "tau2"]
    assert fit.conf_int(0.9).loc["mu", "ci_low"] > fit.conf_int(0.95).loc["mu", "ci_low"]
    with pytest.raises(ValueError, match='"sigma".*mu'):
        fit.wald_test("sigma")
    with pytest.raises(ValueError, match="2 parameters"):
        fit.wald_test(np.eye(3))
    with pytest.raises(ValueError, match="level"):
        fit.summary(level=95)


def test_boundary_fit_is_said_and_has_no_standard_error():
    rng = np.random.default_rng(2)
    units = {"y": rng.normal(0.0, 0.7, (30, 4)), "mask": np.ones((30, 4))}  # less spread than the model's noise: tau2 = 0
    problem = random_intercept()._replace(data=units)
    fit = at_mle(problem, 4000)
    assert fit.result is mx.RESULTS.boundary
    summary = fit.summary()
    assert np.isnan(summary.loc["tau2", "se"]) and np.isfinite(summary.loc["mu", "se"])
    assert "boundary" in summary.attrs["message"] and "tau2" in summary.attrs["message"]


def test_unidentified_parameters_are_said():
    class Twice(mx.AbstractModel):
        def log_joint(self, params, z, y):
            return -0.5 * (y - z) ** 2 - 0.5 * (z - params["a"] - params["b"]) ** 2 - np.log(2 * np.pi)

        def init_latents(self, key, params, y):
            return 0.0 * y

    y = np.random.default_rng(0).normal(size=20)
    fit = mx.fit(
        Twice(), y, mx.soul(0.3), mx.Quadrature(5), params={"a": 0.0, "b": 0.0}, n_iter=200, polish=False, progress=False
    )
    summary = fit.summary()
    assert bool(np.all(np.isnan(summary["se"]))) and "singular" in summary.attrs["message"]
    assert not fit.diagnostics().loc["information", "ok"]


def test_mixture_information_and_simplex_delta_method():
    x = simulate_mixture(400, seed=4)
    truth, loglik = mixture_em(x)
    fit = mx.fit(Mixture(), x, mx.mcem(mx.LastIterate()), mx.Exact(), params=MIXTURE_START, space=MIXTURE_SPACE, n_iter=4000,
                 polish=False, progress=False)  # fmt: skip
    assert float(fit.loglik("exact")) == pytest.approx(loglik, abs=1e-6)
    assert fit.n_params == 8
    covariance = fit.cov_params()
    weights = [f"weights[{j}]" for j in range(3)]
    # The weights sum to one, so their covariances sum to zero.
    np.testing.assert_allclose(covariance.loc[weights, weights].sum(axis=1), 0, atol=1e-12)

    def negative(theta):
        p = {"weights": np.r_[theta[:2], 1 - theta[:2].sum()], "means": theta[2:5], "variances": theta[5:]}
        from scipy import stats

        logs = np.log(p["weights"]) + stats.norm.logpdf(x[:, None], p["means"], np.sqrt(p["variances"]))
        return -np.log(np.exp(logs).sum(axis=1)).sum()

    theta = np.r_[truth["weights"][:2], truth["means"], truth["variances"]]
    h, k = 1e-4, 8
    e = np.eye(k) * h
    hessian = np.array([[(negative(theta + e[i] + e[j]) - negative(theta + e[i] - e[j]) - negative(theta - e[i] + e[j])
                          + negative(theta - e[i] - e[j])) / (4 * h * h) for j in range(k)] for i in range(k)])  # fmt: skip
    se = np.sqrt(np.diagonal(np.linalg.inv(hessian)))
    names = ["weights[0]", "weights[1]", *(f"means[{j}]" for j in range(3)), *(f"variances[{j}]" for j in range(3))]
    np.testing.assert_allclose(fit.summary().loc[names, "se"], se, rtol=1e-3)


def test_latents_of_the_random_intercept_are_the_conjugate_ones():
    problem = random_intercept()
    fit = at_mle(problem, 200)
    moments = fit.latents()
    mask, y = problem.data["mask"], problem.data["y"]
    precision = 1 / fit.params["tau2"] + mask.sum(1)
    mean = (fit.params["mu"] / fit.params["tau2"] + (mask * y).sum(1)) / precision
    np.testing.assert_allclose(moments["mean"], mean, atol=1e-8)
    np.testing.assert_allclose(moments["sd"], precision**-0.5, rtol=1e-6)


def test_control_variate_cuts_the_error_and_stays_consistent():
    problem = logistic_normal()

    def scores(estep):
        runs = mx.fit(problem.model, problem.data, mx.soul(1.0, mx.LastIterate()), estep, params=problem.start, n_iter=1,
                      space=problem.space, runs=200, spread=0.0, polish=False, progress=False)  # fmt: skip
        return runs.run_params["mu"]

    plain, controlled = (scores(mx.ImportanceSampling(64, control_variate=control)) for control in (False, True))
    assert controlled.std() < 0.5 * plain.std()
    truth = scores(mx.Quadrature(41)).mean()
    assert abs(controlled.mean() - truth) < 4 * plain.std() / np.sqrt(200)


def test_runs_diagnostics_save_and_load(tmp_path):
    problem = random_intercept()
    fit = mx.fit(problem.model, problem.data, mx.saem(), mx.MCMC(mx.RandomWalk(1.0), n_steps=3), params=problem.start,
                 space=problem.space, n_iter=600, runs=3, polish=False, progress=False)  # fmt: skip
    checks = fit.diagnostics()
    assert {"stationarity", "rhat", "acceptance", "gradient", "information"} <= set(checks.index)
    tail = fit.trace["params"][fit.averaged_from :]
    assert checks.loc["rhat", "ok"] and checks.loc["rhat", "figure"] == rhat(tail).max()
    fit.save(tmp_path / "fit.npz")
    again = mx.load(tmp_path / "fit.npz", problem.model, problem.data, space=problem.space)
    np.testing.assert_array_equal(again.params["mu"], fit.params["mu"])
    np.testing.assert_array_equal(again.trace["params"], fit.trace["params"])
    np.testing.assert_allclose(again.summary()["se"], fit.summary()["se"], rtol=1e-6)
    with pytest.raises(ValueError, match="model="):
        mx.load(tmp_path / "fit.npz").summary()
    (tmp_path / "junk").write_text("x")
    with pytest.raises(ValueError, match="not a margaux file"):
        mx.load(tmp_path / "junk")


@pytest.mark.parametrize(("away", "ok"), [(0.09, True), (0.3, False), (0.8, False)])
def test_gradient_says_how_far_the_maximum_is(away, ok):
    problem = random_intercept()
    params = problem.mle | {"mu": problem.mle["mu"] + away * problem.se["mu"]}
    fit = mx.fit(problem.model, problem.data, mx.soul(1e-9), mx.Quadrature(25), params=params, space=problem.space, n_iter=2,
                 polish=False, progress=False)  # fmt: skip
    check = fit.diagnostics().loc["gradient"]
    # Nearly a parabola in mu.
    assert check["figure"] == pytest.approx(away, rel=0.05) and check["ok"] == ok
    assert ok or f"{away:g} standard errors away, most of it in mu" in check["verdict"]


def test_failures_are_results_and_keep_what_there_was():
    problem = random_intercept()
    with pytest.raises(mx.FitError, match="diverged") as caught:
        mx.fit(problem.model, problem.data, mx.soul(mx.Polynomial(1e6, 0.0), mx.LastIterate()), mx.MCMC(mx.ULA(10.0)),
               params=problem.start, n_iter=500, polish=False, progress=False)  # fmt: skip
    assert caught.value.fit.result is mx.RESULTS.diverged
    assert np.isfinite(caught.value.fit.params["mu"])
    stuck = mx.fit(problem.model, problem.data, mx.saem(), mx.MCMC(mx.RandomWalk(1e6, target_acceptance=None)),
                   params=problem.start, space=problem.space, n_iter=400, throw=False, polish=False, progress=False)  # fmt: skip
    assert stuck.result is mx.RESULTS.stuck and not stuck.converged


def test_early_stopping_and_max_iterations():
    problem = random_intercept()
    settings = dict(params=problem.start, space=problem.space, progress=False)
    rule = mx.EarlyStopping(window=100)
    stopped = mx.fit(
        problem.model,
        problem.data,
        mx.mcem(mx.LastIterate()),
        mx.Quadrature(9),
        n_iter=20_000,
        stop=rule,
        **settings,
        polish=False,
    )
    assert stopped.result is mx.RESULTS.stopped and stopped.n_iter < 20_000
    assert abs(stopped.params["mu"] - problem.mle["mu"]) < 1e-3
    later = mx.EarlyStopping(window=100, floor=stopped.n_iter + 500)
    patient = mx.fit(
        problem.model, problem.data, mx.mcem(mx.LastIterate()), mx.Quadrature(9), n_iter=20_000, stop=later, **settings
    )
    assert patient.result is mx.RESULTS.stopped and stopped.n_iter + 500 <= patient.n_iter < 20_000
    short = mx.fit(problem.model, problem.data, mx.mcem(), mx.Quadrature(9), n_iter=20, stop=rule, **settings, polish=False)
    assert short.result is mx.RESULTS.max_iterations and not short.converged


@pytest.mark.slow
def test_intervals_cover():
    """95% intervals over 500 data sets cover between 93% and 97% (their Monte Carlo error is 1%)."""
    covered = np.zeros(2)
    for seed in range(500):
        groups, units = simulate_intercepts(150, seed=1000 + seed)
        width = 6
        units = {name: np.pad(leaf, ((0, 0), (0, width - leaf.shape[1]))) for name, leaf in units.items()}
        problem = random_intercept()
        fit = mx.fit(problem.model, units, mx.saem(), mx.MCMC(mx.MALA(0.5), n_steps=2), params=problem.start,
                     space=problem.space, n_iter=500, key=seed, polish=False, progress=False)  # fmt: skip
        interval = fit.conf_int()
        truth = {"mu": 1.0, "tau2": 0.8}
        covered += [interval.loc[n, "ci_low"] <= truth[n] <= interval.loc[n, "ci_high"] for n in ("mu", "tau2")]
        if seed == 0:
            assert intercept_negative_loglik(groups, {k: float(v) for k, v in fit.params.items()}) < np.inf
    print("coverage", covered / 500)
    assert np.all((covered / 500 >= 0.93) & (covered / 500 <= 0.97))


def test_a_fit_by_several_chains_of_many_latents_has_a_certificate():
    """As many chains go on as there are: their states fit no other number."""

    class Many(mx.AbstractModel):
        def log_joint(self, params, z, y):
            return jnp.sum(normal(y, z, 1.0) + normal(z, params["mu"], 1.0))

        def init_latents(self, key, params, y):
            return y

    y = np.random.default_rng(0).normal(size=(4, 25))
    chains = mx.MCMC(mx.MALA(), n_chains=2)
    fit = mx.fit(Many(), y, mx.soul(), chains, params={"mu": 0.0}, n_iter=50, progress=False, throw=False)
    assert fit.certificate.word in ("certified", "careful", "failed")
    # The estimate is the mean of all 100 numbers, whose sum has the variance of two.
    np.testing.assert_allclose(float(fit.params["mu"]), y.mean(), atol=0.05)
