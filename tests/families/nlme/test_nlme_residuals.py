"""Residuals, npde and simulated bands of nonlinear mixed-effects models: calibration and arithmetic, without a fit."""

import time

import numpy as np
import pytest
from scipy import stats

import margaux.families.nlme.residuals as module
from margaux.families.nlme.residuals import as_simulated, discrepancies, standard_normal
from margaux.families.nlme.vpc import bands, binned, followed_until, kaplan_meier, percentiles, survival_bands

TIMES = np.array([0.25, 0.5, 1.0, 2.0, 3.5, 5.0, 7.0, 9.0, 12.0, 24.0])


def pk(rng, shape, ka=1.6, error=0.7):
    """Concentrations (*shape, 10) of an oral dose, one compartment, from known parameters."""
    effects = np.exp(rng.normal(size=(*shape, 3)) * np.sqrt([0.4, 0.02, 0.07]))
    ka, V, CL = (typical * effects[..., j, None] for j, typical in enumerate((ka, 32.0, 2.8)))
    k = CL / V
    f = 320 * ka / (V * (ka - k)) * (np.exp(-k * TIMES) - np.exp(-ka * TIMES))
    return f + error * rng.normal(size=f.shape)


def global_p(rng, subjects, sets, n_simulations=1000, method="cholesky", **wrong):
    """Global p-values of data sets from `wrong` parameters under the true ones."""
    out = []
    for _ in range(sets):
        y, simulations = pk(rng, (subjects,), **wrong), pk(rng, (n_simulations, subjects))
        out.append(standard_normal(discrepancies(y, np.ones(y.shape), simulations, method).npde)["p"]["global"])
    return np.asarray(out)


def test_npde_of_data_from_the_model_pass_their_tests():
    # 190 of 200 are expected to pass; fewer than 180 do with a probability of 0.1%.
    assert np.sum(global_p(np.random.default_rng(2), 12, 200) > 0.05) >= 180


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cholesky", "eigen"])
@pytest.mark.parametrize("subjects", [12, 24, 40])
def test_npde_pass_in_93_of_100_simulations(subjects, method):
    passed = np.sum(global_p(np.random.default_rng(1), subjects, 100, method=method) > 0.05)
    print(f"{subjects} subjects, {method}: {passed} of 100 pass")
    assert passed >= 93


@pytest.mark.slow
def test_npde_keep_their_level():
    p = global_p(np.random.default_rng(3), 40, 1000)
    assert np.mean(p < 0.05) < 0.07


def test_npde_reject_twice_the_error_and_another_absorption():
    rng = np.random.default_rng(4)
    assert np.all(global_p(rng, 12, 10, error=1.4) < 0.05)
    assert np.mean(global_p(rng, 40, 20, ka=0.7) < 0.05) >= 0.8


def _rich(rng, shape, skewed=False):
    """Forty rows a subject, with an error of a fifth of the prediction."""
    effects = np.exp(0.5 * rng.normal(size=(*shape, 2)))
    f = effects[..., :1] * np.exp(-np.linspace(0, 3, 40) * effects[..., 1:])
    e = rng.exponential(size=f.shape) - 1 if skewed else rng.normal(size=f.shape)
    return f * (1 + 0.2 * e)


@pytest.mark.parametrize(("skewed", "rejected"), [(False, range(3)), (True, range(15, 16))])
def test_npde_of_a_subject_that_depend_on_each_other(skewed, rejected):
    """Under the model the tests that take them to be independent reject two in three of these sets at a hundredth."""
    rng, independent, simulated = np.random.default_rng(5), 0, 0
    for _ in range(15):
        y, simulations = _rich(rng, (60,), skewed), _rich(rng, (400, 60))
        found = discrepancies(y, np.ones(y.shape), simulations)
        p = as_simulated(found.npde.ravel(), found.spread)
        simulated += 3 * min(p.values()) < 0.01
        independent += bool(float(standard_normal(found.npde.ravel())["p"].to_dict()["global"]) < 0.01)
    print(f"{independent} and as simulated {simulated} of 15")
    assert independent >= 5 and simulated in rejected


