"""Maximum likelihood of PLN-PCA by importance sampling through the engine, against quadrature and the reference's maxima."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from scipy import special
from test_pln import case, fitted
from test_pln_inference import P1, P2, quadrature

import margaux as mx
from margaux.algorithms.base import Algorithm
from margaux.algorithms.memory import NoMemory
from margaux.families.pln import closed, inference, refinement, scoring
from margaux.families.pln.ascent import ConditionalScore, InformationAscent, decrement, preconditioned, two_levels
from margaux.families.pln.conditional import VARIANTS, ConditionalSampling
from margaux.families.pln.counts import Counts
from margaux.families.pln.fitting import Design
from margaux.families.pln.importance import marginal
from margaux.families.pln.model import PLN, SparseRows, units
from margaux.families.pln.proposals import Plan
from margaux.families.pln.refinement import Refinement, paper, refine
from margaux.families.pln.scoring import score, scores
from margaux.families.pln.variational import Loadings, Posterior

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(scope="module")
def p2():
    with jax.enable_x64(True):
        design = case(*P2)[0]
        return design, fitted(design, 2)


def few_counts(seed, n, p, q, scale, mean):
    """Counts of a model with intercepts about `mean`; features without counts are left out."""
    rng = np.random.default_rng(seed)
    B, C = rng.normal(mean, 0.5, p), rng.normal(0, scale, (p, q))
    y = rng.poisson(np.exp(B + rng.standard_normal((n, q)) @ C.T))
    y = y[:, y.sum(axis=0) > 0]
    return Design(Counts(y.astype(float)), np.ones((n, 1)), np.zeros((n, 1)))


def ascent(update, moments=True):
    statistic = ConditionalScore(moments=moments)
    return Algorithm(statistic=statistic, memory=NoMemory(), update=update, average=mx.LastIterate(), refresh_epochs=None)


def information(design, solution):
    C, x, m = (np.asarray(leaf, float) for leaf in (solution.loadings.C, design.x, solution.posterior.mean))
    return two_levels(closed.complete(design, solution.loadings, solution.posterior), C, x, m)


def test_log_joint_is_that_of_the_model(p2):
    design, solution = p2
    rng = np.random.default_rng(0)
    B, C, w = rng.normal(size=(2, 10)), rng.normal(size=(10, 2)), rng.normal(size=2)
    y, x, o = design.counts.values[3], design.x[3], design.offset[3]
    eta = o + x @ B + C @ w
    wanted = np.sum(y * eta - np.exp(eta) - special.gammaln(y + 1)) - w @ w / 2 - np.log(2 * np.pi)
    unit = jax.tree.map(lambda leaf: leaf[3], units(design, solution.posterior, float))
    assert float(PLN().log_joint({"B": B, "C": C}, w, unit)) == pytest.approx(wanted, abs=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_estimates_the_score_of_quadrature(p2, variant):
    """E-steps of all units at another point than the maximum, after a visit that adapts the proposals.

    Self-normalised weights are biased, and by more where ratios have no bound: hence many draws, and a hundredth besides the
    errors of 20 visits."""
    design, solution = p2
    rng = np.random.default_rng(1)
    B = np.asarray(solution.loadings.B) + 0.1 * rng.normal(size=(2, 10))
    C = np.asarray(solution.loadings.C) + 0.1 * rng.normal(size=(10, 2))
    _, dB, dC = quadrature(design, B, C)
    estep = ConditionalSampling(2, 4096, *VARIANTS[variant])
    batch = jax.tree.map(jnp.asarray, units(design, solution.posterior, float))
    params = {"B": jnp.asarray(B), "C": jnp.asarray(C)}

    @jax.jit
    def visit(rows, key):
        noise = jax.vmap(lambda key: estep.noise(key, None))(jax.random.split(key, len(design.x)))
        return ConditionalScore().averaged(PLN(), estep, params, rows, batch, noise, jnp.asarray(1), False)

    rows = {"mean": batch["mean"], "spread": batch["spread"]}
    _, rows, _ = visit(rows, jax.random.key(0))
    found = [visit(rows, key)[0] for key in jax.random.split(jax.random.key(1), 20)]
    for name, wanted in (("B", dB), ("C", dC)):
        values = np.stack([each[name] for each in found])
        error, scale = values.std(axis=0, ddof=1) / np.sqrt(20), 0.01 * np.abs(wanted).max()
        assert np.all(np.abs(values.mean(axis=0) - wanted) < 4 * error + scale) and error.max() < scale


def test_the_score_within_the_span_of_the_loadings_is_that_of_its_moments(p2):
    """At the maximum in w, C'(y - E A) = E w and C'(y - E A)w' - I = E ww' - I, which quadrature gives too."""
    design, solution = p2
    loadings = Loadings(solution.loadings.B + 0.1, solution.loadings.C * 1.1)
    _, dB, dC = quadrature(design, np.asarray(loadings.B), np.asarray(loadings.C))
    found = scores(design, loadings, solution.posterior, "student", Plan(16384, 1))[0]
    C = np.asarray(loadings.C)
    np.testing.assert_allclose(found["slope"], dB @ C, atol=2e-3 * np.abs(dB @ C).max())
    within = C.T @ dC
    np.testing.assert_allclose(found["scale"], within[np.tril_indices(2)], atol=2e-3 * np.abs(within).max())
    np.testing.assert_allclose(within, within.T, atol=1e-8 * np.abs(within).max())


def test_a_step_of_the_ascent_is_nearly_newtons(p2):
    """The preconditioner times the observed information has no eigenvalue above two, where one step would diverge, and few
    small ones; and half the step times the score is what quadrature says that it gains at first."""
    design, solution = p2
    levels, C = information(design, solution), solution.loadings.C
    rng = np.random.default_rng(0)
    for _ in range(3):
        B1 = np.asarray(solution.loadings.B) + 0.02 * rng.normal(size=(2, 10))
        C1 = np.asarray(C) + 0.02 * rng.normal(size=(10, 2))
        there, dB, dC = quadrature(design, B1, C1)
        span = C1.T @ dC
        s = {
            "B": jnp.asarray(dB),
            "C": jnp.asarray(dC),
            "slope": jnp.asarray(dB @ C1),
            "scale": jnp.asarray(span[np.tril_indices(2)]),
        }
        move = preconditioned(levels, jnp.asarray(C1), s)
        n = len(design.x)
        values = [
            quadrature(design, B1 + t * np.asarray(move["B"]) / n, C1 + t * np.asarray(move["C"]) / n)[0].sum() - there.sum()
            for t in (1e-3, 0.5, 1.0)
        ]
        assert values[0] / 1e-3 == pytest.approx(2 * decrement(levels, jnp.asarray(C1), s, n), rel=0.02)
        assert 0.3 < values[2] / decrement(levels, jnp.asarray(C1), s, n) < 1.7 and values[1] > 0


@pytest.mark.parametrize("name", ["P1", "P2"])
def test_the_maximum_is_that_of_quadrature(name, reference):
    wanted = reference("pln")[name]["mle"]
    q = P1[3] if name == "P1" else P2[3]
    design = case(*(P1 if name == "P1" else P2))[0]
    solution = fitted(design, q)
    found = refine(design, solution.loadings, solution.posterior, Refinement(n_draws=512, tol=5e-4), forced=True)
    loglik, dB, dC = quadrature(design, np.asarray(found.loadings.B), np.asarray(found.loadings.C))
    assert loglik.sum() == pytest.approx(wanted["loglik"], abs=1e-3)
    assert float(np.sum(np.asarray(found.loadings.C) ** 2)) == pytest.approx(wanted["trace_Sigma"], abs=0.01)
    if "B_0_first3" in wanted:
        np.testing.assert_allclose(found.loadings.B[0, :3], wanted["B_0_first3"], atol=2e-3)
    before = quadrature(design, np.asarray(solution.loadings.B), np.asarray(solution.loadings.C))
    assert found.history["decrement"].iloc[-1] < 5e-4 and loglik.sum() > before[0].sum() - 1e-6
    size = lambda B, C: np.sqrt(np.sum(B**2) + np.sum(C**2))  # noqa: E731
    assert size(dB, dC) < 0.5 * size(*before[1:])


def test_where_it_promises_nothing_the_variational_estimate_stays():
    design = few_counts(0, 60, 20, 1, 0.5, 2.0)
    solution = fitted(design, 1)
    found = refine(design, solution.loadings, solution.posterior)
    assert found.loadings is solution.loadings and not found.improved
    assert "a further step promises" in found.verdict and len(found.history) == 1


@pytest.mark.slow
def test_with_few_counts_it_raises_the_likelihood_beyond_its_error():
    design = few_counts(5, 150, 12, 4, 1.2, -1.5)
    solution = fitted(design, 4)
    found = refine(design, solution.loadings, solution.posterior)
    assert found.improved
    plan = Plan(2048, 8, True, 99)
    before = marginal(design, solution.loadings, solution.posterior, "student", plan)
    after = marginal(design, found.loadings, found.posterior, "student", plan)
    rise = after.replicates - before.replicates
    assert rise.mean() > 5 * rise.std() / np.sqrt(8) and rise.mean() > 0.05
    told = found.history["loglik"].iloc[-1] - found.history["loglik"].iloc[0]
    assert rise.mean() == pytest.approx(told, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_counts_below_one_and_ten_components(seed):
    design = few_counts(6 + seed, 500, 20, 10, 0.5, -2.0)
    assert design.counts.values.mean() < 1
    solution = fitted(design, 10)
    found = refine(design, solution.loadings, solution.posterior)
    print(f"\nmean count {design.counts.values.mean():.2f}: {found.verdict}\n{found.history.round(3).to_string()}")
    assert found.improved


@pytest.mark.parametrize("variant", ["aisgd-hessian", pytest.param("isgd-vem", marks=pytest.mark.slow)])
def test_the_papers_own_settings(p2, variant):
    """Rprop on all units, then single units with the best step of a grid: it stays within its noise of the maximum."""
    design, solution = p2
    start = Loadings(solution.loadings.B + 0.3, solution.loadings.C)
    before = quadrature(design, np.asarray(start.B), np.asarray(start.C))[0].sum()
    found = refine(design, start, solution.posterior, paper(variant, 64, warm_epochs=60, epochs=2), forced=True)
    after = quadrature(design, np.asarray(found.loadings.B), np.asarray(found.loadings.C))[0].sum()
    assert after > before + 0.9 * (-1042.72 - before)
    assert found.history["epoch"].tolist() == [0.0, 62.0]


def test_sparse_rows_are_those_of_the_dense_table(p2):
    design, solution = p2
    csr = scipy.sparse.csr_matrix(design.counts.values)
    rows = SparseRows(csr, float)
    ids = np.array([[3, 3], [0, 59]])
    np.testing.assert_array_equal(rows[ids], design.counts.values[ids])
    np.testing.assert_array_equal(rows[2:5], design.counts.values[2:5])
    step = InformationAscent(mx.Constant(0.1), information(design, solution))
    params = {"B": np.asarray(solution.loadings.B), "C": np.asarray(solution.loadings.C)}
    out = []
    for counts in (csr, design.counts.values):
        data = units(design._replace(counts=Counts(counts)), solution.posterior, float)
        out.append(mx.fit(PLN(), data, ascent(step), ConditionalSampling(2, 32), params=params, n_iter=12,
                          batch_size=7, rows="host", progress=False))  # fmt: skip
    np.testing.assert_array_equal(out[0].params["C"], out[1].params["C"])
    assert np.abs(out[0].params["C"] - params["C"]).max() > 0


def test_other_algorithms_of_the_engine_work_on_the_model(p2):
    """SOUL with importance sampling of the engine's own, towards the same maximum."""
    design, solution = p2
    data = units(design, solution.posterior, float)
    params = {"B": np.asarray(solution.loadings.B), "C": np.asarray(solution.loadings.C)}
    found = mx.fit(PLN(), data, mx.soul(), ConditionalSampling(2, 64), params=params, n_iter=20, progress=False)
    loglik = quadrature(design, found.params["B"], found.params["C"])[0].sum()
    assert loglik > -1042.76
    with pytest.raises(TypeError, match="latents of margaux.families.pln's PLN, not of _Other"):
        mx.fit(_Other(), {"x": np.ones(3)}, mx.soul(), ConditionalSampling(1, 8), params={"a": 0.0}, n_iter=1)


