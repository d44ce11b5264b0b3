"""Fits and estimators as ArviZ reads them, against exact posteriors and exact leave-one-out."""

import importlib
import json
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
import xarray
from matplotlib import pyplot
from scipy.special import expit

import margaux as mx
from helpers import RandomIntercept, normal, simulate_intercepts

stats: Any = importlib.import_module("arviz_stats")
arviz_plots: Any = importlib.import_module("arviz_plots")
STEPS = {
    "exact": lambda: (mx.saem(), mx.Exact()),
    "chains": lambda: (mx.saem(), mx.MCMC(mx.MALA(), n_steps=2, n_chains=2)),
    "importance": lambda: (mx.isgd(step=0.01), mx.ImportanceSampling(64)),
    "quadrature": lambda: (mx.soul(step=0.01), mx.Quadrature(7)),
}


class Told(RandomIntercept, mx.problem.AbstractPointwise, mx.problem.AbstractPredictive):
    """y_ij ~ N(z_i, 1), z_i ~ N(mu, tau2), and what ArviZ is told of it."""

    def pointwise(self, params, z, y):
        return jnp.where(y["mask"] > 0, normal(y["y"], z, 1.0), jnp.nan)

    def simulate(self, key, params, z, y):
        return y | {"y": z + jax.random.normal(key, y["y"].shape, y["y"].dtype)}


class Plain(mx.AbstractModel, mx.problem.AbstractPointwise):
    """The same without the capability to draw its posterior exactly."""

    own: Told = Told()

    def log_joint(self, params, z, y):
        return self.own.log_joint(params, z, y)

    def init_latents(self, key, params, y):
        return self.own.init_latents(key, params, y)

    def pointwise(self, params, z, y):
        return self.own.pointwise(params, z, y)


@pytest.fixture(scope="module")
def groups():
    return simulate_intercepts(12, 3)


def told(units, how, n_iter=60, **settings):
    algorithm, estep = STEPS[how]()
    model = Told() if how in ("exact", "chains") else Plain()
    return mx.fit(model, units, algorithm, estep, params={"mu": 1.0, "tau2": 0.6}, n_iter=n_iter, polish=False, progress=False,
                  space={"tau2": mx.Positive(1e-3)}, throw=False, **settings)  # fmt: skip


@pytest.fixture(scope="module")
def chains(groups):
    return told(groups[1], "chains")


@pytest.fixture(scope="module", params=list(STEPS))
def tree(request, groups):
    fit = told(groups[1], request.param)
    return request.param, fit, fit.to_arviz(2000, posterior_predictive=request.param == "chains")


def posterior(fit, groups):
    """Exact mean and variance of each z_i at the estimate."""
    mu, tau2 = (float(fit.params[name]) for name in ("mu", "tau2"))
    size, total = np.array([g.size for g in groups]), np.array([g.sum() for g in groups])
    variance = 1 / (1 / tau2 + size)
    return variance * (mu / tau2 + total), variance


def test_the_posterior_is_the_exact_one(tree, groups):
    how, fit, data = tree
    mean, variance = posterior(fit, groups[0])
    n_chains = 2 if how == "chains" else 1
    z = data.posterior["z"]
    assert z.dims == ("chain", "draw", "unit") and z.shape == (n_chains, 2000, 12)
    frame = stats.summary(data, kind="all", round_to="none")
    # Resampled draws carry the error of the draws they were taken from as well.
    worth = 1.0
    if "importance_ess" in data.get("sample_stats", {}):
        ess = data.sample_stats["importance_ess"]
        assert ess.dims == ("unit",) and 0.5 * 16_000 < float(ess.min()) <= 16_000
        worth = 1 + 2000 / float(ess.min())
    gap = (frame["mean"] - mean) / (frame["sd"] / np.sqrt(frame["ess_bulk"]) * np.sqrt(worth))
    assert np.abs(gap).max() < 4.5
    spread = (frame["sd"] - np.sqrt(variance)) / (np.sqrt(variance) * np.sqrt(worth / (2 * frame["ess_tail"])))
    assert np.abs(spread).max() < 5
    assert how != "chains" or frame["r_hat"].max() < 1.05
    said = {"exact": "exact posterior", "chains": "2 chain(s) of MALA", "importance": "resampled", "quadrature": "resampled"}
    assert said[how] in data.attrs["drawn"] and ("acceptance_rate" in data.get("sample_stats", {})) == (how == "chains")


def test_leave_one_out_is_the_exact_one(tree, groups):
    how, fit, data = tree
    mean, variance = posterior(fit, groups[0])
    exact, y = [], np.concatenate(groups[0])
    for g, m, v in zip(groups[0], mean, variance, strict=True):
        rest = 1 / (1 / v - 1)  # without one observation
        exact += [scipy.stats.norm.logpdf(one, rest * (m / v - one), np.sqrt(rest + 1)) for one in g]
    np.testing.assert_array_equal(data.observed_data["y"], y)
    assert data.observed_data["unit_of"].values.tolist() == np.repeat(np.arange(12), [g.size for g in groups[0]]).tolist()
    with warnings.catch_warnings():
        # Of outlying observations the shape is near the limit of 0.7 from which on it is told.
        warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto")
        found = stats.loo(data, pointwise=True)
    # The weights exp((y - z)^2 / 2) have the shape v < 0.4; its estimate from 3 sqrt(2000) draws has the SD 1.4 / sqrt(134).
    assert found.n_data_points == y.size and variance.max() < 0.4 and float(found.pareto_k.max()) < 0.4 + 5 * 0.12
    ratio = np.exp(-data.log_likelihood["y"].values.reshape(-1, y.size))
    draws = stats.ess(data)["z"].values.min()
    error = ratio.std(axis=0) / ratio.mean(axis=0) / np.sqrt(draws)
    assert np.max(np.abs(found.elpd_i.values - exact) / error) < 5
    assert abs(found.elpd - np.sum(exact)) < 4 * np.sqrt(np.sum(error**2)) + 3 * np.sum(error**2)


