"""Intervals of mixed models, against SciPy's profile of balanced Gaussian groups and the spread of replicates."""

from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

import glmm_fits as fits
from margaux import GLMM
from margaux.families.glmm.intervals import _Profile
from margaux.numerics import programs


def profiled(data):
    """The log-likelihood of a random intercept over balanced groups, maximised over all but its standard deviation."""
    X = np.column_stack([np.ones(len(data)), data["x"]])
    y, size = data["y"].to_numpy(), int((data["g"] == data["g"].iloc[0]).sum())

    def at(sd):
        def minus(log_sigma):
            covariance = np.exp(2 * log_sigma) * np.eye(size) + sd**2
            root = np.linalg.inv(np.linalg.cholesky(covariance))
            white_y = (y.reshape(-1, size) @ root.T).ravel()
            white_X = np.einsum("ab,gbp->gap", root, X.reshape(-1, size, 2)).reshape(-1, 2)
            away = white_y - white_X @ np.linalg.lstsq(white_X, white_y, rcond=None)[0]
            groups = len(y) // size
            return (away @ away) / 2 + groups * np.linalg.slogdet(covariance)[1] / 2 + len(y) * np.log(2 * np.pi) / 2

        found: Any = optimize.minimize_scalar(minus, bounds=(-3, 2), method="bounded", options={"xatol": 1e-9})
        return -found.fun

    return at


def ends(data, level) -> Any:
    """Where the profile of the standard deviation crosses its quantile; zero where it does not."""
    at = profiled(data)
    best: Any = optimize.minimize_scalar(lambda sd: -at(sd), bounds=(0, 5), method="bounded", options={"xatol": 1e-9})
    cut = -best.fun - stats.chi2.ppf(level, 1) / 2
    low = 0.0 if at(0.0) >= cut else optimize.brentq(lambda sd: at(sd) - cut, 0, best.x)
    return low, optimize.brentq(lambda sd: at(sd) - cut, best.x, 10 * best.x + 1)


@pytest.mark.slow
def test_a_profile_is_that_of_the_exact_likelihood():
    model, data = fits.gaussian(), fits.table("measurements")
    found = model.conf_int(method="profile", parameters="sd_g")
    np.testing.assert_allclose(found.loc["sd_g"], ends(data, 0.95), atol=0.01 * model.stderr_["sd_g"])
    narrow = model.conf_int(0.5, method="profile", parameters=["sd_g"])
    np.testing.assert_allclose(narrow.loc["sd_g"], ends(data, 0.5), atol=0.01 * model.stderr_["sd_g"])


@pytest.mark.slow
def test_a_standard_deviation_may_be_zero():
    data = fits.measurements(4, groups=15, size=4, sd=0.12)
    model = GLMM("y ~ x + (1 | g)", verbose=False).fit(data)
    low, high = ends(data, 0.95)
    found = model.conf_int(method="profile", parameters="sd_g").loc["sd_g"]
    assert low == 0 and found["ci_low"] == 0.0
    assert found["ci_high"] == pytest.approx(high, rel=5e-3)


@pytest.mark.slow
def test_profiles_of_counts_lean_the_right_way_and_agree_with_wald_inside():
    model = fits.poisson()
    wald, profile = model.conf_int(), model.conf_int(method="profile", parameters=["x", "sd_g"])
    assert list(profile.index) == ["x", "sd_g"]
    np.testing.assert_allclose(profile.loc["x"], wald.loc["x"], atol=0.1 * model.stderr_["x"])
    # The likelihood of a standard deviation falls more slowly above than below.
    up, down = profile.loc["sd_g", "ci_high"] - model.params_["sd_g"], model.params_["sd_g"] - profile.loc["sd_g", "ci_low"]
    assert up > down > 0
    # At its ends twice the fall is the quantile, by a fit in which the coefficient is an offset.
    data = fits.table("counts")
    for end in profile.loc["x"]:
        fixed = GLMM("y ~ arm + (1 | g)", family="poisson", verbose=False).fit(data, offset=end * data["x"].to_numpy())
        fall = 2 * (float(model.loglik_) - float(fixed.loglik_))
        assert fall == pytest.approx(stats.chi2.ppf(0.95, 1), abs=0.03)


@pytest.mark.slow
def test_a_theta_that_poisson_reaches_has_no_upper_end():
    model = fits.fitted("counts", "y ~ x + arm + (1 | g)", "nbinom2")
    if model.anova(fits.poisson())["chisq"].iloc[1] > 2:
        pytest.fail("these counts are Poisson's, and a negative binomial should gain next to nothing")
    assert _Profile(model, "theta", float(model.loglik_)).interval(0.95)[1] == np.inf


@pytest.mark.slow
def test_a_bootstrap_has_the_spread_of_the_estimates():
    model = fits.gaussian()
    model.conf_int(method="boot", n_boot=40, parameters="x")
    before = len(programs._compiled)
    found = model.conf_int(method="boot", n_boot=200, random_state=3)
    assert len(programs._compiled) == before
    replicates = found.attrs["replicates"]
    assert list(found.index) == list(model.params_) and replicates.shape == (200, 4)
    for name in ("Intercept", "x"):
        ratio = replicates[name].std() / model.stderr_[name]
        assert ratio == pytest.approx(1, abs=4 / np.sqrt(2 * 200) + 0.03)
        assert replicates[name].mean() == pytest.approx(model.params_[name], abs=4 * model.stderr_[name] / np.sqrt(200))
    np.testing.assert_allclose(found["ci_low"], replicates.quantile(0.025))
    np.testing.assert_allclose(found["ci_high"], replicates.quantile(0.975))
    again = model.conf_int(method="boot", n_boot=40, random_state=3, parameters=["x"])
    assert again.equals(model.conf_int(method="boot", n_boot=40, random_state=3, parameters="x"))


def test_wald_and_what_is_refused():
    model = fits.gaussian()
    half = stats.norm.ppf(0.95) * model.stderr_["x"]
    np.testing.assert_allclose(model.conf_int(0.9).loc["x"], [model.params_["x"] - half, model.params_["x"] + half])
    for call, told in [
        (lambda: model.conf_int(method="bayes"), "method must be one of wald, profile, boot"),
        (lambda: model.conf_int(method="profile", parameters="z"), 'there is no parameter "z"; they are Intercept'),
        (lambda: model.conf_int(method="boot", n_boot=20), "n_boot must be at least 40"),
        (lambda: model.conf_int(1.0), "level must be between 0 and 1"),
    ]:
        with pytest.raises(ValueError, match=told):
            call()
