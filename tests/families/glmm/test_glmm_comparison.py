"""Likelihood-ratio tests of mixed models, against SciPy's likelihoods of balanced Gaussian groups and known mixtures."""

from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

import glmm_fits as fits
from margaux import GLMM
from margaux.families.glmm.comparison import lr_test
from margaux.families.glmm.nesting import nesting
from margaux.families.glmm.refits import likelihood, refitted
from margaux.families.glmm.responses import ZeroInflated, by_name
from margaux.numerics import programs


def maximum(data, X):
    """The log-likelihood of a random intercept over balanced groups, at its maximum."""
    size = int((data["g"] == 0).sum())

    def minus(theta):
        sigma, sd = np.exp(theta[:2])
        covariance = sigma**2 * np.eye(size) + sd**2
        away = (data["y"].to_numpy() - X @ theta[2:]).reshape(-1, size)
        return -stats.multivariate_normal.logpdf(away, np.zeros(size), covariance).sum()

    start = np.concatenate([[-0.5, -0.3], np.linalg.lstsq(X, data["y"], rcond=None)[0]])
    return -optimize.minimize(minus, start, method="BFGS", options={"gtol": 1e-6}).fun


@pytest.mark.slow
def test_the_table_of_two_gaussian_models():
    full, data = fits.gaussian(), fits.table("measurements")
    less = fits.fitted("measurements", "y ~ 1 + (1 | g)", "gaussian")
    table = full.anova(less)
    one = np.ones((len(data), 1))
    logs = maximum(data, one), maximum(data, np.column_stack([one, data["x"]]))
    assert list(table.index) == ["y ~ 1 + (1 | g)", "y ~ x + (1 | g)"]
    np.testing.assert_allclose(table["logLik"], logs, atol=1e-4)
    np.testing.assert_array_equal(table["npar"], [3, 4])
    np.testing.assert_allclose(table["AIC"], 2 * table["npar"] - 2 * np.array(logs), atol=2e-4)
    np.testing.assert_allclose(table["BIC"], np.log(len(data)) * table["npar"] - 2 * np.array(logs), atol=2e-4)
    np.testing.assert_allclose(table["deviance"], -2 * table["logLik"])
    chisq = 2 * (logs[1] - logs[0])
    assert table["chisq"].iloc[1] == pytest.approx(chisq, abs=3e-4) and table["df"].iloc[1] == 1
    assert table["p"].iloc[1] == pytest.approx(stats.chi2.sf(chisq, 1), rel=1e-2)
    assert np.isnan(table["p"].iloc[0]) and table["test"].tolist() == ["", "chi-squared(1)"]


@pytest.mark.slow
def test_a_variance_with_its_covariance_is_tested_by_a_mixture():
    slopes = fits.fitted("counts", "y ~ x + arm + (1 + x | g)", "poisson")
    row = slopes.anova(fits.poisson()).iloc[1]
    assert row["df"] == 2 and row["test"].startswith("half chi-squared(1), half chi-squared(2)")
    assert row["p"] == pytest.approx((stats.chi2.sf(row["chisq"], 1) + stats.chi2.sf(row["chisq"], 2)) / 2)
    alone = fits.fitted("counts", "y ~ x + arm + (1 + x || g)", "poisson")
    row = fits.poisson().anova(alone).iloc[1]
    assert row["test"].startswith("half chi-squared(0), half chi-squared(1)")
    assert row["p"] == pytest.approx(stats.chi2.sf(row["chisq"], 1) / 2 if row["chisq"] > 0 else 1.0)
    # The covariance by itself is inside its space.
    assert nesting(alone, slopes)[:2] == (1, 0)


@pytest.mark.slow
def test_families_at_an_edge_of_others():
    nbinom = fits.fitted("counts", "y ~ x + arm + (1 | g)", "nbinom2")
    found = nesting(fits.poisson(), nbinom)
    assert found == (1, 1, True)
    data = fits.table("counts").assign(y=lambda frame: np.where(frame.index % 4 == 0, 0, frame["y"]))
    plain, inflated = (
        GLMM("y ~ x + (1 | g)", family=family, verbose=False).fit(data)
        for family in ("poisson", ZeroInflated(by_name("poisson")))
    )
    assert nesting(plain, inflated) == (1, 1, True)
    assert plain.anova(inflated)["p"].iloc[1] < 1e-6
    with pytest.raises(ValueError, match="family nbinom2 .log. is no special case of poisson"):
        nesting(nbinom, fits.poisson())


