"""Importance sampling of PLN-PCA against adaptive Gauss-Hermite quadrature and reference values."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from scipy import special, stats
from test_pln import case, fitted, paper

import margaux as mx
from margaux.families.pln import importance, inference
from margaux.families.pln.answers import settled
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design
from margaux.families.pln.importance import marginal
from margaux.families.pln.model import PLN
from margaux.families.pln.proposals import PROPOSALS, Plan, Proposal, chosen, nets
from margaux.families.pln.scoring import score
from margaux.families.pln.variational import Loadings, Posterior
from margaux.numerics.compiling import compiled
from margaux.numerics.packing import symmetric

P1, P2 = (11, 50, 8, 1, 0.7, 1.0, 1, False), (12, 60, 10, 2, 0.6, 0.5, 2, True)
#: other seeds of their sizes; these and three latents
OTHERS = [(21, *P1[1:]), (22, *P2[1:])]
MORE = [(23, 40, 8, 3, 0.5, 0.5, 2, True), (31, *P1[1:]), (32, *P2[1:]), (33, 40, 8, 3, 0.5, 0.5, 2, True)]
#: how often a test may fail by chance, were its seeds not fixed
CHANCE = 1e-3

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def solved():
    """The paper's data and the variational optimum."""
    with jax.enable_x64(True):
        design = paper()
        return design, fitted(design, 5)


def assert_mean(draws, exact):
    """Independent draws (R, ...) have the means `exact`, by a t-test of each, of level `CHANCE` for all together."""
    draws = np.asarray(draws)
    gap = np.abs(draws.mean(axis=0) - exact)
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    assert np.all(gap <= stats.t.ppf(1 - CHANCE / 2 / gap.size, len(draws) - 1) * error + 1e-12)


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


def at(design, B, C):
    """Loadings and the variational posterior under them."""
    loadings = Loadings(jnp.asarray(B), jnp.asarray(C))
    return loadings, jax.tree.map(jnp.asarray, settled(design, loadings))


def by_engine(design, B, C, nodes):
    """Log-likelihood and score by the quadrature of the engine."""
    model, rule = PLN(), mx.Quadrature(nodes)
    data = {"counts": jnp.asarray(design.counts.values), "x": jnp.asarray(design.x), "offset": jnp.asarray(design.offset)}

    @compiled
    def run(params):
        def gradient(z, weight):
            each = lambda params: jax.vmap(jax.vmap(model.log_joint, (None, 0, 0)), (None, 0, None))(params, z, data)  # noqa: E731
            return jax.grad(lambda params: jnp.sum(weight * each(params)))(params)

        rows = jax.vmap(lambda y: rule.init(jax.random.key(0), model, params, y))(data)
        found, _, info = rule.expect(gradient, (), model, params, rows, data, 0)
        return jnp.sum(info["log_marginal"]), found["B"], found["C"]

    return run({"B": jnp.asarray(B), "C": jnp.asarray(C)})


def exact_at_truth(args, expected=None):
    """A case and its score by quadrature, of 16 and more nodes, which has the numbers expected or those of the engine's own."""
    design, B, C = case(*args)
    nodes = 16 if args[3] == 3 else 30
    loglik, *gradient = quadrature(design, B, C, nodes)
    if expected is None:
        whole, *others = by_engine(design, B, C, nodes)
        expected = (float(whole), *map(np.linalg.norm, others))
    assert (loglik.sum(), *map(np.linalg.norm, gradient)) == pytest.approx(expected, abs=1e-4)
    return design, at(design, B, C), loglik.sum(), gradient


def check_at_truth(args, expected=None):
    """Log-likelihood, score, and its norms in B and in C, by importance sampling: they are within their errors."""
    design, where, loglik, gradient = exact_at_truth(args, expected)
    value, error = marginal(design, *where).total
    # The errors of many units add up to a normal one.
    assert abs(value - loglik) < stats.norm.ppf(1 - CHANCE / 2) * error and error < 1e-4 * abs(loglik)
    found = [score(design, *where, plan=Plan(512, 1, seed=seed)) for seed in range(16)]
    for part, exact in enumerate(gradient):
        draws, norm = np.stack([each[part] for each in found]), np.linalg.norm(exact)
        assert_mean(draws, exact)
        # To first order, as the error of the norm is that along the gradient.
        assert_mean(np.sum(draws * exact / norm, axis=(1, 2)), norm)


REFERENCE = {P1: (-803.79527, 28.34153, 29.69628), P2: (-1056.77553, 29.87886, 41.4837)}


@pytest.mark.parametrize("args, total", [(P1, 1423), (P2, 1436)], ids=["P1", "P2"])
def test_reference_cases_at_the_truth(args, total):
    assert case(*args)[0].counts.values.sum() == total
    check_at_truth(args, REFERENCE[args])


@pytest.mark.parametrize("args", [*OTHERS, *(pytest.param(args, marks=pytest.mark.slow) for args in MORE)], ids=lambda a: a[0])
def test_other_cases_at_the_truth(args):
    check_at_truth(args)


