"""What a sparse mixed model gives to ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...answers.arviz import of_rows, renamed
from ...showing.arviz import Parts
from ...showing.parts import check_fitted

if TYPE_CHECKING:
    from .estimator import SparseMixedLogistic


def arviz_parts(fitted: SparseMixedLogistic, n_draws: int, key: int) -> Parts:
    r"""Random effects $\sigma x_j$ of the groups."""
    check_fitted(fitted)
    parts = of_rows(fitted, n_draws, key, "X")
    parts.posterior = {name: fitted.sigma_ * value for name, value in parts.posterior.items()}
    coords = {"group": np.asarray(fitted.groups_), "column": fitted._names}
    parts.constant["group_code"] = parts.constant.pop("group")
    return renamed(parts, "random_effects", ["group"], coords, {"X": ["row", "column"], "group_code": ["row"]})
