"""What a formula cannot say is told in one clean sentence."""

from typing import Any

import formulaic
import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.tables.formula import design, sum_of_columns

FRAME = pd.DataFrame({"y": [0.0, 1.0, 0.0, 1.0], "x": [1.0, 2.0, 4.0, 3.0], "g": list("aabb")})


def said(fit: Any) -> str:
    with pytest.raises(ValueError) as caught:
        fit()
    out = str(caught.value)
    assert "\x1b" not in out
    assert "⧛" not in out
    assert "\n" not in out
    return out


@pytest.mark.parametrize("term", ["(1|g)", "(x || g)"])
@pytest.mark.parametrize(
    "fit",
    [
        lambda formula: design(formula, FRAME),
        lambda formula: mx.MissingLogistic(verbose=False).fit(formula, FRAME),
        lambda formula: mx.PLNPCA(1, verbose=False).fit(np.eye(4), formula=formula.removeprefix("y "), covariates=FRAME),
    ],
    ids=["design", "missing", "pln"],
)
def test_a_random_effect_is_named_with_the_way_out(fit, term):
    out = said(lambda: fit(f"y ~ x + {term}"))
    assert f"the term {term} is a random effect" in out
    assert "write C(g)" in out
    assert "AbstractModel" in out


def test_a_syntax_error_names_its_place():
    assert "Operator `+*` is incorrectly used." in said(lambda: design("y ~ x +* g", FRAME))
    assert said(lambda: design("y ~ log(x", FRAME)).endswith('Expected: ) (at "log(x")')


@pytest.mark.parametrize("formula", ["x", " x+z ", "z + x + x", "x + count"])
def test_a_sum_of_numeric_columns_is_what_formulaic_makes_of_it(formula):
    frame = FRAME.assign(z=[0.5, -1.0, 0.0, 2.0], count=[1, 2, 3, 4])
    own = sum_of_columns(formula, frame)
    assert own is not None
    theirs = pd.DataFrame(formulaic.model_matrix(formula, frame))
    pd.testing.assert_frame_equal(own.get_model_matrix(frame), theirs)
    with pytest.raises(ValueError, match="x is of type .* in this table; it was a column of numbers"):
        own.get_model_matrix(frame.assign(x=list("abcd")))
    with pytest.raises(ValueError, match="x is no column in this table"):
        own.get_model_matrix(frame.drop(columns="x"))


@pytest.mark.parametrize("formula", ["g", "x + g", "x:z", "1 + x", "x - 1", "yes", "x + unknown", "x +", "log(x)", "x + (1|g)"])
def test_all_else_is_left_to_formulaic(formula):
    assert sum_of_columns(formula, FRAME.assign(z=1.0, yes=[True, False, True, True])) is None
