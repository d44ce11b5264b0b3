"""The limit of each row, of those too that lie within it: what a simulation of the row would have been held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .censoring import CENSORED
from .records import empty, numbers

if TYPE_CHECKING:
    from .data import LongData


def of_quantification(frame: pd.DataFrame, lloq: float | str, id: str) -> np.ndarray:
    """Limit of quantification of each row (N,): one number, or a column, whose holes are rows without one.

    Raises:
        ValueError: no number, no such column, or one without any number.
    """
    if isinstance(lloq, str):
        if lloq not in frame.columns:
            raise ValueError(f"lloq={lloq!r} is no column of the data; they are {', '.join(map(str, frame.columns))}")
        values = np.where(empty(frame[lloq]), np.nan, numbers(frame, lloq, id))
        if np.all(np.isnan(values)):
            raise ValueError(f"the column {lloq} of limits is empty; leave lloq= out")
        return values
    if not np.isfinite(lloq):
        raise ValueError(f"lloq must be a number, or the column of one a row, got {lloq}")
    return np.full(len(frame), float(lloq))


def of_rows(data: LongData) -> dict[int, np.ndarray]:
    """By code of `CENSORED`, the limit of each row (N,), where there are censored rows of that code.

    A censored row's is its outcome. Another row's is what `fit(lloq=)` says of it, or else that of the nearest censored row of
    its subject in time, the usual one of the data, or the nearest in the data: the first of these that its outcome lies within.
    """
    y, how = data.frame[data.roles["y"]].to_numpy(float), data.flat(data.units["rows"][CENSORED])
    time = data.frame[data.roles["time"]].to_numpy(float) if "time" in data.roles else np.zeros(len(y))
    out = {}
    for code in (1, -1):
        if not np.any(how == code):
            continue
        there = np.flatnonzero(how == code)
        # Signs are turned so that a limit is a lower one.
        found = _guessed(code * y, code * y[there], time, time[there], data.codes, data.codes[there])
        if code == 1 and data.lloq is not None:
            found = np.where(np.isnan(data.lloq), found, data.lloq)
        out[code] = np.where(how == code, y, code * found if code == -1 else found)
    return out


def _guessed(
    y: np.ndarray, limits: np.ndarray, time: np.ndarray, when: np.ndarray, subject: np.ndarray, whose: np.ndarray
) -> np.ndarray:
    """Lower limits (N,) of outcomes y above them, from those that are known."""
    usual = np.full(len(y), np.median(limits))
    nearest = usual.copy()
    for one in np.unique(whose):
        rows, known = np.flatnonzero(subject == one), np.flatnonzero(whose == one)
        closest = np.argmin(np.abs(time[rows][:, None] - when[known]), axis=1)
        nearest[rows] = limits[known][closest]
    ordered = np.sort(limits)
    place = np.searchsorted(ordered, y, side="right") - 1
    below = np.where(place >= 0, ordered[np.maximum(place, 0)], y)
    return np.where(nearest <= y, nearest, np.where(usual <= y, usual, below))
