"""Structural models and errors side by side: the one that made the data is chosen, and what fails is told."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from margaux.families.nlme import Normal, choose_structure

COLUMNS: dict[str, Any] = {"id": "id", "time": "t", "y": "y", "dose": "dose"}


@pytest.fixture(scope="module")
def table():
    """One compartment with a proportional error."""
    rng, times = np.random.default_rng(0), np.array([0.5, 1.0, 2.0, 4.0, 8.0])
    V, CL = (x * np.exp(0.2 * rng.normal(size=(20, 1))) for x in (10.0, 2.0))
    y = 100 / V * np.exp(-CL / V * times) * (1 + 0.1 * rng.normal(size=(20, len(times))))
    index = pd.MultiIndex.from_product([range(20), times], names=["id", "t"])
    return pd.DataFrame({"y": y.ravel(), "dose": 100.0}, index=index).reset_index()


def test_the_model_that_made_the_data_is_chosen(table, capsys):
    found = choose_structure(
        table, ["infusion1cpt", "polynomial1", "bolus1cpt"], error=["constant", "proportional"],
        individual={"c1": Normal(random=False)}, settings={"n_starts": 1}, **COLUMNS,
    )  # fmt: skip
    # Errors are tried with the best structure alone; what could not be fitted says why and is last.
    order = ["bolus1cpt, proportional", "bolus1cpt, constant", "polynomial1, constant", "infusion1cpt, constant"]
    assert list(found.table.index) == order and set(found.fits) == set(order[:3])
    assert found.best is found.fits[order[0]] and "bolus1cpt, constant" in repr(found)
    lost = found.table.loc[order[3]]
    assert lost["verdict"] == "failed" and "duration" in lost["message"] and np.isnan(lost["bicc"])
    for label, fitted in found.fits.items():
        assert found.table.loc[label, "bicc"] == pytest.approx(fitted.bicc_)
        assert found.table.loc[label, "verdict"] == fitted.certificate_.level
    assert capsys.readouterr().err.count("bicc") == 4


@pytest.mark.parametrize(
    ("structures", "more", "message"),
    [
        ("nasal", {}, "structures is a route, oral, bolus, infusion, or a list"),
        (["bolus1cpt"], {"error": "constant"}, "at least; there are 1 structures and 1 errors"),
        (["bolus1cpt", "bolus1cpt"], {}, "structures has bolus1cpt twice"),
        (["bolus1cpt", "bolus4cpt"], {}, "no structural model is named 'bolus4cpt'"),
        ("bolus", {"criterion": "dic"}, "criterion is one of bicc, bic, aicc, aic, not 'dic'"),
        ("bolus", {"individual": {"ka": Normal()}}, "individual names ka, which no candidate has"),
        (["infusion1cpt", "infusion2cpt"], {"verbose": False}, "no candidate could be fitted: infusion1cpt, comb.*duration"),
    ],
)
def test_refused(table, structures, more, message):
    with pytest.raises(ValueError, match=message):
        choose_structure(table, structures, **more, **COLUMNS)  # type: ignore[arg-type]


def test_a_function_has_no_parameters_to_choose(table):
    with pytest.raises(TypeError, match="is a name or a Curve"):
        choose_structure(table, ["bolus1cpt", lambda psi, row: psi["V"]], **COLUMNS)  # type: ignore[list-item]
