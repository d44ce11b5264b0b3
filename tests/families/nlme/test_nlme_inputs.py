"""Bad data and models: the message says what, which subject and row, and how to mend it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.datasets import load_theophylline
from margaux.families.nlme import (
    Individual,
    LogitNormal,
    LogNormal,
    Normal,
    Ordinal,
    Poisson,
    Proportional,
    WeibullSurvival,
    curve,
    oral1cpt,
    superposed,
)
from nlme_examples import PK

INDIVIDUAL = {"ka": LogNormal(1.0), "V": LogNormal(20.0), "CL": LogNormal(2.0)}


def _fit(change=None, roles=None, **settings):
    data = load_theophylline()
    data = data if change is None else change(data)
    settings = {"structural": oral1cpt, "individual": INDIVIDUAL, "polish": False} | settings
    return mx.NLME(**settings, verbose=False).fit(data, **(PK | (roles or {})))


def _set(column, row, value):
    def change(data):
        data = data.copy()
        data[column] = data[column].astype(object if isinstance(value, str) else float)
        data.loc[row, column] = value
        return data

    return change


@pytest.mark.parametrize(
    ("change", "roles", "settings", "message"),
    [
        (None, {"y": "conc"}, {}, "y='conc' is no column of the data; they are Id, Dose, Time"),
        (_set("Concentration", 3, "low"), {}, {}, r"Concentration must be numeric, but holds 'low' \(subject 1, row 3\)"),
        (_set("Time", 15, np.nan), {}, {}, r"Time is missing or infinite \(subject 2, row 15\)"),
        (lambda d: _set("Dose", 4, 100.0)(_set("Time", 4, d.loc[3, "Time"])(d)), {}, {}, "has different Dose .subject 1, row 3"),
        (_set("Concentration", 12, -0.1), {}, {"error": "exponential"}, r"-0.1 is not positive \(subject 2, row 12\)"),
        (lambda d: d.groupby("Id").head(1), {}, {}, r"every subject has one observation \(the first: subject 1, row 0\)"),
        (lambda d: d.iloc[:0], {}, {}, "the data have no rows"),
        (lambda d: d.assign(Concentration=1.0), {}, {}, "the same in every row"),
        (lambda d: d.assign(Concentration=np.nan), {}, {}, "every Concentration is missing"),
        (_set("Weight", 25, np.nan), {}, {"individual": INDIVIDUAL | {"V": LogNormal(20.0, covariates="Weight")}},
         r"the covariate Weight is missing \(subject 3, row 25\)"),
        (_set("Weight", 25, 60.0), {}, {"individual": INDIVIDUAL | {"V": LogNormal(20.0, covariates="Weight")}},
         r"Weight varies within a subject \(subject 3, row 25\)"),
        (lambda d: d.assign(Weight=70.0), {}, {"individual": INDIVIDUAL | {"V": LogNormal(20.0, covariates="Weight")}},
         "constant over subjects"),
        (None, {}, {"individual": INDIVIDUAL | {"V": LogNormal(20.0, covariates="Height")}}, "cannot build the covariates"),
        (None, {}, {"individual": {"ka": LogNormal(1.0), "V": LogNormal(20.0)}}, "parameters ka, V, CL"),
        (None, {}, {"individual": {name: LogNormal(1.0, random=False) for name in INDIVIDUAL}}, "no parameter has a random"),
        (None, {}, {"omega": [("V", "Q")]}, "omega names 'Q'"),
        (None, {}, {"omega": "banded"}, "omega must be"),
        (None, {}, {"error": "big"}, "error must be one of"),
        (None, {}, {"structural": None}, "give either structural"),
        (None, {}, {"structural": lambda p, row: p["ka"] * row["hour"]}, "asks for 'hour'"),
        (None, {}, {"structural": lambda p, row: jnp.stack([p["ka"], p["V"]])}, r"one number for one row, but returns \(2,\)"),
        (None, {}, {"structural": lambda p, row: jnp.log(row["time"] - p["ka"] - 0.3) + 0 * p["V"] * p["CL"]},
         r"the structural function is not finite at the starting values \(subject 1, row 0\): ka = 1"),
        (None, {}, {"n_burn": 2000}, "leaves nothing of n_iter"),
        (None, {}, {"power": 0.3}, "power must be above 0.5"),
        (None, {}, {"pattern": ("jump",)}, "pattern must be made of"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(change, roles, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        _fit(change, roles, **settings)


def _nonmem(data, lost=np.nan):
    """Doses on rows of their own, as event tables have them: `lost` where nothing was observed."""
    doses = data.groupby("Id", as_index=False).first().assign(Time=0.0, Concentration=lost)
    rows = pd.concat([doses, data.assign(Dose=0.0)]).sort_values("Id", kind="stable").reset_index(drop=True)
    return rows


def _at_zero(data):
    """With a sample before anything is absorbed in each subject's first row."""
    first = data.groupby("Id", as_index=False).first().assign(Time=0.0, Concentration=0.1)
    return pd.concat([first, data]).sort_values("Id", kind="stable").reset_index(drop=True)


