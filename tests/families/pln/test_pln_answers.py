"""Answers of `PLNPCA` for units: posteriors, likelihoods, counts expected and drawn, frames, and exports."""

import importlib.util
import io
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy
from rich.console import Console
from test_pln import case, loglik

import margaux as mx
from margaux.families.pln import growth
from margaux.families.pln.answers import entropy, settled
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design
from margaux.families.pln.growth import precise
from margaux.families.pln.progress import SweepLine
from margaux.families.pln.proposals import PROPOSALS
from margaux.families.pln.refinement import Refinement
from margaux.families.pln.variational import Loadings, Posterior
from margaux.numerics.packing import symmetric

UNITS = [f"site {i}" for i in range(60)]


def given(n=60, p=8, seed=0):
    """Counts, covariates and offsets of named units; unit 7 and feature g3 have no counts, of which the unit is data."""
    rng = np.random.default_rng(seed)
    depth, size = rng.normal(size=n), rng.normal(0, 0.3, n)
    eta = 1 + 0.4 * depth[:, None] + size[:, None] + rng.normal(size=(n, 2)) @ rng.normal(0, 0.6, (2, p))
    y = rng.poisson(np.exp(eta))
    y[7], y[:, 3] = 0, 0
    index = pd.Index([f"site {i}" for i in range(n)])
    frame = pd.DataFrame(y, index=index, columns=[f"g{j}" for j in range(p)])
    return frame, pd.DataFrame({"depth": depth}, index=index), size


def fit(counts, covariates, offsets):
    with pytest.warns(UserWarning, match="left out"):
        return mx.PLNPCA(rank=2, n_starts=1, verbose=False).fit(counts, covariates=covariates, offsets=offsets)


@pytest.fixture(scope="module")
def fitted():
    return fit(*given())


@pytest.mark.parametrize("block, scale", [(1 << 22, 0.8), (5 * 12, 0.8), (1 << 22, 6.0)])
def test_posteriors_of_new_units_are_the_maximum_of_the_bound(block, scale):
    # The bound is concave in m and S, so that where its derivatives vanish it is highest.
    rng = np.random.default_rng(1)
    n, p, q = 17, 12, 3
    offset = np.linspace(-12, 12, n)[:, None]
    B, C = rng.normal(0, 0.5, (1, p)), rng.normal(0, scale, (p, q))
    y = np.floor(10.0 ** rng.uniform(-1, 6, (n, p)))
    with jax.enable_x64(True):
        found = settled(Design(Counts(y), np.ones((n, 1)), offset), Loadings(jnp.asarray(B), jnp.asarray(C)), block)
        m, S = found.mean, np.asarray(symmetric(jnp.asarray(found.spread)))
    eta = offset + B + m @ C.T
    A = np.exp(eta + np.einsum("jk,ikl,jl->ij", C, S, C) / 2)
    # A Newton step from there does not move the mean.
    np.testing.assert_allclose(np.einsum("ijk,ik->ij", S, (y - A) @ C - m), 0, atol=1e-7)
    inverse = np.eye(q) + np.einsum("jk,ij,jl->ikl", C, A, C)
    # The bound is flat there: what it is rounded to hides a relative change of S of the size of the root.
    hidden = np.sqrt(2 * np.finfo(float).eps * np.sum(y * np.abs(eta), axis=1).max())
    np.testing.assert_allclose(S @ inverse, np.broadcast_to(np.eye(q), S.shape), rtol=0, atol=hidden)


def test_the_score_of_new_units_against_quadrature():
    design, *_ = case(11, 50, 8, 1, 0.7, 1.0, 1, False)
    new, *_ = case(21, 400, 8, 1, 0.7, 1.0, 1, False)
    model = mx.PLNPCA(rank=1, n_starts=1, verbose=False).fit(design.counts.values)
    exact = loglik(new, model._loadings)
    # An estimate whose standard error is at most growth.ERROR.
    assert 400 * model.score(new.counts.values) == pytest.approx(exact, abs=4 * growth.ERROR)
    assert float(model.loglik_) == pytest.approx(loglik(design, model._loadings), abs=4 * model.loglik_.se)


def test_the_score_of_the_units_of_the_fit_is_their_log_likelihood(fitted):
    counts, covariates, offsets = given()
    score = fitted.score(counts, covariates=covariates, offsets=offsets)
    # The posteriors are those of the fit up to its tolerance, and draws are the same.
    assert score == pytest.approx(float(fitted.loglik_) / 60, abs=4 * np.sqrt(2) * fitted.loglik_.se / 60)


