"""Regimens and forests of models with held parameters, covariates of occasions, and differential equations."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from test_ode import absorbed, concentration
from test_regimens import SHORT, events, with_curve

from margaux import NLME
from margaux.families.nlme import ConstantError, LogNormal, Proportional, dosed, ode, oral1cpt
from margaux.families.nlme.forest import covariate_effects

WEIGHTS = [50.0, 70.0, 95.0]


def _table(n: int = 12) -> pd.DataFrame:
    """Two occasions of a dose each, whose weight and diet differ."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        weight = 70 * np.exp(0.2 * rng.normal())
        for occasion in (1, 2):
            own = {"ID": i, "OCC": occasion, "WT": weight * (1 + 0.1 * (occasion - 1) * rng.normal())}
            own |= {"FED": "yes" if occasion == 2 and i % 2 else "no"}
            rows.append(own | {"TIME": 0.0, "AMT": 100.0, "EVID": 1, "DV": 0.0})
            CL = 3 * (own["WT"] / 70) ** 0.75 * np.exp(0.2 * rng.normal())
            for t in (0.5, 1.0, 2.0, 4.0, 8.0, 12.0):
                c = 100 * 1.5 / (30 * (1.5 - CL / 30)) * (np.exp(-CL / 30 * t) - np.exp(-1.5 * t))
                rows.append(own | {"TIME": t, "AMT": 0.0, "EVID": 0, "DV": c * np.exp(0.1 * rng.normal())})
    return pd.DataFrame(rows)


def _fit(error: Any = "proportional", table: pd.DataFrame | None = None, **individual: Any) -> Any:
    asked = {"ka": LogNormal(1.5, random=False), "V": LogNormal(30.0), "CL": LogNormal(3.0)} | individual
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = NLME(structural=oral1cpt, individual=asked, error=error, **SHORT)  # type: ignore[arg-type]
        return model.fit(_table() if table is None else table, occ="OCC")


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["varying", "not varying"])
def by_occasion(request):
    return _fit(
        Proportional(fixed=0.1),
        ka=LogNormal(1.5, random=False, fixed=True),
        V=LogNormal(30.0, variance=0.09),
        CL=LogNormal(3.0, covariates="log(WT/70) + FED", occasion=request.param),
    )


def test_parameters_are_drawn_about_the_covariates_of_one_occasion(by_occasion):
    subjects = pd.DataFrame({"WT": np.repeat(WEIGHTS, 1500), "FED": np.tile(["no", "yes"], 2250)})
    found = by_occasion.simulate_regimen("steady state 100 mg q12h", n=None, subjects=subjects, times=[0.0, 3.0])
    at, own = by_occasion.params_, found.parameters
    np.testing.assert_allclose(found.exposure["AUC"] * own["CL"] / 100, 1.0, rtol=1e-9)
    mean = np.log(at["CL"]) + at["beta_CL[log(WT / 70)]"] * np.log(subjects["WT"] / 70)
    mean += at["beta_CL[FED[T.yes]]"] * (subjects["FED"] == "yes")
    effect, variance = np.log(own["CL"]) - mean, at["omega2_CL"] + at.get("gamma2_CL", 0.0)
    for weight in WEIGHTS:
        assert abs(effect[subjects["WT"] == weight].mean()) < 4 * np.sqrt(variance / 1500)
    assert effect.var() == pytest.approx(variance, rel=4 * np.sqrt(2 / 4500))
    assert np.log(own["V"]).var() == pytest.approx(0.09, rel=4 * np.sqrt(2 / 4500))
    assert np.ptp(own["ka"]) == 0 and own["ka"].iloc[0] == pytest.approx(1.5)
    noise = found.observed[:, 1] / found.individual[:, 1] - 1
    assert noise.std() == pytest.approx(0.1, rel=4 / np.sqrt(2 * 4500))


@pytest.mark.slow
def test_what_is_held_is_certain(by_occasion):
    sure, unsure = (by_occasion.simulate_regimen("100 mg q12h x 4", n=3000, uncertainty=u) for u in (False, True))
    assert np.ptp(unsure.parameters["ka"]) == 0
    spread = np.log(unsure.parameters["V"]).var() - np.log(sure.parameters["V"]).var()
    assert spread == pytest.approx((by_occasion.stderr_["V"] / by_occasion.params_["V"]) ** 2, abs=5 * 0.09 * np.sqrt(2 / 3000))


def test_categories_of_any_occasion_are_known(by_occasion):
    with pytest.raises(ValueError, match="FED = 'half' was not seen by the fit, which knows no, yes"):
        by_occasion.simulate_regimen("100 mg q12h x 2", subjects=pd.DataFrame({"WT": [70.0], "FED": ["half"]}))
    with pytest.raises(ValueError, match="subjects has no column FED, a covariate of CL"):
        by_occasion.simulate_regimen("100 mg q12h x 2", subjects=pd.DataFrame({"WT": [70.0]}))


