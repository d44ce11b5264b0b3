"""Control streams: a model says what its stream says, evaluated by another way; what has no counterpart is refused."""

import math
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from margaux.families.nlme import (
    Combined,
    ConstantError,
    Exponential,
    LogitNormal,
    LogNormal,
    Normal,
    Proportional,
    from_control,
)
from margaux.families.nlme.control_code import parsed, product, terms, text
from margaux.families.nlme.control_data import table
from margaux.families.nlme.design import formula_of

STREAM = """$PROBLEM one compartment ; a comment
$INPUT ID TIME AMT DV WT SEX AGE OCC=DROP
$DATA data.csv IGNORE=@
$SUBROUTINES ADVAN2 TRANS2
$PK
 TVCL = THETA(1)
 CL = TVCL*EXP(ETA(1))
 V = THETA(2)*EXP(ETA(2))
 KA = THETA(3)
 S2 = V
$ERROR
 Y = F*(1 + EPS(1))
$THETA (0, 2) (0, 20) (0, 1.5) (0, 0.4) (0.75 FIX) (-0.3) (0, 0.2)
$OMEGA 0.1 0.2 0.3
$SIGMA 0.04 1 FIX
$ESTIMATION METHOD=1 INTER
"""
DATA = "ID,TIME,AMT,DV,WT,SEX,AGE,OCC\n" + "".join(
    f"{i},{t},{100 if t == 0 else '.'},{0 if t == 0 else 3.5 / t},{60 + 7 * i},{i % 2},{30 + 3 * i},1\n"
    for i in (1, 2, 3)
    for t in (0, 1, 2.5, 6)
)


def _read(folder, **changes: str) -> Any:
    """The stream with lines of it replaced: `CL="..."` is the line that assigns CL, `_THETA="..."` the record."""
    out = STREAM
    for name, line in changes.items():
        start = rf"^\${name[1:]}\b.*$" if name.startswith("_") else rf"^ {name} = .*$"
        out, count = re.subn(start, lambda _, line=line: line, out, flags=re.MULTILINE)
        assert count == 1, name
    (folder / "run.ctl").write_text(out)
    (folder / "data.csv").write_text(DATA)
    return from_control(folder / "run.ctl")


def _evaluated(code: str, **values: Any) -> float:
    """Fortran by Python."""
    code = re.sub(r"\b(THETA|ETA|EPS|A)\((\d+)\)", r"\1\2", code).replace("EXP", "math.exp").replace("LOG", "math.log")
    return eval(code.replace("SQRT", "math.sqrt"), {"math": math}, values)