def test_every_kind_of_table_gives_the_same_answers(fitted):
    counts, covariates, offsets = given()
    kinds = [counts.to_numpy(), scipy.sparse.csr_matrix(counts.to_numpy()), counts[counts.columns[::-1]]]
    if importlib.util.find_spec("anndata"):
        import anndata  # pyright: ignore[reportMissingImports]

        kinds.append(anndata.AnnData(counts.astype(np.float32), obs=covariates))
    scores, spread = fitted.transform(counts, covariates, offsets, covariance=True)
    np.testing.assert_allclose(scores, fitted.scores_, atol=2e-3)
    np.testing.assert_allclose(spread, fitted.scores_covariance_, atol=2e-3)
    for kind in kinds:
        x = covariates if isinstance(kind, pd.DataFrame) else covariates.to_numpy()
        # The columns of an array without names are called x0, x1, and so on.
        x = pd.DataFrame(x, columns=["depth"]) if isinstance(x, np.ndarray) else x
        np.testing.assert_allclose(fitted.transform(kind, x, offsets), scores, rtol=0, atol=1e-7)


def test_a_unit_without_computed_offset_has_no_scores():
    counts, covariates, _ = given()
    with pytest.warns(UserWarning, match="left out"):
        model = mx.PLNPCA(rank=2, n_starts=1, method="variational", verbose=False)
        scores = model.fit_transform(counts, covariates=covariates, offsets="TSS")
    assert np.isnan(scores[7]).all() and np.isfinite(np.delete(scores, 7, axis=0)).all()
    np.testing.assert_array_equal(np.delete(scores, 7, axis=0), model.scores_)
    with pytest.warns(UserWarning, match="1 unit without counts"):
        mean, spread = model.transform(counts, covariates, covariance=True)
    assert np.isnan(mean[7]).all() and np.isnan(spread[7]).all()
    # By an offset of its own it is a unit as any other.
    assert np.isfinite(model.transform(counts, covariates, np.zeros(60))).all()


def test_expected_counts_at_scores(fitted):
    counts, covariates, offsets = given()
    own = fitted.inverse_transform(fitted.scores_)
    there = fitted.inverse_transform(fitted.scores_, covariates, offsets)
    x = np.column_stack([np.ones(60), covariates])
    exact = np.exp(offsets[:, None] + x @ fitted.coef_ + fitted.scores_ @ fitted.loadings_.T)
    for found in (own, there, fitted.predict(scores=fitted.scores_)):
        np.testing.assert_allclose(found, exact, rtol=1e-10)
    wide = np.tile(np.arange(8.0), (1, 1))
    one = fitted.inverse_transform(np.zeros((1, 2)), pd.DataFrame({"depth": [0.0]}), wide)
    np.testing.assert_allclose(one[0], np.exp(wide[0, np.arange(8) != 3] + fitted.coef_[0]))
    # The mean over N(0, I) by quadrature.
    node, weight = np.polynomial.hermite_e.hermegauss(20)
    grid = np.stack(np.meshgrid(node, node), axis=-1).reshape(-1, 2)
    at = fitted.predict(pd.DataFrame({"depth": np.full(400, 0.5)}), np.zeros(400), grid)
    mean = np.outer(weight, weight).ravel() / weight.sum() ** 2 @ at
    np.testing.assert_allclose(fitted.predict(pd.DataFrame({"depth": [0.5]}), [0.0])[0], mean, rtol=1e-8)


def test_simulated_counts_have_the_moments_of_the_model(fitted):
    m = 20_000
    depth, offsets = pd.DataFrame({"depth": np.full(m, 0.5)}), np.full(m, -0.5)
    drawn = fitted.simulate(covariates=depth, offsets=offsets, random_state=3)
    assert list(drawn.columns) == [f"g{j}" for j in range(8) if j != 3] and drawn.dtypes.eq(np.int64).all()
    y, mean = drawn.to_numpy(), fitted.predict(depth[:1], offsets[:1])[0]
    z = (y.mean(axis=0) - mean) / y.std(axis=0) * np.sqrt(m)
    # Seven means, and 28 second moments: the largest of 35 standard normal variables is below 4 but once in 500.
    assert np.abs(z).max() < 4
    second = np.outer(mean, mean) * np.exp(fitted.covariance_) + np.diag(mean)
    products = y[:, :, None] * y[:, None]
    z = (products.mean(axis=0) - second) / products.std(axis=0) * np.sqrt(m)
    assert np.abs(z).max() < 4
    # At given scores counts are Poisson: their dispersion is that of chi-squared variables.
    at = fitted.simulate(scores=np.tile([[0.5, -1.0]], (m, 1)), covariates=depth, offsets=offsets, random_state=4).to_numpy()
    dispersion = at.var(axis=0, ddof=1) / at.mean(axis=0)
    assert np.all(np.abs(dispersion - 1) < 4 * np.sqrt(2 / m))


