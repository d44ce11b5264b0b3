"""Residuals that are correlated in time, against the Gaussian likelihood of lines with a random intercept."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy
from scipy.stats import multivariate_normal

import margaux as mx
from margaux.families.nlme import Combined, LogNormal, Normal, from_toml, outputs, polynomial, words
from margaux.families.nlme.autocorrelated import AR1
from margaux.families.nlme.conditional import conditional_residuals

TRUTH = {"c0": 5.0, "c1": 0.5, "omega2_c0": 0.8, "a": 1.2, "tau": 1.5}


def _lines(seed=0, n=60):
    """Six rows a subject, at times of its own."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 8, size=(n, 6)), axis=1)
    y = np.stack(
        [multivariate_normal.rvs(TRUTH["c0"] + TRUTH["c1"] * row, _covariance(TRUTH, row), random_state=rng) for row in t]
    )
    return pd.DataFrame({"id": np.repeat(np.arange(n), 6), "t": t.ravel(), "y": y.ravel()})


def _covariance(p, t):
    return p["omega2_c0"] + p["a"] ** 2 * np.exp(-np.abs(t[:, None] - t) / p["tau"])


def _loglik(p, frame):
    t, y = (frame[name].to_numpy().reshape(-1, 6) for name in ("t", "y"))
    each = [multivariate_normal.logpdf(own, p["c0"] + p["c1"] * row, _covariance(p, row)) for own, row in zip(y, t, strict=True)]
    return float(np.sum(each))


def _model(error="constant", **settings):
    individual = {"c0": Normal(5.0), "c1": Normal(0.5, random=False)}
    return mx.NLME(structural=polynomial(1), individual=individual, error=AR1(error), n_starts=1, verbose=False, **settings)


@pytest.fixture(scope="module")
def fitted():
    return _model().fit(_lines(), id="id", time="t", y="y")


def test_the_maximum_of_the_gaussian_likelihood(fitted):
    frame, names = _lines(), list(TRUTH)
    logarithms = np.asarray([name in ("omega2_c0", "a", "tau") for name in names])

    def at(u):
        return dict(zip(names, np.where(logarithms, np.exp(u), u), strict=True))

    start = np.asarray([np.log(v) if log else v for v, log in zip(TRUTH.values(), logarithms, strict=True)])

    def minus(u):
        return -_loglik(at(u), frame)

    options = {"xatol": 1e-7, "fatol": 1e-9, "maxiter": 8000}
    best = scipy.optimize.minimize(minus, start, method="Nelder-Mead", options=options)
    wanted = at(best.x)
    for name in names:
        assert fitted.params_[name] == pytest.approx(wanted[name], abs=0.03 * fitted.stderr_[name]), name
    assert float(fitted.loglik_) == pytest.approx(-best.fun, abs=0.02)
    hessian, steps = np.zeros((5, 5)), 1e-3 * np.eye(5)
    for i, one in enumerate(steps):
        for j, other in enumerate(steps):
            hessian[i, j] = sum(p * q * minus(best.x + p * one + q * other) for p in (-1, 1) for q in (-1, 1)) / 4e-6
    se = np.sqrt(np.diag(np.linalg.inv(hessian))) * np.where(logarithms, list(wanted.values()), 1.0)
    np.testing.assert_allclose([fitted.stderr_[name] for name in names], se, rtol=0.03)
    assert fitted.certificate_.word == "certified", str(fitted.certificate_)


def test_a_correlation_is_tested_for(fitted):
    without = mx.NLME(structural=polynomial(1), individual=fitted.individual, n_starts=1, verbose=False)
    without = without.fit(_lines(), id="id", time="t", y="y")
    assert float(fitted.loglik_) - float(without.loglik_) > 10 and fitted.aic_ < without.aic_
    assert "correlated in time" in words.error(fitted)


