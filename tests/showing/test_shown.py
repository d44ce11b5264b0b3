"""What notebooks show, progress in notebooks and terminals, and the one rule of plot methods."""

import io
import os
import types
from html.parser import HTMLParser
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from sklearn import set_config

import margaux as mx
from helpers import random_intercept
from margaux.datasets import load_theophylline
from margaux.engine import callbacks, progress
from margaux.engine.callbacks import Progress
from margaux.families.base import AbstractEstimator
from margaux.families.nlme import LogNormal, oral1cpt
from margaux.families.variational.answers import WeightPosterior
from margaux.showing.axes import Panels, grid, several, single
from margaux.showing.cards import ROWS, Card, page


class Text(HTMLParser):
    """The texts of a page, after a check that every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.texts, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open and "script" not in self.open:
            self.texts.append(data)


def texts(subject):
    bundle = subject._repr_mimebundle_()
    assert bundle["text/plain"] == repr(subject) and bundle["text/html"] == subject._repr_html_()
    return Text(bundle["text/html"]).texts


@pytest.fixture(scope="module")
def fit():
    problem = random_intercept()
    return mx.fit(problem.model, problem.data, mx.saem(), mx.Exact(), params=problem.start, space=problem.space, n_iter=60,
                  polish=False, progress=False)  # fmt: skip


@pytest.fixture(scope="module")
def holes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    y = (rng.random(100) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
    X[rng.random(X.shape) < 0.2] = np.nan
    return mx.MissingLogistic(verbose=False).fit(pd.DataFrame(X, columns=["<b>dose</b>", "b"]), y)


def test_a_fit_shows_estimates_and_later_their_errors(fit):
    shown = texts(fit)
    assert "mu" in shown and f"{float(fit.params['mu']):.4g}" in shown and "SE" not in shown
    assert fit.message in shown and not any("Not to be trusted" in one for one in shown)
    assert fit.known("information") is None and fit.known("loglik") is None  # nothing was computed for it
    frame, loglik = fit.summary(), fit.loglik()
    shown = texts(fit)
    for value in (frame.loc["mu", "se"], frame.loc["tau2", "ci_low"], frame.loc["tau2", "ci_high"]):
        assert f"{value:.4g}" in shown
    assert any(repr(loglik) in one for one in shown)


def test_a_fit_that_ended_badly_says_so(fit):
    shown = Text(page(fit._card()._replace(message="It diverged.", trusted=False))).texts
    at = shown.index("Not to be trusted:")
    assert shown[at + 1] == " It diverged."


def test_texts_are_escaped_and_long_tables_are_cut(holes):
    shown = texts(holes)
    assert "<b>dose</b>" in shown and "<b>dose</b>" not in holes._repr_html_()
    assert f"{holes.summary().loc['b', 'se']:.4g}" in shown
    frame = pd.DataFrame({"estimate": np.arange(50.0)}, index=[f"p{j}" for j in range(50)])
    shown = Text(page(Card("many", "It ended.", True, frame, 5000, {}))).texts
    assert f"p{ROWS - 1}" in shown and f"p{ROWS}" not in shown and f"the first {ROWS} of 5,000 rows" in shown


def test_millions_of_parameters_are_shown_at_once(fit):
    import dataclasses
    import time

    large = dataclasses.replace(fit, params={"w": np.zeros((3000, 1000))}, problem=None)
    began = time.monotonic()
    shown = texts(large)
    assert time.monotonic() - began < 1 and "w[0,19]" in shown and f"the first {ROWS} of 3,000,000 rows" in shown


def test_estimators_that_are_not_fitted_show_their_settings(holes):
    fresh = mx.MissingLogistic(method="saem")
    assert "saem" in fresh._repr_html_() and fresh._repr_mimebundle_()["text/html"]  # type: ignore
    model = mx.NLME(structural=oral1cpt, individual={"ka": LogNormal(1.0)})
    shown = texts(model)
    assert ", not fitted yet" in shown and "individual" in shown
    set_config(display="text")
    try:
        assert set(holes._repr_mimebundle_()) == {"text/plain"} == set(fresh._repr_mimebundle_())
    finally:
        set_config(display="diagram")


def test_every_estimator_has_a_card_a_page_and_a_tree():
    from margaux.showing.cards import Shown

    names = "BayesianClassifier BayesianRegressor EmpiricalBayesLogistic GLMM MissingGLM MissingLinear MissingLogistic"
    names += " NLME PLNPCA SparseInverse SparseMixedLogistic"
    classes = [getattr(mx, name) for name in names.split()]
    for one in [mx.Fit, *classes, WeightPosterior, AbstractEstimator]:
        order = [base.__name__ for base in one.__mro__]
        assert "BaseEstimator" not in order or order.index("Shown") < order.index("BaseEstimator")
        assert one.report is Shown.report and one.to_arviz is Shown.to_arviz


# -- progress ---------------------------------------------------------------------------------------


class Display:
    """What a notebook is told to show."""

    def __init__(self):
        self.shown = []

    def __call__(self, html, display_id):
        assert display_id is True
        self.shown.append(html.data)
        return types.SimpleNamespace(update=lambda html: self.shown.append(html.data))


def test_progress_in_a_notebook_is_html_that_goes_away(monkeypatch):
    import IPython

    seen = Display()
    monkeypatch.setattr(IPython, "get_ipython", lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, "display", seen)
    assert progress.in_notebook()
    bar = callbacks.ProgressBar("SOUL <1>", delay=0.0)
    trace = {"acceptance": np.full((10, 1), 0.57)}
    for done in (100, 200):
        bar(Progress(done, 400, [], trace, lambda path: None, lambda: np.zeros(0), lambda: trace))
    assert "SOUL &lt;1&gt;" in seen.shown[0] and 'value="200"' in seen.shown[-1] and "acceptance 0.57" in seen.shown[-1]
    assert "200 of 400, 0 s left" in seen.shown[-1] and Text(seen.shown[-1])
    bar.close()
    assert seen.shown[-1] == ""


def test_progress_in_a_terminal_is_a_bar(monkeypatch):
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", lambda: types.SimpleNamespace())  # a terminal's shell has no kernel
    assert not progress.in_notebook()
    out = io.StringIO()
    line = progress.Line("title [1]", 10, Console(file=out, force_terminal=True, width=100))
    line.update(4, "beta[0] 1.5")
    line._line._bar.refresh()
    line.close()
    assert "title [1]" in out.getvalue() and "4/10" in out.getvalue() and "beta[0] 1.5" in out.getvalue()


@pytest.mark.slow
def test_a_real_notebook_shows_bars_figures_and_tables():
    import nbformat
    from nbclient import NotebookClient

    cells = [
        "import numpy as np, margaux as mx\nfrom margaux.engine.progress import Line\n"
        "line = Line('a title', 4)\nline.update(2, 'x 1')",
        "X = np.random.default_rng(0).normal(size=(60, 2)); y = X[:, 0] > 0\n"
        "model = mx.BayesianClassifier(epochs=3, verbose=False).fit(X, y)\nmodel",
        "axes = model.plot.signal_to_noise()",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    own = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}  # the kernel chooses
    NotebookClient(book, timeout=300, kernel_name="python3").execute(env=own)
    bar, table, figure = ([out.get("data", {}) for out in cell.outputs] for cell in book.cells)
    assert any("a title" in data.get("text/html", "") and 'value="2"' in data["text/html"] for data in bar)
    assert any("BayesianClassifier" in data.get("text/html", "") for data in table)
    assert sum("image/png" in data for data in figure) == 1


# -- plots ------------------------------------------------------------------------------------------


def test_one_panel_is_axes_and_several_are_panels():
    assert isinstance(single(None, 2.0, 2.0), Axes)
    own = Figure().subplots(2, 2)
    drawn, figure = several(own, 4, 2.0, 2.0)
    assert figure is None and isinstance(drawn, Panels) and list(drawn) == list(own.ravel()) and drawn.figure is own[0, 0].figure
    drawn, figure = grid(None, 2, 3, 6.0, 4.0, sharex=True)
    assert drawn.shape == (2, 3) and drawn.figure is figure
    with pytest.raises(ValueError, match="ax must be 3 matplotlib Axes, as many as the figure has panels, got 4"):
        several(own, 3, 2.0, 2.0)
    with pytest.raises(ValueError, match="ax must be 1 matplotlib Axes"):
        wrong: Any = "axes"
        single(wrong, 2.0, 2.0)


def test_figures_are_pyplots_where_someone_looks(monkeypatch):
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    single(None, 2.0, 2.0)
    assert pyplot.get_fignums() == before
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    single(None, 2.0, 2.0)
    assert len(pyplot.get_fignums()) == len(before) + 1
    pyplot.close("all")
    assert matplotlib.get_backend().lower() == "agg"


def test_figures_of_a_fit_go_to_axes_that_are_given(fit):
    own = Figure().subplots(1, 2)
    for draw in (fit.plot.trace, fit.plot.estimates):
        assert list(draw(ax=own)) == list(own) and draw().figure is not own[0].figure
    assert own[0].figure._suptitle is None and own[0].get_title() == "mu"
    assert fit.plot.trace(["tau2"]).shape == (1,)
    axis = Figure().subplots()
    assert list(fit.plot.latents(ax=axis)) == [axis]


def test_figures_of_estimators_go_to_axes_that_are_given(holes):
    axis = Figure().subplots()
    assert holes.plot.coefficients(ax=axis) is axis and axis.has_data()
    own = Figure().subplots(1, 2)
    assert list(holes.plot.missingness(ax=own)) == list(own)
    assert isinstance(holes.plot.coefficients(), Axes) and isinstance(holes.plot.missingness(), Panels)


@pytest.mark.slow
def test_figures_of_mixed_effects_go_to_axes_that_are_given():
    individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(3.0)}
    model = mx.NLME(structural=oral1cpt, individual=individual, n_iter=60, n_burn=40, n_starts=1, stop=False, verbose=False)
    model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")
    counts = {"convergence": 7, "fits": 12, "predictions": 2, "residuals": 12, "npde": 4, "vpc": 1, "effects": 3, "pairs": 9}
    for name, count in counts.items():
        own = Figure(figsize=(9, 9)).subplots(count, 1, squeeze=False).ravel()
        drawn = getattr(model.plot, name)(ax=own)
        assert isinstance(drawn, Panels) and list(drawn.ravel()) == list(own) and any(axis.has_data() for axis in own)
        assert own[0].figure._suptitle is None and not own[0].figure.legends
