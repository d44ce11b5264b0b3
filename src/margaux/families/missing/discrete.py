"""Discrete covariates with holes: which they are, and every way of completing the rows that lack some of them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...tables.checks import listed

if TYPE_CHECKING:
    from collections.abc import Sequence


#: distinct values up to which a column can be called discrete; cells of all discrete columns; completions of all rows
LEVELS, CELLS, COMPLETIONS = 20, 1024, 5_000_000
#: rows seen in a cell (or in a margin of two columns) from which its probability is a parameter of its own
SEEN = 5


@dataclasses.dataclass(frozen=True)
class Discrete:
    """A covariate of few values: the columns of the table that it makes, and what they hold at each of its L levels.

    Attributes:
        name: such as "x0" or "site". columns: its places in the table, several for dummies. values: (L, columns), in order.
    """

    name: str
    columns: tuple[int, ...]
    values: np.ndarray

    @staticmethod
    def of(name: str, columns: list[int], x: np.ndarray) -> Discrete:
        """By the values that are observed.

        Raises:
            ValueError: more than 20 of them.
        """
        held = x[:, columns]
        values = np.unique(held[~np.isnan(held).any(axis=1)], axis=0)
        if len(values) > LEVELS:
            raise ValueError(
                f'"{name}" has {len(values)} distinct values, and a discrete covariate may have {LEVELS}; leave it out of '
                "discrete, or merge values"
            )
        return Discrete(name, tuple(columns), values)

    def codes(self, x: np.ndarray) -> np.ndarray:
        """The level of each row of a table (n, p), -1 where it is missing.

        Raises:
            ValueError: a value that is no level.
        """
        held = x[:, self.columns]
        same = (held[:, None] == self.values).all(axis=2)
        missing = np.isnan(held).any(axis=1)
        stray = np.flatnonzero(~missing & ~same.any(axis=1))
        if stray.size:
            values = ", ".join(f"{value:g}" for value in held[stray[0]])
            raise ValueError(
                f'"{self.name}" is discrete and holds {values} at row {stray[0]}, which it never does in the fit; '
                "mend the value, or make it missing"
            )
        return np.where(missing, -1, same.argmax(axis=1))

    @property
    def labels(self) -> list[str]:
        """Of its levels: their values, or where they are dummies the category's number."""
        if len(self.columns) == 1:
            return [f"{value:g}" for value in self.values[:, 0]]
        return [str(k) for k in range(len(self.values))]


