"""Chains of weights beside exact posteriors: conjugate regression, and logistic regression by a grid; files and verdicts."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import norm

import margaux as mx
from linear_networks import products as data
from margaux.answers.certificate import Certificate
from margaux.families.variational.drawn_verdict import chained, effective
from margaux.families.variational.priors import Normal
from margaux.families.variational.trajectory import Chain, Cycles

QUIET: dict[str, Any] = {"method": "sgmcmc", "verbose": False}
SMALL: dict[str, Any] = QUIET | {"temperature": 0.3, "prior": "fan-in", "epochs": 200, "n_members": 3}


def but(own: dict[str, Any], settings: dict[str, Any] = SMALL) -> dict[str, Any]:
    """Settings with some of one's own."""
    return settings | own


def regression(seed, n=600):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    x[:, 1] += 1.5 * x[:, 0]
    return x, x @ [1.0, -1.0, 0.5, 2.0] + 0.5 * rng.normal(size=n)


def linear(seed, temperature=1.0, **settings):
    """Draws in the eigenvectors of the exact precision and in units of its standard deviations, and the model."""
    x, y = regression(seed)
    model = mx.BayesianRegressor(
        network=lambda w, x: x @ w, weights=np.zeros(4), noise=0.5, noise_fixed=True, standardize=False, prior=1.0,
        temperature=temperature, random_state=seed, **but(settings, QUIET),
    ).fit(x, y)  # fmt: skip
    precision = x.T @ x / 0.25 / temperature + np.eye(4)
    mean = np.linalg.solve(precision, x.T @ y / 0.25 / temperature)
    values, vectors = np.linalg.eigh(precision)
    draws = model.posterior_draws(model._kept.count)["weights"][0]
    covariance = np.linalg.inv(precision)
    np.testing.assert_allclose(model.params_["weights"], draws.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(model.stderr_["weights"], draws.std(axis=0), rtol=2e-2)
    return (draws - mean) @ vectors * np.sqrt(values), np.sqrt(np.diag(covariance)), model


def check_linear(seed, temperature=1.0, **settings):
    # Some 1200 draws: errors of .03 of the means, and of 2% of the deviations.
    draws, sd, model = linear(seed, temperature, n_members=4, cycles=100, epochs=12_000, n_blocks=1, **settings)
    assert np.abs(draws.mean(axis=0)).max() < 0.15
    np.testing.assert_allclose(draws.std(axis=0), 1.0, atol=0.09)
    np.testing.assert_allclose(model.stderr_["weights"], sd, rtol=0.09)
    assert model.converged_ and model.certificate_.word == "certified"


def test_of_a_linear_regression_draws_are_of_bayes_rule():
    check_linear(0)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "temperature", "friction"), [(1, 1.0, 0.1), (2, 0.1, 0.1), (3, 1.0, 1.0)])
def test_at_any_temperature_and_friction(seed, temperature, friction):
    check_linear(seed, temperature, friction=friction)


def test_noise_of_blocks_is_seen():
    """By default the step is shortened until it adds little; a step that is given is kept, and said to be too long."""
    draws, _, model = linear(0, n_members=4, cycles=50, epochs=300, n_blocks=40)
    assert model.certificate_["heat"].figure < 1.2 and np.abs(draws.mean(axis=0)).max() < 0.4
    assert np.all(draws.std(axis=0) > 0.8) and np.all(draws.std(axis=0) < 1.35) and model.step_ < 0.2
    draws, _, hot = linear(0, n_members=4, cycles=50, epochs=300, n_blocks=40, step=0.5)
    assert draws.std(axis=0)[-1] > 1.5 and hot.certificate_["heat"].figure > 1.5 and not hot.converged_
    assert "draws are too wide, pass a smaller step=, or a larger batch_size=" in hot.message_ and hot.step_ == 0.5