@pytest.mark.slow
@pytest.mark.parametrize("args", [*REFERENCE, *OTHERS, *MORE], ids=lambda args: args[0])
def test_many_draws_give_six_digits_of_the_likelihood_and_nearly_four_of_the_score(args):
    design, where, loglik, gradient = exact_at_truth(args, REFERENCE.get(args))
    plan = Plan(1 << 15, 16)
    value, error = marginal(design, *where, plan=plan).total
    assert abs(value - loglik) < 1e-6 * abs(loglik) + 3 * error and error < 1e-5 * abs(loglik)
    found = score(design, *where, plan=plan)
    # Over five seeds the norms of the case of heaviest weights are off by up to 1.4e-4.
    assert list(map(np.linalg.norm, found)) == pytest.approx(list(map(np.linalg.norm, gradient)), rel=3e-4)


@pytest.mark.parametrize(
    "name, sobol",
    [
        ("student", True),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in PROPOSALS if name != "student"),
        pytest.param("vem", False, marks=pytest.mark.slow),
    ],
)
def test_the_log_likelihood_is_within_its_error(name, sobol):
    design, B, C = case(*P2)
    truth = quadrature(design, B, C)[0]
    where = at(design, B, C)
    found = [marginal(design, *where, name, Plan(512, 8, sobol, seed)) for seed in range(20)]
    z = np.array([(each.total[0] - truth.sum()) / each.total[1] for each in found])
    # Sums over units, so that z are normal and their squares sum to a chi-squared variable.
    low, high = stats.chi2.ppf([CHANCE / 2, 1 - CHANCE / 2], len(z))
    assert low < np.sum(z**2) < high
    assert all(np.all((each.ess > 1) & (each.ess <= 512 + 1e-9)) for each in found)
    # Ratios to a Gaussian are unbounded: in some unit the few draws that matter are missed by all.
    if chosen(name).degrees or chosen(name).alpha:
        assert_mean([each.loglik for each in found], truth)


def test_a_mirrored_net_holds_a_draw_opposite_to_each():
    net = nets(Plan(64, 1), PROPOSALS["student"], 3, mirrored=True)[0].reshape(32, 2, 4) ^ np.uint32(123456789)
    u = (net.astype(float) + 0.5) / 2.0**32
    np.testing.assert_allclose(u[:, 0, :3] + u[:, 1, :3], 1, rtol=1e-12)
    np.testing.assert_array_equal(u[:, 0, 3], u[:, 1, 3])
    assert len(np.unique(net[:, 0, 0])) == 32


def test_few_mirrored_draws_beat_many_where_features_tell_the_latents():
    """The error that eight replicates of 64 draws state, and that they make, on 150 features."""
    design, B, C = case(7, 100, 150, 3, 0.6, 1.0, 1, False)
    where = at(design, B, C)
    exact = marginal(design, *where, "student", Plan(1 << 12, 8, seed=99))
    found = [marginal(design, *where, "student", Plan(64, 8, seed=seed)) for seed in range(12)]
    gaps = np.array([each.total[0] - exact.total[0] for each in found])
    stated = np.array([each.total[1] for each in found])
    assert stated.max() < 0.004 and np.sqrt(np.mean(gaps**2)) < 2 * np.mean(stated)
    many = marginal(design, *where, "student", Plan(512, 8, sobol=False))
    assert many.total[1] > 4 * stated.max()
    assert all(np.all(each.even <= 1.2) and np.all(each.even > 0.85) for each in found)


def bounds_of_units(design, loadings, posterior):
    """Each unit's part of the evidence lower bound."""
    B, C = (np.asarray(leaf) for leaf in loadings)
    m, S = np.asarray(posterior.mean), np.asarray(symmetric(posterior.spread))
    y, eta = design.counts.values, design.offset + design.x @ B + m @ C.T
    expected = y * eta - np.exp(eta + np.einsum("jk,ikl,jl->ij", C, S, C) / 2) - special.gammaln(y + 1)
    divergence = np.sum(m**2, axis=1) + np.trace(S, axis1=1, axis2=2) - np.linalg.slogdet(S)[1] - S.shape[1]
    return expected.sum(axis=1) - divergence / 2


@pytest.mark.parametrize(
    "args",
    [
        P2,
        pytest.param((41, 60, 10, 2, 0.6, -2.0, 2, True), id="low"),
        pytest.param((42, 60, 10, 2, 1.5, 0.0, 2, False), id="large loadings"),
    ],
)
def test_the_bound_never_exceeds_the_log_likelihood(args):
    design, B, C = case(*args)
    where = at(design, B, C)
    exact = quadrature(design, B, C, 40)[0]
    found = marginal(design, *where)
    # The best Gaussian, and others.
    for share in (1.0, 0.7, 1.5):
        posterior = Posterior(share * where[1].mean, share * where[1].spread)
        below = bounds_of_units(design, where[0], posterior)
        assert np.all(below <= exact + 1e-7)
        assert below.sum() <= found.total[0] + 3 * found.total[1]


