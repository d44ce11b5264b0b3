"""Penalised estimates against maxima of quadratures and dense matrices with their priors."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats

from margaux import GLMM
from margaux.answers.rules import laplace_rule
from margaux.families.glmm.elimination import weighed

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
LOG_WEIGHTS = np.log(WEIGHTS / np.sqrt(2 * np.pi))


def separated(seed=0):
    """Binary answers, 25 groups of six, all ones where x is."""
    rng = np.random.default_rng(seed)
    g, x = np.repeat(np.arange(25), 6), (np.arange(150) % 6 > 3).astype(float)
    some = rng.random(150) < special.expit(-0.3 + 0.9 * rng.normal(size=25)[g])
    return pd.DataFrame({"y": np.where(x > 0, 1, some).astype(int), "x": x, "g": g})


def integrated(data, intercept, slope, sd):
    eta = (intercept + slope * data["x"].to_numpy())[:, None] + sd * NODES
    logs = -np.logaddexp(0, np.where(data["y"].to_numpy()[:, None] == 1, -eta, eta))
    total: Any = special.logsumexp(logs.reshape(25, 6, -1).sum(axis=1) + LOG_WEIGHTS, axis=1)
    return np.sum(total)


def maximum(objective, start):
    settings = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 20_000, "maxfev": 20_000}
    free = optimize.minimize(lambda free: -objective(free), start, method="Nelder-Mead", options=settings).x
    steps = 1e-4 * np.eye(len(free))

    def bent(a, b):
        return objective(free + a + b) - objective(free + a - b) - objective(free - a + b) + objective(free - a - b)

    hessian = np.array([[bent(a, b) for b in steps] for a in steps]) / 4e-8
    return free, np.sqrt(np.diagonal(np.linalg.inv(-hessian)))


@pytest.mark.parametrize("scale", [np.inf, 0.4])
def test_separation_with_a_prior_is_no_failure(scale):
    data = separated()

    def objective(free):
        return integrated(data, *free) + stats.norm.logpdf(free[1], 0, 2.5) + stats.gamma.logpdf(abs(free[2]), 2, scale=scale)

    def flat(free):
        return integrated(data, *free) + stats.norm.logpdf(free[1], 0, 2.5) + np.log(abs(free[2]))

    free, se = maximum(flat if scale == np.inf else objective, [0.0, 1.0, 0.8])
    model = GLMM("y ~ x + (1 | g)", family="binomial", prior={"x": 2.5, "sd_g": scale}, verbose=False).fit(data)
    np.testing.assert_allclose(list(model.params_.values()), [*free[:2], abs(free[2])], atol=1e-4 * se.min())
    np.testing.assert_allclose(list(model.stderr_.values()), se, rtol=1e-3)
    assert float(model.loglik_) == pytest.approx(integrated(data, *free), abs=1e-5)
    assert model.certificate_.word == "certified"
    assert "the estimate is penalised: N(0, 2.5^2) of x; Gamma(2) of sd_g" in model.summary().attrs["message"]
    told = model.diagnostics()["sentence"]
    assert "no maximum of the likelihood" in told["prior"] and "penalised likelihood" in told["gradient"]


@pytest.mark.slow
def test_a_weak_prior_says_that_it_bounds_what_is_separated():
    data = separated()
    model = GLMM("y ~ x + (1 | g)", family="binomial", prior={"x": 1000.0}, verbose=False).fit(data)
    assert 12 < model.params_["x"] < 100
    assert "bounded by its prior" in model.diagnostics()["sentence"]["separation"]
    plain = GLMM("y ~ x + (1 | g)", family="binomial", verbose=False).fit(data)
    assert plain.certificate_.word == "failed"
    # A prior of another column bounds nothing.
    other = GLMM("y ~ x + (1 | g)", family="binomial", prior={"Intercept": 2.5}, verbose=False).fit(data)
    assert other.certificate_.word == "failed"


def gaussian(data, free):
    """log p(y) of y ~ N(b0 + b1 x, V), slopes by group: b0, b1, log sigma, a root (3,)."""
    X = np.column_stack([np.ones(len(data)), data["x"]])
    root = np.array([[free[3], 0], [free[4], free[5]]])
    same = data["g"].to_numpy()[:, None] == data["g"].to_numpy()
    V = np.exp(2 * free[2]) * np.eye(len(data)) + same * (X @ root @ root.T @ X.T)
    return stats.multivariate_normal.logpdf(data["y"], X @ free[:2], V), root @ root.T


def few_groups(seed=3):
    rng = np.random.default_rng(seed)
    g, x = np.repeat(np.arange(8), 5), rng.normal(size=40)
    return pd.DataFrame({"y": 1 + x + 0.3 * rng.normal(size=8)[g] + rng.normal(size=40), "x": x, "g": g})


@pytest.mark.slow
def test_a_covariance_is_kept_off_its_edge():
    data = few_groups()

    def objective(free):
        logs, covariance = gaussian(data, free)
        # Wishart of k + 2 degrees of freedom and scale 4 I, but for its constant.
        return logs + np.log(np.linalg.det(covariance)) / 2 - np.trace(covariance) / 8

    free, _ = maximum(objective, [1.0, 1.0, 0.0, 0.5, 0.1, 0.5])
    model = GLMM("y ~ x + (1 + x | g)", prior={"sd_g": 2.0}, verbose=False).fit(data)
    logs, covariance = gaussian(data, free)
    np.testing.assert_allclose(model.covariance_("g"), covariance, atol=1e-5)
    np.testing.assert_allclose(model.fixef(), free[:2], atol=1e-5)
    assert float(model.loglik_) == pytest.approx(logs, abs=1e-6)
    assert GLMM("y ~ x + (1 + x | g)", verbose=False).fit(data).is_singular_
    assert not model.is_singular_ and np.all(np.isfinite(model.summary()["se"]))


@pytest.mark.slow
def test_reml_with_a_prior_of_variances():
    """Of a balanced layout: the means and the squares within groups are all that counts."""
    data = few_groups().assign(y=lambda frame: frame["y"] - frame["x"])
    rows = data["y"].to_numpy().reshape(8, 5)
    within, means = ((rows - rows.mean(axis=1, keepdims=True)) ** 2).sum(), rows.mean(axis=1)

    def restricted(free):
        s2 = np.exp(2 * free[0])
        v = free[1] ** 2 + s2 / 5
        inside = -within / (2 * s2) - 16 * np.log(2 * np.pi * s2) - 4 * np.log(5)
        return inside - 7 * np.log(2 * np.pi * v) / 2 - np.log(8) / 2 - ((means - means.mean()) ** 2).sum() / (2 * v)

    free, _ = maximum(lambda free: restricted(free) + np.log(abs(free[1])), [0.0, 0.5])
    model = GLMM("y ~ 1 + (1 | g)", reml=True, prior={"sd_g": np.inf}, verbose=False).fit(data)
    assert model.params_["sd_g"] == pytest.approx(abs(free[1]), abs=1e-5)
    assert model.params_["sigma"] == pytest.approx(np.exp(free[0]), abs=1e-5)
    assert float(model.loglik_) == pytest.approx(restricted(free), abs=1e-6)
    assert "penalised restricted likelihood" in model.diagnostics()["sentence"]["gradient"]


@pytest.mark.slow
def test_crossed_factors_have_the_prior_once():
    rng = np.random.default_rng(1)
    p, i = np.repeat(np.arange(40), 4), np.tile(np.arange(4), 40)
    y = (rng.random(160) < special.expit(0.4 + rng.normal(size=40)[p] + rng.normal(size=4)[i])).astype(int)
    data = pd.DataFrame({"y": y, "p": p, "i": i})
    prior = {"Intercept": 1.5, "sd_i": 0.7}
    model = GLMM("y ~ 1 + (1 | p) + (1 | i)", family="binomial", prior=prior, verbose=False).fit(data)
    fit = model.result_
    mode = laplace_rule(fit).rows["mean"][0]
    found = weighed(fit, fit.params, mode, 32, 1)
    bare = dataclasses.replace(
        fit, problem=dataclasses.replace(fit._model(), model=dataclasses.replace(model.model_, prior=None))
    )
    plain = weighed(bare, fit.params, mode, 32, 1)
    intercept, sd = model.params_["Intercept"], model.params_["sd_i"]
    value = -((intercept / 1.5) ** 2) / 2 + np.log(sd) - sd / 0.7
    np.testing.assert_allclose(found.logs - plain.logs, value, atol=1e-9)
    # The slope in each flat parameter: beta, then the roots of i and of p, whose signs are free.
    sign = np.sign(jax.tree.leaves(fit.params["root"])[0][0])
    np.testing.assert_allclose(found.gradient - plain.gradient, [-intercept / 1.5**2, sign * (1 / sd - 1 / 0.7), 0.0], atol=1e-8)
    assert abs(float(model.loglik_) - np.log(np.mean(np.exp(plain.logs - plain.logs.max()))) - plain.logs.max()) < 0.3
    assert model.conf_int(method="boot", n_boot=40, parameters="sd_i").notna().all(axis=None)


@pytest.mark.slow
def test_units_in_any_number_share_one_prior():
    data = separated()
    prior = {"x": 2.5, "sd_g": np.inf}
    model = GLMM("y ~ x + (1 | g)", family="binomial", prior=prior, method="laplace", verbose=False).fit(data)
    whole = GLMM(
        "y ~ x + (1 | g) + (1 | one)", family="binomial", prior=prior | {"sd_one": 1e-3}, method="laplace", verbose=False
    )
    # A second factor that hardly varies makes one unit of the same data.
    together = whole.fit(data.assign(one=np.arange(150) % 2))
    for name in ("Intercept", "x", "sd_g"):
        assert together.params_[name] == pytest.approx(model.params_[name], abs=2e-3)


def test_what_is_no_prior_is_refused():
    data = separated()

    def fit(prior, formula="y ~ x + (1 | g)", **settings):
        return GLMM(formula, family=settings.pop("family", "binomial"), prior=prior, verbose=False, **settings).fit(data)

    with pytest.raises(ValueError, match='prior has "z", and what may have one is Intercept, x, sd_g'):
        fit({"z": 1.0})
    for scale in (0.0, -1.0, "wide", True, np.nan):
        with pytest.raises(ValueError, match='the prior of "x" must be a positive number'):
            fit({"x": scale})
    with pytest.raises(ValueError, match="infinite standard deviation"):
        fit({"x": np.inf})
    with pytest.raises(TypeError, match="a dict of scales by name"):
        fit(2.5)
    with pytest.raises(ValueError, match="under a flat prior"):
        fit({"x": 1.0}, family="gaussian", reml=True)
    one, other = fit({"x": 1.0}), fit({"x": 1.0}, "y ~ 1 + x + (1 + x | g)")
    with pytest.raises(ValueError, match="no likelihood-ratio test"):
        one.anova(other)