THETAS = {f"THETA{k}": v for k, v in enumerate((2, 20, 1.5, 0.4, 0.75, -0.3, 0.2), 1)}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("THETA(1)*EXP(ETA(1))", LogNormal),
        ("EXP(LOG(THETA(1)) + ETA(1))", LogNormal),
        ("EXP(THETA(1) + ETA(1))", LogNormal),
        ("EXP(ETA(1))*THETA(1)/60", LogNormal),
        ("THETA(1)*(WT/70)**THETA(4)*EXP(ETA(1))", LogNormal),
        ("THETA(1)*(WT/70)**THETA(5)*EXP(ETA(1))", LogNormal),
        ("THETA(1)*(WT/70)**0.75*EXP(ETA(1))", LogNormal),
        ("THETA(1)*(WT/70)*EXP(ETA(1))", LogNormal),
        ("THETA(1)*EXP(ETA(1))*(WT/70)**THETA(4)*EXP(THETA(6)*(AGE - 40))", LogNormal),
        ("EXP(LOG(THETA(1)) + 0.75*LOG(WT/70) + THETA(6)*SEX + ETA(1))", LogNormal),
        ("THETA(1)*THETA(4)**SEX*EXP(ETA(1))", LogNormal),
        ("THETA(1)*(1 + THETA(6)*SEX)*EXP(ETA(1))", LogNormal),
        ("THETA(1)*SQRT(WT/70)*EXP(ETA(1))", LogNormal),
        ("THETA(1) + ETA(1)", Normal),
        ("THETA(1) + THETA(6)*(AGE - 40) + ETA(1)", Normal),
        ("THETA(1) + 0.1*SEX + ETA(1)", Normal),
        ("THETA(6)", Normal),
        ("THETA(1)", LogNormal),
        ("1.3", LogNormal),
        ("1.3*EXP(ETA(1))", LogNormal),
        ("1/(1 + EXP(-(THETA(1) + ETA(1))))", LogitNormal),
        ("EXP(THETA(1) + ETA(1))/(1 + EXP(THETA(1) + ETA(1)))", LogitNormal),
    ],
)
def test_a_parameter_is_what_its_line_says(tmp_path, line, kind):
    """At the initial values, of any subject and effect."""
    if line.count("THETA(1)") == 2:
        stream = _read(tmp_path, CL=" PHI = THETA(1) + ETA(1)\n CL = EXP(PHI)/(1 + EXP(PHI))")
    else:
        stream = _read(tmp_path, CL=f" CL = {line}")
    one = stream.model.individual["CL"]
    assert (
        type(one) is kind
        and one.random == ("EXP(ETA" in line or "+ ETA" in line)
        and one.fixed == ("THETA(1)" not in line and "THETA(6)" != line)
    )
    data = stream.table()
    columns = pd.DataFrame(index=data.index)
    if one.covariates:
        columns = pd.DataFrame(formula_of(one.covariates, data, "CL").get_model_matrix(data)).drop(columns="Intercept")
    held = {"".join(label.split()): value for label, value in one.coefficients}
    theta_of = {name: element for element, name in stream.names.items()}
    for eta in (0.0, 0.7) if one.random else (0.0,):
        phi = np.asarray(one.gaussian(one.start), float) + eta
        for label in columns:
            if (plain := "".join(str(label).split())) in held:
                coefficient = held[plain]
            else:
                coefficient = THETAS[theta_of[f"beta_CL[{label}]"].replace("(", "").replace(")", "")]
                if "**SEX" in line:
                    coefficient = math.log(coefficient)
                if "1 + THETA(6)*SEX" in line:
                    coefficient = math.log1p(coefficient)
            phi = phi + coefficient * columns[label].to_numpy(float)
        got = np.broadcast_to(one.values(phi), len(data))
        asked = [_evaluated(line, **THETAS, ETA1=eta, **{k: row[k] for k in ("WT", "SEX", "AGE")}) for _, row in data.iterrows()]
        np.testing.assert_allclose(got, asked, rtol=1e-12)


@pytest.mark.parametrize(
    ("lines", "kind", "held"),
    [
        ("Y = F + EPS(1)", ConstantError, {}),
        ("Y = F + EPS(2)", ConstantError, {"a": 1.0}),
        ("Y = F*(1 + ERR(1))", Proportional, {}),
        ("Y = F + F*EPS(1)", Proportional, {}),
        ("IPRED = A(2)/V\n Y = IPRED + 0.1*IPRED*EPS(2)", Proportional, {"b": 0.1}),
        ("IPRED = A(2)/S2\n Y = IPRED*(1 + EPS(1)) + EPS(2)", Combined(2), {"a": 1.0}),
        ("W = THETA(4)\n Y = F + W*EPS(2)", ConstantError, {}),
        ("W = F*THETA(5)\n Y = F + W*EPS(2)", Proportional, {"b": 0.75}),
        ("IPRED = F\n W = SQRT(THETA(4)**2 + THETA(7)**2*IPRED**2)\n IF (W.EQ.0) W = 1\n Y = IPRED + W*EPS(2)", Combined(2), {}),
        ("W = SQRT(THETA(5)**2 + (THETA(7)*F)**2)\n Y = F + W*EPS(2)", Combined(2), {"a": 0.75}),
        ("W = THETA(4) + THETA(7)*F\n Y = F + EPS(2)*W", Combined(1), {}),
        ("Y = F*EXP(EPS(1))", Exponential, {}),
        ("W = SQRT(0.3**2 + (0.1*F)**2)\n IRES = DV - F\n Y = F - W*EPS(2)", Combined(2), {"a": 0.3, "b": 0.1}),
    ],
)
def test_the_error_is_what_y_says(tmp_path, lines, kind, held):
    """By the slope of Y in EPS at predictions, with SIGMA."""
    stream = _read(tmp_path, Y=f" {lines}")
    error = stream.model.error
    assert (type(error), getattr(error, "form", 0)) == ((kind, 0) if isinstance(kind, type) else (type(kind), kind.form))
    assert error.held == pytest.approx(held)
    if isinstance(error, Exponential):
        return
    values = {"b": math.sqrt(0.04), "a": math.sqrt(0.04)} | error.held
    for element, name in stream.names.items():
        if element in ("THETA(4)", "THETA(5)", "THETA(7)"):
            values[name] = THETAS[element.replace("(", "").replace(")", "")]
    for f in (0.5, 3.0):

        def y(first: float, second: float, f: float = f) -> float:
            known = {"F": f, "A2": f * 20, "V": 20.0, "S2": 20.0, "EPS1": first, "EPS2": second, "DV": 1.0}
            for line in lines.replace("ERR(", "EPS(").splitlines():
                if not line.strip().startswith("IF"):
                    name, _, code = line.partition("=")
                    known[name.strip()] = _evaluated(code.strip(), **THETAS, **known)
            return known["Y"]

        slopes = (y(1e-3, 0) - y(0, 0)) / 1e-3, (y(0, 1e-3) - y(0, 0)) / 1e-3
        sd = error.sd(jnp.asarray([values[name] for name in error.names]), jnp.asarray(f))
        assert float(sd) == pytest.approx(math.sqrt(0.04 * slopes[0] ** 2 + slopes[1] ** 2), rel=1e-5)


