"""What estimators with missing covariates answer of rows: predictions, conditional means, completed tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...answers.fitted import Fitted
from ...numerics.precision import precision
from ...showing.parts import check_fitted
from ..conventions import Conventional, offered
from . import answers
from .layout import Arranged, Layout
from .multinomial import family_of
from .table import Table, covariates

if TYPE_CHECKING:
    from ...tables.kinds import Column, Tabular


OUTCOMES = {"logistic": "binary", "probit": "binary", "gaussian": "continuous", "poisson": "count", "multinomial": "categorical"}


class AbstractRowAnswers(Fitted, Conventional):
    """Answers of rows, of an estimator with a `family` whose `fit` sets `table_`, `_layout` and `result_`."""

    family: str
    table_: Table
    _layout: Layout

    def _family(self) -> Any:
        return family_of(self.family, self.table_.classes)

    def _rows(self, X: Tabular, y: Column | None = None, offset: Column | None = None) -> Arranged:
        """New rows, whose outcome is of no account where it is None."""
        x = covariates(X, self.table_)
        outcome = np.zeros(len(x)) if y is None else answers.codes(y, self.table_.classes)
        shift = np.zeros(len(x)) if offset is None else np.asarray(offset, float)
        return self._layout.arranged(x, outcome, np.ones(len(x)), shift)

    def _own(self) -> Arranged:
        """The rows of the fit."""
        data = self.table_
        return self._layout.arranged(data.x, data.y, data.weights, data.offset)

    def _refuse_offset(self, offset: Column | None) -> None:
        if self.family == "multinomial" and offset is not None:
            raise ValueError("a multinomial outcome has a predictor a class, so one offset a row says too little; leave it out")

    def _expected(self, X: Tabular, offset: Column | None = None) -> np.ndarray:
        check_fitted(self)
        self._refuse_offset(offset)
        rows = self._rows(X, offset=offset)
        with precision(np.dtype("float64")):
            return answers.expected_outcome(self._family(), self.result_.params, rows)

    def conditional_mean(self, X: Tabular | None = None, y: Column | None = None) -> np.ndarray:
        """E[x | observed x] of each row, (n, p), in the table's columns; E[x | observed x, y] of the training rows."""
        check_fitted(self)
        out = (self.table_.x if X is None else covariates(X, self.table_)).copy()
        rows = self._own() if X is None else self._rows(X, y)
        cells = self._layout.cells
        with precision(np.dtype("float64")):
            found, scores = answers.conditional_mean(
                self._family(), self.result_.params, rows, cells and cells.scores, X is None or y is not None
            )
        hole = np.isnan(out)
        filled = np.empty_like(out)
        filled[:, self.table_.gaussian], filled[:, self.table_.scored] = self._layout.standard.restore(found), scores
        out[hole] = filled[hole]
        return out

    def impute(self, draws: int = 1, key: int = 0) -> np.ndarray:
        """Independent draws of the completed training table given y and what is observed, (draws, n, p)."""
        check_fitted(self)
        if draws < 1:
            raise ValueError(f"draws must be at least 1, got {draws}")
        with precision(np.dtype("float64")):
            drawn, chosen = answers.draw_completed(self._family(), self.result_.params, self._own(), draws, key)
        filled = np.broadcast_to(self.table_.x, (draws, *self.table_.x.shape)).copy()
        filled[:, :, self.table_.gaussian] = self._layout.standard.restore(drawn)
        if self._layout.cells is not None and chosen is not None:
            filled[:, :, self.table_.scored] = self._layout.cells.scores[chosen]
        return np.where(np.isnan(self.table_.x), filled, self.table_.x)

    @property
    def plot(self) -> Any:
        """Figures: `.coefficients() .missingness()`."""
        from .plots import MissingPlots

        check_fitted(self)
        return MissingPlots(self)

    def predict(self, X: Tabular, offset: Column | None = None) -> np.ndarray:
        """E[y | observed x], averaged over what is missing; where there are classes, the likeliest."""
        expected = self._expected(X, offset)
        if self.table_.classes is None:
            return expected
        return self.table_.classes[expected.argmax(axis=1) if expected.ndim == 2 else (expected > 0.5).astype(int)]

    @offered(lambda self: OUTCOMES.get(self.family) in ("binary", "categorical"))
    def predict_proba(self, X: Tabular, offset: Column | None = None) -> np.ndarray:
        """P(y = k | observed x), (n, K), averaged over what is missing; of outcomes with classes."""
        expected = self._expected(X, offset)
        return expected if expected.ndim == 2 else np.stack([1 - expected, expected], axis=1)

    def score(self, X: Tabular, y: Column, sample_weight: Column | None = None) -> float:
        """Accuracy where there are classes, otherwise R^2."""
        return answers.score(self.table_.classes, self.predict(X), y, sample_weight)
