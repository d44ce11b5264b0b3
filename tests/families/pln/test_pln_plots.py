"""Figures of `PLNPCA`: what each shows, and arguments that it refuses."""

import itertools
import types

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import EllipseCollection, LineCollection, PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Ellipse
from matplotlib.quiver import Quiver
from matplotlib.text import Annotation

import margaux as mx
from margaux.families.pln.plots import PLNPlots, rank_selection
from margaux.showing.planes import PALETTE

N, P, Q = 60, 14, 3
#: of a chi-square of two degrees of freedom
QUANTILE_95 = 5.991464547107979


@pytest.fixture(scope="module")
def fitted():
    """Units with names, two of them without counts; one feature is absent from the south."""
    rng = np.random.default_rng(0)
    south = np.arange(N) % 3 == 0
    eta = rng.normal(1.5, 0.5, P) + south[:, None] * rng.normal(0, 0.5, P)
    counts = rng.poisson(np.exp(eta + rng.normal(size=(N, Q)) @ rng.normal(0, 0.7, (Q, P))))
    counts[:, 4] *= ~south
    counts[[7, 20]] = 0
    frame = pd.DataFrame(counts, index=[f"plot {i}" for i in range(N)], columns=[f"oak {j}" for j in range(P)])
    covariates = pd.DataFrame({"south": south.astype(float), "depth": rng.normal(size=N)}, index=frame.index)
    with pytest.warns(UserWarning, match="left out|no finite estimate"):
        return mx.PLNPCA(rank=Q, n_starts=4, method="variational", verbose=False).fit(frame, covariates=covariates, offsets="TSS")


@pytest.fixture(scope="module")
def plots(fitted):
    return PLNPlots(fitted)


@pytest.fixture(scope="module")
def refined(fitted):
    epoch = np.arange(5)
    frame = {"epoch": epoch, "loglik": -900 - 2.0**-epoch, "error": 0.1, "gradient_norm": 9 / (1 + epoch), "gradient_error": 0.5}

    class Refined:
        refinement_ = pd.DataFrame(frame)

        def __getattr__(self, name):
            return getattr(fitted, name)

    return Refined()


@pytest.fixture(scope="module")
def choice():
    rank = pd.RangeIndex(1, 7, name="rank")
    loglik = -1000.0 - 40 * np.maximum(3 - rank, 0) ** 2
    aic, bic, icl = 3000 - np.arange(6.0), 2000 + 4 * (np.arange(6.0) - 2) ** 2, 2100 + np.arange(6.0)
    table = {"elbo": loglik - 1, "loglik": loglik, "error": 2.0, "aic": aic, "bic": bic, "icl": icl}
    return types.SimpleNamespace(table=pd.DataFrame(table, index=rank))


def kinds(n):
    return np.array([f"kind {i % 3}" for i in range(n)])


def of(axis, kind):
    return [artist for artist in axis.get_children() if type(artist) is kind]


def points(axis):
    """Places of points by label."""
    return {c.get_label(): np.asarray(c.get_offsets()) for c in of(axis, PathCollection)}


def notes(axis):
    return {note.get_text(): note for note in of(axis, Annotation)}


def texts(axis):
    """Texts that an axis shows: its own, titles, labels, the legend, and the labels of ticks within its limits."""
    for way in (axis.xaxis, axis.yaxis):
        low, high = sorted(way.get_view_interval())
        ticks = zip(way.get_majorticklocs(), way.get_ticklabels(), strict=True)
        yield from (text for place, text in ticks if low <= place <= high and way.get_visible())
        yield way.label
    yield from (axis.title, *axis.texts)
    if axis.get_legend() is not None:
        yield from (axis.get_legend().get_title(), *axis.get_legend().get_texts())
    for child in axis.child_axes:
        yield from texts(child)


def overlapping(figure):
    """Pairs of texts that cover each other, and texts that leave the figure."""
    figure.draw_without_rendering()
    shown = [text for axis in figure.axes for text in texts(axis) if text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.5)) for text in shown]
    room = figure.bbox
    out = [name for name, box in boxes if min(box.x0, box.y0, room.x1 - box.x1, room.y1 - box.y1) < -1]
    return out + [(a, b) for (a, one), (b, two) in itertools.combinations(boxes, 2) if one.overlaps(two)]


