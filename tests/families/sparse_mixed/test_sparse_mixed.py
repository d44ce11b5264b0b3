"""SparseMixedLogistic: the paper's problem, exact answers by quadrature, its path, and what it says of bad input."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import margaux as mx
from margaux.engine.loop import full_chunk
from margaux.families.sparse_mixed.estimator import SparseMixedLogistic, StepHuber
from margaux.families.sparse_mixed.model import MixedLogistic, group_posteriors

PAPER = {"step": mx.Polynomial(0.2, 0.95), "kernel": mx.ULA(0.01), "start": {"beta": np.ones(1000)}, "warm_up": 10_000}


@pytest.fixture(scope="module")
def grouped():
    """Forty groups of 25 rows, p = 5, an intercept and sigma = 1."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(40), 25)
    X, effects = rng.normal(size=(1000, 5)), rng.normal(size=40)
    y = (rng.random(1000) < expit(X @ [1, -1, 0, 0, 0.5] + 0.3 + effects[groups])).astype(float)
    return X, y, groups, effects


def small(**settings) -> SparseMixedLogistic:
    return SparseMixedLogistic(**{"fit_intercept": True, "n_iter": 2000, "penalty_weight": 20, "verbose": False, **settings})


def compiled() -> int:
    return full_chunk.programs()


def penalised_at_zero(X, y, beta, weight):
    eta = X @ beta
    return np.sum(np.logaddexp(0, eta) - y * eta) + weight * np.abs(beta).sum()


@pytest.mark.parametrize(
    ("settings", "excess"),
    [({"n_iter": 6000}, 0.1), ({"n_iter": 6000, **PAPER}, 0.2), ({"n_iter": 12_000, "penalty": "huber", **PAPER}, None)],
    ids=["default", "paper", "paper huber"],
)
def test_the_papers_problem(data_folder, reference, settings, excess):
    data, told = np.load(data_folder / "sparse_random_effects.npz"), reference("soul")["sparse_random_effects"]
    model = SparseMixedLogistic(verbose=False, **settings).fit(data["X"], data["y"], data["grp"])
    truth, kept = data["beta"] != 0, model.support_
    assert abs(kept.sum() - told["prox_lambda30"]["support"]) <= 2
    assert (kept & truth).sum() >= 13
    if excess is not None:
        objective = penalised_at_zero(data["X"], data["y"], model.coef_[0], 30.0)
        assert objective == pytest.approx(told["prox_lambda30"]["penalised_objective_sigma0"], abs=excess)
        np.testing.assert_array_equal(kept, model.coef_[0] != 0)
        assert model.n_free_ == kept.sum() + 1 and model.result_.trace["norm"].shape == (6000, 1, 1)


def test_unpenalised_fit_is_the_maximum_marginal_likelihood(grouped):
    X, y, groups, effects = grouped

    def minus(t):
        return -group_posteriors(X @ t[:5] + t[6], t[5], y, groups, 40)[0].sum()

    exact = minimize(
        minus, np.r_[np.zeros(5), 1.0, 0.0], method="L-BFGS-B", bounds=[(None, None)] * 5 + [(1e-5, 9), (None, None)]
    )
    model = SparseMixedLogistic(penalty_weight=0, fit_intercept=True, n_iter=20_000, verbose=False).fit(X, y, groups)
    assert model.objective_ == pytest.approx(exact.fun, abs=0.02) and -model.loglik_ == pytest.approx(model.objective_)
    np.testing.assert_allclose(model.coef_[0], exact.x[:5], atol=0.01)
    assert model.sigma_ == pytest.approx(exact.x[5], abs=0.03)
    assert np.corrcoef(model.random_effects_["mean"], effects)[0, 1] > 0.85
    assert model.score(X, y, groups) > model.score(X, y) > 0.6
    assert model.bic_ - model.aic_ == pytest.approx((np.log(1000) - 2) * 7)


