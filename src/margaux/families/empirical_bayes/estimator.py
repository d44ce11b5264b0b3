"""Empirical-Bayes logistic regression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from ...algorithms.recipes import soul
from ...esteps import MCMC
from ...fitting import fit as run
from ...kernels import MALA, AbstractKernel
from ...problem.space import Positive
from ...problem.units import one_unit
from ...tables.formula import design, new_design
from ..base import AbstractEstimator
from .model import ARDPrior, MeanPrior, MeanScalePrior

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...showing.axes import AxesLike
    from ...tables.kinds import Tabular


#: coefficients up to which the sampler follows their whole covariance
DENSE = 200


class EmpiricalBayesLogistic(ClassifierMixin, AbstractEstimator):
    r"""Bayesian logistic regression whose prior is estimated by maximum marginal likelihood (SOUL, section 4.1).

    $y_j\sim\mathrm{Bernoulli}(\mathrm{logit}^{-1}(x_j^\top\beta))$, with the intercept among the coefficients, and

    - `prior="mean"`: $\beta\sim N(\theta 1, \sigma^2 I)$, $\theta$ estimated, $\sigma$ given;
    - `prior="mean_scale"`: both estimated;
    - `prior="ard"`: $\beta_j\sim N(0, \sigma_j^2)$, every $\sigma_j$ estimated, intercept apart.

    No step size need be chosen: the Langevin sampler finds its own and follows the posterior's covariance.

    Args:
        sigma: prior standard deviation of "mean"; of the intercept of "ard".
        fit_intercept: put a column of ones first.
        kernel: any `margaux` kernel; by default `margaux.MALA`, preconditioned by the chain's own covariance (above 200 columns
            by its variances).
        n_iter: iterations of theta. n_steps: transitions each. n_draws, thin: posterior draws kept afterwards.
        random_state: an int. dtype: "float32" or "float64". verbose: show progress.

    Attributes:
        coef_ (1, p), intercept_ (1,): posterior means. draws_: posterior draws (n_draws, d), intercept first.
        params_: "theta", "sigma". See `AbstractEstimator` for the rest.

    >>> import numpy as np
    >>> from margaux import EmpiricalBayesLogistic
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = X[:, 0] + np.random.default_rng(1).logistic(size=200) > 0
    >>> model = EmpiricalBayesLogistic(n_iter=500, verbose=False).fit(X, y)
    >>> model.predict_proba(X).shape
    (200, 2)
    """

    def __init__(
        self,
        *,
        prior: str = "mean",
        sigma: float = 5.0**0.5,
        fit_intercept: bool = True,
        kernel: AbstractKernel | None = None,
        n_iter: int = 20_000,
        n_steps: int = 5,
        n_draws: int = 2000,
        thin: int = 10,
        random_state: int = 0,
        dtype: DTypeLike | None = None,
        verbose: bool = True,
    ) -> None:
        self.prior = prior
        self.sigma = sigma
        self.fit_intercept = fit_intercept
        self.kernel = kernel
        self.n_iter = n_iter
        self.n_steps = n_steps
        self.n_draws = n_draws
        self.thin = thin
        self.random_state = random_state
        self.dtype = dtype
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> EmpiricalBayesLogistic:
        """Estimate the prior and sample the coefficients.

        Args:
            X: (rows, p), with y of two classes; or a formula such as "y ~ a + b", with y the data frame.

        Raises:
            ValueError, TypeError: bad input, before anything is compiled.
        """
        X, y, self._spec = design(X, y)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y")
        if kind != "binary":
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}; join classes, or see "
                'MissingGLM(family="multinomial")'
            )
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y holds one class only ({self.classes_[0]}); a regression needs two classes")
        x = self._with_intercept(X)
        model, params, space = self._model(x.shape[1])
        kernel = self.kernel
        if kernel is None:
            kernel = MALA(preconditioner="dense" if x.shape[1] <= DENSE else "diagonal")
        result = run(
            model,
            one_unit({"x": x, "y": codes.astype(float)}),
            soul(),
            MCMC(kernel, n_steps=self.n_steps, warm_up=500),
            params=params,
            space=space,
            n_iter=self.n_iter,
            key=self.random_state,
            dtype=self.dtype,
            progress=bool(self.verbose),
        )
        self.n_observations_ = len(x)
        self._keep(result)
        draws = result.draws(self.n_draws, self.thin, key=1)
        self.draws_ = draws.reshape(-1, x.shape[1])
        mean = self.draws_.mean(axis=0)
        self.coef_ = mean[None, 1:] if self.fit_intercept else mean[None]
        self.intercept_ = mean[:1] if self.fit_intercept else np.zeros(1)
        return self

    def _with_intercept(self, X: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(X)), X]) if self.fit_intercept else X

    def _model(self, d: int) -> tuple[Any, dict, Any]:
        if not self.sigma > 0:
            raise ValueError(f"sigma must be positive, got {self.sigma}")
        if self.prior == "mean":
            return MeanPrior(float(self.sigma)), {"theta": 0.0}, None
        if self.prior == "mean_scale":
            return MeanScalePrior(), {"theta": 0.0, "sigma": 1.0}, {"sigma": Positive(1e-6)}
        if self.prior == "ard":
            if not self.fit_intercept:
                raise ValueError('prior="ard" keeps the intercept apart; it needs fit_intercept=True')
            return ARDPrior(float(self.sigma)), {"sigma": np.ones(d - 1)}, {"sigma": Positive(1e-6)}
        raise ValueError(f'prior must be "mean", "mean_scale" or "ard", got {self.prior!r}')

    def decision_function(self, X: Tabular) -> np.ndarray:
        """Log odds of the posterior predictive probability of the second class, (rows,)."""
        p = np.clip(self.predict_proba(X)[:, 1], 1e-300, 1 - 1e-16)
        return np.log(p) - np.log1p(-p)

    def predict_proba(self, X: Tabular) -> np.ndarray:
        """Posterior predictive probabilities (rows, 2): averaged over the draws, not read at their mean."""
        check_is_fitted(self, "result_")
        x = self._with_intercept(np.asarray(validate_data(self, new_design(self._spec, X), dtype=np.float64, reset=False)))
        total = np.zeros(len(x))
        for part in np.array_split(self.draws_, max(len(x) * len(self.draws_) // 10_000_000, 1)):
            total += np.sum(1 / (1 + np.exp(-np.clip(x @ part.T, -700, 700))), axis=1)
        p = total / len(self.draws_)
        return np.column_stack([1 - p, p])

    def predict(self, X: Tabular) -> np.ndarray:
        """The class of the larger predictive probability."""
        second = self.predict_proba(X)[:, 1] > 0.5
        return self.classes_[second.astype(int)]

    def plot_coefficients(self, names: list[str] | None = None, ax: AxesLike | None = None) -> Any:
        """Posterior histograms of the coefficients (SOUL, figure 2), on an Axes each, thirty at most."""
        from .plots import histograms

        check_is_fitted(self, "result_")
        if names is None:
            own = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
            names = (["intercept"] if self.fit_intercept else []) + [str(name) for name in own]
        return histograms(self.draws_, names, ax=ax)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
