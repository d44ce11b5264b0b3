"""`PLNPCA`: what it finds, its answers for other units, and its errors."""

import pickle

import jax
import numpy as np
import pandas as pd
import pytest

import margaux as mx


def simulated(n=200, p=25, q=2, seed=0):
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 2, n)
    B, C = np.array([rng.normal(1.0, 0.5, p), rng.normal(0.0, 0.4, p)]), rng.normal(0, 0.6, (p, q))
    w = rng.normal(size=(n, q))
    counts = rng.poisson(np.exp(B[0] + site[:, None] * B[1] + w @ C.T))
    frame = pd.DataFrame(counts, columns=[f"g{j}" for j in range(p)])
    return frame, pd.DataFrame({"site": np.where(site, "south", "north")}), B, C, w


@pytest.fixture(scope="module")
def fitted():
    counts, sites, *_ = simulated()
    return mx.PLNPCA(rank=2, n_starts=3).fit(counts, covariates=sites, formula="~ site")


def test_it_finds_what_was_simulated(fitted):
    *_, B, C, w = simulated()
    frame = fitted.summary()
    assert fitted.converged_ and frame.shape == (50, 6) and frame.index.names == ["covariate", "feature"]
    z = (frame["estimate"].to_numpy() - B.ravel()) / frame["se"].to_numpy()
    # Features share the latents, so that z are correlated.
    assert np.abs(z).max() < 4.5 and np.mean(z**2) < 2.5
    np.testing.assert_allclose(np.diag(fitted.covariance_), np.sum(C**2, axis=1), rtol=0.5, atol=0.15)
    # The latents up to a rotation: regressed on the scores they leave little.
    rest = w - fitted.scores_ @ np.linalg.lstsq(fitted.scores_, w, rcond=None)[0]
    assert rest.var() < 0.25 * w.var()
    gram = fitted.loadings_.T @ fitted.loadings_
    np.testing.assert_allclose(gram, np.diag(np.diagonal(gram)), atol=1e-8)
    assert fitted.explained_variance_ratio_[0] >= fitted.explained_variance_ratio_[1]
    assert fitted.elbo_ <= float(fitted.loglik_) + 4 * fitted.loglik_.se
    assert float(fitted.loglik_) - fitted.elbo_ < 5
    assert fitted.scores_covariance_.shape == (200, 2, 2)


def test_the_units_of_the_fit_are_transformed_to_their_scores(fitted):
    counts, sites, *_ = simulated()
    np.testing.assert_allclose(fitted.transform(counts, sites), fitted.scores_, atol=2e-3)
    some = counts.iloc[:5].copy()
    some.iloc[2] = 0
    scores = fitted.transform(some[some.columns[::-1]], sites.iloc[:5])
    assert np.isfinite(scores[2]).all()
    np.testing.assert_allclose(scores[[0, 1, 3, 4]], fitted.scores_[[0, 1, 3, 4]], atol=2e-3)


def test_predictions_are_expected_counts(fitted):
    counts, *_ = simulated()
    np.testing.assert_allclose(fitted.predict().mean(axis=0), counts.mean(axis=0), rtol=0.3)
    inside = fitted.predict(scores=fitted.scores_)
    assert np.corrcoef(np.log(inside.ravel()), np.log1p(counts.to_numpy().ravel()))[0, 1] > 0.8
    assert fitted.predict(pd.DataFrame({"site": ["south"]})).shape == (1, 25)


def test_bad_settings_and_absent_species():
    counts, sites, *_ = simulated(60, 8)
    with pytest.raises(ValueError, match="rank must be between"):
        mx.PLNPCA(rank=9).fit(counts)
    counts.loc[sites["site"] == "south", "g3"] = 0
    with pytest.warns(UserWarning, match=r"g3 \(site\[T.south\]\)"):
        model = mx.PLNPCA(rank=1, n_starts=1).fit(counts, covariates=sites, formula="~ site")
    assert np.isnan(model.summary().loc[("site[T.south]", "g3"), ["estimate", "se"]]).all()
    assert np.isfinite(model.summary()["estimate"].drop(("site[T.south]", "g3"))).all()


def test_the_likelihood_is_ascended_where_that_raises_it():
    rng = np.random.default_rng(2)
    counts = rng.poisson(np.exp(-1 + rng.normal(size=(150, 2)) @ rng.normal(0, 1.4, (2, 8))))
    counts = counts[counts.sum(axis=1) > 0]
    start = mx.PLNPCA(rank=2, n_starts=1, method="variational").fit(counts)
    assert start.refinement_ is None and start.ascent_ == "the variational estimate"
    model = mx.PLNPCA(rank=2, n_starts=1).fit(counts)
    history = model.refinement_
    rise = history["loglik"].iloc[-1] - history["loglik"].iloc[0]
    assert rise > 0.01 and f"is {rise:.3f} above" in model.ascent_ and model.elbo_ == start.elbo_
    error = np.hypot(model.loglik_.se, start.loglik_.se)
    assert float(model.loglik_) - float(start.loglik_) == pytest.approx(rise, abs=4 * error)
    np.testing.assert_allclose(model.transform(counts), model.scores_, atol=1e-6)
    gram = model.loadings_.T @ model.loadings_
    np.testing.assert_allclose(gram, np.diag(np.diagonal(gram)), atol=1e-8)


def test_posteriors_with_independent_latents():
    counts, *_ = simulated(80, 10)
    settings = {"rank": 2, "n_starts": 1, "method": "variational"}
    full, diagonal = mx.PLNPCA(**settings).fit(counts), mx.PLNPCA(posterior_covariance="diagonal", **settings).fit(counts)
    assert full.elbo_ - 20 < diagonal.elbo_ < full.elbo_ - 0.1


