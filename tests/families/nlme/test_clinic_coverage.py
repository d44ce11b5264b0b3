"""Whether intervals hold the truth as often as they say: 200 simulated studies each."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.families.nlme import LogNormal, Normal, bolus1cpt, emax_baseline, ode, oral1cpt

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


#: three in ten concentrations lie below the limit
SPARSE = {"ka": 1.0, "V": 20.0, "CL": 3.0, "omega2_ka": 0.2, "omega2_V": 0.06, "omega2_CL": 0.1, "b": 0.2}
LIMIT = 0.85


def sparse(rng: np.random.Generator, n: int = 80) -> pd.DataFrame:
    """Four concentrations of an oral dose, at times of each subject's own; below the limit it is all that is known."""
    p, times = SPARSE, np.array([0.5, 3.0, 10.0, 20.0]) * rng.uniform(0.7, 1.3, size=(n, 4))
    ka, V, CL = (p[name] * np.exp(np.sqrt(p[f"omega2_{name}"]) * rng.normal(size=(n, 1))) for name in ("ka", "V", "CL"))
    f = 100 * ka / (V * (ka - CL / V)) * (np.exp(-CL / V * times) - np.exp(-ka * times))
    y = f * (1 + p["b"] * rng.normal(size=f.shape))
    frame = pd.DataFrame({"id": np.repeat(np.arange(n), 4), "t": times.ravel(), "y": y.ravel(), "dose": 100.0})
    return frame.assign(cens=(frame["y"] < LIMIT).astype(int), y=frame["y"].clip(lower=LIMIT))


#: of an effect that is half its largest at a dose of ten
EFFECT = {"E0": 5.0, "Emax": 20.0, "EC50": 10.0, "omega2_E0": 1.0, "omega2_Emax": 0.05, "omega2_EC50": 0.15, "a": 1.0}


def effects(rng: np.random.Generator, n: int = 80) -> pd.DataFrame:
    """Effects of seven doses in each subject."""
    p, doses = EFFECT, np.array([0.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0])
    E0 = p["E0"] + np.sqrt(p["omega2_E0"]) * rng.normal(size=(n, 1))
    Emax, EC50 = (p[name] * np.exp(np.sqrt(p[f"omega2_{name}"]) * rng.normal(size=(n, 1))) for name in ("Emax", "EC50"))
    y = E0 + Emax * doses / (EC50 + doses) + p["a"] * rng.normal(size=(n, len(doses)))
    return pd.DataFrame({"id": np.repeat(np.arange(n), len(doses)), "c": np.tile(doses, n), "y": y.ravel()})


#: of an absorption that is the same in all subjects
ONE_KA = {"ka": 1.5, "V": 20.0, "CL": 3.0, "omega2_V": 0.06, "omega2_CL": 0.1, "b": 0.1}


def one_absorption(rng: np.random.Generator, n: int = 60) -> pd.DataFrame:
    """Seven concentrations of an oral dose."""
    p, times = ONE_KA, np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
    V, CL = (p[name] * np.exp(np.sqrt(p[f"omega2_{name}"]) * rng.normal(size=(n, 1))) for name in ("V", "CL"))
    f = 100 * p["ka"] / (V * (p["ka"] - CL / V)) * (np.exp(-CL / V * times) - np.exp(-p["ka"] * times))
    y = f * (1 + p["b"] * rng.normal(size=f.shape))
    return pd.DataFrame({"id": np.repeat(np.arange(n), 7), "t": np.tile(times, n), "y": y.ravel(), "dose": 100.0})


#: a response that is made at a constant rate, which a drug inhibits, and is lost in proportion: R(0) = kin / kout
TURNOVER = {"R0": 50.0, "kout": 0.3, "IC50": 2.0, "omega2_R0": 0.04, "omega2_IC50": 0.15, "a": 3.0}
DECAY, PEAK = 0.15, 10.0


def _turning_over(t, state, psi):
    inhibited = 1 - state["C"] / (psi["IC50"] + state["C"])
    return {"C": -DECAY * state["C"], "R": psi["kout"] * (psi["R0"] * inhibited - state["R"])}


