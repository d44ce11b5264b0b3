"""Temperatures of Bayesian networks: what they maximise, against closed forms, and how they are chosen."""

from collections import defaultdict
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import special, stats
from sklearn.datasets import make_moons

import margaux as mx
from margaux.examples.digits import split
from margaux.families.variational.architectures import Perceptron
from margaux.families.variational.fan_in import fan_in
from margaux.families.variational.posterior import GaussianPosterior
from margaux.families.variational.priors import ByTensor, Normal
from margaux.families.variational.tempering import (
    CLASSES,
    FAILED,
    LADDER,
    NUMBERS,
    PLAIN,
    RISING,
    SETTLED,
    WIDTHS,
    Candidate,
    choose,
    folds,
    log_scores,
)

MASKS = [np.arange(100) % 5 == k for k in range(5)]


def scores_by(means, noise=0.1, longer=0.0):
    """Log scores of so much on the average by candidate, whose observations differ; a fit twice as long gains so much. What has
    no mean is far below."""
    rng = np.random.default_rng(0)
    own = defaultdict(lambda: np.full(100, -99.0))
    own |= {one: mean + noise * rng.normal(size=100) for one, mean in means.items()}

    def scored(one, mask, length):
        return own[one][mask] + longer * np.log2(length)

    return scored


def peaked(at, width=1.0, plain=-9.0):
    means = {Candidate(T, "fan-in"): -(((i - at) * width) ** 2) for i, T in enumerate(LADDER)}
    return means | {PLAIN: plain}


@pytest.mark.parametrize("start", [CLASSES, NUMBERS])
@pytest.mark.parametrize("at", range(len(LADDER)))
def test_the_ladder_is_walked_to_the_highest_score(start, at):
    found = choose(None, MASKS, scores_by(peaked(at), noise=0.01), start, longer=False)
    assert found.candidate == Candidate(LADDER[at], "fan-in") and not found.rising and found.searched
    table: Any = found.table
    assert table["chosen"].sum() == 1 and table.loc[table["chosen"], "difference"].item() == 0
    assert table.iloc[0][["temperature", "prior"]].tolist() == list(PLAIN) and (table["held_out"] == 100).all()
    assert "-9" in found.said and f"Temperature {LADDER[at]:g}" in found.said


def test_the_plain_posterior_is_kept_where_it_is_best():
    found = choose(None, MASKS, scores_by(peaked(3, plain=1.0)), CLASSES, longer=False)
    assert found.candidate == PLAIN and found.said.count("-") == 0


@pytest.mark.parametrize(
    ("half", "quarter", "width"), [(0.5, 0.7, "fan-in / 4"), (0.5, 0.4, "fan-in / 2"), (-0.5, 0.7, "fan-in")]
)
def test_a_prior_is_made_narrower_while_that_predicts_better(half, quarter, width):
    narrower = {Candidate(0.1, "fan-in / 2"): half, Candidate(0.1, "fan-in / 4"): quarter}
    found = choose(None, MASKS, scores_by(peaked(2) | narrower, noise=0.01), CLASSES, longer=False)
    assert found.candidate == Candidate(0.1, width)
    assert choose("given", MASKS, lambda one, mask, n: np.zeros(100)[mask], CLASSES, longer=False).candidate.prior == "given"
    np.testing.assert_allclose(fan_in({"a": np.zeros((3, 2))}, WIDTHS["fan-in / 4"]).scales, 0.25)


def test_of_scores_that_are_alike_the_highest_temperature_is_taken():
    # 0.03 and 0.01 differ by less than their noise, 0.1 is far below.
    means = peaked(4) | {Candidate(0.03, "fan-in"): -0.01, Candidate(0.1, "fan-in"): -1.0}
    assert choose(None, MASKS, scores_by(means, noise=0.5), CLASSES, longer=False).candidate.temperature == 0.03
    assert choose(None, MASKS, scores_by(means, noise=0.001), CLASSES, longer=False).candidate.temperature == 0.01


@pytest.mark.parametrize(("gain", "length", "rising"), [(0.0, 1, False), (1.0, 8, True)])
def test_fits_are_made_longer_until_the_score_does_not_rise(gain, length, rising):
    found = choose("given", MASKS, lambda one, mask, n: np.arange(100.0)[mask] + gain * np.log2(n), CLASSES, longer=True)
    assert (found.length, found.rising, found.lengthened) == (length, rising, True)


