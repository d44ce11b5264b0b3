"""Residuals of mixed models, against SciPy's distributions, exchangeability and models that are wrong on purpose."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import glmm_fits as fits
from margaux import GLMM
from margaux.families.glmm.goodness import _dispersion, _distance, _outliers, monte_carlo_p
from margaux.families.glmm.residuals import randomised_ranks, simulated_ranks, unit_deviance
from margaux.families.glmm.responses import by_name


@pytest.mark.parametrize(
    ("family", "logp", "saturated", "times"),
    [
        ("gaussian", lambda y, m: stats.norm.logpdf(y, m, 0.7), lambda y: y, 0.7**2),
        ("poisson", lambda y, m: stats.poisson.logpmf(y, m), lambda y: y, 1.0),
        ("binomial", lambda y, m: stats.binom.logpmf(y, 9, m / 9), lambda y: y, 1.0),
        ("gamma", lambda y, m: stats.gamma.logpdf(y, 1 / 0.49, scale=0.49 * m), lambda y: y, 0.49),
        ("nbinom2", lambda y, m: stats.nbinom.logpmf(y, 2.5, 2.5 / (2.5 + m)), lambda y: y, 1.0),
    ],
)
def test_the_unit_deviance_is_what_the_log_density_lacks_at_its_best(family, logp, saturated, times):
    y = np.array([1.0, 2.0, 4.0, 7.0, 8.0])
    mean = np.array([2.0, 2.5, 3.0, 8.5, 1.5])
    found = unit_deviance(by_name(family), y, mean, np.full(5, 9.0), {"theta": 2.5, "sigma": 0.7})
    np.testing.assert_allclose(found, times * 2 * (logp(y, saturated(y)) - logp(y, mean)), rtol=1e-9)


def test_a_zero_has_a_deviance():
    zero, mean = np.zeros(1), np.full(1, 1.3)
    assert unit_deviance(by_name("poisson"), zero, mean, None, {})[0] == pytest.approx(2 * 1.3)
    assert unit_deviance(by_name("binomial"), zero, mean / 2, None, {})[0] == pytest.approx(-2 * np.log1p(-0.65))


def test_residuals_about_the_mean():
    model, data = fits.binomial(), fits.table("shares")
    share = model.predict()
    np.testing.assert_allclose(model.residuals("response"), data["y"] / data["n"] - share)
    sd = np.sqrt(share * (1 - share) / data["n"])
    np.testing.assert_allclose(model.residuals("pearson"), (data["y"] / data["n"] - share) / sd)
    fixed = model.predict(re_form="NA")
    np.testing.assert_allclose(model.residuals("response", re_form="NA"), data["y"] / data["n"] - fixed)
    deviance = model.residuals("deviance")
    assert np.array_equal(np.sign(deviance), np.sign(model.residuals("response")))
    best = stats.binom.logpmf(data["y"], data["n"], data["y"] / data["n"]) - stats.binom.logpmf(data["y"], data["n"], share)
    np.testing.assert_allclose(deviance**2, 2 * best, atol=1e-9)


def test_quantile_residuals_lie_between_the_ends_of_their_step():
    model, data = fits.binomial(), fits.table("shares")
    u = stats.norm.cdf(model.residuals())
    share = model.predict()
    assert np.all(u >= stats.binom.cdf(data["y"] - 1, data["n"], share) - 1e-12)
    assert np.all(u <= stats.binom.cdf(data["y"], data["n"], share) + 1e-12)
    assert np.array_equal(model.residuals(random_state=3), model.residuals(random_state=3))
    assert not np.array_equal(model.residuals(random_state=3), model.residuals(random_state=4))
    gaussian, table = fits.gaussian(), fits.table("measurements")
    away = (table["y"] - gaussian.predict()) / gaussian.params_["sigma"]
    np.testing.assert_allclose(gaussian.residuals(), away, atol=1e-9)


def test_randomised_ranks_are_uniform_whatever_is_tied():
    rng = np.random.default_rng(0)
    ranks = randomised_ranks(rng.poisson(0.5, (4000, 20)).astype(float), rng)
    for column in (0, 19):
        assert stats.kstest(ranks[:, column], "uniform").pvalue > 1e-3
    values = np.array([[3.0, 1.0, 2.0, 1.0]])
    order = randomised_ranks(values, rng)[0]
    assert order[0] > order[2] > max(order[1], order[3]) and order[0] > 0.75 and max(order[1], order[3]) < 0.5


@pytest.mark.slow
def test_marginal_quantile_residuals_are_those_of_new_groups():
    model, data = fits.gaussian(), fits.table("measurements")
    found = model.residuals(re_form="NA", n_simulations=2000)
    total = np.hypot(model.params_["sigma"], model.params_["sd_g"])
    exact = stats.norm.cdf((data["y"] - model.predict(re_form="NA")) / total)
    # A rank among K draws is a share of them, with the error of a binomial one.
    error = np.sqrt(exact * (1 - exact) / 2000) + 1 / 2000
    assert np.all(np.abs(stats.norm.cdf(found) - exact) < 5 * error)
    values, _ = simulated_ranks(model, 2000, 0)
    assert np.array_equal(values[:, 0], data["y"])


def test_figures_of_the_tests():
    rng = np.random.default_rng(1)
    ranks = rng.random((50, 3))
    np.testing.assert_allclose(_distance(ranks), [stats.kstest(ranks[:, j], "uniform").statistic for j in range(3)])
    values, codes = rng.normal(size=(12, 5)), np.repeat(np.arange(4), 3)
    standard = (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)
    within: Any = pd.DataFrame(standard).groupby(codes).transform(lambda column: column - column.mean())
    np.testing.assert_allclose(_dispersion(values, [codes]), (within**2).sum())
    # An effect of every row has no group to be taken about.
    np.testing.assert_allclose(_dispersion(values, [np.arange(12)]), (standard**2).sum(axis=0))
    values = np.array([[1.0, 2.0, 2.0, 9.0], [0.0, 0.0, 1.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    assert _outliers(values).tolist() == [1, 0, 0, 2]


def test_monte_carlo_p_values_are_ranks():
    others = np.arange(1.0, 20.0)
    assert monte_carlo_p(18.5, others, False) == 2 / 20
    assert monte_carlo_p(18.5, others, True) == 4 / 20
    assert monte_carlo_p(0.0, others, False) == 1.0 and monte_carlo_p(0.0, others, True) == 2 / 20
    assert monte_carlo_p(10.0, others, True) == 1.0


@pytest.mark.slow
def test_a_true_model_passes_and_wrong_ones_are_told():
    frame = fits.poisson().check_residuals()
    assert list(frame.index) == ["uniformity", "dispersion", "zeros", "outliers"]
    assert np.all(frame["p"] > 0.01) and all("expected" in told for told in frame["sentence"])
    assert frame.equals(fits.poisson().check_residuals())
    rng, data = np.random.default_rng(55), fits.counts(5, groups=40)
    wild = data.assign(y=rng.poisson(np.exp(0.6 + 0.3 * data["x"] + 0.9 * rng.normal(size=len(data)))))
    found = GLMM("y ~ x + (1 | g)", family="poisson", verbose=False).fit(wild).check_residuals()
    assert found.loc["dispersion", "p"] < 0.01 and found.loc["dispersion", "figure"] > 1.2
    assert "varies more" in found.loc["dispersion", "sentence"]
    none = data.assign(y=np.where(rng.random(len(data)) < 0.4, 0, data["y"] + 2))
    found = GLMM("y ~ x + (1 | g)", family="poisson", verbose=False).fit(none).check_residuals()
    assert found.loc["zeros", "p"] < 0.01 and "more zeros" in found.loc["zeros", "sentence"]
    far = fits.measurements(2, groups=40)
    far.loc[np.arange(5, 240, 30), "y"] += np.tile([6.0, -6.0], 4)
    found = GLMM("y ~ x + (1 | g)", verbose=False).fit(far).check_residuals()
    assert "zeros" not in found.index and found.loc["outliers", "p"] < 0.02


@pytest.mark.slow
def test_the_tests_hold_their_level_on_data_of_the_model():
    # Refitting each data set would make the p values larger; here the estimate is the truth.
    model = fits.binomial()
    observed = model.simulate(60, random_state=9)
    ps = []
    for name in observed:
        values = np.column_stack([observed[name], model.simulate(99, random_state=int(name[4:]) + 100).to_numpy()])
        ranks = randomised_ranks(values, np.random.default_rng(0))
        spread = _dispersion(values, [term.codes for term in model.design_.terms])
        both = monte_carlo_p(spread[0], spread[1:], True), monte_carlo_p(*_first(_distance(ranks)), False)
        ps.append(both)
    for column in np.array(ps).T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3


def _first(figures):
    return figures[0], figures[1:]


@pytest.mark.slow
def test_what_there_is_not_is_refused():
    model = fits.poisson()
    for call, told in [
        (lambda: model.residuals("raw"), "kind must be one of quantile, pearson"),
        (lambda: model.residuals(re_form="all"), "re_form must be None"),
        (lambda: model.residuals(re_form="NA", n_simulations=10), "at least 50"),
        (lambda: unit_deviance(by_name("beta"), np.ones(1), np.ones(1), None, {}), "family beta has no unit deviance"),
    ]:
        with pytest.raises(ValueError, match=told):
            call()
    data = fits.table("counts")
    ordered = data.assign(y=pd.Categorical(np.minimum(data["y"], 3), ordered=True))
    ordinal = GLMM("y ~ x + (1 | g)", family="ordinal", verbose=False).fit(ordered)
    with pytest.raises(ValueError, match='kind="quantile" only'):
        ordinal.residuals("pearson")
    assert np.isfinite(ordinal.residuals()).all()
    infinite = GLMM("y ~ x + (1 | g)", family="student", verbose=False)
    vars(infinite).update(vars(fits.gaussian()) | {"model_": SimpleNamespace(response=by_name("student"))})
    infinite.result_ = fits.gaussian().result_.at(fits.gaussian().result_.params | {"dispersion": {"sigma": 1.0, "df": 1.5}})
    infinite._effects = fits.gaussian()._effects
    with pytest.raises(ValueError, match="variance of the family student is infinite"):
        infinite.residuals("pearson")
