"""What shows a mixed model: figures against the numbers they draw, curves against their formula, draws, page, command."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats
from scipy.special import expit

import margaux as mx
from commands_examples import fit
from margaux.families.glmm import curves
from margaux.families.glmm.plots import GROUPS, compared
from margaux.families.glmm.responses import ZeroInflated, by_name

QUIET: Any = {"verbose": False}


def herds(n=60, rows=4):
    rng = np.random.default_rng(0)
    herd, size = np.repeat(np.arange(n), rows), rng.integers(6, 30, n * rows)
    x, breed = rng.normal(size=n * rows), rng.choice(["black", "white"], n * rows)
    eta = -1 + 0.5 * x - 0.4 * (breed == "white") + 0.7 * rng.normal(size=n)[herd]
    return pd.DataFrame({"ill": rng.binomial(size, expit(eta)), "size": size, "x": x, "breed": breed, "herd": herd})


@pytest.fixture(scope="module")
def binomial():
    return mx.GLMM("ill/size ~ x + breed + (1 | herd)", family="binomial", **QUIET).fit(herds())


@pytest.fixture(scope="module")
def slopes():
    rng = np.random.default_rng(1)
    g, x = np.repeat(np.arange(25), 6), rng.normal(size=150)
    b = rng.normal(size=(25, 2)) @ np.array([[1.0, 0.3], [0.0, 0.5]])
    table = pd.DataFrame({"y": 2 + x + b[g, 0] + x * b[g, 1] + 0.5 * rng.normal(size=150), "x": x, "g": g})
    return mx.GLMM("y ~ x + (1 + x | g)", **QUIET).fit(table.sample(frac=1.0, random_state=0))


@pytest.fixture(scope="module")
def inflated():
    table = herds(40, 6)
    rng = np.random.default_rng(3)
    mean = np.exp(0.8 + 0.4 * table["x"] + 0.4 * rng.normal(size=40)[table["herd"]])
    table["count"] = rng.poisson(mean) * (rng.random(len(table)) < 0.75)
    return mx.GLMM("count ~ x + (1 | herd)", family=ZeroInflated(by_name("poisson")), **QUIET).fit(table)


@pytest.fixture(scope="module")
def ordinal():
    table = herds(40, 6)
    rng = np.random.default_rng(4)
    latent = table["x"] + 0.8 * rng.normal(size=40)[table["herd"]] + rng.logistic(size=len(table))
    table["grade"] = pd.cut(latent, [-np.inf, -1, 1, np.inf], labels=["low", "middle", "high"])
    return mx.GLMM("grade ~ x + (1 | herd)", family="ordinal", **QUIET).fit(table)


# -- figures ----------------------------------------------------------------------------------------


def test_a_caterpillar_has_the_largest_effects_with_their_intervals(binomial):
    (axis,) = binomial.plot.caterpillar(level=0.9)
    frame = binomial.ranef()["herd"].xs("Intercept", level="effect")
    (points,) = axis.containers
    shown, ends = points.lines[0].get_xdata(), points.lines[2][0].get_segments()
    largest = frame.loc[frame["estimate"].abs().nlargest(GROUPS).index].sort_values("estimate")
    np.testing.assert_array_equal(shown, largest["estimate"])
    half = stats.norm.ppf(0.95) * largest["se"].to_numpy()
    np.testing.assert_allclose([end[1, 0] - end[0, 0] for end in ends], 2 * half)
    assert f"largest {GROUPS} of 60" in axis.get_title()
    assert [label.get_text() for label in axis.get_yticklabels()] == [str(name) for name in largest.index]
    assert len(binomial.plot.caterpillar(most=5)[0].containers[0].lines[0].get_xdata()) == 5
    with pytest.raises(ValueError, match='no factor "cow"; the factors are herd'):
        binomial.plot.caterpillar("cow")


@pytest.mark.slow
def test_normal_effects_lie_on_the_line_and_others_do_not(slopes):
    axes = slopes.plot.normality()
    assert [axis.get_title() for axis in axes] == ["g: Intercept", "g: x"]
    values = np.sort(np.asarray(axes[0].lines[-1].get_ydata()))
    # Divided by the standard deviation of the conditional mean they have that of N(0, 1), shrunken as they are.
    assert 0.75 < values.std() < 1.3
    frame, sd = slopes.ranef()["g"].xs("Intercept", level="effect"), slopes.VarCorr().loc[("g", "Intercept"), "sd"]
    np.testing.assert_allclose(values, np.sort(frame["estimate"] / np.sqrt(sd**2 - frame["se"] ** 2)), rtol=1e-9)
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(30), 10)
    two = np.where(np.arange(30) % 2, 4.0, -4.0)
    table = pd.DataFrame({"y": two[g] + rng.normal(size=300), "g": g})
    apart = mx.GLMM("y ~ 1 + (1 | g)", **QUIET).fit(table).plot.normality()[0]
    line = apart.lines[-1]
    assert stats.shapiro(line.get_ydata()).pvalue < 1e-3 < stats.shapiro(values).pvalue


def test_fixed_effects_and_their_ratios(binomial):
    plain, ratios = binomial.plot.fixed(), binomial.plot.fixed(exponentiate=True, intercept=False)
    frame = binomial.summary()
    np.testing.assert_array_equal(plain.containers[0].lines[0].get_xdata(), frame.loc[binomial.design_.names, "estimate"])
    np.testing.assert_allclose(ratios.containers[0].lines[0].get_xdata(), np.exp(frame.loc[["x", "breed[white]"], "estimate"]))
    ends = ratios.containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose(ends[0][:, 0], np.exp(frame.loc["x", ["ci_low", "ci_high"]].to_numpy(float)))
    assert ratios.get_xlabel().startswith("odds ratio") and ratios.get_xscale() == "log"


def test_ratios_need_a_logarithm(slopes):
    with pytest.raises(ValueError, match="link identity are no logarithms"):
        slopes.plot.fixed(exponentiate=True)


@pytest.mark.slow
def test_observed_against_fitted(binomial, ordinal):
    expected, y, grouped = compared(binomial)
    np.testing.assert_allclose(expected, binomial.predict())
    np.testing.assert_array_equal(y, herds()["ill"] / herds()["size"])
    assert not grouped and len(binomial.plot.observed().lines[0].get_xdata()) == 240
    table = herds().assign(any=lambda one: (one["ill"] > 3).astype(int))
    binary = mx.GLMM("any ~ x + (1 | herd)", family="binomial", **QUIET).fit(table)
    assert compared(binary)[2] and compared(ordinal)[2]
    assert len(binary.plot.observed().containers[0].lines[0].get_xdata()) == 10


def test_traces_go_by_the_names_of_the_summary(slopes):
    assert [axis.get_title() for axis in slopes.plot.trace()] == list(slopes.params_)
    (one,) = slopes.plot.trace(["cor_g[Intercept,x]"])
    assert one.lines[0].get_ydata()[-1] == pytest.approx(slopes.params_["cor_g[Intercept,x]"], abs=1e-6)
    with pytest.raises(ValueError, match='no parameter is called "sd"'):
        slopes.plot.trace(["sd"])


def test_figures_go_to_axes_that_are_given(binomial, slopes):
    own = Figure().subplots(1, 2)
    for draw in (slopes.plot.caterpillar, slopes.plot.normality, binomial.plot.effects):
        assert list(draw(ax=own)) == list(own)
    axis = Figure().subplots()
    assert binomial.plot.fixed(ax=axis) is axis is binomial.plot.observed(ax=axis)


# -- curves -----------------------------------------------------------------------------------------


def test_a_curve_is_the_mean_with_the_interval_of_the_predictor(binomial):
    found = curves.effect(binomial, "x", level=0.9)
    X = np.column_stack([np.ones(len(found)), found["x"], np.zeros(len(found))])
    V = binomial.cov_params().loc[binomial.design_.names, binomial.design_.names].to_numpy()
    eta, se = X @ binomial.fixef().to_numpy(), np.sqrt(np.einsum("ri,ij,rj->r", X, V, X))
    np.testing.assert_allclose(found["mean"], expit(eta), rtol=1e-9)
    np.testing.assert_allclose(found["ci_low"], expit(eta - stats.norm.ppf(0.95) * se), rtol=1e-6)
    np.testing.assert_allclose(found["ci_high"], expit(eta + stats.norm.ppf(0.95) * se), rtol=1e-6)
    by = curves.effect(binomial, "breed", by="x", at={})
    assert by.groupby("x").size().tolist() == [2, 2, 2]
    row = by.iloc[[0]][["breed", "x"]]
    np.testing.assert_allclose(by["mean"].iloc[0], binomial.predict(row, re_form="NA"), rtol=1e-9)


def test_others_are_held_where_they_are_asked_to_be(binomial):
    at = curves.effect(binomial, "x", at={"breed": "white"})
    rows = pd.DataFrame({"x": at["x"], "breed": "white"})
    np.testing.assert_allclose(at["mean"], binomial.predict(rows, re_form="NA"), rtol=1e-9)
    with pytest.raises(ValueError, match='the predictor "age" is none of the fixed effects; they are made of x, breed'):
        curves.effect(binomial, "age")
    with pytest.raises(ValueError, match='both "x"; leave by out'):
        curves.effect(binomial, "x", by="x")


@pytest.mark.slow
def test_a_band_knows_that_the_zeros_are_estimated_too(inflated):
    found = curves.effect(inflated, "x").iloc[[10, 60]]
    flat, names = inflated.params_, ["Intercept", "x", "zero"]
    V = inflated.cov_params().loc[names, names].to_numpy()
    for _, row in found.iterrows():
        eta = flat["Intercept"] + flat["x"] * row["x"]
        assert row["mean"] == pytest.approx(expit(-flat["zero"]) * np.exp(eta), rel=1e-9)
        slope = np.array([1.0, row["x"], -expit(flat["zero"])])
        half = stats.norm.ppf(0.975) * np.sqrt(slope @ V @ slope)
        assert np.log(row["ci_high"] / row["mean"]) == pytest.approx(half, rel=1e-6)
        assert np.log(row["mean"] / row["ci_low"]) == pytest.approx(half, rel=1e-6)


def test_categories_have_a_curve_each(ordinal):
    found = curves.effect(ordinal, "x")
    assert found["category"].unique().tolist() == ["low", "middle", "high"]
    total = np.asarray(found.groupby("x")["mean"].sum(), float)
    np.testing.assert_allclose(total, 1.0, rtol=1e-9)
    least, mean, most = found[["ci_low", "mean", "ci_high"]].to_numpy(float).T
    assert np.all((0 < least) & (least < mean) & (mean < most) & (most < 1))
    low: Any = found[found["category"] == "low"]
    names = ["x", "low|middle"]
    V = ordinal.cov_params().loc[names, names].to_numpy()
    slope = np.column_stack([-low["x"], np.ones(len(low))])
    half = stats.norm.ppf(0.975) * np.sqrt(np.einsum("ri,ij,rj->r", slope, V, slope))
    logit = ordinal.params_["low|middle"] - ordinal.params_["x"] * low["x"].to_numpy()
    np.testing.assert_allclose(low["ci_high"], expit(logit + half), rtol=1e-6)


def test_numbers_that_are_categories_are_drawn_as_such():
    table = herds().assign(period=lambda one: np.arange(len(one)) % 3 + 1, old=lambda one: np.arange(len(one)) % 5 == 0)
    model = mx.GLMM("ill/size ~ C(period) + old + (1 | herd)", family="binomial", **QUIET).fit(table)
    columns = curves.predictors(model)
    assert columns.levels == {"period": [1, 2, 3], "old": [False, True]} and not columns.numbers
    found = curves.effect(model, "period", at={"old": True})
    rows = pd.DataFrame({"period": [1, 2, 3], "old": True})
    np.testing.assert_allclose(found["mean"], model.predict(rows, re_form="NA"), rtol=1e-9)


# -- draws ------------------------------------------------------------------------------------------


def test_draws_are_effects_by_group_and_rows_in_their_order(slopes):
    tree = slopes.to_arviz(800, posterior_predictive=True)
    draws = tree.posterior["b_g"]
    assert draws.dims == ("chain", "draw", "g", "g_effect") and draws["g_effect"].values.tolist() == ["Intercept", "x"]
    frame = slopes.ranef()["g"]
    se = frame["se"].to_numpy().reshape(25, 2)
    gap = (draws.values[0].mean(axis=0) - frame["estimate"].to_numpy().reshape(25, 2)) / (se / np.sqrt(800))
    assert np.abs(gap).max() < 5
    np.testing.assert_allclose(draws.values[0].std(axis=0) / se, 1.0, atol=0.2)
    design, b = slopes.design_, draws.values[0, 7]
    mean = design.X @ slopes.fixef().to_numpy() + np.sum(design.terms[0].Z * b[design.terms[0].codes], axis=1)
    expected = stats.norm.logpdf(design.y, mean, slopes.params_["sigma"])
    np.testing.assert_allclose(tree.log_likelihood["y"].values[0, 7], expected, rtol=1e-9)
    z = (tree.posterior_predictive["y"].values[0, 7] - mean) / slopes.params_["sigma"]
    assert stats.kstest(z, "norm").pvalue > 1e-4
    assert tree.observed_data["g_of"].values.tolist() == design.table["g"].tolist()


@pytest.mark.slow
def test_thousands_of_crossed_effects_are_drawn_from_the_approximation():
    rng = np.random.default_rng(0)
    a, b, x = rng.integers(0, 300, 3000), rng.integers(0, 40, 3000), rng.normal(size=3000)
    y = rng.poisson(np.exp(0.5 + 0.3 * x + 0.5 * rng.normal(size=300)[a] + 0.4 * rng.normal(size=40)[b]))
    model = mx.GLMM("y ~ x + (1 | a) + (1 | b)", family="poisson", method="laplace", **QUIET)
    model.fit(pd.DataFrame({"a": a, "b": b, "x": x, "y": y}))
    tree = model.to_arviz(1000)
    assert "Laplace's approximation" in tree.attrs["drawn"]
    for name in ("a", "b"):
        frame, draws = model.ranef()[name], tree.posterior[f"b_{name}"].values[0, :, :, 0]
        se = frame["se"].to_numpy()
        assert np.abs((draws.mean(axis=0) - frame["estimate"]) / (se / np.sqrt(1000))).max() < 5
        np.testing.assert_allclose(draws.std(axis=0) / se, 1.0, atol=0.15)


# -- page and command -------------------------------------------------------------------------------


def test_a_page_has_every_part(binomial, tmp_path):
    page = binomial.report(tmp_path / "report.html").read_text()
    assert "left out" not in page
    for part in ("ill/size ~ x + breed", "binomial", "logit", "herd (60)", "Variances of the random effects", "Certified"):
        assert part in page
    assert page.count("<svg") == 6 and f"{binomial.VarCorr()['sd'].iloc[0]:.4g}" in page


@pytest.mark.slow
def test_a_singular_fit_is_said_to_be_one(tmp_path):
    rng = np.random.default_rng(0)
    g = np.repeat(np.arange(20), 5)
    even = np.tile(rng.normal(size=5), 20)  # the same in every group: nothing is left between them
    model = mx.GLMM("y ~ 1 + (1 | g)", **QUIET).fit(pd.DataFrame({"y": even, "g": g}))
    assert model.is_singular_
    page = model.report(tmp_path / "report.html").read_text()
    assert "boundary (singular) fit" in page
    with pytest.raises(ValueError, match="tell nothing of any random effect"):
        model.plot.normality()


def test_the_command_is_the_estimator(binomial, tmp_path):
    herds().to_csv(tmp_path / "herds.csv", index=False)
    out = tmp_path / "out"
    formula = "ill/size ~ x + breed + (1 | herd)"
    done = fit("glmm", tmp_path / "herds.csv", "--formula", formula, "--family", "binomial", "--json", "--out", out)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    for name, row in binomial.summary().iterrows():
        assert told["estimates"][name]["estimate"] == pytest.approx(row["estimate"], rel=1e-9)
    assert told["variances"]["herd"]["Intercept"]["sd"] == pytest.approx(binomial.params_["sd_herd"], rel=1e-9)
    assert told["n_groups"] == {"herd": 60} and told["fitted_by"] == "quadrature" and told["singular"] is False
    names = {path.name for path in out.iterdir()}
    assert {"ranef_herd.csv", "varcorr.csv", "fixed_effects.csv", "caterpillar.png", "effects.png", "report.html"} <= names
    frame = pd.read_csv(out / "ranef_herd.csv")
    np.testing.assert_allclose(frame["estimate"], binomial.ranef()["herd"]["estimate"])


@pytest.mark.slow
def test_offsets_weights_and_zeros_of_the_command(tmp_path):
    table = herds(30, 6)
    rng = np.random.default_rng(0)
    table["log_size"], table["twice"] = np.log(table["size"]), rng.integers(1, 3, len(table))
    table["count"] = rng.poisson(0.3 * table["size"] * np.exp(0.4 * rng.normal(size=30)[table["herd"]]))
    table.loc[::4, "count"] = 0
    table.to_csv(tmp_path / "counts.csv", index=False)
    options = ["--formula", "count ~ x + (1 | herd)", "--family", "poisson", "--offset", "log_size", "--weights", "twice"]
    done = fit("glmm", tmp_path / "counts.csv", *options, "--zeros", "inflated", "--method", "laplace", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    model = mx.GLMM("count ~ x + (1 | herd)", family=ZeroInflated(by_name("poisson")), method="laplace", **QUIET)
    model.fit(table, offset="log_size", weights="twice")
    assert told["estimates"]["zero"]["estimate"] == pytest.approx(model.params_["zero"], rel=1e-9)
    assert told["fitted_by"] == "laplace" and told["n_iter"] == model.n_iter_