OWN_ROWS = r"Dose stands on rows of its own \(subject 1, row 0: .*transform\(.max.\)"


@pytest.mark.parametrize(
    ("change", "roles", "settings", "message"),
    [
        (_nonmem, {}, {}, OWN_ROWS),
        (lambda d: _nonmem(d, 0.0), {}, {}, OWN_ROWS),
        (lambda d: _nonmem(d).assign(Dose=lambda f: f["Dose"].replace(0.0, np.nan)), {}, {}, OWN_ROWS),
        (lambda d: _nonmem(d, 0.0).rename(columns={"Dose": "AMT"}).assign(Dose=320.0), {}, {}, "AMT stands on rows of its own"),
        (lambda d: d.assign(EVID=(d["Time"] < 0.3).astype(int)), {}, {}, r"EVID = 1 marks a row .* \(subject 1, row 0\).*== 0\]"),
        (lambda d: d.assign(mdv=(d["Time"] > 20).astype(int)), {}, {}, "mdv = 1 marks a row that is no observation"),
        (lambda d: d.assign(Dose=d["Dose"] * (d["Time"] < 0.3)), {}, {}, r"observed with Dose = 0 \(subject 1, row 1\)"),
        (lambda d: d.assign(Dose=d["Dose"] * (d["Id"] != 2)), {}, {}, "observed with Dose = 0 .subject 2, row"),
        (lambda d: d.assign(Time=d["Time"] - 1.0), {}, {}, r"Time = -0.75 lies before the dose.*\(subject 1, row 0\)"),
        (_at_zero, {}, {"error": "proportional"}, r"the prediction is 0 whatever .* 12 rows \(the first: subject 1, row 0"),
        (_at_zero, {}, {"error": "exponential"}, "an? exponential error has no"),
    ],
)  # fmt: skip
def test_event_tables_and_rows_of_no_scale_are_refused(change, roles, settings, message):
    with pytest.raises(ValueError, match=message):
        _fit(change, roles, **settings)


def test_negative_times_to_events_are_refused():
    data = pd.DataFrame({"id": np.repeat(np.arange(5), 2), "time": [0.0, 3.0] * 4 + [0.0, -2.0], "status": [0, 1] * 5})
    model = mx.NLME(log_likelihood=WeibullSurvival("lambda", "beta"), individual={"lambda": LogNormal(), "beta": LogNormal()})
    with pytest.raises(ValueError, match=r"time = -2 is no time to an event \(subject 4, row 9\)"):
        model.fit(data, id="id", time="time", y="status")


@pytest.mark.slow
def test_events_that_are_marked_and_left_out_do_no_harm():
    """Rows without an outcome are left out with a word; a dose that stands on every observation is read."""
    data = load_theophylline()
    table = _nonmem(data).assign(AMT=lambda f: f["Dose"], EVID=lambda f: (f["Dose"] > 0).astype(int))
    table["Dose"] = table.groupby("Id")["AMT"].transform("max")
    with pytest.warns(UserWarning, match="12 rows without Concentration are left out"):
        model = _fit(lambda _: table, n_iter=40, n_burn=20, n_starts=1)
    assert model.n_observations_ == len(data)
    earlier = superposed(oral1cpt, [-24.0, 0.0])
    assert _fit(lambda d: d.assign(Time=d["Time"] - 1.0), structural=earlier, n_iter=40, n_burn=20, n_starts=1).n_iter_ == 40


