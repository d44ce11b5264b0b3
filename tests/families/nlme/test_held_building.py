"""Bootstrap, importance resampling and covariate search of models of which something is held, or changes between occasions."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from test_occasion_covariates import COLUMNS, _exact, _level, _mean, _table

import margaux as mx
from margaux.families.nlme import ConstantError, Normal
from margaux.families.nlme.bootstrap import CONVERGED, UNKNOWN

#: what is asked for, columns of the mean, variances that are free, and what is held
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, float]]] = {
    "a covariate of occasions": ({"covariates": "sex + w"}, ("omega2", "a"), {}),
    "a coefficient and a variance": (
        {"covariates": "sex + w", "coefficients": {"w": 0.7}, "variance": 0.5},
        ("a",),
        {"w": 0.7, "omega2": 0.5},
    ),
    "an intercept": ({"start": 1.6, "fixed": True, "covariates": "sex + w"}, ("omega2", "a"), {"m": 1.6}),
    "an error": ({"covariates": "sex + w"}, ("omega2",), {"a": 0.6}),
    "a variance between occasions": (
        {"covariates": "sex + w", "occasion": True, "occasion_variance": 0.2},
        ("omega2", "a"),
        {"gamma2": 0.2},
    ),
}
NAMED = {"m": "m", "sex": "beta_m[sex]", "w": "beta_m[w]", "omega2": "omega2_m", "gamma2": "gamma2_m", "a": "a"}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Subjects of one or two occasions, which a grid has nodes for."""
    whole = _table(30, seed=1)
    return pd.DataFrame(whole[whole["visit"] != "day 2"]).reset_index(drop=True)


def _fit(table: pd.DataFrame, case: str, **changed: Any) -> Any:
    asked, _, held = CASES[case]
    error = ConstantError(fixed=held.get("a"))
    settings: dict[str, Any] = {"start": 1.0} | asked | changed
    model = mx.NLME(structural=_level, individual={"m": Normal(**settings)}, error=error, n_starts=1, verbose=False)
    return model.fit(table, **COLUMNS)


