"""Bad tables with missing covariates: the message says what, which row and column, and how to mend it."""

import time
from typing import Any

import numpy as np
import pandas as pd
import pytest

from margaux.families.missing.table import Coding, covariates, table
from margaux.tables.checks import separable


def _array(n=60, p=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    y = (rng.random(n) < 0.5).astype(int)
    x[5, 0] = x[7, 1] = x[9] = np.nan
    return x, y


def _frame(n=60, seed=0):
    x, y = _array(n, 2, seed)
    site = np.array(["u", "v", "w"])[np.arange(n) % 3]
    return pd.DataFrame({"y": y, "a": np.exp(x[:, 0]), "b": x[:, 1], "site": site}, index=np.arange(n)[::-1])


def _x(change, **settings):
    """Arguments of `table` with an array changed in place."""

    def make():
        x, y = _array()
        new = change(x)
        return ((x if new is None else new), y, "binary"), settings

    return make


def _y(values, outcome="binary"):
    def make():
        x, y = _array()
        return (x, values(y) if callable(values) else values, outcome), {}

    return make


def _f(formula, outcome="binary", **changes):
    """A formula and a frame with columns replaced."""

    def make():
        frame = _frame()
        return (formula, frame.assign(**{k: v(frame) if callable(v) else v for k, v in changes.items()}), outcome), {}

    return make


def _d(**changes):
    """A frame without formula."""

    def make():
        args, _ = _f("", **changes)()
        return (args[1].drop(columns="y"), args[1]["y"], "binary"), {}

    return make


def _put(*entries):
    def change(x):
        for i, j, value in entries:
            x[i, j] = value

    return change


def _hole(column, row):
    def change(frame):
        values = frame[column].astype(object).to_numpy(copy=True)
        values[row] = None
        return values

    return change


def _column(j, value):
    def change(x):
        x[:, j] = value(x) if callable(value) else value

    return change


def _never_together(x):
    x[::2, 0] = np.nan
    x[1::2, 2] = np.nan


def _one_class_above(x):
    x[:, 2] = _array()[1] + 0.5 * np.random.default_rng(1).random(len(x))


def _apart(y):
    return (np.nansum(_array()[0], axis=1) > 0).astype(int)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_x(lambda x: x[:, 0]), r"X must be 2-D, .*got shape \(60,\)"),
        (_x(lambda x: [[1.0, 2.0], [3.0]]), "X must be 2-D .*ragged"),
        (_x(lambda x: x[:, :0]), "X has no columns; give"),
        (_x(lambda x: x[:50]), "y has 60 entries and X 50 rows; they must agree"),
        (_x(lambda x: x.astype(str)), "X holds text .*data frame to get dummies"),
        (_x(lambda x: x + 1j), 'column "x0" is complex; give real'),
        (_x(lambda x: np.where(x == x[3, 1], "low", x.astype(object))), "\"x1\" must be numeric, .*'low' at row 3; code"),
        (_x(lambda x: (x[:4], None)[0]), "y has 60 entries"),
        (_x(_put((4, 1, np.inf), (8, 0, -np.inf))), r'X holds inf at row 4, column "x1" \(2 such in all\); mend it, or'),
        (_x(_column(1, np.nan)), 'missing in every row: "x1"; drop'),
        (_x(_column(2, lambda x: np.where(np.isnan(x[:, 2]), np.nan, 2.5))), r'one value .*"x2" \(2.5 in all 59 rows\); drop'),
        (_x(_column(2, lambda x: x[:, 0])), '"x0" and "x2" are the same in all 58 rows that have both; drop one'),
        (_x(_column(2, lambda x: 3 - 2 * x[:, 0])), 'is a linear combination of "x0" and a constant in all 58 rows .*drop'),
        (_x(_column(2, lambda x: x[:, 0] - x[:, 1])), 'is a linear combination of "x0", "x1" and a constant in all 57 '),
        (_x(_never_together), '"x0" and "x2" are never observed in the same row, .*; drop one, or collect'),
        (_x(_one_class_above), r'"x2" alone separates the classes of y \(class 0 up to 0.*, class 1 from 1.*\), .*; drop it'),
        (_x(lambda x: None, weights=np.ones(59)), "weights has 59 entries and X 60 rows"),
        (_x(lambda x: None, weights=np.r_[np.ones(59), -1.0]), "weights holds -1 at row 59 .*at least zero"),
        (_x(lambda x: None, weights=np.r_[np.nan, np.ones(59)]), "weights holds nan at row 0 .*at least zero"),
        (_x(lambda x: None, weights=np.zeros(60)), "weights are zero in every row; some must"),
        (_x(lambda x: None, weights=2.0), r"weights must hold one entry a row, got shape \(\)"),
        (_x(lambda x: None, weights=["a"] * 60), "weights must be numeric, but holds 'a' at row 0"),
        (_x(lambda x: None, offset=np.ones(2)), "offset has 2 entries"),
        (_x(lambda x: None, offset=np.r_[np.ones(59), np.inf]), "offset holds inf at row 59 .*finite offset, or drop it"),
        (_y(lambda y: np.where(np.arange(60) == 8, np.nan, y)), r"y is missing at row 8 \(1 in all\); drop"),
        (_y(lambda y: np.where(np.arange(60) == 8, None, y)), r"y is missing at row 8 \(1 in all\); drop"),
        (_y(lambda y: np.where(np.arange(60) == 8, np.inf, y)), "y holds inf at row 8"),
        (_y(lambda y: np.stack([y, y], axis=1)), r"y must hold one entry a row, got shape \(60, 2\)"),
        (_y(lambda y: 0 * y), r"y must hold two classes, but holds 1 \(0\); there is nothing"),
        (_y(np.arange(60) % 3), r'two classes, but holds 3 \(0, 1, 2\); use MissingGLM\(family="multinomial"\)'),
        (_y(lambda y: 0 * y, "categorical"), "at least two classes"),
        (_y(np.r_[2, np.arange(59) % 2], "categorical"), r"class 2 of y has one row \(row 0\); merge"),
        (_y(lambda y: y - 2 * (np.arange(60) == 3), "count"), "y holds -.* at row 3 .*whole numbers"),
        (_y(lambda y: y + 0.5 * (np.arange(60) == 3), "count"), "y holds .*5 at row 3 .*whole numbers"),
        (_y(lambda y: 0 * y, "count"), "every y is zero"),
        (_y(lambda y: 0 * y + 4, "continuous"), r"same in every row \(4\)"),
        (_y(lambda y: np.where(y, "yes", "no"), "continuous"), "y must be numeric, but holds '.*' at row 0; code it"),
        (_y(lambda y: y, "poisson"), "outcome must be one of binary, .*'poisson'"),
        (lambda: ((_array()[0][:4], [0, 1, 0, 1], "binary"), {}), "X has 4 rows for 3 columns; give at least 5 rows, or drop"),
        (lambda: ((np.nan_to_num(_array()[0]), _apart(0), "binary"), {}), '"x0", "x1", "x2" together separate .*all 60'),
        (lambda: (("y ~ a", _array()[0], "binary"), {}), "after a formula pass the data frame"),
        (_f("a + b"), "has no outcome; write it"),
        (_f("~ a + b"), "has no outcome; write it"),
        (_f("y ~ a + c"), "cannot build .* from columns y, a, b, site: .*c"),
        (_f("y ~ a + formula"), "cannot build .* from columns y, a, b, site"),
        (_f("y ~ a | b"), "several right-hand sides"),
        (_f("y ~ a +"), "cannot build"),
        (_f("y + b ~ a"), "makes 2 columns; it must be one"),
        (_f("y ~ 1"), "X has no columns"),
        (_f("y ~ a", y=_hole("y", 4)), "y is missing at row 4"),
        (_f("y ~ log(b)"), r'"log\(b\)" is not a number at row \d+ .*though b is not missing there; transform the column'),
        (_f("y ~ log(a)", a=lambda f: f["a"].where(np.arange(60) != 3, 0.0)), r'X holds -inf at row 3, column "log\(a\)"'),
        (_f("y ~ a + I(b > 0)"), r'"I\(b > 0\)" has a value at row 7 \(2 in all\), though b is missing there; compute'),
        (_f("y ~ a + C(site, levels=['u', 'v'])"), "holds w at row 2, which is not among its categories .u, v.; recode"),
        (_f("y ~ center(a)"), r'"center\(a\)" is not a number at row 0'),
        (_f("y ~ a + site", site=_hole("site", 4)), 'column "site" is missing at row 4 .1 in all.; drop those rows, recode'),
        (_f("y ~ a + C(b)", b=_hole("b", 4)), r'categorical column "b" is missing at row 4 .*pass discrete=\["b"\]'),
        (_f("y ~ a + flag", flag=pd.array([True, None] * 30, dtype="boolean")), 'categorical column "flag" is missing at row 1'),
        (_f("y ~ a + C(one)", one="u"), r'column "C\(one\)" is the same in every row \(u\); drop'),
        (_f("y ~ a + day", day=pd.Timestamp("2020-01-01")), r'column "day" must be numeric, but holds Timestamp'),
        (_f("y ~ a + b", b=lambda f: np.where(np.arange(60) == 9, "low", f["b"].astype(object))),
         'column "b" mixes numbers and text .row 9 holds \'low\'.; code'),
        (_d(site=_hole("site", 4)), 'categorical column "site" is missing at row 4 .1 in all.; drop those rows, recode'),
        (_d(site=lambda f: pd.Categorical(_hole("site", 4)(f))), 'categorical column "site" is missing at row 4'),
        (_d(site="u"), 'column "site" is the same in every row .u.; drop'),
        (_d(day=pd.Timestamp("2020-01-01")), 'column "day" must be numeric, but holds Timestamp.* at row 0'),
        (_d(b=lambda f: np.where(np.arange(60) == 9, "low", f["b"].astype(object))), "row 9 holds 'low'"),
        (lambda: ((_frame()[["a", "a"]], _array()[1], "binary"), {}), 'two columns called "a"; rename'),
    ],
)  # fmt: skip
def test_bad_input_is_refused(make, message):
    args, settings = make()
    with pytest.raises((ValueError, TypeError), match=message):
        table(*args, **settings)