def test_the_plots_of_arviz(tree):
    how, _, data = tree
    arviz_plots.plot_forest(data, backend="matplotlib")
    if how == "chains":
        arviz_plots.plot_dist(data, coords={"unit": [0, 1]})
        arviz_plots.plot_ppc_dist(data)
    pyplot.close("all")


@pytest.mark.parametrize("name", ["plot_trace", "plot_trace_dist"])
def test_traces(chains, name):
    getattr(arviz_plots, name)(chains.to_arviz(50), coords={"unit": [0, 1]}, backend="matplotlib")
    pyplot.close("all")


def test_new_data_come_from_the_posterior(chains, groups):
    data = chains.to_arviz(4000, random_state=1, posterior_predictive=True)
    made = data.posterior_predictive["y"]
    assert set(data.posterior_predictive.data_vars) == {"y"} and made.dims == ("chain", "draw", "observation")
    mean, variance = posterior(chains, groups[0])
    at = data.observed_data["unit_of"].values
    error = np.sqrt((1 + variance[at]) / (8000 / 4))
    assert np.max(np.abs(made.values.mean(axis=(0, 1)) - mean[at]) / error) < 4.5
    np.testing.assert_allclose(made.values.var(axis=(0, 1)), 1 + variance[at], rtol=0.15)


def test_the_tree_tells_of_its_fit_and_is_kept_by_files(chains, tmp_path):
    data = chains.to_arviz(20, random_state=4)
    told = data.attrs
    assert told["inference_library"] == "margaux" and told["inference_library_version"] == mx.__version__
    assert json.loads(told["estimate"]) == {name: pytest.approx(float(v)) for name, v in chains.params.items()}
    assert told["algorithm"] == chains.description and told["message"] == chains.message and told["random_state"] == 4
    same = chains.to_arviz(20, random_state=4)
    np.testing.assert_array_equal(data.posterior["z"], same.posterior["z"])
    other = chains.to_arviz(20, random_state=5).posterior["z"].values
    assert not np.allclose(data.posterior["z"].values, other)
    data.to_zarr(tmp_path / "fit.zarr", consolidated=False)
    again = xarray.open_datatree(tmp_path / "fit.zarr", engine="zarr", consolidated=False)
    assert again.attrs == told and np.array_equal(again["posterior"]["z"], data.posterior["z"])
    again.close()


def test_what_a_model_does_not_say(groups, monkeypatch):
    fit = mx.fit(
        RandomIntercept(), groups[1], *STEPS["exact"](), params={"mu": 0.5, "tau2": 0.5}, n_iter=20, polish=False, progress=False
    )
    data = fit.to_arviz(30)
    assert "log_likelihood" not in data.children and data.posterior["z"].shape == (1, 30, 12)
    assert set(data.observed_data.data_vars) == {"y"} and set(data.constant_data.data_vars) == {"mask"}
    with pytest.raises(TypeError, match=r"AbstractPointwise and write pointwise\(self, params, z, y\)"):
        fit.to_arviz(30, log_likelihood=True)
    with pytest.raises(TypeError, match=r"AbstractPredictive and write simulate\(self, key, params, z, y\)"):
        fit.to_arviz(30, posterior_predictive=True)
    with pytest.raises(ValueError, match="n_draws"):
        fit.to_arviz(0)
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    with pytest.raises(ImportError, match=r"pip install 'margaux\[arviz\]'"):
        fit.to_arviz(30)


def test_a_variational_fit_has_no_latents(groups):
    fit = mx.fit(
        Plain(),
        groups[1],
        mx.soul(step=0.1),
        mx.Noise(2),
        params={"mu": 0.5, "tau2": 0.5},
        n_iter=20,
        polish=False,
        progress=False,
    )
    with pytest.raises(ValueError, match="no posterior of latents"):
        fit.to_arviz()


def test_a_discrete_latent_is_drawn_as_often_as_it_is_likely():
    class Mixture(mx.AbstractModel, mx.AbstractDiscrete):
        """y_i ~ N(3 z_i, 1), z_i in {0, 1} with equal odds."""

        def log_joint(self, params, z, y):
            return normal(y, params["gap"] * z, 1.0) - jnp.log(2.0)

        def init_latents(self, key, params, y):
            return 0.0 * y

        def support(self, y):
            return jnp.asarray([0.0, 1.0])

    y = np.array([-1.0, 1.4, 1.6, 4.0])
    fit = mx.fit(Mixture(), y, mx.soul(step=0.1), mx.Exact(), params={"gap": 3.0}, n_iter=5, polish=False, progress=False)
    data = fit.to_arviz(1000)
    gap = float(fit.params["gap"])
    exact = expit(scipy.stats.norm.logpdf(y, gap) - scipy.stats.norm.logpdf(y))
    np.testing.assert_allclose(data.posterior["z"].values.mean(axis=(0, 1)), exact, atol=2e-3)
    # In random order: successive draws are uncorrelated.
    z = data.posterior["z"].values[0, :, 1]
    assert abs(np.corrcoef(z[1:], z[:-1])[0, 1]) < 5 / np.sqrt(1000)