class _Other(mx.AbstractModel):
    def log_joint(self, params, z, y):
        return -jnp.sum((z - params["a"]) ** 2)

    def init_latents(self, key, params, y):
        return jnp.zeros(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Refinement(variant="vem"), "variant must be one of 'isgd-vem'"),
        (Refinement(n_draws=100), "power of two"),
        (Refinement(epochs=0), "epochs must be a whole number of at least 1"),
        (Refinement(batch_size=2.5), "batch_size must be a whole number"),  # type: ignore[arg-type]
        (Refinement(batch_size=61), "batch_size is 61 and there are 60 units"),
        (Refinement(gain=-1.0), "gain must be positive"),
        (Refinement(gain=None), "gain is searched for preconditioned=False only"),
    ],
)
def test_settings_that_make_no_sense(p2, settings, message):
    design, solution = p2
    with pytest.raises(ValueError, match=message):
        refine(design, solution.loadings, solution.posterior, settings)


def test_score_of_two_replicates_is_their_mean(p2):
    design, solution = p2
    loadings, posterior = solution.loadings, Posterior(*solution.posterior)
    each = scores(design, loadings, posterior, "vem", Plan(64, 2))
    mean = score(design, loadings, posterior, "vem", Plan(64, 2))
    np.testing.assert_allclose(mean.C, (each[0]["C"] + each[1]["C"]) / 2, atol=1e-10)


