"""Model files of several outputs, and of errors correlated in time: there and back, a fit, and mistakes with their line."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.families.nlme import AR1, Combined, ConstantError, LogNormal, Normal, Proportional, from_toml, ode, polynomial
from margaux.families.nlme.by_output import ErrorByOutput
from margaux.families.nlme.kinds import OUTPUT

EFFECT = """omega = "diagonal"

[data]
file = "effect.csv"
id = "ID"
time = "TIME"
y = "DV"
output = "DVID"
lloq = {cp = 0.05}

[structural]
stiff = false
define = {c = "A / V"}

[structural.output]
cp = "c"
R = "R"

[structural.derivatives]
A = "-CL / V * A"
R = "kin * (1 - c / (1 + c)) - kin / base * R"

[structural.initial]
R = "base"

[parameters.V]
distribution = "lognormal"
initial = 10.0

[parameters.CL]
distribution = "lognormal"
initial = 2.0
random = false

[parameters.kin]
distribution = "lognormal"
initial = 3.0
random = false

[parameters.base]
distribution = "lognormal"
initial = 8.0

[error.cp]
model = "proportional"

[error.R]
model = "constant"

[settings]
seed = 1
n_starts = 1
n_iter = 20
n_burn = 12
polish = false
"""


def _read(folder, text: str) -> Any:
    (folder / "model.toml").write_text(text)
    return from_toml(folder / "model.toml")


def _python() -> mx.NLME:
    """The same model by functions."""

    def slopes(t, state, psi):
        c = state["A"] / psi["V"]
        return {
            "A": -psi["CL"] / psi["V"] * state["A"],
            "R": psi["kin"] * (1 - c / (1 + c)) - psi["kin"] / psi["base"] * state["R"],
        }

    curve = ode(
        slopes, ["A", "R"], {"cp": lambda state, psi: state["A"] / psi["V"], "R": "R"},
        initial=lambda psi: {"R": psi["base"]}, stiff=False, parameters=("V", "CL", "kin", "base"),
    )  # fmt: skip
    individual = {
        "V": LogNormal(10.0), "CL": LogNormal(2.0, random=False), "kin": LogNormal(3.0, random=False), "base": LogNormal(8.0),
    }  # fmt: skip
    return mx.NLME(
        structural=curve, individual=individual, error={"cp": Proportional(), "R": ConstantError()}, random_state=1, n_starts=1,
        n_iter=20, n_burn=12, polish=False, verbose=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def table():
    """Twelve doses, concentrations and effects by the closed form of the one and small steps of the other."""
    rng, rows = np.random.default_rng(3), []
    grid = np.linspace(0.0, 8.0, 801)
    for i in range(12):
        v, base = 10 * np.exp(0.2 * rng.normal()), 8 * np.exp(0.2 * rng.normal())
        c = 50 / v * np.exp(-2 / v * grid)
        effect = np.empty_like(grid)
        effect[0] = base
        for j in range(800):
            effect[j + 1] = effect[j] + 0.01 * (3 * (1 - c[j] / (1 + c[j])) - 3 / base * effect[j])
        rows.append((i, 0.0, np.nan, "", 50.0, 1, 1))
        for j in (50, 200, 500, 799):
            rows.append((i, grid[j], c[j] * (1 + 0.1 * rng.normal()), "cp", 0.0, 0, 0))
            rows.append((i, grid[j], effect[j] + 0.3 * rng.normal(), "R", 0.0, 0, 0))
    return pd.DataFrame(rows, columns=["ID", "TIME", "DV", "DVID", "AMT", "EVID", "MDV"])


def test_several_outputs_there_and_back(tmp_path):
    file = _read(tmp_path, EFFECT)
    assert file.model.structural.function.outputs == ("cp", "R")
    assert file.model.error == {"cp": Proportional(), "R": ConstantError()}
    assert file.roles["output"] == "DVID" and file.roles["lloq"] == {"cp": 0.05}
    again = _read(tmp_path, file.model.to_toml()).model
    assert again.structural == file.model.structural and again.error == file.model.error
    assert again.individual == file.model.individual and again.to_toml() == file.model.to_toml()


@pytest.mark.parametrize("error", [
    AR1("combined"), AR1("constant", fixed={"tau": 2.0}), AR1("proportional", random=True), "proportional", Combined(),
])  # fmt: skip
def test_errors_there_and_back(tmp_path, error):
    model = mx.NLME(structural=polynomial(1), individual={"c0": Normal(1.0), "c1": Normal(0.5)}, error=error)
    again = _read(tmp_path, model.to_toml()).model
    assert again.error == (error if not isinstance(error, str) else Proportional())


def test_an_error_by_output_holds_and_multiplies(tmp_path):
    text = EFFECT.replace('model = "proportional"', 'model = "combined"\nfixed = {a = 0.01}').replace(
        'model = "constant"', 'model = "constant"\nrandom = true'
    )
    model = _read(tmp_path, text).model
    assert model.error == {"cp": Combined(fixed={"a": 0.01}), "R": ConstantError(random=True)}
    assert _read(tmp_path, model.to_toml()).model.error == model.error
    same = EFFECT.replace('[error.cp]\nmodel = "proportional"\n\n[error.R]\nmodel = "constant"', '[error]\nmodel = "constant"')
    assert _read(tmp_path, same).model.error == ConstantError()


def test_outputs_in_text_are_the_functions_that_they_say(tmp_path):
    text: Any = _read(tmp_path, EFFECT).model.structural
    python: Any = _python().structural
    assert text.parameters == python.parameters and text.function.states == python.function.states
    state, psi = {"A": 30.0, "R": 6.0}, {"V": 9.0, "CL": 2.5, "kin": 2.0, "base": 7.0}
    assert text.function.derivative(1.0, state, psi) == pytest.approx(python.function.derivative(1.0, state, psi))
    assert text.function.initial(psi) == python.function.initial(psi)
    for place, value in enumerate((30.0 / 9.0, 6.0)):
        row = {"time": 1.0, OUTPUT: place}
        found = [float(curve.function.output(state, psi, row)) for curve in (text, python)]
        assert found == pytest.approx([value, value])


@pytest.mark.slow
def test_a_fit_of_several_outputs_is_that_of_functions(tmp_path, table):
    file = _read(tmp_path, EFFECT)
    table.to_csv(tmp_path / "effect.csv", index=False)
    found = file.fit(table)
    wanted = _python().fit(table, id="ID", time="TIME", y="DV", output="DVID", lloq={"cp": 0.05})
    for name, value in wanted.params_.items():
        assert found.params_[name] == pytest.approx(value, rel=1e-8), name
    assert isinstance(found.result_._model().model.outcome.error, ErrorByOutput)
    written = _read(tmp_path, found.to_toml(data="effect.csv"))
    assert written.roles == {k: v for k, v in file.roles.items() if k != "columns"} | {"columns": written.roles["columns"]}


@pytest.mark.parametrize(("old", "new", "told"), [
    ("[error.R]", "[error.Q]", "error.Q: error has no key 'Q'; .*cp"),
    ('[error.R]\nmodel = "constant"\n', "", "error: .*give each its error"),
    ('R = "R"\n\n', "\n", "line 15: structural.output: output names 1 outputs"),
    ('cp = "c"', 'cp = "c +"', "line 16: structural.output.cp: .*no arithmetic"),
    ('cp = "c"', '"R " = "c"', "structural.output: output names the output R twice"),
    ('model = "proportional"', 'model = "propotional"', "line 45: error.cp.model: .*did you mean 'proportional'"),
    ('model = "proportional"', 'model = "proportional"\ncorrelated = true', "error: AR1 is for a model with one output"),
    ('model = "proportional"', 'model = "proportional"\nfixed = {c = 1.0}', "line 46: error.cp.fixed"),
    ('model = "proportional"', 'model = "proportional"\ncensoring = "M4"', "error.cp.censoring: error.cp has no key"),
    ("lloq = {cp = 0.05}", 'lloq = {cp = "no"}', "line 9: data.lloq: must be a finite number"),
])  # fmt: skip
def test_a_mistake_in_outputs(tmp_path, old, new, told):
    with pytest.raises(ValueError, match=f"(?s){told}"):
        _read(tmp_path, EFFECT.replace(old, new, 1))


def test_several_outputs_are_of_differential_equations(tmp_path):
    text = EFFECT.split("[structural.derivatives]")[0].replace('"c"', '"V"').replace('R = "R"', 'R = "base"').replace(
        'stiff = false\ndefine = {c = "A / V"}\n', ""
    ) + "[parameters.V]" + EFFECT.split("[parameters.V]")[1]  # fmt: skip
    with pytest.raises(ValueError, match="line 11: structural: several outputs are of differential equations"):
        _read(tmp_path, text)


def test_errors_of_outputs_that_are_not_there(tmp_path):
    text = EFFECT.replace('[structural.output]\ncp = "c"\nR = "R"\n', "").replace(
        'define = {c = "A / V"}', 'define = {c = "A / V"}\noutput = "c"'
    )
    with pytest.raises(ValueError, match="error.cp: error has no key 'cp'; .*there are model, fixed"):
        _read(tmp_path, text)
