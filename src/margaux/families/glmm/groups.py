"""Which group each row is in, for a grouping factor g, or the combinations a:b of several."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from formulae.expr import Literal

from .columns import check_finite, evaluated
from .syntax import column_name, text

#: levels from which a column of numbers that are not whole is no grouping factor but a measurement
MEASURED = 20


def _is_everything(node: Any) -> bool:
    return isinstance(node, Literal)


def _values(node: Any, frame: pd.DataFrame) -> pd.Series:
    found = evaluated(node, frame)
    # What factor() and C() return.
    found = getattr(found, "data", found) if hasattr(found, "contrast") else found
    values = pd.Series(found).reset_index(drop=True)
    return values.cat.remove_unused_categories() if isinstance(values.dtype, pd.CategoricalDtype) else values


@dataclasses.dataclass(frozen=True)
class Grouping:
    """A grouping factor: `levels` of each of the factors whose combinations group the rows, `keys` of those that occur.

    nodes: of the factors. labels: of the groups, in order; of combinations joined by ":".
    """

    nodes: tuple[Any, ...]
    levels: tuple[pd.Index, ...]
    keys: np.ndarray
    labels: pd.Index

    @property
    def name(self) -> str:
        """As "herd" or "g:h"."""
        return _name(self.nodes)

    def of_new(self, frame: pd.DataFrame) -> np.ndarray:
        """The groups of new rows (M,), -1 for those not seen before.

        Raises:
            TypeError: labels are text where they were numbers, or the other way round.
        """
        key = np.zeros(len(frame), np.int64)
        seen = np.ones(len(frame), bool)
        for node, levels in zip(self.nodes, self.levels, strict=True):
            if _is_everything(node):
                continue
            values = _values(node, frame)
            _check_kind(text(node), levels, values)
            codes = levels.get_indexer(pd.Index(values.to_numpy(object)))
            seen &= codes >= 0
            key = key * len(levels) + np.maximum(codes, 0)
        places = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.where(seen & (self.keys[places] == key), places, -1)


def _name(nodes: tuple[Any, ...]) -> str:
    return ":".join(column_name(node) or text(node) for node in nodes)


def _check_kind(name: str, levels: pd.Index, values: pd.Series) -> None:
    fitted = all(isinstance(level, str) for level in levels)
    new = all(isinstance(value, str) for value in values)
    if len(values) and fitted != new:
        kinds = ("text", "numbers") if fitted else ("numbers", "text")
        raise TypeError(
            f'the groups "{name}" were {kinds[0]} in the fit and are {kinds[1]} in the new data; code them in the same way'
        )


def _levels_of(node: Any, frame: pd.DataFrame) -> tuple[np.ndarray, pd.Index]:
    """Codes and levels in their order."""
    if _is_everything(node):
        return np.zeros(len(frame), np.int64), pd.Index(["all"])
    values = _values(node, frame)
    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.codes.to_numpy(np.int64), pd.Index(values.cat.categories)
    if values.dtype.kind == "f":
        check_finite(values.to_numpy()[:, None], [text(node)], frame, "the grouping factor")
    codes, levels = pd.factorize(values, sort=True)
    levels = pd.Index(levels)
    measured = levels.dtype.kind == "f" and bool((levels.to_numpy() % 1 != 0).any())
    if measured and len(levels) > MEASURED and column_name(node) is not None:
        raise ValueError(
            f'the column "{text(node)}" holds {len(levels)} numbers that are not whole ({levels[0]:g}, {levels[1]:g}, ...), '
            f"which is a measurement and no grouping factor; name the column of groups behind the bar, or write "
            f"factor({text(node)}) if they are labels"
        )
    return codes.astype(np.int64), levels


def grouping(nodes: tuple[Any, ...], frame: pd.DataFrame, shown: str, single: bool = False) -> tuple[np.ndarray, Grouping]:
    """The group of each row (N,), and the grouping factor.

    Args:
        nodes: factors, whose combinations that occur are the groups.
        shown: the term as in the formula, for messages.
        single: whether one group of all rows will do.

    Raises:
        ValueError: there is one group only, or the factor is a measurement.
    """
    parts = [_levels_of(node, frame) for node in nodes]
    key = np.zeros(len(frame), np.int64)
    for codes, levels in parts:
        key = key * len(levels) + codes
    keys, codes = np.unique(key, return_inverse=True)
    levels = tuple(levels for _, levels in parts)
    name = _name(nodes)
    if len(keys) < 2 and not single:
        raise ValueError(
            f'the grouping factor "{name}" of {shown} has one level only, so its variance cannot be estimated; leave the term out'
        )
    return codes.reshape(-1), Grouping(nodes, levels, keys, _labels(keys, levels))


def _labels(keys: np.ndarray, levels: tuple[pd.Index, ...]) -> pd.Index:
    if len(levels) == 1:
        return levels[0][keys]
    places, left = [], keys
    for of in reversed(levels):
        places.append(left % len(of))
        left = left // len(of)
    parts = [of[place].astype(str) for of, place in zip(levels, reversed(places), strict=True)]
    return pd.Index([":".join(label) for label in zip(*parts, strict=True)])