def test_ratios_of_covariates_of_occasions(by_occasion):
    frame = covariate_effects(by_occasion, level=0.9)
    weights = _table().drop_duplicates(["ID", "OCC"])["WT"]
    assert frame["covariate"].tolist() == ["FED", "WT", "WT"] and frame["value"].iloc[0] == "yes"
    np.testing.assert_allclose(frame["value"].iloc[1:].astype(float), np.quantile(weights, [0.05, 0.95]))
    assert frame["reference"].iloc[1] == pytest.approx(np.median(weights))
    for row in frame.to_dict("records"):
        moved = 1.0 if row["covariate"] == "FED" else np.log(row["value"] / row["reference"])
        name = "beta_CL[FED[T.yes]]" if row["covariate"] == "FED" else "beta_CL[log(WT / 70)]"
        assert np.log(row["ratio"]) == pytest.approx(by_occasion.params_[name] * moved)
        half = (np.log(row["high"]) - np.log(row["low"])) / 2 / (by_occasion.stderr_[name] * abs(moved))
        # 24 occasions of 12 subjects; rows, subjects and parameters otherwise.
        degrees = 24 - 12 - 2 if by_occasion.model_.varying else 144 - 12 - by_occasion.n_params_
        assert half == pytest.approx(stats.t.ppf(0.95, degrees), rel=1e-6)


@pytest.mark.slow
def test_ratios_of_coefficients_that_are_held_have_no_width():
    fitted = _fit(ConstantError(fixed=0.3), CL=LogNormal(3.0, covariates="log(WT/70) + FED", coefficients={"log(WT / 70)": 0.75}))
    frame = covariate_effects(fitted)
    held = frame[frame["covariate"] == "WT"]
    expected = (held["value"].astype(float) / held["reference"].astype(float)) ** 0.75
    for column in ("ratio", "low", "high"):
        np.testing.assert_allclose(held[column], expected)
    free = frame[frame["covariate"] == "FED"].iloc[0]
    assert free["low"] < free["ratio"] < free["high"]


@pytest.fixture(scope="module")
def closed():
    individual = {"ka": LogNormal(1.5, random=False), "V": LogNormal(30.0), "CL": LogNormal(3.0)}
    return events(dosed(oral1cpt, lag={1: "Tlag"}), individual | {"Tlag": LogNormal(0.3, random=False)}, n=4)


@pytest.fixture(scope="module")
def dynamic(closed):
    """The same fit of the same model by differential equations."""
    curve = ode(absorbed, ["depot", "central"], concentration, lag={"depot": "Tlag"}, rtol=1e-8, max_steps=1000)
    return with_curve(closed, curve)


FRAME = pd.DataFrame({"TIME": [3.0, 10.0, 20.0], "AMT": [100.0, 50.0, 80.0], "DUR": [0.0, 2.0, 0.0], "CMT": [1, 2, 2]})


@pytest.mark.parametrize("regimen", ["100 mg q12h x 4", "100 mg q12h x 3 over 2 h", "steady state 100 mg q12h", FRAME])
@pytest.mark.slow
def test_differential_equations_are_exposed_as_the_closed_form(closed, dynamic, regimen):
    own, other = (one.simulate_regimen(regimen, n=3) for one in (dynamic, closed))
    assert list(own.exposure.columns) == [name for name in other.exposure.columns if name != "AUC_inf"]
    np.testing.assert_allclose(own.times, other.times)
    scale = other.individual.max()
    np.testing.assert_allclose(own.individual, other.individual, rtol=1e-5, atol=1e-6 * scale)
    for name in own.exposure.columns:
        rtol, atol = (0.0, 1e-2) if name.startswith("Tmax") else (1e-5, 0.0)
        np.testing.assert_allclose(own.exposure[name], other.exposure[name], rtol=rtol, atol=atol, err_msg=name)
    with pytest.raises(ValueError, match="no measure of exposure is called 'AUC_inf'"):
        own.attain("AUC_inf", above=1.0)


def test_what_differential_equations_cannot_be_given_is_refused(dynamic):
    again = pd.DataFrame({"TIME": [0.0, 24.0], "AMT": [100.0, 100.0], "SS": [0, 1], "II": [0.0, 12.0]})
    with pytest.raises(ValueError, match="steady state .* after other doses empties the compartments"):
        dynamic.simulate_regimen(again, n=2)
    late = pd.DataFrame({"TIME": [24.0], "AMT": [100.0], "SS": [1], "II": [12.0]})
    with pytest.raises(ValueError, match="at steady state from the dose at 24 on, and times begin at 0"):
        dynamic.simulate_regimen(late, n=2, times=[0.0, 30.0])


def _of_columns(t, state, psi):
    taken = psi["ka"] * state["depot"]
    return {"depot": -taken, "central": taken - psi["CL"] * psi["WT"] / 70 / psi["V"] * state["central"]}


@pytest.mark.slow
def test_differential_equations_that_read_columns():
    """Clearance is in proportion to weight, and what is observed to a fraction."""
    curve = ode(_of_columns, ["depot", "central"], lambda state, psi, row: row["UNBOUND"] * state["central"] / psi["V"])
    fitted = with_curve(_fit(table=_table().assign(WT=70.0, UNBOUND=1.0)), curve)
    subjects = pd.DataFrame({"WT": [50.0, 70.0, 95.0], "UNBOUND": [0.1, 0.5, 1.0]})
    found = fitted.simulate_regimen("100 mg", n=None, subjects=subjects, times=[0.0, 600.0])
    expected = 100 * subjects["UNBOUND"] / (found.parameters["CL"] * subjects["WT"] / 70)
    np.testing.assert_allclose(found.exposure["AUC_total"], expected, rtol=2e-4)
    with pytest.raises(ValueError, match="subjects has no column UNBOUND, read by the curve"):
        fitted.simulate_regimen("100 mg", n=None, subjects=subjects[["WT"]])
