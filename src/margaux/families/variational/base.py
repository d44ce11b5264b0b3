"""What both Bayesian networks share: settings, the fit, and what it keeps."""

from __future__ import annotations

import abc
import dataclasses
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import DTypeLike

from ...algorithms.average import AbstractAverage
from ...algorithms.base import AbstractAlgorithm
from ...algorithms.recipes import Step
from ...engine.outcome import RESULTS
from ...engine.validate import whole
from ...numerics.compiling import keep_compilations
from ...numerics.precision import default_dtype
from ...problem.schedule import AbstractSchedule
from ...showing.cards import Card
from ...showing.parts import check_fitted
from ...tables.kinds import Column, Tabular
from ..conventions import Conventional
from ..sharing import pooled
from .architectures import named
from .bound import Bound, one_dimensional
from .choosing import Tempered
from .drawn import ITERATIONS as WALKED
from .ensemble import shuffled
from .laplace import LAPLACE, Laplacian
from .likelihoods import AbstractLikelihood
from .methods import ENSEMBLE, FIRST, MEMBERS, ONWARD, SGMCMC
from .networks import as_network
from .observations import Scaling, columns, inputs
from .priors import AbstractWeightPrior
from .storing import Stored
from .tempering import RISING, SETTLED, Choice, is_much
from .training import Settings, train
from .trajectory import CYCLES, FRICTION
from .verdict import MAXIMUM, Judged, climbed
from .watching import FELL, ROSE, course

#: iterations of a fit by default, at least, and observations of a block
ITERATIONS, BATCH = 3000, 128
#: and of the shortest where temperature and length are chosen, whose deviations begin here
SEARCHED, SMALL = 2000, 0.03


