"""Regression with missing covariates: `MissingGLM`, `MissingLogistic`, `MissingLinear`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pandas as pd
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.utils.metaestimators import available_if

from ..algorithm import AbstractAlgorithm
from ..algorithms import mcem, misso, saem
from ..average import LastIterate, LinearlyWeighted
from ..compiling import keep_compilations
from ..esteps import MCMC
from ..fit import fit as run
from ..inference.marginal import LogLikelihood
from ..kernels import AbstractKernel, CrankNicolson
from ..missing import answers
from ..missing.exact import Likelihood, start
from ..missing.model import CURVATURES, MissingCovariates
from ..missing.multinomial import Multinomial, by_holes, check_classes, family_of, warn_if_infinite
from ..missing.multinomial_model import MissingMultinomial
from ..missing.observed import Params, arrange
from ..missing.selection import search
from ..missing.standard import Standard
from ..missing.table import Table, covariates, table
from ..naming import default_dtype, precision
from ..result import RESULTS, Fit
from ..schedule import ConstantThenDecay, Growth
from .base import AbstractEstimator
from .fitted import check_fitted

OUTCOMES = {"logistic": "binary", "probit": "binary", "gaussian": "continuous", "poisson": "count",
            "multinomial": "categorical"}  # fmt: skip
METHODS = ("exact", "saem", "mcem", "misso")
#: chains of all rows together, at least
ENOUGH = 6000


class MissingGLM(AbstractEstimator):
    r"""Maximum likelihood of $y_i\mid x_i$, a generalised linear model, when entries of x are missing at random.

    $x_i\sim N(\mu, \Sigma)$ (given any fully observed categorical covariates $c_i$, $N(B^\top c_i, \Sigma)$) and
    $\eta_i=\beta_0+\beta^\top x_i$. Rows with holes are used for what they tell: nothing is imputed or thrown away.
    Given what is observed $\eta_i$ is Gaussian, so the likelihood takes one dimension of quadrature and is exact.

    A multinomial outcome, of K classes, has coefficients for each class but the first, the reference:
    $\log P(y=k)/P(y=0) = \beta_{0k}+\beta_k^\top x$. Its likelihood takes K - 1 dimensions: `Multinomial.marginal` says how
    exact it is.

    Args:
        family: "logistic", "probit", "gaussian", "poisson" or "multinomial".
        method: "exact" (L-BFGS and Newton steps on the observed likelihood), or, through the engine, "saem", "mcem",
            "misso" (Jiang, Josse and Lavielle 2020; Karimi, Wai, Moulines and Li, section 4.1).
        curvature: of the surrogate of the coefficients: "tight", "largest" (the paper's 1/4) or "newton". The first two are
            the same for multinomial outcomes.
        n_iter, n_burn: iterations (of "exact" at most), and those at gain one of SAEM. batch_size: rows an iteration.
        n_steps: transitions an iteration; by default those of MCEM and MISSO grow with the epochs, to fifty.
        n_chains: chains a row; by default enough for 6000 in all.
        kernel: sampler of the whitened predictor; by default `CrankNicolson()`, the paper's independence sampler.
        random_state: an int. dtype: "float32" or "float64". verbose: show progress.

    Attributes:
        coef_ (p,), intercept_ (multinomial: (K - 1, p) and (K - 1,)), `classes_` where there are any, mean_ (p,) and
        covariance_ (p, p) of the covariates (of the columns that have a distribution), `params_`, `stderr_`, `loglik_` (of y
        and the observed x), and what `Fitted` says.

    Raises:
        ValueError, TypeError: bad input, before anything is compiled.

    >>> import numpy as np, margaux as mx
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2)) @ np.array([[1.0, 0.5], [0.0, 1.0]])
    >>> y = (rng.random(300) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
    >>> X[rng.random(X.shape) < 0.2] = np.nan
    >>> model = mx.MissingLogistic(verbose=False).fit(X, y)
    >>> list(model.summary().index)
    ['intercept', 'x0', 'x1']
    """

    def __init__(
        self,
        *,
        family: str = "logistic",
        method: str = "exact",
        curvature: str = "tight",
        n_iter: int = 500,
        n_burn: int = 100,
        batch_size: int | None = None,
        n_steps: int = 1,
        n_chains: int | None = None,
        kernel: AbstractKernel | None = None,
        random_state: int = 0,
        dtype: Any = None,
        verbose: bool = True,
    ) -> None:
        self.family = family
        self.method = method
        self.curvature = curvature
        self.n_iter = n_iter
        self.n_burn = n_burn
        self.batch_size = batch_size
        self.n_steps = n_steps
        self.n_chains = n_chains
        self.kernel = kernel
        self.random_state = random_state
        self.dtype = dtype
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, offset: Any = None) -> Any:
        """Estimate.

        Args:
            X: (n, p) array or frame with NaN where an entry is missing, y (n,); or a formula and the frame.
            sample_weight, offset: (n,), a weight and a known part of the predictor for each row.
        """
        if self.family not in OUTCOMES:
            raise ValueError(f"family must be one of {', '.join(OUTCOMES)}; got {self.family!r}")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")
        if self.curvature not in CURVATURES:
            raise ValueError(f"curvature must be one of {', '.join(CURVATURES)}; got {self.curvature!r}")
        self._refuse_offset(offset)
        data = table(X, y, OUTCOMES[self.family], sample_weight, offset)
        if self.family == "multinomial" and data.classes is not None:
            check_classes(data, data.classes)
        return self._estimate(data)

    def _estimate(self, data: Table, dropped: tuple[int, ...] = ()) -> Any:
        keep_compilations()
        self.table_ = data
        if data.classes is not None:
            self.classes_ = data.classes
        self.n_observations_, self.n_features_in_ = len(data.y), data.x.shape[1]
        self._dropped = dropped
        x, c = self._split(data.x)
        self.standard_ = Standard.of(x)
        family = self._family()
        rows, groups, _ = arrange(self.standard_.apply(x), c, data.y, data.weights, data.offset)
        if isinstance(family, Multinomial):
            rows, groups = by_holes(rows, groups, family.n_classes)
        with precision(np.dtype("float64")):
            likelihood = Likelihood(family, rows, groups, dropped)
            begin, information = start(family, rows), None
            if self.method == "exact":
                fit, information = self._exact(likelihood, begin)
            else:
                fit = self._engine(rows, groups, begin)
            flat = likelihood.pack(fit.params)
            value = -likelihood.objective(flat)[0] * likelihood.size
        self._loglik = value - self.standard_.log_jacobian(x, data.weights)
        self._likelihood, self._flat, self._information = likelihood, flat, information
        self._keep(fit)
        if isinstance(family, Multinomial):
            warn_if_infinite(fit.params)
        return self

    def _split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns with a distribution, and the intercept with those without."""
        gaussian = self.table_.gaussian
        return x[:, gaussian], np.concatenate([np.ones((len(x), 1)), x[:, ~gaussian]], axis=1)

    def _family(self) -> Any:
        return family_of(self.family, self.table_.classes)

    def _refuse_offset(self, offset: Any) -> None:
        if self.family == "multinomial" and offset is not None:
            raise ValueError("a multinomial outcome has a predictor a class, so one offset a row says too little; leave it out")

    def _exact(self, likelihood: Likelihood, start: Params) -> tuple[Fit, np.ndarray]:
        found, information = likelihood.maximise(start, max(self.n_iter, 200))
        result = RESULTS.successful if found.gradient < 1e-5 else RESULTS.max_iterations
        params = {name: np.asarray(value) for name, value in found.params.items()}
        whole = jax.tree.map(lambda leaf: leaf[None], params)
        how = f"{type(self).__name__}: L-BFGS on the exact likelihood"
        fit = Fit(params, params, whole, {}, result, found.n_iter, {}, how, np.dtype("float64"), 0)
        return fit, information

    def _engine(self, rows: Any, groups: Any, start: Params) -> Fit:
        if self._dropped:
            raise ValueError('coefficients can be left out with method="exact" only')
        family = self._family()
        if isinstance(family, Multinomial):
            model: Any = MissingMultinomial(family, rows.x.shape[1], self.curvature, groups)
        else:
            model = MissingCovariates(family, self.curvature, groups)
        kernel = CrankNicolson() if self.kernel is None else self.kernel
        steps: Any = self.n_steps
        if self.method != "saem" and steps == 1:
            steps = Growth(epoch=-(-len(rows.y) // (self.batch_size or len(rows.y))), cap=50)
        algorithms: dict[str, AbstractAlgorithm] = {
            "saem": saem(ConstantThenDecay(1.0, self.n_burn, 0.7), LinearlyWeighted(self.n_burn)),
            "mcem": mcem(LinearlyWeighted(self.n_iter // 2)),
            "misso": misso(average=LastIterate()),
        }
        estep = MCMC(kernel, n_steps=steps, n_chains=self.n_chains or -(-ENOUGH // len(rows.y)))
        return run(
            model, rows, algorithms[self.method], estep, params=start,
            space=model.space(), n_iter=self.n_iter, batch_size=self.batch_size, key=self.random_state,
            dtype=default_dtype(self.dtype), progress=bool(self.verbose),
        )  # fmt: skip

    def _keep(self, fit: Fit) -> None:
        super()._keep(fit)
        vars(self).pop("_covariances", None)
        with precision(np.dtype("float64")):
            natural = {name: np.asarray(value) for name, value in self.standard_.natural(fit.params).items()}
        mean = natural["mean"]
        self.params_ = self._named(natural["beta"]) | {"mean": mean[0] if len(mean) == 1 else mean,
                                                       "covariance": natural["covariance"]}  # fmt: skip
        if "scale" in natural:
            self.params_["scale"] = float(natural["scale"])
        self.coef_, self.intercept_ = self.params_["coef"], self.params_["intercept"]
        self.mean_, self.covariance_ = self.params_["mean"], self.params_["covariance"]

    def _named(self, beta: np.ndarray) -> dict[str, Any]:
        """Intercept and coefficients in the order of the table's columns."""
        own = beta[..., answers.beta_positions(self.table_.gaussian)]
        return {"intercept": own[..., 0] if own.ndim == 2 else float(own[0]), "coef": own[..., 1:]}

    @functools.cached_property
    def _covariances(self) -> dict[str, np.ndarray]:
        check_fitted(self)
        one = self._likelihood
        with precision(np.dtype("float64")):
            if self._information is None:
                self._information = one.information(self._flat)
            return self.standard_.covariance(one.struct, one.whole(self._flat), self._information, one.free)

    @property
    def stderr_(self) -> dict[str, Any]:  # type: ignore[override]
        """Standard errors from the observed information, shaped as `params_`."""
        errors = {name: np.sqrt(np.maximum(np.diagonal(matrix), 0.0)) for name, matrix in self._covariances.items()}
        shapes = {name: np.shape(value) for name, value in self.result_.params.items()}
        errors = {name: error.reshape(shapes[name]) for name, error in errors.items()}
        mean = errors["mean"]
        out = self._named(errors["beta"]) | {"mean": mean[0] if len(mean) == 1 else mean, "covariance": errors["covariance"]}
        return out | ({"scale": float(errors["scale"])} if "scale" in errors else {})

    def _costs_nothing(self, answer: str) -> bool:
        return answer == "loglik" or self._information is not None

    @property
    def loglik_(self) -> Any:  # type: ignore[override]
        """log p(y, observed x) in the units of the data, every constant included; by quadrature, so its `.se` is zero."""
        check_fitted(self)
        return LogLikelihood(np.asarray([self._loglik]), 0.0)

    @property
    def loglik_outcome_(self) -> float:
        """log p(y | observed x)."""
        check_fitted(self)
        with precision(np.dtype("float64")):
            return self._likelihood.log_outcome(self._flat)

    @property
    def n_params_(self) -> int:
        """Free parameters, those of the covariates' distribution included."""
        return len(self._flat)

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Coefficients: estimate, standard error, z, p and interval, one named row each. Those left out have none. Of a
        multinomial outcome the rows are named "class: column", and the index "against" the reference."""
        check_fitted(self)
        errors = self.stderr_
        estimate, se = (np.concatenate([np.asarray(one["intercept"])[..., None], one["coef"]], axis=-1)
                        for one in (self.params_, errors))  # fmt: skip
        return answers.coefficient_table(self.table_.names, self.table_.classes, estimate, se, level)

    def select(self, direction: str = "backward", criterion: str = "bic") -> Any:
        """A copy fitted without the columns that the criterion does without; `selection_` holds every model tried.

        Args:
            direction: "backward", "forward" or "exhaustive". criterion: "bic" or "aic".
        """
        check_fitted(self)
        if criterion not in ("bic", "aic"):
            raise ValueError(f'criterion must be "bic" or "aic", got {criterion!r}')
        one, start = self._likelihood, self.result_.params
        columns = answers.beta_positions(self.table_.gaussian)[1:]
        whole = np.arange(np.size(start["beta"])).reshape(np.shape(start["beta"]))

        def positions(out: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(map(int, np.ravel(whole[..., columns[list(out)]])))

        def fitted(out: tuple[int, ...]) -> tuple[float, int]:
            less = Likelihood(one.family, jax.tree.map(np.asarray, one.data), one.groups, positions(out))
            beta = np.array(start["beta"])
            beta[..., columns[list(out)]] = 0.0
            flat, value, _ = less.climb(start | {"beta": beta})
            return value, len(flat)

        penalty = 2.0 if criterion == "aic" else float(np.log(self.n_observations_))
        with precision(np.dtype("float64")):
            out, tried = search(fitted, self.n_features_in_, self.table_.names, direction, penalty)
        copy: Any = clone(self)
        chosen = copy.set_params(method="exact")._estimate(self.table_, positions(out))
        shift = self.standard_.log_jacobian(self._split(self.table_.x)[0], self.table_.weights)
        chosen.selection_ = tried.assign(loglik=tried["loglik"] - shift, criterion=tried["criterion"] + 2 * shift)
        return chosen

    def _expected(self, X: Any, offset: Any = None) -> np.ndarray:
        check_fitted(self)
        self._refuse_offset(offset)
        x, c = self._split(covariates(X, self.table_))
        shift = np.zeros(len(x)) if offset is None else np.asarray(offset, float)
        with precision(np.dtype("float64")):
            return answers.expected_outcome(self._family(), self.result_.params, self.standard_.apply(x), c, shift)

    def conditional_mean(self, X: Any = None, y: Any = None) -> np.ndarray:
        """E[x | observed x] of each row, (n, p), in the table's columns; E[x | observed x, y] of the training rows."""
        check_fitted(self)
        whole = self.table_.x if X is None else covariates(X, self.table_)
        outcome = self.table_.y if X is None else None if y is None else answers.codes(y, self.table_.classes)
        offset = self.table_.offset if X is None else np.zeros(len(whole))
        x, c = self._split(whole)
        with precision(np.dtype("float64")):
            found = answers.conditional_mean(self._family(), self.result_.params, self.standard_.apply(x), c, outcome, offset)
        out = whole.copy()
        out[:, self.table_.gaussian] = self.standard_.restore(found)
        return out

    def impute(self, draws: int = 1, seed: int = 0) -> np.ndarray:
        """Independent draws of the completed training table given y and what is observed, (draws, n, p)."""
        check_fitted(self)
        if draws < 1:
            raise ValueError(f"draws must be at least 1, got {draws}")
        x, c = self._split(self.table_.x)
        with precision(np.dtype("float64")):
            drawn = answers.draw_completed(self._family(), self.result_.params, self.standard_.apply(x), c, self.table_.y,
                                           self.table_.offset, draws, seed)  # fmt: skip
        out = np.broadcast_to(self.table_.x, (draws, *self.table_.x.shape)).copy()
        out[:, :, self.table_.gaussian] = self.standard_.restore(drawn)
        return out

    @property
    def plot(self) -> Any:
        """Figures: `.coefficients() .missingness()`."""
        from ..plots.missing import MissingPlots

        check_fitted(self)
        return MissingPlots(self)

    def predict(self, X: Any, offset: Any = None) -> np.ndarray:
        """E[y | observed x], averaged over what is missing; where there are classes, the likeliest."""
        expected = self._expected(X, offset)
        if self.table_.classes is None:
            return expected
        return self.table_.classes[expected.argmax(axis=1) if expected.ndim == 2 else (expected > 0.5).astype(int)]

    @available_if(lambda self: OUTCOMES.get(self.family) in ("binary", "categorical"))
    def predict_proba(self, X: Any, offset: Any = None) -> np.ndarray:
        """P(y = k | observed x), (n, K), averaged over what is missing; of outcomes with classes."""
        expected = self._expected(X, offset)
        return expected if expected.ndim == 2 else np.stack([1 - expected, expected], axis=1)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy where there are classes, otherwise R^2."""
        return answers.score(self.table_.classes, self.predict(X), y, sample_weight)


class MissingLogistic(ClassifierMixin, MissingGLM):
    """`MissingGLM` of a binary outcome with logit link: the model of misaem (Jiang, Josse and Lavielle 2020)."""


class MissingLinear(RegressorMixin, MissingGLM):
    """`MissingGLM` of a continuous outcome: linear regression, with the residual variance `scale`."""

    def __init__(
        self,
        *,
        family: str = "gaussian",
        method: str = "exact",
        curvature: str = "tight",
        n_iter: int = 500,
        n_burn: int = 100,
        batch_size: int | None = None,
        n_steps: int = 1,
        n_chains: int | None = None,
        kernel: AbstractKernel | None = None,
        random_state: int = 0,
        dtype: Any = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(
            family=family, method=method, curvature=curvature, n_iter=n_iter, n_burn=n_burn, batch_size=batch_size,
            n_steps=n_steps, n_chains=n_chains, kernel=kernel, random_state=random_state, dtype=dtype, verbose=verbose,
        )  # fmt: skip
