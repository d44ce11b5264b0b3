"""Event tables: concentrations against NONMEM's and against differential equations, and malformed tables refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.integrate import solve_ivp

import margaux as mx
from margaux.families.nlme import (
    LogNormal,
    bolus1cpt,
    bolus2cpt,
    emax,
    infusion1cpt,
    oral1cpt,
    oral1cpt_lag,
    oral2cpt,
    superposed,
)
from margaux.families.nlme.data import group
from margaux.families.nlme.dosing import dosed, with_regimen
from margaux.families.nlme.error import ConstantError, Proportional
from margaux.families.nlme.events import named_by_default, reading_events, recognised
from margaux.families.nlme.outcomes import Continuous

ORAL = {"ka": 1.5, "CL": 1.1, "V": 20.0}
NOTHING: dict[str, str | None] = dict.fromkeys(("id", "time", "y", "dose", "occ", "cens", "limit"))


def predicted(frame, curve, psi, columns=None):
    """Concentrations at the observations of a table, in its order, all subjects having the same parameters."""
    outcome, table = reading_events(frame, Continuous(curve, ConstantError()), NOTHING, columns)
    data = group(frame, named_by_default(frame, NOTHING, outcome, True), outcome, observed=False, columns=table)
    outcome = with_regimen(outcome, data.regimen, psi)
    with jax.enable_x64(True):
        rows = jax.tree.map(jnp.asarray, data.units["rows"])
        found = np.asarray(jax.vmap(lambda row: outcome.prediction(psi, row))(rows))
    return data.flat(found)[np.argsort(data.frame.index.to_numpy(), kind="stable")]


def table(records, times):
    """One subject's doses and observations, by time; of equal times the dose first."""
    doses = pd.DataFrame(records).assign(EVID=lambda t: t.get("EVID", 1))
    frame = pd.concat([doses, pd.DataFrame({"TIME": times, "EVID": 0})]).fillna(0)
    return frame.sort_values("TIME", kind="stable").assign(ID=1, DV=1.0).reset_index(drop=True)


def test_every_record_is_nonmems(data_folder):
    frame = pd.read_csv(data_folder / "clinic" / "nmtest.csv.gz").assign(dv=1.0)
    curve = dosed(oral1cpt, lag={2: "lagt"}, bioavailability={2: "bioav"}, duration="dur2", rate="rat2")
    exact = frame["cp"].to_numpy()[frame["evid"] == 0]
    ours = 1000 * predicted(frame, curve, ORAL)
    assert len(ours) == len(exact) > 7000
    np.testing.assert_allclose(ours, exact, rtol=2e-4, atol=0)


def _integrated(psi, doses, times, peripheral=False):
    """By a general solver: `doses` are (time, amount, duration, compartment), compartment 0 the depot."""
    rate = np.zeros(3)

    def slope(t, state):
        k = psi["CL"] / psi["V"]
        depot, central, other = state
        across = psi.get("Q", 0.0) * (central / psi["V"] - other / psi.get("V2", 1.0))
        absorbed = psi.get("ka", 0.0) * depot
        return rate + [-absorbed, absorbed - k * central - across, across]

    stops = sorted({*times, *(d[0] for d in doses), *(d[0] + d[2] for d in doses)})
    state, out, at = np.zeros(3), {}, stops[0]
    for stop in stops:
        if stop > at:
            state = solve_ivp(slope, (at, stop), state, rtol=1e-10, atol=1e-12, method="LSODA").y[:, -1]
        at = stop
        for start, amount, lasts, place in doses:
            if lasts and stop == start:
                rate[place] += amount / lasts
            elif lasts and stop == start + lasts:
                rate[place] -= amount / lasts
            elif stop == start:
                state[place] += amount
        out[stop] = state[1] / psi["V"]
    return np.array([out[t] for t in times])


TIMES = [0.5, 1.0, 2.0, 5.0, 12.0, 13.0, 24.0, 30.0, 47.0]


