"""`MissingGLM` of several classes: against other estimators, its answers row by row, and what it refuses."""

import functools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import special
from sklearn.linear_model import LogisticRegression
from test_missing_multinomial import simulated

import margaux as mx


def labelled(n=400, seed=0, share=0.2, n_classes=3):
    data = simulated(n, seed=seed, share=share, n_classes=n_classes)
    return data.x, np.array(list("ABCDE"))[data.y.astype(int)], data.params


@pytest.fixture(scope="module")
def model():
    x, y, _ = labelled()
    return mx.MissingGLM(family="multinomial", verbose=False).fit(x, y)


@pytest.mark.slow
def test_two_classes_are_the_logistic_family():
    x, y, _ = labelled(n_classes=2)
    one = mx.MissingGLM(family="multinomial", verbose=False).fit(x, y)
    two: Any = mx.MissingLogistic(verbose=False).fit(x, y)
    np.testing.assert_allclose(one.coef_[0], two.coef_, atol=1e-6)
    assert one.loglik_ == pytest.approx(float(two.loglik_), abs=1e-6)
    np.testing.assert_allclose(one.summary()["se"], two.summary()["se"], rtol=1e-4)
    np.testing.assert_allclose(one.predict_proba(x), two.predict_proba(x), atol=1e-6)
    np.testing.assert_allclose(one.conditional_mean(), two.conditional_mean(), atol=1e-5)
    assert one.loglik_outcome_ == pytest.approx(two.loglik_outcome_, abs=1e-6)


def test_nothing_missing_is_ordinary_regression():
    x, y, _ = labelled(share=0.0)
    one = mx.MissingGLM(family="multinomial", verbose=False).fit(x, y)
    two = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(one.coef_, two.coef_[1:] - two.coef_[0], atol=1e-4)
    np.testing.assert_allclose(one.intercept_, two.intercept_[1:] - two.intercept_[0], atol=1e-4)
    np.testing.assert_allclose(one.predict_proba(x), two.predict_proba(x), atol=1e-5)
    p = two.predict_proba(x)[:, 1:]
    wide = np.column_stack([np.ones(len(x)), x])
    curvature = p[:, :, None] * np.eye(2) - p[:, :, None] * p[:, None]
    information = np.einsum("njl,nq,nr->jqlr", curvature, wide, wide).reshape(8, 8)
    np.testing.assert_allclose(one.summary()["se"], np.sqrt(np.diag(np.linalg.inv(information))), rtol=1e-3)


@pytest.mark.slow
def test_the_truth_is_recovered():
    x, y, params = labelled(4000, seed=3)
    one = mx.MissingGLM(family="multinomial", verbose=False).fit(x, y)
    frame = one.summary()
    assert np.abs((frame["estimate"] - params["beta"].ravel()) / frame["se"]).max() < 4
    assert one.coef_.shape == (2, 3) and one.intercept_.shape == (2,) and list(one.classes_) == ["A", "B", "C"]
    assert one.stderr_["coef"].shape == (2, 3) and one.stderr_["mean"].shape == (3,)
    assert one.n_params_ == 8 + 3 + 6 and one.bic_ > one.aic_


def test_rows_are_named_by_class_and_column(model):
    frame = model.summary()
    assert list(frame.index[:5]) == ["B: intercept", "B: x0", "B: x1", "B: x2", "C: intercept"] and "A" in frame.index.name
    assert len(model.plot.coefficients().get_yticks()) == 6


def test_probabilities_average_over_what_is_missing(model):
    rows = np.array([[np.nan, 0.4, -0.3], [np.nan, np.nan, 1.0], [np.nan, np.nan, np.nan], [0.1, 0.2, 0.3]])
    found, rng = model.predict_proba(rows), np.random.default_rng(0)
    for row, own in zip(rows, found, strict=True):
        m, cov, x = np.isnan(row), model.covariance_, np.tile(row, (400_000, 1))
        if m.any():
            gain = cov[np.ix_(m, ~m)] @ np.linalg.inv(cov[np.ix_(~m, ~m)])
            mean = model.mean_[m] + gain @ (row - model.mean_)[~m]
            x[:, m] = rng.multivariate_normal(mean, cov[np.ix_(m, m)] - gain @ cov[np.ix_(~m, m)], len(x))
        p = special.softmax(np.column_stack([np.zeros(len(x)), model.intercept_ + x @ model.coef_.T]), axis=1)
        assert np.all(np.abs(own - p.mean(axis=0)) < 1e-4 + 4 * p.std(axis=0) / len(x) ** 0.5)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_array_equal(model.predict(rows), model.classes_[found.argmax(axis=1)])
    x, y, _ = labelled()
    assert model.score(x, y) == np.mean(model.predict(x) == y) > 0.5


