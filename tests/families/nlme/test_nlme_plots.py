"""Residuals, npde and figures of nonlinear mixed-effects fits: their numbers, and what each figure shows."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

from margaux import NLME
from margaux.datasets import load_theophylline
from margaux.families.nlme import (
    Bernoulli,
    Combined,
    ConstantError,
    Exponential,
    LogNormal,
    Normal,
    Ordinal,
    Poisson,
    WeibullSurvival,
)
from margaux.families.nlme.curves import fine_curves, predicted_rows
from margaux.families.nlme.outcomes import Continuous
from margaux.families.nlme.plots import natural_trace
from margaux.families.nlme.residuals import iwres, npde, residuals
from margaux.families.nlme.structural import oral1cpt
from margaux.families.nlme.vpc import binned, kaplan_meier

SHORT = {"n_iter": 60, "n_burn": 40, "n_starts": 1, "stop": False, "polish": False, "verbose": False}
EFFECTS = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(3.0)}
COLUMNS: dict[str, Any] = {"id": "Id", "time": "Time", "y": "Concentration", "dose": "Dose"}


@pytest.fixture(scope="module")
def fitted():
    frame = load_theophylline()
    frame["Hour"] = frame["Time"]
    frame["Site"] = np.where(frame["Id"] % 2 == 0, "north", "south")
    return NLME(structural=oral1cpt, individual=EFFECTS, **(SHORT | {"n_iter": 150})).fit(frame, **COLUMNS)  # type: ignore


def test_residuals_of_a_fit_are_in_the_order_of_the_data(fitted):
    frame = residuals(fitted, 200)
    data = load_theophylline()
    np.testing.assert_array_equal(frame["Concentration"], data["Concentration"])
    np.testing.assert_allclose(frame["iwres"], (data["Concentration"] - frame["individual"]) / fitted.params_["a"], rtol=1e-9)
    np.testing.assert_allclose(frame["mean"], frame["population"], rtol=0.35)
    found = npde(fitted, 200)
    assert npde(fitted, 200) is found
    assert list(found.test().index) == ["mean", "variance", "normality", "global"]
    assert found.frame["pde"].between(1 / 400, 1 - 1 / 400).all()


def with_outcome(fitted, outcome, **params):
    """The same fit of another outcome, its parameters as they are or as given."""
    other = copy.copy(fitted)
    other.model_ = dataclasses.replace(fitted.model_, outcome=outcome)
    other.result_ = dataclasses.replace(fitted.result_, params=fitted.result_.params | params)
    return other


@pytest.mark.slow
def test_individual_residuals_know_the_error_model(fitted):
    y = load_theophylline()["Concentration"].to_numpy()
    model = with_outcome(fitted, Continuous(oral1cpt, Exponential()), error=np.array([0.2]))
    np.testing.assert_allclose(iwres(model), np.log(y / predicted_rows(model, "individual")) / 0.2, rtol=1e-9)
    model = with_outcome(fitted, Continuous(oral1cpt, Combined(1)), error=np.array([0.3, 0.1]))
    f = predicted_rows(model, "individual")
    np.testing.assert_allclose(iwres(model), (y - f) / (0.3 + 0.1 * f), rtol=1e-9)


def test_convergence_ends_at_the_last_iterate_and_marks_the_burn_in(fitted):
    figure = fitted.plot.convergence().figure
    assert [axis.get_title() for axis in figure.axes if axis.get_title()] == list(fitted.params_)
    assert any(line.get_label() == "end of the burn-in" and line.get_xdata()[0] == 40 for line in figure.axes[0].lines)
    values = natural_trace(fitted)
    assert values.shape == (150, 1, 7)
    last = [np.exp(b) for b in fitted.result_.last_params["beta"]]
    np.testing.assert_allclose(values[-1, 0, :3], last, rtol=1e-6)
    assert len(fitted.plot.convergence(["ka"]).figure.axes) == 1
    with pytest.raises(ValueError, match='"kb"'):
        fitted.plot.convergence(["kb"])


@pytest.mark.slow
def test_convergence_of_vanishing_variances_shows_the_parameters_asked_for():
    effects = {"ka": LogNormal(1.5, random=False), "V": LogNormal(30.0), "CL": LogNormal(3.0)}
    model = NLME(structural=oral1cpt, individual=effects, fixed_effects="exponentialised", **SHORT)
    model.fit(load_theophylline(), **COLUMNS)
    values = natural_trace(model)
    assert values.shape == (60, 1, len(model.params_))
    np.testing.assert_allclose(values[-1, 0], list(model.params_.values()), rtol=0.3)
    model.plot.convergence()
    # The answers of the engine are about the same parameters as the estimates, in the same order.
    fit = model.result_
    np.testing.assert_allclose(fit.trace["params"][-1, 0], [x for _, v in sorted(fit.last_params.items()) for x in np.ravel(v)])
    assert fit.trace["params"].shape[-1] == len(fit.names) and "gradient" in fit.diagnostics().index


def test_individual_fits_show_observations_and_both_curves(fitted):
    figure = fitted.plot.fits(page=2, n=5).figure
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in panels] == [f"Id {i}" for i in (6, 7, 8, 9, 10)]
    assert all([len(line.get_xdata()) for line in axis.lines] == [120, 120, 10] for axis in panels)
    curves = fine_curves(fitted, [3])
    at, p = curves["Time"].to_numpy(), fitted.params_
    dose = fitted.data_.subjects.set_index("Id")["Dose"][3]
    expected = [float(oral1cpt({k: p[k] for k in EFFECTS}, {"time": t, "dose": dose})) for t in at[::30]]
    np.testing.assert_allclose(curves["population"][::30], expected, rtol=1e-4)
    assert len([axis for axis in fitted.plot.fits(subjects=[2, 9]).figure.axes if axis.get_title()]) == 2


@pytest.mark.parametrize(
    "function, points",
    [
        (lambda p, row: oral1cpt(p, row), 240),
        (lambda p, row: oral1cpt(p, {**row, "time": row["Hour"]}), 20),
        (lambda p, row: oral1cpt(p, row) + 0 * row["y"], 20),
    ],
)
def test_curves_go_through_the_rows_where_a_column_varies_within_subjects(fitted, function, points):
    curves = fine_curves(with_outcome(fitted, Continuous(function, ConstantError())), [1, 2])
    assert len(curves) == points
    if points == 20:
        rows = load_theophylline()["Id"].isin([1, 2]).to_numpy()
        np.testing.assert_allclose(curves["individual"], predicted_rows(fitted, "individual")[rows], rtol=1e-6)


def test_figures_of_a_continuous_outcome(fitted, tmp_path):
    plot = fitted.plot
    left, right = plot.predictions().figure.axes
    assert left.get_xlabel() == "population prediction of Concentration" and right.lines[1].get_label() == "identity"
    assert len(plot.residuals(200).figure.axes) == 12
    figure = plot.npde(200).figure
    assert len(figure.axes) == 4 and "(global)" in figure.get_suptitle()
    figure = plot.vpc(100).figure
    (axis,) = figure.axes
    assert len(axis.collections) == 3 and axis.get_xlabel() == "Time"
    assert [axis.get_title() for axis in plot.vpc(100, by="Site", log=True).figure.axes] == ["Site = north", "Site = south"]
    assert [axis.get_title() for axis in plot.vpc(100, by="Weight", n_bins=3).figure.axes] == ["Weight <= 70.5", "Weight > 70.5"]
    assert [axis.get_title()[: axis.get_title().index(" (")] for axis in plot.effects().figure.axes] == ["ka", "V", "CL"]
    assert len(plot.pairs().figure.axes) == 9
    figure = plot.covariates().figure
    assert [axis.get_xlabel() for axis in figure.axes[6:]] == ["Dose", "Weight", "Site"]
    for one in (figure, plot.predictions(log=True).figure):
        one.savefig(tmp_path / "figure.png")


def test_plots_say_how_to_mend_a_bad_request(fitted):
    plot = fitted.plot
    for call, words in {
        lambda: plot.fits(page=4, n=5): "page must be between 1 and 3",
        lambda: plot.fits(n=0): "n must be at least 1",
        lambda: plot.fits(subjects=["nobody"]): "no subject is called 'nobody'",
        lambda: plot.vpc(by="Height"): "by='Height' is no column of the data; they are Id",
        lambda: plot.vpc(by="Time"): "Time varies within a subject",
        lambda: plot.vpc(n_simulations=3): "at least 20",
        lambda: plot.vpc(level=1.5): "between 0 and 1",
        lambda: plot.vpc(n_bins=0): "n_bins",
        lambda: plot.covariates(["Height"]): "'Height' is no column of the data",
        lambda: plot.covariates(["Time"]): "Time varies within a subject",
    }.items():
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.slow
def test_binary_outcome_shows_proportions(data_folder):
    frame = pd.read_csv(data_folder / "saemix_toenail.csv")
    model = NLME(log_likelihood=Bernoulli(lambda p, row: p["a"] + p["b"] * row["time"]), **SHORT,
                 individual={"a": Normal(-1.5), "b": Normal(-0.4, random=False)})  # fmt: skip
    model.fit(frame, id="id", time="time", y="y")
    left, right = model.plot.vpc(100, by="treatment").figure.axes
    assert left.get_ylabel() == "proportion of y = 1" and right.get_title() == "treatment = 1"
    observed = next(line for line in left.lines if line.get_label() == "observed")
    control = frame[frame["treatment"] == 0]
    codes, centres = binned(np.asarray(control["time"], float), 7)
    np.testing.assert_allclose(observed.get_xdata(), centres)
    np.testing.assert_allclose(observed.get_ydata(), [control["y"][codes == b].mean() for b in range(len(centres))])
    assert len(model.plot.fits().figure.axes) == 12
    for name in ("residuals", "npde", "predictions"):
        with pytest.raises(ValueError, match=r"Bernoulli; look at\s+plot.vpc"):
            getattr(model.plot, name)()
    with pytest.raises(ValueError, match="has no pairs"):
        model.plot.pairs()
    with pytest.raises(ValueError, match="npde are about continuous outcomes"):
        npde(model)


def test_counts_show_percentiles_mean_and_zeros(data_folder):
    frame = pd.read_csv(data_folder / "saemix_rapi.csv").query("id <= 60")
    model = NLME(log_likelihood=Poisson(lambda p, row: p["a"] + p["b"] * row["time"]), **SHORT,
                 individual={"a": Normal(1.5), "b": Normal(0.0)})  # fmt: skip
    model.fit(frame, id="id", time="time", y="rapi")
    labels = [axis.get_ylabel() for axis in model.plot.vpc(60).figure.axes]
    assert labels == ["rapi (5th, 50th, 95th percentile)", "mean rapi", "proportion of rapi = 0"]
    boxes = model.plot.covariates().figure.axes
    assert [text.get_text() for text in boxes[0].get_xticklabels()] == ["Men", "Women"]
    with pytest.raises(ValueError, match="Poisson"):
        model.plot.residuals()


@pytest.mark.slow
def test_categories_show_their_proportions():
    rng = np.random.default_rng(0)
    n, visits = 60, np.arange(4.0)
    latent = 1.5 * rng.normal(size=(n, 1)) - 0.5 * visits + rng.logistic(size=(n, 4))
    y = 1 + (latent > -1).astype(int) + (latent > 1)
    frame = pd.DataFrame({"id": np.repeat(np.arange(n), 4), "time": np.tile(visits, n), "y": y.ravel()})
    outcome = Ordinal(lambda p, row: p["b"] * row["time"], thresholds=("a1", "a2"))
    individual = {"a1": Normal(-1.0), "a2": LogNormal(2.0, random=False), "b": Normal(0.5, random=False)}
    model = NLME(log_likelihood=outcome, individual=individual, **(SHORT | {"n_iter": 150}))  # type: ignore
    axes = [axis for axis in model.fit(frame, y="y", time="time").plot.vpc(200).figure.axes if axis.get_ylabel()]
    assert [axis.get_ylabel() for axis in axes] == [f"proportion of y = {k}" for k in (1, 2, 3)]
    inside = []
    for axis in axes:
        lines = {line.get_label(): np.asarray(line.get_ydata()) for line in axis.lines}
        vertices = axis.collections[0].get_paths()[0].vertices
        low, high = vertices[:, 1].min(), vertices[:, 1].max()
        inside += list((low <= lines["observed"]) & (lines["observed"] <= high))
    assert np.mean(inside) >= 0.75


@pytest.mark.slow
def test_times_to_events_show_kaplan_meier_curves(data_folder):
    frame = pd.read_csv(data_folder / "saemix_lung.csv")
    model = NLME(log_likelihood=WeibullSurvival(), **SHORT,
                 individual={"lambda": LogNormal(400.0), "beta": LogNormal(1.5, random=False)})  # fmt: skip
    model.fit(frame, id="id", time="time", y="status")
    (axis,) = model.plot.vpc(100).figure.axes
    lines = {line.get_label(): line for line in axis.lines}
    assert {"observed", "censored", "simulated median"} <= set(lines)
    events = frame[frame["time"] > 0]
    expected = kaplan_meier(np.asarray(events["time"], float), np.asarray(events["status"]), np.array([1022.0]))
    assert np.asarray(lines["observed"].get_ydata())[-1] == pytest.approx(expected[0])
    assert [axis.get_title() for axis in model.plot.vpc(50, by="sex").figure.axes] == ["sex = 0", "sex = 1"]
    with pytest.raises(ValueError, match="no curve through observations"):
        model.plot.fits()
