"""Variational EM of PLN-PCA: its bound against NumPy, its optimum against quadrature and reference values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from scipy import special

from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design, Sweeps, maximise
from margaux.families.pln.restarts import best_of
from margaux.families.pln.start import at_random, by_log_counts
from margaux.families.pln.variational import Loadings, Posterior
from margaux.numerics.packing import symmetric

pytestmark = pytest.mark.usefixtures("double")


def case(seed, n, p, q, scale, base, k, off):
    """The recipe of the reference cases."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.standard_normal((n, k - 1))]) if k > 1 else np.ones((n, 1))
    B = rng.normal(0, 0.3, (k, p))
    B[0] = rng.normal(base, 0.5, p)
    C = rng.normal(0, scale, (p, q))
    w = rng.standard_normal((n, q))
    offset = np.log(rng.gamma(5, 0.2, (n, 1))) if off else np.zeros((n, 1))
    y = rng.poisson(np.exp(offset + x @ B + w @ C.T)).astype(float)
    return Design(Counts(y), x, offset), B, C


def paper():
    """The synthetic data of Batardiere, Chiquet, Kwon and Stoehr, section 6.1, by the reference's recipe."""
    rng = np.random.default_rng(0)
    correlation = rng.uniform(0.6, 0.8)
    B = rng.normal(2, 1, (1, 150))
    values, vectors = np.linalg.eigh(3 * np.eye(150) + correlation ** np.abs(np.subtract.outer(np.arange(150), np.arange(150))))
    C = vectors[:, ::-1][:, :5] * np.sqrt(values[::-1][:5])
    w = rng.standard_normal((300, 5))
    y = rng.poisson(np.exp(w @ (C * np.sign(C[0])).T + B)).astype(float)
    return Design(Counts(y), np.ones((300, 1)), np.zeros((300, 1)))


def bound(design, loadings, posterior):
    """The evidence lower bound, term by term."""
    B, C = (np.asarray(leaf) for leaf in loadings)
    m, S = np.asarray(posterior.mean), np.asarray(symmetric(posterior.spread))
    y = np.asarray(scipy.sparse.csr_matrix(design.counts.values).todense())
    eta = design.offset + design.x @ B + m @ C.T
    expected = y * eta - np.exp(eta + np.einsum("jk,ikl,jl->ij", C, S, C) / 2) - special.gammaln(y + 1)
    divergence = np.sum(m**2, axis=1) + np.trace(S, axis1=1, axis2=2) - np.linalg.slogdet(S)[1] - S.shape[1]
    return expected.sum() - divergence.sum() / 2


def loglik(design, loadings):
    """By Gauss-Hermite around nothing, for one latent: 200 nodes."""
    node, weight = np.polynomial.hermite_e.hermegauss(200)
    eta = design.offset + design.x @ np.asarray(loadings.B)
    u = eta[:, :, None] + np.asarray(loadings.C)[None] * node
    y = design.counts.values[:, :, None]
    logs = np.sum(y * u - np.exp(u) - special.gammaln(y + 1), axis=1)
    per_unit: Any = special.logsumexp(logs, b=weight / weight.sum(), axis=1)
    return per_unit.sum()


def fitted(design, rank, **settings):
    return maximise(design, *by_log_counts(design, rank), **settings)


@pytest.mark.parametrize("args", [(1, 40, 12, 2, 0.6, 0.5, 2, True), (2, 30, 9, 3, 0.5, -0.5, 1, False)], ids=["offset", "low"])
def test_the_bound_is_the_bound_and_never_falls(args):
    design, *_ = case(*args)
    solution = fitted(design, args[3])
    assert solution.converged and np.all(np.diff(solution.bounds) > -1e-7)
    assert bound(design, solution.loadings, solution.posterior) == pytest.approx(solution.bounds[-1], abs=1e-7)
    rng = np.random.default_rng(0)
    # Nothing near it is higher.
    for _ in range(20):
        B, C = (leaf + 1e-2 * rng.normal(size=leaf.shape) for leaf in solution.loadings)
        assert bound(design, type(solution.loadings)(B, C), solution.posterior) < solution.bounds[-1] + 1e-6


def test_sparse_counts_blocks_and_offsets_of_every_entry_change_nothing():
    design, *_ = case(3, 60, 15, 2, 0.6, 0.0, 2, True)
    whole = fitted(design, 2, tol=1e-7)
    sparse = Design(Counts(scipy.sparse.csr_matrix(design.counts.values)), design.x, design.offset)
    wide = Design(design.counts, design.x, np.tile(design.offset, (1, 15)))
    others = [{"design": sparse}, {"design": sparse, "block": 15 * 20}, {"design": design, "block": 15 * 20}, {"design": wide}]
    for settings in others:
        other = fitted(rank=2, tol=1e-7, **settings)
        np.testing.assert_allclose(other.bounds[:12], whole.bounds[:12], rtol=1e-9)
        assert other.bounds[-1] == pytest.approx(whole.bounds[-1], abs=1e-6)
        C, D = (np.asarray(s.loadings.C) for s in (whole, other))
        np.testing.assert_allclose(C @ C.T, D @ D.T, atol=1e-4)


