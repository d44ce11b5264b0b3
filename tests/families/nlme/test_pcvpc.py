"""Prediction-corrected visual predictive checks, and checks where limits of quantification differ between rows."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from margaux import NLME
from margaux.families.nlme import ConstantError, LogNormal, Normal, Poisson, bolus1cpt, polynomial
from margaux.families.nlme.corrected import corrections, typical
from margaux.families.nlme.data import group
from margaux.families.nlme.limits import of_rows
from margaux.families.nlme.outcomes import Continuous

SHORT: dict[str, Any] = {"n_iter": 60, "n_burn": 40, "n_starts": 1, "stop": False, "polish": False, "verbose": False}
ROLES: dict[str, Any] = {"id": "id", "time": "time", "y": "y", "dose": "dose"}


def boluses(n=40, seed=0):
    """Doses that differ a hundredfold, and the same times."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"id": np.repeat(np.arange(n), 5), "time": np.tile([1.0, 4.0, 8.0, 16.0, 24.0], n)})
    frame["dose"] = np.repeat(10.0 ** rng.uniform(1, 3, n), 5)
    V, CL = (np.repeat(centre * np.exp(0.2 * rng.normal(size=n)), 5) for centre in (20.0, 2.0))
    curve = frame["dose"] / V * np.exp(-CL / V * frame["time"])
    return frame.assign(y=curve * (1 + 0.1 * rng.normal(size=5 * n)), sex=np.where(frame["id"] % 2, "f", "m"))


@pytest.fixture(scope="module")
def fitted():
    individual = {"V": LogNormal(20.0), "CL": LogNormal(2.0)}
    # Rows in no order of subjects: predictions must find theirs.
    frame = boluses().sample(frac=1.0, random_state=1)
    return NLME(structural=bolus1cpt, individual=individual, error="proportional", **SHORT).fit(frame, **ROLES)


def observed(axis):
    return [line for line in axis.lines if line.get_marker() == "o"]


def test_corrections_are_those_of_the_paper():
    """Equation 1 of Bergstrand et al. (2011) by hand, lower bound zero."""
    predictions, codes = np.array([1.0, 2.0, 8.0, 10.0, 20.0]), np.array([0, 0, 0, 1, 1])
    np.testing.assert_allclose(corrections(predictions, codes), [2.0, 1.0, 0.25, 1.5, 0.75])


def test_a_corrected_check_shows_corrected_observations(fitted):
    frame, p = boluses(), fitted.params_
    shares = np.exp(-p["CL"] / p["V"] * frame["time"]) / p["V"]
    predicted = frame["dose"] * shares
    middle = predicted.groupby(frame["time"]).transform("median")
    corrected = (frame["y"] * middle / predicted).groupby(frame["time"]).quantile([0.05, 0.5, 0.95]).unstack()
    axis = fitted.plot.vpc(200, corrected=True)[0]
    for line, level in zip(observed(axis), (0.05, 0.5, 0.95), strict=True):
        np.testing.assert_allclose(line.get_ydata(), corrected[level], rtol=1e-6)
    assert axis.get_ylabel().startswith("corrected y")
    assert "Prediction-corrected" in axis.figure.get_suptitle()


def test_correction_takes_out_the_spread_of_doses(fitted):
    """Uncorrected, percentiles of the observations span the doses; corrected, no more than subjects and errors."""
    plain, corrected = fitted.plot.vpc(200)[0], fitted.plot.vpc(200, corrected=True)[0]
    spreads = [observed(axis)[2].get_ydata() / observed(axis)[0].get_ydata() for axis in (plain, corrected)]
    kt = 0.1 * np.array([1.0, 4.0, 8.0, 16.0, 24.0])  # what is left: log y = log(1 / V) - t CL / V, and the error
    left = np.exp(3.29 * np.sqrt(0.04 * (1 - kt) ** 2 + 0.04 * kt**2 + 0.01))
    assert np.all(spreads[0] > 20) and np.all(spreads[1] < 1.5 * left) and np.all(spreads[1] > left / 1.5)
    low, high = _band(corrected, 1)
    middle = observed(corrected)[1].get_ydata()
    assert np.all((middle > 0.97 * low) & (middle < 1.03 * high))


def _band(axis, which):
    corners = axis.collections[which].get_paths()[0].vertices
    times = np.unique(corners[:, 0])
    return tuple(np.array([end(corners[corners[:, 0] == t, 1]) for t in times]) for end in (np.min, np.max))


def test_strata_are_corrected_by_bins_of_their_own(fitted):
    axes = fitted.plot.vpc(100, by="sex", log=True, corrected=True)
    assert [axis.get_title() for axis in axes] == ["sex = f", "sex = m"] and axes[0].get_yscale() == "log"
    frame, p = boluses(), fitted.params_
    frame = frame[frame["sex"] == "f"]
    predicted = frame["dose"] / p["V"] * np.exp(-p["CL"] / p["V"] * frame["time"])
    corrected = frame["y"] * predicted.groupby(frame["time"]).transform("median") / predicted
    np.testing.assert_allclose(observed(axes[0])[1].get_ydata(), corrected.groupby(frame["time"]).median(), rtol=1e-6)


