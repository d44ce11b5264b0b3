"""Every family as ArviZ reads it: summary, leave-one-out and plots, against exact densities and posteriors."""

import copy
import importlib
import json
import warnings
from typing import Any

import jax
import numpy as np
import pytest
import scipy
from matplotlib import pyplot
from scipy.special import expit

import margaux as mx
from helpers import normal
from margaux.datasets import load_theophylline
from margaux.families.nlme import LogNormal, oral1cpt

stats: Any = importlib.import_module("arviz_stats")
arviz_plots: Any = importlib.import_module("arviz_plots")


def checked(data: Any, group: str = "y", least: int = 1) -> Any:
    """Summary, leave-one-out and plots work on a tree."""
    frame = stats.summary(data)
    assert len(frame) >= least and frame["mean"].notna().all()
    arviz_plots.plot_forest(data, var_names=list(data.posterior.data_vars)[:1])
    if "log_likelihood" in data.children:
        with warnings.catch_warnings():
            # An observation may be the only one that tells of its latent: then the shape of the weights is large.
            warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto")
            found = stats.loo(data, var_name=group)
        assert np.isfinite(found.elpd) and found.n_data_points == data.log_likelihood[group][0, 0].size
    if "posterior_predictive" in data.children and group in data.posterior_predictive:
        with warnings.catch_warnings():
            # Outcomes of few values have plots of their own, which it recommends.
            for told in ("The (observed|predictive) data looks binary", ".* look binary", "Detected at least one discrete"):
                warnings.filterwarnings("ignore", told)
            arviz_plots.plot_ppc_dist(data, var_names=group, num_samples=20)
        assert data.posterior_predictive[group].shape[2:] == data.observed_data[group].shape
    pyplot.close("all")
    return frame


@pytest.fixture(scope="module")
def kinetics():
    individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(3.0)}
    model = mx.NLME(structural=oral1cpt, individual=individual, n_iter=100, n_burn=60, n_starts=1, stop=False, verbose=False)
    return model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")


