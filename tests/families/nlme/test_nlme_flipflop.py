"""Two sets of parameters that give one curve: they are found, they are true, and who fits is told."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.datasets import load_theophylline
from margaux.families.nlme import LogNormal, answers, bolus1cpt, curve, flipflop, oral1cpt, superposed
from margaux.showing import convergence

VALUES = {"Tlag": 0.5, "ka": 0.084, "V": 1.66, "CL": 2.7, "k": 1.6}


@pytest.mark.parametrize(
    "model",
    [curve("oral1cpt"), curve("oral1cpt_k"), curve("oral1cpt_lag"), curve("oral1cpt_k_lag"), superposed(oral1cpt, [0.0, 12.0]),
     oral1cpt.with_columns(dose=320.0)],
    ids=repr,
)  # fmt: skip
def test_the_other_parameters_give_the_same_curve(model):
    psi = {name: VALUES[name] for name in model.parameters}
    other: Any = flipflop.mirrored(model, psi | {"omega2_ka": 0.1})
    assert list(other) == list(psi) and other["ka"] > 10 * psi["ka"]
    for time in (1.0, 4.0, 14.0, 30.0):
        row = {"time": time, "dose": 320.0}
        np.testing.assert_allclose(model(other, row), model(psi, row), rtol=1e-5)
    back: Any = flipflop.mirrored(model, other)
    np.testing.assert_allclose(list(back.values()), list(psi.values()), rtol=1e-9)
    assert "ka = 1.6" in flipflop.note(model, psi) and flipflop.note(model, other) == ""


@pytest.mark.parametrize("model", [bolus1cpt, curve("oral2cpt"), curve("emax"), lambda p, row: p["ka"], None])
def test_other_models_have_none(model):
    assert flipflop.note(model, dict.fromkeys(getattr(model, "parameters", ("ka",)), 1.0)) == ""


@pytest.fixture(scope="module")
def fitted():
    individual = {"ka": LogNormal(0.08), "V": LogNormal(1.7), "CL": LogNormal(2.7, covariates="Weight")}
    model = mx.NLME(structural=oral1cpt, individual=individual, omega=[("V", "CL")], error="combined", n_starts=1, n_iter=60,
                    n_burn=40, stop=False, verbose=False)  # fmt: skip
    return model.fit(load_theophylline(), id="Id", time="Time", y="Concentration", dose="Dose")


@pytest.mark.slow
def test_the_message_says_so(fitted):
    assert fitted.params_["ka"] < 0.3
    assert fitted.message_.startswith(fitted.result_.message.rstrip("."))
    assert "; flip-flop: absorption (ka = 0.0" in fitted.message_ and ".;" not in fitted.message_


@pytest.mark.slow
def test_parameters_of_the_engine_have_names_of_the_family(fitted):
    """Each name leads to the same number: what moves one moves the other."""
    names = answers.engine_names(fitted.model_, fitted._design.labels)
    zero = {f"omega2_{name}" for name in fitted._dropped}  # estimated as zero: no parameter of the engine any more
    assert set(names) == set(fitted.result_.names) and set(names.values()) == set(fitted.params_) - zero
    before = np.asarray(answers.natural_values(fitted.model_, fitted.result_.params, fitted._dropped))
    for engine, own in names.items():
        base, place = engine.rstrip("]").split("[")
        at = tuple(map(int, place.split(",")))
        moved: Any = {name: np.array(value) for name, value in fitted.result_.params.items() if name != "omega"}
        moved["omega"] = tuple(np.array(matrix) for matrix in fitted.result_.params["omega"])
        target = moved["omega"][int(base.split(".")[1])] if base.startswith("omega.") else moved[base]
        target[at] += 0.01
        if len(at) == 2:
            target[at[::-1]] = target[at]
        changed = np.asarray(answers.natural_values(fitted.model_, moved, fitted._dropped)) != before
        assert [name for name, one in zip(fitted.params_, changed, strict=True) if one] == [own]


@pytest.mark.slow
def test_verdicts_of_the_report_have_them_too(fitted):
    frame = pd.DataFrame({"figure": [9.0], "ok": [False], "verdict": ["The trace of omega.0[1,1] still drifts: run longer."]},
                         index=["stationarity"])  # fmt: skip
    names = answers.engine_names(fitted.model_, fitted._design.labels)
    (verdict,) = convergence.diagnostics(frame, names)
    assert "the trace of omega2_CL still drifts" in str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bad_starting_values_hide_nothing(seed, data_folder):
    """They led to the flip-flop mode, 60 units down, or to a boundary, 738 down."""
    data = pd.read_csv(data_folder / "clinic" / "Oral_1CPT.csv.gz").query("SD == 1 and EVID == 0")
    individual = {"ka": LogNormal(0.7), "V": LogNormal(30.0), "CL": LogNormal(8.0)}
    model = mx.NLME(structural=oral1cpt, individual=individual, error="proportional", random_state=seed, verbose=False)
    model.fit(data, id="ID", time="TIME", y="DV", dose="DOSE")
    assert abs(model.loglik_ - -11769.810) < 0.02 + 3 * model.loglik_se_
    assert [round(model.params_[name], places) for name, places in (("ka", 2), ("V", 0), ("CL", 2))] == [0.99, 66.0, 3.98]
    assert {"pooled", "given", "mirror"} <= set(model.starts_["origin"])