def test_completed_tables_average_to_the_conditional_mean(model):
    x, _, _ = labelled()
    tables, seen = model.impute(draws=400, key=3), ~np.isnan(x)
    assert tables.shape == (400, *x.shape) and not np.isnan(tables).any()
    np.testing.assert_allclose(tables[0][seen], x[seen])
    gap = (tables.mean(axis=0) - model.conditional_mean())[~seen]
    error = tables.std(axis=0)[~seen] / 400**0.5
    assert np.mean(np.abs(gap) < 3 * error) > 0.98 and abs(np.mean(gap / error)) < 4 / len(gap) ** 0.5


@pytest.mark.slow
def test_weights_are_copies_and_categories_are_covariates():
    x, y, _ = labelled(200)
    site = np.random.default_rng(0).choice(list("uv"), len(y))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(site=site)
    twice = mx.MissingGLM(family="multinomial", verbose=False).fit(pd.concat([frame, frame[:50]]), np.r_[y, y[:50]])
    weights = np.r_[np.full(50, 2.0), np.ones(150)]
    weighted = mx.MissingGLM(family="multinomial", verbose=False).fit(frame, y, sample_weight=weights)
    np.testing.assert_allclose(weighted.coef_, twice.coef_, atol=2e-5)
    assert weighted.loglik_ == pytest.approx(float(twice.loglik_), abs=1e-5)
    assert list(weighted.summary().index[:5]) == ["B: intercept", "B: a", "B: b", "B: c", "B: site[T.v]"]
    glm = mx.MissingGLM(family="multinomial", verbose=False)
    by_formula = glm.fit("y ~ a + b + c + site", frame.assign(y=y), weights)
    np.testing.assert_allclose(by_formula.coef_, weighted.coef_, atol=1e-6)
    assert weighted.mean_.shape == (2, 3) and weighted.predict_proba(frame).shape == (200, 3)


@pytest.mark.slow
def test_selection_drops_a_column_for_all_classes():
    x, y, _ = labelled()
    extra = np.column_stack([x, np.random.default_rng(1).normal(size=len(x))])
    one = mx.MissingGLM(family="multinomial", verbose=False).fit(extra, y)
    chosen = one.select()
    assert not chosen.coef_[:, 3].any() and chosen.coef_[:, :1].all()
    assert chosen.bic_ < one.bic_ and chosen.selection_["criterion"].iloc[0] == pytest.approx(chosen.bic_, abs=1e-3)
    assert chosen.n_params_ == one.n_params_ - 2 * (chosen.coef_ == 0).all(axis=0).sum()


@pytest.mark.parametrize(
    "method, settings",
    [("saem", {}), pytest.param("misso", {"n_iter": 300, "batch_size": 40}, marks=pytest.mark.slow),
     pytest.param("mcem", {"n_iter": 80}, marks=pytest.mark.slow)],
)  # fmt: skip
def test_methods_of_the_engine_come_near_the_exact_answer(model, method, settings):
    x, y, _ = labelled()
    one = mx.MissingGLM(family="multinomial", method=method, verbose=False, **settings).fit(x, y)
    gap = np.abs(one.summary()["estimate"] - model.summary()["estimate"]) / model.summary()["se"]
    assert gap.max() < 0.1
    assert one.loglik_ <= model.loglik_ + 1e-6


def test_classes_that_are_told_apart_together_are_warned_of():
    # Three sectors of the plane: none is on one side of a line.
    x = np.random.default_rng(0).normal(size=(150, 2))
    y = np.minimum((np.arctan2(x[:, 1], x[:, 0]) + np.pi) // (2 * np.pi / 3), 2)
    with pytest.warns(UserWarning, match="may be infinite"):
        mx.MissingGLM(family="multinomial", verbose=False).fit(x, y)


def test_what_cannot_be_fitted_is_refused(model):
    x, y, _ = labelled(60)
    glm = functools.partial(mx.MissingGLM, family="multinomial", verbose=False)
    with pytest.raises(ValueError, match="offset"):
        glm().fit(x, y, offset=np.ones(60))
    with pytest.raises(ValueError, match="offset"):
        model.predict_proba(x, offset=np.ones(60))
    with pytest.raises(ValueError, match="one row"):
        glm().fit(x, np.concatenate([["D"], y[1:]]))
    with pytest.raises(ValueError, match="at least two classes"):
        glm().fit(x, np.full(60, "A"))
    with pytest.raises(ValueError, match="weights of class C"):
        glm().fit(x, y, sample_weight=(y != "C").astype(float))
    with pytest.raises(ValueError, match="class C .* separates"):
        glm().fit(np.column_stack([x, (y == "C") + 0.1 * np.random.default_rng(0).random(60)]), y)
    with pytest.raises(ValueError, match="none of the classes"):
        model.conditional_mean(x, np.full(60, "Z"))
    pytest.raises(AttributeError, mx.MissingLinear().__getattribute__, "predict_proba")
    with pytest.raises(ValueError, match="multinomial"):
        mx.MissingLogistic().fit(x, y)
