"""Figures of Bayesian networks: what each shows, and what it refuses."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin

import margaux as mx
from margaux.families.variational.plots import BayesianPlots
from margaux.families.variational.scores import expected_calibration_error


@pytest.fixture(scope="module")
def classified():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=200) > 0, "yes", "no")
    return (
        mx.BayesianClassifier(temperature=1.0, epochs=80, step=0.01, verbose=False).fit(X, y, validation=(X[:50], y[:50])),
        X,
        y,
    )


@pytest.fixture(scope="module")
def regressed():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(150, 1))
    y = 5 + np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=150)
    return mx.BayesianRegressor(temperature=1.0, epochs=300, step=0.01, verbose=False).fit(X, y), X, y


def lines(axis) -> dict[Any, Any]:
    return {line.get_label(): line for line in axis.lines}


def test_elbo_is_the_history(classified, regressed):
    model, *_ = classified
    (axis,) = model.plot.elbo().figure.axes
    shown = lines(axis)
    np.testing.assert_array_equal(shown["fit"].get_data(), [model.history_["epoch"], -model.history_["elbo"]])
    np.testing.assert_array_equal(shown["held out"].get_ydata(), -model.history_["validation"].dropna())
    best = model.history_["validation"].idxmax()
    told = next(line for label, line in shown.items() if str(label).startswith("best held out"))
    assert told.get_xdata()[0] == model.history_["epoch"][best]
    (axis,) = regressed[0].plot.elbo().figure.axes
    assert set(lines(axis)) == {"fit"} and axis.get_legend() is None


@pytest.mark.parametrize(
    ("elbo", "scale"), [([-9.0, -3.0, -1.0], "log"), ([-9.0, -3.0, 0.5], "linear"), ([-3.0, -2.0], "linear")]
)
def test_the_axis_is_logarithmic_where_it_helps(classified, elbo, scale):
    class Told:
        history_ = pd.DataFrame({"epoch": np.arange(1, len(elbo) + 1), "elbo": elbo})

    (axis,) = BayesianPlots(Told()).elbo().figure.axes
    assert axis.get_yscale() == scale


def test_epochs_without_a_held_out_figure_are_passed_over():
    class Told:
        history_ = pd.DataFrame({"epoch": [1.0, 2.0, 3.0], "elbo": [-3.0, -2.0, -1.0], "validation": [np.nan, -2.5, np.nan]})

    (axis,) = BayesianPlots(Told()).elbo().figure.axes
    np.testing.assert_array_equal(lines(axis)["held out"].get_xdata(), [2.0])


def test_signal_to_noise_has_the_density_of_each_tensor_and_the_share_below(classified):
    model, *_ = classified
    ratios = model.signal_to_noise()
    top, bottom = model.plot.signal_to_noise()
    for patch, (name, sd) in zip(top.patches, model.stderr_.items(), strict=True):
        assert patch.get_label() == f"{name} ({sd.size:,})"
        heights, edges, _ = patch.get_data()
        own = np.abs(model.params_[name]) / sd
        inside = np.mean((own >= edges[0]) & (own <= edges[-1]))
        assert np.sum(heights * np.diff(np.log10(edges))) == pytest.approx(inside, abs=2 / sd.size)
    x, below = bottom.lines[0].get_data()
    # A ratio at the edge of a bin may fall either way.
    np.testing.assert_allclose(below, [100 * np.mean(ratios < at) for at in x], atol=100 / ratios.size)


def test_pruned_weights_count_in_the_share(classified):
    model, *_ = classified
    pruned = model.pruned(0.75)
    _, bottom = pruned.plot.signal_to_noise()
    zeros = 100 * np.mean(pruned.signal_to_noise() == 0)
    assert zeros == pytest.approx(75, abs=0.1) and f"{zeros:.3g}% of the weights are zero" in bottom.get_title()
    first, *_, last = bottom.lines[0].get_ydata()
    assert zeros <= first < zeros + 1 and last > 99.5


def test_many_tensors_are_joined(classified):
    class Many:
        stderr_ = {f"t{i}": np.ones(10 + i) for i in range(20)}

        def signal_to_noise(self):
            return np.random.default_rng(0).lognormal(size=sum(sd.size for sd in self.stderr_.values()))

    top, _ = BayesianPlots(Many()).signal_to_noise()
    assert [patch.get_label() for patch in top.patches] == [
        *(f"t{i} ({10 + i})" for i in range(14, 20)),
        "14 other tensors (231)",
    ]


def test_pruning_scores_the_pruned(classified, regressed):
    for (model, X, y), name in ((classified, "accuracy"), (regressed, "r2")):
        figure = model.plot.pruning(X, y, shares=(0.9, 0.0, 0.5), n_draws=10)
        upper, lower = (axis.lines[0] for axis in figure)
        assert upper.get_xdata().tolist() == [0.0, 50.0, 90.0]
        for k, share in enumerate((0.0, 0.5, 0.9)):
            scores = model.pruned(share).evaluate(X, y, 10)
            assert upper.get_ydata()[k] == scores[name] and lower.get_ydata()[k] == scores["log_score"]
    with pytest.raises(ValueError, match="share must be"):
        classified[0].plot.pruning(*classified[1:], shares=(1.0,))


def test_reliability_shows_accuracy_by_confidence(classified):
    model, X, y = classified
    figure = model.plot.reliability(X, y, bins=5)
    top, bottom = figure
    p = model.predict_proba(X)
    confidence, right = p.max(axis=1), model.classes_[p.argmax(axis=1)] == y
    at = np.minimum((5 * confidence).astype(int), 4)
    bins = np.unique(at)
    dots = next(container for container in top.containers if container.get_label() == "observed, 95% interval")
    np.testing.assert_allclose(dots[0].get_xydata(), [(confidence[at == b].mean(), right[at == b].mean()) for b in bins])
    assert [bar.get_height() for bar in bottom.patches] == np.bincount(at, minlength=5).tolist()
    # Wilson's interval of the last bin.
    n, k, z = np.sum(at == bins[-1]), np.sum(right[at == bins[-1]]), 1.959963984540054
    centre, half = (k + z**2 / 2) / (n + z**2), z / (n + z**2) * np.sqrt(k * (n - k) / n + z**2 / 4)
    ends = dots[2][0].get_segments()[-1][:, 1]
    np.testing.assert_allclose(sorted(ends), [centre - half, centre + half], rtol=1e-9)
    error = expected_calibration_error((y == model.classes_[1]).astype(int), p, 5)
    assert f"{error:.3f}" in top.get_title() and f"{right.mean():.3f}" in top.get_title()
    with pytest.raises(ValueError, match="none of the classes"):
        model.plot.reliability(X, np.where(y == "yes", "perhaps", y))
    with pytest.raises(TypeError, match="plot.reliability"):
        model.plot.predictions(X, y)


def test_one_column_has_a_curve_with_its_band(regressed):
    model, X, y = regressed
    (axis,) = model.plot.predictions(X, y).figure.axes
    x, centre = lines(axis)["predicted mean"].get_data()
    np.testing.assert_allclose(centre, model.predict(x[:, None], 100))
    band = axis.collections[0].get_paths()[0].vertices
    top = band[:, 1].max()
    assert top == pytest.approx(np.max(centre + 2 * model.predict_std(x[:, None], 100)))
    inside = np.abs(y - model.predict(X, 100)) <= 2 * model.predict_std(X, 100)
    assert f"{100 * inside.mean():.1f}% of 150 inside" in axis.get_title()
    points = np.concatenate([lines(axis)[name].get_xydata() for name in ("inside", "outside") if name in lines(axis)])
    np.testing.assert_array_equal(np.sort(points[:, 1]), np.sort(y))
    with pytest.raises(TypeError, match="plot.predictions"):
        model.plot.reliability(X, y)


def test_several_columns_have_bars_that_counts_keep_above_zero():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2100, 2))
    y = rng.poisson(np.exp(X[:, 0]))

    class Known(RegressorMixin, BaseEstimator):
        likelihood, _shape = "poisson", (2,)

        def predict(self, X, n_draws):
            return np.exp(X[:, 0])

        def predict_std(self, X, n_draws):
            return np.exp(X[:, 0] / 2)

    (axis,) = BayesianPlots(Known()).predictions(X, y).figure.axes
    bars: Any = axis.collections[0]
    ends = {centre: (low, high) for (centre, low), (_, high) in np.asarray(bars.get_segments())}
    assert len(ends) == 2000
    mean = np.exp(X[:, 0])
    for m in mean:
        if m in ends:
            assert ends[m] == pytest.approx((max(m - 2 * np.sqrt(m), 0), m + 2 * np.sqrt(m)))
    inside = np.abs(y - mean) <= 2 * np.sqrt(mean)
    assert f"{100 * inside.mean():.1f}% of 2100 inside" in axis.get_title()
    drawn = {name: set(lines(axis)[name].get_xydata()[:, 0]) for name in ("inside", "outside")}
    assert drawn["inside"] <= set(mean[inside]) and drawn["outside"] <= set(mean[~inside])
    assert len(drawn["inside"]) + len(drawn["outside"]) == 2000
