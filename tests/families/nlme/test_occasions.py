"""Effects between occasions: exact maxima of a linear model, what each occasion is given, errors that name the row."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import optimize

import margaux as mx
from margaux.families.nlme import LogNormal, Normal, Poisson, bolus1cpt, words

MU, OMEGA, GAMMA, NOISE = 2.0, 0.8, 0.6, 0.5


def _level(psi, row):
    return psi["m"] + 0.0 * row["t"]


def _table(n: int = 60, seed: int = 0, gamma: float = GAMMA, omega: float = OMEGA) -> pd.DataFrame:
    """Levels of subjects with one to three occasions of two to four rows."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        eta = omega * rng.normal()
        for k in range(rng.integers(1, 4)):
            kappa = gamma * rng.normal()
            for t in range(rng.integers(2, 5)):
                rows.append((i, f"day {k}", float(t), MU + eta + kappa + NOISE * rng.normal()))
    return pd.DataFrame(rows, columns=["id", "visit", "t", "y"])


class Gaussian:
    """The likelihood of a table. Subjects have as many rows as the longest; a row that is none is a standard normal zero."""

    def __init__(self, table: pd.DataFrame):
        subjects = [own for _, own in table.groupby("id")]
        visit, self.y, self.there = (np.zeros((len(subjects), max(map(len, subjects)))) for _ in range(3))
        for i, own in enumerate(subjects):
            visit[i, : len(own)], self.y[i, : len(own)] = own["visit"].str[-1].astype(int), own["y"]
            self.there[i, : len(own)] = 1.0
        self.both = self.there[:, :, None] * self.there[:, None]
        self.same = self.both * (visit[:, :, None] == visit[:, None])

    def __call__(self, mean, omega2, gamma2, a2, np=np):
        diagonal = np.where(self.there > 0, a2, 1.0)[:, :, None] * np.eye(self.y.shape[1])
        covariance = omega2 * self.both + gamma2 * self.same + diagonal
        away = (self.there * (self.y - mean))[:, :, None]
        squares = np.sum(away * np.linalg.solve(covariance, away))
        return -(squares + np.sum(np.linalg.slogdet(covariance)[1]) + np.sum(self.there) * np.log(2 * np.pi)) / 2


def _exact(table: pd.DataFrame, between: bool = True) -> tuple[np.ndarray, float]:
    """The maximum of the Gaussian likelihood: mean, variances between subjects and occasions, SD of the error."""
    loglik = Gaussian(table)

    def minus(u: np.ndarray) -> float:
        return -loglik(u[0], np.exp(u[1]) * between, np.exp(u[2]), np.exp(2 * u[3]))

    found = optimize.minimize(minus, [2.0, -0.5, -1.0, -0.7], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-8})
    return np.r_[found.x[0], np.exp(found.x[1:])], -found.fun


def _fit(table: pd.DataFrame, **settings: Any) -> mx.NLME:
    one = Normal(settings.pop("start", None), occasion=True, random=settings.pop("random", True))
    model = mx.NLME(structural=_level, individual={"m": one}, n_starts=1, verbose=False, **settings)
    return model.fit(table, id="id", time="t", y="y", occ="visit")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return _table()


@pytest.fixture(scope="module")
def fitted(table) -> mx.NLME:
    return _fit(table)


def test_the_maximum_of_the_gaussian_likelihood(table, fitted):
    """Where some subjects have one occasion and some three."""
    exact, loglik = _exact(table)
    assert list(fitted.params_) == ["m", "omega2_m", "gamma2_m", "a"]
    errors = np.asarray(list(fitted.stderr_.values()))
    assert np.all(np.abs(np.asarray(list(fitted.params_.values())) - exact) < 0.03 * errors)
    assert float(fitted.loglik_) == pytest.approx(loglik, abs=0.02)
    assert fitted.certificate_.level in ("pass", "careful")


def test_standard_errors_are_those_of_the_gaussian_likelihood(table, fitted):
    loglik = Gaussian(table)

    def at(u):
        return loglik(u[0], u[1], u[2], u[3] ** 2, jnp)

    with jax.enable_x64(True):
        information = -jax.jit(jax.hessian(at))(jnp.asarray(list(fitted.params_.values())))
        exact = np.sqrt(np.diagonal(np.linalg.inv(np.asarray(information))))
    np.testing.assert_allclose(list(fitted.stderr_.values()), exact, rtol=0.03)


def test_each_occasion_has_its_own_conditional_mean(table, fitted):
    """Of a linear model the posterior is Gaussian: its mean, its mode and the best linear prediction agree."""
    mean, omega2, gamma2, a = fitted.params_.values()
    found = fitted.by_occasion_
    assert found.index.names == ["id", "visit"]
    for i in (0, 1, 2):
        own = table[table["id"] == i]
        visit = own["visit"].to_numpy()
        same = visit[:, None] == visit[None]
        weights = np.linalg.solve(omega2 + gamma2 * same + a**2 * np.eye(len(own)), own["y"].to_numpy() - mean)
        for k, row in found.loc[i].iterrows():
            expected = mean + (omega2 + gamma2 * (visit == k)) @ weights
            assert row["mode_m"] == pytest.approx(expected, abs=1e-4)
            assert row["mean_m"] == pytest.approx(expected, abs=0.02)
        assert fitted.individual_.loc[i, "mode_m"] == pytest.approx(mean + omega2 * weights.sum(), abs=1e-4)


