"""Figures of fits, of missing covariates, paths, inverse problems and reports: what their artists show, by their data."""

import types
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

import margaux as mx
from margaux.answers.plots import FitPlots
from margaux.families.empirical_bayes.plots import histograms
from margaux.families.inverse.plots import reconstruction, theta_trace
from margaux.families.missing.plots import MissingPlots
from margaux.families.sparse_mixed.plots import selection_path
from margaux.showing.forest import _panel

RNG = np.random.default_rng(0)
NAMES = ["b", "w[0]", "w[1]"]
TRACE = RNG.normal(size=(50, 2, 3))
SUMMARY = pd.DataFrame({"estimate": [0.5, -1.0, 2.0], "ci_low": [0.1, np.nan, 1.5], "ci_high": [0.9, np.nan, 2.5]}, index=NAMES)


def figures(kind: Any, fitted: Any) -> Any:
    """The figures of something that only looks like a fit."""
    return kind(fitted)


def drawn(figure: Any) -> Any:
    """What a figure's function returns, whose artists are of many types."""
    return figure


def lines(axis: Any) -> dict[str, Any]:
    """Lines by label, those without one by their place."""
    return {line.get_label(): line for line in axis.lines}


def intervals(axis: Any) -> tuple[Any, Any]:
    """Centres (n, 2) and ends (n, 2, 2) of the error bars on an axis."""
    (bars,) = [c for c in axis.containers if isinstance(c, ErrorbarContainer)]
    ends = np.array(bars[2][0].get_segments()) if bars[2] else None
    return np.asarray(bars[0].get_xydata()), ends


class Fit:
    """What figures ask of a fit."""

    names, trace, averaged_from = NAMES, {"params": TRACE}, 20
    params = {"b": np.array(0.5), "w": np.array([-1.0, 2.0])}

    def summary(self, level):
        return SUMMARY.assign(ci_high=SUMMARY["ci_high"] + level, ci_low=SUMMARY["ci_low"] - level)

    def latents(self):
        return LATENTS


LATENTS = {
    "mean": {"z": RNG.normal(size=(90, 8)), "s": RNG.normal(size=90)},
    "sd": {"z": RNG.uniform(1, 2, (90, 8)), "s": np.ones(90)},
}


# -- fits -------------------------------------------------------------------------------------------


def test_a_trace_shows_every_run_the_estimate_and_the_burn_in():
    axes = figures(FitPlots, Fit()).trace(truth={"w[0]": 7.0})
    assert [axis.get_title() for axis in axes] == NAMES
    for j, (axis, estimate) in enumerate(zip(axes, (0.5, -1.0, 2.0), strict=True)):
        for run in range(2):
            np.testing.assert_array_equal(axis.lines[run].get_xdata(), np.arange(1, 51))
            np.testing.assert_array_equal(axis.lines[run].get_ydata(), TRACE[:, run, j])
        shown = lines(axis)
        assert set(shown["estimate"].get_ydata()) == {estimate}
        assert set(shown["averaging starts"].get_xdata()) == {20}
        assert ("reference" in shown) == (j == 1)
    assert set(lines(axes[1])["reference"].get_ydata()) == {7.0}
    (axis,) = figures(FitPlots, Fit()).trace(["w[1]"])
    np.testing.assert_array_equal(axis.lines[1].get_ydata(), TRACE[:, 1, 2])


def test_long_traces_are_thinned_and_the_rest_is_said():
    long = Fit()
    long.trace, long.averaged_from = {"params": np.arange(9000.0)[:, None, None] * np.ones(3)}, 0
    axis = figures(FitPlots, long).trace()[0]
    np.testing.assert_array_equal(axis.lines[0].get_xydata(), np.column_stack([np.arange(1, 9001, 2), np.arange(0, 9000, 2)]))
    assert "averaging starts" not in lines(axis)
    with pytest.raises(ValueError, match='"c"; they are'):
        figures(FitPlots, long).trace(["c"])
    long.trace = {}
    with pytest.raises(ValueError, match="this fit has 3"):
        figures(FitPlots, long).trace()


def test_estimates_show_their_intervals():
    axes = figures(FitPlots, Fit()).estimates(level=0.5, truth={"b": 0.3})
    table = Fit().summary(0.5)
    for axis, (name, row) in zip(axes, table.iterrows(), strict=True):
        centre, ends = intervals(axis)
        assert axis.get_title() == name and centre.tolist() == [[row["estimate"], 0]]
        if np.isnan(row["ci_high"]):
            assert ends is None
        else:
            np.testing.assert_allclose(ends[0], [[2 * row["estimate"] - row["ci_high"], 0], [row["ci_high"], 0]])
    assert set(lines(axes[0])["reference"].get_xdata()) == {0.3} and "reference" not in lines(axes[1])
    assert axes.figure.get_suptitle() == "Estimates with 50% intervals"