@pytest.mark.slow
def test_the_score_has_no_bias():
    design, B, C = case(*P2)
    truth = quadrature(design, B, C)[1:]
    where = at(design, B, C)
    for name, sobol, control in [("vem", False, True), ("vem mixture", True, True), ("student", False, False)]:
        # The bias of ratios of means, of order 1/N, is a twentieth of the error of 20 means over so many draws.
        found = [score(design, *where, name, Plan(8192, 1, sobol, seed), control) for seed in range(20)]
        for part, exact in enumerate(truth):
            assert_mean([each[part] for each in found], exact)


def test_divergences_of_a_gaussian_conditional_and_of_a_proposal_that_is_too_wide():
    # Without counts of any weight the conditional is the prior N(0, I).
    design = Design(Counts(np.zeros((32, 3))), np.ones((32, 1)), np.zeros((32, 1)))
    loadings = Loadings(jnp.full((1, 3), -40.0), jnp.ones((3, 2)))
    lower = np.tril_indices(2)
    prior, wide = (Posterior(jnp.zeros((32, 2)), jnp.tile(s * np.eye(2)[lower], (32, 1))) for s in (1.0, 2.0))
    exact = marginal(design, loadings, prior, plan=Plan(64, 2))
    np.testing.assert_allclose(exact.ess, 64, rtol=1e-8)
    np.testing.assert_allclose([exact.loglik, exact.error, exact.kl_from_proposal, exact.kl_from_conditional], 0, atol=1e-8)
    other = marginal(design, loadings, wide, plan=Plan(1 << 12, 2))
    # Units are alike and have draws of their own.
    assert_mean(other.kl_from_proposal, 1 - np.log(2))
    assert_mean(other.kl_from_conditional, np.log(2) - 0.5)
    assert_mean(other.ess / (1 << 12), 0.75)


@pytest.mark.parametrize(
    "kinds", [("adjusted",), pytest.param(("sandwich", "louis"), marks=pytest.mark.slow)], ids=lambda kinds: kinds[0]
)
def test_sparse_counts_blocks_and_offsets_of_every_entry_change_nothing(kinds: Any, monkeypatch):
    design, B, C = case(*P2)
    where = at(design, B, C)
    sparse = Counts(scipy.sparse.csr_matrix(design.counts.values))
    other = Design(sparse, design.x, np.tile(design.offset, (1, 10)))
    plan = Plan(512, 2)

    def everything(design):
        yield from marginal(design, *where, plan=plan)[:-1]  # the last is the share, of which there is one
        yield from score(design, *where, plan=plan)
        for kind in kinds:
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


def test_float32_agrees():
    design, B, C = case(*P2)
    double = at(design, B, C)
    pairs: Any = double, jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), double)
    exact, found = (marginal(design, *where) for where in pairs)
    # The same draws, so that rounding is the difference: of what depends on w, which for a unit is of the size of its counts.
    y, eta = design.counts.values, design.offset + design.x @ B + np.asarray(double[1].mean) @ C.T
    size = np.sum(np.exp(eta) + y * np.abs(eta), axis=1)
    assert np.all(np.abs(found.loglik - exact.loglik) < np.finfo(np.float32).eps * size)
    errors = [inference.standard_errors(design, *where, kind="expected") for where in pairs]
    # An inverse multiplies what is rounded away by the condition number.
    condition = np.linalg.cond(inference.expected(design, *double))
    np.testing.assert_allclose(errors[1], errors[0], rtol=condition * np.finfo(np.float32).eps)


@pytest.mark.slow
def test_the_control_variate_divides_the_error_of_the_score_by_ten(solved):
    design, (loadings, posterior, *_) = solved
    truth = score(design, loadings, posterior, plan=Plan(512, 2, seed=99))

    def squares(draws, control, seeds):
        found = [score(design, loadings, posterior, "vem", Plan(draws, 1, False, seed), control) for seed in range(seeds)]
        return np.array([sum(float(jnp.sum((a - b) ** 2)) for a, b in zip(each, truth, strict=True)) for each in found])

    raw, controlled, more = squares(128, False, 2), squares(128, True, 8), squares(512, True, 8)
    assert raw.mean() > 100 * controlled.mean()
    # Four times the draws divide the mean square by four.
    z = (controlled.mean() - 4 * more.mean()) / np.sqrt((controlled.var(ddof=1) + 16 * more.var(ddof=1)) / 8)
    assert abs(z) < stats.t.ppf(1 - CHANCE / 2, 7)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"proposal": "prior"}, "proposal must be one of 'vem', "),
        ({"proposal": Proposal(degrees=-3)}, "degrees at least 0"),
        ({"plan": Plan(100)}, "power of two, not 100"),
        ({"plan": Plan(64, 1)}, "two replicates"),
    ],
)
def test_what_is_refused(settings, message):
    design, B, C = case(*P1)
    with pytest.raises(ValueError, match=message):
        marginal(design, *at(design, B, C), **settings)
