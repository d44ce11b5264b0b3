"""Importance sampling and standard errors of PLN-PCA against adaptive Gauss-Hermite quadrature and reference values."""

import itertools
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from scipy import special

from margaux.pln import importance, inference
from margaux.pln.counts import Counts
from margaux.pln.fitting import Design
from margaux.pln.importance import PROPOSALS, Plan, Proposal, marginal, score
from margaux.pln.variational import Loadings, Posterior, Units, unit_steps
from test_pln import case, fitted, paper

P1, P2 = (11, 50, 8, 1, 0.7, 1.0, 1, False), (12, 60, 10, 2, 0.6, 0.5, 2, True)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def solved():
    """The paper's data and the variational optimum."""
    with jax.enable_x64(True):
        design = paper()
        return design, fitted(design, 5)


def quadrature(design, B, C, nodes=20):
    """Log-likelihood of each unit, and the score, by Gauss-Hermite around each unit's mode, scaled by its curvature."""
    y, x, q = design.counts.values, design.x, C.shape[1]
    fixed = design.offset + x @ B
    w = np.zeros((len(y), q))
    for _ in range(60):
        A = np.exp(fixed + w @ C.T)
        inverse = np.linalg.inv(np.eye(q) + np.einsum("pi,bp,pj->bij", C, A, C))
        step = np.einsum("bij,bj->bi", inverse, (y - A) @ C - w)
        w = w + step / np.maximum(np.abs(step @ C.T).max(axis=1, keepdims=True), 1)
    factor = np.linalg.cholesky(inverse)
    node, weight = np.polynomial.hermite_e.hermegauss(nodes)
    logs, moments = [], []
    for index in itertools.product(range(nodes), repeat=q):
        z = node[list(index)]
        v = w + factor @ z
        eta = fixed + v @ C.T
        log_joint = np.sum(y * eta - np.exp(eta) - special.gammaln(y + 1), axis=1) - np.sum(v**2, axis=1) / 2
        scale = np.sum(np.log(weight[list(index)])) + z @ z / 2 + np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        logs.append(log_joint + scale - q / 2 * np.log(2 * np.pi))
        moments.append((v, np.exp(eta)))
    logs = np.array(logs)
    loglik: Any = special.logsumexp(logs, axis=0)
    dB, dC = np.zeros(B.shape), np.zeros(C.shape)
    for share, (v, A) in zip(np.exp(logs - loglik), moments, strict=True):
        residual = share[:, None] * (y - A)
        dB, dC = dB + x.T @ residual, dC + residual.T @ v
    return loglik, dB, dC


def observed(design, B, C, nodes=20, step=1e-4):
    """Minus the Hessian of the log-likelihood in (b_1, c_1, ..., b_p, c_p), by differences of the score."""
    theta = np.concatenate([B.T, C], axis=1)

    def gradient(theta):
        _, dB, dC = quadrature(design, theta[:, : len(B)].T, theta[:, len(B) :], nodes)
        return np.concatenate([dB.T, dC], axis=1).ravel()

    rows = []
    for at in np.ndindex(theta.shape):
        move = np.zeros(theta.shape)
        move[at] = step
        rows.append((gradient(theta - move) - gradient(theta + move)) / (2 * step))
    return (np.array(rows) + np.array(rows).T) / 2


def at(design, B, C):
    """Loadings and the variational posterior under them."""
    n, q = design.counts.n, C.shape[1]
    loadings = Loadings(jnp.asarray(B), jnp.asarray(C))
    start = Posterior(jnp.zeros((n, q)), jnp.tile(np.eye(q)[np.tril_indices(q)], (n, 1)))
    units = Units(jnp.asarray(design.x), jnp.asarray(design.offset), jnp.asarray(design.counts.times(C)))
    return loadings, unit_steps(loadings, start, units, 60)[0]


def distance(first, second):
    return np.sqrt(sum(float(jnp.sum((a - b) ** 2)) for a, b in zip(first, second, strict=True)))


@pytest.mark.parametrize(
    "args, total, expected", [(P1, 1423, (-803.79527, 28.34153, 29.69628)), (P2, 1436, (-1056.77553, 29.87886, 41.4837))]
)
def test_reference_cases_at_the_truth(args, total, expected):
    design, B, C = case(*args)
    assert design.counts.values.sum() == total
    loglik, dB, dC = quadrature(design, B, C)
    assert (loglik.sum(), np.linalg.norm(dB), np.linalg.norm(dC)) == pytest.approx(expected, abs=1e-4)
    found = score(design, *at(design, B, C), plan=Plan(draws=2048, replicates=4))
    np.testing.assert_allclose(found.B, dB, atol=0.03)
    np.testing.assert_allclose(found.C, dC, atol=0.03)


