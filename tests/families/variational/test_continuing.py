"""Temperatures where observations are many: one fit, and what goes on from it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import margaux as mx
from margaux.families.variational import base, tempering
from margaux.families.variational.architectures import Perceptron
from margaux.families.variational.continuing import RISING_ON, SETTLED_ON, Ended, choose_onward, cooled, first_epochs
from margaux.families.variational.draws import Flipout, LocalReparameterisation, default_draws
from margaux.families.variational.falling_adam import Adam
from margaux.families.variational.ivon import Falling
from margaux.families.variational.networks import as_network
from margaux.families.variational.priors import Normal, ScaleMixture
from margaux.families.variational.tempering import (
    CLASSES,
    FAILED,
    LADDER,
    MANY,
    NUMBERS,
    RISING,
    SETTLED,
    Candidate,
    Choice,
    folds,
    is_much,
)

BEGIN = ([np.array([1.0])], [np.array([0.1])], {})


def fits(at: int, gain: float = 0.0, noise: float = 0.001):
    """Fits whose log score is highest at a temperature of the ladder; going on gains so much. With what they were asked."""
    asked: list[Any] = []
    rng = np.random.default_rng(0)
    own = {temperature: noise * rng.normal(size=100) for temperature in LADDER}

    def fitted(one, begin, epochs):
        asked.append((one.temperature, begin, epochs))
        score = -((LADDER.index(one.temperature) - at) ** 2) + gain * (begin is not None)
        return Ended(
            own[one.temperature] + score + (noise * rng.normal(size=100) if begin else 0), (*BEGIN[:2], {"at": one.temperature})
        )

    return fitted, asked


@pytest.mark.parametrize("start", [CLASSES, NUMBERS])
@pytest.mark.parametrize("at", range(len(LADDER)))
def test_the_ladder_is_walked_from_the_end_of_one_fit(start, at):
    fitted, asked = fits(at)
    found = choose_onward(None, fitted, start, 6, None)
    assert found.candidate == (LADDER[at], "fan-in") and found.begin[2] == {"at": LADDER[at]} and found.epochs == 6
    assert asked[0] == (LADDER[start], None, 6) and len({one for one, *_ in asked[1:]}) == len(asked) - 1
    for temperature, begin, epochs in asked[1:]:
        # All begin at the end of the first fit, with deviations of their own temperature.
        assert epochs == 1 and begin[2] == {"at": LADDER[start]}
        np.testing.assert_allclose(begin[1][0], 0.1 * (temperature / LADDER[start]) ** 0.5)
    table: Any = found.table
    assert table.loc[table["chosen"], "temperature"].tolist() == [LADDER[at]] and found.searched and found.many
    assert f"Temperature {LADDER[at]:g}, by the log score of 100 observations held out" in found.said


@pytest.mark.parametrize(("gain", "rising", "said"), [(0.0, False, SETTLED_ON), (0.01, True, RISING_ON)])
def test_whether_the_score_still_rises_is_asked_of_one_temperature(gain, rising, said):
    # The best temperature is another one, whose score is higher in any case.
    found = choose_onward(None, fits(4, gain)[0], CLASSES, 6, None)
    assert (found.rising, found.ended, found.lengthened) == (rising, said, True)
    given = choose_onward("given", fits(4, gain)[0], CLASSES, 6, 7)
    assert (given.ended, given.lengthened, given.epochs, given.candidate.prior) == (None, False, 7, "given")


def test_a_first_fit_that_fails_is_no_place_to_begin():
    found = choose_onward(None, lambda *_: Ended(np.full(10, FAILED), None), CLASSES, 6, None)
    assert found.begin is None and found.epochs == 6 and np.isnan(found.table["log_score"]).all()


def test_parts_and_lengths_of_many():
    (one,) = folds(MANY, np.arange(MANY) % 10, seed=0, parts=10)
    assert one.sum() == MANY // 10 and (np.bincount(np.arange(MANY)[one] % 10) == MANY // 100).all()
    assert (first_epochs(1), first_epochs(401), first_epochs(10_000)) == (1200, 3, 3)
    means, deviations, own = cooled(([2.0], {"a": np.array([0.3])}, {"log_noise": 1.0}), 0.25)
    assert means == [2.0] and own == {"log_noise": 1.0} and deviations["a"] == pytest.approx(0.15)


class Free:
    """A problem without bounds."""

    def land(self, params, step):
        return params


def test_adam_is_that_of_optax_by_a_schedule_that_is_traced():
    rng = np.random.default_rng(0)
    scores = jnp.asarray(rng.normal(size=(20, 3)), jnp.float32)
    params = jnp.zeros(3)
    own: Any = Adam(Falling(0.01, 20))
    other, optimiser = jnp.zeros(3), optax.adam(optax.cosine_decay_schedule(0.01, 20))
    state, theirs = own.init(params), optimiser.init(other)
    for k, score in enumerate(scores):
        params, state = own(Free(), params, score, state, jnp.asarray(k + 1))
        moves, theirs = optimiser.update(-score, theirs)
        other = optax.apply_updates(other, moves)
    np.testing.assert_allclose(params, np.asarray(other), rtol=2e-5)


def test_draws_of_perceptrons_by_their_weights():
    def draws(inputs, prior: Any = None):
        network, weights = as_network(Perceptron(inputs, (100,), 10, key=jax.random.key(0)))
        return default_draws(network, weights, prior or Normal(1.0))

    assert isinstance(draws(400), LocalReparameterisation) and isinstance(draws(64), Flipout)
    assert isinstance(draws(400, ScaleMixture()), Flipout)


@pytest.fixture
def much(monkeypatch):
    """Few weights count as many."""
    monkeypatch.setattr(tempering, "MUCH", 0)


def many(n=MANY, seed=0):
    """Outcomes with a log odds of four times a product, and their probabilities."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    p = 1 / (1 + np.exp(-4 * x[:, 0] * x[:, 1]))
    return x, (rng.random(n) < p).astype(int), p


