"""Parameters that change with the occasions of a subject while the drug stays: against equations solved piece by piece."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.linalg import expm

import margaux as mx
from margaux.families.nlme import LogNormal, bolus1cpt, by_occasion, dosed, infusion2cpt, ode, oral1cpt, outputs
from margaux.families.nlme.dosing import with_regimen
from margaux.families.nlme.error import as_error
from margaux.families.nlme.events import reading_events
from margaux.families.nlme.outcomes import Continuous
from margaux.numerics.precision import precision

ORAL = {"ka": LogNormal(1.0), "V": LogNormal(20.0, occasion=True), "CL": LogNormal(2.0, occasion=True)}


def _flows(t, state, psi):
    absorbed = psi["ka"] * state["depot"]
    return {"depot": -absorbed, "central": absorbed - psi["CL"] / psi["V"] * state["central"]}


def _concentration(state, psi):
    return state["central"] / psi["V"]


def _table(records) -> Any:
    return pd.DataFrame(records, columns=["ID", "OCC", "TIME", "AMT", "EVID", "ADDL", "II", "RATE", "DV"])


def _dose(subject, occasion, time, amount, event=1, addl=0, ii=0.0, rate=0.0):
    return (subject, occasion, time, amount, event, addl, ii, rate, np.nan)


def _seen(subject, occasion, times):
    return [(subject, occasion, t, 0.0, 0, 0, 0.0, 0.0, 1.0 + 0.1 * t) for t in times]


#: occasions follow each other, the second without an observation and the fourth after a reset; additional doses go on into the
#: third, whose first observation is at the very time of a dose of the second
RECORDS = [
    _dose(1, "a", 0.0, 100.0), *_seen(1, "a", [1.0, 6.0, 12.0]),
    _dose(1, "b", 12.0, 80.0, addl=2, ii=12.0),
    *_seen(1, "c", [24.0, 25.0, 37.0, 40.0]),
    _dose(1, "d", 60.0, 50.0, event=4), *_seen(1, "d", [61.0, 70.0]),
    _dose(2, "x", 0.0, 100.0, rate=25.0), *_seen(2, "x", [2.0, 3.0]), *_seen(2, "y", [3.5, 5.0]),
]  # fmt: skip


def _given(records):
    """Of each subject: doses (time, amount, over, part), changes (time, occasion, part), observations (time, occasion, part)."""
    out = {}
    for subject, own in _table(records).groupby("ID"):
        part, doses, changes, seen = 0, [], [], []
        rows: Any = own.itertuples()
        for row in rows:
            part += row.EVID == 4
            if not changes or changes[-1][1:] != (row.OCC, part):
                changes.append((row.TIME, row.OCC, part))
            if row.EVID == 0:
                seen.append((row.TIME, row.OCC, part))
                continue
            over = row.AMT / row.RATE if row.RATE else 0.0
            doses += [(row.TIME + k * row.II, row.AMT, over, part) for k in range(row.ADDL + 1)]
        out[subject] = doses, changes, seen
    return out


def _exact(records, matrix, enters, psi):
    """Amounts in the compartments at each observation, by exponentials from event to event; psi by occasion."""
    out = []
    for doses, changes, seen in _given(records).values():
        for t, _, part in seen:
            own = [d for d in doses if d[3] == part]
            begun = [c for c in changes if c[2] == part]
            stops = {begun[0][0], t} | {d[0] for d in own} | {d[0] + d[2] for d in own} | {c[0] for c in begun}
            times = sorted(s for s in stops if begun[0][0] <= s <= t)
            y = np.zeros(len(enters))
            for a, b in zip(times, times[1:], strict=False):
                occasion = [c[1] for c in begun if c[0] <= a][-1]
                y = y + enters * sum(d[1] for d in own if d[2] == 0 and d[0] == a)
                rate = enters * sum(d[1] / d[2] for d in own if d[2] > 0 and d[0] <= a < d[0] + d[2])
                A = matrix(psi[occasion])
                moved = expm(np.block([[A, rate[:, None]], [np.zeros((1, len(y) + 1))]]) * (b - a))
                y = moved[:-1, :-1] @ y + moved[:-1, -1]
            # A dose at the very time counts where its record comes before.
            y = y + enters * sum(d[1] for d in own if d[2] == 0 and d[0] == t and len(times) == 1)
            out.append(y)
    return np.asarray(out)


def _predicted(structural, individual, records, psi):
    """By the library: psi by name and occasion."""
    table = _table(records)
    outcome, columns = reading_events(table, Continuous(structural, as_error("constant")), {}, None)
    roles: dict[str, str | None] = {"id": "ID", "time": "TIME", "y": "DV", "occ": "OCC"}
    outcome, data = by_occasion.grouped(outcome, individual, table, roles, columns=columns)
    data = by_occasion.with_occasions(data, individual, outcome)
    outcome = with_regimen(outcome, data.regimen, individual)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(data.units))
    with precision(np.dtype(float)):
        rows = jax.tree.map(jnp.asarray, data.units["rows"])
        known: Any = data.occasions
        most = int(known["place"].max()) + 1
        values = {name: np.ones((len(data.labels), most)) for name in individual}
        for row in known.itertuples():
            for name in individual:
                values[name][row.subject, row.place] = psi[row.occasion][name]
        own = {name: jnp.asarray(v if individual[name].occasion else v[:, 0]) for name, v in values.items()}
        return data, data.flat(jax.vmap(outcome.prediction)(own, rows))


PSI = {occasion: {"ka": 1.2, "V": 20.0 + 3 * i, "CL": 2.0 + 0.7 * i} for i, occasion in enumerate(["a", "b", "c", "d", "x", "y"])}


def _oral(psi):
    return np.array([[-psi["ka"], 0.0], [psi["ka"], -psi["CL"] / psi["V"]]])


@pytest.mark.parametrize("how", [None, "linear", "explicit", "stiff"])
def test_predictions_are_those_of_the_parameters_that_hold_when(how):
    structural, tolerance = oral1cpt, 1e-9
    if how is not None:
        options = {"linear": {}, "explicit": {"linear": False, "stiff": False}, "stiff": {"linear": False, "stiff": True}}[how]
        structural = ode(_flows, ["depot", "central"], _concentration, rtol=1e-7, **options)
        tolerance = 1e-9 if how == "linear" else 1e-5
    data, found = _predicted(structural, ORAL, RECORDS, PSI)
    amounts = _exact(RECORDS, _oral, np.array([1.0, 0.0]), PSI)
    volumes = [PSI[occasion]["V"] for occasion in data.frame["OCC"]]
    np.testing.assert_allclose(found, amounts[:, 1] / volumes, rtol=tolerance)
    assert list(data.occasions["occasion"]) == ["a", "b", "c", "d", "x", "y"]


def test_two_compartments_lags_and_shares_of_doses():
    """Infusions that last into the next occasion; a lag and a bioavailability that are those of the dose's own occasion."""
    records = [
        _dose(1, "a", 0.0, 100.0, rate=20.0), *_seen(1, "a", [3.0]), *_seen(1, "b", [4.0, 8.0]),
        _dose(1, "b", 10.0, 60.0, rate=30.0), *_seen(1, "c", [11.0, 14.0]),
    ]  # fmt: skip
    values = {
        o: {"V1": 10.0 + i, "CL": 1.0 + 0.3 * i, "Q": 0.5 + 0.2 * i, "V2": 15.0, "lag": 0.5 + 0.25 * i}
        for i, o in enumerate("abc")
    }
    individual = {name: LogNormal(1.0, occasion=name != "V2") for name in values["a"]}

    def matrix(psi):
        k10, k12, k21 = psi["CL"] / psi["V1"], psi["Q"] / psi["V1"], psi["Q"] / psi["V2"]
        return np.array([[-k10 - k12, k21], [k12, -k21]])

    data, found = _predicted(dosed(infusion2cpt, lag="lag"), individual, records, values)
    doses, changes, seen = _given(records)[1]
    late = [
        (t + values[occasion]["lag"], amount, over, part) for (t, amount, over, part), occasion in zip(doses, "ab", strict=True)
    ]
    amounts = []
    for t, _, _ in seen:
        times = sorted({0.0, t} | {s for d in late for s in (d[0], d[0] + d[2]) if s < t} | {c[0] for c in changes if c[0] < t})
        y = np.zeros(2)
        for a, b in zip(times, times[1:], strict=False):
            rate = np.array([sum(d[1] / d[2] for d in late if d[0] <= a < d[0] + d[2]), 0.0])
            A = matrix(values[[c[1] for c in changes if c[0] <= a][-1]])
            moved = expm(np.block([[A, rate[:, None]], [np.zeros((1, 3))]]) * (b - a))
            y = moved[:2, :2] @ y + moved[:2, 2]
        amounts.append(y[0])
    np.testing.assert_allclose(found, amounts / np.array([values[o]["V1"] for o in data.frame["OCC"]]), rtol=1e-9)


