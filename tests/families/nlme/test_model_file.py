"""Model files: there and back, mistakes with their line, and a fit from one with its tables, by Python and by the command."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import linalg
from typer.testing import CliRunner

import margaux as mx
from margaux.cli import app
from margaux.families.nlme import (
    CURVES,
    Combined,
    Curve,
    InverseWishart,
    LogitNormal,
    LogNormal,
    Normal,
    NormalPrior,
    dosed,
    from_toml,
    infusion1cpt,
    ode,
    oral1cpt,
    oral1cpt_lag,
    oral2cpt,
    polynomial,
    ready_odes,
    superposed,
    transit1cpt,
    turnover,
)
from margaux.families.nlme.expressions import Expression
from margaux.families.nlme.tables import _transformed
from margaux.families.nlme.written import Equations, written

LINE = """title = "lines"
omega = [["m", "s"]]

[data]
file = "lines.csv"
id = "who"
time = "t"
y = "value"

[structural]
output = "m + s * time"

[parameters.m]
distribution = "normal"
initial = 1.0
covariates = "x"

[parameters.s]
distribution = "normal"
initial = 0.0

[settings]
seed = 3
n_starts = 1
"""
ORAL = """[data]
file = "t.csv"
id = "ID"
time = "TIME"
y = "DV"
dose = "DOSE"

[structural]
name = "oral1cpt"

[parameters.ka]
distribution = "lognormal"
initial = 1.5

[parameters.V]
distribution = "lognormal"
initial = 20

[parameters.CL]
distribution = "lognormal"
initial = 2

[error]
model = "combined"