@pytest.mark.parametrize(("subroutines", "pk", "curve", "variables"), [
    ("ADVAN1 TRANS2", "CL V S1=V", "bolus1cpt", "V CL"), ("ADVAN=ADVAN1", "K V S1=V", "bolus1cpt_k", "V K"),
    ("ADVAN1", "CL V K=CL/V S1=V", "bolus1cpt", "V CL"), ("ADVAN2,TRANS1", "KA K VC S2=VC", "oral1cpt_k", "KA VC K"),
    ("ADVAN2", "KA CL V K=CL/V S2=V", "oral1cpt", "KA V CL"), ("ADVAN3 TRANS4", "CL V1 Q V2 S1=V1", "bolus2cpt", "V1 CL Q V2"),
    ("ADVAN4 TRANS4", "KA CL V2 Q V3 S2=V2", "oral2cpt", "KA V2 CL Q V3"),
    ("ADVAN3", "CLI VC Q VP K=CLI/VC K12=Q/VC K21=Q/VP S1=VC", "bolus2cpt", "VC CLI Q VP"),
    ("ADVAN4 TRANS1 TOL=6", "KA CLI VC Q VP K=CLI/VC K23=Q/VC K32=Q/VP S2=VC", "oral2cpt", "KA VC CLI Q VP"),
    ("ADVAN2 TRANS2", "KA CL V ALAG1 S2=V", "oral1cpt[doses]", "KA V CL ALAG1"),
    ("ADVAN2 TRANS2", "KA CL V F1=1 ALAG1=0 S2=V", "oral1cpt", "KA V CL"),
    ("ADVAN2 TRANS2", "KA CL V F1 ALAG2 D2 S2=V", "oral1cpt[doses]", "KA V CL ALAG2 F1 D2"),
])  # fmt: skip
def test_the_compartments(tmp_path, subroutines, pk, curve, variables):
    words = pk.split()
    free = [word for word in words if "=" not in word]
    lines = "\n".join([f" {name} = THETA({k})*EXP(ETA({k}))" for k, name in enumerate(free, 1)] + [w for w in words if "=" in w])
    volume = words[-1].partition("=")[2]
    stream_text = STREAM[: STREAM.index("$PK")].replace("ADVAN2 TRANS2", subroutines) + f"$PK\n{lines}\n$ERROR\nY = F + EPS(1)\n"
    stream_text += f"$THETA {' '.join(f'(0,{k}.5)' for k in range(1, len(free) + 1))}\n$OMEGA {'0.1 ' * len(free)}\n$SIGMA 1"
    (tmp_path / "run.ctl").write_text(stream_text)
    stream: Any = from_control(tmp_path / "run.ctl")
    assert stream.model.structural.name == curve and volume in variables.split()
    starts = {one.start for one in stream.model.individual.values()}
    assert starts == {k + 0.5 for k in range(1, len(free) + 1)}
    by_name = {name: f"THETA({k})" for k, name in enumerate(free, 1)}
    asked = dict(zip(stream.model.structural.parameters, (by_name[name] for name in variables.split()), strict=True))
    assert {ours: element for element, ours in stream.names.items() if element.startswith("THETA")} == asked
    assert stream.scale == 1


