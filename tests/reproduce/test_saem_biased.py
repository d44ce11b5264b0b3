"""The biased-SAEM experiments: their pieces against exact answers, their figures against the reference ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm, poisson

import margaux as mx
from margaux.examples import theophylline
from margaux.families.empirical_bayes.model import ARDPrior
from margaux.problem.target import Target
from margaux.reproduce import _saem_biased_models as pieces
from margaux.reproduce import saem_biased as experiments
from margaux.reproduce.saem_biased import JOINT, PER_UNIT, ULA

#: splits of the paper's experiments
REPEATS = 32


@pytest.fixture
def count_data(data_folder, monkeypatch):
    monkeypatch.setenv("MARGAUX_DATA", str(data_folder))

    def read(name):
        frame = experiments.table(f"{name}.csv")
        assert frame is not None
        return experiments.count_rows(frame, name)

    return read


def regression(rng, n=60):
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    return x, x @ [1.0, 0.4, -0.3] + 0.5 * rng.normal(size=n)


def test_joint_model_is_the_sum_of_its_units():
    rng = np.random.default_rng(0)
    x, z = regression(rng)
    rows = {"x": x, "y": rng.poisson(np.exp(z)).astype(float)}
    model = pieces.RobustPoisson(x.T @ x / len(x))
    joint = pieces.Together(model)
    params = {"beta": np.array([1.0, 0.3, 0.1]), "sigma": np.asarray(0.4)}
    with jax.enable_x64(True):
        each = [model.log_joint(params, z[i], {"x": x[i], "y": rows["y"][i]}) for i in range(len(z))]
        assert float(joint.log_joint(params, jnp.asarray(z), rows)) == pytest.approx(float(sum(each)), rel=1e-12)
        exact = poisson.logpmf(rows["y"], np.exp(z)) + norm.logpdf(z, x @ params["beta"], 0.4)
        np.testing.assert_allclose(np.array(each), exact, rtol=1e-9)
        stats = joint.suffstats(jnp.asarray(z), rows)
        np.testing.assert_allclose(stats["xz"], x.T @ z / len(z), rtol=1e-12)


def test_the_m_step_maximises_and_the_authors_does_not():
    x, z = regression(np.random.default_rng(1))
    gram = x.T @ x / len(x)
    stats = {"xz": x.T @ z / len(z), "zz": np.mean(z**2)}

    def complete(params):
        return jnp.mean(jax.scipy.stats.norm.logpdf(z, x @ params["beta"], params["sigma"]))

    with jax.enable_x64(True):
        right = pieces.RobustPoisson(gram).m_step(stats)
        slope = jax.grad(complete)(right)
        assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(slope)) < 1e-10
        theirs = pieces.SlopesAlone(gram).m_step(stats)
        np.testing.assert_allclose(theirs["beta"][1:], np.linalg.lstsq(x[:, 1:], z, rcond=None)[0], rtol=1e-9)
        np.testing.assert_allclose(theirs["sigma"], np.std(z - x @ np.asarray(theirs["beta"])), rtol=1e-9)
        assert float(complete(theirs)) < float(complete(right))


def test_poisson_density_is_the_integral_and_sums_to_one():
    params = {"beta": np.array([1.2, -0.4]), "sigma": 0.7}
    x = np.array([1.0, 0.5])
    for y in (0, 3, 20):

        def integrand(z, y=y):
            return poisson.pmf(y, np.exp(z)) * norm.pdf(z, x @ params["beta"], 0.7)

        value = experiments.poisson_density(params, x[None], np.array([float(y)]))
        assert value == pytest.approx(np.log(quad(integrand, -6, 8, epsabs=1e-13)[0]), abs=1e-8)
    counts = np.arange(400.0)
    each = [experiments.poisson_density(params, x[None], counts[i : i + 1], 256) for i in range(400)]
    assert np.exp(each).sum() == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("kind", [mx.ULA, lambda h: mx.MALA(h, target_acceptance=None)], ids=["ula", "mala"])
def test_curvature_scaled_kernel_is_the_preconditioned_one(kind):
    rng = np.random.default_rng(2)
    x = np.column_stack([np.ones(40), rng.normal(size=(40, 2))])
    sigma, h = np.array([0.5, 2.0]), 0.3
    variances = 1 / (np.r_[0.0, 1 / sigma**2] + 10.0)
    z = jnp.asarray(rng.normal(size=3), jnp.float32)
    target = Target(ARDPrior(10.0), {"sigma": jnp.asarray(sigma)}, {"x": jnp.asarray(x), "y": jnp.asarray(x[:, 1] > 0, float)})
    plain, scaled = kind(h), pieces.CurvatureScaled(kind(h))
    fixed = (mx.ULA if plain.adjusted is False else mx.MALA)(h, preconditioner=variances)
    for seed in range(5):
        noise = plain.noise(jax.random.key(seed), z)
        ours, _, probability = scaled.step(noise, z, scaled.refresh(z, scaled.init(z), target), target, jnp.asarray(h))
        theirs, _, expected = fixed.step(noise, z, fixed.refresh(z, fixed.init(z), target), target, jnp.asarray(h))
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(probability, expected, rtol=2e-3)


def test_laplace_against_the_integral_over_a_grid():
    rng = np.random.default_rng(3)
    n = 200
    x = np.column_stack([np.ones(n), rng.normal(size=n)])
    y = (rng.random(n) < expit(x @ [0.3, 1.0])).astype(float)
    sd, test = np.array([10.0, 1.5]), np.array([[1.0, -1.0], [1.0, 0.0], [1.0, 2.0]])
    grid = np.linspace(-1.5, 3.0, 300)
    beta = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    eta = beta @ x.T
    logs = eta @ y - np.logaddexp(0, eta).sum(axis=1) + norm.logpdf(beta, 0, sd).sum(axis=1)
    exact = float(logsumexp(logs)) + 2 * np.log(grid[1] - grid[0])
    weights = np.exp(logs - logs.max())
    probability = expit(beta @ test.T).T @ weights / weights.sum()
    marginal, p = pieces.laplace(x, y, sd, test)
    # The approximation is off by O(1 / n), relatively.
    assert marginal == pytest.approx(exact, abs=5 / n)
    np.testing.assert_allclose(p, probability, atol=1 / n)


def pk_fit(units, n_iter, h=0.001, **params):
    start = experiments.PK_START | params
    return experiments.saem(
        pieces.Dispersed(theophylline.Theophylline(), 0.1), units, experiments.kernel(PER_UNIT, h),
        warm_up=100, n_iter=n_iter, key=0, params=start, space=mx.Positive(),
    )  # fmt: skip


def test_fit_on_other_subjects_has_their_likelihood():
    units = theophylline.data()
    fit = pk_fit({name: leaf[experiments.split(12, 0)[0]] for name, leaf in units.items()}, 20)
    found = experiments.on_test(fit, units).loglik(n_draws=2000, params=theophylline.EXACT)
    assert len(found.per_unit) == 12 and found.se < 0.05
    assert abs(float(found) - theophylline.EXACT_LOGLIK) < 5 * found.se


@pytest.mark.slow
def test_the_authors_start_ends_in_the_flip_flop_mode():
    units = theophylline.data()
    usual = pk_fit(units, 1000).params
    assert usual["ka"] > 1 and usual["V"] > 20
    theirs = {"V": 1.0, "CL": 1.0, "a": 2.0} | {f"omega2_{name}": 0.01 for name in theophylline.NAMES}
    flipped = pk_fit(units, 1000, **theirs).params
    assert flipped["ka"] < 0.2 and flipped["V"] < 4


def test_widths_and_splits():
    steps, values = np.logspace(-3, 0, 4), np.array([-2.0, -1.0, -1.005, -np.inf])
    assert pieces.decades(steps, values, -1.01) == pytest.approx(1.0)
    assert np.isnan(pieces.decades(steps, values, -0.5))
    scores = {"a": values[:, None], "b": values[:, None] - 1.0}
    assert experiments.widths(steps, scores) == "a 1.00; b never"
    assert experiments.widths(steps, scores, own=True) == "a 1.00; b 1.00"
    train, test = experiments.split(11, 3)
    assert len(train) == 8 and sorted([*train, *test]) == list(range(11))


def test_simulated_data_and_missing_files(monkeypatch, capsys):
    values = np.linalg.svd(experiments.simulate(n=200, d=20)["x"], compute_uv=False)
    np.testing.assert_allclose(values[[0, -1]], [100.0, 100 / np.sqrt(1000)], rtol=1e-9)
    monkeypatch.delenv("MARGAUX_DATA", raising=False)
    assert experiments.table("medpar.csv") is None and experiments.class_rows("german") is None
    assert experiments.logistic_data()[1] == "simulated here"
    assert capsys.readouterr().out.count("is not in the folder MARGAUX_DATA (not set)") == 2


def test_main_draws_and_tabulates(tmp_path, monkeypatch, capsys):
    def errors(data, sampler, h, runs):
        return np.full(runs, np.inf if h > 0.3 else h)

    def scores(seed, sampler, h):
        return (np.inf, -np.inf) if h > 0.3 else (1.0 + seed, -16.0 - 100 * h)

    monkeypatch.delenv("MARGAUX_DATA", raising=False)
    monkeypatch.setattr(experiments, "logistic_errors", errors)
    monkeypatch.setattr(experiments, "pk_scores", scores)
    experiments.main(tmp_path / "figures")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        "saem_biased_logistic.png",
        "saem_biased_theophylline.png",
    }
    printed = capsys.readouterr().out
    assert "2. theophylline" in printed and "3. medpar" not in printed and printed.count("left out") == 5


def test_data_files_are_read_whole(data_folder, monkeypatch):
    monkeypatch.setenv("MARGAUX_DATA", str(data_folder))
    for name, shape, share in [("german", (1000, 24), 0.3), ("phishing", (11055, 30), 0.557), ("caravan", (5822, 85), 0.0598)]:
        held = experiments.class_rows(name)
        assert held is not None
        x, y = held
        assert x.shape == shape and np.all(np.isfinite(x)) and y.mean() == pytest.approx(share, abs=1e-3)


@pytest.mark.slow
def test_synthetic_logistic_reaches_the_reference_figures(data_folder, monkeypatch, reference):
    monkeypatch.setenv("MARGAUX_DATA", str(data_folder))
    told = reference("saem_biased")["logistic_kappa1000"]
    data, source = experiments.logistic_data()
    assert source == told["data"]
    ula, mala = (experiments.logistic_errors(data, name, h) for name, h in [(ULA, 1e-2), (JOINT, 10**-2.333333)])
    assert np.median(ula) < 0.01
    # A median's standard error is about 0.93 interquartile ranges over root n; the reference has its own.
    error = 0.93 * np.subtract(*np.quantile(mala, [0.75, 0.25])) / np.sqrt(len(mala))
    assert abs(np.median(mala) - told["median_sq_error_T100"]["joint mala h=4.6e-3"]) < 3 * np.sqrt(2) * error
    start = 1.0**2 + 0.9**2
    assert np.median(experiments.logistic_errors(data, ULA, told["ula_diverges_from"])) > start
    assert np.median(experiments.logistic_errors(data, ULA, 10**-1.666667)) < start


def mle_density(x, y, seed):
    """Test density of a split at the exact maximum likelihood estimate, by 64-node Gauss-Hermite."""
    train, test = experiments.split(len(y), seed)

    def density(p, rows):
        return experiments.poisson_density({"beta": p[:-1], "sigma": np.exp(p[-1])}, x[rows], y[rows], 64)

    nodes, weights = np.polynomial.hermite.hermgauss(64)
    log_weights = np.log(weights / np.sqrt(np.pi))

    @jax.jit
    def minus(p):
        z = (x[train] @ p[:-1])[:, None] + jnp.sqrt(2.0) * jnp.exp(p[-1]) * nodes
        logs = y[train][:, None] * z - jnp.exp(z)
        return -jnp.mean(logsumexp(logs + log_weights, axis=1))

    with jax.enable_x64(True):
        both = jax.jit(jax.value_and_grad(minus))
        start = np.r_[np.log(y.mean()), np.zeros(x.shape[1] - 1), -0.5]
        found = minimize(lambda p: tuple(np.asarray(v, float) for v in both(jnp.asarray(p))), start, jac=True)
    return density(found.x, test)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "told"), [("medpar", "best_lpd"), ("azpro", "best_lpd_correct_m_step")])
def test_robust_poisson_reaches_the_maximum_and_the_reference(count_data, reference, name, told):
    x, y = count_data(name)
    found = [experiments.poisson_score(x, y, seed, ULA, 0.016) for seed in range(REPEATS)]
    assert np.mean(found) == pytest.approx(reference("saem_biased")[name][told], abs=0.02)
    exact = [mle_density(x, y, seed) for seed in range(4)]
    np.testing.assert_allclose(found[:4], exact, atol=5e-3)


@pytest.mark.slow
def test_the_authors_m_step_loses_what_the_reference_says(count_data, reference):
    x, y = count_data("azpro")
    found = [experiments.poisson_score(x, y, seed, ULA, 0.016, pieces.SlopesAlone) for seed in range(REPEATS)]
    assert np.mean(found) == pytest.approx(reference("saem_biased")["azpro"]["best_lpd_authors_m_step"], abs=0.02)


@pytest.mark.slow
def test_rows_that_accept_alone_outlast_the_joint_step(count_data):
    x, y = count_data("azpro")
    joint, alone = (experiments.poisson_score(x, y, 0, name, 0.1) for name in (JOINT, PER_UNIT))
    assert alone == pytest.approx(mle_density(x, y, 0), abs=5e-3) and joint < alone - 0.2
