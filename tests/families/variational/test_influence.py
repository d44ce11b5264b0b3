"""Influence of observations beside closed forms and fits without them; fits that forget beside fits that never knew."""

import equinox as eqx
import jax
import numpy as np
import pytest

import margaux as mx
from linear_networks import linear, regression
from margaux.families.variational import gauss_newton, influence
from margaux.families.variational.forgetting import remaining
from margaux.families.variational.posterior import GaussianPosterior


def labels(n=120, seed=0):
    x, _ = regression(n, seed)
    rng = np.random.default_rng(seed + 100)
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ [1.5, -1.0, 0.5]))).astype(int)
    y[7] = 1 - y[7]
    return x, y


def classifier(**settings):
    return mx.BayesianClassifier(network=linear(2), temperature=1.0, epochs=60, dtype="float64", verbose=False, **settings)


@pytest.fixture(scope="module")
def logistic():
    x, y = labels()
    return classifier().fit(x, y)


def test_of_a_linear_model_leverages_and_moves_are_those_of_ridge_regression():
    x, y = regression()
    noise, scale = 0.5, 2.0
    model = mx.BayesianRegressor(network=linear(1), temperature=1.0, prior=scale, noise=noise, noise_fixed=True,
                                 standardize=False, epochs=50, dtype="float64", verbose=False).fit(x, y)  # fmt: skip
    table = model.influence(n_draws=20_000)
    design = np.hstack([x, np.ones((len(x), 1))])
    curvature = design.T @ design / noise**2 + np.eye(4) / scale**2
    hat = np.einsum("ij,jk,ik->i", design, np.linalg.inv(curvature), design) / noise**2
    mean = np.linalg.solve(curvature, design.T @ y / noise**2)
    np.testing.assert_allclose(table["leverage"], hat, rtol=1e-6)
    # Without i the mean is that of the other observations, exactly: its distance is by H.
    for i in (0, 11, 39):
        left = np.delete(design, i, axis=0)
        own = np.linalg.solve(left.T @ left / noise**2 + np.eye(4) / scale**2, left.T @ np.delete(y, i) / noise**2)
        distance = np.sqrt((own - mean) @ curvature @ (own - mean))
        np.testing.assert_allclose(table["distance"][i], distance, rtol=0.05)  # outputs are averaged over draws


def test_scores_left_out_are_those_of_fits_without_the_observation(logistic):
    x, y = labels()
    table, some = logistic.influence(n_draws=4000), [7, *range(0, 120, 12)]
    fits = [classifier().fit(np.delete(x, i, axis=0), np.delete(y, i)) for i in some]
    exact = [np.log(fit.predict_proba(x[[i]], n_draws=4000)[0, y[i]]) for i, fit in zip(some, fits, strict=True)]
    gains = table["log_score"] - table["left_out"]
    truth = table["log_score"][some] - exact
    assert np.corrcoef(gains[some], truth)[0, 1] > 0.98
    assert abs(gains[some].sum() / truth.sum() - 1) < 0.15
    # Four numbers tell two classes apart, and the prior holds them a little.
    assert 3 < table["leverage"].sum() < 4
    np.testing.assert_allclose(table["share"], table["leverage"])  # of two classes there is one direction
    assert table["share"].max() < 0.15


def test_weights_that_repeat_each_other_count_once():
    x, y = labels()
    once = classifier().fit(x, y).influence(2000)
    twice = mx.BayesianClassifier(network=linear(2, 6), prior=np.sqrt(0.5), temperature=1.0, epochs=60, dtype="float64",
                                  verbose=False).fit(np.hstack([x, x]), y).influence(2000)  # fmt: skip
    # The bias has half the prior variance, and that is all.
    np.testing.assert_allclose(twice["leverage"], once["leverage"], atol=0.02)
    assert abs(twice["leverage"].sum() / once["leverage"].sum() - 1) < 0.02


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_by_weights_and_by_outputs_it_is_the_same(temperature):
    x, y = labels(60)
    y = y + (x[:, 2] > 1)
    model = mx.BayesianClassifier(network=eqx.nn.MLP(3, 3, 4, 1, jax.nn.tanh, key=jax.random.key(1)), temperature=temperature,
                                  epochs=30, dtype="float64", verbose=False).fit(x, y)  # fmt: skip
    curvature = np.random.default_rng(0).normal(size=(60, 3, 3))
    curvature = curvature @ curvature.transpose(0, 2, 1)
    scaled, few = model._scaled(x), slice(0, 10)
    with jax.enable_x64(True):
        whole = influence.covariances(model._model, model._params, scaled, curvature)
        jacobian = np.asarray(gauss_newton.jacobians(model._model.network, model._params["mean"], scaled))
        inverse = np.linalg.inv(np.einsum("nkp,nkl,nlq->pq", jacobian, curvature, jacobian) + np.eye(jacobian.shape[2]))
        np.testing.assert_allclose(whole, np.einsum("nkp,pq,nlq->nkl", jacobian, inverse, jacobian), atol=1e-9)
        by_outputs = influence.covariances(model._model, model._params, scaled[few], curvature[few])
        inverse = np.linalg.inv(
            np.einsum("nkp,nkl,nlq->pq", jacobian[few], curvature[few], jacobian[few]) + np.eye(jacobian.shape[2])
        )
        np.testing.assert_allclose(by_outputs, np.einsum("nkp,pq,nlq->nkl", jacobian[few], inverse, jacobian[few]), atol=1e-9)


