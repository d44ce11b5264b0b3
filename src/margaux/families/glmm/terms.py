"""Random terms of a design."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from .covariances import Effects, Places, effects, indicators, place_columns, places
from .groups import Grouping, grouping
from .syntax import PLACED, Syntax


@dataclasses.dataclass(frozen=True)
class Term:
    """Random effects of one grouping factor.

    Attributes:
        name: of the grouping factor, as "herd" or "g:h".
        codes: (N,) the group of each row; -1 in new rows for a group not seen before.
        labels: of the groups, in the order of the codes.
        Z: (N, k) the random columns; columns: their names.
        structure: of the covariance of a group's k effects: us, diag, cs, ar1, mat or exp.
        positions: (k, 1 or 2) times or coordinates of the effects, for ar1, mat and exp.
        places: (N,) which of the k places a row is at, for ar1, mat and exp; Z has a one there.
        text: the term as in the formula.
    """

    name: str
    codes: np.ndarray
    labels: pd.Index
    Z: np.ndarray
    columns: list[str]
    structure: str
    positions: np.ndarray | None
    places: np.ndarray | None
    text: str


def random_terms(
    syntax: Syntax, frame: pd.DataFrame, data: pd.DataFrame
) -> tuple[tuple[Term, ...], tuple[Grouping, ...], tuple[Effects | Places, ...]]:
    """The random terms of a formula, their grouping factors, and how their columns are made.

    Args:
        frame: tidy columns. data: the table as it came.

    Raises:
        TypeError, ValueError: a term cannot be estimated, whatever the family.
    """
    terms, groups, columns = [], [], []
    for bar in syntax.bars:
        codes, group = grouping(bar.group, frame, bar.text, bar.structure in PLACED)
        if bar.structure in PLACED:
            at, recipe = places(bar, frame, data)
            Z, names, positions = indicators(at, len(recipe.positions)), place_columns(recipe), recipe.positions
        else:
            Z, recipe = effects(bar, frame)
            names, positions, at = recipe.recipe.names, None, None
            most = int(np.bincount(codes).max())
            if len(names) > most:
                raise ValueError(
                    f'{bar.text} has {len(names)} random columns, and no level of "{group.name}" has more than {most} rows; '
                    "leave columns out"
                )
        terms.append(Term(group.name, codes, group.labels, Z, names, bar.structure, positions, at, bar.text))
        groups.append(group)
        columns.append(recipe)
    _check_repeated(terms)
    return tuple(terms), tuple(groups), tuple(columns)


def _check_repeated(terms: list[Term]) -> None:
    """No two terms have the same column for the same groups, whatever these are called."""
    for j, term in enumerate(terms):
        for before in terms[:j]:
            same = len(before.labels) == len(term.labels) and np.array_equal(_renumbered(before.codes), _renumbered(term.codes))
            shared = [name for name in term.columns if name in before.columns]
            if not same or not shared or term.structure in PLACED or before.structure in PLACED:
                continue
            if before.name == term.name:
                mend = (
                    f"write (0 + ... | {term.name}) for slopes without an intercept"
                    if shared == ["Intercept"]
                    else "leave one out"
                )
                if before.text == term.text:
                    raise ValueError(f"{term.text} stands in the formula twice; write it once")
                raise ValueError(f'{before.text} and {term.text} both have the random column "{shared[0]}"; {mend}')
            raise ValueError(
                f'"{before.name}" and "{term.name}" group the rows in the same way, so {before.text} and {term.text} cannot be '
                "told apart; leave one out"
            )


def _renumbered(codes: np.ndarray) -> np.ndarray:
    """Codes by first appearance, the same for groups that differ in their labels only."""
    return pd.factorize(codes)[0]
