"""Models by differential equations: every kind of event, against closed forms; fits; refusals."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from test_events import ORAL, predicted, table

import margaux as mx
from margaux.families.nlme import LogNormal, dosed, iv1cpt_mm, ode, oral1cpt
from margaux.families.nlme.censoring import BETWEEN, CENSORED, LIMIT, Censored
from margaux.families.nlme.error import ConstantError
from margaux.families.nlme.outcomes import Continuous
from margaux.families.nlme.pharmacokinetics import Compartments

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-10, "linear": False}


def absorbed(t, state, psi):
    taken = psi["ka"] * state["depot"]
    return {"depot": -taken, "central": taken - psi["CL"] / psi["V"] * state["central"]}


def concentration(state, psi):
    return state["central"] / psi["V"]


ORAL_BY_ODE = ode(absorbed, ["depot", "central"], concentration, **TIGHT)


def test_parameters_are_those_that_the_functions_ask_for():
    assert ORAL_BY_ODE.parameters == ("ka", "CL", "V")
    late = ode(absorbed, ["depot", "central"], concentration, lag={"depot": "Tlag"}, bioavailability={2: "F2"})
    assert late.parameters == ("ka", "CL", "V", "Tlag", "F2")


@pytest.mark.parametrize(
    ("how", "rtol"), [({"linear": True}, 1e-11), pytest.param(TIGHT, 1e-5, marks=pytest.mark.slow)], ids=["exactly", "by steps"]
)
def test_every_record_of_nonmem_is_the_closed_forms(data_folder, how, rtol):
    frame = pd.read_csv(data_folder / "clinic" / "nmtest.csv.gz").assign(dv=1.0)
    read: dict[str, Any] = {"duration": "dur2", "rate": "rat2"}
    closed = predicted(frame, dosed(oral1cpt, lag={2: "lagt"}, bioavailability={2: "bioav"}, **read), ORAL)
    late: dict[str, Any] = {"lag": {"central": "lagt"}, "bioavailability": {"central": "bioav"}}
    solved = ode(absorbed, ["depot", "central"], concentration, **late, **read, **how)
    np.testing.assert_allclose(predicted(frame, solved, ORAL), closed, rtol=rtol, atol=0)


DOSES = {
    "at once": {"TIME": [0.0, 10.0], "AMT": [100.0, 50.0]},
    "infusions": {"TIME": [0.0, 10.0], "AMT": [100.0, 50.0], "RATE": [25.0, 5.0], "CMT": [2, 2]},
    "additional": {"TIME": [1.0], "AMT": [100.0], "ADDL": [4], "II": [6.0]},
    "steady": {"TIME": [2.0], "AMT": [100.0], "SS": [1], "II": [12.0]},
    "steady infusion": {"TIME": [2.0], "AMT": [100.0], "SS": [1], "II": [12.0], "RATE": [5.0], "CMT": [2]},
    "for ever": {"TIME": [2.0], "AMT": [0.0], "SS": [1], "RATE": [5.0], "CMT": [2]},
    "reset": {"TIME": [0.0, 9.0, 14.0], "AMT": [100.0, 0.0, 70.0], "EVID": [1, 3, 1]},
    "reset and dose": {"TIME": [0.0, 9.0], "AMT": [100.0, 60.0], "EVID": [1, 4]},
}


@pytest.mark.parametrize("name", DOSES)
def test_events_and_their_derivatives_are_the_closed_forms(name):
    frame = table(DOSES[name], [0.5, 2.0, 3.0, 9.0, 10.0, 12.5, 14.0, 20.0, 31.0])

    def of(curve):
        return predicted(frame, curve, ORAL)

    np.testing.assert_allclose(of(ORAL_BY_ODE), of(oral1cpt), rtol=1e-6, atol=1e-9)


def test_long_regimens_and_steady_states_are_solved_by_default_whatever_the_parameters():
    """Saturable elimination after 200 doses, which is the steady state; a linear model with rates of 1e-4 to 1e3."""
    after = [0.001, 1.0, 3.0, 7.0, 11.0]
    psi = {"V": 12.0, "Vm": 45.0, "Km": 1.2}
    last = table({"TIME": [0.0], "AMT": [100.0], "ADDL": [200], "II": [12.0]}, [2400 + t for t in after])
    steady = table({"TIME": [0.0], "AMT": [100.0], "SS": [1], "II": [12.0]}, after)
    np.testing.assert_allclose(predicted(steady, iv1cpt_mm, psi), predicted(last, iv1cpt_mm, psi), rtol=1e-4)
    rough, rng = ode(absorbed, ["depot", "central"], concentration, linear=False), np.random.default_rng(0)
    for _ in range(40):
        wild = {name: value * np.exp(2 * rng.normal()) for name, value in ORAL.items()}
        exact = predicted(steady, oral1cpt, wild)
        np.testing.assert_allclose(predicted(steady, rough, wild), exact, rtol=1e-4, atol=1e-6 * exact.max(), err_msg=str(wild))


def test_two_subjects_with_other_resets_are_each_as_if_alone():
    one = table(DOSES["reset and dose"], [1.0, 8.0, 9.5, 20.0])
    two = table(DOSES["at once"], [1.0, 2.0, 12.0, 30.0, 50.0]).assign(ID=2)
    together = predicted(pd.concat([one, two], ignore_index=True), ORAL_BY_ODE, ORAL)
    apart = [predicted(frame, ORAL_BY_ODE, ORAL) for frame in (one, two)]
    np.testing.assert_allclose(together, np.concatenate(apart), rtol=1e-12)


def test_a_state_of_its_own_without_doses():
    """Turnover from its baseline: kin / kout before the drug, and a placebo subject stays there."""

    def turnover(t, state, psi):
        C = state["central"] / psi["V"]
        return {
            "central": -psi["k"] * state["central"],
            "response": psi["kin"] * (1 - C / (psi["IC50"] + C)) - psi["kout"] * state["response"],
        }

    model = ode(turnover, ["central", "response"], "response", initial=lambda psi: {"response": psi["kin"] / psi["kout"]})
    psi = {"V": 10.0, "k": 0.3, "kin": 8.0, "kout": 0.4, "IC50": 1.0}
    treated = table({"TIME": [5.0], "AMT": [100.0]}, [1.0, 4.0, 6.0, 12.0, 100.0])
    placebo = pd.DataFrame({"TIME": [1.0, 50.0], "EVID": 0, "AMT": 0.0, "ID": 2, "DV": 1.0})
    found = predicted(pd.concat([treated, placebo], ignore_index=True), model, psi)
    # The treated one's record begins with its first row.
    np.testing.assert_allclose(found[[0, 1, 4, 5, 6]], 20.0, rtol=1e-4)
    assert found[2] < 19 and found[3] < 15


def test_functions_of_the_row_and_names_are_checked():
    two = ode(
        absorbed, ["depot", "central"], lambda state, psi, row: jnp.where(row["kind"] > 0, state["depot"], state["central"])
    )
    assert two.parameters == ("ka", "CL", "V")
    with pytest.raises(ValueError, match="output = 'blood' is no state"):
        ode(absorbed, ["depot", "central"], "blood")
    with pytest.raises(ValueError, match="different names"):
        ode(absorbed, ["depot", "depot"], "depot")
    with pytest.raises(ValueError, match="ask for 'central', which is no state"):
        ode(absorbed, ["depot"], "depot")
    with pytest.raises(ValueError, match="derivative names 'b', which is no state"):
        ode(lambda t, state, psi: {"b": 1.0}, ["a"], "a")
    with pytest.raises(ValueError, match="gives 1 numbers for 2 states"):
        ode(lambda t, state, psi: (1.0,), ["a", "b"], "a")
    with pytest.raises(ValueError, match="lag names compartment 3"):
        ode(absorbed, ["depot", "central"], "central", lag={3: "Tlag"})


@pytest.fixture(scope="module")
def study():
    rng = np.random.default_rng(4)
    n, times = 24, np.array([0.5, 1.0, 2.0, 4.0, 8.0, 12.0])
    psi = {name: value * np.exp(0.3 * rng.normal(size=n)) for name, value in {"ka": 1.5, "V": 20.0, "CL": 2.0}.items()}
    curve = Compartments(1, "oral")
    with jax.enable_x64(True):
        exact = jax.vmap(lambda p: jax.vmap(lambda t: curve(p, {"time": t, "dose": 100.0}))(times))(psi)
    y = np.asarray(exact) * (1 + 0.1 * rng.normal(size=(n, len(times))))
    rows = pd.DataFrame({"id": np.repeat(np.arange(n), len(times)), "time": np.tile(times, n), "conc": y.ravel()})
    return rows.assign(dose=100.0)


@pytest.mark.slow
@pytest.mark.parametrize("linear", [None, False], ids=["exactly", "by steps"])
def test_a_fit_is_that_of_the_closed_form(study, linear):
    individual = {"ka": LogNormal(1.0), "V": LogNormal(15.0), "CL": LogNormal(3.0)}
    kwargs: dict[str, Any] = {"individual": individual, "error": "proportional", "n_starts": 2, "verbose": False}
    roles: dict[str, Any] = {"id": "id", "time": "time", "y": "conc", "dose": "dose"}
    curve = ode(absorbed, ["depot", "central"], concentration, linear=linear)
    solved = mx.NLME(structural=curve, **kwargs).fit(study, **roles)
    closed = mx.NLME(structural=oral1cpt, **kwargs).fit(study, **roles)
    # Densities that take long are integrated by fewer nodes, as the error tells.
    assert 2e-3 < solved.loglik_.se < 0.03
    assert float(solved.loglik_) == pytest.approx(float(closed.loglik_), abs=solved.loglik_.se)
    for name, se in closed.stderr_.items():
        assert solved.params_[name] == pytest.approx(closed.params_[name], abs=0.01 * se), name
        assert solved.stderr_[name] == pytest.approx(se, rel=0.02), name


def test_doses_that_change_within_a_subject_need_records_of_their_own(study):
    twice = study.assign(dose=np.where(study["time"] > 2, 50.0, 100.0))
    model = mx.NLME(structural=ORAL_BY_ODE, individual=dict.fromkeys(("ka", "V", "CL"), LogNormal(1.0)), verbose=False)
    with pytest.raises(ValueError, match="changes within a subject .subject 0.*differential equations take one dose"):
        model.fit(twice, id="id", time="time", y="conc", dose="dose")


def test_a_column_called_dose_is_the_dose_and_may_not_change_either(study):
    twice = study.assign(dose=np.where(study["time"] > 2, 50.0, 100.0))
    model = mx.NLME(structural=ORAL_BY_ODE, individual=dict.fromkeys(("ka", "V", "CL"), LogNormal(1.0)), verbose=False)
    with pytest.raises(ValueError, match="changes within a subject"):
        model.fit(twice, id="id", time="time", y="conc")


@pytest.mark.usefixtures("double")
def test_where_there_is_no_solution_the_density_is_zero_censored_or_not():
    explosive = ode(lambda t, state, psi: {"y": psi["a"] * state["y"] ** 2}, ["y"], "y", initial=lambda psi: {"y": 1.0})
    rows = {"time": jnp.array([0.5, 2.0]), "y": jnp.array([2.0, 1.0])}
    limits = {CENSORED: jnp.array([0.0, 1.0]), LIMIT: jnp.zeros(2), BETWEEN: jnp.zeros(2)}
    for outcome in (Continuous(explosive, ConstantError()), Censored(explosive, ConstantError())):

        def density(a, outcome=outcome):
            return outcome.log_density(jnp.ones(1), {"a": a}, rows | limits)

        found = np.asarray(density(1.0))
        assert np.isfinite(found[0]) and found[1] == -np.inf
        assert np.isfinite(np.asarray(jax.jacrev(density)(1.0))).all()


def test_what_cannot_be_solved_at_the_start_is_said(study):
    explosive = ode(lambda t, state, psi: {"y": psi["a"] * state["y"] ** 2}, ["y"], "y", initial=lambda psi: {"y": 1.0})
    model = mx.NLME(structural=explosive, individual={"a": LogNormal(5.0)}, verbose=False)
    with pytest.raises(ValueError, match="cannot be solved.*subject 0, row.*a = 5"):
        model.fit(study, id="id", time="time", y="conc")


def test_occasions_are_refused(study):
    model = mx.NLME(
        structural=ORAL_BY_ODE,
        individual={"ka": LogNormal(1.0, occasion=True), "V": LogNormal(20.0), "CL": LogNormal(2.0)},
        verbose=False,
    )
    data = study.assign(OCC=np.where(study["time"] > 3, 2, 1))
    with pytest.raises(ValueError, match="varies between occasions.*differential equations"):
        model.fit(data, id="id", time="time", y="conc", dose="dose")


def test_equal_models_are_equal():
    again = ode(absorbed, ["depot", "central"], concentration, **TIGHT)
    assert again == ORAL_BY_ODE and hash(again) == hash(ORAL_BY_ODE)
    dynamics: Any = again.function
    assert dataclasses.replace(dynamics, stiff=False) != ORAL_BY_ODE.function
