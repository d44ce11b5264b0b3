"""The limit of each row, of those too that lie within it: what a simulation of the row would have been held to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .censoring import CENSORED
from .records import empty, numbers
from .rows_by_output import limits as by_output

if TYPE_CHECKING:
    from .data import LongData


def of_quantification(data: LongData, lloq: float | str | Mapping[Any, float], outputs: tuple[str, ...]) -> np.ndarray:
    """Limit of quantification of each row (N,): one number, that of each output, or a column, whose holes are rows without one.

    Raises:
        ValueError: no number, or one for several outputs, no such output or column, or one without any number.
    """
    frame = data.frame
    if isinstance(lloq, Mapping):
        return by_output(lloq, outputs, data.output)
    if isinstance(lloq, str):
        if lloq not in frame.columns:
            raise ValueError(f"lloq={lloq!r} is no column of the data; they are {', '.join(map(str, frame.columns))}")
        values = np.where(empty(frame[lloq]), np.nan, numbers(frame, lloq, data.roles["id"]))
        if np.all(np.isnan(values)):
            raise ValueError(f"the column {lloq} of limits is empty; leave lloq= out")
        return values
    if not np.isfinite(lloq):
        raise ValueError(f"lloq must be a number, or the column of one a row, got {lloq}")
    if outputs:
        raise ValueError(
            f"lloq = {lloq:g} would hold for each of the outputs {', '.join(outputs)}; say for which, as "
            f"lloq={{{outputs[0]!r}: {lloq:g}}}"
        )
    return np.full(len(frame), float(lloq))


def of_rows(data: LongData) -> dict[int, np.ndarray]:
    """By code of `CENSORED`, the limit of each row (N,), where there are censored rows of that code.

    A censored row's is its outcome. Another row's is what `fit(lloq=)` says of it, or else that of the nearest censored row of
    its subject in time, the usual one of the data, or the nearest in the data: the first of these that its outcome lies within.
    Of several outputs only rows of its own tell.
    """
    y, how = data.frame[data.roles["y"]].to_numpy(float), data.flat(data.units["rows"][CENSORED])
    time = data.frame[data.roles["time"]].to_numpy(float) if "time" in data.roles else np.zeros(len(y))
    output = np.zeros(len(y), int) if data.output is None else data.output
    out = {}
    for code in (1, -1):
        if not np.any(how == code):
            continue
        # Signs are turned so that a limit is a lower one; an output without any censored row has none.
        found = np.full(len(y), -np.inf)
        for place in np.unique(output[how == code]):
            own, there = np.flatnonzero(output == place), np.flatnonzero((output == place) & (how == code))
            at, known = (time[own], data.codes[own]), (time[there], data.codes[there])
            found[own] = _guessed(code * y[own], code * y[there], at[0], known[0], at[1], known[1])
        if code == 1 and data.lloq is not None:
            found = np.where(np.isnan(data.lloq), found, data.lloq)
        out[code] = np.where(how == code, y, code * found)
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