@dataclasses.dataclass(frozen=True)
class Cells:
    """All C combinations of the levels of q discrete covariates.

    Attributes:
        levels: (C, q). dummies: (C, W), of the levels after the first of each covariate: what the means of the continuous
            covariates are linear in. scores: (C, s), the table's columns. features: (C, m), what log odds against the first cell
            are linear in. table: "saturated", "pairs" or "independent".
    """

    levels: np.ndarray
    dummies: np.ndarray
    scores: np.ndarray
    features: np.ndarray
    table: str

    @staticmethod
    def of(discrete: tuple[Discrete, ...], codes: np.ndarray) -> Cells:
        """The largest table that the rows (n, q) can tell: saturated where each cell is seen five times, else a log-linear model
        of all pairs where each cell of two covariates is, else independent covariates.

        Raises:
            ValueError: more than 1024 cells.
        """
        sizes = [len(one.values) for one in discrete]
        count = int(np.prod(sizes))
        if count > CELLS:
            raise ValueError(
                f"the discrete covariates {listed(one.name for one in discrete)} have {count} cells together, and at most "
                f"{CELLS} are enumerated; leave some out of discrete, or merge values"
            )
        levels = np.array(list(itertools.product(*map(range, sizes)))).reshape(count, len(sizes))
        scores = np.concatenate([one.values[levels[:, j]] for j, one in enumerate(discrete)], axis=1)
        parts = [(levels[:, [j]] == np.arange(1, size)).astype(float) for j, size in enumerate(sizes)]
        dummies = np.concatenate(parts, axis=1)
        table, features = "independent", dummies
        whole = codes[(codes >= 0).all(axis=1)]
        seen = (whole[:, None] == levels).all(axis=2).sum(axis=0)
        if len(sizes) > 1 and seen.min() >= SEEN:
            table, features = "saturated", np.eye(count)[:, 1:]
        elif len(sizes) > 2 and _pairs_seen(codes, sizes) >= SEEN:
            products = [(a[:, :, None] * b[:, None]).reshape(count, -1) for a, b in itertools.combinations(parts, 2)]
            table, features = "pairs", np.concatenate([dummies, *products], axis=1)
        return Cells(levels, dummies, scores, features, table)

    def completions(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The row (N,), in order, and the cell (N,) of every completion of rows (n, q) with -1 where a level is missing.

        Raises:
            ValueError: more than five million.
        """
        patterns, which = np.unique(codes, axis=0, return_inverse=True)
        fits = ((patterns[:, None] < 0) | (patterns[:, None] == self.levels)).all(axis=2)
        counts = fits.sum(axis=1)[which.ravel()]
        if counts.sum() > COMPLETIONS:
            raise ValueError(
                f"the rows have {counts.sum():,} completions, and at most {COMPLETIONS:,} are enumerated; "
                "leave some columns out of discrete"
            )
        owner = np.repeat(np.arange(len(codes)), counts)
        places = [np.flatnonzero(row) for row in fits]
        return owner, np.concatenate([places[k] for k in which.ravel()]) if len(codes) else owner

    def turn(self, k: int, p: int, scores: np.ndarray) -> np.ndarray:
        """(k + W + p, k + s + p): coefficients of (c, dummies, x) from those of (c, scores, x); scores (C, s) are as in the fit.

        A column of a covariate is its value at the first level and the steps from there, one a dummy.
        """
        s, w = scores.shape[1], self.dummies.shape[1]
        design = np.column_stack([np.ones(len(scores)), self.dummies])
        steps = np.linalg.lstsq(design, scores, rcond=None)[0]
        out = np.zeros((k + w + p, k + s + p))
        out[:k, :k], out[k + w :, k + s :] = np.eye(k), np.eye(p)
        out[0, k : k + s], out[k : k + w, k : k + s] = steps[0], steps[1:]
        return out


def _pairs_seen(codes: np.ndarray, sizes: list[int]) -> int:
    """How often the least common pair of levels of two covariates is seen."""
    least = []
    for i, j in itertools.combinations(range(len(sizes)), 2):
        both = (codes[:, i] >= 0) & (codes[:, j] >= 0)
        counts = np.bincount(codes[both, i] * sizes[j] + codes[both, j], minlength=sizes[i] * sizes[j])
        least.append(int(counts.min()))
    return min(least)


def find(discrete: str | int | Sequence[str | int] | None, made: dict[str, list[int]], x: np.ndarray) -> tuple[Discrete, ...]:
    """The discrete covariates that are asked for, by name or position, of those that make columns of the table.

    Raises:
        ValueError, TypeError: none of that name, or its columns are not its own.
    """
    known = list(made)
    out = []
    for one in asked(discrete, known):
        columns = made[one]
        others = [name for name in known if name != one and set(made[name]) & set(columns)]
        if others:
            raise ValueError(
                f'"{one}" is discrete and shares columns with {listed(others)} in the formula; give the interaction '
                "as a column of its own"
            )
        out.append(Discrete.of(one, columns, x))
    return tuple(out)


def asked(discrete: str | int | Sequence[str | int] | None, known: list[str]) -> list[str]:
    """Names, each once, from names or positions among the known ones.

    Raises:
        ValueError, TypeError: one that is not there.
    """
    if isinstance(discrete, (str, int)):
        discrete = [discrete]
    out = []
    for one in discrete or ():
        if isinstance(one, (int, np.integer)) and not isinstance(one, bool):
            if not -len(known) <= one < len(known):
                raise ValueError(f"discrete holds position {one}, and there are {len(known)} covariates")
            out.append(known[one])
        elif isinstance(one, str):
            if one not in known:
                raise ValueError(f'discrete holds "{one}", which is no covariate; they are {listed(known)}')
            out.append(one)
        else:
            raise TypeError(f"discrete must hold names or positions of covariates, got {one!r}")
    return list(dict.fromkeys(out))


def cell_table(discrete: tuple[Discrete, ...], cells: Cells, probabilities: np.ndarray) -> pd.DataFrame:
    """One row a cell: the level of each covariate, and its probability."""
    columns = {one.name: np.asarray(one.labels)[cells.levels[:, j]] for j, one in enumerate(discrete)}
    return pd.DataFrame(columns | {"probability": probabilities})
