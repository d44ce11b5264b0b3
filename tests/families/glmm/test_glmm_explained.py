"""Shares of variance of mixed models, against their definitions and simulated variances."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special

import glmm_fits as fits
from margaux import GLMM
from margaux.families.glmm.explained import variances
from margaux.families.glmm.responses import ZeroInflated, by_name


def test_a_gaussian_response_has_exact_shares():
    model, data = fits.gaussian(), fits.table("measurements")
    fixed = np.var(model.params_["x"] * data["x"], ddof=1)
    between, own = model.params_["sd_g"] ** 2, model.params_["sigma"] ** 2
    found = model.r2()
    fixed = float(fixed)
    total = fixed + between + own
    assert list(found.index) == ["exact"]
    np.testing.assert_allclose(found.to_numpy(float)[0], np.array([fixed, fixed + between]) / total)
    np.testing.assert_allclose(model.icc().to_numpy(float)[0], between / np.array([between + own, total]))
    assert found.attrs["variances"].random == pytest.approx(between)


def test_counts_have_three_approximations():
    model = fits.poisson()
    mean = np.mean(np.exp(model.predict(kind="link", re_form="NA") + model.params_["sd_g"] ** 2 / 2))
    found = variances(model)
    assert found.response == pytest.approx(
        {"delta": 1 / mean, "lognormal": np.log1p(1 / mean), "trigamma": float(special.polygamma(1, mean))}, rel=1e-6
    )
    table = model.r2()
    total = found.fixed + found.random + found.response["trigamma"]
    assert table.loc["trigamma", "conditional"] == pytest.approx((found.fixed + found.random) / total)
    assert np.all(table["conditional"] > table["marginal"])


@pytest.mark.slow
def test_negative_binomials_add_their_own():
    data = fits.table("counts")
    rng = np.random.default_rng(8)
    data = data.assign(y=rng.poisson(data["y"] * rng.gamma(2.0, 0.5, len(data))))
    for family, c in (("nbinom2", lambda m, p: 1 / m + 1 / p["theta"]), ("nbinom1", lambda m, p: (1 + p["alpha"]) / m)):
        model = GLMM("y ~ x + (1 | g)", family=family, verbose=False).fit(data)
        mean = np.mean(np.exp(model.predict(kind="link", re_form="NA") + model.params_["sd_g"] ** 2 / 2))
        expected = c(mean, model.params_)
        found = variances(model).response
        assert found == pytest.approx(
            {"delta": expected, "lognormal": np.log1p(expected), "trigamma": float(special.polygamma(1, 1 / expected))}, rel=1e-6
        )


@pytest.mark.slow
def test_trigamma_is_the_variance_of_the_logarithm_of_a_gamma_response():
    rng, data = np.random.default_rng(2), fits.table("measurements")
    data = data.assign(y=np.exp(0.3 * data["y"]) * rng.gamma(4.0, 0.25, len(data)))
    model = GLMM("y ~ x + (1 | g)", family="gamma", verbose=False).fit(data)
    shape = model.params_["sigma"] ** -2
    logs = np.log(rng.gamma(shape, size=400_000))
    error = logs.var() * np.sqrt(2 / 400_000) * 2
    assert variances(model).response["trigamma"] == pytest.approx(logs.var(), abs=4 * error)


def test_shares_of_trials_are_of_one_trial():
    model = fits.binomial()
    found = variances(model)
    nodes = np.random.default_rng(0).normal(size=(len(fits.table("shares")), 4000)) * model.params_["sd_g"]
    p = special.expit(model.predict(kind="link", re_form="NA")[:, None] + nodes).mean()
    assert found.response["latent"] == pytest.approx(np.pi**2 / 3)
    assert found.response["delta"] == pytest.approx(1 / (p * (1 - p)), rel=0.01)


@pytest.mark.slow
def test_slopes_count_where_they_are_and_effects_of_rows_with_the_response():
    slopes = fits.fitted("counts", "y ~ x + arm + (1 + x | g)", "poisson")
    x, covariance = fits.table("counts")["x"].to_numpy(), slopes.covariance_("g")
    each = covariance[0, 0] + 2 * x * covariance[0, 1] + x**2 * covariance[1, 1]
    assert variances(slopes).random == pytest.approx(each.mean())
    data = fits.shares(1).assign(row=lambda frame: np.arange(len(frame)))
    model = GLMM("y/n ~ x + (1 | row)", family="binomial", verbose=False).fit(data)
    found = variances(model)
    assert found.random == 0 and found.rows == pytest.approx(model.params_["sd_row"] ** 2)
    table = model.r2()
    np.testing.assert_allclose(table["marginal"], table["conditional"])


@pytest.mark.slow
def test_categories_are_cut_latent_variables_and_zeros_of_their_own_are_refused():
    data = fits.table("counts").assign(y=lambda frame: np.minimum(frame["y"], 3))
    ordinal = GLMM("y ~ x + (1 | g)", family="ordinal", link="probit", verbose=False).fit(data)
    assert variances(ordinal).response == {"latent": 1.0}
    inflated = GLMM("y ~ x + (1 | g)", family=ZeroInflated(by_name("poisson")), verbose=False)
    vars(inflated).update(model_=SimpleNamespace(response=ZeroInflated(by_name("poisson"))))
    inflated.design_ = fits.poisson().design_
    with pytest.raises(ValueError, match="zero-inflated poisson response has two predictors"):
        variances(inflated)