def test_a_second_control_leaves_less_to_draws(p2, monkeypatch):
    design, solution = p2
    loadings, posterior = solution.loadings, Posterior(*solution.posterior)
    second = scores(design, loadings, posterior, "student", Plan(256, 8))
    monkeypatch.setattr(scoring, "NARROW", 0)
    first = scores(design, loadings, posterior, "student", Plan(256, 8))
    for name in ("B", "C", "slope", "scale"):
        one, two = (np.stack([np.asarray(each[name]) for each in found]) for found in (first, second))
        error = one.std(axis=0, ddof=1) / np.sqrt(8)
        assert np.linalg.norm(two.std(axis=0)) < 0.7 * np.linalg.norm(one.std(axis=0))
        assert np.linalg.norm(two.mean(axis=0) - one.mean(axis=0)) < 2 * np.linalg.norm(error)


def test_louis_information_in_closed_form_is_nearly_that_of_draws(p2):
    """As a metric of steps: a step of one leaves little of one of the other."""
    design, solution = p2
    loadings, posterior = solution.loadings, Posterior(*solution.posterior)
    drawn = inference.louis(design, loadings, posterior, Plan(2048, 2), "student")
    own, closely = closed.observed(design, loadings, posterior)
    np.testing.assert_allclose(own, closed.complete(design, loadings, posterior))
    free = inference.rotations(np.asarray(loadings.C), len(loadings.B))
    held = np.mean(np.diag(drawn)) * free @ free.T
    left = np.linalg.eigvals(np.linalg.solve(closely + held, drawn + held)) - 1
    assert np.max(np.abs(left)) < 0.3


def test_an_ascent_that_diverges_says_so_and_keeps_the_start(p2):
    design, solution = p2
    settings = Refinement("isgd-vem", 16, 1, 2, 0, preconditioned=False, gain=1e6, radius=1e9)
    found = refine(design, solution.loadings, solution.posterior, settings, forced=True)
    assert "the ascent diverged" in found.verdict and not found.improved
    np.testing.assert_array_equal(found.loadings.C, solution.loadings.C)
    assert np.isnan(found.history["loglik"].iloc[-1])


def test_a_large_sparse_table_is_not_made_dense(p2, monkeypatch):
    design, solution = p2
    sparse = design._replace(counts=Counts(scipy.sparse.csr_matrix(design.counts.values)))
    monkeypatch.setattr(refinement, "WHOLE", 100)
    with pytest.raises(ValueError, match="60 x 10 is not made dense: set warm_epochs=0 and a batch_size below 60"):
        refine(sparse, solution.loadings, solution.posterior, Refinement(warm_epochs=3), forced=True)
