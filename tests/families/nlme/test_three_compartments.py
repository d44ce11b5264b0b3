"""Three compartments and a metabolite: rates in many digits, every event against other solutions, labels that change places."""

from decimal import Decimal, localcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.integrate import solve_ivp
from test_events import predicted, table

from margaux.families.nlme import bolus3cpt, curve, dosed, flipflop, infusion3cpt, metabolite, ode, oral1cpt, oral3cpt
from margaux.families.nlme.three_compartments import decreasing_roots, three_rates

NAMES = ("V1", "CL", "Q2", "V2", "Q3", "V3")
THREE: dict[str, float] = dict(zip(NAMES, (10.0, 5.0, 8.0, 20.0, 1.0, 50.0), strict=True))
TIMES = [0.5, 1.0, 2.0, 5.0, 12.0, 13.0, 24.0, 47.0]
EVENTS: dict[str, Any] = {
    "at once": {"TIME": [0.0, 9.0], "AMT": [100.0, 50.0]},
    "lasting": {"TIME": [0.0, 9.0], "AMT": [100.0, 50.0], "RATE": [20.0, 25.0]},
    "steady": {"TIME": [0.0], "AMT": [100.0], "SS": [1], "II": [12.0]},
    "steady and lasting": {"TIME": [0.0], "AMT": [100.0], "SS": [1], "II": [12.0], "RATE": [5.0]},
    "reset": {"TIME": [0.0, 9.0], "AMT": [100.0, 60.0], "EVID": [1, 4]},
}
EVERY = pd.concat([table(doses, TIMES).assign(ID=i) for i, doses in enumerate(EVENTS.values())])
EVERY = EVERY.fillna(0).reset_index(drop=True)


def _in_many_digits(values):
    """Rates and weights of V1, CL, Q2, V2, Q3, V3, by Newton's method from both ends."""
    V1, CL, Q2, V2, Q3, V3 = (Decimal(float(value)) for value in values)
    k10, k12, k13, k21, k31 = CL / V1, Q2 / V1, Q3 / V1, Q2 / V2, Q3 / V3
    s, p, q = k10 + k12 + k13 + k21 + k31, k21 * (k10 + k13 + k31) + k31 * (k10 + k12), k10 * k21 * k31

    def newton(x):
        for _ in range(500):
            step = (((x - s) * x + p) * x - q) / ((3 * x - 2 * s) * x + p)
            x -= step
            if abs(step) < x * Decimal("1e-45"):
                break
        return x

    largest, least = newton(s), newton(q / p)
    rates = [largest, q / (largest * least), least]
    weights = []
    for i, rate in enumerate(rates):
        one, two = (rate - other for j, other in enumerate(rates) if j != i)
        weights.append((rate - k21) * (rate - k31) / (one * two))
    return np.array(rates, float), np.array(weights, float)


@pytest.mark.usefixtures("double")
def test_rates_and_weights_are_exact_however_far_apart():
    rng = np.random.default_rng(0)
    every = np.concatenate([np.exp(spread * rng.normal(size=(60, 6))) for spread in (0.3, 1.0, 2.0, 5.0)])
    rates, weights = jax.jit(jax.vmap(lambda x: three_rates(dict(zip(NAMES, x, strict=True)))))(every)
    with localcontext() as context:
        context.prec = 60
        exact = [_in_many_digits(values) for values in every]
    np.testing.assert_allclose(np.transpose(rates), [one for one, _ in exact], rtol=1e-12)
    np.testing.assert_allclose(np.transpose(weights), [two for _, two in exact], atol=1e-11)


@pytest.mark.usefixtures("double")
def test_derivatives_where_the_exchanges_are_alike():
    """Of log parameters, by differences of exact ones; also of a rate that has no weight."""
    x = np.log([1.0, 1.0, 1.0, 2.0, 1.0, 2.0])

    def response(x):
        rates, weights = three_rates(dict(zip(NAMES, jnp.exp(x), strict=True)))
        return sum(weight * jnp.exp(-2 * rate) for rate, weight in zip(rates, weights, strict=True))

    def exact(x):
        A = np.exp(x)
        k10, k12, k13, k21, k31 = A[1] / A[0], A[2] / A[0], A[4] / A[0], A[2] / A[3], A[4] / A[5]
        values, vectors = np.linalg.eigh(
            [
                [k10 + k12 + k13, -np.sqrt(k12 * k21), -np.sqrt(k13 * k31)],
                [-np.sqrt(k12 * k21), k21, 0],
                [-np.sqrt(k13 * k31), 0, k31],
            ]
        )
        return vectors[0] ** 2 @ np.exp(-2 * values)

    step = 1e-4 * np.eye(6)
    hessian = [[(exact(x + a + b) - exact(x + a - b) - exact(x - a + b) + exact(x - a - b)) / 4e-8 for b in step] for a in step]
    assert float(response(x)) == pytest.approx(exact(x), rel=1e-13)
    np.testing.assert_allclose(jax.hessian(response)(x), hessian, atol=1e-6)
    gradient = [(exact(x + a) - exact(x - a)) / 2e-4 for a in step]
    np.testing.assert_allclose(jax.grad(response)(x), gradient, atol=1e-8)


@pytest.mark.usefixtures("double")
def test_three_positive_roots():
    np.testing.assert_allclose(decreasing_roots(111.0, 1110.0, 1000.0), [100.0, 10.0, 1.0], rtol=1e-14)


def _mammillary(t, s, p):
    out = p["CL"] / p["V1"] * s["central"]
    second, third = (p[Q] * (s["central"] / p["V1"] - s[place] / p[V]) for Q, V, place in (("Q2", "V2", "b"), ("Q3", "V3", "c")))
    absorbed = p["ka"] * s["depot"]
    return {"depot": -absorbed, "central": absorbed - out - second - third, "b": second, "c": third}


