"""Discrete covariates with holes against brute force: every completion, SciPy's densities, and quadrature of its own."""

# What is refused has types that are refused.
# pyright: reportArgumentType=false

import contextlib
import itertools
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special, stats

import margaux as mx
from margaux.families.missing.discrete import Cells, Discrete

NODES, WEIGHTS = np.polynomial.legendre.leggauss(160)


def simulated(name, n=250, seed=0, share=0.25):
    """A binary, an ordinal and a continuous covariate with holes; another of each kind without."""
    rng = np.random.default_rng(seed)
    a = (rng.random(n) < 0.4).astype(float)
    b = rng.choice([1.0, 2.0, 4.0], n, p=[0.5, 0.3, 0.2])
    x = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], n) + a[:, None] * [1.0, 0.0] + (b == 2)[:, None] * [0.5, -0.5]
    eta = -0.6 + 0.9 * a + 0.4 * b + 0.5 * x[:, 0] - 0.7 * x[:, 1]
    draw = {"logistic": lambda: rng.random(n) < special.expit(eta), "gaussian": lambda: rng.normal(eta, 0.8),
            "poisson": lambda: rng.poisson(np.exp(eta / 2)), "probit": lambda: rng.random(n) < special.ndtr(eta),
            "multinomial": lambda: np.argmax(np.stack([0 * a, eta, -0.5 + a], 1) + rng.gumbel(size=(n, 3)), axis=1)}  # fmt: skip
    table = np.column_stack([x[:, 0], a, b, x[:, 1]])
    table[:, :3][rng.random((n, 3)) < share] = np.nan
    return table, draw[name]().astype(float)


def outcome(name, y, mean, sd, scale):
    """log p(y) for predictors N(mean, sd^2), (n,); for a multinomial outcome the mean is (n, 2) and sd a factor (n, 2)."""
    z = 10 * NODES
    weight = 10 * WEIGHTS * stats.norm.pdf(z)
    if name == "multinomial":
        eta = mean[:, None] + sd[:, None] * z[:, None]
        logs = np.concatenate([np.zeros((*eta.shape[:2], 1)), eta], axis=2)
        logs = logs - np.asarray(special.logsumexp(logs, axis=2, keepdims=True))
        return np.log(np.exp(np.take_along_axis(logs, y.astype(int)[:, None, None], 2)[..., 0]) @ weight)
    eta, y = mean[:, None] + sd[:, None] * z, y[:, None]
    density = {
        "logistic": lambda: special.expit((2 * y - 1) * eta), "probit": lambda: special.ndtr((2 * y - 1) * eta),
        "gaussian": lambda: stats.norm.pdf(y, eta, np.sqrt(scale)), "poisson": lambda: stats.poisson.pmf(y, np.exp(eta)),
    }[name]()  # fmt: skip
    return np.log(density @ weight)


def brute(name, table, y, intercept, coef, mean, covariance, log_cells, scale=1.0):
    """Observed log-likelihood: log of the sum over all cells (a, b) that a row may be in; means are by cell, (2, 3, 2)."""
    total = np.full((len(y), 6), -np.inf)
    coef = np.atleast_2d(coef)
    for j, (a, b) in enumerate(itertools.product((0, 1), (0, 1, 2))):
        value = (1.0, 2.0, 4.0)[b]
        fits = (np.isnan(table[:, 1]) | (table[:, 1] == a)) & (np.isnan(table[:, 2]) | (table[:, 2] == value))
        x, mu = table[:, [0, 3]], mean[a, b]
        hole = np.isnan(x[:, 0])
        slope = covariance[0, 1] / covariance[1, 1]
        filled = np.where(hole, mu[0] + slope * (x[:, 1] - mu[1]), x[:, 0])
        sd = np.where(hole, np.sqrt(covariance[0, 0] - slope * covariance[0, 1]), 0.0)
        logs = stats.norm.logpdf(x[:, 1], mu[1], np.sqrt(covariance[1, 1]))
        whole = stats.multivariate_normal(mu, covariance).logpdf(np.nan_to_num(x))
        logs = np.where(hole, logs, whole) + log_cells[a, b]
        design = np.column_stack([filled, np.full(len(y), a), np.full(len(y), value), x[:, 1]])
        eta = np.atleast_1d(intercept) + design @ coef.T
        if name == "multinomial":
            logs = logs + outcome(name, y, eta, sd[:, None] * coef[:, 0], scale)
        else:
            logs = logs + outcome(name, y, eta[:, 0], np.maximum(np.abs(coef[0, 0]) * sd, 1e-9), scale)
        total[fits, j] = logs[fits]
    return float(np.sum(np.asarray(special.logsumexp(total, axis=1))))


