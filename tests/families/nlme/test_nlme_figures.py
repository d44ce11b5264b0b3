"""What the artists of mixed-effects figures show, against predictions, residuals and simulations worked out beside them."""

from typing import Any

import jax
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from scipy import stats

from margaux import NLME
from margaux.datasets import load_theophylline
from margaux.families.nlme import LogNormal, answers, prediction
from margaux.families.nlme.curves import predicted_rows
from margaux.families.nlme.plots import natural_trace
from margaux.families.nlme.residuals import residuals, standard_normal
from margaux.families.nlme.structural import oral1cpt
from margaux.families.nlme.vpc import Bands, binned, draw
from margaux.numerics.precision import precision

EFFECTS = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(3.0)}
DATA = load_theophylline()


@pytest.fixture(scope="module")
def fitted():
    frame = DATA.assign(Site=np.where(DATA["Id"] % 2 == 0, "north", "south"))
    model = NLME(structural=oral1cpt, individual=EFFECTS, n_iter=60, n_burn=40, n_starts=1, stop=False, verbose=False)
    return model.fit(frame, id="Id", time="Time", y="Concentration", dose="Dose")


@pytest.fixture(scope="module")
def effects(fitted):
    return answers.effects(fitted)


def labelled(axis: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axis.lines}


def sorted_points(*columns):
    """Pairs in an order of their own, where a figure's is free."""
    points = np.column_stack(columns)
    return points[np.lexsort(points.T)]


def same_histogram(axis, values, bins, density):
    expected, at = np.histogram(values, bins=bins, density=density)
    np.testing.assert_allclose([bar.get_height() for bar in axis.patches], expected)
    np.testing.assert_allclose([bar.get_x() for bar in axis.patches], at[:-1])


def test_convergence_draws_the_natural_trace_and_the_estimate(fitted):
    values, axes = natural_trace(fitted), fitted.plot.convergence()
    for j, (axis, name) in enumerate(zip(axes, fitted.params_, strict=True)):
        np.testing.assert_array_equal(axis.lines[0].get_xydata(), np.column_stack([np.arange(1, 61), values[:, 0, j]]))
        assert set(labelled(axis)["estimate"].get_ydata()) == {fitted.params_[name]}
        assert set(labelled(axis)["end of the burn-in"].get_xdata()) == {40}


def test_fits_draw_the_observations_of_each_subject_and_its_curves(fitted):
    drawn = {axis.get_title(): labelled(axis) for axis in fitted.plot.fits(subjects=[3, 7])}
    for subject in (3, 7):
        seen, shown = DATA[DATA["Id"] == subject], drawn[f"Id {subject}"]
        np.testing.assert_array_equal(shown["observed"].get_xydata(), seen[["Time", "Concentration"]])
        for level in ("population", "individual"):
            x, y = (np.asarray(a, float) for a in shown[level].get_data())
            rows = predicted_rows(fitted, level)[(DATA["Id"] == subject).to_numpy()]
            assert x[0] == seen["Time"].min() and x[-1] == seen["Time"].max()
            # The curve runs through the predictions at the observed times, to what a fine grid loses.
            np.testing.assert_allclose(np.interp(seen["Time"], x, y), rows, atol=0.02 * rows.max())
        assert np.abs(np.asarray(shown["population"].get_ydata()) - shown["individual"].get_ydata()).max() > 0.1


@pytest.mark.parametrize("log", [False, True])
def test_predictions_draw_observed_against_predicted(fitted, log):
    y = DATA["Concentration"].to_numpy()
    for axis, level in zip(fitted.plot.predictions(log), ("population", "individual"), strict=True):
        f = predicted_rows(fitted, level)
        kept = (y > 0) & (f > 0) if log else np.ones(len(y), bool)
        points, identity = axis.lines
        np.testing.assert_array_equal(points.get_xydata(), np.column_stack([f[kept], y[kept]]))
        ends = [min(f[kept].min(), y[kept].min()), max(f[kept].max(), y[kept].max())]
        np.testing.assert_array_equal(identity.get_xydata(), np.column_stack([ends, ends]))
        assert axis.get_xscale() == axis.get_yscale() == ("log" if log else "linear")


