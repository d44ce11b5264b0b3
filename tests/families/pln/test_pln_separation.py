"""Coefficients of PLN-PCA that the likelihood raises without end."""

import numpy as np
import pandas as pd
import pytest
import scipy
from test_pln_inputs import table

from margaux.families.pln.counts import Counts
from margaux.families.pln.separation import diverging
from margaux.families.pln.table import diverging_message, read


@pytest.mark.parametrize("sparse", [False, True])
def test_features_absent_in_a_level(sparse):
    y = table() + 1
    site = np.array(list("abc") * 4)
    wet = np.arange(12) < 6
    y[site == "b", 2] = 0  # a level
    y[site == "a", 3] = 0  # the reference
    y[~wet, 4] = 0  # the reference of a 0-1 column
    frames = pd.DataFrame({"site": site, "wet": wet.astype(int), "depth": np.arange(12) % 5})
    got = read(scipy.sparse.csr_array(y) if sparse else y, frames)
    assert got.covariate_names == ["Intercept", "site[T.b]", "site[T.c]", "wet", "depth"]
    expected = np.zeros((5, 7), bool)
    expected[1, 2] = expected[[0, 1, 2], 3] = expected[[0, 3], 4] = True
    np.testing.assert_array_equal(got.diverging, expected)
    assert diverging_message(got) == (
        "3 features have counts at one end of a covariate or in some levels only, and no finite estimate there: "
        "y2 (site[T.b]), y3 (Intercept, site[T.b], site[T.c]), y4 (Intercept, wet)"
    )
    levels = read(y, frames, "~ 0 + site")
    np.testing.assert_array_equal(np.argwhere(levels.diverging), [[0, 3], [1, 2]])
    assert diverging_message(read(y)) is None and not read(y).diverging.any()


@pytest.mark.parametrize("sparse", [False, True])
def test_features_seen_at_one_end_of_a_numeric_covariate(sparse):
    y = table() + 1
    depth = np.arange(1, 13) / 3
    y[1:, 1] = 0  # at the smallest value alone
    y[:-1, 2] = 0  # at the largest
    y[:, 3] = np.where(np.arange(12) == 5, 4, 0)  # inside: the rates of others cannot fall on both sides
    y[2:, 4] = 0  # two values tell a slope
    got = read(scipy.sparse.csr_array(y) if sparse else y, depth)
    np.testing.assert_array_equal(got.diverging, [np.isin(np.arange(7), [1, 2])] * 2)
    bent = np.column_stack([depth, depth**2])
    np.testing.assert_array_equal(np.flatnonzero(read(y, bent).diverging.any(axis=0)), [1, 2, 3, 4])


def test_separated_directions_are_those_of_an_exhaustive_search():
    rng = np.random.default_rng(0)
    # Extreme rays of these cones are cross products of two rows, so this grid has them all.
    grid = np.stack(np.meshgrid(*[np.arange(-8.0, 9.0)] * 3), -1).reshape(-1, 3)
    for _ in range(40):
        x = np.column_stack([np.ones(8), rng.integers(-2, 3, (8, 2))]).astype(float)
        if np.linalg.matrix_rank(x) < 3:
            continue
        seen = rng.random(8) < 0.25
        seen[0] = True
        eta = grid @ x.T
        moving = (np.abs(eta[:, seen]) < 1e-9).all(axis=1) & (eta[:, ~seen] <= 1e-9).all(axis=1) & (np.abs(grid).max(axis=1) > 0)
        wanted = (np.abs(grid[moving]) > 1e-9).any(axis=0)
        np.testing.assert_array_equal(diverging(Counts(seen[:, None].astype(int)), x)[:, 0], wanted)