def of_model(name, table, y, model):
    """The same at a fit."""
    one = model.params_
    # Rows: the reference cell, then what a = 1, b = 2 and b = 4 add.
    base, first, *second = one["mean"]
    mean = np.array([[base + a * first + (second[b - 1] if b else 0) for b in range(3)] for a in range(2)])
    log_cells = np.log(model.cells_["probability"].to_numpy()).reshape(2, 3)
    return brute(name, table, y, one["intercept"], one["coef"], mean, one["covariance"], log_cells, one.get("scale", 1.0))


@pytest.mark.parametrize(
    "name",
    ["logistic", "gaussian", "poisson", *(pytest.param(name, marks=pytest.mark.slow) for name in ("probit", "multinomial"))],
)
def test_the_likelihood_is_that_of_all_completions(name):
    table, y = simulated(name)
    model = mx.MissingGLM(family=name, discrete=["x1", 2], verbose=False).fit(table, y)
    assert model.converged_ and model.certificate_["gradient"].figure < 1e-3
    assert float(model.loglik_) == pytest.approx(of_model(name, table, y, model), abs=1e-5)
    assert list(model.cells_.columns) == ["x1", "x2", "probability"] and model.cells_["probability"].sum() == pytest.approx(1.0)


@pytest.fixture(scope="module")
def fitted():
    table, y = simulated("logistic")
    return table, y, mx.MissingLogistic(discrete=["x1", "x2"], verbose=False).fit(table, y)


def unpacked(flat):
    """Free coordinates of an oracle of its own: log odds of cells, coefficients, dummies' means, a Cholesky factor."""
    root = np.array([[np.exp(flat[0]), 0.0], [flat[1], np.exp(flat[2])]])
    rows = flat[3:11].reshape(4, 2)
    mean = np.array([[rows[0] + a * rows[1] + (rows[1 + b] if b else 0) for b in range(3)] for a in range(2)])
    cells = np.concatenate([[0.0], flat[11:16]])
    return flat[16], flat[17:], mean, root @ root.T, (cells - special.logsumexp(cells)).reshape(2, 3)


@pytest.mark.slow
def test_the_estimate_and_its_errors_are_those_of_another_optimiser(fitted):
    table, y, model = fitted
    assert model._layout.cells.table == "saturated"
    target = lambda flat: -brute("logistic", table, y, *unpacked(flat))  # noqa: E731
    found: Any = optimize.minimize(target, np.r_[np.zeros(16), 0.0, np.zeros(4)], method="BFGS", options={"gtol": 1e-4})
    np.testing.assert_allclose(found.x[16:], np.r_[model.intercept_, model.coef_], atol=2e-4)
    assert -found.fun == pytest.approx(float(model.loglik_), abs=1e-5)
    h = 1e-3
    steps = h * np.eye(21)
    corner = lambda a, b: target(found.x + a + b) - target(found.x + a - b)  # noqa: E731
    hessian = [[(corner(a, b) - corner(-a, b)) / (4 * h**2) for a in steps] for b in steps]
    errors = np.sqrt(np.diagonal(np.linalg.inv(hessian)))
    np.testing.assert_allclose(model.summary()["se"], errors[16:], rtol=5e-3)
    # In the covariates' part too: the reference means.
    np.testing.assert_allclose(np.asarray(model.stderr_["mean"]).ravel(), errors[3:11], rtol=5e-3)


