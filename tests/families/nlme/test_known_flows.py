"""Equations of which a part is linear: its way is known, and explicit steps go by the rest."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import solve_ivp
from test_events import predicted

from margaux.families.nlme import ode
from margaux.families.nlme.dynamics import _closed

PSI = {"ka": 1.1, "CL": 4.0, "V": 20.0, "Q": 6.0, "V2": 40.0, "R0": 10.0, "kout": 0.05, "Imax": 0.9, "IC50": 0.5}


def _response(C, response, psi):
    return psi["kout"] * (psi["R0"] * (1 - psi["Imax"] * C / (psi["IC50"] + C)) - response)


def by_mouth(t, state, psi):
    taken, C = psi["ka"] * state["depot"], state["central"] / psi["V"]
    slopes = {"depot": -taken, "central": taken - psi["CL"] * C, "response": _response(C, state["response"], psi)}
    return slopes


def into_two(t, state, psi):
    C, back = state["central"] / psi["V"], psi["Q"] / psi["V2"] * state["peripheral"]
    out = (psi["CL"] + psi["Q"]) * C
    return {"central": back - out, "peripheral": psi["Q"] * C - back, "response": _response(C, state["response"], psi)}


def _curve(slopes, drug, **more):
    """Parameters in the order of PSI."""
    initial: Any = lambda psi: {"response": psi["R0"]}  # noqa: E731
    return ode(slopes, [*drug, "response"], "response", initial=initial, stiff=False, **more)


CURVES = {"by mouth": (by_mouth, ["depot", "central"]), "into two": (into_two, ["central", "peripheral"])}


@pytest.mark.usefixtures("double")
def test_which_states_are_known():
    for slopes, drug in CURVES.values():
        curve: Any = _curve(slopes, drug)
        numbers, how = _closed(curve.function, tuple(sorted(PSI)), np.dtype(float))  # type: ignore[misc]
        assert numbers == (0, 1) and how.homogeneous
    saturable: Any = ode(lambda t, s, p: {"a": -s["a"] / (p["k"] + s["a"]), "b": s["a"] - s["b"]}, ["a", "b"], "b")
    assert _closed(saturable.function, ("k",), np.dtype(float)) is None
    held: Any = _curve(by_mouth, ["depot", "central"], linear=False)
    assert held.function._flow(PSI, held.function._slope) is None


def _exact(slopes, states, frame):
    """From event to event, by a solver that shares no code."""
    inputs = []  # time, place, amount, rate, until
    for row in frame[frame["EVID"] == 1].itertuples():
        lasts = row.AMT / row.RATE if row.RATE else 0.0
        inputs.append((row.TIME, row.CMT - 1, 0.0 if lasts else row.AMT, row.RATE, row.TIME + lasts))
    asked = frame.loc[frame["EVID"] == 0, "TIME"].to_numpy()
    y, now = np.array([0.0, 0.0, PSI["R0"]]), 0.0
    stops = sorted({0.0, *asked, *(each[0] for each in inputs), *(each[4] for each in inputs)})
    found = {}
    for stop in stops:
        running = np.zeros(3)
        for begin, place, _, rate, until in inputs:
            running[place] += rate * (begin <= now < until)

        def slope(t, y, running=running):
            got = slopes(t, dict(zip(states, y, strict=True)), PSI)
            return np.array([got[name] for name in states]) + running

        if stop > now:
            y = solve_ivp(slope, (now, stop), y, method="LSODA", rtol=1e-11, atol=1e-12, max_step=2.0).y[:, -1]
        found[stop] = y[2]
        for begin, place, amount, _, _ in inputs:
            if begin == stop:
                y = y + np.eye(3)[place] * amount
        now = stop
    return np.array([found[time] for time in asked])


#: doses, and when the response is looked at: soon, and long after the drug has come and gone
TABLES = {
    "once, much later": ([(0, 100, 0)], [500.0, 900.0]),
    "every day": ([(24 * day, 60, 0) for day in range(4)], [1, 30.0, 71.9, 72.5, 300.0]),
    "infusions": ([(0, 100, 40), (48, 100, 10)], [1.0, 3.0, 48.0, 50.0, 62.0, 400.0]),
    "a dose in the middle of nowhere": ([(700, 80, 0)], [650.0, 1500.0]),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", CURVES)
def test_responses_are_those_of_a_general_solver(name, table):
    slopes, drug = CURVES[name]
    doses, times = TABLES[table]
    rows = [{"ID": 1, "TIME": t, "AMT": amount, "RATE": rate, "EVID": 1, "DV": np.nan} for t, amount, rate in doses]
    rows += [{"ID": 1, "TIME": t, "AMT": 0.0, "RATE": 0.0, "EVID": 0, "DV": 1.0} for t in times]
    frame = pd.DataFrame(rows).sort_values(["TIME", "EVID"], kind="stable", ignore_index=True).assign(CMT=1)
    exact = _exact(slopes, [*drug, "response"], frame)
    np.testing.assert_allclose(predicted(frame, _curve(slopes, drug), PSI), exact, rtol=1e-4)
    np.testing.assert_allclose(predicted(frame, _curve(slopes, drug, rtol=1e-9), PSI), exact, rtol=1e-7)


@pytest.mark.parametrize("name", CURVES)
def test_regimens_at_steady_state_and_resets_are_those_of_steps(name):
    slopes, drug = CURVES[name]
    rows = [
        {"TIME": 0.0, "AMT": 60.0, "SS": 1, "II": 24.0, "EVID": 1}, {"TIME": 40.0, "AMT": 90.0, "RATE": 30.0, "EVID": 1},
        {"TIME": 60.0, "EVID": 3}, {"TIME": 70.0, "AMT": 50.0, "EVID": 1},
        *({"TIME": time, "EVID": 0} for time in (0.0, 5.0, 41.0, 55.0, 65.0, 75.0, 300.0)),
    ]  # fmt: skip
    frame = pd.DataFrame(rows).fillna(0.0).sort_values("TIME", kind="stable", ignore_index=True)
    frame = frame.assign(ID=1, DV=1.0, CMT=1, SS=frame["SS"].astype(int))
    steps = predicted(frame, _curve(slopes, drug, linear=False, rtol=1e-9), PSI)
    np.testing.assert_allclose(predicted(frame, _curve(slopes, drug), PSI), steps, rtol=2e-5)
