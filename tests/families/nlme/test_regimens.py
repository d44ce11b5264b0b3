"""Regimens that were never given: their curves and exposure against closed forms and other routes."""

import copy
import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.integrate import quad

from margaux import NLME
from margaux.datasets import load_theophylline
from margaux.families.nlme import (
    Custom,
    LogNormal,
    Poisson,
    bolus1cpt,
    bolus2cpt,
    infusion1cpt,
    oral1cpt,
    oral1cpt_lag,
    superposed,
)
from margaux.families.nlme.data import group
from margaux.families.nlme.dosing import Regimen, dosed, with_regimen
from margaux.families.nlme.events import recognised
from margaux.families.nlme.exposure import COARSE, NODES, WEIGHTS, breaks_of, exposure
from margaux.families.nlme.outcomes import Continuous

SHORT = {"n_iter": 60, "n_burn": 40, "n_starts": 1, "stop": False, "polish": False, "verbose": False}
EFFECTS = {"ka": LogNormal(1.5), "V": LogNormal(30.0, covariates="log(Weight/70)"), "CL": LogNormal(3.0, covariates="Sex")}
COLUMNS = {"id": "Id", "time": "Time", "y": "Concentration", "dose": "Dose"}


def theophylline():
    frame = load_theophylline()
    return frame.assign(Sex=np.where(frame["Id"] % 2 == 0, "m", "f"))


@pytest.fixture(scope="module")
def fitted():
    return NLME(structural=oral1cpt, individual=EFFECTS, **SHORT).fit(theophylline(), **COLUMNS)  # type: ignore[arg-type]


def with_curve(fitted, structural, **params):
    """The same fit of another curve of the same parameters."""
    other = copy.copy(fitted)
    other.__dict__["structural"] = structural
    outcome = dataclasses.replace(fitted.model_.outcome, structural=structural)
    other.model_ = dataclasses.replace(fitted.model_, outcome=outcome)
    return other