def test_a_plain_posterior_that_is_slower_to_find_is_taken_where_it_predicts_as_well():
    own = np.random.default_rng(0).normal(size=100)

    def scored(one, mask, length):
        return own[mask] + (0.1 * np.log2(length) - 0.3 if one == PLAIN else -0.01 * (one.temperature != 0.1))

    found = choose(None, MASKS, scored, CLASSES, longer=True)
    assert (found.candidate, found.length) == (PLAIN, 8)
    table: Any = found.table
    assert table["length"].tolist() == [1] * (len(table) - 1) + [8] and (table["held_out"] == 100).all()
    assert table.loc[table["chosen"], "difference"].tolist() == [0.0]
    assert choose(None, MASKS, scored, CLASSES, longer=False).candidate == Candidate(0.1, "fan-in")


def test_fits_that_fail_are_not_chosen():
    means = peaked(5) | {PLAIN: FAILED, Candidate(0.003, "fan-in"): FAILED}
    found = choose(None, MASKS, scores_by(means, noise=0.0), CLASSES, longer=False)
    assert found.candidate.temperature == 0.01
    wide = found.table[found.table["prior"] != "fan-in / 2"]
    by_temperature: Any = wide.set_index("temperature")["log_score"]
    assert by_temperature.loc[[1.0, 0.003]].isna().all() and np.isfinite(by_temperature.loc[0.01])


def test_parts_held_out_have_all_classes_and_every_observation_once():
    labels = np.repeat([0, 1, 2], [70, 25, 5])
    parts = folds(100, labels, seed=1)
    assert len(parts) == 5 and (np.sum(parts, axis=0) == 1).all()
    assert all([int(np.sum(labels[mask] == k)) for k in range(3)] == [14, 5, 1] for mask in parts)
    (one,) = folds(2000, None, seed=0)
    assert one.sum() == 400 and not np.array_equal(one, folds(2000, None, seed=1)[0])


def test_log_scores_average_densities_over_draws():
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(7, 4, 1)), rng.normal(size=4)
    wanted = special.logsumexp(stats.norm.logpdf(y, outputs[:, :, 0], 0.3), axis=0) - np.log(7)
    np.testing.assert_allclose(log_scores(outputs, lambda one: stats.norm.logpdf(y, one[:, 0], 0.3)), wanted)
    assert log_scores(outputs, lambda one: np.full(4, -1e4))[0] == -1e4