def test_doses_of_all_kinds_as_by_a_differential_equation():
    psi = {"ka": 0.9, "V1": 10.0, "CL": 2.0, "Q": 1.5, "V2": 25.0}
    frame = table(
        [
            {"TIME": 0.0, "AMT": 100.0, "CMT": 1, "ADDL": 2, "II": 12.0},
            {"TIME": 1.0, "AMT": 50.0, "CMT": 2, "RATE": 20.0, "ADDL": 1, "II": 10.0},
            {"TIME": 13.0, "AMT": 30.0, "CMT": 2},
            {"TIME": 20.0, "AMT": 40.0, "CMT": 1, "DUR": 5.0},
        ],
        TIMES,
    )
    doses = [(0, 100, 0, 0), (12, 100, 0, 0), (24, 100, 0, 0), (1, 50, 2.5, 1), (11, 50, 2.5, 1), (13, 30, 0, 1), (20, 40, 5, 0)]
    exact = _integrated(psi | {"V": psi["V1"]}, doses, TIMES)
    np.testing.assert_allclose(predicted(frame, oral2cpt, psi), exact, rtol=1e-7)


@pytest.mark.parametrize("ka", [0.055, 0.055 * (1 + 1e-9), 0.0551, 3.0])
@pytest.mark.parametrize("dose", [{}, {"RATE": 30.0}, {"RATE": 5.0}, {"RATE": 30.0, "CMT": 2}, {"RATE": 5.0, "CMT": 2}])
def test_steady_state_is_what_many_doses_lead_to(ka, dose):
    """Also where absorption is as fast as elimination, and where infusions overlap."""
    psi, ii = {"ka": ka, "CL": 1.1, "V": 20.0}, 8.0
    steady = table([{"TIME": 0.0, "AMT": 100.0, "II": ii, "SS": 1, "CMT": 1} | dose], TIMES)
    many = table([{"TIME": 0.0, "AMT": 100.0, "II": ii, "ADDL": 100, "CMT": 1} | dose], [t + 100 * ii for t in TIMES])
    np.testing.assert_allclose(predicted(steady, oral1cpt, psi), predicted(many, oral1cpt, psi), rtol=1e-8)


def test_derivatives_are_finite_and_right_where_rates_meet():
    frame = table([{"TIME": 0.0, "AMT": 100.0, "II": 8.0, "SS": 1, "RATE": 30.0}], TIMES)
    outcome, columns = reading_events(frame, Continuous(oral1cpt, ConstantError()), NOTHING, None)
    data = group(frame, named_by_default(frame, NOTHING, outcome, True), outcome, observed=False, columns=columns)
    with jax.enable_x64(True):
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.units["rows"])
        at = jnp.array([0.055, 1.1, 20.0])

        def total(x):
            return jnp.sum(outcome.prediction(dict(zip(("ka", "CL", "V"), x, strict=True)), rows))

        slope, bend = jax.jit(jax.grad(total))(at), jax.jit(jax.hessian(total))(at)
        steps = 1e-5 * at
        for j in range(3):
            e = jnp.zeros(3).at[j].set(steps[j])
            np.testing.assert_allclose(slope[j], (total(at + e) - total(at - e)) / (2 * steps[j]), rtol=1e-6)
            np.testing.assert_allclose(
                bend[j], (jax.grad(total)(at + e) - jax.grad(total)(at - e)) / (2 * steps[j]), rtol=1e-5, atol=1e-6
            )


def test_a_reset_empties_the_compartments_and_ends_additional_doses():
    frame = table(
        [
            {"TIME": 0.0, "AMT": 100.0, "ADDL": 9, "II": 6.0, "EVID": 1},
            {"TIME": 13.0, "EVID": 3},
            {"TIME": 24.0, "AMT": 50.0, "EVID": 4},
        ],
        [12.5, 13.5, 23.0, 25.0],
    )  # fmt: skip
    before, none, still, after = predicted(frame, bolus1cpt, {"V": 10.0, "CL": 1.0})
    assert before == pytest.approx(10 * sum(np.exp(-0.1 * (12.5 - t)) for t in (0, 6, 12)))
    assert none == still == 0.0
    assert after == pytest.approx(5 * np.exp(-0.1))


def test_the_order_of_records_counts_at_one_time():
    frame = pd.DataFrame({"ID": 1, "TIME": [0.0, 6.0, 6.0, 6.0], "EVID": [1, 0, 1, 0], "AMT": [10.0, 0, 10, 0], "DV": 1.0})
    trough, peak = predicted(frame, bolus1cpt, {"V": 1.0, "CL": 0.1})
    assert (trough, peak) == pytest.approx((10 * np.exp(-0.6), 10 * np.exp(-0.6) + 10))


