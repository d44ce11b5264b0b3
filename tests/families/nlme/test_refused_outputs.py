"""Several outputs: tables and models that are refused, and the command line's choice of one kind of observations."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_outputs import DIRECT, STUDY, effect

import margaux as mx
from margaux.families.nlme import ConstantError, LogNormal, bolus1cpt, ode, outputs
from margaux.families.nlme.by_output import error_of
from margaux.families.nlme.command import _of_one_kind
from margaux.families.nlme.data import group
from margaux.families.nlme.outcomes import Continuous
from margaux.families.nlme.rows_by_output import curves_of_rows
from margaux.showing.errors import UserError

INDIVIDUAL = {"V": LogNormal(), "CL": LogNormal(), "E0": LogNormal(), "IC50": LogNormal()}


def _fit(frame, structural: Any = DIRECT, individual=INDIVIDUAL, error: Any = "constant", censoring="M3", **more):
    model = mx.NLME(structural=structural, individual=individual, error=error, censoring=censoring, verbose=False)
    return model.fit(frame, **more)


@pytest.mark.parametrize(
    ("frame", "more", "message"),
    [
        (STUDY.drop(columns="dvid"), {}, "has the outputs cp, effect, and no column says"),
        (STUDY.replace({"dvid": {"effect": "pca"}}), {}, r"dvid = pca \(subject 0, row 2\) is none of the model's outputs"),
        (STUDY.assign(dvid=STUDY["dvid"].where(STUDY.index != 4)), {}, r"dvid is missing \(subject 0, row 4\)"),
        (STUDY[STUDY["dvid"] == "cp"], {}, "no observation is of the output effect: dvid holds cp"),
        (STUDY, {"error": {"cp": "constant"}}, "of the outputs cp, and the structural model has cp, effect"),
        (STUDY, {"error": ConstantError(fixed=0.7)}, "would be held for each of the outputs"),
        (STUDY, {"lloq": 1.5}, r"lloq = 1.5 would hold for each of the outputs.*lloq=\{'cp': 1.5\}"),
        (STUDY, {"lloq": {"pca": 1.5}}, "lloq names 'pca', which is no output"),
        (STUDY, {"lloq": {"cp": 1.5}, "censoring": "M4"}, 'take censoring="M3"'),
        (STUDY, {"lloq": {"effect": 1e3}}, "DV of effect is the same in every row"),
        (STUDY.assign(DV=-STUDY["DV"]), {"error": {"cp": "constant", "effect": "exponential"}}, "DV of effect .* not positive"),
        (STUDY, {"output": "kind"}, "output='kind' is no column"),
        (STUDY, {"output": "dvid", "columns": {"DVID": "kind"}}, "both named as the column of the output"),
        (STUDY, {"structural": bolus1cpt}, "two kinds of observations, and the model has one output"),
        (STUDY, {"structural": bolus1cpt, "output": "dvid"}, "and the model has one; give it several"),
        (STUDY, {"structural": bolus1cpt, "error": {"cp": "constant"}}, "the structural model has one output"),
    ],
)  # fmt: skip
def test_refused(frame, more, message):
    with pytest.raises(ValueError, match=message):
        _fit(frame, **more)


def test_observations_of_two_kinds_need_a_model_of_them():
    """Rows without doses of their own, too; where the function reads the column, it is its own."""
    rows = STUDY[STUDY["EVID"] == 0].drop(columns=["EVID", "AMT"]).assign(DVID=lambda t: (t.pop("dvid") == "effect") * 1.0)

    def falls(psi, row):
        return psi["V"] * jnp.exp(-psi["CL"] * row["TIME"])

    with pytest.raises(ValueError, match=r"DVID = 1.0 \(subject 0, row 1\) and 0.0 are two kinds of observations"):
        _fit(rows, falls, {"V": LogNormal(), "CL": LogNormal()}, id="ID", time="TIME", y="DV")
    reading = Continuous(lambda psi, row: jnp.where((row | {})["DVID"] > 0, psi["E0"], falls(psi, row)), ConstantError())
    roles: dict[str, str | None] = {"id": "ID", "time": "TIME", "y": "DV"}
    assert group(rows, roles, reading).output is None


def test_outputs_are_checked():
    with pytest.raises(ValueError, match="names 1 outputs"):
        outputs({"cp": bolus1cpt})
    with pytest.raises(ValueError, match="names the output 1 twice"):
        outputs({1: bolus1cpt, "1": effect})
    with pytest.raises(ValueError, match="fails at plausible values .*ZeroDivisionError"):
        outputs({"cp": bolus1cpt, "effect": lambda psi, row: psi["a"] / (row["cp"] - 1)})
    with pytest.raises(ValueError, match="is by differential equations"):
        outputs({"cp": ode(lambda t, s, p: {"a": -p["k"] * s["a"]}, ["a"], "a"), "effect": effect})
    with pytest.raises(ValueError, match="has several outputs itself"):
        outputs({"both": DIRECT, "effect": effect})
    with pytest.raises(ValueError, match="output = 'blood' is no state"):
        ode(lambda t, s, p: {"a": -p["k"] * s["a"]}, ["a"], {1: "a", 2: "blood"})


def test_times_before_a_dose_are_refused_of_the_output_that_has_one():
    rows = STUDY[STUDY["EVID"] == 0].drop(columns=["EVID", "AMT"]).assign(dose=100.0)
    roles = {"id": "ID", "time": "TIME", "y": "DV", "dose": "dose", "output": "dvid"}
    outcome = Continuous(DIRECT, error_of("constant", ("cp", "effect")))
    before = (rows["dvid"] == "effect") & (rows["TIME"] == 0.5)
    data = group(rows.assign(TIME=rows["TIME"].where(~before, -1.0)), dict(roles), outcome)
    assert [int(own.sum()) for _, own in curves_of_rows(data, DIRECT)] == [80, 80]
    with pytest.raises(ValueError, match="lies before the dose"):
        group(rows.assign(TIME=rows["TIME"] - 1), dict(roles), outcome)


def test_the_command_line_fits_one_kind_of_observations():
    roles = {"id": "ID", "time": "TIME", "y": "DV", "dose": None}
    kept = _of_one_kind(STUDY, "effect", roles)
    assert kept["dvid"].value_counts().to_dict() == {"effect": 80, "cp": 16}
    assert set(kept.loc[kept["dvid"] == "cp", "EVID"]) == {1}
    assert len(_of_one_kind(STUDY.assign(dvid=np.where(STUDY["dvid"] == "cp", 1.0, 2.0)), "2", roles)) == len(kept)
    with pytest.raises(UserError, match="several kinds of observations, cp, effect; choose the one to fit, as --dvid cp"):
        _of_one_kind(STUDY, None, roles)
    with pytest.raises(UserError, match="--dvid pca: dvid of the observations is cp, effect"):
        _of_one_kind(STUDY, "pca", roles)
    with pytest.raises(UserError, match="the table has none"):
        _of_one_kind(STUDY.drop(columns="dvid"), "cp", roles)
