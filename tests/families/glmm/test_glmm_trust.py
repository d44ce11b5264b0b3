"""Where the data bound a parameter on one side only, or know it far too well, a fit says so or is right all the same."""

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.families.glmm.responses import ZeroInflated, by_name

GROUPS, ROWS = 60, 8


@pytest.fixture(scope="module")
def table():
    """Counts of groups, and the seeded generator that drew them."""
    rng = np.random.default_rng(1)
    g = np.repeat(np.arange(GROUPS), ROWS)
    x, b = rng.normal(size=GROUPS * ROWS), 0.7 * rng.normal(size=GROUPS)[g]
    return pd.DataFrame({"x": x, "g": g, "mean": np.exp(0.4 + 0.5 * x + b)})


def fitted(formula, family, data):
    return mx.GLMM(formula, family=family, verbose=False).fit(data)


@pytest.mark.parametrize(
    ("family", "times", "name"),
    [pytest.param("nbinom2", 1, "theta", marks=pytest.mark.slow), (ZeroInflated(by_name("poisson")), 5, "zero")],
)
def test_a_parameter_that_the_data_push_to_infinity_is_flat(table, family, times, name):
    rng = np.random.default_rng(5)
    model = fitted("y ~ x + (1 | g)", family, table.assign(y=rng.poisson(times * table["mean"])))
    assert model.certificate_.word == "careful"
    assert f"flat along {name}" in str(model.certificate_)


def test_a_level_without_counts_is_flat_among_many_coefficients(table):
    rng = np.random.default_rng(5)
    level = rng.integers(0, 12, len(table))
    data = table.assign(y=np.where(level == 3, 0, rng.poisson(table["mean"])), level=[f"l{i}" for i in level])
    model = fitted("y ~ x + level + (1 | g)", "poisson", data)
    assert model.certificate_.word == "careful" and "flat along level[l3]" in str(model.certificate_)


@pytest.mark.slow
def test_a_covariate_far_from_zero_does_not_make_the_intercept_flat(table):
    """Of a calendar year the intercept has a standard error of thousands of percent, and all is known about it that there is."""
    rng = np.random.default_rng(5)
    data = table.assign(y=rng.poisson(table["mean"]), year=2015 + 5 * table["x"])
    near, far = (fitted(f"y ~ {x} + (1 | g)", "poisson", data) for x in ("x", "year"))
    assert far.certificate_.word == near.certificate_.word == "certified", str(far.certificate_)
    assert float(far.loglik_) == pytest.approx(float(near.loglik_), abs=1e-6)
    assert far.stderr_["year"] == pytest.approx(near.stderr_["x"] / 5, rel=1e-5)
    many = mx.GLMM("~ year + (1 | g)", family="poisson", verbose=False).fit_many(data[["y"]], data[["year", "g"]])
    assert many.verdicts["word"].iloc[0] == "certified"


def test_an_outlier_that_one_group_knows_all_about(table):
    """Its posterior is a hundredth of a standard error wide: nodes of one place say nothing about the next. The maximum is by
    sums over grids of 4001 points a group, climbed without derivatives."""
    rng = np.random.default_rng(5)
    data = table.assign(y=np.where(np.arange(len(table)) == 7, 100_000, rng.poisson(table["mean"])))
    model = fitted("y ~ x + (1 | g)", "poisson", data)
    assert float(model.loglik_) == pytest.approx(-188204.72296, abs=1e-3)
    assert model.params_["sd_g"] == pytest.approx(np.exp(0.46406), abs=0.01)


@pytest.mark.slow
def test_posteriors_with_a_kink(table):
    """With an inverse link effects end where the predictor does; the maximum is by sums over grids as above."""
    rng = np.random.default_rng(5)
    model = fitted("y ~ x + (1 | g)", by_name("gamma", "inverse"), table.assign(y=rng.gamma(3, table["mean"] / 3)))
    assert float(model.loglik_) == pytest.approx(-723.96716, abs=0.01)
    assert model.params_["Intercept"] == pytest.approx(0.7647, abs=0.2 * 0.053)


@pytest.mark.slow
def test_effects_that_all_go_together_have_an_end():
    """The range of a correlation that grows to one has none."""
    rng = np.random.default_rng(5)
    data = pd.DataFrame(
        {"g": np.repeat(np.arange(40), 8), "e": np.tile(np.arange(8) % 4, 40), "s": np.tile(np.arange(8) // 4, 40)}
    )
    data["y"] = rng.normal(size=40)[data["g"]] + rng.normal(size=320)
    model = fitted("y ~ 1 + exp(0 + e + s | g)", "gaussian", data)
    assert model.certificate_.word == "careful"


@pytest.mark.slow
def test_few_crossed_effects_are_answered_by_the_approximation_with_their_exact_likelihood():
    rng = np.random.default_rng(2)
    g, h = np.repeat(np.arange(40), 6), np.tile(np.arange(6), 40)
    eta = 0.3 + rng.normal(size=40)[g] + 0.6 * rng.normal(size=6)[h]
    model = fitted("y ~ 1 + (1 | g) + (1 | h)", "poisson", pd.DataFrame({"y": rng.poisson(np.exp(eta)), "g": g, "h": h}))
    assert model.certificate_.word == "certified"
    assert model.stderr_["sd_g"] == pytest.approx(model.params_["sd_g"] / np.sqrt(80), rel=0.4)
    assert model.loglik_.method == "quadrature within weighted draws" and model.loglik_.se <= 0.02