@pytest.mark.slow
def test_several_variances_need_a_bootstrap():
    full = fits.fitted("measurements", "y ~ x + (1 + x | g)", "gaussian")
    data = fits.table("measurements").assign(h=lambda frame: frame.index % 5)
    less = GLMM("y ~ x + (1 | g)", verbose=False).fit(data)
    more = GLMM("y ~ x + (1 + x || g) + (1 | h)", verbose=False).fit(data)
    assert nesting(less, more)[:2] == (2, 2) and not nesting(less, more).tied
    row = less.anova(more, n_boot=0).iloc[1]
    assert row["test"] == "chi-squared(2), too large: 2 parameters at edges"
    assert row["p"] == pytest.approx(stats.chi2.sf(row["chisq"], 2))
    again = [less.anova(full, n_boot=19).iloc[1] for _ in range(2)]
    assert again[0]["p"] == again[1]["p"] and again[0]["test"] == "bootstrap of 19"
    assert again[0]["p"] * 20 == pytest.approx(round(again[0]["p"] * 20)) and again[0]["p"] >= 0.05


@pytest.mark.slow
def test_a_bootstrap_agrees_with_chi_squared_inside():
    data = fits.measurements(3, groups=40)
    data["w"] = np.random.default_rng(11).normal(size=len(data))
    full = GLMM("y ~ x + w + (1 | g)", verbose=False).fit(data)
    less = GLMM("y ~ x + (1 | g)", verbose=False).fit(data)
    exact = full.anova(less)["p"].iloc[1]
    found = lr_test(less, full, 200, 1)
    # A binomial share of 200, and the chi-squared itself, which is off by about 1 / 240.
    assert found.p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 200) + 0.01)


@pytest.mark.slow
def test_refits_compile_nothing_and_find_the_maximum():
    model = fits.binomial()
    responses = model.simulate(4, random_state=2)
    first = refitted(model, responses["sim_1"].to_numpy(float))
    assert first is not None
    likelihood(first)
    before = len(programs._compiled)
    refits: Any = [refitted(model, responses[name].to_numpy(float)) for name in responses]
    values = [likelihood(fit) for fit in refits]
    assert len(programs._compiled) == before
    data = fits.table("shares").assign(y=responses["sim_3"])
    whole = GLMM("y/n ~ x + (1 | g)", family="binomial", verbose=False).fit(data)
    assert values[2] == pytest.approx(float(whole.loglik_), abs=1e-3)
    np.testing.assert_allclose(refits[2].params["beta"], list(whole.fixef()), atol=0.02 * min(whole.stderr_.values()))
    assert refitted(model, np.full(len(data), 0.5)) is None


@pytest.mark.slow
def test_what_cannot_be_compared_is_refused():
    full, data = fits.poisson(), fits.table("counts")
    other = GLMM("y ~ x + (1 | g)", family="poisson", verbose=False)
    cases = [
        (other.fit(data.iloc[:-4]), "fitted to 240 and 236 rows"),
        (GLMM("z ~ x + (1 | g)", family="poisson", verbose=False).fit(data.rename(columns={"y": "z"})), "different responses"),
        (GLMM("y ~ x + (1 | g)", family="poisson", verbose=False).fit(data.assign(y=data["y"] + 1)), "their responses differ"),
        (fits.fitted("counts", "y ~ x + I(x**2) + (1 | g)", "poisson"), "is none of the latter's fixed effects"),
        (fits.fitted("counts", "y ~ x + arm + (0 + x | g)", "poisson"), "there is nothing to test|none of the latter's random"),
        (fits.fitted("counts", "y ~ x + (1 | g)", "poisson", method="laplace"), "some models were fitted with method"),
    ]
    for model, told in cases:
        with pytest.raises(ValueError, match=told):
            full.anova(model)
    with pytest.raises(ValueError, match="anova compares two models or more"):
        full.anova()
    with pytest.raises(ValueError, match="n_boot must be at least 19"):
        full.anova(fits.fitted("counts", "y ~ x + (1 | g)", "poisson"), n_boot=5)
    with pytest.raises(TypeError, match="fitted margaux.GLMM, got str"):
        full.anova("y ~ x")


@pytest.mark.slow
def test_thresholds_are_the_intercept_of_categories():
    data = fits.table("counts").assign(y=lambda frame: np.minimum(frame["y"], 3))
    less, full = (GLMM(f"y ~ {x} + (1 | g)", family="ordinal", verbose=False).fit(data) for x in ("x", "x + arm"))
    assert nesting(less, full) == (2, 0, True)
    # Minus x is one minus x, but for an intercept.
    turned = GLMM("y ~ I(1 - x) + (1 | g)", family="ordinal", verbose=False).fit(data)
    assert nesting(turned, full) == (2, 0, True)