def test_of_a_logistic_regression_they_are_those_of_a_grid():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(300), 1.5 * rng.normal(size=300)])
    y = (rng.random(300) < expit(x @ [-0.5, 1.2])).astype(int)
    grid = np.stack(np.meshgrid(np.linspace(-2, 1, 201), np.linspace(0, 2.5, 201), indexing="ij"), axis=-1).reshape(-1, 2)
    eta = grid @ x.T
    logs = np.sum(y * eta - np.logaddexp(0, eta), axis=1) - np.sum(grid**2, axis=1) / 2
    weights = np.exp(logs - logs.max()) / np.sum(np.exp(logs - logs.max()))
    mean = weights @ grid
    sd = np.sqrt(weights @ (grid - mean) ** 2)
    model = mx.BayesianClassifier(
        network=lambda w, x: jnp.stack([0 * (x @ w), x @ w], axis=1), weights=np.zeros(2), standardize=False, prior=1.0,
        temperature=1.0, n_members=4, cycles=100, epochs=12_000, **QUIET,
    ).fit(x, y)  # fmt: skip
    assert model._kept.count == 1200 and model.step_ == 1.0
    np.testing.assert_allclose((model.params_["weights"] - mean) / sd, 0.0, atol=0.15)
    np.testing.assert_allclose(model.stderr_["weights"], sd, rtol=0.1)
    new = np.array([[1.0, -1.0], [1.0, 0.3], [1.0, 2.0]])
    np.testing.assert_allclose(model.predict_proba(new)[:, 1], weights @ expit(grid @ new.T), atol=0.01)
    assert model.certificate_.word == "certified"


@pytest.fixture(scope="module")
def chains():
    return mx.BayesianClassifier(random_state=4, **SMALL).fit(*data())