@pytest.mark.slow
def test_events_are_those_of_the_differential_equations():
    """Doses into the depot with a lag and into the central compartment, of every kind at once."""
    by_ode = ode(
        _mammillary, ["depot", "central", "b", "c"], lambda s, p: s["central"] / p["V1"], lag={"depot": "Tlag"}, linear=True
    )
    psi = THREE | {"ka": 0.9, "Tlag": 0.75}
    given = (EVERY["EVID"] > 0).astype(int)
    two = pd.concat([EVERY.assign(CMT=given), EVERY.assign(ID=EVERY["ID"] + 10, CMT=2 * given)], ignore_index=True)
    found = predicted(two, curve("oral3cpt_lag"), psi)
    np.testing.assert_allclose(found, predicted(two, by_ode, psi), rtol=1e-10, atol=1e-13)
    central = two["ID"].to_numpy()[two["EVID"].to_numpy() == 0] >= 10
    np.testing.assert_allclose(predicted(EVERY, dosed(bolus3cpt), THREE), found[central], rtol=1e-12)


def _by_a_general_solver(slopes, doses, size):
    state, out = np.zeros(size), []
    stops = sorted({*TIMES, *(d[0] for d in doses), *(d[0] + d[2] for d in doses)})
    for t, amount, lasts, place in doses:
        state = state + (np.eye(size)[place] * amount if t == 0 and not lasts else 0.0)
    for begin, end in zip([0.0, *stops], stops, strict=False):
        if end > begin:
            rate = sum(
                np.eye(size)[place] * amount / lasts for t, amount, lasts, place in doses if lasts and t <= begin < t + lasts
            )
            state = solve_ivp(
                lambda t, y, rate=rate: slopes(y) + rate, (begin, end), state, rtol=1e-11, atol=1e-13, method="DOP853"
            ).y[:, -1]
        out += [state.copy()] if end in TIMES else []
        for t, amount, lasts, place in doses:
            state = state + (np.eye(size)[place] * amount if t == end > 0 and not lasts else 0.0)
    return np.array(out)


def test_infusions_and_absorption_by_a_general_solver():
    def slopes(y):
        back = (8 * (y[0] / 10 - y[1] / 20), y[0] / 10 - y[2] / 50)
        return np.array([-0.5 * y[0] - sum(back), *back])

    wanted = _by_a_general_solver(slopes, [(0.0, 100.0, 5.0, 0), (9.0, 50.0, 2.0, 0)], 3)[:, 0] / 10
    frame = table(EVENTS["lasting"], TIMES)
    np.testing.assert_allclose(predicted(frame, dosed(infusion3cpt), THREE), wanted, rtol=1e-9)

    def with_depot(y):
        return np.append(slopes(y) + np.array([0.9 * y[3], 0.0, 0.0]), -0.9 * y[3])

    wanted = _by_a_general_solver(with_depot, [(0.0, 100.0, 0.0, 3), (9.0, 50.0, 2.0, 0)], 4)[:, 0] / 10
    frame = table({"TIME": [0.0, 9.0], "AMT": [100.0, 50.0], "RATE": [0.0, 25.0], "CMT": [1, 2]}, TIMES)
    np.testing.assert_allclose(predicted(frame, oral3cpt, THREE | {"ka": 0.9}), wanted, rtol=1e-9)


def test_metabolite_by_a_general_solver_and_its_parent_by_the_closed_form():
    psi = {"ka": 0.9, "V": 10.0, "CL": 2.0, "fm": 0.4, "Vmet": 25.0, "CLmet": 1.5}

    def slopes(y):
        return np.array([-0.9 * y[0], 0.9 * y[0] - 0.2 * y[1], 0.4 * 0.2 * y[1] - 0.06 * y[2]])

    doses = {"TIME": [0.0, 0.0, 9.0], "AMT": [100.0, 60.0, 50.0], "CMT": [1, 2, 3], "RATE": [0.0, 20.0, 0.0]}
    frame = table(doses, TIMES)
    wanted = _by_a_general_solver(slopes, [(0.0, 100.0, 0.0, 0), (0.0, 60.0, 3.0, 1), (9.0, 50.0, 0.0, 2)], 3)
    found = predicted(frame, metabolite("oral"), psi)
    np.testing.assert_allclose(found, wanted[:, 2] / 25, rtol=1e-9)
    parent = {name: psi[name] for name in ("ka", "V", "CL")}
    once = table(EVENTS["at once"], TIMES)
    np.testing.assert_allclose(predicted(once, metabolite("oral", "parent"), psi), predicted(once, oral1cpt, parent), rtol=1e-11)
    with pytest.raises(ValueError, match="output must be 'metabolite' or 'parent', got 'both'"):
        metabolite("iv", "both")  # type: ignore[arg-type]


def test_compartments_that_change_places_are_told():
    other: Any = flipflop.mirrored(bolus3cpt, THREE)
    row = {"time": 3.0, "dose": 100.0}
    assert float(bolus3cpt(other, row)) == pytest.approx(float(bolus3cpt(THREE, row)), rel=1e-5)
    assert other != THREE and flipflop.mirrored(bolus3cpt, other) == THREE
    assert flipflop.flipped(oral3cpt, THREE | {"ka": 0.01}) is False and flipflop.flipped(bolus3cpt, other) is True
    assert flipflop.note(bolus3cpt, THREE) == "" and "out of order" in flipflop.note(dosed(bolus3cpt), other)
    assert "Q2 = 8, V2 = 20, Q3 = 1, V3 = 50" in flipflop.note(bolus3cpt, other)
