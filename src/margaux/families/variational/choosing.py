"""How a Bayesian network chooses its temperature: fits to a part of the observations, scored on the others."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from ...engine.outcome import RESULTS
from ...numerics.precision import precision, settle
from .answers import deviations
from .bound import is_one_layer
from .continuing import Ended, choose_onward, first_epochs
from .evaluation import outputs_at, outputs_of_draws
from .fan_in import fan_in
from .laplace import LAPLACE
from .likelihoods import Categorical
from .model import SCALES
from .observations import Scaling
from .priors import AbstractWeightPrior, Normal
from .tempering import (
    CLASSES,
    FAILED,
    FOLDS,
    NUMBERS,
    PLAIN,
    SPARED,
    WIDTHS,
    Candidate,
    Choice,
    choose,
    folds,
    is_much,
    kept_plain,
    log_scores,
)
from .training import Trained, train

if TYPE_CHECKING:
    from .training import Settings

#: draws of the weights that predictions are averaged over, as by `predict_proba`, and of many observations
DRAWS, FEWER = 30, 10


class Tempered:
    """What an estimator does before its fit."""

    temperature: float | str
    prior: float | str | AbstractWeightPrior | None
    epochs: int | None

    def _choice(self, x: np.ndarray, y: np.ndarray, shared: bool) -> Choice:
        """Temperature, prior and length of the fit to these observations.

        Raises:
            ValueError: a temperature that is neither "auto" nor a positive number.
        """
        me: Any = self
        given = None if self.prior is None else "fan-in" if isinstance(self.prior, str) and self.prior == "fan-in" else "given"
        if me.method == LAPLACE:
            return dataclasses.replace(kept_plain(""), said="")
        known = Candidate(1.0, str(given or PLAIN.prior))
        if self.temperature != "auto":
            temperature: Any = self.temperature
            is_number = isinstance(temperature, int | float | np.number) and not isinstance(temperature, bool)
            if not is_number or not 0 < temperature < np.inf:
                raise ValueError(f'temperature must be "auto" or a positive number, got {temperature!r}')
            known = known._replace(temperature=float(temperature))
        plain = Choice(known, 1, False, pd.DataFrame(), "")
        settings: Settings = dataclasses.replace(me._settings(len(x), plain), shared=shared)
        network, weights = me._network(settings.dtype)
        likelihood = me._likelihood()
        if is_one_layer(network, likelihood):
            return plain
        much = is_much(len(x), weights) and not me._walks
        if self.temperature != "auto":
            return dataclasses.replace(plain, many=much)
        if len(x) < SPARED:
            return dataclasses.replace(plain, said=kept_plain(f"{len(x)} observations are too few to hold some out").said)

        def fitted(held: np.ndarray, choice: Choice) -> Ended:
            """To the others of those that are held out, by what a choice says of it."""
            candidate, scaling = choice.candidate, Scaling.of(x[~held], me.standardize)
            choice = dataclasses.replace(choice, table=pd.DataFrame({"temperature": [candidate.temperature]}))
            own = dataclasses.replace(me._settings(int(np.sum(~held)), choice), progress=False, rows="device", shared=shared)
            prior = self._prior(candidate.prior, weights)
            draws = me._related(network, weights, prior)
            trained = train(network, weights, likelihood, prior, draws, scaling.scaled(x[~held]), y[~held], own)
            scores = scores_of(trained, scaling.scaled(x[held]), y[held], FEWER if choice.many else DRAWS)
            if me.verbose:
                said = f"temperature {candidate.temperature:g}, prior {candidate.prior}: log score {scores.mean():.4g} held out"
                print(said, file=sys.stderr)
            return Ended(scores, None if trained.fit.result.failed else ended_at(trained))

        def scored(candidate: Candidate, held: np.ndarray, length: int) -> np.ndarray:
            return fitted(held, Choice(candidate, length, False, pd.DataFrame(), "")).scores

        def onward(candidate: Candidate, begin: Any, epochs: float) -> Ended:
            return fitted(masks[0], Choice(candidate, 1, False, pd.DataFrame(), "", begin=begin, many=True, epochs=epochs))

        classified = isinstance(likelihood, Categorical)
        masks = folds(len(x), y if classified else None, me.random_state, 2 * FOLDS if much else FOLDS)
        start = CLASSES if classified else NUMBERS
        if not much:
            return choose(given, masks, scored, start, longer=self.epochs is None)
        epochs = None if self.epochs is None else int(settings.epochs)
        return choose_onward(given, onward, start, epochs or first_epochs(settings.n_blocks), epochs)

    def _prior(self, name: str, weights: PyTree) -> AbstractWeightPrior:
        """By the name that a candidate has."""
        if name in WIDTHS:
            return fan_in(weights, WIDTHS[name])
        if name == PLAIN.prior:
            return Normal(1.0)
        given: Any = self.prior
        if isinstance(given, str):
            raise ValueError(f'prior must be a number, "fan-in" or a prior, got {given!r}')
        return given if isinstance(given, AbstractWeightPrior) else Normal(given)


def ended_at(trained: Trained) -> tuple[PyTree, PyTree, dict[str, Any]]:
    """The posterior at the end of a fit, for another one to begin at."""
    model, dtype = trained.model, trained.fit.dtype
    params: Any = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), trained.fit.params)
    natural = model.natural(params)
    return params["mean"], deviations(model, params, dtype), {name: natural[name] for name in SCALES if name in natural}


def scores_of(trained: Trained, x: np.ndarray, y: np.ndarray, n_draws: int = DRAWS) -> np.ndarray:
    """Log scores (n,) of new observations, averaged over draws of the weights; `FAILED` where the fit has failed.

    Raises:
        KeyboardInterrupt: the fit was interrupted.
    """
    if trained.fit.result is RESULTS.interrupted:
        raise KeyboardInterrupt
    if trained.fit.result.failed:
        return np.full(len(y), FAILED)
    model, dtype = trained.model, trained.fit.dtype
    params: Any = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), trained.fit.params)
    kept, natural = trained.kept, model.natural(params)
    count = n_draws if kept is None else max(n_draws, kept.count)
    noises = None if kept is None else kept.log_noises(count)
    noises = np.full(count, natural.get("log_noise", 0.0)) if noises is None else noises
    with precision(dtype):
        outputs = (
            outputs_of_draws(model.network, params["mean"], deviations(model, params, dtype), x, count, 0, dtype)
            if kept is None
            else outputs_at(model.network, kept.draws(count, 0), x, dtype)
        )
    with precision(np.dtype(float)):
        likelihood, own = settle(model.likelihood, np.dtype(float)), iter(noises)
        logs = log_scores(
            outputs,
            lambda one: likelihood.log_prob({"log_noise": float(next(own))}, jax.numpy.asarray(one), jax.numpy.asarray(y)),
        )
    return np.where(np.isfinite(logs), logs, FAILED)