def test_a_thousand_simulations_of_400_observations_take_well_under_a_second():
    rng = np.random.default_rng(0)
    y, simulations = pk(rng, (40,)), pk(rng, (1000, 40))
    start = time.perf_counter()
    discrepancies(y, np.ones(y.shape), simulations)
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("method", ["cholesky", "eigen"])
def test_weighted_residuals_are_those_of_the_formula(method):
    rng = np.random.default_rng(1)
    y, simulations = pk(rng, (3,)), pk(rng, (400, 3))
    found = discrepancies(y, np.ones(y.shape), simulations, method)
    for i in range(3):
        gap, V = y[i] - simulations[:, i].mean(axis=0), np.cov(simulations[:, i].T)
        values, vectors = np.linalg.eigh(V)
        root = np.linalg.inv(np.linalg.cholesky(V)) if method == "cholesky" else vectors / np.sqrt(values) @ vectors.T
        np.testing.assert_allclose(found.wres[i], root @ gap, rtol=1e-6)
        np.testing.assert_allclose(found.sd[i] ** 2, np.diagonal(V), rtol=1e-10)


def test_without_correlation_decorrelation_changes_little():
    rng = np.random.default_rng(5)
    y, simulations = rng.normal(size=(30, 4)), rng.normal(size=(4000, 30, 4))
    found = discrepancies(y, np.ones(y.shape), simulations)
    np.testing.assert_allclose(found.npde, found.npd, atol=0.35)
    np.testing.assert_allclose(found.npde, y, atol=0.4)


def test_padding_and_blocks_change_nothing(monkeypatch):
    rng = np.random.default_rng(6)
    y, simulations, mask = pk(rng, (5,)), pk(rng, (200, 5)), np.ones((5, 10))
    mask[2, 6:] = 0
    whole = discrepancies(y, mask, simulations)
    wider = lambda a, fill: np.concatenate([a, np.full((*a.shape[:-1], 3), fill)], axis=-1)  # noqa: E731
    monkeypatch.setattr(module, "BLOCK", 1)
    padded = discrepancies(wider(y, 9.0), wider(mask, 0.0), wider(simulations, 7.0))
    for name in whole._fields:
        np.testing.assert_allclose(getattr(padded, name)[:, :10], getattr(whole, name), rtol=1e-9, atol=1e-9)
        assert np.all(np.isnan(getattr(padded, name)[:, 10:]))
    alone = discrepancies(y[2:3, :6], np.ones((1, 6)), simulations[:, 2:3, :6])
    np.testing.assert_allclose(whole.npde[2, :6], alone.npde[0], atol=1e-9)


def test_extremes_stay_finite_and_ties_are_central():
    rng = np.random.default_rng(7)
    simulations = rng.normal(size=(500, 1, 3))
    simulations[:, :, 2] = rng.integers(0, 2, size=(500, 1))
    found = discrepancies(np.array([[50.0, -50.0, 0.0]]), np.ones((1, 3)), simulations)
    np.testing.assert_allclose(found.pd[0, :2], [1 - 1 / 1000, 1 / 1000])
    assert np.all(np.isfinite(found.npde)) and np.abs(found.npde).max() <= stats.norm.isf(1 / 1000) + 1e-9
    assert 0.2 < found.pd[0, 2] < 0.3


def test_a_row_that_never_varies_has_no_residual_and_spoils_no_other():
    rng = np.random.default_rng(8)
    y, simulations = rng.normal(size=(4, 5)), rng.normal(size=(300, 4, 5))
    simulations[:, :, 0] = 1e-12 * rng.normal(size=(300, 4))
    found = discrepancies(y, np.ones(y.shape), simulations)
    rest = discrepancies(y[:, 1:], np.ones((4, 4)), simulations[:, :, 1:])
    assert np.all(np.isnan(found.npde[:, 0])) and np.all(np.isfinite(found.mean))
    np.testing.assert_allclose(found.wres[:, 1:], rest.wres, rtol=1e-8)


