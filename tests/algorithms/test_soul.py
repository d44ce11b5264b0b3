"""SOUL without a step to choose, its bias probe, evidence, particles, and the empirical-Bayes estimator."""

import functools
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import margaux as mx
from helpers import gamma_poisson, logistic_normal, random_intercept
from margaux.algorithms.scaled import ScaledAscent
from margaux.datasets import load_wisconsin
from margaux.engine.loop import TRACED
from margaux.examples import wisconsin
from margaux.families.empirical_bayes.model import ARDPrior, MeanScalePrior
from margaux.kernels.coupling import halved


@pytest.fixture(scope="module")
def chain_fit():
    return mx.fit(wisconsin.EmpiricalBayesLogistic(), wisconsin.data(), mx.soul(), mx.MCMC(mx.ULA(), n_steps=2),
                  params={"theta": 0.0},
                  n_iter=20_000, polish=False, progress=False)  # fmt: skip


SCALINGS = {
    # of the nine columns, and the exact estimate (quadrature-grade importance sampling)
    "standardised": (lambda X: (X - X.mean(axis=0)) / X.std(axis=0, ddof=1), 0.729),
    "over ten": (lambda X: X / 10, 1.424),
    "largest absolute value": (lambda X: (X - X.mean(axis=0)) / np.abs(X - X.mean(axis=0)).max(axis=0), 1.787),
}


@pytest.mark.parametrize(
    ("kernel", "n_iter"),
    [(mx.ULA(preconditioner="dense"), 100_000), (mx.ULA(), 400_000)],
    ids=["dense", "plain"],
)
@pytest.mark.slow
@pytest.mark.parametrize("name", SCALINGS)
def test_nothing_need_be_chosen_whatever_the_scaling(name, kernel, n_iter):
    scale, exact = SCALINGS[name]
    X, y = load_wisconsin(return_X_y=True)
    X = scale(np.asarray(X, float))
    data = mx.one_unit({"X": np.column_stack([np.ones(len(X)), X]), "y": np.asarray(y, float)})
    fit = mx.fit(wisconsin.EmpiricalBayesLogistic(), data, mx.soul(), mx.MCMC(kernel), params={"theta": 0.0}, n_iter=n_iter,
                 runs=5, spread=0.0, polish=False, progress=False)  # fmt: skip
    assert np.abs(fit.run_params["theta"] - exact).max() < 0.05


@pytest.mark.parametrize("problem", [random_intercept, gamma_poisson, logistic_normal])
def test_scaled_ascent_reaches_the_exact_maximum(problem):
    problem = problem()
    fit = mx.fit(problem.model, problem.data, mx.soul(), mx.Quadrature(15), params=problem.start, space=problem.space, n_iter=500,
                 polish=False, progress=False)  # fmt: skip
    for name, truth in problem.mle.items():
        assert abs(fit.params[name] - truth) < 0.02 * problem.se[name]


def test_scaled_ascent_follows_the_largest_eigenvalue_beyond_a_matrix():
    """Forty means, of which an L1 penalty keeps the large ones: the exact answer is soft thresholding."""
    rng = np.random.default_rng(0)
    means = np.r_[np.full(5, 2.0), np.zeros(35)]
    y = rng.normal(means, 1.0, (50, 40))

    class Means(mx.AbstractModel, mx.AbstractConjugate):
        def log_joint(self, params, z, row):
            return -0.5 * ((row - z - params["mu"]) ** 2).sum() - 0.5 * (z**2).sum()

        def init_latents(self, key, params, row):
            return 0.0 * row

        def sample_posterior(self, key, params, row):
            return (row - params["mu"]) / 2 + jax.random.normal(key, row.shape, row.dtype) * 0.5**0.5

    run = lambda penalty: mx.fit(  # noqa: E731
        Means(), y, mx.soul(), mx.Exact(4), params={"mu": np.zeros(40)}, n_iter=300, penalty=penalty, polish=False, progress=False
    ).params["mu"]
    assert np.abs(run(None) - y.mean(axis=0)).max() < 0.03
    # The marginal variance is two: the penalised objective is n |mu - mean|^2 / 4 + weight |mu|.
    soft = np.sign(y.mean(axis=0)) * np.maximum(np.abs(y.mean(axis=0)) - 2 * 10.0 / 50, 0)
    kept = run(mx.L1(10.0))
    assert np.abs(kept - soft).max() < 0.03
    assert np.sum(np.abs(kept) > 1e-3) <= 10