def test_latents_are_sorted_with_a_standard_deviation_either_way():
    axes = figures(FitPlots, Fit()).latents(most=30)
    mean = np.column_stack([LATENTS["mean"]["s"], LATENTS["mean"]["z"][:, :6]])
    sd = np.column_stack([LATENTS["sd"]["s"], LATENTS["sd"]["z"][:, :6]])
    assert len(axes) == 6
    for j, axis in enumerate(axes):
        centre, ends = intervals(axis)
        assert len(centre) == 30 and np.all(np.diff(centre[:, 1]) >= 0)
        assert centre[0, 1] == mean[:, j].min() and centre[-1, 1] == mean[:, j].max()
        unit = [np.flatnonzero(mean[:, j] == y)[0] for y in centre[:, 1]]
        np.testing.assert_allclose(ends[:, :, 1], np.column_stack([centre[:, 1] - sd[unit, j], centre[:, 1] + sd[unit, j]]))


def test_a_profile_shows_points_errors_and_the_quadratic():
    grid = np.array([0.0, 1.0, 2.0, 4.0])
    frame = pd.DataFrame({"loglik": -((grid - 1.5) ** 2), "mc_error": [0.1, 0.2, 0.3, 0.4]}, index=pd.Index(grid, name="tau"))
    frame.attrs |= {"quadratic": np.array([-1.0, 3.0, -2.25]), "maximiser": 1.5}
    axis = figures(FitPlots, Fit()).profile(frame, truth=1.2)
    centre, ends = intervals(axis)
    np.testing.assert_array_equal(centre, np.column_stack([grid, frame["loglik"]]))
    np.testing.assert_allclose(ends[:, 1, 1] - ends[:, 0, 1], 4 * frame["mc_error"])
    x, y = lines(axis)["quadratic fit"].get_data()
    np.testing.assert_allclose(y, -((np.asarray(x) - 1.5) ** 2), atol=1e-12)
    assert (x[0], x[-1]) == (0.0, 4.0) and set(lines(axis)["maximiser 1.5"].get_xdata()) == {1.5}
    assert set(lines(axis)["reference"].get_xdata()) == {1.2} and axis.get_xlabel() == "tau"


# -- missing covariates -----------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 2])
def test_coefficients_are_in_standard_deviations_of_their_columns(classes):
    x = np.array([[1.0, 10.0], [3.0, np.nan], [np.nan, 30.0], [5.0, 50.0]])
    names = [f"{k}{name}" for k in "ab"[:classes] for name in ("1", "x", "y")]
    estimate = np.arange(1.0, 1 + 3 * classes)
    table = pd.DataFrame({"estimate": estimate, "ci_high": estimate + 0.1 * np.arange(3 * classes)}, index=names)
    if classes == 2:
        table.loc["by", "ci_high"] = np.nan
    fitted = types.SimpleNamespace(summary=lambda level: table, table_=types.SimpleNamespace(x=x))
    axis = figures(MissingPlots, fitted).coefficients(0.9)
    widths = np.array([np.std([1, 3, 5]), np.std([10, 30, 50])])
    centre, ends = intervals(axis)
    slopes = table.drop([name for name in names if name.endswith("1")])
    scale = np.tile(widths, classes)
    np.testing.assert_allclose(centre[:, 0], slopes["estimate"] * scale)
    half = np.nan_to_num((slopes["ci_high"] - slopes["estimate"]) * scale)
    np.testing.assert_allclose(ends[:, 1, 0] - centre[:, 0], half)
    labels = dict(zip(axis.get_yticks(), [text.get_text() for text in axis.get_yticklabels()], strict=True))
    assert [labels[y] for y in centre[:, 1]] == list(slopes.index) and np.all(np.diff(centre[:, 1]) < 0)
    assert "90% interval" in axis.get_xlabel()


def test_missingness_shows_shares_and_patterns_by_their_frequency():
    holes = np.array([[0, 0, 0]] * 5 + [[0, 1, 0]] * 3 + [[1, 1, 0]] * 2, float)
    table = types.SimpleNamespace(x=np.where(holes > 0, np.nan, 1.0), names=["a", "b", "c"])
    top, bottom = figures(MissingPlots, types.SimpleNamespace(table_=table)).missingness(n_patterns=2)
    np.testing.assert_allclose([bar.get_height() for bar in top.patches], [20, 50, 0])
    np.testing.assert_array_equal(bottom.images[0].get_array(), [[0, 0, 0], [0, 1, 0]])
    assert [text.get_text() for text in bottom.get_yticklabels()] == ["5", "3"]
    assert [text.get_text() for text in bottom.get_xticklabels()] == ["a", "b", "c"]
    assert bottom.get_ylabel() == "rows (2 of 3 patterns)"


# -- the rest ---------------------------------------------------------------------------------------