@pytest.mark.slow
def test_individual_parameters_by_subject(kinetics):
    data = kinetics.to_arviz(400, posterior_predictive=True)
    assert set(data.posterior.data_vars) == {"ka", "V", "CL"} and data.posterior["ka"].dims == ("chain", "draw", "subject")
    assert data.posterior["subject"].values.tolist() == list(kinetics.data_.labels)
    frame = checked(data, "Concentration", 36)
    exact = np.concatenate([kinetics.individual_[f"mean_{name}"] for name in ("ka", "V", "CL")])
    sd = np.concatenate([kinetics.individual_[f"sd_{name}"] for name in ("ka", "V", "CL")])
    ess = stats.summary(data, round_to="none")["ess_bulk"].to_numpy()
    assert len(frame) == 36 and np.max(np.abs(stats.summary(data, round_to="none")["mean"] - exact) / (sd / np.sqrt(ess))) < 5
    # The density of each observation by itself.
    y, rows = load_theophylline(), data.log_likelihood["Concentration"]
    np.testing.assert_array_equal(data.observed_data["Concentration"], y["Concentration"])
    np.testing.assert_array_equal(rows["subject_of"], y["Id"])
    psi = {name: data.posterior[name][0, 0].values for name in ("ka", "V", "CL")}
    at = [list(kinetics.data_.labels).index(one) for one in y["Id"]]
    mean = [
        float(oral1cpt({name: value[i] for name, value in psi.items()}, {"time": t, "dose": d}))
        for i, t, d in zip(at, y["Time"], y["Dose"], strict=True)
    ]
    exact = scipy.stats.norm.logpdf(y["Concentration"], mean, kinetics.params_["a"])
    np.testing.assert_allclose(rows[0, 0], exact, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_scores_by_sample():
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(1 + rng.normal(size=(30, 1)) @ rng.normal(0, 0.7, (1, 6))))
    model = mx.PLNPCA(rank=1, n_starts=1, method="variational", verbose=False).fit(counts)
    data = model.to_arviz(1000, posterior_predictive=True)
    assert data.posterior["scores"].dims == ("chain", "draw", "unit", "component")
    assert data.posterior["component"].values.tolist() == ["PC1"] and data.log_likelihood["counts"].dims[2:] == (
        "unit",
        "feature",
    )
    checked(data, "counts", 30)
    # One latent: the exact posterior by a grid.
    grid = np.linspace(-6, 6, 4001)
    eta = model._loadings.B[0] + grid[:, None] * model.loadings_[:, 0]
    logs = (counts[:, None] * eta - np.exp(eta)).sum(axis=2) - grid**2 / 2
    weight = np.exp(logs - logs.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    mean = weight @ grid
    sd = np.sqrt(weight @ grid**2 - mean**2)
    draws = data.posterior["scores"].values[0, :, :, 0]
    assert np.max(np.abs(draws.mean(axis=0) - mean) / (sd / np.sqrt(1000))) < 4.5
    assert np.max(np.abs(draws.std(axis=0) / sd - 1)) < 5 / np.sqrt(2000)
    w, B = draws[0], model._loadings.B[0]
    exact = scipy.stats.poisson.logpmf(counts, np.exp(B + w[:, None] * model.loadings_[:, 0]))
    np.testing.assert_allclose(data.log_likelihood["counts"][0, 0], exact, rtol=1e-6, atol=1e-8)


def holes(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    eta = 0.5 + x @ [1.0, -1.0]
    y: Any = {
        "logistic": (rng.random(80) < expit(eta)).astype(int), "gaussian": eta + rng.normal(size=80),
        "poisson": rng.poisson(np.exp(eta / 2)), "multinomial": rng.integers(0, 3, 80),
    }[kind]  # fmt: skip
    x[rng.random(x.shape) < 0.2] = np.nan
    return x, y


@pytest.mark.parametrize(
    "kind", ["logistic", *(pytest.param(k, marks=pytest.mark.slow) for k in ("gaussian", "poisson", "multinomial"))]
)
def test_missing_entries(kind):
    x, y = holes(kind)
    model = mx.MissingGLM(family=kind, verbose=False).fit(x, y)
    data = model.to_arviz(500, posterior_predictive=True)
    entries = data.posterior["x_missing"]
    row, column = np.nonzero(np.isnan(x))
    assert entries.dims == ("chain", "draw", "entry") and entries["entry"].values[0] == f"x{column[0]}[{row[0]}]"
    np.testing.assert_array_equal(entries["entry_row"], row)
    checked(data, "y", len(row))
    sd = entries.values[0].std(axis=0)
    gap = (entries.values[0].mean(axis=0) - model.conditional_mean()[row, column]) / (sd / np.sqrt(500))
    assert np.abs(gap).max() < 4.7
    if kind == "logistic":
        whole = np.where(np.isnan(x), 0.0, x)
        whole[row, column] = entries.values[0, 3]
        p = expit(model.intercept_ + whole @ model.coef_)
        open_rows = np.unique(row)
        np.testing.assert_array_equal(data.log_likelihood["row"], open_rows)
        np.testing.assert_allclose(data.log_likelihood["y"][0, 3], np.log(np.where(y, p, 1 - p))[open_rows], rtol=1e-8)
    if kind == "multinomial":
        assert set(np.unique(data.posterior_predictive["y"])) == {0.0, 1.0, 2.0}


def test_a_table_without_holes_has_no_latent():
    x, y = holes("logistic")
    model = mx.MissingLogistic(verbose=False).fit(np.nan_to_num(x), y)
    with pytest.raises(ValueError, match="no missing entry"):
        model.to_arviz()


@pytest.mark.slow
def test_coefficients_by_name():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = np.where(X[:, 0] + rng.logistic(size=60) > 0, "yes", "no")
    model = mx.EmpiricalBayesLogistic(n_iter=300, n_draws=500, verbose=False).fit(X, y)
    data = model.to_arviz(800, posterior_predictive=True)
    assert data.posterior["coefficient"].values.tolist() == ["intercept", "x0", "x1"]
    checked(data, "y", 3)
    beta = data.posterior["coefficients"][0, 7].values
    p = expit(beta[0] + X @ beta[1:])
    np.testing.assert_allclose(data.log_likelihood["y"][0, 7], np.log(np.where(y == "yes", p, 1 - p)), rtol=1e-6)
    mean = data.posterior["coefficients"].values.mean(axis=(0, 1))
    sd = data.posterior["coefficients"].values.std(axis=(0, 1))
    ess = stats.ess(data)["coefficients"].values
    own = model.draws_.mean(axis=0)
    assert np.all(np.abs(mean - own) < 5 * sd * np.sqrt(1 / ess + 1 / 100))
    assert json.loads(data.attrs["classes"]) == ["no", "yes"]


@pytest.mark.slow
def test_random_effects_by_group():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(200, 3)), np.repeat(["a", "b", "c", "d"], 50)
    y = rng.logistic(size=200) < 2 * X[:, 0] + np.repeat([-1.0, 0.0, 1.0, 2.0], 50)
    model = mx.SparseMixedLogistic(penalty_weight=5, n_iter=800, verbose=False).fit(X, y, groups)
    data = model.to_arviz(800, posterior_predictive=True)
    effects = data.posterior["random_effects"]
    assert effects["group"].values.tolist() == ["a", "b", "c", "d"]
    checked(data, "y", 4)
    ess = stats.ess(data)["random_effects"].values
    gap = (effects.values.mean(axis=(0, 1)) - model.random_effects_["mean"]) / (model.random_effects_["sd"] / np.sqrt(ess))
    assert np.abs(gap).max() < 5


@pytest.mark.slow
def test_a_signal():
    rng = np.random.default_rng(0)
    A, x = rng.normal(size=(30, 20)) / 5, np.zeros(20)
    x[[3, 8]] = 2.0, -3.0
    y = A @ x + 0.1 * rng.normal(size=30)
    model = mx.SparseInverse(prior="l1", noise_sd=0.1, n_iter=300, verbose=False).fit(A, y)
    data = model.to_arviz(300, posterior_predictive=True)
    assert data.posterior["x"].shape == (1, 300, 20) and "MALA, continued from the fit" in data.attrs["drawn"]
    checked(data, "y", 20)
    exact = scipy.stats.norm.logpdf(y, A @ data.posterior["x"][0, 5].values, 0.1)
    np.testing.assert_allclose(data.log_likelihood["y"][0, 5], exact, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "numbers", "counts"])
