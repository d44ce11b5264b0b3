"""What every estimator of the registry answers, under the same names and with the same types."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import margaux as mx
from margaux.answers.certificate import Certificate
from margaux.answers.likelihood import LogLikelihood
from margaux.datasets import load_theophylline
from margaux.families.nlme import LogNormal, oral1cpt
from margaux.families.registry import FAMILIES

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 2))
Y = (RNG.random(80) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
HOLES = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
QUIET = {"verbose": False, "random_state": 1}


def _nlme():
    individual = {"ka": LogNormal(1.5), "V": LogNormal(30.0), "CL": LogNormal(2.5)}
    roles: dict[str, Any] = {"id": "Id", "time": "Time", "y": "Concentration", "dose": "Dose"}
    return mx.NLME(structural=oral1cpt, individual=individual, n_starts=1, **QUIET).fit(load_theophylline(), **roles)


def _mixed():
    group = np.repeat(np.arange(20), 4)
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"y": rng.poisson(np.exp(0.5 + 0.5 * rng.normal(size=20)[group])), "x": X[:, 0], "g": group})
    return mx.GLMM("y ~ x + (1 | g)", family="poisson", **QUIET).fit(table)


def _groups():
    return mx.SparseMixedLogistic(n_iter=200, **QUIET).fit(X, Y, np.repeat(np.arange(20), 4))


def _signal():
    return mx.SparseInverse(prior="l1", noise_sd=0.3, n_iter=200, **QUIET).fit(np.eye(30), RNG.laplace(size=30))


MADE = {
    "NLME": _nlme,
    "GLMM": _mixed,
    "MissingLogistic": lambda: mx.MissingLogistic(**QUIET).fit(HOLES, Y),
    "MissingLinear": lambda: mx.MissingLinear(**QUIET).fit(HOLES, X[:, 0] + RNG.normal(size=80)),
    "MissingGLM": lambda: mx.MissingGLM(family="poisson", **QUIET).fit(HOLES, RNG.poisson(2.0, 80)),
    "PLNPCA": lambda: mx.PLNPCA(rank=1, **QUIET).fit(RNG.poisson(np.exp(1 + RNG.normal(size=(40, 1)) * np.ones(6)))),
    "BayesianClassifier": lambda: mx.BayesianClassifier(epochs=5, **QUIET).fit(X, Y),
    "BayesianRegressor": lambda: mx.BayesianRegressor(epochs=5, **QUIET).fit(X, X[:, 1]),
    "EmpiricalBayesLogistic": lambda: mx.EmpiricalBayesLogistic(n_iter=200, **QUIET).fit(X, Y),
    "SparseMixedLogistic": _groups,
    "SparseInverse": lambda: mx.SparseInverse(prior="l1", noise_sd=0.3, n_iter=200, **QUIET).fit(
        np.eye(30), RNG.laplace(size=30)
    ),
}
NAMES = [name for family in FAMILIES for name in family.estimators]
#: whose objective is a bound: there is a bound in place of a likelihood and its criteria
BOUNDS = ("BayesianClassifier", "BayesianRegressor")
_fitted = {}


@pytest.fixture
def fitted(request):
    if request.param not in _fitted:
        _fitted[request.param] = MADE[request.param]()
    return _fitted[request.param]


every = pytest.mark.parametrize("fitted", NAMES, indirect=True)
likelihoods = pytest.mark.parametrize("fitted", [name for name in NAMES if name not in BOUNDS], indirect=True)


def test_every_estimator_is_looked_at():
    assert set(MADE) == set(NAMES) and all(hasattr(mx, name) for name in NAMES)


@every
def test_parameters_and_their_errors_have_the_same_names_and_shapes(fitted):
    assert isinstance(fitted.params_, dict) and isinstance(fitted.stderr_, dict)
    assert list(fitted.params_) == list(fitted.stderr_)
    for name, value in fitted.params_.items():
        assert np.shape(value) == np.shape(fitted.stderr_[name]) and np.asarray(value).dtype.kind == "f", name


@every
def test_how_it_ended(fitted):
    assert isinstance(fitted.result_, mx.Fit) and isinstance(fitted.converged_, bool)
    assert isinstance(fitted.message_, str) and fitted.message_
    assert isinstance(fitted.n_iter_, int) and fitted.n_iter_ > 0
    assert isinstance(fitted.certificate_, Certificate)
    assert fitted.get_params()["random_state"] == 1 and "seed" not in fitted.get_params()


@likelihoods
def test_likelihood_and_criteria(fitted):
    assert isinstance(fitted.loglik_, LogLikelihood)
    assert isinstance(fitted.loglik_se_, float) and fitted.loglik_se_ >= 0
    assert isinstance(fitted.aic_, float) and isinstance(fitted.bic_, float)
    assert fitted.aic_ == pytest.approx(-2 * float(fitted.loglik_) + 2 * fitted.n_params_)


@pytest.mark.parametrize("fitted", BOUNDS, indirect=True)
def test_a_bound_is_called_one(fitted):
    assert float(fitted.elbo_) < 0 and fitted.elbo_.se >= 0
    assert not any(hasattr(fitted, name) for name in ("loglik_", "aic_", "bic_"))


@likelihoods
def test_tables(fitted):
    table, interval, covariance = fitted.summary(), fitted.conf_int(), fitted.cov_params()
    assert {"estimate", "se", "ci_low", "ci_high"} <= set(table)
    assert list(interval) == ["ci_low", "ci_high"] and interval.index.equals(table.index)
    assert covariance.index.equals(covariance.columns)
    both = [name for name in table.index if name in covariance.index]
    assert both
    known = table.loc[both, "se"].to_numpy(float)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance.loc[both, both])), known, rtol=1e-6)


@every
def test_diagnostics_are_a_row_a_check(fitted):
    found = fitted.diagnostics()
    assert isinstance(found, pd.DataFrame) and {"figure", "error", "threshold", "level", "sentence"} <= set(found)
    assert len(found) == len(fitted.certificate_.checks)


@every
def test_saved_and_loaded_it_answers_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    again = mx.load(tmp_path / "model")
    assert type(again) is type(fitted)
    for name, value in fitted.params_.items():
        np.testing.assert_array_equal(again.params_[name], value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@every
def test_it_is_shown(fitted, tmp_path):
    assert fitted.report(tmp_path / "report.html").stat().st_size > 10_000
    assert "posterior" in fitted.to_arviz(n_draws=10).children
    assert hasattr(fitted, "plot")
