"""Verdicts on regressions with missing covariates: what is infinite, at no maximum, or of another model is said in one word."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import special

import margaux as mx
from margaux.families.missing.families import FAMILIES
from margaux.families.missing.suspicion import sentinel


def data(n=300, p=3, seed=0, share=0.2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)) @ np.linalg.cholesky(0.5 * np.eye(p) + 0.5).T
    eta = x @ np.resize([0.8, -0.8, 0.5], p) - 0.3
    y = (rng.random(n) < special.expit(eta)).astype(int)
    return np.where(rng.random(x.shape) < share, np.nan, x), y, eta, rng


def quietly(family, x, y, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mx.MissingGLM(family=family, verbose=False, **settings).fit(x, y)


def outcomes(family, y, one, rng):
    """An outcome that is the same wherever `one`, so that the coefficient of its dummy is infinite."""
    if family == "poisson":
        return np.where(one, 0, rng.poisson(1.5, len(y)))
    return np.where(one, 2, rng.integers(0, 3, len(y))) if family == "multinomial" else np.where(one, 1, y)


@pytest.mark.parametrize(
    "family", ["logistic", *(pytest.param(one, marks=pytest.mark.slow) for one in ("probit", "poisson", "multinomial"))]
)
def test_quasi_separation_is_warned_of_and_has_not_converged(family):
    x, y, _, rng = data()
    one = rng.random(300) < 0.2
    frame = pd.DataFrame(x, columns=list("abc")).assign(site=np.where(one, "v", "u"))
    with pytest.warns(UserWarning, match=r"The estimate of (2: intercept, )?(1: |2: )?.*site\[T.v\] may be infinite"):
        model = mx.MissingGLM(family=family, verbose=False).fit(frame, outcomes(family, y, one, rng))
    table = model.summary()
    infinite = table.index.str.contains("site")
    assert not model.converged_ and model.certificate_.word == "failed" and model.certificate_["separation"].level == "failed"
    assert table.attrs["message"].startswith("failed: ")
    assert table["se"][infinite].isna().all() and np.all(table["se"][table.index.str.endswith(("a", "b", "c"))] < 1)
    # The others have the errors of a fit without the rows that are told apart.
    if family == "logistic":
        rest = quietly(family, frame[~one].drop(columns="site"), y[~one]).summary()
        np.testing.assert_allclose(table["se"].to_numpy()[:4], rest["se"], rtol=0.25)


def test_a_discrete_covariate_with_holes_may_separate_too():
    x, y, _, rng = data()
    b = (rng.random(300) < 0.15).astype(float)
    y = np.where(b == 1, 1, y)
    b[rng.random(300) < 0.3] = np.nan
    model = quietly("logistic", np.column_stack([x, b]), y, discrete=[3])
    assert not model.converged_ and "The estimate of x3 may be infinite" in model.message_
    assert np.isnan(model.summary()["se"].iloc[4]) and model.summary()["se"].iloc[:4].notna().all()


@pytest.mark.slow
def test_with_much_missing_what_is_at_no_maximum_has_no_errors():
    """The likelihood rises towards a singular covariance of the covariates, where coefficients are infinite."""
    x, y, _, _ = data(400, 4, 1, 0.8)
    with pytest.warns(UserWarning, match="failed: .*at no maximum"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="only .* rows are complete")
            model = mx.MissingLogistic(verbose=False).fit(x, y)
    assert not model.converged_ and model.summary()["se"].isna().all()
    assert model.certificate_["boundary"].level == "failed" and "all but singular along" in model.message_


@pytest.mark.slow
def test_with_much_missing_and_many_rows_errors_are_as_large_as_they_are():
    x, y, _, _ = data(2000, 4, 0, 0.8)
    model = quietly("logistic", x, y)
    assert model.converged_ and model.certificate_.word == "certified"
    gap = (model.coef_ - [0.8, -0.8, 0.5, 0.8]) / model.summary()["se"].iloc[1:]
    assert np.all(np.abs(gap) < 4)
    # Where coefficients are uncertain other starts are tried.
    x, y, _, _ = data(600, 3, 0, 0.75)
    assert quietly("logistic", x, y).certificate_["starts"].figure == 1.0


def test_a_fit_stopped_early_says_so():
    x, y, _, _ = data()
    model = mx.MissingLogistic(method="saem", n_iter=12, n_burn=4, polish=False, verbose=False).fit(x, y)
    exact = quietly("logistic", x, y)
    check = model.certificate_["gradient"]
    assert check.level != "pass" and "standard errors from the maximum" in check.sentence and check.sentence in model.message_
    # Its figure is how far the maximum is: the root of twice what the log-likelihood lacks, near enough.
    lack = np.sqrt(2 * (float(exact.loglik_) - float(model.loglik_)))
    assert check.figure == pytest.approx(lack, rel=0.3)
    polished = mx.MissingLogistic(method="saem", n_iter=12, n_burn=4, verbose=False).fit(x, y)
    np.testing.assert_allclose(polished.coef_, exact.coef_, atol=1e-6)
    assert polished.certificate_.word == exact.certificate_.word == "certified"


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("variance", [0.0, 1e-6, 1.0, 20.0])
def test_integrals_over_wide_predictors_are_exact(name, variance):
    import jax

    rng = np.random.default_rng(0)
    mean = rng.normal(0, 1 + variance**0.5, 60)
    u = mean + variance**0.5 * rng.normal(size=60)
    y = (rng.random(60) < special.expit(u)) * 1.0 if name == "logistic" else rng.poisson(np.exp(np.minimum(u, 7))) * 1.0
    with jax.enable_x64(True):
        family: Any = FAMILIES[name]
        marginal = jax.jit(lambda m: family.marginal(y, m, np.full(60, variance), np.ones(())))
        value, first, second = map(np.asarray, marginal(mean))
        (above, *_), (below, *_) = marginal(mean + 1e-4), marginal(mean - 1e-4)
    grid = np.linspace(-12, 12, 40_001)
    eta = mean[:, None] + variance**0.5 * grid
    logs = y[:, None] * eta - (np.logaddexp(0, eta) if name == "logistic" else np.exp(eta) + special.gammaln(y + 1)[:, None])
    exact = special.logsumexp(logs - grid**2 / 2, axis=1) + np.log((grid[1] - grid[0]) / np.sqrt(2 * np.pi))
    np.testing.assert_allclose(value, exact, atol=1e-7 if name == "logistic" else 1e-4)
    # The score is the derivative of the value, or no search could end.
    np.testing.assert_allclose(first, (np.asarray(above) - np.asarray(below)) / 2e-4, atol=1e-6 if variance < 20 else 1e-3)
    assert np.all(np.isfinite(second))


@pytest.mark.parametrize("variance", [1e-8, 1e-4, 0.01, 1.0, 20.0])
def test_the_finer_rule_for_counts_is_as_fine_whatever_is_uncertain(variance):
    import jax

    from margaux.families.missing.verdict import _dense

    mean, y = np.repeat([-2.0, 0.0, 3.0], 4), np.tile([0.0, 1.0, 30.0, 400.0], 3)
    with jax.enable_x64(True):
        found = _dense(FAMILIES["poisson"], y, mean, np.full(12, variance))
    # In a variable that follows the integrand: about its mode, in units of its width.
    mode = mean.copy()
    for _ in range(200):
        mode += np.clip((variance * (y - np.exp(mode)) - mode + mean) / (1 + variance * np.exp(mode)), -1, 1)
    width = (1 / variance + np.exp(mode)) ** -0.5
    eta = mode[:, None] + width[:, None] * np.linspace(-60, 60, 60_001)
    logs = y[:, None] * eta - np.exp(np.minimum(eta, 50)) - special.gammaln(y + 1)[:, None]
    logs -= (eta - mean[:, None]) ** 2 / (2 * variance) + np.log(2 * np.pi * variance) / 2
    np.testing.assert_allclose(found, special.logsumexp(logs, axis=1) + np.log(width * 0.002), atol=1e-7)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("variance", [9.0, 11.0, 70.0])
def test_second_derivatives_of_integrals_over_wide_predictors(name, variance):
    import jax

    mean = np.linspace(-12, 12, 30)
    y = np.tile([0.0, 1.0], 15)
    with jax.enable_x64(True):
        family: Any = FAMILIES[name]
        _, first, second = map(np.asarray, family.marginal(y, mean, np.full(30, variance), np.ones(())))
    eta = mean[:, None] + variance**0.5 * np.linspace(-20, 20, 80_001)
    logs = y[:, None] * eta - (np.logaddexp(0, eta) if name == "logistic" else np.exp(np.minimum(eta, 50)))
    logs -= (eta - mean[:, None]) ** 2 / (2 * variance)
    share = special.softmax(logs, axis=1)
    at = np.sum(share * eta, axis=1)
    spread = np.sum(share * (eta - at[:, None]) ** 2, axis=1)
    # Beside 1 / v, which the information of a coefficient is a sum of.
    np.testing.assert_allclose(first, (at - mean) / variance, atol=0.01 / variance**0.5)
    np.testing.assert_allclose(second, spread / variance**2 - 1 / variance, atol=0.02 / variance)


def test_a_predictor_too_wide_for_the_rule_is_told():
    from margaux.families.missing.verdict import _likelihood

    assert _likelihood(1e-6, 0.0).level == "pass" and _likelihood(0.1, 0.0).level == "careful"
    assert _likelihood(3.0, 0.0).level == "failed"
    x, y, _, _ = data()
    assert quietly("logistic", x, y).certificate_["likelihood"].figure < 1e-6


@pytest.mark.slow
def test_the_error_of_a_rule_over_classes_is_told():
    x, _, _, _ = data()
    rng = np.random.default_rng(1)
    three = np.argmax(np.nan_to_num(x) @ rng.normal(size=(3, 3)) + rng.gumbel(size=(300, 3)), axis=1)
    figure = quietly("multinomial", x, three).certificate_["likelihood"].figure
    assert 0 < figure < 0.02


def wrong_models():
    x, y, eta, rng = data(1000, 3, 5, 0.0)
    holes = lambda x: np.where(rng.random(x.shape) < 0.2, np.nan, x)  # noqa: E731
    bent = (rng.random(1000) < special.expit(1.2 * x[:, 0] ** 2 - 1)).astype(int)
    three = np.where(rng.random(1000) < special.expit(1.2 * x[:, 0] ** 2 - 1), 1 + (rng.random(1000) < 0.5), 0)
    counts = rng.poisson(np.exp(eta) * rng.gamma(1.0, 1.0, 1000))
    return {
        "covariates": ("logistic", holes(np.exp(x)), (rng.random(1000) < special.expit(eta)).astype(int)),
        "linearity": ("logistic", holes(x), bent),
        "dispersion": ("poisson", holes(x), counts),
        "residuals": ("gaussian", holes(x), eta + rng.standard_t(3, 1000)),
        "spread": ("gaussian", holes(x), eta + np.exp(eta / 2) * rng.normal(size=1000)),
        "linearity of classes": ("multinomial", holes(x), three),
        "calibration": ("logistic", holes(x), (rng.random(1000) < special.expit(2 * np.sign(eta + 0.5))).astype(int)),
    }


@pytest.mark.parametrize(
    "check",
    ["covariates", "linearity", "dispersion", "residuals", "spread", "calibration",
     pytest.param("linearity of classes", marks=pytest.mark.slow)],
)  # fmt: skip
def test_another_model_is_noticed(check):
    family, x, y = wrong_models()[check]
    model = quietly(family, x, y)
    assert model.converged_ and model.certificate_.word == "careful"
    assert model.certificate_[check.split(" ")[0]].level == "careful"


@pytest.mark.slow
def test_robust_errors_are_the_spread_of_estimates_where_counts_are_wide():
    estimates, model = [], None
    plain, robust = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(400, 2))
        y = rng.poisson(np.exp(0.5 + x @ [0.5, -0.3]) * rng.gamma(1.0, 1.0, 400))
        x = np.where(rng.random(x.shape) < 0.2, np.nan, x)
        model = quietly("poisson", x, y)
        estimates.append(model.coef_)
        plain.append(model.summary()["se"].iloc[1:])
        robust.append(model.summary(errors="robust")["se"].iloc[1:])
    assert model is not None
    spread = np.std(estimates, axis=0, ddof=1)
    # The standard deviation of 60 has an error of 9%, and the sandwich of 400 rows falls short by some.
    np.testing.assert_allclose(np.median(robust, axis=0), spread, rtol=0.25)
    assert np.all(np.mean(plain, axis=0) < 0.7 * spread)
    with pytest.raises(ValueError, match="errors must be one of model, robust"):
        model.summary(errors="bootstrap")
    assert model.conf_int(errors="robust").shape == (3, 2)


@pytest.mark.slow
def test_right_models_are_certified():
    wrong = 0
    for family in ("logistic", "probit", "poisson", "gaussian", "multinomial"):
        for seed in range(12):
            x, y, eta, rng = data(500, 3, seed + 1000, 0.0)
            draw = {"logistic": lambda y=y: y, "probit": lambda eta=eta, rng=rng: (eta + rng.normal(size=500) > 0).astype(int),
                    "poisson": lambda eta=eta, rng=rng: rng.poisson(np.exp(eta)),
                    "gaussian": lambda eta=eta, rng=rng: eta + rng.normal(size=500),
                    "multinomial": lambda x=x, rng=rng: np.argmax(x + rng.gumbel(size=(500, 3)), axis=1)}  # fmt: skip
            x_holes = np.where(rng.random(x.shape) < 0.2, np.nan, x)
            wrong += quietly(family, x_holes, draw[family]()).certificate_.word != "certified"
    # Five checks at most, each false once in two hundred: 1.5 of 60, and its standard deviation 1.2.
    assert wrong <= 5


def test_suspicions_are_told_with_what_to_do():
    x, y, _, rng = data(400, 3)
    coded = np.where(np.isnan(x), -999.0, x)
    coded[:, 1:] = x[:, 1:]
    with pytest.warns(UserWarning, match=r'"x0" holds -999 in \d+ rows, .*make it NaN \(X.replace\(-999, np.nan\)\)'):
        model = mx.MissingLogistic(verbose=False).fit(coded, y)
    assert model.certificate_["sentinel"].figure == -999 and model.certificate_.word != "certified"
    few = x.copy()
    few[:, 1] = np.where(np.isnan(x[:, 1]), np.nan, np.clip(np.round(x[:, 1] + 2.5), 1, 4))
    with pytest.warns(UserWarning, match=r'"x1" has holes and 4 distinct values \(1, 2, 3, 4\), .*pass discrete=\["x1"\]'):
        model = mx.MissingLogistic(verbose=False).fit(few, y)
    assert model.certificate_["discrete"].level == "careful" and model.converged_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Without holes, or called discrete, it is what it seems.
        assert "discrete" not in mx.MissingLogistic(verbose=False, discrete=["x1"]).fit(few, y).certificate_
        full = np.where(np.isnan(few), 2.0, few)
        mx.MissingLogistic(verbose=False).fit(np.column_stack([x[:, 0], full[:, 1]]), y)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-999, 1.2, 1.5, 2.2, 3.1, 4.0], -999), ([99, 20, 31, 35, 44, 52], 99), ([9, 0, 1], 9), ([-1, 0, 3, 5, 8, 9], -1),
        ([-2.2, -1.2, 0.1, 0.5, 1.4, 2.0], None), ([0, 1], None), ([1, 2, 3, 4], None), ([0, 1, 2, 3, 4, 5, 7], None),
        ([99, 92, 94, 95, 97, 98], None), ([0, 24, 50, 60, 80, 122], None),
    ],
)  # fmt: skip
def test_what_looks_like_a_code_for_missing(values, expected):
    values, rng = np.array(values, float), np.random.default_rng(0)
    counts = np.r_[8, rng.integers(1, 4, len(values) - 1)]
    order = np.argsort(values)
    assert sentinel(values[order], counts[order]) == expected
    once = np.r_[1, counts[1:]]
    assert sentinel(values[order], once[order]) is None


def test_one_row_no_columns_and_wide_scales():
    x, y, _, _ = data()
    for bad, target, message in [(x[:1], y[:1], "two classes"), (x[:4], [0, 1, 0, 1], "give at least 5 rows"),
                                 (x, np.zeros(300, int), "two classes")]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            mx.MissingLogistic(verbose=False).fit(bad, target)
    one, far = quietly("logistic", x, y), quietly("logistic", 1e6 * x + 1e8, y)
    np.testing.assert_allclose(far.coef_ * 1e6, one.coef_, rtol=1e-5)
    np.testing.assert_allclose(far.summary()["se"].iloc[1:] * 1e6, one.summary()["se"].iloc[1:], rtol=1e-4)
    assert far.certificate_.word == one.certificate_.word
    few = quietly("logistic", x[:6], [0, 1, 0, 1, 1, 0])
    assert few.certificate_.word == "failed" and not few.converged_


def test_the_page_and_the_command_begin_with_the_word(tmp_path):
    import json

    from typer.testing import CliRunner

    from margaux.cli import app
    from margaux.showing.report import write

    x, y, _, rng = data(300)
    smoker = np.where(rng.random(300) < 0.2, np.nan, rng.random(300) < 0.4)
    frame = pd.DataFrame(x, columns=list("abc")).assign(smoker=smoker, y=y)
    model = mx.MissingLogistic(discrete=["smoker"], verbose=False).fit(frame.drop(columns="y"), y)
    page = write(model, tmp_path / "report.html").read_text()
    word = model.certificate_.word
    assert word.capitalize() + ":" in page and "What was measured, and what it was held to" in page
    # Coefficients, means by cell, covariances, and the odds of the cell.
    assert model.n_params_ == 5 + 6 + 6 + 1 and "18: intercept, a, b, c, smoker" in page
    frame.to_csv(tmp_path / "table.csv", index=False)
    call = ["fit", "missing-logistic", str(tmp_path / "table.csv"), "--y", "y", "--discrete", "smoker", "--errors", "robust"]
    done = CliRunner().invoke(app, [*call, "--json", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["message"].startswith(word) and told["certificate"] == word
    robust = model.summary(errors="robust")["se"]
    assert told["estimates"]["smoker"]["se"] == pytest.approx(robust["smoker"], rel=1e-4)
    assert {"cells.csv", "certificate.csv"} <= {path.name for path in (tmp_path / "out").iterdir()}
    plain = CliRunner().invoke(app, call)
    assert plain.exit_code == 0 and f"\n{word}: " in plain.stdout
    refused = CliRunner().invoke(app, [*call, "--method", "misso"])
    assert refused.exit_code == 2 and "discrete covariates are enumerated by the exact method only" in refused.output