def test_weights_by_tensor(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    if kind == "classes":
        model = mx.BayesianClassifier(temperature=1.0, epochs=20, verbose=False).fit(X, np.where(X[:, 0] > 0, "b", "a"))
    else:
        y = 5 + 3 * X[:, 0] if kind == "numbers" else rng.poisson(np.exp(X[:, 0]))
        model = mx.BayesianRegressor(
            temperature=1.0, likelihood="gaussian" if kind == "numbers" else "poisson", epochs=20, verbose=False
        ).fit(X, y)
    data = model.to_arviz(100, posterior_predictive=True)
    assert set(data.posterior.data_vars) == set(model.posterior_draws(1))
    checked(data, "y")
    assert data.log_likelihood["y"].shape == (1, 100, 50)
    # At its own means the density is that of the predictions.
    sure = copy.copy(model)
    sure._deviations = jax.tree.map(np.zeros_like, model._deviations)
    known = sure.to_arviz(2).log_likelihood["y"][0, 0].values
    if kind == "classes":
        exact = np.log(sure.predict_proba(X, 1)[np.arange(50), (X[:, 0] > 0).astype(int)])
    elif kind == "numbers":
        exact = scipy.stats.norm.logpdf(y, sure.predict(X, 1), model.params_["noise"])
    else:
        exact = scipy.stats.poisson.logpmf(y, sure.predict(X, 1))
    np.testing.assert_allclose(known, exact, rtol=2e-3, atol=1e-4)


def test_ones_own_density():
    y = np.array([1.0, 2.0, 6.0])
    found = mx.fit_variational(normal, 0.0, y, log_prior=lambda w: normal(w), epochs=300, progress=False)
    data = found.to_arviz(500)
    checked(data, "y")
    exact = scipy.stats.norm.logpdf(y, data.posterior["weights"][0].values[:, None])
    np.testing.assert_allclose(data.log_likelihood["y"][0], exact, rtol=1e-4, atol=1e-5)
    both = lambda w: normal(w["a"]) + normal(w["b"], 1.0)  # noqa: E731
    whole = mx.fit_variational(both, {"a": 0.0, "b": 0.0}, epochs=50, progress=False)
    assert set(whole.to_arviz(10).posterior.data_vars) == {"a", "b"}
    with pytest.raises(TypeError, match="pass data="):
        whole.to_arviz(10, log_likelihood=True)
