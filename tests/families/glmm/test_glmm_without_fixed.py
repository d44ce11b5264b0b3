"""Models whose fixed effects are none, or none but thresholds, against sums over grids and closed forms."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats

import margaux as mx

GROUPS, ROWS = 40, 6


@pytest.fixture(scope="module")
def table():
    """Counts, measurements and ordered answers of groups."""
    rng = np.random.default_rng(0)
    g, b = np.repeat(np.arange(GROUPS), ROWS), np.repeat(0.8 * rng.normal(size=GROUPS), ROWS)
    data = pd.DataFrame({"g": g, "y": b + 0.5 * rng.normal(size=len(g)), "n": rng.poisson(np.exp(b))})
    answers = np.digitize(1.5 * b + rng.logistic(size=len(g)), [-1, 1])
    return data.assign(o=pd.Categorical.from_codes(answers, categories=list("abc"), ordered=True))


def over_a_grid(log_rows, sd):
    """The log-likelihood of an intercept alone, given log densities (N, points) of what is added to the predictor."""
    u, h = np.linspace(-8, 8, 801, retstep=True)
    groups = log_rows(sd * u).reshape(GROUPS, ROWS, -1).sum(axis=1)
    return float(np.sum(special.logsumexp(groups + stats.norm.logpdf(u) + np.log(h), axis=1)))  # type: ignore[arg-type]


def fitted(formula, family, data, **settings):
    return mx.GLMM(formula, family=family, verbose=False, **settings).fit(data)


def test_counts_without_an_intercept(table):
    y = table["n"].to_numpy()[:, None]

    def negative(log_sd):
        return -over_a_grid(lambda eta: stats.poisson.logpmf(y, np.exp(eta)), np.exp(log_sd))

    best: Any = optimize.minimize_scalar(negative, bracket=(-1, 0), tol=1e-10)
    for settings in ({}, {"start": {"sd_g": 3 * np.exp(best.x)}}):
        model = fitted("n ~ 0 + (1 | g)", "poisson", table, **settings)
        assert list(model.params_) == ["sd_g"] and model.certificate_.word == "certified"
        assert model.params_["sd_g"] == pytest.approx(np.exp(best.x), abs=1e-4 * model.stderr_["sd_g"])
        assert float(model.loglik_) == pytest.approx(-best.fun, abs=1e-6)
    assert len(model.fixef()) == 0 and np.isfinite(model.predict(table)).all()
    with pytest.raises(ValueError, match="the formula has none"):
        model.marginal_means("y")


@pytest.mark.slow
def test_ordered_answers_with_thresholds_alone(table):
    y = table["o"].cat.codes.to_numpy()

    def negative(v):
        cuts = np.array([-np.inf, v[0], v[0] + np.exp(v[1]), np.inf])
        upper, lower = cuts[y + 1, None], cuts[y, None]
        return -over_a_grid(
            lambda eta: np.log(np.maximum(special.expit(upper - eta) - special.expit(lower - eta), 1e-300)), np.exp(v[2])
        )

    best = optimize.minimize(negative, [-1.0, 0.5, -0.5], method="BFGS", options={"gtol": 1e-7})
    model = fitted("o ~ 1 + (1 | g)", "ordinal", table)
    assert float(model.loglik_) == pytest.approx(-best.fun, abs=1e-6) and model.certificate_.word == "certified"
    found = [model.params_["a|b"], model.params_["b|c"], model.params_["sd_g"]]
    truth = [best.x[0], best.x[0] + np.exp(best.x[1]), np.exp(best.x[2])]
    np.testing.assert_allclose(found, truth, atol=1e-3 * min(model.stderr_.values()))


def test_measurements_without_an_intercept(table):
    """Group by group y is normal with covariance sigma^2 + sd^2 in all entries."""
    y = table["y"].to_numpy().reshape(GROUPS, ROWS)

    def negative(v):
        total = np.exp(2 * v[0]) * np.eye(ROWS) + np.exp(2 * v[1])
        return -stats.multivariate_normal.logpdf(y, np.zeros(ROWS), total).sum()

    best = optimize.minimize(negative, [-0.5, -0.5], method="BFGS", options={"gtol": 1e-7})
    model = fitted("y ~ 0 + (1 | g)", "gaussian", table)
    assert float(model.loglik_) == pytest.approx(-best.fun, abs=1e-8) and model.certificate_.word == "certified"
    np.testing.assert_allclose([model.params_["sigma"], model.params_["sd_g"]], np.exp(best.x), rtol=1e-5)
    with pytest.raises(ValueError, match="the formula has none; use reml=False"):
        fitted("y ~ 0 + (1 | g)", "gaussian", table, reml=True)


def test_many_responses_without_an_intercept(table):
    fits = mx.GLMM("~ 0 + (1 | g)", family="poisson", verbose=False).fit_many(table[["n"]], table[["g"]])
    alone = fitted("n ~ 0 + (1 | g)", "poisson", table)
    assert fits.params_["sd_g"].iloc[0] == pytest.approx(alone.params_["sd_g"], rel=1e-5)
