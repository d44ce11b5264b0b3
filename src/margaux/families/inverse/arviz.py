"""What an inverse problem gives to ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...answers.arviz import of_rows, renamed
from ...showing.arviz import Parts
from ...showing.parts import check_fitted

if TYPE_CHECKING:
    from .estimator import SparseInverse


def arviz_parts(fitted: SparseInverse, n_draws: int, key: int) -> Parts:
    """The signal x of an inverse problem."""
    check_fitted(fitted)
    parts = of_rows(fitted, n_draws, key, None)
    (name,) = parts.posterior
    return renamed(parts, "x", [f"x_dim_{k}" for k in range(parts.posterior[name].ndim - 2)], {}, {})
