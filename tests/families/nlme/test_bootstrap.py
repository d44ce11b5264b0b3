"""The bootstrap of mixed models: replicates are exact maxima, those that are none are told, errors name what is wrong."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

import margaux as mx
from margaux.families.nlme import Normal, bootstrap, oral1cpt
from margaux.families.nlme.bootstrap import BOUNDARY, CONVERGED, LOST, MIRRORED, UNKNOWN, Bootstrap, resampled


def _level(psi, row):
    return psi["m"] + 0.0 * row["t"]


def _table(n: int = 16, rows: int = 3, omega: float = 0.8, seed: int = 0) -> pd.DataFrame:
    """Levels of subjects of two groups, of which the second has two subjects."""
    rng = np.random.default_rng(seed)
    group = np.where(np.arange(n) < 2, "b", "a")
    level = 2.0 + omega * rng.normal(size=n) + 0.7 * (group == "b")
    table = pd.DataFrame({"id": np.repeat(np.arange(n), rows), "t": np.tile(np.arange(float(rows)), n)})
    return table.assign(y=np.repeat(level, rows) + 0.5 * rng.normal(size=n * rows), group=np.repeat(group, rows))


def _fitted(table: pd.DataFrame, covariates: str | None = None) -> Any:
    model = mx.NLME(structural=_level, individual={"m": Normal(1.0, covariates=covariates)}, n_starts=1, verbose=False)
    return model.fit(table, id="id", time="t", y="y")


def _exact(y: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, float]:
    """Mean, variance of the effects and SD of the error where the Gaussian likelihood of subjects (n, T), each counted so often,
    is largest: with equal numbers of rows, from sums of squares."""
    n, rows = counts.sum(), y.shape[1]
    means = y.mean(axis=1)
    mu = counts @ means / n
    within = counts @ ((y - means[:, None]) ** 2).sum(axis=1)
    between = rows * counts @ (means - mu) ** 2
    total = between / n
    noise = within / (n * (rows - 1))
    if total < noise:
        noise = total = (within + between) / (n * rows)
    covariance = noise * np.eye(rows) + (total - noise) / rows
    loglik = counts @ stats.multivariate_normal(np.full(rows, mu), covariance).logpdf(y)
    return np.array([mu, (total - noise) / rows, np.sqrt(noise)]), float(loglik)


def test_the_oracle_is_a_maximum():
    """The closed form against an optimiser that knows the density alone."""
    y = _table()["y"].to_numpy().reshape(16, 3)
    counts = np.random.default_rng(3).multinomial(16, np.full(16, 1 / 16))

    def minus(u: np.ndarray) -> float:
        covariance = np.exp(2 * u[2]) * np.eye(3) + np.exp(u[1])
        return -float(counts @ stats.multivariate_normal(np.full(3, u[0]), covariance).logpdf(y))

    best = optimize.minimize(minus, [2.0, -0.5, -0.7], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
    values, loglik = _exact(y, counts)
    np.testing.assert_allclose([best.x[0], np.exp(best.x[1]), np.exp(best.x[2])], values, rtol=1e-4)
    assert loglik == pytest.approx(-best.fun, abs=1e-6)


@pytest.fixture(scope="module")
def fitted():
    return _fitted(_table())


def test_replicates_are_exact_maxima(fitted):
    found = fitted.bootstrap(40, key=2)
    assert list(found.replicates.columns) == list(fitted.params_) and len(found) == 40 and found.counts.shape == (40, 16)
    assert set(found.counts.sum(axis=1)) == {16}
    y = _table()["y"].to_numpy().reshape(16, 3)
    se = np.array(list(fitted.stderr_.values()))
    for counts, values, loglik in zip(found.counts, found.replicates.to_numpy(), found.loglik, strict=True):
        exact, top = _exact(y, counts)
        assert np.all(np.abs(values - exact) < 0.02 * se)
        assert loglik == pytest.approx(top, abs=2e-3)
    np.testing.assert_allclose(found.estimate, list(fitted.params_.values()), atol=0.03 * se.min())
    assert np.array_equal(found.replicates, fitted.bootstrap(40, key=2).replicates)
    assert not np.array_equal(found.counts, fitted.bootstrap(40, key=3).counts)


@pytest.mark.slow
def test_a_variance_that_vanishes_is_zero_and_counted():
    table = _table(omega=0.15, seed=4).assign(y=lambda t: t["y"] - 0.7 * (t["group"] == "b"))
    y = table["y"].to_numpy().reshape(16, 3)
    fitted = _fitted(table)
    found = fitted.bootstrap(30)
    exact = np.array([_exact(y, counts)[0] for counts in found.counts])
    assert 3 < (exact[:, 1] == 0).sum() < 27
    np.testing.assert_array_equal(found.replicates["omega2_m"] == 0, exact[:, 1] == 0)
    np.testing.assert_array_equal(found.status == BOUNDARY, exact[:, 1] == 0)
    np.testing.assert_allclose(found.replicates, exact, atol=3e-3)
    assert f"omega2_m is zero in {(exact[:, 1] == 0).sum()}" in found.message


@pytest.mark.slow
def test_a_variance_that_was_estimated_as_zero_is_asked_for_again():
    """Resamples may have one: the model that is bootstrapped is the one that was asked for."""
    table = _table()
    rng = np.random.default_rng(12)
    noise = rng.normal(size=(16, 3))
    noise -= 0.5 * noise.mean(axis=1, keepdims=True)
    table["y"] = 2.0 + 0.5 * noise.ravel() + np.repeat(rng.normal(size=16), 3) * table["t"]
    both: Any = mx.NLME(
        structural=lambda p, row: p["m"] + p["s"] * row["t"], individual={"m": Normal(1.0), "s": Normal(0.1)}, n_starts=1,
        verbose=False,
    )  # fmt: skip
    both.fit(table, id="id", time="t", y="y")
    assert both._dropped == ("omega2_m",) and both.params_["omega2_m"] == 0
    found = both.bootstrap(30)
    share = (found.replicates["omega2_m"] == 0).mean()
    assert 0.2 < share < 1 and found.replicates["omega2_m"].max() > 0.01
    assert found.estimate["omega2_m"] == 0 and not found.note
    assert np.isnan(found.summary().loc["omega2_m", "bca_low"])


def test_strata_keep_their_sizes(fitted):
    found = fitted.bootstrap(12, stratify="group")
    assert set(found.counts[:, :2].sum(axis=1)) == {2} and set(found.counts[:, 2:].sum(axis=1)) == {14}
    assert len(np.unique(found.counts[:, :2], axis=0)) == 3


@pytest.mark.slow
def test_coefficients_that_a_resample_does_not_have_are_no_estimates():
    """Of two subjects of one group some resamples have none."""
    fitted = _fitted(_table(), covariates="group")
    found = fitted.bootstrap(60)
    none = (found.counts[:, :2].sum(axis=1) == 0) | (found.counts[:, 2:].sum(axis=1) == 0)
    assert none.any()
    np.testing.assert_array_equal(found.status == UNKNOWN, none)
    assert f"{none.sum()} are left out because coefficients are not identified" in found.message
    assert len(found.used) == 60 - none.sum()
    y = _table()["y"].to_numpy().reshape(16, 3)
    means, counts = y.mean(axis=1), found.counts[~none]
    second = (counts[:, :2] @ means[:2]) / counts[:, :2].sum(axis=1)
    first = (counts[:, 2:] @ means[2:]) / counts[:, 2:].sum(axis=1)
    np.testing.assert_allclose(found.used["beta_m[group[T.b]]"], second - first, atol=0.01)


def test_more_latents_than_a_grid_has(fitted, monkeypatch):
    """One after the other, they end where they do side by side."""
    together = fitted.bootstrap(4)
    monkeypatch.setattr("margaux.families.nlme.maxima.NODES", {})
    apart = fitted.bootstrap(4)
    assert list(apart.status) == [CONVERGED] * 4
    np.testing.assert_allclose(apart.replicates, together.replicates, atol=5e-3)
    np.testing.assert_allclose(apart.loglik, together.loglik, atol=5e-3)


def _made(values: np.ndarray, acceleration: float = 0.0, estimate: float | None = None) -> Bootstrap:
    names = ["x"]
    status = np.full(len(values), CONVERGED, object)
    estimate = float(values.mean()) if estimate is None else estimate
    counts = np.zeros((len(values), 1), int)
    return Bootstrap(
        pd.DataFrame(values[:, None], columns=names), status, values, counts, pd.Series([estimate], names),
        np.array([acceleration]), 0.95,
    )  # fmt: skip


def test_bca_intervals_are_those_of_scipy():
    """Of the variance of a sample, whose influences are known: by resamples of our own, and by SciPy's."""
    sample = np.random.default_rng(0).exponential(size=40)
    counts = resampled(np.zeros(40, int), 20_000, np.random.default_rng(1))
    mean = counts @ sample / 40
    values = counts @ sample**2 / 40 - mean**2
    influence = (sample - sample.mean()) ** 2 - sample.var()
    a = np.sum(influence**3) / np.sum(influence**2) ** 1.5 / 6
    frame = _made(values, a, sample.var()).summary()
    other = stats.bootstrap((sample,), np.var, n_resamples=20_000, method="BCa", rng=np.random.default_rng(2))
    low, high = other.confidence_interval
    assert frame.loc["x", "bca_low"] == pytest.approx(low, rel=0.03)
    assert frame.loc["x", "bca_high"] == pytest.approx(high, rel=0.05)
    assert frame.loc["x", "se"] == pytest.approx(other.standard_error, rel=0.03)
    np.testing.assert_allclose(frame.loc["x", ["percentile_low", "percentile_high"]], np.quantile(values, [0.025, 0.975]))
    assert frame.loc["x", "bias"] == pytest.approx(values.mean() - sample.var())


