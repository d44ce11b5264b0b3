"""Large tables: the information in closed form, rows in blocks, rows that fill them up, and climbs begun on a sample."""

from typing import Any

import jax
import numpy as np
import pytest

import margaux as mx
from margaux.families.missing import blocks, likelihood
from margaux.families.missing.families import FAMILIES
from margaux.families.missing.likelihood import Likelihood, start
from margaux.families.missing.multinomial import Multinomial, by_holes
from margaux.families.missing.observed import arrange
from margaux.numerics.precision import precision

NAMES = ["logistic", "probit", "gaussian", "poisson", "multinomial"]


def outcome(name, eta, rng):
    if name == "poisson":
        return rng.poisson(np.exp(0.5 * eta + 1)).astype(float)
    if name == "gaussian":
        return eta + rng.normal(size=len(eta))
    if name == "multinomial":
        return (np.stack([0 * eta, eta, -0.5 * eta], axis=1) + rng.gumbel(size=(len(eta), 3))).argmax(axis=1).astype(float)
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)


def rows_of(name, n=150, p=3, k=2, missing=0.3, seed=0):
    """A family, rows with weights and offsets, their groups, and free coordinates somewhere."""
    rng = np.random.default_rng(seed)
    family = Multinomial(3) if name == "multinomial" else FAMILIES[name]
    x = rng.normal(size=(n, p)) @ (np.eye(p) + 0.4)
    c = np.concatenate([np.ones((n, 1)), rng.normal(size=(n, k - 1))], axis=1)
    y = outcome(name, x @ np.linspace(-0.7, 0.7, p), rng)
    x[rng.random(x.shape) < missing] = np.nan
    offset = np.zeros(n) if name == "multinomial" else 0.3 * rng.normal(size=n)
    rows, groups, _ = arrange(x, c, y, rng.uniform(0.5, 2, n), offset)
    if isinstance(family, Multinomial):
        order, groups = by_holes(rows, groups, family.n_classes)
        rows = jax.tree.map(lambda leaf: leaf[order], rows)
    flat = Likelihood(family, rows, groups).pack(start(family, rows))
    return family, rows, groups, flat + 0.2 * rng.normal(size=len(flat))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [
    pytest.param({}, id="some"), pytest.param({"p": 1, "k": 1}, id="one column"),
    pytest.param({"missing": 0.0}, id="complete", marks=pytest.mark.slow),
])  # fmt: skip
def test_information_in_closed_form_is_that_of_central_differences(name, shape, monkeypatch):
    with precision(np.dtype("float64")):
        family, rows, groups, flat = rows_of(name, **shape)
        one, h = Likelihood(family, rows, groups), 1e-4
        assert not one.closed
        rise = [one.objective(flat + h * unit)[1] - one.objective(flat - h * unit)[1] for unit in np.eye(len(flat))]
        wanted = one.size * np.stack(rise) / (2 * h)
        monkeypatch.setattr(likelihood, "MANY", 0)
        found = Likelihood(family, rows, groups).information(flat)
    scale = np.sqrt(np.abs(np.diagonal(wanted)))
    np.testing.assert_allclose(found / np.outer(scale, scale), wanted / np.outer(scale, scale), atol=1e-6)


@pytest.mark.parametrize("name, outcomes", [("poisson", (0.0, 3.0, 2000.0, 50000.0)), ("logistic", (0.0, 1.0))])
@pytest.mark.parametrize("variance", [0.01, 1.0, 8.0, 20.0])
def test_derivatives_to_the_fourth_are_cumulants_of_the_predictor(name, outcomes, variance):
    """Also where its posterior is far narrower than its prior; a dense sum has them."""
    family: Any = FAMILIES[name]
    y = np.array(outcomes)
    m, v = np.log(y + 1) - 0.5, np.full(len(y), variance)
    grid = m[:, None] + np.linspace(-12, 12, 400_001) * np.sqrt(variance)
    with precision(np.dtype("float64")):
        t1, t2, t3, t4 = (np.asarray(part) for part in family.ratios(y, m, v, np.ones(())))
        logs = np.asarray(family.log_density(y[:, None], grid, np.ones(()))) - (grid - m[:, None]) ** 2 / (2 * variance)
    weight = np.exp(logs - logs.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    mean = np.sum(weight * grid, axis=1)
    second, third, fourth = (np.sum(weight * (grid - mean[:, None]) ** k, axis=1) for k in (2, 3, 4))
    close: Any = {"rtol": 0, "atol": 1e-4 if variance == 20 else 1e-6}
    np.testing.assert_allclose(t1 * np.sqrt(v), (mean - m) / np.sqrt(v), **close)
    np.testing.assert_allclose((t2 - t1**2) * v, second / v - 1, **close)
    np.testing.assert_allclose((t3 - 3 * t1 * t2 + 2 * t1**3) * v**1.5, third / v**1.5, **close)
    curved = t4 - 4 * t1 * t3 - 3 * t2**2 + 12 * t1**2 * t2 - 6 * t1**4
    np.testing.assert_allclose(curved * v**2, (fourth - 3 * second**2) / v**2, **close)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "multinomial"])