def test_a_state_that_begins_elsewhere_and_steady_states_are_those_of_their_own_occasion():
    """A turnover that goes on through occasions, anew from a base of its own after a reset; a steady state by the clearance of
    its dose's occasion."""

    def slope(t, state, psi):
        return {"R": psi["kin"] - psi["kin"] / psi["base"] * state["R"]}

    curve = ode(slope, ["R"], "R", initial=lambda psi: {"R": psi["base"]}, rtol=1e-8)
    records = [
        *_seen(1, "a", [0.0, 5.0]), *_seen(1, "b", [6.0, 10.0]), _dose(1, "c", 20.0, 0.0, event=3), *_seen(1, "c", [21.0]),
    ]  # fmt: skip
    individual = {"kin": LogNormal(1.0), "base": LogNormal(4.0, occasion=True)}
    values = {"a": {"kin": 1.0, "base": 4.0}, "b": {"kin": 1.0, "base": 8.0}, "c": {"kin": 1.0, "base": 2.0}}
    _, found = _predicted(curve, individual, records, values)
    np.testing.assert_allclose(found, [4.0, 4.0, 4.0, 8 - 4 * np.exp(-4 / 8), 2.0], rtol=1e-6)

    table = _table([_dose(1, "a", 0.0, 100.0, ii=12.0), *_seen(1, "a", [12.0]), *_seen(1, "b", [14.0, 16.0])]).assign(
        SS=[1, 0, 0, 0]
    )
    outcome, columns = reading_events(table, Continuous(bolus1cpt, as_error("constant")), {}, None)
    individual = {"V": LogNormal(20.0), "CL": LogNormal(2.0, occasion=True)}
    roles: dict[str, str | None] = {"id": "ID", "time": "TIME", "y": "DV", "occ": "OCC"}
    outcome, data = by_occasion.grouped(outcome, individual, table, roles, columns=columns)
    data = by_occasion.with_occasions(data, individual, outcome)
    with precision(np.dtype(float)):
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), data.units["rows"])
        psi = {"V": jnp.asarray(20.0), "CL": jnp.asarray([2.0, 6.0])}
        found = np.asarray(with_regimen(outcome, data.regimen, individual).prediction(psi, rows))[:3]
    trough = 5.0 * np.exp(-1.2) / (1 - np.exp(-1.2))
    np.testing.assert_allclose(found, [trough, trough * np.exp(-0.2), trough * np.exp(-0.2 - 0.6)], rtol=1e-9)