def test_predictions_conditional_means_and_draws_sum_over_completions(fitted):
    table, y, model = fitted
    one, probabilities = model.params_, model.cells_["probability"].to_numpy().reshape(2, 3)
    base, first, *second = one["mean"]
    row = np.array([[0.3, np.nan, 2.0, -0.4]])
    weights = [probabilities[a, 1] * stats.multivariate_normal(base + a * first + second[0], one["covariance"]).pdf([0.3, -0.4])
               for a in (0, 1)]  # fmt: skip
    share = weights[1] / sum(weights)
    chance = [special.expit(one["intercept"] + np.array([0.3, a, 2.0, -0.4]) @ one["coef"]) for a in (0, 1)]
    expected = (1 - share) * chance[0] + share * chance[1]
    assert model.predict_proba(row)[0, 1] == pytest.approx(expected, abs=1e-8)
    assert model.conditional_mean(row)[0, 1] == pytest.approx(share, abs=1e-8)
    posterior = share * chance[1] / expected
    assert model.conditional_mean(row, np.array([1]))[0, 1] == pytest.approx(posterior, abs=1e-8)
    draws, means = model.impute(600, key=1), model.conditional_mean()
    assert set(np.unique(draws[:, :, 1])) == {0.0, 1.0} and set(np.unique(draws[:, :, 2])) == {1.0, 2.0, 4.0}
    hole = np.isnan(table)
    assert np.all(draws[:, ~hole] == table[~hole])
    gap, error = (draws.mean(axis=0) - means)[hole], draws.std(axis=0)[hole] / 600**0.5
    assert np.mean(np.abs(gap) < 3 * error + 1e-3) > 0.98 and abs(np.mean(gap / np.maximum(error, 1e-3))) < 4 / len(gap) ** 0.5


def test_scores_add_up_and_give_robust_errors(fitted):
    _, _, model = fitted
    import jax

    with jax.enable_x64(True):
        one, flat = model._likelihood, model._flat + 0.05
        np.testing.assert_allclose(one.scores(flat).sum(axis=0), -one.size * one.objective(flat)[1], atol=1e-8)
    ratio = model.summary(errors="robust")["se"] / model.summary()["se"]
    assert np.all((ratio > 0.75) & (ratio < 1.33)) and np.any(np.abs(ratio - 1) > 1e-3)


@pytest.mark.slow
def test_a_gaussian_covariate_is_biased_where_a_discrete_one_is_not():
    """A rare exposure that is recorded less often where the outcome is present: missing at random."""
    gaps = {"discrete": [], "Gaussian": []}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        a = (rng.random(1500) < 0.12).astype(float)
        x = rng.normal(size=1500) + 1.5 * a
        y = (rng.random(1500) < special.expit(-1 + 2 * a + 0.5 * x)).astype(int)
        table = np.column_stack([a, x])
        table[rng.random(1500) < np.where(y == 1, 0.75, 0.25), 0] = np.nan
        for name in gaps:
            settings = {"discrete": [0]} if name == "discrete" else {}
            with contextlib.nullcontext() if settings else pytest.warns(UserWarning, match='pass discrete=\\["x0"\\]'):
                model = mx.MissingLogistic(verbose=False, **settings).fit(table, y)  # type: ignore
            gaps[name].append(model.coef_[0] - 2.0)
        if seed == 0:
            said = mx.MissingLogistic(verbose=False, discrete=0).fit(table, y).certificate_
            assert "discrete" not in said
    mean = {name: np.mean(values) for name, values in gaps.items()}
    error = {name: np.std(values) / 10**0.5 for name, values in gaps.items()}
    assert abs(mean["discrete"]) < 3 * error["discrete"]
    assert mean["Gaussian"] > 4 * error["Gaussian"], (mean, error)


def test_frames_formulas_and_categories():
    table, y = simulated("logistic", n=400)
    frame = pd.DataFrame(table, columns=["u", "a", "b", "v"])
    frame["b"] = (
        frame["b"].map(lambda b: {1.0: "low", 2.0: "mid", 4.0: "high"}.get(b)).astype(object).where(frame["b"].notna(), None)
    )
    frame["y"] = y
    by_frame = mx.MissingLogistic(discrete=["a", "b"], verbose=False).fit(frame.drop(columns="y"), frame["y"])
    assert list(by_frame.summary().index) == ["intercept", "u", "a", "b[T.low]", "b[T.mid]", "v"]
    by_formula = mx.MissingLogistic(discrete=["a", "b"], verbose=False).fit("y ~ u + a + b + v", frame)
    assert sorted(by_formula.coef_) == pytest.approx(sorted(by_frame.coef_), abs=1e-6)
    assert float(by_formula.loglik_) == pytest.approx(float(by_frame.loglik_), abs=1e-6)
    new = frame.head(30)
    np.testing.assert_allclose(by_formula.predict_proba(new), by_frame.predict_proba(new.drop(columns="y")), atol=1e-7)
    # Dummies of an ordinal covariate are its saturated form, and its own column is nested in them.
    coded = table.copy()
    nested = mx.MissingLogistic(discrete=["x1", "x2"], verbose=False).fit(coded, y)
    assert 0 <= float(by_frame.loglik_) - float(nested.loglik_) < 10


