"""Stepwise covariate search: every step against exact maxima and separate fits; relations that are none are rows or errors."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import margaux as mx
from margaux.families.nlme import Normal, covariate_search, lr_test

N, ROWS = 30, 3
TERMS = ["age", "log(weight/70)", "sex", "C(site)"]


def _level(psi, row):
    return psi["m"] + 0.0 * row["t"]


def _line(psi, row):
    return psi["m"] + psi["s"] * row["t"]


def _table(seed: int = 2, slope: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    subjects = pd.DataFrame({"id": np.arange(N), "age": rng.normal(50.0, 12.0, N), "weight": rng.normal(70.0, 12.0, N)})
    subjects["sex"] = rng.integers(0, 2, N)
    subjects["site"] = rng.choice(["a", "b", "c"], N)
    level = 2.0 + 0.04 * (subjects["age"] - 50) + 0.9 * subjects["sex"] + 0.4 * rng.normal(size=N)
    table = subjects.loc[np.repeat(np.arange(N), ROWS)].reset_index(drop=True)
    table["t"] = np.tile(np.arange(float(ROWS)), N)
    steepness = 0.5 + slope * (table["weight"] - 70) / 12
    return table.assign(y=np.repeat(level.to_numpy(), ROWS) + steepness * table["t"] + 0.5 * rng.normal(size=N * ROWS))


def _fitted(table: pd.DataFrame, structural: Any = _level, **individual: Any) -> Any:
    model = mx.NLME(structural=structural, individual=individual or {"m": Normal(1.0)}, n_starts=1, verbose=False)
    return model.fit(table, id="id", time="t", y="y")


def _columns(table: pd.DataFrame, term: str) -> np.ndarray:
    first = table.iloc[::ROWS]
    if term == "C(site)":
        return np.stack([(first["site"] == site).to_numpy(float) for site in "bc"], axis=1)
    return (np.log(first["weight"] / 70) if term.startswith("log") else first[term]).to_numpy(float)[:, None]


def _exact(table: pd.DataFrame, terms: list[str]) -> float:
    """The largest Gaussian log-likelihood of levels that differ by these terms, from sums of squares."""
    y = table["y"].to_numpy().reshape(N, ROWS)
    means = y.mean(axis=1)
    design = np.concatenate([np.ones((N, 1)), *(_columns(table, term) for term in terms)], axis=1)
    fitted = design @ np.linalg.lstsq(design, means, rcond=None)[0]
    noise = ((y - means[:, None]) ** 2).sum() / (N * (ROWS - 1))
    total = ROWS * ((means - fitted) ** 2).sum() / N
    assert total > noise
    covariance = noise * np.eye(ROWS) + (total - noise) / ROWS
    return float(np.sum(stats.multivariate_normal(np.zeros(ROWS), covariance).logpdf(y - fitted[:, None])))


def _stepwise(table: pd.DataFrame, forward: float, backward: float) -> tuple[list[dict[str, Any]], list[str]]:
    """The same search by exact likelihoods."""
    inside: list[str] = []
    rows: list[dict[str, Any]] = []

    def looked(terms: list[str], others: Any) -> list[dict[str, Any]]:
        found = []
        for term in terms:
            less, more = sorted([_exact(table, others(term)), _exact(table, inside)])
            df = _columns(table, term).shape[1]
            found.append({"term": term, "df": df, "drop": 2 * (more - less), "p": stats.chi2.sf(2 * (more - less), df)})
        return found

    while left := [term for term in TERMS if term not in inside]:
        step = looked(left, lambda term: [*inside, term])
        rows += step
        best = min(step, key=lambda row: row["p"])
        if best["p"] >= forward:
            break
        inside.append(best["term"])
    while inside:
        step = looked(list(inside), lambda term: [other for other in inside if other != term])
        rows += step
        worst = max(step, key=lambda row: row["p"])
        if worst["p"] <= backward:
            break
        inside.remove(worst["term"])
    return rows, inside


@pytest.fixture(scope="module")
def fitted():
    return _fitted(_table())


@pytest.fixture(scope="module")
def found(fitted):
    return fitted.covariates({"m": TERMS}, forward=0.3, backward=0.01)


def test_every_step_is_that_of_exact_likelihoods(found):
    rows, inside = _stepwise(_table(), 0.3, 0.01)
    assert len(inside) >= 2 and len(rows) > 8
    assert list(found.table["term"]) == [row["term"] for row in rows]
    assert list(found.table["df"]) == [row["df"] for row in rows]
    np.testing.assert_allclose(found.table["drop"], [row["drop"] for row in rows], atol=5e-3)
    np.testing.assert_allclose(found.table["p"], [row["p"] for row in rows], rtol=0.02, atol=1e-4)
    assert found.selected == {"m": [term for term in TERMS if term in inside]}
    assert found.drop == pytest.approx(2 * (_exact(_table(), inside) - _exact(_table(), [])), abs=5e-3)
    assert (found.table["direction"] == "backward").sum() > len(inside) and set(found.table["note"]) == {""}


def test_what_is_kept_is_what_the_table_says(found):
    forward = found.table[found.table["direction"] == "forward"]
    last = found.table[found.table["step"] == found.table["step"].max()]
    assert forward.groupby("step")["kept"].sum().max() == 1
    assert sorted(last.loc[last["kept"], "term"]) == sorted(found.selected["m"]) and last["kept"].all()


def test_the_final_model_is_the_one_that_is_fitted_alone(fitted, found):
    alone = _fitted(_table(), m=Normal(1.0, covariates=" + ".join(found.selected["m"])))
    assert list(found.final.params_) == list(alone.params_)
    for name, value in alone.params_.items():
        assert found.final.params_[name] == pytest.approx(value, abs=0.02 * alone.stderr_[name])
        assert found.final.stderr_[name] == pytest.approx(alone.stderr_[name], rel=0.02)
    assert lr_test(fitted, found.final).statistic == pytest.approx(found.drop, abs=0.02)
    assert found.final.individual["m"].covariates == " + ".join(found.selected["m"]) and fitted.individual["m"].covariates is None
    assert found.final.predict().shape == (N * ROWS,) and not found.note
    assert found.message.startswith(f"m ~ {' + '.join(found.selected['m'])}; -2 log-likelihood is")


@pytest.mark.slow
def test_parameters_without_effects_and_covariates_that_are_there():
    """A likelihood ratio each, of two separate fits; what the model had from the start is neither tried nor dropped."""
    table = _table(slope=0.5)
    base = _fitted(table, _line, m=Normal(1.0, covariates="sex"), s=Normal(0.1, random=False))
    found = base.covariates({"s": ["log(weight/70)", "sex"], "m": ["age"]}, forward=1e-6, backward=1e-6)
    first = found.table[found.table["step"] == 1].set_index(["parameter", "term"])
    for parameter, term in first.index:
        old = {"m": "sex"}.get(parameter)
        covariates = {"m": "sex"} | {parameter: term if old is None else f"{old} + {term}"}
        one = _fitted(table, _line, m=Normal(1.0, covariates=covariates["m"]),
                      s=Normal(0.1, random=False, covariates=covariates.get("s")))  # fmt: skip
        test = lr_test(base, one)
        assert first.loc[(parameter, term), "drop"] == pytest.approx(test.statistic, abs=0.02)
        assert first.loc[(parameter, term), "p"] == pytest.approx(test.p, rel=0.05, abs=1e-12)
    assert found.selected == {"s": ["log(weight/70)"], "m": ["age"]}
    slopes = ["m", "beta_m[sex]", "beta_m[age]", "s", "beta_s[log(weight / 70)]"]
    assert list(found.final.params_) == [*slopes, "omega2_m", "a"] and not found.note


def test_one_after_the_other(fitted, found, monkeypatch):
    """More random effects than a grid has: the same table."""
    monkeypatch.setattr("margaux.families.nlme.maxima.NODES", {})
    apart = fitted.covariates({"m": TERMS[:2]}, forward=0.05)
    assert apart.selected == {"m": ["age"]}
    first = found.table.iloc[:2]
    np.testing.assert_allclose(apart.table["drop"][:2], first["drop"], atol=0.02)


def test_nothing_is_found(fitted):
    found = fitted.covariates({"m": ["log(weight/70)"]}, forward=1e-6)
    assert found.final is fitted and found.selected == {} and found.drop == 0.0
    assert len(found.table) == 1 and not found.table["kept"].any()
    assert found.message == "no relation; -2 log-likelihood is 0.00 lower."


@pytest.mark.slow
def test_columns_that_say_nothing_are_rows_that_say_why():
    table = _table().assign(one=7.3, pounds=lambda t: t["weight"] / 0.4536, young=lambda t: 100 - 2 * t["age"])
    found = _fitted(table).covariates({"m": ["one", "age", "young", "weight", "pounds"]}, forward=0.4, backward=0.4)
    notes = found.table.set_index(["term", "step"])["note"]
    assert notes["one", 1] == "left out: constant over subjects"
    assert found.table[found.table["term"] == "one"]["drop"].isna().all()
    first = "age" if found.table.query("step == 1 and kept")["term"].item() == "young" else "young"
    assert notes[first, 1] == "" and notes[first, 2] == "left out: linearly dependent on what the parameter has"
    both = found.table.set_index(["step", "term"])["drop"]
    assert both[1, "young"] == pytest.approx(both[1, "age"], abs=1e-3) and both[1, "weight"] == pytest.approx(both[1, "pounds"])
    assert "relations have notes (see table)" in found.message


@pytest.mark.parametrize("far", [0.0, 2020.0])
def test_where_a_covariate_is_far_from_zero(far):
    """A calendar year moves the intercept far away, and changes no likelihood."""
    table = _table().assign(year=lambda t: t["age"] / 20 + far)
    found = _fitted(table).covariates({"m": ["year"]})
    assert found.drop == pytest.approx(2 * (_exact(_table(), ["age"]) - _exact(_table(), [])), abs=5e-3)
    assert found.final.converged_ and found.final.params_["beta_m[year]"] > 0 and not found.note


def _with_hole(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(hole=table["age"].where(table["id"] != 4), zero=table["age"].where(table["id"] != 6, 0.0))


@pytest.mark.parametrize(
    ("candidates", "said"),
    [
        ({}, "candidates must name terms of each parameter"),
        (["age"], "candidates must name terms of each parameter"),
        ({"m": []}, "candidates name no term of any parameter"),
        ({"k": ["age"]}, "candidates name 'k', which is no individual parameter; they are m"),
        ({"m": ["age", "age "]}, "candidates name 'age' of m twice"),
        ({"m": ["age", 3]}, "a candidate of m must be a term of a formula"),
        ({"m": ["height"]}, "cannot build the covariates 'height' of m from columns"),
        ({"m": ["hole"]}, r"the covariate hole is missing \(subject 4, row 12\)"),
        ({"m": ["t"]}, r"the covariate t varies within a subject \(subject 0, row 1\)"),
        ({"m": ["log(zero)"]}, r"the candidate 'log\(zero\)' of m is not finite for subject 6"),
        ({"m": ["1"]}, "the term '1' of m has no column of its own"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(candidates, said, monkeypatch, holes):
    monkeypatch.setattr(covariate_search, "maxima", None)
    with pytest.raises((ValueError, TypeError), match=said), np.errstate(all="ignore"):
        holes.covariates(candidates)


@pytest.fixture(scope="module")
def holes():
    return _fitted(_with_hole(_table()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"search": "lasso"}, 'search must be "scm"'),
        ({"forward": 5}, "forward must be a p-value between 0 and 1, got 5"),
        ({"backward": 0.0}, "backward must be a p-value between 0 and 1, got 0.0"),
    ],
)
def test_settings_out_of_their_range(fitted, arguments, said):
    with pytest.raises(ValueError, match=said):
        fitted.covariates({"m": ["age"]}, **arguments)
