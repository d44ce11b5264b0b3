"""Forest plots of covariates and the page of goodness of fit: their numbers and what is drawn."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy

from margaux import NLME
from margaux.datasets import load_theophylline
from margaux.families.nlme import LogitNormal, LogNormal, Normal, Poisson, oral1cpt
from margaux.families.nlme.forest import covariate_effects
from margaux.families.nlme.intervals import degrees_of_freedom

SHORT: dict[str, Any] = {"n_iter": 60, "n_burn": 40, "n_starts": 1, "stop": False, "polish": False, "verbose": False}
COLUMNS: dict[str, Any] = {"id": "Id", "time": "Time", "y": "Concentration", "dose": "Dose"}


def theophylline():
    frame = load_theophylline()
    return frame.assign(Sex=np.where(frame["Id"] % 3 == 0, "m", "f"), Site=frame["Id"] % 2)


@pytest.fixture(scope="module")
def fitted():
    individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0, covariates="log(Weight/70)")}
    individual |= {"CL": LogNormal(3.0, covariates="log(Weight/70) + Sex")}
    return NLME(structural=oral1cpt, individual=individual, **SHORT).fit(theophylline(), lloq=1.5, **COLUMNS)


def test_ratios_and_intervals_of_lognormal_parameters(fitted):
    """(w / w_ref)^beta, exp(beta) of a category, and the interval of beta by Student's t carried over."""
    frame = covariate_effects(fitted).set_index(["parameter", "covariate", "value"])
    weights = theophylline().drop_duplicates("Id")["Weight"]
    light, heavy, middle = (*np.quantile(weights, [0.05, 0.95]), np.median(weights))
    assert list(frame.index) == [
        ("V", "Weight", light), ("V", "Weight", heavy), ("CL", "Sex", "m"), ("CL", "Weight", light), ("CL", "Weight", heavy)
    ]  # fmt: skip
    t = scipy.stats.t.ppf(0.95, degrees_of_freedom(fitted)[list(fitted.params_).index("CL")])
    for (name, column, value), row in frame.iterrows():  # type: ignore[misc]
        beta = f"beta_{name}[Sex[T.m]]" if column == "Sex" else f"beta_{name}[log(Weight / 70)]"
        move = 1.0 if column == "Sex" else np.log(value / middle)
        low, high = sorted(move * (fitted.params_[beta] + sign * t * fitted.stderr_[beta]) for sign in (-1, 1))
        np.testing.assert_allclose(row[["ratio", "low", "high"]].astype(float), np.exp([move * fitted.params_[beta], low, high]))
    assert frame["reference"].tolist() == [middle, middle, "f", middle, middle]


@pytest.mark.parametrize("one", [LogitNormal(0.4, low=0.1, high=3.0), Normal(2.0), LogNormal(2.0)])
def test_intervals_are_by_the_delta_method_on_any_scale(fitted, one):
    """Against numerical derivatives of the logarithm of the ratio in the natural parameters."""
    other = copy.copy(fitted)
    other.model_ = dataclasses.replace(
        fitted.model_,
        individual=tuple(
            (name, dataclasses.replace(one, covariates=d.covariates) if name == "CL" else d)
            for name, d in fitted.model_.individual
        ),
    )
    names = ["CL", "beta_CL[Sex[T.m]]", "beta_CL[log(Weight / 70)]"]
    other.params_ = fitted.params_ | dict(zip(names, [2.0, 0.1, 0.05], strict=True))
    found = covariate_effects(other, ["CL"], quantiles=(0.1, 0.9))
    covariance = fitted.cov_params().loc[names, names].to_numpy()

    def log_ratio(x, row):
        base = float(one.gaussian(x[0]))
        middle = np.log(float(found["reference"].iloc[1]) / 70)
        if row["covariate"] == "Sex":
            moved = base + x[1] + x[2] * middle
        else:
            moved = base + x[2] * np.log(row["value"] / 70)
        return np.log(float(one.values(moved)) / float(one.values(base + x[2] * middle)))

    t = scipy.stats.t.ppf(0.95, degrees_of_freedom(fitted)[list(fitted.params_).index("CL")])
    at = np.array([2.0, 0.1, 0.05])
    for _, row in found.iterrows():
        slopes = np.array([(log_ratio(at + h, row) - log_ratio(at - h, row)) / 2e-5 for h in 1e-5 * np.eye(3)])
        half = t * np.sqrt(slopes @ covariance @ slopes)
        exact = np.exp(log_ratio(at, row) + half * np.array([0, -1, 1]))
        np.testing.assert_allclose(row[["ratio", "low", "high"]].astype(float), exact, rtol=1e-5)


def test_another_reference(fitted):
    frame = covariate_effects(fitted, ["CL"], reference={"Weight": 80.0, "Sex": "m"}, quantiles=(0.0, 1.0), level=0.5)
    beta = fitted.params_["beta_CL[log(Weight / 70)]"]
    heaviest = theophylline()["Weight"].max()
    assert frame["ratio"].iloc[2] == pytest.approx((heaviest / 80) ** beta)
    assert frame[["covariate", "value", "reference"]].iloc[0].tolist() == ["Sex", "f", "m"]
    wide = covariate_effects(fitted, ["CL"], reference={"Weight": 80.0, "Sex": "m"}, quantiles=(0.0, 1.0))
    assert np.all(wide["high"] > frame["high"]) and np.all(wide["low"] < frame["low"])