def events(structural, individual, n=12, **more):
    """A fit to an event table of two doses a subject, whose numbers do not matter."""
    rng = np.random.default_rng(0)
    dose = {"TIME": 0.0, "AMT": 100.0, "II": 12.0, "ADDL": 1, "EVID": 1, "DV": 0.0} | more
    rows = [dose, *({"TIME": t, "EVID": 0, "DV": 1.0} for t in (0.5, 1, 2, 4, 8, 12.5, 14, 20, 24))]
    frame = pd.concat([pd.DataFrame(rows).assign(ID=i) for i in range(n)], ignore_index=True).fillna(0.0)
    frame["DV"] *= np.exp(0.2 * rng.normal(size=len(frame)) + 0.2 * np.repeat(rng.normal(size=n), len(rows)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return NLME(structural=structural, individual=individual, **SHORT).fit(frame)  # type: ignore[arg-type]


def test_the_rules_are_kronrods_and_gauss():
    for power in range(23):
        assert WEIGHTS @ NODES**power == pytest.approx(1 / (power + 1), abs=1e-15)
        assert bool(abs(COARSE @ NODES**power - 1 / (power + 1)) < 1e-15) == (power < 14)


def steady_oral(p, dose, tau, t):
    """Steady state of a one-compartment model with absorption (Gibaldi and Perrier 1982, ch. 3)."""
    k = p["CL"] / p["V"]
    decay = (np.exp(-rate * t) / (1 - np.exp(-rate * tau)) for rate in (k, p["ka"]))
    return dose * p["ka"] / (p["V"] * (p["ka"] - k)) * (next(decay) - next(decay))


def test_steady_state_is_that_of_the_closed_form(fitted):
    found = fitted.simulate_regimen("steady state 100 mg q12h", n=300)
    p, e = found.parameters, found.exposure
    k = p["CL"] / p["V"]
    when = np.log(p["ka"] * (1 - np.exp(-k * 12)) / (k * (1 - np.exp(-p["ka"] * 12)))) / (p["ka"] - k)
    np.testing.assert_allclose(e["AUC"], 100 / p["CL"], rtol=1e-10)
    np.testing.assert_allclose(e["Cavg"], 100 / p["CL"] / 12, rtol=1e-10)
    np.testing.assert_allclose(e["Tmax"], when, atol=2e-3)
    np.testing.assert_allclose(e["Cmax"], steady_oral(p, 100.0, 12.0, when), rtol=1e-7)
    np.testing.assert_allclose(e["Ctrough"], steady_oral(p, 100.0, 12.0, 12.0), rtol=1e-10)
    assert found.interval == (0.0, 12.0) and found.times[-1] == 12.0


def test_areas_of_doses_with_a_beginning_and_an_end(fitted):
    found = fitted.simulate_regimen("load 200 mg then 100 mg q12h x 10", n=100)
    np.testing.assert_allclose(found.exposure["AUC_inf"], 1200 / found.parameters["CL"], rtol=1e-9)
    assert found.interval == (120.0, 132.0)
    p, area = found.parameters.iloc[3], found.exposure.iloc[3]

    def curve(t):
        k, since = p["CL"] / p["V"], np.maximum(t - 12.0 * np.arange(11), 0.0)
        each = (np.exp(-k * since) - np.exp(-p["ka"] * since)) * p["ka"] / (p["V"] * (p["ka"] - k))
        return np.array([200.0, *[100.0] * 10]) @ each

    ends = [12.0 * j for j in range(12)]
    pieces = [quad(curve, a, b, epsrel=1e-9)[0] for a, b in zip(ends, ends[1:], strict=False)]
    assert area["AUC_total"] == pytest.approx(sum(pieces), rel=1e-6)
    assert area["AUC"] == pytest.approx(pieces[-1], rel=1e-6)
    assert area["Cmax"] >= max(curve(t) for t in np.linspace(0, 132, 1000)) - 1e-5 * area["Cmax"]


def test_a_bolus_and_an_infusion():
    model = events(bolus1cpt, {"V": LogNormal(60.0), "CL": LogNormal(5.0)})
    found = model.simulate_regimen("100 mg q24h x 3", n=50)
    p, e = found.parameters, found.exposure
    k = p["CL"] / p["V"]
    last = 100 / p["V"] * (1 + np.exp(-24 * k) + np.exp(-48 * k))
    np.testing.assert_allclose(e["Cmax"], last, rtol=1e-8)
    np.testing.assert_allclose(e["Tmax"], 48.0, atol=1e-6)
    np.testing.assert_allclose(e["AUC"], last * (1 - np.exp(-24 * k)) / k, rtol=1e-10)
    found = model.simulate_regimen("60 q24h x 7 over 2 h", n=50)
    p, e = found.parameters, found.exposure
    k = p["CL"] / p["V"]
    one = 60 / (2 * p["CL"]) * (1 - np.exp(-2 * k))
    np.testing.assert_allclose(e["Cmax_last"], one * (1 - np.exp(-7 * 24 * k)) / (1 - np.exp(-24 * k)), rtol=1e-8)
    np.testing.assert_allclose(e["Tmax_last"], 146.0, atol=1e-6)
    np.testing.assert_allclose(e["AUC_inf"], 7 * 60 / p["CL"], rtol=1e-9)
    by_argument = model.simulate_regimen("60 q24h x 7", n=50, infusion=2.0).exposure
    pd.testing.assert_frame_equal(by_argument, e)


JUMPS = [
    (oral1cpt_lag, {"ka": 3.0, "V": 20.0, "CL": 2.0, "Tlag": 0.7}),
    (bolus2cpt, {"V1": 0.05, "V2": 60.0, "CL": 5.0, "Q": 20.0}),
    (oral1cpt_lag, {"ka": 900.0, "V": 20.0, "CL": 2.0, "Tlag": 13.0}),
]
DOSES = [{}, {"rate": 40.0}, {"duration": 5.0, "steady": 1.0}]


@pytest.mark.parametrize(("curve", "psi", "dose"), [(*one, dose) for one in JUMPS for dose in DOSES][:-1])
def test_areas_are_exact_where_curves_jump_and_where_they_are_steep(curve, psi, dose):
    """Lags, longer than the interval too, infusions, steady state, and a distribution of seconds."""
    fields = ("time", "amount", "rate", "duration", "steady", "compartment")
    doses = dict.fromkeys(fields, np.zeros(2)) | {"time": np.array([0.0, 12.0]), "amount": np.full(2, 100.0)}
    doses |= {"interval": np.full(2, 12.0), "compartment": np.ones(2)} | {name: np.full(2, v) for name, v in dose.items()}
    doses["steady"] = doses["steady"] * [1.0, 0.0]
    structural: Any = dosed(curve)
    structural = dataclasses.replace(structural, function=dataclasses.replace(structural.function, regimen=Regimen.of(doses)))
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, doses)

        def at(t):
            return jax.vmap(
                lambda t: structural(psi, {"time": t, "first_dose": 0, "last_dose": 1 + (t >= 12.0), "doses": given})
            )(t)

        exposed = jax.jit(lambda: exposure(at, breaks_of(structural, psi, given), *jnp.array([0.0, 12.0, 24.0])))()
        found = jax.tree.map(float, exposed)
    if "steady" in dose:
        assert found.AUC == pytest.approx(100 / psi["CL"], rel=1e-8)
        assert found.AUC_total == pytest.approx(200 / psi["CL"], rel=1e-8)
    else:
        assert found.AUC_inf == pytest.approx(200 / psi["CL"], rel=1e-8)
    assert found.error < 1e-5


def test_records_are_those_of_an_event_table(fitted):
    """Resets by a later steady state, infusions by rate: against predictions of the same table by the way of tables."""
    model = with_curve(fitted, dosed(oral1cpt))
    records = pd.DataFrame(
        {"TIME": [0.0, 30.0], "AMT": [100.0, 50.0], "II": [12.0, 8.0], "ADDL": [1, 2], "SS": 1, "RATE": [0.0, 20.0]}
    )
    found = model.simulate_regimen(records, n=4)
    rows = pd.DataFrame({"TIME": found.times}).assign(EVID=0)
    table = pd.concat([records.assign(EVID=1), rows]).fillna(0.0).assign(ID=1)
    table = table.sort_values(["TIME", "EVID"], ascending=[True, False], kind="stable").reset_index(drop=True)
    roles: dict[str, str | None] = {"id": "ID", "time": "TIME"}
    data = group(table, roles, model.model_.outcome, observed=False, columns=recognised(table))
    outcome = with_regimen(model.model_.outcome, data.regimen)
    with jax.enable_x64(True):
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.units["rows"])
        for i in range(4):
            psi = {name: jnp.asarray(float(found.parameters[name][i])) for name in model.model_.names}
            exact = np.asarray(outcome.prediction(psi, rows))[: len(found.times)]
            np.testing.assert_allclose(found.individual[i], exact, rtol=1e-10, atol=1e-12)
    assert found.interval == (46.0, 54.0)
    words = model.simulate_regimen("100 q12h x 3", n=4)
    same = model.simulate_regimen(pd.DataFrame({"time": [0.0], "amt": [100.0], "ii": [12.0], "addl": [2]}), n=4)
    np.testing.assert_allclose(words.individual, same.individual, rtol=1e-12)