@pytest.mark.slow
def test_bias_probe_sees_a_large_step_and_no_small_one(chain_fit):
    small = chain_fit.bias_probe()
    assert abs(small["shift_in_se"].to_numpy()[0]) < 0.01 and "small" in small.attrs["message"]
    coarse = mx.fit(wisconsin.EmpiricalBayesLogistic(), wisconsin.data(), mx.soul(), mx.MCMC(mx.ULA(0.04)), params={"theta": 0.0},
                    n_iter=20_000, polish=False, progress=False).bias_probe()  # fmt: skip
    shift, error = coarse.loc["theta", ["shift", "mc_error"]].to_numpy(float)
    assert shift > 5 * error
    assert shift > 5 * abs(small["shift"].to_numpy()[0])
    exact = mx.fit(wisconsin.EmpiricalBayesLogistic(), wisconsin.data(), mx.soul(), mx.MCMC(mx.MALA(0.01)), params={"theta": 0.0},
                   n_iter=10, polish=False, progress=False)  # fmt: skip
    with pytest.raises(ValueError, match="exact"):
        exact.bias_probe()


def test_one_unadjusted_move_in_a_pattern_biases_the_whole():
    assert mx.Alternating().adjusted and mx.Alternating(("mala",)).adjusted
    pure, mixed = mx.Alternating(("ula",)), mx.Alternating(("independence", "ula"))
    assert not pure.adjusted and not mixed.adjusted
    assert halved(pure)[2] == 1
    with pytest.raises(ValueError, match="take turns"):
        halved(mixed)
    with pytest.raises(ValueError, match="never rejects"):
        mx.Blocked(shared=pure)


@pytest.mark.slow
def test_bias_probe_of_unadjusted_moves_shaped_by_the_laplace_approximation():
    """On a Gaussian posterior of variance v their chain has the variance v / (1 - h/2), and EM a fixed point of its own.

    The fit is over two of the step h and one of h/2, and so is the shift that the probe promises.
    """
    problem = random_intercept()
    mask, y = problem.data["mask"], problem.data["y"]
    m, total = mask.sum(axis=1), (mask * y).sum(axis=1)

    def fixed_point(h):
        mu, tau2 = 0.5, 0.5
        for _ in range(3000):
            v = 1 / (1 / tau2 + m)
            mean = v * (mu / tau2 + total)
            mu, tau2 = mean.mean(), np.mean((mean - mean.mean()) ** 2 + v / (1 - h / 2))
        return np.array([mu, tau2])

    np.testing.assert_allclose(fixed_point(0.0), [problem.mle["mu"], problem.mle["tau2"]], rtol=1e-5)
    h = 0.4
    estep = mx.MCMC(mx.Alternating(("ula",), step_size=h / 0.1), n_steps=4)
    fit = mx.fit(problem.model, problem.data, mx.soul(), estep, params=problem.start, space=problem.space, n_iter=3000,
                 progress=False)  # fmt: skip
    assert "acceptance" not in fit.trace
    probe = fit.bias_probe(n_iter=5000)
    exact = 2 * (fixed_point(h) - fixed_point(h / 2))
    wrong = (probe["shift"].to_numpy(float) - exact) / np.array([problem.se["mu"], problem.se["tau2"]])
    assert np.all(np.abs(wrong) < 0.03) and exact[1] > 0.3 * problem.se["tau2"]


def test_a_probe_beyond_traced_parameters_says_how_many_there_are():
    class Means(mx.AbstractModel):
        def log_joint(self, params, z, row):
            return -0.5 * ((row - z - params["mu"]) ** 2).sum() - 0.5 * z**2

        def init_latents(self, key, params, row):
            return 0.0 * row[0]

    fit = mx.fit(Means(), np.zeros((2, TRACED + 1)), mx.soul(1.0), mx.MCMC(mx.ULA(0.01)), params={"mu": np.zeros(TRACED + 1)},
                 n_iter=2, progress=False)  # fmt: skip
    with pytest.raises(ValueError, match="at most 512 scalar parameters; this fit has 513"):
        fit.bias_probe()


