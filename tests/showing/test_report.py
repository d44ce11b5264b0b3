"""The report page: its structure, what it says of fits that failed, and how it opens in a browser."""

import re
import shutil
from html.parser import HTMLParser

import jax
import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.showing.checksum import checksum
from margaux.showing.figures import DARK, LIGHT, luminance
from margaux.showing.page import Paragraph, attempt, number
from margaux.showing.rendering import within
from margaux.showing.report import page_of, write

normal = jax.scipy.stats.norm.logpdf
SECTIONS = ["fitted", "ending", "estimates", "convergence", "goodness", "latents", "reproduce"]


class Normal(mx.AbstractModel):
    """Observations & noise: y_i ~ N(z_i, 1), z_i ~ N(mu, tau)."""

    def log_joint(self, params, z, y):
        return normal(y, z) + normal(z, params["mu"], params["tau"])

    def init_latents(self, key, params, y):
        return 0.0 * y


def small(n_iter=200, **settings):
    y = np.random.default_rng(0).normal(3.0, 2.0, size=40)
    space = {"tau": mx.Positive(1e-3)}
    return mx.fit(Normal(), y, mx.soul(step=0.3), mx.Quadrature(9), params={"mu": 0.0, "tau": 1.0}, n_iter=n_iter,
                  space=space, polish=False, progress=False, **settings)  # fmt: skip