def test_what_is_read_on_the_records_of_doses(fitted):
    """A bioavailability that is a column of the doses, which words cannot give."""
    model = copy.copy(fitted)
    outcome = dataclasses.replace(fitted.model_.outcome, structural=dosed(oral1cpt, bioavailability="F1"))
    model.model_ = dataclasses.replace(fitted.model_, outcome=with_regimen(outcome, Regimen(), EFFECTS))
    with pytest.raises(ValueError, match="the model reads F1 on the records of doses; give the regimen as a frame"):
        model.simulate_regimen("100 mg")
    records = pd.DataFrame({"TIME": [0.0, 12.0], "AMT": [100.0, 100.0], "F1": [0.5, 0.8]})
    found = model.simulate_regimen(records, n=20)
    np.testing.assert_allclose(found.exposure["AUC_inf"], 130 / found.parameters["CL"], rtol=1e-9)
    assert found.interval == (12.0, 24.0)
    with pytest.raises(ValueError, match=r"F1 is read on the records of doses, and is missing \(subject regimen, row 1\)"):
        model.simulate_regimen(records.assign(F1=[0.5, np.nan]))


def test_any_curve_of_a_dose_is_summed_over_doses(fitted):
    """A function of the user's gives what the ready curve gives; so does one with its doses built in."""
    ready = fitted.simulate_regimen("200 mg q8h x 4", n=40, key=3)
    written_out = with_curve(fitted, lambda p, row: oral1cpt(p, row)).simulate_regimen("200 mg q8h x 4", n=40, key=3)
    np.testing.assert_allclose(written_out.individual, ready.individual, rtol=1e-9)
    np.testing.assert_allclose(written_out.exposure, ready.exposure, rtol=1e-6)
    built_in = with_curve(fitted, superposed(oral1cpt, [0.0, 12.0])).simulate_regimen("200 mg q8h x 4", n=40, key=3)
    np.testing.assert_allclose(built_in.individual, ready.individual, rtol=1e-12)


