"""Sampling importance resampling of posterior densities, beside exact ones of Gaussian models by NumPy and SciPy."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import margaux as mx
from margaux.families.nlme import InverseWishart, Normal, NormalPrior, sir
from prior_modes import fit_lines, lines, log_prior

N, ROWS = 12, 3


def _level(psi, row):
    return psi["m"] + 0.0 * row["t"]


def _table(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"id": np.repeat(np.arange(N), ROWS), "t": np.tile(np.arange(float(ROWS)), N)})
    return table.assign(y=2.0 + np.repeat(0.8 * rng.normal(size=N), ROWS) + 0.5 * rng.normal(size=N * ROWS))


def _loglik(table: pd.DataFrame, mean: Any, omega2: Any, noise: Any) -> np.ndarray:
    """The Gaussian log-likelihood at any parameters, from sums of squares."""
    y = table["y"].to_numpy().reshape(N, ROWS)
    means = y.mean(axis=1)
    within = ((y - means[:, None]) ** 2).sum()
    between = ROWS * ((means - np.asarray(mean)[..., None]) ** 2).sum(axis=-1)
    error, total = np.asarray(noise) ** 2, np.asarray(noise) ** 2 + ROWS * np.asarray(omega2)
    return -(N * (ROWS - 1) * np.log(error) + N * np.log(total) + within / error + between / total) / 2


CASES: dict[str, dict] = {
    "all": {"m": NormalPrior(1.5, sd=0.2), "omega2_m": InverseWishart(0.3, df=8), "a": NormalPrior(0.4, cv=0.2)},
    "the variance": {"omega2_m": InverseWishart(0.1, df=5)},
    "the mean": {"m": NormalPrior(1.0, sd=0.15)},
}


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, marks=() if (name, seed) == ("all", 0) else pytest.mark.slow)
        for name in CASES
        for seed in range(3)
    ],
)
def test_summaries_are_those_of_an_exact_posterior(name, seed):
    """By a grid of m, log omega2 and log a; densities of omega2 are those of SciPy times omega2, and flat where there is none."""
    table, priors = _table(seed), CASES[name]
    model: Any = mx.NLME(structural=_level, individual={"m": Normal(1.0)}, priors=priors, n_starts=1, verbose=False)
    model.fit(table, id="id", time="t", y="y")
    found = model.sir(8000, inflate=1.4, key=seed).summary()
    assert "posterior density" in found.attrs["message"]
    axes = [np.linspace(-0.5, 4.5, 141), np.linspace(-6, 4, 141), np.linspace(-2, 1, 121)]
    mean, log_omega2, log_a = np.meshgrid(*axes, indexing="ij")
    log_p = _loglik(table, mean, np.exp(log_omega2), np.exp(log_a))
    if "omega2_m" in priors:
        prior = priors["omega2_m"]
        scale = prior.weight * float(prior.matrix[0, 0]) / 2
        log_p += stats.invgamma.logpdf(np.exp(log_omega2), prior.df / 2, scale=scale) + log_omega2
    if "m" in priors:
        log_p += stats.norm.logpdf(mean, priors["m"].center, priors["m"].sd)
    if "a" in priors:
        log_p += stats.norm.logpdf(log_a, np.log(0.4), np.sqrt(np.log1p(0.2**2)))
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    for own, others, values in (("m", (1, 2), axes[0]), ("omega2_m", (0, 2), np.exp(axes[1])), ("a", (0, 1), np.exp(axes[2]))):
        each = weight.sum(axis=others)
        center = np.sum(each * values)
        sd = np.sqrt(np.sum(each * (values - center) ** 2))
        ends = np.interp([0.025, 0.5, 0.975], np.cumsum(each) - each / 2, values)
        got = found.loc[own].to_dict()
        # Some 5000 effective draws: errors of 0.015, 0.02 and 0.06 standard deviations, times three and more.
        assert abs(got["mean"] - center) < 0.07 * sd
        assert got["sd"] == pytest.approx(sd, rel=0.12)
        assert abs(got["median"] - ends[1]) < 0.09 * sd
        assert abs(got["ci_low"] - ends[0]) < 0.18 * sd and abs(got["ci_high"] - ends[2]) < 0.25 * sd


@pytest.mark.slow
def test_weights_of_a_block_are_exact():
    """Log weights are, but for a constant, log-likelihood + log prior + log volume - log density of the proposal."""
    table = lines()
    priors = {
        ("m", "s"): InverseWishart([[0.4, 0.05], [0.05, 0.1]], df=9),
        "m": NormalPrior(2.0, sd=0.1),
        "a": NormalPrior(0.5, cv=0.1),
    }
    model = fit_lines(table, priors, omega="full")
    found = model.sir(200, key=2)
    parts = [(own["t"].to_numpy(), own["x"].iloc[0], own["y"].to_numpy()) for _, own in table.groupby("id")]
    u, root = sir._normal(model)
    z = np.random.default_rng(2).standard_normal((200, len(u)))
    expected = []
    for row, own in zip(found.proposals.to_dict("records"), z, strict=True):
        at: dict[str, float] = {str(name): float(value) for name, value in row.items()}
        total = log_prior(priors, at)
        for t, x, y in parts:
            covariance: Any = at["omega2_m"] + at["omega2_s"] * np.outer(t, t) + at["a"] ** 2 * np.eye(len(t))
            covariance += at["cov_m_s"] * (t[:, None] + t[None])
            total += stats.multivariate_normal.logpdf(y, at["m"] + at["beta_m[x]"] * x + at["s"] * t, covariance)
        factor = np.linalg.cholesky(np.array([[at["omega2_m"], at["cov_m_s"]], [at["cov_m_s"], at["omega2_s"]]]))
        # Of Omega = L L' in (log L11, L21, log L22): 4 L11^3 L22^2.
        expected.append(total + 3 * np.log(factor[0, 0]) + 2 * np.log(factor[1, 1]) + np.sum(own**2) / 2)
    got, expected = np.log(found.proposals["weight"].to_numpy()), np.asarray(expected)
    np.testing.assert_allclose(got - got.max(), expected - expected[got.argmax()], atol=0.02)
