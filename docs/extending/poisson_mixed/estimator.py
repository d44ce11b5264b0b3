"""The estimator: a table in, answers out."""

import numpy as np

import margaux as mx
from margaux.families.base import AbstractEstimator

from .model import PoissonIntercept


class PoissonMixed(AbstractEstimator):
    """Poisson regression with a random intercept a group."""

    def __init__(self, *, n_iter=1000, random_state=0, dtype=None, verbose=True):
        self.n_iter, self.random_state, self.dtype, self.verbose = n_iter, random_state, dtype, verbose

    def fit(self, X, y, groups):
        X, y = np.asarray(X, float), np.asarray(y, float)
        if len(X) != len(y):
            raise ValueError(f"X has {len(X)} rows and y {len(y)}; give one outcome a row")
        bad = np.flatnonzero((y < 0) | (y != np.round(y)))
        if len(bad):
            raise ValueError(f"y[{bad[0]}] = {y[bad[0]]} is no count; a Poisson outcome is 0, 1, 2, ...")
        units, self.groups_ = mx.pad_ragged({"x": np.column_stack([np.ones(len(X)), X]), "y": y}, groups)
        start = {"beta": np.r_[np.log(y.mean() + 0.5), np.zeros(X.shape[1])], "sigma": 0.5}
        fit = mx.fit(
            PoissonIntercept(), units, mx.soul(), mx.Quadrature(15), params=start, space={"sigma": mx.Positive(1e-4)},
            n_iter=self.n_iter, key=self.random_state, dtype=self.dtype, progress=bool(self.verbose),
        )  # fmt: skip
        self.n_observations_, self.n_features_in_ = len(y), X.shape[1]
        self._keep(fit)
        self.coef_, self.intercept_ = fit.params["beta"][1:], float(fit.params["beta"][0])
        return self
