"""Covariates that change between occasions: exact maxima of a linear model, predictions by the row's occasion, errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import optimize

import margaux as mx
from margaux.families.nlme import Normal

COLUMNS: dict[str, Any] = {"id": "id", "time": "t", "y": "y", "occ": "visit"}


def _level(psi, row):
    return psi["m"] + 0.0 * row["t"]


def _table(n: int = 50, seed: int = 0, gamma: float = 0.5) -> pd.DataFrame:
    """Levels of subjects with one to three occasions, whose weight changes between them, and sex does not."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        eta, sex, first = 0.8 * rng.normal(), rng.integers(2), rng.normal()
        for k in range(rng.integers(1, 4)):
            weight = first + 0.7 * rng.normal()
            kappa = 0.9 * weight + gamma * rng.normal()
            for t in range(rng.integers(2, 5)):
                rows.append((i, f"day {k}", float(t), weight, sex, 2.0 + 0.4 * sex + eta + kappa + 0.4 * rng.normal()))
    return pd.DataFrame(rows, columns=["id", "visit", "t", "w", "sex", "y"])


VARIANCES = ("omega2", "slope2", "gamma2", "a")


@jax.enable_x64(True)
def _exact(table: pd.DataFrame, mean: dict[str, Any], variances: tuple[str, ...], **held: float):
    """The maximum of the Gaussian likelihood, the log-likelihood there, and standard errors.

    Args:
        mean: columns of the mean, by the names of their coefficients. variances: which of `VARIANCES` are free, the others being
            zero. held: values of those coefficients that are not free.
    """
    free = [*[name for name in mean if name not in held], *variances]
    n, width = len(set(table["id"])), int(table["id"].value_counts().max())
    x, (y, t, there) = np.zeros((n, width, len(mean))), np.zeros((3, n, width))
    same = np.zeros((n, width, width))
    for i, own in enumerate(own for _, own in table.groupby("id")):
        size, visit = len(own), own["visit"].to_numpy()
        x[i, :size] = np.stack([np.broadcast_to(column, len(table))[own.index] for column in mean.values()], axis=1)
        y[i, :size], t[i, :size], there[i, :size] = own["y"], own["t"], 1.0
        same[i, :size, :size] = visit[:, None] == visit[None]
    padding = np.sum(1 - there)
    logged = np.asarray([name in VARIANCES for name in free])

    def loglik(values):
        at = dict.fromkeys(VARIANCES, 0.0) | held | dict(zip(free, values, strict=True))
        noise = jnp.where(there > 0, at["a"] ** 2, 1.0)[:, None] * jnp.eye(width)
        covariance = at["omega2"] * there[:, :, None] * there[:, None] + at["slope2"] * t[:, :, None] * t[:, None]
        centre = x @ jnp.stack([jnp.asarray(at[name], float) for name in mean])
        each = jax.scipy.stats.multivariate_normal.logpdf(y, centre, covariance + at["gamma2"] * same + noise)
        return jnp.sum(each) + padding * np.log(2 * np.pi) / 2

    def natural(u):
        return jnp.where(logged, jnp.exp(u), u)

    slope = jax.jit(jax.value_and_grad(lambda u: -loglik(natural(u))))
    found = optimize.minimize(lambda u: [np.asarray(v, float) for v in slope(u)], np.where(logged, -1.0, 0.0), jac=True)
    best = natural(found.x)
    information = -jax.jit(jax.hessian(loglik))(best)
    errors = np.sqrt(np.diagonal(np.linalg.inv(np.asarray(information))))
    return np.asarray(best), -float(found.fun), errors


def _mean(table: pd.DataFrame) -> dict[str, Any]:
    return {"m": 1.0, "sex": table["sex"].to_numpy(), "w": table["w"].to_numpy()}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return _table()


def _fit(table: pd.DataFrame, **individual: Any) -> mx.NLME:
    one = Normal(1.0, **{"occasion": True, "covariates": "sex + w"} | individual)
    return mx.NLME(structural=_level, individual={"m": one}, n_starts=1, verbose=False).fit(table, **COLUMNS)


@pytest.fixture(scope="module")
def fitted(table) -> mx.NLME:
    return _fit(table)