def test_rows_that_count_twice_and_zeros_are_told():
    short = {"n_iter": 40, "n_burn": 20, "n_starts": 1}
    with pytest.warns(
        UserWarning, match=r"2 rows repeat another in every column and count twice \(the first: subject 1, row 120"
    ):
        _fit(lambda d: pd.concat([d, d.iloc[3:5]]), **short)
    with pytest.warns(UserWarning, match=r"1 Concentration are 0 \(the first: subject 1, row 5\), which a proportional error"):
        _fit(lambda d: _set("Concentration", 5, 0.0)(d), error="proportional", **short)


def test_settings_of_a_fitted_model_are_held():
    model = _fit(n_iter=40, n_burn=20, n_starts=1)
    before = model.predict()
    for change in (lambda: setattr(model, "structural", curve("bolus1cpt")), lambda: model.set_params(error="combined")):
        with pytest.raises(AttributeError, match=r"is fitted.*clone\(model\).set_params\((structural|error)=...\)"):
            change()
    model.verbose = True
    model.set_params(n_iter=40)
    assert np.array_equal(model.predict(), before) and model.error == "constant"


def test_missing_outcomes_are_left_out_with_a_word():
    with pytest.warns(UserWarning, match="2 rows without Concentration are left out"):
        model = _fit(
            lambda d: _set("Concentration", 50, np.nan)(_set("Concentration", 7, np.nan)(d)), n_iter=40, n_burn=20, n_starts=1
        )
    assert model.n_observations_ == 118


def test_columns_with_holes_do_no_harm():
    model = _fit(lambda d: d.assign(Note=np.where(d.index < 5, np.nan, 1.0)), n_iter=40, n_burn=20, n_starts=1)
    assert model.n_observations_ == 120
    with pytest.raises(ValueError, match="asks for 'Note', .* no numeric column without holes"):
        _fit(
            lambda d: d.assign(Note=np.where(d.index < 5, np.nan, 1.0)),
            structural=lambda p, row: p["ka"] * p["V"] * p["CL"] * row["Note"],
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogNormal(-1.0), "lies outside the range"),
        (lambda: LogitNormal(2.0, low=0.0, high=1.0), "lies outside the range"),
        (lambda: LogitNormal(low=1.0, high=0.0), "low must be below high"),
        (lambda: Ordinal("x"), "names of its thresholds"),
        (lambda: curve("oral1cp"), "did you mean"),
        (lambda: mx.Alternating(every=0), "every must be at least 1"),
    ],
)
def test_bad_parts_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_estimator_is_cloneable():
    from sklearn.base import clone

    model = mx.NLME(structural=oral1cpt, individual=INDIVIDUAL, error=Proportional(), n_starts=2)
    copy: Any = clone(model)
    assert copy.get_params()["n_starts"] == 2 and copy.error == Proportional()
    with pytest.raises(Exception, match="not fitted"):
        model.predict()


def test_unknown_predictions_are_refused():
    model = _fit(n_iter=40, n_burn=20, n_starts=1)
    for call, message in [
        (lambda: model.predict(level="both"), "level must be"),
        (lambda: model.simulate(n_draws=0), "n_draws must be at least 1"),
        (lambda: model.predict(pd.DataFrame({"Id": [1]})), "is no column"),
        (lambda: model.summary(level=2.0), "level must be between"),
        (lambda: mx.nlme.compare(model), "at least two"),  # type: ignore
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_counts_need_no_error_model():
    assert isinstance(Normal(), Individual)
    data = pd.DataFrame({"id": np.repeat(np.arange(20), 4), "y": np.random.default_rng(0).poisson(3.0, 80)})
    model = mx.NLME(log_likelihood=Poisson(lambda p, row: jnp.log(p["rate"])), individual={"rate": LogNormal(1.0)}, verbose=False,
                    n_iter=60, n_burn=40, n_starts=1, polish=False)  # fmt: skip
    assert list(model.fit(data, id="id", y="y").params_) == ["rate", "omega2_rate"]