def test_only_discrete_covariates_are_a_mixture_of_tables():
    rng = np.random.default_rng(3)
    a = (rng.random(300) < 0.5).astype(float)
    y = (rng.random(300) < special.expit(-0.5 + a)).astype(int)
    seen = np.where(rng.random(300) < 0.3, np.nan, a)
    model = mx.MissingLogistic(discrete="x0", verbose=False).fit(seen[:, None], y)

    # P(y, a) of the four cells, and P(y) where a is missing.
    def target(flat):
        share, chance = special.expit(flat[2]), special.expit(flat[0] + flat[1] * np.arange(2))
        joint = np.array([1 - share, share])[:, None] * np.stack([1 - chance, chance], axis=1)
        hole = np.isnan(seen)
        return -np.log(joint[seen[~hole].astype(int), y[~hole]]).sum() - np.log(joint.sum(axis=0)[y[hole]]).sum()

    found: Any = optimize.minimize(target, np.zeros(3))
    assert float(model.loglik_) == pytest.approx(-found.fun, abs=1e-6)
    np.testing.assert_allclose([model.intercept_, *model.coef_], found.x[:2], atol=1e-3)


def test_the_table_of_cells_is_as_large_as_the_rows_can_tell():
    rng = np.random.default_rng(0)
    discrete = tuple(Discrete(f"x{j}", (j,), np.arange(3.0)[:, None]) for j in range(3))
    few, many = rng.integers(0, 3, (120, 3)), rng.integers(0, 3, (2000, 3))
    assert Cells.of(discrete, many).table == "saturated" and Cells.of(discrete, many).features.shape == (27, 26)
    assert Cells.of(discrete, few).table == "pairs" and Cells.of(discrete, few).features.shape == (27, 6 + 12)
    assert Cells.of(discrete, few[:20]).table == "independent"
    owner, cell = Cells.of(discrete, many).completions(np.array([[0, 1, 2], [-1, 1, -1], [-1, -1, -1]]))
    assert list(np.bincount(owner)) == [1, 9, 27] and cell[0] == 5


def test_what_cannot_be_enumerated_is_refused():
    table, y = simulated("logistic")
    cases = [
        ({"discrete": ["x9"]}, 'discrete holds "x9", which is no covariate; they are x0, x1'),
        ({"discrete": [7]}, "discrete holds position 7, and there are 4 covariates"),
        ({"discrete": ["x0"]}, r'"x0" has \d+ distinct values, and a discrete covariate may have 20'),
        ({"discrete": ["x1"], "method": "misso"}, "by the exact method only; the others have Gaussian ones"),
        ({"discrete": ["x1"], "method": "saem"}, "by the exact method only"),
    ]
    for settings, message in cases:
        with pytest.raises(ValueError, match=message), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mx.MissingLogistic(verbose=False, **settings).fit(table, y)
    with pytest.raises(TypeError, match="names or positions"):
        mx.MissingLogistic(discrete=[1.5]).fit(table, y)
    frame = pd.DataFrame(table, columns=["u", "a", "b", "v"]).assign(y=y)
    with pytest.raises(ValueError, match='"a" is discrete and shares columns with u'), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mx.MissingLogistic(discrete=["a"]).fit("y ~ u * a + v", frame)
    model = mx.MissingLogistic(discrete=["x1", "x2"], verbose=False).fit(table, y)
    with pytest.raises(ValueError, match='"x1" is discrete and holds 3 at row 0, which it never does in the fit'):
        model.predict(np.array([[0.0, 3.0, 1.0, 0.0]]))
    many = np.random.default_rng(0).integers(0, 12, (400, 3)).astype(float)
    with pytest.raises(ValueError, match="have 1728 cells together, and at most 1024"):
        mx.MissingLogistic(discrete=[0, 1, 2]).fit(many, np.arange(400) % 2)
