"""Regression with missing covariates: `MissingGLM`, `MissingLogistic`, `MissingLinear`."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd

from ...algorithms.average import LastIterate, LinearlyWeighted
from ...algorithms.base import AbstractAlgorithm
from ...algorithms.recipes import mcem, misso, saem
from ...answers.certificate import Certificate
from ...answers.fit import Fit
from ...answers.likelihood import LogLikelihood
from ...engine.outcome import RESULTS
from ...engine.share import Share
from ...esteps import MCMC
from ...kernels import AbstractKernel, CrankNicolson
from ...numerics.compiling import keep_compilations
from ...numerics.precision import default_dtype, precision
from ...problem.schedule import ConstantThenDecay, Growth
from ...showing.parts import check_fitted
from ..conventions import Classifier, Regressor
from ..sharing import equal, fit_by_shares, pooled
from . import answers
from .discrete import cell_table
from .layout import Arranged, Layout
from .likelihood import Likelihood, start
from .model import MissingCovariates, check_curvature
from .multinomial import Multinomial, by_holes, check_classes
from .multinomial_model import MissingMultinomial
from .observed import Params
from .of_rows import OUTCOMES, AbstractRowAnswers
from .selection import search
from .table import Table, table
from .verdict import ERRORS, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from ...tables.kinds import Column, Tabular


METHODS = ("exact", "saem", "mcem", "misso")
#: chains of all rows together, at least
ENOUGH = 6000


class MissingGLM(AbstractRowAnswers):
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
        discrete: names or positions of covariates of few values (of a frame also categories), with holes or without, whose
            missing values are enumerated: the general location model (`margaux.families.missing.completed`). `cells_` has their
            probabilities.
        polish: end at the maximum of the exact likelihood by Newton steps, whatever the method.

    Attributes:
        coef_ (p,), intercept_ (multinomial: (K - 1, p) and (K - 1,)), `classes_` where there are any, mean_ (p,) and
        covariance_ (p, p) of the covariates (of the columns that have a distribution; with discrete ones the means are
        (k + w, p), a row the intercept, each fixed dummy and each dummy of theirs), `params_`, `stderr_`, `loglik_` (of y and the
        observed x), `certificate_`, and what `Fitted` says.

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
        dtype: DTypeLike | None = None,
        verbose: bool = True,
        discrete: str | int | Sequence[str | int] | None = None,
        polish: bool = True,
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
        self.discrete = discrete
        self.polish = polish

    def fit(self, X: Tabular, y: Column | None = None, sample_weight: Column | None = None, offset: Column | None = None) -> Any:
        """Estimate.

        Args:
            X: (n, p) array or frame with NaN where an entry is missing, y (n,); or a formula and the frame.
            sample_weight, offset: (n,), a weight and a known part of the predictor for each row.

        Over several processes each gives its own rows of all of these, by `margaux.shard`.
        """
        X, y, sample_weight, offset, shared = pooled(X, y, sample_weight, offset)
        if self.family not in OUTCOMES:
            raise ValueError(f"family must be one of {', '.join(OUTCOMES)}; got {self.family!r}")
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")
        check_curvature(self.curvature)
        self._refuse_offset(offset)
        data = table(X, y, OUTCOMES[self.family], sample_weight, offset, self.discrete)
        if data.discrete and self.method != "exact":
            raise ValueError("discrete covariates are enumerated by the exact method only; the others have Gaussian ones")
        if self.family == "multinomial" and data.classes is not None:
            check_classes(data, data.classes)
        return self._estimate(data, equal(len(data.y), shared))

    def _estimate(self, data: Table, share: Share, dropped: tuple[int, ...] = ()) -> Any:
        keep_compilations()
        self.table_, self._share = data, share
        if data.classes is not None:
            self.classes_ = data.classes
        self.n_observations_, self.n_features_in_ = len(data.y), data.x.shape[1]
        self._dropped = dropped
        self._layout = layout = Layout.of(data)
        family, rows = self._family(), layout.arranged(data.x, data.y, data.weights, data.offset)
        if isinstance(family, Multinomial):
            rows = rows.reordered(*by_holes(rows.rows, rows.groups, family.n_classes))
        with precision(np.dtype("float64")):
            self._likelihood = one = Likelihood(family, rows.rows, rows.groups, dropped, rows.completions, share)
            fit = None if self.method == "exact" else self._engine(rows, start(family, rows.rows))
            begin = start(family, rows.rows, rows.completions) if fit is None else fit.params
            flat, information, n_iter = one.pack(begin), None, 0
            if fit is None or self.polish:
                flat, _, n_iter = one.climb(begin, max(self.n_iter, 200))
            if self.polish:
                flat, information, steps = one.polish(flat)
                n_iter += steps
            verdict = Verdict.of(layout, one, flat, rows, information)
            if self.polish and verdict.may_have_rivals(layout, one):
                flat, others = one.elsewhere(begin, flat, self.random_state)
                verdict = Verdict.of(layout, one, flat, rows, others=others)
            self._flat, self._verdict = flat, verdict
            params = one.struct.params(one.whole(flat))
        self._loglik = self._verdict.loglik - layout.standard.log_jacobian(data.x[:, data.gaussian], data.weights)
        self._keep(self._exact(params, n_iter) if fit is None else dataclasses.replace(fit, params=params))
        self.converged_, self.message_ = self._verdict.numbers.word != "failed", str(self.certificate_)
        if not self.converged_:
            warnings.warn(f"{type(self).__name__}: {self._verdict.numbers}", stacklevel=3)
        return self

    def _exact(self, params: Params, n_iter: int) -> Fit:
        result = RESULTS.max_iterations if self._verdict.numbers.word == "failed" else RESULTS.successful
        params = {name: np.asarray(value) for name, value in params.items()}
        whole = jax.tree.map(lambda leaf: leaf[None], params)
        how = f"{type(self).__name__}: L-BFGS and Newton steps on the exact likelihood"
        return Fit(params, params, whole, {}, result, n_iter, {}, how, np.dtype("float64"), 0)

    def _engine(self, data: Arranged, start: Params) -> Fit:
        rows, groups = data.rows, data.groups
        if self._dropped:
            raise ValueError('coefficients can be left out with method="exact" only')
        family = self._family()
        if isinstance(family, Multinomial):
            model: Any = MissingMultinomial(family, self.curvature, groups, n_columns=rows.x.shape[1])
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
        return fit_by_shares(
            model, rows, self._share, algorithms[self.method], estep, params=start,
            space=model.space(), n_iter=self.n_iter, batch_size=self.batch_size, key=self.random_state,
            dtype=default_dtype(self.dtype), progress=bool(self.verbose), polish=False,
        )  # fmt: skip

    def _keep(self, fit: Fit) -> None:
        super()._keep(fit)
        vars(self).pop("_covariances", None)
        with precision(np.dtype("float64")):
            params = {name: np.asarray(value) for name, value in fit.params.items()}
            natural = {name: np.asarray(value) for name, value in self._layout.standard.natural(params).items()}
        self.params_ = self._shaped(natural)
        self.coef_, self.intercept_ = self.params_["coef"], self.params_["intercept"]
        self.mean_, self.covariance_ = self.params_["mean"], self.params_["covariance"]

    def _shaped(self, natural: dict[str, Any]) -> dict[str, Any]:
        """Intercept and coefficients in the order of the table's columns, the covariates' mean, and the rest by name."""
        own, mean = natural["beta"][..., self.table_.order], natural["mean"]
        out = {"intercept": own[..., 0] if own.ndim == 2 else float(own[0]), "coef": own[..., 1:],
               "mean": mean[0] if len(mean) == 1 else mean, "covariance": natural["covariance"]}  # fmt: skip
        out |= {"cells": natural["cells"]} if "cells" in natural else {}
        return out | ({"scale": float(natural["scale"])} if "scale" in natural else {})

    @functools.cached_property
    def _standard_errors(self) -> dict[str, dict[str, np.ndarray]]:
        """By how they are worked out."""
        return {}

    def _errors(self, errors: str) -> dict[str, Any]:
        """Standard errors shaped as `params_`."""
        check_fitted(self)
        if errors not in ERRORS:
            raise ValueError(f"errors must be one of {', '.join(ERRORS)}; got {errors!r}")
        if errors not in self._standard_errors:
            with precision(np.dtype("float64")):
                self._standard_errors[errors] = self._verdict.errors(self._layout, self._likelihood, self._flat, errors)
        shapes = {name: np.shape(value) for name, value in self.result_.params.items()}
        return self._shaped({name: flat.reshape(shapes[name]) for name, flat in self._standard_errors[errors].items()})

    @property
    def stderr_(self) -> dict[str, Any]:  # type: ignore[override]
        """Standard errors from the observed information, shaped as `params_`; NaN of what is infinite, and of all that is at no
        maximum."""
        return self._errors("model")

    @property
    def certificate_(self) -> Certificate:
        """Whether this is the maximum of the exact likelihood, its errors true, and the model that of the data."""
        check_fitted(self)
        return self._verdict.certificate

    @property
    def cells_(self) -> pd.DataFrame:
        """Probabilities of the cells of the discrete covariates, averaged over the rows: a column a covariate, and theirs."""
        check_fitted(self)
        if self._layout.cells is None:
            raise AttributeError("there are no discrete covariates: cells_ is for fits with discrete=")
        shares = self._verdict.cell_shares(self._likelihood, self.result_.params)
        return cell_table(self.table_.discrete, self._layout.cells, shares)

    def _costs_nothing(self, answer: str) -> bool:
        return True

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

    def cov_params(self, errors: str = "model") -> pd.DataFrame:
        """Covariance of the coefficients, with the rows of `summary` both ways."""
        index = self.summary(errors=errors).index
        with precision(np.dtype("float64")):
            found = self._verdict.covariance(self._layout, self._likelihood, self._flat, errors)
        return pd.DataFrame(found, index=index, columns=index)

    def summary(self, level: float = 0.95, errors: str = "model") -> pd.DataFrame:
        """Coefficients: estimate, standard error, z, p and interval, one named row each. Those left out have none. Of a
        multinomial outcome the rows are named "class: column", and the index "against" the reference.

        `frame.attrs["message"]` is the certificate: its word, then what did not pass.

        Args:
            errors: "model", by the observed information, or "robust": the sandwich of it and the rows' scores (Huber 1967, White
                1982), which holds for large tables where the model is not that of the data.
        """
        check_fitted(self)
        found = self._errors(errors)
        estimate, se = (np.concatenate([np.asarray(one["intercept"])[..., None], one["coef"]], axis=-1)
                        for one in (self.params_, found))  # fmt: skip
        frame = answers.coefficient_table(self.table_.names, self.table_.classes, estimate, se, level)
        frame.attrs["message"] = self.message_
        return frame

    def conf_int(self, level: float = 0.95, errors: str = "model") -> pd.DataFrame:
        """Wald confidence intervals."""
        return self.summary(level, errors).filter(["ci_low", "ci_high"])

    def select(self, direction: str = "backward", criterion: str = "bic") -> Any:
        """A copy fitted without the columns that the criterion does without; `selection_` holds every model tried.

        Args:
            direction: "backward", "forward" or "exhaustive". criterion: "bic" or "aic".
        """
        check_fitted(self)
        if criterion not in ("bic", "aic"):
            raise ValueError(f'criterion must be "bic" or "aic", got {criterion!r}')
        one, start = self._likelihood, self.result_.params
        columns = self.table_.order[1:]
        whole = np.arange(np.size(start["beta"])).reshape(np.shape(start["beta"]))

        def positions(out: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(map(int, np.ravel(whole[..., columns[list(out)]])))

        from sklearn.base import clone

        def fitted(out: tuple[int, ...]) -> tuple[float, int]:
            less = one.without(positions(out))
            beta = np.array(start["beta"])
            beta[..., columns[list(out)]] = 0.0
            flat, value, _ = less.climb(start | {"beta": beta})
            return value, len(flat)

        penalty = 2.0 if criterion == "aic" else float(np.log(self.n_observations_))
        with precision(np.dtype("float64")):
            out, tried = search(fitted, self.n_features_in_, self.table_.names, direction, penalty)
        copy: Any = clone(self)
        chosen = copy.set_params(method="exact")._estimate(self.table_, self._share, positions(out))
        shift = self._layout.standard.log_jacobian(self.table_.x[:, self.table_.gaussian], self.table_.weights)
        chosen.selection_ = tried.assign(loglik=tried["loglik"] - shift, criterion=tried["criterion"] + 2 * shift)
        return chosen


class MissingLogistic(Classifier, MissingGLM):
    """`MissingGLM` of a binary outcome with logit link: the model of misaem (Jiang, Josse and Lavielle 2020)."""


class MissingLinear(Regressor, MissingGLM):
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
        dtype: DTypeLike | None = None,
        verbose: bool = True,
        discrete: str | int | Sequence[str | int] | None = None,
        polish: bool = True,
    ) -> None:
        super().__init__(
            family=family, method=method, curvature=curvature, n_iter=n_iter, n_burn=n_burn, batch_size=batch_size,
            n_steps=n_steps, n_chains=n_chains, kernel=kernel, random_state=random_state, dtype=dtype, verbose=verbose,
            discrete=discrete, polish=polish,
        )  # fmt: skip
