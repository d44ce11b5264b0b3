"""Random effects on the residual error, beside a likelihood by NumPy that shares no code with the library."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy

from margaux import NLME
from margaux.families.nlme import (
    AR1,
    Combined,
    LogNormal,
    Power,
    Proportional,
    ResidualError,
    bolus1cpt,
    from_toml,
    lr_test,
    outputs,
    words,
)

TIMES = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
#: grids of standard normal effects, finer where data tell more, and their weights
GRID, COARSE = np.linspace(-6.5, 6.5, 601), np.linspace(-6.5, 6.5, 81)
WEIGHTS = np.outer(*[scipy.stats.norm.pdf(grid) * (grid[1] - grid[0]) for grid in (GRID, COARSE)])


def decay(psi, row):
    return psi["A"] * jnp.exp(-psi["k"] * row["time"])


def simulated(seed, n=40, omega=0.3, spread=0.6, cv=0.15):
    rng = np.random.default_rng(seed)
    k = 0.3 * np.exp(omega * rng.normal(size=n))
    sd = cv * np.exp(spread * rng.normal(size=n))
    f = 10 * np.exp(-k[:, None] * TIMES)
    y = f * (1 + sd[:, None] * rng.normal(size=f.shape))
    return pd.DataFrame({"id": np.repeat(np.arange(n), len(TIMES)), "time": np.tile(TIMES, n), "y": y.ravel()})


def by_numpy(frame):
    """-log p(y) of (log A, log k, log omega2_k, log b, log omega2_residual)."""
    every = frame["y"].to_numpy().reshape(-1, len(TIMES))

    def value(x):
        log_a, log_k, log_omega2, log_b, log_spread2 = x
        k = np.exp(log_k + np.exp(log_omega2 / 2) * GRID)
        log_sd = log_b + np.exp(log_spread2 / 2) * COARSE
        f = np.exp(log_a - k[:, None] * TIMES)
        # Squares of relative residuals depend on the curve alone, and their weight on the factor alone.
        squares = np.sum(((every[:, None] - f) / f) ** 2, axis=2)
        constant = -np.sum(np.log(f), axis=1) - len(TIMES) * np.log(2 * np.pi) / 2
        log_p = constant[None, :, None] - len(TIMES) * log_sd - squares[:, :, None] / (2 * np.exp(2 * log_sd))
        return -float(np.sum(scipy.special.logsumexp(log_p, b=WEIGHTS, axis=(1, 2))))

    return value


def hessian(f, x, step=2e-3):
    """By central differences."""
    eye, d = step * np.eye(len(x)), len(x)
    out = np.empty((d, d))
    for a in range(d):
        for b in range(a + 1):
            signs = [(s, t) for s in (1, -1) for t in (1, -1)]
            out[a, b] = out[b, a] = sum(s * t * f(x + s * eye[a] + t * eye[b]) for s, t in signs) / (4 * step**2)
    return out


def fitted(frame, error: Any = "proportional", more=None, **settings):
    """From starts that are three times off."""
    individual = {"A": LogNormal(30.0, random=False), "k": LogNormal(0.9)} | (more or {})
    model = NLME(structural=decay, individual=individual, error=error, verbose=False, **settings)
    return model.fit(frame, id="id", time="time", y="y")


@pytest.fixture(scope="module")
def noisy():
    frame = simulated(1)
    return frame, fitted(frame, Proportional(random=True))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_the_maximum_and_standard_errors_are_those_of_a_likelihood_by_numpy(seed, noisy):
    frame, model = noisy if seed == 1 else (simulated(seed), None)
    model = model or fitted(frame, Proportional(random=True))
    f = by_numpy(frame)
    start = [np.log(10), np.log(0.3), 2 * np.log(0.3), np.log(0.15), 2 * np.log(0.6)]
    options = {"xatol": 1e-4, "fatol": 1e-5, "maxfev": 1500}
    found = scipy.optimize.minimize(f, start, method="Nelder-Mead", options=options)
    se = np.sqrt(np.diagonal(np.linalg.inv(hessian(f, found.x))))
    names = ["A", "k", "omega2_k", "b", "omega2_residual"]
    params = np.array([model.params_[name] for name in names])
    assert model.certificate_.word == "certified"
    assert abs(float(model.loglik_) + found.fun) < 0.01
    assert np.all(np.abs(np.log(params) - found.x) < 0.1 * se)
    ratios = np.array([model.stderr_[name] for name in names]) / (params * se)
    assert np.all(np.abs(ratios - 1) < 0.04), ratios


def test_answers(noisy):
    frame, model = noisy
    assert model.held_ == {"residual": 1.0} and list(model.shrinkage().index) == ["k", "residual"]
    factors = model.individual_["mode_residual"].to_numpy()
    gaps = frame["y"].to_numpy() - model.predict()
    expected = gaps / (model.params_["b"] * model.predict() * np.repeat(factors, len(TIMES)))
    np.testing.assert_allclose(model.residuals()["iwres"], expected, rtol=1e-6)
    # The log of a subject's error, estimated by its residuals.
    alone = np.log(np.sqrt(np.mean((gaps / model.predict()).reshape(-1, len(TIMES)) ** 2, axis=1)))
    assert np.corrcoef(alone, np.log(factors))[0, 1] > 0.95
    test = lr_test(fitted(frame, "proportional"), model)
    assert test.df == 1 and test.p < 1e-6 and "a variance is tested on its boundary" in test.note
    assert "times a log-normal factor" in words.error(model)
    with pytest.raises(ValueError, match="no effects on the residual error"):
        model.summary(method="linearised")


def test_simulations_have_each_subject_s_own_error(noisy):
    """Of residuals relative to the curve at time 0.25, where k hardly matters: their kurtosis is that of the mixture."""
    frame, model = noisy
    draws = model.simulate(n_draws=2000, key=3)[:, frame["time"].to_numpy() == 0.25].ravel()
    p = model.params_
    k = p["k"] * np.exp(np.sqrt(p["omega2_k"]) * np.random.default_rng(0).normal(size=draws.size))
    wide = np.random.default_rng(1).normal(size=(2, draws.size))
    own = p["A"] * np.exp(-0.25 * k) * (1 + p["b"] * np.exp(np.sqrt(p["omega2_residual"]) * wide[0]) * wide[1])
    at = np.array([0.01, 0.1, 0.5, 0.9, 0.99])
    np.testing.assert_allclose(np.quantile(draws, at), np.quantile(own, at), rtol=0.01)


@pytest.mark.slow
def test_an_error_that_does_not_vary_has_no_effect():
    model = fitted(simulated(3, spread=0.0), Proportional(random=True))
    assert model.params_["omega2_residual"] == 0 and model.certificate_.word == "careful" and "boundary" in model.message_
    assert float(model.loglik_) == pytest.approx(float(fitted(simulated(3, spread=0.0), "proportional").loglik_), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("error", [Combined(random=True), AR1("proportional", random=True)])
def test_other_errors_are_certified(error):
    model = fitted(simulated(1), error)
    assert model.certificate_.word == "certified" or isinstance(error, AR1)
    assert model.params_["omega2_residual"] == pytest.approx(0.21, abs=0.1)


@pytest.mark.slow
def test_each_output_has_a_factor_of_its_own():
    rng, rows = np.random.default_rng(2), []
    for subject in range(40):
        k, a, w = 0.3 * np.exp(0.3 * rng.normal()), 10 * np.exp(0.2 * rng.normal()), np.exp(0.6 * rng.normal())
        c = a * np.exp(-k * TIMES)
        noise = rng.normal(size=(2, 8))
        for name, y in {"cp": c * (1 + 0.12 * w * noise[0]), "effect": 2 * c / (3 + c) + 0.1 * noise[1]}.items():
            rows.append(pd.DataFrame({"id": subject, "time": TIMES, "DVID": name, "y": y}))
    frame = pd.concat(rows, ignore_index=True)

    def response(psi, row):
        return 2 * decay(psi, row) / (psi["E"] + decay(psi, row))

    model = NLME(
        structural=outputs({"cp": decay, "effect": response}), verbose=False,
        individual={"A": LogNormal(10.0), "k": LogNormal(0.3), "E": LogNormal(3.0, random=False)},
        error={"cp": Proportional(random=True), "effect": "constant"},
    ).fit(frame, id="id", time="time", y="y", output="DVID")  # fmt: skip
    assert model.params_["omega2_residual[cp]"] == pytest.approx(0.36, abs=0.2)
    spread = model.residuals()["iwres"].groupby(frame["DVID"]).std().to_numpy()
    np.testing.assert_allclose(spread, 1.0, atol=0.1)


def test_model_files_hold_them(tmp_path):
    given = {"V": LogNormal(20.0), "CL": LogNormal(), "residual": LogNormal(1.0, fixed=True, variance=0.3)}
    text = NLME(structural=bolus1cpt, individual=given, error=Combined(2, random=True)).to_toml()
    (tmp_path / "model.toml").write_text(text)
    again = from_toml(tmp_path / "model.toml").model
    assert again.error == Combined(2, random=True) and again.individual == given
    (tmp_path / "wrong.toml").write_text(text.replace("random = true\n", ""))
    with pytest.raises(ValueError, match="has no parameter residual"):
        from_toml(tmp_path / "wrong.toml")


def test_what_is_refused_before_anything_is_fitted():
    frame = simulated(1, n=4)
    for own in (LogNormal(1.0), LogNormal(2.0, fixed=True), LogNormal(1.0, fixed=True, occasion=True)):
        with pytest.raises(ValueError, match=r"typical value is one and held, as LogNormal\(1.0, fixed=True\)"):
            fitted(frame, Proportional(random=True), {"residual": own})
    with pytest.raises(ValueError, match="AR1\\(random=True\\)"):
        AR1(Proportional(random=True))

    class Shifted(ResidualError):
        def sd(self, error, f):
            return error[0] + 1.0

    with pytest.raises(ValueError, match="does not double with its parameters a"):
        Shifted(random=True)
    assert Power(random=True).multipliers == {"residual": (0, 1)}
