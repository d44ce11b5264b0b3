"""What a formula cannot say is told in one clean sentence."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.tables.formula import design

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