def turnover(rng: np.random.Generator, n: int = 60) -> pd.DataFrame:
    """Eight responses after a dose, by Runge and Kutta's steps of order four in step with all subjects."""
    p, times, step = TURNOVER, np.array([0.0, 1.0, 2.0, 4.0, 8.0, 12.0, 18.0, 24.0]), 0.02
    R0, IC50 = (p[name] * np.exp(np.sqrt(p[f"omega2_{name}"]) * rng.normal(size=n)) for name in ("R0", "IC50"))

    def slope(t, R):
        C = PEAK * np.exp(-DECAY * t)
        return p["kout"] * (R0 * IC50 / (IC50 + C) - R)

    R, seen = R0.copy(), []
    for i in range(round(times[-1] / step) + 1):
        t = i * step
        if np.any(np.isclose(times, t)):
            seen.append(R.copy())
        k1 = slope(t, R)
        k2 = slope(t + step / 2, R + step / 2 * k1)
        k3 = slope(t + step / 2, R + step / 2 * k2)
        R = R + step / 6 * (k1 + 2 * k2 + 2 * k3 + slope(t + step, R + step * k3))
    y = np.stack(seen, axis=1) + p["a"] * rng.normal(size=(n, len(times)))
    return pd.DataFrame({"id": np.repeat(np.arange(n), len(times)), "t": np.tile(times, n), "y": y.ravel()})


def studied(
    simulated: Callable[[np.random.Generator], pd.DataFrame], truth: Mapping[str, float], roles: dict[str, Any], **model: Any
) -> None:
    """Intervals, biases and verdicts over the simulated sets."""
    rng = np.random.default_rng(0)
    inside, estimates, levels = [], [], []
    for seed in range(SETS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = mx.NLME(**model, n_starts=1, random_state=seed, verbose=False).fit(simulated(rng), **roles)
        frame = fitted.summary()
        true = pd.Series(truth)[frame.index]
        inside.append((frame["ci_low"] <= true) & (true <= frame["ci_high"]))
        estimates.append(frame["estimate"])
        levels.append(fitted.certificate_.level)
    cover, mean = pd.DataFrame(inside).mean(), pd.DataFrame(estimates).mean()
    bias, told = mean / pd.Series(truth) - 1, pd.Series(levels).value_counts().to_dict()
    error = pd.DataFrame(estimates).std() / pd.Series(truth) / np.sqrt(SETS)
    print(pd.DataFrame({"coverage": cover, "bias": bias, "its error": error}), told)
    # Three Monte Carlo errors of a share of 0.95 of so many are 0.046.
    assert cover.min() > 0.95 - 0.046
    assert bias.abs().max() < 0.05
    assert levels.count("failed") == 0 and levels.count("careful") <= 0.1 * SETS


EVERY_SUBJECT = {"id": "id", "time": "t", "y": "y", "dose": "dose"}


@pytest.mark.slow
def test_two_occasions():
    individual = {"CL": LogNormal(2.0, occasion=True), "V": LogNormal(20.0)}
    roles = {"id": "ID", "time": "TIME", "y": "DV", "dose": "DOSE"}
    studied(two_occasions, TWO_OCCASIONS, roles, structural=bolus1cpt, individual=individual, error="proportional")


@pytest.mark.slow
def test_sparse_concentrations_three_in_ten_below_the_limit():
    individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(3.0)}
    roles = EVERY_SUBJECT | {"cens": "cens"}
    studied(sparse, SPARSE, roles, structural=oral1cpt, individual=individual, error="proportional")


@pytest.mark.slow
def test_effects_of_doses():
    individual = {"E0": Normal(5.0), "Emax": LogNormal(20.0), "EC50": LogNormal(10.0)}
    studied(effects, EFFECT, {"id": "id", "time": "c", "y": "y"}, structural=emax_baseline, individual=individual)


@pytest.mark.slow
def test_a_parameter_without_a_random_effect():
    individual = {"ka": LogNormal(1.5, random=False), "V": LogNormal(20.0), "CL": LogNormal(3.0)}
    studied(one_absorption, ONE_KA, EVERY_SUBJECT, structural=oral1cpt, individual=individual, error="proportional")


@pytest.mark.slow
def test_a_turnover_by_differential_equations():
    individual = {"R0": LogNormal(50.0), "kout": LogNormal(0.3, random=False), "IC50": LogNormal(2.0)}
    model = ode(
        _turning_over, ["C", "R"], "R", initial=lambda psi: {"C": PEAK, "R": psi["R0"]}, parameters=tuple(individual),
        name="turnover",
    )  # fmt: skip
    studied(turnover, TURNOVER, {"id": "id", "time": "t", "y": "y"}, structural=model, individual=individual)