def test_the_prior_by_inputs():
    network = Perceptron(9, (16,), 2, key=jax.random.key(0))
    weights = eqx.filter(network, eqx.is_inexact_array)
    prior = fan_in(weights)
    np.testing.assert_allclose(prior.scales, [1 / 3, 1, 1 / 4, 1])
    assert fan_in({"a": np.zeros((3, 2))}).scales == (1.0,)
    # Its divergence is that of a normal prior, tensor by tensor.
    posterior = GaussianPosterior("weight")
    params = posterior.start(weights, 0.2)
    wanted = 0.0
    for scale, mean in zip(prior.scales, jax.tree.leaves(weights), strict=True):
        wanted += float(Normal(float(scale)).divergence(posterior, posterior.start(mean, 0.2), None))
    assert float(prior.divergence(posterior, params, None)) == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(ValueError, match="the prior has 3 scales, and the network 4 tensors"):
        ByTensor([1.0, 1.0, 1.0]).divergence(posterior, params, None)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_tempered_posterior_of_a_linear_regression(temperature):
    """In closed form: T times the divergence is that of data which count 1/T times; its ELBO is the one at temperature one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    y = x @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=80)
    layer = eqx.nn.Linear(3, 1, key=jax.random.key(0))
    model = mx.BayesianRegressor(network=layer, temperature=temperature, noise=0.7, noise_fixed=True, verbose=False).fit(x, y)
    z = np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(80)])
    target = (y - y.mean()) / y.std()
    precision = z.T @ z / 0.7**2 / temperature + np.eye(4)
    mean, sd = np.linalg.solve(precision, z.T @ target / 0.7**2 / temperature), np.diag(precision) ** -0.5
    np.testing.assert_allclose(np.append(model.params_["weight"], model.params_["bias"]), mean, atol=1e-4)
    np.testing.assert_allclose(np.append(model.stderr_["weight"], model.stderr_["bias"]), sd, rtol=1e-3)
    expected = stats.norm.logpdf(target, z @ mean, 0.7).sum() - np.sum(z**2 @ sd**2) / (2 * 0.7**2) - 80 * np.log(y.std())
    divergence = np.sum(-np.log(sd) + (sd**2 + mean**2) / 2 - 0.5)
    assert model.elbo_ == pytest.approx(expected - divergence, abs=1e-3)
    assert model.converged_ and model.certificate_.word == "certified" and model.temperature_ == temperature


def data(n=120, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, np.where(x[:, 0] * x[:, 1] > 0, "same", "other")


@pytest.fixture(scope="module")
def chosen():
    return mx.BayesianClassifier(epochs=150, verbose=False).fit(*data())


def test_a_temperature_is_chosen_and_told(chosen, tmp_path):
    x, y = data()
    table = chosen.temperatures_
    assert chosen.temperature_ == table.loc[table["chosen"], "temperature"].item() < 1
    assert f"Temperature {chosen.temperature_:g}, by the log score of 120 observations held out" in chosen.message_
    assert (chosen.summary()["temperature"] == chosen.temperature_).all() and "temperature" in repr(chosen.get_params())
    chosen.save(tmp_path / "model.npz")
    back = mx.BayesianClassifier.load(tmp_path / "model.npz")
    assert back.temperature_ == chosen.temperature_ and np.array_equal(back.predict_proba(x), chosen.predict_proba(x))
    pd.testing.assert_frame_equal(back.temperatures_, table)
    assert back.evaluate(x, y)["elbo"] == pytest.approx(chosen.evaluate(x, y)["elbo"])


@pytest.mark.slow
def test_what_was_chosen_goes_on_from_a_checkpoint(chosen, tmp_path):
    x, y = data()
    again = mx.BayesianClassifier(epochs=150, verbose=False).fit(x, y, checkpoint=tmp_path / "fit.npz")
    rest = mx.BayesianClassifier(epochs=150, verbose=False).fit(x, y, checkpoint=tmp_path / "fit.npz")
    for name, value in chosen.params_.items():
        assert np.array_equal(value, again.params_[name]) and np.array_equal(value, rest.params_[name])


def test_temperatures_share_their_programs():
    from margaux.engine.loop import batch_chunk

    x, y = data()

    def fit(temperature, prior=None):
        return mx.BayesianClassifier(epochs=5, temperature=temperature, prior=prior, verbose=False).fit(x, y)

    hot, known = fit(1.0), batch_chunk.programs()
    cold = fit(0.1)
    assert batch_chunk.programs() == known and not np.array_equal(hot.predict_proba(x), cold.predict_proba(x))


def test_the_plain_posterior_where_nothing_can_be_held_out_or_one_layer_is_exact():
    x, y = data(40)
    small = mx.BayesianClassifier(epochs=2, verbose=False).fit(x, y)
    assert small.temperature_ == 1 and "40 observations are too few to hold some out" in small.message_
    layer = mx.BayesianClassifier(network=eqx.nn.Linear(2, 2, key=jax.random.key(0)), verbose=False).fit(*data(100))
    assert layer.temperature_ == 1 and layer.temperatures_.empty


@pytest.mark.parametrize("temperature", ["cold", 0.0, -1.0, np.inf, np.nan, True, None])
def test_temperatures_that_are_none(temperature):
    wrong: Any = temperature
    with pytest.raises(ValueError, match='temperature must be "auto" or a positive number'):
        mx.BayesianClassifier(temperature=wrong).fit(*data())
    with pytest.raises(ValueError, match='prior must be a number, "fan-in" or a prior'):
        mx.BayesianClassifier(prior="wide", temperature=1.0).fit(*data())


@pytest.mark.slow
def test_numbers_choose_a_temperature_too():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(100, 1))
    model = mx.BayesianRegressor(verbose=False, epochs=300).fit(x, np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=100))
    assert model.temperature_ < 1 and 0.1 < model.params_["noise"] < 0.3
    assert np.isfinite(model.temperatures_["log_score"].iloc[0])


@pytest.mark.slow
def test_digits_are_predicted_better_than_by_a_point_estimate():
    found = split()
    model = mx.BayesianClassifier(verbose=False).fit(found.x, found.y)
    seen = model.evaluate(found.x_new, found.y_new)
    # scikit-learn's network has -0.110, and 0.964.
    assert seen["log_score"] > -0.105 and seen["accuracy"] > 0.965 and seen["ece"] < 0.035
    assert SETTLED.rstrip(".") in model.message_ or RISING.rstrip(".") in model.message_
    assert model.temperatures_["log_score"].iloc[0] < model.temperatures_["log_score"].max() - 0.03


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_two_moons_are_predicted_better_than_by_the_plain_posterior(seed):
    x, y = make_moons(200, noise=0.3, random_state=seed)
    new = make_moons(2000, noise=0.3, random_state=100 + seed)
    model = mx.BayesianClassifier(verbose=False).fit(x, y)
    plain = mx.BayesianClassifier(temperature=1.0, verbose=False).fit(x, y)
    assert model.evaluate(*new)["log_score"] > max(plain.evaluate(*new)["log_score"], -0.29)
    assert jnp.isfinite(model.elbo_)