def test_predictions_are_those_of_the_row_s_occasion(table, fitted):
    rows = table[table["id"] == 1]
    expected = fitted.by_occasion_["mode_m"].loc[list(zip(rows["id"], rows["visit"], strict=True))]
    np.testing.assert_allclose(fitted.predict()[rows.index], expected, rtol=1e-6)
    new = rows.assign(visit="another day")
    np.testing.assert_allclose(fitted.predict(new), fitted.individual_.loc[1, "mode_m"], rtol=1e-6)
    np.testing.assert_allclose(fitted.predict(rows.iloc[::-1]), fitted.predict()[rows.index][::-1], rtol=1e-6)
    np.testing.assert_allclose(fitted.predict(level="population"), fitted.params_["m"])
    with pytest.raises(ValueError, match=r"visit is missing \(subject 1, row 0\)"):
        fitted.predict(rows.assign(visit=None))


def test_simulations_have_the_variances_of_the_model(fitted):
    frame = pd.DataFrame({"id": np.repeat(np.arange(2), 4), "visit": [1, 1, 2, 2] * 2, "t": 0.0})
    draws = fitted.simulate(frame, n_draws=4000, key=1)
    covariance = np.cov(draws.T)
    _, omega2, gamma2, a = fitted.params_.values()
    total = omega2 + gamma2 + a**2
    for pair, expected in {(0, 0): total, (0, 1): omega2 + gamma2, (0, 2): omega2, (0, 4): 0.0}.items():
        assert covariance[pair] == pytest.approx(expected, abs=5 * total * np.sqrt(2 / 4000))


def test_shrinkage_draws_and_words_know_of_occasions(fitted):
    assert list(fitted.shrinkage().index) == ["m", "m[occasion]"]
    assert 0 < fitted.shrinkage()["m[occasion]"] < 1
    assert fitted.sample_individual(20)["m"].shape == (20, 60, 3)
    assert words.effects(fitted).endswith("m between the occasions of a subject, too")
    assert fitted.residuals()["npde"].notna().all()


@pytest.mark.slow
def test_a_variance_between_occasions_that_is_not_there_is_zero():
    """And said to be: the fit ends on the boundary."""
    model = _fit(_table(seed=4, gamma=0.0))
    assert model.params_["gamma2_m"] < 0.02
    if model.params_["gamma2_m"] == 0:
        assert np.isnan(model.stderr_["gamma2_m"])
        assert "boundary" in model.message_


@pytest.mark.slow
def test_effects_between_occasions_alone(table):
    model = _fit(table, random=False)
    exact, loglik = _exact(table, between=False)
    assert list(model.params_) == ["m", "gamma2_m", "a"]
    np.testing.assert_allclose(list(model.params_.values()), exact[[0, 2, 3]], rtol=0.02)
    assert float(model.loglik_) == pytest.approx(loglik, abs=0.02)


def test_occasions_of_an_event_table_are_found_by_name():
    rng = np.random.default_rng(3)
    rows = []
    for i in range(12):
        eta = 0.2 * rng.normal()
        for k in (1, 2):
            CL = 2 * np.exp(eta + 0.2 * rng.normal())
            rows.append((i, k, 0.0, 100.0, 1, np.nan))
            for t in (1.0, 4.0, 8.0):
                rows.append((i, k, t, 0.0, 0, 5 * np.exp(-CL / 20 * t) * np.exp(0.1 * rng.normal())))
    table = pd.DataFrame(rows, columns=["ID", "OCC", "TIME", "AMT", "EVID", "DV"])
    individual = {"CL": LogNormal(2.0, occasion=True), "V": LogNormal(20.0, random=False)}
    model = mx.NLME(structural=bolus1cpt, individual=individual, error="proportional", n_starts=1, verbose=False).fit(table)
    assert {"omega2_CL", "gamma2_CL"} <= set(model.params_)
    assert len(model.by_occasion_) == 24
    later = table.assign(TIME=table["TIME"] + 24 * (table["OCC"] - 1))
    emptied = later.assign(EVID=np.where(later["EVID"] == 1, 4, 0))
    again = mx.NLME(structural=bolus1cpt, individual=individual, error="proportional", n_starts=1, verbose=False).fit(emptied)
    assert float(again.loglik_) == pytest.approx(float(model.loglik_), abs=0.02)


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: t.assign(visit=1), "every subject has one visit"),
    (lambda t: t.assign(visit=t.index), r"every visit has one observation \(the first: subject 0, row 0\)"),
    (lambda t: t.assign(visit=t["visit"].where(t.index != 7)), r"visit is missing \(subject 1, row 7\)"),
])  # fmt: skip
def test_occasions_that_cannot_be_told_apart_are_refused(table, change, message):
    with pytest.raises(ValueError, match=message):
        _fit(change(table))


def test_what_effects_of_occasions_need_is_asked_for(table):
    with pytest.raises(ValueError, match=r"name the column of the occasions: fit\(data, \.\.\., occ="):
        mx.NLME(structural=_level, individual={"m": Normal(occasion=True)}, verbose=False).fit(table, id="id", time="t", y="y")
    counts = table.assign(y=1.0)
    with pytest.raises(ValueError, match="for continuous outcomes"):
        individual = {"m": Normal(occasion=True)}
        mx.NLME(log_likelihood=Poisson("m"), individual=individual, verbose=False).fit(counts, id="id", y="y", occ="visit")
