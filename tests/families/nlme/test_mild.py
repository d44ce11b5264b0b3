"""By which steps differential equations are solved, where that is left open."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_events import NOTHING, predicted, table

import margaux as mx
from margaux.families.nlme import LogNormal, friberg, ode, oral1cpt_mm
from margaux.families.nlme.data import group
from margaux.families.nlme.dosing import with_regimen
from margaux.families.nlme.error import ConstantError
from margaux.families.nlme.events import named_by_default, reading_events
from margaux.families.nlme.mild import with_steps
from margaux.families.nlme.outcomes import Continuous
from margaux.families.nlme.specification import built
from margaux.numerics.precision import precision

CELLS = {"V": 10.0, "CL": 2.0, "Circ0": 7.0, "MTT": 100.0, "slope": 0.3, "gamma": 0.16}
ORAL = {"ka": 1.0, "V": 10.0, "Vm": 8.0, "Km": 2.0}


def _chosen(curve, starts):
    frame = table({"TIME": [0.0], "AMT": [100.0]}, [1.0, 24.0, 100.0, 300.0])
    outcome, read = reading_events(frame, Continuous(curve, ConstantError()), NOTHING, None)
    data = group(frame, named_by_default(frame, NOTHING, outcome, True), outcome, observed=False, columns=read)
    outcome = with_regimen(outcome, data.regimen, starts)
    individual: dict[str, Any] = {name: LogNormal() if start is None else LogNormal(start) for name, start in starts.items()}
    with precision(np.dtype(float)):
        return with_steps(outcome, *built(outcome, [], data, individual)).structural.function.stiff


@pytest.mark.parametrize(
    ("curve", "starts", "stiff"),
    [
        (friberg, CELLS, False),
        (oral1cpt_mm, ORAL, False),
        (oral1cpt_mm, ORAL | {"ka": 1e3}, False),  # absorption is known, and not stepped through
        (oral1cpt_mm, ORAL | {"Km": 1e-3}, None),  # three hundred hours of eight hundred an hour: 100,000 steps
        (friberg, CELLS | {"gamma": None}, None),
    ],
    ids=["cells", "saturable", "absorbed at once", "fast", "not given"],
)
def test_explicit_steps_are_taken_where_few_do(curve, starts, stiff):
    assert _chosen(curve, starts) is stiff


@pytest.mark.parametrize("asked", [True, False])
def test_what_is_asked_for_is_done(asked):
    own: Any = oral1cpt_mm.function
    function = dataclasses.replace(own, stiff=asked)
    assert _chosen(dataclasses.replace(oral1cpt_mm, function=function), ORAL | {"ka": 1e3}) is asked


def test_both_solve_the_same_equations():
    frame = table({"TIME": [0.0], "AMT": [100.0]}, [1.0, 24.0, 100.0, 300.0])
    curve: Any = friberg
    functions = [dataclasses.replace(curve.function, stiff=stiff) for stiff in (True, False)]
    curves = [dataclasses.replace(curve, function=function) for function in functions]
    implicit, explicit = (predicted(frame, curve, CELLS) for curve in curves)
    np.testing.assert_allclose(implicit, explicit, rtol=1e-4)


@pytest.mark.slow
def test_posteriors_that_reach_where_there_is_no_solution_are_told():
    """dy/dt = a y^2 from one has none beyond t = 1 / a, and a subject's a is known to within a fifth."""
    rng, n = np.random.default_rng(0), 12
    a = 0.6 * np.exp(0.1 * rng.normal(size=n))
    times = np.array([0.5, 1.0])
    frame = pd.DataFrame({"id": np.repeat(np.arange(n), 2), "t": np.tile(times, n)})
    frame["y"] = (1 / (1 - a[:, None] * times) + rng.normal(size=(n, 2))).ravel()
    explosive = ode(lambda t, state, psi: {"y": psi["a"] * state["y"] ** 2}, ["y"], "y", initial=lambda psi: {"y": 1.0})
    model = mx.NLME(structural=explosive, individual={"a": LogNormal(0.6, variance=0.15)}, n_starts=1, verbose=False)
    model = model.fit(frame, id="id", time="t", y="y")
    check = model.certificate_["solutions"]
    assert check.level == "careful" and "no solution" in check.sentence and 0 < check.figure <= 1
    outcome: Any = model.model_.outcome
    assert outcome.structural.function.stiff is False