@pytest.mark.parametrize(
    "name, sobol",
    [
        ("vem", True),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in PROPOSALS if name != "vem"),
        pytest.param("vem", False, marks=pytest.mark.slow),
    ],
)
def test_the_log_likelihood_is_within_its_error(name, sobol):
    design, B, C = case(*P2)
    truth = quadrature(design, B, C)[0]
    where = at(design, B, C)
    found = [marginal(design, *where, name, Plan(64, 8, sobol, seed)) for seed in range(20)]
    z = np.array([(each.total[0] - truth.sum()) / each.total[1] for each in found])
    assert 0.3 < np.mean(z**2) < 2.2 and np.abs(z).max() < 3.5
    assert all(np.all((each.ess > 1) & (each.ess <= 64 + 1e-9)) for each in found)
    assert np.abs(np.mean([each.loglik for each in found], axis=0) - truth).max() < 0.05


@pytest.mark.slow
def test_the_score_has_no_bias():
    design, B, C = case(*P2)
    truth = quadrature(design, B, C)[1:]
    where = at(design, B, C)
    for name, sobol, control in [("vem", False, True), ("vem mixture", True, True), ("student", False, False)]:
        found = [score(design, *where, name, Plan(256, 1, sobol, seed), control) for seed in range(20)]
        for part, exact in enumerate(truth):
            draws = np.stack([each[part] for each in found])
            z = (draws.mean(axis=0) - exact) / draws.std(axis=0, ddof=1) * np.sqrt(20)
            assert np.mean(z**2) < 5


def test_divergences_of_a_gaussian_conditional_and_of_a_proposal_that_is_too_wide():
    # Without counts of any weight the conditional is the prior N(0, I).
    design = Design(Counts(np.zeros((4, 3))), np.ones((4, 1)), np.zeros((4, 1)))
    loadings = Loadings(jnp.full((1, 3), -40.0), jnp.ones((3, 2)))
    lower = np.tril_indices(2)
    prior, wide = (Posterior(jnp.zeros((4, 2)), jnp.tile(s * np.eye(2)[lower], (4, 1))) for s in (1.0, 2.0))
    exact = marginal(design, loadings, prior, plan=Plan(64, 2))
    np.testing.assert_allclose(exact.ess, 64, rtol=1e-8)
    np.testing.assert_allclose([exact.loglik, exact.error, exact.kl_from_proposal, exact.kl_from_conditional], 0, atol=1e-8)
    other = marginal(design, loadings, wide, plan=Plan(1 << 14, 2))
    np.testing.assert_allclose(other.kl_from_proposal, 1 - np.log(2), atol=0.01)
    np.testing.assert_allclose(other.kl_from_conditional, np.log(2) - 0.5, atol=0.01)
    np.testing.assert_allclose(other.ess / (1 << 14), 0.75, atol=0.01)


def test_sparse_counts_blocks_and_offsets_of_every_entry_change_nothing(monkeypatch):
    design, B, C = case(*P2)
    where = at(design, B, C)
    sparse = Counts(scipy.sparse.csr_matrix(design.counts.values))
    other = Design(sparse, design.x, np.tile(design.offset, (1, 10)))
    plan = Plan(32, 2)

    def everything(design):
        yield from marginal(design, *where, plan=plan)
        yield from score(design, *where, plan=plan)
        for kind in ("adjusted", "sandwich", "louis"):
            yield inference.covariance(design, *where, kind, plan)

    whole = list(everything(design))
    monkeypatch.setattr(importance, "BLOCK", 16 * 10 * 20)
    monkeypatch.setattr(inference, "BLOCK", 16 * 10 * 20)
    for one, two in zip(whole, everything(other), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-8, atol=1e-9)


def test_the_papers_data(solved):
    design, solution = solved
    found = marginal(design, solution.loadings, solution.posterior)
    value, error = found.total
    assert value == pytest.approx(-111574.92, abs=0.05) and error < 0.01
    assert found.ess.min() > 0.98 * 512


def test_float32_agrees(solved):
    design, solution = solved
    loadings, posterior = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), solution[:2])
    assert marginal(design, loadings, posterior, plan=Plan(64, 2)).total[0] == pytest.approx(-111574.92, abs=0.5)
    assert score(design, loadings, posterior, plan=Plan(64, 1)).C.dtype == np.float32
    exact = inference.standard_errors(design, solution.loadings, solution.posterior, "expected")
    np.testing.assert_allclose(inference.standard_errors(design, loadings, posterior, "expected"), exact, rtol=1e-2)


