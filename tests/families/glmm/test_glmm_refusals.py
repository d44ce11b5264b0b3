"""Bad input ends in a sentence that says what, where and the mend, before anything is compiled."""

import warnings

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.families.glmm import estimator

ROWS = 120


@pytest.fixture(scope="module")
def table():
    """Counts, measurements and answers of twenty groups."""
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"g": np.repeat(np.arange(20), 6), "x": rng.normal(size=ROWS), "t": rng.uniform(1, 2, ROWS)})
    data["y"], data["z"] = rng.poisson(3, ROWS), rng.normal(size=ROWS)
    data["size"] = rng.integers(3, 9, ROWS)
    data["k"], data["row"] = rng.binomial(data["size"], 0.4), np.arange(ROWS)
    return data.assign(word=[f"w{i}" for i in range(ROWS)], site=[f"s{i % 101}" for i in range(ROWS)])


def refused(formula, family, data, **settings):
    """The sentence of a fit that is refused; the test fails where it would begin."""
    given = {name: settings.pop(name) for name in ("offset", "weights") if name in settings}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(estimator, "estimate", lambda *_: pytest.fail("nothing was refused"))
        with pytest.raises((ValueError, TypeError)) as caught:
            mx.GLMM(formula, family=family, verbose=False, **settings).fit(data, **given)
    return str(caught.value)


def holding(data, column, value, row=5):
    """The table with one value in place of another."""
    return data.assign(**{column: np.where(np.arange(len(data)) == row, value, data[column])})


@pytest.mark.parametrize("formula, family, column, value, said", [
    ("y ~ x + (1 | g)", "poisson", "g", np.inf, ['the grouping factor "g" is infinite at row 5']),
    ("y ~ x + (1 | g)", "poisson", "g", np.nan, ['"g" at row 5', 'dropna(subset=["g"])']),
    ("y ~ x + (1 | g)", "poisson", "x", 1e300, ['"x" is 1e+300 at row 5, too large', "other units"]),
    ("y ~ x + (1 | g)", "poisson", "y", 1e300, ['"y" is 1e+300 at row 5, too large', "other units"]),
    ("z ~ x + (1 | g)", "gaussian", "z", 1e308, ['"z" is 1e+308 at row 5, too large', "other units"]),
    ("z ~ x + (1 | g)", "gaussian", "z", np.inf, ['"z" is infinite at row 5', "mend or drop"]),
    ("t ~ x + (1 | g)", "gamma", "t", 1e-320, ['"t" is 9.99989e-321 at row 5', "other units"]),
    ("k/size ~ x + (1 | g)", "binomial", "size", 0, ['trials "size" is 0 at row 5', "drop rows without trials"]),
    ("y ~ x + offset(log(t)) + (1 | g)", "poisson", "t", 0, ['"log(t)" is infinite at row 5 (where t is 0.0)']),
])  # fmt: skip
def test_a_value_that_cannot_be(table, formula, family, column, value, said):
    sentence = refused(formula, family, holding(table, column, value))
    assert all(part in sentence for part in said), sentence


@pytest.mark.parametrize("formula, family, settings, said", [
    ("y ~ y + (1 | g)", "poisson", {}, ['"y" stands on both sides', "leave it out on the right"]),
    ("y ~ x + (1 | g)", "poisson", {"start": {"x": np.nan}}, ['start has nan for "x"', "finite number"]),
    ("y ~ x + (1 | g)", "poisson", {"start": {"x": "a"}}, ["start has 'a' for \"x\"", "finite number"]),
    ("y ~ x + (1 | g)", "poisson", {"start": [1.0, 2.0]}, ["start must be a dict", '{"Intercept": 0.5}']),
    ("y ~ site + (1 | g)", "poisson", {}, ["102 parameters, 101 of them fixed effects", '"site" has 101 levels', "(1 | site)"]),
    ("y ~ word + (1 | g)", "poisson", {}, ["120 fixed effects of 120 rows"]),
    ("y ~ x + (1 | z)", "poisson", {}, ["a measurement and no grouping factor", "factor(z)"]),
    ("z ~ x + (x | row)", "gaussian", {}, ["2 random columns", "more than 1 rows"]),
    ("y ~ x + (1 | g)", "poisson", {"weights": np.full(ROWS, -1.0)}, ["weights hold -1 at row 0", "must be positive"]),
    ("y ~ x + (1 | g)", "poisson", {"offset": "exposure"}, ['no column "exposure"']),
])  # fmt: skip
def test_a_model_that_cannot_be(table, formula, family, settings, said):
    sentence = refused(formula, family, table, **settings)
    assert all(part in sentence for part in said), sentence


def test_a_column_of_lists(table):
    sentence = refused("y ~ x + (1 | g)", "poisson", table.assign(g=[[1]] * ROWS))
    assert 'column "g" holds lists (row 0 holds [1])' in sentence
    assert 'has 2 columns called "x"' in refused("y ~ x + (1 | g)", "poisson", pd.concat([table, table[["x"]]], axis=1))
    assert "the data has no rows" in refused("y ~ x + (1 | g)", "poisson", table.iloc[:0])