def test_lag_and_bioavailability_by_compartment():
    psi = {"ka": 1.0, "V": 10.0, "CL": 1.0, "Tlag": 0.7, "F1": 0.4}
    frame = table([{"TIME": 0.0, "AMT": 100.0, "CMT": 1}, {"TIME": 0.0, "AMT": 10.0, "CMT": 2}], TIMES)
    exact = _integrated(psi, [(0.7, 40, 0, 0), (0, 10, 0, 1)], TIMES)
    np.testing.assert_allclose(predicted(frame, dosed(oral1cpt_lag, bioavailability="F1"), psi), exact, rtol=1e-7)


def test_a_hole_in_what_is_read_of_a_dose_is_refused():
    """Which would be a bioavailability of nothing."""
    frame = GOOD.assign(F=[0.5, 0.5, 0.5, 0.5, np.nan, 0.5, 0.5, 0.5])
    with pytest.raises(ValueError, match=r"F is read on the records of doses, and is missing \(subject 2, row 4\)"):
        predicted(frame, dosed(oral1cpt, bioavailability="F"), ORAL)


def test_a_constant_infusion_until_now_without_codes():
    frame = pd.DataFrame({"ID": 1, "TIME": [0.0, 2.0], "AMT": 0.0, "RATE": [10.0, 0.0], "SS": [1, 0], "DV": [0.0, 1.0]})
    assert predicted(frame, bolus1cpt, {"V": 5.0, "CL": 1.0})[0] == pytest.approx(10 * np.exp(-0.4))


def test_the_columns_of_rxode():
    """EVID = 10101 begins a rate into compartment 1, and ends it where AMT is negative."""
    frame = pd.DataFrame(
        {"ID": 1, "TIME": [0.0, 1.0, 3.0, 4.0, 5.0], "EVID": [10101, 0, 10101, 0, 101], "AMT": [20.0, 0, -20, 0, 7], "DV": 1.0}
    )
    exact = _integrated({"V": 10.0, "CL": 1.0}, [(0, 60, 3.0, 1)], [1.0, 4.0])
    np.testing.assert_allclose(predicted(frame, bolus1cpt, {"V": 10.0, "CL": 1.0}), exact, rtol=1e-7)


def test_clock_times_are_hours():
    frame = pd.DataFrame({"ID": 1, "TIME": ["8:00", "9:30"], "EVID": [1, 0], "AMT": [10.0, 0.0], "DV": ["0", "1"]})
    frame["DV"] = frame["DV"].astype(float)
    assert predicted(frame, bolus1cpt, {"V": 1.0, "CL": 1.0})[0] == pytest.approx(10 * np.exp(-1.5))


GOOD = pd.DataFrame(
    {
        "ID": np.repeat([1, 2], 4), "TIME": [0.0, 1, 2, 4] * 2, "DV": [0, 3.0, 2.5, 2] * 2, "AMT": [100.0, 0, 0, 0] * 2,
        "EVID": [1, 0, 0, 0] * 2, "MDV": [1, 0, 0, 0] * 2, "CMT": 1, "RATE": 0.0, "DUR": 0.0, "II": 0.0, "ADDL": 0, "SS": 0,
    }
)  # fmt: skip


def spoilt(row, **values):
    frame = GOOD.astype({name: object for name in values if isinstance(values[name], str)})
    for name, value in values.items():
        frame[name] = frame[name].astype(object if isinstance(value, str) else float)
        frame.loc[row, name] = value
    return frame