def test_arrays_come_back_as_they_were():
    x, y = _array()
    out = table(x, y, "binary")
    np.testing.assert_array_equal(out.x, x)
    np.testing.assert_array_equal(out.y, y)
    assert out.names == ["x0", "x1", "x2"] and out.spec is None and out.gaussian.all() and np.isnan(out.x[9]).all()
    assert out.classes is not None and list(out.classes) == [0, 1]
    np.testing.assert_array_equal(out.weights, 1.0)
    np.testing.assert_array_equal(out.offset, 0.0)
    holes = x.astype(object)
    holes[np.isnan(x)] = None
    holes[5, 0] = pd.NA
    for other in (holes, holes.tolist(), np.ma.masked_invalid(x)):
        np.testing.assert_array_equal(table(other, y, "binary").x, x)


def test_weights_and_offset():
    x, y = _array()
    weights, offset = np.linspace(0, 1, 60), np.linspace(-1, 1, 60)
    out = table(x, y, "count", weights=pd.Series(weights, index=np.arange(60)[::-1]), offset=list(offset))
    np.testing.assert_array_equal(out.weights, weights)
    np.testing.assert_array_equal(out.offset, offset)
    assert out.classes is None and out.y.dtype == float


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array(["no", "yes"]), ["no", "yes"]),
        (np.array([False, True]), [False, True]),
        (np.array([-1.0, 1.0]), [-1.0, 1.0]),
        (pd.Categorical(["pos", "neg"], categories=["pos", "neg", "never"]), ["pos", "neg"]),
    ],
)
def test_classes_become_codes(labels, classes):
    x, y = _array()
    for outcome in ("binary", "categorical"):
        out = table(x, labels[y], outcome)
        assert out.classes is not None and list(out.classes) == classes
        np.testing.assert_array_equal(out.y, y)