def test_simulations_are_corrected_as_observations_are(fitted):
    """A model that is wrong by a factor lies outside its band, by that factor."""
    wrong = copy.copy(fitted)
    wrong.model_ = dataclasses.replace(
        fitted.model_, outcome=dataclasses.replace(fitted.model_.outcome, structural=lambda p, row: 2 * bolus1cpt(p, row))
    )
    one, two = (model.plot.vpc(200, corrected=True)[0] for model in (fitted, wrong))
    np.testing.assert_allclose(_band(two, 1)[0], 2 * _band(one, 1)[0], rtol=1e-6)
    # The median prediction of a bin is twice as large, each prediction too: observations stay.
    np.testing.assert_allclose(observed(two)[1].get_ydata(), observed(one)[1].get_ydata(), rtol=1e-9)


def test_what_cannot_be_corrected_is_refused(fitted):
    def of(outcome):
        other = copy.copy(fitted)
        other.model_ = dataclasses.replace(fitted.model_, outcome=outcome)
        return other

    with pytest.raises(ValueError, match="prediction correction divides by it"):
        of(Continuous(lambda p, row: p["V"] - row["time"] * p["CL"], ConstantError())).plot.vpc(30, corrected=True)
    with pytest.raises(ValueError, match="are about continuous outcomes"):
        of(Poisson("V")).plot.vpc(30, corrected=True)
    late = of(Continuous(lambda p, row: bolus1cpt(p, row) * (row["time"] > 1), ConstantError()))
    with pytest.warns(UserWarning, match="40 rows whose prediction is 0 cannot be corrected"):
        axis = late.plot.vpc(30, corrected=True)[0]
    assert observed(axis)[1].get_xdata().min() == 4.0
    with pytest.warns(UserWarning, match="cannot be corrected"):
        assert np.isnan(typical(late)).sum() == 40


def table(y, **columns):
    n = len(y) // 4
    frame = pd.DataFrame({"id": np.repeat(np.arange(n), 4), "time": np.tile(np.arange(4.0), n), "y": y})
    return frame.assign(**columns)


def grouped(frame, lloq=None, cens=None):
    roles: dict[str, str | None] = {"id": "id", "time": "time", "y": "y", "cens": cens}
    return group(frame, roles, Continuous(polynomial(1), ConstantError()), lloq=lloq)


def test_a_column_of_limits_is_that_of_each_row():
    frame = table([5.0, 1.0, 0.4, 3.0, 5.0, 1.0, 0.4, 3.0], LLOQ=[0.5, 0.5, 0.5, 0.5, 2.0, 2.0, 2.0, 2.0])
    data = grouped(frame, "LLOQ")
    assert data.frame["y"].tolist() == [5.0, 1.0, 0.5, 3.0, 5.0, 2.0, 2.0, 3.0]
    np.testing.assert_array_equal(of_rows(data)[1], frame["LLOQ"])


def test_limits_are_guessed_from_what_is_censored():
    """Of the subject, else the usual one, else the nearest that the outcome does not lie below."""
    y = [5.0, 0.5, 4.0, 2.0, 9.0, 3.0, 3.0, 9.0, 9.0, 0.7, 0.1, 9.0, 9.0, 3.0, 3.0, 9.0]
    cens = [0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0]
    limits = of_rows(grouped(table(y, CENS=cens), cens="CENS"))[1]
    np.testing.assert_array_equal(limits[:4], [0.5, 0.5, 0.5, 2.0])  # the nearer of the subject's two
    np.testing.assert_array_equal(limits[4:8], 3.0)
    np.testing.assert_array_equal(limits[8:12], [3.0, 0.5, 0.1, 3.0])  # usual; largest below 0.7; none below 0.1
    above = of_rows(grouped(table(-np.array(y), CENS=-np.array(cens)), cens="CENS"))[-1]
    np.testing.assert_array_equal(above, -limits)


@pytest.mark.parametrize(("lloq", "told"), [
    ("LOQ", "lloq='LOQ' is no column of the data"),
    ("empty", "the column empty of limits is empty"),
    (np.inf, "lloq must be a number"),
])  # fmt: skip
def test_limits_that_are_none_are_refused(lloq, told):
    with pytest.raises(ValueError, match=told):
        grouped(table([5.0, 1.0, 0.4, 3.0], empty=np.nan), lloq)


@pytest.mark.slow
def test_checks_hold_where_two_laboratories_have_limits_of_their_own():
    """Half of the subjects have a limit four times that of the others; by one limit for all, the share below it is off."""
    rng = np.random.default_rng(3)
    n = 120
    level = np.repeat(2 + 0.5 * rng.normal(size=n), 4)
    frame = table(level - 0.4 * np.tile(np.arange(4.0), n) + 0.3 * rng.normal(size=4 * n))
    frame["limit of lab"] = np.where(frame["id"] % 2 == 0, 0.4, 1.6)
    individual = {"c0": Normal(2.0), "c1": Normal(-0.4, random=False)}
    model = NLME(structural=polynomial(1), individual=individual, **SHORT)
    model.fit(frame, id="id", time="time", y="y", lloq="limit of lab")
    percentiles, share = model.plot.vpc(300)
    low, high = _band(share, 0)
    seen = observed(share)[0].get_ydata()
    expected = np.mean((frame["y"] < frame["limit of lab"]).to_numpy().reshape(-1, 4), axis=0)
    np.testing.assert_allclose(seen, expected)
    assert np.all((seen >= low) & (seen <= high))
    assert np.all(high - low < 0.3) and np.all(np.diff(expected) > 0)
    npde = model.npde(400).frame["npde"].to_numpy()
    assert model.npde(400).test()["p"]["global"] > 0.001
    for lab in (0, 1):
        assert stats.kstest(npde[(frame["id"] % 2 == lab).to_numpy()], "norm").pvalue > 1e-3