def _held_to(model: mx.NLME, exact: tuple[np.ndarray, float, np.ndarray]) -> None:
    best, loglik, errors = exact
    free = [name for name in model.params_ if name not in model.held_]
    values = np.asarray([model.params_[name] for name in free])
    assert np.all(np.abs(values - best) < 0.03 * errors)
    assert float(model.loglik_) == pytest.approx(loglik, abs=0.01)
    np.testing.assert_allclose([model.stderr_[name] for name in free], errors, rtol=0.03)


def test_the_maximum_of_the_gaussian_likelihood(table, fitted):
    """One covariate of subjects and one of occasions in one formula, where subjects have one to three of them."""
    assert list(fitted.params_) == ["m", "beta_m[sex]", "beta_m[w]", "omega2_m", "gamma2_m", "a"]
    _held_to(fitted, _exact(table, _mean(table), ("omega2", "gamma2", "a")))
    assert fitted.certificate_.level in ("pass", "careful")


@pytest.mark.slow
def test_without_other_effects_between_occasions(table):
    """The coefficient has then no closed M-step."""
    model = _fit(table, occasion=False)
    assert list(model.params_) == ["m", "beta_m[sex]", "beta_m[w]", "omega2_m", "a"]
    _held_to(model, _exact(table, _mean(table), ("omega2", "a")))
    own = model.by_occasion_["mode_m"].loc[list(zip(table["id"], table["visit"], strict=True))]
    np.testing.assert_allclose(model.predict(), own, rtol=1e-6)
    assert len(model.plot.fits(n=2).ravel()) == 2


@pytest.mark.slow
def test_a_coefficient_and_a_variance_that_are_held(table):
    model = _fit(table, coefficients={"w": 1.2}, occasion_variance=0.5)
    assert model.held_ == {"beta_m[w]": 1.2, "gamma2_m": 0.5}
    _held_to(model, _exact(table, _mean(table), ("omega2", "a"), w=1.2, gamma2=0.5))


def test_a_coefficient_that_is_held_of_a_parameter_that_does_not_vary_otherwise(table):
    model = _fit(table, occasion=False, coefficients={"w": 1.2, "sex": 0.0})
    _held_to(model, _exact(table, _mean(table), ("omega2", "a"), w=1.2, sex=0.0))


@pytest.mark.slow
def test_a_variance_that_is_not_there_leaves_the_covariate():
    table = _table(seed=2, gamma=0.0)
    model, exact = _fit(table), _exact(table, _mean(table), ("omega2", "a"))
    assert model.params_["gamma2_m"] == 0.0 and np.isnan(model.stderr_["gamma2_m"])
    assert model.params_["beta_m[w]"] == pytest.approx(exact[0][2], abs=0.03 * exact[2][2])
    assert float(model.loglik_) == pytest.approx(exact[1], abs=0.01)
    assert len(model.by_occasion_) == len(table[["id", "visit"]].drop_duplicates())


def test_predictions_and_simulations_have_the_covariate_of_the_row_s_occasion(table, fitted):
    m, sex, w, omega2, gamma2, a = fitted.params_.values()
    np.testing.assert_allclose(fitted.predict(level="population"), m + sex * table["sex"] + w * table["w"], rtol=1e-6)
    rows = table[table["id"] == 1]
    effects = fitted.by_occasion_["mode_m"].loc[list(zip(rows["id"], rows["visit"], strict=True))].to_numpy()
    np.testing.assert_allclose(fitted.predict()[rows.index], effects, rtol=1e-6)
    heavier = rows.assign(w=rows["w"] + 1.0)
    np.testing.assert_allclose(fitted.predict(heavier), effects + w, rtol=1e-6)
    new = rows.assign(visit="another day", w=2.0)
    np.testing.assert_allclose(fitted.predict(new), fitted.individual_.loc[1, "mode_m"] + 2.0 * w, rtol=1e-6)
    frame = pd.DataFrame({"id": 0, "visit": [1, 1, 2, 2, 3], "t": 0.0, "sex": 1, "w": [0.0, 0.0, 1.0, 1.0, -2.0]})
    draws, total = fitted.simulate(frame, n_draws=4000, key=1), omega2 + gamma2 + a**2
    np.testing.assert_allclose(draws.mean(axis=0), m + sex + w * frame["w"], atol=5 * np.sqrt(total / 4000))
    covariance = np.cov(draws.T)
    for pair, expected in {(0, 0): total, (0, 1): omega2 + gamma2, (1, 2): omega2}.items():
        assert covariance[pair] == pytest.approx(expected, abs=5 * total * np.sqrt(2 / 4000))
    assert 0 < fitted.shrinkage()["m[occasion]"] < 1


