"""`MissingLogistic`, `MissingLinear`, `MissingGLM` against exact answers, and on what users hand in."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import margaux as mx


def holes(n=400, seed=0, share=0.2):
    """Correlated covariates with holes, and the linear predictor."""
    rng = np.random.default_rng(seed)
    x = np.array([1.0, -2.0, 0.5]) + rng.normal(size=(n, 3)) @ np.array([[1.0, 0.6, 0.0], [0.0, 2.0, 0.5], [0.0, 0.0, 1.0]])
    eta = 0.3 + x @ np.array([1.0, -0.5, 0.0])
    seen = np.where(rng.random(x.shape) < share, np.nan, x)
    return seen, eta, rng


def binary(n=400, seed=0):
    x, eta, rng = holes(n, seed)
    return x, (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)


@pytest.fixture(scope="module")
def logistic():
    return mx.MissingLogistic(verbose=False).fit(*binary())


def read(folder, name):
    frame = pd.read_csv(folder / name)
    return frame.drop(columns="y").to_numpy(float), frame["y"].to_numpy()


@pytest.mark.slow
def test_the_vignette_is_exact(data_folder, reference):
    exact = reference("missing")["vignette"]
    model = mx.MissingLogistic(verbose=False).fit(*read(data_folder, "missing_vignette.csv"))
    np.testing.assert_allclose([model.intercept_, *model.coef_], exact["beta"], atol=1e-4)
    np.testing.assert_allclose(model.mean_, exact["mu"], atol=1e-4)
    assert model.loglik_ == pytest.approx(exact["loglik_joint"], abs=1e-3)
    assert model.loglik_outcome_ == pytest.approx(exact["loglik_y"], abs=1e-3)
    # Second differences of a separate row-by-row likelihood (60 nodes); the reference's own errors are 8 to 25% larger.
    np.testing.assert_allclose(model.summary()["se"], [0.3207, 0.3417, 0.2026, 0.1375, 0.1215, 0.1250], rtol=0.01)
    ses = model.summary()["se"].to_numpy()
    for seed in range(3):
        sampled = mx.MissingLogistic(method="saem", random_state=seed, verbose=False).fit(
            *read(data_folder, "missing_vignette.csv")
        )
        assert np.all(np.abs(np.r_[sampled.intercept_, sampled.coef_] - exact["beta"]) < 0.002 * ses)
        assert sampled.loglik_ == pytest.approx(exact["loglik_joint"], abs=1e-3) and sampled.certificate_.word == "certified"
        np.testing.assert_allclose(sampled.summary()["se"], ses, rtol=1e-4)


@pytest.mark.slow
def test_ten_percent_missing_is_exact_and_saem_comes_near(data_folder, reference):
    exact = reference("missing")["mcar10"]
    x, y = read(data_folder, "missing_mcar10.csv.gz")
    model = mx.MissingLogistic(verbose=False).fit(x, y)
    np.testing.assert_allclose([model.intercept_, *model.coef_], exact["beta"], atol=1e-4)
    assert model.loglik_ == pytest.approx(exact["loglik_joint"], abs=1e-3)
    for seed in range(10):
        sampled = mx.MissingLogistic(method="saem", random_state=seed, verbose=False).fit(x, y)
        np.testing.assert_allclose([sampled.intercept_, *sampled.coef_], exact["beta"], atol=0.015)


@pytest.mark.slow
def test_saem_comes_near_the_exact_answer_of_thirty_percent(data_folder):
    x, y = read(data_folder, "missing_mcar30.csv.gz")
    exact, sampled = (mx.MissingLogistic(method=method, verbose=False).fit(x, y) for method in ("exact", "saem"))
    np.testing.assert_allclose([sampled.intercept_, *sampled.coef_], [exact.intercept_, *exact.coef_], atol=0.02)
    assert exact.loglik_ >= sampled.loglik_


def ordinary(x, y):
    """Logistic regression of a complete table: coefficients and standard errors."""
    wide = np.c_[np.ones(len(x)), x]
    beta = np.zeros(wide.shape[1])
    for _ in range(30):
        chance = 1 / (1 + np.exp(-wide @ beta))
        information = wide.T @ (wide * (chance * (1 - chance))[:, None])
        beta = beta + np.linalg.solve(information, wide.T @ (y - chance))
    return beta, np.sqrt(np.diagonal(np.linalg.inv(information)))


@pytest.mark.slow
def test_coverage_of_intervals():
    truth, p, n = np.array([0.5, 1.0, -1.0, 0.5, 0.0, 0.8]), 5, 500
    root = np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(np.arange(p), np.arange(p))))
    inside = {"ours": [], "complete rows": [], "mean imputation": []}
    for seed in range(1000, 1500):
        rng = np.random.default_rng(seed)
        x = np.array([1.0, 0.0, -0.5, 2.0, 0.0]) + rng.normal(size=(n, p)) @ root.T
        y = (rng.random(n) < 1 / (1 + np.exp(-truth[0] - x @ truth[1:]))).astype(int)
        x[rng.random(x.shape) < 0.15] = np.nan
        frame = mx.MissingLogistic(verbose=False).fit(x, y).summary()
        whole = ~np.isnan(x).any(axis=1)
        found = {
            "ours": (frame["estimate"].to_numpy(), frame["se"].to_numpy()),
            "complete rows": ordinary(x[whole], y[whole]),
            "mean imputation": ordinary(np.where(np.isnan(x), np.nanmean(x, axis=0), x), y),
        }
        for name, (estimate, se) in found.items():
            inside[name].append(np.abs(estimate - truth) < 1.959964 * se)
    coverage = {name: np.mean(rows, axis=0) for name, rows in inside.items()}
    for name, share in coverage.items():
        print(f"coverage, {name}: {share.round(3)}")
    # Each share of 500 has a standard deviation of 0.01; over 2000 tables they are 0.943 to 0.960.
    ours = coverage["ours"]
    assert np.all((ours > 0.92) & (ours < 0.98)) and 0.935 < ours.mean() < 0.965
    assert coverage["mean imputation"].min() < 0.8


def test_nothing_missing_is_ordinary_regression():
    x, eta, rng = holes(share=0.0)
    y = eta + rng.normal(size=len(x))
    model = mx.MissingLinear(verbose=False).fit(x, y)
    wide = np.c_[np.ones(len(x)), x]
    beta, rss, *_ = np.linalg.lstsq(wide, y, rcond=None)
    np.testing.assert_allclose([model.intercept_, *model.coef_], beta, rtol=1e-6)
    assert model.params_["scale"] == pytest.approx(rss[0] / len(y), rel=1e-6)
    errors = np.sqrt(np.diagonal(np.linalg.inv(wide.T @ wide)) * rss[0] / len(y))
    np.testing.assert_allclose(model.summary()["se"], errors, rtol=1e-3)
    assert model.score(x, y) == pytest.approx(1 - rss[0] / np.sum((y - y.mean()) ** 2), rel=1e-6)


@pytest.mark.parametrize("family", ["probit", "poisson", "gaussian"])
def test_other_families_find_the_truth(family):
    x, eta, rng = holes(3000)
    draw = {"probit": lambda: (eta + rng.normal(size=eta.size) > 0).astype(int), "poisson": lambda: rng.poisson(np.exp(eta / 2)),
            "gaussian": lambda: eta + rng.normal(size=eta.size)}  # fmt: skip
    truth = np.array([0.3, 1.0, -0.5, 0.0]) / (2 if family == "poisson" else 1)
    model = mx.MissingGLM(family=family, verbose=False).fit(x, draw[family]())
    frame = model.summary()
    assert np.all(np.abs(frame["estimate"] - truth) < 4 * frame["se"])
    assert model.predict(x).shape == (3000,)


def test_weights_are_copies_and_an_offset_is_known():
    x, y = binary(200)
    twice = mx.MissingLogistic(verbose=False).fit(np.r_[x, x[:50]], np.r_[y, y[:50]])
    weighted = mx.MissingLogistic(verbose=False).fit(x, y, sample_weight=np.r_[np.full(50, 2.0), np.ones(150)])
    np.testing.assert_allclose(weighted.coef_, twice.coef_, atol=2e-5)
    assert weighted.loglik_ == pytest.approx(float(twice.loglik_), abs=1e-6)
    shifted = mx.MissingLogistic(verbose=False).fit(x, y, offset=np.full(200, 0.7))
    plain = mx.MissingLogistic(verbose=False).fit(x, y)
    assert shifted.intercept_ == pytest.approx(plain.intercept_ - 0.7, abs=1e-4)


def test_predictions_average_over_what_is_missing(logistic):
    row = np.array([[np.nan, -2.0, 0.5]])
    rng = np.random.default_rng(1)
    draws = rng.multivariate_normal(logistic.mean_, logistic.covariance_, size=1)  # noqa: F841 (the seed's first draw)
    o, m = [1, 2], 0
    cov = logistic.covariance_
    gain = cov[m, o] @ np.linalg.inv(cov[np.ix_(o, o)])
    mean = logistic.mean_[m] + gain @ (row[0, o] - logistic.mean_[o])
    sd = np.sqrt(cov[m, m] - gain @ cov[o, m])
    sample = np.c_[mean + sd * rng.normal(size=400_000), np.tile(row[0, o], (400_000, 1))]
    probability = 1 / (1 + np.exp(-logistic.intercept_ - sample @ logistic.coef_))
    assert logistic.predict_proba(row)[0, 1] == pytest.approx(probability.mean(), abs=4 * probability.std() / 400_000**0.5)
    assert logistic.conditional_mean(row)[0, 0] == pytest.approx(mean, abs=1e-8)
    assert set(logistic.predict(row)) <= {0, 1}


def test_completed_tables_keep_what_was_seen_and_average_to_the_conditional_mean(logistic):
    x, _ = binary()
    tables = logistic.impute(draws=400, key=3)
    assert tables.shape == (400, *x.shape) and not np.isnan(tables).any()
    seen = ~np.isnan(x)
    np.testing.assert_allclose(tables[0][seen], x[seen])
    gap = (tables.mean(axis=0) - logistic.conditional_mean())[~seen]
    error = tables.std(axis=0)[~seen] / 400**0.5
    assert np.mean(np.abs(gap) < 3 * error) > 0.98 and abs(np.mean(gap / error)) < 4 / len(gap) ** 0.5


def test_selection_by_bic_drops_what_does_nothing(logistic):
    for direction in ("backward", "forward", "exhaustive"):
        chosen = logistic.select(direction)
        assert chosen.coef_[2] == 0 and np.isnan(chosen.summary()["se"].iloc[3])
        assert chosen.bic_ < logistic.bic_ and chosen.selection_["chosen"].iloc[0]
        assert chosen.selection_["criterion"].iloc[0] == pytest.approx(chosen.bic_, abs=1e-4)


def test_formulas_frames_and_categories_agree():
    x, y = binary()
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=y, site=np.random.default_rng(0).choice(list("uvw"), len(y)))
    by_formula = mx.MissingLogistic(verbose=False).fit("y ~ a + b + c + site", frame)
    by_frame = mx.MissingLogistic(verbose=False).fit(frame.drop(columns="y"), frame["y"])
    np.testing.assert_allclose(by_formula.coef_, by_frame.coef_, atol=1e-6)
    assert list(by_formula.summary().index) == ["intercept", "a", "b", "c", "site[T.v]", "site[T.w]"]
    np.testing.assert_allclose(by_formula.predict_proba(frame), by_frame.predict_proba(frame.drop(columns="y")), atol=1e-6)
    logged = mx.MissingLogistic(verbose=False).fit("y ~ np.exp(a) + b", frame)
    assert np.isnan(logged.table_.x[:, 0]).sum() == np.isnan(x[:, 0]).sum()
    copy: Any = clone(by_frame)
    assert copy.get_params() == by_frame.get_params()


@pytest.mark.slow
def test_methods_of_the_engine_come_near_the_exact_answer(logistic):
    x, y = binary()
    ses = logistic.summary()["se"].to_numpy()
    for method, settings in [("saem", {}), ("mcem", {"n_iter": 80}), ("misso", {"n_iter": 300, "batch_size": 40})]:
        model = mx.MissingLogistic(method=method, verbose=False, **settings).fit(x, y)
        gap = np.abs(np.r_[model.intercept_ - logistic.intercept_, model.coef_ - logistic.coef_])
        assert np.all(gap < 1e-4 * ses), (method, gap / ses)
        assert float(model.loglik_) == pytest.approx(float(logistic.loglik_), abs=1e-7)
        np.testing.assert_allclose(model.summary()["se"], ses, rtol=1e-4)
        # By itself the method comes near.
        alone = mx.MissingLogistic(method=method, polish=False, verbose=False, **settings).fit(x, y)
        assert np.all(np.abs(np.r_[alone.intercept_ - logistic.intercept_, alone.coef_ - logistic.coef_]) < 0.2 * ses)
        assert alone.loglik_ <= logistic.loglik_ + 1e-6


def test_bad_settings_counts_and_new_data_are_refused(logistic):
    x, y = binary(60)
    for settings, told in [
        ({"method": "em"}, "method must be"),
        ({"curvature": "flat"}, "curvature"),
        ({"family": "t"}, "family"),
    ]:
        with pytest.raises(ValueError, match=told):
            mx.MissingGLM(**settings).fit(x, y)  # type: ignore
    with pytest.raises(ValueError, match="whole numbers"):
        mx.MissingGLM(family="poisson").fit(x, y - 0.5)
    with pytest.raises(ValueError, match="columns"):
        logistic.predict(x[:, :2])
    with pytest.raises(ValueError, match="weights"):
        mx.MissingLogistic().fit(x, y, sample_weight=np.full(60, -1.0))


def test_the_command_line_writes_tables_and_figures(tmp_path):
    from typer.testing import CliRunner

    from margaux.cli import app

    x, y = binary(200)
    pd.DataFrame(x, columns=["a", "b", "c"]).assign(outcome=y).to_csv(tmp_path / "table.csv", index=False)
    done = CliRunner().invoke(app, ["fit", "missing-logistic", str(tmp_path / "table.csv"), "--y", "outcome", "--draws", "2",
                                    "--select", "backward", "--out", str(tmp_path / "out")])  # fmt: skip
    assert done.exit_code == 0, done.output
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {
        "estimates.csv", "fit.json", "report.html", "covariates.csv", "certificate.csv", "selection.csv", "completed_1.csv",
        "completed_2.csv", "coefficients.png", "missingness.png",
    }  # fmt: skip
    refused = CliRunner().invoke(app, ["fit", "missing-logistic", str(tmp_path / "table.csv"), "--y", "nothing"])
    assert refused.exit_code == 2
