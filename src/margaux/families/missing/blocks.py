"""Rows of a likelihood as programs see them: blocks alike, each with as many rows of every group, at sizes of the ladder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ...engine.share import Share
from ...numerics.ladder import rung
from .observed import Groups, Rows

#: rows of a block, about: matrices of so many stay in a processor's cache
BLOCK = 1024


class Padded(NamedTuple):
    """Blocks of rows one after the other, with rows of weight zero that fill them up, so that tables of a similar size find the
    same programs.

    groups: those of a block. place: (n,), where each of the n rows given now stands.
    """

    rows: Rows
    groups: Groups
    place: np.ndarray

    def restored(self, values: Any) -> Any:
        """Of arrays with an entry a row, those of the rows that were given, as NumPy arrays."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[self.place], values)


def padded(rows: Rows, groups: Groups) -> Padded:
    """The rows of a group are dealt out to the blocks in turn: some blocks are a sample of the table."""
    n = len(rows.y)
    blocks = -(-n // BLOCK) or 1
    shares = [rung(-(-count // blocks)) for count, _ in groups]
    length = sum(shares)
    source, place = np.zeros((rung(blocks), length), int), np.zeros(n, int)
    first = at = 0
    for (count, _), share in zip(groups, shares, strict=True):
        row = np.arange(count)
        place[first : first + count] = row % blocks * length + at + row // blocks
        source[:, at : at + share] = first
        first, at = first + count, at + share
    source = source.ravel()
    source[place] = np.arange(n)
    weights = np.zeros(len(source))
    weights[place] = np.asarray(rows.weights)
    out = jax.tree.map(lambda leaf: np.asarray(leaf)[source], rows)
    return Padded(out._replace(weights=weights), tuple((s, w) for s, (_, w) in zip(shares, groups, strict=True)), place)


def dealt(rows: Rows, groups: Groups, share: Share) -> tuple[Rows, Groups, np.ndarray]:
    """The rows that this process visits, dealt out from every group in turn; the groups of these; and where the rows of the
    processes, one process after the other, stand among all."""
    if share.alone:
        return rows, groups, np.arange(len(rows.y))
    count, ends = len(share.sizes), np.cumsum([size for size, _ in groups])
    hands = [[np.arange(end - size + p, end, count) for (size, _), end in zip(groups, ends, strict=True)] for p in range(count)]
    own = hands[share.index]
    kept = tuple((len(ids), width) for ids, (_, width) in zip(own, groups, strict=True) if len(ids))
    mine = np.concatenate(own)
    turn = np.concatenate([ids for hand in hands for ids in hand])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[mine], rows), kept, turn


def summed(of: Callable[[Rows], PyTree], rows: Rows, groups: Groups) -> Any:
    """What a function of a block, a sum over its rows by their weights, comes to over all blocks up to the last with weight."""
    blocks = _blocks(rows, groups)
    count = len(blocks.y)
    if count == 1:
        return of(rows)

    def one(i: Any) -> PyTree:
        return of(jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, 0, keepdims=False), blocks))

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one, 0))
    visited = jnp.max(jnp.where(jnp.any(blocks.weights > 0, axis=1), jnp.arange(count) + 1, 0))
    return jax.lax.fori_loop(0, visited, lambda i, state: jax.tree.map(jnp.add, state, one(i)), zero)


def each(of: Callable[[Rows], PyTree], rows: Rows, groups: Groups) -> Any:
    """What a function of a block says of each of its rows, one block after the other."""
    blocks = _blocks(rows, groups)
    if len(blocks.y) == 1:
        return of(rows)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.lax.map(of, blocks))


def _blocks(rows: Rows, groups: Groups) -> Rows:
    length = sum(count for count, _ in groups)
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf) // length, length, *leaf.shape[1:]), rows)
