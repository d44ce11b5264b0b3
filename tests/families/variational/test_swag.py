"""SWAG: moments of the way of weights beside NumPy, ensembles of them, and what they cannot answer."""

from typing import Any

import numpy as np
import pytest

import margaux as mx
from linear_networks import products as data
from margaux.families.variational.drawn_verdict import averaged
from margaux.families.variational.trajectory import Averaging, Chain, Swag, algorithm

SETTINGS: dict[str, Any] = {"method": "ensemble", "swag": True, "temperature": 0.3, "prior": "fan-in", "epochs": 60,
                            "n_blocks": 4, "n_members": 3, "verbose": False}  # fmt: skip


def but(own: dict[str, Any], settings: dict[str, Any] = SETTINGS) -> dict[str, Any]:
    """Settings with some of one's own."""
    return settings | own


@pytest.fixture(scope="module")
def ensemble():
    return mx.BayesianClassifier(random_state=4, **SETTINGS).fit(*data())


def test_the_gaussian_is_that_of_its_moments():
    rng = np.random.default_rng(0)
    way = rng.normal(size=(40, 3)) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 0.1]]) + [1.0, 2.0, 3.0]
    made = Swag.of(Chain({"a": way[:, :2], "b": way[:, 2]}, {"log_noise": np.arange(40.0)}))
    np.testing.assert_allclose(made.mean["a"], way[:, :2].mean(axis=0))
    # Half of the variances of all, and half of the covariance of the last twenty about the mean.
    last = way[-20:] - way.mean(axis=0)
    covariance = (np.diag(way.var(axis=0)) + last.T @ last / 19) / 2
    np.testing.assert_allclose(made.deviations["a"], np.sqrt(np.diag(covariance))[:2])
    draws = made.draws(40_000, 1)
    flat = np.column_stack([draws["a"], draws["b"]])
    error = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / 40_000)
    assert np.all(np.abs(np.cov(flat.T) - covariance) < 4 * error)
    np.testing.assert_allclose(flat.mean(axis=0), way.mean(axis=0), atol=4 * np.sqrt(np.diag(covariance).max() / 40_000))
    assert np.all(np.asarray(made.log_noises(3)) == 19.5) and int(made.kept) == 40
    alone = Swag.of(Chain({"a": way[:1]}, {}))
    assert np.all(alone.draws(3, 0)["a"] == way[0]) and alone.log_noises(3) is None


def test_weights_are_kept_over_the_last_half_at_a_constant_step():
    way = algorithm(Averaging(), 0.5, 1000, 10, None)
    assert len(way.at) == 40 and way.at[0] > 500 and way.at[-1] == 1000 and len(np.unique(np.diff(way.at))) <= 2
    inner: Any = way.inner
    step = inner.step_size
    assert float(step(1)) == pytest.approx(0.5) and float(step(501)) == float(step(1000)) == pytest.approx(0.05)
    assert not inner.hot and float(inner.friction) == 0.1


def test_predictions_are_by_draws_of_all_members(ensemble):
    x, y = data(1)
    assert [one.random_state for one in ensemble.members_] == [4, 5, 6]
    each = [one.predict_proba(x, 20) for one in ensemble.members_]
    np.testing.assert_allclose(ensemble.predict_proba(x, 60), np.mean(each, axis=0), atol=1e-12)
    assert np.ptp([p[:, 0] for p in each], axis=0).max() > 0.01
    one = ensemble.members_[0]
    draws = one.posterior_draws(20)
    scaled = (x - data()[0].mean(axis=0)) / data()[0].std(axis=0)
    hidden = np.tanh(np.einsum("shp,np->snh", draws["layers.0.weight"][0], scaled) + draws["layers.0.bias"][0][:, None])
    logits = np.einsum("soh,snh->sno", draws["layers.1.weight"][0], hidden) + draws["layers.1.bias"][0][:, None]
    by_hand = (1 / (1 + np.exp(logits[..., :1] - logits[..., 1:]))).mean(axis=0)[:, 0]
    np.testing.assert_allclose(each[0][:, 1], by_hand, atol=1e-5)
    assert np.all(one.stderr_["layers.0.weight"] > 0)


def test_it_says_that_its_spreads_are_no_posterior_s(ensemble):
    assert ensemble.certificate_.word == "careful" and "they are no posterior's deviations" in ensemble.message_
    assert ensemble.message_.startswith("3 Gaussians by SWAG, of 40 weights along the way.")
    with pytest.raises(ValueError, match="has no density, and so no ELBO"):
        _ = ensemble.elbo_
    with pytest.raises(ValueError, match="none can be left out alone"):
        ensemble.pruned(0.5)


def test_files_checkpoints_and_forgetting(ensemble, tmp_path):
    x, _ = data(1)
    ensemble.save(tmp_path / "swag.npz")
    loaded = mx.BayesianClassifier.load(tmp_path / "swag.npz")
    np.testing.assert_array_equal(loaded.predict_proba(x), ensemble.predict_proba(x))
    assert loaded.swag and loaded.n_members == 3 and len(loaded.members_) == 3
    for _ in range(2):
        again = mx.BayesianClassifier(random_state=4, **SETTINGS).fit(*data(), checkpoint=tmp_path / "fit.npz")
        np.testing.assert_array_equal(again.predict_proba(x), ensemble.predict_proba(x))
    assert {one.n_observations_ for one in ensemble.forget([0, 1], epochs=20).members_} == {88}


def test_one_member_is_swag_and_an_ensemble_has_as_many_as_are_asked_for():
    x, y = data()
    one = mx.BayesianClassifier(**but({"n_members": 1})).fit(x, y)
    assert len(one.members_) == 1 and one.message_.startswith("A Gaussian by SWAG")
    np.testing.assert_array_equal(one.predict_proba(x, 7), one.members_[0].predict_proba(x, 7))
    two = mx.BayesianClassifier(method="ensemble", n_members=2, temperature=0.3, epochs=3, verbose=False).fit(x, y)
    assert len(two.members_) == 2 and np.isfinite(two.elbo_)


def test_of_numbers():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(150, 1))
    y = 10 + 5 * np.sin(2 * x[:, 0]) + rng.normal(size=150)
    model = mx.BayesianRegressor(**but({"epochs": 800, "temperature": 0.1, "n_members": 2})).fit(x, y)
    assert model.score(x, y) > 0.8 and 0.6 < model.params_["noise"] < 2
    np.testing.assert_allclose(model._noises(4), np.repeat([one.params_["noise"] for one in model.members_], 2), rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_blocks": 1}, "swag=True is by the noise of blocks, and 90 observations are in one; pass n_blocks=2 at least"),
        ({"swag": "yes"}, "swag must be True or False, got 'yes'"),
        ({"step": -1.0}, "step must be a positive number with swag=True"),
        ({"antithetic": True}, "antithetic is a setting of posteriors by the ELBO; leave it at False with swag=True"),
        ({"method": "adam", "n_members": 5}, 'swag is a setting of method="ensemble"'),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        mx.BayesianClassifier(**but(settings)).fit(*data())


def test_a_log_posterior_that_still_moves_is_told():
    noise = 0.1 * np.random.default_rng(0).normal(size=2000)
    assert averaged([noise, noise])[0].level == "pass"
    assert "still rose by" in averaged([noise, noise + np.linspace(0, 1, 2000)])[0].sentence
    assert "still fell by" in averaged([noise - np.linspace(0, 1, 2000)])[0].sentence