def test_accelerations_are_those_of_influences(fitted):
    """Of the mean, the influence of a subject is known, whatever the variances: the gap of its own mean."""
    found = fitted.bootstrap(2)
    y = _table()["y"].to_numpy().reshape(16, 3)
    gaps = y.mean(axis=1) - y.mean()

    # And of a variance: its derivative in the weight of a subject.
    def variance(weights):
        return _exact(y, weights)[0][1]

    steps = [(variance(np.ones(16) + 1e-5 * e) - variance(np.ones(16))) / 1e-5 for e in np.eye(16)]
    for place, influence in ((0, gaps), (1, np.asarray(steps) - np.mean(steps))):
        a = np.sum(influence**3) / np.sum(influence**2) ** 1.5 / 6
        assert found.acceleration[place] == pytest.approx(a, rel=0.02, abs=1e-3)


def test_no_interval_beyond_the_replicates():
    values = np.random.default_rng(0).normal(size=30)
    frame = _made(values, estimate=values.max()).summary()
    assert np.isnan(frame.loc["x", "bca_low"]) and "BCa intervals of x are beyond the replicates" in frame.attrs["message"]
    assert "0.8 replicates lie beyond each end of an interval, which is few: take 200 or more" in frame.attrs["message"]
    assert "few" not in _made(np.arange(200.0)).summary().attrs["message"]


