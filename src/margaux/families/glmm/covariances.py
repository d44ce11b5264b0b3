"""The random columns of a term, by the structure of their covariance."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from formulae.expr import Call, Literal

from .columns import Columns, columns_of, evaluated, numbers
from .syntax import Bar, column_name, summands, text

#: how close to zero a relative residual of exactly dependent columns is
EXACT = 1e-9


@dataclasses.dataclass(frozen=True)
class Effects:
    """Random columns with a coefficient each, of structure us, diag or cs."""

    recipe: Columns

    def of_new(self, frame: pd.DataFrame) -> tuple[np.ndarray, list[str], np.ndarray | None, np.ndarray | None]:
        """Z (M, k), its columns; no positions, no places."""
        return self.recipe.of_new(frame), self.recipe.names, None, None


@dataclasses.dataclass(frozen=True)
class Places:
    """An effect for each place, in time or the plane, of structure ar1, mat or exp.

    nodes: the coordinates. levels: of a categorical time, in order. positions: (k, d).
    """

    nodes: list[Any]
    levels: pd.Index | None
    positions: np.ndarray

    def of_new(self, frame: pd.DataFrame) -> tuple[np.ndarray, list[str], np.ndarray | None, np.ndarray | None]:
        """Z (M, k + new places), its columns, their positions, the place of each row. New places come after the old ones."""
        points = _points(self.nodes, self.levels, frame)
        pooled, places = np.unique(np.concatenate([self.positions, points]), axis=0, return_inverse=True)
        places = places.reshape(-1)
        known = np.full(len(pooled), -1)
        known[places[: len(self.positions)]] = np.arange(len(self.positions))
        fresh = np.flatnonzero(known < 0)
        known[fresh] = len(self.positions) + np.arange(len(fresh))
        positions = np.concatenate([self.positions, pooled[fresh]])
        at = known[places[len(self.positions) :]]
        return indicators(at, len(positions)), _place_names(self.nodes, positions), positions, at


def indicators(places: np.ndarray, count: int) -> np.ndarray:
    """A column for each of `count` places (N, count), one in the rows that are there."""
    found = np.zeros((len(places), count))
    found[np.arange(len(places)), places] = 1.0
    return found


def effects(bar: Bar, frame: pd.DataFrame) -> tuple[np.ndarray, Effects]:
    """Z (N, k) of a term of structure us, diag or cs.

    Raises:
        ValueError: no column, a constant slope, or columns that make each other up.
    """
    Z, recipe = columns_of(bar.left, frame)
    if not recipe.names:
        raise ValueError(f"{bar.text} has no random columns; write (1 | g) for an intercept of each group")
    for j, name in enumerate(recipe.names):
        if name != "Intercept" and np.ptp(Z[:, j]) == 0:
            raise ValueError(
                f'the random slope "{name}" of {bar.text} is {Z[0, j]:g} in every row; leave it out, or write 1 for an intercept'
            )
    for column, others in dependent(Z):
        told = ", ".join(f'"{recipe.names[k]}"' for k in others)
        raise ValueError(f'the random column "{recipe.names[column]}" of {bar.text} is made up of {told}; leave one of them out')
    if bar.structure == "cs" and len(recipe.names) < 2:
        raise ValueError(f"{bar.text} has one random column, and compound symmetry is about several; write (... | g)")
    return Z, Effects(recipe)


def dependent(X: np.ndarray) -> list[tuple[int, list[int]]]:
    """Columns of X (N, p) that the ones before them make up, each with those (none for a column of zeros).

    By QR and, column by column, least squares on the triangle: the first of dependent columns stay, as in R.
    """
    norms = np.linalg.norm(X, axis=0)
    scaled = X / np.where(norms > 0, norms, 1.0)
    r: Any = np.linalg.qr(scaled, mode="r")
    free: list[int] = []
    found = []
    for j in range(X.shape[1]):
        weights = np.linalg.lstsq(r[:, free], r[:, j], rcond=EXACT)[0] if free else np.zeros(0)
        if norms[j] > 0 and np.linalg.norm(r[:, j] - r[:, free] @ weights) > EXACT:
            free.append(j)
        else:
            found.append((j, [k for k, weight in zip(free, weights, strict=True) if abs(weight) > 1e-7]))
    return found


def places(bar: Bar, frame: pd.DataFrame, data: pd.DataFrame) -> tuple[np.ndarray, Places]:
    """The place of each row (N,), and the places, of a term of structure ar1, mat or exp.

    Args:
        frame: tidy columns. data: the table as it came, which knows whether categories have an order of their own.

    Raises:
        TypeError, ValueError: the left side is not one time or one or two coordinates, or times cannot be ordered.
    """
    nodes = _coordinates(bar)
    levels = None
    if bar.structure == "ar1":
        levels = _times(nodes[0], frame, data, bar)
    points = _points(nodes, levels, frame)
    if bar.structure == "ar1" and (points % 1 != 0).any():
        raise ValueError(
            f'"{text(nodes[0])}" of {bar.text} holds times that are not whole ({points[points % 1 != 0][0]:g}); an '
            f"autoregression needs equal steps: count them, or write exp(0 + {text(nodes[0])} | g) for a correlation "
            "that falls with time"
        )
    positions, at = np.unique(points, axis=0, return_inverse=True)
    if len(positions) < 2:
        raise ValueError(f'"{" + ".join(map(text, nodes))}" of {bar.text} is the same in every row; leave the term out')
    return at.reshape(-1), Places(nodes, levels, positions)


def place_columns(recipe: Places) -> list[str]:
    """Names of the columns of Z."""
    return _place_names(recipe.nodes, recipe.positions)


def _coordinates(bar: Bar) -> list[Any]:
    """The nodes on the left of the bar, without the 0 or 1 of an intercept, which there is none of."""
    nodes = [node for _, node in summands(bar.left) if not (isinstance(node, Literal) and node.value in (0, 1))]
    if len(nodes) == 1 and isinstance(nodes[0], Call) and text(nodes[0].callee) == "numFactor":
        nodes = list(nodes[0].args)
    most = 1 if bar.structure == "ar1" else 2
    if not 1 <= len(nodes) <= most:
        what = "one column of times" if most == 1 else "one or two columns of coordinates"
        example = "0 + time" if most == 1 else "0 + east + north"
        raise ValueError(f"{bar.text} must name {what} before the bar, as {bar.structure}({example} | g); it names {len(nodes)}")
    return nodes


def _times(node: Any, frame: pd.DataFrame, data: pd.DataFrame, bar: Bar) -> pd.Index | None:
    """The levels of a categorical time in their order; None for numbers, also those written as text."""
    values = evaluated(node, frame)
    values = pd.Series(getattr(values, "data", values) if hasattr(values, "contrast") else values)
    if not isinstance(values.dtype, pd.CategoricalDtype):
        return None
    levels = values.cat.categories
    if not np.isnan(_as_numbers(levels)).any():
        return None
    name = column_name(node)
    if name is None or not isinstance(data[name].dtype, pd.CategoricalDtype):
        raise ValueError(
            f'the times "{text(node)}" of {bar.text} are text ({levels[0]}, {levels[1] if len(levels) > 1 else ""}, ...), whose '
            "order in time is not known; make them numbers, or a pandas category with its levels in order"
        )
    return pd.Index(levels)


def _points(nodes: list[Any], levels: pd.Index | None, frame: pd.DataFrame) -> np.ndarray:
    """Coordinates of the rows (N, d)."""
    if levels is not None:
        values = pd.Series(evaluated(nodes[0], frame))
        codes = levels.get_indexer(pd.Index(values.to_numpy(object)))
        if (codes < 0).any():
            row = int(np.flatnonzero(codes < 0)[0])
            raise ValueError(f'"{text(nodes[0])}" holds {values.iloc[row]} at row {row}, which is none of the times of the fit')
        return codes[:, None].astype(float)
    return np.stack([_coordinate(node, frame) for node in nodes], axis=1)


def _coordinate(node: Any, frame: pd.DataFrame) -> np.ndarray:
    values = evaluated(node, frame)
    # What factor() and C() return, which glmmTMB asks for around times.
    boxed = hasattr(values, "contrast")
    values = pd.Series(values.data if boxed else values)
    if not boxed and not isinstance(values.dtype, pd.CategoricalDtype):
        return numbers(node, frame, "the coordinate")
    found = _as_numbers(values)
    if np.isnan(found).any():
        row = int(np.flatnonzero(np.isnan(found))[0])
        raise TypeError(f'the coordinate "{text(node)}" must be numeric, but holds {values.iloc[row]!r} at row {row}')
    return found


def _as_numbers(values: Any) -> np.ndarray:
    """Floats of text that says numbers, NaN where it does not."""
    found: Any = pd.to_numeric(pd.Series(list(values), dtype=object), errors="coerce")
    return np.asarray(found, float)


def _place_names(nodes: list[Any], positions: np.ndarray) -> list[str]:
    names = [text(node) for node in nodes]
    return [", ".join(f"{name}={value:g}" for name, value in zip(names, row, strict=True)) for row in positions]