def test_a_fit_is_pickled_with_its_likelihood(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    assert float(again.loglik_) == float(fitted.loglik_) and again.loglik_.se == fitted.loglik_.se
    value = pickle.loads(pickle.dumps(fitted.loglik_))
    assert value == fitted.loglik_ and value.se == fitted.loglik_.se
    np.testing.assert_array_equal(value.per_unit, fitted.loglik_.per_unit)


def test_units_and_origins_of_covariates_change_nothing():
    rng = np.random.default_rng(3)
    year, other = rng.integers(1990, 2021, 80).astype(float), 1e5 + 1e6 * rng.normal(size=80)
    raw = pd.DataFrame({"year": year, "other": other})
    plain = (raw - raw.mean()) / raw.std()
    effect = 0.4 * plain["year"].to_numpy()[:, None] * rng.normal(size=8)
    counts = rng.poisson(np.exp(1 + effect + rng.normal(size=(80, 2)) @ rng.normal(0, 0.8, (2, 8))))
    one, two = (mx.PLNPCA(rank=2, n_starts=1, tol=1e-6).fit(counts, covariates=x) for x in (raw, plain))
    assert one.converged_ and one.elbo_ == pytest.approx(two.elbo_, abs=1e-4)
    assert float(one.loglik_) == pytest.approx(float(two.loglik_), abs=1e-3)
    for found, wanted in ((one.coef_, two.coef_), (one.stderr_["coef"], two.stderr_["coef"])):
        np.testing.assert_allclose(found[1:] * raw.std().to_numpy()[:, None], wanted[1:], atol=1e-3)
    np.testing.assert_allclose(one.predict(), two.predict(), rtol=1e-3)
    np.testing.assert_allclose(one.transform(counts, raw), one.scores_, atol=1e-5)


def test_rows_in_another_order_are_refused():
    counts, sites, *_ = simulated(30, 6)
    with pytest.raises(ValueError, match='row 0 is "0" in counts and "29" in covariates'):
        mx.PLNPCA(rank=1).fit(counts, covariates=sites[::-1])
    with pytest.raises(TypeError, match="covariates are given twice"):
        mx.PLNPCA(rank=1).fit(counts, sites, covariates=sites)


def test_the_second_argument_is_covariates_and_a_vector_is_a_column():
    counts, *_ = simulated(30, 6)
    depth = np.linspace(-1, 1, 30)
    settings = {"rank": 1, "n_starts": 1, "method": "variational"}
    one, two = mx.PLNPCA(**settings).fit(counts, depth), mx.PLNPCA(**settings).fit(counts, covariates=depth[:, None])
    assert one.table_.covariate_names == ["Intercept", "x0"]
    np.testing.assert_array_equal(one.coef_, two.coef_)
    # A pipeline passes its target there.
    assert mx.PLNPCA(**settings).fit_transform(counts, depth).shape == (30, 1)


def test_empty_units_are_data_and_have_posteriors():
    counts = np.random.default_rng(0).poisson(0.4, (200, 3))
    empty = counts.sum(axis=1) == 0
    model = mx.PLNPCA(1, n_starts=1, method="variational").fit(counts)
    assert empty.sum() > 40 and len(model.scores_) == 200
    # Of independent Poisson counts the rates are the means.
    np.testing.assert_allclose(model.predict()[0], counts.mean(axis=0), rtol=0.1)
    assert np.isfinite(model.transform(counts * 0, covariance=True)[0]).all()
    with pytest.warns(UserWarning, match="units without counts"):
        named = mx.PLNPCA(1, n_starts=1, method="variational").fit(counts, offsets="total")
    with pytest.raises(ValueError, match='the fit had offsets computed from the counts by "total".*np.full'):
        named.simulate(5)
    assert named.simulate(offsets=np.zeros(4), n_units=4).shape == (4, 3)


def test_formulas_with_random_effects_are_refused_in_plain_words():
    counts, sites, *_ = simulated(30, 6)
    for formula in ("~ 1 + (1|site)", "~ (1 | site)"):
        with pytest.raises(ValueError, match="is a random effect") as refused:
            mx.PLNPCA(1).fit(counts, covariates=sites, formula=formula)
        assert "\x1b" not in str(refused.value)
    with pytest.raises(ValueError, match="cannot read the formula") as refused:
        mx.PLNPCA(1).fit(counts, covariates=sites, formula="~ site +")
    assert "\x1b" not in str(refused.value) and "\n" not in str(refused.value)


def test_single_precision_under_double_flags():
    counts, *_ = simulated(40, 6)
    with jax.enable_x64(True):
        model = mx.PLNPCA(rank=1, n_starts=1, dtype="float32").fit(counts)
    assert model.elbo_ == mx.PLNPCA(rank=1, n_starts=1).fit(counts).elbo_


def test_sweeps_are_bounded_whatever_the_starts():
    counts, *_ = simulated(40, 6)
    with pytest.warns(UserWarning, match="the bound still rises after 1 sweeps"):
        model = mx.PLNPCA(rank=1, n_starts=3, max_sweeps=1, method="variational").fit(counts)
    assert model.starts_["sweeps"].tolist() == [1, 1, 1]


def test_covariates_of_new_units_are_asked_for(fitted):
    counts, *_ = simulated()
    with pytest.raises(ValueError, match=r"the fit had covariates \(Intercept, site\[T.south\]\); pass those of the new units"):
        fitted.transform(counts)