def test_replicates_that_are_none_are_counted_and_left_out():
    values = np.arange(10.0)
    found = _made(values)
    found.status[:3] = [MIRRORED, UNKNOWN, LOST]
    assert found.message.startswith("7 of 10 replicates are used; 1 are left out as flip-flop")
    assert "1 are left out because they did not converge" in found.message
    assert found.summary().loc["x", "mean"] == values[3:].mean()
    found.status[:] = LOST
    with pytest.raises(ValueError, match="a summary needs two replicates, and 0 of 10 replicates are used"):
        found.summary()


def test_the_other_side_of_a_flip_flop():
    fitted: Any = SimpleNamespace(structural=oral1cpt, params_={"ka": 1.5, "V": 30.0, "CL": 3.0, "a": 1.0})
    values = np.array([[1.5, 30.0, 3.0, 1.0], [0.1, 2.0, 3.0, 1.0], [0.2, 30.0, 3.0, 1.0]])
    assert list(bootstrap._mirrored(fitted, values, list(fitted.params_))) == [False, True, False]
    fitted.structural = _level
    assert not bootstrap._mirrored(fitted, values, list(fitted.params_)).any()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n": 1}, "n must be a whole number of replicates, at least 2, got 1"),
        ({"n": 2.5}, "got 2.5"),
        ({"level": 1.5}, "level must be between 0 and 1"),
        ({"stratify": "sex"}, "stratify='sex' is no column of the data; they are id, t, y, group"),
        ({"stratify": "t"}, r"stratify='t' varies within a subject \(subject 0, row 1\)"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(fitted, arguments, said, monkeypatch):
    monkeypatch.setattr(bootstrap, "maxima", None)
    with pytest.raises(ValueError, match=said):
        fitted.bootstrap(**arguments)


def test_a_stratum_with_holes_is_refused():
    table = _table()
    table["site"] = [None if label == 5 else "x" for label in table["id"]]
    with pytest.raises(ValueError, match=r"stratify='site' is missing \(subject 5, row 15\)"):
        _fitted(table).bootstrap(stratify="site")


def test_before_the_fit():
    with pytest.raises(Exception, match="not fitted"):
        mx.NLME(structural=_level, individual={"m": Normal(1.0)}).bootstrap()


@pytest.mark.slow
def test_coverage_of_intervals():
    """Of 60 studies of 40 subjects, nine intervals in ten that are to hold the mean and the error do."""
    inside = np.zeros((60, 2))
    for study in range(60):
        table = _table(40, seed=100 + study).assign(y=lambda t: t["y"] - 0.7 * (t["group"] == "b"))
        frame = _fitted(table).bootstrap(200, key=study).summary(0.9)
        for j, (name, true) in enumerate((("m", 2.0), ("a", 0.5))):
            inside[study, j] = frame.loc[name, "percentile_low"] < true < frame.loc[name, "percentile_high"]
    assert np.all(inside.mean(axis=0) > 0.9 - 3 * np.sqrt(0.09 / 60))


@pytest.mark.slow
def test_correlations_of_one():
    """Replicates that are used are maxima, on the edge too: their likelihoods are those that an optimiser reaches."""
    rng, n, times = np.random.default_rng(3), 25, np.arange(4.0)
    z = rng.multivariate_normal([0, 0], [[0.5, 0.35], [0.35, 0.3]], n)
    y = 1 + z[:, :1] + (0.5 + z[:, 1:]) * times + 0.5 * rng.normal(size=(n, 4))
    table = pd.DataFrame({"id": np.repeat(np.arange(n), 4), "t": np.tile(times, n), "y": y.ravel()})
    both = {"m": Normal(1.0), "s": Normal(0.5)}
    fitted: Any = mx.NLME(structural=lambda p, row: p["m"] + p["s"] * row["t"], individual=both, omega="full", verbose=False)
    found = fitted.fit(table, id="id", time="t", y="y").bootstrap(40)
    X = np.stack([np.ones(4), times], axis=1)

    def minus(u: np.ndarray, counts: np.ndarray) -> float:
        root = np.array([[u[2], 0.0], [u[3], u[4]]])
        covariance = X @ root @ root.T @ X.T + np.exp(2 * u[5]) * np.eye(4)
        return -float(counts @ stats.multivariate_normal(X @ u[:2], covariance).logpdf(y))

    used = np.isin(found.status, (CONVERGED, BOUNDARY))
    assert used.sum() > 35 and (found.status == BOUNDARY).sum() > 5
    for counts, loglik in zip(found.counts[used], found.loglik[used], strict=True):
        best = min(optimize.minimize(minus, [1.0, 0.5, 0.6, 0.5, last, -0.6], (counts,)).fun for last in (0.3, 0.02))
        assert loglik == pytest.approx(-best, abs=0.01)