def test_amounts_follow_the_scale(tmp_path):
    stream = _read(tmp_path, S2=" S2 = V/1000")
    assert stream.scale == 0.001 and stream.table()["AMT"].max() == 100_000 and any("0.001" in one for one in stream.warnings)
    assert _read(tmp_path, Y=" Y = A(2)/V*10 + EPS(1)").scale == 0.1
    assert _read(tmp_path, S2=" S2 = V/1000", Y=" Y = A(2)/V + EPS(1)").scale == 1


def test_variances_fixed_and_together(tmp_path):
    one = _read(tmp_path, _OMEGA="$OMEGA BLOCK(2) ; joint\n0.1\n0.01 0.2\n$OMEGA (0.3 FIX)", KA=" KA = THETA(3)*EXP(ETA(3))")
    assert one.model.omega == [("CL", "V")] and one.model.individual["ka"].variance == 0.3
    assert one.names["OMEGA(3,3)"] == "omega2_ka" and one.names["SIGMA(1,1)"] == "b**2"
    one = _read(tmp_path, _OMEGA="$OMEGA 0 FIX (0.5 SD FIX) 0.3", _THETA="$THETA (0, 2) 20 FIX (0,1.5)", _SIGMA="$SIGMA 0.04 FIX")
    assert not one.model.individual["CL"].random and one.model.individual["V"].fixed
    assert one.model.individual["V"].variance == 0.25 and one.model.error.held == {"b": pytest.approx(0.2)}
    assert any("ETA(3) is in no parameter" in told for told in one.warnings)