MALFORMED = {
    "no amount": (spoilt(4, AMT=0), "a dose without an amount"),
    "missing amount": (spoilt(4, AMT=np.nan), "a dose without an amount"),
    "negative amount": (spoilt(4, AMT=-1), "AMT = -1 must not be negative"),
    "amount that is no number": (spoilt(4, AMT="ten"), "'ten' is no number"),
    "infinite amount": (spoilt(4, AMT=np.inf), "AMT is infinite"),
    "amount on an observation": (spoilt(5, AMT=10), "AMT = 10 on an observation"),
    "negative time": (spoilt(4, TIME=-1), "TIME = -1 is negative"),
    "missing time": (spoilt(5, TIME=np.nan), "TIME is missing or infinite"),
    "infinite time": (spoilt(7, TIME=np.inf), "TIME is missing or infinite"),
    "unsorted": (spoilt(6, TIME=0.5), "TIME = 0.5 lies before the record above it"),
    "time in words": (spoilt(5, TIME="noon"), "TIME must be numeric"),
    "unknown event": (spoilt(5, EVID=7), "EVID = 7 is no kind of event"),
    "half an event": (spoilt(5, EVID=0.5), "EVID = 0.5 is no kind of event"),
    "event in words": (spoilt(5, EVID="dose"), "EVID = 'dose' is no number"),
    "unknown steady state": (spoilt(4, SS=99), "SS = 99 is no kind of steady state"),
    "steady state without an interval": (spoilt(4, SS=1), "needs the interval between doses, and II is 0"),
    "steady state 2 without an interval": (spoilt(4, SS=2), "needs the interval between doses, and II is 0"),
    "additional doses without an interval": (spoilt(4, ADDL=3), "need the interval between them, and II is 0"),
    "negative additional doses": (spoilt(4, ADDL=-1), "ADDL = -1 must not be negative"),
    "half an additional dose": (spoilt(4, ADDL=1.5, II=12), "ADDL = 1.5 must be a whole number"),
    "very many additional doses": (spoilt(4, ADDL=1e6, II=12), "must be a whole number of doses of at most"),
    "negative interval": (spoilt(4, II=-12, ADDL=1), "II = -12 must not be negative"),
    "unknown rate": (spoilt(4, RATE=-3), "RATE = -3: a rate is positive"),
    "rate of the model": (spoilt(4, RATE=-1), "RATE = -1: the rate is a parameter"),
    "duration of the model": (spoilt(4, RATE=-2), "RATE = -2: the duration is a parameter"),
    "rate and duration": (spoilt(4, RATE=10, DUR=2), "both say how long the dose lasts"),
    "negative duration": (spoilt(4, DUR=-2), "DUR = -2 must not be negative"),
    "constant infusion with an interval": (spoilt(4, AMT=0, RATE=5, SS=1, II=12), "has no interval and no additional doses"),
    "no such compartment": (spoilt(4, CMT=3), "CMT = 3 takes no dose; the model has compartments 1 to 2"),
    "compartment 0": (spoilt(4, CMT=0), "CMT = 0 takes no dose"),
    "compartment in words": (spoilt(4, CMT="depot"), "CMT = 'depot' is no number"),
    "no dose": (GOOD.drop(4), "subject 2 has observations and no dose"),
    "no observations": (GOOD[GOOD["EVID"] == 1], "no observations"),
    "two places": (GOOD.iloc[[0, 1, 4, 5, 6, 2, 3]], "the records of this subject are in two places"),
    "a subject without a name": (spoilt(5, ID=np.nan), "row 5 has no ID"),
    "no column of amounts": (GOOD.drop(columns="AMT").assign(dose=1.0), "name the column of the outcome"),
    "no rows": (GOOD.iloc[:0], "no rows"),
    "an outcome in words": (spoilt(5, DV="high"), "DV must be numeric"),
    "an infinite outcome": (spoilt(5, DV=np.inf), "DV is infinite"),
    "two outcomes": (GOOD.assign(DVID=[0, 1, 1, 2] * 2), "DVID = 2 (subject 1, row 3) and 1 are two kinds of observations"),
    "two compartments observed": (spoilt(7, CMT=2), "CMT = 2.0 (subject 2, row 7) and 1.0 are two kinds of observations"),
    "an outcome beside a dose": (
        spoilt(4, DV=3.0).drop(columns=["EVID", "MDV"]),
        "AMT = 100 and DV = 3 in one row (subject 2, row 4)",
    ),
    "doses of observations": (GOOD.assign(AMT=100.0).drop(columns=["EVID", "MDV"]), "pass dose='AMT'"),
    "an amount on a reset": (spoilt(6, EVID=3, AMT=10), "AMT = 10 on a record that gives no dose (EVID = 3)"),
    "an amount on another event": (spoilt(6, EVID=2, AMT=10), "AMT = 10 on a record that gives no dose (EVID = 2)"),
    "no such mark of observations": (spoilt(5, MDV=5), "MDV = 5 must be 1 where there is no observation"),
    "a mark in words": (spoilt(5, MDV="x"), "MDV = 'x' is no number"),
    "minutes of a clock": (spoilt(5, TIME="8:75"), "TIME must be numeric"),
    "half a compartment": (spoilt(4, CMT=1.5), "CMT = 1.5 takes no dose"),
    "two columns of one name": (pd.concat([GOOD, GOOD[["AMT"]]], axis=1), "two columns are called 'AMT'"),
    "two columns of amounts": (GOOD.assign(amt=7.0), "AMT and amt could all be AMT"),
    "two columns of durations": (GOOD.assign(TINF=1.0), "DUR and TINF could all be DUR"),
    "no amounts at all": (GOOD.assign(AMT=0.0), "a dose without an amount"),
    "no times": (GOOD.drop(columns="TIME"), "has a column of times, TIME"),
    "infinite additional doses": (spoilt(4, ADDL=np.inf, II=12), "ADDL is infinite"),
    "an infinite rate": (spoilt(4, RATE=np.inf), "RATE is infinite"),
    "a rate in words": (spoilt(4, RATE="fast"), "RATE = 'fast' is no number"),
    "a missing event of a dose": (spoilt(4, EVID=np.nan), "AMT = 100 on an observation"),
    "a negative event": (spoilt(4, EVID=-1), "EVID = -1 is no kind of event"),
    "a reset and no dose": (spoilt(4, EVID=4, AMT=0), "a dose without an amount"),
    "an amount with its unit": (spoilt(4, AMT="100 mg"), "AMT = '100 mg' is no number"),
    "dates": (
        GOOD.assign(TIME=pd.Timestamp("2020-01-01") + pd.to_timedelta(GOOD["TIME"].to_numpy(), unit="h")),
        "TIME must be numeric",
    ),
    "a table twice": (pd.concat([GOOD, GOOD]), "the records of this subject are in two places"),
    "a rate that does not end": (spoilt(4, EVID=10101), "does not end"),
    "a rate that did not begin": (spoilt(4, EVID=10101, AMT=-5), "ends a rate that did not begin"),
}


