"""Bayesian networks: `BayesianClassifier` and `BayesianRegressor`."""

from __future__ import annotations

import abc
import dataclasses
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
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
from ..conventions import Classifier, Conventional, Regressor
from ..sharing import pooled
from . import scores
from .answers import WeightPosterior
from .architectures import named
from .bound import Bound, one_dimensional
from .draws import as_draws, default_draws
from .likelihoods import AbstractLikelihood, Categorical, Gaussian, Poisson
from .networks import as_network
from .observations import Scaling, classes, columns, inputs, numbers_of, outcomes
from .priors import AbstractWeightPrior, Normal
from .storing import Stored
from .training import Settings, train
from .verdict import MAXIMUM, Judged, climbed
from .watching import FELL, course

#: iterations of a fit by default, at least
ITERATIONS = 3000


class BayesianNetwork(Stored, Judged, WeightPosterior, Conventional, abc.ABC):
    """What both estimators share: settings, the fit, saving."""

    def __init__(
        self, *, network: Any = "tanh", weights: PyTree = None, method: str | AbstractAlgorithm = "adam",
        step: Step | None = None, spread: str = "weight", sigma: float | None = None,
        prior: float | AbstractWeightPrior = 1.0, draws: str | None = None, n_draws: int | AbstractSchedule = 1,
        antithetic: bool = False, batch_size: int = 128, n_blocks: int | None = None, epochs: int | None = None,
        average: AbstractAverage | None = None, standardize: bool = True, early_stopping: bool = False,
        validation_fraction: float = 0.1, n_iter_no_change: int = 5, rows: str | Path = "device", random_state: int = 0,
        dtype: DTypeLike | None = None, verbose: bool = True,
    ) -> None:  # fmt: skip
        self.network, self.weights, self.method, self.step = network, weights, method, step
        self.spread, self.sigma, self.prior = spread, sigma, prior
        self.draws, self.n_draws, self.antithetic = draws, n_draws, antithetic
        self.batch_size, self.n_blocks, self.epochs, self.average = batch_size, n_blocks, epochs, average
        self.standardize, self.early_stopping = standardize, early_stopping
        self.validation_fraction, self.n_iter_no_change = validation_fraction, n_iter_no_change
        self.rows, self.random_state, self.dtype, self.verbose = rows, random_state, dtype, verbose

    # -- what the outcome decides ---------------------------------------------------------------

    @abc.abstractmethod
    def _outcome(self, y: Column, n: int) -> np.ndarray:
        """The outcome of a fit, checked; its labels or scale are kept."""

    @abc.abstractmethod
    def _seen(self, y: Column, n: int) -> np.ndarray:
        """The outcome of other observations, in the terms of the fit."""

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
        keep_compilations()
        X, y, shared = pooled(X, y)
        x = inputs(X)
        outcome = self._outcome(y, len(x))
        self.n_features_in_, self._shape, self._columns = int(np.prod(x.shape[1:])), x.shape[1:], columns(X)
        held = None if validation is None else self._held(*validation)
        patience = whole("n_iter_no_change", self.n_iter_no_change, 1) if self.early_stopping else None
        if self.early_stopping and held is None:
            x, outcome, held = self._split(x, outcome)
        self._scaling = Scaling.of(x, self.standardize)
        settings = self._settings(len(x))
        network, weights = self._network(settings.dtype)
        prior = self.prior if isinstance(self.prior, AbstractWeightPrior) else Normal(self.prior)
        draws = default_draws(network, weights, prior) if self.draws is None else as_draws(self.draws)
        settings.checkpoint, settings.shared = checkpoint, shared
        apart, scaled = None if held is None else (self._scaled(held[0]), held[1]), self._scaled(x)
        trained = train(network, weights, self._likelihood(), prior, draws, scaled, outcome, settings, apart, patience)
        self.n_observations_, self._data, self._held_out = len(x), (x, outcome), held
        stopped, fit = self.early_stopping and trained.best is not None, trained.fit
        verdict = None if stopped or fit.result.failed else course(fit.trace["log_joint"].ravel(), settings.n_blocks)
        ended = not (stopped or fit.result.failed or fit.result is RESULTS.interrupted or verdict == FELL)
        params: Any = trained.best if stopped else fit.params
        own = self.method == "adam" and self.step is None and self.average is None
        if ended and own:
            params = climbed(trained.model, params, scaled, outcome)
            fit = dataclasses.replace(fit, params=jax.tree.map(lambda leaf: np.asarray(leaf, fit.dtype), params))
        self._keep(trained.model, params, fit.dtype)
        self.result_, self.history_, self.step_, self.curvature_ = fit, trained.history, trained.step, trained.curvature
        self._certificate, self.n_iter_, self.converged_, self.message_ = None, fit.n_iter, fit.converged, fit.message
        if ended and own and one_dimensional(trained.model) and self._at_maximum:
            self.converged_, self.message_ = True, MAXIMUM
        elif verdict is not None:
            self.converged_, self.message_ = False, verdict
        if verdict == FELL or fit.result.failed:
            warnings.warn(f"{type(self).__name__}: {self.message_}", RuntimeWarning, stacklevel=2)
        return self

    def _settings(self, n: int) -> Settings:
        blocks = self.n_blocks
        if blocks is None:
            blocks = -(-n // whole("batch_size", self.batch_size, 1))
        blocks = whole("n_blocks", blocks, 1)
        if blocks > n:
            raise ValueError(f"n_blocks = {blocks} exceeds the {n} observations; pass at most {n}")
        spread: Any = self.spread
        return Settings(
            method=self.method, step=self.step, spread=spread, sigma=self.sigma, n_draws=self.n_draws,
            antithetic=self.antithetic, n_blocks=blocks, rows=self.rows, average=self.average, seed=self.random_state,
            epochs=max(20, -(-ITERATIONS // blocks)) if self.epochs is None else whole("epochs", self.epochs, 1),
            dtype=default_dtype(np.float32 if self.dtype is None else self.dtype), progress=self.verbose,
        )  # fmt: skip

    def _network(self, dtype: DTypeLike) -> tuple[Any, PyTree]:
        """The network and its weights, whose outputs are as many as the outcome needs."""
        wanted = self._n_outputs()
        given = self.network
        if isinstance(given, str):
            given = named(given, self._shape, wanted, self.random_state)
        network, weights = as_network(given, self.weights)
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
        table, figures = self.summary(), {"observations": self.n_observations_, "iterations": self.n_iter_}
        return Card(type(self).__name__, self.message_, self.converged_, table, len(table), figures)

    @property
    def elbo_(self) -> Bound:
        """The ELBO of the observations of the fit, a lower bound of their marginal log-likelihood: a float with `.se`, its
        Monte Carlo error, zero where it is by quadrature."""
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


class BayesianClassifier(Classifier, BayesianNetwork):
    r"""Classification by a network whose weights have a Gaussian posterior, found by maximising the ELBO.

    $q(w)=\prod_jN(\mu_j, \sigma_j^2)$ maximises $\sum_iE_q\log p(y_i\mid x_i, w) - \mathrm{KL}[q\|p]$ (MISSO: Karimi, Wai,
    Moulines and Li, example 2 and section 4.2; Blundell, Cornebise, Kavukcuoglu and Wierstra 2015).

    Args:
        network: "tanh" or "relu" (a hidden layer of 100 units), "lenet5", "resnet18"; an equinox module called on one
            observation; or a callable (weights, x (b, ...)) -> outputs (b, K), with `weights` its starting weights.
        method: "adam", "adagrad", "momentum", "bbb" (Bayes by Backprop), "sag", "saga", "misso", or an algorithm.
        step: its step; by default it is found: see `margaux.families.variational.methods`. A network of one layer and one
            output (or two classes) ends at the maximum, by Newton's steps, where Adam has its default step and average.
        spread: "weight", "tensor" or "all": what shares a standard deviation. sigma: where they begin, by default 0.1 by Adam and
            Adagrad where each weight has its own, else 0.05.
        prior: the standard deviation of normal weights, or a prior such as `margaux.families.variational.priors.Laplace(0.1)`.
        draws: "local" (default for margaux's networks of mostly dense layers), "flipout" (default for other equinox modules),
            "shared" (default for callables) or "observation": how the draws of a block's observations are related.
        n_draws: a number, or a schedule. antithetic: pairs z, -z.
        batch_size: observations a block; or n_blocks: the number of blocks, which are fixed.
        epochs: passes over the blocks; by default 20, and as many as make 3000 iterations.
        average: of the iterates; by default the last one.
        standardize: the columns of a table (not of images).
        early_stopping: hold out `validation_fraction`, and stop when its ELBO has not risen for `n_iter_no_change` epochs.
        rows: where the table of SAG, SAGA and MISSO lives: "device", "host", or a folder.
        random_state: an int. dtype: by default "float32". verbose: show progress.

    Attributes:
        classes_, `params_` and `stderr_` (posterior means and standard deviations by tensor), `elbo_`, `history_` (an epoch a
        row), `n_iter_`, `converged_`, `message_`, `certificate_`, `result_`, and what `WeightPosterior` says.

    >>> import numpy as np, margaux as mx
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    >>> model = mx.BayesianClassifier(epochs=300, step=0.01, verbose=False).fit(X, y)
    >>> model.predict_proba(X).shape, bool(model.score(X, y) > 0.8)
    ((300, 2), True)
    """

    def _outcome(self, y, n):
        self.classes_, numbers = classes(y, n)
        return numbers

    def _seen(self, y, n):
        return numbers_of(y, self.classes_, n)

    def _likelihood(self):
        return Categorical()

    def _n_outputs(self):
        return len(self.classes_)

    def _probabilities(self, X: Tabular, n_draws: int, random_state: int) -> np.ndarray:
        """Of each draw, (n_draws, n, K)."""
        logits = self._outputs(self._new(X), whole("n_draws", n_draws, 1), random_state)
        odds = np.exp(logits - logits.max(axis=2, keepdims=True))
        return odds / odds.sum(axis=2, keepdims=True)

    def predict_proba(self, X: Tabular, n_draws: int = 30, random_state: int = 0) -> np.ndarray:
        """Probabilities (n, K), averaged over draws of the weights."""
        return self._probabilities(X, n_draws, random_state).mean(axis=0)

    def predict_std(self, X: Tabular, n_draws: int = 30, random_state: int = 0) -> np.ndarray:
        """Standard deviations (n, K) of the probabilities over draws of the weights: what the network does not know."""
        return self._probabilities(X, n_draws, random_state).std(axis=0)

    def predict(self, X: Tabular, n_draws: int = 30) -> np.ndarray:
        """The most probable class."""
        probabilities = self.predict_proba(X, n_draws)
        return self.classes_[probabilities.argmax(axis=1)]

    def evaluate(self, X: Tabular, y: Column, n_draws: int = 30) -> pd.Series:
        """Accuracy, log score, Brier score, expected calibration error, and the ELBO an observation."""
        probabilities, numbers = self.predict_proba(X, n_draws), self._seen(y, len(np.asarray(X)))
        return pd.Series({
            "accuracy": float(np.mean(probabilities.argmax(axis=1) == numbers)),
            "log_score": scores.log_score(numbers, probabilities), "brier": scores.brier_score(numbers, probabilities),
            "ece": scores.expected_calibration_error(numbers, probabilities), "elbo": self._elbo_of(self._new(X), numbers),
        })  # fmt: skip


class BayesianRegressor(Regressor, BayesianNetwork):
    r"""Regression by a network whose weights have a Gaussian posterior: see `BayesianClassifier`, whose settings it has.

    Args:
        likelihood: "gaussian" ($y\sim N(f(x), s^2)$, s estimated) or "poisson" ($y\sim\mathrm{Poisson}(e^{f(x)})$).
        noise: s where it begins, in standard deviations of y where those are standardised. noise_fixed: keep it.

    >>> import numpy as np, margaux as mx
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, size=(300, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=300)
    >>> model = mx.BayesianRegressor(epochs=400, step=0.01, verbose=False).fit(X, y)
    >>> bool(model.score(X, y) > 0.8), bool(0.15 < model.params_["noise"] < 0.4)
    (True, True)
    """

    def __init__(
        self, *, likelihood: str = "gaussian", noise: float = 1.0, noise_fixed: bool = False, network: Any = "tanh",
        weights: PyTree = None, method: str | AbstractAlgorithm = "adam", step: Step | None = None, spread: str = "weight",
        sigma: float | None = None, prior: float | AbstractWeightPrior = 1.0, draws: str | None = None,
        n_draws: int | AbstractSchedule = 1, antithetic: bool = False, batch_size: int = 128, n_blocks: int | None = None,
        epochs: int | None = None, average: AbstractAverage | None = None, standardize: bool = True,
        early_stopping: bool = False, validation_fraction: float = 0.1, n_iter_no_change: int = 5, rows: str | Path = "device",
        random_state: int = 0, dtype: DTypeLike | None = None, verbose: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            network=network, weights=weights, method=method, step=step, spread=spread, sigma=sigma, prior=prior, draws=draws,
            n_draws=n_draws, antithetic=antithetic, batch_size=batch_size, n_blocks=n_blocks, epochs=epochs, average=average,
            standardize=standardize, early_stopping=early_stopping, validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change, rows=rows, random_state=random_state, dtype=dtype, verbose=verbose,
        )  # fmt: skip
        self.likelihood, self.noise, self.noise_fixed = likelihood, noise, noise_fixed

    def _outcome(self, y, n):
        if self.likelihood not in ("gaussian", "poisson"):
            raise ValueError(f'likelihood must be "gaussian" or "poisson", got {self.likelihood!r}')
        values = outcomes(y, n, self.likelihood)
        scaled = self.standardize and self.likelihood == "gaussian"
        self._y_scale = (float(values.mean()), float(values.std())) if scaled else (0.0, 1.0)
        return (values - self._y_scale[0]) / self._y_scale[1]

    def fit(
        self, X: Tabular, y: Column, validation: tuple[Tabular, Column] | None = None, checkpoint: str | Path | None = None
    ) -> Any:
        super().fit(X, y, validation, checkpoint)
        self.history_.iloc[:, 1:] -= np.log(self._y_scale[1])  # of y itself
        return self

    def _seen(self, y, n):
        return (outcomes(y, n, self.likelihood, fitting=False) - self._y_scale[0]) / self._y_scale[1]

    def _likelihood(self):
        return Poisson() if self.likelihood == "poisson" else Gaussian(self.noise, learned=not self.noise_fixed)

    def _n_outputs(self):
        return 1

    @property
    def params_(self):
        """Posterior means of the weights by tensor, and "noise" in the units of y."""
        params = super().params_
        return params | {"noise": params["noise"] * self._y_scale[1]} if "noise" in params else params

    def _elbo_of(self, x, y, random_state=0):
        return super()._elbo_of(x, y, random_state).times(1.0, plus=-np.log(self._y_scale[1]))  # of y itself

    def _noise(self) -> float:
        return self.params_["noise"] if "noise" in self.params_ else float(self.noise) * self._y_scale[1]

    def _means_of_draws(self, X: Tabular, n_draws: int, random_state: int) -> np.ndarray:
        outputs = self._outputs(self._new(X), whole("n_draws", n_draws, 1), random_state)[:, :, 0]
        return np.exp(outputs) if self.likelihood == "poisson" else self._y_scale[0] + self._y_scale[1] * outputs

    def predict(self, X: Tabular, n_draws: int = 30, random_state: int = 0) -> np.ndarray:
        """Mean (n,) of the outcome, over draws of the weights."""
        return self._means_of_draws(X, n_draws, random_state).mean(axis=0)

    def predict_std(self, X: Tabular, n_draws: int = 30, random_state: int = 0) -> np.ndarray:
        """Standard deviation (n,) of a new outcome: of its mean over draws of the weights, and of the outcome around it."""
        means = self._means_of_draws(X, n_draws, random_state)
        around = means.mean(axis=0) if self.likelihood == "poisson" else self._noise() ** 2
        return np.sqrt(means.var(axis=0) + around)

    def evaluate(self, X: Tabular, y: Column, n_draws: int = 100) -> pd.Series:
        """R^2, root mean square error, log score (of the mixture over draws), and the ELBO an observation."""
        from scipy.special import logsumexp
        from scipy.stats import norm, poisson

        means = self._means_of_draws(X, n_draws, 0)
        own = self._seen(y, means.shape[1])
        values = self._y_scale[0] + self._y_scale[1] * own
        each = poisson.logpmf(values, means) if self.likelihood == "poisson" else norm.logpdf(values, means, self._noise())
        residual, spread = values - means.mean(axis=0), np.sum((values - values.mean()) ** 2)
        return pd.Series({
            "r2": float(1 - np.sum(residual**2) / spread) if spread > 0 else np.nan,
            "rmse": float(np.sqrt(np.mean(residual**2))),
            "log_score": float(np.mean(logsumexp(each, axis=0) - np.log(len(means)))),
            "elbo": self._elbo_of(self._new(X), own),
        })  # fmt: skip