def test_float32_agrees():
    design, *_ = case(4, 60, 15, 2, 0.6, 0.5, 2, True)
    exact = fitted(design, 2)
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), by_log_counts(design, 2))
    rough = maximise(design, *start, relative=1e-6)
    assert rough.loadings.C.dtype == np.float32 and rough.converged
    assert rough.bounds[-1] == pytest.approx(exact.bounds[-1], abs=0.05)


@pytest.mark.parametrize("block", [1 << 22, 15 * 20], ids=["whole", "blocks"])
def test_a_run_can_be_interrupted(block):
    design, *_ = case(3, 60, 15, 2, 0.6, 0.0, 2, True)
    start, watched = by_log_counts(design, 2), []
    at_once = maximise(design, *start, tol=1e-9, relative=0, block=block, watch=lambda *pair: watched.append(pair))
    # Longer than one call of the program.
    assert watched == list(enumerate(at_once.bounds)) and len(watched) > 16
    sweeps = Sweeps(design, np.dtype(float), tol=1e-9, relative=0, block=block)
    run = sweeps.begin(*start)
    while not run.converged:
        run = sweeps.on(run, 5)
        # What is returned has the last bound.
        ended = run.solution()
        assert bound(design, ended.loadings, ended.posterior) == pytest.approx(run.bounds[-1], abs=1e-7)
    np.testing.assert_allclose(run.bounds, at_once.bounds, rtol=1e-12)
    assert sweeps.on(run, 5).sweeps == run.sweeps


def test_features_that_would_fall_go_a_shorter_way():
    # Loadings so large that whole steps overshoot.
    design, *_ = case(5, 60, 15, 2, 0.6, 1.0, 2, True)
    loadings, posterior = by_log_counts(design, 2)
    sweeps = Sweeps(design, np.dtype(float))
    run = sweeps.on(sweeps.begin(loadings._replace(C=-4 * loadings.C), posterior), 500)
    assert run.converged and run.sweeps > len(run.bounds)
    assert np.all(np.diff(run.bounds) > -1e-7)


def test_diagonal_covariances():
    design, *_ = case(1, 40, 12, 2, 0.6, 0.5, 2, True)
    full = fitted(design, 2)
    # From full ones, which are cut to their diagonals first.
    solution = maximise(design, full.loadings, full.posterior, covariance="diagonal", tol=1e-8)
    S = np.asarray(symmetric(solution.posterior.spread))
    assert np.all(S[:, 0, 1] == 0) and solution.converged and np.all(np.diff(solution.bounds) > -1e-7)
    there = bound(design, solution.loadings, solution.posterior)
    assert there == pytest.approx(solution.bounds[-1], abs=1e-7) and full.bounds[-1] - 5 < there < full.bounds[-1] - 1e-3
    # Nothing near it is higher, in any of B, C, m and the logs of the variances.
    rng = np.random.default_rng(0)
    for size in (1e-2, 1e-3):
        for _ in range(10):
            B, C = (leaf + size * rng.normal(size=leaf.shape) for leaf in solution.loadings)
            mean, spread = solution.posterior
            near = Posterior(mean + size * rng.normal(size=mean.shape), spread * np.exp(size * rng.normal(size=spread.shape)))
            assert bound(design, Loadings(B, C), near) < there
    with pytest.raises(ValueError, match='covariance must be "full" or "diagonal", not \'spherical\''):
        fitted(design, 2, covariance="spherical")


@pytest.mark.slow
def test_diagonal_covariances_on_the_papers_data():
    solution = fitted(paper(), 5, covariance="diagonal")
    assert solution.bounds[-1] == pytest.approx(-111585.57, abs=0.01)


def test_one_latent_against_quadrature():
    design, *_ = case(11, 50, 8, 1, 0.7, 1.0, 1, False)
    assert design.counts.values.sum() == 1423
    solution = fitted(design, 1, tol=1e-8)
    # P1 of the reference: the maximum likelihood is -796.17225.
    there = loglik(design, solution.loadings)
    assert solution.bounds[-1] < there < -796.172
    assert there == pytest.approx(-796.17225, abs=0.02)


def test_the_papers_data():
    solution = fitted(paper(), 5)
    assert solution.bounds[-1] == pytest.approx(-111575.22, abs=0.01)
    assert len(solution.bounds) < 12


def test_restarts_leave_poor_maxima():
    # Six kinds of units, each with features of its own: too many for two directions.
    rng = np.random.default_rng(0)
    own = (np.arange(60) % 6)[:, None] == np.arange(30) % 6
    y = rng.poisson(np.exp(np.where(own, 2.5, 0.0) + rng.normal(0, 0.3, (60, 30)))).astype(float)
    design = Design(Counts(y), np.ones((60, 1)), np.zeros((60, 1)))
    solution, table = best_of(design, 2)
    assert len(table) == 16 and solution.converged and np.all(np.diff(solution.bounds) > -1e-7)
    assert solution.bounds[-1] == table["bound"].max()
    assert bound(design, solution.loadings, solution.posterior) == pytest.approx(solution.bounds[-1], abs=1e-6)
    single = [maximise(design, *at_random(design, 2, seed)).bounds[-1] for seed in range(6)]
    assert max(single) - min(single) > 20 and solution.bounds[-1] > max(single) - 1e-3