OF_NO_ROW = {
    "no observations", "no column of amounts", "no rows", "a subject without a name", "no times", "two columns of one name",
    "two columns of amounts", "two columns of durations",
}  # fmt: skip


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed_tables_are_refused(fault):
    frame, told = MALFORMED[fault]
    model = mx.NLME(structural=oral1cpt, individual={name: LogNormal(1.0) for name in ORAL}, verbose=False)
    with pytest.raises(ValueError, match=told.replace("(", r"\(").replace(")", r"\)").replace("+", r"\+")) as refusal:
        model.fit(frame)
    if fault not in OF_NO_ROW:
        assert "subject" in str(refusal.value) and "row" in str(refusal.value)


@pytest.mark.parametrize(("settings", "roles", "told"), [
    ({}, {"columns": {"AMT": "quantity"}}, "no column of the data"),
    ({}, {"columns": {"WEIGHT": "AMT"}}, "no column of event tables"),
    ({}, {"dose": "AMT", "columns": {"AMT": "AMT"}, "y": "DV"}, "columns= names those of an event table"),
    ({"structural": dosed(oral1cpt, bioavailability="F1")}, {}, "has the parameters ka, V, CL, F1"),
])  # fmt: skip
def test_roles_that_do_not_fit_are_refused(settings, roles, told):
    individual = {name: LogNormal(1.0) for name in ORAL}
    with pytest.raises(ValueError, match=told):
        mx.NLME(**({"structural": oral1cpt, "individual": individual, "verbose": False} | settings)).fit(GOOD, **roles)


@pytest.mark.parametrize(("frame", "told"), [
    (GOOD.loc[[0, 0, 1, 2, 3, 4, 5, 6, 7]], r"1 records repeat the dose above them \(the first: subject 1, row 1\); both count"),
    (GOOD.assign(ID=[1, 1, 1, 1, 2, 3, 3, 3], EVID=[1, 0, 0, 0, 1, 1, 0, 0], AMT=[9.0, 0, 0, 0, 9, 9, 0, 0]).assign(
        MDV=0, TIME=[0.0, 1, 2, 4, 0, 0, 1, 2]),
     r"1 subjects have no observations \(the first: 2\) and are left out"),
    (GOOD.loc[[1, 0, 2, 3, 4, 5, 6, 7]].assign(TIME=[0.0, 1, 2, 4] * 2),
     r"1 observations come before any dose \(the first: subject 1, row 0\)"),
])  # fmt: skip
def test_what_is_allowed_and_said(frame, told):
    outcome = Continuous(dosed(oral1cpt), ConstantError())
    with pytest.warns(UserWarning, match=told):
        group(frame, {"id": "ID", "time": "TIME", "y": "DV"}, outcome, columns=recognised(frame))


def test_only_compartment_models_are_dosed():
    with pytest.raises(ValueError, match="only a ready compartment model"):
        dosed(emax)
    with pytest.raises(ValueError, match="lag names compartment 2, which takes no dose"):
        dosed(bolus2cpt, lag={2: "L"})