def test_effects_of_occasions_are_about_their_covariates(table, fitted):
    """The best linear predictions."""
    m, sex, w, omega2, gamma2, a = fitted.params_.values()
    own = table[table["id"] == 2]
    visit, mean = own["visit"].to_numpy(), m + sex * own["sex"] + w * own["w"]
    same = visit[:, None] == visit[None]
    weights = np.linalg.solve(omega2 + gamma2 * same + a**2 * np.eye(len(own)), (own["y"] - mean).to_numpy())
    for k, row in fitted.by_occasion_.loc[2].iterrows():
        expected = mean[visit == k].iloc[0] + (omega2 + gamma2 * (visit == k)) @ weights
        assert row["mode_m"] == pytest.approx(expected, abs=1e-4)
        assert row["mean_m"] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: t.assign(w=t["w"] + t["t"]), r"covariate w varies within an occasion \(subject 0, row 1, visit = day 0\)"),
    (lambda t: t.assign(w=t["w"].where(t.index != 7)), r"covariate w is missing \(subject \d+, row 7\)"),
    (lambda t: t.assign(sex=2 * t["w"]), "linearly dependent; drop one"),
])  # fmt: skip
def test_covariates_that_have_no_effect_to_estimate_are_refused(table, change, message):
    with pytest.raises(ValueError, match=message):
        _fit(change(table))


def test_what_new_data_may_not_do(table, fitted):
    with pytest.raises(ValueError, match=r"covariate sex of m changes between a subject's occasions"):
        fitted.predict(table.assign(sex=(table["visit"] == "day 1").astype(int)))
    with pytest.raises(ValueError, match="m depends on the covariate w, which is no column of the data"):
        fitted.predict(table.drop(columns="w"))
    with pytest.raises(ValueError, match=r"covariate w varies within an occasion \(subject 0, row 1"):
        fitted.simulate(table.assign(w=table["t"]))
    without = {name: column for name, column in COLUMNS.items() if name != "occ"}
    with pytest.raises(
        ValueError, match=r"covariate w varies within a subject .* change between occasions, which fit\(\.\.\., occ="
    ):
        one = Normal(1.0, covariates="w")
        mx.NLME(structural=_level, individual={"m": one}, verbose=False).fit(table, **without)


@pytest.mark.slow
def test_categories_and_a_parameter_that_does_not_vary_otherwise(table):
    """Two formulas, the coefficients of one with a closed M-step and those of the other without."""
    slopes = 0.5 * np.random.default_rng(1).normal(size=50)[table["id"]]
    table = table.assign(y=table["y"] + (0.3 * table["w"] - 0.2 + slopes) * table["t"])

    def line(psi, row):
        return psi["s"] * row["t"] + psi["m"]

    individual = {"s": Normal(0.0, covariates="w"), "m": Normal(1.0, occasion=True, covariates="visit")}
    model = mx.NLME(structural=line, individual=individual, n_starts=1, verbose=False).fit(table, **COLUMNS)
    days = {f"beta_m[visit[T.day {k}]]": (table["visit"] == f"day {k}").to_numpy(float) for k in (1, 2)}
    t = table["t"].to_numpy()
    exact = _exact(table, {"s": t, "w": t * table["w"].to_numpy(), "m": 1.0, **days}, ("slope2", "omega2", "gamma2", "a"))
    assert list(model.params_) == ["s", "beta_s[w]", "m", *days, "omega2_s", "omega2_m", "gamma2_m", "a"]
    _held_to(model, exact)
    assert set(model.sample_individual(3)["s"].shape) == {3, 50}
