"""Observations beyond limits: their likelihood, fits against exact maxima, and errors that name the row."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import margaux as mx
from margaux.families.nlme import LogNormal, Normal, oral1cpt, polynomial
from margaux.families.nlme.censoring import BETWEEN, CENSORED, LIMIT, Censored, imputed
from margaux.families.nlme.data import group
from margaux.families.nlme.error import Combined, ConstantError, Exponential, Proportional
from margaux.families.nlme.outcomes import Continuous

#: -1 above y, 1 below it, 0 observed; the lower end of an interval
ROWS = {
    "y": np.array([1.0, 1.0, 1.0, 3.0, 1.0, 40.0]),
    "f": np.array([1.2, 1.2, 1.2, 1.2, 60.0, 1.2]),
    CENSORED: np.array([0.0, 1.0, -1.0, 1.0, 1.0, -1.0]),
    LIMIT: np.array([0.0, 0.0, 0.0, 0.5, 0.0, 0.0]),
    BETWEEN: np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0]),
}


def _read(psi, row):
    return psi["a"] * row["f"]


def _log_density(error, method, values, a: Any = 1.0, rows=ROWS):
    return Censored(_read, error, method).log_density(jnp.asarray(values), {"a": a}, rows)


@pytest.mark.parametrize(("error", "values", "sd"), [
    (ConstantError(), [0.4], lambda f: 0.4 + 0 * f),
    (Proportional(), [0.3], lambda f: 0.3 * f),
    (Combined(), [0.2, 0.3], lambda f: np.hypot(0.2, 0.3 * f)),
])  # fmt: skip
def test_shares_of_the_normal_distribution(error, values, sd):
    y, f, low = (np.asarray(ROWS[name]) for name in ("y", "f", LIMIT))
    law: Any = stats.norm(f, sd(f))
    with np.errstate(divide="ignore"):  # where there is no interval
        between = np.log(law.cdf(y) - law.cdf(low))
    exact = np.select(
        [np.asarray(ROWS[CENSORED]) == 0, np.asarray(ROWS[CENSORED]) < 0, np.asarray(ROWS[BETWEEN]) > 0],
        [law.logpdf(y), law.logsf(y), between], law.logcdf(y),
    )  # fmt: skip
    with jax.enable_x64(True):
        rows = {name: jnp.asarray(value) for name, value in ROWS.items()}
        np.testing.assert_allclose(_log_density(error, "M3", values, rows=rows), exact, rtol=1e-9)
        # M4: given that y is positive.
        positive = law.logsf(0.0)
        below = np.log((law.cdf(y[1]) - law.cdf(0.0))[1])
        found = np.asarray(_log_density(error, "M4", values, rows=rows))
        np.testing.assert_allclose(found[[0, 2, 3]], (exact - positive)[[0, 2, 3]], rtol=1e-9)
        assert found[1] == pytest.approx(below - positive[1], rel=1e-9)


def test_an_exponential_error_is_normal_on_the_logarithmic_scale():
    found = _log_density(Exponential(), "M3", [0.5])
    assert float(found[1]) == pytest.approx(stats.norm.logcdf(np.log(1 / 1.2) / 0.5), rel=1e-5)


def test_what_is_positive_anyway_has_nothing_to_be_given():
    three, four = (_log_density(Exponential(), method, [0.5]) for method in ("M3", "M4"))
    np.testing.assert_array_equal(three, four)


@pytest.mark.parametrize("method", ["M3", "M4"])
def test_derivatives_are_finite_in_the_tails(method):
    with jax.enable_x64(True):
        rows = {name: jnp.asarray(value) for name, value in ROWS.items()}

        def total(x):
            return jnp.sum(_log_density(Combined(), method, x[1:], x[0], rows))

        for a in (1e-6, 1.0, 1e3):
            at = jnp.array([a, 0.2, 0.1])
            assert np.all(np.isfinite(jax.grad(total)(at))) and np.all(np.isfinite(jax.hessian(total)(at))), a


def test_what_is_imputed_lies_where_it_must():
    rng = np.random.default_rng(0)
    simulations = rng.normal(1.0, 1.0, (2000, 50, 3))
    how = np.tile([0.0, 1.0, -1.0], (50, 1))
    rows = {CENSORED: how, LIMIT: np.zeros((50, 3)), BETWEEN: np.zeros((50, 3))}
    y = np.tile([0.3, 0.8, 1.5], (50, 1))
    limits = {1: np.tile([0.0, 0.8, 0.8], (50, 1)), -1: np.tile([1.5, 1.5, 1.5], (50, 1))}
    out, simulated = imputed(y, rows, limits, simulations)
    assert np.allclose(np.sort(simulated, axis=0), np.sort(simulations, axis=0))
    assert np.all(out[:, 0] == 0.3) and np.all(out[:, 1] < 0.8) and np.all(out[:, 2] > 1.5)
    # Uniform among what is censored.
    below = stats.norm.cdf(out[:, 1], 1.0, 1.0) / stats.norm.cdf(0.8, 1.0, 1.0)
    assert stats.kstest(below, "uniform").pvalue > 0.001


def _line(n=150, limit=0.0, seed=0):
    rng = np.random.default_rng(seed)
    level, slope = 1 + 0.6 * rng.normal(size=n), -0.4
    time = np.tile(np.arange(5.0), n)
    y = np.repeat(level, 5) + slope * time + 0.3 * rng.normal(size=5 * n)
    return pd.DataFrame({"id": np.repeat(np.arange(n), 5), "time": time, "y": y})


def _tobit(frame, lloq):
    """The exact log-likelihood of a censored random intercept on a grid."""
    nodes = np.linspace(-7, 7, 701)
    weights = stats.norm.pdf(nodes)
    y, time = frame["y"].to_numpy().reshape(-1, 5), np.arange(5.0)

    def loglik(c0, c1, omega2, a):
        f = c0 + c1 * time + np.sqrt(omega2) * nodes[:, None, None]
        each = np.where(y < lloq, stats.norm.logcdf(lloq, f, a), stats.norm.logpdf(y, f, a)).sum(2)
        top = each.max(0)
        return float(np.sum(top + np.log(weights @ np.exp(each - top) / weights.sum())))

    return loglik


@pytest.fixture(scope="module")
def fitted():
    individual = {"c0": Normal(0.0), "c1": Normal(0.0, random=False)}
    model = mx.NLME(structural=polynomial(1), individual=individual, verbose=False)
    return model.fit(_line(), id="id", time="time", y="y", lloq=0.0)


def test_a_line_with_a_third_below_the_limit(fitted):
    """At the exact maximum, by another quadrature and another optimiser; the estimate that ignores the limit is far off."""
    from scipy import optimize

    frame = _line()
    exact = _tobit(frame, 0.0)
    best = optimize.minimize(
        lambda x: -exact(x[0], x[1], np.exp(x[2]), np.exp(x[3])), [1, -0.4, -1, -1.2], method="Nelder-Mead",
        options={"xatol": 1e-6, "fatol": 1e-8, "maxiter": 4000},
    )  # fmt: skip
    values = [*best.x[:2], *np.exp(best.x[2:])]
    assert float(fitted.loglik_) == pytest.approx(-best.fun, abs=1e-3)
    for (name, own), value in zip(fitted.params_.items(), values, strict=True):
        assert abs(own - value) < 0.01 * fitted.stderr_[name], name
    assert np.mean(frame["y"] < 0) > 0.25
    assert fitted.params_["c1"] == pytest.approx(-0.4, abs=3 * fitted.stderr_["c1"])


def test_residuals_of_limits(fitted):
    frame = fitted.residuals()
    below = (_line()["y"] < 0).to_numpy()
    assert np.all(np.isnan(frame["iwres"][below])) and np.all(np.isfinite(frame["iwres"][~below]))
    assert fitted.npde().test()["p"]["global"] > 0.001


def test_a_predictive_check_has_the_share_below_the_limit(fitted):
    percentiles, share = fitted.plot.vpc(n_simulations=100)
    assert share.get_ylabel() == "share of y below its limit"
    observed = next(line for line in share.lines if line.get_label() == "observed")
    frame = _line()
    np.testing.assert_allclose(observed.get_ydata(), np.mean((frame["y"].to_numpy() < 0).reshape(-1, 5), axis=0))
    low, high = (np.array(ends) for ends in _ends(share))
    assert np.all((observed.get_ydata() >= low - 0.02) & (observed.get_ydata() <= high + 0.02))
    lowest = next(line for line in percentiles.lines if line.get_label() == "observed").get_ydata()
    assert np.min(lowest) == 0.0  # no observation is drawn below the limit


def _ends(axis):
    """Least and largest of the band at each time."""
    corners = axis.collections[0].get_paths()[0].vertices
    times = np.unique(corners[:, 0])
    return [corners[corners[:, 0] == t, 1].min() for t in times], [corners[corners[:, 0] == t, 1].max() for t in times]


@pytest.mark.slow
def test_the_same_limits_by_columns_of_any_name(fitted):
    frame = _line()
    below = frame["y"] < 0
    coded = frame.assign(y=frame["y"].where(~below, 0.0), CENS=below.astype(int))
    individual = {"c0": Normal(0.0), "c1": Normal(0.0, random=False)}
    by_column = mx.NLME(structural=polynomial(1), individual=individual, verbose=False).fit(coded, id="id", time="time", y="y")
    assert float(by_column.loglik_) == pytest.approx(float(fitted.loglik_), abs=1e-6)


def test_columns_of_limits_may_have_holes_and_points():
    frame = _line(3).assign(y=np.arange(15.0), CENS=["1", ".", "", *["0"] * 12], LIMIT=[-1.0, *[np.nan] * 14])
    outcome = Continuous(polynomial(1), ConstantError())
    roles: dict[str, str | None] = {"id": "id", "time": "time", "y": "y", "cens": "CENS", "limit": "LIMIT"}
    rows = group(frame, roles, outcome).units["rows"]
    assert (rows[CENSORED].sum(), rows[BETWEEN].sum(), rows[LIMIT][0, 0]) == (1.0, 1.0, -1.0)
    assert all(np.isfinite(values).all() for values in rows.values())


def test_a_zero_below_the_limit_is_no_zero_of_an_error_on_the_logarithmic_scale():
    frame = _line(3).assign(y=np.arange(15.0))
    roles: dict[str, str | None] = {"id": "id", "time": "time", "y": "y"}
    with pytest.raises(ValueError, match="is not positive"):
        group(frame, roles, Continuous(polynomial(1), Exponential()))
    data = group(frame, roles, Continuous(polynomial(1), Exponential()), lloq=0.5)
    assert data.censored and np.min(data.frame["y"].to_numpy()) == 0.5


def test_negative_observations_are_refused_by_m4():
    individual = {"c0": Normal(0.0), "c1": Normal(0.0)}
    model = mx.NLME(structural=polynomial(1), individual=individual, censoring="M4", verbose=False)
    with pytest.raises(ValueError, match=r"y = -0\..* is negative \(subject .*M4 holds for impossible"):
        model.fit(_line(), id="id", time="time", y="y", lloq=-0.5)


@pytest.mark.parametrize(("change", "roles", "told"), [
    ({"CENS": 2}, {}, r"CENS = 2 \(subject 0, row 0\) must be 1"),
    ({"CENS": 1, "LIMIT": 9.0}, {}, "is no other end of the interval"),
    ({"CENS": 1}, {}, "every observation is censored"),
    ({}, {"lloq": np.nan}, "lloq must be a number"),
    ({}, {"cens": "censored"}, "is no column of the data"),
])  # fmt: skip
def test_limits_that_are_none_are_refused(change, roles, told):
    model = mx.NLME(structural=polynomial(1), individual={"c0": LogNormal(1.0), "c1": LogNormal(1.0)}, verbose=False)
    with pytest.raises(ValueError, match=told):
        model.fit(_line(3).assign(**change), id="id", time="time", y="y", **roles)


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="censoring must be one of M3, M4"):
        mx.NLME(structural=oral1cpt, individual={"ka": LogNormal()}, censoring="M7").fit(_line(3), id="id", y="y")
