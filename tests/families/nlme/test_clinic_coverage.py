"""Whether intervals hold the truth as often as they say: 200 simulated studies each."""

import warnings

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.families.nlme import LogNormal, bolus1cpt

SETS = 200
#: of clearance between subjects and between occasions, of volume between subjects, and the error's
TWO_OCCASIONS = {"CL": 2.0, "V": 20.0, "omega2_CL": 0.06, "omega2_V": 0.04, "gamma2_CL": 0.04, "b": 0.1}


def two_occasions(rng: np.random.Generator, n: int = 60) -> pd.DataFrame:
    """Six concentrations after each of two doses, the clock and the compartments starting anew."""
    times = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 12.0])
    p = TWO_OCCASIONS
    between = np.sqrt(p["omega2_CL"]) * rng.normal(size=(n, 1, 1)) + np.sqrt(p["gamma2_CL"]) * rng.normal(size=(n, 2, 1))
    CL, V = p["CL"] * np.exp(between), p["V"] * np.exp(np.sqrt(p["omega2_V"]) * rng.normal(size=(n, 1, 1)))
    y = 100 / V * np.exp(-CL / V * times) * (1 + p["b"] * rng.normal(size=(n, 2, 6)))
    index = pd.MultiIndex.from_product([range(n), (1, 2), times], names=["ID", "OCC", "TIME"])
    return pd.DataFrame({"DV": y.ravel(), "DOSE": 100.0}, index=index).reset_index()


@pytest.mark.slow
def test_two_occasions():
    rng = np.random.default_rng(0)
    inside, estimates, levels = [], [], []
    individual = {"CL": LogNormal(2.0, occasion=True), "V": LogNormal(20.0)}
    for seed in range(SETS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = mx.NLME(structural=bolus1cpt, individual=individual, error="proportional", n_starts=1, random_state=seed,
                            verbose=False)  # fmt: skip
            model.fit(two_occasions(rng), id="ID", time="TIME", y="DV", dose="DOSE")
        frame = model.summary()
        truth = pd.Series(TWO_OCCASIONS)[frame.index]
        inside.append((frame["ci_low"] <= truth) & (truth <= frame["ci_high"]))
        estimates.append(frame["estimate"])
        levels.append(model.certificate_.level)
    cover, mean = pd.DataFrame(inside).mean(), pd.DataFrame(estimates).mean()
    bias = mean / pd.Series(TWO_OCCASIONS) - 1
    print(pd.DataFrame({"coverage": cover, "bias": bias}), pd.Series(levels).value_counts().to_dict())
    # Three Monte Carlo errors of a share of 0.95 of so many are 0.046.
    assert cover.min() > 0.95 - 0.046
    assert bias.abs().max() < 0.05
    assert levels.count("failed") == 0
