"""Rows as units: the groups of the coarsest factor, padded to one size, or all rows as one where factors are crossed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd

from ...numerics.precision import default_dtype, precision
from .cells import cells_of
from .factor import Factor

if TYPE_CHECKING:
    from .base import AbstractResponse
    from .formula import Design, Term


#: numbers that padded units may hold
MOST = 400_000_000


class Layout(NamedTuple):
    """Units of a design.

    Attributes:
        units: data of the units, see `margaux.families.glmm.model.Mixed`. factors: as the units have them.
        rows: the rows of the design that each unit has (n, rows), -1 in padding. names: of the terms, each once.
        groups: of each term the group of the design that each group of each unit is (n, groups), -1 where a unit has fewer.
    """

    units: dict[str, Any]
    factors: tuple[Factor, ...]
    rows: np.ndarray
    names: tuple[str, ...]
    groups: dict[str, np.ndarray]

    @property
    def width(self) -> int:
        """Latents of a unit."""
        return sum(factor.size for factor in self.factors)


def laid_out(design: Design, response: AbstractResponse, whole: bool = False) -> Layout:
    """The units of a design whose terms are nested in one of them; one unit where none is coarser than all others, or where
    all rows are asked for together (`whole`)."""
    names = _named(design.terms)
    coarser = (term for term in design.terms if all(_nested(other.codes, term.codes) for other in design.terms))
    top = None if whole else next(coarser, None)
    unit = np.zeros(len(design.y), int) if top is None else np.unique(top.codes, return_inverse=True)[1]
    _check_size(unit, design, top)
    rows = _rows_of(unit)
    with precision(default_dtype(None)):
        y, trials = (None if part is None else jnp.asarray(part) for part in (design.y, design.trials))
        base = np.asarray(response.log_base(y, trials), float)  # type: ignore[arg-type]
    there = rows >= 0
    at = np.where(there, rows, rows[:, :1])  # padding repeats a row of the unit, with no weight
    units: dict[str, Any] = {"X": design.X[at], "y": design.y[at].astype(float), "base": base[at], "offset": design.offset[at]}
    units["weight"] = np.where(there, design.weights[at], 0.0)
    if design.trials is not None:
        units["trials"] = design.trials[at].astype(float)
    units["Z"] = {name: term.Z[at] for name, term in zip(names, design.terms, strict=True)}
    units["code"], groups, factors = {}, {}, []
    for name, term in zip(names, design.terms, strict=True):
        local, groups[name] = _local(term.codes, unit, rows)
        units["code"][name] = local[at].astype(np.int32)
        places = () if term.positions is None else tuple(map(tuple, np.atleast_2d(term.positions).tolist()))
        factors.append(Factor(name, term.Z.shape[1], groups[name].shape[1], term.structure, places))
    if len(rows) == 1 and not whole:
        cells = cells_of(tuple(factors), {name: code[0] for name, code in units["code"].items()})
        units |= {} if cells is None else {"cells": {name: value[None] for name, value in cells.items()}}
    return Layout(units, tuple(factors), rows, names, groups)


def _check_size(unit: np.ndarray, design: Design, top: Term | None) -> None:
    """Raises: ValueError: groups padded to the largest are more than memory should be asked for."""
    sizes = np.bincount(unit)
    numbers = sizes.size * int(sizes.max()) * (design.X.shape[1] + sum(term.Z.shape[1] + 1 for term in design.terms) + 5)
    if top is not None and numbers > MOST:
        raise ValueError(
            f'the {sizes.size:,} groups of "{top.name}" have up to {sizes.max():,} rows, in the middle {np.median(sizes):,.0f}; '
            f"padded to one size they take {8 * numbers / 2**30:.0f} GiB: split the largest groups, or leave them out"
        )


def _named(terms: tuple[Term, ...]) -> tuple[str, ...]:
    """Names of terms, numbered where a grouping factor has several as lme4 does: g, g.1."""
    out: list[str] = []
    for term in terms:
        count = sum(name == term.name or name.startswith(term.name + ".") for name in out)
        out.append(term.name if count == 0 else f"{term.name}.{count}")
    return tuple(out)


def _nested(inner: np.ndarray, outer: np.ndarray) -> bool:
    """Whether every group of the first is within one of the second."""
    pairs = pd.DataFrame({"inner": inner, "outer": outer}).drop_duplicates()
    return not pairs["inner"].duplicated().any()


def _rows_of(unit: np.ndarray) -> np.ndarray:
    """Rows of each unit (n, most), -1 in padding."""
    sizes = np.bincount(unit)
    order = np.argsort(unit, kind="stable")
    column = np.arange(len(unit)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    out = np.full((len(sizes), sizes.max()), -1)
    out[unit[order], column] = order
    return out


def _local(codes: np.ndarray, unit: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each row its group's number within the unit (N,), and the groups of each unit (n, most), -1 beyond."""
    pairs = pd.DataFrame({"unit": unit, "code": codes}).drop_duplicates().sort_values(["unit", "code"])
    place = pairs.groupby("unit").cumcount().to_numpy()
    groups = np.full((len(rows), place.max() + 1), -1)
    groups[pairs["unit"].to_numpy(), place] = pairs["code"].to_numpy()
    number = pd.Series(place, index=pd.MultiIndex.from_frame(pairs))
    return number.loc[pd.MultiIndex.from_arrays([unit, codes])].to_numpy(), groups