def test_what_is_much():
    assert is_much(MANY, np.zeros(100_000)) and not is_much(MANY - 1, np.zeros(10**6)) and not is_much(MANY, np.zeros(99_999))


def test_many_observations_are_fitted_once_and_gone_on_from(much):
    x, y, _ = many()
    model = mx.BayesianClassifier(verbose=False).fit(x, y)
    table: Any = model.temperatures_
    assert (table["held_out"] == MANY // 10).all() and len(table) < 6 and model._method_for(True) == "adam"
    assert model.temperature_ == table.loc[table["chosen"], "temperature"].item()
    new, _, p = many(2000, 1)
    found = model.predict_proba(new)[:, 1]
    # What its log score is below that of the truth.
    assert np.mean(p * np.log(p / found) + (1 - p) * np.log((1 - p) / (1 - found))) < 0.01
    # It begins near its end, which a fit from the start does not.
    assert model.history_["elbo"].iloc[0] > -0.5
    said = RISING_ON if not model.converged_ else SETTLED_ON
    assert model.message_.startswith(said.rstrip("."))


def test_many_numbers_keep_their_noise(much):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(MANY, 1))
    y = 10 + 3 * np.sin(2 * x[:, 0]) + 0.5 * rng.normal(size=MANY)
    model = mx.BayesianRegressor(verbose=False).fit(x, y)
    assert model.params_["noise"] == pytest.approx(0.5, rel=0.05)
    grid = np.linspace(-1.9, 1.9, 50)[:, None]
    assert np.abs(model.predict(grid) - 10 - 3 * np.sin(2 * grid[:, 0])).max() < 0.15


def test_epochs_that_are_given_are_those_of_the_last_fit(much):
    x, y, _ = many()
    model = mx.BayesianClassifier(epochs=2, verbose=False).fit(x, y)
    assert model.n_iter_ == 2 * -(-MANY // 128) and model.result_.n_iter == model.n_iter_


@pytest.mark.parametrize("rising", [False, True])
def test_what_a_fit_says_of_a_score_that_rises(monkeypatch, rising):
    choice = Choice(Candidate(0.1, "fan-in"), 1, rising, pd.DataFrame({"temperature": [0.1]}), "", lengthened=True)
    monkeypatch.setattr(mx.BayesianClassifier, "_choice", lambda *_: choice)
    x = np.random.default_rng(0).normal(size=(60, 2))
    model = mx.BayesianClassifier(epochs=20, verbose=False).fit(x, x[:, 0] > 0)
    assert (model.converged_, model.message_) == (not rising, RISING if rising else SETTLED)


@pytest.mark.slow
def test_a_score_that_still_rises_is_no_convergence(monkeypatch):
    monkeypatch.setattr(base, "SEARCHED", 20)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 2))
    model = mx.BayesianClassifier(step=1e-4, prior="fan-in", batch_size=1000, verbose=False).fit(x, x[:, 0] > 0)
    # 160 steps of a ten-thousandth are too few to leave the start.
    assert model.temperatures_["length"].max() == 8 and not model.converged_
    assert model.message_.startswith(RISING.rstrip("."))
