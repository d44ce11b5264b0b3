"""The response of a formula: numbers, successes of trials, two or ordered categories."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from formulae.expr import Binary, Call, Grouping, Variable

from ...tables.checks import listed
from .columns import evaluated, numbers
from .syntax import named, text

#: words for successes of trials, p(y, n), and for successes and failures, cbind(y, n - y)
PROPORTIONS = ("p", "prop", "proportion")
#: integer values up to which a response can be read as ordered categories
MOST_CATEGORIES = 100


@dataclasses.dataclass(frozen=True)
class Outcome:
    """y (N,), trials (N,) or None; `levels` that the codes 0, 1, ... of a category stand for; `ordered` if they have an order."""

    name: str
    y: np.ndarray
    trials: np.ndarray | None = None
    levels: tuple[Any, ...] = ()
    ordered: bool = False


def outcome(node: Any, frame: pd.DataFrame, data: pd.DataFrame) -> Outcome:
    """The response that the left side of a formula names.

    Args:
        frame: tidy columns. data: the table as it came, which knows whether a category is ordered.

    Raises:
        TypeError, ValueError: it is one level only, text of more than two levels without an order, or not finite.
    """
    while isinstance(node, Grouping):
        node = node.expression
    if isinstance(node, Binary) and node.operator.kind == "SLASH":
        y, trials = numbers(node.left, frame, "the response"), numbers(node.right, frame, "the number of trials")
        return Outcome(text(node), *_successes(y, trials, text(node.right)))
    if isinstance(node, Call) and text(node.callee) in ("cbind", *PROPORTIONS):
        return _of_pair(node, frame)
    if isinstance(node, Variable) and node.level is not None:
        return _chosen(node, frame)
    values = evaluated(node, frame)
    values = getattr(values, "data", values) if hasattr(values, "contrast") else values
    if isinstance(values, pd.Series) and values.dtype == bool or isinstance(values, np.ndarray) and values.dtype == bool:
        y = np.asarray(values, float)
        _check_varies(y, text(node))
        return Outcome(text(node), y, None, (False, True))
    if isinstance(values, pd.Series) and isinstance(values.dtype, pd.CategoricalDtype):
        return _category(node, values, data)
    y = numbers(node, frame, "the response")
    _check_varies(y, text(node))
    return Outcome(text(node), y)


def _check_varies(y: np.ndarray, name: str) -> None:
    if len(y) > 1 and np.ptp(y) == 0:
        raise ValueError(f'the response "{name}" is {y[0]:g} in every row; there is nothing to model')


def _successes(y: np.ndarray, trials: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    bad = trials <= 0
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f'the number of trials "{name}" is {trials[row]:g} at row {row} ({int(bad.sum())} such in all); it must be positive: '
            "drop rows without trials"
        )
    return y, trials


def _of_pair(node: Any, frame: pd.DataFrame) -> Outcome:
    word = text(node.callee)
    if len(node.args) != 2:
        meant = "successes, failures" if word == "cbind" else "successes, trials"
        raise ValueError(f'the response "{text(node)}" holds {len(node.args)} columns; write {word}({meant})')
    first = numbers(node.args[0], frame, "the response")
    second = numbers(node.args[1], frame, "the response" if word == "cbind" else "the number of trials")
    if word == "cbind":
        if (second < 0).any():
            row = int(np.flatnonzero(second < 0)[0])
            raise ValueError(f'the failures "{text(node.args[1])}" are {second[row]:g} at row {row}; they cannot be negative')
        second = first + second
    return Outcome(text(node), *_successes(first, second, text(node.args[1])))


def _chosen(node: Any, frame: pd.DataFrame) -> Outcome:
    """y[level]: whether y is that level."""
    name, level = node.name.lexeme, node.level.value
    values = frame[name]
    levels = values.cat.categories if hasattr(values, "cat") else pd.Index(np.unique(values.to_numpy()))
    match = [one for one in levels if str(one) == str(level)]
    if not match:
        raise ValueError(f'the response "{name}" has no level "{level}"; its levels are {listed(levels)}')
    others = [one for one in levels if one != match[0]]
    if not others:
        raise ValueError(f'the response "{name}" is {match[0]} in every row; there is nothing to model')
    other = others[0] if len(others) == 1 else f"not {match[0]}"
    return Outcome(name, (values == match[0]).to_numpy(float), None, (other, match[0]))


def _category(node: Any, values: pd.Series, data: pd.DataFrame) -> Outcome:
    levels: tuple[Any, ...] = tuple(values.cat.categories.tolist())
    name = text(node)
    if len(levels) < 2:
        raise ValueError(f'the response "{name}" is {values.iloc[0]} in every row; there is nothing to model')
    sources = [data[one].dtype for one in named(node)[0]]
    ordered = any(isinstance(dtype, pd.CategoricalDtype) and bool(dtype.ordered) for dtype in sources)
    if len(levels) > 2 and not ordered:
        raise ValueError(
            f'the response "{name}" holds {len(levels)} levels without an order ({listed(levels)}); for an ordinal model make it '
            f'pd.Categorical(data["{name}"], categories=[...], ordered=True), or choose one level as {name}["{levels[-1]}"]'
        )
    return Outcome(name, values.cat.codes.to_numpy(float), None, levels, ordered)


def as_ordered(found: Outcome) -> Outcome:
    """The response as codes 0, 1, ..., K - 1 of ordered categories; whole numbers are categories in their order.

    Raises:
        ValueError: it is a number of successes, or numbers that are not whole or too many.
    """
    if found.levels:
        return found
    if found.trials is not None:
        raise ValueError(f'the response "{found.name}" counts successes; an ordinal family needs one ordered category a row')
    values, codes = np.unique(found.y, return_inverse=True)
    if (values % 1 != 0).any() or len(values) > MOST_CATEGORIES:
        row = int(np.flatnonzero(found.y % 1 != 0)[0]) if (values % 1 != 0).any() else 0
        raise ValueError(
            f'the response "{found.name}" holds {len(values)} different numbers ({found.y[row]:g} at row {row}); an ordinal '
            "family needs ordered categories: cut it into classes by pd.cut(..., ordered=True)"
        )
    levels = tuple(int(value) for value in values)
    return Outcome(found.name, codes.reshape(-1).astype(float), None, levels, True)