def test_what_is_not_followed_is_said(tmp_path):
    one = _read(tmp_path, _ESTIMATION="$COVARIANCE\n$TABLE ID FILE=sdtab1", KA=" KA = THETA(3)\n EXIT 1 2\n IF (SEX.EQ.1) X = 2",
                _THETA="$THETA (0.1, 2, 50) (0, 20) (0, 1.5) (0, 9)")  # fmt: skip
    for told in (
        "line 10: 'EXIT 1 2' was not understood", r"\$COVARIANCE has no part", r"\$TABLE has no part",
                 r"the bounds \(0.1, 50\) of THETA\(1\)", r"THETA\(4\) is in no parameter"):  # fmt: skip
        assert any(re.search(told, one_told) for one_told in one.warnings), (told, one.warnings)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"CL": " CL = THETA(1)*(1 + THETA(6)*(AGE - 40))*EXP(ETA(1))"}, "line 7: CL has the factor .* which is linear"),
        (
            {"CL": " IF (SEX.EQ.1) THEN\n CL = THETA(1)\n ELSE\n CL = THETA(4)*EXP(ETA(1))\n ENDIF"},
            "line 10: CL is assigned under a condit",
        ),
        (
            {"TVCL": " TVCL = THETA(1)\n IF (SEX.EQ.1) TVCL = THETA(4)"},
            "line 7: TVCL is assigned under the condition .* CL depends on it",
        ),
        ({"CL": " CL = THETA(1)*EXP(ETA(1)) + 3"}, "line 7: CL = .* is no product"),
        ({"CL": " CL = THETA(1)*EXP(ETA(2))"}, "ETA.2. is in"),
        ({"CL": " CL = THETA(1)*EXP(ETA(1) + ETA(3))"}, "is no product"),
        ({"CL": " CL = THETA(2)*EXP(ETA(1))"}, "THETA.2. is in .* and in"),
        ({"CL": " CL = THETA(1)*EXP(THETA(7)*ETA(1))"}, "is no product"),
        ({"CL": " CL = THETA(1)*EXP(ETA(9))"}, "reads ETA.9."),
        ({"CL": " CL = THETA(1)*EXP(ETA(1))*HT"}, "reads HT, which is no column"),
        ({"CL": " CL = THETA(1)*OCC"}, "reads OCC"),
        ({"CL": " CX = 3"}, "does not assign CL"),
        ({"S2": " S2 = 1"}, "S2 = 1 is no constant times V"),
        ({"S2": " S2 = KA"}, "no constant"),
        ({"S2": ""}, "F is an amount without S2"),
        ({"S2": " S2 = V\n F2 = 0.5\n D1 = 2\n D2 = 3"}, "D1 and D2: one D"),
        ({"S2": " S2 = V\n A_0(1) = 5"}, "line 11: 'A_0.1. = 5' is a part of the model"),
        ({"S2": ' S2 = V\n" X=1'}, "may do anything"),
        ({"KA": " KA = THETA(3)\n CALL GETETA(ETA)"}, "line 10: .*may do anything"),
        ({"Y": " Y = LOG(F) + EPS(1)"}, "Y is a logarithm"),
        ({"Y": " IPRED = F\n IF (F.GT.0) IPRED = LOG(F)\n Y = IPRED + EPS(1)"}, "line 13: .* Y depends on it"),
        ({"Y": " Y = F + 1 + EPS(1)"}, "the prediction of Y"),
        ({"Y": " Y = F"}, "has no EPS"),
        ({"Y": " Y = A(1) + EPS(1)"}, "prediction of Y"),
        ({"Y": " Y = F + F**THETA(4)*EPS(1)"}, "standard deviation"),
        ({"Y": " Y = F + F*EPS(1)*EXP(ETA(3))"}, "standard deviation"),
        ({"Y": " Y = F*EPS(1)*EPS(2)"}, "not linear"),
        ({"Y": " Y = F + EPS(3)"}, "no variance in"),
        ({"Y": " F_FLAG = 1\n Y = F"}, "F_FLAG"),
        ({"Y": " W = SQRT(1 + F**2)\n Y = F + W*EPS(1)"}, "fixed ratio"),
        ({"Y": " Y = F + F*F*EPS(1)"}, "standard deviation"),
        ({"Y": " Y = F*(1+EPS(1)) + EPS(2)", "_SIGMA": "$SIGMA BLOCK(2) 0.1 0.01 0.1"}, "correlated EPS"),
        ({"_OMEGA": "$OMEGA BLOCK(2) 0.1 0.01 0.1\n$OMEGA BLOCK(1) SAME"}, "SAME"),
        ({"_OMEGA": "$OMEGA BLOCK(2) FIX 0.1 0.01 0.1 0.2"}, r"BLOCK\(2\) has 4 values"),
        ({"_OMEGA": "$OMEGA BLOCK(2) FIX 0.1 0.01 0.1"}, "is fixed, and no matrix"),
        ({"_OMEGA": "$OMEGA -0.1 0.2"}, "is negative"),
        ({"_OMEGA": "$OMEGA BLOCK(3) 0.1 0.01 0.1 0 0 0.1"}, "ETA.3. of a block"),
        ({"_THETA": "$THETA (0, two)"}, "'two' is no number"),
        ({"_THETA": "$THETA (0,-2) 20 1.5"}, "line 14: .*THETA.1.|line 13: .*outside the range"),
        ({"_SUBROUTINES": "$SUBROUTINES ADVAN13 TRANS1"}, "line 4: ADVAN13 is not read"),
        ({"_SUBROUTINES": "$SUB ADVAN2 OTHER=a.f"}, "OTHER"),
        ({"_SUBROUTINES": "$SUB ADVAN3 TRANS3"}, "TRANS3 is not read; write TRANS4"),
        ({"_SUBROUTINES": "$PRED"}, "PRED is not read"),
        ({"_SUBROUTINES": "$SUB ADVAN12 TRANS4"}, "three compartments|does not assign"),
        ({"_PROBLEM": "$PRIOR NWPRI"}, "PRIOR is not read"),
        ({"_ESTIMATION": "$EST METHOD=1 LAPLACE -2LL"}, "line 16: .*a likelihood"),
        ({"_ESTIMATION": "$PROBLEM again"}, "a second .PROBLEM"),
        ({"_INPUT": "$INPUT ID TIME AMT DV WT SEX AGE L2"}, "has L2"),
        ({"_INPUT": "$INPUT ID TIME AMT CONC WT SEX AGE"}, "has no DV"),
        ({"_DATA": "$DATA data.csv RECORDS=5"}, "RECORDS=5 is not read"),
        ({"_DATA": "$DATA data.csv IGNORE=(AGE.GT.x)"}, "no comparison"),
        ({"_DATA": "$DATA data.csv IGNORE=(ID.EQ.1.OR.ID.EQ.2)"}, "one condition each"),
        ({"_DATA": "$DATA d.csv IGNORE=(HT.EQ.1)"}, "HT, which"),
    ],
)
def test_what_would_be_another_model_is_refused(tmp_path, changes, told):
    with pytest.raises(ValueError, match=told):
        _read(tmp_path, **changes)


