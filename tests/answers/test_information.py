"""Information matrices, Wald tables, profiles and draws against arithmetic on a model whose scores are known."""

import numpy as np
import pytest
from scipy import stats

import margaux as mx
from helpers import Gaussian, unmoved
from margaux.answers.draws import continued
from margaux.answers.information import _invert, information
from margaux.answers.scores import Evaluation

N = 60


@pytest.fixture(scope="module")
def fit():
    return unmoved(N, mx.MCMC(mx.MALA(0.5), n_chains=2), n_iter=3)


@pytest.fixture(scope="module")
def known(fit):
    """Scores (n, 2) and the observed information of (mu, log tau2), in closed form."""
    mu, tau2 = (float(fit.params[name]) for name in ("mu", "tau2"))
    r, v = np.asarray(fit.data) - mu, 1 + tau2
    of_tau2 = -1 / (2 * v) + r**2 / (2 * v**2)
    scores = np.column_stack([r / v, tau2 * of_tau2])
    cross = tau2 * np.sum(r) / v**2
    curved = tau2**2 * np.sum(-1 / (2 * v**2) + r**2 / v**3) - tau2 * np.sum(of_tau2)
    return scores, np.array([[N / v, cross], [cross, curved]]), np.diag([1.0, tau2])


def expected(method, scores, observed):
    inverse = np.linalg.inv(observed)
    if method == "louis":
        return inverse
    if method == "opg":
        centred = scores - scores.mean(axis=0)
        return np.linalg.inv(centred.T @ centred)
    return inverse @ (scores.T @ scores) @ inverse


@pytest.mark.parametrize("method", ["louis", "opg", "sandwich"])
def test_covariances_are_those_of_the_formulas(fit, known, method):
    scores, observed, jacobian = known
    info = fit.information(method, estep=mx.Quadrature(9))
    covariance = expected(method, scores, observed)
    # The three differ by a factor here: one cannot stand for another.
    others = [expected(other, scores, observed) for other in ("louis", "opg", "sandwich") if other != method]
    assert all(abs(np.log(other[1, 1] / covariance[1, 1])) > 0.3 for other in others)
    np.testing.assert_allclose(info.scores, scores, atol=1e-8)
    np.testing.assert_allclose(info.covariance, jacobian @ covariance @ jacobian, rtol=1e-7)
    np.testing.assert_allclose(info.matrix, np.linalg.inv(covariance), rtol=1e-7)
    np.testing.assert_allclose(info.newton, jacobian @ covariance @ scores.sum(axis=0), rtol=1e-7)
    assert info.message == ""


def test_replicates_average_matrices_and_scores_and_keep_each(fit):
    estep = mx.ImportanceSampling(64, control_variate=False)
    info = information(fit, estep=estep, replicates=3)
    assert info.matrices.shape == info.replicates.shape == (3, 2, 2)
    assert np.all(np.ptp(info.matrices, axis=0) > 0)
    assert np.all(np.diagonal(info.matrix) < np.diagonal(info.matrices.mean(axis=0)))  # without the noise of scores squared
    tau2 = float(fit.params["tau2"])
    for matrix, covariance in zip(info.matrices, info.replicates, strict=True):
        np.testing.assert_allclose(covariance, np.diag([1, tau2]) @ np.linalg.inv(matrix) @ np.diag([1, tau2]), rtol=1e-9)
    single = [information(fit, estep=estep).matrices[0] for _ in range(2)]
    np.testing.assert_array_equal(*single)
    np.testing.assert_allclose(single[0], info.matrices[0], rtol=1e-12)


def test_squares_of_scores_are_of_different_sets_of_draws():
    rng = np.random.default_rng(0)
    scores, complete = rng.normal(size=(3, 7, 2)), rng.normal(size=(3, 2, 2))
    complete = complete + np.swapaxes(complete, 1, 2)
    found = Evaluation(np.zeros(2), scores, complete, np.zeros((3, 7)), np.ones(7), np.ones(7))
    pairs = [scores[a].T @ scores[b] for a in range(3) for b in range(3) if a != b]
    np.testing.assert_allclose(found.matrix, complete.mean(axis=0) + np.mean(pairs, axis=0))
    np.testing.assert_allclose(found.matrices, [c + s.T @ s for c, s in zip(complete, scores, strict=True)])
    np.testing.assert_allclose(found.gradient, scores.mean(axis=0).sum(axis=0))


def test_errors_of_standard_errors_and_of_the_lowest_eigenvalue(fit):
    info = information(fit, estep=mx.ImportanceSampling(64, control_variate=False), replicates=4)
    each = np.sqrt(np.stack([np.diagonal(c) for c in info.replicates]))
    np.testing.assert_allclose(info.se, np.sqrt(np.diagonal(info.covariance)))
    np.testing.assert_allclose(info.se_error, each.std(axis=0, ddof=1) / 2)
    scale = np.sqrt(np.outer(np.diagonal(info.matrix), np.diagonal(info.matrix)))
    lowest = [np.linalg.eigvalsh(m / scale)[0] for m in (info.matrix, *info.matrices)]
    assert info.lowest == pytest.approx((lowest[0], np.std(lowest[1:], ddof=1) / 2))
    exact = information(fit, estep=mx.Quadrature(9))
    assert not np.any(exact.se_error) and exact.lowest[1] == 0.0