def test_frame_gets_dummies():
    frame = _frame()
    frame["flag"] = np.arange(60) % 4 > 1
    frame["whole"] = pd.array([None, *range(59)], dtype="Int64")
    frame["mixed"] = np.array([None, pd.NA, *np.linspace(0, 1, 58) ** 2], dtype=object)
    out = table(frame.drop(columns="y"), frame["y"], "binary")
    assert out.names == ["a", "b", "site[T.v]", "site[T.w]", "flag[T.True]", "whole", "mixed"]
    assert list(out.gaussian) == [True, True, False, False, False, True, True]
    np.testing.assert_array_equal(out.x[:, 0], frame["a"])
    np.testing.assert_array_equal(out.x[:, 3], frame["site"] == "w")
    assert np.isnan(out.x[0, 5]) and np.isnan(out.x[:2, 6]).all() and out.x[-1, 5] == 58
    assert isinstance(out.spec, Coding)


@pytest.mark.parametrize("site", ["site", "C(site)"])
def test_formula_keeps_holes(site):
    frame = _frame()
    frame["a"] = frame["a"].astype(object).where(frame["a"].notna(), None)
    out = table(f"y ~ log(a) + b + {site}", frame, "binary")
    assert out.names == ["log(a)", "b", f"{site}[T.v]", f"{site}[T.w]"]
    assert list(out.gaussian) == [True, True, False, False]
    np.testing.assert_allclose(out.x[:, 0], np.log(_frame()["a"].to_numpy()))
    assert np.isnan(out.x[[5, 9], 0]).all() and np.isnan(out.x).sum() == 4
    np.testing.assert_array_equal(out.x[:, 3], frame["site"] == "w")
    np.testing.assert_array_equal(out.y, frame["y"])


