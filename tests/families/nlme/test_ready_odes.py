"""Ready differential equations against a general solver, closed forms and limits."""

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from test_events import predicted, table

from margaux.families.nlme import friberg, iv1cpt_mm, oral1cpt, oral1cpt_mm, transit1cpt, turnover

TIMES = [0.5, 1.0, 3.0, 8.0, 24.0]
DOSE = table({"TIME": [0.0], "AMT": [100.0]}, TIMES)


def test_saturable_elimination_solves_its_implicit_equation():
    """Of a bolus: Km log(C0 / C) + C0 - C = Vm t / V."""
    psi = {"V": 10.0, "Vm": 8.0, "Km": 2.0}
    C = predicted(DOSE, iv1cpt_mm, psi)
    np.testing.assert_allclose(2 * np.log(10 / C) + 10 - C, 0.8 * np.asarray(TIMES), rtol=1e-4)


def test_saturable_elimination_far_below_km_is_linear():
    psi = {"ka": 0.9, "V": 10.0, "Vm": 2e6, "Km": 1e6}
    linear = predicted(DOSE, oral1cpt, {"ka": 0.9, "V": 10.0, "CL": 2.0})
    np.testing.assert_allclose(predicted(DOSE, oral1cpt_mm, psi), linear, rtol=2e-5)


def test_transit_is_absorption_convolved_with_a_gamma():
    psi = {"MTT": 2.0, "ka": 1.2, "V": 10.0, "CL": 2.0}
    found = predicted(DOSE, transit1cpt(3), psi)
    delay = np.linspace(0, 24, 200_001)
    density = 2.0**4 * delay**3 * np.exp(-2 * delay) / 6
    ka, k = 1.2, 0.2

    def oral(t):
        return 10 * ka / (ka - k) * (np.exp(-k * t) - np.exp(-ka * t))

    wanted = [np.trapezoid(density[delay <= t] * oral(t - delay[delay <= t]), delay[delay <= t]) for t in TIMES]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    with pytest.raises(ValueError, match="whole number of transit compartments"):
        transit1cpt(0)


@pytest.mark.parametrize("action", ["inhibits production", "inhibits loss", "stimulates production", "stimulates loss"])
def test_indirect_responses_are_a_general_solvers(action):
    psi = {"V": 10.0, "CL": 2.0, "R0": 20.0, "kout": 0.4, "Emax": 0.8, "EC50": 1.0}

    def slope(t, R):
        C = 10 * np.exp(-0.2 * t)
        E = 0.8 * C / (1 + C) * (-1 if action.startswith("inhibits") else 1)
        made, lost = (1 + E, 1) if action.endswith("production") else (1, 1 + E)
        return 0.4 * (20 * made - lost * R)

    wanted = solve_ivp(slope, (0, 24), [20.0], t_eval=TIMES, rtol=1e-9, atol=1e-9).y[0]
    np.testing.assert_allclose(predicted(DOSE, turnover(action), psi), wanted, rtol=1e-4)


def test_cells_fall_and_come_back():
    psi = {"V": 10.0, "CL": 2.0, "Circ0": 7.0, "MTT": 100.0, "slope": 0.3, "gamma": 0.16}
    frame = table({"TIME": [0.0], "AMT": [100.0]}, [1.0, 100.0, 200.0, 400.0, 3000.0])

    def slope(t, y):
        born = (1 - 0.3 * 10 * np.exp(-0.2 * t)) * (7 / y[4]) ** 0.16 * y[0]
        return 0.04 * (np.concatenate([[born], y[:4]]) - y)

    wanted = solve_ivp(slope, (0, 3000), np.full(5, 7.0), t_eval=[1, 100, 200, 400, 3000], rtol=1e-9, atol=1e-9).y[4]
    found = predicted(frame, friberg, psi)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert found.min() < 6 and found[-1] == pytest.approx(7, rel=1e-3)


def test_parameters_may_be_columns():
    """V and CL read from the data are V and CL as parameters."""
    frame = table({"TIME": [0.0], "AMT": [100.0], "RATE": [20.0]}, TIMES)
    whole = {"V": 10.0, "CL": 2.0, "R0": 20.0, "kout": 0.4, "Emax": 0.8, "EC50": 1.0}
    model = turnover("inhibits loss")
    fewer = {name: value for name, value in whole.items() if name not in ("V", "CL")}
    read = frame.assign(V=10.0, CL=2.0)
    with jax.enable_x64(True):
        np.testing.assert_allclose(predicted(read, model, fewer), predicted(frame, model, whole), rtol=1e-12)