def test_the_population_is_that_of_simulated_tables(fitted):
    """Concentrations at one time have the distribution that `simulate` gives subjects of the same covariates."""
    subject = pd.DataFrame({"Weight": [85.0], "Sex": ["m"]})
    found = fitted.simulate_regimen("320 mg", n=4000, subjects=subject, times=[1.0, 4.0, 12.0])
    rows = pd.DataFrame({"Id": 1, "Time": [1.0, 4.0, 12.0], "Dose": 320.0, "Weight": 85.0, "Sex": "m"})
    exact = fitted.simulate(rows, n_draws=4000, key=11)
    for j in range(3):
        same: Any = stats.ks_2samp(found.observed[:, j], exact[:, j])
        assert same.pvalue > 1e-3
    noise = (found.observed - found.individual) / fitted.params_["a"]
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    logs = np.log(found.parameters["CL"] / (fitted.params_["CL"] * np.exp(fitted.params_["beta_CL[Sex[T.m]]"])))
    assert stats.kstest(logs / np.sqrt(fitted.params_["omega2_CL"]), "norm").pvalue > 1e-3


def test_uncertainty_is_that_of_the_estimates(fitted):
    from margaux.families.nlme.virtual import parameters

    draws = parameters(fitted, 20_000, True, 0)
    se = fitted.stderr_
    first = np.log(fitted.params_["ka"])
    values = np.asarray(draws["beta"][:, 0]) - first
    assert np.std(values) == pytest.approx(se["ka"] / fitted.params_["ka"], rel=0.05)
    logs = np.log(draws["omega2"][:, 0] / fitted.params_["omega2_ka"])
    assert np.std(logs) == pytest.approx(se["omega2_ka"] / fitted.params_["omega2_ka"], rel=0.05)
    known = fitted.simulate_regimen("320 mg", n=2000)
    unknown = fitted.simulate_regimen("320 mg", n=2000, uncertainty=True)
    assert np.log(unknown.exposure["AUC_inf"]).std() > 1.02 * np.log(known.exposure["AUC_inf"]).std()


def test_the_same_key_gives_the_same_subjects_and_no_number_compiles_again(fitted):
    from margaux.families.nlme.virtual import _simulated

    first = fitted.simulate_regimen("320 mg q12h x 5", n=20, key=4)
    compiled = _simulated.programs()
    again = fitted.simulate_regimen("320 mg q12h x 5", n=20, key=4)
    pd.testing.assert_frame_equal(first.exposure, again.exposure)
    np.testing.assert_array_equal(first.observed, again.observed)
    other = fitted.simulate_regimen("150 mg q8h x 5", n=20, key=5)
    assert not np.allclose(other.parameters["CL"], first.parameters["CL"])
    assert _simulated.programs() == compiled
    # More subjects are not others: a subject's numbers do not hang on how many are simulated at once.
    each = fitted.simulate_regimen("320 mg q12h x 5", n=None, subjects=theophylline().drop_duplicates("Id"))
    assert each.parameters["Weight"].tolist() == theophylline().drop_duplicates("Id")["Weight"].tolist()