def test_texts_that_overlap_are_noticed():
    figure = Figure(figsize=(3, 1), layout="constrained")
    axis = figure.subplots()
    axis.set_yticks([0, 1], ["a", "b"])
    assert overlapping(figure) == []
    axis.set_yticks(np.arange(30), np.arange(30))
    assert ("3", "4") in overlapping(figure)
    axis.set_xlabel("a label that is wider than the whole of this figure, which is small")
    assert axis.get_xlabel() in overlapping(figure)


def test_scores_are_points_by_colour_with_their_ellipses(fitted, plots):
    color = pd.Series(kinds(N - 2), name="forest")
    color[color == "kind 2"] = "kind 1"
    color.iloc[[0, 1]] = "rare"
    figure = plots.scores(axes=(2, 0), color=color).figure
    (axis,) = figure.axes
    shown = points(axis)
    assert set(shown) == {"kind 0", "kind 1", "rare"}
    for kind, places in shown.items():
        np.testing.assert_array_equal(places, fitted.scores_[color == kind][:, [2, 0]])
    legend = axis.get_legend()
    assert legend.get_title().get_text() == "forest" and {t.get_text() for t in legend.get_texts()} == set(shown)
    share = 100 * fitted.explained_variance_ratio_
    assert axis.get_xlabel() == f"component 3 ({share[2]:.1f}% of the variance)" and f"1 ({share[0]:.1f}%" in axis.get_ylabel()
    ellipses = of(axis, Ellipse)
    # Two points have no ellipse.
    assert len(ellipses) == 2
    for k, (kind, ellipse) in enumerate(zip(("kind 0", "kind 1"), ellipses, strict=True)):
        off = ellipse.get_patch_transform().transform([(1.0, 0.0), (0.0, 1.0), (-0.6, 0.8)]) - shown[kind].mean(axis=0)
        distance = np.einsum("ai,ij,aj->a", off, np.linalg.inv(np.cov(shown[kind].T)), off)
        np.testing.assert_allclose(distance, QUANTILE_95, rtol=1e-9)
        assert ellipse.get_edgecolor() == to_rgba(PALETTE[k])
    assert not overlapping(figure)
    assert not of(plots.scores(color=color, ellipses=False).figure.axes[0], Ellipse)


def test_numbers_have_a_colour_bar_and_series_find_their_units(fitted, plots):
    units = [f"plot {i}" for i in range(N)]
    depth = pd.Series(np.linspace(-1, 1, N), index=units, name="depth")
    depth["plot 3"] = np.nan
    figure = plots.scores(color=depth.sample(frac=1, random_state=0)).figure
    axis, bar = figure.axes
    missing, drawn = of(axis, PathCollection)
    assert bar.get_ylabel() == "depth" and missing.get_label() == "missing"
    expected = depth.loc[fitted.table_.units].to_numpy()
    np.testing.assert_array_equal(drawn.get_array(), expected[~np.isnan(expected)])
    np.testing.assert_array_equal(missing.get_offsets(), fitted.scores_[np.isnan(expected)][:, :2])
    # An array of all the units given, two of which had no counts; and a covariate of the fit.
    whole = plots.scores(color=depth.to_numpy()).figure.axes[0]
    np.testing.assert_array_equal(of(whole, PathCollection)[1].get_array(), drawn.get_array())
    assert set(points(plots.scores(color="south").figure.axes[0])) == {"0", "1"}
    np.testing.assert_array_equal(points(plots.scores().figure.axes[0])["_child0"], fitted.scores_[:, :2])


def test_ellipses_of_units_are_their_posteriors(fitted, plots):
    axis = plots.scores(axes=(0, 2), uncertainty=True, level=0.5).figure.axes[0]
    (drawn,) = of(axis, EllipseCollection)
    np.testing.assert_array_equal(drawn.get_offsets(), fitted.scores_[:, [0, 2]])
    angle = np.radians(drawn.get_angles())
    along = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    covariance = fitted.scores_covariance_[:, [0, 2]][:, :, [0, 2]]
    variance = np.einsum("ni,nij,nj->n", along, covariance, along)
    np.testing.assert_allclose(np.asarray(drawn.get_widths()) ** 2 / 4, 2 * np.log(2) * variance, rtol=1e-6)
    area = np.asarray(drawn.get_widths()) * drawn.get_heights() / 4
    np.testing.assert_allclose(area, 2 * np.log(2) * np.sqrt(np.linalg.det(covariance)), rtol=1e-6)