def test_what_occasions_need_of_a_table():
    table = _table(RECORDS)
    asked = {"individual": ORAL, "verbose": False}
    lost = table.assign(OCC=table["OCC"].where(table.index != 4))
    with pytest.raises(
        ValueError, match=r"OCC is missing \(subject 1, row 4\); every row needs its occasion, those of doses too"
    ):
        mx.NLME(structural=oral1cpt, **asked).fit(lost)
    plain = table[table["EVID"] == 0].drop(columns=["AMT", "EVID", "ADDL", "II", "RATE"])
    with pytest.raises(ValueError, match="an event table tells differential equations when an occasion begins"):
        mx.NLME(structural=ode(_flows, ["depot", "central"], _concentration), **asked).fit(
            plain, id="ID", time="TIME", y="DV", occ="OCC"
        )
    several = outputs({"cp": oral1cpt, "twice": lambda psi, row: 2 * row["cp"]})
    both = table.assign(DVID=np.where(table.index % 2, "cp", "twice"))
    with pytest.raises(ValueError, match=r"a dose of another OCC still acts here \(subject 1, row 5\).*EVID = 3"):
        mx.NLME(structural=several, **asked).fit(both)


@pytest.mark.slow
def test_a_closed_form_that_cannot_go_on_is_solved_by_its_equations():
    """The fit by exponentials is that by steps; what was simulated is found."""
    rng = np.random.default_rng(0)
    records = []
    for i in range(40):
        V, CL = 20 * np.exp(0.3 * rng.normal()), 2 * np.exp(0.3 * rng.normal())
        psi = {k: {"ka": 1.0, "V": V, "CL": CL * np.exp(0.25 * rng.normal())} for k in (1, 2, 3)}
        own = [r for k in (1, 2, 3) for r in [
            _dose(i, k, 12.0 * (k - 1), 100.0), *_seen(i, k, 12.0 * (k - 1) + np.array([1.0, 3.0, 6.0, 11.5]))
        ]]  # fmt: skip
        exact = _exact(own, _oral, np.array([1.0, 0.0]), psi)[:, 1] / V * np.exp(0.1 * rng.normal(size=12))
        where = iter(exact)
        records += [(*r[:-1], np.nan if r[4] else next(where)) for r in own]
    individual = {"ka": LogNormal(1.0, random=False), "V": LogNormal(20.0), "CL": LogNormal(2.0, occasion=True)}
    options = {"individual": individual, "error": "proportional", "n_starts": 1, "verbose": False}
    ready = mx.NLME(structural=oral1cpt, **options).fit(_table(records))
    stepped = ode(_flows, ["depot", "central"], _concentration, linear=False)
    steps = mx.NLME(structural=stepped, **options).fit(_table(records))
    assert float(ready.loglik_) == pytest.approx(float(steps.loglik_), abs=0.03)
    summary: Any = ready.summary()
    truth = pd.Series({
        "ka": 1.0, "V": 20.0, "CL": 2.0, "omega2_V": 0.09, "omega2_CL": 0.09, "gamma2_CL": 0.0625, "b": 0.1
    })[summary.index]  # fmt: skip
    assert (((summary["estimate"] - truth) / summary["se"]).abs() < 3).all()
    assert len(ready.by_occasion_) == 120
