"""Designs of formulas against designs made by hand, of new rows too, and what cannot be designed."""

import pickle
import warnings
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest

from margaux.families.glmm.formula import design, fixed_part
from margaux.families.glmm.responses import Hurdle, by_name

N = 48


def table() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    return pd.DataFrame({
        "y": rng.normal(size=N), "count": rng.poisson(3, N), "x": rng.normal(size=N), "z": rng.uniform(1, 5, N),
        "g": np.repeat(list("abcdef"), 8), "h": np.tile(["u", "v"], N // 2), "site": np.repeat([10, 20, 30], 16),
        "plot": np.tile(np.repeat([1, 2], 8), 3), "three": np.tile(["lo", "mid", "hi"], N // 3), "time": np.tile(np.arange(8), 6),
        "east": np.tile(np.arange(6.0), 8), "north": np.repeat(np.arange(8.0), 6), "flag": np.arange(N) % 5 == 0,
        "size": np.full(N, 20), "id": np.arange(N),
    })  # fmt: skip


FRAME = table()


def dummies(values, levels) -> np.ndarray:
    return np.column_stack([(np.asarray(values) == level).astype(float) for level in levels])


def test_cbpp(data_folder):
    frame = pd.read_csv(data_folder / "cbpp.csv").astype({"Period": "category"})
    found = design("Incidence/Size ~ Period + (1 | Herd)", frame)
    assert (found.response, found.levels, found.names[1:]) == ("Incidence / Size", (), [f"Period[{k}]" for k in (2, 3, 4)])
    np.testing.assert_array_equal(found.y, frame.Incidence)
    np.testing.assert_array_equal(found.trials, frame.Size)
    np.testing.assert_array_equal(found.X, np.column_stack([np.ones(56), dummies(frame.Period, [2, 3, 4])]))
    (term,) = found.terms
    assert (term.name, term.columns, term.structure, list(term.labels)) == ("Herd", ["Intercept"], "us", list(range(1, 16)))
    np.testing.assert_array_equal(term.labels[term.codes], frame.Herd)
    np.testing.assert_array_equal(term.Z, np.ones((56, 1)))
    found.check(by_name("binomial"))
    # The other ways to say the same, that of lme4 among them.
    frame["Well"] = frame.Size - frame.Incidence
    for left in ("cbind(Incidence, Well)", "p(Incidence, Size)", "prop(Incidence, Incidence + Well)"):
        same = design(f"{left} ~ Period + (1 | Herd)", frame)
        np.testing.assert_array_equal([same.y, same.trials], [found.y, found.trials])
    for weights in ("Size", frame.Size):
        np.testing.assert_array_equal(design("Incidence/Size ~ 1 + (1 | Herd)", frame, weights=weights).weights, np.ones(56))


def test_verbagg_has_two_categories_and_crossed_effects(data_folder):
    frame = pd.read_csv(data_folder / "verbagg.csv.gz")
    found = design("R2 ~ Anger + Gender + (1 | Id) + (1 | Item)", frame)
    assert found.levels == ("N", "Y")
    np.testing.assert_array_equal(found.y, frame.R2 == "Y")
    assert [(term.name, len(term.labels)) for term in found.terms] == [("Id", 316), ("Item", 24)]
    found.check(by_name("binomial"))
    ordered = pd.Categorical(frame.Resp, ["no", "perhaps", "yes"], ordered=True)
    ordinal = design("Resp ~ Anger + (1 | Id)", frame.assign(Resp=ordered)).ordered()
    assert (ordinal.levels, ordinal.names) == (("no", "perhaps", "yes"), ["Anger"])
    np.testing.assert_array_equal(ordinal.y, ordered.codes)
    ordinal.check(by_name("ordinal"))
    np.testing.assert_array_equal(ordinal.new(frame.head(3)).X, ordinal.X[:3])


def test_a_level_is_chosen_as_the_success():
    np.testing.assert_array_equal(design('g["b"] ~ x', FRAME).y, FRAME.g == "b")
    chosen = design("h[u] ~ x", FRAME)
    assert chosen.levels == ("v", "u")
    np.testing.assert_array_equal(chosen.y, FRAME.h == "u")
    assert design("flag ~ x", FRAME).levels == (False, True)
    np.testing.assert_array_equal(design("I(x > 0) ~ z", FRAME).y, FRAME.x > 0)
    np.testing.assert_allclose(design("log(z) ~ x", FRAME).y, np.log(FRAME.z))


def test_whole_numbers_are_ordered_categories():
    found = design("count ~ x + (1 | g)", FRAME).ordered()
    assert found.levels == tuple(sorted(FRAME["count"].unique()))
    np.testing.assert_array_equal(np.array(found.levels)[found.y.astype(int)], FRAME["count"])


def test_categories_keep_their_order_and_forget_empty_ones():
    frame = FRAME.assign(three=pd.Categorical(FRAME.three, ["mid", "never", "lo", "hi"]))
    assert design("y ~ three", frame).names == ["Intercept", "three[lo]", "three[hi]"]
    assert design("y ~ three", FRAME).names == ["Intercept", "three[lo]", "three[mid]"]


def test_contrasts_interactions_and_functions():
    found = design("y ~ x * h + C(three, Sum) + I(z^2) + flag", FRAME)
    second = (FRAME.h == "v").astype(float)
    of_three = dummies(FRAME.three, ["hi", "lo"]) - dummies(FRAME.three, ["mid"])
    expected = np.column_stack([np.ones(N), FRAME.x, second, FRAME.x * second, of_three, FRAME.z**2, FRAME.flag])
    order = ["Intercept", "x", "h[v]", "x:h[v]", "C(three, Sum)[hi]", "C(three, Sum)[lo]", "I(z ** 2)", "flag"]
    np.testing.assert_allclose(found.X[:, [found.names.index(name) for name in order]], expected)
    assert len(found.names) == len(order)
    np.testing.assert_array_equal(design("y ~ 0 + h", FRAME).X, dummies(FRAME.h, ["u", "v"]))
    np.testing.assert_array_equal(design("y ~ h - 1", FRAME).X, dummies(FRAME.h, ["u", "v"]))
    assert design("y ~ (x + z)^2 - z", FRAME).names == ["Intercept", "x", "x:z"]
    assert design("y ~ 0 + (1 | g)", FRAME).X.shape == (N, 0)


def test_slopes_one_bar_and_two():
    found = design("y ~ x + (x | g) + (0 + z | h) + (x + three || site)", FRAME)
    one, two, three = found.terms
    assert (one.columns, one.structure, two.columns, two.structure) == (["Intercept", "x"], "us", ["z"], "us")
    np.testing.assert_array_equal(one.Z, np.column_stack([np.ones(N), FRAME.x]))
    np.testing.assert_array_equal(two.Z, FRAME[["z"]])
    # As glmmTMB has it: the contrasts of a category are independent too.
    assert (three.columns, three.structure) == (["Intercept", "x", "three[lo]", "three[mid]"], "diag")
    np.testing.assert_array_equal(three.Z[:, 2:], dummies(FRAME.three, ["lo", "mid"]))
    assert design("y ~ (0 + three | g)", FRAME).terms[0].columns == ["three[hi]", "three[lo]", "three[mid]"]


def test_nested_groups_are_the_outer_ones_and_the_interaction():
    nested, written = design("y ~ (1 | site/plot)", FRAME), design("y ~ (1 | site) + (1 | site:plot)", FRAME)
    assert [term.name for term in nested.terms] == [term.name for term in written.terms] == ["site", "site:plot"]
    for one, other in zip(nested.terms, written.terms, strict=True):
        np.testing.assert_array_equal(one.codes, other.codes)
    assert list(nested.terms[1].labels) == ["10:1", "10:2", "20:1", "20:2", "30:1", "30:2"]
    np.testing.assert_array_equal(
        nested.terms[1].labels[nested.terms[1].codes], FRAME.site.astype(str) + ":" + FRAME["plot"].astype(str)
    )
    thrice = design("y ~ (1 | site/plot/h)", FRAME)
    assert [(term.name, len(term.labels)) for term in thrice.terms] == [("site", 3), ("site:plot", 6), ("site:plot:h", 12)]


def test_combinations_that_do_not_occur_are_no_groups():
    frame = FRAME.drop(FRAME.index[(FRAME.site == 20) & (FRAME["plot"] == 2)])
    assert list(design("y ~ (1 | site:plot)", frame).terms[0].labels) == ["10:1", "10:2", "20:1", "30:1", "30:2"]


def test_offsets_add_up():
    both = design("count ~ x + offset(log(z)) + (1 | g)", FRAME, offset="x")
    np.testing.assert_allclose(both.offset, np.log(FRAME.z) + FRAME.x)
    np.testing.assert_array_equal(design("count ~ x", FRAME, offset=FRAME.z).offset, FRAME.z)
    np.testing.assert_allclose(both.new(FRAME.head(4)).offset, both.offset[:4])
    np.testing.assert_array_equal(design("count ~ x", FRAME).offset, np.zeros(N))
    assert "log(z)" not in both.names


def test_structures():
    found = design("y ~ x + cs(0 + three | g) + diag(x | h) + ar1(0 + time | site) + mat(0 + east + north | 1)", FRAME)
    cs, diag, ar1, mat = found.terms
    assert [term.structure for term in found.terms] == ["cs", "diag", "ar1", "mat"]
    assert cs.positions is None and diag.columns == ["Intercept", "x"]
    np.testing.assert_array_equal(ar1.positions, np.arange(8.0)[:, None])
    np.testing.assert_array_equal(ar1.Z, dummies(FRAME.time, range(8)))
    np.testing.assert_array_equal(ar1.places, FRAME.time)
    assert mat.positions is not None and mat.places is not None
    np.testing.assert_array_equal(mat.positions[mat.places], FRAME[["east", "north"]])
    assert (len(mat.labels), mat.codes.max()) == (1, 0)
    np.testing.assert_array_equal(mat.Z.sum(axis=1), np.ones(N))
    same = design("y ~ mat(numFactor(east, north) + 0 | 1)", FRAME).terms[0]
    np.testing.assert_array_equal(same.Z, mat.Z)


def test_times_in_words_are_in_the_order_of_the_category():
    frame = FRAME.assign(when=pd.Categorical(FRAME.time.map({k: f"week {w}" for k, w in enumerate("zyxwvuts")}),
                                             [f"week {w}" for w in "zyxwvuts"]), text=(FRAME.time + 5).astype(str))  # fmt: skip
    np.testing.assert_array_equal(design("y ~ ar1(0 + when | g)", frame).terms[0].places, FRAME.time)
    # 10, 11, 12 come after 5, and not before it as words would.
    term = design("y ~ ar1(0 + text | g)", frame).terms[0]
    np.testing.assert_array_equal(term.positions, np.arange(5.0, 13)[:, None])
    np.testing.assert_array_equal(term.places, FRAME.time)
    as_factor = design("y ~ ar1(factor(time) + 0 | g)", FRAME).terms[0]
    np.testing.assert_array_equal(as_factor.places, FRAME.time)


FORMULAS = [
    "y ~ x * h + (x | g)", "y ~ poly(x, 2) + scale(z) + C(three, Sum) + (1 | site/plot)", "y ~ bs(x, df=4) + (0 + three || g)",
    "y ~ center(x):h + ar1(0 + time | g)", "y ~ log(z) + offset(x) + (1 | factor(site)) + exp(0 + east | h)",
]  # fmt: skip


@pytest.mark.parametrize("formula", FORMULAS)
def test_new_rows_have_the_design_of_the_fit(formula):
    found = design(formula, FRAME)
    rows = [40, 3, 17]
    new = found.new(FRAME.iloc[rows].drop(columns="y"))
    np.testing.assert_allclose(new.X, found.X[rows], atol=1e-12)
    np.testing.assert_array_equal(new.offset, found.offset[rows])
    for one, other in zip(new.terms, found.terms, strict=True):
        np.testing.assert_array_equal(one.codes, other.codes[rows])
        np.testing.assert_allclose(one.Z, other.Z[rows], atol=1e-12)
    again = cloudpickle.loads(cloudpickle.dumps(found))
    np.testing.assert_array_equal(again.new(FRAME.iloc[rows]).X, new.X)
    alone = found.new(FRAME.iloc[rows][["x", "z", "h", "three"]], random=False)
    assert alone.terms == ()
    np.testing.assert_array_equal(alone.X, new.X)


def test_groups_and_places_not_seen_before():
    found = design("y ~ x + (1 | three) + (1 | site:plot) + ar1(0 + time | h)", FRAME)
    rows = FRAME.iloc[:3].assign(three=["hi", "new", "lo"], plot=[2, 7, 1], time=[9, 0, -1])
    one, two, three = found.new(rows).terms
    assert one.codes.tolist() == [0, -1, 1]
    assert two.codes.tolist() == [1, -1, 0]
    assert three.positions is not None and three.positions[:, 0].tolist() == [*range(8), -1, 9]
    assert three.places is not None and three.places.tolist() == [9, 0, 8]
    assert (three.Z.shape, three.Z.argmax(axis=1).tolist()) == ((3, 10), [9, 0, 8])


def test_dependent_columns_are_dropped_with_a_warning_that_names_them():
    with pytest.warns(UserWarning, match='"I\\(2 \\* x\\)" is made up of x, so it is left out'):
        found = design("y ~ x + I(2*x) + z + (1 | g)", FRAME)
    assert found.names == ["Intercept", "x", "z"]
    np.testing.assert_array_equal(found.new(FRAME.head(2)).X, found.X[:2])
    empty = FRAME.drop(FRAME.index[(FRAME.h == "v") & (FRAME.three == "mid")])
    with pytest.warns(UserWarning, match="is zero in every row"):
        assert np.linalg.matrix_rank(design("y ~ h * three", empty).X) == 5


def test_fixed_part_alone():
    part = fixed_part("~ x + h", FRAME)
    assert part.names == ["Intercept", "x", "h[v]"]
    np.testing.assert_array_equal(part.new(FRAME.tail(2)), part.X[-2:])
    assert fixed_part("~ 1", FRAME).X.shape == (N, 1)


def changed(name, values) -> pd.DataFrame:
    frame = FRAME.copy()
    frame[name] = values
    return frame


def holed(name: str, value: Any, *rows: int) -> pd.DataFrame:
    frame = FRAME.copy()
    frame[name] = frame[name].astype(object if isinstance(frame[name].iloc[0], str) else float)
    frame.loc[list(rows), name] = value
    return frame


BAD: list[tuple[str, pd.DataFrame, dict, list[str]]] = [
    ("x + z", FRAME, {}, ["no response", "y ~ x"]),
    ("y ~ ", FRAME, {}, ['ends at "~"', "~ 1"]),
    ("y ~ x ~ z", FRAME, {}, ['more than one "~"']),
    ("y ~ x | g", FRAME, {}, ["brackets, as (x | g)", 'at "| g"']),
    ("y ~ x + (1 | g", FRAME, {}, ["not closed", 'at "(1 | g"']),
    ("y ~ x +* z", FRAME, {}, ['"*" cannot stand here', 'at "* z"']),
    ("y ~ x + _z", FRAME, {}, ["backquotes", 'at "_z"']),
    ("y ~ . + (1 | g)", FRAME, {}, ["name the columns"]),
    ("y ~ x * (1 | g)", FRAME, {}, ["must be added by itself"]),
    ("y ~ (1 | g + h)", FRAME, {}, ["cannot group rows", "(1 | g) + (1 | h)"]),
    ("y ~ toep(1 | g)", FRAME, {}, ["no covariance", "us, diag, cs, ar1, mat, exp"]),
    ("y ~ 3 + x", FRAME, {}, ['"3" is no term']),
    ("y ~ (x + z)^1.5", FRAME, {}, ["the power in", "I(...)"]),
    ("y ~ -x", FRAME, {}, ['"- x" takes away']),
    ("y ~ T(h, 'w')", FRAME, {}, ["cannot compute \"T(h, 'w')\""]),
    ("y ~ (1 | g) + (1 | g)", FRAME, {}, ["twice", "write it once"]),
    ("y ~ xx + (1 | g)", FRAME, {}, ['no column "xx"', 'did you mean "x"']),
    ("y ~ x + (1 | sight)", FRAME, {}, ['no column "sight"', 'did you mean "site"']),
    ("y ~ lgo(z)", FRAME, {}, ['no function "lgo"', 'did you mean "log"']),
    ("y ~ x + (1 | g)", holed("x", np.nan, 3, 7), {}, ['"x" at rows 3, 7 (2 in all)', 'dropna(subset=["x"])']),
    ("y ~ x + (1 | g)", holed("g", None, 5), {}, ['"g" at row 5', "dropna"]),
    ("y ~ x + (1 | g)", holed("y", np.nan, 0), {}, ['"y" at row 0']),
    ("y ~ x", holed("x", np.inf, 9), {}, ['"x" is infinite at row 9']),
    ("y ~ log(x)", changed("x", np.where(np.arange(N) == 4, -1.0, 2.0)), {}, ['"log(x)" is not a number at row 4', "x is -1"]),
    ("y ~ (1 | g)", changed("g", "a"), {}, ['"g"', "one level only"]),
    ("y ~ h", changed("h", "u"), {}, ['"h" is the same in every row']),
    ("y ~ (1 | z)", FRAME, {}, ['"z" holds 48 numbers that are not whole', "factor(z)"]),
    ("y ~ (x + z + east | id)", FRAME, {}, ["4 random columns", 'no level of "id" has more than 1 rows']),
    ("y ~ (0 + size | g)", FRAME, {}, ['slope "size"', "20 in every row"]),
    ("y ~ (x + I(2*x) | g)", FRAME, {}, ['"I(2 * x)"', "made up of", '"x"']),
    ("y ~ (1 | g) + (x | g)", FRAME, {}, ["both have the random column", "(0 + ... | g)"]),
    ("y ~ (1 | site) + (1 | twin)", changed("twin", FRAME.site // 10), {}, ["group the rows in the same way"]),
    ("y ~ ar1(0 + z | g)", FRAME, {}, ["not whole", "exp(0 + z | g)"]),
    ("y ~ ar1(0 + three | g)", FRAME, {}, ["order in time is not known"]),
    ("y ~ mat(0 + x + z + east | 1)", FRAME, {}, ["one or two columns of coordinates", "it names 3"]),
    ("y ~ cs(1 | g)", FRAME, {}, ["compound symmetry is about several"]),
    ("y ~ ar1(time || g)", FRAME, {}, ["independent effects"]),
    ("three ~ x", FRAME, {}, ["3 levels without an order", "ordered=True"]),
    ("h[w] ~ x", FRAME, {}, ['no level "w"', "u, v"]),
    ("size ~ x", FRAME, {}, ["20 in every row"]),
    ("count/n ~ x", changed("n", np.where(np.arange(N) == 6, 0, 20)), {}, ["0 at row 6", "must be positive"]),
    ("y ~ x", FRAME, {"weights": np.where(np.arange(N) == 2, -1.0, 1.0)}, ["weights hold -1 at row 2"]),
    ("y ~ x", FRAME, {"weights": np.where(np.arange(N) == 3, 0.0, 1.0)}, ["weights hold 0 at row 3"]),
    ("y ~ x", FRAME, {"weights": np.ones(5)}, ["weights has shape (5,) for 48 rows"]),
    ("y ~ x", FRAME, {"offset": "tt"}, ['no column "tt"']),
    ("y ~ x", FRAME, {"offset": np.full(N, np.nan)}, ["offset", "not a number", "row"]),
    ("y ~ x", FRAME.iloc[:0], {}, ["no rows"]),
    ("y ~ x", pd.concat([FRAME, FRAME[["x"]]], axis=1), {}, ['2 columns called "x"']),
    ("y ~ x + z", FRAME.iloc[:3], {}, ["3 fixed effects of 3 rows"]),
]  # fmt: skip


@pytest.mark.parametrize(("formula", "frame", "settings", "told"), BAD, ids=[f"{k} {case[0]}" for k, case in enumerate(BAD)])
def test_bad_input_is_told_with_its_place_and_the_mend(formula, frame, settings, told):
    with warnings.catch_warnings(), pytest.raises(ValueError) as caught:
        warnings.simplefilter("error")
        design(formula, frame, **settings)
    assert "\n" not in str(caught.value)
    for words in told:
        assert words in str(caught.value)


@pytest.mark.parametrize(("make", "told"), [
    (lambda: design("y ~ day", FRAME.assign(day=pd.Timestamp("2020-01-01"))), ['"day" holds dates']),
    (lambda: design("y ~ mixed", FRAME.assign(mixed=["a", 1] * (N // 2))), ['"mixed" mixes numbers and text']),
    (lambda: design("y ~ x", {"y": [1]}), ["pandas data frame"]),  # type: ignore[arg-type]
    (lambda: design(3, FRAME), ["must be text"]),  # type: ignore[arg-type]
    (lambda: design("y ~ h + (1 | g)", FRAME).new(FRAME.assign(h=1.0)), ['"h" held categories in the fit']),
    (lambda: design("y ~ (1 | site)", FRAME).new(FRAME.assign(site="10")), ['"site" were numbers in the fit and are text']),
])  # fmt: skip
def test_what_is_of_the_wrong_kind(make, told):
    with pytest.raises(TypeError) as caught:
        make()
    for words in told:
        assert words in str(caught.value)


@pytest.mark.parametrize(("make", "told"), [
    (lambda: design("y ~ h", FRAME).new(FRAME.assign(h="w")), ['column "h" holds w at row 0', "u, v"]),
    (lambda: design("y ~ x", FRAME).new(FRAME.filter(["y"])), ['the new data has no column "x"']),
    (lambda: design("y ~ x", FRAME, offset="z").new(FRAME.filter(["x"])), ['no column "z"', "the offset of the fit"]),
    (lambda: design("y ~ x", FRAME, offset=FRAME.z).new(FRAME), ["pass offset="]),
    (lambda: design("y ~ x", FRAME, offset=FRAME.z).new(FRAME.head(3), offset=[1, 2]), ["shape (2,) for 3 rows"]),
    (lambda: design("y ~ x + (1 | g)", FRAME).new(holed("x", np.nan, 1)), ['the new data has missing values: "x" at row 1']),
    (lambda: design("count ~ 0 + x", FRAME).ordered(), ["takes the intercept away"]),
    (lambda: design("y ~ x", FRAME).ordered(), ["48 different numbers", "pd.cut"]),
    (lambda: design("count/size ~ x", FRAME).ordered(), ["counts successes"]),
    (lambda: fixed_part("~ x + (1 | g)", FRAME), ["fixed effects only"]),
    (lambda: fixed_part("y ~ x", FRAME), ["has a response"]),
    (lambda: design("y ~ x", FRAME).check(by_name("poisson")), ['the response "y" is', "at row 0", "whole"]),
    (lambda: design("h ~ x", FRAME).check(by_name("poisson")), ["holds categories (u, v)", "binomial"]),
    (lambda: design("count/size ~ x", FRAME).check(by_name("gaussian")), ["counts successes of trials", "I(a / b)"]),
    (lambda: design("y ~ x + (1 | id)", FRAME).check(by_name("gaussian")), ["48 random effects for 48 rows", "gaussian"]),
    (lambda: design("flag ~ x + (1 | id)", FRAME).check(by_name("binomial")), ["48 random effects", "binomial"]),
    (lambda: design("count ~ x + (1 | id)", FRAME).check(by_name("nbinom2")), ["48 random effects", "nbinom2"]),
    (lambda: design("y ~ x", FRAME).check(Hurdle(by_name("gamma"))), ["never zero"]),
])  # fmt: skip
def test_what_the_family_or_new_rows_cannot_have(make, told):
    with pytest.raises(ValueError) as caught:
        make()
    for words in told:
        assert words in str(caught.value)


def test_effects_of_rows_are_for_families_without_a_dispersion():
    design("count ~ x + (1 | id)", FRAME).check(by_name("poisson"))
    design("count/size ~ x + (1 | id)", FRAME).check(by_name("binomial"))


def test_the_recipe_keeps_no_rows():
    small, large = (design("y ~ x * h + scale(z) + (x | g)", pd.concat([FRAME] * k)) for k in (1, 20))
    size = [
        len(cloudpickle.dumps((found.fixed.recipe, found.recipe), protocol=pickle.HIGHEST_PROTOCOL)) for found in (small, large)
    ]
    assert size[1] < size[0] + 200