def test_formula_takes_text_outcomes_and_recoded_categories():
    frame = _frame()
    frame["y"] = np.where(frame["y"] == 1, "yes", "no")
    frame["site"] = _hole("site", 4)(frame)
    frame["flag"] = np.arange(60) % 4 > 1
    out = table("y ~ b + C(site.fillna('none')) + flag", frame.assign(site=frame["site"].astype("str")), "binary")
    assert out.classes is not None and list(out.classes) == ["no", "yes"] and len(out.names) == 5
    assert list(out.gaussian) == [True, False, False, False, False]
    assert table("y ~ b.fillna(0) + I(b.isna())", _frame(), "binary").gaussian.tolist() == [True, False]
    assert table("C(y) ~ .", _frame(), "categorical").names == ["a", "b", "site[T.v]", "site[T.w]"]


def test_covariate_in_two_columns_gives_a_word():
    with pytest.warns(UserWarning, match=r'"b" has missing values and makes 2 columns \(b, I\(b \*\* 2\)\)'):
        table("y ~ b + I(b**2)", _frame(), "binary")


def test_few_complete_rows_give_a_word():
    x, y = _array()
    x[np.arange(60), np.arange(60) % 3] = np.nan
    with pytest.warns(UserWarning, match="only 0 of 60 rows are complete"):
        table(x, y, "binary")


def test_separated_complete_rows_give_a_word():
    x, _ = _array()
    y = _apart(0)
    with pytest.warns(UserWarning, match="together separate the classes of y in all 57 complete rows"):
        table(x, y, "binary")


def test_dependence_must_hold_beyond_complete_rows():
    x, y = _array(200)
    x[:, 2] = x[:, 0]
    x[:100, 1] = np.nan
    x[:100, 2] = np.random.default_rng(1).normal(size=100)
    assert table(x, y, "binary").x.shape == (200, 3)
    # A column that varies only where others are missing.
    x, y = _array(200)
    x[:, 2] = 1.0
    x[:100, 1] = np.nan
    x[:50, 2] = 0.0
    assert table(x, y, "binary").x.shape == (200, 3)