class Page(HTMLParser):
    """What the tests look at, of a page: tags with their attributes, headings, text."""

    VOID = {"meta", "link", "br", "hr", "img", "input"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open, self.inside = [], "", [], []
        self.feed(text)
        assert not self.open, f"tags are left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), tuple(self.open)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "svg"} & set(self.open):
            self.text += " ".join(data.split()) + " "

    def all(self, name):
        return [attrs for tag, attrs, _ in self.tags if tag == name]


@pytest.fixture(scope="module")
def fitted():
    return small()


@pytest.fixture(scope="module")
def source(fitted, tmp_path_factory):
    path = write(fitted, tmp_path_factory.mktemp("report") / "new folder" / "report.html", command="margaux fit <own> --seed 0")
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def page(source):
    return Page(source)


def check_structure(page, source):
    """What holds for every page."""
    assert len(source.encode()) < 3_000_000
    assert not re.search(r"https?:|<script|@import|url\((?!#)", source)
    ids = [attrs["id"] for _, attrs, _ in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    (html,) = page.all("html")
    assert html["lang"] == "en" and len(page.all("main")) == len(page.all("nav")) == len(page.all("header")) == 1
    headings = [int(tag[1]) for tag, _, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1 and headings.count(1) == 1 and max(np.diff(headings)) <= 1
    assert [attrs["id"] for attrs in page.all("section")] == SECTIONS
    links = [attrs["href"][1:] for tag, attrs, _ in page.tags if tag == "a"]
    assert links[0] == "main" and set(links) <= set(ids)
    assert page.all("svg") and not page.all("img")
    for attrs in page.all("svg"):
        assert attrs["role"] == "img" and len(attrs["aria-label"]) > 30 and re.search(r"\d", attrs["aria-label"])
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', source)) <= set(ids)
    assert len(page.all("table")) == len(page.all("caption"))
    assert all(attrs.get("scope") in ("row", "col") for attrs in page.all("th"))
    assert all(attrs.get("aria-label") for attrs in page.all("div") if attrs.get("role") == "region")
    assert len(page.all("figure")) == len(page.all("figcaption"))
    assert set(re.findall(r"var\((--[\w-]+)\)", source)) <= set(re.findall(r"(--[\w-]+):", source))


def left_out(page):
    return re.findall(r"[^.]*is left out[^.]*", page.text)


def test_structure(page, source):
    check_structure(page, source)
    assert not left_out(page)


def test_what_the_page_says(page, source, fitted):
    frame = fitted.summary()
    for name, row in frame.iterrows():
        places = max(2 - int(np.floor(np.log10(row["se"]))), 0)
        assert f"{name} {row['estimate']:.{places}f} {row['se']:.{places}f}" in page.text
    assert f"{float(fitted.loglik()):.3f}" in page.text
    assert "Observations & noise: y_i ~ N(z_i, 1), z_i ~ N(mu, tau)." in page.text
    assert "margaux fit <own> --seed 0" in page.text and "<own>" not in source
    assert checksum(fitted.data) in page.text and mx.__version__ in page.text and jax.__version__ in page.text
    for verdict in fitted.diagnostics()["verdict"]:
        assert verdict[1:].removeprefix("areful: ") in page.text
    assert "mu from" in source or "mu:" in source


def test_a_title_of_ones_own_and_nothing_that_is_not_a_fit(fitted, tmp_path):
    text = write(fitted, tmp_path / "report.html", title="Trial <3>").read_text()
    assert "<title>Trial &lt;3&gt;</title>" in text
    with pytest.raises(TypeError, match="a report is of what margaux.fit returned"):
        write({"mu": 1.0}, tmp_path / "other.html")
    with pytest.raises(Exception, match="not fitted yet"):
        write(mx.MissingLogistic(), tmp_path / "other.html")
    with pytest.raises(IsADirectoryError, match="name a file in it"):
        write(fitted, tmp_path)
    assert not (tmp_path / "other.html").exists()


def test_a_fit_that_diverged_has_a_page(tmp_path):
    y = np.random.default_rng(0).normal(size=20)
    with pytest.raises(mx.FitError) as caught:
        mx.fit(Normal(), y, mx.soul(mx.Polynomial(1e6, 0.0), mx.LastIterate()), mx.MCMC(mx.ULA(10.0)),
               params={"mu": 0.0, "tau": 1.0}, n_iter=200, polish=False, progress=False)  # fmt: skip
    fit = caught.value.fit
    source = write(fit, tmp_path / "report.html").read_text()
    page = Page(source)
    assert "Not to be trusted. " + fit.message in page.text and "the fit failed" in page.text
    assert [attrs["id"] for attrs in page.all("section")] == SECTIONS
    assert "Estimates with Wald intervals" not in page.text and "All 2 checks" not in page.text


def test_a_fit_loaded_without_its_model_has_a_page(fitted, tmp_path):
    fitted.save(tmp_path / "fit.npz")
    page = Page(write(mx.load(tmp_path / "fit.npz"), tmp_path / "report.html").read_text())
    assert "loaded without its model" in page.text and "not computed: the fit was loaded without its data" in page.text
    assert f"mu {number(float(fitted.params['mu']))}" in page.text


def test_missing_covariates(tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(200, 2)), columns=["age", "dose <mg>"])
    y = (rng.random(200) < 1 / (1 + np.exp(-X["age"]))).astype(int)
    X = X.mask(rng.random(X.shape) < 0.2)
    model = mx.MissingLogistic(verbose=False).fit(X, y)
    source = write(model, tmp_path / "report.html").read_text()
    page = Page(source)
    check_structure(page, source)
    assert not left_out(page)
    assert "dose <mg>" in page.text and "<mg>" not in source
    assert f"{float(model.loglik_):.3f}" in page.text
    assert f"age {np.isnan(X['age'].to_numpy()).sum()}" in page.text


# -- pieces -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_of_text_is_enough(source, scheme):
    """At least 4.5 to 1 (WCAG 2.2, criterion 1.4.3)."""
    blocks = re.findall(r":root \{([^}]*--ink[^}]*)\}", source)
    colours = dict(re.findall(r"--([\w-]+): #(\w{6})", blocks[0 if scheme == "light" else 1]))
    pairs = [(ink, "paper") for ink in ("ink", "soft", "link")] + [(ink, "panel") for ink in ("ink", "soft", "link")]
    pairs += [(one, f"{one}-paper") for one in ("good", "careful", "bad", "told")]
    pairs += [("ink", f"{one}-paper") for one in ("good", "careful", "bad", "told")]
    for ink, paper in pairs:
        a, b = (luminance([int(colours[name][i : i + 2], 16) for i in (0, 2, 4)]) for name in (ink, paper))
        assert (max(a, b) + 0.05) / (min(a, b) + 0.05) >= 4.5, (ink, paper)


def test_a_page_too_large_leaves_figures_out(fitted):
    sections = page_of(fitted).sections(fitted)
    kinds = [part.kind for section in within(sections, 1000) for part in section.parts]
    assert "figure" not in kinds
    assert any(part.kind == "figure" for section in within(sections, 3_000_000) for part in section.parts)


def test_what_fails_becomes_a_sentence():
    def refuse():
        raise ValueError("the curve\nhas no time")

    assert attempt("The plot", refuse) == [Paragraph("The plot is left out: the curve has no time.")]


def test_a_checksum_tells_data_apart():
    x, y = np.arange(6.0).reshape(2, 3), np.array(["a", "b"])
    assert checksum(x, y) == checksum(x.astype(int), y) != checksum(x.T, y)
    assert checksum({"x": x}) != checksum({"z": x}) and checksum(np.array(["a", "c"])) != checksum(y)
    assert checksum(np.arange(3_000_000)) != checksum(np.append(np.arange(2_999_999), 0))


# -- in a browser -----------------------------------------------------------------------------------


def theophylline():
    from margaux.datasets import load_theophylline
    from margaux.families.nlme import LogNormal, oral1cpt

    individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(3.0)}
    model = mx.NLME(structural=oral1cpt, individual=individual, n_iter=100, n_burn=60, n_starts=1, stop=False, verbose=False)
    return model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")


def counts():
    rng = np.random.default_rng(0)
    y = rng.poisson(np.exp(1 + rng.normal(size=(60, 2)) @ rng.normal(0, 0.7, (2, 8))))
    return mx.PLNPCA(rank=2, n_starts=2, verbose=False).fit(y, covariates=rng.normal(size=60))


def holes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = np.array(list("abc"))[np.argmax(X @ rng.normal(size=(2, 3)) + rng.gumbel(size=(200, 3)), axis=1)]
    X[rng.random(X.shape) < 0.2] = np.nan
    return mx.MissingGLM(family="multinomial", verbose=False).fit(X, y)


def by_saem():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    y = X[:, 0] + rng.normal(size=100)
    X[rng.random(X.shape) < 0.2] = np.nan
    return mx.MissingLinear(method="saem", n_iter=100, n_burn=40, verbose=False).fit(X, y)


def classifier():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    y = np.where(X[:, 0] > 0, "yes", "no")
    return mx.BayesianClassifier(temperature=1.0, epochs=60, step=0.01, verbose=False).fit(X, y, validation=(X[:50], y[:50]))


def regressor():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(100, 1))
    return mx.BayesianRegressor(temperature=1.0, epochs=100, step=0.01, verbose=False).fit(
        X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=100)
    )


