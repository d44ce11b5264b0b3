"""A fitted model in equations, its data in numbers, and both on its page."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.families.nlme import (
    AR1,
    Bernoulli,
    BoxCox,
    Combined,
    Exponential,
    LogitNormal,
    LogNormal,
    Normal,
    Power,
    ProbitNormal,
    bolus1cpt,
)
from margaux.families.nlme.expressions import Expression
from margaux.families.nlme.model_equations import _effects, _error, _individual
from margaux.families.nlme.written import Equations, written

SHORT = {"n_iter": 30, "n_burn": 20, "n_starts": 1, "verbose": False, "random_state": 0}
N = 12


def table() -> Any:
    rng = np.random.default_rng(0)
    i = np.repeat(np.arange(N), 4)
    t, occasion = np.tile([1.0, 2.0, 4.0, 8.0], N), np.tile([1, 1, 2, 2], N)
    weight, sex = rng.normal(70, 10, N), np.where(np.arange(N) % 3 == 0, "f", "m")
    rate = 0.3 + 0.1 * rng.normal(size=N)[i] + 0.1 * rng.normal(size=(N, 2))[i, occasion - 1]
    y = 20 * np.exp(-rate * t + 0.5 * rng.normal(size=N)[i] + 0.05 * rng.normal(size=4 * N))
    frame = pd.DataFrame({"id": i, "time": t, "y": y, "weight": weight[i], "sex": sex[i], "occ": occasion})
    frame.attrs["units"] = {"time": "h", "y": "mg/L"}
    return frame


def falling(p, row):
    return p["A"] * p["F"] * jnp.exp(-p["k"] * row["time"])


def held(**settings):
    return LogitNormal(0.5, random=False, fixed=True, **settings)


def lines(model):
    return [line.strip() for line in model.equations().splitlines()]


def stub(dropped=(), blocks=(), varying=(), classes=1, design=((), (), ()), **individual):
    """What the equations read of a fitted model."""
    one = tuple(individual.items())
    random = [j for j, (_, kind) in enumerate(one) if kind.random]
    model = SimpleNamespace(
        names=list(individual), individual=one, random=random, blocks=blocks, varying=varying, classes=classes
    )
    owner, shifted, labels = design
    return SimpleNamespace(model_=model, _dropped=dropped, _design=SimpleNamespace(owner=owner, shifted=shifted, labels=labels))


def test_covariates_occasions_and_shapes_are_written():
    fitted: Any = stub(
        A=LogNormal(20.0, covariates="log(w)+sex", shape=BoxCox()), k=Normal(0.2, occasion=True), F=held(),
        dropped=("omega2_k",), varying=(1,), design=((0, 0, 0, 1, 2), (1,), ["", "log(w)", "sex[T.m]", "", "", "fed"]),
    )  # fmt: skip
    assert _individual(fitted) == [
        "log(A_i) = log(A) + beta_A[log(w)] * (log(w)) + beta_A[sex[T.m]] * (sex[T.m]) + T(eta_A,i)",
        "k_ik = k + beta_k[fed] * (fed) + kappa_k,ik",
        "logit(F_i) = logit(F)",
    ]
    assert _effects(fitted) == [
        "eta_A,i ~ N(0, omega2_A)",
        "eta_k,i = 0: omega2_k is zero",
        "T(eta) = (exp(lambda_A eta) - 1) / lambda_A for A",
        "kappa_k,ik ~ N(0, gamma2_k), k the occasion",
    ]


def test_classes_and_correlated_effects_are_written():
    fitted: Any = stub(
        A=LogNormal(20.0, classes=2), F=ProbitNormal(0.5, low=0.1, high=1.5, random=False), k=LogNormal(0.2), m=LogNormal(1.0),
        classes=2, blocks=((0, 1),), design=((0, 1, 2, 3), (), [""] * 4),
    )  # fmt: skip
    assert _individual(fitted)[:2] == [
        "log(A_i) = log(A) + beta_A[class k_i] + eta_A,i",
        "probit((F_i - 0.1) / 1.4) = probit((F - 0.1) / 1.4)",
    ]
    assert _effects(fitted) == [
        "(eta_A,i, eta_k,i) ~ N(0, Omega), of variances omega2_A, omega2_k",
        "and covariances cov_A_k",
        "eta_m,i ~ N(0, omega2_m)",
        "k_i is the class of subject i, with probabilities share_2 of classes 2 on; beta[class 1] = 0",
    ]


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (AR1("combined1"), "y_ij = f_ij + (a + b * |f_ij|) * e_ij,  cor(e_ij, e_ik) = exp(-|t_ij - t_ik| / tau)"),
        (
            AR1("proportional", random=True),
            "y_ij = f_ij + residual_i * b * |f_ij| * e_ij,  cor(e_ij, e_ik) = exp(-|t_ij - t_ik| / tau)",
        ),
        (Power(), "y_ij = f_ij + (a + b * |f_ij|^c) * e_ij"),
        (Exponential(random=True), "log y_ij = log f_ij + residual_i * a * e_ij"),
    ],
)
def test_errors_are_written(error, wanted):
    assert _error(error, "y", "") == wanted


def test_differential_equations_and_outputs_are_written_as_they_were():
    text = Equations(
        (("cp", Expression("central / V")), ("effect", Expression("E0 + 0.1 * central / V"))),
        (("central", Expression("-CL / V * central")),),
        initial=(("central", Expression("100 / V * V")),),
        parameters=("V", "CL", "E0"),
    )
    frame = table()
    frame["which"] = np.where(frame["occ"] == 1, "cp", "effect")
    individual = {"V": LogNormal(5.0), "CL": LogNormal(1.0), "E0": LogNormal(1.0, random=False)}
    errors = {"cp": Combined(), "effect": "constant"}
    model = mx.NLME(structural=written(text), individual=individual, error=errors, polish=False, **SHORT)
    model.fit(frame, id="id", time="time", y="y", output="which")
    found = lines(model)
    assert "d/dt central = -CL / V * central,  central(0) = 100 / V * V" in found
    assert "f[cp] = central / V" in found and "f[effect] = E0 + 0.1 * central / V" in found
    assert "y[cp]_ij = f[cp]_ij + sqrt(a[cp]^2 + b[cp]^2 * f[cp]_ij^2) * e_ij" in found
    assert "y[effect]_ij = f[effect]_ij + a[effect] * e_ij" in found
    told: Any = model.data_summary()["value"]
    assert told["observations", "of cp"] == told["observations", "of effect"] == "24"


def test_the_data_are_counted_and_the_page_shows_both(tmp_path):
    frame = table()
    frame.loc[frame["y"] < 2, "y"] = np.nan
    frame = frame.dropna()
    individual = {"A": LogNormal(20.0, covariates="sex"), "k": LogNormal(0.2), "F": held()}
    model = mx.NLME(structural=falling, individual=individual, error="exponential", polish=False, **SHORT)
    model.fit(frame, id="id", time="time", y="y")
    told: Any = model.data_summary()["value"]
    assert told["subjects", ""] == "12" and told["observations", ""] == str(len(frame))
    low, high, middle = frame["y"].min(), frame["y"].max(), frame["y"].median()
    assert told["y", "mg/L"] == f"median {middle:.4g}, {low:.4g} to {high:.4g}"
    assert told["time", "h"].startswith("median ") and told["sex", "= m"] == "8 (67%)" and told["sex", "= f"] == "4 (33%)"
    first = frame.groupby("id")["weight"].first()
    assert told["weight", ""] == f"median {first.median():.4g}, {first.min():.4g} to {first.max():.4g}"
    assert "log(A_i) = log(A) + beta_A[sex[T.m]] * (sex[T.m]) + eta_A,i" in lines(model)
    page = model.report(tmp_path / "page.html").read_text()
    assert "The model in equations" in page and "log y_ij = log f_ij + a * e_ij" in page
    assert "8 (67%)" in page and "The panels of fit is left out" not in page


def test_doses_of_an_event_table_are_counted():
    rng = np.random.default_rng(1)
    times, n = np.array([0.0, 1.0, 4.0, 8.0, 12.0, 24.0]), 8
    frame: Any = pd.DataFrame({"ID": np.repeat(np.arange(n), 6), "TIME": np.tile(times, n)})
    frame["AMT"] = np.where(frame["TIME"].isin([0.0, 8.0]), 100.0 + 10 * (frame["ID"] == 3), 0.0)
    frame["EVID"] = (frame["AMT"] > 0).astype(int)
    scale = np.exp(0.3 * rng.normal(size=n))[frame["ID"]]
    frame["DV"] = np.where(frame["EVID"], 0.0, 4 * scale * np.exp(-0.1 * frame["TIME"] + 0.1 * rng.normal(size=len(frame))))
    individual = {"V": LogNormal(20.0), "CL": LogNormal(2.0)}
    model = mx.NLME(structural=bolus1cpt, individual=individual, error="proportional", polish=False, **SHORT).fit(frame)
    told: Any = model.data_summary()["value"]
    assert told["records of doses", ""] == "16" and told["records of doses", "a subject"] == "2"
    assert told["AMT", ""] == "median 100, 100 to 110" and told["observations", "a subject"] == "4"
    assert "f = bolus1cpt" in model.equations() and "EVID" not in told


def test_of_outcomes_that_are_not_continuous_the_law_is_named():
    frame = table()
    frame["y"] = (frame["y"] > frame["y"].median()).astype(int)

    def line(p, row):
        return p["a0"] + p["slope"] * row["time"]

    individual = {"a0": Normal(0.0), "slope": Normal(-0.1, random=False)}
    model = mx.NLME(log_likelihood=Bernoulli(line), individual=individual, polish=False, **SHORT)
    model.fit(frame, id="id", time="time", y="y")
    assert "y_ij ~ Bernoulli, given the individual parameters" in lines(model) and "a0_i = a0 + eta_a0,i" in lines(model)


def test_before_a_fit_there_is_nothing_to_write():
    model = mx.NLME(structural=falling, individual={"A": LogNormal(20.0), "k": LogNormal(0.2), "F": held()})
    with pytest.raises(Exception, match="fit"):
        model.equations()
    with pytest.raises(Exception, match="fit"):
        model.data_summary()