def test_labels_do_not_overlap(fitted, plots):
    figure = plots.scores(labels=True).figure
    shown = notes(figure.axes[0])
    assert 5 < len(shown) <= N - 2 and set(shown) <= set(fitted.table_.units) and not overlapping(figure)
    for name, note in shown.items():
        np.testing.assert_array_equal(note.xy, fitted.scores_[fitted.table_.units.get_loc(name), :2])
    assert set(notes(plots.scores(labels=["a"] * (N - 2)).figure.axes[0])) == {"a"}


def test_the_circle_holds_correlations_with_the_components(fitted, plots):
    figure = plots.correlation_circle(axes=(1, 2), n_features=9).figure
    (axis,) = figure.axes
    (arrows,) = of(axis, Quiver)
    correlation = (fitted.loadings_ / np.sqrt(np.diag(fitted.covariance_))[:, None])[:, [1, 2]]
    longest = np.argsort(-np.linalg.norm(correlation, axis=1))[:9]
    np.testing.assert_allclose(np.stack([arrows.U, arrows.V], axis=1), correlation[longest], rtol=1e-9)
    (circle,) = of(axis, Circle)
    assert circle.radius == 1 and np.all(np.hypot(arrows.U, arrows.V) <= 1)
    assert len(notes(axis)) > 3 and set(notes(axis)) <= {f"oak {j}" for j in longest} and not overlapping(figure)


def test_the_biplot_shows_loadings_on_their_own_scale(fitted, plots):
    figure = plots.biplot(n_features=5, color=kinds(N - 2)).figure
    axis = figure.axes[0]
    (arrows,) = of(axis, Quiver)
    assert sum(map(len, points(axis).values())) == N - 2 and not of(axis, Ellipse)
    longest = np.argsort(-np.linalg.norm(fitted.loadings_[:, :2], axis=1))[:5]
    ratio = np.stack([arrows.U, arrows.V], axis=1) / fitted.loadings_[longest, :2]
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-9)
    figure.draw_without_rendering()
    top, right = axis.child_axes
    np.testing.assert_allclose(top.get_xlim(), np.asarray(axis.get_xlim()) / ratio[0, 0])
    np.testing.assert_allclose(right.get_ylim(), np.asarray(axis.get_ylim()) / ratio[0, 0])
    assert not overlapping(figure)


def drawn_intervals(axis):
    """Features from top to bottom: estimate, lower and upper end, and whether it is in grey."""
    ticks = {round(y): text.get_text() for y, text in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)}
    rows = {}
    for bars in axis.containers:
        line, _, (ends,) = bars
        assert type(ends) is LineCollection
        for x, y, segment in zip(line.get_xdata(), line.get_ydata(), ends.get_segments(), strict=True):
            rows[round(y)] = (ticks[round(y)], x, segment[0][0], segment[1][0], line.get_color() != PALETTE[0])
    frame = pd.DataFrame(
        [rows[y] for y in sorted(rows, reverse=True)], columns=["feature", "estimate", "ci_low", "ci_high", "grey"]
    )
    return frame.set_index("feature")


def test_coefficients_have_the_intervals_of_the_summary(fitted, plots):
    figure = plots.coefficients(level=0.8).figure
    assert [axis.get_title() for axis in figure.axes] == ["south", "depth"]
    for axis, name in zip(figure.axes, ("south", "depth"), strict=True):
        shown, expected = drawn_intervals(axis), fitted.summary(0.8).loc[name].dropna()
        assert sorted(shown.index) == sorted(expected.index) and shown["estimate"].is_monotonic_decreasing
        columns = ["estimate", "ci_low", "ci_high"]
        np.testing.assert_allclose(shown[columns], expected.loc[shown.index, columns], rtol=1e-9)
        np.testing.assert_array_equal(shown["grey"], (shown["ci_low"] <= 0) & (shown["ci_high"] >= 0))
    south, depth = figure.axes
    assert south.get_xlabel() == "coefficient, 80% interval\nno finite estimate: oak 4" and "finite" not in depth.get_xlabel()
    assert not overlapping(figure)


def test_coefficients_are_chosen_by_z_and_put_in_order(fitted, plots):
    z = fitted.summary().loc["depth"]["z"]
    largest = z.abs().sort_values(ascending=False).index[:5]
    for order, expected in (("z", z[largest].sort_values(ascending=False).index), ("table", z.index[z.index.isin(largest)])):
        (axis,) = plots.coefficients("depth", n_features=5, order=order).figure.axes
        assert list(drawn_intervals(axis).index) == list(expected) and axis.get_title() == "depth (5 of 14, largest |z|)"
    assert [axis.get_title() for axis in plots.coefficients(["Intercept", "south"]).figure.axes] == ["Intercept", "south"]


