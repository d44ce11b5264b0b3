"""Estimated marginal means, against linear algebra by hand, differences and simulated ranges."""

import numpy as np
import pytest
from scipy import special, stats

import glmm_fits as fits
from margaux import GLMM
from margaux.families.glmm.marginal_means import adjusted


def test_means_are_linear_functions_of_the_coefficients():
    model, data = fits.poisson(), fits.table("counts")
    found = model.marginal_means("arm")
    x = data["x"].mean()
    rows = np.array([[1, x, 0, 0], [1, x, 1, 0], [1, x, 0, 1]])
    beta, V = model.fixef().to_numpy(), model.cov_params().iloc[:4, :4].to_numpy()
    assert list(found.frame.index) == ["a", "b", "c"] and found.frame.index.name == "arm"
    np.testing.assert_allclose(found.frame["link"], rows @ beta)
    np.testing.assert_allclose(found.frame["se"], np.sqrt(np.diagonal(rows @ V @ rows.T)))
    half = stats.norm.ppf(0.975) * found.frame["se"]
    np.testing.assert_allclose(found.frame["ci_high"] - found.frame["link"], half)
    np.testing.assert_allclose(found.frame["response"], np.exp(rows @ beta))
    np.testing.assert_allclose(found.frame["response_se"], np.exp(rows @ beta) * found.frame["se"], rtol=1e-6)
    np.testing.assert_allclose(found.frame["response_low"], np.exp(found.frame["ci_low"]))


def test_other_categories_count_alike_whatever_their_rows():
    data = fits.table("counts").assign(sex=lambda frame: np.where(frame.index % 5 == 0, "f", "m"))
    model = GLMM("y ~ arm * sex + x + (1 | g)", family="poisson", verbose=False).fit(data)
    found = model.marginal_means("arm", at={"x": 0.5})
    both = model.marginal_means(["arm", "sex"], at={"x": 0.5})
    np.testing.assert_allclose(found.frame["link"], both.frame["link"].unstack("sex").mean(axis=1))
    grid = both.frame.reset_index()[["arm", "sex"]].assign(x=0.5)
    np.testing.assert_allclose(both.frame["response"], model.predict(grid, re_form="NA"), rtol=1e-10)
    several = model.marginal_means("x", at={"x": [-1.0, 1.0]})
    assert several.frame["link"].diff().iloc[1] == pytest.approx(2 * model.params_["x"])
    averaged = model.marginal_means("arm", at={"x": [0.0, 1.0]})
    np.testing.assert_allclose(averaged.frame["link"], found.frame["link"])


@pytest.mark.slow
def test_contrasts_and_their_scales():
    model = fits.binomial()
    means = model.marginal_means("x", at={"x": [0.0, 1.0, 2.0]})
    found = means.contrasts("none")
    assert list(found.index) == ["1.0 - 0.0", "2.0 - 0.0", "2.0 - 1.0"]
    np.testing.assert_allclose(found["estimate"], np.array([1, 2, 1]) * model.params_["x"])
    np.testing.assert_allclose(found["se"], np.array([1, 2, 1]) * model.stderr_["x"])
    np.testing.assert_allclose(found["p"], 2 * stats.norm.sf(abs(found["z"])))
    np.testing.assert_allclose(found["ratio"], np.exp(found["estimate"]))
    response = means.contrasts("none", "response")
    p = special.expit(means.frame["link"].to_numpy())
    np.testing.assert_allclose(response["estimate"], [p[1] - p[0], p[2] - p[0], p[2] - p[1]])
    # The delta method by differences in the coefficients.
    beta, V = model.fixef().to_numpy(), model.cov_params().iloc[:2, :2].to_numpy()
    gap = lambda b: special.expit(b[0] + b[1]) - special.expit(b[0])  # noqa: E731
    slope = [(gap(beta + h) - gap(beta - h)) / 2e-6 for h in 1e-6 * np.eye(2)]
    assert response["se"].iloc[0] == pytest.approx(np.sqrt(slope @ V @ slope), rel=1e-5)
    assert "ratio" not in response


def test_adjusted_p_values():
    z = np.array([2.5, 1.0, 3.2])
    draws = np.random.default_rng(0).normal(size=(400_000, 3))
    ranges = np.ptp(draws, axis=1) / np.sqrt(2)
    simulated = (ranges[:, None] > z).mean(axis=0)
    np.testing.assert_allclose(adjusted(z, 3, "tukey"), simulated, atol=4 * np.sqrt(simulated / 400_000).max())
    p = 2 * stats.norm.sf(z)
    np.testing.assert_allclose(adjusted(z, 3, "bonferroni"), np.minimum(1, 3 * p))
    np.testing.assert_allclose(adjusted(z, 3, "holm"), [2 * p[0], p[1], 3 * p[2]])
    # A later step is never below an earlier one.
    np.testing.assert_allclose(adjusted(np.array([2.0, 2.01]), 2, "holm"), 2 * (2 * stats.norm.sf(2.01)))


def test_a_tukey_interval_holds_zero_where_p_is_above_its_level():
    found = fits.poisson().marginal_means("arm").contrasts()
    zero = (found["ci_low"] < 0) & (found["ci_high"] > 0)
    assert np.array_equal(zero, found["p"] > 0.05) and 0 < np.sum(zero) < len(zero)


@pytest.mark.slow
def test_offsets_and_categories():
    data = fits.table("counts").assign(t=lambda frame: 1.0 + frame.index % 3)
    model = GLMM("y ~ arm + offset(log(t)) + (1 | g)", family="poisson", verbose=False).fit(data)
    found = model.marginal_means("arm").frame["link"].iloc[0]
    assert found == pytest.approx(model.params_["Intercept"] + np.log(data["t"]).mean())
    ordered = data.assign(y=np.minimum(data["y"], 3))
    ordinal = GLMM("y ~ arm + (1 | g)", family="ordinal", verbose=False).fit(ordered)
    frame = ordinal.marginal_means("arm").frame
    assert "response" not in frame and frame["link"].iloc[0] == 0


def test_what_is_not_there_is_refused():
    model = fits.poisson()
    for call, told in [
        (lambda: model.marginal_means("g"), '"g" is no column of the fixed effects; they are x, arm'),
        (lambda: model.marginal_means([]), "by= names no column"),
        (lambda: model.marginal_means("arm", at={"arm": "z"}), "z"),
        (lambda: model.marginal_means("arm", level=2), "level"),
        (lambda: model.marginal_means("x").contrasts(), "one mean"),
        (lambda: model.marginal_means("arm").contrasts("dunnett"), "adjust must be one of tukey"),
        (lambda: model.marginal_means("arm").contrasts(scale="odds"), 'scale must be "link"'),
        (lambda: model.marginal_means("x", at={"x": np.arange(50_000)}), "the grid has 150,000 rows"),
    ]:
        with pytest.raises(ValueError, match=told):
            call()