def test_predictions_are_means_over_the_draws(chains):
    x, _ = data(1)
    assert [one.random_state for one in chains.members_] == [4, 5, 6] and chains._kept.count == 3 * 30
    scaled = (x - data()[0].mean(axis=0)) / data()[0].std(axis=0)
    draws = {name: value[0] for name, value in chains.posterior_draws(90).items()}
    hidden = np.tanh(np.einsum("shp,np->snh", draws["layers.0.weight"], scaled) + draws["layers.0.bias"][:, None])
    logits = np.einsum("soh,snh->sno", draws["layers.1.weight"], hidden) + draws["layers.1.bias"][:, None]
    by_hand = np.exp(logits - logsumexp(logits, axis=2, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(chains.predict_proba(x), by_hand, atol=1e-5)
    fewer = chains.predict_proba(x, 9)
    assert fewer.shape == (90, 2) and np.abs(fewer - by_hand).max() < 0.3
    seen = chains.evaluate(*data(1))
    assert list(seen.index) == ["accuracy", "log_score", "brier", "ece"] and seen["accuracy"] > 0.7
    assert list(chains.history_) == ["epoch", "log_posterior"] and "elbo" not in chains.summary()


def test_they_are_saved_and_continued(chains, tmp_path):
    x, y = data(1)
    chains.save(tmp_path / "chains.npz")
    loaded = mx.BayesianClassifier.load(tmp_path / "chains.npz")
    np.testing.assert_array_equal(loaded.predict_proba(x), chains.predict_proba(x))
    assert loaded.message_ == chains.message_ and loaded.members_[2].random_state == 6
    np.testing.assert_array_equal(loaded.stderr_["layers.0.weight"], chains.stderr_["layers.0.weight"])
    own = but({"random_state": 4})
    mx.BayesianClassifier(**own).fit(*data(), checkpoint=tmp_path / "fit.npz")
    assert len(list(tmp_path.glob("fit-*.npz"))) == 3
    again = mx.BayesianClassifier(**own).fit(*data(), checkpoint=tmp_path / "fit.npz")
    np.testing.assert_array_equal(again.predict_proba(x), chains.predict_proba(x))


def test_they_forget_and_go_to_arviz(chains):
    forgot = chains.forget([0, 1], epochs=200)
    assert forgot.n_observations_ == 88 and {one.n_observations_ for one in forgot.members_} == {88}
    assert not np.array_equal(forgot.params_["layers.0.weight"], chains.params_["layers.0.weight"])
    tree = chains.to_arviz(n_draws=30)
    assert tree.posterior.sizes["draw"] == 30 and tree.log_likelihood["y"].shape == (1, 30, 90)


def test_of_numbers_each_draw_has_its_noise():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(120, 1))
    y = 10 + 5 * np.sin(2 * x[:, 0]) + rng.normal(size=120)
    model = mx.BayesianRegressor(**but({"epochs": 3000, "temperature": 0.1})).fit(x, y)
    assert model.score(x, y) > 0.85 and 0.7 < model.params_["noise"] < 1.5
    count = model._kept.count
    means, noises = model._means_of_draws(x, count, 0), model._noises(count)
    np.testing.assert_allclose(noises, np.exp(model._kept.scales["log_noise"]) * y.std(), rtol=1e-5)
    np.testing.assert_allclose(model.predict_std(x), np.sqrt(means.var(axis=0) + np.mean(noises**2)), rtol=1e-6)
    each = norm.logpdf(y, means, noises[:, None])
    assert model.evaluate(x, y)["log_score"] == pytest.approx(np.mean(logsumexp(each, axis=0) - np.log(count)))


def test_a_scale_of_the_prior_is_learned(tmp_path):
    x, y = data()
    model = mx.BayesianClassifier(**but({"prior": Normal(1.0, learned=True), "n_members": 1})).fit(x, y)
    assert 0.1 < model.params_["prior_scale"] < 2 and model.params_["prior_scale"] != 1.0
    model.save(tmp_path / "one.npz")
    loaded = mx.BayesianClassifier.load(tmp_path / "one.npz")
    assert loaded.params_["prior_scale"] == model.params_["prior_scale"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step": 0.0}, 'step must be a positive number with method="sgmcmc"'),
        ({"step": mx.Polynomial(1.0, 0.5)}, 'step must be a positive number with method="sgmcmc"'),
        ({"cycles": 0}, "cycles must be at least 1, got 0"),
        ({"cycles": 30}, "cycles = 30 share 200 iterations of a chain, and a cycle needs 10: raise epochs="),
        ({"friction": 0.0}, r"friction must be a number above 0, and 1 at most \(Langevin dynamics\), got 0.0"),
        ({"friction": "a"}, "friction must be a number"),
        ({"n_members": 0}, "n_members must be at least 1"),
        ({"spread": "all"}, "spread is a setting of posteriors by the ELBO; leave it at 'weight' with method=\"sgmcmc\""),
        ({"early_stopping": True}, "early_stopping is a setting of posteriors by the ELBO"),
        ({"swag": True}, 'swag is a setting of method="ensemble"'),
        ({"method": None, "n_members": 2}, 'n_members is a setting of method="ensemble" and "sgmcmc"'),
        ({"method": "adam", "n_members": 5, "cycles": 3}, 'cycles and friction are settings of method="sgmcmc"'),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        mx.BayesianClassifier(**but(settings)).fit(*data())


def test_what_draws_cannot_answer(chains):
    with pytest.raises(ValueError, match="a posterior of draws has no density, and so no ELBO"):
        _ = chains.elbo_
    with pytest.raises(ValueError, match="none can be left out alone"):
        chains.pruned(0.5)
    with pytest.raises(ValueError, match="influence is by the curvature of Gaussian posteriors"):
        chains.influence()


def test_a_step_that_is_too_long_is_a_failure():
    with pytest.warns(RuntimeWarning, match="The fit diverged"):
        model = mx.BayesianClassifier(**but({"step": 1e6})).fit(*data())
    assert not model.converged_ and model.certificate_.word == "failed" and np.all(np.isfinite(model.predict_proba(data()[0])))


def test_verdicts_of_chains():
    rng = np.random.default_rng(0)
    good = rng.normal(size=(60, 5, 100))

    def said(values, heat=1.0):
        return Certificate(chained(values, [1.0, heat]))

    assert said(good).word == "certified" and said(good)["draws"].figure > 100
    apart = good + 2 * rng.normal(size=(1, 5, 1))
    assert "Chains disagree" in str(said(apart)) and "which are few" in str(said(apart))
    rising = good + np.linspace(0, 4, 60)[:, None, None]
    assert said(rising)["mixing"].level == "careful"
    assert said(good, 1.5)["heat"].level == "careful" and "1.5 times the temperature" in str(said(good, 1.5))
    assert said(good[:4])["mixing"].level == "careful" and said(good * np.nan).word == "failed"
    # Of chains whose halves stand still there are as many draws as halves.
    still = np.repeat(rng.normal(size=(2, 5, 1)), 30, axis=0) + 1e-9 * good[:, :, :1]
    assert effective(still)[0] == pytest.approx(10, rel=1e-3)


def test_draws_that_are_kept():
    cycles = Cycles(4, 0.1)
    assert cycles.at(400, 10).tolist() == [*range(182, 201, 6), *range(282, 301, 6), *range(382, 401, 6)]
    assert Cycles(1, 0.1).at(10, 10).tolist() == [9, 10] and len(cycles.at(400, 10**9)) == 3
    chain = Chain({"w": np.arange(10.0)}, {})
    assert chain.draws(5, 0)["w"].tolist() == [0, 2, 4, 6, 8] and chain.draws(20, 0)["w"].tolist() == sorted([*range(10)] * 2)
    assert chain.log_noises(3) is None
    kinetic = np.ones((400, 1))
    kinetic[80:100] = 3.0  # in the part of the first of four cycles whose draws would be kept
    assert cycles.heat(kinetic) == pytest.approx(1 + 2 * 20 / 100)
