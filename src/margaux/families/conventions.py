"""scikit-learn's conventions without scikit-learn, whose import takes longer than most fits.

Estimators that have them work in its pipelines and searches, and are cloned, as its own are.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

from ..answers.fitted import Parameters


class Conventional(Parameters):
    """Settings by name, and what scikit-learn asks of any estimator."""

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=None,
            regressor_tags=None,
            classifier_tags=None,
        )


class Classifier:
    """What makes a conventional estimator a classifier."""

    predict: Callable[..., Any]
    _estimator_type = "classifier"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.estimator_type, tags.classifier_tags, tags.target_tags.required = self._estimator_type, ClassifierTags(), True
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict(X)`."""
        from sklearn.metrics import accuracy_score

        return accuracy_score(y, self.predict(X), sample_weight=sample_weight)


class Regressor:
    """What makes a conventional estimator a regressor."""

    predict: Callable[..., Any]
    _estimator_type = "regressor"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import RegressorTags

        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.estimator_type, tags.regressor_tags, tags.target_tags.required = self._estimator_type, RegressorTags(), True
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2 of `predict(X)`."""
        from sklearn.metrics import r2_score

        return r2_score(y, self.predict(X), sample_weight=sample_weight)


class Transformer:
    """What makes a conventional estimator a transformer; its `transform` and `fit_transform` are `contained`."""

    get_feature_names_out: Callable[..., Any]

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import TransformerTags

        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.transformer_tags = TransformerTags()
        return tags

    def set_output(self, *, transform: str | None = None) -> Any:
        """What `transform` returns: "default", "pandas" or "polars"; returns the estimator."""
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}  # by this name `clone` copies it
        return self


def contained(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method that transforms: it returns what `set_output`, or scikit-learn's configuration, asks for."""

    @functools.wraps(method)
    def call(self: Any, X: Any, *args: Any, **settings: Any) -> Any:
        found = method(self, X, *args, **settings)
        if "sklearn" not in sys.modules:  # which nobody can have configured
            return found
        from sklearn.base import BaseEstimator, TransformerMixin

        names = self.get_feature_names_out

        class Carrier(TransformerMixin, BaseEstimator):
            def transform(self, X):
                return found

            def get_feature_names_out(self, input_features=None):
                return names()

        wanted = getattr(self, "_sklearn_output_config", {})
        return Carrier().set_output(**wanted).transform(X)

    return call


class Offered:
    """A method that is there where a condition on the estimator holds, as by scikit-learn's `available_if`."""

    def __init__(self, where: Callable[[Any], bool], method: Callable[..., Any]) -> None:
        self.where, self.method, self.__doc__ = where, method, method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        if instance is None:
            return self.method
        if not self.where(instance):
            raise AttributeError(f"this {owner.__name__} has no {self.name!r}")
        return MethodType(self.method, instance)


def offered(where: Callable[[Any], bool]) -> Callable[[Callable[..., Any]], Any]:
    """Decorates a method that is there only where a condition on the estimator holds."""
    return lambda method: Offered(where, method)
