"""Handwritten digits of 8 x 8 pixels by a Bayesian network: a hidden layer of 100 tanh units, 7510 weights.

Rows are scikit-learn's (see `margaux.datasets.load_digits`); 450 of the 1797 are kept to be predicted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..datasets import load_digits
from ..families.variational.estimator import BayesianClassifier

#: what scikit-learn 1.9 scores on the 450 of `split()`, columns standardised by those of the fit:
#: LogisticRegression(max_iter=2000), and the network of a point estimate,
#: MLPClassifier((100,), activation="tanh", max_iter=1000, random_state=0)
LOGISTIC = {"accuracy": 0.9600, "log_score": -0.1217, "brier": 0.0622, "ece": 0.0241}
POINT = {"accuracy": 0.9644, "log_score": -0.1098, "brier": 0.0545, "ece": 0.0161}


class Digits(NamedTuple):
    """Pixels (n, 64) and labels (n,): of the fit, and to be predicted."""

    x: np.ndarray
    y: np.ndarray
    x_new: np.ndarray
    y_new: np.ndarray


def split(seed: int = 0) -> Digits:
    """The digits in two parts.

    >>> [part.shape for part in split()]
    [(1347, 64), (1347,), (450, 64), (450,)]
    """
    images, y = load_digits()
    x = images.reshape(len(y), 64).astype(float)
    order = np.random.default_rng(seed).permutation(len(y))
    new, own = order[:450], order[450:]
    return Digits(x[own], y[own], x[new], y[new])


def fit(data: Digits) -> BayesianClassifier:
    """The network with nothing chosen: its temperature and the length of its fit are, by the log score of a fifth held out."""
    return BayesianClassifier(verbose=False).fit(data.x, data.y)
