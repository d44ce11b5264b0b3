"""Sparse logistic regression with random effects."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted, validate_data

from ...algorithms.average import StepWeighted
from ...algorithms.recipes import soul
from ...answers.certificate import Certificate, Check
from ...answers.fit import Fit
from ...answers.likelihood import LogLikelihood
from ...engine.callbacks import AbstractCallback
from ...engine.validate import whole
from ...esteps import MCMC
from ...fitting import fit as run
from ...kernels import MALA, AbstractKernel
from ...problem.penalty import L1, AbstractPenalty, StepHuber
from ...problem.schedule import AbstractSchedule, ConstantThenDecay
from ...problem.space import Box
from ...problem.units import one_unit
from ...tables.formula import design, new_design
from ..base import AbstractEstimator
from .groups import check_design, check_length, group_labels, two_classes
from .model import MixedLogistic, complete_curvature, group_posteriors
from .verdict import certificate

if TYPE_CHECKING:
    from jaxtyping import PyTree
    from numpy.typing import ArrayLike, DTypeLike

    from ...showing.axes import AxesLike
    from ...tables.kinds import Column, Tabular


#: smallest sigma
SIGMA_FLOOR = 1e-5
#: power of the step's decay, and the share of the iterations before it
DECAY, CONSTANT = 0.6, 0.25


class SparseMixedLogistic(ClassifierMixin, AbstractEstimator):
    r"""Variable selection in logistic regression with a random intercept a group, by penalised marginal likelihood.

    $y_i\sim\mathrm{Bernoulli}(\mathrm{logit}^{-1}(a + v_i^\top\beta + \sigma x_{g(i)}))$ with $x_j\sim N(0, 1)$; the estimate
    minimises $-\log p(y\mid a, \beta, \sigma) + \lambda|\beta|_1$ over $\sigma\ge10^{-5}$ by SOUL (De Bortoli, Durmus,
    Pereyra and Vidal 2021, section 4.3; the problem is that of Atchadé, Fort and Moulines 2017):

    $\beta_{n+1} = \mathrm{prox}_{\delta_n\lambda|\cdot|_1}(\beta_n + \delta_n\nabla_\beta\log p(x_n, y\mid\theta_n))$

    along a Langevin chain $x_n$. The gradient of the penalty as printed in the paper is that of a ridge near
    zero and keeps almost every coefficient; both penalties here follow its errata. The intercept and $\sigma$ are not
    penalised. Columns are not rescaled: give them comparable scales. With few groups $\sigma$ is barely identified; where
    zero would be best, the projection keeps the average of its iterates a little above.

    Args:
        penalty_weight: $\lambda\ge0$, on the scale of the total log-likelihood (scikit-learn's 1 / C).
        penalty: "l1" gives exact zeros; "huber" the smooth $\delta_n^{-1}\sum_j h_{\lambda\delta_n}(\beta_j)$, see `StepHuber`.
        threshold: size from which a coefficient counts as selected under "huber" (the paper's 0.005).
        fit_intercept: whether there is an a.
        n_iter: iterations of SOUL. n_steps: transitions of the chain each. warm_up: transitions before the first.
        step: $\delta_n$, a number or a schedule; by default 1 / L for a quarter of the run and then decaying like
            $n^{-0.6}$, with L bounding the curvature (`complete_curvature`). The paper's is `mx.Polynomial(0.2, 0.95)`.
        kernel: any `margaux` kernel; by default `MALA`, whose exact draws leave $\sigma$ without bias. The paper's is
            `mx.ULA(0.01)`.
        start: starting values of some of "beta", "sigma", "intercept", by default 0, 1 and 0 (the paper's beta is 1).
        callbacks: of `margaux.fit`.
        random_state: an int. dtype: "float32" (the default here) or "float64". verbose: show progress.

    Attributes:
        coef_ (1, p), intercept_ (1,), sigma_: the estimate, averaged over the second half of the iterates. support_ (p,):
            the selected coefficients. objective_: minus log-likelihood plus $\lambda|\beta|_1$ (of a, $\sigma$ and $\beta$).
        groups_: labels of the groups. random_effects_: posterior mean and sd of $\sigma x_j$, a row a group.
        path_: the frame of the last `path`. params_: "beta", "sigma", "intercept". See `AbstractEstimator` for the rest.
            The log-likelihood is by quadrature, and `aic_`, `bic_` count the selected coefficients.

    >>> import numpy as np
    >>> from margaux import SparseMixedLogistic
    >>> rng = np.random.default_rng(0)
    >>> X, groups = rng.normal(size=(200, 30)), np.repeat(["a", "b", "c", "d"], 50)
    >>> y = rng.logistic(size=200) < 3 * X[:, 4] + np.repeat(rng.normal(size=4), 50)
    >>> model = SparseMixedLogistic(penalty_weight=15, n_iter=2000, verbose=False).fit(X, y, groups)
    >>> np.flatnonzero(model.coef_).tolist()
    [4]
    """

    def __init__(
        self,
        *,
        penalty_weight: float = 30.0,
        penalty: str = "l1",
        threshold: float = 0.005,
        fit_intercept: bool = False,
        n_iter: int = 60_000,
        n_steps: int = 1,
        warm_up: int = 1000,
        step: float | AbstractSchedule | None = None,
        kernel: AbstractKernel | None = None,
        start: dict[str, Any] | None = None,
        callbacks: Sequence[AbstractCallback] = (),
        random_state: int = 0,
        dtype: DTypeLike | None = None,
        verbose: bool = True,
    ) -> None:
        self.penalty_weight = penalty_weight
        self.penalty = penalty
        self.threshold = threshold
        self.fit_intercept = fit_intercept
        self.n_iter = n_iter
        self.n_steps = n_steps
        self.warm_up = warm_up
        self.step = step
        self.kernel = kernel
        self.start = start
        self.callbacks = callbacks
        self.random_state = random_state
        self.dtype = dtype
        self.verbose = verbose

    def fit(self, X: Tabular, y: Column | None = None, groups: Column | None = None) -> SparseMixedLogistic:
        """Select and estimate.

        Args:
            X: (rows, p), with y of two classes and groups a label a row; or a formula such as "y ~ a + b", with y
                the data frame and groups the name of one of its columns (or a label a row).

        Raises:
            ValueError, TypeError: bad input, before anything is compiled. FitError: the fit diverged.
        """
        unit = self._unit(X, y, groups)
        weight, _ = _weight("penalty_weight", self.penalty_weight), _weight("threshold", self.threshold)
        result = self._run(unit, weight, self._start(unit), whole("n_iter", self.n_iter, 1), self._step(unit, self.n_iter))
        self._keep(result)
        vars(self).pop("certificate_", None)
        self._fitted = unit
        beta, sigma, intercept = _split(result.params)
        self.n_observations_ = len(unit["y"])
        self.coef_, self.intercept_, self.sigma_ = beta[None], np.array([intercept]), sigma
        self.support_ = self._selected(beta)
        _, mean, sd = self._posterior = self._quadrature(unit, result.params)
        effects = {"mean": sigma * mean, "sd": sigma * sd}
        self.random_effects_ = pd.DataFrame(effects, index=pd.Index(self.groups_, name="group"))
        self.objective_ = self._objective(unit, result.params, weight)
        return self

    def path(
        self,
        X: Tabular,
        y: Column | None = None,
        groups: Column | None = None,
        penalty_weights: int | Sequence[float] | np.ndarray = 20,
        n_iter: int | None = None,
    ) -> pd.DataFrame:
        r"""The estimate as $\lambda$ goes down, each fit started from the one before; nothing is recompiled on the way.

        Args:
            X, y, groups: as for `fit`. penalty_weights: values of $\lambda$, or how many to space in ratio from the
                smallest that selects nothing (without random effects) to a twentieth of it.
            n_iter: iterations each; by default a tenth of the estimator's, at least 1000. A `step` of one's own
                starts afresh at each value: one that starts high forgets the warm start.

        Returns:
            A row a $\lambda$, largest first: "n_selected", "sigma", "objective" and the coefficients by name. It is
            kept as `path_`; an earlier `fit` is left as it was.

        Raises:
            ValueError, TypeError: bad input, before anything is compiled.
        """
        me = copy.copy(self)
        unit = me._unit(X, y, groups)
        if np.ndim(penalty_weights) == 0:
            largest = me._largest(unit)
            weights = np.geomspace(largest, largest / 20, whole("penalty_weights", penalty_weights, 1))
        else:
            weights = np.sort([_weight("penalty_weights", w) for w in np.ravel(penalty_weights)])[::-1]
            if weights.size == 0:
                raise ValueError("penalty_weights is empty; give values of lambda, or how many to choose")
        n_iter = max(self.n_iter // 10, 1000) if n_iter is None else whole("n_iter", n_iter, 1)
        step, params, rows = me._step(unit, n_iter), me._start(unit), []
        for weight in weights:
            result = me._run(unit, weight, params, n_iter, step)
            beta, sigma, intercept = _split(result.params)
            row = {"n_selected": int(me._selected(beta).sum()), "sigma": sigma}
            row["objective"] = me._objective(unit, result.params, weight)
            row |= {"intercept": intercept} if self.fit_intercept else {}
            rows.append(row | dict(zip(me._names, beta, strict=True)))
            params = result.last_params
        self.path_ = pd.DataFrame(rows, index=pd.Index(weights, name="penalty_weight"))
        return self.path_

    def plot_path(self, truth: ArrayLike | None = None, labels: int = 8, ax: AxesLike | None = None) -> Any:
        r"""The last `path`: coefficients against $\lambda$, and how many are selected with $\sigma$ below them.

        Args:
            truth: true coefficients (p,), to colour those that are not zero. labels: how many of the largest are named.

        Raises:
            ValueError: `path` has not been called.
        """
        if not hasattr(self, "path_"):
            raise ValueError("there is no path to plot yet; call path(X, y, groups) first")
        from .plots import selection_path

        own = ["n_selected", "sigma", "objective", *(["intercept"] if self.fit_intercept else [])]
        return selection_path(self.path_, list(self.path_.columns.drop(own)), truth, labels, ax)

    def decision_function(self, X: Tabular, groups: Column | None = None) -> np.ndarray:
        r"""Log odds of the second class (rows,), $a + v^\top\beta + \sigma E[x_g\mid y]$; see `predict_proba`."""
        check_is_fitted(self, "result_")
        labels = None if groups is None else group_labels(groups, X if self._spec is not None else None)
        x = np.asarray(validate_data(self, new_design(self._spec, X), dtype=np.float64, reset=False))
        eta = x @ self.coef_[0] + self.intercept_[0]
        if labels is None:
            return eta
        check_length(labels, len(x))
        at = pd.Index(self.groups_).get_indexer(pd.Index(labels))
        return eta + np.where(at >= 0, self.random_effects_["mean"].to_numpy()[at], 0.0)

    def predict_proba(self, X: Tabular, groups: Column | None = None) -> np.ndarray:
        """Probabilities of the two classes (rows, 2).

        A group of the fit has its random effect at its posterior mean; a new one, or every row where no groups
        are given, has it at zero. After a fit by formula X is a data frame, and groups may name its column.
        """
        return expit(self.decision_function(X, groups)[:, None] * [-1, 1])

    def predict(self, X: Tabular, groups: Column | None = None) -> np.ndarray:
        """The class of the larger probability; see `predict_proba`."""
        return self.classes_[(self.decision_function(X, groups) > 0).astype(int)]

    def score(self, X: Tabular, y: Column, groups: Column | None = None, sample_weight: Column | None = None) -> float:  # type: ignore[override]
        """Share of rows classified rightly; see `predict_proba` for the groups."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """The selected coefficients, intercept and sigma by name, in the columns of every `summary`.

        Only "estimate" is filled: after selection by a penalty Wald inference does not hold.
        """
        check_is_fitted(self, "result_")
        rows = dict(zip(np.array(self._names, object)[self.support_], self.coef_[0][self.support_], strict=True))
        rows |= {"intercept": self.intercept_[0]} if self.fit_intercept else {}
        frame = pd.DataFrame({"estimate": pd.Series(rows | {"sigma": self.sigma_}, dtype=float)})
        frame[["se", "z", "p", "ci_low", "ci_high"]] = np.nan
        frame.attrs["message"] = f"{self.message_.rstrip('.')}; estimates are shrunk and selected: no standard errors are given"
        return frame

    def cov_params(self) -> pd.DataFrame:
        """NaN throughout, with the names of `summary`: after selection by a penalty Wald inference does not hold."""
        return pd.DataFrame(np.nan, self.summary().index, self.summary().index)

    def _costs_nothing(self, answer: str) -> bool:
        return True

    @functools.cached_property
    def certificate_(self) -> Certificate:  # type: ignore[override]
        r"""Whether the penalised objective is at its least, by quadrature, and $\sigma$ off its edge."""
        check_is_fitted(self, "result_")
        beta, sigma, intercept = _split(self.params_)
        ended = Check("result", np.nan, np.nan, np.nan, "pass", self.message_)
        given = intercept if self.fit_intercept else None
        return certificate(
            self._fitted, beta, sigma, given, self.support_, float(self.penalty_weight), SIGMA_FLOOR, len(self.groups_), ended
        )

    @functools.cached_property
    def stderr_(self) -> dict[str, Any]:
        """NaN throughout: after selection by a penalty Wald inference does not hold."""
        check_is_fitted(self, "result_")
        return {name: value * np.nan for name, value in self.params_.items()}

    @functools.cached_property
    def loglik_(self) -> LogLikelihood:
        """Marginal log-likelihood by quadrature, unpenalised; `per_unit` has that of each group."""
        check_is_fitted(self, "result_")
        return LogLikelihood(self._posterior[0], 0.0)

    @property
    def n_free_(self) -> int:
        """Degrees of freedom: the selected coefficients (Zou, Hastie and Tibshirani 2007), sigma and the intercept."""
        return int(self.support_.sum()) + 1 + bool(self.fit_intercept)

    @property
    def n_params_(self) -> int:
        """`n_free_`, which `aic_` and `bic_` count."""
        return self.n_free_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    # -- the problem ----------------------------------------------------------------------------

    def _unit(self, X: Any, y: Column | None, groups: Column | None) -> dict[str, np.ndarray]:
        """Checked data as one unit; labels, names and classes on the way."""
        if groups is None:
            raise ValueError("groups is missing: pass a label a row, or after a formula the name of a column")
        labels = group_labels(groups, y if isinstance(X, str) else None)
        X, y, self._spec = design(X, y)
        if y is None:
            raise ValueError("y is missing: pass fit(X, y, groups), or a formula and its data frame")
        self.classes_, codes = two_classes(np.ravel(np.asarray(y)))
        X = validate_data(self, X, dtype=np.float64, ensure_all_finite=False)
        own = getattr(self, "feature_names_in_", [f"x{j}" for j in range(X.shape[1])])
        self._names = [str(name) for name in own]
        check_length(codes, len(X), "y")
        check_length(labels, len(X))
        check_design(X, self._names)
        self.groups_, group = np.unique(labels, return_inverse=True)
        if len(self.groups_) < 2:
            raise ValueError(
                f"there is one group only ({self.groups_[0]!r}), whose random effect is an intercept; "
                "use LogisticRegression of scikit-learn, or check groups"
            )
        return {"X": X, "y": codes.astype(float), "group": group.astype(np.int32)}

    def _penalty(self, weight: float) -> AbstractPenalty:
        if self.penalty == "l1":
            return L1(weight, on="beta")
        if self.penalty == "huber":
            return StepHuber(weight)
        raise ValueError(f'penalty must be "l1" or "huber", got {self.penalty!r}')

    def _start(self, unit: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        p = unit["X"].shape[1]
        start = {"beta": np.zeros(p), "sigma": np.asarray(1.0)} | ({"intercept": np.asarray(0.0)} if self.fit_intercept else {})
        for name, value in (self.start or {}).items():
            if name not in start:
                raise ValueError(f'start has "{name}", which is no parameter; they are {list(start)}')
            if np.shape(value) != start[name].shape:
                raise ValueError(f"start of {name} has shape {np.shape(value)}, not {start[name].shape}")
            start[name] = np.asarray(value, float)
        return start

    def _step(self, unit: dict[str, np.ndarray], n_iter: int) -> float | AbstractSchedule:
        if self.step is not None:
            return self.step
        return ConstantThenDecay(1 / complete_curvature(unit["X"], self.fit_intercept), int(CONSTANT * n_iter), DECAY)

    def _run(
        self, unit: dict[str, np.ndarray], weight: float, params: PyTree, n_iter: int, step: float | AbstractSchedule
    ) -> Fit:
        result = run(
            MixedLogistic(len(self.groups_)),
            one_unit(unit),
            soul(step, average=StepWeighted(step)),
            MCMC(self.kernel or MALA(), n_steps=self.n_steps, warm_up=self.warm_up),
            params=params,
            space={"sigma": Box(SIGMA_FLOOR)},
            penalty=self._penalty(weight),
            n_iter=n_iter,
            key=self.random_state,
            callbacks=self.callbacks,
            dtype="float32" if self.dtype is None else self.dtype,
            progress=bool(self.verbose),
        )
        if self.penalty != "l1":
            return result
        # An average has a zero only where every iterate has one: the zeros are those of the last iterate.
        beta = np.where(result.last_params["beta"] == 0, 0, result.params["beta"])
        return dataclasses.replace(result, params={**result.params, "beta": beta})

    def _selected(self, beta: np.ndarray) -> np.ndarray:
        return np.abs(beta) > (0.0 if self.penalty == "l1" else self.threshold)

    def _quadrature(self, unit: dict[str, np.ndarray], params: PyTree) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        beta, sigma, intercept = _split(params)
        return group_posteriors(unit["X"] @ beta + intercept, sigma, unit["y"], unit["group"], len(self.groups_))

    def _objective(self, unit: dict[str, np.ndarray], params: PyTree, weight: float) -> float:
        return weight * float(np.abs(_split(params)[0]).sum()) - float(self._quadrature(unit, params)[0].sum())

    def _largest(self, unit: dict[str, np.ndarray]) -> float:
        mean = unit["y"].mean() if self.fit_intercept else 0.5
        return float(np.max(np.abs(unit["X"].T @ (unit["y"] - mean))))


def _split(params: PyTree) -> tuple[np.ndarray, float, float]:
    """beta, sigma and the intercept, in float64."""
    return np.asarray(params["beta"], float), float(params["sigma"]), float(params.get("intercept", 0.0))


def _weight(name: str, value: object) -> float:
    if isinstance(value, bool) or not np.isscalar(value) or not np.isreal(value):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 <= float(value) < np.inf:  # type: ignore[arg-type]
        raise ValueError(f"{name} must be finite and not negative, got {value}")
    return float(value)  # type: ignore[arg-type]
