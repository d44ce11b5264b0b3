"""Tables filled up to sizes that programs are compiled for: answers are what they were, and programs serve other tables."""

import jax
import numpy as np
import pytest
from test_pln import case

from margaux import PLNPCA
from margaux.families.pln import answers, closed, filling, fitting, importance, inference, scoring, weighted
from margaux.families.pln.fitting import Sweeps
from margaux.families.pln.proposals import PROPOSALS, Plan
from margaux.families.pln.start import by_log_counts
from margaux.numerics import compiling

PROGRAMS = (
    fitting._whole,
    importance._drawn,
    importance.curvature,
    closed._complete,
    inference._louis,
    inference._expected_rates,
    inference._hidden,
    weighted.weighted,
    answers._settled,
)


def table(seed, shape, covariates=0, wide=False):
    rng, (n, p) = np.random.default_rng(seed), shape
    counts = rng.poisson(np.exp(rng.normal(1, 0.7, p) + rng.normal(size=(n, 2)) @ rng.normal(0, 0.6, (2, p))))
    given = {"covariates": rng.normal(size=(n, covariates))} if covariates else {}
    return counts, given | {"offsets": rng.normal(0, 0.3, (n, p) if wide else n)}


def answered(counts, given, new=5, **settings):
    """Figures of a fit, in every way that programs make them."""
    model = PLNPCA(rank=2, n_starts=2, verbose=False, **settings).fit(counts, **given)
    rows = {name: leaf[:new] for name, leaf in given.items()}
    found = model.importance_
    return {
        "bounds": np.asarray(model.bounds_),
        "loadings": model.loadings_,
        "posterior": model.scores_covariance_,
        "units": found[["loglik", "error", "ess", "pareto"]].to_numpy(),
        "errors": model.stderr_["coef"],
        "kinds": np.stack([model._errors(kind) for kind in ("adjusted", "robust")]),
        "certificate": np.array([check.figure for check in model.certificate_.checks]),
        "others": model.transform(counts[:new], **rows),
        "score": model.score(counts[:new], **rows),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "covariates", "wide", "settings"),
    [
        ((9, 5), 0, False, {}),
        ((12, 40), 1, True, {}),
        ((45, 13), 2, False, {"posterior_covariance": "diagonal"}),
    ],
    ids=["tiny", "more features than units", "diagonal"],
)
def test_what_fills_a_table_up_changes_no_answer(monkeypatch, shape, covariates, wide, settings):
    given = table(1, shape, covariates, wide)
    filled = answered(*given, **settings)
    for module in (filling, fitting, importance):
        monkeypatch.setattr(module, "LARGE", 0)
    exact = answered(*given, **settings)
    for name, figures in exact.items():
        np.testing.assert_allclose(filled[name], figures, rtol=1e-6, atol=1e-6, err_msg=name)


def test_what_fills_a_table_up_stays_nothing():
    with jax.enable_x64(True):
        design, *_ = case(3, 50, 14, 2, 0.6, 0.0, 2, True)
        sweeps = Sweeps(design, np.dtype(float), "diagonal")
        run = sweeps.on(sweeps.begin(*by_log_counts(design, 2)), 20)
        (B, C), (mean, spread) = run.state.here[:2]
        assert C.shape == (32, 2) and mean.shape == (64, 2)
        assert not np.any(B[:, 14:]) and not np.any(C[14:]) and not np.any(mean[50:])
        np.testing.assert_array_equal(spread[50:], np.tile([1.0, 0.0, 1.0], (14, 1)))


def test_scores_of_many_draws_are_those_of_all_draws_at_once(monkeypatch):
    with jax.enable_x64(True):
        design, *_ = case(4, 20, 9, 2, 0.6, 0.5, 2, True)
        loadings, posterior = by_log_counts(design, 2)

        def scores(control, name, plan):
            return scoring.scores(design, loadings, posterior, PROPOSALS[name], plan, control)

        plans = [(True, "student", Plan(512, 1)), (False, "vem mixture", Plan(256, 2, sobol=False))]
        chunks = [scores(*plan) for plan in plans]
        monkeypatch.setattr(weighted, "CHUNK", 1 << 10)
        monkeypatch.setattr(scoring, "NET", 1)
        compiling.forget()
        for few, plan in zip(chunks, plans, strict=True):
            for one, two in zip(few, scores(*plan), strict=True):
                for name, leaf in two.items():
                    np.testing.assert_allclose(one[name], leaf, rtol=1e-9, atol=1e-9, err_msg=name)


def test_programs_serve_tables_of_a_similar_size():
    compiling.forget()
    none = [program.programs() for program in PROGRAMS]
    answered(*table(5, (44, 20)))
    before = [program.programs() for program in PROGRAMS]
    answered(*table(6, (41, 23), wide=True), new=7, random_state=3)
    assert [program.programs() for program in PROGRAMS] == before
    # Draws are for all units and for some; scores are of no more draws than a chunk has, and of more.
    assert [after - first for first, after in zip(none, before, strict=True)] == [1, 3, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("features", [0, 256], ids=["of first order", "of second order"])
def test_draws_that_are_added_say_what_all_of_them_at_once_do(monkeypatch, features):
    with jax.enable_x64(True):
        design, *_ = case(4, 40, 9, 2, 0.6, 0.5, 2, True)
        loadings, posterior = by_log_counts(design, 2)
        monkeypatch.setattr(scoring, "NARROW", features)
        plan = Plan(replicates=2)
        growing = scoring.Scoring(design, loadings, posterior, "student", plan)
        steps = [growing.by(draws) for draws in (64, 128, 512)]
        monkeypatch.setattr(scoring, "KEPT", 0)
        anew = scoring.Scoring(design, loadings, posterior, "student", plan)
        for draws, found in zip((64, 128, 512), steps, strict=True):
            for added, at_once in zip(found, anew.by(draws), strict=True):
                for name, leaf in at_once.items():
                    np.testing.assert_allclose(added[name], leaf, rtol=1e-12, atol=1e-10, err_msg=name)