def test_doses_per_kilogram(fitted):
    found = fitted.simulate_regimen("4 mg/kg q12h x 2", n=30, per="Weight")
    np.testing.assert_allclose(found.exposure["AUC_inf"], 8 * found.parameters["Weight"] / found.parameters["CL"], rtol=1e-9)


def test_summary_and_targets(fitted):
    found = fitted.simulate_regimen("steady state 100 mg q12h", n=400)
    table = found.summary([0.1, 0.5])
    np.testing.assert_allclose(table.loc["AUC", ["q10", "q50"]], np.quantile(found.exposure["AUC"], [0.1, 0.5]))
    targets = found.attain("AUC", above=[20.0, 40.0])
    assert targets["probability"].tolist() == [np.mean(found.exposure["AUC"] > t) for t in (20.0, 40.0)]
    assert np.all((targets["ci_low"] < targets["probability"]) & (targets["probability"] < targets["ci_high"]))
    inside = found.attain("Cmax", above=3.0, below=6.0)["probability"].iloc[0]
    assert inside == np.mean((found.exposure["Cmax"] > 3) & (found.exposure["Cmax"] < 6))
    for call, told in {
        lambda: found.attain("Cmin", above=1.0): "no measure of exposure is called 'Cmin'",
        lambda: found.attain("AUC"): "say what AUC is to attain",
        lambda: found.attain("AUC", above=3.0, below=2.0): "above less than below",
        lambda: found.attain("AUC", above=[1.0, 2.0], below=[3.0, 4.0]): "not of both",
    }.items():
        with pytest.raises(ValueError, match=told):
            call()
    assert "400 subjects" in repr(found)


def test_curves_and_their_figure(fitted):
    found = fitted.simulate_regimen("100 mg q12h x 3", n=200, times=[1.0, 13.0, 25.0])
    frame = found.curves
    assert frame["time"].tolist() == [1.0, 13.0, 25.0] * 2
    of = frame[frame["of"] == "individual"]
    np.testing.assert_allclose(of["q50"], np.median(found.individual, axis=0))
    np.testing.assert_allclose(frame[frame["of"] == "observed"]["q95"], np.quantile(found.observed, 0.95, axis=0))
    axis = found.plot(log=True)
    median = next(line for line in axis.lines if line.get_label() == "median")
    np.testing.assert_allclose(median.get_ydata(), of["q50"])
    assert axis.get_title() == "100 mg q12h x 3" and axis.get_yscale() == "log" and axis.get_xlabel() == "Time"


@pytest.mark.parametrize(("settings", "told"), [
    ({"subjects": pd.DataFrame({"Weight": [70.0]})}, "subjects has no column Sex, a covariate of CL; it has Weight"),
    ({"subjects": pd.DataFrame({"Weight": [70.0], "Sex": ["x"]})}, "Sex = 'x' was not seen by the fit, which knows f, m"),
    ({"subjects": pd.DataFrame({"Weight": [np.nan], "Sex": ["m"]})}, "Weight, a covariate of V, is missing in row 0"),
    ({"subjects": pd.DataFrame({"Weight": ["70"], "Sex": ["m"]})}, "Weight holds categories in subjects"),
    ({"subjects": pd.DataFrame({"Weight": [], "Sex": []})}, "subjects has no rows"),
    ({"n": 0}, "n is a number of subjects"),
    ({"times": [2.0, 1.0]}, "times must be increasing"),
    ({"infusion": -1.0}, "infusion is how long a dose lasts"),
    ({"key": -1}, "key must be a whole number"),
    ({"per": "Height"}, "subjects has no column Height"),
    ({"regimen": "5 mg/kg"}, "is per kg; name the column"),
    ({"regimen": pd.DataFrame({"TIME": [0.0]})}, "a column of amounts, AMT"),
    ({"regimen": pd.DataFrame({"AMT": [1.0]})}, "a column of times, TIME"),
    ({"regimen": pd.DataFrame({"TIME": [0.0], "AMT": [-1.0]})}, r"AMT = -1 must not be negative \(subject regimen, row 0\)"),
    ({"regimen": pd.DataFrame({"TIME": [0.0, 1.0], "AMT": [1.0, 0.0], "EVID": [1, 0]})}, "a regimen holds doses alone"),
    ({"regimen": pd.DataFrame({"ID": [1, 2], "TIME": 0.0, "AMT": 1.0})}, "several ID"),
    ({"regimen": pd.DataFrame({"TIME": [0.0], "AMT": [9.0], "CMT": [3]})}, "takes no dose"),
    ({"regimen": pd.DataFrame({"TIME": ["a"], "AMT": [9.0]})}, r"TIME = 'a' is no number \(row 0 of the dose records\)"),
    ({"regimen": pd.DataFrame({"TIME": [np.nan], "AMT": [9.0]})}, "TIME is missing or infinite"),
    ({"regimen": pd.DataFrame({"TIME": [5.0, 0.0], "AMT": 9.0})}, "lies before the record above it"),
    ({"regimen": 5}, "written in words or is a frame"),
])  # fmt: skip
def test_bad_input_is_refused(fitted, settings, told):
    with pytest.raises(ValueError, match=told):
        fitted.simulate_regimen(**({"regimen": "320 mg"} | settings))


