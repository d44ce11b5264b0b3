"""Columns that may not be what they are taken for: few values modelled as Gaussian, and codes that stand for missing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: distinct values up to which a column with holes looks discrete, and how often each must be seen on average
FEW, EACH = 6, 4
#: rows that hold the extreme, at least, for it to be taken for a code; distinct values beside it
REPEATED, BESIDE = 3, 4


class Suspicion(NamedTuple):
    """What is suspected, "discrete" or "sentinel", of which column, and what to do about it."""

    kind: str
    column: str
    figure: float
    sentence: str


def suspicions(x: np.ndarray, names: list[str]) -> list[Suspicion]:
    """Of columns (n, p) that are modelled as Gaussian."""
    out = []
    for column, name in zip(x.T, names, strict=True):
        seen = column[~np.isnan(column)]
        values, counts = np.unique(seen, return_counts=True)
        code = sentinel(values, counts)
        if code is not None:
            times = int(counts[values == code][0])
            out.append(Suspicion("sentinel", name, code,
                f'"{name}" holds {code:g} in {times} rows, far from all its other values: if that is a code for missing, make it '
                f"NaN (X.replace({code:g}, np.nan)), and say so to whoever else uses the table"))  # fmt: skip
        elif len(seen) < len(column) and len(values) <= FEW and len(seen) >= EACH * len(values):
            shown = ", ".join(f"{value:g}" for value in values)
            out.append(Suspicion("discrete", name, float(len(values)),
                f'"{name}" has holes and {len(values)} distinct values ({shown}), and is modelled as Gaussian, '
                f'which biases its coefficient; pass discrete=["{name}"] to enumerate its values'))  # fmt: skip
    return out


def sentinel(values: np.ndarray, counts: np.ndarray) -> float | None:
    """The lowest or highest of distinct values in order, if it is repeated and looks like a code for missing: as far from the
    rest as these are apart, or made of nines and outside, or the only negative one and repeated as no other is."""
    if len(values) < 3:
        return None
    for place, rest in ((0, values[1:]), (-1, values[:-1])):
        value, count = float(values[place]), int(counts[place])
        near = rest[0] if place == 0 else rest[-1]
        gap, extent = abs(value - float(near)), float(rest[-1] - rest[0])
        digits = f"{abs(value):.0f}"
        nines = value == round(value) and len(digits) > 1 and set(digits) == {"9"} and gap > extent / 4
        # Of a handful of values one must stand further off, as 9 does from 0 and 1.
        far = gap >= (extent if len(rest) >= BESIDE else 4 * extent)
        negative = place == 0 and value < 0 <= near and value == round(value) and count > np.median(counts)
        if count >= REPEATED and (far or (len(rest) >= BESIDE and (nines or negative))):
            return value
    return None