def test_the_data_are_the_rows_that_count(tmp_path):
    one = _read(
        tmp_path, _DATA='$DATA "data.csv" IGNORE=@ IGNORE=(ID.EQ.2, TIME.GT.5)', _INPUT="$INPUT ID TIME AMT CONC=DV CENS SEX AGE"
    )
    frame = one.table()
    assert list(frame) == ["ID", "TIME", "AMT", "DV", "CENS_", "SEX", "AGE"] and any("CENS_" in told for told in one.warnings)
    assert frame["ID"].unique().tolist() == [1, 3] and frame["TIME"].max() == 2.5 and frame["AMT"].notna().sum() == 2
    kept = _read(tmp_path, _DATA="$DATA data.csv IGNORE=I ACCEPT=(ID=2)").table()
    assert kept["ID"].unique().tolist() == [2] and "OCC" not in kept
    for lines, told in (
        (DATA, "ID = 'ID' is no number"), ("1 0 100 0 70 1 30\n2 0 100 0 70 1 30\n1 1 0 2 70 1 30", "ID 1 begins a second time"),
        ("#", "no rows"),
    ):  # fmt: skip
        (tmp_path / "other.csv").write_text(lines)
        plain = _read(tmp_path, _DATA="$DATA data.csv").input
        with pytest.raises(ValueError, match=told):
            table(plain, tmp_path / "other.csv")


def test_data_that_are_another_model_are_refused(tmp_path):
    one = _read(tmp_path, _INPUT="$INPUT ID TIME AMT DV CMT SEX AGE", CL=" CL = THETA(1)*EXP(THETA(6)*SEX + ETA(1))")
    for lines, told in (
        ("1 0 100 0 1 0 30\n1 1 0 2 1 0 30", "row 2 .* observes compartment 1"),
        ("1 0 100 0 1 1 30\n1 1 0 2 2 0 30", "SEX changes within subject 1"),
    ):
        (tmp_path / "other.csv").write_text(lines)
        with pytest.raises(ValueError, match=told):
            one.table(tmp_path / "other.csv")


def test_expressions_of_fortran():
    for code, value in (("1.D0*2.5D-1 + .5E0", 0.75), ("-2**2", -4.0), ("EXP(0)*SQRT(4)", 2.0), ("(1.5.GT.1)*3", 3.0)):
        tree = parsed(code)
        assert tree is not None
        assert eval(text(tree), {"exp": math.exp, "sqrt": math.sqrt}) == value
    assert parsed("A = ") is None and parsed("X.FOO.Y") is None and parsed("'A'") is None
    assert [(factor, text(one)) for factor, one in terms(parsed("2*(X - 3*Y)/4 - 1") or pytest.fail())] == [
        (0.5, "X"), (-1.5, "Y"), (-1.0, "1"),
    ]  # fmt: skip
    whole = product(parsed("-2*X**3/(Y*EXP(Z))") or pytest.fail())
    assert whole.constant == -2 and [(f, text(one)) for f, one in whole.exponent] == [(-1.0, "Z")]
