"""Effects that are nested in others, whose likelihood is exact: sums over grids, for groups and for what they share."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import gammaln, logsumexp

import margaux as mx
from margaux.answers.scores import Coordinates, evaluate
from margaux.families.glmm.integrated import Integrated
from margaux.problem.model import differentiated

SHARES, GROUPS, ROWS = 20, 4, 5


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(2)
    h, g = np.repeat(np.arange(SHARES), GROUPS * ROWS), np.repeat(np.arange(SHARES * GROUPS), ROWS)
    x = rng.normal(size=len(h))
    eta = 0.3 + 0.5 * x + 0.7 * rng.normal(size=SHARES)[h] + 0.5 * rng.normal(size=SHARES * GROUPS)[g]
    y = rng.poisson(np.exp(eta))
    return pd.DataFrame({"y": y, "x": x, "h": h, "g": g, "b": (y > 1).astype(int)})


def over_grids(data, response, b0, b1, sd_h, sd_g, points=121):
    u = np.linspace(-6, 6, points)
    log_w = -(u**2) / 2 - np.log(2 * np.pi) / 2 + np.log(u[1] - u[0])
    y, x = data[response].to_numpy()[:, None, None], data["x"].to_numpy()
    eta = (b0 + b1 * x)[:, None, None] + sd_h * u[:, None] + sd_g * u
    logs = y * eta - np.exp(eta) - gammaln(y + 1) if response == "y" else y * eta - np.logaddexp(0, eta)
    groups: Any = logsumexp(logs.reshape(-1, ROWS, points, points).sum(axis=1) + log_w, axis=2)
    shared: Any = logsumexp(groups.reshape(SHARES, GROUPS, points).sum(axis=1) + log_w, axis=1)
    return float(shared.sum())


@pytest.mark.slow
@pytest.mark.parametrize(("response", "family"), [("b", "binomial"), ("y", "poisson")])
def test_the_maximum_of_the_exact_likelihood(data, response, family):
    model = mx.GLMM(f"{response} ~ x + (1 | h/g)", family=family, verbose=False).fit(data)
    assert model.certificate_.word == "certified" and model.fitted_by_ == "quadrature"
    names = ["Intercept", "x", "sd_h", "sd_h:g"]
    values, se = (np.array([of[name] for name in names]) for of in (model.params_, model.stderr_))
    top = over_grids(data, response, *values)
    assert float(model.loglik_) == pytest.approx(top, abs=1e-4)
    ups, downs = ([over_grids(data, response, *(values + sign * 0.1 * se * e)) for e in np.eye(4)] for sign in (1, -1))
    gradient = (np.array(ups) - np.array(downs)) / (0.2 * se)
    covariance = model.cov_params().loc[names, names].to_numpy()
    assert np.sqrt(gradient @ covariance @ gradient) < 0.01
    curvature = (2 * top - np.array(ups) - np.array(downs)) / (0.1 * se) ** 2
    np.testing.assert_allclose(curvature, np.diagonal(np.linalg.inv(covariance)), rtol=0.02)


@pytest.mark.parametrize("prior", [pytest.param(None, marks=pytest.mark.slow), {"x": 0.05, "sd_h": 0.5}])
def test_derivatives_by_rows_are_those_by_differentiation(data, prior):
    model = mx.GLMM("y ~ x + (1 | h/g)", family="poisson", prior=prior, verbose=False).fit(data)
    assert (model.params_["x"] < 0.4) == (prior is not None)
    fit = model.result_
    own, polished = fit._model().model, fit.polished
    assert isinstance(own, Integrated) and polished is not None

    class Plain(Integrated):
        def derivatives(self, params, z, w, batch):
            flat, back = ravel_pytree(params)
            return differentiated(self, back, flat, z, w, batch)

    other = dataclasses.replace(fit, problem=dataclasses.replace(fit._model(), model=Plain(own.full, own.n_nodes)))
    rule = polished.rule
    here, there = evaluate(fit, rule, fit.params, range(1)), evaluate(other, rule, fit.params, range(1))
    np.testing.assert_allclose(here.scores, there.scores, atol=1e-6)
    np.testing.assert_allclose(here.matrix, there.matrix, rtol=1e-5, atol=1e-4)
    assert Coordinates(fit).to(fit.params).size == here.matrix.shape[0]


@pytest.mark.slow
def test_effects_of_groups_are_means_and_deviations_of_what_is_drawn(data):
    model = mx.GLMM("y ~ x + (1 | h/g)", family="poisson", verbose=False).fit(data)
    drawn = model.to_arviz(n_draws=400).posterior["b_h:g"].to_numpy()[0, :, :, 0]
    told = model.ranef()["h:g"]
    assert np.abs(drawn.mean(axis=0) - told["estimate"]).max() < 5 * told["se"].max() / np.sqrt(400)
    assert (drawn.std(axis=0) / told["se"]).mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
def test_a_crossed_factor_of_two_levels_is_shared_by_all(data):
    both = data.assign(two=np.arange(len(data)) % 2)
    model = mx.GLMM("y ~ x + (1 | g) + (1 | two)", family="poisson", verbose=False).fit(both)
    alone = mx.GLMM("y ~ x + (1 | g)", family="poisson", verbose=False).fit(both)
    assert model.fitted_by_ == "quadrature" and float(model.loglik_) > float(alone.loglik_) - 1e-3
    assert model.loglik_.se < 1e-3


@pytest.mark.slow
def test_replicates_are_fitted_by_the_same_sums(data):
    model = mx.GLMM("y ~ x + (1 | h/g)", family="poisson", verbose=False).fit(data)
    frame = model.conf_int(method="boot", n_boot=40, parameters=["x", "sd_h"])
    for name in ("x", "sd_h"):
        width = (frame.loc[name, "ci_high"] - frame.loc[name, "ci_low"]) / (2 * 1.96 * model.stderr_[name])
        assert 0.6 < width < 1.6