def test_the_forest_shows_its_numbers(fitted):
    axis = fitted.plot.forest()
    frame = covariate_effects(fitted)
    points = axis.containers[0].lines[0]
    np.testing.assert_allclose(points.get_xdata(), frame["ratio"])
    assert points.get_ydata().tolist() == [4, 3, 2, 1, 0]
    np.testing.assert_allclose([s[:, 0] for s in axis.containers[0].lines[2][0].get_segments()], frame[["low", "high"]])
    assert [t.get_text() for t in axis.get_yticklabels()][2] == "CL: Sex = m (f)"
    band = axis.patches[0].get_extents().transformed(axis.transData.inverted())
    assert (band.x0, band.x1) == pytest.approx((0.8, 1.25))
    assert axis.texts[2].get_text() == f"{frame['ratio'][2]:.2f} [{frame['low'][2]:.2f}, {frame['high'][2]:.2f}]"


def test_what_has_no_forest_is_refused(fitted):
    bare = copy.copy(fitted)
    bare.model_ = dataclasses.replace(fitted.model_, individual=(("ka", LogNormal()), ("V", LogNormal()), ("CL", LogNormal())))
    for call, told in {
        lambda: covariate_effects(bare): "no parameter of this fit has covariates",
        lambda: covariate_effects(fitted, ["ka"]): "ka have no covariates in this fit; V, CL have",
        lambda: covariate_effects(fitted, reference={"Age": 3}): "reference names 'Age', which is no covariate",
        lambda: covariate_effects(fitted, reference={"Sex": "x"}): "Sex = 'x' is no value of the data",
        lambda: covariate_effects(fitted, reference={"Weight": "x"}): "Weight holds numbers",
        lambda: covariate_effects(fitted, quantiles=(0.9, 0.1)): "quantiles must be two increasing numbers",
        lambda: covariate_effects(fitted, level=1.5): "level must be between 0 and 1",
    }.items():
        with pytest.raises(ValueError, match=told):
            call()
    negative = copy.copy(fitted)
    individual = tuple(
        (name, Normal(covariates=one.covariates) if name == "CL" else one) for name, one in fitted.model_.individual
    )
    negative.model_ = dataclasses.replace(fitted.model_, individual=individual)
    negative.params_ = fitted.params_ | {"CL": -1.0}
    with pytest.raises(ValueError, match="ratios are of positive parameters"):
        covariate_effects(negative)


def test_goodness_of_fit_on_one_page(fitted):
    axes = fitted.plot.goodness(200)
    assert axes.shape == (2, 3)
    frame = fitted.residuals()
    below = (theophylline()["Concentration"] < 1.5).to_numpy()
    for row, (level, name) in enumerate([("population", "iwres"), ("individual", "npde")]):
        inside, limits = axes[row, 0].lines[:2]
        np.testing.assert_allclose(inside.get_xdata(), frame[level][~below])
        np.testing.assert_allclose(inside.get_ydata(), frame["Concentration"][~below])
        np.testing.assert_allclose(limits.get_ydata(), 1.5)
        assert len(limits.get_xdata()) == below.sum() > 0
        assert axes[row, 1].get_ylabel() == {"iwres": "IWRES", "npde": "npde"}[name]
    seen = frame["iwres"].dropna()
    np.testing.assert_allclose(axes[0, 1].lines[0].get_xdata(), frame["Time"][seen.index])
    np.testing.assert_allclose(axes[0, 1].lines[0].get_ydata(), seen)
    np.testing.assert_allclose(axes[0, 2].lines[0].get_xdata(), frame["individual"][seen.index])
    medians = axes[0, 1].lines[-1].get_ydata()
    assert len(medians) == 8 and np.max(np.abs(medians)) < 1.5
    assert axes[1, 2].get_xlabel() == "PRED: population prediction of Concentration"
    assert fitted.plot.goodness(200, log=True)[0, 0].get_xscale() == "log"


def test_goodness_of_what_is_not_continuous_is_refused(fitted):
    other = copy.copy(fitted)
    other.model_ = dataclasses.replace(fitted.model_, outcome=Poisson("V"))
    with pytest.raises(ValueError, match="are about continuous outcomes"):
        other.plot.goodness()


@pytest.mark.slow
def test_numbers_of_few_values_are_shown_by_value(fitted):
    individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(3.0, covariates="Site")}
    model = NLME(structural=oral1cpt, individual=individual, **SHORT).fit(theophylline(), **COLUMNS)
    frame = covariate_effects(model)
    assert frame[["value", "reference"]].to_numpy().tolist() == [[1, 0]]
    np.testing.assert_allclose(frame["ratio"].to_numpy(float), [np.exp(model.params_["beta_CL[Site]"])])
