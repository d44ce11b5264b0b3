"""Counts and ranks that are refused, each with its place."""

import re

import numpy as np
import pandas as pd
import pytest
import scipy

from margaux.families.pln import checks
from margaux.families.pln.table import read

MESSAGES = {
    -2.0: "counts start at zero",
    0.5: "counts are whole numbers",
    np.nan: "write 0 where nothing was seen",
    np.inf: "counts must be finite",
    2e9: "rarely counts",
}


def counts():
    return np.random.default_rng(0).poisson(3.0, (12, 7)) + 1.0


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", list(MESSAGES))
def test_other_things_than_counts_are_refused_with_their_place(value, sparse, monkeypatch):
    monkeypatch.setattr(checks, "BLOCK", 10)  # so that several blocks are looked at
    y = counts()
    y[8, 5] = y[10, 2] = value
    given = (
        scipy.sparse.csr_array(y)
        if sparse
        else pd.DataFrame(y, index=[f"s{i}" for i in range(12)], columns=[f"g{j}" for j in range(7)])
    )
    place = 'unit "8", feature "y5" (2 such in all)' if sparse else 'unit "s8", feature "g5" (2 such in all)'
    with pytest.raises(ValueError, match=re.escape(place)) as refused:
        read(given)
    assert MESSAGES[value] in str(refused.value)


def test_negative_and_large_integers_are_refused():
    y = counts().astype(int)
    y[0, 0] = -1
    with pytest.raises(ValueError, match="holds? -1 .*the only one"):
        read(y)
    y[0, 0] = 2_000_000_000
    with pytest.raises(ValueError, match=r"2e\+09"):
        read(y)


@pytest.mark.parametrize(
    "given, error",
    [(np.zeros((0, 3)), ValueError), (np.zeros((3, 0)), ValueError), (np.zeros(5), ValueError), ([["a", "b"]] * 4, TypeError)],
    ids=["no units", "no features", "a vector", "text"],
)
def test_tables_that_are_none(given, error):
    with pytest.raises(error):
        read(given)


def test_ranks_out_of_range():
    for rank in (0, -1, 6):
        with pytest.raises(ValueError, match=f"between 1 and min.* got {rank}"):
            checks.check_rank(rank, 10, 5)
    for rank in (1.5, True, "2"):
        with pytest.raises(TypeError, match="whole number"):
            checks.check_rank(rank, 10, 5)