def test_a_path_shows_the_coefficients_that_are_ever_selected():
    weights = np.array([4.0, 2.0, 1.0])
    beta = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.5, 0.0, -0.5]])
    frame = pd.DataFrame(beta, index=weights, columns=NAMES).assign(n_selected=[0, 1, 2], sigma=[1.0, 0.9, 0.8])
    top, bottom = drawn(selection_path)(frame, NAMES, truth=[1, 0, 0])
    shown = {tuple(line.get_ydata()): line.get_color() for line in top.lines}
    assert shown == {(0.0, 1.0, 1.5): "tab:red", (0.0, 0.0, -0.5): "0.75"}
    assert all(list(line.get_xdata()) == [4.0, 2.0, 1.0] for line in top.lines)
    assert {note.get_text(): note.xy for note in top.texts} == {"b": (1.0, 1.5), "w[1]": (1.0, -0.5)}
    assert list(bottom.lines[0].get_ydata()) == [0, 1, 2] and bottom.get_xscale() == "log"
    (other,) = [axis for axis in bottom.figure.axes if axis.get_ylabel() == "sigma"]
    np.testing.assert_array_equal(other.lines[0].get_xydata(), np.column_stack([weights, frame["sigma"]]))
    assert {line.get_color() for line in drawn(selection_path)(frame, NAMES, labels=0)[0].lines} == {"tab:blue"}


def test_histograms_are_densities_with_mean_and_interval():
    draws = RNG.gamma(2.0, size=(500, 3))
    axes = drawn(histograms)(draws, NAMES, at_most=2)
    assert [axis.get_title() for axis in axes] == NAMES[:2]
    for j, axis in enumerate(axes):
        heights = np.array([bar.get_height() for bar in axis.patches])
        edges = np.array([bar.get_x() for bar in axis.patches])
        expected, at = np.histogram(draws[:, j], bins=40, density=True)
        np.testing.assert_allclose(heights, expected)
        np.testing.assert_allclose(edges, at[:-1])
        marks = [line.get_xdata()[0] for line in axis.lines]
        np.testing.assert_allclose(marks, [draws[:, j].mean(), *np.quantile(draws[:, j], [0.025, 0.975])])


@pytest.mark.parametrize("burn_in", [0, 10])
def test_theta_has_its_running_average(burn_in):
    theta = np.exp(RNG.normal(size=30))
    step = mx.Polynomial(1.0, 0.5)
    fit = types.SimpleNamespace(averaged_from=burn_in, dtype=np.dtype(float),
                                algorithm=types.SimpleNamespace(average=mx.StepWeighted(step, burn_in)))  # fmt: skip
    axis = drawn(theta_trace)(types.SimpleNamespace(trace=lambda: theta, result_=fit, theta_=1.7))
    n = np.arange(1, 31)
    shown = lines(axis)
    np.testing.assert_array_equal(shown["iterates"].get_xydata(), np.column_stack([n, theta]))
    w = n[burn_in:] ** -0.5
    running = np.exp(np.cumsum(w * np.log(theta[burn_in:])) / np.cumsum(w))
    np.testing.assert_allclose(shown["running average"].get_xydata(), np.column_stack([n[burn_in:], running]))
    assert set(shown["estimate 1.7"].get_ydata()) == {1.7} and axis.get_yscale() == "log"
    assert ("averaging starts" in shown) == (burn_in > 0)


def test_reconstructions_show_images_or_entries():
    image, data = RNG.normal(size=(4, 5)), RNG.normal(size=(4, 5))
    axes = drawn(reconstruction)(types.SimpleNamespace(x_=image, y_=data), truth=image + 1)
    assert [axis.get_title() for axis in axes] == ["data", "maximum a posteriori", "truth"]
    for axis, expected in zip(axes, (data, image, image + 1), strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), expected)
        assert axis.images[0].get_clim() == (image.min(), image.max())
    x, y, fitted = RNG.normal(size=3), RNG.normal(size=6), RNG.normal(size=6)
    left, right = drawn(reconstruction)(types.SimpleNamespace(x_=x, y_=y, predict=lambda: fitted), truth=x + 1)
    np.testing.assert_array_equal(left.lines[0].get_xydata(), np.column_stack([y, fitted]))
    np.testing.assert_array_equal(lines(right)["truth"].get_ydata(), x + 1)
    np.testing.assert_array_equal(lines(right)["maximum a posteriori"].get_ydata(), x)


def test_a_forest_draws_intervals_and_hollow_points_without():
    axis: Any = Figure().subplots()
    _panel(axis, SUMMARY, 0.0)
    (bars,) = [c for c in axis.collections]
    np.testing.assert_allclose(bars.get_segments(), [[[0.1, 2], [0.9, 2]], [[1.5, 0], [2.5, 0]]])
    full, hollow = [line for line in axis.lines if line.get_marker() == "o"]
    np.testing.assert_array_equal(full.get_xydata(), [[0.5, 2], [2.0, 0]])
    np.testing.assert_array_equal(hollow.get_xydata(), [[-1.0, 1]])
    assert hollow.get_markerfacecolor() == "none"
    assert [text.get_text() for text in axis.get_yticklabels()] == NAMES
    assert any(set(line.get_xdata()) == {0.0} for line in axis.lines)
    far: Any = Figure().subplots()
    _panel(far, SUMMARY + 100, 0.0)
    assert not any(set(line.get_xdata()) == {0.0} for line in far.lines)
