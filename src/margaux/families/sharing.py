"""Estimators over several processes: each holds its rows of a table, which all then hold whole, and visits its share of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import PyTree

from ..answers.fit import Fit
from ..distributed import gathered
from ..engine.share import ALONE, Shard, Share, together
from ..fitting import fit as run


def pooled(*tables: Any) -> tuple[Any, ...]:
    """Tables, columns, and what is neither, as they are; those that were shared (`margaux.shard`) one below the other, and
    behind them whether any was.

    Raises:
        TypeError: some are shared and others are not.
    """
    shared = [isinstance(table, Shard) for table in tables]
    if not any(shared):
        return (*tables, False)
    with together(True):
        for table, is_shared in zip(tables, shared, strict=True):
            if not is_shared and np.ndim(table) > 0:
                raise TypeError("share all tables and columns, as fit(margaux.shard(X), margaux.shard(y)), or none of them")
    return (*(gathered(table.data) if is_shared else table for table, is_shared in zip(tables, shared, strict=True)), True)


def equal(n: int, shared: bool) -> Share:
    """Shares of n units that all processes hold, as equal as may be.

    Raises:
        ValueError: fewer units than processes.
    """
    return Share.equal(n) if shared else ALONE


def fit_by_shares(model: Any, units: PyTree, share: Share, *parts: Any, **settings: Any) -> Fit:
    """`margaux.fit` of units that every process holds: each visits its own, and all have the rows of all in the end."""
    if share.alone:
        return run(model, units, *parts, **settings)
    return run(model, Shard(share.cut(units), share), *parts, **settings).made_whole(units)
