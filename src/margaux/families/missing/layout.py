"""From a checked table to the rows of a likelihood."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from .blocks import Padded, padded
from .completed import Completions
from .discrete import Cells
from .observed import Groups, Params, Rows, arrange
from .standard import Standard
from .table import Table


class Arranged(NamedTuple):
    """Rows ready for a likelihood: each is one of the table, or a completion of one; `owner` says of which."""

    rows: Rows
    groups: Groups
    owner: np.ndarray
    completions: Completions | None = None

    @property
    def n(self) -> int:
        """Rows of the table."""
        return len(self.owner) if self.completions is None else len(self.completions.design)

    def padded(self) -> Padded:
        """Rows as programs see them; completions as they are."""
        if self.completions is None:
            return padded(self.rows, self.groups)
        return Padded(self.rows, self.groups, np.arange(len(self.owner)))

    def reordered(self, order: np.ndarray, groups: Groups) -> Arranged:
        """With rows in another order."""
        rows, one = jax.tree.map(lambda leaf: leaf[order], self.rows), self.completions
        if one is not None:
            one = one._replace(owner=one.owner[order], cell=one.cell[order])
        return Arranged(rows, groups, self.owner[order], one)

    def wide(self, params: Params) -> Params:
        """Parameters of the rows as they stand."""
        return params if self.completions is None else self.completions.widened(params)

    def totals(self, values: np.ndarray, share: np.ndarray | None) -> np.ndarray:
        """Values of the rows, (N, ...), averaged over the completions of each row of the table."""
        out = np.zeros((self.n, *values.shape[1:]))
        weights = np.ones(len(values)) if share is None else share
        np.add.at(out, self.owner, weights.reshape(-1, *[1] * (values.ndim - 1)) * values)
        return out


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a table is laid out for a fit: columns that are fixed, discrete and Gaussian, and in which units.

    Attributes:
        table: of the fit. standard: of its Gaussian columns and those of discrete covariates. cells: where there are any.
    """

    table: Table
    standard: Standard
    cells: Cells | None

    @staticmethod
    def of(table: Table) -> Layout:
        cells = Cells.of(table.discrete, table.codes(table.x)) if table.discrete else None
        return Layout(table, Standard.of(table.x[:, table.gaussian], table.x[:, table.scored]), cells)

    def arranged(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray, offset: np.ndarray) -> Arranged:
        """Rows of a table (n, p) in the columns of the fit, standardised; all completions of those with discrete holes.

        Raises:
            ValueError: a discrete value that the fit had not, too many completions.
        """
        fixed = np.concatenate([np.ones((len(x), 1)), x[:, self.table.fixed]], axis=1)
        inner = self.standard.apply(x[:, self.table.gaussian])
        if self.cells is None:
            rows, groups, order = arrange(inner, fixed, y, weights, offset)
            return Arranged(rows, groups, order)
        owner, cell = self.cells.completions(self.table.codes(x))
        wide = np.concatenate([fixed[owner], self.cells.dummies[cell]], axis=1)
        rows, groups, order = arrange(inner[owner], wide, y[owner], weights[owner], offset[owner])
        centre, width = self.standard.scored
        turn = self.cells.turn(fixed.shape[1], inner.shape[1], (self.cells.scores - centre) / width)
        designs, design = np.unique(fixed, axis=0, return_inverse=True)
        parts: Any = (owner[order], cell[order], self.cells.features, turn, designs, design.ravel())
        completions = Completions(*parts)
        return Arranged(rows, groups, owner[order], completions)