def test_importance_shows_each_unit_in_three_panels(fitted, plots):
    figure = plots.importance().figure
    frame = fitted.importance_.assign(share=lambda frame: 100 * frame["ess"] / frame["draws"]).sort_values("share", kind="stable")
    for axis, column in zip(figure.axes, ("share", "kl_from_proposal", "kl_from_conditional"), strict=True):
        np.testing.assert_array_equal(axis.lines[0].get_ydata(), frame[column])
        assert axis.get_ylim()[0] <= 0 and axis.get_ylim()[1] > frame[column].max()
    figure.draw_without_rendering()
    assert not overlapping(figure)


def test_bars_of_the_rootogram_hang_from_what_is_expected(fitted, plots):
    counts = fitted.table_.counts.values
    axis = plots.rootogram(most=12)
    bars, line = axis.patches, axis.lines[0].get_ydata()
    seen = np.bincount(counts[counts <= 12].astype(int), minlength=13)
    np.testing.assert_allclose([bar.get_height() for bar in bars], np.sqrt(seen))
    np.testing.assert_allclose([bar.get_y() + bar.get_height() for bar in bars], line)
    # The model is that of the data: differences are of a few standard errors of Poisson counts, halves on this scale.
    assert np.abs([bar.get_y() for bar in bars]).max() < 2.5
    one = plots.rootogram("oak 3")
    assert one.get_xlabel() == "count of oak 3" and sum(b.get_height() ** 2 for b in one.patches) <= len(counts) + 1e-6
    with pytest.raises(ValueError, match='no feature is called "elm"'):
        plots.rootogram("elm")


def test_convergence_is_the_distance_to_the_last_bound(fitted, plots, refined):
    figure = plots.convergence().figure
    (axis,) = figure.axes
    bounds = np.asarray(fitted.bounds_)
    np.testing.assert_array_equal(axis.lines[0].get_ydata(), bounds[-1] - bounds[:-1])
    np.testing.assert_array_equal(axis.lines[0].get_xdata(), np.arange(1, len(bounds)))
    assert axis.get_yscale() == "log" and f"{fitted.elbo_:.2f}" in axis.get_title() and not overlapping(figure)
    figure = PLNPlots(refined).convergence().figure
    frame = refined.refinement_
    for axis, column, error in zip(figure.axes[1:], ("loglik", "gradient_norm"), (0.1, 0.5), strict=True):
        np.testing.assert_array_equal(axis.lines[0].get_xydata(), frame[["epoch", column]])
        outline = axis.collections[0].get_paths()[0].vertices
        for epoch, value in zip(frame["epoch"], frame[column], strict=True):
            heights = outline[outline[:, 0] == epoch, 1]
            np.testing.assert_allclose([heights.min(), heights.max()], [value - 2 * error, value + 2 * error])
    assert not overlapping(figure)


def test_starts_are_sorted_below_the_best(fitted, plots):
    figure = plots.starts().figure
    (axis,) = figure.axes
    below = np.sort(fitted.starts_["bound"].max() - fitted.starts_["bound"])
    shown = {line.get_label(): line.get_xydata() for line in axis.lines}
    places = np.concatenate(list(shown.values()))
    np.testing.assert_allclose(places[np.argsort(places[:, 0])], np.column_stack([[1, 2, 3, 4], below]), atol=1e-9)
    assert len(shown.get("left early", ())) == (~fitted.starts_["converged"]).sum() and not overlapping(figure)
    assert sorted(note.get_text() for note in of(axis, Annotation)) == sorted(map(str, fitted.starts_["sweeps"]))


def test_the_heat_map_holds_the_correlations_of_the_latents(fitted, plots):
    figure = plots.covariance(n_features=8).figure
    axis, bar = figure.axes
    (image,) = axis.images
    names = [text.get_text() for text in axis.get_yticklabels()]
    chosen = [fitted.table_.features.get_loc(name) for name in names]
    variance = np.diag(fitted.covariance_)
    assert set(chosen) == set(np.argsort(-variance)[:8]) and [t.get_text() for t in axis.get_xticklabels()] == names
    expected = (fitted.covariance_ / np.sqrt(np.outer(variance, variance)))[np.ix_(chosen, chosen)]
    np.testing.assert_allclose(image.get_array(), expected, atol=1e-9)
    assert image.get_clim() == (-1, 1) and not overlapping(figure)
    # Neighbours are more alike than in the order of the variance.
    given = expected[np.ix_(*[np.argsort(-variance[chosen])] * 2)]
    assert np.diag(expected, 1).sum() > np.diag(given, 1).sum()