def test_the_control_variate_divides_the_error_of_the_score_by_ten(solved):
    design, (loadings, posterior, *_) = solved
    truth = score(design, loadings, posterior, plan=Plan(512, 2, seed=99))

    def rmse(draws, control):
        found = [score(design, loadings, posterior, "vem", Plan(draws, 1, False, seed), control) for seed in range(4)]
        return np.sqrt(np.mean([distance(each, truth) ** 2 for each in found]))

    raw, controlled, more = rmse(128, False), rmse(128, True), rmse(512, True)
    assert raw > 10 * controlled
    assert controlled / more == pytest.approx(2, rel=0.25)


@pytest.mark.slow
def test_louis_information_is_the_observed_information():
    design, B, C = case(14, 30, 4, 2, 0.6, 0.5, 2, True)
    exact = observed(design, B, C, 16)
    found = inference.louis(design, *at(design, B, C), Plan(1 << 13, 1))
    assert np.linalg.norm(found - exact) < 3e-3 * np.linalg.norm(exact)


def test_standard_errors_against_the_observed_information():
    design, *_ = case(15, 600, 4, 2, 0.6, 1.0, 2, False)
    solution = fitted(design, 2, tol=1e-8)
    B, C = (np.asarray(leaf) for leaf in solution.loadings)
    vectors, values = (lambda pair: (pair[1], pair[0]))(np.linalg.eigh(observed(design, B, C, 12)))
    # The rotation of two columns is the one direction that the likelihood does not see.
    assert values[1] > 20 * abs(values[0])
    inverse = (vectors[:, 1:] / values[1:]) @ vectors[:, 1:].T
    exact = np.sqrt(np.diag(inverse).reshape(4, 4)[:, :2].T)
    found = {kind: inference.standard_errors(design, *solution[:2], kind) for kind in get_args(inference.Kind)}
    for kind, rtol in {"louis": 0.01, "adjusted": 0.02, "outer product": 0.15}.items():
        np.testing.assert_allclose(found[kind], exact, rtol=rtol, err_msg=kind)
    for kind, rtol in {"expected": 0.02, "sandwich": 0.15}.items():
        # With C as known, slopes are right and intercepts too certain.
        np.testing.assert_allclose(found[kind][1], exact[1], rtol=rtol, err_msg=kind)
        assert np.all((found[kind][0] > 0.8 * exact[0]) & (found[kind][0] < 1.05 * exact[0]))
    assert np.all(found["variational"] < exact)


def test_more_features_than_units():
    design, *_ = case(16, 30, 40, 1, 0.5, 1.0, 1, False)
    solution = fitted(design, 1)
    where = solution.loadings, solution.posterior
    with pytest.raises(ValueError, match="'outer product' information of 40 parameters is not positive definite"):
        inference.covariance(design, *where, "outer product")
    found = inference.covariance(design, *where)
    assert found.shape == (40, 40) and np.linalg.eigvalsh(found)[0] > 0
    np.testing.assert_allclose(np.diag(found), np.diag(inference.covariance(design, *where, "louis")), rtol=0.03)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"proposal": "prior"}, "proposal must be one of 'vem', "),
        ({"proposal": Proposal(degrees=3)}, "degrees even"),
        ({"plan": Plan(100)}, "power of two, not 100"),
        ({"plan": Plan(64, 1)}, "two replicates"),
    ],
)
def test_what_is_refused(settings, message):
    design, B, C = case(*P1)
    with pytest.raises(ValueError, match=message):
        marginal(design, *at(design, B, C), **settings)


@pytest.mark.slow
def test_coverage_on_the_papers_design():
    rng = np.random.default_rng(0)
    correlation = rng.uniform(0.6, 0.8)
    B = rng.normal(2, 1, (1, 150))
    values, vectors = np.linalg.eigh(3 * np.eye(150) + correlation ** np.abs(np.subtract.outer(np.arange(150), np.arange(150))))
    C = vectors[:, ::-1][:, :5] * np.sqrt(values[::-1][:5])
    covered = {kind: [] for kind in get_args(inference.Kind) if kind != "louis"}
    for replicate in range(100):
        rng = np.random.default_rng(1000 + replicate)
        y = rng.poisson(np.exp(rng.standard_normal((300, 5)) @ C.T + B)).astype(float)
        design = Design(Counts(y), np.ones((300, 1)), np.zeros((300, 1)))
        solution = fitted(design, 5)
        error = np.abs(np.asarray(solution.loadings.B) - B)
        for kind, inside in covered.items():
            inside.append(error < 1.96 * inference.standard_errors(design, solution.loadings, solution.posterior, kind))
    share = {kind: np.mean(inside) for kind, inside in covered.items()}
    assert 0.935 < share["adjusted"] < 0.965
    assert 0.92 < share["expected"] < 0.96 and 0.91 < share["sandwich"] < 0.96
    assert share["outer product"] > 0.94 and share["variational"] < 0.8