def test_models_that_cannot_be_simulated_are_refused(fitted):
    def with_outcome(outcome):
        other = copy.copy(fitted)
        other.model_ = dataclasses.replace(fitted.model_, outcome=outcome)
        return other

    for outcome, told in {
        Custom(lambda p, row: p["V"]): "cannot be simulated from",
        Poisson("V"): "not for Poisson",
        Continuous(lambda p, row: p["V"] * row["time"], fitted.model_.outcome.error): "does not read the dose",
        Continuous(lambda p, row: row["dose"] * row["y"], fitted.model_.outcome.error): "reads the outcome itself",
    }.items():
        with pytest.raises(ValueError, match=told):
            with_outcome(outcome).simulate_regimen("320 mg")
    saturable = with_curve(fitted, lambda p, row: row["dose"] / (row["dose"] + 100) * jnp.exp(-p["CL"] / p["V"] * row["time"]))
    assert saturable.simulate_regimen("320 mg", n=5).exposure.shape == (5, 9)
    with pytest.raises(ValueError, match="is not linear in the dose"):
        saturable.simulate_regimen("320 mg q12h x 2")
    with pytest.raises(ValueError, match="is a function of one dose at once"):
        saturable.simulate_regimen("steady state 320 mg q12h")
    frame = theophylline()
    later = with_curve(fitted, lambda p, row: row["dose"] * jnp.exp(-row["Hour"] / p["V"]))
    later.data_ = dataclasses.replace(fitted.data_, frame=fitted.data_.frame.assign(Hour=frame["Time"]))
    later.data_.units["rows"]["Hour"] = fitted.data_.units["rows"]["time"]
    with pytest.raises(ValueError, match="Hour, which changes within a subject"):
        later.simulate_regimen("320 mg")


def test_an_infusion_of_unknown_duration_is_refused(fitted):
    model = with_curve(fitted, infusion1cpt)
    with pytest.raises(ValueError, match='write "over 2 h"'):
        model.simulate_regimen("320 mg")
    told = model.simulate_regimen("320 mg q24h x 2 over 1 h", n=8)
    np.testing.assert_allclose(told.exposure["AUC_inf"], 640 / told.parameters["CL"], rtol=1e-9)
    constant = with_curve(model, infusion1cpt.with_columns(duration=1.0)).simulate_regimen("320 mg q24h x 2", n=8)
    pd.testing.assert_frame_equal(constant.exposure, told.exposure)


def test_a_slip_of_units_is_said(fitted):
    with pytest.warns(UserWarning, match="far from those of the data"):
        fitted.simulate_regimen("0.3 g", n=5)


def test_a_rough_curve_is_said(fitted):
    jagged = with_curve(
        fitted, lambda p, row: row["dose"] / p["V"] * jnp.exp(-0.1 * row["time"]) * (jnp.sin(300 * row["time"]) > 0)
    )
    with pytest.warns(UserWarning, match="areas under the curve are known to within"):
        jagged.simulate_regimen("320 mg", n=5)