@pytest.mark.parametrize(("n", "noise", "expected"), [(300, 0.0, True), (300, 0.3, False), (3000, 0.0, True)])
def test_separation_is_found(n, noise, expected):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3)) * [1e-3, 1.0, 1e4] + 50.0
    margin = (x - 50.0) @ [1e3, -1.0, 1e-4] + noise * rng.normal(size=n)
    assert separable(x, margin > 0) is expected


def test_new_rows_of_arrays():
    x, y = _array()
    like = table(x, y, "binary")
    new = np.array([[1.0, np.nan, 2.0], [np.nan] * 3])
    np.testing.assert_array_equal(covariates(new, like), new)
    np.testing.assert_array_equal(covariates(pd.DataFrame(new), like), new)
    for bad, message in [
        (new[:, :2], r"new rows have 2 columns, but the fit had 3 \(x0, x1, x2\); give the same"),
        (new[0], "X must be 2-D"),
        (np.where(new == 2, np.inf, new), 'X holds inf at row 0, column "x2"'),
    ]:
        with pytest.raises(ValueError, match=message):
            covariates(bad, like)


@pytest.mark.parametrize("formula", [None, "y ~ a + b + site"])
def test_new_rows_of_frames(formula):
    frame = _frame()
    X = frame.drop(columns="y")
    like = table(X, frame["y"], "binary") if formula is None else table(formula, frame, "binary")
    np.testing.assert_array_equal(covariates(X, like), like.x)
    new = pd.DataFrame({"b": [None, None], "site": ["w", "u"], "a": [2.0, np.nan]})
    expected = [[2.0, np.nan, 0, 1], [np.nan, np.nan, 0, 0]]
    np.testing.assert_array_equal(covariates(new, like), expected)
    cases: list[tuple[Any, str]] = [
        (new.drop(columns="a"), '"a"|`a`'),
        (new.assign(site=["w", "q"]), 'column ".*site.*" holds q at row 1, .*its categories .u, v, w.; recode'),
        (new.assign(site=["w", None]), 'categorical column "site" is missing at row 1'),
        (new.assign(a=[1.0, -np.inf]), 'X holds -inf at row 1, column "a"'),
        (new.assign(a=["x", "y"]), 'column "a" (held numbers in the fit|must be numeric)'),
        (new.assign(site=[1, 2]), 'column "site" (held categories in the fit|holds 1 at row 0)'),
        (new.to_numpy(), "must be a data frame"),
    ]
    for bad, message in cases:
        with pytest.raises((ValueError, TypeError), match=message):
            covariates(bad, like)
    if formula is None:
        with pytest.raises(ValueError, match='a column "c" that the fit had not; give the columns of the fit: a, b, site'):
            covariates(new.assign(c=1.0), like)


def test_new_rows_of_transformed_columns():
    like = table("y ~ log(a) + C(site)", _frame(), "binary")
    new = pd.DataFrame({"a": [1.0, np.nan], "site": ["u", "v"]})
    np.testing.assert_array_equal(covariates(new, like), [[0.0, 0, 0], [np.nan, 1, 0]])
    with pytest.raises(ValueError, match=r'"log\(a\)" is not a number at row 0 .*though a is not missing'):
        covariates(new.assign(a=[-1.0, np.nan]), like)
    with pytest.raises(ValueError, match="holds q at row 1, which is not among"):
        covariates(new.assign(site=["u", "q"]), like)


def test_large_tables_are_quick():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200_000, 16))
    x[rng.random(x.shape) < 0.2] = np.nan
    y = rng.random(len(x)) < 0.5
    start = time.perf_counter()
    table(x, y, "binary")
    assert time.perf_counter() - start < 5.0
