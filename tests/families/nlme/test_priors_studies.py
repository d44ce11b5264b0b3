"""Studies of priors and bounds: limits, curves by quadrature, occasions, the bootstrap, programs."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

import margaux as mx
from margaux.answers.posterior import _block
from margaux.answers.proposing import _proposals
from margaux.engine.loop import full_chunk
from margaux.families.nlme import ConstantError, InverseWishart, LogitNormal, LogNormal, Normal, NormalPrior
from margaux.families.nlme.answers import natural_jacobian
from margaux.families.nlme.start import _at_point
from prior_modes import COLUMNS, check_mode, exact_mode, fit_lines, lines


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_modes_of_blocks_and_errors_and_their_limits(seed):
    """Of correlated effects and an error, by SciPy; that of flat priors is the maximum of the likelihood, and of strong ones
    theirs."""
    table = lines(25, seed)
    wide = InverseWishart([[0.6, 0.2], [0.2, 0.3]], df=12)
    priors: dict[Any, Any] = {"s": NormalPrior(-1.0, cv=0.1), ("s", "m"): wide, "a": NormalPrior(0.6, cv=0.1)}
    fitted = fit_lines(table, priors, omega="full")
    check_mode(fitted, exact_mode(table, priors, full=True))
    assert fitted.certificate_.word == "certified"
    flat = fit_lines(table, {"m": NormalPrior(3.0, sd=1e4), "beta_m[x]": NormalPrior(3.0, sd=1e4), "a": NormalPrior(5.0, sd=1e4)})
    plain = fit_lines(table, None)
    assert list(flat.params_.values()) == pytest.approx(list(plain.params_.values()), rel=2e-3, abs=1e-3)
    assert list(flat.stderr_.values()) == pytest.approx(list(plain.stderr_.values()), rel=2e-3)
    assert float(flat.loglik_) == pytest.approx(float(plain.loglik_), abs=1e-3)
    strong = {"m": NormalPrior(1.3, sd=1e-4), "a": NormalPrior(0.5, cv=1e-4), "omega2_m": InverseWishart(0.2, df=1e7)}
    told = fit_lines(table, strong)
    assert [told.params_[name] for name in strong] == pytest.approx([1.3, 0.5, 0.2], rel=1e-3)
    held = fit_lines(table, None, individual={"m": Normal(1.3, covariates="x", fixed=True, variance=0.2), "s": Normal(0.0)},
                error=ConstantError(fixed=0.5))  # fmt: skip
    for name in ("beta_m[x]", "s", "omega2_s"):
        assert abs(told.params_[name] - held.params_[name]) < 0.05 * held.stderr_[name]
        assert told.stderr_[name] == pytest.approx(held.stderr_[name], rel=0.02)


def _decay(psi, row):
    return psi["A"] * jnp.exp(-psi["k"] * row["t"])


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"fixed_effects": "exponentialised"}, {"error": "proportional"}])
def test_the_mode_of_a_curve_by_quadrature(settings, tmp_path):
    """Few subjects, of whom two rows each tell nothing of k: by Gauss and Hermite's nodes and SciPy's optimiser. The prior of k
    is where the fit begins, and a variance that is nothing in the data has its prior."""
    rng = np.random.default_rng(8)
    b = 0.3 if settings.get("error") == "proportional" else 0.0
    rows = [(i, t, 5 * np.exp(0.02 * e - 0.4 * t) * (1 + b * rng.normal()) + (0.4 - b) * rng.normal())
            for i, e in enumerate(rng.normal(size=8)) for t in (0.1, 0.5)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["id", "t", "y"])
    priors = {"k": NormalPrior(0.4, cv=0.2), "A": NormalPrior(6.0, cv=0.5), "omega2_A": InverseWishart(0.09, df=6)}
    individual = {"A": LogNormal(), "k": LogNormal(random=False)}
    fitted = mx.NLME(structural=_decay, individual=individual, priors=priors, verbose=False, **settings).fit(table, **COLUMNS)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    t, y = (table[name].to_numpy().reshape(8, 2) for name in ("t", "y"))

    def loglik(u):
        curve = np.exp(u[0] + np.exp(u[2]) * nodes)[:, None, None] * np.exp(-np.exp(u[1]) * t)
        each = stats.norm.logpdf(y, curve, np.exp(u[3]) * (curve if b else 1.0)).sum(axis=2)
        return float(np.sum(np.log(weights @ np.exp(each) / np.sqrt(2 * np.pi))))

    def objective(u):
        known = stats.norm.logpdf(u[0], np.log(6.0), np.sqrt(np.log(1.25)))
        known += stats.norm.logpdf(u[1], np.log(0.4), np.sqrt(np.log(1.04)))
        return -loglik(u) - known - stats.invgamma.logpdf(np.exp(2 * u[2]), 3, scale=4 * 0.09)

    found = optimize.minimize(objective, [1.6, -0.9, -1.2, -0.9], method="BFGS", options={"gtol": 1e-6})
    best = [np.exp(found.x[0]), np.exp(found.x[1]), np.exp(2 * found.x[2]), np.exp(found.x[3])]
    assert list(fitted.params_) == ["A", "k", "omega2_A", "b" if b else "a"]
    for (name, value), exact in zip(fitted.params_.items(), best, strict=True):
        assert abs(value - exact) < 0.03 * fitted.stderr_[name]
    assert float(fitted.loglik_) == pytest.approx(loglik(found.x), abs=0.01)
    fitted.save(tmp_path / "fit")
    again = mx.load(tmp_path / "fit")
    assert again.params_ == fitted.params_ and float(again.loglik_) == float(fitted.loglik_)


@pytest.mark.slow
def test_occasions_and_the_bootstrap():
    """Variances between occasions and coefficients of their covariates by SciPy; each replicate is a mode of its own subjects."""
    rng, rows = np.random.default_rng(5), []
    for i in range(30):
        eta = 0.8 * rng.normal()
        for k in range(3):
            w = rng.normal()
            kappa = 0.5 * w + 0.5 * rng.normal()
            rows += [(i, k, float(t), w, 2.0 + eta + kappa + 0.4 * rng.normal()) for t in range(3)]
    table = pd.DataFrame(rows, columns=["id", "visit", "t", "w", "y"])
    priors = {"beta_m[w]": NormalPrior(0.0, sd=0.1), "gamma2_m": InverseWishart(0.6, df=50), "m": NormalPrior(3.0, sd=0.2)}
    asked: dict[str, Any] = {"structural": lambda psi, row: psi["m"] + 0.0 * row["t"], "n_starts": 1, "verbose": False}
    fitted = mx.NLME(individual={"m": Normal(1.0, covariates="w", occasion=True)}, priors=priors, **asked)
    fitted.fit(table, occ="visit", **COLUMNS)
    y, w = (table[name].to_numpy().reshape(30, 9) for name in ("y", "w"))
    same = np.kron(np.eye(3), np.ones((3, 3)))

    def loglik(u):
        covariance = np.exp(u[2]) + np.exp(u[3]) * same + np.exp(2 * u[4]) * np.eye(9)
        return float(np.sum(stats.multivariate_normal.logpdf(y - u[0] - u[1] * w, np.zeros(9), covariance)))

    def objective(u):
        known = stats.norm.logpdf(u[0], 3.0, 0.2) + stats.norm.logpdf(u[1], 0.0, 0.1)
        return -loglik(u) - known - stats.invgamma.logpdf(np.exp(u[3]), 25, scale=26 * 0.6)

    found = optimize.minimize(objective, [2.0, 0.3, -0.5, -1.0, -1.0], options={"gtol": 1e-6})
    best = [*found.x[:2], np.exp(found.x[2]), np.exp(found.x[3]), np.exp(found.x[4])]
    assert list(fitted.params_) == ["m", "beta_m[w]", "omega2_m", "gamma2_m", "a"]
    for (name, value), exact in zip(fitted.params_.items(), best, strict=True):
        assert abs(value - exact) < 0.03 * fitted.stderr_[name]
    # Of the log-likelihood alone it is no maximum: compared at the same place.
    p = list(fitted.params_.values())
    assert float(fitted.loglik_) == pytest.approx(loglik(np.r_[p[:2], np.log(p[2:4]), np.log(p[4])]), abs=1e-3)
    line = fit_lines(lines(), {"m": NormalPrior(1.0, sd=0.02), "s": NormalPrior(-0.6, sd=0.05)})
    replicates = line.bootstrap(4, key=1)
    parts = [own for _, own in lines().groupby("id")]
    for r, counts in enumerate(replicates.counts):
        again = [parts[i] for i in np.repeat(np.arange(50), counts)]
        drawn = pd.concat([own.assign(id=k) for k, own in enumerate(again)], ignore_index=True)
        exact = exact_mode(drawn, {"m": NormalPrior(1.0, sd=0.02), "s": NormalPrior(-0.6, sd=0.05)})
        for name, value in exact[0].items():
            assert abs(replicates.replicates[name].to_numpy()[r] - value) < 0.03 * exact[2][name]


@pytest.mark.slow
def test_another_prior_of_the_same_parameters_compiles_nothing():
    def answered(by: float) -> None:
        known: dict[Any, Any] = {"m": NormalPrior(1.0 + by, sd=0.1 + by), ("m", "s"): InverseWishart(np.eye(2) + by, df=5 + by)}
        model = fit_lines(lines(), known, omega="full")
        assert np.isfinite(model.summary()["se"]).all() and np.isfinite(model.loglik_)

    every = _proposals, _block, full_chunk, natural_jacobian, _at_point
    answered(0.0)
    before = [program.programs() for program in every]
    answered(0.1)
    assert [program.programs() for program in every] == before and min(before) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("low", "high", "bound"), [(0.5, 1.0, 0.5), (0.1, 0.35, 0.35)])
def test_a_fixed_effect_that_runs_into_its_bound(low, high, bound):
    """The others are those of the model with the bound written in."""
    rng = np.random.default_rng(0)
    rows = [(i, t, 5 * np.exp(0.2 * e - 0.4 * t) + 0.1 * rng.normal())
            for i, e in enumerate(rng.normal(size=20)) for t in (0.5, 1.0, 2.0, 4.0)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["id", "t", "y"])

    def fitted(curve, **individual):
        asked = {"A": LogNormal(5.0), **individual}
        return mx.NLME(structural=curve, individual=asked, n_starts=1, verbose=False).fit(table, **COLUMNS)

    own = fitted(_decay, k=LogitNormal(low=low, high=high, random=False))
    written = fitted(lambda psi, row: _decay(psi | {"k": bound}, row))
    frame = own.summary()
    assert own.params_["k"] == pytest.approx(bound) and frame.loc["k", ["se", "ci_low", "p"]].isna().all()
    assert f"k = {bound} at a bound of its distribution" in frame.attrs["message"]
    for name, value in written.params_.items():
        assert abs(own.params_[name] - value) < 0.03 * written.stderr_[name]
        assert own.stderr_[name] == pytest.approx(written.stderr_[name], rel=0.01)
