"""An ensemble is its members: each is the fit of its own seed, and answers are those of their mixture."""

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import margaux as mx
from linear_networks import products as data
from margaux.families.variational.ensemble import shuffled

SETTINGS: dict = {"temperature": 0.3, "prior": "fan-in", "epochs": 15, "n_blocks": 3, "verbose": False}


@pytest.fixture(scope="module")
def ensemble():
    return mx.BayesianClassifier(method="ensemble", random_state=4, **SETTINGS).fit(*data())


def test_each_member_is_the_fit_of_its_own_seed(ensemble):
    x, y = data()
    assert [member.random_state for member in ensemble.members_] == [4, 5, 6, 7, 8]
    for j in (0, 3):
        alone = mx.BayesianClassifier(random_state=4 + j, **SETTINGS).fit(x, y)
        np.testing.assert_array_equal(ensemble.members_[j].predict_proba(x), alone.predict_proba(x))
        assert len(alone.members_) == 0
    assert ensemble.get_params()["method"] == "ensemble" and ensemble.get_params()["random_state"] == 4


def test_predictions_and_bound_are_means_over_members(ensemble):
    x, _ = data(1)
    each = [member.predict_proba(x, 20) for member in ensemble.members_]
    np.testing.assert_allclose(ensemble.predict_proba(x, 100), np.mean(each, axis=0), atol=1e-12)
    assert np.ptp([p[:, 0] for p in each], axis=0).max() > 0.02  # they do differ
    assert np.all(ensemble.predict_std(x, 100) > 0)
    bounds = [member.elbo_ for member in ensemble.members_]
    np.testing.assert_allclose(ensemble.elbo_, np.mean(bounds))
    assert ensemble.elbo_.se < max(bound.se for bound in bounds)
    # Fewer draws than members are those of the first.
    np.testing.assert_array_equal(
        ensemble.predict_proba(x, 2), np.mean([m.predict_proba(x, 1) for m in ensemble.members_[:2]], 0)
    )


def test_a_network_that_is_given_has_five_starts():
    x, y = data()
    network = eqx.nn.MLP(2, 2, 8, 1, jax.nn.tanh, key=jax.random.key(0))
    settings = SETTINGS | {"epochs": 1, "temperature": 1e-3}
    model = mx.BayesianClassifier(network=network, method="ensemble", **settings).fit(x, y)
    alone = mx.BayesianClassifier(network=network, **settings).fit(x, y)
    np.testing.assert_array_equal(model.members_[0].predict_proba(x), alone.predict_proba(x))
    first = [jax.tree.leaves(member._means)[0] for member in model.members_]
    gaps = [np.sqrt(np.mean((a - b) ** 2)) for i, a in enumerate(first) for b in first[:i]]
    assert min(gaps) > 0.3 * np.std(first[0])
    start = {"a": np.arange(6.0).reshape(2, 3), "b": np.zeros(2)}
    moved = shuffled(start, 1)
    assert sorted(moved["a"].ravel()) == list(range(6)) and not np.array_equal(moved["a"], start["a"])


def test_draws_are_of_all_members(ensemble):
    draws = ensemble.posterior_draws(11)
    for name, leaf in draws.items():
        assert leaf.shape[:2] == (1, 11)
        first = ensemble.members_[0].posterior_draws(3)[name]
        np.testing.assert_array_equal(leaf[:, :3], first)
    assert ensemble.to_arviz(n_draws=10).posterior.sizes["draw"] == 10


def test_it_is_saved_whole(ensemble, tmp_path):
    x, _ = data(1)
    ensemble.save(tmp_path / "ensemble.npz")
    loaded = mx.BayesianClassifier.load(tmp_path / "ensemble.npz")
    np.testing.assert_array_equal(loaded.predict_proba(x), ensemble.predict_proba(x))
    np.testing.assert_array_equal(loaded.members_[4].predict_proba(x), ensemble.members_[4].predict_proba(x))
    assert loaded.method == "ensemble" and loaded.members_[4].random_state == 8


def test_all_members_forget_and_are_pruned(ensemble):
    x, y = data()
    forgot, pruned = ensemble.forget([0, 1], epochs=3), ensemble.pruned(0.5)
    assert {member.n_observations_ for member in forgot.members_} == {88} and forgot.n_observations_ == 88
    assert len(ensemble.members_[0]._data[1]) == 90
    assert {float(np.mean(member.signal_to_noise() == 0)) for member in pruned.members_} == {
        float(np.mean(pruned.members_[0].signal_to_noise() == 0))
    }
    table = ensemble.influence(20)
    np.testing.assert_allclose(table["leverage"], np.mean([m.influence(20)["leverage"] for m in ensemble.members_], axis=0))
    again = ensemble.set_params(method=None).fit(x, y)
    assert again.members_ == () and np.isfinite(again.elbo_)
    ensemble.set_params(method="ensemble").fit(x, y)


def test_it_goes_on_from_its_checkpoints(tmp_path):
    x, y = data()
    whole = mx.BayesianClassifier(method="ensemble", **SETTINGS).fit(x, y)
    place = tmp_path / "fit.npz"
    mx.BayesianClassifier(method="ensemble", **SETTINGS).fit(x, y, checkpoint=place)
    assert len(list(tmp_path.iterdir())) == 5
    again = mx.BayesianClassifier(method="ensemble", **SETTINGS).fit(x, y, checkpoint=place)
    np.testing.assert_array_equal(again.predict_proba(x), whole.predict_proba(x))


def test_of_numbers():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(150, 1))
    y = 10 + 5 * np.sin(2 * x[:, 0]) + rng.normal(size=150)
    model = mx.BayesianRegressor(method="ensemble", temperature=0.1, epochs=300, verbose=False).fit(x, y)
    each = [member.predict(x, 20) for member in model.members_]
    np.testing.assert_allclose(model.predict(x, 100), np.mean(each, axis=0), rtol=1e-6)
    assert model.score(x, y) > 0.8
    noises = [member.params_["noise"] for member in model.members_]
    means = model._means_of_draws(x, 10, 0)
    np.testing.assert_allclose(model.predict_std(x, 10), np.sqrt(means.var(axis=0) + np.mean(np.square(noises))))
    each = norm.logpdf(y, means, np.repeat(noises, 2)[:, None])
    score = model.evaluate(x, y, n_draws=10)["log_score"]
    np.testing.assert_allclose(score, np.mean(logsumexp(each, axis=0) - np.log(10)), rtol=1e-6)
    outside = np.array([[6.0]])  # where networks disagree
    assert model.predict_std(outside, 100)[0] > np.mean([m.predict_std(outside, 20)[0] for m in model.members_])
