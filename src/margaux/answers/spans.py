"""Grids of units of their own size, and of units whose densities take long, shared out among those that are visited at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ..esteps.held import HeldQuadrature

if TYPE_CHECKING:
    from ..esteps import Quadrature


def by_level(estep: Quadrature, rows: dict[str, Any], asked: np.ndarray) -> list[tuple[np.ndarray, Quadrature]]:
    """Places among the units asked for, and the grid that these have by the `level` of their rows."""
    levels = rows["level"][asked]
    return [(np.flatnonzero(levels == level), estep.at_level(int(level))) for level in np.unique(levels)]


def in_order(parts: list[tuple[PyTree, dict[str, np.ndarray]]], places: list[np.ndarray]) -> tuple[PyTree, dict[str, np.ndarray]]:
    """What was found of units in parts, on one axis in the order that was asked for."""
    back = np.argsort(np.concatenate(places))
    return jax.tree.map(lambda *leaf: np.concatenate(leaf)[back], *parts)


class Lanes(NamedTuple):
    """Pieces of the grids of units, side by side.

    Attributes:
        units: the unit of each lane, by its place (l,). span: its pieces, from and up to (l, 2). parts: lanes of each unit.
    """

    units: np.ndarray
    span: np.ndarray
    parts: int


def shared_out(estep: HeldQuadrature, rows: Any, chosen: np.ndarray, at_once: int) -> Lanes:
    """Lanes of the chosen units: of fewer than are visited at once several each, since a visit is as long as its longest lane."""
    pieces = np.full(len(chosen), int(estep.pieces))
    if np.ndim(rows["mean"]) == 3:  # a grid for each Gaussian that is there; these come first
        pieces = pieces * np.maximum(np.sum(rows["log_share"][chosen] > -np.inf, axis=1), 1)
    parts = int(np.clip(at_once // max(len(chosen), 1), 1, pieces.max(initial=1)))
    cuts = np.round(pieces[:, None] * np.arange(parts + 1) / parts).astype(np.int32)
    span = np.stack([cuts[:, :-1], cuts[:, 1:]], axis=-1).reshape(-1, 2)
    return Lanes(np.repeat(np.arange(len(chosen)), parts), span, parts)


def merged(value: PyTree, log_marginal: np.ndarray, parts: int) -> tuple[PyTree, np.ndarray]:
    """Of units, from parts of their points one after the other: what is linear in weights, and the logarithm of their sum."""
    logs = log_marginal.reshape(-1, parts)
    whole = np.logaddexp.reduce(logs, axis=1)
    shares = np.exp(logs - np.where(np.isneginf(whole), 0.0, whole)[:, None])

    def one(leaf: np.ndarray) -> np.ndarray:
        each = leaf.reshape(-1, parts, *leaf.shape[1:])
        weights = shares.reshape(*shares.shape, *[1] * (leaf.ndim - 1))
        # Parts without weight may have no value.
        return np.sum(np.where(weights > 0, weights * each, 0.0), axis=1)

    return jax.tree.map(one, value), whole