def test_blocks_and_rows_that_fill_them_up_change_nothing(name, monkeypatch):
    with precision(np.dtype("float64")):
        family, rows, groups, flat = rows_of(name, n=131)
        n = len(rows.y)
        monkeypatch.setattr(likelihood, "MANY", 0)
        monkeypatch.setattr(blocks, "rung", lambda size: size)
        bare = Likelihood(family, rows, groups)
        assert len(bare.data.y) == n and np.array_equal(bare.place, np.arange(n))
        monkeypatch.undo()
        monkeypatch.setattr(likelihood, "MANY", 0)
        for block in (1024, 16) if name == "logistic" else (32,):
            monkeypatch.setattr(blocks, "BLOCK", block)
            one = Likelihood(family, rows, groups)
            assert len(one.data.y) > n and one.size == pytest.approx(bare.size)
            np.testing.assert_array_equal(np.asarray(one.data.y)[one.place], rows.y)
            for ours, theirs in zip(one.objective(flat), bare.objective(flat), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)
            np.testing.assert_allclose(one.information(flat), bare.information(flat), rtol=1e-9, atol=1e-7)
            np.testing.assert_allclose(one.scores(flat), bare.scores(flat), atol=1e-10)
            assert one.log_outcome(flat) == pytest.approx(bare.log_outcome(flat), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "poisson", "multinomial"])
def test_a_large_table_is_fitted_as_a_small_one(name, monkeypatch):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(600, 3)) @ (np.eye(3) + 0.4)
    y = outcome(name, x @ [0.5, -0.5, 0.8], rng)
    x[rng.random(x.shape) < 0.25] = np.nan

    def fitted():
        return mx.MissingGLM(family=name, verbose=False).fit(x, y)

    small = fitted()
    monkeypatch.setattr(blocks, "BLOCK", 32)
    monkeypatch.setattr(likelihood, "MANY", 0)
    monkeypatch.setattr("margaux.families.missing.conditional.SMALL", 0)
    large = fitted()
    assert large._likelihood.closed and large._likelihood.sampled() is not None
    assert large._likelihood.sampled().size < large._likelihood.size / 2
    assert float(large.loglik_) == pytest.approx(float(small.loglik_), abs=1e-8)
    close: Any = {"rtol": 1e-4, "atol": 1e-9}
    np.testing.assert_allclose(large.summary()["estimate"], small.summary()["estimate"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(large.summary()["se"], small.summary()["se"], **close)
    if name == "logistic":
        np.testing.assert_allclose(large.summary(errors="robust")["se"], small.summary(errors="robust")["se"], **close)
        np.testing.assert_allclose(large.conditional_mean(), small.conditional_mean(), atol=1e-6)
    np.testing.assert_allclose(large.predict(x), small.predict(x), rtol=1e-5)
    assert large.certificate_.word == small.certificate_.word
    for ours, theirs in zip(large.certificate_.checks, small.certificate_.checks, strict=True):
        assert ours.name == theirs.name and ours.level == theirs.level


def test_a_large_table_one_row_of_which_is_incomplete(monkeypatch):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(400, 2))
    y = outcome("logistic", x[:, 0], rng)
    x[7, 1] = np.nan
    small = mx.MissingLogistic(verbose=False).fit(x, y)
    monkeypatch.setattr(blocks, "BLOCK", 32)
    monkeypatch.setattr(likelihood, "MANY", 0)
    monkeypatch.setattr("margaux.families.missing.conditional.SMALL", 0)
    large = mx.MissingLogistic(verbose=False).fit(x, y)
    assert float(large.loglik_) == pytest.approx(float(small.loglik_), abs=1e-8)
    np.testing.assert_allclose(large.summary()["se"], small.summary()["se"], rtol=1e-4)
