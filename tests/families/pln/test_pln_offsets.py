"""Offsets of counts, given and by name."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy
from test_pln_inputs import frame, table

from margaux.families.pln.counts import Counts
from margaux.families.pln.offsets import SCHEMES, ByName
from margaux.families.pln.table import like, read

SITES = pd.DataFrame({"site": list("abc") * 4, "depth": np.arange(12.0)})


def by_loop(name, y, others=None):
    """Logs of size factors by their definitions, entry by entry."""
    others = y if others is None else others
    n, p = others.shape
    totals = others.sum(axis=1)
    if name == "none":
        return np.zeros(len(y))
    if name in ("total", "TSS"):
        centre = np.mean([np.log(t) for t in totals]) if name == "TSS" else 0.0
        return np.array([np.log(sum(row)) - centre for row in y])

    def medians(rows):
        means, out = {}, []
        for j in range(p):
            column = others[:, j]
            if name == "poscounts" or all(column > 0):
                means[j] = sum(np.log(v) for v in column if v > 0) / n
        for row in rows:
            out.append(np.median([np.log(row[j]) - means[j] for j in means if row[j] > 0]))
        return np.array(out)

    if name == "RLE":
        return medians(y)
    if name == "poscounts":
        return medians(y) - medians(others).mean()
    if name == "GMPR":
        out = []
        for row in y:
            logs = []
            for other in others:
                ratios = [a / b for a, b in zip(row, other, strict=True) if a > 0 and b > 0]
                if ratios:
                    logs.append(np.log(np.median(ratios)))
            out.append(np.mean(logs))
        return np.array(out)
    weights, q = np.zeros(p), np.zeros(p)
    for j in range(p):
        logs = [np.log(others[i, j] / totals[i]) for i in range(n) if others[i, j] > 0]
        weights[j] = 1 / np.var(logs, ddof=1) if len(logs) > 1 else 0.0
        q[j] = np.mean(others[:, j] / totals)
    factor = lambda row: np.log(row.sum() * np.sum(weights * row / row.sum() / q) / weights.sum())  # noqa: E731
    return np.array([factor(row) for row in y]) - np.mean([factor(row) for row in others])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", SCHEMES)
def test_offsets_by_name_follow_their_definitions(name, sparse, monkeypatch):
    y, new = table(15, 9, seed=1), table(4, 9, seed=2)
    y[1:, 8] = 0  # a feature of one unit
    kind = scipy.sparse.csr_array if sparse else np.asarray
    for block in (1 << 22, 20):
        monkeypatch.setattr("margaux.families.pln.offsets.BLOCK", block)
        fit = read(kind(y), offsets=name)
        np.testing.assert_allclose(fit.offset[:, 0], by_loop(name, y), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(like(fit, kind(new)).offset[:, 0], by_loop(name, new, y), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(like(fit, kind(y[3:5])).offset, fit.offset[3:5], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SCHEMES)
def test_offsets_do_not_depend_on_the_type_of_the_counts(name):
    y = table(15, 9, seed=1)
    expected = read(y, offsets=name).offset
    for kind in (np.int8, np.uint8, np.float32):
        np.testing.assert_allclose(read(y.astype(kind), offsets=name).offset, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(
            read(scipy.sparse.csr_array(y.astype(kind)), offsets=name).offset, expected, rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("name", SCHEMES)
def test_a_table_can_be_stored(name):
    y = table()
    fit = pickle.loads(pickle.dumps(read(y, SITES, offsets=name)))
    np.testing.assert_allclose(like(fit, y[2:4], SITES[2:4]).offset, fit.offset[2:4], atol=1e-12)


@pytest.mark.parametrize("name", ["total", "TSS", "RLE", "poscounts", "GMPR", "Wrench"])
def test_offsets_recover_depths(name):
    rng = np.random.default_rng(0)
    depths = np.exp(rng.normal(size=30))
    y = rng.poisson(200 * depths[:, None] * rng.gamma(2, 1, 40))
    y = y[:, y.sum(axis=0) > 0]
    found = read(y, offsets=name).offset[:, 0] - np.log(depths)
    assert np.std(found) < 0.05
    if name not in ("total",):
        assert abs(read(y, offsets=name).offset.mean()) < 0.02


def test_names_of_offsets():
    y = table()
    np.testing.assert_array_equal(read(y, offsets="gmpr").offset, read(y, offsets="GMPR").offset)
    assert not read(y).offset.any() and read(y).offset.shape == (12, 1)
    for wrong, right in (("poscount", "poscounts"), ("ttal", "total"), ("tss ", "TSS"), ("wrnch", "Wrench")):
        with pytest.raises(ValueError, match=f'offsets="{wrong}" is none of none, total, .* did you mean "{right}"'):
            read(y, offsets=wrong)
    with pytest.raises(ValueError, match="nor an array$"):
        read(y, offsets="logarithm of everything")


@pytest.mark.parametrize(
    "offsets, error, words",
    [
        (np.zeros(5), ValueError, r"offsets must have shape \(12,\), \(12, 1\) or \(12, 7\), got \(5,\)"),
        (np.zeros((7, 12)), ValueError, "transpose"),
        (0.5, ValueError, r"got \(\)"),
        (np.zeros((12, 7, 1)), ValueError, r"got \(12, 7, 1\)"),
        (["a"] * 12, TypeError, "offsets must be numbers"),
        (np.r_[np.zeros(4), -np.inf, np.zeros(7)], ValueError, r'offsets hold -inf at unit "4" \(1 such.*log of a zero'),
        (np.r_[np.zeros(4), np.nan, np.zeros(7)], ValueError, 'offsets hold nan at unit "4"'),
        (np.full((12, 7), np.nan), ValueError, r'offsets hold nan at unit "0", feature "y0" \(84 such in all\)'),
        (np.full(12, 1e4), ValueError, "take their log"),
    ],
)
def test_arrays_of_offsets_that_are_refused(offsets, error, words):
    with pytest.raises(error, match=words):
        read(table(), offsets=offsets)


def test_columns_of_offsets_in_another_order_are_refused():
    y = frame(table())
    assert read(y, offsets=y * 0.1).offset.shape == (12, 7)
    with pytest.raises(ValueError, match="columns of offsets are not those of counts"):
        read(y, offsets=(y * 0.1)[y.columns[::-1]])


def test_tables_without_size_factors_are_refused_with_a_way_out():
    apart = np.kron(np.eye(3, dtype=int), [[1, 2], [3, 1]])
    apart[4:] = [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 5, 5]]
    apart[4, 0] = 1
    with pytest.raises(ValueError, match='"RLE" needs a feature with counts in every unit.*"poscounts"'):
        read(apart, offsets="RLE")
    with pytest.raises(
        ValueError, match='"GMPR" gives unit "5" no size factor .1 such in all.; it shares features with no other'
    ):
        read(apart, offsets="GMPR")
    with pytest.raises(ValueError, match='"Wrench" needs features whose proportions vary'):
        read(np.eye(4, dtype=int), offsets="Wrench")
    y = table()
    with pytest.raises(ValueError, match='"RLE" gives unit "0" no size factor'):
        like(read(y[:, [0, 1]] + [1, 0], offsets="RLE"), [[0, 3]])


def test_the_rule_stands_alone():
    rule = ByName("GMPR", Counts([[2, 4], [1, 2], [1, 2]]), pd.RangeIndex(3))
    np.testing.assert_allclose(rule.fitted[:, 0], np.log([4, 1, 1]) / 3 + np.log([1, 0.5 ** (1 / 3), 0.5 ** (1 / 3)]))


def test_nothing_is_warned_of_in_good_tables():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in SCHEMES:
            read(frame(table()), SITES, offsets=name)