def test_the_rank_of_each_criterion_is_marked(choice):
    figure = rank_selection(choice).figure
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == [
        "AIC: rank 6, 2995.0",
        "BIC: rank 3, 2000.0",
        "ICL: rank 1, 2100.0",
    ]
    for bars, column in zip(axis.containers, ("aic", "bic", "icl"), strict=True):
        line, _, (ends,) = bars
        values = choice.table[column]
        np.testing.assert_array_equal(line.get_xydata(), np.column_stack([values.index, values - values.min()]))
        np.testing.assert_allclose([s[1][1] - s[0][1] for s in ends.get_segments()], 4 * choice.table["error"])
    marks = {tuple(line.get_xydata()[0]) for line in axis.lines if len(line.get_xdata()) == 1}
    assert marks == {(6, 0), (3, 0), (1, 0)} and not overlapping(figure)


def test_figures_go_to_axes_that_are_given(fitted, plots, choice):
    for draw in (plots.scores, plots.correlation_circle, plots.biplot, plots.starts, plots.covariance):
        axis = Figure().add_subplot()
        assert draw(ax=axis) is axis and axis.has_data()
    axis = Figure().add_subplot()
    assert list(plots.convergence(ax=axis)) == [axis] and axis.has_data()
    axes = Figure().subplots(1, 3)
    assert list(plots.importance(ax=axes)) == list(axes) and all(axis.has_data() for axis in axes)
    assert plots.coefficients(ax=axes[:2])[0] is axes[0] and rank_selection(choice, ax=axes[2]) is axes[2]
    with pytest.raises(ValueError, match="ax must be 3 matplotlib Axes, as many as the figure has panels, got 1"):
        plots.importance(ax=axes[0])


@pytest.mark.parametrize(
    ("figure", "settings", "message"),
    [
        ("scores", {"axes": (0, 3)}, r"two different components from 0 to 2, such as \(0, 1\), not \(0, 3\)"),
        ("biplot", {"axes": (1, 1)}, "two different components"),
        ("correlation_circle", {"axes": (-1, 0)}, "two different components"),
        ("scores", {"axes": 1}, "two different components"),
        ("scores", {"color": kinds(N - 5)}, "color has 55 entries and there are 58 units"),
        ("scores", {"color": np.ones((N, 2))}, "color must have one dimension"),
        ("scores", {"color": "north"}, 'no covariate is called "north"; they are'),
        ("scores", {"color": [f"kind {i}" for i in range(N)]}, "58 kinds and a legend can tell 20 apart"),
        ("biplot", {"color": pd.Series(1.0, index=["plot 0"])}, r'color has no entry for 57 of the units \("plot 1"\)'),
        ("scores", {"labels": ["a", "b"]}, "labels has 2 entries and there are 58 units"),
        ("scores", {"level": 1.0}, "level must be"),
        ("coefficients", {"level": 95}, "level must be"),
        ("coefficients", {"covariate": "north"}, 'no covariate is called "north"; they are'),
        ("coefficients", {"covariate": []}, "covariate names none"),
        ("coefficients", {"order": "size"}, 'order must be "estimate", "z" or "table"'),
        ("coefficients", {"n_features": 0}, "n_features must be a whole number from 1, not 0"),
        ("correlation_circle", {"n_features": 2.5}, "n_features must be a whole number"),
        ("covariance", {"n_features": 1}, "correlations need two features"),
    ],
)
def test_bad_arguments_are_refused(plots, figure, settings, message):
    with pytest.raises(ValueError, match=message):
        getattr(plots, figure)(**settings)


def test_a_fit_of_rank_one_has_no_plane():
    counts = np.random.default_rng(0).poisson(3.0, (20, 4))
    plots = PLNPlots(mx.PLNPCA(rank=1, method="variational", n_starts=1, verbose=False).fit(counts))
    for draw in (plots.scores, plots.biplot, plots.correlation_circle):
        with pytest.raises(ValueError, match=r"fit PLNPCA\(rank=2\) or more"):
            draw()
    assert plots.covariance().figure.axes[0].images[0].get_array().shape == (4, 4)