class BayesianNetwork(Laplacian, Tempered, Stored, Judged, Conventional, abc.ABC):
    """What both estimators share: settings, the fit, saving."""

    def __init__(
        self, *, network: Any = "tanh", weights: PyTree = None, method: str | AbstractAlgorithm | None = None,
        step: Step | None = None, spread: str = "weight", sigma: float | None = None,
        prior: float | str | AbstractWeightPrior | None = None,
        temperature: float | str = "auto", draws: str | None = None, n_draws: int | AbstractSchedule = 1,
        antithetic: bool = False, batch_size: int | None = None, n_blocks: int | None = None, epochs: int | None = None,
        average: AbstractAverage | None = None, standardize: bool = True, early_stopping: bool = False,
        validation_fraction: float = 0.1, n_iter_no_change: int = 5, rows: str | Path = "device", random_state: int = 0,
        dtype: DTypeLike | None = None, verbose: bool = True, structure: str | None = None, layers: str = "all",
        n_members: int = MEMBERS, swag: bool = False, cycles: int = CYCLES, friction: float = FRICTION,
    ) -> None:  # fmt: skip
        self.network, self.weights, self.method, self.step = network, weights, method, step
        self.spread, self.sigma, self.prior, self.temperature = spread, sigma, prior, temperature
        self.draws, self.n_draws, self.antithetic = draws, n_draws, antithetic
        self.batch_size, self.n_blocks, self.epochs, self.average = batch_size, n_blocks, epochs, average
        self.standardize, self.early_stopping = standardize, early_stopping
        self.validation_fraction, self.n_iter_no_change = validation_fraction, n_iter_no_change
        self.rows, self.random_state, self.dtype, self.verbose = rows, random_state, dtype, verbose
        self.structure, self.layers = structure, layers
        self.n_members, self.swag, self.cycles, self.friction = n_members, swag, cycles, friction

    # -- what the outcome decides ---------------------------------------------------------------

    @abc.abstractmethod
    def _outcome(self, y: Column, n: int) -> np.ndarray:
        """The outcome of a fit, checked; its labels or scale are kept."""

    @abc.abstractmethod
    def _seen(self, y: Column, n: int) -> np.ndarray:
        """The outcome of other observations, in the terms of the fit."""

    @abc.abstractmethod
    def _as_given(self, outcome: np.ndarray) -> np.ndarray:
        """Outcomes in the terms in which they were given."""

    @abc.abstractmethod
    def _likelihood(self) -> AbstractLikelihood:
        """Of the outcome given the outputs of the network."""

    @abc.abstractmethod
    def _n_outputs(self) -> int:
        """Outputs that the network must have."""

    # -- fitting --------------------------------------------------------------------------------

    def fit(self, X: Tabular, y: Column, validation: tuple[Any, Any] | None = None, checkpoint: str | Path | None = None) -> Any:
        """Fit the posterior of the weights.

        Args:
            X: observations (n, ...); uint8 images are divided by 255. y: outcomes (n,).
            validation: (X, y) held out, whose ELBO is followed; with early stopping and none given, a part of X is.
            checkpoint: a path saved as the fit goes on, and continued from if it exists, to the same bits; not with early
                stopping.

        Several processes each give their own observations, by `margaux.shard`, and keep a share of the blocks.

        Raises:
            ValueError, TypeError: bad input or settings, before anything is compiled.
        """
        if self.early_stopping and checkpoint is not None:
            raise ValueError("a checkpoint does not hold what early stopping has seen; pass one of the two")
        whole("random_state", self.random_state, 0)
        self._check_laplace()
        self._check_drawn()
        keep_compilations()
        X, y, shared = pooled(X, y)
        if shared and self._walks:
            raise ValueError('method="sgmcmc" and swag=True are of one process; pass X and y as they are, without margaux.shard')
        x = inputs(X)
        outcome = self._outcome(y, len(x))
        self.n_features_in_, self._shape, self._columns = int(np.prod(x.shape[1:])), x.shape[1:], columns(X)
        held = None if validation is None else self._held(*validation)
        patience = whole("n_iter_no_change", self.n_iter_no_change, 1) if self.early_stopping else None
        if self.early_stopping and held is None:
            x, outcome, held = self._split(x, outcome)
        self._scaling = Scaling.of(x, self.standardize)
        choice = self._choice(x, outcome, shared)
        settings = dataclasses.replace(self._settings(len(x), choice), checkpoint=checkpoint, shared=shared)
        self.members_, self._approximation, self._kept = (), None, None
        fitted = self._fitted_members if self.method in (ENSEMBLE, SGMCMC) else self._fitted
        return fitted(x, outcome, choice, settings, held, patience)

    def _fitted(
        self, x: np.ndarray, outcome: np.ndarray, choice: Choice, settings: Settings,
        held: tuple[np.ndarray, np.ndarray] | None = None, patience: int | None = None,
    ) -> Any:  # fmt: skip
        """The estimator fitted to observations whose scaling is known."""
        if self.method == LAPLACE:
            return self._fitted_mode(x, outcome, choice, settings, held)
        if self._walks:
            return self._fitted_walk(x, outcome, choice, settings, held)
        network, weights = self._network(settings.dtype)
        prior = self._prior(choice.candidate.prior, weights)
        draws = self._related(network, weights, prior)
        apart, scaled = None if held is None else (self._scaled(held[0]), held[1]), self._scaled(x)
        trained = train(network, weights, self._likelihood(), prior, draws, scaled, outcome, settings, apart, patience)
        self.n_observations_, self._data, self._held_out = len(x), (x, outcome), held
        stopped, fit = self.early_stopping and trained.best is not None, trained.fit
        verdict = None if stopped or fit.result.failed else course(fit.trace["log_joint"].ravel(), settings.n_blocks)
        if verdict == ROSE and choice.searched:
            verdict = None  # whether it is long enough was asked of observations held out
        ended = not (stopped or fit.result.failed or fit.result is RESULTS.interrupted or verdict == FELL)
        params: Any = trained.best if stopped else fit.params
        own = self.method in (None, "adam") and self.step is None and self.average is None
        if ended and own:
            params = climbed(trained.model, params, scaled, outcome)
            fit = dataclasses.replace(fit, params=jax.tree.map(lambda leaf: np.asarray(leaf, fit.dtype), params))
        self._keep(trained.model, params, fit.dtype)
        self._choice_made, self.temperature_, self.temperatures_ = choice, choice.candidate.temperature, choice.table
        self.result_, self.history_, self.step_, self.curvature_ = fit, trained.history, trained.step, trained.curvature
        self._certificate, self.n_iter_, self.converged_, self.message_ = None, fit.n_iter, fit.converged, fit.message
        if ended and own and one_dimensional(trained.model) and self._at_maximum:
            self.converged_, self.message_ = True, MAXIMUM
        elif verdict is not None:
            self.converged_, self.message_ = False, verdict
        elif ended and choice.lengthened:
            self.converged_, self.message_ = not choice.rising, choice.ended or (RISING if choice.rising else SETTLED)
        if choice.said and verdict != FELL and not fit.result.failed:
            self.message_ = f"{self.message_.rstrip('.')}. {choice.said}"
        if verdict == FELL or fit.result.failed:
            warnings.warn(f"{type(self).__name__}: {self.message_}", RuntimeWarning, stacklevel=2)
        return self

    def _settings(self, n: int, choice: Choice) -> Settings:
        blocks = self.n_blocks
        if blocks is None and self.batch_size is None:
            blocks = self._blocks_by_default(n, BATCH)
        elif blocks is None:
            blocks = -(-n // whole("batch_size", self.batch_size, 1))
        blocks = whole("n_blocks", blocks, 1)
        if choice.searched:  # a part of the observations may be fewer than the blocks of all
            blocks = min(blocks, n)
        if blocks > n:
            raise ValueError(f"n_blocks = {blocks} exceeds the {n} observations; pass at most {n}")
        spread: Any = self.spread
        # Below one the deviations end far below the prior's.
        method = self._method_for(choice.many)
        falling = choice.searched or (choice.many and self.method in (None, ENSEMBLE))
        small = falling and self.sigma is None and method == "adam" and spread == "weight"
        sigma = SMALL if small else self.sigma
        settings = Settings(
            method=method, step=self.step, spread=spread, sigma=sigma, n_draws=self.n_draws,
            antithetic=self.antithetic, n_blocks=blocks, rows=self.rows, average=self.average, seed=self.random_state,
            epochs=self._epochs(blocks, choice), falling=falling, temperature=choice.candidate.temperature,
            first=FIRST if choice.begin is None else ONWARD, begin=choice.begin,
            dtype=default_dtype(np.float32 if self.dtype is None else self.dtype), progress=self.verbose,
        )  # fmt: skip
        return self._walking(settings, n) if self._walks else settings

    def _method_for(self, many: bool) -> str | AbstractAlgorithm:
        """The one that was asked for, or by default IVON, where it can be and its step is its own, and Adam of many
        observations, from which it learns more in a few epochs."""
        if self.method not in (None, ENSEMBLE, LAPLACE, SGMCMC):
            return self.method
        return "ivon" if self.spread == "weight" and self.step is None and not many else "adam"

    @property
    def _is_much(self) -> bool:
        """Whether there was time for one fit."""
        mode = self.method == LAPLACE or self._walks or one_dimensional(self._model)
        return not mode and is_much(self.n_observations_, self._means)

    def _epochs(self, blocks: int, choice: Choice) -> float:
        if choice.epochs is not None:
            return choice.epochs
        if self.epochs is not None:
            return whole("epochs", self.epochs, 1)
        count = WALKED * choice.length if self._walks else SEARCHED * choice.length if choice.searched else ITERATIONS
        return max(20, -(-count // blocks))

    def _network(self, dtype: DTypeLike) -> tuple[Any, PyTree]:
        """The network and its weights, whose outputs are as many as the outcome needs."""
        wanted = self._n_outputs()
        given = self.network
        if isinstance(given, str):
            given = named(given, self._shape, wanted, self.random_state)
        network, weights = as_network(given, self.weights)
        if self._shuffled and not isinstance(self.network, str):
            weights = shuffled(weights, self.random_state)
        one = jax.ShapeDtypeStruct((1, *self._shape), np.uint8 if self._scaling.pixels else dtype)
        typed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), weights)
        try:
            outputs = jax.eval_shape(network.outputs, typed, one).shape
        except Exception as error:
            raise TypeError(f"the network fails on an observation of shape {self._shape}: {error}") from error
        if outputs != (1, wanted):
            raise ValueError(f"the network has outputs of shape {outputs[1:]} an observation, and the outcome needs ({wanted},)")
        return network, weights

    def _held(self, X: Tabular, y: Column) -> tuple[np.ndarray, np.ndarray]:
        x = inputs(X, self._shape, self._columns)
        return x, self._seen(y, len(x))

    def _split(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be between 0 and 1, got {self.validation_fraction}")
        order = np.random.default_rng(self.random_state).permutation(len(x))
        held = round(self.validation_fraction * len(x))
        if not 1 <= held < len(x):
            raise ValueError(f"{len(x)} observations leave none for validation; pass validation=, or early_stopping=False")
        return x[order[held:]], y[order[held:]], (x[order[:held]], y[order[:held]])

    def _scaled(self, x: np.ndarray) -> np.ndarray:
        return self._scaling.scaled(x)

    def _new(self, X: Tabular) -> np.ndarray:
        check_fitted(self)
        return self._scaled(inputs(X, self._shape, self._columns))

    # -- answers --------------------------------------------------------------------------------

    def _card(self) -> Card | None:
        if not hasattr(self, "result_"):
            return None
        table = self.summary()
        figures = {"observations": self.n_observations_, "iterations": self.n_iter_}
        figures |= {"temperature": f"{self.temperature_:g}"} if self._approximation is None else {
            "log evidence": f"{self.log_evidence_:.6g}"}  # fmt: skip
        return Card(type(self).__name__, self.message_, self.converged_, table, len(table), figures)

    @property
    def elbo_(self) -> Bound:
        """The ELBO of the observations of the fit, a lower bound of their marginal log-likelihood: a float with `.se`, its
        Monte Carlo error, zero where it is by quadrature. Of a tempered posterior it is a bound, too, but not the highest."""
        check_fitted(self)
        if self._data is None:
            raise ValueError("the observations of a fit are not saved with it; evaluate(X, y) gives the ELBO of any")
        x, y = self._data
        return self._elbo_of(self._scaled(x), y).times(self.n_observations_)

    @property
    def plot(self) -> Any:
        """Figures: `.elbo()`, `.signal_to_noise()`, `.pruning(X, y)`, and `.reliability(X, y)` of a classifier."""
        from .plots import BayesianPlots

        check_fitted(self)
        return BayesianPlots(self)