def test_discrepancies_say_what_is_wrong():
    y = np.zeros((1, 10))
    with pytest.raises(ValueError, match="too few for subjects of 10 observations; take 30"):
        discrepancies(y, np.ones(y.shape), np.zeros((20, 1, 10)))
    with pytest.raises(ValueError, match='"cholesky" or "eigen"'):
        discrepancies(y, np.ones(y.shape), np.zeros((40, 1, 10)), "qr")
    with pytest.raises(ValueError, match="at least 3 npde"):
        standard_normal(np.array([0.1, np.nan, 0.2]))


def test_tests_are_those_of_the_literature():
    z = np.random.default_rng(9).normal(size=6000)
    found = standard_normal(np.append(z, np.nan))
    assert found.loc["global", "p"] == pytest.approx(min(1.0, 3 * found["p"].iloc[:3].min()))
    assert found.loc["mean", "p"] == pytest.approx(stats.wilcoxon(z, method="approx")[1])
    spread = 5999 * z.var(ddof=1)
    assert found.loc["variance", "p"] == pytest.approx(2 * min(stats.chi2.cdf(spread, 5999), stats.chi2.sf(spread, 5999)))
    assert standard_normal(z + 0.2).loc["mean", "p"] < 1e-6 and standard_normal(1.2 * z).loc["variance", "p"] < 1e-6
    assert standard_normal(stats.norm.isf(stats.t.sf(z, 3))).loc["normality", "p"] < 1e-3


def test_bands_hold_data_from_the_model():
    rng = np.random.default_rng(10)
    x = np.tile(TIMES, 40)
    inside = []
    for _ in range(20):
        y, simulations = pk(rng, (40,)).ravel(), pk(rng, (300, 40)).reshape(300, -1)
        band = bands(x, y, simulations, percentiles, 10)
        inside.append((band.low <= band.observed) & (band.observed <= band.high))
    np.testing.assert_allclose(np.mean(inside, axis=(0, 1)), 0.95, atol=0.04)


def test_bins_hold_about_the_same_number_and_every_row():
    x = np.random.default_rng(11).exponential(size=1000)
    codes, centres = binned(x, 8)
    assert len(centres) == 8 and np.all(np.diff(centres) > 0)
    assert np.bincount(codes).min() >= 120
    assert np.all(np.diff(codes[np.argsort(x)]) >= 0)
    codes, centres = binned(np.array([3.0, 1.0, 3.0]), 5)
    np.testing.assert_array_equal(centres[codes], [3.0, 1.0, 3.0])


def test_kaplan_meier_with_ties_and_censoring():
    at, event = np.array([2.0, 2.0, 2.0, 3.0, 5.0, 5.0]), np.array([1, 1, 0, 1, 1, 0])
    expected = [1.0, 4 / 6, 4 / 6 * 2 / 3, 4 / 9 / 2, 4 / 9 / 2]
    np.testing.assert_allclose(kaplan_meier(at, event, np.array([1.9, 2.0, 3.0, 5.0, 9.0])), expected)


def test_survival_bands_hold_data_from_the_model_under_censoring():
    rng = np.random.default_rng(12)
    inside = []
    for _ in range(30):
        life, leave = 400 * rng.weibull(1.3, 100), rng.uniform(100, 900, 100)
        seen, event = np.minimum(life, leave), (life <= leave).astype(float)
        ends = followed_until(seen, event, rng, 200)
        assert np.all(ends[:, event == 0] == seen[event == 0])
        assert np.all(ends[:, event == 1] >= seen[event == 1])
        band = survival_bands(seen, event, 400 * rng.weibull(1.3, (200, 100)), 0.95, 0)
        # Not near time zero, where the curves are discrete: nobody or a few have had the event.
        inside.append(((band.low <= band.observed) & (band.observed <= band.high))[20:150])
    assert 0.91 < np.mean(inside) <= 0.99