def test_conditional_residuals_are_white(fitted):
    """Of a linear model they are those of the marginal covariance, by its symmetric root."""
    frame, found = _lines(), conditional_residuals(fitted).reshape(-1, 6)
    t, y = (frame[name].to_numpy().reshape(-1, 6)[3] for name in ("t", "y"))
    values, vectors = np.linalg.eigh(_covariance(fitted.params_, t))
    gap = y - fitted.params_["c0"] - fitted.params_["c1"] * t
    np.testing.assert_allclose(found[3], vectors @ ((vectors.T @ gap) / np.sqrt(values)), atol=2e-3)


@pytest.mark.parametrize("error", ["constant", "proportional", "exponential"])
def test_simulated_residuals_have_their_correlations(error):
    # Two of one time have one error.
    times, f = jnp.asarray([0.0, 0.5, 2.0, 2.0]), jnp.asarray([4.0, 3.0, 2.0, 5.0])
    own = AR1(error).at({"time": times})
    at = jnp.asarray([0.2, 1.5])
    noise = jax.random.normal(jax.random.key(0), (40_000, 4))
    y = np.asarray(jax.vmap(lambda e: own.noisy(at, f, e))(noise))
    gap = (np.log(y) - np.log(f)) if error == "exponential" else y - np.asarray(f)
    np.testing.assert_allclose(np.cov(gap.T), own.covariance(at, f), atol=0.02 * float(np.max(own.sd(at, f))) ** 2)


@pytest.mark.parametrize("error", ["constant", Combined(), "exponential"], ids=str)
def test_densities_are_those_of_the_joint_normal(error):
    times, f, y = jnp.asarray([0.0, 0.5, 2.0]), jnp.asarray([4.0, 3.0, 2.0]), jnp.asarray([4.5, 2.5, 2.2])
    own = AR1(error).at({"time": times})
    at = jnp.asarray([0.3, 0.1, 1.5][-len(AR1(error).names) :])
    found = float(jnp.sum(own.log_density(at, f, y)))
    jacobian = float(jnp.sum(jnp.log(y))) if error == "exponential" else 0.0
    mean, seen = own.transformed(f), own.transformed(y)
    covariance: Any = np.asarray(own.covariance(at, f), float)
    wanted = multivariate_normal.logpdf(np.asarray(seen), np.asarray(mean), covariance) - jacobian
    assert found == pytest.approx(wanted, abs=2e-5)


def test_what_it_is_not_for_is_refused():
    frame = _lines(n=8)
    twice = frame.assign(t=frame["t"].where(frame.index != 9, frame["t"].shift()))
    with pytest.raises(ValueError, match=r"not later than the one before it \(subject 1, row 9\); average"):
        _model().fit(twice, id="id", time="t", y="y")
    with pytest.raises(ValueError, match="some are limits"):
        _model().fit(frame, id="id", time="t", y="y", lloq=float(np.quantile(frame["y"], 0.2)))
    with pytest.raises(ValueError, match=r"hold by AR1\(fixed=...\)"):
        AR1(Combined(fixed={"a": 0.1}))
    both = outputs({"one": polynomial(1), "two": lambda p, row: p["k"] * row["one"]})
    individual = {"c0": Normal(1.0), "c1": Normal(1.0), "k": LogNormal(1.0)}
    with pytest.raises(ValueError, match="one output"):
        mx.NLME(structural=both, error=AR1(), individual=individual).fit(frame, id="id", time="t", y="y")


def test_held_and_in_a_file(fitted, tmp_path):
    model = _model(error="constant").set_params(error=AR1(fixed={"tau": 1.5}))
    held = model.fit(_lines(), id="id", time="t", y="y")
    assert held.held_ == {"tau": 1.5} and float(held.loglik_) <= float(fitted.loglik_) + 1e-3
    path = tmp_path / "lines.toml"
    path.write_text(model.to_toml(data="lines.csv"))
    assert from_toml(path).model.error == model.error
