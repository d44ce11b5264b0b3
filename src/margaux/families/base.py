"""What estimators share with scikit-learn."""

from __future__ import annotations

from sklearn.base import BaseEstimator

from ..answers.fitted import Fitted


class AbstractEstimator(Fitted, BaseEstimator):
    """An estimator with scikit-learn's conventions. After `fit` it has what `Fitted` says."""
