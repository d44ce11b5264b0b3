"""Prediction correction: what is left of observations when the design's own spread within a bin of time is taken out."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from .curves import predicted_rows
from .residuals import check_continuous

if TYPE_CHECKING:
    from .estimator import NLME


def typical(fitted: NLME) -> np.ndarray:
    """Population predictions (N,) that observations can be divided by, in the order of the grouped rows; NaN where one is 0.

    Raises:
        ValueError: an outcome that is not continuous, or a negative prediction, or no positive one.
    """
    check_continuous(fitted, "prediction-corrected checks")
    data = fitted.data_
    order = np.argsort(data.frame.index.to_numpy(), kind="stable")
    out = np.empty(len(order))
    out[order] = predicted_rows(fitted, "population")
    if np.any(out < 0) or not np.any(out > 0):
        at = int(np.argmin(out))
        raise ValueError(
            f"the prediction is {out[at]:.3g} ({data.where(at)}), and prediction correction divides by it, which is for positive "
            "curves; leave corrected=True out"
        )
    lost = out == 0
    if lost.any():
        warnings.warn(
            f"{int(lost.sum())} rows whose prediction is 0 cannot be corrected by it and are left out (the first: "
            f"{data.where(int(np.argmax(lost)))})",
            stacklevel=4,
        )
    return np.where(lost, np.nan, out)


def corrections(predictions: np.ndarray, codes: np.ndarray) -> np.ndarray:
    r"""What each row is multiplied by (N,): $\widetilde{PRED}_{bin}/PRED_{ij}$, the median of its bin over its own prediction.

    An additive correction of logarithms is the same.

    Reference: Bergstrand, Hooker, Wallin and Karlsson, AAPS J. 13 (2011), 143-151, equations 1 and 2 (lower bound 0).

    >>> corrections(np.array([1.0, 2.0, 4.0, 5.0]), np.array([0, 0, 0, 1]))
    array([2. , 1. , 0.5, 1. ])
    """
    middle = np.asarray([np.median(predictions[codes == b]) for b in range(codes.max() + 1)])
    return middle[codes] / predictions