def _drawn(table: pd.DataFrame, counts: np.ndarray) -> pd.DataFrame:
    """The table of a resample, its subjects numbered anew."""
    ids = np.repeat(np.unique(table["id"]), counts)
    parts = [table[table["id"] == one].assign(id=number) for number, one in enumerate(ids)]
    return pd.concat(parts, ignore_index=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_replicates_are_exact_maxima_over_what_is_not_held(table, case):
    _, variances, held = CASES[case]
    fitted = _fit(table, case)
    found = fitted.bootstrap(3, key=1)
    assert set(found.status) == {CONVERGED} and list(found.replicates.columns) == list(fitted.params_)
    free = [NAMED[name] for name in [*(one for one in ("m", "sex", "w") if one not in held), *variances]]
    for counts, (_, values), loglik in zip(found.counts, found.replicates.iterrows(), found.loglik, strict=True):
        own = _drawn(table, counts)
        best, top, errors = _exact(own, _mean(own), variances, **held)
        assert np.all(np.abs(values[free].to_numpy() - best) < 0.03 * errors)
        assert loglik == pytest.approx(top, abs=0.01)
    for name, value in held.items():
        assert np.all(np.abs(found.replicates[NAMED[name]] - value) < 1e-12)
    known = dict(zip(found.replicates.columns, np.isfinite(found.acceleration), strict=True))
    assert [name for name, finite in known.items() if not finite] == list(fitted.held_)


@pytest.mark.slow
def test_a_resample_in_which_no_covariate_changes_tells_no_effect_of_it(table):
    """One subject's occasions differ in x, and nobody else's in anything: without that subject there is no effect of x."""
    some = table[table["id"].isin(np.unique(table["id"])[:12])].copy()
    last = some[some["visit"] == "day 1"]["id"].iloc[0]
    some["x"] = ((some["id"] == last) & (some["visit"] == "day 1")).astype(float)
    found = _fit(some, "a covariate of occasions", covariates="x").bootstrap(12, key=3)
    without = found.counts[:, np.unique(some["id"]).tolist().index(last)] == 0
    assert 2 < without.sum() < 12
    np.testing.assert_array_equal(found.status == UNKNOWN, without)


@pytest.mark.slow
def test_an_error_that_is_held_beside_a_variance_that_vanished():
    """The model that is asked for again holds it, too."""
    rng = np.random.default_rng(4)
    y = 0.5 * rng.normal(size=(16, 3))
    y = 2.0 + y - y.mean(axis=1, keepdims=True)
    table = pd.DataFrame({"id": np.repeat(np.arange(16), 3), "t": np.tile(np.arange(3.0), 16), "visit": 1, "y": y.ravel()})
    fitted = mx.NLME(
        structural=_level, individual={"m": Normal(1.0)}, error=ConstantError(fixed=0.45), n_starts=1, verbose=False
    ).fit(table, **COLUMNS)
    assert fitted._dropped == ("omega2_m",) and fitted.held_ == {"a": 0.45}
    assert np.all(fitted.bootstrap(3).replicates["a"] == 0.45)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_importance_weights_are_by_the_exact_likelihood(table, case):
    fitted = _fit(table, case)
    found = fitted.sir(60)
    groups = [(own["y"], own["sex"], own["w"], own["visit"].to_numpy()) for _, own in table.groupby("id")]

    def loglik(values: Any) -> float:
        total = 0.0
        for y, sex, w, visit in groups:
            same = visit[:, None] == visit[None]
            covariance = values["omega2_m"] + values.get("gamma2_m", 0.0) * same + values["a"] ** 2 * np.eye(len(y))
            mean = values["m"] + values["beta_m[sex]"] * sex + values["beta_m[w]"] * w
            total += stats.multivariate_normal.logpdf(y, mean, covariance)
        return total

    top = loglik(fitted.params_)
    for _, one in found.proposals.iloc[:6].iterrows():
        assert one["drop"] == pytest.approx(2 * (top - loglik(one)), abs=0.02)
    for name, value in fitted.held_.items():
        assert np.all(np.abs(found.proposals[name] - value) < 1e-12)
    summary = found.summary()
    assert np.all(np.isfinite(summary.to_numpy()))
    assert list(summary.index[summary["sd"] < 1e-12]) == list(fitted.held_)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_a_search_for_covariates_keeps_what_is_held(table, case):
    asked, variances, held = CASES[case]
    fitted = _fit(table, case, covariates="w")
    found = fitted.covariates({"m": ["sex"]}, forward=0.9999, backward=0.9998)
    mean = _mean(table)
    _, without, _ = _exact(table, {name: mean[name] for name in ("m", "w")}, variances, **held)
    best, loglik, errors = _exact(table, mean, variances, **held)
    assert found.table["drop"].iloc[0] == pytest.approx(2 * (loglik - without), abs=0.02)
    final = found.final
    assert final.held_ == pytest.approx({NAMED[name]: value for name, value in held.items()})
    free = [NAMED[name] for name in [*(one for one in ("m", "sex", "w") if one not in held), *variances]]
    assert np.all(np.abs(np.asarray([final.params_[name] for name in free]) - best) < 0.03 * errors)
    assert float(final.loglik_) == pytest.approx(loglik, abs=0.02) and not found.note


def test_a_candidate_that_changes_between_occasions_is_refused(table):
    fitted = _fit(table, "a covariate of occasions", covariates="sex")
    with pytest.raises(ValueError, match=r"'w' of m changes between a subject's occasions, .* covariates='w' of m"):
        fitted.covariates({"m": ["w"]})


@pytest.mark.slow
def test_a_variance_between_occasions_that_vanished_leaves_the_effect_of_a_covariate():
    """It is asked for again, and the coefficient is then of another kind; resamples without it have the same maxima."""
    whole = _table(30, seed=2, gamma=0.0)
    table = pd.DataFrame(whole[whole["visit"] != "day 2"]).reset_index(drop=True)
    fitted = _fit(table, "a covariate of occasions", occasion=True)
    assert fitted._dropped == ("gamma2_m",)
    found = fitted.bootstrap(4, key=5)
    zero = found.replicates["gamma2_m"] == 0
    assert zero.any()
    for counts, values, loglik, none in zip(found.counts, found.replicates.to_numpy(), found.loglik, zero, strict=True):
        own = _drawn(table, counts)
        best, top, errors = _exact(own, _mean(own), ("omega2", "a") if none else ("omega2", "gamma2", "a"))
        assert np.all(np.abs((np.delete(values, 4) if none else values) - best) < 0.05 * errors)
        assert loglik == pytest.approx(top, abs=0.02)
