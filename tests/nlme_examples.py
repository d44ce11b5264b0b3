"""Published examples of nonlinear mixed effects, as (estimator, data, roles): read with the `data_folder` fixture."""

from typing import Any

import jax.numpy as jnp
import pandas as pd

import margaux as mx
from margaux.datasets import load_theophylline
from margaux.families.nlme import (
    Bernoulli,
    Combined,
    LogitNormal,
    LogNormal,
    Normal,
    Ordinal,
    Poisson,
    WeibullSurvival,
    ZeroInflatedPoisson,
    oral1cpt,
)

PK: dict[str, Any] = {"id": "Id", "time": "Time", "y": "Concentration", "dose": "Dose"}


def line(p, row):
    return p["intercept"] + p["slope"] * row["time"]


def plateau(p, row):
    below = p["Ymax"] + p["slope"] * (row["dose"] - p["Xmax"])
    return jnp.where(row["dose"] < p["Xmax"], below, p["Ymax"])


def log_rate(p, row):
    return jnp.log(p["lambda"])


def trend(p, row):
    return p["beta"] * row["time"]


def theophylline(_=None, **settings) -> tuple[Any, pd.DataFrame, dict[str, Any]]:
    individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(0.5)}
    return mx.NLME(structural=oral1cpt, individual=individual, verbose=False, **settings), load_theophylline(), PK


def theophylline_covariate(_=None, **settings) -> tuple[Any, pd.DataFrame, dict[str, Any]]:
    individual = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(0.5, covariates="Weight")}
    model = mx.NLME(structural=oral1cpt, individual=individual, omega=[("V", "CL")], error=Combined(), verbose=False, **settings)
    return model, load_theophylline(), PK


def yields(folder, **settings) -> tuple[Any, pd.DataFrame, dict[str, Any]]:
    individual = {"Ymax": Normal(8.0), "Xmax": Normal(100.0), "slope": Normal(0.2)}
    model = mx.NLME(structural=plateau, individual=individual, verbose=False, **settings)
    return model, pd.read_csv(folder / "saemix_yield.csv"), {"id": "site", "y": "yield"}


def toenail(folder, **settings) -> tuple[Any, pd.DataFrame, dict[str, Any]]:
    individual = {"intercept": Normal(0.0), "slope": Normal(0.0, covariates="treatment", random=False)}
    model = mx.NLME(log_likelihood=Bernoulli(line), individual=individual, verbose=False, **settings)
    return model, pd.read_csv(folder / "saemix_toenail.csv"), {"id": "id", "time": "time", "y": "y"}


def rapi(folder, **settings) -> tuple[Any, pd.DataFrame, dict[str, Any]]:
    individual = {"intercept": Normal(1.0, covariates="gender"), "slope": Normal(0.01, covariates="gender")}
    model = mx.NLME(log_likelihood=Poisson(line), individual=individual, omega="full", verbose=False, **settings)
    return model, pd.read_csv(folder / "saemix_rapi.csv"), {"id": "id", "time": "time", "y": "rapi"}


def rapi_inflated(folder, **settings) -> tuple[Any, pd.DataFrame, dict[str, Any]]:
    individual = {"intercept": Normal(1.0, covariates="gender"), "slope": Normal(0.01, covariates="gender"),
                  "p0": LogitNormal(0.2, random=False)}  # fmt: skip
    model = mx.NLME(log_likelihood=ZeroInflatedPoisson(line), individual=individual, verbose=False, **settings)
    return model, pd.read_csv(folder / "saemix_rapi.csv"), {"id": "id", "time": "time", "y": "rapi"}


def epilepsy(folder, **settings) -> tuple[Any, pd.DataFrame, dict[str, Any]]:
    model = mx.NLME(log_likelihood=Poisson(log_rate), individual={"lambda": LogNormal(1.0)}, verbose=False, **settings)
    return model, pd.read_csv(folder / "epil.csv"), {"id": "Subject", "y": "Y"}


def lung(folder, **settings) -> tuple[Any, pd.DataFrame, dict[str, Any]]:
    individual = {"lambda": LogNormal(200.0), "beta": LogNormal(2.0, random=False)}
    model = mx.NLME(log_likelihood=WeibullSurvival("lambda", "beta"), individual=individual, verbose=False, **settings)
    return model, pd.read_csv(folder / "saemix_lung.csv"), {"id": "id", "time": "time", "y": "status"}


def knee(folder, **settings) -> tuple[Any, pd.DataFrame, dict[str, Any]]:
    thresholds = ("alp1", "alp2", "alp3", "alp4")
    individual = {"alp1": Normal(0.0), **{name: LogNormal(1.0, random=False) for name in thresholds[1:]}, "beta": LogNormal(0.2)}
    model = mx.NLME(log_likelihood=Ordinal(trend, thresholds), individual=individual, verbose=False, **settings)
    return model, pd.read_csv(folder / "saemix_knee.csv"), {"id": "id", "time": "time", "y": "y"}