def variational():
    return mx.fit_variational(normal, 0.0, np.array([1.0, 2.0, 6.0]), log_prior=lambda w: normal(w), epochs=300, progress=False)


def empirical_bayes():
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = X[:, 0] + np.random.default_rng(1).logistic(size=200) > 0
    return mx.EmpiricalBayesLogistic(n_iter=500, n_draws=300, prior="mean_scale", verbose=False).fit(X, y)


def sparse_mixed():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(200, 30)), np.repeat(["a", "b", "c", "d"], 50)
    y = rng.logistic(size=200) < 3 * X[:, 4] + np.repeat(rng.normal(size=4), 50)
    model = mx.SparseMixedLogistic(penalty_weight=15, n_iter=1000, verbose=False).fit(X, y, groups)
    model.path(X, y, groups, penalty_weights=3)
    return model


def sparse_inverse():
    rng = np.random.default_rng(0)
    A, x = rng.normal(size=(60, 100)) / 8, np.zeros(100)
    x[[3, 50, 70]] = 2.0, -3.0, 1.0
    return mx.SparseInverse(prior="l1", noise_sd=0.05, n_iter=300, verbose=False).fit(A, A @ x + 0.05 * rng.normal(size=60))


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


def check_in_browser(browser, path):
    """No error, no request, no scrolling sideways; all figures named; regions can be reached by keyboard."""
    for width, scheme in ((390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")):
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        view, told = context.new_page(), []
        view.on("console", lambda message, told=told: told.append(message.text))
        view.on("pageerror", lambda error, told=told: told.append(str(error)))
        view.on(
            "request", lambda request, told=told: None if request.url.startswith(("file:", "data:")) else told.append(request.url)
        )
        view.goto(path.as_uri())
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        assert view.evaluate("""[...document.querySelectorAll("img, svg")].every(e => e.getAttribute("aria-label") || e.alt)""")
        assert view.evaluate("""[...document.querySelectorAll("svg")].every(e => e.getBoundingClientRect().width > 100)""")
        reachable = """[...document.querySelectorAll(".scroll")].every(e => e.scrollWidth <= e.clientWidth || e.tabIndex === 0)"""
        assert view.evaluate(reachable)
        paper = view.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb({}, {}, {})".format(*(LIGHT if scheme == "light" else DARK)[1])
        view.keyboard.press("Tab")
        assert view.evaluate("document.activeElement.className") == "skip"
        assert not told
        context.close()
    printed = browser.new_page(color_scheme="dark")
    printed.goto(path.as_uri())
    printed.emulate_media(media="print")
    assert printed.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    printed.close()


def test_in_a_browser(browser, source, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(source, "utf-8")
    check_in_browser(browser, path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [theophylline, counts, holes, by_saem, classifier, regressor, variational, empirical_bayes, sparse_mixed, sparse_inverse],
    ids=lambda one: one.__name__,
)
def test_every_family(family, tmp_path, request):
    path = write(family(), tmp_path / "report.html")
    source = path.read_text("utf-8")
    page = Page(source)
    check_structure(page, source)
    assert not left_out(page)
    check_in_browser(request.getfixturevalue("browser"), path)