@pytest.mark.parametrize("method", ["harmonic", "student", "annealed"])
def test_evidence_agrees_with_quadrature(method):
    problem = gamma_poisson()
    fit = mx.fit(problem.model, problem.data, mx.soul(), mx.MCMC(mx.MALA(0.5)), params=problem.start, space=problem.space,
                 n_iter=200, polish=False, progress=False)  # fmt: skip
    exact = fit.loglik("quadrature")
    found = fit.loglik(method, n_draws=20_000 if method == "harmonic" else None)
    assert found.se < 0.2
    assert abs(found - exact) < 4 * found.se


@pytest.mark.slow
def test_evidence_of_ten_shared_latents_and_its_slice(chain_fit):
    at = {"theta": np.asarray(0.729)}
    for method in ("harmonic", "student", "annealed"):
        found = chain_fit.loglik(method, n_draws=30_000 if method == "harmonic" else None, params=at)
        assert found.se < 0.05 and abs(found + 69.515) < 0.05 + 4 * found.se
    frame = chain_fit.slice("theta", np.linspace(-0.25, 1.75, 3), method="harmonic", n_draws=30_000)
    assert frame.attrs["maximiser"] == pytest.approx(0.729, abs=0.05)
    drawn = chain_fit.plot.profile(frame, truth=0.729).lines[0]
    np.testing.assert_array_equal(drawn.get_xydata(), np.column_stack([frame.index, frame["loglik"]]))
    with pytest.raises(ValueError, match="no parameter"):
        chain_fit.slice("sigma", [0, 1, 2])
    with pytest.raises(ValueError, match="three"):
        chain_fit.slice("theta", [0, 0, 1])


PARTICLES = {"pgd": lambda: mx.pgd(0.005), "ipla": lambda: mx.ipla(0.005), "slow_fast": lambda: mx.slow_fast(0.002, 1e4)}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTICLES)
def test_particles_reach_the_maximum(name):
    estep = mx.MCMC(mx.ULA(0.005), n_chains=50)
    fit = mx.fit(wisconsin.EmpiricalBayesLogistic(), wisconsin.data(), PARTICLES[name](), estep, params={"theta": 0.0}, runs=8,
                 spread=0.0, n_iter=8000, polish=False, progress=False)  # fmt: skip
    values = fit.run_params["theta"]
    assert len(set(values)) == 8
    assert abs(values.mean() - 0.729) < 3 * values.std(ddof=1) / np.sqrt(8) + 0.01
    assert values.std(ddof=1) < 0.1


@pytest.fixture(scope="module")
def wisconsin_arrays():
    X, y = load_wisconsin(return_X_y=True)
    X = pd.DataFrame(np.asarray(X, float)).add_prefix("c")
    return (X - X.mean()) / X.std(ddof=1), np.where(np.asarray(y) == 1, "malignant", "benign")


def test_empirical_bayes_logistic(wisconsin_arrays):
    X, y = wisconsin_arrays
    model = mx.EmpiricalBayesLogistic(n_iter=10_000, verbose=False).fit(X, y)
    assert model.params_["theta"] == pytest.approx(0.729, abs=0.05)
    assert model.stderr_["theta"] == pytest.approx(0.714, rel=0.02)
    assert model.loglik_ == pytest.approx(-69.515, abs=0.05) and model.loglik_se_ < 0.05
    assert model.coef_.shape == (1, 9) and model.classes_.tolist() == ["benign", "malignant"]
    assert model.score(X, y) > 0.96
    p = model.predict_proba(X)
    # Averaged over the posterior, probabilities are less extreme than at its mean.
    plug_in = 1 / (1 + np.exp(-(X.to_numpy() @ model.coef_[0] + model.intercept_[0])))
    assert np.abs(p[:, 1] - 0.5).mean() < np.abs(plug_in - 0.5).mean()
    assert list(model.summary().index) == ["theta"] and model.converged_
    axes = model.plot_coefficients()
    assert [axis.get_title() for axis in axes] == ["intercept", *X.columns]
    np.testing.assert_allclose([axis.lines[0].get_xdata()[0] for axis in axes], model.draws_.mean(axis=0))


