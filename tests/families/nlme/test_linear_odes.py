"""Linear differential equations: they are recognised, no other is, and their solutions are closed forms to the last digits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.integrate import solve_ivp
from test_events import NOTHING, ORAL, predicted, table
from test_ode import DOSES, ORAL_BY_ODE, absorbed, concentration

from margaux.families.nlme import dosed, friberg, iv1cpt_mm, ode, oral1cpt, transit1cpt, turnover
from margaux.families.nlme.data import group
from margaux.families.nlme.dosing import with_regimen
from margaux.families.nlme.dynamics import Dynamics
from margaux.families.nlme.error import ConstantError
from margaux.families.nlme.events import named_by_default, reading_events
from margaux.families.nlme.outcomes import Continuous

EXACT = ode(absorbed, ["depot", "central"], concentration, linear=True)
AFTER = [0.5, 2.0, 3.0, 9.0, 10.0, 12.5, 14.0, 20.0, 31.0]
#: one subject for each kind of event
EVERY = pd.concat([table({"CMT": 1} | doses, AFTER).assign(ID=i) for i, doses in enumerate(DOSES.values())])
EVERY = EVERY.fillna(0).reset_index(drop=True)

Slopes = Any
LINEAR: dict[str, Slopes] = {
    "constant input": lambda t, s, p: (p["k"] - s["a"], 0.0),
    "by a function of parameters": lambda t, s, p: (-(jax.nn.softplus(p["k"]) ** p["g"]) * s["a"], s["a"] / p["k"]),
    "a case of parameters": lambda t, s, p: (jnp.where(p["k"] > 1, -s["a"], -2 * s["b"]), 0.0),
    "a matrix": lambda t, s, p: tuple(jnp.array([[-1.0, 0.0], [p["k"], -2.0]]) @ jnp.stack([s["a"], s["b"]])),
    "compiled": lambda t, s, p: (jax.jit(lambda a, k: 1 - a * k)(s["a"], p["k"]), -s["b"]),
    "the rest of an array": lambda t, s, p: tuple(jnp.zeros(2).at[1].set(-s["a"] * p["k"])),
}
NONLINEAR: dict[str, Slopes] = {
    "power": lambda t, s, p: (s["a"] ** p["g"], 0.0),
    "product": lambda t, s, p: (-s["a"] * s["b"], 0.0),
    "square": lambda t, s, p: (-s["a"] * s["a"], 0.0),
    "reciprocal": lambda t, s, p: (p["k"] / s["a"], 0.0),
    "positive part": lambda t, s, p: (-jnp.maximum(s["a"], 0), 0.0),
    "a case of a state": lambda t, s, p: (jnp.where(s["a"] > 1, -s["a"], -2 * s["a"]), 0.0),
    "whole part": lambda t, s, p: (-jnp.floor(s["a"]), 0.0),
    "as an integer": lambda t, s, p: (-1.0 * s["a"].astype(int), 0.0),
    "a derivative that is not its own": lambda t, s, p: (-jax.lax.stop_gradient(s["a"]), 0.0),
    "compiled": lambda t, s, p: (jax.jit(lambda a: -a * a)(s["a"]), -s["b"]),
    "inner product": lambda t, s, p: (jnp.stack([s["a"], s["b"]]) @ jnp.stack([s["a"], s["b"]]), 0.0),
    "input in time": lambda t, s, p: (jnp.sin(t) - s["a"], 0.0),
    "coefficient in time": lambda t, s, p: (-t * s["a"], 0.0),
    "switched in time": lambda t, s, p: (jnp.where(t > 3, -s["a"], 0.0), 0.0),
}


def found(derivative):
    curve = ode(derivative, ["a", "b"], "a", parameters=("k", "g"))
    return curve.function.linearity(("g", "k"), jnp.result_type(float))


@pytest.mark.parametrize("name", LINEAR)
def test_linear_equations_are_recognised(name):
    assert found(LINEAR[name]) is not None


@pytest.mark.parametrize("name", NONLINEAR)
def test_no_others_are(name):
    assert found(NONLINEAR[name]) is None
    with pytest.raises(ValueError, match="linear=True, but the derivative of a is not known to be linear"):
        ode(NONLINEAR[name], ["a", "b"], "a", linear=True)


def test_where_and_what_is_found():
    known = found(lambda t, s, p: (-p["k"] * s["a"], p["k"] * s["a"] - p["g"] * s["b"]))
    assert known is not None and known.places == ((0, 0), (1, 0), (1, 1)) and known.homogeneous
    for ready in (iv1cpt_mm, turnover("inhibits loss"), friberg):
        assert isinstance(ready.function, Dynamics) and ready.function.linearity(ready.parameters, jnp.float32) is None
    chain: Any = transit1cpt(3).function
    assert len(chain.linearity(("CL", "MTT", "V", "ka"), jnp.float32).places) == 11
    assert ode(absorbed, ["depot", "central"], concentration, linear=False).function.linearity(("CL", "V", "ka"), float) is None  # type: ignore[attr-defined]


def _derivatives(frame, curve, psi, second=False):
    """Predictions and their first derivatives in log parameters, or these and the second ones, at many parameters (M, P)."""
    outcome, columns = reading_events(frame, Continuous(curve, ConstantError()), NOTHING, None)
    data = group(frame, named_by_default(frame, NOTHING, outcome, True), outcome, observed=False, columns=columns)
    outcome = with_regimen(outcome, data.regimen, dict.fromkeys(curve.parameters))
    rows = jax.tree.map(jnp.asarray, data.units["rows"])

    def of(x):
        return jax.vmap(lambda row: outcome.prediction(dict(zip(("ka", "CL", "V"), jnp.exp(x), strict=True)), row))(rows)

    function = jax.jacfwd(of) if second else of
    both = jax.jacfwd(lambda x: (function(x),) * 2, has_aux=True)
    return [np.asarray(each) for each in jax.jit(lambda xs: jax.lax.map(both, xs))(jnp.log(psi))]


@pytest.mark.slow
@pytest.mark.usefixtures("double")
def test_every_event_and_its_derivatives_are_the_closed_forms_whatever_the_parameters():
    """Also where the drug has all but vanished."""
    typical = np.array([1.5, 1.1, 20.0])
    psi = np.concatenate([[typical], typical * np.exp(1.5 * np.random.default_rng(0).normal(size=(20, 3)))])
    (slope, value), (exact_slope, exact) = (_derivatives(EVERY, curve, psi) for curve in (EXACT, dosed(oral1cpt)))
    assert np.min(exact[exact > 0]) < 1e-8 < 1 < np.max(exact)
    np.testing.assert_allclose(value, exact, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(slope, exact_slope, rtol=1e-8, atol=1e-11 * np.max(np.abs(exact_slope)))


@pytest.mark.usefixtures("double")
def test_second_derivatives_are_the_closed_forms():
    frame = table(DOSES["at once"], AFTER)
    psi = np.array([[1.5, 1.1, 20.0], [0.1, 3.0, 5.0]])
    (ours, _), (closed, _) = (_derivatives(frame, curve, psi, second=True) for curve in (EXACT, dosed(oral1cpt)))
    np.testing.assert_allclose(ours, closed, rtol=1e-8, atol=1e-11 * np.max(np.abs(closed)))


def test_oscillation_constant_input_and_what_only_gathers_are_a_general_solvers():
    """No compartments: a pendulum that is driven and damped, and the sum of where it was, which has no steady state."""

    def slopes(t, s, p):
        return {
            "place": s["speed"],
            "speed": p["force"] - p["w"] ** 2 * s["place"] - p["damping"] * s["speed"],
            "sum": s["place"],
        }

    curve = ode(slopes, ["place", "speed", "sum"], "sum", initial=lambda p: {"place": p["start"]}, linear=True)
    psi = {"force": 0.3, "w": 2.0, "damping": 0.1, "start": 1.0}
    frame = table({"TIME": [0.0, 3.0], "AMT": [2.0, 4.0], "RATE": [0.0, 1.0], "CMT": [2, 2]}, AFTER)

    def general(t, y):
        return [y[1], 0.3 + (1.0 if 3 < t < 7 else 0.0) - 4 * y[0] - 0.1 * y[1], y[0]]

    state, wanted = np.array([1.0, 2.0, 0.0]), {}
    stops = sorted({0.0, 3.0, 7.0, *AFTER})
    for begin, end in zip(stops, stops[1:], strict=False):
        state = solve_ivp(general, (begin, end), state, rtol=1e-12, atol=1e-13, method="DOP853", max_step=0.5).y[:, -1]
        wanted[end] = state[2]
    np.testing.assert_allclose(predicted(frame, curve, psi), [wanted[t] for t in AFTER], rtol=1e-9)


def test_a_steady_state_that_is_not_there_is_not_a_number():
    gathers = ode(lambda t, s, p: {"a": -p["k"] * s["a"], "b": p["k"] * s["a"]}, ["a", "b"], "b", linear=True)
    steady = table({"TIME": [0.0], "AMT": [1.0], "SS": [1], "II": [12.0]}, [1.0])
    assert not np.isfinite(predicted(steady, gathers, {"k": 0.1})).any()
    once = table({"TIME": [0.0], "AMT": [1.0]}, [1.0])
    np.testing.assert_allclose(predicted(once, gathers, {"k": 0.1}), -np.expm1(-0.1), rtol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("curve", [EXACT, ORAL_BY_ODE], ids=["exactly", "by steps"])
def test_of_more_infusions_that_overlap_than_are_kept_there_is_no_number(curve):
    overlap = {"TIME": [2.0], "AMT": [100.0], "SS": [1], "II": [10.0], "RATE": [1.0], "CMT": [2]}
    assert np.isnan(predicted(table(overlap, [5.0]), curve, ORAL)).all()