def test_a_fit_that_forgets_is_one_that_never_knew(logistic):
    x, y = labels()
    rows = [7, 3, -1]
    forgot = logistic.forget(rows)
    never = classifier().fit(np.delete(x, rows, axis=0), np.delete(y, rows))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), forgot._params, never._params)
    assert forgot.n_observations_ == 117 and logistic.n_observations_ == 120
    assert forgot.certificate_.word == "certified" and forgot.certificate_ is not logistic.certificate_
    jax.tree.map(np.testing.assert_array_equal, tuple(forgot._scaling), tuple(never._scaling))
    mask = np.zeros(120, bool)
    mask[rows] = True
    np.testing.assert_array_equal(logistic.forget(mask).predict_proba(x), forgot.predict_proba(x))
    assert len(forgot.forget([0]).influence()) == 116


def test_numbers_have_the_scale_of_those_that_are_left():
    x, y = regression(60)
    y = 100 + 10 * y
    y[5] = 1000.0
    settings: dict = dict(network=linear(1), temperature=1.0, dtype="float64", epochs=800, verbose=False)
    forgot = mx.BayesianRegressor(**settings).fit(x, y).forget([5], epochs=800)
    never = mx.BayesianRegressor(**settings).fit(np.delete(x, 5, axis=0), np.delete(y, 5))
    np.testing.assert_allclose(forgot.predict(x, 2000), never.predict(x, 2000), rtol=0.01)
    np.testing.assert_allclose(forgot.params_["noise"], never.params_["noise"], rtol=0.02)
    np.testing.assert_allclose(forgot.history_["elbo"].iloc[-1], never.history_["elbo"].iloc[-1], atol=0.1)


@pytest.mark.parametrize("information", [None, 50.0])
@pytest.mark.parametrize("spread", ["all", "tensor", "weight"])
def test_a_posterior_is_begun_where_it_was(spread, information):
    posterior = GaussianPosterior(spread, information, 4)
    means = {"a": np.arange(6.0).reshape(2, 3), "b": np.ones(2)}
    shared = {"a": np.full((2, 3), 0.3), "b": np.full(2, 0.3 if spread == "all" else 0.1)}
    if spread == "weight":
        shared["a"][0, 1] = 0.7
    params = posterior.around(means, shared)
    assert jax.tree.structure(params) == jax.tree.structure(posterior.start(means, 1.0))
    jax.tree.map(
        lambda s, d: np.testing.assert_allclose(np.broadcast_to(s, d.shape), d, rtol=1e-6), posterior.sigma(params), shared
    )


@pytest.mark.parametrize(("method", "spread"), [("misso", "all"), ("bbb", "tensor"), ("adam", "weight")])
def test_every_method_goes_on_from_where_it_was(method, spread):
    x, y = labels(80)
    model = mx.BayesianClassifier(method=method, spread=spread, temperature=1.0, epochs=200, n_blocks=4, dtype="float64",
                                  network=eqx.nn.MLP(3, 2, 4, 1, jax.nn.tanh, key=jax.random.key(1)), verbose=False)  # fmt: skip
    probabilities = model.fit(x, y).predict_proba(x, 500)
    gap = np.abs(model.forget([0, 1], epochs=1).predict_proba(x, 500) - probabilities).mean()
    anew = np.abs(model.set_params(epochs=1).fit(x, y).predict_proba(x, 500) - probabilities).mean()
    assert gap < 0.7 * anew


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        ([120], ValueError, "no observation 120: the fit has 120"),
        ([-121], ValueError, "no observation -121"),
        ([], ValueError, "names no observation"),
        ([0.5], TypeError, "numbers of observations or a mask"),
        (np.ones(3, bool), ValueError, "one entry for each of the 120"),
        (np.ones(120, bool), ValueError, "0 of 120 observations would be left"),
        (["a"], TypeError, "numbers of observations or a mask"),
    ],
)
def test_rows_that_cannot_be_forgotten(rows, error, said):
    with pytest.raises(error, match=said):
        remaining(rows, 120)


def test_what_cannot_be_asked(logistic, tmp_path):
    x, y = labels()
    with pytest.raises(ValueError, match="no observation of class 1 would be left"):
        logistic.forget(y == 1)
    with pytest.raises(ValueError, match="pruned"):
        logistic.pruned(0.5).influence()
    logistic.save(tmp_path / "model.npz")
    loaded = mx.BayesianClassifier.load(tmp_path / "model.npz", network=linear(2))
    for ask in (loaded.influence, lambda: loaded.forget([0])):
        with pytest.raises(ValueError, match="not saved"):
            ask()
    with pytest.raises(ValueError, match="epochs"):
        logistic.forget([0], epochs=0)


def test_more_than_can_be_written_out_is_refused(logistic, monkeypatch):
    monkeypatch.setattr(influence, "MOST", 3)
    with pytest.raises(ValueError, match="ask a smaller network"):
        logistic.influence()