def test_residuals_are_drawn_against_time_prediction_and_the_normal(fitted):
    frame = residuals(fitted, 100)
    axes = fitted.plot.residuals(100)
    for row, (name, level) in zip(
        axes.reshape(3, 4), (("wres", "population"), ("iwres", "individual"), ("npde", "population")), strict=True
    ):
        values = frame[name].to_numpy(float)
        for axis, x in zip(row[:2], (frame["Time"], frame[level]), strict=True):
            np.testing.assert_array_equal(axis.lines[0].get_xydata(), np.column_stack([x, values]))
        seen = np.sort(values[np.isfinite(values)])
        same_histogram(row[2], seen, "fd", True)
        rank, n = np.arange(1, len(seen) + 1), len(seen)
        theory = stats.norm.ppf((rank - 0.5) / n)
        identity, dots = row[3].lines
        np.testing.assert_allclose(dots.get_xydata(), np.column_stack([theory, seen]))
        np.testing.assert_allclose(identity.get_xydata(), np.column_stack([theory, theory]))
        # An order statistic of n uniform numbers is a beta variable.
        vertices = row[3].collections[0].get_paths()[0].vertices
        ends = vertices[np.isclose(vertices[:, 0], theory[6]), 1]
        np.testing.assert_allclose([ends.min(), ends.max()], stats.norm.ppf(stats.beta.ppf([0.025, 0.975], 7, n - 6)))


def test_npde_name_their_tests_and_draw_their_percentiles(fitted):
    frame = residuals(fitted, 100)
    p = standard_normal(frame["npde"].to_numpy(float))["p"]
    axes = fitted.plot.npde(100)
    assert axes.figure.get_suptitle().startswith(f"npde: p = {p['mean']:.2g} (mean), {p['variance']:.2g} (variance)")
    for axis, column in zip(list(axes)[2:], ("Time", "population"), strict=True):
        dots = axis.lines[0]
        np.testing.assert_array_equal(dots.get_xydata(), frame[[column, "npde"]])
        codes, centres = binned(frame[column].to_numpy(float), 10)
        observed = labelled(axis)["observed"]
        np.testing.assert_allclose(observed.get_xdata(), centres)
        np.testing.assert_allclose(
            observed.get_ydata(), [np.quantile(frame["npde"][codes == b], 0.05) for b in range(len(centres))]
        )


def test_a_predictive_check_draws_observed_percentiles_over_those_of_simulations(fitted):
    (axis,) = fitted.plot.vpc(60, n_bins=4, level=0.8)
    time, y = DATA["Time"].to_numpy(float), DATA["Concentration"].to_numpy()
    with precision(fitted.result_.dtype):
        simulations = fitted.data_.flat(np.asarray(prediction.drawn(fitted, fitted.data_, 60, 0), float))
    codes, centres = binned(time, 4)
    black = [line for line in axis.lines if to_rgba(line.get_color()) == to_rgba("black")]
    for line, band, share in zip(black, axis.collections, (0.05, 0.5, 0.95), strict=True):
        np.testing.assert_allclose(line.get_xdata(), centres)
        np.testing.assert_allclose(line.get_ydata(), [np.quantile(y[codes == b], share) for b in range(4)])
        vertices = band.get_paths()[0].vertices
        for b, centre in enumerate(centres):
            own = np.quantile(simulations[:, codes == b], share, axis=1)
            ends = vertices[np.isclose(vertices[:, 0], centre), 1]
            np.testing.assert_allclose([ends.min(), ends.max()], np.quantile(own, [0.1, 0.9]))
    np.testing.assert_array_equal(axis.lines[0].get_xydata(), np.column_stack([time, y]))
    assert "80% bands of 60" in axis.figure.get_suptitle()
    north, south = fitted.plot.vpc(30, by="Site", log=True)
    for panel, rest in ((north, 0), (south, 1)):
        rows = (DATA["Id"] % 2 == rest).to_numpy()
        np.testing.assert_array_equal(panel.lines[0].get_xydata(), np.column_stack([time[rows], y[rows]]))
        assert panel.get_yscale() == "log"