def test_simulated_units(fitted):
    assert fitted.simulate().shape == (60, 7)
    pd.testing.assert_frame_equal(fitted.simulate(random_state=5), fitted.simulate(60, random_state=np.random.default_rng(5)))
    assert not fitted.simulate(random_state=5).equals(fitted.simulate(random_state=6))
    plain = mx.PLNPCA(rank=1, n_starts=1, verbose=False).fit(given()[0].drop(columns="g3").drop(index="site 7"))
    assert plain.simulate(5).shape == (5, 7)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda model: model.simulate(5), "the fit had covariates, so 5 units"),
        (lambda model: model.simulate(0), "n_units must be a whole number of at least 1, got 0"),
        (lambda model: model.simulate(3, scores=np.zeros((2, 2))), "scores have 2 rows, and n_units is 3"),
        (lambda model: model.simulate(3, covariates=pd.DataFrame({"depth": [1.0]})), "covariates have 1 rows, and there are 3"),
        (lambda model: model.inverse_transform(np.zeros((60, 3))), r"shape \(m, 2\).*got \(60, 3\)"),
        (lambda model: model.predict(pd.DataFrame({"depth": [1.0]})), "the fit had offsets in an array.*these units have none"),
        (lambda model: model.inverse_transform(np.zeros((60, 2)), offsets=np.zeros(3)), r"offsets must have shape \(60,\)"),
        (lambda model: model.proposal_quality(error=0.0), "error must be positive"),
        (lambda model: model.proposal_quality("prior"), "proposal must be one of"),
        (lambda model: model.summary(95), "level must be between 0 and 1"),
    ],
)
def test_what_is_refused(fitted, call, message):
    with pytest.raises(ValueError, match=message):
        call(fitted)


@pytest.mark.parametrize(
    "settings, error, message",
    [
        ({"n_starts": 0}, ValueError, "n_starts must be at least 1"),
        ({"max_sweeps": 2.5}, TypeError, "max_sweeps must be a whole number"),
        ({"random_state": -1}, ValueError, "random_state must be at least 0"),
        ({"tol": 0.0}, ValueError, "tol must be positive"),
        ({"dtype": "int32"}, ValueError, "dtype must be float32 or float64"),
        ({"posterior_covariance": "low rank"}, ValueError, 'must be "full" or "diagonal"'),
        ({"method": "vem"}, ValueError, "method must be one of 'auto', 'variational', 'isgd-vem'"),
        ({"refinement": {"epochs": 3}}, TypeError, "must be a margaux.families.pln.refinement.Refinement, not dict"),
        ({"refinement": Refinement(n_draws=100)}, ValueError, "n_draws must be a power of two"),
    ],
)
def test_settings_that_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        mx.PLNPCA(rank=1, **settings).fit(np.ones((5, 3)))


def test_frames_have_names(fitted):
    components, features = ["PC1", "PC2"], [f"g{j}" for j in range(8) if j != 3]
    loadings, scores, covariance = fitted.loadings_frame(), fitted.scores_frame(), fitted.covariance_frame()
    assert list(loadings.columns) == list(scores.columns) == list(fitted.get_feature_names_out()) == components
    assert list(loadings.index) == list(covariance.index) == list(covariance.columns) == features
    assert list(scores.index) == UNITS
    np.testing.assert_array_equal(loadings @ loadings.to_numpy().T, covariance)
    interval, summary = fitted.conf_int(0.9), fitted.summary(0.9)
    half = (interval["ci_high"] - interval["ci_low"]) / 2
    np.testing.assert_allclose(half / summary["se"], scipy.stats.norm.ppf(0.95), rtol=1e-8)


def test_scikit_learn_makes_frames_of_scores(fitted):
    from sklearn.base import clone

    counts, covariates, offsets = given()
    model = fit(counts, covariates, offsets)
    model.set_output(transform="pandas")
    frame = model.transform(counts, covariates, offsets)
    assert list(frame.columns) == ["PC1", "PC2"] and list(frame.index) == UNITS
    copy: Any = clone(model)
    assert not hasattr(copy, "result_") and copy.get_params() == model.get_params()