def _simulated(n=60, seed=0):
    """Three doses of an iv drug, given by rows of their own, with a proportional error."""
    rng = np.random.default_rng(seed)
    CL, V = 2 * np.exp(0.3 * rng.normal(size=n)), 20 * np.exp(0.2 * rng.normal(size=n))
    times, at = np.array([1.0, 6.0, 11.0, 13.0, 20.0, 30.0]), np.array([0.0, 12.0, 24.0])
    since = times - at[:, None, None]
    c = np.where(since >= 0, 100 / V[:, None] * np.exp(-CL[:, None] / V[:, None] * np.maximum(since, 0)), 0).sum(0)
    y = c * (1 + 0.1 * rng.normal(size=c.shape))
    rows = pd.DataFrame({"ID": np.repeat(np.arange(n), 6), "TIME": np.tile(times, n), "DV": y.ravel(), "EVID": 0, "AMT": 0.0})
    doses = pd.DataFrame({"ID": np.arange(n), "TIME": 0.0, "DV": np.nan, "EVID": 1, "AMT": 100.0, "II": 12.0, "ADDL": 2})
    return pd.concat([doses, rows]).fillna({"II": 0, "ADDL": 0}).sort_values(["ID", "TIME"], kind="stable").reset_index(drop=True)


@pytest.fixture(scope="module")
def fitted():
    individual = {"CL": LogNormal(1.0), "V": LogNormal(30.0)}
    model = mx.NLME(structural=bolus1cpt, individual=individual, error="proportional", verbose=False)
    return model.fit(_simulated())


def test_a_fit_recovers_what_was_simulated(fitted):
    truth = {"CL": 2.0, "V": 20.0, "omega2_CL": 0.09, "omega2_V": 0.04, "b": 0.1}
    for name, value in truth.items():
        assert abs(fitted.params_[name] - value) < 3.5 * fitted.stderr_[name], name
    assert fitted.n_observations_ == 360 and fitted.n_subjects_ == 60
    # The same by doses that are written out, given to every observation of a model with none of it.
    summed = superposed(bolus1cpt, [0.0, 12.0, 24.0], [100.0] * 3)
    other = mx.NLME(structural=summed, individual=dict(fitted.individual), error="proportional", n_starts=1, verbose=False)
    frame = _simulated()
    other.fit(frame.loc[frame["EVID"] == 0].drop(columns=["EVID", "AMT"]), id="ID", time="TIME", y="DV")
    assert float(other.loglik_) == pytest.approx(float(fitted.loglik_), abs=0.01)


def test_predictions_of_other_event_tables(fitted):
    """Infusions and steady state, which the data that were fitted have none of."""
    frame = table([{"TIME": 0.0, "AMT": 200.0, "RATE": 50.0, "SS": 1, "II": 24.0}], [1.0, 6.0, 30.0])
    found = fitted.predict(frame, level="population")
    psi = {name: fitted.params_[name] for name in ("CL", "V")}
    np.testing.assert_allclose(found, predicted(frame, bolus1cpt, psi), rtol=1e-9)
    assert fitted.simulate(frame, n_draws=3).shape == (3, 3)


def test_figures_of_event_tables_are_drawn(fitted):
    for name in ("fits", "predictions", "residuals", "vpc", "effects"):
        assert getattr(fitted.plot, name)() is not None


@pytest.mark.parametrize("curve", [oral1cpt, infusion1cpt, bolus1cpt], ids=str)
def test_a_steady_state_that_is_never_reached_is_impossible(curve):
    """Of a draw of next to no elimination predictions are infinite; what overflows for the observations has no probability."""
    frame = table({"TIME": [0.0], "AMT": [100.0], "RATE": [50.0 * (curve is infusion1cpt)], "SS": [1], "II": [12.0]}, [1.0, 3.0])
    outcome, read = reading_events(frame, Continuous(curve, Proportional()), NOTHING, None)
    data = group(frame, named_by_default(frame, NOTHING, outcome, True), outcome, observed=False, columns=read)
    psi = {"ka": 1.0, "V": 1e22, "CL": 4.0}
    with jax.enable_x64(True):
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.units["rows"])
        regular = with_regimen(outcome, data.regimen, psi)
        found = np.asarray(regular.log_density(jnp.asarray([0.2]), psi, rows))
        usual = np.asarray(regular.log_density(jnp.asarray([0.2]), psi | {"V": 30.0}, rows))
    assert np.all(found == -np.inf) and np.all(np.isfinite(usual))