def test_bands_are_drawn_where_they_lie():
    from matplotlib.figure import Figure

    x, one = np.array([1.0, 2.0, 4.0]), np.array([[0.0], [1.0], [2.0]])
    axis: Any = Figure().subplots()
    draw(axis, Bands(x, one + 0.1, one - 1, one, one + 2))
    shown = labelled(axis)
    np.testing.assert_array_equal(shown["observed"].get_xydata(), np.column_stack([x, one + 0.1]))
    np.testing.assert_array_equal(shown["simulated median"].get_xydata(), np.column_stack([x, one]))
    vertices = axis.collections[0].get_paths()[0].vertices
    assert {tuple(v) for v in vertices} == {(a, b) for a, (c,) in zip(x, one, strict=True) for b in (c - 1, c + 2)}


def test_effects_draw_the_modes_and_the_estimated_density(fitted, effects):
    shrinkage = fitted.shrinkage()
    for axis, name in zip(fitted.plot.effects(), EFFECTS, strict=True):
        same_histogram(axis, effects[name], 8, True)
        x, density = labelled(axis)["estimated density"].get_data()
        np.testing.assert_allclose(density, stats.norm.pdf(x, scale=np.sqrt(fitted.params_[f"omega2_{name}"])))
        assert axis.get_title() == f"{name} (shrinkage {100 * shrinkage[name]:.0f}%)"


def test_pairs_draw_the_modes_their_correlations_and_the_ellipse(fitted, effects):
    axes = fitted.plot.pairs().reshape(3, 3)
    with precision(fitted.result_.dtype):
        omega = np.asarray(fitted.model_.covariance(jax.tree.map(jax.numpy.asarray, fitted.result_.params)), float)
    names = list(EFFECTS)
    for i in range(3):
        for j in range(i):
            points, ellipse = axes[i, j].lines
            np.testing.assert_array_equal(points.get_xydata(), effects[[names[j], names[i]]])
            off = np.asarray(ellipse.get_xydata())
            block = omega[np.ix_([j, i], [j, i])]
            np.testing.assert_allclose(np.einsum("ki,ij,kj->k", off, np.linalg.inv(block), off), 5.991464547, rtol=1e-6)
            r = np.corrcoef(effects[names[j]], effects[names[i]])[0, 1]
            assert [text.get_text() for text in axes[j, i].texts] == [f"r = {r:.2f}"]
        same_histogram(axes[i, i], effects[names[i]], 8, False)


def test_covariates_draw_the_modes_by_number_and_by_category(fitted, effects):
    axes = fitted.plot.covariates(["Weight", "Site"]).reshape(3, 2)
    subjects = DATA.groupby("Id").first()
    for (numbers, boxes), name in zip(axes, EFFECTS, strict=True):
        dots = next(line for line in numbers.lines if len(line.get_xdata()) == 12 and line.get_marker() not in ("", "None"))
        np.testing.assert_array_equal(sorted_points(*dots.get_data()), sorted_points(subjects["Weight"], effects[name]))
        medians = {np.median(effects[name][(subjects.index % 2 == rest)]) for rest in (0, 1)}
        flat = {line.get_ydata()[0] for line in boxes.lines if len(set(line.get_ydata())) == 1}
        assert all(np.min(np.abs(np.array(sorted(flat)) - median)) < 1e-9 for median in medians)
        assert [text.get_text() for text in boxes.get_xticklabels()] == ["north", "south"]