def test_inverses_leave_out_the_edge_and_what_is_singular():
    matrix = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
    whole, message = _invert(matrix, np.eye(3), np.zeros(3, bool), list("abc"))
    np.testing.assert_allclose(whole, np.linalg.inv(matrix))
    assert message == ""
    part, message = _invert(matrix, np.eye(3), np.array([False, True, False]), list("abc"))
    np.testing.assert_allclose(part[np.ix_([0, 2], [0, 2])], np.linalg.inv(matrix[np.ix_([0, 2], [0, 2])]))
    assert not np.any(part[1]) and not np.any(part[:, 1]) and message == "on the boundary, without standard error: b; "
    none, _ = _invert(matrix, np.eye(3), np.ones(3, bool), list("abc"))
    assert np.all(np.isnan(none))
    # Scaled eigenvalues of about 1e-3 and 3, and a third just below or above 3e-9.
    q, _ = np.linalg.qr(np.array([[1.0, 1.0, 1.0], [1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]).T)
    for lowest, singular in ((2e-9, True), (5e-9, False)):
        out, message = _invert((q * [3.0, 1e-3, lowest]) @ q.T, np.eye(3), np.zeros(3, bool), list("abc"))
        assert bool(np.all(np.isnan(out))) == singular == ("singular" in message)


@pytest.mark.parametrize("method", ["louis", "sandwich"])
def test_wald_tables_are_arithmetic_on_the_covariance(fit, method):
    frame = fit.summary(level=0.9, method=method)
    se = np.sqrt(np.diagonal(fit.information(method).covariance))
    estimate = np.array([float(fit.params[name]) for name in frame.index])
    np.testing.assert_allclose(frame["estimate"], estimate)
    np.testing.assert_allclose(frame["se"], se)
    np.testing.assert_allclose(frame["z"], estimate / se)
    np.testing.assert_allclose(frame["p"], 2 * stats.norm.sf(np.abs(estimate / se)))
    half = stats.norm.ppf(0.95) * se
    np.testing.assert_allclose(frame["ci_low"], estimate - half)
    np.testing.assert_allclose(frame["ci_high"], estimate + half)
    assert frame["se"].iloc[1] != pytest.approx(fit.summary(method="opg")["se"].iloc[1], rel=0.05)


@pytest.mark.parametrize("method", ["louis", "opg", "sandwich"])
def test_wald_tests_are_arithmetic_on_the_covariance(fit, method):
    estimate = np.array([float(fit.params[name]) for name in ("mu", "tau2")])
    covariance = fit.information(method).covariance
    r, value = np.array([[1.0, -0.5], [0.0, 2.0]]), np.array([0.2, 3.0])
    gap = r @ estimate - value
    found = fit.wald_test(r, value, method)
    assert found.df == 2
    assert found.statistic == pytest.approx(gap @ np.linalg.inv(r @ covariance @ r.T) @ gap)
    assert found.p == pytest.approx(stats.chi2.sf(found.statistic, 2))
    assert fit.wald_test("tau2", 1.0, method).statistic == pytest.approx((estimate[1] - 1) ** 2 / covariance[1, 1])
    with pytest.raises(ValueError, match="linearly dependent"):
        fit.wald_test(np.array([[1.0, 0.0], [2.0, 0.0]]), method=method)


def test_a_matrix_of_scores_needs_more_units_than_parameters():
    few = mx.fit(Gaussian(), np.array([0.0, 3.0]), mx.soul(1e-12, mx.LastIterate()), mx.Quadrature(5), n_iter=1,
                 params={"mu": 0.5, "tau2": 1.0}, space={"tau2": mx.Positive()}, polish=False, progress=False)  # fmt: skip
    for method in ("opg", "sandwich"):
        with pytest.raises(ValueError, match=r"more units \(2\) than parameters \(2\)"):
            few.information(method)
    with pytest.raises(ValueError, match='"louis", "opg" or "sandwich"'):
        few.information("fisher")


def test_latents_and_draws_are_those_of_the_conjugate_posterior(fit):
    mu, tau2 = (float(fit.params[name]) for name in ("mu", "tau2"))
    variance = 1 / (1 + 1 / tau2)
    mean = variance * (np.asarray(fit.data) + mu / tau2)
    z, figures = continued(fit, 3000, thin=3)
    np.testing.assert_array_equal(z, fit.draws(3000, thin=3))
    assert z.shape == (3000, 2, N)
    assert figures["acceptance"].shape == (3000,) and 0.2 < figures["acceptance"].mean() < 1
    # 360,000 draws of neighbours three transitions apart: far closer than this, as a whole.
    scaled = (z - mean) / np.sqrt(variance)
    assert abs(scaled.mean()) < 0.02 and abs(scaled.std() - 1) < 0.02
    # Thinned neighbours are less alike.
    lag = lambda x: np.mean(x[1:] * x[:-1])  # noqa: E731
    assert lag(scaled) < 0.7 * lag((fit.draws(3000) - mean) / np.sqrt(variance))
    moved, _ = continued(fit, 3000, params={"mu": 50.0, "tau2": 0.01})
    assert moved[-1].mean() == pytest.approx(50.0 * 100 / 101 + np.asarray(fit.data).mean() / 101, abs=0.5)
    for settings in ({"n_draws": 0}, {"thin": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            fit.draws(**settings)
