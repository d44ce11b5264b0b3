"""Bayesian networks: `BayesianClassifier` and `BayesianRegressor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import PyTree
from numpy.typing import DTypeLike

from ...algorithms.average import AbstractAverage
from ...algorithms.base import AbstractAlgorithm
from ...algorithms.recipes import Step
from ...engine.validate import whole
from ...problem.schedule import AbstractSchedule
from ...tables.kinds import Column, Tabular
from ..conventions import Classifier, Regressor
from . import scores
from .base import BayesianNetwork
from .ensemble import shares
from .likelihoods import Categorical, Gaussian, Poisson
from .methods import MEMBERS
from .observations import classes, numbers_of, outcomes
from .priors import AbstractWeightPrior
from .trajectory import CYCLES, FRICTION


class BayesianClassifier(Classifier, BayesianNetwork):
    r"""Classification by a network whose weights have a Gaussian posterior, found by maximising the ELBO.

    $q(w)=\prod_jN(\mu_j, \sigma_j^2)$ maximises $\sum_iE_q\log p(y_i\mid x_i, w) - T\,\mathrm{KL}[q\|p]$ (MISSO: Karimi, Wai,
    Moulines and Li, example 2 and section 4.2; Blundell, Cornebise, Kavukcuoglu and Wierstra 2015; tempered by T as in Wenzel et
    al. 2020). At T = 1 it is the variational posterior. Of many weights and few observations that one predicts with too little
    confidence, and T, the prior and the length of the fit are chosen by the log score of observations held out (see
    `margaux.families.variational.tempering`); the fit is then of all of them. `elbo_` is at T = 1 whatever the temperature: a
    lower bound of the log evidence for every posterior, and for one tempered not the highest. `history_` has what is maximised.

    Args:
        network: "tanh" or "relu" (a hidden layer of 100 units), "lenet5", "resnet18"; an equinox module called on one
            observation; or a callable (weights, x (b, ...)) -> outputs (b, K), with `weights` its starting weights.
        method: "ivon" (variational online Newton), "adam", "adagrad", "momentum", "bbb" (Bayes by Backprop), "sag", "saga",
            "misso", or an algorithm; or "ensemble", five posteriors by the default one, each from starting weights of its own
            (those of a network that is given, shuffled), whose predictions are averaged: see
            `margaux.families.variational.ensemble`; or "laplace", a Gaussian at the mode, with the scales of prior and noise
            of the highest `log_evidence_`: see `margaux.families.variational.laplace`. Of digits it predicts worse than the
            default: a log score of -0.25, and -0.07; or "sgmcmc", draws of the posterior itself, along five chains of stochastic
            gradients with momentum and noise whose steps fall again and again (cyclical SGHMC): see
            `margaux.families.variational.langevin`. By default "ivon", and "adam" where `step` is given, weights
            share deviations, or observations and weights are many (10,000, and 10^9 their product).
        step: its step; by default it is found: see `margaux.families.variational.methods`. A network of one layer and one
            output (or two classes) ends at the maximum, by Newton's steps, where step and average are left to it. Of chains and
            SWAG it is a number, the first step over the inverse of the largest curvature, by default one, or 8 / blocks if less.
        spread: "weight", "tensor" or "all": what shares a standard deviation. sigma: where they begin; by default, with IVON, at
            most 0.1 and where each observation bends the objective by 0.1, 0.1 by Adam and Adagrad where each weight has its own,
            else 0.05.
        prior: the standard deviation of normal weights, "fan-in" (N(0, 1/d) for the weights of a unit of d inputs, N(0, 1) for
            biases), or a prior such as `margaux.families.variational.priors.Laplace(0.1)`. By default "fan-in", that
            divided by two or four, or N(0, 1) at T = 1, whichever predicts best; N(0, 1) at a temperature that is given.
        temperature: T, or "auto". Of one layer, and of fewer than 50 observations, "auto" is 1; of fewer than 1000 it is by
            cross-validation in five parts, else by one fifth held out. It takes five to thirty times as long as a fit. Of many
            observations and weights one tenth is held out, and short fits at other temperatures go on from one: two to three
            times as long as it in all (see `margaux.families.variational.continuing`).
        draws: "local" (default for margaux's networks of mostly dense layers, "tanh" and "relu" from 32,768 weights on),
            "flipout" (default for other equinox modules), "shared" (default for callables) or "observation": how the draws of a
            block's observations are related.
        n_draws: a number, or a schedule. antithetic: pairs z, -z.
        batch_size: observations a block, 128 by default (all of up to 1000 where there are chains, and fewer where SWAG would
            have fewer than 8 blocks); or n_blocks: the number of blocks, which are fixed.
        epochs: passes over the blocks; by default 20, and as many as make 3000 iterations. Where T is chosen, as many as make
            2000, and twice, four or eight times as many where the log score held out still rises. Of many
            observations and weights it is 3, or as many as make 1200 iterations, from where as long a fit had ended. Of chains
            and SWAG 4000 iterations.
        average: of the iterates; by default the last one.
        standardize: the columns of a table (not of images).
        early_stopping: hold out `validation_fraction`, and stop when its ELBO has not risen for `n_iter_no_change` epochs.
        rows: where the table of SAG, SAGA and MISSO lives: "device", "host", or a folder.
        random_state: an int. dtype: by default "float32". verbose: show progress.
        structure: of the precision, with method="laplace": "full" (by default up to 2000 weights), "kronecker" (by default of
            more; other tensors than those of dense layers have their diagonal) or "diagonal". layers: "all", or the "last"
            alone, the others being held where the mode and the scales of all layers were found.
        n_members: of an ensemble, or chains. swag: let each member of an ensemble be the Gaussian of the way of its weights along
            gradient descent of a constant step (SWAG with one member, MultiSWAG with several): see
            `margaux.families.variational.trajectory`.
        cycles: of the steps of a chain; draws are kept at the ends of all but the first quarter of them. friction: of its
            momentum, at most one: then it is stochastic gradient Langevin dynamics.

    Attributes:
        classes_, `params_` and `stderr_` (posterior means and standard deviations by tensor), `elbo_`, `history_` (an epoch a
        row), `n_iter_`, `converged_` (false where the log score held out still rose), `message_`, `certificate_`, `result_`,
        `members_` (the estimators of an ensemble, of which the figures above are those of the first, but for `elbo_`, their
        mean, and `converged_`; and chains, whose draws `params_` and `stderr_` are taken of together; chains and SWAG have no
        `elbo_`, and `certificate_` says whether chains agree and how many draws they are worth), `log_evidence_` and
        `structure_` (of Laplace's approximation, which has no `elbo_`),
        `temperature_`, `temperatures_` (what each temperature and prior scored of observations held out, the plain posterior
        first; empty where T is given), and what `WeightPosterior` says.

    Raises:
        ValueError, TypeError: bad settings or input, by `fit`, before anything is compiled.

    >>> import numpy as np, margaux as mx
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    >>> model = mx.BayesianClassifier(epochs=200, verbose=False).fit(X, y)
    >>> model.predict_proba(X).shape, bool(model.score(X, y) > 0.8), model.temperature_ < 1
    ((100, 2), True, True)
    """

    def _outcome(self, y, n):
        self.classes_, numbers = classes(y, n)
        return numbers

    def _seen(self, y, n):
        return numbers_of(y, self.classes_, n)

    def _as_given(self, outcome):
        return self.classes_[outcome]

    def _likelihood(self):
        return Categorical()

    def _n_outputs(self):
        return len(self.classes_)

    def _probabilities(self, X: Tabular, n_draws: int, random_state: int) -> np.ndarray:
        """Of each draw, (n_draws, n, K)."""
        logits = self._outputs(self._new(X), whole("n_draws", n_draws, 1), random_state)
        odds = np.exp(logits - logits.max(axis=2, keepdims=True))
        return odds / odds.sum(axis=2, keepdims=True)

    def predict_proba(self, X: Tabular, n_draws: int | None = None, random_state: int = 0) -> np.ndarray:
        """Probabilities (n, K), averaged over draws of the weights, 30 by default (of Laplace's approximation 256, of the
        outputs; of chains all that were kept, whatever `random_state` is)."""
        return self._probabilities(X, self._number(n_draws), random_state).mean(axis=0)

    def predict_std(self, X: Tabular, n_draws: int | None = None, random_state: int = 0) -> np.ndarray:
        """Standard deviations (n, K) of the probabilities over draws of the weights: what the network does not know."""
        return self._probabilities(X, self._number(n_draws), random_state).std(axis=0)

    def predict(self, X: Tabular, n_draws: int | None = None) -> np.ndarray:
        """The most probable class."""
        probabilities = self.predict_proba(X, n_draws)
        return self.classes_[probabilities.argmax(axis=1)]

    def evaluate(self, X: Tabular, y: Column, n_draws: int | None = None) -> pd.Series:
        """Accuracy, log score, Brier score, expected calibration error, and the ELBO an observation (not of Laplace's
        approximation)."""
        probabilities, numbers = self.predict_proba(X, n_draws), self._seen(y, len(np.asarray(X)))
        return pd.Series({
            "accuracy": float(np.mean(probabilities.argmax(axis=1) == numbers)),
            "log_score": scores.log_score(numbers, probabilities), "brier": scores.brier_score(numbers, probabilities),
            "ece": scores.expected_calibration_error(numbers, probabilities),
        } | self._scored(self._new(X), numbers))  # fmt: skip


class BayesianRegressor(Regressor, BayesianNetwork):
    r"""Regression by a network whose weights have a Gaussian posterior: see `BayesianClassifier`, whose settings it has.

    Args:
        likelihood: "gaussian" ($y\sim N(f(x), s^2)$, s estimated) or "poisson" ($y\sim\mathrm{Poisson}(e^{f(x)})$).
        noise: s where it begins, in standard deviations of y where those are standardised. noise_fixed: keep it.

    >>> import numpy as np, margaux as mx
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, size=(300, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=300)
    >>> model = mx.BayesianRegressor(temperature=1.0, epochs=400, step=0.01, verbose=False).fit(X, y)
    >>> bool(model.score(X, y) > 0.8), bool(0.15 < model.params_["noise"] < 0.4)
    (True, True)
    """

    def __init__(
        self, *, likelihood: str = "gaussian", noise: float = 1.0, noise_fixed: bool = False, network: Any = "tanh",
        weights: PyTree = None, method: str | AbstractAlgorithm | None = None, step: Step | None = None, spread: str = "weight",
        sigma: float | None = None, prior: float | str | AbstractWeightPrior | None = None,
        temperature: float | str = "auto", draws: str | None = None,
        n_draws: int | AbstractSchedule = 1, antithetic: bool = False, batch_size: int | None = None, n_blocks: int | None = None,
        epochs: int | None = None, average: AbstractAverage | None = None, standardize: bool = True,
        early_stopping: bool = False, validation_fraction: float = 0.1, n_iter_no_change: int = 5, rows: str | Path = "device",
        random_state: int = 0, dtype: DTypeLike | None = None, verbose: bool = True, structure: str | None = None,
        layers: str = "all", n_members: int = MEMBERS, swag: bool = False, cycles: int = CYCLES, friction: float = FRICTION,
    ) -> None:  # fmt: skip
        super().__init__(
            network=network, weights=weights, method=method, step=step, spread=spread, sigma=sigma, prior=prior,
            temperature=temperature, draws=draws,
            n_draws=n_draws, antithetic=antithetic, batch_size=batch_size, n_blocks=n_blocks, epochs=epochs, average=average,
            standardize=standardize, early_stopping=early_stopping, validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change, rows=rows, random_state=random_state, dtype=dtype, verbose=verbose,
            structure=structure, layers=layers, n_members=n_members, swag=swag, cycles=cycles, friction=friction,
        )  # fmt: skip
        self.likelihood, self.noise, self.noise_fixed = likelihood, noise, noise_fixed

    def _outcome(self, y, n):
        if self.likelihood not in ("gaussian", "poisson"):
            raise ValueError(f'likelihood must be "gaussian" or "poisson", got {self.likelihood!r}')
        values = outcomes(y, n, self.likelihood)
        scaled = self.standardize and self.likelihood == "gaussian"
        self._y_scale = (float(values.mean()), float(values.std())) if scaled else (0.0, 1.0)
        return (values - self._y_scale[0]) / self._y_scale[1]

    def _fitted(self, *args, **kwargs):
        super()._fitted(*args, **kwargs)
        self.history_.iloc[:, 1:] -= np.log(self._y_scale[1])  # of y itself
        return self

    def _seen(self, y, n):
        return (outcomes(y, n, self.likelihood, fitting=False) - self._y_scale[0]) / self._y_scale[1]

    def _as_given(self, outcome):
        return self._y_scale[0] + self._y_scale[1] * outcome

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

    def _noises(self, n_draws: int) -> np.ndarray:
        """Of each draw (n_draws,): of an ensemble that of its member."""
        members = self.members_ or (self,)
        pairs = zip(members, shares(n_draws, len(members)), strict=True)
        return np.concatenate([one._noises_alone(share) for one, share in pairs if share])

    def _noises_alone(self, n_draws: int) -> np.ndarray:
        if self._kept is None or self.noise_fixed:
            return np.full(n_draws, self._noise())
        return np.exp(self._log_noises(n_draws)) * self._y_scale[1]

    def _means_of_draws(self, X: Tabular, n_draws: int, random_state: int) -> np.ndarray:
        outputs = self._outputs(self._new(X), whole("n_draws", n_draws, 1), random_state)[:, :, 0]
        return np.exp(outputs) if self.likelihood == "poisson" else self._y_scale[0] + self._y_scale[1] * outputs

    def _gaussian(self, X: Tabular) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and variance (n,) of new outcomes, where these are in closed form."""
        if self._approximation is None or self.likelihood == "poisson":
            return None
        mean, covariance = self._moments(self._new(X))
        location, scale = self._y_scale
        return location + scale * mean[:, 0], scale**2 * covariance[:, 0, 0] + self._noise() ** 2

    def predict(self, X: Tabular, n_draws: int | None = None, random_state: int = 0) -> np.ndarray:
        """Mean (n,) of the outcome, over draws of the weights, 30 by default; of Laplace's approximation that at the mode."""
        known = self._gaussian(X)
        return self._means_of_draws(X, self._number(n_draws), random_state).mean(axis=0) if known is None else known[0]

    def predict_std(self, X: Tabular, n_draws: int | None = None, random_state: int = 0) -> np.ndarray:
        """Standard deviation (n,) of a new outcome: of its mean over draws of the weights, and of the outcome around it."""
        known = self._gaussian(X)
        if known is not None:
            return np.sqrt(known[1])
        means = self._means_of_draws(X, self._number(n_draws), random_state)
        around = means.mean(axis=0) if self.likelihood == "poisson" else np.mean(self._noises(len(means)) ** 2)
        return np.sqrt(means.var(axis=0) + around)

    def evaluate(self, X: Tabular, y: Column, n_draws: int | None = None) -> pd.Series:
        """R^2, root mean square error, log score (of the mixture over draws, 100 by default), and the ELBO an observation.

        Of Laplace's approximation the log score is that of the Gaussian, and there is no ELBO."""
        from scipy.special import logsumexp
        from scipy.stats import norm, poisson

        known = self._gaussian(X)
        means = self._means_of_draws(X, self._number(n_draws, 100), 0) if known is None else known[0][None]
        own = self._seen(y, means.shape[1])
        values = self._y_scale[0] + self._y_scale[1] * own
        each = (
            norm.logpdf(values, means, np.sqrt(known[1]))
            if known is not None
            else poisson.logpmf(values, means)
            if self.likelihood == "poisson"
            else norm.logpdf(values, means, self._noises(len(means))[:, None])
        )
        residual, spread = values - means.mean(axis=0), np.sum((values - values.mean()) ** 2)
        return pd.Series({
            "r2": float(1 - np.sum(residual**2) / spread) if spread > 0 else np.nan,
            "rmse": float(np.sqrt(np.mean(residual**2))),
            "log_score": float(np.mean(logsumexp(each, axis=0) - np.log(len(means)))),
        } | self._scored(self._new(X), own))  # fmt: skip
