"""Logistic regression on a simulated table with holes: three measurements of 500 patients, a fifth of the entries missing.

x ~ N(mean, covariance), P(y = 1 | x) = 1 / (1 + exp(-(intercept + coef x))); entries are missing completely at random.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

NAMES = ("intercept", "age", "pressure", "pulse")
TRUTH = {"intercept": -2.0, "age": 0.05, "pressure": -0.02, "pulse": 0.03}
#: the maximum of the observed likelihood of `table()`, its standard errors (from differences of the likelihood) and value,
#: row by row with 60-node Gauss-Hermite quadrature in NumPy
EXACT = {"intercept": -1.688520, "age": 0.049296, "pressure": -0.018204, "pulse": 0.026608}
EXACT_SE = {"intercept": 0.938487, "age": 0.011179, "pressure": 0.007399, "pulse": 0.010955}
EXACT_LOGLIK = -5174.2812


def table(seed: int = 0) -> pd.DataFrame:
    """The measurements, NaN where missing, and the outcome y."""
    rng = np.random.default_rng(seed)
    sd, correlation = np.array([15.0, 20.0, 12.0]), np.array([[1.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 1.0]])
    x = np.array([50.0, 125.0, 75.0]) + rng.normal(size=(500, 3)) @ np.linalg.cholesky(correlation).T * sd
    predictor = TRUTH["intercept"] + x @ np.array([TRUTH[name] for name in NAMES[1:]])
    y = (rng.random(500) < 1 / (1 + np.exp(-predictor))).astype(int)
    x[rng.random(x.shape) < 0.2] = np.nan
    return pd.DataFrame(x, columns=list(NAMES[1:])).assign(y=y)