@pytest.mark.slow
def test_formulas_pipelines_and_clones(wisconsin_arrays):
    X, y = wisconsin_arrays
    frame = X.assign(malignant=(y == "malignant").astype(int))
    quick: Any = mx.EmpiricalBayesLogistic(n_iter=1000, n_draws=200, verbose=False)
    fresh: Any = functools.partial(clone, quick)
    by_formula = fresh().fit("malignant ~ c0 + c1", frame)
    by_arrays = fresh().fit(X[["c0", "c1"]], frame["malignant"])
    np.testing.assert_allclose(by_formula.coef_, by_arrays.coef_)
    np.testing.assert_allclose(by_formula.predict_proba(frame), by_arrays.predict_proba(X[["c0", "c1"]]))
    assert cross_val_score(make_pipeline(StandardScaler(), quick), X, y, cv=3).mean() > 0.9
    with pytest.raises(ValueError, match="nothing"):
        fresh().fit("malignant ~ nothing", frame)
    with pytest.raises(TypeError, match="frame"):
        fresh().fit("malignant ~ c0", frame.to_numpy())


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"prior": "spike"}, "prior must be"),
        ({"sigma": -1.0}, "sigma must be"),
        ({"prior": "ard", "fit_intercept": False}, "intercept"),
    ],
)
def test_bad_settings(wisconsin_arrays, settings, word):
    with pytest.raises(ValueError, match=word):
        mx.EmpiricalBayesLogistic(verbose=False, **settings).fit(*wisconsin_arrays)


@pytest.mark.slow
@parametrize_with_checks([mx.EmpiricalBayesLogistic(n_iter=300, n_draws=50, n_steps=2, verbose=False)])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def _gaps(model, data, params, gain, kernel, n_iter):
    """Gap between SOUL and SAEM, and its Monte Carlo error, from four runs of each with seeds of their own."""
    means, errors = [], []
    scaled = ScaledAscent(gain=gain, average=mx.PolyakRuppert())
    for key, algorithm in enumerate([mx.saem(gain, average=mx.PolyakRuppert()), scaled]):
        fit = mx.fit(model, data, algorithm, mx.MCMC(kernel, n_steps=5, warm_up=3000), params=params, n_iter=n_iter, runs=4,
                     space={"sigma": mx.Positive(1e-6)}, spread=0.0, key=100 * key, polish=False, progress=False)  # fmt: skip
        runs = np.concatenate([np.reshape(fit.run_params[name], (4, -1)) for name in sorted(params)], axis=1)
        means.append(runs.mean(axis=0))
        errors.append(runs.std(axis=0, ddof=1) / 2)
    return np.abs(means[0] - means[1]), np.hypot(*errors)


@pytest.mark.slow
def test_soul_and_saem_agree_on_an_ill_conditioned_regression(data_folder):
    """beta ~ N(theta 1, sigma^2 I), exact standard error of theta about 0.1; EM needs hundreds of steps at gain one."""
    file = np.load(data_folder / "logistic_kappa1000.npz")
    data = mx.one_unit({"x": file["X"], "y": file["y"].astype(float)})
    gap, error = _gaps(MeanScalePrior(), data, {"sigma": 0.1, "theta": 1.0}, mx.Polynomial(1.0, 0.4),
                       mx.MALA(0.05, preconditioner="dense"), 20_000)  # fmt: skip
    assert error[0] < 0.005 and error[1] < 0.03
    assert np.all(gap < 4 * error)  # Student's t with six degrees of freedom: 1 in 140


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n_iter", "precision"), [("wisconsin", 40_000, 0.02), ("kappa", 12_000, 0.1)])
def test_soul_and_saem_agree_on_automatic_relevance(name, n_iter, precision, data_folder):
    """One scale a coefficient. The scales near zero move by a factor an iteration, so their runs differ most."""
    if name == "wisconsin":
        X, y = load_wisconsin(return_X_y=True)
        X = (X - X.mean(axis=0)) / X.std(axis=0, ddof=1)
    else:
        file = np.load(data_folder / "logistic_kappa1000.npz")
        X, y = file["X"], file["y"]
    data = mx.one_unit({"x": np.column_stack([np.ones(len(X)), X]), "y": np.asarray(y, float)})
    gap, error = _gaps(ARDPrior(5.0), data, {"sigma": np.ones(X.shape[1])}, mx.Polynomial(1.0, 0.6),
                       mx.ULA(preconditioner="dense"), n_iter)  # fmt: skip
    assert np.median(error) < precision
    assert np.all(gap < 5 * error + 0.01)  # each algorithm has a bias of the order of its last gains, 0.002