def test_without_group_variation_it_is_the_lasso(grouped):
    X, _, groups, _ = grouped
    rng = np.random.default_rng(3)
    y = rng.random(1000) < expit(X @ [1, -1, 0, 0, 0.5])
    for j in range(0, 1000, 2):  # equal shares of both classes everywhere: no between-group variance
        y[j + 1] = not y[j]
    model = SparseMixedLogistic(penalty_weight=15, fit_intercept=True, n_iter=5000, verbose=False).fit(X, y, groups)
    lasso = LogisticRegression(l1_ratio=1.0, C=1 / 15, solver="saga", tol=1e-6, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(model.coef_, lasso.coef_, atol=0.005)
    np.testing.assert_allclose(model.intercept_, lasso.intercept_, atol=0.01)
    assert model.sigma_ < 0.1


def test_marginal_likelihood_against_adaptive_integration():
    rng = np.random.default_rng(0)
    group, eta, y = np.array([0, 0, 0, 1, 1, 2]), rng.normal(size=6), np.array([1.0, 1, 1, 0, 1, 0])
    for sigma in (1e-5, 1.0, 6.0):
        value, mean, sd = group_posteriors(eta, sigma, y, group, 3)
        for j in range(3):

            def density(x, j=j, sigma=sigma):
                p = expit(eta[group == j] + sigma * x)
                return norm.pdf(x) * np.prod(np.where(y[group == j] == 1, p, 1 - p))

            moments = [quad(lambda x, k=k: x**k * density(x), -12, 12, points=[0])[0] for k in range(3)]
            expected = moments[1] / moments[0]
            assert value[j] == pytest.approx(np.log(moments[0]), abs=1e-4)
            assert mean[j] == pytest.approx(expected, abs=1e-3)
            assert sd[j] == pytest.approx(np.sqrt(moments[2] / moments[0] - expected**2), abs=1e-3)


def test_model_is_the_formula():
    rng = np.random.default_rng(0)
    X, y, group, x = rng.normal(size=(6, 2)), np.array([0.0, 1, 1, 0, 1, 0]), np.array([0, 0, 1, 1, 1, 2]), rng.normal(size=3)
    params = {"beta": np.array([0.5, -1.0]), "sigma": 0.7, "intercept": 0.2}
    p = expit(0.2 + X @ params["beta"] + 0.7 * x[group])
    expected = np.sum(np.log(np.where(y == 1, p, 1 - p))) + norm.logpdf(x).sum()
    assert MixedLogistic(3).log_joint(params, x, {"X": X, "y": y, "group": group}) == pytest.approx(expected, abs=1e-4)


def test_huber_of_the_step_by_brute_force():
    penalty, step = StepHuber(30.0), 0.01
    grid = np.linspace(-2, 2, 400_001)
    c = 30.0 * step
    huber = np.where(np.abs(grid) <= c, grid**2 / 2, c * np.abs(grid) - c**2 / 2) / step
    for value in (-1.5, -0.61, -0.2, 0.0, 0.59, 1.0):
        best = grid[np.argmin(huber + (grid - value) ** 2 / (2 * step))]
        moved = penalty.prox({"beta": np.array([value], np.float32), "sigma": 1.0}, jnp.asarray(step))
        assert float(moved["beta"][0]) == pytest.approx(best, abs=1e-4) and moved["sigma"] == 1.0


def test_path_selects_more_as_the_penalty_falls_without_recompiling(grouped):
    X, y, groups, _ = grouped
    model = clone(small())
    assert isinstance(model, SparseMixedLogistic)
    frame = model.path(X, y, groups, [5, 80, 40, 20, 10], n_iter=2000)
    assert frame.index.tolist() == [80, 40, 20, 10, 5] and frame is model.path_
    assert frame["n_selected"].is_monotonic_increasing and frame["objective"].is_monotonic_decreasing
    before = compiled()
    longer = model.path(X, y, groups, n_iter=1000, penalty_weights=6)
    assert compiled() == before
    assert len(longer) == 6 and longer["n_selected"].iloc[0] == 0
    alone = small(n_iter=5000).fit(X, y, groups)
    np.testing.assert_allclose(frame.loc[20, ["x0", "x1", "x2", "x3", "x4"]].to_numpy(float), alone.coef_[0], atol=0.02)
    figure = model.plot_path(truth=[1, -1, 0, 0, 0.5])
    assert len(figure) == 2 and len(figure.figure.axes) == 3 and not hasattr(model, "groups_")
    np.testing.assert_array_equal(figure[1].lines[0].get_ydata(), longer["n_selected"])
    drawn = {tuple(line.get_ydata()) for line in figure[0].lines}
    assert drawn == {tuple(longer[f"x{j}"]) for j in range(5) if np.any(longer[f"x{j}"] != 0)}
    with pytest.raises(ValueError, match="call path"):
        small().plot_path()


def test_formula_and_arrays_agree(grouped):
    X, y, groups, _ = grouped
    names = list("abcde")
    frame = pd.DataFrame(X, columns=names).assign(y=y, clinic=[f"c{g:02d}" for g in groups])
    by_arrays = small(n_iter=6000).fit(frame[names], np.where(y == 1, "yes", "no"), groups)
    by_formula = small(n_iter=6000).fit("y ~ a + b + c + d + e", frame, groups="clinic")
    np.testing.assert_allclose(by_formula.coef_, by_arrays.coef_, atol=1e-12)
    assert by_formula.coef_.shape == (1, 5) and by_formula.n_observations_ == 1000 and list(by_arrays.classes_) == ["no", "yes"]
    np.testing.assert_allclose(by_formula.predict_proba(frame, "clinic"), by_arrays.predict_proba(frame[names], groups))
    assert set(by_arrays.predict(frame[names])) == {"no", "yes"}
    summary = by_formula.summary()
    assert list(summary.index)[-2:] == ["intercept", "sigma"] and "no standard errors" in summary.attrs["message"]
    assert np.isnan(by_formula.conf_int().to_numpy()).all() and np.isnan(by_formula.stderr_["sigma"])
    assert by_formula.converged_ and by_formula.loglik_se_ == 0.0


def test_new_groups_have_no_effect(grouped):
    X, y, groups, _ = grouped
    model = small().fit(X, y, groups)
    plain = model.decision_function(X)
    np.testing.assert_array_equal(model.decision_function(X, groups + 1000), plain)
    effect = model.random_effects_["mean"].to_numpy()[groups]
    np.testing.assert_allclose(model.decision_function(X, groups), plain + effect)
    assert model.random_effects_.index.tolist() == list(range(40))
    assert np.all(model.random_effects_["sd"] > 0)


def _changed(values, where, value):
    out = np.array(values)
    out[where] = value
    return out


GOOD = {
    "X": np.random.default_rng(0).normal(size=(12, 3)),
    "y": np.tile([0, 1], 6),
    "groups": np.repeat([0, 1, 2], 4),
}
BAD = [
    ({"X": _changed(GOOD["X"], (4, 2), np.nan)}, {}, 'nan at row 4, column "x2"'),
    ({"X": _changed(GOOD["X"], (slice(None), 1), 2.0)}, {}, 'one value only: "x1"'),
    ({"y": np.tile([0, 1, 2], 4)}, {}, "two classes; it holds 3"),
    ({"y": np.zeros(12)}, {}, "two classes; it holds 1"),
    ({"y": _changed(GOOD["y"].astype(float), 3, np.nan)}, {}, "y is missing at row 3"),
    ({"y": GOOD["y"][:-1]}, {}, "y has 11 entries and X 12 rows"),
    ({"groups": GOOD["groups"][:-2]}, {}, "groups has 10 entries and X 12 rows"),
    ({"groups": np.zeros(12)}, {}, "one group only"),
    ({"groups": np.zeros((12, 2))}, {}, "one label a row"),
    ({"groups": _changed(GOOD["groups"].astype(float), 5, np.nan)}, {}, "groups is missing at row 5"),
    ({"groups": None}, {}, "groups is missing"),
    ({"groups": "clinic"}, {}, "need a formula"),
    ({}, {"penalty": "l2"}, '"l1" or "huber"'),
    ({}, {"penalty_weight": -1.0}, "not negative"),
    ({}, {"penalty_weight": "30"}, "must be a number"),
    ({}, {"threshold": -1.0}, "threshold"),
    ({}, {"n_iter": 0}, "n_iter must be at least 1"),
    ({}, {"start": {"b": 0.0}}, "no parameter"),
    ({}, {"start": {"beta": np.zeros(2)}}, "shape"),
    ({}, {"step": -0.1}, "step must be positive"),
]


@pytest.mark.parametrize(("inputs", "settings", "message"), BAD, ids=[message for _, _, message in BAD])
def test_bad_input_is_told_before_compilation(inputs, settings, message):
    before = compiled()
    with pytest.raises((ValueError, TypeError), match=message):
        SparseMixedLogistic(verbose=False, **settings).fit(**{**GOOD, **inputs})
    assert compiled() == before


def test_bad_paths_and_frames():
    model = SparseMixedLogistic(verbose=False)
    with pytest.raises(ValueError, match="penalty_weights is empty"):
        model.path(**GOOD, penalty_weights=[])
    with pytest.raises(ValueError, match="not negative"):
        model.path(**GOOD, penalty_weights=[-1.0])
    frame = pd.DataFrame(GOOD["X"], columns=list("abc")).assign(y=GOOD["y"])
    with pytest.raises(ValueError, match='no column is called "clinic"; they are a, b, c, y'):
        model.fit("y ~ a + b", frame, groups="clinic")