def test_criteria(fitted):
    S = fitted.scores_covariance_
    exact = sum(scipy.stats.multivariate_normal(cov=part).entropy() for part in S)
    with jax.enable_x64(True):
        assert entropy(fitted._posterior) == pytest.approx(exact, abs=1e-8)
    assert fitted.n_params_ == 7 * 2 + 7 * 2 - 1
    assert fitted.bic_ == pytest.approx(-2 * float(fitted.loglik_) + np.log(60) * fitted.n_params_)
    assert fitted.icl_ == pytest.approx(fitted.bic_ + 2 * exact)
    assert fitted.bounds_[-1] == fitted.elbo_ and len(fitted.bounds_) == fitted.n_sweeps_
    assert np.all(np.diff(fitted.bounds_) > -1e-7)


def test_the_quality_of_proposals(fitted):
    own = fitted.importance_
    assert list(own.columns) == ["loglik", "error", "draws", "ess", "pareto", "kl_from_proposal", "kl_from_conditional"]
    assert list(own.index) == list(fitted.scores_frame().index)
    assert float(fitted.loglik_) == pytest.approx(own["loglik"].sum()) and fitted.loglik_.se < growth.ERROR
    assert own["ess"].between(1, own["draws"] + 1e-9).all() and own["pareto"].max() < 0.7
    closest = fitted.proposal_quality("vem")["kl_from_proposal"].mean()
    for name in set(PROPOSALS) - {"vem mixture"}:
        other = fitted.proposal_quality(name)
        z = (other["loglik"].sum() - own["loglik"].sum()) / np.sqrt((other["error"] ** 2).sum() + (own["error"] ** 2).sum())
        # Four estimates of one number.
        assert abs(z) < 4
        # The variational Gaussian is the closest of all in the divergence that its bound has.
        assert other["kl_from_proposal"].mean() - closest > -0.01


def test_draws_grow_until_the_error_is_small(monkeypatch):
    design, B, C = case(12, 60, 10, 2, 0.6, 0.5, 2, True)
    n = design.counts.n
    with jax.enable_x64(True):
        loadings = Loadings(jnp.asarray(B), jnp.asarray(C))
        prior = Posterior(jnp.zeros((n, 2)), jnp.tile(np.eye(2)[np.tril_indices(2)], (n, 1)))
        monkeypatch.setattr(growth, "RATES", 0)
        rough = precise(design, loadings, prior, error=10.0, adapt=False)
        fine = precise(design, loadings, prior, error=rough.total[1] / 40)
        assert rough.draws.min() == growth.FEWEST < fine.draws.max() and fine.total[1] <= rough.total[1] / 40
        monkeypatch.setattr(growth, "MOST", 32)
        with pytest.warns(UserWarning, match=r"still has a standard error of .* above 0.000"):
            assert precise(design, loadings, prior, error=1e-6).draws.max() <= 512


def test_an_anndata_holds_the_fit(fitted):
    pytest.importorskip("anndata")
    counts, *_ = given()
    made = fitted.to_anndata()
    assert made.shape == (60, 7) and list(made.var_names) == list(fitted.table_.features)
    np.testing.assert_array_equal(made.X, counts.drop(columns="g3"))
    np.testing.assert_array_equal(made.obsm["X_plnpca"], fitted.scores_)
    np.testing.assert_array_equal(made.varm["PCs"], fitted.loadings_)
    np.testing.assert_array_equal(made.varm["coef"].to_numpy().T, fitted.coef_)
    assert list(made.obs.columns) == ["depth", "offset"] and made.uns["plnpca"]["rank"] == 2
    np.testing.assert_allclose(made.uns["plnpca"]["variance_ratio"], fitted.explained_variance_ratio_)
    sparse = mx.PLNPCA(rank=1, n_starts=1, verbose=False)
    sparse.fit(scipy.sparse.csr_matrix(counts.drop(columns="g3")), offsets=np.zeros((60, 7)))
    again = sparse.to_anndata()
    assert scipy.sparse.issparse(again.X) and again.layers["offset"].shape == (60, 7)


def test_an_anndata_without_its_library(fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(ImportError, match=r"pip install 'margaux\[outofcore\]'"):
        fitted.to_anndata()


def test_a_line_of_progress_for_long_fits(fitted, capsys):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    with SweepLine("PLNPCA of rank 2", n_starts=2, delay=0.0, console=console) as line:
        for sweep in (0, 1, 0, 30):
            line(sweep, -123.456)
            assert line._line is not None
            line._line._line._bar.refresh()
    text = shown.getvalue()
    for part in (
        "PLNPCA of rank 2",
        "start 1 of 2  sweep 2  bound -123.46",
        "start 2 of 2  sweep 1",
        "the better starts  sweep 31",
    ):
        assert part in text
    with SweepLine("short", console=console) as line:
        line(0, 0.0)
    assert "short" not in shown.getvalue()