[settings]
seed = 3
"""
EQUATIONS = ORAL.replace(
    'name = "oral1cpt"',
    'output = "central / V"\nderivatives = {depot = "-ka * depot", central = "ka * depot - CL / V * central"}',
)


def _read(folder, text: str) -> Any:
    (folder / "model.toml").write_text(text)
    return from_toml(folder / "model.toml")


# Expressions


@pytest.mark.parametrize(("text", "value"), [
    ("1 / 2 + x ** 2 - -y", 13.5), ("2 ** 3 ** 2", 512.0), ("pow(x, 2) * exp(0) + sqrt(y) + log(1)", 11.0),
    ("where(x > y, x, y)", 4.0), ("min(x, y, 2) + max(x, y) + abs(-1)", 7.0), ("(0 < x < 4) + (x == 3 and y != 4)", 1.0),
    ("where(not x > 5 or y > 5, 1, 0)", 1.0), ("x / y * 2", 1.5),
])  # fmt: skip
def test_expressions_are_arithmetic(text, value):
    assert float(Expression(text)({"x": 3.0, "y": 4.0})) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", [
    "().__class__", "__import__('os')", "(lambda: 1)()", "[1]", "x if y else z", "'a'", "1 / 0", "9 ** 9 ** 9", "exp(1, 2)",
    "exp",    "f(x)", "a ^ 2", "", "((", "(x := 1)", "-" * 5000 + "1", "+".join("a" * 500), "True", "1e999", "1(2)",
    "min(a)", "(-8) ** 0.5", "exp(x=1)", "exp(*a)", "a in b", "f'{a}'", "a[0]", "a; b", "x.real", "{1}", "await a", "1j",
])  # fmt: skip
def test_nothing_but_arithmetic_is_an_expression(text):
    with pytest.raises(ValueError):
        Expression(text)


def test_equations_in_text_are_the_functions_that_they_say():
    text = Equations(
        Expression("C * scale"),
        (("depot", Expression("-ka * depot")), ("central", Expression("ka * depot - CL * C"))),
        define=(("C", Expression("central / V")),),
        parameters=("ka", "V", "CL"),
    )
    curve: Any = written(text)
    state, psi = {"depot": 3.0, "central": 8.0}, {"ka": 0.5, "V": 4.0, "CL": 0.2}
    assert curve.function.derivative(0.0, state, psi) == {"depot": -1.5, "central": pytest.approx(1.5 - 0.4)}
    assert curve.function.output(state, psi, {"time": 1.0, "scale": 10.0}) == pytest.approx(20.0)
    assert curve == written(text) and hash(curve) == hash(written(text))
    moved = written(Equations(Expression("y"), (("y", Expression("-time * k * WT")),), parameters=("k",)))
    assert moved.parameters == ("k", "WT")  # a column, constant within a subject


# There and back

BOLUS = Equations(Expression("A / V"), (("A", Expression("-CL / V * A")),), (("A", Expression("B * V")),), (), ("V", "CL", "B"))


@pytest.mark.parametrize("curve", [
    *CURVES.values(), *(one for one in vars(ready_odes).values() if isinstance(one, Curve)), transit1cpt(4),
    turnover("inhibits loss"), polynomial(5), dosed(oral1cpt), dosed(oral1cpt_lag), dosed(oral2cpt, lag="T0"),
    infusion1cpt.with_columns(duration=2.0),
    dosed(oral1cpt_lag, lag={2: "T2"}, bioavailability={1: "F1", 2: "F2"}, duration="D", rate="R"),
    superposed(oral1cpt, [0, 12.0], [1, 2.0]), superposed(infusion1cpt.with_columns(duration=2.0), [0, 12.0]),
    written(BOLUS, bioavailability={"A": "B"}, stiff=False, rtol=1e-7, max_steps=5000, name="mine", positive=["V"]),
], ids=lambda curve: curve.name)  # fmt: skip
def test_there_and_back(tmp_path, curve):
    kinds: list[Any] = [
        LogNormal(1.25, "log(WT/70)", coefficients={"log(WT/70)": 0.75}, variance=0.1),
        Normal(occasion=True, occasion_variance=0.2),
        LogitNormal(0.5, low=-1.0, high=2.0, random=False, fixed=True), LogNormal(1e-5),
    ]  # fmt: skip
    individual = {name: kinds[(i + 3) % 4] for i, name in enumerate(curve.parameters)}
    model = mx.NLME(
        structural=curve, individual=individual, error=Combined(1, fixed={"b": 0.2}), censoring="M4", n_iter=300,
        random_state=7, pattern=("joint", "component"), stop=False, dtype="float32",
    )  # fmt: skip
    text = model.to_toml(tmp_path / "model.toml", data="t.csv", title='a "title" \\ é')
    file = from_toml(tmp_path / "model.toml")
    again = file.model
    assert file.title == 'a "title" \\ é' and file.data == tmp_path / "t.csv"
    # Functions of the library that are made anew are not equal; `described` compares all else.
    assert again.structural == curve or curve.name.startswith(("transit", "turnover"))
    left, right = (one.get_params() | {"structural": None} for one in (model, again))
    assert left == right
    assert again.to_toml(data="t.csv", title='a "title" \\ é') == text


def test_priors_there_and_back(tmp_path):
    priors = {
        "V": NormalPrior(20.0, cv=0.3), "beta_V[log(WT/70)]": NormalPrior(1, sd=0.1), "a": NormalPrior(1.0, cv=1),
        "omega2_ka": InverseWishart(0.09, df=20), ("V", "CL"): InverseWishart([[0.09, 0.02], [0.02, 0.04]], df=20),
    }  # fmt: skip
    individual = {"ka": LogNormal(1.5), "V": LogNormal(20.0, "log(WT/70)"), "CL": LogNormal(2.0)}
    model = mx.NLME(structural=oral1cpt, individual=individual, omega=[("V", "CL")], priors=priors)
    text = model.to_toml(tmp_path / "model.toml")
    again = from_toml(tmp_path / "model.toml").model
    assert again.priors == priors and again.to_toml() == text


@pytest.mark.parametrize(("given", "told"), [
    ("ka = 2", "line 9: priors.ka: must be a table"),
    ("ka = {center = 2}", "line 9: priors.ka: give a NormalPrior either sd="),
    ("ka = {center = 2, cv = 0.1, df = 3}", "priors.ka.df: .*center, sd, cv"),
    ("omega2_ka = {mode = 0.1}", "priors.omega2_ka: df is missing"),
    ("omega2_ka = {mode = -0.1, df = 3}", "positive definite"),
    ('"V, CL" = {mode = [["a"]], df = 3}', "priors.V, CL: the mode"),
])  # fmt: skip
def test_a_mistake_in_priors(tmp_path, given, told):
    with pytest.raises(ValueError, match=f"(?s){told}"):
        _read(tmp_path, ORAL.replace("[structural]", f"[priors]\n{given}\n[structural]", 1))


def test_what_no_file_holds_is_refused():
    individual = {"k": LogNormal(1.0)}

    def own(psi, row):
        return psi["k"] * row["time"]

    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"structural": own}, "function of Python"),
        ({"structural": ode(lambda t, y, psi: {"A": -psi["k"] * y["A"]}, ["A"], "A")}, "function of Python"),
        ({"log_likelihood": own}, "log_likelihood="),
        ({"structural": polynomial(1), "pattern": mx.Alternating(("joint",))}, "kernel"),
    )
    for settings, told in refused:
        with pytest.raises(ValueError, match=told):
            mx.NLME(individual=individual, **settings).to_toml()


# Mistakes


@pytest.mark.parametrize(("old", "new", "told"), [
    ("initial = 1.5", "intial = 1.5", "line 13: parameters.ka.intial: .*did you mean 'initial'"),
    ('"oral1cpt"', '"oral1cmpt"', "line 9: structural.name: .*did you mean 'oral1cpt'"),
    ("[parameters.CL]", "[parameters.Cl]", "line 19: parameters.Cl: .*did you mean 'CL'"),
    ("lognormal", "lognorm", "line 12: .*did you mean 'lognormal'"),
    ("initial = 20", 'initial = "20"', "line 17: .*a finite number"),
    ("initial = 20", "initial = -20", "line 17: parameters.V.initial: .*values are positive"),
    ("initial = 20", "initial = nan", "line 17: .*a finite number"),
    ("initial = 20", "initial = true", "line 17: .*a finite number"),
    ('"combined"', '"combi"', "line 24: error.model: .*did you mean 'combined'"),
    ("seed = 3", "seed = -3", "line 27: .*negative"),
    ("seed = 3", "n_iter = 100", "line 26: settings: n_burn = 200"),
    ("[settings]", "[setings]", "line 26: .*did you mean 'settings'"),
    ("seed = 3", 'pattern = ["jont"]', "line 26: settings"),
    ("[data]", 'omega = [["V", "k"]]\n[data]', "line 1: omega: .*'k'"),
    ("initial = 2\n", "fixed = true\n", "line 21: parameters.CL.fixed: .*add initial"),
    ("initial = 2\n", "initial = 2\nlow = 0\n", "line 22: .*logitnormal"),
    ("[settings]", "[settings", "is no TOML: .*line 26"),
    ('"oral1cpt"', '"oral1cpt"\nn = 3', "line 10: structural.n: oral1cpt has no n"),
    ('"oral1cpt"', '"transit1cpt"', "line 8: structural: transit1cpt needs n ="),
    ('"oral1cpt"', '"oral1cpt"\nlag = {3 = "L"}', "line 10: structural.lag: .*compartment 3"),
    ('model = "combined"', 'model = "combined"\nfixed = 0.1', "line 25: error.fixed"),
    ("[parameters.CL]\n", "[parameters]\nke = 3\n[parameters.CL]\n", "line 20: parameters.ke: must be a table"),
])  # fmt: skip
def test_a_mistake_has_its_key_and_line(tmp_path, old, new, told):
    assert _read(tmp_path, ORAL).model.random_state == 3
    with pytest.raises(ValueError, match=f"(?s){told}"):
        _read(tmp_path, ORAL.replace(old, new, 1))


@pytest.mark.parametrize(("old", "new", "told"), [
    ("-ka * depot", "-ka ** ", "line 10: structural.derivatives.depot: .*no arithmetic"),
    ("-ka * depot", "ka.real", "ka.real is no arithmetic"),
    ("output =", "outpt =", "line 9: structural.outpt: .*did you mean 'output'"),
    ("CL / V * c", "1 / V * c", "no equation reads the parameter CL"),
    ("output =", 'initial = {central = "depot"}\noutput =', "reads depot"),
    ("output =", 'initial = {centrl = "V"}\noutput =', "'centrl'"),
    ("output =", 'define = {a = "b", b = "ka"}\noutput =', "defined later"),
    ("output =", 'define = {ka = "2"}\noutput =', "a definition and a parameter"),
    ("output =", "rtol = -1.0\noutput =", "line 9: structural.rtol: must be positive"),
    ("output =", 'lag = {5 = "ka"}\noutput =', "compartment 5"),
])  # fmt: skip
def test_a_mistake_in_equations(tmp_path, old, new, told):
    assert _read(tmp_path, EQUATIONS).model.structural.parameters == ("ka", "V", "CL")
    with pytest.raises(ValueError, match=told):
        _read(tmp_path, EQUATIONS.replace(old, new, 1))


def test_what_the_data_do_not_have(tmp_path):
    table = pd.DataFrame({"ID": [1, 1], "TIME": [1.0, 2.0], "DV": [1.0, 2.0], "DOSE": 1.0, "WT": 70.0})
    for text, told in (
        (ORAL.replace('"TIME"', '"TIM"'), "line 4: data.time: 'TIM' is no column .*did you mean 'TIME'"),
        (EQUATIONS.replace("CL / V * c", "CL / V * W * c"), "structural: W is no parameter .*did you mean 'WT'"),
        (EQUATIONS.replace("central / V", "central / V + DV", 1), "read the outcome"),
    ):
        with pytest.raises(ValueError, match=told):
            _read(tmp_path, text).fit(table)
    with pytest.raises(ValueError, match="there is no file"):
        _read(tmp_path, ORAL).fit()


# A fit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    here, rng = tmp_path_factory.mktemp("lines"), np.random.default_rng(0)
    rows = []
    for i in range(30):
        x, (level, slope) = rng.normal(), rng.multivariate_normal([2.0, -0.5], [[0.5, 0.1], [0.1, 0.1]])
        for t in np.arange(rng.integers(3, 7)) / 2:
            rows.append((f"s{i}", t, x, level + 0.6 * x + slope * t + 0.4 * rng.normal()))
    table = pd.DataFrame(rows, columns=["who", "t", "x", "value"])
    table.sample(frac=1.0, random_state=1).to_csv(here / "lines.csv", index=False)
    (here / "model.toml").write_text(LINE)
    return here


def test_a_fit_from_a_file_and_its_tables(folder):
    file = from_toml(folder / "model.toml")
    file.model.set_params(verbose=False)
    fitted = file.fit()
    paths = fitted.tables(folder / "tables")
    assert [path.name for path in paths] == ["sdtab.csv", "patab.csv", "populationParameters.txt"]
    data, sdtab = file.table(), pd.read_csv(paths[0])
    assert list(sdtab) == ["ID", "TIME", "DV", "PRED", "IPRED", "IWRES", "CWRES", "NPDE"]
    np.testing.assert_array_equal(sdtab[["ID", "TIME", "DV"]], data[["who", "t", "value"]])
    p = fitted.params_
    np.testing.assert_allclose(sdtab["PRED"], p["m"] + p["beta_m[x]"] * data["x"] + p["s"] * data["t"], rtol=1e-9)
    np.testing.assert_allclose(sdtab["IWRES"], (sdtab["DV"] - sdtab["IPRED"]) / p["a"], rtol=1e-7, atol=1e-9)
    # The model is linear: its conditional residuals are those of the multivariate normal, whatever the modes.
    omega = np.asarray([[p["omega2_m"], p["cov_m_s"]], [p["cov_m_s"], p["omega2_s"]]])
    for _, own in sdtab.groupby("ID"):
        z = np.column_stack([np.ones(len(own)), own["TIME"]])
        root: Any = linalg.sqrtm(z @ omega @ z.T + p["a"] ** 2 * np.eye(len(own)))
        np.testing.assert_allclose(own["CWRES"], np.linalg.solve(root, own["DV"] - own["PRED"]), rtol=1e-5, atol=1e-6)

    patab = pd.read_csv(paths[1]).set_index("ID")
    assert list(patab) == ["m", "s", "ETA_m", "ETA_s"] and len(patab) == 30
    x = data.groupby("who")["x"].first().loc[patab.index]
    np.testing.assert_allclose(patab["m"], p["m"] + p["beta_m[x]"] * x + patab["ETA_m"], rtol=1e-7)

    found = pd.read_csv(paths[2]).set_index("parameter")
    assert list(found.index) == ["m_pop", "beta_m[x]", "s_pop", "omega_m", "omega_s", "corr_m_s", "a"]
    assert found.loc["omega_m", "value"] == pytest.approx(np.sqrt(p["omega2_m"]))
    assert found.loc["a", "se_sa"] == pytest.approx(fitted.stderr_["a"])
    assert found.loc["omega_m", "se_sa"] == pytest.approx(fitted.stderr_["omega2_m"] / (2 * np.sqrt(p["omega2_m"])))
    assert found["pvalues_sa"].notna().to_numpy().nonzero()[0].tolist() == [1]

    text = fitted.to_toml(data="lines.csv", title="lines")
    (folder / "again.toml").write_text(text)
    assert from_toml(folder / "again.toml").roles == {"id": "who", "time": "t", "y": "value"}
    done = CliRunner().invoke(app, ["fit", "nlme", str(folder / "again.toml"), "--json", "-q", "--tables", str(folder / "more")])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {name: row["estimate"] for name, row in told["estimates"].items()} == p  # to the bit
    assert told["seed"] == 3 and told["table"]["file"].endswith("lines.csv") and len(told["table"]["sha256"]) == 64
    assert (folder / "more" / "sdtab.csv").read_bytes() == paths[0].read_bytes()


def test_options_beside_a_file_are_refused(folder):
    for options, told in (
        (["--seed", "0"], "--seed is said by the model file"), (["--lloq", "1"], "--lloq is said by"),
        (["--tables", str(folder / "lines.csv")], "is a file; name a folder"), ([str(folder / "none.csv")], "there is no file"),
    ):  # fmt: skip
        done = CliRunner().invoke(app, ["fit", "nlme", str(folder / "model.toml"), *options])
        assert done.exit_code == 2 and told in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.output
    done = CliRunner().invoke(app, ["fit", "nlme", str(folder / "lines.csv"), str(folder / "lines.csv"), "--model", "emax"])
    assert done.exit_code == 2 and "one argument too many" in done.stderr


def test_standard_deviations_and_correlations_by_the_delta_method():
    params = {"V": 2.0, "omega2_V": 0.5, "omega2_V_1": 0.2, "cov_V_V_1": 0.1, "a": 1.0}
    found, jacobian = _transformed(params, ["V", "V_1"])
    assert list(found) == ["V_pop", "omega_V", "omega_V_1", "corr_V_V_1", "a"]

    def values(at: np.ndarray) -> np.ndarray:
        return np.asarray(list(_transformed(dict(zip(params, at, strict=True)), ["V"])[0].values()))

    at = np.asarray(list(params.values()))
    numerical = [(values(at + step) - values(at - step)) / 2e-6 for step in np.eye(5) * 1e-6]
    np.testing.assert_allclose(jacobian, np.asarray(numerical).T, atol=1e-6)
