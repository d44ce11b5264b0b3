"""Regimens in words: what is read, and what is refused."""

import numpy as np
import pytest

from margaux.families.nlme.regimen_text import written

RECORDS = ["TIME", "AMT", "II", "ADDL", "SS"]


@pytest.mark.parametrize(("text", "records", "unit"), [
    ("100 mg q12h x 10", [[0, 100, 12, 9, 0]], "mg"),
    ("100 mg q12h x 10 + load 200", [[0, 100, 12, 9, 0], [0, 200, 0, 0, 0]], "mg"),
    ("load 200 mg then 100 mg q12h x 10", [[0, 200, 0, 0, 0], [12, 100, 12, 9, 0]], "mg"),
    ("Loading dose 200 mg THEN 100 Q12H X 3", [[0, 200, 0, 0, 0], [12, 100, 12, 2, 0]], "mg"),
    ("steady state 100 q12h", [[0, 100, 12, 0, 1]], ""),
    ("load 50 + ss 100 q12h + steady state 20 qid", [[0, 100, 12, 0, 1], [0, 20, 6, 0, 2], [0, 50, 0, 0, 0]], ""),
    ("1e+2 ug bid x2", [[0, 100, 12, 1, 0]], "ug"),
    ("100 q12h x 3 then 50 qd x 2", [[0, 100, 12, 2, 0], [36, 50, 24, 1, 0]], ""),
    ("100 then 50 at 30 min", [[0, 100, 0, 0, 0], [0.5, 50, 0, 0, 0]], ""),
    ("200 + 100 q1d x 2 at 6h", [[0, 200, 0, 0, 0], [6, 100, 24, 1, 0]], ""),
])  # fmt: skip
def test_regimens_are_read(text, records, unit):
    found = written(text)
    np.testing.assert_allclose(found.records[RECORDS].to_numpy(float), records)
    assert found.unit == unit and not found.per_kg and bool(np.all(np.isnan(found.records["DUR"].to_numpy())))


def test_units_are_turned_into_those_of_the_data():
    found = written("1 g q1d x 2 over 90 min + 500 mg", dose_unit="mg", time_unit="d")
    np.testing.assert_allclose(found.records[["AMT", "II", "DUR"]].to_numpy(float), [[1000, 1, 1.5 / 24], [500, 0, np.nan]])
    assert written("100 q2wk x 3", time_unit="wk").records["II"].tolist() == [2.0]
    assert written("100 q12h x 3 + 5 µg/kg", dose_unit=None).per_kg


@pytest.mark.parametrize(("text", "told"), [
    ("", "written in words or is a frame"),
    ("mg", "no amount"),
    ("-100 mg", "no amount"),
    ("0 mg", "must be a positive number"),
    ("100 mgs q12h x 3", "'mgs' is no unit of a dose; did you mean 'mg'"),
    ("100 mg twice", 'cannot read "twice" in "100 mg twice"; a part reads'),
    ("100,5 mg", 'cannot read ",5 mg"'),
    ("100 mg +", "cannot read"),
    ("100 q12h", "say how many doses"),
    ("100 x 3", "need their interval"),
    ("100 q12h x 2.5", "must be a whole number"),
    ("100 q12h x 0", "must be a whole number"),
    ("100 q0h x 3", "the interval must be positive"),
    ("100 q12h x 3 q6h", 'says "q" twice'),
    ("100 q12y x 3", "'y' is no unit of time"),
    ("100 q12", "a time has its unit"),
    ("100 q12 x 3", "'x' is no unit of time"),
    ("load 100 q12h x 3", "a loading dose is given once"),
    ("steady state 100", "needs the interval"),
    ("100 q12h x 2 then steady state 100 q12h", "is where a regimen begins"),
    ("100 then 50", "has no interval, and neither has what follows"),
    ("100 q12h x 10 then 50 at 6 h", "follows doses that are given later"),
    ("100 mg + 1 g", "doses in mg and in g; write them in one unit"),
    ("100 mg/kg + 20 mg", "some parts of the regimen are per kg"),
])  # fmt: skip
def test_what_is_no_regimen_is_refused(text, told):
    with pytest.raises(ValueError, match=told.replace("(", r"\(").replace("+", r"\+")):
        written(text)


@pytest.mark.parametrize(("text", "unit", "told"), [
    ("100 mg", "mmol", "cannot be turned into"), ("1 g + 100", "mg", "has no unit"), ("100 mg", "pound", "dose_unit must be one"),
])  # fmt: skip
def test_units_that_do_not_fit_are_refused(text, unit, told):
    with pytest.raises(ValueError, match=told):
        written(text, dose_unit=unit)
